//! A cache in memory for the tests: a plain encoder written straight from `certkv_core::layout`, and attention in f64.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::needless_range_loop,
    reason = "each test binary uses its part; formulas keep indices"
)]
mod data;
mod directions;
mod fine;
mod grouped;
mod page;

use certkv_codec::rotation::{self, Rotation};
use certkv_codec::spherical::Spherical;
use certkv_codec::turboquant;
use certkv_codec::{KeyGroups, KeyMetric};
use certkv_core::hash::splitmix64;
use certkv_core::layout::{key_index, read_code, value_index, write_code};
use certkv_core::round::{Fp, down, nearest, up, up_f32};
use certkv_core::summary::SUMMARY_BYTES;
use certkv_core::{Dtype, ErrorSummary, Geometry, GroupCode, KeyFormat, PageCode, Pairing, RecordLayout, ValueFormat};
use certkv_kernel::{Block, BlockSource, Tail};
pub use data::{KINDS, token};

/// Deterministic random numbers.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        splitmix64(self.0)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (self.unit().max(1e-300), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// One block's originals and record.
pub struct Stored {
    pub keys: Vec<u16>,
    pub values: Vec<u16>,
    pub record: Vec<u8>,
}

/// One KV head's cache.
pub struct Cache {
    pub geometry: Geometry,
    pub layout: RecordLayout,
    pub queries: Vec<f32>,
    pub blocks: Vec<Stored>,
    pub tail_keys: Vec<u16>,
    pub tail_values: Vec<u16>,
    pub tail: usize,
    pub centre: Vec<f64>,
    /// Key centre and balance scale, of a calibrated format.
    pub metric: Option<(Vec<f32>, Vec<f32>)>,
    /// Groups of keys of unlike width.
    pub groups: Option<KeyGroups>,
    /// Directions of spherical keys.
    pub books: Option<Spherical>,
    /// Per block: keys exact, values exact.
    pub exact: Vec<(bool, bool)>,
    /// Per block: values left unread, unless they are exact.
    pub skip: Vec<bool>,
    /// Per block: keys, values read with residuals, unless they are exact or unread.
    pub fine: Vec<(bool, bool)>,
}

/// Blocks with their centre, and what their keys are coded in.
pub struct Centred<'a> {
    pub blocks: Vec<Block<'a>>,
    pub centre: Vec<f32>,
    pub metric: Option<KeyMetric<'a>>,
}

impl BlockSource for Centred<'_> {
    fn block(&self, index: usize) -> Block<'_> {
        self.blocks.block(index)
    }

    fn centre(&self) -> &[f32] {
        &self.centre
    }

    fn key_metric(&self, _: KeyFormat) -> Option<KeyMetric<'_>> {
        self.metric
    }
}

/// A centre near the mean of keys of `kind`, or not, and scales from an eighth to eight.
fn metric(kind: usize, dim: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut rng = Rng(splitmix64(seed ^ 55));
    let mean = |c: usize| match kind {
        1 if c % 37 == 3 => 20.0,
        3 => 1.0,
        4 if c.is_multiple_of(2) => 0.75,
        _ => 0.0,
    };
    let centre = (0..dim).map(|c| (mean(c) + 0.2 * rng.normal()) as f32).collect();
    let balance = (0..dim).map(|_| (6.0 * rng.unit() - 3.0).exp2() as f32).collect();
    (centre, balance)
}

fn in_metric<'a>(
    metric: &'a Option<(Vec<f32>, Vec<f32>)>,
    groups: &'a Option<KeyGroups>,
    books: &'a Option<Spherical>,
) -> Option<KeyMetric<'a>> {
    if let Some(books) = books {
        return Some(KeyMetric::directions(books));
    }
    let metric = metric.as_ref().map(|(c, b)| KeyMetric::new(c, b).unwrap());
    metric.map(|metric| groups.as_ref().map_or(metric, |groups| metric.grouped(groups).unwrap()))
}

pub fn geometry(heads: usize, dim: usize, store: Dtype) -> Geometry {
    Geometry { store, ..Geometry::new(1, heads, 1, dim).unwrap() }
}

impl Cache {
    pub fn new(format: &str, dim: usize, heads: usize, tokens: usize, kind: usize, seed: u64) -> Self {
        let mut rng = Rng(splitmix64(seed));
        let store = if format.starts_with("bf16") || format.contains("-bf16") || format.contains("k8bf16") {
            Dtype::Bf16
        } else {
            Dtype::F16
        };
        let geometry = geometry(heads, dim, store);
        let layout = RecordLayout::new(&geometry, format.parse().unwrap()).unwrap();
        let block = layout.tokens();
        let sharp = if kind == 5 { 0.3 } else { [0.5, 1.0, 3.0][rng.below(3)] };
        let queries = (0..heads * dim).map(|_| (rng.normal() * sharp) as f32).collect();
        let (full, tail) = (tokens / block, tokens % block);
        let centre: Vec<f64> = (0..dim).map(|c| if c % 3 == 0 { 0.25 } else { 0.0 }).collect();
        let side = |rng: &mut Rng, n: usize, value: bool, at: usize| -> Vec<u16> {
            (0..n).flat_map(|t| token(rng, kind, dim, value, at + t)).map(|x| store.encode16(x as f32)).collect()
        };
        let metric = layout.format.key.is_calibrated().then(|| metric(kind, dim, seed));
        let groups = grouped::widths(&layout, seed).map(|bits| KeyGroups::new(&bits, Pairing::Half, dim).unwrap());
        let mut apart = Rng(splitmix64(seed ^ 71));
        let books = directions::books(&layout, seed, || token(&mut apart, kind, dim, false, 1));
        let in_metric = in_metric(&metric, &groups, &books);
        let blocks = (0..full)
            .map(|b| {
                let keys = side(&mut rng, block, false, b * block);
                let values = side(&mut rng, block, true, b * block);
                let record = encode_in(in_metric, &layout, &keys, &values, &centre);
                Stored { keys, values, record }
            })
            .collect();
        // Rows past the tail are NaN: they must never be read.
        let mut tail_keys = side(&mut rng, tail, false, full * block);
        let mut tail_values = side(&mut rng, tail, true, full * block);
        tail_keys.resize(block * dim, 0x7fff);
        tail_values.resize(block * dim, 0x7fff);
        let exact = vec![(false, false); full];
        let (skip, fine) = (vec![false; full], vec![(false, false); full]);
        Self {
            geometry,
            layout,
            queries,
            blocks,
            tail_keys,
            tail_values,
            tail,
            centre,
            metric,
            groups,
            books,
            exact,
            skip,
            fine,
        }
    }

    /// Promotes sides at random.
    pub fn promote(&mut self, seed: u64, share: f64) {
        let mut rng = Rng(splitmix64(seed ^ 77));
        for e in &mut self.exact {
            *e = (rng.unit() < share, rng.unit() < share);
        }
    }

    /// Skips values at random.
    pub fn skip(&mut self, seed: u64, share: f64) {
        let mut rng = Rng(splitmix64(seed ^ 99));
        self.skip.iter_mut().for_each(|s| *s = rng.unit() < share);
    }

    /// Reads sides with their residuals at random, in a format that has any.
    pub fn refine(&mut self, seed: u64, share: f64) {
        let mut rng = Rng(splitmix64(seed ^ 121));
        for f in self.fine.iter_mut().filter(|_| !self.layout.format.refine.is_none()) {
            *f = (rng.unit() < share, rng.unit() < share);
        }
    }

    pub fn source(&self) -> Vec<Block<'_>> {
        self.blocks
            .iter()
            .zip(self.exact.iter().zip(&self.skip).zip(&self.fine))
            .map(|(b, ((e, skip), fine))| Block {
                left_out: 0,
                record: &b.record,
                keys: e.0.then_some(&b.keys[..]),
                values: e.1.then_some(&b.values[..]),
                skip_values: *skip,
                fine_keys: fine.0,
                fine_values: fine.1,
            })
            .collect()
    }

    /// [`Cache::source`] with the centre, for skipped values.
    pub fn centred(&self) -> Centred<'_> {
        let centre = self.centre.iter().map(|&c| c as f32).collect();
        Centred { blocks: self.source(), centre, metric: self.key_metric() }
    }

    /// What the keys are coded in.
    pub fn key_metric(&self) -> Option<KeyMetric<'_>> {
        in_metric(&self.metric, &self.groups, &self.books)
    }

    pub fn tail(&self) -> Option<Tail<'_>> {
        let norm = self.centre.iter().map(|x| x * x).sum::<f64>().sqrt();
        (self.tail > 0).then(|| Tail {
            keys: &self.tail_keys,
            values: &self.tail_values,
            tokens: self.tail,
            centre_norm: up_f32(norm),
        })
    }

    /// (key, value) rows in f64: the originals, or what the pass uses.
    pub fn rows(&self, used: bool) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let (dim, store, tokens) = (self.layout.dim, self.layout.store, self.layout.tokens());
        let plain = |side: &[u16], t: usize| -> Vec<f64> {
            side[t * dim..(t + 1) * dim].iter().map(|&b| f64::from(store.decode16(b))).collect()
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for ((b, e), (skip, fine)) in self.blocks.iter().zip(&self.exact).zip(self.skip.iter().zip(&self.fine)) {
            let mut decoded = decode(self.key_metric(), &self.layout, &b.record);
            fine::read(&self.layout, &b.record, *fine, &mut decoded);
            if let Some(metric) = self.key_metric() {
                decoded.0.iter_mut().for_each(|key| metric.unfold(key));
            }
            for t in 0..tokens {
                keys.push(if used && !e.0 { decoded.0[t].clone() } else { plain(&b.keys, t) });
                values.push(match used && !e.1 {
                    true if *skip && !self.layout.format.value.is_exact() => self.centre.clone(),
                    true => decoded.1[t].clone(),
                    false => plain(&b.values, t),
                });
            }
        }
        for t in 0..self.tail {
            keys.push(plain(&self.tail_keys, t));
            values.push(plain(&self.tail_values, t));
        }
        (keys, values)
    }

    /// Attention of one head in f64 over `tokens` rows: output and log-mass.
    pub fn attention(&self, rows: &(Vec<Vec<f64>>, Vec<Vec<f64>>), head: usize, q: &[f32]) -> (Vec<f64>, f64) {
        let dim = self.layout.dim;
        attention(&q[head * dim..(head + 1) * dim], &rows.0, &rows.1, f64::from(self.geometry.scale))
    }
}

pub fn attention(q: &[f32], keys: &[Vec<f64>], values: &[Vec<f64>], scale: f64) -> (Vec<f64>, f64) {
    let z: Vec<f64> =
        keys.iter().map(|k| scale * k.iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum::<f64>()).collect();
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut l, mut o) = (0.0, vec![0.0; q.len()]);
    for (z, v) in z.iter().zip(values) {
        let w = (z - m).exp();
        l += w;
        o.iter_mut().zip(v).for_each(|(o, v)| *o += w * v);
    }
    o.iter_mut().for_each(|o| *o /= l);
    (o, m + l.ln())
}

pub fn distance(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum::<f64>().sqrt()
}

pub fn norm(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn put(section: &mut [u8], meta: Dtype, i: usize, x: f64) {
    match meta {
        Dtype::F32 => section[4 * i..4 * i + 4].copy_from_slice(&(x as f32).to_le_bytes()),
        _ => section[2 * i..2 * i + 2].copy_from_slice(&meta.encode16(x as f32).to_le_bytes()),
    }
}

fn get(section: &[u8], meta: Dtype, i: usize) -> f64 {
    match meta {
        Dtype::F32 => f64::from(f32::from_le_bytes(section[4 * i..4 * i + 4].try_into().unwrap())),
        _ => f64::from(meta.decode16(u16::from_le_bytes(section[2 * i..2 * i + 2].try_into().unwrap()))),
    }
}

type Order<'a> = &'a dyn Fn(usize, usize) -> usize;

fn key_page<'a>(l: &'a RecordLayout, code: PageCode, order: Order<'a>) -> page::Side<'a> {
    page::Side { code, group: l.format.key.group(l.dim), codes: &l.key_codes, scales: &l.key_scales, order }
}

fn value_page<'a>(l: &'a RecordLayout, code: PageCode, order: Order<'a>) -> page::Side<'a> {
    page::Side { code, group: l.format.value.group(l.dim), codes: &l.value_codes, scales: &l.value_scales, order }
}

/// Encodes one block; the error summary is measured on the decoded block.
pub fn encode(l: &RecordLayout, keys: &[u16], values: &[u16], centre: &[f64]) -> Vec<u8> {
    encode_in(None, l, keys, values, centre)
}

/// Scale and offset of channel `c`, math.md (2.1), (2.2); with no codes (2.9c).
fn channel_scale(side: &[Vec<f64>], c: usize, half: f64, fp: Fp) -> (f64, f64) {
    let all = || side.iter().map(|row| row[c]);
    let (lo, hi) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    if half == 0.0 {
        let z = nearest((all().sum::<f64>() / side.len() as f64).clamp(lo, hi), fp);
        return (up(2.0 * (hi - z).max(z - lo), fp), z);
    }
    let z = nearest(lo + half * ((hi - lo) / (2.0 * half - 1.0)), fp);
    (up(((hi - z) / (half - 1.0)).max((z - lo) / half), fp), z)
}

/// The same with keys in a metric, where their errors are measured.
pub fn encode_in(
    metric: Option<KeyMetric<'_>>,
    l: &RecordLayout,
    keys: &[u16],
    values: &[u16],
    centre: &[f64],
) -> Vec<u8> {
    let (dim, n, count) = (l.dim, l.tokens(), l.count());
    let plain = |side: &[u16]| -> Vec<Vec<f64>> {
        (0..n).map(|t| (0..dim).map(|c| f64::from(l.store.decode16(side[t * dim + c]))).collect()).collect()
    };
    let (mut k, v) = (plain(keys), plain(values));
    let key_norm = k.iter().map(|k| norm(k)).fold(0.0, f64::max);
    if let Some(metric) = metric {
        k.iter_mut().for_each(|k| metric.fold(k));
    }
    let mut record = vec![0u8; l.bytes];
    let words = |out: &mut [u8], side: &[u16]| {
        out.chunks_exact_mut(2).zip(side).for_each(|(o, s)| o.copy_from_slice(&s.to_le_bytes()));
    };
    match l.format.key {
        KeyFormat::Channel { bits, meta } => {
            let (fp, half) = (Fp::from(meta), f64::from((1u16 << bits) / 2));
            for c in 0..dim {
                let (sigma, z) = channel_scale(&k, c, half, fp);
                put(&mut record[l.key_scales.clone()], meta, c, sigma);
                put(&mut record[l.key_scales.clone()], meta, dim + c, z);
                for t in 0..n {
                    let code = if sigma == 0.0 { 0.0 } else { ((k[t][c] - z) / sigma).round_ties_even() };
                    let at = key_index(t, c, dim);
                    write_code(&mut record[l.key_codes.clone()], bits.into(), count, at, (code + half) as u8);
                }
            }
        }
        KeyFormat::Token { bits, .. } => {
            let (group, bits) = (l.format.key.group(dim), usize::from(bits));
            let half = (1u32 << (bits - 1)) as f64;
            for t in 0..n {
                for g in 0..dim / group {
                    let part = &k[t][g * group..(g + 1) * group];
                    let most = part.iter().fold(0.0f64, |a, x| a.max(x.abs()));
                    let s = up(most / (half - 1.0), Fp::from(Dtype::F16));
                    put(&mut record[l.key_scales.clone()], Dtype::F16, g * n + t, s);
                    for (i, x) in part.iter().enumerate() {
                        let code = if s == 0.0 { 0.0 } else { (x / s).round_ties_even().clamp(1.0 - half, half - 1.0) };
                        let at = key_index(t, g * group + i, dim);
                        write_code(&mut record[l.key_codes.clone()], bits, count, at, (code + half) as u8);
                    }
                }
            }
        }
        KeyFormat::Turbo { bits, .. } => {
            let coded = turboquant::encode_bytes(&k.concat(), dim, bits).unwrap();
            for t in 0..n {
                put(&mut record[l.key_scales.clone()], Dtype::F16, t, coded.radius[t]);
                for c in 0..dim {
                    let (at, code) = (key_index(t, c, dim), coded.codes[t * dim + c]);
                    write_code(&mut record[l.key_codes.clone()], usize::from(bits), count, at, code);
                }
            }
        }
        KeyFormat::Gtq { code: GroupCode::Directions(_) } => {
            directions::write(metric.unwrap().books().unwrap(), l, &k, &mut record);
        }
        KeyFormat::Gtq { .. } => grouped::write(metric.unwrap().groups().unwrap(), l, &k, &mut record),
        KeyFormat::Page { code, .. } => key_page(l, code, &|t, c| key_index(t, c, dim)).write(&k, &mut record),
        _ => words(&mut record[l.key_codes.clone()], keys),
    }
    match l.format.value {
        ValueFormat::Affine { bits, group } => {
            let (group, bits) = (usize::from(group), usize::from(bits));
            let levels = ((1u32 << bits) - 1) as f64;
            let groups = dim / group;
            for t in 0..n {
                for g in 0..groups {
                    let part = &v[t][g * group..(g + 1) * group];
                    let lo = part.iter().copied().fold(f64::INFINITY, f64::min);
                    let hi = part.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let z = down(lo, Fp::from(Dtype::F16));
                    let sigma = up((hi - z) / levels, Fp::from(Dtype::F16));
                    put(&mut record[l.value_scales.clone()], Dtype::F16, g * n + t, sigma);
                    put(&mut record[l.value_scales.clone()], Dtype::F16, (groups + g) * n + t, z);
                    for (i, x) in part.iter().enumerate() {
                        let code = if sigma == 0.0 { 0.0 } else { ((x - z) / sigma).round_ties_even() };
                        let at = value_index(t, g * group + i, dim);
                        write_code(&mut record[l.value_codes.clone()], bits, count, at, code.min(levels) as u8);
                    }
                }
            }
        }
        ValueFormat::Channel { bits } => {
            let (half, f16) = (f64::from((1u16 << bits) / 2), Fp::from(Dtype::F16));
            for c in 0..dim {
                let (sigma, z) = channel_scale(&v, c, half, f16);
                put(&mut record[l.value_scales.clone()], Dtype::F16, 2 * c, sigma);
                put(&mut record[l.value_scales.clone()], Dtype::F16, 2 * c + 1, z);
                for t in 0..n {
                    let code = if sigma == 0.0 { 0.0 } else { ((v[t][c] - z) / sigma).round_ties_even() };
                    let at = value_index(t, c, dim);
                    write_code(&mut record[l.value_codes.clone()], usize::from(bits), count, at, (code + half) as u8);
                }
            }
        }
        ValueFormat::Turbo { bits } => {
            let coded = turboquant::encode_bytes(&v.concat(), dim, bits).unwrap();
            for t in 0..n {
                put(&mut record[l.value_scales.clone()], Dtype::F16, t, coded.radius[t]);
                for c in 0..dim {
                    let (at, code) = (value_index(t, c, dim), coded.codes[t * dim + c]);
                    write_code(&mut record[l.value_codes.clone()], usize::from(bits), count, at, code);
                }
            }
        }
        ValueFormat::Page { code, .. } => value_page(l, code, &|t, c| value_index(t, c, dim)).write(&v, &mut record),
        _ => words(&mut record[l.value_codes.clone()], values),
    }
    let summary = summary(metric, l, &record, &k, key_norm, &v, centre);
    record[l.summary.start..][..SUMMARY_BYTES].copy_from_slice(&summary.to_bytes());
    fine::write(l, &mut record, &k, &v);
    record
}

/// Decoded keys, in the metric of their codes, and values, f64.
pub fn decode(metric: Option<KeyMetric<'_>>, l: &RecordLayout, record: &[u8]) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let (dim, n, count) = (l.dim, l.tokens(), l.count());
    let rows = |f: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        (0..n).map(|t| (0..dim).map(|c| f(t, c)).collect()).collect()
    };
    let word = |range: &std::ops::Range<usize>, t: usize, c: usize| get(&record[range.clone()], l.store, t * dim + c);
    let keys = rows(&|t, c| match l.format.key {
        KeyFormat::Channel { bits, meta } => {
            let s = &record[l.key_scales.clone()];
            let code = read_code(&record[l.key_codes.clone()], usize::from(bits), count, key_index(t, c, dim));
            (f64::from(code) - f64::from((1u16 << bits) / 2)) * get(s, meta, c) + get(s, meta, dim + c)
        }
        KeyFormat::Token { bits, .. } => {
            let code = read_code(&record[l.key_codes.clone()], usize::from(bits), count, key_index(t, c, dim));
            let scale = get(&record[l.key_scales.clone()], Dtype::F16, c / l.format.key.group(dim) * n + t);
            (f64::from(code) - f64::from(1u32 << (bits - 1))) * scale
        }
        KeyFormat::Turbo { bits, .. } => {
            let code = read_code(&record[l.key_codes.clone()], usize::from(bits), count, key_index(t, c, dim));
            let level = f64::from(turboquant::level_bytes(dim, bits)[usize::from(code)]) - 128.0;
            level * get(&record[l.key_scales.clone()], Dtype::F16, t)
        }
        // Below, all at once.
        KeyFormat::Gtq { .. } => 0.0,
        KeyFormat::Page { code, .. } => key_page(l, code, &|t, c| key_index(t, c, dim)).read(record, count, dim, t, c),
        _ => word(&l.key_codes, t, c),
    });
    let values = rows(&|t, c| match l.format.value {
        ValueFormat::Affine { bits, group } => {
            let (g, groups) = (c / usize::from(group), dim / usize::from(group));
            let code = read_code(&record[l.value_codes.clone()], usize::from(bits), count, value_index(t, c, dim));
            let s = &record[l.value_scales.clone()];
            f64::from(code) * get(s, Dtype::F16, g * n + t) + get(s, Dtype::F16, (groups + g) * n + t)
        }
        ValueFormat::Channel { bits } => {
            let code = read_code(&record[l.value_codes.clone()], usize::from(bits), count, value_index(t, c, dim));
            let s = &record[l.value_scales.clone()];
            (f64::from(code) - f64::from((1u16 << bits) / 2)) * get(s, Dtype::F16, 2 * c)
                + get(s, Dtype::F16, 2 * c + 1)
        }
        ValueFormat::Turbo { bits } => {
            let code = read_code(&record[l.value_codes.clone()], usize::from(bits), count, value_index(t, c, dim));
            let level = f64::from(turboquant::level_bytes(dim, bits)[usize::from(code)]) - 128.0;
            level * get(&record[l.value_scales.clone()], Dtype::F16, t)
        }
        ValueFormat::Page { code, .. } => {
            value_page(l, code, &|t, c| value_index(t, c, dim)).read(record, count, dim, t, c)
        }
        _ => word(&l.value_codes, t, c),
    });
    let back = |mut rows: Vec<Vec<f64>>| {
        let rotation = Rotation::<f64>::new(dim, rotation::SEED);
        rows.iter_mut().for_each(|row| rotation.turn_back(row));
        rows
    };
    let keys = match (l.format.key, metric.and_then(|m| m.groups())) {
        (KeyFormat::Turbo { .. }, _) => back(keys),
        (_, Some(groups)) => grouped::read(groups, l, record),
        _ => metric.and_then(|m| m.books()).map_or(keys, |books| directions::read(books, l, record)),
    };
    let values = if matches!(l.format.value, ValueFormat::Turbo { .. }) { back(values) } else { values };
    (keys, values)
}

/// Upper bound of the spectral norm: the smaller of Frobenius and the row sum form of math.md (3.7).
fn spectral(e: &[Vec<f64>]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let sums = e.iter().map(|a| e.iter().map(|b| dot(a, b).abs()).sum::<f64>()).fold(0.0, f64::max);
    let trace: f64 = e.iter().map(|a| dot(a, a)).sum();
    sums.min(trace).sqrt()
}

fn summary(
    metric: Option<KeyMetric<'_>>,
    l: &RecordLayout,
    record: &[u8],
    k: &[Vec<f64>],
    key_norm: f64,
    v: &[Vec<f64>],
    centre: &[f64],
) -> ErrorSummary {
    let (dk, dv) = decode(metric, l, record);
    let minus = |a: &[Vec<f64>], b: &[Vec<f64>]| -> Vec<Vec<f64>> {
        a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(x, y)| x - y).collect()).collect()
    };
    let (ek, ev) = (minus(k, &dk), minus(v, &dv));
    let widest = |rows: &[Vec<f64>]| rows.iter().map(|r| norm(r)).fold(0.0, f64::max);
    let dim = l.dim;
    let mut scaled = ek.clone();
    let mag: Vec<f64> = (0..dim)
        .map(|c| match l.format.key {
            KeyFormat::Channel { bits, meta } => {
                let s = &record[l.key_scales.clone()];
                let (sigma, z) = (get(s, meta, c), get(s, meta, dim + c));
                scaled.iter_mut().for_each(|r| r[c] = if sigma == 0.0 { 0.0 } else { r[c] / sigma });
                f64::from((1u16 << bits) / 2) * sigma + z.abs()
            }
            // The largest level of every rotated channel.
            KeyFormat::Turbo { .. } => {
                let radii = (0..l.tokens()).map(|t| get(&record[l.key_scales.clone()], Dtype::F16, t));
                127.0 * radii.fold(0.0, f64::max)
            }
            // The same, wherever the largest radius is.
            KeyFormat::Gtq { code: GroupCode::Widths { .. } } => {
                let radii = record[l.key_scales.clone()].chunks_exact(2);
                127.0 * radii.map(|r| get(r, Dtype::F16, 0)).fold(0.0, f64::max)
            }
            _ => dk.iter().map(|r| r[c].abs()).fold(0.0, f64::max),
        })
        .collect();
    let centred: Vec<Vec<f64>> = v.iter().map(|r| r.iter().zip(centre).map(|(x, c)| x - c).collect()).collect();
    let up = |x: f64| up_f32(x * (1.0 + 2f64.powi(-40)));
    ErrorSummary {
        kappa: up(spectral(&scaled)),
        eps: up(widest(&ek)),
        key_mag: up(norm(&mag)),
        key_norm: up(key_norm),
        eta: up(widest(&ev)),
        sop: up(spectral(&ev)),
        radius: up(widest(&centred)),
        value_norm: up(match l.format.value {
            ValueFormat::Channel { bits } => {
                let s = &record[l.value_scales.clone()];
                let most = |c| {
                    let sigma = get(s, Dtype::F16, 2 * c);
                    (f64::from((1u16 << bits) / 2) + 1.5) * sigma + get(s, Dtype::F16, 2 * c + 1).abs()
                };
                norm(&(0..dim).map(most).collect::<Vec<f64>>())
            }
            _ => widest(v).max(widest(&dv)),
        }),
    }
}

//! Cases for the extend kernel: chunks of queries over sequences with packed pages, and causal attention in f64 to compare with. The same cases
//! run on the emulator and on the device.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "each test program uses its part; NaN fails every check"
)]
use certkv_codec::decode::decode_value;
use certkv_codec::{Encoder, FixedScales};
use certkv_core::fragment::{key_place, value_place};
use certkv_core::{Dtype, Geometry, RecordLayout};
use certkv_kernel::cuda::args::{Certificate, Element, Strides};
use certkv_kernel::cuda::extend::{ExtendArgs, chunks_of};
use certkv_kernel::cuda::{Sight, Variant};
use certkv_testkit::generate::{Heads, Kind, Rng, Shape, decode, heads};

mod limits;
#[path = "metrics.rs"]
pub mod metrics;
#[path = "extend_relays.rs"]
pub mod relays;
use metrics::Metrics;

/// What a case is made of.
#[derive(Debug, Clone)]
pub struct Spec {
    pub format: &'static str,
    pub dim: usize,
    pub group: usize,
    pub kv_heads: usize,
    /// Of each sequence: tokens before its chunk, tokens of the chunk.
    pub chunks: Vec<(usize, usize)>,
    pub store: Dtype,
    pub kind: Kind,
    pub relative: f32,
    /// What queries see; `None`: everything before them.
    pub sight: Option<Sight>,
    /// Magnitude that the scales of sides with one per block are fixed for; `None`: each block's own.
    pub fixed: Option<f32>,
    pub seed: u64,
}

impl Spec {
    pub fn new(format: &'static str, dim: usize, group: usize, chunks: &[(usize, usize)]) -> Self {
        let (store, kind) = (Dtype::F16, Kind::Gaussian);
        let chunks = chunks.to_vec();
        Self { format, dim, group, kv_heads: 2, chunks, store, kind, relative: 0.05, sight: None, fixed: None, seed: 1 }
    }

    pub fn layout(&self) -> RecordLayout {
        let mut geometry = Geometry::new(1, self.group * self.kv_heads, self.kv_heads, self.dim).unwrap();
        geometry.store = self.store;
        RecordLayout::new(&geometry, self.format.parse().unwrap()).unwrap()
    }
}

/// One KV head of one sequence.
struct Head {
    data: Heads,
    centre: Vec<f32>,
    /// Of the blocks before the one that holds the chunk's first token.
    records: Vec<Vec<u8>>,
}

/// A batch of chunks on the host.
pub struct Case {
    pub spec: Spec,
    layout: RecordLayout,
    heads: Vec<Head>,
    metrics: Metrics,
    /// `[token][q_heads][dim]` of all chunks, as bits of the type of the cache.
    queries: Vec<u16>,
}

/// Which originals a launch goes over.
#[derive(Debug, Clone, Copy)]
pub enum Originals {
    /// Of the chunk's own blocks.
    Own,
    None,
    /// Of all blocks: one of so many parts, of which the last has the chunk's own.
    Part(u32, u32),
}

impl Originals {
    /// The first block, and the one behind the last, where so many lie before the chunk's own.
    fn of(self, before: u32) -> (u32, u32) {
        match self {
            Self::Own => (before, u32::MAX),
            Self::None => (before, 0),
            Self::Part(at, parts) if at + 1 == parts => (before * at / parts, u32::MAX),
            Self::Part(at, parts) => (before * at / parts, before * (at + 1) / parts),
        }
    }
}

/// A placed batch: arguments without outputs, and how many elements those need.
pub struct Placed {
    pub args: ExtendArgs,
    pub chunks: Vec<certkv_kernel::cuda::extend::ExtendChunk>,
    pub outputs: usize,
    pub heads: usize,
}

/// What came of a case: means of bound over norm and of bound over error, largest rounding and `e_arith` over the norm.
#[derive(Debug, Default)]
pub struct Verdict {
    pub wrong: Vec<String>,
    pub outputs: usize,
    pub rounding: f64,
    pub arith: f64,
    pub relative: f64,
    pub tightness: f64,
}

fn bytes(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
fn bytes32(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Rows as a side of a block in fragment order; missing tokens are NaN.
fn side(rows: &[u16], block: usize, dim: usize, keys: bool) -> Vec<u16> {
    let mut out = vec![0xffff; block * dim];
    for (t, row) in rows.chunks_exact(dim).enumerate() {
        for (c, x) in row.iter().enumerate() {
            let p = if keys { key_place(t, c, dim) } else { value_place(t, c, dim) };
            out[p.unit * 512 + p.lane * 16 + p.pair * 2 + p.el] = *x;
        }
    }
    out
}

impl Case {
    pub fn new(spec: &Spec) -> Self {
        let layout = spec.layout();
        let (b, d) = (layout.tokens(), spec.dim);
        let (mut all, mut queries) = (Vec::new(), Vec::new());
        let mut rng = Rng::new(spec.seed ^ 0xe7);
        let metrics = Metrics::of(&layout, spec.kv_heads, spec.seed);
        for (s, &(before, tokens)) in spec.chunks.iter().enumerate() {
            let first = all.len();
            for h in 0..spec.kv_heads {
                let shape =
                    Shape { tokens: before + tokens, head_dim: d, group: spec.group, block: b, store: spec.store };
                let seed = spec.seed.wrapping_mul(977) + (s * 64 + h) as u64;
                let mut data = heads(spec.kind, shape, seed);
                // `OneToken` ignores the length asked for.
                if data.shape.tokens != before + tokens {
                    data = heads(Kind::Gaussian, shape, seed);
                }
                let values = decode(&data.values, spec.store);
                let rows = (before + tokens).min(256);
                let mean = |c: usize| ((0..rows).map(|t| values[t * d + c]).sum::<f64>() / rows as f64) as f32;
                let centre: Vec<f32> = (0..d).map(mean).collect();
                let records = (0..before / b)
                    .map(|j| {
                        let range = j * b * d..(j + 1) * b * d;
                        let mut record = vec![0; layout.bytes];
                        let sides = (&data.keys[range.clone()], &data.values[range]);
                        let mut encoder = Encoder::new(&layout);
                        let reaches = vec![spec.fixed.unwrap_or(1.0); d / FixedScales::PIECE];
                        let fixed = FixedScales { keys: &reaches, values: &reaches };
                        encoder.fix_scales(spec.fixed.map(|_| fixed)).expect("magnitudes");
                        encoder.encode_in(metrics.head(h).as_ref(), sides.0, sides.1, &centre, &mut record).unwrap();
                        record
                    })
                    .collect();
                all.push(Head { data, centre, records });
            }
            // The queries of the data, each a little otherwise for every token.
            for _ in 0..tokens {
                for head in &all[first..] {
                    let own: Vec<f64> = decode(&head.data.queries, spec.store);
                    // But for those that point in one direction.
                    let aside = if spec.kind == Kind::TallKey { 0.0 } else { 0.05 };
                    let near = own.iter().map(|x| x * (0.7 + 0.3 * rng.uniform()) + aside * rng.normal());
                    queries.extend(near.map(|x| spec.store.encode16(x as f32)));
                }
            }
        }
        Self { spec: spec.clone(), layout, heads: all, metrics, queries }
    }

    fn tokens(&self) -> usize {
        self.spec.chunks.iter().map(|c| c.1).sum()
    }

    fn q_heads(&self) -> usize {
        self.spec.kv_heads * self.spec.group
    }

    /// Makes the query of a token and head no number.
    pub fn spoil_query(&mut self, token: usize, head: usize) {
        let at = (token * self.q_heads() + head) * self.spec.dim + 5;
        self.queries[at] = 0x7e00;
    }

    /// Makes all queries so much longer.
    pub fn scale_queries(&mut self, by: f32) {
        let store = self.spec.store;
        self.queries.iter_mut().for_each(|x| *x = store.encode16(store.decode16(*x) * by));
    }

    /// Makes a number of what a head's keys are coded in another one: see [`Metrics::put`].
    pub fn put_metric(&mut self, head: usize, part: usize, channel: usize, x: f32) {
        self.metrics.put(head, part, channel, x);
    }

    /// Makes what heads' keys are coded by that of the heads in the opposite order.
    pub fn exchange_metrics(&mut self) {
        self.metrics.exchange();
    }

    /// Says of a block of KV head 0 that its codes mean nothing.
    pub fn spoil_record(&mut self, head: usize, block: usize) {
        let at = self.layout.summary.start + 4;
        self.heads[head].records[block][at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    }

    /// Puts the batch into a device's memory: `place` copies bytes and returns their address.
    pub fn place(&self, variant: &Variant, place: &mut dyn FnMut(&[u8]) -> u64) -> Placed {
        self.place_part(variant, (&|_, _| true, Originals::Own), place)
    }

    /// The same for a launch over those records alone that it `has`, by sequence and block, and some originals.
    pub fn place_part(
        &self,
        variant: &Variant,
        (has, originals): (&dyn Fn(usize, usize) -> bool, Originals),
        place: &mut dyn FnMut(&[u8]) -> u64,
    ) -> Placed {
        let (spec, l) = (&self.spec, &self.layout);
        let (b, d, kv) = (l.tokens(), spec.dim, spec.kv_heads);
        let of = spec.chunks.iter().enumerate().map(|(row, c)| (row as u32, c.0 as u32, c.1 as u32));
        let (mut chunks, tiles, _) = chunks_of(&variant.extend_shape(), b, of);
        let stride = spec.chunks.iter().map(|c| c.0 / b).max().unwrap_or(0) + 1;
        let page_stride = l.bytes * kv;
        let pages: usize = spec.chunks.iter().map(|c| c.0 / b).sum::<usize>().max(1);
        let mut free: Vec<u32> = (0..pages as u32).collect();
        let mut r = Rng::new(spec.seed ^ 0x9a9e);
        for i in (1..free.len()).rev() {
            free.swap(i, r.below(i + 1));
        }
        let mut packed = vec![0xffu8; pages * page_stride];
        let mut table = vec![u32::MAX; spec.chunks.len() * stride];
        let (mut staged, mut centres) = (Vec::new(), Vec::new());
        let mut fragment = vec![0; l.bytes];
        let mut blocks = 0;
        for chunk in &mut chunks {
            (chunk.from, chunk.to) = originals.of(chunk.before / b as u32);
            (chunk.coded, chunk.staged) = (0, blocks);
            blocks += chunk.staged_blocks(b as u32);
        }
        for (s, &(before, tokens)) in spec.chunks.iter().enumerate() {
            let heads = &self.heads[s * kv..(s + 1) * kv];
            for (at, j) in (0..before / b).filter(|j| has(s, *j)).enumerate() {
                let Some(page) = free.pop() else { continue };
                table[s * stride + at] = page;
                chunks[s].coded = at as u32 + 1;
                for (h, head) in heads.iter().enumerate() {
                    self.metrics.to_fragment(h, l, &head.records[j], &mut fragment);
                    let range = j * b * d..(j + 1) * b * d;
                    if l.format.key.is_exact() {
                        fragment[l.key_codes.clone()].copy_from_slice(&bytes(&side(
                            &head.data.keys[range.clone()],
                            b,
                            d,
                            true,
                        )));
                    }
                    if l.format.value.is_exact() {
                        fragment[l.value_codes.clone()].copy_from_slice(&bytes(&side(
                            &head.data.values[range],
                            b,
                            d,
                            false,
                        )));
                    }
                    let at = page as usize * page_stride + h * l.bytes;
                    packed[at..at + l.bytes].copy_from_slice(&fragment);
                }
            }
            let (first, end) = (chunks[s].from as usize, (chunks[s].to as usize).min((before + tokens).div_ceil(b)));
            for j in first..end {
                let range = j * b * d..((j + 1) * b).min(before + tokens) * d;
                for head in heads {
                    staged.extend(bytes(&side(&head.data.keys[range.clone()], b, d, true)));
                    staged.extend(bytes(&side(&head.data.values[range.clone()], b, d, false)));
                }
            }
            centres.extend(heads.iter().flat_map(|h| h.centre.iter().map(|x| x.to_bits())));
        }
        // Rows of queries with something between them.
        let apart = spec.seed as usize % 2 * 8;
        let between = vec![0x7e00; apart];
        let queries: Vec<u16> =
            self.queries.chunks_exact(d).flat_map(|row| row.iter().chain(&between)).copied().collect();
        let args = ExtendArgs {
            chunks: place(&bytes32(chunks.iter().flat_map(|c| c.words()))),
            packed: place(&packed),
            page_stride: page_stride as u64,
            head_stride: l.bytes as u64,
            table: place(&bytes32(table)),
            staged: place(&staged),
            staged_stride: (kv * 2 * l.original_side_bytes()) as u64,
            centres: place(&bytes32(centres)),
            query: place(&bytes(&queries)),
            chunk_count: chunks.len() as u32,
            tiles,
            kv_heads: kv as u32,
            table_stride: stride as u32,
            query_type: if spec.store == Dtype::Bf16 { Element::Bf16 } else { Element::F16 } as u32,
            scale: (d as f32).powf(-0.5),
            relative: spec.relative,
            window: spec.sight.map_or(0, |s| s.tokens),
            sinks: spec.sight.map_or(0, |s| s.sinks),
            limits: limits::words(spec.seed, spec.relative, self.q_heads()).map_or(0, |w| place(&bytes32(w))),
            metrics: self.metrics.words().map_or(0, |w| place(&bytes32(w))),
            query_strides: Strides::dense(self.q_heads(), d + apart),
            out_strides: Strides::dense(self.q_heads(), d),
            ..ExtendArgs::default()
        };
        let heads = self.tokens() * self.q_heads();
        Placed { args, chunks, outputs: heads * d, heads }
    }

    /// Compares outputs and certificates with causal attention in f64.
    pub fn judge(&self, out: &[f32], certificates: &[Certificate]) -> Verdict {
        self.judge_levels(out, certificates, &|_, _| self)
    }

    /// The same where records have levels: `coded_in` says of a block of a sequence in which of several cases of the same data its record is.
    pub fn judge_levels<'a>(
        &'a self,
        out: &[f32],
        certificates: &[Certificate],
        coded_in: &dyn Fn(usize, usize) -> &'a Self,
    ) -> Verdict {
        let spec = &self.spec;
        let (b, d, scale) = (self.layout.tokens(), spec.dim, (spec.dim as f64).powf(-0.5));
        let mut v = Verdict::default();
        let (mut row, mut finite) = (0, 0);
        for (s, &(before, tokens)) in spec.chunks.iter().enumerate() {
            let used: Vec<[Vec<f64>; 4]> = (0..spec.kv_heads)
                .map(|h| {
                    let head = &self.heads[s * spec.kv_heads + h];
                    let (keys, values) = (head.data.keys_f64(), head.data.values_f64());
                    let (mut coded_keys, mut coded_values) = (keys.clone(), values.clone());
                    for j in 0..head.records.len() {
                        let of = coded_in(s, j);
                        let (l, record) = (&of.layout, &of.heads[s * spec.kv_heads + h].records[j]);
                        for t in 0..b {
                            let at = (j * b + t) * d..(j * b + t + 1) * d;
                            if !l.format.key.is_exact() {
                                of.metrics.decode(h, l, record, t, &mut coded_keys[at.clone()]);
                            }
                            if !l.format.value.is_exact() {
                                decode_value(l, record, t, &mut coded_values[at]).unwrap();
                            }
                        }
                    }
                    [keys, values, coded_keys, coded_values]
                })
                .collect();
            for token in 0..tokens {
                let position = before + token;
                let sees =
                    |t: usize| spec.sight.is_none_or(|w| t < w.sinks as usize || t + w.tokens as usize > position);
                let seen: Vec<usize> = (0..=position).filter(|t| sees(*t)).collect();
                let records = || seen.iter().filter(|t| **t < before / b * b).map(|t| coded_in(s, t / b).layout.format);
                let exact = records().all(|format| format.key.is_exact() && format.value.is_exact());
                let calibrated = records().any(|format| format.key.is_calibrated());
                for h in 0..self.q_heads() {
                    let [keys, values, coded_keys, coded_values] = &used[h / spec.group];
                    let q = decode(&self.queries[row * d..(row + 1) * d], spec.store);
                    let got: Vec<f64> = out[row * d..(row + 1) * d].iter().map(|x| f64::from(*x)).collect();
                    let truth = attention(&q, keys, values, &seen, scale);
                    let close = attention(&q, coded_keys, coded_values, &seen, scale);
                    let c = certificates[row];
                    let (error, rounding) = (distance(&got, &truth), distance(&got, &close));
                    let norm = got.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let place = format!("sequence {s}, token {token}, head {h}");
                    v.outputs += 1;
                    row += 1;
                    // What halves cannot hold is refused; such an output must not come of harmless data.
                    if c.bound == f32::INFINITY && !got.iter().all(|x| x.is_finite()) {
                        if keys.iter().chain(values).all(|x| x.abs() < 30000.0) {
                            v.wrong.push(format!("{place}: refused without a reason"));
                        }
                        continue;
                    }
                    if !(error <= f64::from(c.bound)) {
                        v.wrong.push(format!("{place}: error {error:.3e} above {:.3e} ({c:?})", c.bound));
                    }
                    // Where no sum holds what calibrated codes cost, rounding is not told apart from it (bound.cuh: key_term), and under the cap with it.
                    let whole = calibrated && !c.e_key.is_finite();
                    let most = if whole { c.bound } else { c.e_arith };
                    if !(rounding <= f64::from(most)) {
                        v.wrong.push(format!("{place}: rounding {rounding:.3e} above {most:.3e} ({c:?})"));
                    }
                    if !((norm - f64::from(c.norm)).abs() <= 1e-3 * norm) {
                        v.wrong.push(format!("{place}: norm {} instead of {norm}", c.norm));
                    }
                    let limit = limits::limit(spec.seed, spec.relative, h);
                    if !limits::is_named(&c, limit) {
                        v.wrong.push(format!("{place}: held to {}, not to {limit:?} ({c:?})", c.tolerance));
                    }
                    let passes = c.e_key + c.e_val <= c.tolerance;
                    let status = if exact { 2 } else { u32::from(passes) };
                    // What codes cost may be less than the least number.
                    let nothing = c.status == 2 && c.e_key + c.e_val == 0.0;
                    // What was lost is neither exact nor within any tolerance.
                    let lost = spec.kind == Kind::TallKey && c.status == 0;
                    if c.status != status
                        && !nothing
                        && !lost
                        && (c.e_key + c.e_val - c.tolerance).abs() > 1e-3 * c.tolerance
                    {
                        v.wrong.push(format!("{place}: status {} instead of {status} ({c:?})", c.status));
                    }
                    v.rounding = v.rounding.max(rounding / norm);
                    v.arith = v.arith.max(f64::from(c.e_arith) / norm);
                    if c.bound.is_finite() && norm > 0.0 {
                        v.relative += f64::from(c.bound) / norm;
                        v.tightness += f64::from(c.bound) / error.max(1e-30);
                        finite += 1;
                    }
                }
            }
        }
        v.relative /= f64::from(finite.max(1));
        v.tightness /= f64::from(finite.max(1));
        v
    }
}

fn attention(q: &[f64], keys: &[f64], values: &[f64], seen: &[usize], scale: f64) -> Vec<f64> {
    let d = q.len();
    let row = |of: &[f64], t: usize| of[t * d..(t + 1) * d].to_vec();
    let logits: Vec<f64> =
        seen.iter().map(|t| scale * row(keys, *t).iter().zip(q).map(|(a, b)| a * b).sum::<f64>()).collect();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|z| (z - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (t, w) in seen.iter().zip(&weights) {
        out.iter_mut().zip(row(values, *t)).for_each(|(o, v)| *o += w / total * v);
    }
    out
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
}

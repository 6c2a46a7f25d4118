//! Layouts, data and the judge of a record.
use super::{books, widths};
use certkv_codec::spherical::Spherical;
use certkv_codec::{CodecError, Encoder, KeyGroups, KeyMetric, decode};
use certkv_core::{
    Dtype, ErrorSummary, Geometry, GroupCode, KeyFormat, PageCode, RecordLayout, RefinedSummary, ValueFormat, fragment,
    hash::{hash64, splitmix64},
};

use certkv_kernel::cuda::metrics::{metric_stride, metric_words};
use certkv_kernel::cuda::{Arch, Variant};

pub(crate) use certkv_kernel::cuda::encode::pack_shared;

/// Threads of a CTA that packs.
pub(crate) const THREADS: u32 = certkv_kernel::cuda::encode::PACK_THREADS;

pub(crate) fn layout(text: &str, dim: usize, store: Dtype) -> RecordLayout {
    let geometry = Geometry { store, ..Geometry::new(1, 4, 1, dim).expect("a geometry") };
    RecordLayout::new(&geometry, text.parse().expect("a format")).expect("a layout")
}

fn page_kind(code: PageCode) -> i64 {
    match code {
        PageCode::Int(_) => 0,
        PageCode::E4m3 => 1,
        PageCode::E5m2 => 2,
    }
}

/// The macros that specialise a kernel for `l`.
pub(crate) fn macros(l: &RecordLayout) -> Vec<(&'static str, i64)> {
    let number = |t: Dtype| match t {
        Dtype::F16 => 0,
        Dtype::Bf16 => 1,
        Dtype::F32 => 2,
    };
    let (key, meta) = match l.format.key {
        KeyFormat::F16 | KeyFormat::Bf16 => (0, Dtype::F16),
        KeyFormat::Channel { meta, .. } => (1, meta),
        KeyFormat::Token { .. } => (2, Dtype::F16),
        KeyFormat::Gtq { code: GroupCode::Directions(_) } => (7, Dtype::F16),
        KeyFormat::Turbo { .. } | KeyFormat::Gtq { .. } => (3, Dtype::F16),
        KeyFormat::Page { code, .. } => (4 + page_kind(code), Dtype::F16),
    };
    let n = |x: usize| x as i64;
    // Levels, thresholds and signs of TurboQuant sides: those of the host.
    let turbo =
        |(name, _): &(&str, usize)| ["CKV_TURN_", "_LEVELS", "_THRESHOLD_"].iter().any(|part| name.contains(part));
    let host = Variant::new(l.clone(), 1, Arch::Sm90a).map(|v| v.macros()).unwrap_or_default();
    let mut all: Vec<(&'static str, i64)> = host.into_iter().filter(turbo).map(|(name, x)| (name, n(x))).collect();
    all.extend([
        ("CKV_DIM", n(l.dim)),
        ("CKV_BLOCK", n(l.tokens())),
        ("CKV_GROUP", 4),
        ("CKV_STORE", number(l.store)),
        ("CKV_KEY", key),
        ("CKV_KEY_BITS", n(l.format.key.bits())),
        ("CKV_KEY_GROUP", n(l.format.key.group(l.dim))),
        ("CKV_KEY_META", number(meta)),
        ("CKV_FOLD", i64::from(l.format.key.is_calibrated() && l.format.key.is_rotated())),
        (
            "CKV_GROUPED",
            match l.format.key {
                KeyFormat::Gtq { code: GroupCode::Widths { halves } } => i64::from(halves),
                _ => 0,
            },
        ),
        ("CKV_KEY_SLOTS", if l.format.key.is_calibrated() && l.format.key.is_rotated() { n(l.key_slots()) } else { 1 }),
        ("CKV_METRIC", n(metric_stride(l))),
        (
            "CKV_VALUE",
            match l.format.value {
                ValueFormat::F16 | ValueFormat::Bf16 => 0,
                ValueFormat::Affine { .. } => 1,
                ValueFormat::Turbo { .. } => 2,
                ValueFormat::Page { code, .. } => 3 + page_kind(code),
                ValueFormat::Channel { .. } => 6,
            },
        ),
        ("CKV_VALUE_BITS", n(l.format.value.bits())),
        ("CKV_VALUE_GROUP", n(l.format.value.group(l.dim))),
        ("CKV_KEY_CODES", n(l.key_codes.start)),
        ("CKV_KEY_SCALES", n(l.key_scales.start)),
        ("CKV_VALUE_CODES", n(l.value_codes.start)),
        ("CKV_VALUE_SCALES", n(l.value_scales.start)),
        ("CKV_SUMMARY", n(l.summary.start)),
        ("CKV_RECORD", n(l.main_bytes)),
        ("CKV_KEY_REFINE", i64::from(l.format.refine.key)),
        ("CKV_VALUE_REFINE", i64::from(l.format.refine.value)),
        ("CKV_KEY_RESIDUALS", n(l.key_residuals.start)),
        ("CKV_VALUE_RESIDUALS", n(l.value_residuals.start)),
    ]);
    all
}

/// Uniform in [-1, 1).
pub(crate) fn uniform(seed: u64, i: usize) -> f64 {
    (hash64(&[seed, i as u64]) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn normal(seed: u64, i: usize) -> f64 {
    (0..6).map(|j| uniform(seed ^ splitmix64(j), i)).sum::<f64>() * 0.7
}

/// Kinds of hard data.
pub(crate) const KINDS: [&str; 8] = ["normal", "outlier", "constant", "huge", "tiny", "sink", "zero", "ties"];

/// A (rows, dim) block of finite patterns of one kind.
pub(crate) fn block(kind: &str, seed: u64, rows: usize, dim: usize, store: Dtype) -> Vec<u16> {
    let channel = |c: usize| hash64(&[seed, 77, c as u64]);
    let element = |i: usize| {
        let (t, c) = (i / dim, i % dim);
        let x = normal(seed, i);
        match kind {
            "outlier" if channel(c).is_multiple_of(8) => 60.0 * x + 100.0,
            "constant" => match channel(c) % 4 {
                0 => 1.5,
                1 => 0.0,
                2 => 100.0 + 0.0625 * (2.0 * x).round(),
                _ => x,
            },
            "huge" => 12000.0 * x,
            "tiny" => x * if store == Dtype::F16 { 2f64.powi(-20) } else { 2f64.powi(-120) },
            "sink" if t == 0 => 300.0 * x,
            "zero" => -0.0,
            // Grid points whose quotient by a power of two lies at a half again and again.
            "ties" => (x * 64.0).round() / 16.0 + if c.is_multiple_of(2) { 0.03125 } else { 0.0 },
            _ => x,
        }
    };
    (0..rows * dim).map(|i| store.encode16((element(i) as f32).clamp(-65000.0, 65000.0))).collect()
}

pub(crate) fn centre(seed: u64, dim: usize) -> Vec<f32> {
    (0..dim).map(|c| uniform(seed ^ 0xce, c) as f32).collect()
}

/// What the keys of a head are coded in: centre and balance scale by channel, and groups of keys of unlike widths.
pub(crate) struct Keys {
    centre: Vec<f32>,
    balance: Vec<f32>,
    groups: Option<KeyGroups>,
    books: Option<Spherical>,
}

impl Keys {
    fn of(l: &RecordLayout, head: usize) -> Self {
        let balance: Vec<f32> = (0..l.dim).map(|c| (1.5 * uniform(0xba1 + head as u64, c)).exp2() as f32).collect();
        let groups = widths::groups(l, 7 * head as u64 + l.dim as u64, widths::Spread::Any);
        let balance = groups.as_ref().map_or_else(|| balance.clone(), |groups| groups.weighted(&balance));
        let books = books::of(l, 0xb0 + head as u64);
        Self { centre: centre(0xc0 + head as u64, l.dim), balance, groups, books }
    }

    /// `None` where keys are coded as they are.
    fn metric(&self, l: &RecordLayout) -> Option<KeyMetric<'_>> {
        if let Some(books) = &self.books {
            return Some(KeyMetric::directions(books));
        }
        let metric = KeyMetric::new(&self.centre, &self.balance).expect("a metric");
        let metric = self.groups.iter().fold(metric, |metric, groups| metric.grouped(groups).expect("groups"));
        Some(metric).filter(|_| l.format.key.is_calibrated())
    }

    /// Between the order of codes on the CPU and that on a GPU.
    fn reorder(&self, l: &RecordLayout, (record, out): (&[u8], &mut [u8]), back: bool) {
        let said = match (&self.groups, back) {
            (Some(groups), false) => fragment::to_fragment_in(l, &groups.runs(), record, out),
            (Some(groups), true) => fragment::from_fragment_in(l, &groups.runs(), record, out),
            (None, false) => fragment::to_fragment(l, record, out),
            (None, true) => fragment::from_fragment(l, record, out),
        };
        said.expect("sizes fit");
    }

    fn decode(&self, l: &RecordLayout, record: &[u8], token: usize, key: &mut [f64]) -> Result<(), CodecError> {
        match (&self.groups, &self.books) {
            (Some(groups), _) => decode::decode_key_in(groups, l, record, token, key),
            (_, Some(books)) => decode::decode_key_of(books, l, record, token, key),
            (None, None) => decode::decode_key(l, record, token, key),
        }
    }
}

/// What a launch is told of the keys of a head; nothing where they are coded as they are.
pub(crate) fn metric(l: &RecordLayout, head: usize) -> Vec<u32> {
    Keys::of(l, head).metric(l).map(metric_words).unwrap_or_default()
}

/// The CPU's record of a block of a head, in fragment order.
pub(crate) fn reference(l: &RecordLayout, head: usize, keys: &[u16], values: &[u16], centre: &[f32]) -> Vec<u8> {
    let (mut line, mut out, own) = (vec![0; l.bytes], vec![0; l.bytes], Keys::of(l, head));
    let metric = own.metric(l);
    Encoder::new(l).encode_in(metric.as_ref(), keys, values, centre, &mut line).expect("the CPU encodes");
    own.reorder(l, (&line, &mut out), false);
    out
}

pub(crate) fn largest_norm(x: &[f64], dim: usize) -> f64 {
    x.chunks_exact(dim).map(|r| r.iter().map(|v| v * v).sum::<f64>()).fold(0.0, f64::max).sqrt()
}

/// Largest singular value by power iteration: from below.
pub(crate) fn spectral_from_below(e: &[f64], dim: usize) -> f64 {
    let mut x: Vec<f64> = (0..dim).map(|c| 1.0 + 0.5 * uniform(7, c)).collect();
    let mut value = 0.0f64;
    for _ in 0..20 {
        let length = x.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length == 0.0 {
            break;
        }
        x.iter_mut().for_each(|v| *v /= length);
        let y: Vec<f64> = e.chunks_exact(dim).map(|r| r.iter().zip(&x).map(|(a, b)| a * b).sum()).collect();
        value = y.iter().map(|v| v * v).sum::<f64>().sqrt();
        x.fill(0.0);
        for (r, y) in e.chunks_exact(dim).zip(&y) {
            x.iter_mut().zip(r).for_each(|(z, a)| *z += a * y);
        }
    }
    value
}

/// A side `[token][channel]` in fragment order.
pub(crate) fn side(words: &[u16], dim: usize, keys: bool) -> Vec<u16> {
    let mut out = vec![0; words.len()];
    fragment::put_rows(words, dim, keys, &mut out);
    out
}

/// Patterns as numbers.
pub(crate) fn numbers(store: Dtype, words: &[u16]) -> Vec<f64> {
    words.iter().map(|w| f64::from(store.decode16(*w))).collect()
}

pub(crate) fn minus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Keys and values that a record in fragment order stands for.
pub(crate) fn decoded(l: &RecordLayout, record: &[u8]) -> (Vec<f64>, Vec<f64>) {
    of_head(l, 0, record)
}

fn of_head(l: &RecordLayout, head: usize, record: &[u8]) -> (Vec<f64>, Vec<f64>) {
    let own = Keys::of(l, head);
    rows(l, &own, record, |l, record, t, key| own.decode(l, record, t, key), decode::decode_value)
}

/// The same with its residuals.
fn refined(l: &RecordLayout, record: &[u8]) -> (Vec<f64>, Vec<f64>) {
    rows(l, &Keys::of(l, 0), record, decode::refined_key, decode::refined_value)
}

fn rows(
    l: &RecordLayout,
    own: &Keys,
    record: &[u8],
    key: impl Fn(&RecordLayout, &[u8], usize, &mut [f64]) -> Result<(), CodecError>,
    value: impl Fn(&RecordLayout, &[u8], usize, &mut [f64]) -> Result<(), CodecError>,
) -> (Vec<f64>, Vec<f64>) {
    let mut line = vec![0; l.bytes];
    own.reorder(l, (record, &mut line), true);
    let (mut k, mut v) = (vec![0.0; l.count()], vec![0.0; l.count()]);
    for t in 0..l.tokens() {
        let row = t * l.dim..(t + 1) * l.dim;
        key(l, &line, t, &mut k[row.clone()]).expect("a row");
        value(l, &line, t, &mut v[row]).expect("a row");
    }
    (k, v)
}

/// Judges `record` (fragment order) of a block: codes, scales, residuals and gaps bit for bit the CPU's, every number of the summaries not below
/// what it bounds and at most 2^-20 from the CPU's; spectral norms, which the matrix unit bounds (3.7a), at most 2^-7 above it, or by
/// what halves of errors in steps cannot tell from 0.
pub(crate) fn judge(
    l: &RecordLayout,
    head: usize,
    keys: &[u16],
    values: &[u16],
    centre: &[f32],
    record: &[u8],
) -> Result<(), String> {
    judge_beside(&reference(l, head, keys, values, centre), l, head, (keys, values, centre), record)
}

/// The same beside a record that the CPU made otherwise.
pub(crate) fn judge_beside(
    want: &[u8],
    l: &RecordLayout,
    head: usize,
    (keys, values, centre): (&[u16], &[u16], &[f32]),
    record: &[u8],
) -> Result<(), String> {
    let dim = l.dim;
    let outside = |i: &usize| *i < l.summary.start || *i >= l.summary.end;
    if let Some(at) = (0..l.bytes).filter(outside).find(|i| record[*i] != want[*i]) {
        return Err(format!("byte {at} is {:#x}, not {:#x}; {l:?}", record[at], want[at]));
    }
    let of = |record: &[u8]| ErrorSummary::from_bytes(&record[l.summary.clone()]);
    let (got, cpu) = (of(record), of(want));
    let (mut line, own) = (vec![0; l.bytes], Keys::of(l, head));
    own.reorder(l, (record, &mut line), true);
    let (k, v) = (numbers(l.store, keys), numbers(l.store, values));
    let (kd, vd) = of_head(l, head, record);
    // Errors are those of keys as they are coded.
    let mut folded = k.clone();
    own.metric(l).inspect(|metric| folded.chunks_exact_mut(dim).for_each(|key| metric.fold(key)));
    let (ke, ve) = (minus(&folded, &kd), minus(&v, &vd));
    // (3.6) in steps of the channel; steps from the record.
    let in_steps = |errors: &[f64]| -> Vec<f64> {
        match l.format.key {
            KeyFormat::Channel { .. } => {
                let bytes = &line[l.key_scales.clone()];
                let sigma = |c: usize| match l.format.key {
                    KeyFormat::Channel { meta: Dtype::F32, .. } => f64::from(f32::from_le_bytes([
                        bytes[4 * c],
                        bytes[4 * c + 1],
                        bytes[4 * c + 2],
                        bytes[4 * c + 3],
                    ])),
                    KeyFormat::Channel { meta, .. } => {
                        f64::from(meta.decode16(u16::from_le_bytes([bytes[2 * c], bytes[2 * c + 1]])))
                    }
                    _ => 1.0,
                };
                errors
                    .iter()
                    .enumerate()
                    .map(|(i, e)| if sigma(i % dim) > 0.0 { e / sigma(i % dim) } else { *e })
                    .collect()
            }
            _ => errors.to_vec(),
        }
    };
    let scaled = in_steps(&ke);
    let from_centre: Vec<f64> = v.iter().enumerate().map(|(i, v)| v - f64::from(centre[i % dim])).collect();
    let exact_values = matches!(l.format.value, ValueFormat::F16 | ValueFormat::Bf16);
    let mut longest = largest_norm(&v, dim).max(largest_norm(&vd, dim));
    let mut numbers = Vec::new();
    if !l.format.refine.is_none() {
        let of = |record: &[u8]| RefinedSummary::from_bytes(&record[l.summary.start + 32..l.summary.end]);
        let (got, cpu) = (of(record), of(want));
        let (kr, vr) = refined(l, record);
        let (kf, vf) = (minus(&k, &kr), minus(&v, &vr));
        longest = longest.max(largest_norm(&vr, dim));
        numbers.extend([
            ("refined kappa", got.kappa, cpu.kappa, spectral_from_below(&in_steps(&kf), dim)),
            ("refined eps", got.eps, cpu.eps, largest_norm(&kf, dim)),
            ("refined eta", got.eta, cpu.eta, largest_norm(&vf, dim)),
            ("refined sop", got.sop, cpu.sop, spectral_from_below(&vf, dim)),
        ]);
    }
    numbers.extend([
        ("kappa", got.kappa, cpu.kappa, spectral_from_below(&scaled, dim)),
        ("eps", got.eps, cpu.eps, largest_norm(&ke, dim)),
        ("key_mag", got.key_mag, cpu.key_mag, 0.0),
        ("key_norm", got.key_norm, cpu.key_norm, largest_norm(&k, dim)),
        ("eta", got.eta, cpu.eta, if exact_values { 0.0 } else { largest_norm(&ve, dim) }),
        ("sop", got.sop, cpu.sop, spectral_from_below(&ve, dim)),
        ("radius", got.radius, cpu.radius, largest_norm(&from_centre, dim)),
        ("value_norm", got.value_norm, cpu.value_norm, longest),
    ]);
    let spectral = ["kappa", "sop", "refined kappa", "refined sop"];
    let cpu_eta = cpu.eta;
    for (name, got, cpu, truth) in numbers {
        let (got, cpu) = (f64::from(got), f64::from(cpu));
        // The least subnormal is the grid there.
        let near = (got - cpu).abs() <= cpu * 2f64.powi(-20) + 2f64.powi(-149);
        let step = match name {
            "kappa" => 1.0,
            "refined kappa" => 2f64.powi(-i32::from(l.format.refine.key)),
            // The least scale is a subnormal half, and errors of floating-point codes are many of it.
            _ => {
                let widest = l.format.value.page().map_or(0, page_kind);
                (2.0 * f64::from(cpu_eta)).max(2f64.powi(-24 + [0, 4, 12][widest as usize]))
            }
        };
        let near = near || (spectral.contains(&name) && got > cpu && got <= cpu * (1.0 + 2f64.powi(-7)) + 1e-5 * step);
        if !(got >= truth && near) {
            return Err(format!("{name}: {got:e}, CPU {cpu:e}, truth {truth:e}; {l:?}"));
        }
    }
    Ok(())
}

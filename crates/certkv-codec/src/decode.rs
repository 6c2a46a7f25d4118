//! Plain scalar readers of records: what the bytes say, without any of the kernels' arithmetic.
//!
//! Everything is float64 and exact up to the rounding of sums; decoded elements are exact. These are the reference that
//! kernel tests compare against.
use crate::channel8::half;
use crate::error::{CodecError, Input, consistent, sized};
use crate::groups::KeyGroups;
use crate::page_scale;
use crate::refine::Residuals;
use crate::rotation::{self, Rotation};
use crate::spherical::Spherical;
use crate::turboquant::level_bytes;
use certkv_core::{
    Dtype, ErrorSummary, KeyFormat, PageCode, RecordLayout, RefinedSummary, ValueFormat,
    layout::{key_index, read_code, value_index},
    summary::SUMMARY_BYTES,
};
use core::ops::Range;

/// Decoded key of one token, into `out` (dim,); of a calibrated format, in the metric of its codes
/// ([`KeyMetric::unfold`](crate::KeyMetric::unfold) brings it back).
///
/// # Errors
/// [`CodecError::Shape`] if the record, the token or `out` does not fit the layout; [`CodecError::Metric`] for codes that need
/// [`decode_key_in`] or [`decode_key_of`].
pub fn decode_key(layout: &RecordLayout, record: &[u8], token: usize, out: &mut [f64]) -> Result<(), CodecError> {
    if matches!(layout.format.key, KeyFormat::Gtq { .. }) {
        return Err(CodecError::Metric { needed: true });
    }
    check(layout, record, token, out)?;
    let side = KeySide::new(layout, record);
    out.iter_mut().enumerate().for_each(|(channel, x)| *x = side.element(token, channel));
    if matches!(layout.format.key, KeyFormat::Turbo { .. }) {
        turn_back(out);
    }
    Ok(())
}

/// The same of keys in groups of unlike width, in the metric of their codes.
///
/// # Errors
/// As [`decode_key`], and as [`KeyGroups::check`].
pub fn decode_key_in(
    groups: &KeyGroups,
    layout: &RecordLayout,
    record: &[u8],
    token: usize,
    out: &mut [f64],
) -> Result<(), CodecError> {
    check(layout, record, token, out)?;
    groups.check(layout)?;
    let (tokens, codes) = (layout.tokens(), section(record, &layout.key_codes));
    for (g, part) in groups.parts().iter().enumerate() {
        let radius = number(section(record, &layout.key_scales), Dtype::F16, g * tokens + token);
        let (n, codes) = (part.places.len(), codes.get(part.codes(tokens)).unwrap_or_default());
        for (i, x) in out[part.places.clone()].iter_mut().enumerate() {
            let code = read_code(codes, usize::from(part.bits), tokens * n, key_index(token, i, n));
            *x = (f64::from(part.levels[usize::from(code) % 64]) - 128.0) * radius;
        }
    }
    groups.turn_back(out);
    Ok(())
}

/// The same of spherical keys: `scale u C` of each group, (2.21).
///
/// # Errors
/// As [`decode_key`], and as [`Spherical::check`].
pub fn decode_key_of(
    books: &Spherical,
    layout: &RecordLayout,
    record: &[u8],
    token: usize,
    out: &mut [f64],
) -> Result<(), CodecError> {
    check(layout, record, token, out)?;
    books.check(layout)?;
    let (tokens, tier) = (layout.tokens(), books.tier());
    let count = tokens * books.books().len();
    let (radii, indices) = section(record, &layout.key_codes).split_at_checked(count).unwrap_or_default();
    for (g, (part, book)) in out.chunks_exact_mut(tier.group()).zip(books.books()).enumerate() {
        let at = g * tokens + token;
        let scale = number(section(record, &layout.key_scales), Dtype::F16, g);
        let r = scale * radii.get(at).map_or(f64::NAN, |u| f64::from(*u));
        let word = book.word(read_code(indices, usize::from(tier.bits()), count, at));
        part.iter_mut().zip(word).for_each(|(x, c)| *x = r * c);
    }
    Ok(())
}

/// Decoded value of one token, into `out` (dim,).
///
/// # Errors
/// As [`decode_key`].
pub fn decode_value(layout: &RecordLayout, record: &[u8], token: usize, out: &mut [f64]) -> Result<(), CodecError> {
    check(layout, record, token, out)?;
    let side = ValueSide::new(layout, record);
    out.iter_mut().enumerate().for_each(|(channel, x)| *x = side.element(token, channel));
    if matches!(layout.format.value, ValueFormat::Turbo { .. }) {
        turn_back(out);
    }
    Ok(())
}

/// Refined key `k^^` of one token, math.md (2.23), into `out` (dim,); without residuals the decoded key.
///
/// # Errors
/// As [`decode_key`].
pub fn refined_key(layout: &RecordLayout, record: &[u8], token: usize, out: &mut [f64]) -> Result<(), CodecError> {
    if layout.format.refine.is_none() {
        return decode_key(layout, record, token, out);
    }
    check(layout, record, token, out)?;
    let side = KeySide::new(layout, record);
    out.iter_mut().enumerate().for_each(|(channel, x)| *x = side.element(token, channel) + side.shift(token, channel));
    Ok(())
}

/// Refined value `v^^` of one token, math.md (2.23), into `out` (dim,); without residuals the decoded value.
///
/// # Errors
/// As [`decode_key`].
pub fn refined_value(layout: &RecordLayout, record: &[u8], token: usize, out: &mut [f64]) -> Result<(), CodecError> {
    if layout.format.refine.is_none() {
        return decode_value(layout, record, token, out);
    }
    check(layout, record, token, out)?;
    let side = ValueSide::new(layout, record);
    out.iter_mut().enumerate().for_each(|(channel, x)| *x = side.element(token, channel) + side.shift(token, channel));
    Ok(())
}

/// Logits `s q.k^_t` of every token, (tokens,), summed from codes in the codec's own order: per-channel scales fold
/// into the query, per-token scales multiply a group's sum, and TurboQuant turns the query. Of a calibrated format `q` is the
/// folded query, and what its metric adds is not in them.
///
/// # Errors
/// [`CodecError::Shape`] if the record or `q` does not fit the layout; [`CodecError::Metric`] for codes in groups, which
/// [`decode_key_in`] and [`decode_key_of`] read.
pub fn score_plain(layout: &RecordLayout, record: &[u8], q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    if matches!(layout.format.key, KeyFormat::Gtq { .. }) {
        return Err(CodecError::Metric { needed: true });
    }
    consistent(layout)?;
    sized(Input::Record, record.len(), layout.bytes)?;
    sized(Input::Query, q.len(), layout.dim)?;
    let side = KeySide::new(layout, record);
    let dim = layout.dim;
    let group = layout.format.key.group(dim);
    let mut q = q.to_vec();
    if matches!(layout.format.key, KeyFormat::Turbo { .. }) {
        Rotation::new(dim, rotation::SEED).turn(&mut q);
    }
    let logit = |t: usize| match layout.format.key {
        KeyFormat::F16 | KeyFormat::Bf16 => (0..dim).map(|c| q[c] * side.element(t, c)).sum::<f64>(),
        KeyFormat::Turbo { .. } => (0..dim).map(|c| q[c] * side.level(t, c)).sum::<f64>() * side.scale(t),
        KeyFormat::Channel { .. } => {
            let codes: f64 = (0..dim).map(|c| (q[c] * side.scale(c)) * side.code(t, c)).sum();
            codes + (0..dim).map(|c| q[c] * side.scale(dim + c)).sum::<f64>()
        }
        KeyFormat::Page { .. } => {
            let part = |g: usize| (g * group..(g + 1) * group).map(|c| q[c] * side.level(t, c)).sum::<f64>();
            (0..dim / group).map(|g| side.scale(g) * part(g)).sum()
        }
        KeyFormat::Token { .. } => {
            let part = |g: usize| (g * group..(g + 1) * group).map(|c| q[c] * side.code(t, c)).sum::<f64>();
            (0..dim / group).map(|g| side.scale(g * layout.tokens() + t) * part(g)).sum()
        }
        // Refused above.
        KeyFormat::Gtq { .. } => f64::NAN,
    };
    Ok((0..layout.tokens()).map(|t| scale * logit(t)).collect())
}

/// Adds `sum_t w_t v^_t` to `out` (dim,); `weights` holds one weight per token.
///
/// # Errors
/// [`CodecError::Shape`] if the record, `weights` or `out` does not fit the layout.
pub fn accumulate_plain(
    layout: &RecordLayout,
    record: &[u8],
    weights: &[f64],
    out: &mut [f64],
) -> Result<(), CodecError> {
    check(layout, record, 0, out)?;
    sized(Input::Weights, weights.len(), layout.tokens())?;
    let side = ValueSide::new(layout, record);
    let mut sum = vec![0.0; layout.dim];
    for (token, w) in weights.iter().enumerate() {
        sum.iter_mut().enumerate().for_each(|(channel, x)| *x += w * side.element(token, channel));
    }
    if matches!(layout.format.value, ValueFormat::Turbo { .. }) {
        turn_back(&mut sum);
    }
    out.iter_mut().zip(&sum).for_each(|(x, s)| *x += s);
    Ok(())
}

/// The record's error summary. A truncated record gives NaN entries, which fail closed.
pub fn read_summary(layout: &RecordLayout, record: &[u8]) -> ErrorSummary {
    ErrorSummary::from_bytes(section(record, &layout.summary))
}

/// The summary of the refined block. A truncated record gives NaN entries, and so does a format without residuals.
pub fn read_refined_summary(layout: &RecordLayout, record: &[u8]) -> RefinedSummary {
    RefinedSummary::from_bytes(section(record, &layout.summary).get(SUMMARY_BYTES..).unwrap_or_default())
}

fn check(layout: &RecordLayout, record: &[u8], token: usize, out: &[f64]) -> Result<(), CodecError> {
    consistent(layout)?;
    sized(Input::Record, record.len(), layout.bytes)?;
    sized(Input::Output, out.len(), layout.dim)?;
    if token >= layout.tokens() {
        return Err(CodecError::Shape { input: Input::Parameters, got: token, want: layout.tokens() });
    }
    Ok(())
}

fn section<'a>(record: &'a [u8], range: &Range<usize>) -> &'a [u8] {
    record.get(range.clone()).unwrap_or_default()
}

/// Number `index` of a scale section; NaN beyond its end.
fn number(section: &[u8], meta: Dtype, index: usize) -> f64 {
    let width = meta.bytes();
    match section.get(index * width..(index + 1) * width) {
        Some(&[a, b]) => f64::from(meta.decode16(u16::from_le_bytes([a, b]))),
        Some(&[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        _ => f64::NAN,
    }
}

/// What floating-point code `index` stands for; NaN beyond the end.
fn float(section: &[u8], code: PageCode, index: usize) -> f64 {
    let value = |byte: &u8| page_scale::kind(code).map_or(f64::NAN, |kind| kind.value(*byte));
    section.get(index).map_or(f64::NAN, value)
}

/// `x^^ - x^` of element `index` of `count`, whose code has this step; 0 without residuals.
fn shift(residuals: &[u8], bits: u8, count: usize, index: usize, step: f64) -> f64 {
    if bits == 0 {
        return 0.0;
    }
    let lattice = Residuals::new(bits);
    lattice.shift(lattice.read(read_code(residuals, bits as usize, count, index)), step)
}

/// A row of a TurboQuant side as it was before its rotation.
fn turn_back(row: &mut [f64]) {
    Rotation::new(row.len(), rotation::SEED).turn_back(row);
}

/// Key codes, scales and residuals of a record. Elements of a TurboQuant side are those of the rotated vector.
struct KeySide<'a> {
    layout: &'a RecordLayout,
    codes: &'a [u8],
    scales: &'a [u8],
    residuals: &'a [u8],
    levels: [u8; 64],
}

impl<'a> KeySide<'a> {
    fn new(layout: &'a RecordLayout, record: &'a [u8]) -> Self {
        let part = |range| section(record, range);
        let (codes, scales) = (part(&layout.key_codes), part(&layout.key_scales));
        let levels =
            if let KeyFormat::Turbo { bits, .. } = layout.format.key { level_bytes(layout.dim, bits) } else { [0; 64] };
        Self { layout, codes, scales, residuals: part(&layout.key_residuals), levels }
    }

    fn shift(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        let index = key_index(token, channel, l.dim);
        // Residuals come with a scale per channel only.
        shift(self.residuals, l.format.refine.key, l.count(), index, self.scale(channel))
    }

    fn code(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        let bits = l.format.key.bits();
        let code = read_code(self.codes, bits, l.count(), key_index(token, channel, l.dim));
        f64::from(code) - f64::from(1u16 << (bits - 1))
    }

    /// What a code stands for, per unit of a TurboQuant row's radius or of a block's scale.
    fn level(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        match l.format.key.page() {
            Some(code) if code.is_float() => return float(self.codes, code, token * l.dim + channel),
            Some(_) => return self.code(token, channel),
            None => {}
        }
        let bits = l.format.key.bits();
        let code = read_code(self.codes, bits, l.count(), key_index(token, channel, l.dim));
        f64::from(self.levels[usize::from(code) % 64]) - 128.0
    }

    fn scale(&self, index: usize) -> f64 {
        let meta = if let KeyFormat::Channel { meta, .. } = self.layout.format.key { meta } else { Dtype::F16 };
        number(self.scales, meta, index)
    }

    fn element(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        match l.format.key {
            KeyFormat::F16 | KeyFormat::Bf16 => number(self.codes, l.store, token * l.dim + channel),
            KeyFormat::Channel { bits: 0, .. } => self.scale(l.dim + channel),
            KeyFormat::Channel { .. } => self.code(token, channel) * self.scale(channel) + self.scale(l.dim + channel),
            KeyFormat::Token { .. } => {
                let group = channel / l.format.key.group(l.dim);
                self.code(token, channel) * self.scale(group * l.tokens() + token)
            }
            KeyFormat::Turbo { .. } => self.level(token, channel) * self.scale(token),
            // Read group by group.
            KeyFormat::Gtq { .. } => f64::NAN,
            KeyFormat::Page { .. } => self.level(token, channel) * self.scale(channel / l.format.key.group(l.dim)),
        }
    }
}

/// Value codes, scales and residuals of a record. Elements of a TurboQuant side are those of the rotated vector.
struct ValueSide<'a> {
    layout: &'a RecordLayout,
    codes: &'a [u8],
    scales: &'a [u8],
    residuals: &'a [u8],
    levels: [u8; 64],
}

impl<'a> ValueSide<'a> {
    fn new(layout: &'a RecordLayout, record: &'a [u8]) -> Self {
        let part = |range| section(record, range);
        let (codes, scales) = (part(&layout.value_codes), part(&layout.value_scales));
        let levels =
            if let ValueFormat::Turbo { bits } = layout.format.value { level_bytes(layout.dim, bits) } else { [0; 64] };
        Self { layout, codes, scales, residuals: part(&layout.value_residuals), levels }
    }

    /// Where the scale of an element lies among the scales.
    fn scale_index(&self, token: usize, channel: usize) -> usize {
        let l = self.layout;
        if let ValueFormat::Channel { .. } = l.format.value {
            return 2 * channel;
        }
        channel / l.format.value.group(l.dim) * l.tokens() + token
    }

    fn shift(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        let step = number(self.scales, Dtype::F16, self.scale_index(token, channel));
        shift(self.residuals, l.format.refine.value, l.count(), value_index(token, channel, l.dim), step)
    }

    fn element(&self, token: usize, channel: usize) -> f64 {
        let l = self.layout;
        match l.format.value {
            ValueFormat::F16 | ValueFormat::Bf16 => number(self.codes, l.store, token * l.dim + channel),
            ValueFormat::Affine { bits, group } => {
                let code = read_code(self.codes, bits as usize, l.count(), value_index(token, channel, l.dim));
                let (groups, at) = (l.dim / group as usize, self.scale_index(token, channel));
                let scale = number(self.scales, Dtype::F16, at);
                f64::from(code) * scale + number(self.scales, Dtype::F16, groups * l.tokens() + at)
            }
            ValueFormat::Channel { bits } => {
                let code = read_code(self.codes, bits as usize, l.count(), value_index(token, channel, l.dim));
                let [scale, z] = [0, 1].map(|i| number(self.scales, Dtype::F16, 2 * channel + i));
                (f64::from(code) - f64::from(half(bits))) * scale + z
            }
            ValueFormat::Turbo { bits } => {
                let code = read_code(self.codes, bits as usize, l.count(), value_index(token, channel, l.dim));
                (f64::from(self.levels[usize::from(code) % 64]) - 128.0) * number(self.scales, Dtype::F16, token)
            }
            ValueFormat::Page { code, .. } => {
                let level = if code.is_float() {
                    float(self.codes, code, token * l.dim + channel)
                } else {
                    let bits = code.bits() as usize;
                    let stored = read_code(self.codes, bits, l.count(), value_index(token, channel, l.dim));
                    f64::from(stored) - f64::from(1u16 << (bits - 1))
                };
                level * number(self.scales, Dtype::F16, channel / l.format.value.group(l.dim))
            }
        }
    }
}

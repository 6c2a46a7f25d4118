//! Symmetric codes with one scale per token (or per block) and group of channels, math.md (2.7), (2.8).
use crate::error::{CodecError, Input, finite, grouped, rows, sized, width};
use crate::logit;
use crate::numeric::{divisor, rint_code};
use certkv_core::{
    Dtype,
    round::{Fp, up},
};

/// Where the levels lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Levels `s {-(h-1) .. h-1}`, `h = 2^(bits-1)`, math.md (2.7): represents 0. What records use.
    Tread,
    /// Levels `s (code + 1/2)`, `code` in `-h .. h-1`, math.md (2.8): finer below 8 bits, cannot represent 0.
    Rise,
}

/// Who shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each token has its own scales.
    Token,
    /// All tokens of the block share them.
    Block,
}

/// How a block is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Bits of a code, 2 to 8.
    pub bits: u8,
    /// Channels that share a scale.
    pub group: usize,
    /// Tokens that share a scale.
    pub sharing: Sharing,
    /// Levels.
    pub mode: Mode,
    /// Type of the scales.
    pub meta: Dtype,
}

/// A coded block of `rows` tokens and `dim` channels.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenSym {
    /// Channels.
    pub dim: usize,
    /// How it was coded.
    pub spec: Spec,
    /// Signed codes, row-major (rows, dim).
    pub codes: Vec<i8>,
    /// Steps: (rows, dim / group), or (dim / group,) if the block shares them.
    pub scale: Vec<f64>,
    /// Elements that a fixed scale could not reach; 0 for scales taken from the block.
    pub saturated: usize,
}

/// Codes `keys` (rows, dim) with scales taken from the block: `|k - k^| <= scale / 2`.
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`].
pub fn encode(keys: &[f64], dim: usize, spec: Spec) -> Result<TokenSym, CodecError> {
    let n = rows(Input::Keys, keys.len(), dim)?;
    let groups = grouped(dim, spec.group)?;
    width(spec.bits)?;
    finite(Input::Keys, keys, dim)?;
    let mut scale = vec![0.0; n * groups];
    for (row, (key, scale)) in keys.chunks_exact(dim).zip(scale.chunks_exact_mut(groups)).enumerate() {
        largest_row(key, spec.group, scale);
        // Scales of a block are rounded once, from the largest entry of all tokens.
        if spec.sharing == Sharing::Token {
            round_scales(scale, row, &spec)?;
        }
    }
    if spec.sharing == Sharing::Block {
        let mut shared = vec![0.0f64; groups];
        for row in scale.chunks_exact(groups) {
            shared.iter_mut().zip(row).for_each(|(s, x)| *s = s.max(*x));
        }
        round_scales(&mut shared, 0, &spec)?;
        scale = shared;
    }
    Ok(code_block(keys, dim, spec, scale))
}

/// Codes `keys` (rows, dim) with fixed, calibrated scales, (rows, dim / group) or (dim / group,) as `spec.sharing`
/// says. Values beyond the levels saturate: only the measured annotations of math.md section 3 hold then.
///
/// # Errors
/// As [`encode`]; [`CodecError::NonFinite`] also for a scale that is not finite or is negative.
pub fn encode_static(keys: &[f64], dim: usize, spec: Spec, scale: &[f64]) -> Result<TokenSym, CodecError> {
    let n = rows(Input::Keys, keys.len(), dim)?;
    let groups = grouped(dim, spec.group)?;
    width(spec.bits)?;
    finite(Input::Keys, keys, dim)?;
    sized(Input::Scale, scale.len(), if spec.sharing == Sharing::Token { n * groups } else { groups })?;
    if let Some(i) = scale.iter().position(|s| !(s.is_finite() && *s >= 0.0)) {
        return Err(CodecError::NonFinite { input: Input::Scale, row: i / groups, channel: i % groups * spec.group });
    }
    Ok(code_block(keys, dim, spec, scale.to_vec()))
}

fn code_block(keys: &[f64], dim: usize, spec: Spec, scale: Vec<f64>) -> TokenSym {
    let groups = dim / spec.group;
    let mut codes = vec![0u8; keys.len()];
    let mut errors = vec![0.0; dim];
    let mut saturated = 0;
    let coded = keys.chunks_exact(dim).zip(codes.chunks_exact_mut(dim));
    for ((key, codes), scale) in coded.zip(scale.chunks_exact(groups).cycle()) {
        saturated += saturation(key, &spec, scale);
        match spec.mode {
            Mode::Tread => code_row(key, spec.group, spec.bits, scale, codes, &mut errors),
            Mode::Rise => rise_row(key, &spec, scale, codes),
        }
    }
    let half = 1i16 << (spec.bits - 1);
    let codes = codes.into_iter().map(|c| (i16::from(c) - half) as i8).collect();
    TokenSym { dim, spec, codes, scale, saturated }
}

impl TokenSym {
    /// The decoded keys, row-major (rows, dim).
    pub fn decode(&self) -> Vec<f64> {
        let shift = if self.spec.mode == Mode::Rise { 0.5 } else { 0.0 };
        let groups = self.codes.chunks_exact(self.spec.group).zip(self.scale.iter().cycle());
        groups.flat_map(|(codes, s)| codes.iter().map(move |c| (f64::from(*c) + shift) * s)).collect()
    }
}

/// Largest magnitude per group of one token, (groups,).
pub(crate) fn largest_row(key: &[f64], group: usize, largest: &mut [f64]) {
    for (part, largest) in key.chunks_exact(group).zip(largest) {
        let (chunks, rest) = part.as_chunks::<8>();
        let mut lanes = [0.0f64; 8];
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane = if v.abs() > *lane { v.abs() } else { *lane };
            }
        }
        *largest = lanes.iter().copied().chain(rest.iter().map(|v| v.abs())).fold(0.0, f64::max);
    }
}

/// Turns largest magnitudes into steps: `ru_meta(largest / levels)`.
pub(crate) fn round_scales(scale: &mut [f64], row: usize, spec: &Spec) -> Result<(), CodecError> {
    let half = f64::from(1u16 << (spec.bits - 1));
    let levels = if spec.mode == Mode::Tread { half - 1.0 } else { half };
    let (fp, meta) = (Fp::from(spec.meta), spec.meta);
    for (g, s) in scale.iter_mut().enumerate() {
        *s = up(*s / levels, fp);
        if !s.is_finite() {
            return Err(CodecError::ScaleOverflow { input: Input::Keys, row, channel: g * spec.group, meta });
        }
    }
    Ok(())
}

/// Tread codes of one token, stored unsigned (`code + 2^(bits-1)`), and the errors `k - k^`, math.md (2.7).
#[inline]
pub(crate) fn code_row(key: &[f64], group: usize, bits: u8, scale: &[f64], codes: &mut [u8], errors: &mut [f64]) {
    let half = 1u8 << (bits - 1);
    let top = f64::from(half) - 1.0;
    let parts = key.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(errors.chunks_exact_mut(group));
    for (((key, codes), errors), s) in parts.zip(scale) {
        let by = divisor(*s);
        // A scale of 0 means all codes 0: a fixed one may meet keys that are not 0.
        let reach = if *s > 0.0 { top } else { 0.0 };
        for ((k, code), error) in key.iter().zip(codes).zip(errors) {
            let y = k / by;
            let y = if y > reach { reach } else { y };
            let (rounded, low) = rint_code(if y < -reach { -reach } else { y });
            *code = low.wrapping_add(half);
            *error = k - rounded * s;
        }
    }
}

fn rise_row(key: &[f64], spec: &Spec, scale: &[f64], codes: &mut [u8]) {
    let half = f64::from(1u16 << (spec.bits - 1));
    for ((key, codes), s) in key.chunks_exact(spec.group).zip(codes.chunks_exact_mut(spec.group)).zip(scale) {
        for (k, code) in key.iter().zip(codes) {
            let y = if *s > 0.0 { (k / s).floor().clamp(-half, half - 1.0) } else { 0.0 };
            *code = (y + half) as u8;
        }
    }
}

/// Elements whose level would lie beyond the last one.
fn saturation(key: &[f64], spec: &Spec, scale: &[f64]) -> usize {
    let half = f64::from(1u16 << (spec.bits - 1));
    let reach = if spec.mode == Mode::Tread { half - 0.5 } else { half };
    let beyond = |(key, s): (&[f64], &f64)| key.iter().filter(|k| *s > 0.0 && (*k / s).abs() > reach).count();
    key.chunks_exact(spec.group).zip(scale).map(beyond).sum()
}

/// Logits from codes: `s sum_G scale_tG sum_{c in G} code_tc q_c`, (rows,).
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not `dim` entries.
pub fn score(block: &TokenSym, q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    sized(Input::Query, q.len(), block.dim)?;
    let group = block.spec.group;
    let shift = if block.spec.mode == Mode::Rise { 0.5 } else { 0.0 };
    let part = |codes: &[i8], q: &[f64]| codes.iter().zip(q).map(|(c, q)| (f64::from(*c) + shift) * q).sum::<f64>();
    let steps = block.scale.chunks_exact(block.dim / group).cycle();
    let row = |(codes, steps): (&[i8], &[f64])| {
        let parts = codes.chunks_exact(group).zip(q.chunks_exact(group)).zip(steps);
        scale * parts.map(|((codes, q), s)| s * part(codes, q)).sum::<f64>()
    };
    Ok(block.codes.chunks_exact(block.dim).zip(steps).map(row).collect())
}

/// `Delta` of a block from its measured group errors, math.md (4.4): `group_errors[G] = max_t ||e_t^(G)||`.
pub fn delta(q: &[f64], group_errors: &[f64], group: usize, scale: f64) -> f64 {
    logit::delta_groups(q, group_errors, group, scale)
}

/// `Lambda` of a block from its spectral norms, math.md (4.9): `group_norms[G] = ||E_G||_op`.
pub fn lambda(q: &[f64], group_norms: &[f64], group: usize, scale: f64) -> f64 {
    logit::delta_groups(q, group_norms, group, scale)
}

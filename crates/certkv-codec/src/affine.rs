//! Affine values: `bits` per element, one scale and one offset per token and group of channels, math.md (2.4)-(2.6).
use crate::error::{CodecError, Input, finite, grouped, rows, sized, width};
use crate::numeric::{divisor, rint_code};
use certkv_core::{
    Dtype,
    round::{Fp, down, up},
};

/// A coded block of `rows` tokens and `dim` channels.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Channels.
    pub dim: usize,
    /// Channels that share a scale.
    pub group: usize,
    /// Bits of a code, 2 to 8.
    pub bits: u8,
    /// Codes `0..2^bits`, row-major (rows, dim).
    pub codes: Vec<u8>,
    /// Steps, (rows, dim / group): values of the metadata type.
    pub sigma: Vec<f64>,
    /// Offsets, (rows, dim / group): values of the metadata type.
    pub z: Vec<f64>,
}

/// Codes `values` (rows, dim).
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`] if a scale or an offset does not
/// fit `meta`.
pub fn encode(values: &[f64], dim: usize, group: usize, bits: u8, meta: Dtype) -> Result<Affine, CodecError> {
    let n = rows(Input::Values, values.len(), dim)?;
    let groups = grouped(dim, group)?;
    width(bits)?;
    finite(Input::Values, values, dim)?;
    let (mut sigma, mut z) = (vec![0.0; n * groups], vec![0.0; n * groups]);
    let mut codes = vec![0; values.len()];
    let mut errors = vec![0.0; dim];
    for (row, value) in values.chunks_exact(dim).enumerate() {
        let at = row * groups..(row + 1) * groups;
        scales_row(value, row, group, bits, meta, &mut sigma[at.clone()], &mut z[at])?;
    }
    let scales = sigma.chunks_exact(groups).zip(z.chunks_exact(groups));
    for ((value, (sigma, z)), codes) in values.chunks_exact(dim).zip(scales).zip(codes.chunks_exact_mut(dim)) {
        code_row(value, group, sigma, z, codes, &mut errors);
    }
    Ok(Affine { dim, group, bits, codes, sigma, z })
}

impl Affine {
    /// The decoded values, row-major (rows, dim).
    pub fn decode(&self) -> Vec<f64> {
        let groups = self.codes.chunks_exact(self.group).zip(self.sigma.iter().zip(&self.z));
        groups.flat_map(|(codes, (s, z))| codes.iter().map(move |c| f64::from(*c) * s + z)).collect()
    }
}

/// Scales and offsets of one token, (groups,), math.md (2.4), (2.5). `value` is finite.
pub(crate) fn scales_row(
    value: &[f64],
    row: usize,
    group: usize,
    bits: u8,
    meta: Dtype,
    sigma: &mut [f64],
    z: &mut [f64],
) -> Result<(), CodecError> {
    let fp = Fp::from(meta);
    let top = f64::from((1u16 << bits) - 1);
    for (g, ((part, sigma), z)) in value.chunks_exact(group).zip(sigma).zip(z).enumerate() {
        let (lo, hi) = extremes(part);
        *z = down(lo, fp);
        *sigma = up((hi - *z) / top, fp);
        if !(z.is_finite() && sigma.is_finite()) {
            return Err(CodecError::ScaleOverflow { input: Input::Values, row, channel: g * group, meta });
        }
    }
    Ok(())
}

/// Least and greatest entry, in interleaved lanes.
#[inline]
fn extremes(x: &[f64]) -> (f64, f64) {
    let (chunks, rest) = x.as_chunks::<8>();
    let (mut low, mut high) = ([f64::INFINITY; 8], [f64::NEG_INFINITY; 8]);
    for chunk in chunks {
        for ((v, lo), hi) in chunk.iter().zip(&mut low).zip(&mut high) {
            *lo = if *v < *lo { *v } else { *lo };
            *hi = if *v > *hi { *v } else { *hi };
        }
    }
    let lo = low.iter().chain(rest).copied().fold(f64::INFINITY, f64::min);
    (lo, high.iter().chain(rest).copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Codes of one token and the errors `v - v^`, math.md (2.6).
#[inline]
pub(crate) fn code_row(value: &[f64], group: usize, sigma: &[f64], z: &[f64], codes: &mut [u8], errors: &mut [f64]) {
    let parts = value.chunks_exact(group).zip(codes.chunks_exact_mut(group)).zip(errors.chunks_exact_mut(group));
    for (((value, codes), errors), (s, z)) in parts.zip(sigma.iter().zip(z)) {
        let by = divisor(*s);
        for ((v, code), error) in value.iter().zip(codes).zip(errors) {
            let (rounded, low) = rint_code((v - z) / by);
            *code = low;
            *error = v - (rounded * s + z);
        }
    }
}

/// `sum_t w_t v^_t`, (dim,), from codes: `sum_t (w_t sigma_tg) code_tc + sum_t w_t z_tg`.
///
/// # Errors
/// [`CodecError::Shape`] if there is not one weight per token.
pub fn accumulate(block: &Affine, weights: &[f64]) -> Result<Vec<f64>, CodecError> {
    sized(Input::Weights, weights.len() * block.dim, block.codes.len())?;
    let groups = block.dim / block.group;
    let mut out = vec![0.0; block.dim];
    for (t, (w, codes)) in weights.iter().zip(block.codes.chunks_exact(block.dim)).enumerate() {
        for (c, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            let at = t * groups + c / block.group;
            *out += w * block.sigma[at] * f64::from(*code) + w * block.z[at];
        }
    }
    Ok(out)
}

/// Bound of `max_t ||v_t - v^_t||` from the steps alone: half a step in every channel, math.md (2.6). Measured
/// annotations (3.1) are tighter.
pub fn eta(block: &Affine) -> f64 {
    let groups = block.dim / block.group;
    let row = |s: &[f64]| (crate::numeric::sum_squares(s) * block.group as f64).sqrt() * 0.5;
    block.sigma.chunks_exact(groups.max(1)).map(row).fold(0.0, f64::max) * crate::numeric::UP
}

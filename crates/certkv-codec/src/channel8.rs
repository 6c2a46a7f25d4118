//! Codes with one scale and one offset per channel and block, math.md (2.1)-(2.3), (2.9b): keys and values of 2 to 8 bits, or of none, which all are their
//! block's mean (2.9c).
use crate::error::{CodecError, Input, finite, rows, sized, width};
use crate::numeric::{UP, divisor, dot, norm, rint_code};
use certkv_core::{
    Dtype,
    round::{Fp, nearest, up},
};

/// A coded block of `rows` tokens and `dim` channels.
#[derive(Debug, Clone, PartialEq)]
pub struct Channel8 {
    /// Channels.
    pub dim: usize,
    /// Signed codes, row-major (rows, dim).
    pub codes: Vec<i8>,
    /// Steps, (dim,): values of the metadata type.
    pub sigma: Vec<f64>,
    /// Offsets, (dim,): values of the metadata type.
    pub z: Vec<f64>,
}

/// Codes `keys` (rows, dim) in `bits` bits, with scales and offsets of type `meta`.
///
/// # Errors
/// [`CodecError::Shape`], also for bits outside 2 to 8 that are not 0, [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`] if a scale or an offset does not
/// fit `meta`.
pub fn encode(keys: &[f64], dim: usize, bits: u8, meta: Dtype) -> Result<Channel8, CodecError> {
    rows(Input::Keys, keys.len(), dim)?;
    if bits != 0 {
        width(bits)?;
    }
    finite(Input::Keys, keys, dim)?;
    encode_side(Input::Keys, keys, dim, bits, meta)
}

/// Codes `values` (rows, dim) in `bits` bits, with f16 scales and offsets, math.md (2.9b).
///
/// # Errors
/// As [`encode`].
pub fn encode_values(values: &[f64], dim: usize, bits: u8) -> Result<Channel8, CodecError> {
    rows(Input::Values, values.len(), dim)?;
    if bits != 0 {
        width(bits)?;
    }
    finite(Input::Values, values, dim)?;
    encode_side(Input::Values, values, dim, bits, Dtype::F16)
}

fn encode_side(input: Input, side: &[f64], dim: usize, bits: u8, meta: Dtype) -> Result<Channel8, CodecError> {
    let (mut sigma, mut z) = (vec![0.0; dim], vec![0.0; dim]);
    scales(input, side, dim, bits, meta, &mut sigma, &mut z)?;
    let divisors: Vec<f64> = sigma.iter().map(|s| divisor(*s)).collect();
    let mut codes = vec![0u8; side.len()];
    let mut error = vec![0.0; dim];
    for (row, code) in side.chunks_exact(dim).zip(codes.chunks_exact_mut(dim)) {
        code_row(row, bits, &sigma, &divisors, &z, code, &mut error);
    }
    let half = i16::from(half(bits));
    Ok(Channel8 { dim, codes: codes.into_iter().map(|c| (i16::from(c) - half) as i8).collect(), sigma, z })
}

impl Channel8 {
    /// What the codes stand for, row-major (rows, dim).
    pub fn decode(&self) -> Vec<f64> {
        let scales = self.sigma.iter().zip(&self.z);
        self.codes.iter().zip(scales.cycle()).map(|(c, (s, z))| f64::from(*c) * s + z).collect()
    }

    /// `max_t sum_c |code_tc|`, for [`delta_query_int8`].
    pub fn code_l1(&self) -> f64 {
        let row = |r: &[i8]| r.iter().map(|c| f64::from(c.unsigned_abs())).sum::<f64>();
        self.codes.chunks_exact(self.dim).map(row).fold(0.0, f64::max)
    }
}

/// Scales and offsets of the block, math.md (2.1), (2.2). The elements of `side` are finite.
pub(crate) fn scales(
    input: Input,
    side: &[f64],
    dim: usize,
    bits: u8,
    meta: Dtype,
    sigma: &mut [f64],
    z: &mut [f64],
) -> Result<(), CodecError> {
    // Least elements in `z`, greatest in `sigma` until both are known.
    z.fill(f64::INFINITY);
    sigma.fill(f64::NEG_INFINITY);
    for key in side.chunks_exact(dim) {
        for ((k, lo), hi) in key.iter().zip(z.iter_mut()).zip(sigma.iter_mut()) {
            *lo = if *k < *lo { *k } else { *lo };
            *hi = if *k > *hi { *k } else { *hi };
        }
    }
    let (fp, half) = (Fp::from(meta), f64::from(half(bits)));
    if bits == 0 {
        return means(input, side, meta, sigma, z);
    }
    for (channel, (sigma, z)) in sigma.iter_mut().zip(z.iter_mut()).enumerate() {
        let (lo, hi) = (*z, *sigma);
        *z = nearest(lo + half * ((hi - lo) / (2.0 * half - 1.0)), fp);
        *sigma = up(((hi - *z) / (half - 1.0)).max((*z - lo) / half), fp);
        if !(z.is_finite() && sigma.is_finite()) {
            return Err(CodecError::ScaleOverflow { input, row: 0, channel, meta });
        }
    }
    Ok(())
}

/// Offsets that are means, and scales of which half is the largest distance from them, math.md (2.9c). `z` and `sigma` hold the least and the
/// greatest elements.
fn means(input: Input, side: &[f64], meta: Dtype, sigma: &mut [f64], z: &mut [f64]) -> Result<(), CodecError> {
    let (fp, dim) = (Fp::from(meta), z.len());
    let rows = side.len() / dim;
    for (channel, (sigma, z)) in sigma.iter_mut().zip(z.iter_mut()).enumerate() {
        let (lo, hi) = (*z, *sigma);
        let sum: f64 = side.iter().skip(channel).step_by(dim).sum();
        // A sum of equal elements may be rounded out of their range.
        *z = nearest((sum / rows as f64).clamp(lo, hi), fp);
        *sigma = up(2.0 * (hi - *z).max(*z - lo), fp);
        if !(z.is_finite() && sigma.is_finite()) {
            return Err(CodecError::ScaleOverflow { input, row: 0, channel, meta });
        }
    }
    Ok(())
}

/// What is added to a code of so many bits where it is stored: 2^(bits-1), nothing to none.
pub(crate) const fn half(bits: u8) -> u8 {
    if bits == 0 { 0 } else { 1 << (bits - 1) }
}

/// Codes of one token, stored unsigned (`code + 2^(bits-1)`), and the errors `x - x^`, math.md (2.3). `divisors` are the
/// scales with 1 in place of 0.
#[inline]
pub(crate) fn code_row(
    row: &[f64],
    bits: u8,
    sigma: &[f64],
    divisors: &[f64],
    z: &[f64],
    codes: &mut [u8],
    errors: &mut [f64],
) {
    let (half, scales) = (half(bits), sigma.iter().zip(divisors).zip(z));
    if bits == 0 {
        codes.fill(0);
        errors.iter_mut().zip(row).zip(z).for_each(|((error, x), z)| *error = x - z);
        return;
    }
    for (((x, ((s, by), z)), code), error) in row.iter().zip(scales).zip(codes).zip(errors) {
        let (rounded, low) = rint_code((x - z) / by);
        *code = low.wrapping_add(half);
        *error = x - (rounded * s + z);
    }
}

/// `||x||` with `x_c` the most that the products of channel `c` come to, the residuals' included: what a value's norm is in (5.27), as codes
/// and offsets are summed apart.
pub(crate) fn magnitude(bits: u8, sigma: &[f64], z: &[f64]) -> f64 {
    let most = f64::from(half(bits)) + 1.5;
    sigma.iter().zip(z).map(|(s, z)| (most * s + z.abs()).powi(2)).sum::<f64>().sqrt()
}

/// Logits from codes: `s ( sum_c code_tc (q_c sigma_c) + sum_c q_c z_c )`, (rows,). No key is decoded.
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not `dim` entries.
pub fn score(block: &Channel8, q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    sized(Input::Query, q.len(), block.dim)?;
    let scaled: Vec<f64> = q.iter().zip(&block.sigma).map(|(q, s)| q * s).collect();
    let offset = dot(q, &block.z);
    let row = |codes: &[i8]| codes.iter().zip(&scaled).map(|(c, q)| f64::from(*c) * q).sum::<f64>();
    Ok(block.codes.chunks_exact(block.dim).map(|codes| scale * (row(codes) + offset)).collect())
}

/// `Delta = s sum_c |q_c| sigma_c / 2`, math.md (4.2) with Lemma 2.1: nothing but the scales is needed.
pub fn delta(q: &[f64], sigma: &[f64], scale: f64) -> f64 {
    scale * q.iter().zip(sigma).map(|(q, s)| q.abs() * (0.5 * s)).sum::<f64>() * UP
}

/// `Delta = s ||q|| ||sigma|| / 2`, math.md (4.6): one number per block, the loosest form.
pub fn delta_sigma_norm(q: &[f64], sigma: &[f64], scale: f64) -> f64 {
    scale * norm(q) * norm(sigma) * 0.5 * UP
}

/// `Lambda = s kappa ||q o sigma||`, math.md (4.8).
pub fn lambda(q: &[f64], sigma: &[f64], kappa: f64, scale: f64) -> f64 {
    let squares = q.iter().zip(sigma).map(|(q, s)| (q * s) * (q * s)).sum::<f64>();
    scale * kappa * squares.sqrt() * UP
}

/// What rounding the scaled query to 8 bits with one scale per block adds to `Delta`, math.md (4.14);
/// `code_l1 = max_t sum_c |code_tc|`.
pub fn delta_query_int8(q: &[f64], sigma: &[f64], code_l1: f64, scale: f64) -> f64 {
    // `f64::max` would pass over a NaN.
    let larger = |m: f64, x: f64| if x > m || x.is_nan() { x } else { m };
    let largest = q.iter().zip(sigma).map(|(q, s)| (q * s).abs()).fold(0.0, larger);
    scale * (largest / 254.0) * code_l1 * UP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_codes_all_are_the_mean_and_half_a_scale_from_it_at_most() {
        let keys = [1.0, -2.0, 3.0, 5.0, 5.0, -2.0, 3.0, 5.0, 1.5, -2.0, -60.0, 5.0];
        let block = encode(&keys, 4, 0, Dtype::F16).unwrap();
        assert_eq!((&block.z[..2], block.z[3]), (&[2.5, -2.0][..], 5.0));
        assert_eq!((block.sigma[0], block.sigma[1], block.sigma[3]), (5.0, 0.0, 0.0));
        for (decoded, key) in block.decode().chunks_exact(4).zip(keys.chunks_exact(4)) {
            assert_eq!(decoded, block.z);
            assert!(key.iter().zip(decoded).zip(&block.sigma).all(|((k, d), s)| (k - d).abs() <= s / 2.0));
        }
        let q = [1.0, -3.0, 0.5, 2.0];
        let logits = score(&block, &q, 0.25).unwrap();
        assert!(logits.iter().all(|z| *z == 0.25 * dot(&q, &block.z)));
        let within = delta(&q, &block.sigma, 0.25);
        assert!(keys.chunks_exact(4).zip(&logits).all(|(key, z)| (0.25 * dot(&q, key) - z).abs() <= within));
        assert!(encode(&keys, 4, 1, Dtype::F16).is_err() && encode_values(&keys, 4, 0).is_ok());
    }

    #[test]
    fn bounds_of_a_nan_are_nan() {
        let (q, sigma) = ([1.0, f64::NAN, 2.0], [1.0; 3]);
        assert!(delta(&q, &sigma, 1.0).is_nan() && delta_sigma_norm(&q, &sigma, 1.0).is_nan());
        assert!(lambda(&q, &sigma, 1.0, 1.0).is_nan() && delta_query_int8(&q, &sigma, 1.0, 1.0).is_nan());
    }
}

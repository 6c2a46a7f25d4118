//! TurboQuant-MSE, math.md 2.7: a vector is rotated, so that its coordinates are alike whatever it was, and each coordinate
//! takes the nearest level of the codebook for one coordinate of a random direction; a radius per vector brings the length.
//!
//! The levels of a *record* are bytes, (2.17b): integer products on codes then need a table of bytes, and nothing else. The
//! reference codec here takes the levels as they are.
use crate::codebook;
use crate::error::{CodecError, Input, finite, rows, sized};
use crate::logit;
use crate::numeric::{divisor, dot, sum_squares};
use crate::rotation::{self, Rotation};
use certkv_core::{
    Dtype, TURBO_BITS,
    round::{Fp, nearest},
};
use std::sync::{Arc, OnceLock};

/// Which radius is stored, math.md (2.16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Radius {
    /// The one that leaves the least error for the codes taken. What records use.
    LeastSquares,
    /// The length of the vector, as published.
    Norm,
}

/// A coded block of `rows` vectors of `dim` channels.
#[derive(Debug, Clone, PartialEq)]
pub struct TurboQuant {
    /// Channels.
    pub dim: usize,
    /// Codes of the rotated vectors, row-major (rows, dim).
    pub codes: Vec<u8>,
    /// Radii, (rows,).
    pub radius: Vec<f64>,
    /// What a code stands for, per unit of the radius.
    pub levels: Vec<f64>,
    /// The rotation of the codes.
    pub rotation: Rotation<f64>,
}

/// Codes `x` (rows, dim) with `bits` (1 to 8) per channel, rotated by `seed`, the radii in `meta`.
///
/// # Errors
/// [`CodecError::Shape`], [`CodecError::NonFinite`], or [`CodecError::ScaleOverflow`] for a radius that `meta` cannot hold.
pub fn encode(
    x: &[f64],
    dim: usize,
    bits: u8,
    seed: u64,
    radius: Radius,
    meta: Dtype,
) -> Result<TurboQuant, CodecError> {
    parameters(dim, bits, codebook::MAX_BITS)?;
    code_block(x, dim, &Book::lloyd_max(dim, bits), seed, radius, meta)
}

/// Codes `x` (rows, dim) as records hold it: `bits` from 1 to [`TURBO_BITS`], levels as bytes (2.17b), the rotation of
/// records, least radii in f16.
///
/// # Errors
/// As [`encode`].
pub fn encode_bytes(x: &[f64], dim: usize, bits: u8) -> Result<TurboQuant, CodecError> {
    parameters(dim, bits, TURBO_BITS)?;
    code_block(x, dim, &Book::bytes(dim, bits), rotation::SEED, Radius::LeastSquares, Dtype::F16)
}

fn parameters(dim: usize, bits: u8, most: u8) -> Result<(), CodecError> {
    if dim < 2 || !(1..=most).contains(&bits) {
        return Err(CodecError::Shape { input: Input::Parameters, got: usize::from(bits), want: usize::from(most) });
    }
    Ok(())
}

fn code_block(
    x: &[f64],
    dim: usize,
    book: &Book,
    seed: u64,
    radius: Radius,
    meta: Dtype,
) -> Result<TurboQuant, CodecError> {
    let n = rows(Input::Keys, x.len(), dim)?;
    finite(Input::Keys, x, dim)?;
    let rotation = Rotation::new(dim, seed);
    let mut turned = x.to_vec();
    let (mut codes, mut radii) = (vec![0; x.len()], vec![0.0; n]);
    let coded = turned.chunks_exact_mut(dim).zip(codes.chunks_exact_mut(dim));
    for (row, ((y, codes), r)) in coded.zip(&mut radii).enumerate() {
        rotation.turn(y);
        let fitted = book.code_row(y, codes);
        *r = match radius {
            Radius::LeastSquares => round_radius(fitted, Input::Keys, row, meta)?,
            Radius::Norm => round_radius(sum_squares(y).sqrt(), Input::Keys, row, meta)?,
        };
    }
    Ok(TurboQuant { dim, codes, radius: radii, levels: book.levels.clone(), rotation })
}

impl TurboQuant {
    /// The decoded vectors before they are rotated back, row-major (rows, dim).
    fn turned(&self) -> Vec<f64> {
        let rows = self.codes.chunks_exact(self.dim).zip(&self.radius);
        rows.flat_map(|(codes, r)| codes.iter().map(move |c| self.level(*c) * r)).collect()
    }

    fn level(&self, code: u8) -> f64 {
        self.levels.get(usize::from(code)).copied().unwrap_or(f64::NAN)
    }

    /// The decoded vectors, row-major (rows, dim), math.md (2.17).
    pub fn decode(&self) -> Vec<f64> {
        let mut x = self.turned();
        x.chunks_exact_mut(self.dim).for_each(|row| self.rotation.turn_back(row));
        x
    }
}

/// Logits from codes: `s r^ (R q).y^`, (rows,).
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not `dim` entries.
pub fn score(block: &TurboQuant, q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    sized(Input::Query, q.len(), block.dim)?;
    let mut q = q.to_vec();
    block.rotation.turn(&mut q);
    Ok(block.turned().chunks_exact(block.dim).map(|y| scale * dot(y, &q)).collect())
}

/// Adds `sum_t w_t x^_t` to `out` (dim,): the sum is taken over codes and rotated back once.
///
/// # Errors
/// [`CodecError::Shape`] if `weights` or `out` does not fit the block.
pub fn accumulate(block: &TurboQuant, weights: &[f64], out: &mut [f64]) -> Result<(), CodecError> {
    sized(Input::Weights, weights.len(), block.radius.len())?;
    sized(Input::Output, out.len(), block.dim)?;
    let mut sum = vec![0.0; block.dim];
    for (y, w) in block.turned().chunks_exact(block.dim).zip(weights) {
        sum.iter_mut().zip(y).for_each(|(s, y)| *s += w * y);
    }
    block.rotation.turn_back(&mut sum);
    out.iter_mut().zip(&sum).for_each(|(o, s)| *o += s);
    Ok(())
}

/// `Delta` of a block from its largest error, math.md (4.5): a rotation leaves norms as they are.
pub fn delta(q: &[f64], eps: f64, scale: f64) -> f64 {
    logit::delta_norm(q, eps, scale)
}

/// `Lambda` of a block from the spectral norm of its errors, math.md (4.9).
pub fn lambda(q: &[f64], spectral: f64, scale: f64) -> f64 {
    logit::delta_norm(q, spectral, scale)
}

/// The levels of a record's codes as the kernels look them up, math.md (2.17b): `level + 128` for each code of `bits` bits
/// (1 to [`TURBO_BITS`]) in vectors of `dim` channels, repeated to the end, so that higher bits of an index do not matter.
/// A code's highest bit is set for a positive level, the others count magnitudes: a table of half the size does, too.
pub fn level_bytes(dim: usize, bits: u8) -> [u8; 64] {
    let book = Book::bytes(dim, bits.clamp(1, TURBO_BITS));
    core::array::from_fn(|i| (book.levels[i % book.levels.len()] + 128.0) as u8)
}

/// What encoders elsewhere need of a record's codebook: magnitudes of levels, ascending, and the positive coordinates of a unit
/// vector at which they change. `bits` from 1 to [`TURBO_BITS`]; half of `2^bits` magnitudes, one threshold less.
pub fn magnitudes(dim: usize, bits: u8) -> (Vec<f64>, Vec<f64>) {
    let book = Book::bytes(dim, bits.clamp(1, TURBO_BITS));
    let half = book.levels.len() / 2;
    (book.levels[half..].to_vec(), book.thresholds[half..].to_vec())
}

/// Levels, and the coordinates of a unit vector at which codes change.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    /// By code.
    pub(crate) levels: Vec<f64>,
    /// Ascending.
    thresholds: Vec<f64>,
    /// Codes of ascending levels.
    codes: Vec<u8>,
}

/// The largest level of a record's codebook. Seven bits of a byte are enough for sixteen levels, and one look-up of eight
/// bytes by four bits then finds them without a sign.
pub(crate) const fn last_level(bits: u8) -> f64 {
    if bits <= 4 { 63.0 } else { 127.0 }
}

impl Book {
    /// `C_{n,b}` itself.
    pub(crate) fn lloyd_max(n: usize, bits: u8) -> Self {
        let levels = codebook::levels(n, bits);
        let codes = (0..levels.len()).map(|i| i as u8).collect();
        Self { thresholds: codebook::thresholds(&levels), levels, codes }
    }

    /// `C_{n,b}` in steps of a 63rd or 127th of its last level, rounded to whole ones, (2.17b). Those of heads and of groups of whole
    /// tiles are computed once per process: a millisecond or two at 6 bits.
    pub(crate) fn bytes(n: usize, bits: u8) -> Arc<Self> {
        type Books = [[OnceLock<Arc<Book>>; TURBO_BITS as usize]; 16];
        static BOOKS: Books = [const { [const { OnceLock::new() }; TURBO_BITS as usize] }; 16];
        let row = (n / 16).checked_sub(1).filter(|_| n.is_multiple_of(16)).and_then(|i| BOOKS.get(i));
        match row.and_then(|row| row.get(usize::from(bits).wrapping_sub(1))) {
            Some(slot) => slot.get_or_init(|| Arc::new(Self::new_bytes(n, bits))).clone(),
            None => Arc::new(Self::new_bytes(n, bits)),
        }
    }

    fn new_bytes(n: usize, bits: u8) -> Self {
        let exact = codebook::levels(n, bits);
        let step = exact.last().copied().unwrap_or(1.0) / last_level(bits);
        let ascending: Vec<f64> = exact.iter().map(|c| (c / step).round_ties_even()).collect();
        let thresholds = codebook::thresholds(&ascending).iter().map(|t| t * step).collect();
        let half = 1usize << (bits - 1);
        let code = |i: usize| if i < half { half - 1 - i } else { i };
        let mut levels = ascending.clone();
        ascending.iter().enumerate().for_each(|(i, level)| levels[code(i)] = *level);
        Self { levels, thresholds, codes: (0..2 * half).map(|i| code(i) as u8).collect() }
    }

    /// Codes of one rotated vector, (2.14), and the radius that leaves the least error, (2.16), not rounded yet.
    pub(crate) fn code_row(&self, y: &[f64], codes: &mut [u8]) -> f64 {
        let r = sum_squares(y).sqrt();
        codes.fill(0);
        for threshold in &self.thresholds {
            let at = threshold * divisor(r);
            // A tie takes the lower code.
            codes.iter_mut().zip(y).for_each(|(code, y)| *code += u8::from(*y > at));
        }
        let (mut product, mut square) = (0.0, 0.0);
        for (code, y) in codes.iter_mut().zip(y) {
            *code = self.codes.get(usize::from(*code)).copied().unwrap_or(0);
            let level = self.levels.get(usize::from(*code)).copied().unwrap_or(0.0);
            product += level * y;
            square += level * level;
        }
        if r > 0.0 { (product / square).max(0.0) } else { 0.0 }
    }

    /// Errors `y - y^` of one rotated vector.
    pub(crate) fn errors(&self, y: &[f64], codes: &[u8], radius: f64, errors: &mut [f64]) {
        for ((error, y), code) in errors.iter_mut().zip(y).zip(codes) {
            *error = y - self.levels.get(usize::from(*code)).copied().unwrap_or(f64::NAN) * radius;
        }
    }

    /// Codes and radii of a rotated side, (tokens, dim) and (tokens,).
    ///
    /// # Errors
    /// [`CodecError::ScaleOverflow`] for a radius that f16 cannot hold.
    pub(crate) fn fit(
        &self,
        side: &[f64],
        dim: usize,
        input: Input,
        codes: &mut [u8],
        radii: &mut [f64],
    ) -> Result<(), CodecError> {
        let rows = side.chunks_exact(dim).zip(codes.chunks_exact_mut(dim)).zip(radii);
        for (row, ((y, codes), radius)) in rows.enumerate() {
            *radius = round_radius(self.code_row(y, codes), input, row, Dtype::F16)?;
        }
        Ok(())
    }
}

/// The radius in its type.
pub(crate) fn round_radius(radius: f64, input: Input, row: usize, meta: Dtype) -> Result<f64, CodecError> {
    let rounded = nearest(radius, Fp::from(meta));
    if rounded.is_finite() { Ok(rounded) } else { Err(CodecError::ScaleOverflow { input, row, channel: 0, meta }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    fn block(n: usize, dim: usize) -> Vec<f64> {
        // Outlier channels, one zero row: a rotation spreads the first, a radius of 0 stands for the second.
        let x = |i: usize| (splitmix64(i as u64) % 2001) as f64 / 1000.0 - 1.0;
        (0..n * dim).map(|i| if i / dim == 1 { 0.0 } else { x(i) * if i % 11 == 3 { 9.0 } else { 1.0 } }).collect()
    }

    #[test]
    fn errors_are_the_codebooks_and_the_least_radius_is_the_best() {
        for dim in [10, 64, 96, 128, 256] {
            let x = block(24, dim);
            let error = |y: &[f64]| x.iter().zip(y).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / sum_squares(&x);
            for bits in 1..=8 {
                let best = encode(&x, dim, bits, 5, Radius::LeastSquares, Dtype::F32).unwrap();
                let norm = encode(&x, dim, bits, 5, Radius::Norm, Dtype::F32).unwrap();
                let (e, of_norm) = (error(&best.decode()), error(&norm.decode()));
                assert!(
                    e <= of_norm * (1.0 + 1e-9) && e < 1.3 * codebook::distortion(dim, &best.levels),
                    "{dim} {bits} {e}"
                );
                assert!(best.decode()[dim..2 * dim].iter().all(|x| *x == 0.0));
            }
        }
        assert!(encode(&[1.0, f64::NAN], 2, 4, 0, Radius::Norm, Dtype::F16).is_err());
        assert!(encode(&[1e9, 0.0], 2, 4, 0, Radius::Norm, Dtype::F16).is_err());
        assert!(encode(&[1.0; 4], 1, 4, 0, Radius::Norm, Dtype::F16).is_err());
        assert!(encode(&[1.0; 4], 4, 9, 0, Radius::Norm, Dtype::F16).is_err());
    }

    #[test]
    fn sums_over_codes_are_those_of_the_decoded_vectors_and_inside_the_bounds() {
        let (dim, n) = (96, 16);
        let x = block(n, dim);
        let q: Vec<f64> = (0..dim).map(|c| (c as f64 * 0.7).sin()).collect();
        let b = encode(&x, dim, 3, 9, Radius::LeastSquares, Dtype::F16).unwrap();
        let decoded = b.decode();
        let errors: Vec<f64> = x.iter().zip(&decoded).map(|(a, b)| a - b).collect();
        let eps = errors.chunks_exact(dim).map(sum_squares).fold(0.0, f64::max).sqrt();
        let mut sum = 0.0;
        for ((z, k), x) in score(&b, &q, 0.1).unwrap().iter().zip(decoded.chunks_exact(dim)).zip(x.chunks_exact(dim)) {
            assert!((z - 0.1 * dot(k, &q)).abs() < 1e-12);
            assert!((z - 0.1 * dot(x, &q)).abs() <= delta(&q, eps, 0.1));
            sum += (z - 0.1 * dot(x, &q)).powi(2);
        }
        assert!(sum.sqrt() <= lambda(&q, crate::annotate::op_norm_up(&errors, dim).unwrap(), 0.1));
        let weights: Vec<f64> = (0..n).map(|t| 1.0 / (t + 1) as f64).collect();
        let mut out = vec![1.0; dim];
        accumulate(&b, &weights, &mut out).unwrap();
        for (c, o) in out.iter().enumerate() {
            let want = 1.0 + (0..n).map(|t| weights[t] * decoded[t * dim + c]).sum::<f64>();
            assert!((o - want).abs() < 1e-12);
        }
        assert!(score(&b, &q[1..], 0.1).is_err() && accumulate(&b, &weights[1..], &mut out).is_err());
    }

    #[test]
    fn levels_as_bytes_lose_little_and_are_all_different() {
        for dim in certkv_core::geometry::HEAD_DIMS {
            for bits in 1..=TURBO_BITS {
                let exact = codebook::levels(dim, bits);
                let book = Book::bytes(dim, bits);
                let step = exact[exact.len() - 1] / last_level(bits);
                let ascending: Vec<f64> = book.codes.iter().map(|c| book.levels[usize::from(*c)]).collect();
                assert!(ascending.windows(2).all(|w| w[0] < w[1]), "{dim} {bits}");
                // The highest bit is the sign, the others are the magnitude.
                let half = book.levels.len() / 2;
                assert!((0..half).all(|i| book.levels[i] == -book.levels[half + i] && book.levels[half + i] > 0.0));
                let scaled: Vec<f64> = ascending.iter().map(|l| l * step).collect();
                let (before, after) = (codebook::distortion(dim, &exact), codebook::distortion(dim, &scaled));
                println!("{dim} {bits}: {before:.6} {after:.6}");
                assert!(after <= before * if bits < 6 { 1.05 } else { 1.3 }, "{dim} {bits}: {before} {after}");
                // No level is so near a half that another machine's sine could round it elsewhere.
                let tie = exact.iter().map(|c| ((c / step).fract().abs() - 0.5).abs()).fold(1.0, f64::min);
                assert!(tie > 1e-6, "{dim} {bits} {tie}");
                let table = level_bytes(dim, bits);
                assert!(table.iter().enumerate().all(|(i, t)| f64::from(*t) - 128.0 == book.levels[i % (1 << bits)]));
            }
        }
    }
}

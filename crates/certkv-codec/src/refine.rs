//! Residual refinement of an affine code, math.md (2.23): a cheaper promotion than the originals.
use crate::error::{CodecError, Input, finite, sized};
use crate::numeric::divisor;

/// Residuals of one width, as float64 integers: what encoders and readers share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Residuals {
    half: f64,
    fine: f64,
    unit: f64,
}

impl Residuals {
    /// Residuals of 1 to 8 bits.
    pub(crate) fn new(bits: u8) -> Self {
        let fine = f64::from(1u16 << bits);
        Self { half: 0.5 * fine, fine, unit: 1.0 / fine }
    }

    /// `r` for the error `x - x^`; `inverse` is [`inverse`] of the code's step.
    #[inline(always)]
    pub(crate) fn code(self, error: f64, inverse: f64) -> f64 {
        (error * inverse * self.fine).floor().clamp(-self.half, self.half - 1.0)
    }

    /// `x^^ - x^ = (r + 1/2) step / 2^bits`.
    #[inline(always)]
    pub(crate) fn shift(self, r: f64, step: f64) -> f64 {
        (r + 0.5) * self.unit * step
    }

    /// The stored form of `r`, `0..2^bits`.
    #[inline(always)]
    pub(crate) fn stored(self, r: f64) -> u8 {
        (r + self.half) as u8
    }

    /// `r` from its stored form.
    pub(crate) fn read(self, stored: u8) -> f64 {
        f64::from(stored) - self.half
    }

    /// Stored residuals of a row of elements, whose `errors` become those that refinement leaves. `steps` holds the step
    /// of each element and its [`inverse`].
    #[inline]
    pub(crate) fn row(self, steps: impl Iterator<Item = (f64, f64)>, codes: &mut [u8], errors: &mut [f64]) {
        for ((code, error), (step, inverse)) in codes.iter_mut().zip(errors).zip(steps) {
            let r = self.code(*error, inverse);
            *code = self.stored(r);
            *error -= self.shift(r, step);
        }
    }
}

/// What an error is multiplied by to be counted in steps: `1 / step`, or 1 for step 0, where all errors are 0. Every encoder
/// multiplies by it: the quotient may fall on the other side of an integer.
#[inline(always)]
pub(crate) fn inverse(step: f64) -> f64 {
    1.0 / divisor(step)
}

/// Residual codes of `bits` bits, `-2^(bits-1) .. 2^(bits-1)`.
///
/// `x` and `decoded` are row-major blocks of one shape. `steps` holds the step of each element: one per channel (it
/// repeats for every token) or one per element.
///
/// # Errors
/// [`CodecError::Shape`] if lengths do not fit or `bits` is not 1 to 8; [`CodecError::NonFinite`].
pub fn encode(x: &[f64], decoded: &[f64], steps: &[f64], bits: u8) -> Result<Vec<i8>, CodecError> {
    check(x.len(), decoded, steps, bits)?;
    finite(Input::Values, x, steps.len())?;
    let residuals = Residuals::new(bits);
    let residual = |((x, y), step): ((&f64, &f64), &f64)| residuals.code(x - y, inverse(*step)) as i8;
    Ok(x.iter().zip(decoded).zip(steps.iter().cycle()).map(residual).collect())
}

/// The refined block `x^ + (r + 1/2) step / 2^bits`; its error is at most [`bound`].
///
/// # Errors
/// [`CodecError::Shape`] if lengths do not fit or `bits` is not 1 to 8.
pub fn decode(decoded: &[f64], residual: &[i8], steps: &[f64], bits: u8) -> Result<Vec<f64>, CodecError> {
    check(residual.len(), decoded, steps, bits)?;
    let residuals = Residuals::new(bits);
    let refined = |((y, r), step): ((&f64, &i8), &f64)| y + residuals.shift(f64::from(*r), *step);
    Ok(decoded.iter().zip(residual).zip(steps.iter().cycle()).map(refined).collect())
}

/// Largest error of an element of step `step` after refinement by `bits` bits: `step / 2^(bits+1)`.
pub fn bound(step: f64, bits: u8) -> f64 {
    step * 0.5f64.powi(i32::from(bits) + 1)
}

fn check(len: usize, decoded: &[f64], steps: &[f64], bits: u8) -> Result<(), CodecError> {
    sized(Input::Decoded, decoded.len(), len)?;
    if steps.is_empty() || !len.is_multiple_of(steps.len()) {
        return Err(CodecError::Shape { input: Input::Scale, got: steps.len(), want: len });
    }
    if !(1..=8).contains(&bits) {
        return Err(CodecError::Shape { input: Input::Parameters, got: bits as usize, want: 8 });
    }
    Ok(())
}

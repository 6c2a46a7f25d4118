//! Residual refinement of an affine code, math.md (2.23): a cheaper promotion than the originals.
use crate::error::{CodecError, Input, finite, sized};

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
    let half = f64::from(1u16 << (bits - 1));
    let fine = 2.0 * half;
    let residual = |((x, y), step): ((&f64, &f64), &f64)| {
        let r = if *step > 0.0 { ((x - y) * fine / step).floor() } else { 0.0 };
        r.clamp(-half, half - 1.0) as i8
    };
    Ok(x.iter().zip(decoded).zip(steps.iter().cycle()).map(residual).collect())
}

/// The refined block `x^ + (r + 1/2) step / 2^bits`; its error is at most [`bound`].
///
/// # Errors
/// [`CodecError::Shape`] if lengths do not fit or `bits` is not 1 to 8.
pub fn decode(decoded: &[f64], residual: &[i8], steps: &[f64], bits: u8) -> Result<Vec<f64>, CodecError> {
    check(residual.len(), decoded, steps, bits)?;
    let fine = f64::from(1u16 << bits);
    let refined = |((y, r), step): ((&f64, &i8), &f64)| y + (f64::from(*r) + 0.5) * (step / fine);
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

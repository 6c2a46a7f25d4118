//! Sides kept as 16-bit originals: no error, the baseline of every comparison.
use crate::error::{CodecError, Input, rows, sized};
use certkv_core::Dtype;

/// A block of 16-bit originals.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// Channels.
    pub dim: usize,
    /// Type of the patterns.
    pub store: Dtype,
    /// Patterns, row-major (rows, dim).
    pub words: Vec<u16>,
}

/// Keeps `words` (rows, dim), patterns of type `store`.
///
/// # Errors
/// [`CodecError::Shape`], or [`CodecError::NonFinite`].
pub fn encode(words: &[u16], dim: usize, store: Dtype) -> Result<Identity, CodecError> {
    rows(Input::Keys, words.len(), dim)?;
    finite_words(Input::Keys, words, dim, store)?;
    Ok(Identity { dim, store, words: words.to_vec() })
}

impl Identity {
    /// The originals as numbers, row-major (rows, dim).
    pub fn decode(&self) -> Vec<f64> {
        self.words.iter().map(|w| f64::from(self.store.decode16(*w))).collect()
    }
}

/// Refuses NaN and infinities among 16-bit patterns, math.md (0.4).
pub(crate) fn finite_words(input: Input, words: &[u16], dim: usize, store: Dtype) -> Result<(), CodecError> {
    // One flag over the whole block is vector code; the place is only looked for once something is wrong.
    if !words.iter().fold(false, |bad, w| bad | store.is_nonfinite16(*w)) {
        return Ok(());
    }
    let at = words.iter().position(|w| store.is_nonfinite16(*w)).unwrap_or(0);
    Err(CodecError::NonFinite { input, row: at / dim, channel: at % dim })
}

/// Logits `s q.k_t`, (rows,).
///
/// # Errors
/// [`CodecError::Shape`] if `q` has not `dim` entries.
pub fn score(block: &Identity, q: &[f64], scale: f64) -> Result<Vec<f64>, CodecError> {
    sized(Input::Query, q.len(), block.dim)?;
    let value = |w: &u16| f64::from(block.store.decode16(*w));
    let row = |words: &[u16]| scale * words.iter().zip(q).map(|(w, q)| value(w) * q).sum::<f64>();
    Ok(block.words.chunks_exact(block.dim).map(row).collect())
}

/// `sum_t w_t v_t`, (dim,).
///
/// # Errors
/// [`CodecError::Shape`] if there is not one weight per token.
pub fn accumulate(block: &Identity, weights: &[f64]) -> Result<Vec<f64>, CodecError> {
    sized(Input::Weights, weights.len() * block.dim, block.words.len())?;
    let mut out = vec![0.0; block.dim];
    for (weight, words) in weights.iter().zip(block.words.chunks_exact(block.dim)) {
        for (out, w) in out.iter_mut().zip(words) {
            *out += weight * f64::from(block.store.decode16(*w));
        }
    }
    Ok(out)
}

/// `Delta = Lambda = 0`: originals have no logit error.
pub const fn delta() -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn keeps_the_originals() {
        let words = [1.0, -2.5, 0.0, 3.0].map(|x| f16::from_f32(x).to_bits());
        let b = encode(&words, 2, Dtype::F16).unwrap();
        assert_eq!(b.decode(), [1.0, -2.5, 0.0, 3.0]);
        assert_eq!(score(&b, &[2.0, 1.0], 0.5).unwrap(), [-0.25, 1.5]);
        assert_eq!(accumulate(&b, &[2.0, 1.0]).unwrap(), [2.0, -2.0]);
        assert!(score(&b, &[2.0], 0.5).is_err() && accumulate(&b, &[2.0]).is_err());
    }

    #[test]
    fn refuses_what_is_not_finite_in_its_own_type() {
        let inf = f16::INFINITY.to_bits();
        let at = CodecError::NonFinite { input: Input::Keys, row: 1, channel: 1 };
        assert_eq!(encode(&[0, 0, 0, inf], 2, Dtype::F16), Err(at));
        // The same pattern is an ordinary bf16 number.
        assert!(encode(&[0, 0, 0, inf], 2, Dtype::Bf16).is_ok());
        assert_eq!(encode(&[0, 0, 0, bf16::NAN.to_bits()], 2, Dtype::Bf16), Err(at));
        assert!(encode(&[0; 4], 2, Dtype::F32).is_err());
    }
}

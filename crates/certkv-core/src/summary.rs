//! The error summary of a record: the few numbers beside a block's codes that make its bound computable.

/// Upper bounds of one block of one KV head, measured in float64 on the decoded block and rounded up to f32
/// (math.md section 3 and rule (0.2)). An infinite entry means the block is always promoted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ErrorSummary {
    /// `||E diag(1/sigma)||_op` for per-channel keys (3.6), or `||E||_op` for keys with a scale per token.
    pub kappa: f32,
    /// `max_t ||k_t - k^_t||` (3.5).
    pub eps: f32,
    /// Norm of the vector whose entry `c` is the largest magnitude that enters channel `c`'s products when the codes
    /// are scored; `A_b <= ||q|| * key_mag` in (4.12).
    pub key_mag: f32,
    /// `max_t ||k_t||`: the same for the exact keys of the block.
    pub key_norm: f32,
    /// `max_t ||v_t - v^_t||` (3.1).
    pub eta: f32,
    /// `||[v_t - v^_t]_t||_op` (3.4).
    pub sop: f32,
    /// `max_t ||v_t - c||` for the head's value centre `c` (3.3).
    pub radius: f32,
    /// `max_t max(||v_t||, ||v^_t||)` (3.2), for the arithmetic term (5.27); of a refinable format also `||v^^_t||`.
    pub value_norm: f32,
}

/// Bytes of a stored summary.
pub const SUMMARY_BYTES: usize = 32;

/// Bytes of a stored [`RefinedSummary`].
pub const REFINED_SUMMARY_BYTES: usize = 16;

/// Upper bounds of the same block after refinement by its residuals, math.md (2.23), measured and rounded like those of
/// [`ErrorSummary`]. They follow it in the summary section of a refinable format.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RefinedSummary {
    /// `||E' diag(1/sigma)||_op` (3.6), `E' = K - K^^`, in steps of the unrefined code.
    pub kappa: f32,
    /// `max_t ||k_t - k^^_t||` (3.5).
    pub eps: f32,
    /// `max_t ||v_t - v^^_t||` (3.1).
    pub eta: f32,
    /// `||[v_t - v^^_t]_t||_op` (3.4).
    pub sop: f32,
}

/// Little-endian numbers one after the other.
fn to_le<const N: usize>(fields: impl IntoIterator<Item = f32>) -> [u8; N] {
    let mut out = [0; N];
    for (slot, x) in out.chunks_exact_mut(4).zip(fields) {
        slot.copy_from_slice(&x.to_le_bytes());
    }
    out
}

/// Number `i` of `bytes`; NaN where bytes are missing.
fn from_le(bytes: &[u8], i: usize) -> f32 {
    match bytes.get(4 * i..4 * i + 4) {
        Some(&[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

impl RefinedSummary {
    /// The stored form, little-endian, in field order.
    pub fn to_bytes(&self) -> [u8; REFINED_SUMMARY_BYTES] {
        to_le([self.kappa, self.eps, self.eta, self.sop])
    }

    /// Reads the stored form. Missing bytes read as NaN, so that a truncated record fails closed.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let at = |i| from_le(bytes, i);
        Self { kappa: at(0), eps: at(1), eta: at(2), sop: at(3) }
    }
}

impl ErrorSummary {
    /// The stored form, little-endian, in field order.
    pub fn to_bytes(&self) -> [u8; SUMMARY_BYTES] {
        to_le([self.kappa, self.eps, self.key_mag, self.key_norm, self.eta, self.sop, self.radius, self.value_norm])
    }

    /// Reads the stored form. Missing bytes read as NaN, so that a truncated record fails closed.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let at = |i| from_le(bytes, i);
        Self {
            kappa: at(0),
            eps: at(1),
            key_mag: at(2),
            key_norm: at(3),
            eta: at(4),
            sop: at(5),
            radius: at(6),
            value_norm: at(7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_form_round_trips_and_truncation_is_nan() {
        let s = ErrorSummary {
            kappa: 1.0,
            eps: 2.0,
            key_mag: 3.0,
            key_norm: 4.0,
            eta: 5.0,
            sop: 6.0,
            radius: 7.0,
            value_norm: 8.0,
        };
        assert_eq!(ErrorSummary::from_bytes(&s.to_bytes()), s);
        assert!(ErrorSummary::from_bytes(&s.to_bytes()[..30]).value_norm.is_nan());
        let r = RefinedSummary { kappa: 1.0, eps: 2.0, eta: 3.0, sop: 4.0 };
        assert_eq!(RefinedSummary::from_bytes(&r.to_bytes()), r);
        let cut = RefinedSummary::from_bytes(&r.to_bytes()[..11]);
        assert_eq!((cut.kappa, cut.eps), (1.0, 2.0));
        assert!(cut.eta.is_nan() && cut.sop.is_nan());
    }
}

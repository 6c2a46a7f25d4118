//! The record that comes back with every output, in the layout that C sees.
use certkv::{Cause, Certificate, Rung, Status};

/// Version of certkv_certificate, and value of its `version` field. A record with other fields will be another type,
/// with calls of its own, so that arrays of this one keep their stride.
pub const CERTKV_CERTIFICATE_VERSION: u32 = 1;

/// Nothing has been shown about the output.
pub const CERTKV_UNCERTIFIED: u8 = 0;
/// The bound holds, and what compression costs of it, `bound - e_arith`, is within the tolerance.
pub const CERTKV_CERTIFIED: u8 = 1;
/// Computed from the originals alone: only the kernel's arithmetic remains in the bound.
pub const CERTKV_EXACT: u8 = 2;
/// No output: the buffer holds nothing that may be used.
pub const CERTKV_FAILED: u8 = 3;

/// The first pass was accepted.
pub const CERTKV_RUNG_PACKED: u8 = 0;
/// More exact keys were fetched.
pub const CERTKV_RUNG_MORE_KEYS: u8 = 1;
/// More exact values were fetched.
pub const CERTKV_RUNG_EXACT_VALUES: u8 = 2;
/// Dense recomputation of the head.
pub const CERTKV_RUNG_DENSE_HEAD: u8 = 3;
/// Dense recomputation of the layer.
pub const CERTKV_RUNG_DENSE_LAYER: u8 = 4;

/// The output did not leave the first rung.
pub const CERTKV_CAUSE_NONE: u8 = 0;
/// The key term was the larger one.
pub const CERTKV_CAUSE_KEY_ERROR: u8 = 1;
/// The value term was the larger one.
pub const CERTKV_CAUSE_VALUE_ERROR: u8 = 2;
/// The repairs allowed were used up.
pub const CERTKV_CAUSE_REPAIRS_USED: u8 = 3;
/// A requested ranking condition failed.
pub const CERTKV_CAUSE_RANKING: u8 = 4;
/// Stored codes and annotations disagree.
pub const CERTKV_CAUSE_INTEGRITY: u8 = 5;
/// Neither keys nor values could lower the bound.
pub const CERTKV_CAUSE_EXHAUSTED: u8 = 6;
/// The originals were needed and could not be read.
pub const CERTKV_CAUSE_TIER_UNAVAILABLE: u8 = 7;
/// The caller asked for dense attention.
pub const CERTKV_CAUSE_REQUESTED: u8 = 8;

/// What is known about the output of one query head at one token. `bound` is at least the Euclidean distance from
/// attention in exact arithmetic over the stored 16-bit originals, in the unit of the values, if `status` is
/// CERTKV_CERTIFIED or CERTKV_EXACT; it is infinite where none was computed, as for prefill. A record that nobody
/// filled in certifies nothing: test `bound <= x`, never its negation, so that NaN fails.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct certkv_certificate {
    /// CERTKV_CERTIFICATE_VERSION.
    pub version: u32,
    /// CERTKV_UNCERTIFIED, _CERTIFIED, _EXACT or _FAILED.
    pub status: u8,
    /// One of CERTKV_RUNG: where the output was made.
    pub rung: u8,
    /// One of CERTKV_CAUSE: why it left the first rung.
    pub cause: u8,
    /// 0.
    pub reserved8: u8,
    /// Total bound: the components or the cap, whichever is less, plus the arithmetic.
    pub bound: f64,
    /// Absolute tolerance that was applied, to the bound without its arithmetic.
    pub tol: f64,
    /// Norm of the output.
    pub out_norm: f64,
    /// Key component.
    pub e_key: f64,
    /// Value component.
    pub e_val: f64,
    /// Component of blocks left out.
    pub e_drop: f64,
    /// Arithmetic of the kernel.
    pub e_arith: f64,
    /// Bound of the quantisation error that is independent of the components; infinite if none was computed.
    pub cap: f64,
    /// Key component before any repair or fallback.
    pub candidate_e_key: f64,
    /// Value component before any repair or fallback.
    pub candidate_e_val: f64,
    /// Component of blocks left out, before any repair or fallback.
    pub candidate_e_drop: f64,
    /// Total bound before any repair or fallback.
    pub candidate_bound: f64,
    /// Blocks whose keys were read exactly.
    pub promoted_keys: u32,
    /// Blocks whose values were read exactly.
    pub promoted_values: u32,
    /// Blocks left out.
    pub dropped: u32,
    /// Repairs made.
    pub repairs: u32,
    /// Bytes of packed records read for this head's group.
    pub packed_bytes: u64,
    /// Bytes of originals read from fast memory.
    pub scratch_bytes: u64,
    /// Bytes of originals fetched from the slow tier.
    pub host_bytes: u64,
    /// 0.
    pub reserved: [u64; 2],
}

impl From<&Certificate> for certkv_certificate {
    fn from(c: &Certificate) -> Self {
        Self {
            version: CERTKV_CERTIFICATE_VERSION,
            status: match c.status {
                Status::Uncertified => CERTKV_UNCERTIFIED,
                Status::Certified => CERTKV_CERTIFIED,
                Status::Exact => CERTKV_EXACT,
                Status::Failed => CERTKV_FAILED,
            },
            rung: match c.rung {
                Rung::Packed => CERTKV_RUNG_PACKED,
                Rung::MoreKeys => CERTKV_RUNG_MORE_KEYS,
                Rung::ExactValues => CERTKV_RUNG_EXACT_VALUES,
                Rung::DenseHead => CERTKV_RUNG_DENSE_HEAD,
                Rung::DenseLayer => CERTKV_RUNG_DENSE_LAYER,
            },
            cause: match c.cause {
                Cause::None => CERTKV_CAUSE_NONE,
                Cause::KeyError => CERTKV_CAUSE_KEY_ERROR,
                Cause::ValueError => CERTKV_CAUSE_VALUE_ERROR,
                Cause::RepairsUsed => CERTKV_CAUSE_REPAIRS_USED,
                Cause::Ranking => CERTKV_CAUSE_RANKING,
                Cause::Integrity => CERTKV_CAUSE_INTEGRITY,
                Cause::Exhausted => CERTKV_CAUSE_EXHAUSTED,
                Cause::TierUnavailable => CERTKV_CAUSE_TIER_UNAVAILABLE,
                Cause::Requested => CERTKV_CAUSE_REQUESTED,
            },
            reserved8: 0,
            bound: c.bound(),
            tol: c.tol,
            out_norm: c.out_norm,
            e_key: c.e_key,
            e_val: c.e_val,
            e_drop: c.e_drop,
            e_arith: c.e_arith,
            cap: c.cap,
            candidate_e_key: c.candidate_e_key,
            candidate_e_val: c.candidate_e_val,
            candidate_e_drop: c.candidate_e_drop,
            candidate_bound: c.candidate_bound,
            promoted_keys: c.promoted_keys,
            promoted_values: c.promoted_values,
            dropped: c.dropped,
            repairs: c.repairs,
            packed_bytes: c.bytes.packed,
            scratch_bytes: c.bytes.scratch,
            host_bytes: c.bytes.host,
            reserved: [0; 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_record_certifies_nothing() {
        let c = certkv_certificate::from(&Certificate::UNCERTIFIED);
        assert_eq!((c.version, c.status, c.bound, c.e_arith), (1, CERTKV_UNCERTIFIED, f64::INFINITY, f64::INFINITY));
        assert_eq!(certkv_certificate::default().status, CERTKV_UNCERTIFIED);
    }

    #[test]
    fn numbers_are_the_engines() {
        for (engine, ours) in [(Status::Certified as u8, CERTKV_CERTIFIED), (Status::Exact as u8, CERTKV_EXACT)] {
            assert_eq!(engine, ours);
        }
        let given = Certificate {
            status: Status::Exact,
            rung: Rung::DenseLayer,
            cause: Cause::Requested,
            e_key: 0.0,
            e_val: 0.5,
            e_drop: 0.25,
            e_arith: 0.125,
            dropped: 4,
            repairs: 2,
            ..Certificate::UNCERTIFIED
        };
        let c = certkv_certificate::from(&given);
        assert_eq!((c.status, c.rung, c.cause), (CERTKV_EXACT, CERTKV_RUNG_DENSE_LAYER, CERTKV_CAUSE_REQUESTED));
        assert_eq!((c.bound, c.e_val, c.e_drop, c.dropped, c.repairs), (0.875, 0.5, 0.25, 4, 2));
    }
}

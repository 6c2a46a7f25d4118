//! The record that comes back with every output, math.md (8.2).

/// Where an output stands. Every record starts as [`Status::Uncertified`]; only the last step of an attention call
/// writes anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Status {
    /// Nothing has been shown about the output.
    #[default]
    Uncertified = 0,
    /// The bound holds, and `E_quant` is within the tolerance (8.2); the arithmetic, `E_arith`, is told beside it.
    Certified = 1,
    /// Computed from the originals alone: `E_quant = 0`, only the kernel's arithmetic remains.
    Exact = 2,
    /// No output: the output buffer holds nothing that may be used.
    Failed = 3,
}

/// The rung of the ladder on which the returned output was made (8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Rung {
    /// The first pass was accepted.
    #[default]
    Packed = 0,
    /// More exact keys were fetched.
    MoreKeys = 1,
    /// More exact values were fetched.
    ExactValues = 2,
    /// Dense recomputation of the head.
    DenseHead = 3,
    /// Dense recomputation of the layer.
    DenseLayer = 4,
}

/// Why the output left rung 0, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Cause {
    /// It did not.
    #[default]
    None = 0,
    /// The key term was the larger one.
    KeyError = 1,
    /// The value term was the larger one.
    ValueError = 2,
    /// The repairs allowed were used up.
    RepairsUsed = 3,
    /// A requested ranking condition failed (section 7).
    Ranking = 4,
    /// A canary failed: stored codes and annotations disagree (7.4).
    Integrity = 5,
    /// Neither keys nor values could lower the bound.
    Exhausted = 6,
    /// The originals were needed and could not be read.
    TierUnavailable = 7,
    /// The caller asked for dense attention.
    Requested = 8,
}

/// Bytes read for this head's group in the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BytesRead {
    /// Packed records: codes, scales and summaries.
    pub packed: u64,
    /// Originals already in fast memory.
    pub scratch: u64,
    /// Originals fetched from the slow tier.
    pub host: u64,
}

/// What is known about one head's output in one step. Errors have the unit of the values; the reference is attention in
/// exact real arithmetic on the stored 16-bit originals.
///
/// The default is UNCERTIFIED with infinite bounds, so a record that nobody filled in certifies nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certificate {
    /// Where the output stands.
    pub status: Status,
    /// Rung on which the output was made.
    pub rung: Rung,
    /// Why it left rung 0.
    pub cause: Cause,
    /// Key component of what was returned.
    pub e_key: f64,
    /// Value component of what was returned.
    pub e_val: f64,
    /// Drop component of what was returned.
    pub e_drop: f64,
    /// Arithmetic of the kernel (5.27), and of the dense kernel on the dense rungs.
    pub e_arith: f64,
    /// A bound of the quantisation error that is independent of the components: (5.13) or (5.14) if one was computed,
    /// `+inf` otherwise.
    pub cap: f64,
    /// Absolute tolerance that was applied.
    pub tol: f64,
    /// Norm of the returned output.
    pub out_norm: f64,
    /// Key component before any repair or fallback.
    pub candidate_e_key: f64,
    /// Value component before any repair or fallback.
    pub candidate_e_val: f64,
    /// Drop component before any repair or fallback.
    pub candidate_e_drop: f64,
    /// Total bound before any repair or fallback.
    pub candidate_bound: f64,
    /// Blocks whose keys were read from the originals, `|F|`.
    pub promoted_keys: u32,
    /// Blocks whose values were read from the originals, `|F_V|`.
    pub promoted_values: u32,
    /// Blocks whose values were not read at all: the value centre stood for them, at most `R_b` away (math.md 6.9).
    pub skipped_values: u32,
    /// Blocks left out.
    pub dropped: u32,
    /// Repairs made.
    pub repairs: u32,
    /// Bytes read for this head's group.
    pub bytes: BytesRead,
}

impl Default for Certificate {
    fn default() -> Self {
        Self::UNCERTIFIED
    }
}

impl Certificate {
    /// The record before anything is known.
    pub const UNCERTIFIED: Self = Self {
        status: Status::Uncertified,
        rung: Rung::Packed,
        cause: Cause::None,
        e_key: f64::INFINITY,
        e_val: f64::INFINITY,
        e_drop: f64::INFINITY,
        e_arith: f64::INFINITY,
        cap: f64::INFINITY,
        tol: 0.0,
        out_norm: f64::NAN,
        candidate_e_key: f64::INFINITY,
        candidate_e_val: f64::INFINITY,
        candidate_e_drop: f64::INFINITY,
        candidate_bound: f64::INFINITY,
        promoted_keys: 0,
        promoted_values: 0,
        skipped_values: 0,
        dropped: 0,
        repairs: 0,
        bytes: BytesRead { packed: 0, scratch: 0, host: 0 },
    };

    /// Of a prompt's rows, which are computed from the originals before any code is read: no component, and no bound on the rounding.
    pub const PREFILL: Self = Self {
        status: Status::Exact,
        rung: Rung::DenseLayer,
        cause: Cause::Requested,
        e_key: 0.0,
        e_val: 0.0,
        e_drop: 0.0,
        ..Self::UNCERTIFIED
    };

    /// `E_quant`: the sum of the components or the cap, whichever is less; `+inf` if a component is NaN or negative.
    pub fn quantisation(&self) -> f64 {
        let ok = |x: f64| x >= 0.0;
        if !(ok(self.e_key) && ok(self.e_val) && ok(self.e_drop) && ok(self.cap)) {
            return f64::INFINITY;
        }
        (self.e_key + self.e_val + self.e_drop).min(self.cap)
    }

    /// The total bound on `||O - O'||`: `E_quant + E_arith`.
    pub fn bound(&self) -> f64 {
        if self.e_arith >= 0.0 { self.quantisation() + self.e_arith } else { f64::INFINITY }
    }

    /// True if this record shows that the output is within `tol` of the reference: a certified or exact status and
    /// `bound() <= tol`. NaN anywhere makes it false.
    pub fn is_within(&self, tol: f64) -> bool {
        let beyond = !(self.bound() <= tol);
        matches!(self.status, Status::Certified | Status::Exact) && !beyond
    }

    /// Keeps the present components as the candidate's, before a repair or fallback replaces them.
    pub fn keep_candidate(&mut self) {
        self.candidate_e_key = self.e_key;
        self.candidate_e_val = self.e_val;
        self.candidate_e_drop = self.e_drop;
        self.candidate_bound = self.bound();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Certificate {
        Certificate {
            status: Status::Certified,
            e_key: 0.1,
            e_val: 0.2,
            e_drop: 0.0,
            e_arith: 0.01,
            ..Certificate::default()
        }
    }

    #[test]
    fn the_default_certifies_nothing() {
        let c = Certificate::default();
        assert_eq!((c.status, c.status as u8), (Status::Uncertified, 0));
        assert_eq!(c.bound(), f64::INFINITY);
        assert!(!c.is_within(f64::INFINITY) && !c.is_within(f64::NAN));
    }

    #[test]
    fn the_bound_is_the_sum_or_the_cap() {
        assert!((good().bound() - 0.31).abs() < 1e-15);
        assert!(good().is_within(0.32) && !good().is_within(0.3));
        assert!((Certificate { cap: 0.05, ..good() }.bound() - 0.06).abs() < 1e-15);
    }

    #[test]
    fn nan_and_wrong_status_fail_closed() {
        let c = good();
        for bad in [
            Certificate { e_key: f64::NAN, ..c },
            Certificate { e_val: f64::NAN, ..c },
            Certificate { e_drop: -1.0, ..c },
            Certificate { e_arith: f64::NAN, ..c },
            Certificate { cap: f64::NAN, ..c },
            Certificate { status: Status::Uncertified, ..c },
            Certificate { status: Status::Failed, ..c },
        ] {
            assert!(!bad.is_within(1e9), "{bad:?}");
        }
        assert!(!c.is_within(f64::NAN));
    }

    #[test]
    fn candidates_survive_a_fallback() {
        let mut c = good();
        c.keep_candidate();
        (c.e_key, c.e_val, c.status, c.rung) = (0.0, 0.0, Status::Exact, Rung::DenseHead);
        assert!((c.candidate_bound - 0.31).abs() < 1e-15 && c.candidate_e_key == 0.1);
        assert!((c.bound() - 0.01).abs() < 1e-15);
    }
}

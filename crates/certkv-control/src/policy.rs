//! Parameters of the ways to run a step, with their defaults and what is wrong with a bad one.
use core::fmt;

/// How a step decides what to read exactly and when to fall back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// One pass over codes, the certificate of math.md (5.10), repairs and the ladder.
    Certified(Certified),
    /// Two phases, thresholds, bound and ladder of "Runtime-Certified Bounded-Error Quantized Attention".
    Seed000(Seed000),
    /// Codes only: the certificate is computed and reported, and nothing acts on it.
    Packed,
    /// Dense attention over the originals.
    Dense,
}

impl Default for Policy {
    fn default() -> Self {
        Self::Certified(Certified::default())
    }
}

/// Certificate-driven promotion (math.md 6.6 and 8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certified {
    /// Tolerance relative to the norm of the returned output, `eps = tol_rel ||O'||` (8.2).
    pub tol_rel: f64,
    /// Repairs before the head is recomputed densely.
    pub max_repairs: u32,
    /// Most blocks per KV head whose keys may be exact; rung 1 stops there (8.1).
    pub k_cap: usize,
    /// Share of the unpromoted blocks put through the canary per step (7.6), in `[0, 1]`.
    pub explore_rate: f64,
    /// Depth of the ranking condition: `Some(r)` asks for (7.3), the certified top `r`.
    pub rank: Option<usize>,
    /// Share of the tolerance that a decision may leave unpromoted, in `(0, 1]`; the rest is for a norm that differs from
    /// the last output's.
    pub guess_target: f64,
    /// Hysteresis of the guess, in `[0, 1]`.
    pub guess_keep: f64,
    /// Share of the tolerance that blocks with little mass may take up by leaving their values unread (math.md 6.7), in
    /// `[0, 1]`; 0 reads all values.
    pub skip_share: f64,
    /// Share of a head's tokens that may be read from their originals one by one, beside whole blocks (math.md 6.9), in `[0, 1/4]`; 0 for none. On the CPU: a
    /// twelfth fewer bytes at a tolerance of 5%, for a third more time where bytes cost little. Nothing where blocks have levels, where originals may lie in a store,
    /// or beside `rank`.
    pub row_share: f64,
}

impl Default for Certified {
    fn default() -> Self {
        Self {
            tol_rel: 0.05,
            max_repairs: 2,
            k_cap: usize::MAX,
            explore_rate: 0.0,
            rank: None,
            guess_target: 0.9,
            guess_keep: 1.0,
            skip_share: 0.2,
            row_share: 0.0,
        }
    }
}

/// The policy of the source paper. Defaults are its Table 2 ("runtime certificate policy used in all experiments").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seed000 {
    /// Coverage threshold of the key selector, section 3.3.
    pub tau_cov: f64,
    /// Fewest promoted blocks per head, section 3.3.
    pub k_min: usize,
    /// Most promoted blocks per head before rung 1, section 3.3.
    pub k_max: usize,
    /// Per-block value promotion threshold on `rho^ eta`, section 3.4 rung 2. In the unit of the values.
    pub v_tol: f64,
    /// Depth of ranking consistency (7.1) and boundary verification (7.2), section 6.1; 0 turns both off.
    pub rank: usize,
    /// Guard added to `Delta` by the canary, section 6 and Table 2; its reference implementation ships 0.01.
    pub eps_guard: f64,
    /// Multiple of the promoted set that rung 1 goes to ("for example, double it"), section 3.4.
    pub expansion: usize,
    /// Mass inflation exponent: 2 by its theorem 4.4, 3 as implemented (section 5.2).
    pub inflation: f64,
    /// Share of blocks explored, section 6: 1 to 5%, disabled in its quality benchmarks.
    pub explore_rate: f64,
}

impl Default for Seed000 {
    fn default() -> Self {
        Self {
            tau_cov: 0.995,
            k_min: 2,
            k_max: 128,
            v_tol: 0.05,
            rank: 1,
            eps_guard: 1e-6,
            expansion: 2,
            inflation: certkv_bound::published::IMPLEMENTATION_INFLATION,
            explore_rate: 0.0,
        }
    }
}

/// Which parameter is out of range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyError {
    /// Name of the field.
    pub field: &'static str,
    /// Value given.
    pub value: f64,
    /// What it has to be.
    pub need: &'static str,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: must be {}", self.field, self.value, self.need)
    }
}
impl std::error::Error for PolicyError {}

fn check(ok: bool, field: &'static str, value: f64, need: &'static str) -> Result<(), PolicyError> {
    if ok { Ok(()) } else { Err(PolicyError { field, value, need }) }
}

fn share(field: &'static str, x: f64) -> Result<(), PolicyError> {
    check((0.0..=1.0).contains(&x), field, x, "between 0 and 1")
}

fn finite_positive(field: &'static str, x: f64) -> Result<(), PolicyError> {
    check(x > 0.0 && x < f64::INFINITY, field, x, "finite and positive")
}

impl Certified {
    /// Checks every field.
    ///
    /// # Errors
    /// [`PolicyError`] names the first field out of range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        finite_positive("tol_rel", self.tol_rel)?;
        share("explore_rate", self.explore_rate)?;
        share("guess_target", self.guess_target)?;
        finite_positive("guess_target", self.guess_target)?;
        share("guess_keep", self.guess_keep)?;
        share("skip_share", self.skip_share)?;
        check((0.0..=0.25).contains(&self.row_share), "row_share", self.row_share, "between 0 and 1/4")?;
        check(self.rank != Some(0), "rank", 0.0, "at least 1, or absent")?;
        Ok(self)
    }
}

impl Seed000 {
    /// Checks every field.
    ///
    /// # Errors
    /// [`PolicyError`] names the first field out of range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        share("tau_cov", self.tau_cov)?;
        check(self.k_min <= self.k_max, "k_min", self.k_min as f64, "at most k_max")?;
        finite_positive("v_tol", self.v_tol)?;
        check(
            self.eps_guard >= 0.0 && self.eps_guard < f64::INFINITY,
            "eps_guard",
            self.eps_guard,
            "finite and not negative",
        )?;
        check(self.expansion >= 1, "expansion", self.expansion as f64, "at least 1")?;
        check((2.0..=8.0).contains(&self.inflation), "inflation", self.inflation, "between 2 and 8")?;
        share("explore_rate", self.explore_rate)?;
        Ok(self)
    }
}

impl Policy {
    /// Checks every field of the policy.
    ///
    /// # Errors
    /// [`PolicyError`] names the first field out of range.
    pub fn validated(self) -> Result<Self, PolicyError> {
        match self {
            Self::Certified(p) => p.validated().map(Self::Certified),
            Self::Seed000(p) => p.validated().map(Self::Seed000),
            Self::Packed | Self::Dense => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_each_bad_field_is_named() {
        Policy::default().validated().unwrap();
        Policy::Seed000(Seed000::default()).validated().unwrap();
        Policy::Packed.validated().unwrap();
        let c = Certified::default();
        for (bad, field) in [
            (Certified { tol_rel: f64::NAN, ..c }, "tol_rel"),
            (Certified { tol_rel: 0.0, ..c }, "tol_rel"),
            (Certified { explore_rate: 1.5, ..c }, "explore_rate"),
            (Certified { guess_target: 0.0, ..c }, "guess_target"),
            (Certified { guess_keep: -0.1, ..c }, "guess_keep"),
            (Certified { skip_share: f64::NAN, ..c }, "skip_share"),
            (Certified { row_share: 0.3, ..c }, "row_share"),
            (Certified { row_share: f64::NAN, ..c }, "row_share"),
            (Certified { rank: Some(0), ..c }, "rank"),
        ] {
            let e = Policy::Certified(bad).validated().unwrap_err();
            assert_eq!(e.field, field);
            assert!(e.to_string().starts_with(field));
        }
        let s = Seed000::default();
        for (bad, field) in [
            (Seed000 { tau_cov: 1.1, ..s }, "tau_cov"),
            (Seed000 { k_min: 200, ..s }, "k_min"),
            (Seed000 { v_tol: -1.0, ..s }, "v_tol"),
            (Seed000 { eps_guard: f64::NAN, ..s }, "eps_guard"),
            (Seed000 { expansion: 0, ..s }, "expansion"),
            (Seed000 { inflation: 1.0, ..s }, "inflation"),
            (Seed000 { explore_rate: f64::NAN, ..s }, "explore_rate"),
        ] {
            assert_eq!(Policy::Seed000(bad).validated().unwrap_err().field, field);
        }
    }
}

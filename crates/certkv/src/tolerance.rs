//! How far an output may be from exact attention before its head spends more.
use crate::{Error, Policy, Step};

/// A tolerance of a query head: the larger of a share of the output's norm and a distance in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative to the norm of the returned output, `||O'||` (math.md 8.2).
    pub relative: f64,
    /// A distance, whatever the norm.
    pub absolute: f64,
}

impl Tolerance {
    /// What policies without one have.
    pub(crate) const NONE: Self = Self { relative: 0.0, absolute: 0.0 };

    /// A share of the output's norm.
    pub const fn relative(share: f64) -> Self {
        Self { relative: share, absolute: 0.0 }
    }

    /// A distance.
    pub const fn absolute(distance: f64) -> Self {
        Self { relative: 0.0, absolute: distance }
    }

    pub(crate) fn of_no_policy() -> Error {
        Error::Policy("tolerances: the step's policy is not the certified one".to_owned())
    }

    /// That of an output of norm `norm`.
    pub(crate) fn of(self, norm: f64) -> f64 {
        (self.relative * norm).max(self.absolute)
    }

    pub(crate) fn check(self, at: usize) -> Result<(), Error> {
        let fine = |x: f64| (0.0..f64::INFINITY).contains(&x);
        if fine(self.relative) && fine(self.absolute) && self.relative + self.absolute > 0.0 {
            return Ok(());
        }
        let Self { relative, absolute } = self;
        let why = format!("tolerances[{at}] = {relative}, {absolute}: must be finite, neither negative, one positive");
        Err(Error::Policy(why))
    }
}

impl Step<'_> {
    /// Tolerances of the attend calls that follow in this step, in place of the policy's: none for the policy's again, one for all query
    /// heads, or one for each query head of a layer. So calls, layers and heads have their own.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Policy`] for one out of range, and in a step of another policy than the certified one. Nothing changed.
    pub fn set_tolerances(&mut self, tolerances: &[Tolerance]) -> Result<(), Error> {
        let heads = self.geometry().q_heads;
        if !matches!(self.policy(), Policy::Certified(_)) {
            return Err(Tolerance::of_no_policy());
        }
        if tolerances.len() > 1 && tolerances.len() != heads {
            return Err(Error::Shape { argument: "tolerances", expected: heads, given: tolerances.len() });
        }
        tolerances.iter().enumerate().try_for_each(|(at, tolerance)| tolerance.check(at))?;
        self.keep_tolerances(tolerances);
        Ok(())
    }
}

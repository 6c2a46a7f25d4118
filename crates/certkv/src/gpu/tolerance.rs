//! Tolerances of calls on a GPU. Kernels take one for all heads of a launch.
use super::policy::Rule;
use super::step::GpuStep;
use crate::{Error, Tolerance};

impl GpuStep<'_> {
    /// Tolerance of the attend calls that follow in this step, for all heads, in place of the policy's; `None`: the policy's again. A single
    /// that is not above what is asked for. A step with one of its own is neither recorded nor run from a recording.
    ///
    /// # Errors
    /// [`Error::Policy`] for one out of range, and in a step of another policy than the certified one. Nothing changed.
    pub fn set_tolerance(&mut self, tolerance: Option<Tolerance>) -> Result<(), Error> {
        if !matches!(self.rule, Rule::Certified(_)) {
            return Err(Tolerance::of_no_policy());
        }
        tolerance.map_or(Ok(()), |tolerance| tolerance.check(0))?;
        self.limit = tolerance.map(Into::into);
        Ok(())
    }

    /// What the next attend call does.
    pub(super) fn rule(&self) -> Rule {
        self.limit.map_or(self.rule, Rule::Certified)
    }
}

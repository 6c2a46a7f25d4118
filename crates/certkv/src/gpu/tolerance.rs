//! Tolerances of calls on a GPU: one for all heads of a launch, among its arguments, or one for each query head, in device memory.
use super::policy::{Limit, Rule};
use super::step::GpuStep;
use crate::{Error, Tolerance};
use std::sync::Arc;

impl GpuStep<'_> {
    /// Tolerances of the attend calls that follow in this step, in place of the policy's: none for the policy's again, one for all query
    /// heads, or one for each query head of a layer. Singles that are not above what is asked for. A step with its own is neither recorded nor run
    /// from a recording.
    ///
    /// *Cost:* of one for each head a copy of 8 bytes a head.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Policy`] for one out of range, and in a step of another policy than the certified one; one for each head while the
    /// cache's stream is recorded; a device error. Nothing changed.
    pub fn set_tolerances(&mut self, tolerances: &[Tolerance]) -> Result<(), Error> {
        if !matches!(self.rule, Rule::Certified(_)) {
            return Err(Tolerance::of_no_policy());
        }
        let heads = self.cache.core.sizes.q_heads();
        if tolerances.len() > 1 && tolerances.len() != heads {
            return Err(Error::Shape { argument: "tolerances", expected: heads, given: tolerances.len() });
        }
        tolerances.iter().enumerate().try_for_each(|(at, tolerance)| tolerance.check(at))?;
        let all = tolerances.first().map(|first| Limit::from(*first));
        let each = tolerances.iter().any(|one| all != Some((*one).into()));
        if each {
            let core = Arc::clone(&self.cache.core);
            if core.queue.stream().capturing()? {
                return Err(Error::Order {
                    layer: 0,
                    why: "a recording has the tolerance of its policy, and the step has others",
                });
            }
            let words: Vec<[f32; 2]> =
                tolerances.iter().map(|one| Limit::from(*one)).map(|l| [l.relative, l.absolute]).collect();
            self.cache.ring.send(&core.queue, &core.inputs, core.sizes.limits().start, words.as_flattened())?;
        }
        self.limit = all.map(|all| Limit { each, ..all });
        Ok(())
    }

    /// What the next attend call does.
    pub(super) fn rule(&self) -> Rule {
        self.limit.map_or(self.rule, Rule::Certified)
    }
}

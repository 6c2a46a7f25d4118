//! What a step does on the GPU, from the engine's policies.
use crate::{Error, Policy, Tolerance};

/// A policy as kernels take it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// One pass on codes; figures, no claim.
    Packed,
    /// One pass on codes, then everything exactly for heads over tolerance.
    Certified(Limit),
    /// Everything exactly.
    Dense,
}

/// A tolerance as kernels take it: the larger of a share of the output's norm and a distance, neither above what was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    pub(super) relative: f32,
    pub(super) absolute: f32,
    /// Whether query heads have their own instead, in device memory.
    pub(super) each: bool,
}

impl From<Tolerance> for Limit {
    fn from(asked: Tolerance) -> Self {
        Self { relative: down(asked.relative), absolute: down(asked.absolute), each: false }
    }
}

/// The largest single that is not above `x`.
fn down(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x { near.next_down() } else { near }
}

impl Rule {
    /// # Errors
    /// [`Error::Policy`] for a bad parameter, and for what is done on the CPU only.
    pub(super) fn of(policy: Policy) -> Result<Self, Error> {
        policy.validated().map_err(|e| Error::Policy(e.to_string()))?;
        let only_cpu = |what: &str| Err(Error::Policy(format!("{what}: not on the GPU")));
        match policy {
            Policy::Packed => Ok(Self::Packed),
            Policy::Dense => Ok(Self::Dense),
            Policy::Seed000(_) => only_cpu("the published policy"),
            Policy::Certified(c) if c.rank.is_some() => only_cpu("a ranking condition"),
            Policy::Certified(c) if c.explore_rate > 0.0 => only_cpu("exploration"),
            Policy::Certified(c) if c.row_share > 0.0 => only_cpu("single rows"),
            Policy::Certified(c) => Ok(Self::Certified(Tolerance::relative(c.tol_rel).into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Certified, Seed000};

    #[test]
    fn tolerances_are_rounded_down_and_what_the_gpu_cannot_is_refused() {
        for tol_rel in [0.05, 0.1, 1.0 / 3.0, 2.0] {
            let rule = Rule::of(Policy::Certified(Certified { tol_rel, ..Certified::default() })).unwrap();
            let Rule::Certified(Limit { relative, absolute, each: false }) = rule else { panic!("{rule:?}") };
            assert!(f64::from(relative) <= tol_rel && f64::from(relative) > tol_rel * (1.0 - 1e-7));
            assert_eq!(absolute, 0.0);
        }
        // A distance beyond singles is the largest of them; one below them is none at all.
        for (asked, got) in [(1e300, f32::MAX), (1e-300, 0.0), (0.25, 0.25), (0.1, 0.1f32.next_down())] {
            assert_eq!(Limit::from(Tolerance::absolute(asked)), Limit { relative: 0.0, absolute: got, each: false });
        }
        let refused = [
            Policy::Seed000(Seed000::default()),
            Policy::Certified(Certified { rank: Some(1), ..Certified::default() }),
            Policy::Certified(Certified { explore_rate: 0.1, ..Certified::default() }),
            Policy::Certified(Certified { row_share: 0.1, ..Certified::default() }),
            Policy::Certified(Certified { tol_rel: f64::NAN, ..Certified::default() }),
        ];
        for policy in refused {
            assert!(matches!(Rule::of(policy), Err(Error::Policy(_))), "{policy:?}");
        }
    }
}

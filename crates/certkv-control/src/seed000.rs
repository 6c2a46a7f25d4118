//! The decisions of "Runtime-Certified Bounded-Error Quantized Attention", as that paper takes them, so that its system
//! can be run beside ours. Its certificate is in `certkv_bound::published`, its checks in `certkv_bound::checks`.
use crate::policy::Seed000;
use crate::values::exceeds_local;
use crate::{BitSet, ControlError, Coverage};
use certkv_bound::published::PublishedBound;

/// Which rung-1 step the paper takes after its first phase (section 3.4): if the inflated tail mass
/// `e^{infl Delta} alpha^` still exceeds `1 - tau_cov`, the coverage rule's cap is multiplied by `expansion`.
pub fn needs_expansion(policy: &Seed000, bound: &PublishedBound) -> bool {
    !(bound.inflated_tail() <= 1.0 - policy.tau_cov)
}

/// Blocks whose keys are read exactly, in promotion order (section 3.3): coverage of the first-phase masses, then,
/// where [`needs_expansion`] says so, the next-largest blocks up to `expansion` times as many (section 3.4, rung 1).
/// Returns true if it expanded. `exact` are blocks that were never compressed; `out` is cleared first.
///
/// # Errors
/// [`ControlError::Invalid`] for a mass that is NaN or negative.
pub fn promote_keys(
    policy: &Seed000,
    masses: &[f64],
    delta_max: f64,
    exact: &BitSet,
    out: &mut Vec<u32>,
) -> Result<bool, ControlError> {
    let rule = Coverage { tau: policy.tau_cov, k_min: policy.k_min, k_max: policy.k_max };
    rule.select(masses, exact, out)?;
    let covered: f64 = out.iter().map(|&b| masses[b as usize]).sum();
    let already: f64 = exact.iter().filter_map(|b| masses.get(b)).sum();
    let bound = PublishedBound {
        tail_mass: (1.0 - covered - already).max(0.0),
        delta_max,
        value_max: 0.0,
        e_val: 0.0,
        inflation: policy.inflation,
    };
    if !needs_expansion(policy, &bound) {
        return Ok(false);
    }
    let before = out.len();
    let more = before.max(1).saturating_mul(policy.expansion);
    Coverage { tau: 2.0, k_min: more, k_max: more }.select(masses, exact, out)?;
    Ok(out.len() > before)
}

/// Blocks whose values are read exactly (section 3.4, rung 2): those with `rho^_b eta_b > v_tol`, ascending. `out` is
/// cleared first; `exact` blocks are never listed.
pub fn promote_values(policy: &Seed000, masses: &[f64], etas: &[f64], exact: &BitSet, out: &mut Vec<u32>) {
    out.clear();
    let over = |b: usize| !exact.contains(b) && exceeds_local(masses[b], etas[b], policy.v_tol);
    out.extend((0..masses.len().min(etas.len())).filter(|&b| over(b)).map(|b| b as u32));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_doubles_when_the_inflated_tail_is_too_large() {
        let policy = Seed000 { k_max: 2, ..Seed000::default() };
        let masses = [0.5, 0.2, 0.15, 0.1, 0.05];
        let mut out = vec![];
        assert!(promote_keys(&policy, &masses, 0.1, &BitSet::new(5), &mut out).unwrap());
        assert_eq!(out, [0, 1, 2, 3]);
        let concentrated = [0.999, 0.001, 0.0, 0.0, 0.0];
        assert!(!promote_keys(&policy, &concentrated, 0.1, &BitSet::new(5), &mut out).unwrap());
        assert_eq!(out, [0, 1]);
        assert!(promote_keys(&policy, &masses, f64::NAN, &BitSet::new(5), &mut out).unwrap(), "NaN expands");
    }

    #[test]
    fn values_by_the_local_rule() {
        let mut out = vec![9];
        let exact = BitSet::from_bools(&[true, false, false, false]);
        promote_values(&Seed000::default(), &[0.9, 0.5, 0.1, 0.2], &[1.0, 0.2, 0.2, f64::NAN], &exact, &mut out);
        assert_eq!(out, [1, 3]);
    }
}

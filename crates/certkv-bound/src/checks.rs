//! Run-time checks, math.md section 7: ranking, boundary, canary and how often to look.
//!
//! A check that meets NaN, unequal lengths or too few blocks fails; none of them panics.
use crate::order::descending_into;
use certkv_core::{OutOfMemory, reserve_total};

/// Work lists of the checks of an order, kept from call to call; of no meaning between two of them.
#[derive(Debug, Clone, Default)]
pub struct Ranking {
    order: Vec<usize>,
    other: Vec<usize>,
    middle: Vec<f64>,
    highest_later: Vec<f64>,
}

impl Ranking {
    /// Asks for the memory of checks of so many blocks, which then ask for none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        for list in [&mut self.order, &mut self.other] {
            list.clear();
            reserve_total(list, blocks)?;
        }
        for list in [&mut self.middle, &mut self.highest_later] {
            list.clear();
            reserve_total(list, blocks + 1)?;
        }
        Ok(())
    }

    /// As [`rank_consistent`].
    pub fn is_consistent(&mut self, exact: &[f64], code: &[f64], r: usize) -> bool {
        if exact.len() < r || exact.len() != code.len() {
            return false;
        }
        let sorted = descending_into(exact, &mut self.order).and(descending_into(code, &mut self.other));
        sorted.is_ok() && self.order[..r] == self.other[..r]
    }

    /// As [`boundary_ok`].
    pub fn is_bounded(&mut self, exact: &[f64], tail_code: &[f64], tail_delta: &[f64], r: usize, zeta: f64) -> bool {
        if tail_code.is_empty() {
            return true;
        }
        if r == 0 || exact.len() < r || tail_code.len() != tail_delta.len() {
            return false;
        }
        if descending_into(exact, &mut self.order).is_err() {
            return false;
        }
        let threshold = exact[self.order[r - 1]];
        tail_code.iter().zip(tail_delta).all(|(l, d)| l + d + zeta < threshold)
    }

    /// As [`top_r_certified`].
    pub fn is_certified(&mut self, low: &[f64], high: &[f64], r: usize) -> bool {
        if low.len() != high.len() || low.len() < r || !low.iter().zip(high).all(|(a, b)| a <= b) {
            return false;
        }
        let Self { order, middle, highest_later, .. } = self;
        // A fully masked block is [-inf, -inf]: its midpoint is -inf, not NaN.
        middle.clear();
        middle.extend(low.iter().zip(high).map(|(a, b)| 0.5 * a + 0.5 * b));
        if descending_into(middle, order).is_err() {
            return false;
        }
        highest_later.clear();
        highest_later.resize(order.len() + 1, f64::NEG_INFINITY);
        for (j, &b) in order.iter().enumerate().rev() {
            highest_later[j] = highest_later[j + 1].max(high[b]);
        }
        (0..r).all(|j| j + 1 == order.len() || low[order[j]] > highest_later[j + 1])
    }
}

/// Ranking consistency (7.1): the `r` largest promoted blocks, in order, agree under exact and code log-masses. False if
/// fewer than `r` are promoted. An alarm only: a disagreement inside `F` has no effect on the output.
pub fn rank_consistent(exact: &[f64], code: &[f64], r: usize) -> bool {
    Ranking::default().is_consistent(exact, code, r)
}

/// Boundary check (7.2): no tail block's upper log-mass `l'_b + Delta_b + zeta` reaches the `r`-th largest exact log-mass
/// of the promoted blocks. True if there is no tail, otherwise false if fewer than `r >= 1` blocks are promoted.
pub fn boundary_ok(exact: &[f64], tail_code: &[f64], tail_delta: &[f64], r: usize, zeta: f64) -> bool {
    Ranking::default().is_bounded(exact, tail_code, tail_delta, r, zeta)
}

/// Certified top `r` (7.3): with true log-masses in `[low, high]`, the `r` largest midpoints are the `r` largest true
/// log-masses, in that order. The default ranking condition.
pub fn top_r_certified(low: &[f64], high: &[f64], r: usize) -> bool {
    Ranking::default().is_certified(low, high, r)
}

/// Canary (7.4): every token of a promoted block has `|z(exact) - z(code)| <= Delta_b + zeta_b`, and is masked in both or
/// in neither. False means that stored codes and annotations disagree: no certificate of the layer may be issued.
pub fn canary_ok(exact: &[f64], code: &[f64], delta: f64, zeta: f64) -> bool {
    let limit = delta + zeta;
    exact.len() == code.len()
        && exact.iter().zip(code).all(|(&a, &b)| {
            let masked = a == f64::NEG_INFINITY && b == f64::NEG_INFINITY;
            masked || (a.is_finite() && b.is_finite() && (a - b).abs() <= limit)
        })
}

/// Canary on a block's log-mass (7.5), which needs no logits: both `-inf`, or within `Delta_b + zeta_b`.
pub fn canary_mass_ok(exact: f64, code: f64, delta: f64, zeta: f64) -> bool {
    canary_ok(&[exact], &[code], delta, zeta)
}

/// How many of `tail` blocks the exploration budget looks at in a step: `ceil(rate tail)` (7.6), at most all of them.
pub fn explore_count(rate: f64, tail: usize) -> usize {
    // The small subtraction keeps 0.1 * 10 from being rounded up to 2 blocks.
    let n = (rate * tail as f64 - 1e-12).ceil();
    if n > 0.0 { (n as usize).min(tail) } else { 0 }
}

/// Probability of missing all of a corrupt fraction of the tail in `steps` steps is at most this (7.7).
pub fn miss_probability(corrupt_fraction: f64, steps: u64, looked_at: usize) -> f64 {
    (1.0 - corrupt_fraction.clamp(0.0, 1.0)).powf(steps as f64 * looked_at as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::order::descending;

    /// Numbers for the unit tests of this crate.
    pub(crate) struct Lcg(pub(crate) u64);

    impl Lcg {
        pub(crate) fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(1);
            (certkv_core::hash::splitmix64(self.0) >> 11) as f64 / (1u64 << 53) as f64
        }
        pub(crate) fn normal(&mut self) -> f64 {
            let r = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            r * (core::f64::consts::TAU * self.uniform()).cos()
        }
    }

    #[test]
    fn ranking() {
        assert!(rank_consistent(&[3.0, 2.0, 1.0], &[2.9, 2.1, 1.0], 3));
        assert!(!rank_consistent(&[3.0, 2.0], &[1.9, 2.1], 1));
        assert!(!rank_consistent(&[3.0], &[3.0], 2));
        assert!(!rank_consistent(&[f64::NAN], &[3.0], 1));
    }

    #[test]
    fn boundary() {
        assert!(boundary_ok(&[3.0, 2.0], &[1.0], &[0.5], 2, 0.1));
        assert!(!boundary_ok(&[3.0, 2.0], &[1.0], &[1.0], 2, 0.0), "reaching it is already too much");
        assert!(boundary_ok(&[], &[], &[], 1, 0.0));
        assert!(!boundary_ok(&[], &[1.0], &[0.1], 1, 0.0));
        assert!(!boundary_ok(&[3.0], &[f64::NAN], &[0.1], 1, 0.0));
        assert!(!boundary_ok(&[3.0], &[1.0], &[0.1], 1, f64::NAN));
    }

    /// (7.3) against every true log-mass on a grid inside the intervals.
    #[test]
    fn top_r_is_true_of_every_point_of_the_intervals() {
        let mut r = Lcg(51);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..400 {
            let mid: Vec<f64> = (0..4).map(|_| 4.0 * r.normal()).collect();
            let half: Vec<f64> = (0..4).map(|_| r.uniform()).collect();
            let low: Vec<f64> = mid.iter().zip(&half).map(|(a, b)| a - b).collect();
            let high: Vec<f64> = mid.iter().zip(&half).map(|(a, b)| a + b).collect();
            let claim = top_r_certified(&low, &high, 2);
            let order = descending(&mid).unwrap();
            let holds = (0..16u32).all(|corner| {
                let x: Vec<f64> = (0..4).map(|i| if corner >> i & 1 == 1 { high[i] } else { low[i] }).collect();
                descending(&x).unwrap()[..2] == order[..2]
            });
            assert!(!claim || holds);
            assert!(claim || !holds || low.iter().any(|l| high.contains(l)), "corners decide strict orders");
            (yes, no) = (yes + usize::from(claim), no + usize::from(!claim));
        }
        assert!(yes > 20 && no > 20);
        assert!(!top_r_certified(&[1.0], &[1.0], 2));
        assert!(!top_r_certified(&[2.0], &[1.0], 1), "an interval the wrong way round is damage");
        assert!(top_r_certified(&[1.0, f64::NEG_INFINITY], &[1.0, f64::NEG_INFINITY], 1));
    }

    #[test]
    fn canaries() {
        let ninf = f64::NEG_INFINITY;
        assert!(canary_ok(&[1.0, ninf], &[1.1, ninf], 0.1 + 1e-12, 0.0));
        assert!(!canary_ok(&[1.0], &[1.2], 0.1, 0.05));
        assert!(!canary_ok(&[ninf], &[1.0], 10.0, 0.0));
        assert!(!canary_ok(&[f64::NAN], &[f64::NAN], 1.0, 0.0));
        assert!(!canary_ok(&[1.0], &[1.0], f64::NAN, 0.0));
        assert!(!canary_ok(&[1.0, 2.0], &[1.0], 1.0, 0.0));
        assert!(canary_mass_ok(ninf, ninf, 0.0, 0.0) && !canary_mass_ok(0.0, 0.3, 0.1, 0.1));
    }

    #[test]
    fn exploration_counts() {
        assert_eq!((explore_count(0.1, 10), explore_count(0.1, 11), explore_count(0.0, 9)), (1, 2, 0));
        assert_eq!((explore_count(5.0, 3), explore_count(f64::NAN, 3), explore_count(-1.0, 3)), (3, 0, 0));
        assert!((miss_probability(0.5, 3, 2) - 0.5f64.powi(6)).abs() < 1e-15);
        assert_eq!(miss_probability(1.0, 1, 1), 0.0);
    }
}

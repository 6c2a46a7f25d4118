//! Keys, values and drops under one tolerance, math.md (6.5) and (6.6).
use crate::error::{length, non_negative};
use crate::{ControlError, CoverSolver};
use certkv_bound::terms::product;

/// The terms of (6.5) for one head, one entry per block. A block that is already exact on a side has 0 there, a block
/// that is not dropped has 0 in the drop terms.
#[derive(Debug, Clone, Copy)]
pub struct JointTerms<'a> {
    /// `g_b D_b`.
    pub key: &'a [f64],
    /// `h_b`.
    pub shrink: &'a [f64],
    /// `min(rho_b eta_b, p_b sop_b)`.
    pub value: &'a [f64],
    /// Bytes to fetch a block's keys; 0 if they are in fast memory.
    pub key_cost: &'a [f64],
    /// Bytes to fetch a block's values.
    pub value_cost: &'a [f64],
    /// `omega_b D_b` of dropped blocks; empty if there are none.
    pub dropped: &'a [f64],
    /// Bytes to fetch a dropped block, as long as `dropped`.
    pub dropped_cost: &'a [f64],
}

/// What to fetch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JointPick {
    /// Blocks whose keys to promote, ascending.
    pub keys: Vec<u32>,
    /// Blocks whose values to promote, ascending.
    pub values: Vec<u32>,
    /// Dropped blocks to bring back, ascending.
    pub drops: Vec<u32>,
    /// Cost of the fractional optimum (6.7).
    pub lower_bound: f64,
}

/// Work buffers of [`JointBudget::solve`].
#[derive(Debug, Clone, Default)]
pub struct JointBudget {
    solver: CoverSolver,
    gain: Vec<f64>,
    cost: Vec<f64>,
}

impl JointBudget {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fetches at low cost so that
    /// `sum (g_b D_b + eps h_b) [keys left] + sum c_b [values left] + drops left <= eps`, which is (5.10) `<= eps`.
    /// The masses behind the terms are estimates, so the pass that follows checks the result.
    ///
    /// # Errors
    /// [`ControlError`] for unequal lengths or a NaN or negative entry (or `eps`). An infinite term is allowed: it has
    /// to be promoted.
    pub fn solve(&mut self, terms: &JointTerms<'_>, eps: f64, pick: &mut JointPick) -> Result<(), ControlError> {
        let n = terms.key.len();
        length("shrink", terms.shrink.len(), n)?;
        length("value", terms.value.len(), n)?;
        length("key_cost", terms.key_cost.len(), n)?;
        length("value_cost", terms.value_cost.len(), n)?;
        length("dropped_cost", terms.dropped_cost.len(), terms.dropped.len())?;
        non_negative("eps", &[eps])?;
        self.gain.clear();
        self.gain.extend(terms.key.iter().zip(terms.shrink).map(|(&g, &h)| g + product(eps, h)));
        self.gain.extend_from_slice(terms.value);
        self.gain.extend_from_slice(terms.dropped);
        self.cost.clear();
        self.cost.extend_from_slice(terms.key_cost);
        self.cost.extend_from_slice(terms.value_cost);
        self.cost.extend_from_slice(terms.dropped_cost);
        let total: f64 = self.gain.iter().sum();
        let n32 = n as u32;
        [&mut pick.keys, &mut pick.values, &mut pick.drops].into_iter().for_each(Vec::clear);
        pick.lower_bound = 0.0;
        if total == f64::INFINITY {
            return self.with_infinite(n32, eps, pick);
        }
        let cover = self.solver.solve(&self.gain, &self.cost, total - eps)?;
        split(cover.items, n32, pick);
        pick.lower_bound = cover.lower_bound;
        Ok(())
    }

    /// Items of infinite gain are taken whatever they cost; the rest is an ordinary cover.
    fn with_infinite(&mut self, n: u32, eps: f64, pick: &mut JointPick) -> Result<(), ControlError> {
        let mut forced = Vec::new();
        for (i, g) in self.gain.iter_mut().enumerate().filter(|(_, g)| **g == f64::INFINITY) {
            *g = 0.0;
            forced.push(i as u32);
            pick.lower_bound += self.cost[i];
        }
        let total: f64 = self.gain.iter().sum();
        let cover = self.solver.solve(&self.gain, &self.cost, total - eps)?;
        pick.lower_bound += cover.lower_bound;
        forced.extend_from_slice(cover.items);
        forced.sort_unstable();
        split(&forced, n, pick);
        Ok(())
    }
}

fn split(items: &[u32], n: u32, pick: &mut JointPick) {
    for &i in items {
        match i / n.max(1) {
            0 if n > 0 => pick.keys.push(i),
            1 if n > 0 => pick.values.push(i - n),
            _ => pick.drops.push(i - 2 * n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: JointTerms<'_> = JointTerms {
        key: &[1.0, 0.1, 0.0],
        shrink: &[0.1, 0.0, 0.0],
        value: &[0.5, 0.4, 0.3],
        key_cost: &[1.0; 3],
        value_cost: &[1.0; 3],
        dropped: &[],
        dropped_cost: &[],
    };

    fn solve(t: &JointTerms<'_>, eps: f64) -> JointPick {
        let mut pick = JointPick::default();
        JointBudget::new().solve(t, eps, &mut pick).unwrap();
        pick
    }

    #[test]
    fn meets_the_tolerance_with_the_fewest_blocks() {
        let p = solve(&T, 0.8);
        assert_eq!((p.keys, p.values), (vec![0], vec![0]));
        assert!(solve(&T, 5.0).keys.is_empty());
        let all = solve(&T, 0.0);
        assert_eq!((all.keys, all.values), (vec![0, 1], vec![0, 1, 2]));
    }

    #[test]
    fn drops_and_infinite_terms() {
        let t = JointTerms { dropped: &[0.0, 9.0], dropped_cost: &[0.0, 4.0], ..T };
        assert_eq!(solve(&t, 3.0).drops, [1]);
        let t = JointTerms { key: &[f64::INFINITY, 0.1, 0.0], ..T };
        let p = solve(&t, 5.0);
        assert_eq!((p.keys, p.values, p.lower_bound), (vec![0], vec![], 1.0));
        let mut pick = JointPick::default();
        let mut b = JointBudget::new();
        assert!(b.solve(&JointTerms { shrink: &[0.0], ..T }, 1.0, &mut pick).is_err());
        assert!(b.solve(&T, f64::NAN, &mut pick).is_err());
        assert!(b.solve(&JointTerms { value: &[f64::NAN, 0.0, 0.0], ..T }, 1.0, &mut pick).is_err());
    }
}

//! The covering knapsack: least cost for a needed sum of gains, math.md (6.6) and its bound (6.7).
use crate::ControlError;
use crate::error::{countable, length, non_negative};
use certkv_bound::order::by_descending;

/// A cover.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cover<'a> {
    /// Items taken, ascending.
    pub items: &'a [u32],
    /// Cost of the items.
    pub cost: f64,
    /// Cost of the fractional optimum, which no cover undercuts (6.7).
    pub lower_bound: f64,
}

/// Work buffers of [`CoverSolver::solve`].
#[derive(Debug, Clone, Default)]
pub struct CoverSolver {
    ratio: Vec<f64>,
    order: Vec<u32>,
    pick: Vec<u32>,
    kept: Vec<u32>,
}

impl CoverSolver {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Items with `sum gain >= need` at low cost: zero-cost items first, then by descending `gain/cost` (ties by index)
    /// until covered; finally superfluous items are removed, most costly first (ties: smaller gain, then index). Optimal
    /// for equal costs; otherwise the cost is at most the fractional optimum plus the largest single cost (Theorem 6.1).
    ///
    /// # Errors
    /// [`ControlError::Infeasible`] if everything together falls short or `need` is NaN; [`ControlError::Invalid`] for a
    /// NaN or negative gain or cost.
    pub fn solve(&mut self, gain: &[f64], cost: &[f64], need: f64) -> Result<Cover<'_>, ControlError> {
        length("cost", cost.len(), gain.len())?;
        countable(gain.len())?;
        non_negative("gain", gain)?;
        non_negative("cost", cost)?;
        self.pick.clear();
        self.kept.clear();
        if need <= 0.0 {
            return Ok(Cover { items: &self.kept, cost: 0.0, lower_bound: 0.0 });
        }
        self.ratio.clear();
        self.ratio.extend(gain.iter().zip(cost).map(|(&g, &c)| if c > 0.0 { g / c } else { f64::INFINITY }));
        self.order.clear();
        self.order.extend((0..gain.len() as u32).filter(|&i| gain[i as usize] > 0.0));
        let ratio = &self.ratio;
        self.order.sort_unstable_by(|&i, &j| by_descending(ratio, i as usize, j as usize));
        let (mut got, mut lower_bound) = (0.0, 0.0);
        for &i in &self.order {
            if got >= need {
                break;
            }
            let (g, c) = (gain[i as usize], cost[i as usize]);
            lower_bound += ((need - got) / g).min(1.0) * c;
            self.pick.push(i);
            got += g;
        }
        if !(got >= need) {
            return Err(ControlError::Infeasible);
        }
        self.pick.sort_unstable_by(|&i, &j| {
            let (i, j) = (i as usize, j as usize);
            cost[j].total_cmp(&cost[i]).then(gain[i].total_cmp(&gain[j])).then(i.cmp(&j))
        });
        let mut total = 0.0;
        for &i in &self.pick {
            let (g, c) = (gain[i as usize], cost[i as usize]);
            if c > 0.0 && got - g >= need {
                got -= g;
            } else {
                self.kept.push(i);
                total += c;
            }
        }
        self.kept.sort_unstable();
        Ok(Cover { items: &self.kept, cost: total, lower_bound })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn best(gain: &[f64], cost: &[f64], need: f64) -> Option<f64> {
        (0..1u32 << gain.len())
            .filter_map(|mask| {
                let sum = |x: &[f64]| -> f64 { (0..x.len()).filter(|i| mask >> i & 1 == 1).map(|i| x[i]).sum() };
                (sum(gain) >= need).then(|| sum(cost))
            })
            .min_by(f64::total_cmp)
    }

    proptest! {
        #[test]
        fn within_the_theorem_of_the_optimum(
            items in prop::collection::vec((0u32..20, 0u32..5), 0..9),
            need in 0.0f64..60.0,
        ) {
            let gain: Vec<f64> = items.iter().map(|x| f64::from(x.0)).collect();
            let cost: Vec<f64> = items.iter().map(|x| f64::from(x.1)).collect();
            let mut solver = CoverSolver::new();
            match (solver.solve(&gain, &cost, need), best(&gain, &cost, need)) {
                (Ok(c), Some(best)) => {
                    let got: f64 = c.items.iter().map(|&i| gain[i as usize]).sum();
                    prop_assert!(got >= need || need <= 0.0);
                    let paid: f64 = c.items.iter().map(|&i| cost[i as usize]).sum();
                    prop_assert_eq!(paid, c.cost);
                    prop_assert!(c.lower_bound <= best + 1e-9 && c.cost >= best);
                    prop_assert!(c.cost <= c.lower_bound + cost.iter().copied().fold(0.0, f64::max) + 1e-9);
                    if cost.iter().all(|&x| x == 1.0) {
                        prop_assert_eq!(c.cost, best);
                    }
                }
                (Err(ControlError::Infeasible), None) => {}
                (a, b) => prop_assert!(false, "{:?} against {:?}", a, b),
            }
        }
    }

    #[test]
    fn superfluous_items_go_most_costly_first() {
        // Greedy takes 0 and 1 by ratio, then 2 to reach the need; 2 alone suffices, and 0 is the costlier of the rest.
        let mut s = CoverSolver::new();
        let c = s.solve(&[4.0, 3.0, 10.0], &[1.0, 0.5, 4.0], 10.0).unwrap();
        assert_eq!((c.items, c.cost), ([2].as_slice(), 4.0));
        assert_eq!(s.solve(&[1.0], &[1.0], f64::NAN), Err(ControlError::Infeasible));
        assert_eq!(s.solve(&[f64::NAN], &[1.0], 1.0), Err(ControlError::Invalid { what: "gain", index: 0 }));
        assert_eq!(s.solve(&[1.0], &[1.0], -1.0).unwrap().items, [0u32; 0]);
        assert_eq!(s.solve(&[1.0], &[0.0, 1.0], 1.0), Err(ControlError::Length { what: "cost", got: 2, need: 1 }));
    }
}

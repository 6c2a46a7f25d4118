//! One level for every item within a budget of bytes: hull moves by what they save, math.md (9.5).
use crate::ControlError;
use crate::error::{countable, finite, length};
use crate::moves::{MOST, Move, Spender};

/// What each level of each item would cost and lose, `[item][level]`; levels in any order.
#[derive(Debug, Clone, Copy)]
pub struct Choices<'a> {
    /// Levels of an item, the same number for all.
    pub levels: usize,
    /// Bytes, metadata included.
    pub cost: &'a [f64],
    /// What is lost by it, in whatever unit is minimised.
    pub loss: &'a [f64],
}

/// What was allocated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation<'a> {
    /// Level of every item.
    pub level: &'a [u32],
    /// Cost of them.
    pub used: f64,
    /// Loss of them.
    pub loss: f64,
    /// By how much the loss can be above the least possible: what the first move that did not fit would have saved.
    pub slack: f64,
    /// What that move would have saved per byte: what a byte is worth at this budget. 0 if every move fits.
    pub price: f64,
}

/// Work buffers of [`Allocator::solve`].
#[derive(Debug, Clone, Default)]
pub struct Allocator {
    order: Vec<u32>,
    hull: Vec<u32>,
    moves: Vec<Move>,
    spender: Spender,
    level: Vec<u32>,
}

impl Allocator {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Levels of small loss within `budget`. Every item starts at its cheapest level; moves along the lower hulls of (cost, loss)
    /// follow by descending loss saved per byte, ties by item. A move that does not fit is left out, and so are the later ones of
    /// its item. The loss is at most [`Allocation::slack`] above the least possible.
    ///
    /// # Errors
    /// [`ControlError::BelowFloor`] if not even the cheapest levels fit; [`ControlError::Length`]; [`ControlError::Invalid`] for a
    /// cost or loss that is negative or not finite; [`ControlError::TooMany`] items or levels.
    pub fn solve(&mut self, choices: &Choices<'_>, budget: f64) -> Result<Allocation<'_>, ControlError> {
        let Choices { levels, cost, loss } = *choices;
        length("loss", loss.len(), cost.len())?;
        let items = cost.len().checked_div(levels).unwrap_or(0);
        length("cost", cost.len(), items * levels)?;
        countable(cost.len())?;
        if levels > MOST {
            return Err(ControlError::TooMany(levels));
        }
        finite("cost", cost)?;
        finite("loss", loss)?;
        self.level.clear();
        self.moves.clear();
        let mut used = 0.0;
        for item in 0..items {
            let of_item = item * levels..(item + 1) * levels;
            let (cost, loss) = (&cost[of_item.clone()], &loss[of_item]);
            self.trace(cost, loss);
            self.level.extend(self.hull.first());
            used += self.hull.first().map_or(0.0, |j| cost[*j as usize]);
            let mut least = f64::INFINITY;
            for (number, pair) in self.hull.windows(2).enumerate() {
                let [a, b] = [pair[0], pair[1]].map(|j| j as usize);
                let more = cost[b] - cost[a];
                // Rounding must not let a later move overtake an earlier one.
                least = ((loss[a] - loss[b]) / more).min(least);
                self.moves.push(Move::new(least, more, item as u32, number as u16, pair[1] as u16));
            }
        }
        if !(used <= budget) {
            return Err(ControlError::BelowFloor { floor: used, budget });
        }
        let Self { moves, spender, level, .. } = self;
        let (used, left) = spender.spend(moves, items, used, budget);
        for (item, level) in level.iter_mut().enumerate() {
            *level = spender.reached(item).map_or(*level, u32::from);
        }
        let lost = level.iter().enumerate().map(|(item, level)| loss[item * levels + *level as usize]).sum();
        let (slack, price) = left.map_or((0.0, 0.0), |m| (m.brings(), m.ratio()));
        Ok(Allocation { level, used, loss: lost, slack, price })
    }

    /// Puts the levels of one item's lower convex hull into `hull`, from the cheapest on: along it the loss falls, and less and less per
    /// byte.
    fn trace(&mut self, cost: &[f64], loss: &[f64]) {
        let Self { order, hull, .. } = self;
        let n = cost.len() as u32;
        // Most callers list levels from the best or from the cheapest on.
        if cost.is_sorted_by(|a, b| a > b) {
            walk(hull, cost, loss, (0..n).rev());
        } else if cost.is_sorted_by(|a, b| a < b) {
            walk(hull, cost, loss, 0..n);
        } else {
            order.clear();
            order.extend(0..n);
            order.sort_unstable_by(|&a, &b| {
                let (i, j) = (a as usize, b as usize);
                cost[i].total_cmp(&cost[j]).then(loss[i].total_cmp(&loss[j])).then(a.cmp(&b))
            });
            walk(hull, cost, loss, order.iter().copied());
        }
    }
}

/// [`Allocator::trace`] over levels by ascending cost.
fn walk(hull: &mut Vec<u32>, cost: &[f64], loss: &[f64], levels: impl Iterator<Item = u32>) {
    hull.clear();
    for j in levels {
        let (c, l) = (cost[j as usize], loss[j as usize]);
        if hull.last().is_some_and(|last| l >= loss[*last as usize]) {
            continue;
        }
        while let [.., a, b] = hull[..] {
            let (a, b) = (a as usize, b as usize);
            if (loss[a] - loss[b]) * (c - cost[b]) > (loss[b] - l) * (cost[b] - cost[a]) {
                break;
            }
            hull.pop();
        }
        hull.push(j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The least loss of any choice within the budget.
    fn best(choices: &Choices<'_>, budget: f64) -> f64 {
        let (levels, items) = (choices.levels, choices.cost.len() / choices.levels);
        let all = 0..levels.pow(items as u32);
        let value = |mut code: usize| {
            let (mut used, mut lost) = (0.0, 0.0);
            for item in 0..items {
                let at = item * levels + code % levels;
                (used, lost) = (used + choices.cost[at], lost + choices.loss[at]);
                code /= levels;
            }
            if used <= budget { lost } else { f64::INFINITY }
        };
        all.map(value).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn no_choice_is_better_by_more_than_the_slack(
            items in 1usize..6, levels in 1usize..5, seed: u64, share in 0.0f64..1.2, whole: bool,
        ) {
            let number = |i: u64| {
                let n = certkv_core::hash::splitmix64(seed ^ i) % 1000;
                if whole { (n % 9) as f64 } else { n as f64 / 7.0 }
            };
            let n = (items * levels) as u64;
            let cost: Vec<f64> = (0..n).map(number).collect();
            let loss: Vec<f64> = (0..n).map(|i| number(n + i)).collect();
            let choices = Choices { levels, cost: &cost, loss: &loss };
            let sum = |f: fn(f64, f64) -> f64| cost.chunks(levels).map(|c| c.iter().copied().reduce(f).unwrap()).sum::<f64>();
            let budget = sum(f64::min) + share * (sum(f64::max) - sum(f64::min));
            let mut allocator = Allocator::new();
            let found = allocator.solve(&choices, budget).unwrap();
            let at = |(item, level): (usize, &u32)| item * levels + *level as usize;
            let (used, lost): (f64, f64) = found.level.iter().enumerate()
                .map(|x| (cost[at(x)], loss[at(x)])).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            prop_assert!((found.used - used).abs() < 1e-9 && (found.loss - lost).abs() < 1e-9);
            prop_assert!(used <= budget + 1e-9);
            let least = best(&choices, budget);
            prop_assert!(lost <= least + found.slack + 1e-9, "{lost} against {least}, slack {}", found.slack);
            // Bytes beyond the budget bring no more than the price.
            let (slack, price) = (found.slack, found.price);
            prop_assert!(price >= 0.0 && (price > 0.0) == (slack > 0.0));
            for more in [1.0, 7.0, 50.0] {
                let with = best(&choices, budget + more);
                prop_assert!(lost - with <= slack + price * more + 1e-9, "{more} bytes bring {} at {price}", lost - with);
            }
            // With room for everything nothing is lost that need not be.
            if share >= 1.0 {
                prop_assert!((lost - least).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut allocator = Allocator::new();
        let choices = Choices { levels: 2, cost: &[3.0, 4.0, 1.0, 2.0], loss: &[1.0, 0.0, 1.0, 0.0] };
        assert_eq!(allocator.solve(&choices, 3.5), Err(ControlError::BelowFloor { floor: 4.0, budget: 3.5 }));
        assert!(allocator.solve(&choices, f64::NAN).is_err());
        assert_eq!(allocator.solve(&choices, 4.0).unwrap().level, [0, 0]);
        let short = Choices { loss: &[1.0], ..choices };
        assert_eq!(allocator.solve(&short, 9.0), Err(ControlError::Length { what: "loss", got: 1, need: 4 }));
        let uneven = Choices { levels: 3, ..choices };
        assert_eq!(allocator.solve(&uneven, 9.0), Err(ControlError::Length { what: "cost", got: 4, need: 3 }));
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            let choices = Choices { loss: &[1.0, bad, 1.0, 0.0], ..choices };
            assert_eq!(allocator.solve(&choices, 9.0), Err(ControlError::Invalid { what: "loss", index: 1 }));
        }
        let none = Choices { levels: 0, cost: &[], loss: &[] };
        assert_eq!(allocator.solve(&none, 0.0).unwrap().level, [0u32; 0]);
    }
}

//! Which items may change their width: those whose rank has moved, and stayed moved.
use crate::error::non_negative;
use crate::{BitSet, ControlError};

/// Percentile ranks of scores, `100 position/(n - 1)` in the order (score, index); a single item has 100.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranks {
    order: Vec<u32>,
    ranks: Vec<f64>,
}

impl Ranks {
    pub(super) fn of(&mut self, scores: &[f64]) -> &[f64] {
        let n = scores.len();
        self.order.clear();
        self.order.extend(0..n as u32);
        self.order.sort_unstable_by(|a, b| scores[*a as usize].total_cmp(&scores[*b as usize]).then(a.cmp(b)));
        self.ranks.clear();
        self.ranks.resize(n, 100.0);
        for (position, item) in self.order.iter().enumerate() {
            if n > 1 {
                self.ranks[*item as usize] = position as f64 * (100.0 / (n - 1) as f64);
            }
        }
        &self.ranks
    }
}

#[derive(Debug, Clone, Copy)]
struct Item {
    rank: f64,
    /// Rank when the item changed last.
    since: f64,
    above: u32,
    below: u32,
}

/// Ranks of the items of a layer, smoothed, and how long they have been away from where they were when their item changed last.
#[derive(Debug, Clone)]
pub struct Hysteresis {
    points: f64,
    checks: u32,
    keep: f64,
    items: Vec<Item>,
    ranks: Ranks,
    /// Items that may rise, and fall, since the last check.
    rise: BitSet,
    fall: BitSet,
}

impl Default for Hysteresis {
    /// 5 points for 2 checks, half of a rank kept.
    fn default() -> Self {
        Self {
            points: 5.0,
            checks: 2,
            keep: 0.5,
            items: Vec::new(),
            ranks: Ranks::default(),
            rise: BitSet::default(),
            fall: BitSet::default(),
        }
    }
}

impl Hysteresis {
    /// An item may change once its rank has been `points` away for `checks` checks in a row; of a rank `keep` stays from check to check.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for points that are negative or NaN, or a share outside 0 to 1.
    pub fn new(points: f64, checks: u32, keep: f64) -> Result<Self, ControlError> {
        non_negative("points", &[points])?;
        if !(0.0..1.0).contains(&keep) {
            return Err(ControlError::Invalid { what: "keep", index: 0 });
        }
        Ok(Self { points, checks, keep, ..Self::default() })
    }

    /// Forgets all items but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }

    /// Takes the scores of all items, new ones at the end. Costs a sort.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a score that is negative or NaN; [`ControlError::Length`] for fewer than there were. Nothing changed.
    pub fn check(&mut self, scores: &[f64]) -> Result<(), ControlError> {
        non_negative("scores", scores)?;
        if scores.len() < self.items.len() {
            return Err(ControlError::Length { what: "scores", got: scores.len(), need: self.items.len() });
        }
        let ranks = self.ranks.of(scores);
        let old = self.items.len();
        for (item, rank) in self.items.iter_mut().zip(ranks) {
            item.rank = self.keep * item.rank + (1.0 - self.keep) * rank;
        }
        self.items.extend(ranks[old..].iter().map(|rank| Item { rank: *rank, since: *rank, above: 0, below: 0 }));
        self.rise.clear();
        self.fall.clear();
        self.rise.resize(scores.len());
        self.fall.resize(scores.len());
        for (i, item) in self.items.iter_mut().enumerate() {
            let by = item.rank - item.since;
            item.above = if by >= self.points { item.above.saturating_add(1) } else { 0 };
            item.below = if by <= -self.points { item.below.saturating_add(1) } else { 0 };
            if item.above >= self.checks {
                self.rise.insert(i);
            }
            if item.below >= self.checks {
                self.fall.insert(i);
            }
        }
        Ok(())
    }

    /// Items that may take a larger width, as of the last check.
    pub fn may_rise(&self) -> &BitSet {
        &self.rise
    }

    /// Items that may take a smaller one.
    pub fn may_fall(&self) -> &BitSet {
        &self.fall
    }

    /// An item changed: it starts from where it is.
    pub fn changed(&mut self, item: usize) {
        if let Some(item) = self.items.get_mut(item) {
            (item.since, item.above, item.below) = (item.rank, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_may_change_once_it_has_stayed_away() {
        let mut h = Hysteresis::new(30.0, 2, 0.0).unwrap();
        h.check(&[1.0, 2.0, 3.0]).unwrap();
        assert!(h.may_rise().is_empty() && h.may_fall().is_empty());
        let other = [4.0, 2.0, 3.0];
        h.check(&other).unwrap();
        assert!(h.may_rise().is_empty(), "once is not enough");
        h.check(&other).unwrap();
        assert!(h.may_rise().iter().eq([0]) && h.may_fall().iter().eq([1, 2]));
        h.changed(0);
        h.check(&other).unwrap();
        assert!(h.may_rise().is_empty() && h.may_fall().iter().eq([1, 2]));
        // Back where it was, it may not.
        h.check(&[1.0, 2.0, 3.0]).unwrap();
        assert!(h.may_fall().is_empty());
        assert!(h.check(&[1.0]).is_err() && h.check(&[1.0, f64::NAN, 1.0]).is_err());
        h.truncate(1);
        h.check(&[1.0]).unwrap();
        assert!(Hysteresis::new(-1.0, 2, 0.5).is_err() && Hysteresis::new(5.0, 2, 1.0).is_err());
    }

    /// Noise of less than the margin changes nothing, however long it goes on; without a margin it does.
    #[test]
    fn noise_within_the_margin_changes_nothing() {
        let noisy = |step: u64, i: u64| i as f64 + (certkv_core::hash::splitmix64(step << 8 | i) % 300) as f64 / 100.0;
        let flips = |points| {
            let mut h = Hysteresis::new(points, 2, 0.5).unwrap();
            let mut flips = 0;
            for step in 0..50 {
                let scores: Vec<f64> = (0..64).map(|i| noisy(step, i)).collect();
                h.check(&scores).unwrap();
                flips += h.may_rise().len() + h.may_fall().len();
            }
            flips
        };
        assert_eq!(flips(5.0), 0);
        assert!(flips(0.5) > 100);
    }
}

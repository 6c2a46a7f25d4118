//! A width for every item within a budget: steps up the ladder by what they bring per byte, math.md (9.11) to (9.13).
use super::few::{FEW, LEVELS, Search};
use crate::error::{countable, finite, length, non_negative};
use crate::moves::{Move, Spender};
use crate::{BitSet, ControlError};

/// Widths that an item can have, ascending, and what an item costs at each, metadata included.
#[derive(Debug, Clone, Copy)]
pub struct Ladder<'a> {
    /// Bits.
    pub bits: &'a [u8],
    /// Bytes of one item.
    pub cost: &'a [f64],
}

/// The items of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Items<'a> {
    /// Scores of all of them.
    pub score: &'a [f64],
    /// Levels of those that have one, the first of all; the others are new and take any.
    pub previous: &'a [u8],
    /// Which of these may take a higher level.
    pub may_rise: &'a BitSet,
    /// Which of these may take a lower one.
    pub may_fall: &'a BitSet,
    /// So many first and so many last items have the top level, always.
    pub protected: [usize; 2],
    /// Items that may not fall, and the levels that all items have: `None` for no such items.
    pub held: Option<(&'a BitSet, &'a [u8])>,
}

impl Items<'_> {
    fn is_protected(&self, item: usize) -> bool {
        item < self.protected[0] || item >= self.score.len().saturating_sub(self.protected[1])
    }
}

/// What was allocated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Widths<'a> {
    /// Level of every item: which of the ladder's.
    pub level: &'a [u8],
    /// Bytes of them.
    pub used: f64,
    /// The budget was too small for what may not fall: it fell.
    pub forced: bool,
}

/// Scores below this count as this.
pub(super) const LEAST_SCORE: f64 = 1e-6;

/// Work buffers of [`WidthAllocator::solve`].
#[derive(Debug, Clone, Default)]
pub struct WidthAllocator {
    level: Vec<u8>,
    most: Vec<u8>,
    /// Value and cost of the step up from each level.
    steps: Vec<(f64, f64)>,
    moves: Vec<Move>,
    spender: Spender,
    /// Levels before the first step, what each level is worth per score, and whether a step did not fit.
    least: Vec<u8>,
    worth: Vec<f64>,
    full: bool,
    search: Search,
}

impl WidthAllocator {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Levels within `budget` bytes: every item starts at the lowest that it may have, and steps up follow by descending
    /// `score (bits'^alpha - bits^alpha)` per byte, ties by item, up to the highest that it may have. A step that does not fit is left out,
    /// and so are the later ones of its item. Where the ladder is concave, the sum of `score bits^alpha` is at least the optimum less the
    /// largest single step (Theorem 9.2).
    ///
    /// # Errors
    /// [`ControlError::BelowFloor`] if not even the lowest level of all that are not protected fits; [`ControlError::Invalid`] for a
    /// ladder that does not ascend, a score, cost or exponent that it may not be, or a previous level outside the ladder;
    /// [`ControlError::Length`].
    pub fn solve(
        &mut self,
        ladder: &Ladder<'_>,
        items: &Items<'_>,
        alpha: f64,
        budget: f64,
    ) -> Result<Widths<'_>, ControlError> {
        let Ladder { bits, cost } = *ladder;
        let (n, previous) = (items.score.len(), items.previous);
        length("cost", cost.len(), bits.len())?;
        countable(n)?;
        finite("score", items.score)?;
        finite("cost", cost)?;
        non_negative("alpha", &[alpha])?;
        if previous.len() > n {
            return Err(ControlError::Length { what: "previous", got: previous.len(), need: n });
        }
        if let Some((_, levels)) = items.held {
            length("held", levels.len(), n)?;
            if let Some(index) = levels.iter().position(|level| usize::from(*level) >= bits.len()) {
                return Err(ControlError::Invalid { what: "held", index });
            }
        }
        if let Some(index) = previous.iter().position(|level| usize::from(*level) >= bits.len()) {
            return Err(ControlError::Invalid { what: "previous", index });
        }
        let ascends = |i: &usize| bits[*i] < bits[i + 1] && cost[*i] < cost[i + 1];
        if let Some(index) = (0..bits.len().saturating_sub(1)).find(|i| !ascends(i)) {
            return Err(ControlError::Invalid { what: "ladder", index });
        }
        let Some(top) = bits.len().checked_sub(1).and_then(|top| u8::try_from(top).ok()) else {
            return Err(ControlError::Length { what: "bits", got: bits.len(), need: 1 });
        };
        let range = |item: usize| match previous.get(item) {
            _ if items.is_protected(item) => (top, top),
            None => (0, top),
            Some(level) => {
                let least = if items.may_fall.contains(item) { 0 } else { *level };
                (least, if items.may_rise.contains(item) { top } else { *level })
            }
        };
        self.level.clear();
        self.most.clear();
        for item in 0..n {
            let (mut least, most) = range(item);
            if let Some((_, levels)) = items.held.filter(|(held, _)| held.contains(item)) {
                least = least.max(levels[item]);
            }
            self.level.push(least);
            self.most.push(most.max(least));
        }
        let total = |level: &[u8]| level.iter().map(|level| cost[usize::from(*level)]).sum::<f64>();
        let mut used = total(&self.level);
        let forced = !(used <= budget);
        if forced {
            for (item, level) in self.level.iter_mut().enumerate() {
                *level = if items.is_protected(item) { top } else { 0 };
            }
            used = total(&self.level);
            if !(used <= budget) {
                return Err(ControlError::BelowFloor { floor: used, budget });
            }
        }
        let Self { level, most, steps, moves, spender, least: from, full, .. } = self;
        from.clone_from(level);
        let worth = |level: usize| f64::from(bits[level]).powf(alpha);
        steps.clear();
        steps.extend((0..bits.len() - 1).map(|i| (worth(i + 1) - worth(i), cost[i + 1] - cost[i])));
        moves.clear();
        for (item, (level, most)) in level.iter().zip(&*most).enumerate() {
            let (score, mut least) = (items.score[item].max(LEAST_SCORE), f64::INFINITY);
            for (number, at) in (*level..*most).enumerate() {
                let (brings, more) = steps[usize::from(at)];
                // A step that brings more than the one before it waits for that one.
                least = (score * brings / more).min(least);
                moves.push(Move::new(least, more, item as u32, number as u16, u16::from(at) + 1));
            }
        }
        let (used, left) = spender.spend(moves, n, used, budget);
        *full = left.is_some();
        for (item, level) in level.iter_mut().enumerate() {
            *level = spender.reached(item).map_or(*level, |to| to as u8);
        }
        Ok(Widths { level, used, forced })
    }

    /// As [`WidthAllocator::solve`]; of up to 64 items, and levels up to 16, other choices are looked at, too, math.md (9.13a): no sum is larger by
    /// more than a 512th part, unless that took more than 2^15 looks. Costs some tens of microseconds then, half a
    /// millisecond at most (docs/formats.md).
    ///
    /// # Errors
    /// As [`WidthAllocator::solve`].
    pub fn solve_closely(
        &mut self,
        ladder: &Ladder<'_>,
        items: &Items<'_>,
        alpha: f64,
        budget: f64,
    ) -> Result<Widths<'_>, ControlError> {
        let Widths { mut used, forced, .. } = self.solve(ladder, items, alpha, budget)?;
        let Self { level, most, least, worth, full, search, .. } = self;
        // Without a step that did not fit all are at the top.
        if *full && level.len() <= FEW && ladder.bits.len() <= LEVELS {
            worth.clear();
            worth.extend(ladder.bits.iter().map(|bits| f64::from(*bits).powf(alpha)));
            let better = search.improve(items.score, (least, most), (worth, ladder.cost), budget, level);
            if better {
                used = level.iter().map(|level| ladder.cost[usize::from(*level)]).sum();
            }
        }
        Ok(Widths { level, used, forced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BITS: [u8; 4] = [2, 3, 4, 8];
    const COST: [f64; 4] = [36.0, 52.0, 68.0, 132.0];

    proptest! {
        /// Theorem 9.2, against every choice.
        #[test]
        fn nothing_is_better_by_more_than_a_step(
            scores in proptest::collection::vec(0.0f64..1.0, 1..6), share in 0.0f64..1.1,
            known in 0usize..6, moves: u64, first in 0usize..2,
        ) {
            let n = scores.len();
            let (mut rise, mut fall) = (BitSet::new(n), BitSet::new(n));
            let previous: Vec<u8> = (0..known.min(n)).map(|i| (moves >> (8 * i) & 3) as u8).collect();
            for i in 0..previous.len() {
                if moves >> (8 * i + 2) & 1 == 1 { rise.insert(i); }
                if moves >> (8 * i + 3) & 1 == 1 { fall.insert(i); }
            }
            let items = Items { score: &scores, previous: &previous, may_rise: &rise, may_fall: &fall, protected: [first, 0], held: None };
            let ladder = Ladder { bits: &BITS, cost: &COST };
            let floor: f64 = (0..n).map(|i| COST[if i < first { 3 } else { 0 }]).sum();
            let budget = floor + share * (132.0 * n as f64 - floor);
            let mut allocator = WidthAllocator::new();
            let found = allocator.solve(&ladder, &items, 0.6, budget).unwrap();
            let value = |level: &[u8]| -> f64 {
                level.iter().zip(&scores).map(|(l, s)| s.max(1e-6) * f64::from(BITS[usize::from(*l)]).powf(0.6)).sum()
            };
            let cost = |level: &[u8]| -> f64 { level.iter().map(|l| COST[usize::from(*l)]).sum() };
            prop_assert_eq!(cost(found.level), found.used);
            prop_assert!(found.used <= budget);
            let allowed = |i: usize, l: u8| match previous.get(i) {
                _ if i < first => l == 3,
                Some(p) if !found.forced => (l >= *p || fall.contains(i)) && (l <= *p || rise.contains(i)),
                Some(p) => l <= *p || rise.contains(i),
                None => true,
            };
            prop_assert!(found.level.iter().enumerate().all(|(i, l)| allowed(i, *l)), "{found:?}");
            let mut best = f64::NEG_INFINITY;
            for code in 0..4usize.pow(n as u32) {
                let level: Vec<u8> = (0..n).map(|i| (code >> (2 * i) & 3) as u8).collect();
                if cost(&level) <= budget && level.iter().enumerate().all(|(i, l)| allowed(i, *l)) {
                    best = best.max(value(&level));
                }
            }
            let step = scores.iter().map(|s| s.max(1e-6) * (8f64.powf(0.6) - 4f64.powf(0.6))).fold(0.0, f64::max);
            prop_assert!(value(found.level) >= best - step - 1e-9, "{} of {best}", value(found.level));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (none, mut allocator) = (BitSet::new(2), WidthAllocator::new());
        let items = Items {
            score: &[1.0, 2.0],
            previous: &[],
            may_rise: &none,
            may_fall: &none,
            protected: [0, 1],
            held: None,
        };
        let ladder = Ladder { bits: &BITS, cost: &COST };
        let refused = allocator.solve(&ladder, &items, 0.6, 167.0).unwrap_err();
        assert_eq!(refused, ControlError::BelowFloor { floor: 168.0, budget: 167.0 });
        assert_eq!(allocator.solve(&ladder, &items, 0.6, 168.0).unwrap().level, [0, 3]);
        assert!(allocator.solve(&ladder, &items, f64::NAN, 999.0).is_err());
        assert!(allocator.solve(&ladder, &items, 0.6, f64::NAN).is_err());
        for (bits, cost) in [
            (&BITS[..3], &COST[..]),
            (&[][..], &[][..]),
            (&[4, 3][..], &[1.0, 2.0][..]),
            (&[3, 4][..], &[2.0, 2.0][..]),
        ] {
            assert!(allocator.solve(&Ladder { bits, cost }, &items, 0.6, 999.0).is_err());
        }
        for (score, previous) in [(&[1.0, f64::NAN][..], &[][..]), (&[1.0, 2.0], &[4]), (&[1.0, 2.0], &[0, 0, 0])] {
            assert!(allocator.solve(&ladder, &Items { score, previous, ..items }, 0.6, 999.0).is_err());
        }
    }

    proptest! {
        /// Of few items no choice is better by more than a 512th, whatever may rise, fall or is protected; none is worse than the heap's.
        #[test]
        fn of_few_items_the_choice_is_close_to_the_best(
            scores in proptest::collection::vec(0.0f64..1.0, 1..7), share in 0.0f64..1.1, known in 0usize..6, moves: u64,
        ) {
            let n = scores.len();
            let (mut rise, mut fall) = (BitSet::new(n), BitSet::new(n));
            let previous: Vec<u8> = (0..known.min(n)).map(|i| (moves >> (8 * i) & 3) as u8).collect();
            for i in 0..previous.len() {
                if moves >> (8 * i + 2) & 1 == 1 { rise.insert(i); }
                if moves >> (8 * i + 3) & 1 == 1 { fall.insert(i); }
            }
            let items =
                Items { score: &scores, previous: &previous, may_rise: &rise, may_fall: &fall, protected: [0, 0], held: None };
            let ladder = Ladder { bits: &BITS, cost: &COST };
            let budget = n as f64 * (36.0 + share * 96.0);
            let value = |level: &[u8]| -> f64 {
                level.iter().zip(&scores).map(|(l, s)| s.max(LEAST_SCORE) * f64::from(BITS[usize::from(*l)]).powf(0.6)).sum()
            };
            let mut allocator = WidthAllocator::new();
            let heap = allocator.solve(&ladder, &items, 0.6, budget).map(|w| (value(w.level), w.forced)).unwrap();
            let found = allocator.solve_closely(&ladder, &items, 0.6, budget).unwrap();
            prop_assert!(found.used <= budget && found.forced == heap.1 && value(found.level) >= heap.0);
            let forced = found.forced;
            let range = |i: usize| match previous.get(i) {
                None => (0, 3),
                Some(l) if forced => (0, if rise.contains(i) { 3 } else { *l }),
                Some(l) => (if fall.contains(i) { 0 } else { *l }, if rise.contains(i) { 3 } else { *l }),
            };
            let mut best = f64::NEG_INFINITY;
            for code in 0..1usize << (2 * n) {
                let level: Vec<u8> = (0..n).map(|i| (code >> (2 * i) & 3) as u8).collect();
                let fits = level.iter().map(|l| COST[usize::from(*l)]).sum::<f64>() <= budget;
                if fits && (0..n).all(|i| (range(i).0..=range(i).1).contains(&level[i])) {
                    best = best.max(value(&level));
                }
            }
            prop_assert!(value(found.level) * (1.0 + 1.0 / 500.0) >= best, "{:?} of {best}", found.level);
        }
    }

    /// Items that may not fall are kept while the budget has room for them, and fall when it has not.
    #[test]
    fn the_budget_goes_before_hysteresis() {
        let (none, mut allocator) = (BitSet::new(3), WidthAllocator::new());
        let items = Items {
            score: &[0.1, 0.5, 0.4],
            previous: &[3, 0, 0],
            may_rise: &none,
            may_fall: &none,
            protected: [0, 0],
            held: None,
        };
        let ladder = Ladder { bits: &BITS, cost: &COST };
        let kept = allocator.solve(&ladder, &items, 0.6, 204.0).unwrap();
        assert_eq!((kept.level, kept.forced), (&[3, 0, 0][..], false));
        let fell = allocator.solve(&ladder, &items, 0.6, 203.0).unwrap();
        assert_eq!((fell.level, fell.forced), (&[2, 0, 0][..], true));
    }
}

//! The promoted set to have ready for the next step, guessed from this one (math.md 6.6, first step).
//!
//! Attention moves slowly from token to token, so the blocks whose terms were too large in this step are the ones to
//! read exactly in the next. The guess decides cost only: the next pass measures its certificate with whatever
//! set it was given, and repairs if that is not enough.
use crate::error::{length, non_negative};
use crate::{BitSet, ControlError, Gains, GroupCover};
use certkv_core::{OutOfMemory, reserve_total};

/// How to guess.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuessRule {
    /// Share of the tolerance that may be left unpromoted, in `(0, 1]`. The rest is room for what changes until the next
    /// step, so that a repair (a second look at blocks, with its latency) stays rare.
    pub target: f64,
    /// Hysteresis, in `[0, 1]`: an item in the present set stays while its share of the tolerance is at least `keep`
    /// times the smallest share that the cover found worth fetching. 1 gives no hysteresis to speak of, 0 keeps every
    /// item that has any gain.
    pub keep: f64,
    /// Most that retained items may cost on top of the cover, in the unit of `cost`.
    pub keep_cost: f64,
}

impl Default for GuessRule {
    fn default() -> Self {
        Self { target: 0.8, keep: 0.25, keep_cost: f64::INFINITY }
    }
}

/// What a guess did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Guessed {
    /// Items that the cover asked for.
    pub covered: usize,
    /// Items kept by hysteresis alone.
    pub retained: usize,
}

/// Work buffers of [`Guesser::next_set`].
#[derive(Debug, Clone, Default)]
pub struct Guesser {
    cover: GroupCover,
    allowed: Vec<f64>,
    retained: Vec<(f64, u32)>,
}

impl Guesser {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the memory of a call with so many heads and items, of which later ones with no more ask for none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, heads: usize, items: usize) -> Result<(), OutOfMemory> {
        self.cover.reserve(heads, items)?;
        reserve_total(&mut self.allowed, heads)?;
        reserve_total(&mut self.retained, items)
    }

    /// Writes the next set to `next` (its capacity becomes `gains.items()`).
    ///
    /// `gains[h][i]` is what head `h`'s certificate gains if item `i` is read exactly: its term of (6.5) with this step's
    /// masses, and for items that were exact in this step with the last known `Delta`, `Lambda`, `eta` and `sop`, so that
    /// an item is judged by what leaving it out *would* cost. Items are usually the key sides of all blocks followed by
    /// their value sides. `cost[i]` is the bytes to read it, `tol[h]` the head's absolute tolerance, `current` the present
    /// set.
    ///
    /// The set is the group cover (6.8) that leaves at most `target * tol[h]`, without superfluous items, and then,
    /// within `keep_cost` and by descending share, the members of `current` that hysteresis retains. An item's share is
    /// `max_h gain_{h,i}/(target tol_h)`. If the cover is empty the reference share is `1/items`, an even share.
    ///
    /// # Errors
    /// [`ControlError`] for unequal lengths, a NaN or negative gain, cost or tolerance, or a rule out of range.
    pub fn next_set<T: Copy + Into<f64>>(
        &mut self,
        rule: GuessRule,
        gains: Gains<'_, T>,
        cost: &[f64],
        tol: &[f64],
        current: &BitSet,
        next: &mut BitSet,
    ) -> Result<Guessed, ControlError> {
        length("tol", tol.len(), gains.heads())?;
        non_negative("tol", tol)?;
        non_negative("rule", &[rule.target, rule.keep, rule.keep_cost])?;
        self.allowed.clear();
        self.allowed.extend(tol.iter().map(|t| rule.target * t));
        let picks = self.cover.leave_at_most(gains, cost, &self.allowed, true)?;
        next.resize(0);
        next.resize(gains.items());
        let allowed = &self.allowed;
        let share = |i: usize| {
            let of = |h: usize| -> f64 {
                let g: f64 = gains.head(h)[i].into();
                if g > 0.0 { g / allowed[h] } else { 0.0 }
            };
            (0..gains.heads()).map(of).fold(0.0, f64::max)
        };
        let mut reference = f64::INFINITY;
        for &i in picks {
            next.insert(i as usize);
            reference = reference.min(share(i as usize));
        }
        if picks.is_empty() {
            reference = 1.0 / gains.items().max(1) as f64;
        }
        self.retained.clear();
        for i in current.iter().take_while(|&i| i < gains.items()).filter(|&i| !next.contains(i)) {
            let s = share(i);
            if s > 0.0 && s >= rule.keep * reference {
                self.retained.push((s, i as u32));
            }
        }
        self.retained.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (mut spent, mut retained) = (0.0, 0);
        for &(_, i) in &self.retained {
            if spent + cost[i as usize] <= rule.keep_cost {
                spent += cost[i as usize];
                next.insert(i as usize);
                retained += 1;
            }
        }
        Ok(Guessed { covered: picks.len(), retained })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn guess(rule: GuessRule, gains: &[f64], heads: usize, tol: &[f64], current: &[usize]) -> (Vec<usize>, Guessed) {
        let items = gains.len() / heads;
        let mut now = BitSet::new(items);
        current.iter().for_each(|&i| {
            now.insert(i);
        });
        let mut next = BitSet::new(3);
        let g = Gains::new(gains, heads, items).unwrap();
        let done = Guesser::new().next_set(rule, g, &vec![1.0; items], tol, &now, &mut next).unwrap();
        assert_eq!(next.capacity(), items);
        (next.iter().collect(), done)
    }

    #[test]
    fn covers_to_the_target_and_keeps_by_share() {
        let g = [0.5, 0.3, 0.1, 0.05, 0.02, 0.001];
        let rule = GuessRule { target: 0.5, keep: 0.25, keep_cost: f64::INFINITY };
        // At most 0.4 may be left; 0.971 - 0.5 is still too much, so 0 and 1 are fetched.
        assert_eq!(guess(rule, &g, 1, &[0.8], &[]).0, [0, 1]);
        // The weakest fetched share is 0.3: members of at least 0.075 stay.
        let (set, done) = guess(rule, &g, 1, &[0.8], &[2, 3, 5]);
        assert_eq!((set, done), (vec![0, 1, 2], Guessed { covered: 2, retained: 1 }));
        assert_eq!(guess(GuessRule { keep: 0.0, ..rule }, &g, 1, &[0.8], &[2, 3, 5]).0, [0, 1, 2, 3, 5]);
        assert_eq!(guess(GuessRule { keep: 0.0, keep_cost: 2.0, ..rule }, &g, 1, &[0.8], &[2, 3, 5]).0, [0, 1, 2, 3]);
    }

    #[test]
    fn nothing_needed_keeps_only_items_above_an_even_share() {
        let g = [0.3, 0.001, 0.0, 0.0];
        let (set, done) = guess(GuessRule::default(), &g, 1, &[1.0], &[0, 1, 2]);
        assert_eq!((set, done.covered), (vec![0], 0));
    }

    #[test]
    fn infinite_gains_and_zero_tolerance_promote() {
        let g = [f64::INFINITY, 0.1, 0.0];
        assert_eq!(guess(GuessRule::default(), &g, 1, &[9.0], &[]).0, [0]);
        assert_eq!(guess(GuessRule::default(), &g, 1, &[0.0], &[]).0, [0, 1]);
        let bad = Gains::new(&[f64::NAN], 1, 1).unwrap();
        let mut next = BitSet::new(1);
        let r = Guesser::new().next_set(GuessRule::default(), bad, &[1.0], &[0.1], &BitSet::new(1), &mut next);
        assert!(r.is_err());
    }

    proptest! {
        #[test]
        fn the_target_is_met_for_every_head(
            gains in prop::collection::vec(0.0f64..1.0, 3 * 12),
            tol in prop::collection::vec(0.0f64..6.0, 3),
            current in prop::collection::vec(0usize..12, 0..12),
        ) {
            let (set, _) = guess(GuessRule::default(), &gains, 3, &tol, &current);
            for h in 0..3 {
                let rest: f64 = (0..12).filter(|i| !set.contains(i)).map(|i| gains[h * 12 + i]).sum();
                prop_assert!(rest <= 0.8 * tol[h] + 1e-12);
            }
        }

        /// A set that was right stays as it is when nothing changes: no flapping.
        #[test]
        fn is_idempotent(gains in prop::collection::vec(0.0f64..1.0, 2 * 10), tol in prop::collection::vec(0.1f64..4.0, 2)) {
            let (first, _) = guess(GuessRule::default(), &gains, 2, &tol, &[]);
            let (second, _) = guess(GuessRule::default(), &gains, 2, &tol, &first);
            prop_assert_eq!(first, second);
        }
    }
}

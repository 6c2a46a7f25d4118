//! What is kept, how finely, and what is dropped: rate-distortion retention under nested limits of bytes, math.md (9.16) to (9.22).
//!
//! Items are ordered by (layer, head, item). Levels go from the best and most costly (0) to dropped (the last, cost 0). Whoever exceeds a
//! limit goes down by the least distortion added per byte saved; slack goes to those that save most distortion per byte. An item that
//! changed rests for some updates, unless a limit needs it.
use crate::ControlError;
use crate::error::{countable, finite, length};
use core::cmp::Ordering;
use core::ops::Range;
use std::collections::BinaryHeap;

/// Mass of an item, from the one before and its attention in the last steps, math.md (9.16): of an empty window nothing is learned.
pub fn mass(before: f64, window: &[f64], keep: f64) -> f64 {
    match window.iter().copied().reduce(f64::max) {
        Some(most) => keep * before + (1.0 - keep) * most,
        None => before,
    }
}

/// Distortion of an item that is kept with an error of its logits of `delta`, and whose values lie within `distance` of the output, math.md
/// (9.17): its own term in the certificate.
pub fn distortion(mass: f64, delta: f64, distance: f64) -> f64 {
    mass * delta.exp_m1() * distance
}

/// Distortion of an item that is dropped; infinite if all mass is its.
pub fn drop_distortion(mass: f64, distance: f64) -> f64 {
    if mass < 1.0 { mass / (1.0 - mass) * distance } else { f64::INFINITY }
}

/// When levels change that no limit asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionRule {
    /// Least distortion saved per byte for which an item goes up: above `down`, so that nothing swings.
    pub up: f64,
    /// Most distortion added per byte for which an item goes down by itself.
    pub down: f64,
    /// Updates that an item rests after a change.
    pub cooldown: u32,
}

/// Limits in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Of all items.
    pub budget: f64,
    /// Of layers, by ascending layer.
    pub layers: &'a [(u32, f64)],
    /// Of heads, by ascending (layer, head).
    pub heads: &'a [((u32, u32), f64)],
}

/// A level that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The item.
    pub item: u32,
    /// Its level before.
    pub from: u32,
    /// And now.
    pub to: u32,
}

/// What an update did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Update {
    /// Items that went down, in order: those that a limit asked for first.
    pub down: Vec<Change>,
    /// Items that went up, in order.
    pub up: Vec<Change>,
    /// How many of those that went down should have rested.
    pub forced: usize,
    /// Bytes of all items.
    pub used: f64,
}

/// Rounding of sums of bytes.
const TINY: f64 = 1e-9;

/// A change that could be made; the least ratio first, of equal ones the lowest item and level.
#[derive(Debug, Clone, Copy)]
struct Offer {
    ratio: f64,
    item: u32,
    to: u32,
}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        other.ratio.total_cmp(&self.ratio).then(other.item.cmp(&self.item)).then(other.to.cmp(&self.to))
    }
}
impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Offer {}

/// Levels of the items, and how long each rests.
#[derive(Debug, Clone)]
pub struct Retention {
    rule: RetentionRule,
    levels: usize,
    keys: Vec<(u32, u32)>,
    level: Vec<u32>,
    rests: Vec<u32>,
}

/// An update at work: on copies, so that one that fails changes nothing.
struct Work<'a> {
    levels: usize,
    cost: &'a [f64],
    loss: &'a [f64],
    level: Vec<u32>,
    rests: &'a [u32],
    done: Update,
}

impl Work<'_> {
    fn at(&self, item: usize, level: u32) -> (f64, f64) {
        let at = item * self.levels + level as usize;
        (self.cost[at], self.loss[at])
    }

    fn used(&self, items: Range<usize>) -> f64 {
        items.map(|item| self.at(item, self.level[item]).0).sum()
    }

    /// Next vertex of the lower hull of the item's level and the cheaper ones.
    fn next_down(&self, item: usize) -> Option<Offer> {
        let now = self.level[item];
        let (cost, loss) = self.at(item, now);
        let below = (now + 1..self.levels as u32).filter(|to| self.at(item, *to).0 < cost);
        let next = below.map(|to| {
            let (c, l) = self.at(item, to);
            (Offer { ratio: (l - loss) / (cost - c), item: item as u32, to }, c, l)
        });
        let next = next.reduce(|best, next| {
            let worse = if best.2.min(next.2) <= loss {
                // Something is cheaper and no worse than now: the best of it, of equal ones the cheapest.
                best.2.total_cmp(&next.2).then(best.1.total_cmp(&next.1))
            } else {
                // The least distortion per byte from here; of equal ones the furthest, as a hull has no points between.
                best.0.ratio.total_cmp(&next.0.ratio).then(best.1.total_cmp(&next.1))
            };
            if worse == Ordering::Greater { next } else { best }
        });
        next.map(|(offer, ..)| offer)
    }

    fn next_up(&self, item: usize) -> Option<Offer> {
        let now = self.level[item];
        let (cost, loss) = self.at(item, now);
        let above = (0..now).filter_map(|to| {
            let (c, l) = self.at(item, to);
            // The most is the least of its negative.
            (c > cost && l < loss).then(|| Offer { ratio: -((loss - l) / (c - cost)), item: item as u32, to })
        });
        above.reduce(|best, next| if next.ratio <= best.ratio { next } else { best })
    }

    fn lower(&mut self, Offer { item, to, .. }: Offer) {
        let from = core::mem::replace(&mut self.level[item as usize], to);
        self.done.down.push(Change { item, from, to });
    }

    /// Brings items within a limit; those that rest only after all others.
    fn shrink(&mut self, items: Range<usize>, limit: f64) -> Result<(), ControlError> {
        let mut over = self.used(items.clone()) - limit;
        for resting in [false, true] {
            if over <= TINY {
                return Ok(());
            }
            let may = |item: &usize| resting || self.rests[*item] == 0;
            let mut offers: BinaryHeap<Offer> =
                items.clone().filter(may).filter_map(|item| self.next_down(item)).collect();
            while over > TINY
                && let Some(offer) = offers.pop()
            {
                let item = offer.item as usize;
                over -= self.at(item, self.level[item]).0 - self.at(item, offer.to).0;
                self.done.forced += usize::from(self.rests[item] > 0);
                self.lower(offer);
                offers.extend(self.next_down(item));
            }
        }
        if over <= TINY { Ok(()) } else { Err(ControlError::BelowFloor { floor: limit + over, budget: limit }) }
    }
}

/// Refuses limits out of order: they are searched.
fn ascending<K: Ord>(what: &'static str, limits: &[(K, f64)]) -> Result<(), ControlError> {
    match limits.windows(2).position(|two| two[0].0 >= two[1].0) {
        Some(index) => Err(ControlError::Invalid { what, index }),
        None => Ok(()),
    }
}

impl Retention {
    /// Items with these (layer, head), in their order, all at their best level, with `levels` levels each.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for keys that do not ascend, or a rule whose `up` is not above its `down`; [`ControlError::TooMany`];
    /// [`ControlError::Length`] without a level.
    pub fn new(keys: Vec<(u32, u32)>, levels: usize, rule: RetentionRule) -> Result<Self, ControlError> {
        countable(keys.len())?;
        countable(levels)?;
        if levels == 0 {
            return Err(ControlError::Length { what: "levels", got: 0, need: 1 });
        }
        if let Some(index) = keys.windows(2).position(|two| two[0] > two[1]) {
            return Err(ControlError::Invalid { what: "keys", index });
        }
        if !(rule.up > rule.down) {
            return Err(ControlError::Invalid { what: "rule", index: 0 });
        }
        let n = keys.len();
        Ok(Self { rule, levels, keys, level: vec![0; n], rests: vec![0; n] })
    }

    /// Level of every item.
    pub fn levels(&self) -> &[u32] {
        &self.level
    }

    /// Updates that every item still rests.
    pub fn rests(&self) -> &[u32] {
        &self.rests
    }

    /// One update: what exceeds a limit of a head, then of a layer, then of all goes down; then what costs next to nothing; then slack goes to
    /// `candidates` (all where it is `None`). `cost` and `loss` are `[item][level]`. Costs a look at every item, and a logarithm a change.
    ///
    /// For divisible items the levels are optimal under all limits (Theorem 9.3). An item that went down by itself goes up again only when
    /// its loss has grown by a factor of `up / down`.
    ///
    /// # Errors
    /// [`ControlError::BelowFloor`] if a limit cannot be met even with every item of it at its cheapest; [`ControlError::Length`];
    /// [`ControlError::Invalid`] for a cost or loss that is negative or not finite, or limits that do not ascend. Nothing changed.
    pub fn update(
        &mut self,
        cost: &[f64],
        loss: &[f64],
        limits: &Limits<'_>,
        candidates: Option<&[u32]>,
    ) -> Result<Update, ControlError> {
        let (n, rule) = (self.keys.len(), self.rule);
        length("cost", cost.len(), n * self.levels)?;
        length("loss", loss.len(), n * self.levels)?;
        finite("cost", cost)?;
        finite("loss", loss)?;
        ascending("limits.layers", limits.layers)?;
        ascending("limits.heads", limits.heads)?;
        let mut work = Work {
            levels: self.levels,
            cost,
            loss,
            level: self.level.clone(),
            rests: &self.rests,
            done: Update::default(),
        };
        let keys = &self.keys;
        let of_layer =
            |layer: u32| keys.partition_point(|key| key.0 < layer)..keys.partition_point(|key| key.0 <= layer);
        let of_head =
            |head: (u32, u32)| keys.partition_point(|key| *key < head)..keys.partition_point(|key| *key <= head);
        // From the inside out: below what an inner limit allows, an outer one is a single limit again.
        for (head, limit) in limits.heads {
            work.shrink(of_head(*head), *limit)?;
        }
        for (layer, limit) in limits.layers {
            work.shrink(of_layer(*layer), *limit)?;
        }
        work.shrink(0..n, limits.budget)?;
        for item in (0..n).filter(|item| self.rests[*item] == 0) {
            while let Some(offer) = work.next_down(item).filter(|offer| offer.ratio <= rule.down) {
                work.lower(offer);
            }
        }
        let mut touched = vec![false; n];
        work.done.down.iter().for_each(|change| touched[change.item as usize] = true);
        let may = |item: &usize| *item < n && self.rests[*item] == 0 && !touched[*item];
        let offers = |of: &Work<'_>, items: &mut dyn Iterator<Item = usize>| -> BinaryHeap<Offer> {
            items.filter(may).filter_map(|item| of.next_up(item)).collect()
        };
        let mut offers = match candidates {
            Some(chosen) => offers(&work, &mut chosen.iter().map(|item| *item as usize)),
            None => offers(&work, &mut (0..n)),
        };
        // What is left under each limit.
        let mut left = limits.budget - work.used(0..n);
        let mut layers: Vec<f64> =
            limits.layers.iter().map(|(layer, limit)| limit - work.used(of_layer(*layer))).collect();
        let mut heads: Vec<f64> = limits.heads.iter().map(|(head, limit)| limit - work.used(of_head(*head))).collect();
        while let Some(offer) = offers.pop().filter(|offer| -offer.ratio >= rule.up) {
            let item = offer.item as usize;
            let key = keys[item];
            let more = work.at(item, offer.to).0 - work.at(item, work.level[item]).0;
            let layer = limits.layers.binary_search_by_key(&key.0, |(layer, _)| *layer).ok();
            let head = limits.heads.binary_search_by_key(&key, |(head, _)| *head).ok();
            let fits = |left: f64| more <= left + TINY;
            if !(fits(left) && layer.is_none_or(|i| fits(layers[i])) && head.is_none_or(|i| fits(heads[i]))) {
                continue;
            }
            left -= more;
            layer.iter().for_each(|i| layers[*i] -= more);
            head.iter().for_each(|i| heads[*i] -= more);
            let from = core::mem::replace(&mut work.level[item], offer.to);
            work.done.up.push(Change { item: offer.item, from, to: offer.to });
            offers.extend(work.next_up(item));
        }
        work.done.used = work.used(0..n);
        let Work { level, done, .. } = work;
        for (item, rests) in self.rests.iter_mut().enumerate() {
            *rests = if level[item] == self.level[item] { rests.saturating_sub(1) } else { rule.cooldown };
        }
        self.level = level;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: RetentionRule = RetentionRule { up: 0.004, down: 0.0005, cooldown: 2 };

    fn rates(seed: u64, n: usize) -> (Vec<f64>, Vec<f64>) {
        let number = |i: u64| (certkv_core::hash::splitmix64(seed ^ i) % 1000) as f64 / 1000.0;
        let loss = (0..n as u64).flat_map(|i| {
            let mass = number(7 * i);
            [0.05 * mass, 0.2 * mass, 0.6 * mass, 2.0 * mass]
        });
        ([28.0, 24.0, 12.0, 0.0].repeat(n), loss.collect())
    }

    proptest! {
        /// Whatever comes, limits hold, items rest, and what was refused changed nothing.
        #[test]
        fn limits_hold_and_items_rest(seed: u64, n in 1usize..20, budgets in proptest::collection::vec(0.0f64..30.0, 1..8)) {
            let keys: Vec<(u32, u32)> = (0..n as u32).map(|i| (i / 6, i / 3 % 2)).collect();
            let mut retention = Retention::new(keys.clone(), 4, RULE).unwrap();
            for (step, each) in budgets.into_iter().enumerate() {
                let (cost, loss) = rates(seed ^ (step as u64) << 40, n);
                let (heads, layers) = ([((0, 0), 60.0)], [(0, 100.0), (1, 9.0 * each)]);
                let limits = Limits { budget: each * n as f64, layers: &layers, heads: &heads };
                let (before, rested) = (retention.levels().to_vec(), retention.rests().to_vec());
                let done = retention.update(&cost, &loss, &limits, None).unwrap();
                let used = |of: &dyn Fn(&(u32, u32)) -> bool| -> f64 {
                    (0..n).filter(|i| of(&keys[*i])).map(|i| cost[4 * i + retention.levels()[i] as usize]).sum()
                };
                prop_assert!((used(&|_| true) - done.used).abs() < 1e-6 && done.used <= limits.budget + 1e-6);
                prop_assert!(used(&|k| k.0 == 0) <= 100.0 + 1e-6 && used(&|k| k.0 == 1) <= 9.0 * each + 1e-6);
                prop_assert!(used(&|k| *k == (0, 0)) <= 60.0 + 1e-6);
                for change in &done.up {
                    prop_assert!(rested[change.item as usize] == 0, "{change:?} should have rested");
                }
                let against = done.down.iter().filter(|change| rested[change.item as usize] > 0).count();
                prop_assert_eq!(against, done.forced);
                for i in 0..n {
                    let changed = before[i] != retention.levels()[i];
                    prop_assert_eq!(retention.rests()[i], if changed { 2 } else { rested[i].saturating_sub(1) });
                }
                // Everything costs something but what is dropped.
                let kept = retention.clone();
                let none = Limits { budget: -1.0, ..limits };
                let refused = retention.update(&cost, &loss, &none, None);
                prop_assert!(refused.is_err_and(|e| matches!(e, ControlError::BelowFloor { .. })), "a floor below nothing");
                prop_assert_eq!((retention.levels(), retention.rests()), (kept.levels(), kept.rests()));
            }
        }

        /// For one limit the loss is above the least by less than one change brings.
        #[test]
        fn nothing_is_better_by_more_than_a_change(seed: u64, n in 1usize..6, each in 0.0f64..30.0) {
            let keys = vec![(0, 0); n];
            let (cost, loss) = rates(seed, n);
            let rule = RetentionRule { up: f64::INFINITY, down: -1.0, cooldown: 0 };
            let mut retention = Retention::new(keys, 4, rule).unwrap();
            let budget = each * n as f64;
            retention.update(&cost, &loss, &Limits { budget, layers: &[], heads: &[] }, None).unwrap();
            let total = |of: &[f64], level: &dyn Fn(usize) -> usize| -> f64 { (0..n).map(|i| of[4 * i + level(i)]).sum() };
            let found = total(&loss, &|i| retention.levels()[i] as usize);
            let mut best = f64::INFINITY;
            for code in 0..4usize.pow(n as u32) {
                let level = |i: usize| code >> (2 * i) & 3;
                if total(&cost, &level) <= budget {
                    best = best.min(total(&loss, &level));
                }
            }
            let change = (0..n).map(|i| loss[4 * i + 3] - loss[4 * i]).fold(0.0, f64::max);
            prop_assert!(found <= best + change + 1e-9, "{found} against {best}");
        }
    }

    /// The lemma of (9.22): what went down by itself comes back when it matters `up / down` times as much, and not before.
    #[test]
    fn nothing_swings() {
        let rule = RetentionRule { up: 0.01, down: 0.001, cooldown: 0 };
        let mut retention = Retention::new(vec![(0, 0)], 2, rule).unwrap();
        let limits = Limits { budget: 100.0, layers: &[], heads: &[] };
        let mut levels = Vec::new();
        for loss in [0.09, 0.2, 0.9, 0.99, 1.01, 0.5, 0.11, 0.1] {
            retention.update(&[100.0, 0.0], &[0.0, loss], &limits, None).unwrap();
            levels.push(retention.levels()[0]);
        }
        assert_eq!(levels, [1, 1, 1, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_masses_are_remembered() {
        assert!(Retention::new(vec![(1, 0), (0, 1)], 2, RULE).is_err());
        assert!(Retention::new(vec![], 0, RULE).is_err());
        assert!(Retention::new(vec![], 2, RetentionRule { up: 0.1, down: 0.1, cooldown: 0 }).is_err());
        let mut retention = Retention::new(vec![(0, 0)], 2, RULE).unwrap();
        let limits = Limits { budget: 9.0, layers: &[], heads: &[] };
        assert!(matches!(
            retention.update(&[1.0], &[0.0, 1.0], &limits, None),
            Err(ControlError::Length { what: "cost", .. })
        ));
        assert!(matches!(
            retention.update(&[1.0, 0.0], &[0.0, f64::NAN], &limits, None),
            Err(ControlError::Invalid { .. })
        ));
        for layers in [[(1, 1.0), (0, 1.0)], [(2, 1.0), (2, 1.0)]] {
            let refused = retention.update(&[1.0, 0.0], &[0.0, 1.0], &Limits { layers: &layers, ..limits }, None);
            assert_eq!(refused, Err(ControlError::Invalid { what: "limits.layers", index: 0 }));
        }
        let heads = [((1, 0), 1.0), ((0, 5), 1.0)];
        assert!(retention.update(&[1.0, 0.0], &[0.0, 1.0], &Limits { heads: &heads, ..limits }, None).is_err());
        assert_eq!((mass(0.5, &[0.1, 0.9], 0.6), mass(0.5, &[], 0.6)), (0.6 * 0.5 + 0.4 * 0.9, 0.5));
        assert_eq!((drop_distortion(0.5, 3.0), drop_distortion(1.0, 3.0)), (3.0, f64::INFINITY));
        assert_eq!((distortion(0.5, 0.0, 3.0), distortion(0.5, 2f64.ln(), 3.0)), (0.0, 1.5));
        // Candidates alone go up.
        let mut two = Retention::new(vec![(0, 0); 2], 2, RULE).unwrap();
        let (cost, loss) = ([10.0, 0.0, 10.0, 0.0], [0.0, 1.0, 0.0, 1.0]);
        two.update(&cost, &loss, &Limits { budget: 0.0, ..limits }, None).unwrap();
        for _ in 0..3 {
            two.update(&cost, &loss, &Limits { budget: 99.0, ..limits }, Some(&[1, 7])).unwrap();
        }
        assert_eq!(two.levels(), [1, 0]);
    }
}

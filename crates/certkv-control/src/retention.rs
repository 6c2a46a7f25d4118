//! What is kept, how finely, and what is dropped: rate-distortion retention under nested limits of bytes, math.md (9.16) to (9.22).
//!
//! Items are ordered by (layer, head, item). Levels go from the best and most costly (0) to dropped (the last, cost 0). Whoever exceeds a
//! limit goes down by the least distortion added per byte saved; slack goes to those that save most distortion per byte. An item that
//! changed rests for some updates, unless a limit needs it; one that is protected goes down for a limit alone, and last.
//!
//! [`Controller`] is all of it for the blocks of a sequence, step by step.
mod controller;

use crate::ControlError;
use crate::bitset::BitSet;
use crate::error::{countable, finite, length};
use core::cmp::Ordering;
use core::ops::Range;
use std::collections::{BTreeSet, BinaryHeap};

pub use crate::danger::Gating;
pub use controller::{Budgets, Controller, Layer, Rule, Told, Wants};

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
    /// How many of those that went down should have rested, or are protected.
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
    protected: BitSet,
    give: f64,
}

/// An update at work: on copies, so that one that fails changes nothing.
struct Work<'a> {
    levels: usize,
    cost: &'a [f64],
    loss: &'a [f64],
    level: Vec<u32>,
    rests: &'a [u32],
    protected: &'a BitSet,
    done: Update,
}

/// Who goes down for a limit: first those that nothing speaks for, last those that are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Free,
    Resting,
    Protected,
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

    fn turn(&self, item: usize) -> Turn {
        match () {
            () if self.protected.contains(item) => Turn::Protected,
            () if self.rests[item] > 0 => Turn::Resting,
            () => Turn::Free,
        }
    }

    /// Brings items within a limit; those that rest only after all others, and then those that are protected.
    fn shrink(&mut self, items: Range<usize>, limit: f64) -> Result<(), ControlError> {
        let mut over = self.used(items.clone()) - limit;
        for turn in [Turn::Free, Turn::Resting, Turn::Protected] {
            if over <= TINY {
                return Ok(());
            }
            let may = |item: &usize| self.turn(*item) <= turn;
            let mut offers: BinaryHeap<Offer> =
                items.clone().filter(may).filter_map(|item| self.next_down(item)).collect();
            while over > TINY
                && let Some(offer) = offers.pop()
            {
                let item = offer.item as usize;
                over -= self.at(item, self.level[item]).0 - self.at(item, offer.to).0;
                self.done.forced += usize::from(self.turn(item) != Turn::Free);
                self.lower(offer);
                offers.extend(self.next_down(item));
            }
        }
        if over <= TINY { Ok(()) } else { Err(ControlError::BelowFloor { floor: limit + over, budget: limit }) }
    }
}

impl Work<'_> {
    /// Lowers those of `items` that lose least, at most `give` per byte, for as many bytes as others of them would take that may go up by
    /// `up`, beside what is left of the limit.
    fn make_room(&mut self, items: Range<usize>, limit: f64, give: f64, up: f64) {
        let lowered: BTreeSet<u32> = self.done.down.iter().map(|change| change.item).collect();
        let free = |item: &usize| self.turn(*item) != Turn::Resting && !lowered.contains(&(*item as u32));
        let wants = |item: usize| self.next_up(item).filter(|offer| -offer.ratio >= up);
        let offers: Vec<Offer> =
            items.clone().filter(|item| self.rests[*item] == 0 && free(item)).filter_map(wants).collect();
        let more = |offer: &Offer| {
            let item = offer.item as usize;
            self.at(item, offer.to).0 - self.at(item, self.level[item]).0
        };
        let mut need = offers.iter().map(more).sum::<f64>() + self.used(items.clone()) - limit;
        if !(need > TINY) {
            return;
        }
        let rising: BTreeSet<u32> = offers.iter().map(|offer| offer.item).collect();
        let may = |item: &usize| self.turn(*item) == Turn::Free && !rising.contains(&(*item as u32));
        let mut downs: BinaryHeap<Offer> = items.filter(may).filter_map(|item| self.next_down(item)).collect();
        while need > TINY
            && let Some(offer) = downs.pop().filter(|offer| offer.ratio <= give)
        {
            let item = offer.item as usize;
            need -= self.at(item, self.level[item]).0 - self.at(item, offer.to).0;
            self.lower(offer);
            downs.extend(self.next_down(item));
        }
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
        Ok(Self {
            rule,
            levels,
            keys,
            level: vec![0; n],
            rests: vec![0; n],
            protected: BitSet::default(),
            give: f64::NEG_INFINITY,
        })
    }

    /// The same with the levels that the items have, and what each still rests.
    ///
    /// # Errors
    /// [`ControlError::Length`] of either; [`ControlError::Invalid`] for a level that there is not.
    pub fn at(mut self, level: Vec<u32>, rests: Vec<u32>) -> Result<Self, ControlError> {
        length("level", level.len(), self.keys.len())?;
        length("rests", rests.len(), self.keys.len())?;
        if let Some(index) = level.iter().position(|level| *level as usize >= self.levels) {
            return Err(ControlError::Invalid { what: "level", index });
        }
        (self.level, self.rests) = (level, rests);
        Ok(self)
    }

    /// From now on these items go down for a limit alone, after all others, and not by themselves: math.md (9.24). They may go up.
    pub fn protect(&mut self, items: BitSet) {
        self.protected = items;
    }

    /// From now on items that lose at most so much per byte make room where others may go up and have none. Below the rule's `up`, so that
    /// what goes up saves more than what makes room for it loses.
    pub fn give(&mut self, ratio: f64) {
        self.give = ratio;
    }

    /// Level of every item.
    pub fn levels(&self) -> &[u32] {
        &self.level
    }

    /// Updates that every item still rests.
    pub fn rests(&self) -> &[u32] {
        &self.rests
    }

    /// One update: what exceeds a limit of a head, then of a layer, then of all goes down; then what costs next to nothing; then what gives way
    /// to what others would save ([`Retention::give`]), as far as they need it; then slack goes to
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
            protected: &self.protected,
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
        for item in 0..n {
            if work.turn(item) != Turn::Free {
                continue;
            }
            while let Some(offer) = work.next_down(item).filter(|offer| offer.ratio <= rule.down) {
                work.lower(offer);
            }
        }
        if self.give < rule.up && self.give > f64::NEG_INFINITY {
            for (head, limit) in limits.heads {
                work.make_room(of_head(*head), *limit, self.give, rule.up);
            }
            for (layer, limit) in limits.layers {
                work.make_room(of_layer(*layer), *limit, self.give, rule.up);
            }
            work.make_room(0..n, limits.budget, self.give, rule.up);
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
mod tests;

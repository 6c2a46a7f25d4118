//! One promotion serves all query heads of a KV head: submodular cover by lazy greedy, math.md (6.8).
//!
//! The greedy rule looks at every item before every pick. An item's value `sum_h min(gain, need left)` only falls as
//! needs are met, also in floating point (each step of the sum is monotone), so a value computed earlier is an upper
//! bound of the present one. A heap of such stale bounds needs a fresh value only at its top: the picks, ties
//! included, are those of the plain rule at a small part of the work (Minoux's accelerated greedy).
use crate::error::{countable, length};
use crate::{BitSet, ControlError};
use certkv_core::{OutOfMemory, reserve_total};
use core::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Gains of `items` for each of `heads`, head after head: entry `head * items + item`. In `f64` or `f32`; decisions are
/// made in `f64`.
#[derive(Debug, Clone, Copy)]
pub struct Gains<'a, T> {
    data: &'a [T],
    heads: usize,
    items: usize,
}

impl<'a, T: Copy + Into<f64>> Gains<'a, T> {
    /// Gains over a head-major slice of `heads * items` entries.
    ///
    /// # Errors
    /// [`ControlError::Length`] for any other length, [`ControlError::TooMany`] above `2^32 - 1` items.
    pub fn new(data: &'a [T], heads: usize, items: usize) -> Result<Self, ControlError> {
        length("gains", data.len(), heads.saturating_mul(items))?;
        countable(items)?;
        Ok(Self { data, heads, items })
    }

    /// Query heads of the group.
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Items that can be promoted.
    pub const fn items(&self) -> usize {
        self.items
    }

    /// One head's gains.
    pub fn head(&self, head: usize) -> &'a [T] {
        &self.data[head * self.items..(head + 1) * self.items]
    }

    #[inline]
    fn at(&self, head: usize, item: usize) -> f64 {
        self.data[head * self.items + item].into()
    }
}

/// An item with an upper bound of its value per cost, exact if `round` is the present one.
#[derive(Debug, Clone, Copy)]
struct Entry {
    ratio: f64,
    item: u32,
    round: u32,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ratio.total_cmp(&other.ratio).then(other.item.cmp(&self.item))
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}

/// Solver with its work buffers; once it had as many items it allocates nothing.
#[derive(Debug, Clone, Default)]
pub struct GroupCover {
    value: Vec<f64>,
    heap: Vec<Entry>,
    left: Vec<f64>,
    slack: Vec<f64>,
    need: Vec<f64>,
    picks: Vec<u32>,
    by_cost: Vec<u32>,
    forced: BitSet,
}

impl GroupCover {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the memory of a call with so many heads and items, of which later ones with no more ask for none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, heads: usize, items: usize) -> Result<(), OutOfMemory> {
        for of_items in [&mut self.picks, &mut self.by_cost] {
            reserve_total(of_items, items)?;
        }
        for (list, length) in
            [(&mut self.value, items), (&mut self.left, heads), (&mut self.slack, heads), (&mut self.need, heads)]
        {
            reserve_total(list, length)?;
        }
        reserve_total(&mut self.heap, items)?;
        self.forced.reserve(items)
    }

    /// The picks of the latest call, in the order made. After [`ControlError::Infeasible`]: every item with a gain for
    /// a head in need.
    pub fn picks(&self) -> &[u32] {
        &self.picks
    }

    /// Picks items until every head's need is met, each time the one with the largest
    /// `sum_h min(gain_{h,i}, remaining need_h)/cost_i` (ties by index; a free item with a value has an infinite ratio).
    /// With `prune`, superfluous items are removed afterwards, most costly first (ties: smaller total gain, then index);
    /// free ones stay.
    ///
    /// # Errors
    /// [`ControlError::Infeasible`] if all items together fall short of a need, [`ControlError::Invalid`] for a NaN or
    /// negative gain of a head in need, a NaN or negative cost, or a NaN need.
    pub fn solve<T: Copy + Into<f64>>(
        &mut self,
        gains: Gains<'_, T>,
        cost: &[f64],
        need: &[f64],
        prune: bool,
    ) -> Result<&[u32], ControlError> {
        length("need", need.len(), gains.heads)?;
        self.forced.resize(0);
        self.left.clear();
        self.left.extend_from_slice(need);
        self.greedy(gains, cost)?;
        if prune {
            self.prune(gains, cost, need);
        }
        Ok(&self.picks)
    }

    /// Picks items so that what is left unpromoted sums to at most `allowed[h]` for every head: [`GroupCover::solve`]
    /// with `need_h = sum_i gain_{h,i} - allowed_h`. An item with an infinite gain for some head has to be promoted: it
    /// comes first and counts towards no need. Taking everything leaves nothing, so this always succeeds on valid input.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a NaN or negative gain, cost or allowance.
    pub fn leave_at_most<T: Copy + Into<f64>>(
        &mut self,
        gains: Gains<'_, T>,
        cost: &[f64],
        allowed: &[f64],
        prune: bool,
    ) -> Result<&[u32], ControlError> {
        length("allowed", allowed.len(), gains.heads)?;
        crate::error::non_negative("allowed", allowed)?;
        self.forced.resize(0);
        self.forced.resize(gains.items);
        self.need.clear();
        for (h, &allow) in allowed.iter().enumerate() {
            let total: f64 = gains.head(h).iter().map(|&g| g.into()).sum();
            self.need.push(total - allow);
        }
        if self.need.iter().any(|x| !x.is_finite()) {
            self.force(gains, allowed);
        }
        self.left.clear();
        self.left.extend_from_slice(&self.need);
        match self.greedy(gains, cost) {
            // Everything with a gain was taken: the rest is 0, and the need was missed by rounding only.
            Ok(()) | Err(ControlError::Infeasible) => {}
            Err(e) => return Err(e),
        }
        if prune {
            let need = core::mem::take(&mut self.need);
            self.prune(gains, cost, &need);
            self.need = need;
        }
        Ok(&self.picks)
    }

    /// Puts aside the items with an infinite gain, and forms the needs without them.
    fn force<T: Copy + Into<f64>>(&mut self, gains: Gains<'_, T>, allowed: &[f64]) {
        for h in 0..gains.heads {
            for (i, &g) in gains.head(h).iter().enumerate() {
                if g.into() == f64::INFINITY {
                    self.forced.insert(i);
                }
            }
        }
        for (h, need) in self.need.iter_mut().enumerate() {
            let free = gains.head(h).iter().enumerate().filter(|(i, _)| !self.forced.contains(*i));
            *need = free.map(|(_, &g)| g.into()).sum::<f64>() - allowed[h];
        }
    }

    /// Lazy greedy over the items outside `forced`, which are put in front; `left` holds the needs.
    fn greedy<T: Copy + Into<f64>>(&mut self, gains: Gains<'_, T>, cost: &[f64]) -> Result<(), ControlError> {
        length("cost", cost.len(), gains.items)?;
        crate::error::non_negative("cost", cost)?;
        if let Some(index) = self.left.iter().position(|x| x.is_nan()) {
            return Err(ControlError::Invalid { what: "need", index });
        }
        self.picks.clear();
        self.picks.extend(self.forced.iter().map(|i| i as u32));
        self.first_values(gains)?;
        self.heap.clear();
        for (i, &v) in self.value.iter().enumerate() {
            if v > 0.0 && !self.forced.contains(i) {
                self.heap.push(Entry { ratio: ratio(v, cost[i]), item: i as u32, round: 0 });
            }
        }
        let mut heap = BinaryHeap::from(core::mem::take(&mut self.heap));
        let mut round = 0;
        let mut feasible = true;
        while self.left.iter().any(|&x| x > 0.0) {
            let Some(mut top) = heap.peek_mut() else {
                feasible = false;
                break;
            };
            let item = top.item as usize;
            if top.round != round {
                let v = self.left.iter().enumerate().filter(|(_, x)| **x > 0.0);
                let v = v.fold(0.0, |sum, (h, &x)| sum + smaller(gains.at(h, item), x));
                if v > 0.0 {
                    // It sinks to its new place, which is often the one it has.
                    (top.ratio, top.round) = (ratio(v, cost[item]), round);
                } else {
                    PeekMut::pop(top);
                }
                continue;
            }
            self.picks.push(PeekMut::pop(top).item);
            for (h, x) in self.left.iter_mut().enumerate() {
                *x -= gains.at(h, item);
            }
            round += 1;
        }
        self.heap = heap.into_vec();
        if feasible { Ok(()) } else { Err(ControlError::Infeasible) }
    }

    /// Every item's value before the first pick, head by head so that memory is read in order.
    fn first_values<T: Copy + Into<f64>>(&mut self, gains: Gains<'_, T>) -> Result<(), ControlError> {
        self.value.clear();
        self.value.resize(gains.items, 0.0);
        for (h, &x) in self.left.iter().enumerate().filter(|(_, x)| **x > 0.0) {
            let mut valid = true;
            for (v, &g) in self.value.iter_mut().zip(gains.head(h)) {
                let g: f64 = g.into();
                valid &= g >= 0.0;
                *v += smaller(g, x);
            }
            if !valid {
                let index = gains.head(h).iter().position(|&g| !(g.into() >= 0.0)).unwrap_or(0);
                return Err(ControlError::Invalid { what: "gains", index: h * gains.items + index });
            }
        }
        Ok(())
    }

    /// Removes picks that no head in need misses, most costly first.
    fn prune<T: Copy + Into<f64>>(&mut self, gains: Gains<'_, T>, cost: &[f64], need: &[f64]) {
        let Self { slack, by_cost, picks, forced, value, .. } = self;
        let in_need = |h: usize| need[h] > 0.0;
        slack.clear();
        slack.extend(need.iter().enumerate().map(|(h, n)| {
            let chosen = picks.iter().filter(|&&i| !forced.contains(i as usize));
            chosen.fold(0.0, |sum, &i| sum + gains.at(h, i as usize)) - n
        }));
        by_cost.clear();
        by_cost.extend(picks.iter().copied().filter(|&i| cost[i as usize] > 0.0 && !forced.contains(i as usize)));
        for &i in by_cost.iter() {
            value[i as usize] = (0..gains.heads).map(|h| gains.at(h, i as usize)).sum();
        }
        by_cost.sort_unstable_by(|&i, &j| {
            let (a, b) = (i as usize, j as usize);
            cost[b].total_cmp(&cost[a]).then(value[a].total_cmp(&value[b])).then(i.cmp(&j))
        });
        by_cost.retain(|&i| {
            let spare = (0..gains.heads).all(|h| !in_need(h) || slack[h] - gains.at(h, i as usize) >= 0.0);
            if spare {
                for (h, s) in slack.iter_mut().enumerate() {
                    *s -= gains.at(h, i as usize);
                }
            }
            spare
        });
        // `by_cost` now holds what goes; a mark in the work array finds each in one look.
        for &i in by_cost.iter() {
            value[i as usize] = REMOVED;
        }
        picks.retain(|&i| value[i as usize] != REMOVED);
    }
}

/// No sum of gains has this value.
const REMOVED: f64 = -1.0;

/// `min(gain, left)`; a NaN gain counts as `left` and is refused by the caller.
#[inline]
fn smaller(gain: f64, left: f64) -> f64 {
    if gain < left { gain } else { left }
}

#[inline]
fn ratio(value: f64, cost: f64) -> f64 {
    if cost > 0.0 { value / cost } else { f64::INFINITY }
}

#[cfg(test)]
mod tests;

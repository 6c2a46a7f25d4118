//! Moves of items from level to level, made by descending value per byte while they fit: what (9.5) and (9.12) of math.md have in
//! common.
//!
//! Which moves come first is decided by parts, as quicksort does, but only where it matters: a part that fits whole is made whole, and one
//! of which nothing can fit is left alone. Parts are cut where a sample says that the budget ends. So a million items take a time
//! proportional to their number.
use certkv_core::hash::splitmix64;
use core::cmp::Reverse;

/// One item's move to its next level.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    /// Bits of the value per byte: it is not negative, so they are in its order.
    ratio: u64,
    /// Bytes that it takes.
    pub(crate) more: f64,
    pub(crate) item: u32,
    /// Which of its item's moves.
    pub(crate) number: u16,
    /// The level that it leads to.
    pub(crate) to: u16,
}

impl Move {
    /// `ratio` must be above no earlier one of the item, and not negative.
    pub(crate) fn new(ratio: f64, more: f64, item: u32, number: u16, to: u16) -> Self {
        Self { ratio: ratio.max(0.0).to_bits(), more, item, number, to }
    }

    /// What it brings per byte.
    pub(crate) fn ratio(&self) -> f64 {
        f64::from_bits(self.ratio)
    }

    /// What it brings.
    pub(crate) fn brings(&self) -> f64 {
        self.ratio() * self.more
    }

    fn rank(&self) -> (Reverse<u64>, u32, u16) {
        (Reverse(self.ratio), self.item, self.number)
    }
}

/// So many moves are sorted.
const FEW: usize = 128;
/// So many of a part are looked at to cut it.
const SAMPLE: usize = 256;
/// Moves of one item, at most.
pub(crate) const MOST: usize = i16::MAX as usize;

/// What has become of an item: in the low half the level that its last move led to, above it how many were made, and in the sign bit whether
/// one did not fit, so that its later ones wait.
#[derive(Debug, Clone, Copy, Default)]
struct Item(u32);

impl Item {
    const WAITS: u32 = 1 << 31;

    /// Whether `m` is the item's next move.
    fn awaits(self, m: &Move) -> bool {
        self.0 >> 16 == u32::from(m.number)
    }

    fn waits(self) -> bool {
        self.0 & Self::WAITS != 0
    }

    /// After `m`, or as it is if that was later.
    fn after(self, m: &Move) -> Self {
        Self(self.0.max((u32::from(m.number) + 1) << 16 | u32::from(m.to)))
    }
}

/// Moves `start..end` that are still to come, and what they take together.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    end: usize,
    all: f64,
    /// The sample did not help before: cut it in the middle.
    halve: bool,
}

/// Work buffers of [`Spender::spend`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Spender {
    items: Vec<Item>,
    /// The next part last.
    later: Vec<Part>,
}

impl Spender {
    /// Makes moves of `items` items by descending ratio, ties by item, as long as `used` and what they take stay within `budget`. Returns
    /// what is used then, and the first move that did not fit. An item has at most [`MOST`] moves.
    pub(crate) fn spend(
        &mut self,
        moves: &mut [Move],
        items: usize,
        mut used: f64,
        budget: f64,
    ) -> (f64, Option<Move>) {
        let Self { items: made, later } = self;
        made.clear();
        made.resize(items, Item::default());
        later.clear();
        later.push(Part { start: 0, end: moves.len(), all: moves.iter().map(|m| m.more).sum(), halve: false });
        let mut first_left = None;
        while let Some(part) = later.pop() {
            let segment = &mut moves[part.start..part.end];
            if first_left.is_none() {
                if used + part.all <= budget {
                    used += part.all;
                    for m in &*segment {
                        let item = &mut made[m.item as usize];
                        *item = item.after(m);
                    }
                    continue;
                }
            } else if !segment.iter().any(|m| used + m.more <= budget && !made[m.item as usize].waits()) {
                continue;
            }
            if segment.len() > FEW {
                let share = if part.all > 0.0 { (budget - used) / part.all } else { 0.5 };
                let (middle, left, right) =
                    if part.halve || first_left.is_some() { halves(segment) } else { cut(segment, share) };
                // However the sample misled, parts get smaller.
                let halve = |n: usize| n > segment.len() / 8 * 7;
                let (middle, end) = (part.start + middle, part.end);
                later.push(Part { start: middle, end, all: right, halve: halve(end - middle) });
                later.push(Part { end: middle, all: left, halve: halve(middle - part.start), ..part });
                continue;
            }
            segment.sort_unstable_by_key(Move::rank);
            let fitted = first_left.is_none();
            for m in &*segment {
                let item = &mut made[m.item as usize];
                if !item.awaits(m) {
                    continue;
                }
                if used + m.more > budget {
                    item.0 |= Item::WAITS;
                    first_left.get_or_insert(*m);
                    continue;
                }
                used += m.more;
                *item = item.after(m);
            }
            if fitted && first_left.is_some() {
                // Less and less is left: whose next move does not fit now waits for good.
                for m in moves.iter().filter(|m| used + m.more > budget) {
                    let item = &mut made[m.item as usize];
                    if item.awaits(m) {
                        item.0 |= Item::WAITS;
                    }
                }
            }
        }
        (used, first_left)
    }

    /// The level that an item's last move has led to; `None` if none was made.
    pub(crate) fn reached(&self, item: usize) -> Option<u16> {
        self.items.get(item).filter(|item| item.0 & !Item::WAITS != 0).map(|item| item.0 as u16)
    }
}

/// The better half first; where it ends, and what either takes.
fn halves(segment: &mut [Move]) -> (usize, f64, f64) {
    let middle = segment.len() / 2;
    segment.select_nth_unstable_by_key(middle, Move::rank);
    let sum = |moves: &[Move]| moves.iter().map(|m| m.more).sum();
    (middle, sum(&segment[..middle]), sum(&segment[middle..]))
}

/// The same, cut about where the best moves take `share` of what all of them take, by a sample.
fn cut(segment: &mut [Move], share: f64) -> (usize, f64, f64) {
    let n = segment.len();
    let mut sample = [segment[0]; SAMPLE];
    for (i, m) in sample.iter_mut().enumerate() {
        // Anywhere in its own stretch of the segment: moves of an item follow each other at first.
        let stretch = n / SAMPLE.min(n);
        let at = i * n / SAMPLE + splitmix64(i as u64 ^ n as u64) as usize % stretch;
        *m = segment[at.min(n - 1)];
    }
    sample.sort_unstable_by_key(Move::rank);
    let end = share * sample.iter().map(|m| m.more).sum::<f64>();
    let mut sum = 0.0;
    let found = sample.iter().position(|m| {
        sum += m.more;
        sum > end
    });
    // Near an end, with a margin, so that what is left to look at is the small part.
    let at = match found.unwrap_or(SAMPLE) {
        at if at < SAMPLE / 8 => at + 6,
        at if at > SAMPLE / 8 * 7 => at.min(SAMPLE) - 6,
        at => at,
    };
    let pivot = sample[at].rank();
    let (mut i, mut j) = (0, n);
    let (mut left, mut right) = (0.0, 0.0);
    while i < j {
        if segment[i].rank() <= pivot {
            left += segment[i].more;
            i += 1;
        } else {
            right += segment[i].more;
            j -= 1;
            segment.swap(i, j);
        }
    }
    (i, left, right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    const WAITS: u32 = u32::MAX;

    /// The same in one sorted row.
    fn plainly(moves: &[Move], items: usize, mut used: f64, budget: f64) -> (f64, Vec<u32>) {
        let (mut sorted, mut made) = (moves.to_vec(), vec![0; items]);
        sorted.sort_by_key(Move::rank);
        for m in &sorted {
            if made[m.item as usize] != u32::from(m.number) {
                continue;
            }
            if used + m.more > budget {
                made[m.item as usize] = WAITS;
                continue;
            }
            used += m.more;
            made[m.item as usize] += 1;
        }
        (used, made.into_iter().collect())
    }

    #[test]
    fn halves_come_to_what_one_row_comes_to() {
        let mut spender = Spender::default();
        let (mut waited, mut later) = (0, 0);
        for seed in 0..200u64 {
            let number = |i: u64| splitmix64(seed << 32 | i);
            let items = [3, 40, 700, 9000][seed as usize % 4];
            let mut moves = Vec::new();
            for item in 0..items as u64 {
                // Whole bytes, so that sums are exact in any order; few ratios, so that there are ties.
                let mut ratio = (number(4 * item) % 50) as f64;
                for n in 0..number(item) % 4 {
                    let more = [1.0, 16.0, 64.0, 700.0][(number(9 * item + n) % 4) as usize];
                    moves.push(Move::new(ratio, more, item as u32, n as u16, n as u16 + 1));
                    ratio *= (number(item + n) % 3) as f64 / 2.0;
                    ratio = ratio.min(f64::from_bits(moves[moves.len() - 1].ratio));
                }
            }
            let all: f64 = moves.iter().map(|m| m.more).sum();
            let budget = (all * (number(77) % 100) as f64 / 90.0).floor();
            let (want, want_made) = plainly(&moves, items, 5.0, 5.0 + budget);
            let (used, left) = spender.spend(&mut moves, items, 5.0, 5.0 + budget);
            assert_eq!(used, want, "seed {seed}");
            for (item, want) in want_made.iter().enumerate() {
                // Each move leads to the level of its number, and one more.
                let made = spender.reached(item).map_or(0, u32::from);
                assert!(*want == WAITS || made == *want, "seed {seed}, item {item}");
            }
            waited += usize::from(left.is_some());
            later += usize::from(left.is_some() && want_made.iter().any(|made| *made != WAITS && *made > 0));
        }
        assert!(waited > 50 && later > 20, "{waited} {later}");
    }
}

//! Moves of items from level to level, made by descending value per byte while they fit: what (9.5) and (9.12) of math.md have in
//! common.
//!
//! Which moves come first is decided by halves, as quicksort does, but only where it matters: a half that fits whole is made whole, and one
//! of which nothing can fit is left alone. So a million items take a time proportional to their number.
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

    /// What it brings.
    pub(crate) fn brings(&self) -> f64 {
        f64::from_bits(self.ratio) * self.more
    }

    fn rank(&self) -> (Reverse<u64>, u32, u16) {
        (Reverse(self.ratio), self.item, self.number)
    }
}

/// An item of which a move did not fit: its later ones wait.
const WAITS: u32 = u32::MAX;
/// So many moves are sorted.
const FEW: usize = 128;

/// Work buffers of [`Spender::spend`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Spender {
    /// Moves made of each item.
    made: Vec<u32>,
    /// Segments of the moves still to come, the next one last.
    later: Vec<(usize, usize)>,
}

impl Spender {
    /// Makes moves of `items` items by descending ratio, ties by item, as long as `used` and what they take stay within `budget`, and tells
    /// `make` of each, in no order. Returns what is used then, and the first move that did not fit.
    pub(crate) fn spend(
        &mut self,
        moves: &mut [Move],
        items: usize,
        mut used: f64,
        budget: f64,
        mut make: impl FnMut(&Move),
    ) -> (f64, Option<Move>) {
        let Self { made, later } = self;
        made.clear();
        made.resize(items, 0);
        later.clear();
        later.push((0, moves.len()));
        let mut first_left = None;
        while let Some((start, end)) = later.pop() {
            let segment = &mut moves[start..end];
            if first_left.is_none() {
                let all: f64 = segment.iter().map(|m| m.more).sum();
                if used + all <= budget {
                    used += all;
                    for m in &*segment {
                        made[m.item as usize] += 1;
                        make(m);
                    }
                    continue;
                }
            } else if !segment.iter().any(|m| used + m.more <= budget && made[m.item as usize] != WAITS) {
                continue;
            }
            if segment.len() > FEW {
                let middle = segment.len() / 2;
                segment.select_nth_unstable_by_key(middle, Move::rank);
                later.push((start + middle, end));
                later.push((start, start + middle));
                continue;
            }
            segment.sort_unstable_by_key(Move::rank);
            let fitted = first_left.is_none();
            for m in &*segment {
                let count = &mut made[m.item as usize];
                if *count != u32::from(m.number) {
                    continue;
                }
                if used + m.more > budget {
                    *count = WAITS;
                    first_left.get_or_insert(*m);
                    continue;
                }
                used += m.more;
                *count += 1;
                make(m);
            }
            if fitted && first_left.is_some() {
                // Less and less is left: whose next move does not fit now waits for good.
                for m in &*moves {
                    let count = &mut made[m.item as usize];
                    if *count == u32::from(m.number) && used + m.more > budget {
                        *count = WAITS;
                    }
                }
            }
        }
        (used, first_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

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
            let items = [3, 40, 700, 3000][seed as usize % 4];
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
            let mut told = vec![0; items];
            let (used, left) = spender.spend(&mut moves, items, 5.0, 5.0 + budget, |m| told[m.item as usize] += 1);
            assert_eq!(used, want, "seed {seed}");
            for (item, want) in want_made.iter().enumerate() {
                assert!(*want == WAITS || told[item] == *want, "seed {seed}, item {item}");
            }
            waited += usize::from(left.is_some());
            later += usize::from(left.is_some() && want_made.iter().any(|made| *made != WAITS && *made > 0));
        }
        assert!(waited > 50 && later > 20, "{waited} {later}");
    }
}

//! Histories of byte ranges of one address space.
use super::clock::VectorClock;
use super::history::{Epoch, History};
use crate::error::Access;
use core::ops::Range;
use std::collections::BTreeMap;

/// Who used which bytes. A write makes its range one piece; reads of parts cut it.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// By first address: the end, and what happened to all bytes between.
    pieces: BTreeMap<u64, (u64, History)>,
}

impl Ranges {
    /// First addresses of the pieces that share a byte with `range`.
    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &(u64, History))> {
        let before = self.pieces.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        before.into_iter().chain(self.pieces.range(range.clone())).map(|(at, piece)| (*at, piece))
    }

    /// The earlier access that an access with this clock is not ordered after, if any.
    pub(crate) fn unordered(&self, range: &Range<u64>, access: Access, clock: &VectorClock) -> Option<Epoch> {
        if range.is_empty() {
            return None;
        }
        self.within(range).find_map(|(_, (_, history))| history.unordered(access, clock))
    }

    /// Notes an access that was allowed.
    pub(crate) fn note(&mut self, range: Range<u64>, access: Access, stream: u32, at: u64) {
        if range.is_empty() {
            return;
        }
        if access.writes() {
            self.forget(range.clone());
            let mut history = History::default();
            history.note(access, stream, at);
            self.pieces.insert(range.start, (range.end, history));
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        // Bytes that nobody used before get a piece of their own.
        let mut from = range.start;
        let mut gaps = Vec::new();
        for (start, (end, history)) in self.pieces.range_mut(range.clone()) {
            history.note(access, stream, at);
            if from < *start {
                gaps.push(from..*start);
            }
            from = *end;
        }
        if from < range.end {
            gaps.push(from..range.end);
        }
        for gap in gaps {
            let mut history = History::default();
            history.note(access, stream, at);
            self.pieces.insert(gap.start, (gap.end, history));
        }
    }

    /// The range is freed, or written: what happened to it before no longer counts.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        let inside: Vec<u64> = self.pieces.range(range).map(|(at, _)| *at).collect();
        for at in inside {
            self.pieces.remove(&at);
        }
    }

    /// Cuts the piece that `at` lies inside of.
    fn cut(&mut self, at: u64) {
        let Some((_, (end, history))) = self.pieces.range_mut(..at).next_back() else { return };
        if *end > at {
            let rest = (*end, history.clone());
            *end = at;
            self.pieces.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a history per byte, for random accesses of three streams that sometimes wait for one another.
    #[test]
    fn pieces_remember_what_every_byte_would() {
        const BYTES: u64 = 48;
        let mut dice = 0x9e37_79b9_u64;
        let mut roll = |n: u64| {
            dice = certkv_core::hash::splitmix64(dice);
            dice % n
        };
        let (mut found, mut allowed) = (0, 0);
        for _ in 0..200 {
            let mut ranges = Ranges::default();
            let mut bytes = vec![History::default(); BYTES as usize];
            let mut clocks = vec![VectorClock::default(); 3];
            for _ in 0..60 {
                let stream = roll(3) as usize;
                if roll(4) == 0 {
                    let other = clocks[roll(3) as usize].clone();
                    clocks[stream].join(&other);
                }
                let start = roll(BYTES);
                let range = start..start + roll(BYTES - start + 1);
                let access = if roll(2) == 0 { Access::Read } else { Access::Write };
                let at = clocks[stream].tick(stream as u32);
                let missed = ranges.unordered(&range, access, &clocks[stream]).is_some();
                let inside = range.start as usize..range.end as usize;
                let want = bytes[inside.clone()].iter().any(|h| h.unordered(access, &clocks[stream]).is_some());
                assert_eq!(missed, want, "{range:?} {access:?}");
                if missed {
                    found += 1;
                    continue;
                }
                allowed += 1;
                ranges.note(range.clone(), access, stream as u32, at);
                bytes[inside].iter_mut().for_each(|h| h.note(access, stream as u32, at));
                if roll(10) == 0 {
                    ranges.forget(range.clone());
                    bytes[range.start as usize..range.end as usize].fill(History::default());
                }
                let whole: Vec<_> = ranges.pieces.iter().map(|(start, (end, _))| (*start, *end)).collect();
                assert!(whole.iter().all(|(a, b)| a < b) && whole.windows(2).all(|w| w[0].1 <= w[1].0), "{whole:?}");
            }
        }
        assert!(found > 1000 && allowed > 1000, "{found} {allowed}");
    }
}

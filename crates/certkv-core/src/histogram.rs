//! How a quantity was distributed, in powers of two.
use core::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a histogram.
pub const BUCKETS: usize = 40;

/// Counts of a quantity by its order of magnitude: bucket 0 is 0, bucket `i` is `2^(i-1)` up to but not including `2^i`, the last one
/// all that is more. 39 octaves hold five minutes in nanoseconds, and 256 GB in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of what was counted.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

const fn bucket(value: u64) -> usize {
    let octave = (u64::BITS - value.leading_zeros()) as usize;
    if octave < BUCKETS { octave } else { BUCKETS - 1 }
}

impl Histogram {
    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts a value `times` times.
    #[inline]
    pub fn record_many(&mut self, value: u64, times: u64) {
        self.counts[bucket(value)] += times;
        self.sum = self.sum.saturating_add(value.saturating_mul(times));
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest value that bucket `i` counts; `None` for the last one, which has no end.
    pub const fn upper(i: usize) -> Option<u64> {
        if i + 1 < BUCKETS { Some((1 << i) - 1) } else { None }
    }
}

impl core::ops::AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, more)| *mine += more);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// A [`Histogram`] that several threads count into. Relaxed: it orders nothing, and a copy that is taken while others count may have a
/// value's bucket and not yet its sum.
#[derive(Debug)]
pub struct SharedHistogram {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl SharedHistogram {
    /// Counts a value: two relaxed additions.
    #[inline]
    pub fn record(&self, value: u64) {
        self.counts[bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn get(&self) -> Histogram {
        let mut copy = Histogram { sum: self.sum.load(Ordering::Relaxed), ..Histogram::default() };
        copy.counts.iter_mut().zip(&self.counts).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        copy
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_that_says_so() {
        let ends = (0..64).flat_map(|i| [(1u64 << i) - 1, 1 << i, (1 << i) + 1]).chain([u64::MAX]);
        for value in ends {
            let (mut one, shared) = (Histogram::default(), SharedHistogram::default());
            one.record(value);
            shared.record(value);
            assert_eq!(one, shared.get());
            let at = one.counts.iter().position(|n| *n == 1).unwrap();
            assert!(Histogram::upper(at).is_none_or(|most| value <= most), "{value} in {at}");
            assert!(at == 0 || Histogram::upper(at - 1).is_some_and(|below| value > below), "{value} in {at}");
            assert_eq!((one.count(), one.sum), (1, value));
        }
    }

    #[test]
    fn histograms_add_up() {
        let (mut a, mut b) = (Histogram::default(), Histogram::default());
        a.record_many(9, 3);
        b.record(9);
        b.record(0);
        a += &b;
        assert_eq!((a.count(), a.sum, a.counts[0], a.counts[4]), (5, 36, 1, 4));
        a.record_many(u64::MAX, 2);
        assert_eq!(a.sum, u64::MAX, "a sum stays at its end");
    }
}

//! Vector clocks: what a stream is known to be ordered after.

/// For each stream, the number of its operations that happened before. Streams beyond the end count 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VectorClock(Vec<u64>);

impl VectorClock {
    pub(crate) fn get(&self, stream: u32) -> u64 {
        self.0.get(stream as usize).copied().unwrap_or(0)
    }

    /// One more operation of `stream`; returns its number.
    pub(crate) fn tick(&mut self, stream: u32) -> u64 {
        let i = stream as usize;
        if self.0.len() <= i {
            self.0.resize(i + 1, 0);
        }
        self.0[i] += 1;
        self.0[i]
    }

    /// Also ordered after everything that `other` is ordered after.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(theirs);
        }
    }

    /// Whether everything in `other` is also in `self`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(i, &n)| self.get(i as u32) >= n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_is_the_least_clock_that_covers_both() {
        let (mut a, mut b) = (VectorClock::default(), VectorClock::default());
        assert_eq!((a.tick(0), a.tick(0), b.tick(2)), (1, 2, 1));
        assert!(!a.covers(&b) && !b.covers(&a));
        let mut both = a.clone();
        both.join(&b);
        assert!(both.covers(&a) && both.covers(&b));
        assert_eq!((both.get(0), both.get(1), both.get(2), both.get(9)), (2, 0, 1, 0));
    }
}

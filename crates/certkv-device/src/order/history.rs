//! The happens-before rule: every access to a piece of memory must be ordered after every earlier conflicting one.
use super::clock::VectorClock;
use crate::error::Access;

/// One access: the `at`-th operation of `stream`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    pub(crate) stream: u32,
    at: u64,
    pub(crate) access: Access,
}

/// Last write of a piece of memory and the last read of each stream since.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    write: Option<Epoch>,
    reads: Vec<Epoch>,
}

impl History {
    /// The earlier access that an access with this clock is not ordered after, if any.
    pub(crate) fn unordered(&self, access: Access, clock: &VectorClock) -> Option<Epoch> {
        let missed = |e: &&Epoch| clock.get(e.stream) < e.at;
        let write = self.write.as_ref().filter(missed);
        let read = || if access.writes() { self.reads.iter().find(missed) } else { None };
        write.or_else(read).copied()
    }

    /// Notes an access that was allowed.
    pub(crate) fn note(&mut self, access: Access, stream: u32, at: u64) {
        let epoch = Epoch { stream, at, access };
        if access.writes() {
            self.write = Some(epoch);
            self.reads.clear();
        } else if let Some(last) = self.reads.iter_mut().find(|e| e.stream == stream) {
            *last = epoch;
        } else {
            self.reads.push(epoch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_conflict_with_writes_only() {
        let (mut history, mut one, mut two) = (History::default(), VectorClock::default(), VectorClock::default());
        let at = one.tick(1);
        history.note(Access::Read, 1, at);
        two.tick(2);
        assert!(history.unordered(Access::CopyFrom, &two).is_none());
        assert_eq!(history.unordered(Access::CopyTo, &two).map(|e| e.stream), Some(1));
        two.join(&one);
        assert!(history.unordered(Access::CopyTo, &two).is_none());
        let at = two.tick(2);
        history.note(Access::CopyTo, 2, at);
        assert_eq!(history.unordered(Access::Read, &one).map(|e| e.access), Some(Access::CopyTo));
    }
}

//! The happens-before checker: every access to a slot must be ordered after every earlier conflicting one.
use crate::error::Access;
use crate::sim::clock::VectorClock;

/// Counters of a tracked device (checked or adversarial); all zero on an eager, unchecked one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Operations enqueued: guards, copies (two accesses each), records, waits, fills.
    pub ops: u64,
    /// Operations that ran later than they were enqueued.
    pub deferred: u64,
    /// Accesses refused as `Unordered`.
    pub unordered: u64,
    /// Accesses or copies refused as `WrongContent`.
    pub wrong_content: u64,
    /// Accesses or copies refused as `Conflict`.
    pub conflicts: u64,
    /// Queued copies that failed when they ran, for whatever reason.
    pub failed_copies: u64,
}

impl CheckReport {
    /// Findings of the checker: not failures that were injected.
    pub fn findings(&self) -> u64 {
        self.unordered + self.wrong_content + self.conflicts
    }
}

/// One access: the `at`-th operation of `stream`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    pub(crate) stream: u32,
    at: u64,
    pub(crate) access: Access,
}

/// Last write of a slot and the last read of each stream since.
#[derive(Debug, Default)]
pub(crate) struct SlotHistory {
    write: Option<Epoch>,
    reads: Vec<Epoch>,
}

impl SlotHistory {
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
        let (mut history, mut one, mut two) = (SlotHistory::default(), VectorClock::default(), VectorClock::default());
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

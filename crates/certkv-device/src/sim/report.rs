//! What a tracked device has seen.

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

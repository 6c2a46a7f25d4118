//! How long a call may still wait for a store, and how long it has.
use std::time::{Duration, Instant};

/// Of one call. What is counted begins where the deadline does, so that a call that ran into it has waited for no less.
#[derive(Debug)]
pub(crate) struct Patience {
    until: Instant,
    counted: Instant,
}

impl Patience {
    pub(crate) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self { until: now + deadline, counted: now }
    }

    /// What is left; nothing once the deadline has passed.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Nanoseconds since they were last counted, or since the call began.
    pub(crate) fn count(&mut self) -> u64 {
        let now = Instant::now();
        let since = now.saturating_duration_since(core::mem::replace(&mut self.counted, now));
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

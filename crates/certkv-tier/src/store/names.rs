//! Names of records that have yet to be read back.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names that nobody else gives.
#[derive(Debug)]
pub(super) struct Names {
    process: String,
    given: AtomicU64,
}

impl Default for Names {
    fn default() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { process: format!("{}.{}", std::process::id(), since.as_nanos()), given: AtomicU64::new(0) }
    }
}

impl Names {
    /// Another one.
    pub(super) fn next(&self) -> String {
        format!("{}.{}", self.process, self.given.fetch_add(1, Ordering::Relaxed))
    }
}

//! Where originals go that host memory has no room for.
use crate::Error;
use crate::store::Backend;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// Longest deadline: one that can be added to any moment.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Spilling of originals of live sequences to a store.
///
/// Host memory then holds the originals of some blocks, those that were read last among them; the others lie in the store, as records
/// that are checked when they are read. Codes stay where they are: what a step reads from codes costs what it did.
#[derive(Clone)]
pub struct Spill {
    /// Where records go. Others may use it beside this cache: names are secret and of this process. A folder that a process left
    /// without dropping its cache holds records that nobody will ask for: it can be emptied.
    pub backend: Arc<dyn Backend>,
    /// Tokens whose originals have room in host memory, in every layer, until the store has them: at least the longest chunk, or its
    /// step is refused as one for which host memory is used up ([`crate::Cache::admit`] counts pages and does not know of it). Beside
    /// them there is room for the open blocks, and for the longest sequence in one layer, so that attention over all its originals
    /// finds them side by side. A KV group of few layers saves little by that, and one of one layer nothing.
    pub host_tokens: usize,
    /// Most bytes of records.
    pub disk_budget: usize,
    /// Threads that call the back end, 1 to 256.
    pub workers: usize,
    /// Records (one block in one layer) under way at once, 2 to 65536; each has a buffer in host memory.
    pub in_flight: usize,
    /// How long a call waits for the store at most, up to a day.
    pub deadline: Duration,
}

impl Spill {
    /// Spills to `backend` what goes beyond `host_tokens` tokens, without a limit on bytes there.
    pub fn new(backend: Arc<dyn Backend>, host_tokens: usize) -> Self {
        let deadline = Duration::from_secs(10);
        Self { backend, host_tokens, disk_budget: usize::MAX, workers: 4, in_flight: 32, deadline }
    }

    pub(crate) fn validated(&self) -> Result<(), Error> {
        let wrong = |why| Err(Error::Config { field: "spill", why });
        if self.workers == 0 || self.workers > 256 {
            return wrong(format!("{} workers; must be 1 to 256", self.workers));
        }
        if self.in_flight < 2 || self.in_flight > 1 << 16 {
            return wrong(format!("{} records in flight; must be 2 to 65536", self.in_flight));
        }
        if self.deadline.is_zero() || self.deadline > LONGEST {
            return wrong(format!(
                "a deadline of {:?}; must be more than nothing and at most {LONGEST:?}",
                self.deadline
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend: _, host_tokens, disk_budget, workers, in_flight, deadline } = self;
        let mut shown = f.debug_struct("Spill");
        shown.field("host_tokens", host_tokens).field("disk_budget", disk_budget).field("workers", workers);
        shown.field("in_flight", in_flight).field("deadline", deadline).finish_non_exhaustive()
    }
}

//! Events of cached prefixes: the index is the host's, so nothing here asks the device.
use super::cache::GpuCache;
use crate::Error;
use crate::prefix::{PrefixScope, Prefixes};
use certkv_page::prefix::{BlockKey, Cached, PrefixEvents, Prompt};

impl GpuCache {
    /// As [`Cache::prefix_events`](crate::Cache::prefix_events).
    pub fn prefix_events(&self) -> Option<PrefixEvents> {
        self.prefixes.as_ref().and_then(Prefixes::events)
    }

    /// As [`Cache::cached_prefixes`](crate::Cache::cached_prefixes). Does not ask the device.
    ///
    /// # Errors
    /// As [`Cache::cached_prefixes`](crate::Cache::cached_prefixes).
    pub fn cached_prefixes(&self) -> Result<Cached, Error> {
        self.prefixes()?.cached()
    }

    /// As [`Cache::prefix_key`](crate::Cache::prefix_key).
    ///
    /// # Errors
    /// As [`Cache::prefix_key`](crate::Cache::prefix_key).
    pub fn prefix_key(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<BlockKey, Error> {
        Ok(self.prefixes()?.key(scope, prompt))
    }
}

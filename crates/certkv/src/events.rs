//! Events of cached prefixes, for a router that sends prompts to where their beginnings are.
//!
//! A router that begins takes [`Cache::cached_prefixes`], and from [`Cached::next`] on [`PrefixEvents::read`]. Where a read says that events are
//! lost, it begins again. It need not be told of its own prompts' names: [`Cache::prefix_key`] makes them.
use crate::prefix::{PrefixScope, Prefixes};
use crate::{Cache, Error};
use certkv_page::prefix::{BlockKey, Cached, PrefixEvents, Prompt};

/// Most events that are kept.
pub(crate) const MOST_EVENTS: usize = 1 << 24;

/// The answer of a cache that was configured without.
fn not_kept() -> Error {
    Error::Config { field: "prefix_events", why: "it is 0: no events are kept".to_owned() }
}

impl Prefixes {
    pub(crate) fn events(&self) -> Option<PrefixEvents> {
        self.index.events().cloned()
    }

    pub(crate) fn cached(&self) -> Result<Cached, Error> {
        self.index.cached().map_err(Error::from_table)?.ok_or_else(not_kept)
    }

    /// Key of the last full unit of `prompt`.
    pub(crate) fn key(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> BlockKey {
        let (chain, unit) = (self.chain(scope), self.index.unit());
        let units = prompt.tokens.chunks_exact(unit).enumerate();
        units.fold(chain.root(), |parent, (i, tokens)| {
            chain.next(&parent, tokens, &chain.marks(&prompt, i * unit, unit))
        })
    }
}

impl Cache {
    /// The latest [`Config::prefix_events`](crate::Config::prefix_events) events of cached prefixes, to be read from any thread, also while
    /// steps are open and after the cache's end; `None` where none are kept.
    pub fn prefix_events(&self) -> Option<PrefixEvents> {
        self.prefixes.as_ref().and_then(Prefixes::events)
    }

    /// All units that are cached now, and the number of the first event after that. Looks at every one of them, under the lock that look-ups
    /// take.
    ///
    /// # Errors
    /// [`Error::Config`] where no events are kept; out of memory.
    pub fn cached_prefixes(&self) -> Result<Cached, Error> {
        self.prefixes()?.cached()
    }

    /// What events call the last full unit of `prompt`, whether it is cached or not; of a prompt without a full unit, what they call the
    /// scope: the parent of first units. One hash a unit.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn prefix_key(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<BlockKey, Error> {
        Ok(self.prefixes()?.key(scope, prompt))
    }
}

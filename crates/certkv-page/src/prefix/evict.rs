//! Entries go: to make room, or because nothing of what they hold is valid any more.
use super::entry::NONE;
use super::index::{GroupShape, PrefixIndex, State};
use crate::error::PageError;
use crate::pools::Dropped;
use crate::stamp::Stamp;
use crate::table::BlockEntry;

/// References that the index gave up. Enqueue what still uses the pages, then [`retire`](Self::retire).
#[derive(Debug)]
#[must_use = "the pages wait for the stamp of the work that may still use them"]
pub struct Evicted {
    /// Units that are gone.
    pub units: usize,
    /// One per group.
    groups: Vec<Dropped>,
}

impl Evicted {
    pub(super) fn new(groups: &[GroupShape]) -> Self {
        Self { units: 0, groups: groups.iter().map(|group| Dropped::new(&group.pools)).collect() }
    }

    /// What each group gave up.
    pub fn groups(&self) -> &[Dropped] {
        &self.groups
    }

    /// [`Dropped::retire`] for all groups; returns pages retired.
    ///
    /// # Errors
    /// As [`Dropped::retire`]: the first refusal, after all were tried.
    pub fn retire(self, mut record: impl FnMut() -> Stamp) -> Result<usize, PageError> {
        let (mut pages, mut refused) = (0, None);
        for dropped in self.groups {
            match dropped.retire(&mut record) {
                Ok(n) => pages += n,
                Err(error) => {
                    refused.get_or_insert(error);
                }
            }
        }
        refused.map_or(Ok(pages), Err)
    }

    /// Takes over the references of an entry. Should the host lack memory for the list, they are retired behind
    /// [`Stamp::IDLE`], which is always safe.
    fn take(&mut self, shapes: &[GroupShape], unit: usize, pages: &[BlockEntry]) {
        let mut rest = pages;
        for (shape, dropped) in shapes.iter().zip(&mut self.groups) {
            let (mine, others) = rest.split_at(unit / shape.block);
            rest = others;
            dropped.grow(2 * mine.len());
            for page in mine.iter().flat_map(|entry| entry.pages()) {
                dropped.push(page.class, page.id);
            }
        }
        self.units += 1;
    }
}

impl<T> PrefixIndex<T> {
    /// Removes up to `units` idle units, as the policy picks them. An entry is idle when no cached block follows it and no
    /// sequence uses its pages.
    pub fn evict(&self, units: usize) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        while evicted.units < units && self.evict_one(&mut state, NONE, &mut evicted) {}
        evicted
    }

    /// Forgets everything: after new weights, say. Sequences that use the pages keep them.
    pub fn clear(&self) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        while let State { entries, policy, .. } = &mut *state
            && let Some(slot) = policy.victim(&mut |slot| entries.nodes[slot as usize].children == 0)
        {
            self.remove(&mut state, slot, &mut evicted);
        }
        evicted
    }

    /// Makes room for one entry. `spared` stays: a new entry is about to follow it.
    pub(super) fn evict_one(&self, state: &mut State<T>, spared: u32, evicted: &mut Evicted) -> bool {
        let State { entries, policy, .. } = state;
        let victim = policy.victim(&mut |slot| {
            slot != spared && entries.nodes[slot as usize].children == 0 && self.is_unused(entries.pages_of(slot))
        });
        let Some(slot) = victim else { return false };
        state.stats.evicted += 1;
        state.stats.age_at_eviction += state.clock - state.entries.nodes[slot as usize].used;
        self.remove(state, slot, evicted);
        true
    }

    /// Nobody but the index holds these pages, so that giving them up frees them.
    pub(super) fn is_unused(&self, pages: &[BlockEntry]) -> bool {
        let mut rest = pages;
        self.groups.iter().all(|GroupShape { pools, block, .. }| {
            let (mine, others) = rest.split_at(self.unit() / block);
            rest = others;
            mine.iter().flat_map(|entry| entry.pages()).all(|page| pools.of(page.class).references(page.id) == Ok(1))
        })
    }

    fn remove(&self, state: &mut State<T>, slot: u32, evicted: &mut Evicted) {
        evicted.take(&self.groups, self.unit(), state.entries.pages_of(slot));
        state.entries.remove(slot);
    }
}

impl<T> Drop for PrefixIndex<T> {
    fn drop(&mut self) {
        // The pages come back when the device is idle.
        drop(self.clear());
    }
}

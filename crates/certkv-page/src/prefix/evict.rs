//! Entries go: to make room, or because nothing of what they hold is valid any more.
use super::entry::NONE;
use super::index::{GroupShape, PrefixIndex, State};
use crate::alloc::LettingGo;
use crate::error::PageError;
use crate::pools::{Dropped, PageRef, Pools};
use crate::stamp::Stamp;
use crate::table::BlockEntry;
use certkv_core::PageId;

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

impl<T> State<T> {
    fn count_eviction(&mut self, slot: u32) {
        self.stats.evicted += 1;
        self.stats.age_at_eviction.record(self.clock - self.entries.nodes[slot as usize].used);
    }
}

impl<T> PrefixIndex<T> {
    /// Removes up to `units` idle units, as the policy picks them. An entry is idle when no cached block follows it and no
    /// sequence uses its pages.
    pub fn evict(&self, units: usize) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        let mut books = self.books();
        while gone.len() < units
            && gone.try_reserve(1).is_ok()
            && let Some(slot) = self.evict_leaf(&mut state, NONE, &mut books)
        {
            gone.push(slot);
        }
        // Whoever takes references over may need the books. Pages of a slot are there until it is used again.
        drop(books);
        for slot in gone {
            evicted.take(&self.groups, self.unit(), state.entries.pages_of(slot));
        }
        evicted
    }

    /// Removes one unit that is not idle and still keeps a page from being free: one of its pages, or of a unit before it, is
    /// nobody else's. That happens where a sequence was cut inside a unit, or holds copies of its own of what was cached. For
    /// when [`evict`](Self::evict) finds nothing more; looks at every entry.
    pub fn evict_stranded(&self) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        let State { entries, policy, .. } = &mut *state;
        let lone = |slot: &u32| {
            let mut pages = self.pages_of(entries.pages_of(*slot));
            pages.any(|(pools, page)| pools.of(page.class).references(page.id) == Ok(1))
        };
        let Some(slot) = entries.slots().find(lone) else { return evicted };
        let leaf = entries.leaf_behind(slot);
        policy.remove(leaf);
        state.count_eviction(leaf);
        self.remove(&mut state, leaf, &mut evicted);
        evicted
    }

    /// Removes the unit that names `host`, a page of group number `group`, and all units behind it: for a sequence that is
    /// about to write the page and shares it with the index alone.
    pub fn forget(&self, group: usize, host: PageId) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        while let Some(slot) = state.entries.owner(group, host) {
            let leaf = state.entries.leaf_behind(slot);
            state.policy.remove(leaf);
            state.count_eviction(leaf);
            self.remove(&mut state, leaf, &mut evicted);
        }
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
        let victim = self.evict_leaf(state, spared, &mut self.books());
        if let Some(slot) = victim {
            evicted.take(&self.groups, self.unit(), state.entries.pages_of(slot));
        }
        victim.is_some()
    }

    /// The books of all classes but tails, which are never cached: locked once for as many questions as there are.
    fn books(&self) -> Vec<[LettingGo<'_>; 2]> {
        self.groups.iter().map(|group| [group.pools.host.letting_go(), group.pools.packed.letting_go()]).collect()
    }

    /// Removes the entry that the policy picks, and returns its slot.
    fn evict_leaf(&self, state: &mut State<T>, spared: u32, books: &mut [[LettingGo<'_>; 2]]) -> Option<u32> {
        let State { entries, policy, .. } = state;
        let slot = policy.victim(&mut |slot| {
            let mut rest = entries.pages_of(slot);
            slot != spared
                && entries.nodes[slot as usize].children == 0
                && self.groups.iter().zip(&mut *books).all(|(group, [host, packed])| {
                    let (mine, others) = rest.split_at(self.unit() / group.block);
                    rest = others;
                    mine.iter()
                        .all(|entry| host.is_sole(entry.host) && entry.packed.is_none_or(|id| packed.is_sole(id)))
                })
        })?;
        state.count_eviction(slot);
        state.remove(slot);
        Some(slot)
    }

    /// Nobody but the index holds these pages, so that giving them up frees them.
    pub(super) fn is_unused(&self, pages: &[BlockEntry]) -> bool {
        self.pages_of(pages).all(|(pools, page)| pools.of(page.class).references(page.id) == Ok(1))
    }

    /// The pages of a unit, group by group.
    fn pages_of<'a>(&'a self, entries: &'a [BlockEntry]) -> impl Iterator<Item = (&'a Pools, PageRef)> + 'a {
        let mut rest = entries;
        self.groups.iter().flat_map(move |GroupShape { pools, block, .. }| {
            let (mine, others) = rest.split_at(self.unit() / block);
            rest = others;
            mine.iter().flat_map(move |entry| entry.pages().map(move |page| (pools, page)))
        })
    }

    fn remove(&self, state: &mut State<T>, slot: u32, evicted: &mut Evicted) {
        evicted.take(&self.groups, self.unit(), state.entries.pages_of(slot));
        state.remove(slot);
    }
}

impl<T> Drop for PrefixIndex<T> {
    fn drop(&mut self) {
        // The pages come back when the device is idle.
        drop(self.clear());
    }
}

//! Entries go: to make room, or because nothing of what they hold is valid any more.
use super::entry::{Entries, NONE};
use super::index::{GroupShape, PrefixIndex, State};
use crate::alloc::{LettingGo, PageAllocator};
use crate::error::PageError;
use crate::pools::{Dropped, PageClass, PageRef, Pools};
use crate::stamp::Stamp;
use crate::table::BlockEntry;
use certkv_core::PageId;

/// References that the index gave up. Enqueue what still uses the pages, then [`retire`](Self::retire).
#[derive(Debug)]
#[must_use = "the pages wait for the stamp of the work that may still use them"]
pub struct Evicted {
    /// Units that are gone.
    pub units: usize,
    /// Blocks of groups with a window that are gone without their units.
    pub blocks: usize,
    /// One per group.
    groups: Vec<Dropped>,
}

impl Evicted {
    pub(super) fn new(groups: &[GroupShape]) -> Self {
        Self { units: 0, blocks: 0, groups: groups.iter().map(|group| Dropped::new(&group.pools)).collect() }
    }

    /// Nothing is gone.
    pub fn is_empty(&self) -> bool {
        self.units == 0 && self.blocks == 0
    }

    /// What each group gave up.
    pub fn groups(&self) -> &[Dropped] {
        &self.groups
    }

    /// [`Dropped::retire`] for all groups; returns pages retired. `record` is given the group's number.
    ///
    /// # Errors
    /// As [`Dropped::retire`]: the first refusal, after all were tried.
    pub fn retire(self, mut record: impl FnMut(usize) -> Stamp) -> Result<usize, PageError> {
        let (mut pages, mut refused) = (0, None);
        for (group, dropped) in self.groups.into_iter().enumerate() {
            match dropped.retire(|| record(group)) {
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
    fn take(&mut self, shapes: &[GroupShape], unit: usize, pages: &[Option<BlockEntry>]) {
        let mut rest = pages;
        for (shape, dropped) in shapes.iter().zip(&mut self.groups) {
            let (mine, others) = rest.split_at(unit / shape.block);
            rest = others;
            dropped.grow(2 * mine.len());
            for page in mine.iter().flatten().flat_map(|entry| entry.pages()) {
                dropped.push(page.class, page.id);
            }
        }
        self.units += 1;
    }

    /// Takes over the references of one block of a group.
    fn take_block(&mut self, group: usize, entry: BlockEntry) {
        let dropped = &mut self.groups[group];
        dropped.grow(2);
        for page in entry.pages() {
            dropped.push(page.class, page.id);
        }
        self.blocks += 1;
    }
}

/// Books of a group.
struct Books<'a> {
    host: LettingGo<'a>,
    packed: LettingGo<'a>,
    levels: Vec<LettingGo<'a>>,
}

impl<'a> Books<'a> {
    fn of(Pools { host, packed, levels, .. }: &'a Pools) -> Self {
        let levels = levels.iter().map(PageAllocator::letting_go).collect();
        Self { host: host.letting_go(), packed: packed.letting_go(), levels }
    }

    /// Nobody else holds a page of the block.
    fn is_sole(&self, entry: &BlockEntry) -> bool {
        let level = usize::from(entry.level).checked_sub(1).and_then(|at| self.levels.get(at));
        self.host.is_sole(entry.host) && entry.packed.is_none_or(|id| level.unwrap_or(&self.packed).is_sole(id))
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
        let books = self.books();
        while gone.len() < units
            && gone.try_reserve(1).is_ok()
            && let Some(slot) = self.evict_leaf(&mut state, NONE, &books)
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
    /// when [`evict`](Self::evict) finds nothing more; looks at every entry. Pages of groups with a window do not count: they go by
    /// themselves.
    pub fn evict_stranded(&self) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        let State { entries, policy, .. } = &mut *state;
        let lone = |slot: &u32| {
            let mut pages = self.pages_of(entries.pages_of(*slot)).filter(|(shape, _)| shape.window.is_none());
            pages.any(|(shape, page)| shape.pools.of(page.class).references(page.id) == Ok(1))
        };
        let Some(slot) = entries.slots().find(lone) else { return evicted };
        let leaf = entries.leaf_behind(slot);
        policy.remove(leaf);
        state.count_eviction(leaf);
        self.remove(&mut state, leaf, &mut evicted);
        evicted
    }

    /// Makes room in one class of a group: of one with a window the blocks that were in no window for longest, else whole units, as
    /// [`evict`](Self::evict), or [`evict_stranded`](Self::evict_stranded) where that finds nothing. Where codes have levels, a unit has
    /// pages of some of their classes only: those that have none of this one stay, but for what follows one that has.
    pub fn make_room(&self, group: usize, class: PageClass, pages: usize) -> Evicted {
        match self.groups.get(group) {
            Some(GroupShape { window: Some(_), .. }) => self.hollow(group, class, pages),
            Some(shape) if shape.lacks(class) => self.evict_class(group, class, pages),
            Some(_) => {
                let evicted = self.evict(pages);
                if evicted.units == 0 { self.evict_stranded() } else { evicted }
            }
            None => Evicted::new(&self.groups),
        }
    }

    /// Makes room after an allocator of `capacity` pages of a class refused, whose group the refusal does not say: in the group of that
    /// size that has fewest pages left, or the next one where nothing can be had there.
    pub fn make_room_after(&self, class: PageClass, capacity: usize, pages: usize) -> Evicted {
        let of_size = |group: &usize| self.groups[*group].pools.of(class).capacity() == capacity;
        let mut groups: Vec<usize> = (0..self.groups.len()).filter(of_size).collect();
        groups.sort_by_key(|group| {
            let counts = self.groups[*group].pools.of(class).counts();
            (counts.free + counts.retiring, self.groups[*group].window.is_some())
        });
        let rooms = groups.into_iter().map(|group| self.make_room(group, class, pages));
        rooms.into_iter().find(|evicted| !evicted.is_empty()).unwrap_or_else(|| Evicted::new(&self.groups))
    }

    /// Removes units until they gave up `pages` pages of a class of a group that nobody else holds, or none is left: of those that have one and
    /// that no other such unit follows the one not used for longest, with all units behind it. Looks at every entry for each of them.
    fn evict_class(&self, group: usize, class: PageClass, pages: usize) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        let (pool, blocks, mut freed) = (self.groups[group].pools.of(class), self.blocks_of(group), 0);
        let sole = |entries: &Entries<T>, slot: u32| {
            let coded = entries.pages_of(slot)[blocks.clone()].iter().flatten().filter(|entry| entry.class() == class);
            coded.filter(|entry| entry.packed.is_some_and(|id| pool.references(id) == Ok(1))).count()
        };
        while freed < pages {
            state.walks += 1;
            let State { entries, walks, .. } = &mut *state;
            let having: Vec<u32> = entries.slots().filter(|slot| sole(entries, *slot) > 0).collect();
            for slot in &having {
                let mut before = entries.nodes[*slot as usize].parent;
                while let Some(node) = entries.nodes.get_mut(before as usize)
                    && node.seen != *walks
                {
                    node.seen = *walks;
                    before = node.parent;
                }
            }
            let last = having.into_iter().filter(|slot| entries.nodes[*slot as usize].seen != *walks);
            let Some(slot) = last.min_by_key(|slot| entries.nodes[*slot as usize].used) else { break };
            freed += sole(entries, slot);
            loop {
                let leaf = state.entries.leaf_behind(slot);
                state.policy.remove(leaf);
                state.count_eviction(leaf);
                self.remove(&mut state, leaf, &mut evicted);
                if leaf == slot {
                    break;
                }
            }
        }
        evicted
    }

    /// Gives up `pages` pages of a class of a group with a window, or as many as nobody else holds: units stay, with a hole. Looks at
    /// every entry, and sorts those that have such a page.
    fn hollow(&self, group: usize, class: PageClass, pages: usize) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        let (State { entries, stats, .. }, blocks) = (&mut *state, self.blocks_of(group));
        let mut found: Vec<(u64, u32, usize)> = Vec::new();
        let sole = self.groups[group].pools.of(class).letting_go();
        for slot in entries.slots() {
            let of_class = |entry: &BlockEntry| entry.pages().find(|page| page.class == class).map(|page| page.id);
            for block in blocks.clone() {
                let id = entries.pages_of(slot)[block].as_ref().and_then(of_class);
                // Without memory for the list, those found so far.
                if id.is_some_and(|id| sole.is_sole(id)) && found.try_reserve(1).is_ok() {
                    found.push((entries.nodes[slot as usize].seen_at, slot, block));
                }
            }
        }
        // Whoever takes references over may need the books.
        drop(sole);
        found.sort_unstable();
        for (_, slot, block) in found.into_iter().take(pages) {
            if let Some(entry) = entries.put_block(slot, block, None) {
                evicted.take_block(group, entry);
            }
        }
        stats.hollowed += evicted.blocks as u64;
        evicted
    }

    /// Removes the unit that names `host`, a page of group number `group`, and all units behind it: for a sequence that is
    /// about to write the page and shares it with the index alone. Of a group with a window the block goes, and nothing else.
    pub fn forget(&self, group: usize, host: PageId) -> Evicted {
        let mut evicted = Evicted::new(&self.groups);
        let mut state = self.state.lock();
        if self.groups.get(group).is_some_and(|shape| shape.window.is_some()) {
            let State { entries, stats, .. } = &mut *state;
            let Some(slot) = entries.owner(group, host) else { return evicted };
            let of_page = |block: &usize| entries.pages_of(slot)[*block].is_some_and(|entry| entry.host == host);
            let block = self.blocks_of(group).find(of_page);
            if let Some(entry) = block.and_then(|block| entries.put_block(slot, block, None)) {
                evicted.take_block(group, entry);
                stats.hollowed += 1;
            }
            return evicted;
        }
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
        let victim = self.evict_leaf(state, spared, &self.books());
        if let Some(slot) = victim {
            evicted.take(&self.groups, self.unit(), state.entries.pages_of(slot));
        }
        victim.is_some()
    }

    /// The books of all classes that are cached: locked once for as many questions as there are.
    fn books(&self) -> Vec<Books<'_>> {
        self.groups.iter().map(|group| Books::of(&group.pools)).collect()
    }

    /// Removes the entry that the policy picks, and returns its slot.
    fn evict_leaf(&self, state: &mut State<T>, spared: u32, books: &[Books<'_>]) -> Option<u32> {
        let State { entries, policy, .. } = state;
        let slot = policy.victim(&mut |slot| {
            let mut rest = entries.pages_of(slot);
            slot != spared
                && entries.nodes[slot as usize].children == 0
                && self.groups.iter().zip(books).all(|(group, books)| {
                    let (mine, others) = rest.split_at(self.unit() / group.block);
                    rest = others;
                    mine.iter().flatten().all(|entry| books.is_sole(entry))
                })
        })?;
        state.count_eviction(slot);
        state.remove(slot);
        Some(slot)
    }

    /// Nobody but the index holds these pages, so that giving them up frees them.
    pub(super) fn is_unused(&self, pages: &[Option<BlockEntry>]) -> bool {
        self.pages_of(pages).all(|(shape, page)| shape.pools.of(page.class).references(page.id) == Ok(1))
    }

    /// Pages of a class that [`make_room`](Self::make_room) could free, of a group of which units may lack it.
    pub(super) fn idle_pages(&self, group: usize, class: PageClass) -> usize {
        let state = self.state.lock();
        let (entries, blocks) = (&state.entries, self.blocks_of(group));
        let sole = self.groups[group].pools.of(class).letting_go();
        let pages = entries.slots().flat_map(|slot| entries.pages_of(slot)[blocks.clone()].iter().flatten());
        pages.filter(|entry| entry.pages().any(|page| page.class == class && sole.is_sole(page.id))).count()
    }

    /// The pages of a unit, group by group.
    fn pages_of<'a>(
        &'a self,
        entries: &'a [Option<BlockEntry>],
    ) -> impl Iterator<Item = (&'a GroupShape, PageRef)> + 'a {
        let mut rest = entries;
        self.groups.iter().flat_map(move |shape| {
            let (mine, others) = rest.split_at(self.unit() / shape.block);
            rest = others;
            mine.iter().flatten().flat_map(move |entry| entry.pages().map(move |page| (shape, page)))
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

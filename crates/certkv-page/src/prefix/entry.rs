//! The entries of the index: a slab of nodes of a tree, with their tokens and pages side by side.
use super::index::GroupShape;
use super::key::{BlockKey, MarkDigest};
use crate::error::TableError;
use crate::table::BlockEntry;
use certkv_core::budget::hash_table_bytes;
use certkv_core::{PageId, planted};
use core::hash::{BuildHasher, Hash, Hasher};
use foldhash::quality::RandomState;
use std::collections::HashMap;

pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Node<T> {
    /// Hash of all that it stands for, from the root on.
    pub(super) name: u64,
    /// The block before it; [`NONE`] for a first block.
    pub(super) parent: u32,
    /// What the first block follows: tells first blocks of different scopes apart when keys are compared in full.
    pub(super) root: BlockKey,
    pub(super) children: u32,
    pub(super) marks: MarkDigest,
    /// `None` for a free slot.
    pub(super) note: Option<T>,
    /// The index's clock when it was last used.
    pub(super) used: u64,
    /// The same of its blocks of groups with a window: when one of them was last in a window that was found or published.
    pub(super) seen_at: u64,
    /// Scratch of a walk: the walk that last came by.
    pub(super) seen: u64,
}

/// Everything that decides whether a block is the one that is looked for.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) parent: u32,
    pub(super) root: BlockKey,
    pub(super) tokens: &'a [u32],
    pub(super) marks: MarkDigest,
}

#[derive(Debug)]
pub(super) struct Entries<T> {
    pub(super) nodes: Vec<Node<T>>,
    free: Vec<u32>,
    /// By the first bits of names. They only say where to look: what is there is compared in full.
    places: HashMap<u64, u32, Uniform>,
    random: RandomState,
    tokens: Vec<u32>,
    /// `None`: a block of a group with a window whose pages are not cached.
    pages: Vec<Option<BlockEntry>>,
    /// By group and host slot: the entry that names the page, so that no page is named twice.
    owners: Vec<Vec<u32>>,
    /// By block of an entry: its group.
    group_of: Vec<usize>,
    capacity: usize,
    unit: usize,
    /// Blocks of all groups in one entry.
    blocks: usize,
    /// Bits of a hash that count. Fewer than all only in tests, which need collisions.
    pub(super) hash_bits: u32,
}

/// Bytes of one entry, its place in the table of hashes not counted.
pub(super) const fn bytes_of<T>(unit: usize, blocks: usize) -> usize {
    size_of::<Node<T>>() + size_of::<u32>() + unit * size_of::<u32>() + blocks * size_of::<Option<BlockEntry>>()
}

/// Bytes of the table of hashes.
pub(super) const fn places_bytes(capacity: usize) -> usize {
    hash_table_bytes::<(u64, u32)>(capacity.saturating_mul(2))
}

impl<T> Entries<T> {
    pub(super) fn create(capacity: usize, unit: usize, groups: &[GroupShape]) -> Result<Self, TableError> {
        let memory = |_| TableError::OutOfMemory { what: "a prefix index" };
        let blocks = groups.iter().map(|group| unit / group.block).sum::<usize>();
        let too_large = || TableError::BadShape { block: unit, max_blocks: capacity };
        let slots = u32::try_from(capacity).ok().filter(|n| *n < NONE).ok_or_else(too_large)?;
        let (mut nodes, mut free, mut tokens, mut pages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut places = HashMap::with_hasher(Uniform::default());
        nodes.try_reserve_exact(capacity).map_err(memory)?;
        free.try_reserve_exact(capacity).map_err(memory)?;
        tokens.try_reserve_exact(capacity.checked_mul(unit).ok_or_else(too_large)?).map_err(memory)?;
        pages.try_reserve_exact(capacity.checked_mul(blocks).ok_or_else(too_large)?).map_err(memory)?;
        // Twice the entries: a table at most half full clears its deletion marks in place and never grows.
        places.try_reserve(capacity.checked_mul(2).ok_or_else(too_large)?).map_err(memory)?;
        free.extend((0..slots).rev());
        let (mut owners, mut group_of) = (Vec::new(), Vec::new());
        for (number, group) in groups.iter().enumerate() {
            let mut of_group = Vec::new();
            of_group.try_reserve_exact(group.pools.host.capacity()).map_err(memory)?;
            of_group.resize(group.pools.host.capacity(), NONE);
            owners.push(of_group);
            group_of.extend(core::iter::repeat_n(number, unit / group.block));
        }
        Ok(Self {
            nodes,
            free,
            places,
            random: RandomState::default(),
            tokens,
            pages,
            owners,
            group_of,
            capacity,
            unit,
            blocks,
            hash_bits: 64,
        })
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.capacity - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn name(&self, content: &Content<'_>) -> u64 {
        let mut hasher = self.random.build_hasher();
        match self.nodes.get(content.parent as usize) {
            None => content.root.hash(&mut hasher),
            Some(parent) => parent.name.hash(&mut hasher),
        }
        content.tokens.hash(&mut hasher);
        if content.marks != MarkDigest::NONE {
            content.marks.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn place_of(&self, name: u64) -> u64 {
        name >> (64 - if planted!(B10) { 2 } else { self.hash_bits })
    }

    /// The entry of a block: `Err` if another one is in its place.
    pub(super) fn find(&self, content: &Content<'_>) -> Option<Result<u32, ()>> {
        let slot = *self.places.get(&self.place_of(self.name(content)))?;
        Some(if self.is(slot, content) { Ok(slot) } else { Err(()) })
    }

    /// The entry of a block, if it names this page of a group: without a hash.
    pub(super) fn find_by_page(&self, content: &Content<'_>, group: usize, page: &BlockEntry) -> Option<u32> {
        self.owner(group, page.host).filter(|slot| self.is(*slot, content))
    }

    /// Whether an entry is that of a block: compared in full.
    fn is(&self, slot: u32, content: &Content<'_>) -> bool {
        if planted!(B10) {
            return true;
        }
        let node = &self.nodes[slot as usize];
        (node.parent, node.root, node.marks) == (content.parent, content.root, content.marks)
            && self.tokens_of(slot) == content.tokens
    }

    pub(super) fn tokens_of(&self, slot: u32) -> &[u32] {
        let start = slot as usize * self.unit;
        &self.tokens[start..start + self.unit]
    }

    /// Pages of all groups, group by group.
    pub(super) fn pages_of(&self, slot: u32) -> &[Option<BlockEntry>] {
        let start = slot as usize * self.blocks;
        &self.pages[start..start + self.blocks]
    }

    /// Whether an entry names this page of a group already, in any life of it.
    pub(super) fn names(&self, group: usize, page: &BlockEntry) -> bool {
        self.owners[group].get(page.host.index as usize).is_some_and(|owner| *owner != NONE)
    }

    /// The entry that names a page.
    pub(super) fn owner(&self, group: usize, host: PageId) -> Option<u32> {
        let slot = *self.owners.get(group)?.get(host.index as usize)?;
        (slot != NONE && self.pages_of(slot).iter().flatten().any(|page| page.host == host)).then_some(slot)
    }

    /// An entry without children that follows `slot`, or is it. Looks at every entry once per block in between.
    pub(super) fn leaf_behind(&self, mut slot: u32) -> u32 {
        while self.nodes[slot as usize].children > 0
            && let Some(child) = self.slots().find(|child| self.nodes[*child as usize].parent == slot)
        {
            slot = child;
        }
        slot
    }

    fn set_owner(&mut self, slot: u32, owner: u32) {
        let start = slot as usize * self.blocks;
        for (page, group) in self.pages[start..start + self.blocks].iter().zip(&self.group_of) {
            if let Some(place) = page.and_then(|page| self.owners[*group].get_mut(page.host.index as usize)) {
                *place = owner;
            }
        }
    }

    /// Gives a block of an entry other pages, or none; returns those that it had.
    pub(super) fn put_block(&mut self, slot: u32, block: usize, page: Option<BlockEntry>) -> Option<BlockEntry> {
        let owners = &mut self.owners[self.group_of[block]];
        let old = core::mem::replace(&mut self.pages[slot as usize * self.blocks + block], page);
        for (page, owner) in [(old, NONE), (page, slot)] {
            if let Some(place) = page.and_then(|page| owners.get_mut(page.host.index as usize)) {
                *place = owner;
            }
        }
        old
    }

    /// Adds an entry; `None` and nothing changed if there is no room.
    pub(super) fn insert(
        &mut self,
        content: &Content<'_>,
        pages: impl Iterator<Item = Option<BlockEntry>>,
        note: T,
        now: u64,
    ) -> Option<u32> {
        let slot = self.free.pop()?;
        let at = slot as usize;
        let Content { parent, root, tokens, marks } = *content;
        let name = self.name(content);
        let node = Node { name, parent, root, children: 0, marks, note: Some(note), used: now, seen_at: now, seen: 0 };
        // Slots are handed out in order the first time, so a new one is the next.
        if at == self.nodes.len() {
            self.nodes.push(node);
            self.tokens.extend_from_slice(tokens);
            self.pages.extend(pages);
        } else {
            self.nodes[at] = node;
            self.tokens[at * self.unit..(at + 1) * self.unit].copy_from_slice(tokens);
            let places = &mut self.pages[at * self.blocks..(at + 1) * self.blocks];
            places.iter_mut().zip(pages).for_each(|(place, page)| *place = page);
        }
        if let Some(parent) = self.nodes.get_mut(parent as usize) {
            parent.children += 1;
        }
        self.places.insert(self.place_of(name), slot);
        self.set_owner(slot, slot);
        Some(slot)
    }

    /// Removes an entry without children. Its pages stay readable until the slot is used again.
    pub(super) fn remove(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        debug_assert_eq!(node.children, 0);
        node.note = None;
        let (parent, name) = (node.parent, node.name);
        if !planted!(B8) {
            self.places.remove(&self.place_of(name));
        }
        if let Some(parent) = self.nodes.get_mut(parent as usize) {
            parent.children -= 1;
        }
        self.set_owner(slot, NONE);
        self.free.push(slot);
    }

    /// Slots in use.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().enumerate().filter(|(_, node)| node.note.is_some()).map(|(slot, _)| slot as u32)
    }
}

/// Takes a number that is a hash already for its hash.
#[derive(Debug, Clone, Copy, Default)]
struct Uniform(u64);

impl BuildHasher for Uniform {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Uniform {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

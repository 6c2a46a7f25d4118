//! The tree of cached blocks.
use super::entry::{Content, Entries, NONE, bytes_of, places_bytes};
use super::events::{Log, PrefixEvents};
use super::evict::Evicted;
use super::key::{Chain, Prompt};
use super::reach::Reach;
use crate::alloc::PageAllocator;
use crate::error::TableError;
use crate::policy::EvictionPolicy;
use crate::pools::{PageClass, Pools};
use crate::sync::Mutex;
use crate::table::BlockTable;
use crate::window::Window;
use certkv_core::Histogram;
use core::ops::Range;

/// One KV group of the engine.
#[derive(Debug, Clone)]
pub struct GroupShape {
    /// Its allocators.
    pub pools: Pools,
    /// Tokens per block.
    pub block: usize,
    /// Blocks that a table of the group can hold.
    pub max_blocks: usize,
    /// What its queries see; `None` for everything. Units may lack blocks of a group with a window.
    pub window: Option<Window>,
}

impl GroupShape {
    /// Whether units may lack pages of a class that others have: of a group with a window any but tails, and where codes have levels those
    /// of each.
    pub(super) fn lacks(&self, class: PageClass) -> bool {
        class != PageClass::Tail && (self.window.is_some() || class != PageClass::Host && self.pools.level_count() > 1)
    }
}

/// What was found of a prompt: tables with references of their own, and the notes of the units in order.
#[derive(Debug)]
pub struct Hit<T> {
    /// Tokens found, in whole units.
    pub tokens: usize,
    /// One table per group, each of `tokens` tokens. Left to drop, their pages are given back.
    pub tables: Vec<BlockTable>,
    /// One note per unit.
    pub notes: Vec<T>,
}

/// Why a publication ended before the last full unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The caller had no note for the unit: its pages do not fit those of the cached unit before it.
    Declined,
    /// Another block has the same hash. It stays; this one is not published.
    Collision,
    /// Its pages are cached already under another name: in another scope, say.
    Elsewhere,
    /// A table with a window gave up pages of the unit, and the index knows of no window in its group. What comes before the hole can
    /// be published, and what comes behind it if the units before are cached.
    Gone,
    /// The index is full of entries in use.
    Full,
    /// A page could not be shared.
    Page(TableError),
}

/// What a publication did.
#[derive(Debug)]
#[must_use = "evicted pages wait to be retired"]
pub struct Published {
    /// Units that were there before.
    pub known: usize,
    /// Units added.
    pub added: usize,
    /// Blocks of groups with a window that units had lacked.
    pub filled: usize,
    /// Units of the prompt that a look-up would find now: as many as are cached, or fewer where windows are not.
    pub usable: usize,
    /// Why it ended early, if it did.
    pub stop: Option<Stop>,
    /// What had to go for it.
    pub evicted: Evicted,
}

/// What an index has seen since it was made. Ages are in look-ups and publications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefixStats {
    /// Look-ups.
    pub lookups: u64,
    /// Full units asked for, over all look-ups.
    pub asked: u64,
    /// Units found.
    pub hits: u64,
    /// Units published.
    pub published: u64,
    /// Units evicted.
    pub evicted: u64,
    /// Blocks of groups with a window that were given up while their units stayed.
    pub hollowed: u64,
    /// Blocks in whose place another one was found.
    pub collisions: u64,
    /// Over hits, the time since the unit's last use.
    pub age_at_hit: Histogram,
    /// Over evictions, the time since the unit's last use.
    pub age_at_eviction: Histogram,
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub(super) entries: Entries<T>,
    pub(super) policy: Box<dyn EvictionPolicy>,
    pub(super) stats: PrefixStats,
    /// Look-ups and publications so far.
    pub(super) clock: u64,
    /// Walks over the tree so far.
    pub(super) walks: u64,
    /// Slots of the path at hand, first block first.
    pub(super) path: Vec<u32>,
    /// By group: what of its window the path at hand has.
    pub(super) reach: Vec<Reach>,
    /// What is told of units; `None` where nobody asked.
    pub(super) log: Option<Log>,
}

impl<T> State<T> {
    /// Removes an entry without children, and says so.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(log) = &self.log {
            log.removed(&self.entries, slot);
        }
        self.entries.remove(slot);
    }
}

/// Cached blocks of prompts, in units of the largest block of all groups.
///
/// Of a group with a window a unit may lack blocks: they had left the window when it was published, or were given up since. A prefix
/// is found up to the longest length at which the next query's window is there in every group (`reach`).
///
/// A page has one name at most, and the index one reference to it: so a page with one reference is the index's alone.
///
/// A unit is found by comparing scope, parent, tokens and marks in full; a hash only says where to look, and a collision of
/// hashes is a miss. Its key ([`Chain::next`]), the name that goes outside the process, is computed when it does. One lock, held for as long as a look-up walks its path; nobody asks the
/// device under it.
#[derive(Debug)]
pub struct PrefixIndex<T> {
    pub(super) groups: Vec<GroupShape>,
    unit: usize,
    pub(super) state: Mutex<State<T>>,
    pub(super) events: Option<PrefixEvents>,
}

impl<T> PrefixIndex<T> {
    /// An index of at most `capacity` units over `groups`, which evicts as `policy` says. All memory but the notes' is
    /// taken here.
    ///
    /// # Errors
    /// [`TableError::BadShape`] without groups, if a block does not divide the largest, or if two classes have one allocator;
    /// [`TableError::OutOfMemory`].
    pub fn create(
        groups: Vec<GroupShape>,
        capacity: usize,
        policy: Box<dyn EvictionPolicy>,
    ) -> Result<Self, TableError> {
        let unit = groups.iter().map(|group| group.block).max().unwrap_or(0);
        if unit == 0 || groups.iter().any(|group| group.block == 0 || !unit.is_multiple_of(group.block)) {
            return Err(TableError::BadShape { block: unit, max_blocks: capacity });
        }
        // Their books are locked side by side.
        let pools = || groups.iter().map(|group| &group.pools);
        let mut pages: Vec<&PageAllocator> = pools().flat_map(|pools| [&pools.host, &pools.packed]).collect();
        pages.extend(pools().flat_map(|pools| pools.levels.iter()));
        pages.sort_by_key(|pages| pages.address());
        if pages.windows(2).any(|two| two[0].address() == two[1].address()) {
            return Err(TableError::BadShape { block: unit, max_blocks: capacity });
        }
        let entries = Entries::create(capacity, unit, &groups)?;
        let longest = groups.iter().map(|group| group.max_blocks * group.block / unit).max().unwrap_or(0);
        let mut path = Vec::new();
        path.try_reserve_exact(longest).map_err(|_| TableError::OutOfMemory { what: "a prefix index" })?;
        let mut reach = Vec::new();
        reach.try_reserve_exact(groups.len()).map_err(|_| TableError::OutOfMemory { what: "a prefix index" })?;
        reach.resize(groups.len(), Reach::default());
        let state =
            State { entries, policy, stats: PrefixStats::default(), clock: 0, walks: 0, path, reach, log: None };
        Ok(Self { groups, unit, state: Mutex::new(state), events: None })
    }

    /// Host bytes of an index over groups of `(block, host pages, most blocks of a table)`; notes and policy not counted. For the ledger.
    pub fn bytes(groups: &[(usize, usize, usize)], capacity: usize) -> usize {
        let unit = groups.iter().map(|(block, ..)| *block).max().unwrap_or(1).max(1);
        let blocks = groups.iter().map(|(block, ..)| unit / (*block).max(1)).sum();
        let owners =
            groups.iter().fold(0usize, |sum, (_, pages, _)| sum.saturating_add(pages.saturating_mul(size_of::<u32>())));
        let path = groups.iter().map(|(block, _, most)| most.saturating_mul(*block) / unit).max().unwrap_or(0);
        let entries = capacity.saturating_mul(bytes_of::<T>(unit, blocks)).saturating_add(places_bytes(capacity));
        let reach = groups.len().saturating_mul(size_of::<Reach>());
        entries.saturating_add(owners).saturating_add(path.saturating_mul(size_of::<u32>())).saturating_add(reach)
    }

    /// From here on only the first `bits` of a hash count: tests need collisions.
    #[cfg(all(test, not(loom), not(shuttle)))]
    pub(crate) fn shorten_hashes(&self, bits: u32) {
        self.state.lock().entries.hash_bits = bits;
    }

    /// Places of a group's blocks in a unit.
    pub(super) fn blocks_of(&self, group: usize) -> Range<usize> {
        let first = self.groups[..group].iter().map(|before| self.unit / before.block).sum::<usize>();
        first..first + self.unit / self.groups[group].block
    }

    /// What it was made over.
    pub fn groups(&self) -> &[GroupShape] {
        &self.groups
    }

    /// Tokens per unit.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Units cached.
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Nothing cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most units that can be cached.
    pub fn capacity(&self) -> usize {
        self.state.lock().entries.capacity()
    }

    /// What it has seen.
    pub fn stats(&self) -> PrefixStats {
        self.state.lock().stats
    }

    /// The longest prefix of `prompt` that is cached and can be continued, and tables that own it. A prompt that is cached whole is found
    /// whole: whoever needs its last token computed anew passes the prompt without it.
    ///
    /// Costs a hash of 64 bits and a comparison a unit, a look at each block with a window, and two references a block.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`], [`TableError::Page`] if a page has no room for another reference; nothing changed.
    pub fn longest(&self, chain: &Chain, prompt: Prompt<'_>) -> Result<Hit<T>, TableError>
    where
        T: Clone,
    {
        let mut state = self.state.lock();
        let State { entries, policy, stats, clock, path, reach, .. } = &mut *state;
        *clock += 1;
        stats.lookups += 1;
        stats.asked += (prompt.tokens.len() / self.unit) as u64;
        stats.collisions += u64::from(self.follow(entries, chain, prompt, path));
        path.truncate(self.usable(entries, path, reach));
        let tables = self.tables(entries, path)?;
        let mut notes = Vec::new();
        notes.try_reserve_exact(path.len()).map_err(|_| TableError::OutOfMemory { what: "a prefix" })?;
        for slot in path.iter() {
            let node = &mut entries.nodes[*slot as usize];
            notes.extend(node.note.clone());
            stats.age_at_hit.record(*clock - node.used);
            node.used = *clock;
        }
        self.touch_windows(entries, path, &tables, *clock);
        stats.hits += path.len() as u64;
        path.iter().rev().for_each(|slot| policy.touch(*slot));
        Ok(Hit { tokens: path.len() * self.unit, tables, notes })
    }

    /// Fills `path` with the cached units of `prompt` from its first on; whether another unit of the same hash ended it.
    pub(super) fn follow(&self, entries: &Entries<T>, chain: &Chain, prompt: Prompt<'_>, path: &mut Vec<u32>) -> bool {
        path.clear();
        for content in self.units(chain, prompt) {
            let parent = path.last().copied().unwrap_or(NONE);
            match entries.find(&Content { parent, ..content }) {
                Some(Ok(slot)) if path.len() < path.capacity() => path.push(slot),
                found => return matches!(found, Some(Err(()))),
            }
        }
        false
    }

    /// The full units of a prompt as they are compared, but for the parent.
    pub(super) fn units<'a>(
        &self,
        chain: &'a Chain,
        prompt: Prompt<'a>,
    ) -> impl Iterator<Item = Content<'a>> + use<'a, T> {
        let (unit, root) = (self.unit, chain.root());
        prompt.tokens.chunks_exact(unit).enumerate().map(move |(i, tokens)| {
            let marks = chain.marks(&prompt, i * unit, unit);
            Content { parent: NONE, root, tokens, marks }
        })
    }

    /// Tables over the pages of a path that can be continued, with references of their own.
    fn tables(&self, entries: &Entries<T>, path: &[u32]) -> Result<Vec<BlockTable>, TableError> {
        let mut tables = Vec::new();
        tables.try_reserve_exact(self.groups.len()).map_err(|_| TableError::OutOfMemory { what: "a prefix" })?;
        let mut first = 0;
        for GroupShape { pools, block, max_blocks, window } in &self.groups {
            let each = self.unit / block;
            tables.push(match window {
                None => {
                    let pages = path.iter().flat_map(|slot| &entries.pages_of(*slot)[first..first + each]);
                    BlockTable::adopt(pools, *block, *max_blocks, pages.flatten().copied())?
                }
                Some(window) => {
                    let page = |number: usize| entries.pages_of(path[number / each])[first + number % each];
                    BlockTable::adopt_window(pools, (*block, *max_blocks), *window, path.len() * each, page)?
                }
            });
            first += each;
        }
        Ok(tables)
    }
}

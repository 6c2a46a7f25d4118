//! The book of one side: which slot holds what, in which state. Pure data; the pool's lock is around it.
use crate::scratch::ScratchStats;
use crate::side::{Mix, SideKey};
use certkv_core::{
    PageId,
    budget::hash_table_bytes,
    planted,
    sync::atomic::{AtomicU32, Ordering},
};
use certkv_device::{Fence, Stream};
use core::mem::take;
use std::collections::HashMap;
use std::collections::TryReserveError;

const NONE: u32 = u32::MAX;
/// Streams that may read one side; their set is one word per slot.
const MAX_READERS: usize = 64;

/// State of a slot; docs/states.md has the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Free.
    Empty,
    /// Reserved for a copy that was not seen to have succeeded.
    Filling,
    /// Holds the side it names.
    Valid,
    /// No longer named; waits for its pins or its copy.
    Retiring,
}

/// Slots of one side by state. The four states add up to the capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Free slots.
    pub empty: u32,
    /// Slots being filled.
    pub filling: u32,
    /// Slots that hold a side.
    pub valid: u32,
    /// Slots that wait for leases or copies.
    pub retiring: u32,
    /// Leases alive.
    pub pins: u32,
}

/// Slots of one side by what can be told without a look at each. The three add up to the capacity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Free slots.
    pub empty: usize,
    /// Slots that hold a side, or are being filled with one.
    pub named: usize,
    /// Slots that wait for leases or copies.
    pub retiring: usize,
}

#[derive(Debug)]
struct Slot {
    state: State,
    key: Option<SideKey>,
    tag: Option<u64>,
    /// Second chance.
    referenced: bool,
    /// Last batch that asked for the side, or that came before its last look-up.
    batch: u64,
    /// Set of streams that read the slot since it was last filled.
    readers: u64,
    /// Fence of the copy in flight.
    fill: Option<Fence>,
    /// Neighbours in the list of the page's sides.
    next: u32,
    previous: u32,
}

/// What a reservation found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// The side is there or on its way.
    Present,
    /// A slot to fill, and the streams that must have read it first.
    Slot(u32, u64),
    /// Nothing can be evicted.
    Full,
}

#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Free slots that hold nothing, or what nobody minds.
    free: Vec<u32>,
    /// Free slots that hold what was there last. A fill takes these first: it overwrites all of a slot.
    soiled: Vec<u32>,
    index: HashMap<SideKey, u32, Mix>,
    /// First side of each page.
    pages: HashMap<PageId, u32, Mix>,
    /// Slots whose copy has a fence, or that wait for pins.
    unsettled: Vec<u32>,
    hand: u32,
    batch: u64,
    pub(crate) readers: Vec<Stream>,
    pub(crate) stats: ScratchStats,
    /// A defect for tests: sides are found before their copies were seen to have ended.
    #[cfg(test)]
    pub(crate) early: bool,
}

impl Slots {
    pub(crate) fn new(n: u32) -> Result<Self, TryReserveError> {
        let (mut slots, mut free, mut soiled, mut unsettled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        slots.try_reserve_exact(n as usize)?;
        free.try_reserve_exact(n as usize)?;
        soiled.try_reserve_exact(n as usize)?;
        unsettled.try_reserve_exact(2 * n as usize)?;
        let (mut index, mut pages) = (HashMap::with_hasher(Mix::default()), HashMap::with_hasher(Mix::default()));
        // Twice the entries: a table at most half full clears its deletion marks in place and never grows.
        index.try_reserve(2 * n as usize)?;
        pages.try_reserve(2 * n as usize)?;
        slots.extend((0..n).map(|_| Slot {
            state: State::Empty,
            key: None,
            tag: None,
            referenced: false,
            batch: 0,
            readers: 0,
            fill: None,
            next: NONE,
            previous: NONE,
        }));
        free.extend((0..n).rev());
        Ok(Self {
            slots,
            free,
            soiled,
            index,
            pages,
            unsettled,
            hand: 0,
            batch: 0,
            readers: Vec::with_capacity(4),
            stats: ScratchStats::default(),
            #[cfg(test)]
            early: false,
        })
    }

    /// Number of a reading stream; `None` if there are too many.
    fn reader(&mut self, stream: &Stream) -> Option<usize> {
        let known = self.readers.iter().position(|s| s.index() == stream.index());
        if known.is_none() && self.readers.len() < MAX_READERS {
            self.readers.push(stream.clone());
            return Some(self.readers.len() - 1);
        }
        known
    }

    pub(crate) fn contains(&mut self, key: &SideKey, pins: &[AtomicU32]) -> bool {
        let Some(&slot) = self.index.get(key) else { return false };
        if self.slots[slot as usize].state == State::Filling {
            // It may stay in the list of unsettled slots: settling it again does nothing, and every reservation settles
            // all of them first, so that no entry of the list outlives the slot's present use.
            self.settle_slot(slot, pins);
        }
        self.index.get(key).is_some_and(|&slot| self.slots[slot as usize].state == State::Valid)
    }

    /// The slot of a valid side, noted as read by `stream`, and its tag. The caller pins it before it unlocks.
    pub(crate) fn find(&mut self, key: &SideKey, stream: &Stream, pins: &[AtomicU32]) -> Option<(u32, Option<u64>)> {
        let filling = self.index.get(key).is_some_and(|&slot| self.slots[slot as usize].state == State::Filling);
        let found = if self.contains(key, pins) { self.index.get(key).copied() } else { None };
        let (Some(slot), Some(reader)) = (found, self.reader(stream)) else {
            self.stats.misses += 1;
            self.stats.pending += u64::from(filling);
            return None;
        };
        let entry = &mut self.slots[slot as usize];
        self.stats.hits += 1;
        self.stats.age_at_hit.record(self.batch - entry.batch);
        entry.referenced = true;
        entry.batch = self.batch;
        entry.readers |= 1 << reader;
        Some((slot, entry.tag))
    }

    /// Begins a batch of reservations: settles everything, and marks what is there of `wanted`.
    pub(crate) fn begin_batch<'a>(&mut self, wanted: impl Iterator<Item = &'a SideKey>, pins: &[AtomicU32]) {
        self.settle(pins);
        self.batch += 1;
        for key in wanted {
            if let Some(&slot) = self.index.get(key) {
                self.slots[slot as usize].batch = self.batch;
            }
        }
    }

    /// Takes a slot for `key`: a free one, or the first unpinned one that was not looked up since the hand last passed.
    /// `full` spares the hand its way round when it has just found nothing.
    ///
    /// What the last `spared` batches asked for, the present one included, stays, and so does what was looked up since the
    /// first of them.
    pub(crate) fn reserve(
        &mut self,
        key: SideKey,
        tag: Option<u64>,
        pins: &[AtomicU32],
        spared: u64,
        full: bool,
    ) -> Reserved {
        if self.index.contains_key(&key) {
            return Reserved::Present;
        }
        if full {
            return Reserved::Full;
        }
        let unused = self.soiled.pop().or_else(|| self.free.pop());
        let Some(slot) = unused.or_else(|| self.evict(pins, spared)) else { return Reserved::Full };
        let entry = &mut self.slots[slot as usize];
        (entry.state, entry.key, entry.tag, entry.referenced) = (State::Filling, Some(key), tag, true);
        entry.batch = self.batch;
        let readers = entry.readers;
        self.link(key, slot);
        Reserved::Slot(slot, readers)
    }

    fn evict(&mut self, pins: &[AtomicU32], spared: u64) -> Option<u32> {
        let n = self.slots.len() as u32;
        let mut again = false;
        for i in 0..2 * n {
            // A second way round finds something only if the first took away a second chance.
            if i == n && !again {
                break;
            }
            let slot = self.hand;
            self.hand = (self.hand + 1) % n;
            let entry = &self.slots[slot as usize];
            let recent = entry.batch.saturating_add(spared) > self.batch;
            if entry.state != State::Valid || recent || self.held(slot, pins) {
                continue;
            }
            let entry = &mut self.slots[slot as usize];
            if !take(&mut entry.referenced) {
                self.unlink(slot);
                self.stats.evictions += 1;
                self.stats.age_at_eviction.record(self.batch - self.slots[slot as usize].batch);
                return Some(slot);
            }
            again = true;
        }
        None
    }

    /// Acquire pairs with the Release of the last lease: its reads are over.
    fn held(&self, slot: u32, pins: &[AtomicU32]) -> bool {
        !planted!(B6) && pins[slot as usize].load(Ordering::Acquire) != 0
    }

    /// A reserved slot whose copy is in flight behind `fence`.
    pub(crate) fn filling(&mut self, slot: u32, fence: &Fence) {
        self.slots[slot as usize].fill = Some(fence.clone());
        self.unsettled.push(slot);
    }

    /// A reserved slot whose copy is not in flight. Its readers stay noted: the next copy still has to wait for them.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.stats.failed += 1;
        self.unlink(slot);
        self.release(slot);
    }

    /// Settles what can be settled: finished copies become valid or vanish, retired slots without pins become free.
    pub(crate) fn settle(&mut self, pins: &[AtomicU32]) {
        let mut i = 0;
        while let Some(&slot) = self.unsettled.get(i) {
            if self.settle_slot(slot, pins) {
                self.unsettled.swap_remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Whether nothing is left to wait for.
    fn settle_slot(&mut self, slot: u32, pins: &[AtomicU32]) -> bool {
        #[cfg(test)]
        let early = self.early;
        #[cfg(not(test))]
        let early = false;
        let entry = &mut self.slots[slot as usize];
        if let Some(fence) = &entry.fill {
            let outcome = if early { Ok(true) } else { fence.completed() };
            let outcome = outcome.or_else(|error| if planted!(B18) { Ok(true) } else { Err(error) });
            if outcome == Ok(false) {
                return false;
            }
            // The fill waited for the earlier readers, and it has run: they are done, whatever became of it.
            entry.fill = None;
            entry.readers = 0;
            match (entry.state, outcome) {
                (State::Filling, Ok(_)) => {
                    entry.state = State::Valid;
                    self.stats.filled += 1;
                    return true;
                }
                (State::Filling, Err(_)) => {
                    self.give_back(slot);
                    return true;
                }
                _ => {}
            }
        }
        if self.slots[slot as usize].state == State::Retiring {
            if pins[slot as usize].load(Ordering::Acquire) != 0 {
                return false;
            }
            self.release(slot);
        }
        true
    }

    /// Forgets the sides of a page.
    pub(crate) fn invalidate_page(&mut self, page: PageId, pins: &[AtomicU32]) {
        while let Some(&slot) = self.pages.get(&page) {
            self.unlink(slot);
            self.stats.invalidated += 1;
            let held = pins[slot as usize].load(Ordering::Acquire) != 0;
            let entry = &mut self.slots[slot as usize];
            match entry.state {
                State::Valid if !held => self.release(slot),
                State::Valid => {
                    entry.state = State::Retiring;
                    self.unsettled.push(slot);
                }
                // Its copy is in flight or about to be; `filling` or `give_back` still comes, or `settle` does.
                _ => entry.state = State::Retiring,
            }
        }
    }

    fn release(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        (entry.state, entry.key, entry.tag) = (State::Empty, None, None);
        self.soiled.push(slot);
    }

    /// Free slots, erased or not.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.iter().chain(&self.soiled).copied()
    }

    /// Takes a free slot that holds what was there last, to be given back with [`Slots::erased`].
    pub(crate) fn take_soiled(&mut self) -> Option<u32> {
        self.soiled.pop()
    }

    /// Gives back a slot that was taken to be erased.
    pub(crate) fn erased(&mut self, slot: u32, done: bool) {
        if done { self.free.push(slot) } else { self.soiled.push(slot) }
    }

    /// Names the slot: index and page list.
    fn link(&mut self, key: SideKey, slot: u32) {
        self.index.insert(key, slot);
        let first = self.pages.insert(key.page, slot).unwrap_or(NONE);
        self.slots[slot as usize].next = first;
        self.slots[slot as usize].previous = NONE;
        if first != NONE {
            self.slots[first as usize].previous = slot;
        }
    }

    /// Takes the slot's name away, if it has one.
    fn unlink(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let Some(key) = entry.key.take() else { return };
        let (next, previous) = (entry.next, entry.previous);
        (entry.next, entry.previous) = (NONE, NONE);
        self.index.remove(&key);
        if next != NONE {
            self.slots[next as usize].previous = previous;
        }
        match (previous, next) {
            (NONE, NONE) => {
                self.pages.remove(&key.page);
            }
            (NONE, next) => {
                self.pages.insert(key.page, next);
            }
            (previous, next) => self.slots[previous as usize].next = next,
        }
    }

    /// Bytes of a book about `n` slots.
    pub(crate) const fn bytes(n: usize) -> usize {
        // Beside the slots: a place in either list of free ones, two in the list of unsettled ones.
        let per_slot = size_of::<Slot>() + 4 * size_of::<u32>();
        let tables = hash_table_bytes::<(SideKey, u32)>(2 * n).saturating_add(hash_table_bytes::<(PageId, u32)>(2 * n));
        n.saturating_mul(per_slot).saturating_add(tables)
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        let (empty, named) = (self.free.len() + self.soiled.len(), self.index.len());
        Occupancy { empty, named, retiring: self.slots.len().saturating_sub(empty + named) }
    }

    pub(crate) fn census(&self, pins: &[AtomicU32]) -> Census {
        let mut census = Census::default();
        for (slot, pins) in self.slots.iter().zip(pins) {
            match slot.state {
                State::Empty => census.empty += 1,
                State::Filling => census.filling += 1,
                State::Valid => census.valid += 1,
                State::Retiring => census.retiring += 1,
            }
            census.pins += pins.load(Ordering::Acquire);
        }
        debug_assert_eq!(census.empty as usize, self.free.len() + self.soiled.len());
        debug_assert_eq!((census.filling + census.valid) as usize, self.index.len());
        census
    }
}

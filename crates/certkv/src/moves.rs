//! Events of blocks that move: out of the device's memory and back with their sequence, into a store and back.
//!
//! For who decides where requests go, or when to swap: beside the events of cached prefixes ([`crate::PrefixEvents`]), which say what a cache
//! has. A ring of the latest, under numbers that go up by one; without it nothing is done for them.
use crate::{Cache, Error};
use certkv_core::SequenceId;
use certkv_page::latest::{EventsRead, Latest, NotYet};
use certkv_page::{BlockTable, PageId, SwapPlan};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a block went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveKind {
    /// Its codes left the device's memory with their sequence ([`Cache::swap_out`]).
    SwappedOut,
    /// Its codes are back ([`Cache::swap_in`]).
    SwappedIn,
    /// Its originals are in the store, too, in one layer: they leave host memory when others need the room.
    Spilled,
    /// Its originals are back in host memory, in one layer, for a step that reads them.
    Fetched,
}

/// A block that has moved, in one layer or in a run of layers that share pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveEvent {
    /// 0 for the first of a cache; each is one more than the one before.
    pub number: u64,
    /// Where it went.
    pub kind: MoveKind,
    /// Whose it is. `None` where that is not known: what is spilled is a page, which forks and cached prefixes may share.
    pub sequence: Option<SequenceId>,
    /// Which block of the sequence; `None` with it.
    pub block: Option<u32>,
    /// The first layer.
    pub layer: u32,
    /// How many layers from it on.
    pub layers: u32,
    /// What the page of its originals is called, for as long as it is this block's: with `layer`, what was spilled is what is fetched.
    pub page: u64,
    /// Bytes that moved.
    pub bytes: u64,
}

impl Default for MoveEvent {
    /// Of nothing: what buffers are filled with before a read.
    fn default() -> Self {
        let kind = MoveKind::Spilled;
        Self { number: 0, kind, sequence: None, block: None, layer: 0, layers: 0, page: 0, bytes: 0 }
    }
}

impl MoveEvent {
    /// What a page is called.
    pub(crate) fn page(id: PageId) -> u64 {
        u64::from(id.generation) << 32 | u64::from(id.index)
    }

    /// The originals in a page of one layer.
    pub(crate) fn originals(kind: MoveKind, layer: usize, page: PageId, bytes: u64) -> Self {
        let (layer, page) = (layer as u32, Self::page(page));
        Self { number: 0, kind, sequence: None, block: None, layer, layers: 1, page, bytes }
    }

    /// Blocks whose codes a sequence's plan has copied, before it is committed: one event for each of the `runs` of a level, which are a
    /// first layer, layers and bytes of a block.
    pub(crate) fn swapped(
        id: SequenceId,
        table: &BlockTable,
        plan: &SwapPlan,
        runs: impl Fn(u8) -> Vec<(usize, usize, usize)>,
    ) -> Vec<Self> {
        let kind = if plan.out() { MoveKind::SwappedOut } else { MoveKind::SwappedIn };
        let pages: BTreeMap<usize, PageId> = table.numbered().map(|(block, entry)| (block, entry.host)).collect();
        let blocks = plan.copies().iter().filter_map(|copy| Some((copy.block, copy.op.level()?)));
        let of = |block: usize, (first, layers, bytes): (usize, usize, usize)| Self {
            number: 0,
            kind,
            sequence: Some(id),
            block: u32::try_from(block).ok(),
            layer: first as u32,
            layers: layers as u32,
            page: pages.get(&block).map_or(0, |page| Self::page(*page)),
            bytes: bytes as u64,
        };
        let of_block = |(block, level)| runs(level).into_iter().map(move |run| (block, run));
        blocks.flat_map(of_block).map(|(block, run)| of(block, run)).collect()
    }
}

/// The latest moves of a cache, to be read from any thread, also after its end.
#[derive(Debug, Clone)]
pub struct MoveEvents(Arc<Mutex<Latest<MoveEvent>>>);

impl MoveEvents {
    /// `None` for no capacity.
    pub(crate) fn create(capacity: usize) -> Result<Option<Self>, Error> {
        if capacity == 0 {
            return Ok(None);
        }
        let none = |_| Error::OutOfMemory { what: "events of moves", bytes: Self::bytes(capacity) };
        let ring = Latest::new(capacity, MoveEvent::default()).map_err(none)?;
        Ok(Some(Self(Arc::new(Mutex::new(ring)))))
    }

    /// Host bytes of the ring.
    pub(crate) const fn bytes(capacity: usize) -> usize {
        capacity.saturating_mul(size_of::<MoveEvent>())
    }

    /// Copies events from number `from` on, or from the oldest that is left. Holds the ring's lock for as long as that takes.
    ///
    /// # Errors
    /// [`NotYet`]; nothing was written.
    pub fn read(&self, from: u64, events: &mut [MoveEvent]) -> Result<EventsRead, NotYet> {
        let room = events.len();
        self.0.lock().read(from, room, |i, event, _| events[i] = *event)
    }

    /// Adds events, in order, under one lock.
    pub(crate) fn push(&self, events: impl IntoIterator<Item = MoveEvent>) {
        let mut ring = self.0.lock();
        for event in events {
            ring.push(|number| MoveEvent { number, ..event });
        }
    }
}

impl Cache {
    /// The latest [`Config::move_events`](crate::Config::move_events) moves of blocks; `None` where none are kept.
    pub fn move_events(&self) -> Option<MoveEvents> {
        self.moves.clone()
    }
}

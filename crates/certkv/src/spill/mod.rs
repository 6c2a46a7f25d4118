//! Originals of live sequences in a store (Tier-3): fewer frames of host memory than there are blocks.
//!
//! Blocks that are full and committed are copied to the store ahead of need ([`Cache::tend`]); a frame whose rows the store has
//! can be given up for another block. Who needs originals asks for all it lacks at once ([`Cache::bring`]). Nothing is held while
//! a thread waits for the store but the right to talk to it: other threads' calls go on, unless they need the store, too.
mod ahead;
mod config;
mod error;
mod fetch;
mod patience;
mod room;

pub use ahead::Prefetched;
pub use config::Spill;
pub use error::{FetchCause, FetchError};
pub(crate) use patience::Patience;
pub(crate) use room::submit;

use crate::cache::Cache;
use crate::group::Group;
use crate::sizes::GroupSizes;
use crate::{Error, Histogram, MoveEvent, MoveKind};
use certkv_core::{Ledger, PageId, SharedHistogram};
use certkv_page::State;
use certkv_tier::spill::map::{Residency, SlotId};
use certkv_tier::spill::records::{Courier, Record, RecordGroup, RecordStats, Records, RecordsConfig};
use core::time::Duration;
use parking_lot::{Mutex, ReentrantMutexGuard};
use std::sync::Arc;
use std::time::Instant;

/// The right to use the streams, which a call gives up while it waits for the store.
pub(crate) type Turn<'a> = ReentrantMutexGuard<'a, ()>;

/// Originals that somebody is about to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Block of the sequence, for errors.
    pub(crate) block: usize,
    /// Layer of the model.
    pub(crate) layer: usize,
    /// The host page.
    pub(crate) page: PageId,
}

/// Originals by where they are, each of one block in one layer, and what it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpillUse {
    /// In host memory alone.
    pub resident: usize,
    /// In host memory and in the store.
    pub stored: usize,
    /// In the store alone.
    pub spilled: usize,
    /// Room of host memory that nothing is in.
    pub free: usize,
    /// Records deleted, deletes that failed, and what waits for its delete.
    pub records: RecordStats,
    /// Times that a call waited for the store, in nanoseconds, from its beginning or its last wait on.
    pub waits: Histogram,
}

/// What spilling needs beside the maps of the groups.
#[derive(Debug)]
pub(crate) struct Spilling {
    pub(crate) records: Records,
    pub(crate) deadline: Duration,
    workers: usize,
    pub(crate) waits: SharedHistogram,
}

impl Spilling {
    pub(crate) fn new(spill: &Spill, groups: &[GroupSizes], format: u64, ledger: &Arc<Ledger>) -> Result<Self, Error> {
        let group = |(number, group): (usize, &GroupSizes)| RecordGroup {
            bytes: group.original_bytes,
            first_layer: group.first as u32,
            format: format ^ number as u64,
        };
        let config = RecordsConfig { workers: spill.workers, buffers: spill.in_flight, close_timeout: spill.deadline };
        let groups = groups.iter().enumerate().map(group).collect();
        let records = Records::new(Arc::clone(&spill.backend), config, groups, Arc::clone(ledger));
        let records = records.map_err(|error| Error::Config { field: "spill", why: error.to_string() })?;
        Ok(Self { records, deadline: spill.deadline, workers: spill.workers, waits: SharedHistogram::default() })
    }

    /// Waits for the store without the turn; `false` once the deadline has passed.
    fn wait(&self, turn: &mut Turn<'_>, io: &Courier<'_>, patience: &mut Patience) -> bool {
        let left = patience.left();
        if let Some(left) = left {
            ReentrantMutexGuard::unlocked(turn, || io.wait(left));
        }
        self.waits.record(patience.count());
        left.is_some()
    }
}

impl Group {
    /// The map of a group that spills.
    pub(crate) fn map(&self) -> Option<&Mutex<Residency>> {
        self.residency.as_ref()
    }

    pub(crate) fn slot_id(&self, page: PageId, layer: usize) -> SlotId {
        SlotId { page, layer: (layer - self.first) as u32 }
    }

    /// Arena slot of the originals of `page` in `layer`.
    ///
    /// # Errors
    /// [`Error::Order`] if they are not in host memory: nobody brought them.
    #[inline]
    pub(crate) fn host_slot(&self, page: PageId, layer: usize) -> Result<u32, Error> {
        let Some(map) = self.map() else { return Ok(self.slot(page, layer)) };
        let frame = map.lock().touch(self.slot_id(page, layer));
        frame.ok_or(Error::Order { layer, why: "originals were read that are not in host memory" })
    }

    /// That the originals in a slot moved.
    pub(crate) fn moved(&self, kind: MoveKind, slot: SlotId, bytes: u64) -> MoveEvent {
        MoveEvent::originals(kind, self.first + slot.layer as usize, slot.page, bytes)
    }

    /// Slots of the present state, and room.
    fn spill_use(&self, into: &mut SpillUse) {
        use certkv_tier::spill::map::State as Of;
        let Some(map) = self.map() else { return };
        let census = map.lock().census();
        into.resident += census.of(Of::Open) + census.of(Of::Resident) + census.of(Of::Spilling);
        into.stored += census.of(Of::Stored);
        into.spilled += census.of(Of::Spilled) + census.of(Of::Fetching);
        into.free += census.free + census.retiring;
    }

    /// Bytes of frames that hold something, or may still be read.
    pub(crate) fn host_bytes(&self, pages: usize) -> usize {
        let Some(map) = self.map() else { return self.sizes.of_originals(pages) };
        let map = map.lock();
        self.sizes.of_frames(map.frames() - map.census().free)
    }
}

impl Cache {
    /// Where originals are, if they can be elsewhere than in host memory.
    pub(crate) fn spill_use(&self) -> Option<SpillUse> {
        let spill = self.spill.as_ref()?;
        let mut found = SpillUse { records: spill.records.stats(), waits: spill.waits.get(), ..SpillUse::default() };
        self.groups.iter().for_each(|group| group.spill_use(&mut found));
        Some(found)
    }

    /// The rows of `page` are final: it may be spilled from now on.
    pub(crate) fn close_originals(&self, group: &Group, page: PageId) {
        if let Some(map) = group.map() {
            map.lock().close(page);
        }
    }

    fn bury(&self, index: usize, dead: &mut Vec<SlotId>) {
        if let (Some(spill), false) = (&self.spill, dead.is_empty()) {
            spill.records.bury(dead.drain(..).map(|slot| Record { group: index as u32, slot }));
        }
    }

    /// A page was reopened under a new generation. Its originals were brought before.
    pub(crate) fn renew_originals(&self, index: usize, old: PageId, new: PageId) -> Result<(), Error> {
        let group = &self.groups[index];
        let Some(map) = group.map() else { return Ok(()) };
        let mut dead = Vec::new();
        let renewed = map.lock().renew(old, new, &mut dead);
        self.bury(index, &mut dead);
        let why = "a block was reopened whose originals are not in host memory";
        if renewed { Ok(()) } else { Err(Error::Order { layer: group.first, why }) }
    }

    /// Frames and records of pages that are free by now go, too.
    fn sweep(&self, index: usize) {
        let group = &self.groups[index];
        let Some(map) = group.map() else { return };
        let alive =
            |id| group.pools.host.snapshot(id).is_ok_and(|page| !matches!(page.state, State::Free | State::Worn));
        let mut dead = Vec::new();
        map.lock().sweep(alive, &mut dead);
        self.bury(index, &mut dead);
        self.erase_frames(group);
    }

    /// After pages were let go: what they had in host memory and in the store is given back, as far as nobody reads it any more.
    /// Looks at every page, a nanosecond each.
    pub(crate) fn sweep_all(&self) {
        if self.spill.is_some() {
            (0..self.groups.len()).for_each(|index| self.sweep(index));
            self.tend();
        }
    }
}

impl Drop for Cache {
    /// Deletes what lies in the store, as far as the back end answers in time.
    fn drop(&mut self) {
        let Some(spill) = &self.spill else { return };
        let (until, mut io) = (Instant::now() + spill.deadline, spill.records.courier());
        let mut wait_while = |busy: &mut dyn FnMut(&mut Courier<'_>) -> bool| loop {
            // A put whose page was over before it has stored a record that the map does not name.
            self.settle(&mut io, &mut |_| {});
            let left = until.saturating_duration_since(Instant::now());
            if !busy(&mut io) || left.is_zero() {
                return;
            }
            io.wait(left.min(Duration::from_millis(100)));
        };
        // Batches run in any order: a delete could be done before the put that it is to undo.
        wait_while(&mut |_| spill.records.stats().putting > 0);
        for (index, group) in self.groups.iter().enumerate() {
            let Some(map) = group.map() else { continue };
            map.lock().records(|slot| {
                spill.records.bury(core::iter::once(Record { group: index as u32, slot }));
            });
        }
        wait_while(&mut |io| {
            io.delete_all();
            spill.records.stats().doomed > 0 || io.under_way() > 0
        });
    }
}

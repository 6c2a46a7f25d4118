//! Originals of live sequences in a store (Tier-3), where host memory has fewer frames than there are blocks.
//!
//! What is where is said by a [`Residency`], as on the CPU; the device's table of sides names the frame of every page in every layer, and nothing
//! for what lies in the store alone. Plans and repairs leave such sides on codes. Only who must have originals waits for the store: the dense
//! rung, chunks on the CPU, cuts into full blocks, files and units.
//!
//! Frames have two rules. No launch comes between a change of the map and [`GpuCache::flush`], which tells the device; so behind that one nothing
//! reads a frame that was given up. And the host writes a frame only when the stream is idle. An open block's rows lie in its tail alone, which
//! the table names for the step in which the block fills; when that step is over they are copied to a frame, in the order of the stream.
mod ahead;
mod arriving;
mod dense;
mod fetch;
mod room;
mod sides;

pub(super) use dense::{RECORDED, Seen, attend, look};

use super::cache::GpuCache;
use super::config::GpuConfig;
use super::core::Core;
use super::frames::FrameSizes;
use crate::seal;
use crate::spill::{Patience, SpillUse};
use crate::{Error, MoveEvents, SequenceId};
use arriving::Arriving;
use certkv_core::{Histogram, Ledger, PageId};
use certkv_page::PageAllocator;
use certkv_tier::spill::map::{Residency, SlotId, State};
use certkv_tier::spill::records::{Courier, Event, Record, RecordGroup, Records, RecordsConfig};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Originals that somebody is about to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    /// Whose, for errors; `None` for cached prefixes.
    pub(super) sequence: Option<SequenceId>,
    /// Block of the sequence, for errors.
    pub(super) block: usize,
    /// Layer of the model.
    pub(super) layer: usize,
    /// The host page.
    pub(super) page: PageId,
}

/// Originals of the layers that see everything, in two places.
#[derive(Debug)]
pub(super) struct Spilled {
    /// Those layers' group, and their numbers in the order of slots.
    group: usize,
    layers: Box<[usize]>,
    /// The other way round, by layer of the model.
    slots: Box<[u32]>,
    map: Residency,
    records: Arc<Records>,
    deadline: Duration,
    workers: usize,
    /// Times that a call waited for the store, in nanoseconds.
    waits: Histogram,
    /// Pages and slot layers of which the device's table may not say what the map does.
    dirty: Vec<(u32, u32)>,
    /// By slot layer: originals moved since loans ended.
    moved: Box<[bool]>,
    /// By slot layer: whether heads needed the originals of every block when it was last attended with some of them away. Not known: yes.
    needed: Box<[bool]>,
    /// Blocks that fill in the step at hand, and the tails that have their rows until it is over.
    filling: Vec<(PageId, u32)>,
    arriving: Arriving,
    /// Lists for the device, empty between calls: memory to be used again.
    lists: sides::Lists,
    /// Grows when frames are given up.
    given_up: u64,
    moves: Option<MoveEvents>,
}

impl Spilled {
    pub(super) fn new(
        config: &GpuConfig,
        core: &Core,
        ledger: &Arc<Ledger>,
        moves: Option<MoveEvents>,
    ) -> Result<Option<Self>, Error> {
        let (Some(spill), Some(frames)) = (&config.spill, core.sizes.frames) else { return Ok(None) };
        let FrameSizes { group, count, reserve, .. } = frames;
        let (sizes, of) = (&core.sizes, &core.sizes.groups[group]);
        let layers: Box<[usize]> = of.layers.clone().into();
        let mut slots = vec![0; sizes.layers];
        layers.iter().zip(0..).for_each(|(layer, slot)| slots[*layer] = slot);
        // Rows in another order than a CPU's.
        let format = seal::digest(format!("{:?} fragments", config.geometry).as_bytes());
        let record = RecordGroup { bytes: sizes.original_bytes, first_layer: 0, format };
        let io = RecordsConfig { workers: spill.workers, buffers: spill.in_flight, close_timeout: spill.deadline };
        let records = Records::new(Arc::clone(&spill.backend), io, vec![record], Arc::clone(ledger));
        let records = records.map_err(|error| Error::Config { field: "spill", why: error.to_string() })?;
        let bytes = Residency::bytes(of.host_pages, layers.len(), count);
        let map = Residency::new(of.host_pages, layers.len(), count, reserve);
        let map = if config.erase { map.and_then(Residency::erasing) } else { map };
        Ok(Some(Self {
            map: map.ok_or(Error::OutOfMemory { what: "the map of spilled originals", bytes })?,
            group,
            moved: vec![false; layers.len()].into(),
            needed: vec![true; layers.len()].into(),
            layers,
            slots: slots.into(),
            records: Arc::new(records),
            deadline: spill.deadline,
            workers: spill.workers,
            waits: Histogram::default(),
            dirty: Vec::new(),
            filling: Vec::new(),
            arriving: Arriving::default(),
            lists: sides::Lists::default(),
            given_up: 0,
            moves,
        }))
    }

    fn slot(&self, page: PageId, layer: usize) -> SlotId {
        SlotId { page, layer: self.slots[layer] }
    }

    /// First byte of the rows of a page in a layer.
    fn at(&self, core: &Core, layer: usize, page: PageId) -> Result<usize, Error> {
        let why = "originals were asked for that are not in host memory";
        let frame = self.map.frame(self.slot(page, layer)).ok_or(Error::Order { layer, why })?;
        Ok(core.sizes.frame_at(frame))
    }

    /// Of a page, the device's table is to be told.
    fn touch_page(&mut self, page: PageId) {
        self.dirty.extend((0..self.layers.len() as u32).map(|layer| (page.index, layer)));
    }

    fn bury(&self, dead: Vec<SlotId>) {
        if !dead.is_empty() {
            self.records.bury(dead.into_iter().map(|slot| Record { group: 0, slot }));
        }
    }

    /// Frames and records of pages that are free by now go, too. A look at every page, a nanosecond each.
    fn sweep(&mut self, pages: &PageAllocator) {
        use certkv_page::State::{Free, Worn};
        let alive = |id| pages.snapshot(id).is_ok_and(|page| !matches!(page.state, Free | Worn));
        let mut dead = Vec::new();
        self.map.sweep(alive, &mut dead);
        self.bury(dead);
    }

    /// Enqueues zeroes over frames that were given up, where they are to be erased: then they are free.
    fn erase_frames(&mut self, core: &Core) -> Result<(), Error> {
        while let Some(frame) = self.map.take_soiled() {
            let done = core.erase_originals(core::iter::once(core.sizes.frame_at(frame)));
            self.map.erased(frame, done.is_ok());
            done?;
        }
        Ok(())
    }

    /// Frames that nobody holds.
    pub(super) fn free_frames_now(&self) -> impl Iterator<Item = u32> + '_ {
        self.map.free_frames()
    }

    /// Frames that hold something.
    pub(super) fn frames_taken(&self) -> usize {
        self.map.frames() - self.map.census().free
    }

    pub(super) fn group(&self) -> usize {
        self.group
    }

    pub(super) fn in_use(&self) -> SpillUse {
        let census = self.map.census();
        SpillUse {
            resident: census.of(State::Open) + census.of(State::Resident) + census.of(State::Spilling),
            stored: census.of(State::Stored),
            spilled: census.of(State::Spilled) + census.of(State::Fetching),
            free: census.free + census.retiring,
            records: self.records.stats(),
            waits: self.waits,
        }
    }

    /// What is not as it must be.
    pub(super) fn check(&self) -> Option<&'static str> {
        self.map.check()
    }

    /// Waits for the store; `false` once the time has passed.
    fn wait(&mut self, io: &Courier<'_>, patience: &mut Patience) -> bool {
        let left = patience.left();
        if let Some(left) = left {
            io.wait(left);
        }
        self.waits.record(patience.count());
        left.is_some()
    }
}

impl GpuCache {
    /// First byte of the originals of a page in a layer.
    ///
    /// # Errors
    /// [`Error::Order`] if they are not in host memory: nobody brought them.
    pub(super) fn host_at(&self, layer: usize, page: PageId) -> Result<usize, Error> {
        match self.spill.as_ref().filter(|_| self.core.sizes.spills(layer)) {
            Some(spill) => spill.at(&self.core, layer, page),
            None => Ok(self.core.sizes.host_at(layer, page.index)),
        }
    }

    /// See [`Spilled::tend`].
    pub(super) fn tend(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.tend(&self.core);
        }
    }

    /// After pages were let go: what they had in host memory and in the store is given back.
    pub(super) fn sweep(&mut self) {
        if let Some(spill) = &mut self.spill {
            spill.sweep(&self.pools[spill.group].host);
            // What the driver refuses is tried again by who needs a frame, and is told.
            let _ = spill.erase_frames(&self.core);
            spill.tend(&self.core);
        }
    }

    /// Takes notice of what the store has done by now, and gives it what is to be done: for a server that has nothing else to do, and for tests.
    #[doc(hidden)]
    pub fn tend_spilled(&mut self) {
        self.tend();
    }

    /// What of the map of spilled originals is not as it must be; `None` if all is. For tests: a look at every slot.
    #[doc(hidden)]
    pub fn check_spilled(&self) -> Option<&'static str> {
        self.spill.as_ref().and_then(Spilled::check)
    }
}

impl Drop for Spilled {
    /// Deletes what lies in the store, as far as the back end answers in time.
    fn drop(&mut self) {
        let (until, records) = (Instant::now() + self.deadline, Arc::clone(&self.records));
        let (mut io, mut events) = (records.courier(), Vec::new());
        let mut wait_while = |map: &mut Residency, busy: &mut dyn FnMut(&mut Courier<'_>) -> bool| loop {
            io.drain(&mut events);
            for event in events.drain(..) {
                // A put whose page was over before it has stored a record that the map does not name.
                match event {
                    Event::Put(record, result) if !map.spilled(record.slot, result.is_ok()) => {
                        records.bury(core::iter::once(record));
                    }
                    _ => {}
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !busy(&mut io) || left.is_zero() {
                return;
            }
            io.wait(left.min(Duration::from_millis(100)));
        };
        // Batches run in any order: a delete could be done before the put that it is to undo.
        wait_while(&mut self.map, &mut |_| records.stats().putting > 0);
        self.map.records(|slot| records.bury(core::iter::once(Record { group: 0, slot })));
        wait_while(&mut self.map, &mut |io| {
            io.delete_all();
            records.stats().doomed > 0 || io.under_way() > 0
        });
    }
}

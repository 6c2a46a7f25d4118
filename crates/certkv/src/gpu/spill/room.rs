//! Frames for new blocks: what is final goes to the store, ahead of need or for somebody who waits.
use super::Spilled;
use crate::counters::Kind;
use crate::gpu::cache::GpuCache;
use crate::gpu::core::Core;
use crate::spill::{Patience, submit};
use crate::store::StoreError;
use crate::{Error, MoveEvent, MoveKind, SequenceId};
use certkv_core::{PageId, span};
use certkv_device::cuda::Event as Mark;
use certkv_kernel::cuda::queue::Download;
use certkv_page::{PageAllocator, PageError};
use certkv_tier::spill::map::{Pick, State};
use certkv_tier::spill::records::{Courier, Event, Record};
use std::sync::Arc;

impl Spilled {
    /// Takes notice of what is over, and keeps room ahead of need: puts of what is final, deletes of what is nobody's. Waits for nobody.
    ///
    /// Costs a lock where nothing is to do; a copy of each slot that is put.
    pub(in crate::gpu) fn tend(&mut self, core: &Core) {
        self.arrived();
        let records = Arc::clone(&self.records);
        let mut io = records.courier();
        self.settle(core, &mut io, &mut |_, _| {});
        let behind = self.map.behind();
        if behind > 0 && !io.rests() {
            self.put(core, &mut io, behind);
        }
        io.delete();
    }

    /// Rows that have reached their frames are final. What the driver does not say is asked again.
    fn arrived(&mut self) {
        while self.arriving.first().is_some_and(|mark| matches!(mark.passed(), Ok(true))) {
            self.close_first();
        }
    }

    fn close_first(&mut self) {
        self.arriving.arrive().for_each(|page| self.map.close(page));
    }

    /// Takes notice of batches that are over. Gets go to `got`; their buffers go back then.
    pub(super) fn settle(&mut self, core: &Core, io: &mut Courier<'_>, got: &mut dyn FnMut(&mut Self, &Event)) {
        let mut events = Vec::new();
        io.drain(&mut events);
        for event in events {
            match event {
                Event::Put(record, result) => self.put_is_over(core, record, &result),
                Event::Got(..) => {
                    got(self, &event);
                    if let Event::Got(_, _, get, _) = event {
                        io.give(get.into_buffer());
                    }
                }
            }
        }
    }

    fn put_is_over(&mut self, core: &Core, record: Record, result: &Result<(), StoreError>) {
        let bytes = core.sizes.original_bytes as u64;
        core.host.put(result.as_ref().map(|()| bytes).map_err(|error| matches!(error, StoreError::Full { .. })));
        if !self.map.spilled(record.slot, result.is_ok()) {
            self.bury(vec![record.slot]);
            return;
        }
        if let (Some(moves), Ok(())) = (&self.moves, result) {
            let layer = self.layers[record.slot.layer as usize];
            moves.push([MoveEvent::originals(MoveKind::Spilled, layer, record.slot.page, bytes)]);
        }
    }

    /// Copies up to `n` slots into buffers and submits their puts. How many.
    fn put(&mut self, core: &Core, io: &mut Courier<'_>, n: usize) -> usize {
        // Half of the buffers are left for reads.
        let n = n.min(io.buffers().saturating_sub(io.all_buffers() / 2));
        if n == 0 {
            return 0;
        }
        let span = span!("spill", slots = _, bytes = _);
        let mut picks = Vec::new();
        self.map.spill(n, &mut picks);
        let (mut batch, mut unsent, mut sent) = (Vec::new(), Vec::new(), 0);
        // As many batches as there are threads to do them.
        let each = picks.len().div_ceil(self.workers).max(1);
        for pick in picks {
            match copied(core, io, &pick) {
                Some(item) => batch.push((pick, item)),
                None => unsent.push(pick),
            }
            if batch.len() == each {
                sent += submit(io, &mut batch, &mut unsent);
            }
        }
        sent += submit(io, &mut batch, &mut unsent);
        let mut dead = Vec::new();
        unsent.iter().for_each(|pick| self.map.unspill(pick, &mut dead));
        self.bury(dead);
        span.record("slots", sent as u64);
        span.record("bytes", (sent * core.sizes.original_bytes) as u64);
        sent
    }

    /// Gives up frames that the store makes superfluous until `n` are free; whether they are. Behind what was enqueued so far, copies to scratch
    /// that are owed among it, nothing reads them once the device's table was told.
    pub(super) fn free_frames(&mut self, core: &Core, n: usize) -> Result<bool, Error> {
        let short = n.saturating_sub(self.map.census().free);
        if short > 0 {
            core.settle_all()?;
            let Self { map, dirty, moved, given_up, .. } = self;
            map.evict(short, 0, |slot| {
                dirty.push((slot.page.index, slot.layer));
                moved[slot.layer as usize] = true;
                *given_up += 1;
            });
            map.reclaim(0);
        }
        self.erase_frames(core)?;
        Ok(self.map.census().free >= n)
    }

    fn has_room(&mut self, core: &Core, n: usize) -> Result<bool, Error> {
        Ok(self.map.lacks(n) == 0 && self.free_frames(core, n)?)
    }

    /// Makes room for `n` slots that the store does not have. Waits for puts only if they were not made ahead of need.
    ///
    /// # Errors
    /// [`Error::CapacityExhausted`] of `host`: the store takes nothing, or not in time, or what is there cannot be spilled; the driver's.
    pub(super) fn make_frames(&mut self, core: &Core, pages: &PageAllocator, n: usize) -> Result<(), Error> {
        if self.has_room(core, n)? {
            return Ok(());
        }
        self.sweep(pages);
        self.arrived();
        let mut patience = Patience::new(self.deadline);
        let records = Arc::clone(&self.records);
        let (mut io, mut tried) = (records.courier(), false);
        loop {
            self.settle(core, &mut io, &mut |_, _| {});
            io.delete();
            if self.has_room(core, n)? {
                return Ok(());
            }
            let (lacks, census) = (self.map.lacks(n), self.map.census());
            let under_way = census.of(State::Spilling);
            if lacks > under_way + census.of(State::Resident) && !self.arriving.is_empty() {
                core.finish()?;
                while !self.arriving.is_empty() {
                    self.close_first();
                }
            }
            // Failed once is enough for one call: who asks next tries again.
            let gave_up = tried && io.rests();
            let sent = if gave_up || under_way >= lacks { 0 } else { self.put(core, &mut io, lacks - under_way) };
            tried |= sent > 0;
            if sent == 0 && io.under_way() == 0 || !self.wait(&io, &mut patience) {
                break;
            }
        }
        io.rest();
        let (census, layers) = (self.map.census(), self.layers.len());
        let free = (census.free + census.of(State::Stored)).min(n.saturating_sub(1)) / layers;
        let (asked, capacity) = (n.div_ceil(layers).max(1), self.map.frames() / layers);
        let cause = PageError::Exhausted { asked, free: free.min(asked - 1), retiring: 0, capacity };
        Err(Error::CapacityExhausted { class: "host", cause })
    }
}

/// A slot's rows in a buffer, with their bytes counted; `None` if a budget, or the device, refuses.
fn copied(core: &Core, io: &mut Courier<'_>, pick: &Pick) -> Option<(Record, Vec<u8>)> {
    let record = Record { group: 0, slot: pick.slot };
    if !pick.again && io.charge(&record).is_err() {
        core.host.put(Err(true));
        return None;
    }
    let read = io.buffer().and_then(|mut buffer| {
        buffer.resize(core.sizes.original_bytes, 0);
        match core.originals.read(core.sizes.frame_at(pick.frame), &mut buffer) {
            Ok(()) => Some(buffer),
            Err(_) => {
                io.give(buffer);
                None
            }
        }
    });
    if read.is_none() && !pick.again {
        io.uncharge(&record);
    }
    read.map(|buffer| (record, buffer))
}

impl GpuCache {
    /// Gives host pages their frames, as far as they have none. `group`: whose pages they are; others' are not spilled.
    ///
    /// # Errors
    /// [`Error::CapacityExhausted`] of `host`; the driver's.
    pub(in crate::gpu) fn house(
        &mut self,
        group: usize,
        pages: impl Iterator<Item = PageId> + Clone,
    ) -> Result<(), Error> {
        let Self { core, pools, spill, .. } = self;
        let Some(spill) = spill.as_mut().filter(|spill| spill.group == group) else { return Ok(()) };
        let layer = spill.layers.first().copied().unwrap_or(0);
        let homeless = |spill: &Spilled, page| spill.map.state(spill.slot(page, layer)) == State::Absent;
        let new = pages.clone().filter(|page| homeless(spill, *page)).count();
        if new == 0 {
            return Ok(());
        }
        spill.make_frames(core, &pools[group].host, new * spill.layers.len())?;
        let (mut dead, mut housed) = (Vec::new(), true);
        for page in pages {
            if homeless(spill, page) {
                housed &= spill.map.house(page, &mut dead);
                spill.touch_page(page);
            }
        }
        spill.bury(dead);
        let why = "a page was not given its frames";
        if housed { Ok(()) } else { Err(Error::Order { layer, why }) }
    }

    /// The host has written the rows of a page, and nobody adds to them.
    pub(in crate::gpu) fn close_originals(&mut self, group: usize, page: PageId) {
        if let Some(spill) = self.spill.as_mut().filter(|spill| spill.group == group) {
            spill.map.close(page);
            spill.tend(&self.core);
        }
    }

    /// A step's single tokens fill blocks: until it is over their originals are read from the tails.
    pub(in crate::gpu) fn fill_from(&mut self, page: PageId, tail: u32) {
        if let Some(spill) = &mut self.spill {
            spill.filling.push((page, tail));
            spill.touch_page(page);
        }
    }

    /// Enqueues the copies of blocks that a step has filled from their tails to their frames, before anybody takes the tails, and a mark behind them.
    ///
    /// # Errors
    /// The driver's: the step cannot be finished.
    pub(in crate::gpu) fn store_filled(&mut self) -> Result<Option<Mark>, Error> {
        let Self { core, spill, leaving, .. } = self;
        let Some(spill) = spill else { return Ok(None) };
        if !spill.filling.is_empty() {
            // Copies to scratch that are owed may be from the tails.
            core.settle_all()?;
            let bytes = core.sizes.original_bytes;
            let each = spill.filling.iter().flat_map(|fills| spill.layers.iter().map(move |layer| (fills, *layer)));
            let copies = each.map(|((page, tail), layer)| -> Result<Download<'_>, Error> {
                let (from_offset, to_offset) = (core.sizes.tail_at(layer, *tail), spill.at(core, layer, *page)?);
                Ok(Download { from: &core.tails, from_offset, to: &core.originals, to_offset, bytes })
            });
            let enqueued = core.queue.download_all(leaving.copies(), copies);
            core.host.moved(Kind::Store, enqueued.map(|()| (leaving.copies().len() * bytes) as u64))?;
        }
        Ok(Some(core.queue.mark()?))
    }

    /// The step at hand has filled a block of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub(in crate::gpu) fn full(&mut self, id: SequenceId, group: usize, block: usize) -> Result<(), Error> {
        if self.spill.as_ref().is_some_and(|spill| spill.group == group) {
            let page = self.entry(id)?.tables[group].get(block).map(|entry| entry.host);
            if let (Some(spill), Some(page)) = (&mut self.spill, page) {
                spill.arriving.push(page);
            }
        }
        Ok(())
    }

    /// The step is over: nobody reads tails for what they have filled. The pages that are [full](GpuCache::full) have final rows once `mark` has passed; of a
    /// step that was dropped there are none.
    pub(in crate::gpu) fn filled(&mut self, mark: Option<Mark>) {
        let Some(spill) = &mut self.spill else { return };
        while let Some((page, _)) = spill.filling.pop() {
            spill.touch_page(page);
            spill.moved.fill(true);
        }
        match mark {
            Some(mark) => spill.arriving.mark(mark),
            None => spill.arriving.forget(),
        }
    }
}

//! Room for new blocks: what is final goes to the store, ahead of need or for somebody who waits.
use super::fetch::Pinned;
use super::{Ask, Patience, Spilling, Turn};
use crate::cache::Cache;
use crate::counters::Kind;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::store::StoreError;
use crate::{Error, MoveKind, SequenceId};
use certkv_core::{PageId, span};
use certkv_page::PageError;
use certkv_tier::spill::map::{Pick, SlotId, State};
use certkv_tier::spill::records::{Courier, Event, Record};
use parking_lot::ReentrantMutexGuard;

impl Cache {
    /// Takes notice of what is over, and keeps room ahead of need: puts of what is final, deletes of what is nobody's. Waits for
    /// nobody, and does nothing while another thread waits for the store. No guard of the computing stream may be alive.
    ///
    /// Costs a lock where nothing is to do; a copy of each slot that is put.
    pub(crate) fn tend(&self) {
        let Some(spill) = &self.spill else { return };
        let Some(mut io) = spill.records.try_courier() else { return };
        self.settle(&mut io, &mut |_| {});
        for index in 0..self.groups.len() {
            let behind = self.groups[index].map().map_or(0, |map| map.lock().behind());
            if behind > 0 && !io.rests() {
                self.put(spill, &mut io, index, behind);
            }
        }
        io.delete();
    }

    /// Takes notice of batches that are over. Gets go to `got`, unless it leaves them: their buffers go back then.
    pub(super) fn settle(&self, io: &mut Courier<'_>, got: &mut dyn FnMut(&Event)) {
        let mut events = Vec::new();
        io.drain(&mut events);
        for event in events {
            match event {
                Event::Put(record, result) => self.put_is_over(record, &result),
                Event::Got(..) => {
                    got(&event);
                    if let Event::Got(_, _, get, _) = event {
                        io.give(get.into_buffer());
                    }
                }
            }
        }
    }

    fn put_is_over(&self, record: Record, result: &Result<(), StoreError>) {
        let Some(group) = self.groups.get(record.group as usize) else { return };
        let Some(map) = group.map() else { return };
        let bytes = group.host.slot_bytes() as u64;
        self.counters.put(result.as_ref().map(|()| bytes).map_err(|error| matches!(error, StoreError::Full { .. })));
        if !map.lock().spilled(record.slot, result.is_ok()) {
            self.bury(record.group as usize, &mut vec![record.slot]);
            return;
        }
        if let (Some(moves), Ok(())) = (&self.moves, result) {
            moves.push([group.moved(MoveKind::Spilled, record.slot, bytes)]);
        }
    }

    /// Copies up to `n` slots of a group into buffers and submits their puts. How many.
    fn put(&self, spill: &Spilling, io: &mut Courier<'_>, index: usize, n: usize) -> usize {
        let group = &self.groups[index];
        let Some(map) = group.map() else { return 0 };
        // Half of the buffers are left for reads.
        let n = n.min(io.buffers().saturating_sub(io.all_buffers() / 2));
        if n == 0 {
            return 0;
        }
        let span = span!("spill", slots = _, bytes = _);
        let mut picks = Vec::new();
        map.lock().spill(n, &mut picks);
        let (mut batch, mut sent) = (Vec::new(), 0);
        // As many batches as there are threads to do them.
        let each = picks.len().div_ceil(spill.workers).max(1);
        let mut unsent = Vec::new();
        for pick in picks {
            match self.copied(io, group, index, &pick) {
                Some(item) => batch.push((pick, item)),
                None => unsent.push(pick),
            }
            if batch.len() == each {
                sent += submit(io, &mut batch, &mut unsent);
            }
        }
        sent += submit(io, &mut batch, &mut unsent);
        let mut dead = Vec::new();
        unsent.iter().for_each(|pick| map.lock().unspill(pick, &mut dead));
        self.bury(index, &mut dead);
        span.record("slots", sent as u64);
        span.record("bytes", (sent * group.host.slot_bytes()) as u64);
        sent
    }

    /// A slot's rows in a buffer, with their bytes counted; `None` if a budget, or the device, refuses.
    fn copied(&self, io: &mut Courier<'_>, group: &Group, index: usize, pick: &Pick) -> Option<(Record, Vec<u8>)> {
        let record = Record { group: index as u32, slot: pick.slot };
        let page = group.host.read_tagged(pick.frame, &self.main, Group::tag(pick.slot.page)).ok()?;
        if !pick.again && io.charge(&record).is_err() {
            self.counters.put(Err(true));
            return None;
        }
        let mut buffer = match io.buffer() {
            Some(buffer) => buffer,
            None => {
                if !pick.again {
                    io.uncharge(&record);
                }
                return None;
            }
        };
        buffer.extend_from_slice(page.bytes());
        Some((record, buffer))
    }

    /// Frames given up whose readers are done are free.
    fn reclaim_frames(&self, group: &Group) {
        let Some(map) = group.map() else { return };
        // The device is asked without the map's lock.
        loop {
            let oldest = map.lock().oldest();
            match oldest {
                Some(stamp) if self.passed(certkv_page::Stamp(stamp)) => map.lock().reclaim(stamp),
                _ => break,
            }
        }
        self.erase_frames(group);
    }

    /// Whether `n` frames are free, after those were given up that the store makes superfluous. No guard may be alive.
    pub(super) fn frames_are_free(&self, index: usize, n: usize) -> bool {
        let group = &self.groups[index];
        let Some(map) = group.map() else { return true };
        let missing = |retiring: bool| {
            let map = map.lock();
            let census = map.census();
            n.saturating_sub(census.free + if retiring { census.retiring } else { 0 })
        };
        if missing(false) == 0 {
            return true;
        }
        self.reclaim_frames(group);
        let short = missing(true);
        if short > 0 {
            let stamp = self.stamp();
            map.lock().evict(short, stamp.0, |_| {});
            self.reclaim_frames(group);
        }
        missing(false) == 0
    }

    /// Waits until everything enqueued has run: for frames that were given up while somebody read them.
    pub(super) fn wait_for_readers(&self) {
        if let Ok(fence) = self.fence() {
            // Copies that failed are told by their own fences.
            let _ = self.counters.wait(|| fence.synchronize());
        }
    }

    fn has_room(&self, index: usize, n: usize) -> bool {
        let Some(map) = self.groups[index].map() else { return true };
        let lacks = map.lock().lacks(n);
        lacks == 0 && self.frames_are_free(index, n)
    }

    /// Makes room for `n` slots that the store does not have. Waits for puts, without the turn, only if they were not made ahead
    /// of need. Where it succeeds the room is there as long as the turn is held.
    ///
    /// # Errors
    /// [`Error::CapacityExhausted`] of `host`: the store takes nothing, or not in time, or what is there cannot be spilled.
    pub(crate) fn make_frames(&self, turn: &mut Turn<'_>, index: usize, n: usize) -> Result<(), Error> {
        let group = &self.groups[index];
        let (Some(spill), Some(map)) = (&self.spill, group.map()) else { return Ok(()) };
        if self.has_room(index, n) {
            return Ok(());
        }
        let tidy = || {
            self.reclaim(group);
            self.sweep(index);
        };
        tidy();
        if self.has_room(index, n) {
            return Ok(());
        }
        let mut patience = Patience::new(spill.deadline);
        let mut io = ReentrantMutexGuard::unlocked(turn, || spill.records.courier());
        let mut tried = false;
        loop {
            self.settle(&mut io, &mut |_| {});
            io.delete();
            tidy();
            if self.has_room(index, n) {
                return Ok(());
            }
            let lacks = map.lock().lacks(n);
            if lacks > 0 {
                // Failed once is enough for one call: who asks next tries again.
                let under_way = map.lock().census().of(State::Spilling);
                let gave_up = tried && io.rests();
                let sent =
                    if gave_up || under_way >= lacks { 0 } else { self.put(spill, &mut io, index, lacks - under_way) };
                tried |= sent > 0;
                if sent == 0 && io.under_way() == 0 || !spill.wait(turn, &io, &mut patience) {
                    break;
                }
            } else {
                self.wait_for_readers();
                if !self.has_room(index, n) && patience.left().is_none() {
                    break;
                }
            }
        }
        io.rest();
        let census = map.lock().census();
        let free = (census.free + census.of(State::Stored)).min(n.saturating_sub(1)) / group.layers;
        let (asked, capacity) = (n.div_ceil(group.layers), map.lock().frames() / group.layers);
        let cause = PageError::Exhausted { asked, free: free.min(asked - 1), retiring: 0, capacity };
        Err(Error::CapacityExhausted { class: "host", cause })
    }

    /// Gives new host pages of a group their frames.
    ///
    /// # Errors
    /// As [`Cache::make_frames`].
    pub(crate) fn house(
        &self,
        turn: &mut Turn<'_>,
        index: usize,
        mut pages: impl Iterator<Item = PageId> + Clone,
    ) -> Result<(), Error> {
        let (group, n) = (&self.groups[index], pages.clone().count());
        let Some(map) = group.map().filter(|_| n > 0) else { return Ok(()) };
        self.make_frames(turn, index, n * group.layers)?;
        let mut dead: Vec<SlotId> = Vec::new();
        let housed = pages.all(|page| map.lock().house(page, &mut dead));
        self.bury(index, &mut dead);
        let why = "a page was not given its frames";
        if housed { Ok(()) } else { Err(Error::Order { layer: group.first, why }) }
    }

    /// Before a sequence is cut: the originals of the blocks that will be open again, and room for what the store will not have.
    ///
    /// # Errors
    /// As [`Cache::bring`] and [`Cache::make_frames`].
    pub(crate) fn prepare_cut(
        &self,
        turn: &mut Turn<'_>,
        id: SequenceId,
        state: &SequenceState,
        len: usize,
    ) -> Result<(), Error> {
        let mut cuts = Vec::new();
        for (index, (group, table)) in self.groups.iter().zip(&state.tables).enumerate() {
            let (block, rows) = (len / table.block_size(), len % table.block_size());
            let (Some(map), Some(entry)) = (group.map(), table.blocks().get(block)) else { continue };
            if rows > 0 && entry.tail.is_none() {
                let layers = group.first..group.first + group.layers;
                let asks: Vec<Ask> = layers.map(|layer| Ask { block, layer, page: entry.host }).collect();
                let slots = asks.iter().map(|ask| group.slot_id(ask.page, ask.layer)).collect();
                let alone = table.is_exclusive(block);
                cuts.push((index, entry.host, asks, alone, Pinned::new(map, slots)));
            }
        }
        let needs = |index: usize, page, alone| {
            let group = &self.groups[index];
            if alone { group.map().map_or(0, |map| map.lock().reopens(page)) } else { group.layers }
        };
        // What a group was given may be gone when another had to wait; pins keep what came.
        loop {
            for (index, page, asks, alone, _) in &cuts {
                self.bring(turn, *index, Some(id), asks)?;
                self.make_frames(turn, *index, needs(*index, *page, *alone))?;
            }
            if cuts.iter().all(|(index, page, _, alone, _)| self.has_room(*index, needs(*index, *page, *alone))) {
                return Ok(());
            }
        }
    }

    /// Counts a fetch by its result: nothing where nothing was fetched.
    pub(super) fn fetched(&self, result: Result<u64, Error>) -> Result<(), Error> {
        self.counters.moved(Kind::Fetch, result).map(drop)
    }
}

/// Hands a batch to the store; how many it takes. Of a batch that is refused the records are uncharged, and the picks join `unsent`.
pub(crate) fn submit(
    io: &mut Courier<'_>,
    batch: &mut Vec<(Pick, (Record, Vec<u8>))>,
    unsent: &mut Vec<Pick>,
) -> usize {
    if batch.is_empty() {
        return 0;
    }
    let (picks, items): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
    let names: Vec<Record> = items.iter().map(|(record, _)| *record).collect();
    if io.put(items) {
        return picks.len();
    }
    names.iter().zip(&picks).filter(|(_, pick)| !pick.again).for_each(|(record, _)| io.uncharge(record));
    unsent.extend(picks);
    0
}

//! Originals back into host memory, before they are read.
use super::{Ask, Spilled};
use crate::counters::Kind;
use crate::gpu::cache::GpuCache;
use crate::gpu::core::Core;
use crate::spill::{FetchCause, FetchError, Patience};
use crate::{Error, MoveEvent, MoveKind, SequenceId};
use certkv_core::{PageId, span};
use certkv_page::BlockTable;
use certkv_tier::spill::map::{SlotId, State};
use certkv_tier::spill::records::{Courier, Event, Record};
use certkv_tier::store::Ticket;
use std::sync::Arc;

/// Why a fetch ended early: the driver, or the record of one slot.
enum Lost {
    Gpu(Error),
    Record(SlotId, FetchCause),
}

/// One round of gets.
#[derive(Default)]
struct Round {
    tickets: Vec<Ticket>,
    /// The first that failed.
    failed: Option<Lost>,
    bytes: u64,
}

impl Spilled {
    /// Brings all of `slots` into frames at once: bytes that came.
    fn fetch(&mut self, core: &Core, slots: &[SlotId]) -> Result<u64, Lost> {
        let mut patience = Patience::new(self.deadline);
        let records = Arc::clone(&self.records);
        let (mut io, mut bytes) = (records.courier(), 0);
        loop {
            self.settle(core, &mut io, &mut |_, _| {});
            let missing: Vec<SlotId> = slots.iter().filter(|slot| self.map.frame(**slot).is_none()).copied().collect();
            let Some(&first) = missing.first() else { return Ok(bytes) };
            let n = missing.len().min(io.buffers());
            if n == 0 {
                // All buffers are with puts, or with gets that nobody waits for any more.
                if !self.wait(&io, &mut patience) {
                    return Err(Lost::Record(first, FetchCause::Late { after: self.deadline }));
                }
                continue;
            }
            // As many as there are frames for; one at least.
            self.free_frames(core, n).map_err(Lost::Gpu)?;
            let wanted: Vec<Record> = missing[..n]
                .iter()
                .filter(|slot| self.map.fetch(**slot).is_some())
                .map(|slot| Record { group: 0, slot: *slot })
                .collect();
            if wanted.is_empty() {
                return Err(Lost::Record(first, FetchCause::NoRoom));
            }
            let round = self.round(core, &mut io, &wanted, &mut patience);
            // Whatever did not come lies in the store as before.
            let left = wanted.iter().find(|record| self.map.state(record.slot) == State::Fetching).copied();
            wanted.iter().for_each(|record| self.map.fetched(record.slot, false));
            bytes += round.bytes;
            match (round.failed, left) {
                (Some(lost), _) => return Err(lost),
                (None, Some(record)) => {
                    return Err(Lost::Record(record.slot, FetchCause::Late { after: self.deadline }));
                }
                (None, None) => {}
            }
        }
    }

    /// Reads records whose slots have frames.
    fn round(&mut self, core: &Core, io: &mut Courier<'_>, wanted: &[Record], patience: &mut Patience) -> Round {
        let mut round = Round::default();
        for batch in wanted.chunks(wanted.len().div_ceil(self.workers).max(1)) {
            round.tickets.extend(io.get(batch));
        }
        while !round.tickets.is_empty() && self.wait(io, patience) {
            let mut over = Vec::new();
            self.settle(core, io, &mut |spill, event| {
                let Event::Got(ticket, record, get, result) = event else { return };
                // An earlier call's, which gave it up.
                if !round.tickets.contains(ticket) {
                    return;
                }
                over.push(*ticket);
                let placed = match result {
                    Ok(()) => spill.place(core, record.slot, get.page()),
                    Err(error) => Err(Lost::Record(record.slot, FetchCause::Store(error.clone()))),
                };
                match placed {
                    Ok(()) => round.bytes += get.page().len() as u64,
                    Err(lost) => drop(round.failed.get_or_insert(lost)),
                }
            });
            round.tickets.retain(|ticket| !over.contains(ticket));
        }
        round
    }

    /// Writes a page that came into its frame, which nothing on the device reads: the stream is idle. Its envelope was that of this slot.
    fn place(&mut self, core: &Core, slot: SlotId, page: &[u8]) -> Result<(), Lost> {
        let Some(frame) = self.map.arriving(slot) else { return Ok(()) };
        core.put_originals(core.sizes.frame_at(frame), page).map_err(Lost::Gpu)?;
        self.map.fetched(slot, true);
        self.dirty.push((slot.page.index, slot.layer));
        Ok(())
    }

    /// Events of slots of `away` that have come.
    fn note_fetched(&self, core: &Core, asks: &[Ask], away: &[SlotId]) {
        let Some(moves) = &self.moves else { return };
        let here = away.iter().filter(|slot| self.map.frame(**slot).is_some());
        moves.push(here.map(|slot| {
            let ask = asks.iter().find(|ask| self.slot(ask.page, ask.layer) == *slot);
            let sequence = ask.and_then(|ask| ask.sequence);
            let block = ask.and_then(|ask| u32::try_from(ask.block).ok()).filter(|_| sequence.is_some());
            let (layer, bytes) = (self.layers[slot.layer as usize], core.sizes.original_bytes as u64);
            MoveEvent { sequence, block, ..MoveEvent::originals(MoveKind::Fetched, layer, slot.page, bytes) }
        }));
    }

    /// Whether all that is asked for is in host memory; it counts as used.
    fn has(&mut self, asks: &[Ask]) -> bool {
        let mut here = true;
        for ask in asks {
            let slot = self.slot(ask.page, ask.layer);
            here &= self.map.touch(slot).is_some();
        }
        here
    }
}

impl GpuCache {
    /// Originals into host memory, all that is asked for at once. They stay until the next call that needs frames.
    ///
    /// Costs a look at each where nothing is missing. Else the host waits until the device is idle, for it writes frames, and for one read of the
    /// store, in rounds of as many records as may be in flight, spread over the store's threads; a copy and a digest of each.
    ///
    /// # Errors
    /// [`Error::Fetch`] names the first that cannot be had; the driver's. What came stays.
    pub(in crate::gpu) fn bring(&mut self, asks: &[Ask]) -> Result<(), Error> {
        let Self { core, spill, .. } = self;
        let Some(spill) = spill.as_mut().filter(|_| !asks.is_empty()) else { return Ok(()) };
        if spill.has(asks) {
            return Ok(());
        }
        core.settle_all()?;
        core.finish()?;
        let span = span!("fetch", asked = (asks.len()), bytes = _);
        let slots: Vec<SlotId> = asks.iter().map(|ask| spill.slot(ask.page, ask.layer)).collect();
        let mut away: Vec<SlotId> = slots.iter().filter(|slot| spill.map.frame(**slot).is_none()).copied().collect();
        away.sort_unstable();
        away.dedup();
        slots.iter().for_each(|slot| spill.map.pin(*slot));
        let fetched = spill.fetch(core, &slots);
        spill.note_fetched(core, asks, &away);
        slots.iter().for_each(|slot| spill.map.unpin(*slot));
        let fetched = fetched.map_err(|lost| match lost {
            Lost::Gpu(error) => error,
            Lost::Record(slot, cause) => {
                let ask = asks.iter().find(|ask| spill.slot(ask.page, ask.layer) == slot).or(asks.first());
                let of = ask.map_or((None, 0, 0), |ask| (ask.sequence, ask.layer, ask.block));
                Error::Fetch(FetchError { sequence: of.0, layer: of.1, block: of.2, cause })
            }
        });
        span.record("bytes", *fetched.as_ref().unwrap_or(&0));
        core.host.moved(Kind::Fetch, fetched).map(drop)
    }

    /// The same for a block in all layers of its group.
    pub(in crate::gpu) fn bring_block(
        &mut self,
        sequence: Option<SequenceId>,
        group: usize,
        block: usize,
        page: PageId,
    ) -> Result<(), Error> {
        let Some(spill) = self.spill.as_ref().filter(|spill| spill.group == group) else { return Ok(()) };
        let asks: Vec<Ask> = spill.layers.iter().map(|layer| Ask { sequence, block, layer: *layer, page }).collect();
        self.bring(&asks)
    }

    /// The same for the first blocks of a sequence in one layer.
    pub(in crate::gpu) fn bring_layer(&mut self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        let Some(spill) = self.spill.as_ref().filter(|_| self.core.sizes.spills(layer)) else { return Ok(()) };
        let asks: Vec<Ask> = asks(id, &self.entry(id)?.tables[spill.group], layer, blocks).collect();
        self.bring(&asks)
    }

    /// Before a sequence is cut: the originals of the block that will be open again, and room for what the store will not have then.
    ///
    /// # Errors
    /// As [`GpuCache::bring`] and [`GpuCache::house`].
    pub(in crate::gpu) fn prepare_cut(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        let Some(group) = self.spill.as_ref().map(|spill| spill.group) else { return Ok(()) };
        let table = &self.entry(id)?.tables[group];
        let (block, rows) = (len / table.block_size(), len % table.block_size());
        let Some(entry) = table.get(block).filter(|entry| rows > 0 && entry.is_full()) else { return Ok(()) };
        let page = entry.host;
        self.keep(page, true);
        let prepared = self.bring_block(Some(id), group, block, page).and_then(|()| {
            let Self { core, pools, spill, .. } = self;
            let Some(spill) = spill else { return Ok(()) };
            // Whether others share it may change until it is cut.
            let more = spill.map.reopens(page);
            spill.make_frames(core, &pools[group].host, more)
        });
        self.keep(page, false);
        prepared
    }

    /// From here on the frames of a page that are there stay, or no longer.
    pub(in crate::gpu) fn keep(&mut self, page: PageId, kept: bool) {
        let Some(spill) = &mut self.spill else { return };
        for layer in 0..spill.layers.len() as u32 {
            let slot = SlotId { page, layer };
            if kept { spill.map.pin(slot) } else { spill.map.unpin(slot) }
        }
    }

    /// A page was reopened under a new generation. Its originals were brought before.
    ///
    /// # Errors
    /// [`Error::Order`] if they were not.
    pub(in crate::gpu) fn renew_originals(
        &mut self,
        group: usize,
        renamed: Option<(PageId, PageId)>,
    ) -> Result<(), Error> {
        let (Some((old, new)), Some(spill)) = (renamed, self.spill.as_mut().filter(|spill| spill.group == group))
        else {
            return Ok(());
        };
        let mut dead = Vec::new();
        let renewed = spill.map.renew(old, new, &mut dead);
        spill.bury(dead);
        spill.touch_page(new);
        let layer = spill.layers.first().copied().unwrap_or(0);
        let why = "a block was reopened whose originals are not in host memory";
        if renewed { Ok(()) } else { Err(Error::Order { layer, why }) }
    }
}

/// The originals of a sequence's first full blocks in a layer.
pub(super) fn asks(id: SequenceId, table: &BlockTable, layer: usize, blocks: usize) -> impl Iterator<Item = Ask> + '_ {
    let full = table.blocks().iter().take(blocks).enumerate();
    full.map(move |(block, entry)| Ask { sequence: Some(id), block, layer, page: entry.host })
}

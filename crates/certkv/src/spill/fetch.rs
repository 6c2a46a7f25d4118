//! Originals back into host memory, before they are read.
use super::{Ask, FetchCause, FetchError, Patience, Spilling, Turn};
use crate::cache::Cache;
use crate::group::Group;
use crate::{Error, MoveEvent, MoveKind, SequenceId};
use certkv_core::span;
use certkv_tier::spill::map::{Residency, SlotId, State};
use certkv_tier::spill::records::{Courier, Event, Record};
use certkv_tier::store::Ticket;
use parking_lot::{Mutex, ReentrantMutexGuard};

/// Keeps what was asked for in its frames while the rest is on the way.
pub(super) struct Pinned<'a> {
    map: &'a Mutex<Residency>,
    slots: Vec<SlotId>,
}

impl<'a> Pinned<'a> {
    pub(super) fn new(map: &'a Mutex<Residency>, slots: Vec<SlotId>) -> Self {
        let mut held = map.lock();
        slots.iter().for_each(|slot| held.pin(*slot));
        drop(held);
        Self { map, slots }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut held = self.map.lock();
        self.slots.iter().for_each(|slot| held.unpin(*slot));
    }
}

/// One round of gets.
struct Round {
    tickets: Vec<Ticket>,
    /// The first that failed.
    failed: Option<(Record, FetchCause)>,
    bytes: u64,
}

impl Cache {
    /// Brings originals of one group into host memory. On return they are there, and stay as long as the turn is held. The call
    /// gives the turn up while it waits: no guard of any stream may be alive, and what the caller read of pages that are not its own
    /// may have changed.
    ///
    /// Costs a lock where nothing is missing. Else one read of the store for all that is missing, in rounds of as many records as may
    /// be in flight, spread over the store's threads, and a copy and a digest of each.
    ///
    /// # Errors
    /// [`Error::Fetch`] names the first that cannot be had. What came with it stays.
    pub(crate) fn bring(
        &self,
        turn: &mut Turn<'_>,
        index: usize,
        sequence: Option<SequenceId>,
        asks: &[Ask],
    ) -> Result<(), Error> {
        let group = &self.groups[index];
        let (Some(spill), Some(map)) = (&self.spill, group.map()) else { return Ok(()) };
        {
            let mut held = map.lock();
            let mut here = true;
            asks.iter().for_each(|ask| here &= held.touch(group.slot_id(ask.page, ask.layer)).is_some());
            if here {
                return Ok(());
            }
        }
        let span = span!("fetch", asked = (asks.len()), bytes = _);
        let fetched = self.fetch(spill, map, turn, (index, sequence), asks).map_err(|(slot, cause)| {
            let ask = asks.iter().find(|ask| group.slot_id(ask.page, ask.layer) == slot);
            let (layer, block) = ask.map_or((group.first, 0), |ask| (ask.layer, ask.block));
            Error::Fetch(FetchError { sequence, layer, block, cause })
        });
        span.record("bytes", *fetched.as_ref().unwrap_or(&0));
        self.fetched(fetched)
    }

    /// Bytes that came.
    fn fetch(
        &self,
        spill: &Spilling,
        map: &Mutex<Residency>,
        turn: &mut Turn<'_>,
        (index, sequence): (usize, Option<SequenceId>),
        asks: &[Ask],
    ) -> Result<u64, (SlotId, FetchCause)> {
        let group = &self.groups[index];
        let mut patience = Patience::new(spill.deadline);
        let slots: Vec<SlotId> = asks.iter().map(|ask| group.slot_id(ask.page, ask.layer)).collect();
        let mut io = ReentrantMutexGuard::unlocked(turn, || spill.records.courier());
        let pinned = Pinned::new(map, slots);
        let mut bytes = 0;
        loop {
            self.settle(&mut io, &mut |_| {});
            let missing: Vec<SlotId> = {
                let held = map.lock();
                pinned.slots.iter().filter(|slot| held.frame(**slot).is_none()).copied().collect()
            };
            let Some(&first) = missing.first() else { return Ok(bytes) };
            let n = missing.len().min(io.buffers());
            let late = || (first, FetchCause::Late { after: spill.deadline });
            if n == 0 {
                // All buffers are with puts, or with gets that nobody waits for any more.
                if !spill.wait(turn, &io, &mut patience) {
                    return Err(late());
                }
                continue;
            }
            if !self.frames_are_free(index, n) {
                self.wait_for_readers();
                if !self.frames_are_free(index, 1) {
                    return Err((first, FetchCause::NoRoom));
                }
            }
            let mut wanted = Vec::with_capacity(n);
            {
                let mut held = map.lock();
                wanted.extend(
                    missing[..n]
                        .iter()
                        .filter(|slot| held.fetch(**slot).is_some())
                        .map(|slot| Record { group: index as u32, slot: *slot }),
                );
            }
            if wanted.is_empty() {
                return Err((first, FetchCause::NoRoom));
            }
            let round = self.round(spill, &mut io, turn, group, &wanted, &mut patience);
            // Whatever did not come lies in the store as before.
            let mut held = map.lock();
            let left = wanted.iter().find(|record| held.state(record.slot) == State::Fetching).copied();
            let here = wanted.iter().filter(|record| held.state(record.slot) != State::Fetching);
            let here: Vec<SlotId> = here.map(|record| record.slot).collect();
            wanted.iter().for_each(|record| held.fetched(record.slot, false));
            drop(held);
            self.note_fetched(group, sequence, asks, &here);
            bytes += round.bytes;
            match (round.failed, left) {
                (Some((record, cause)), _) => return Err((record.slot, cause)),
                (None, Some(record)) => return Err((record.slot, FetchCause::Late { after: spill.deadline })),
                (None, None) => {}
            }
        }
    }

    /// Events of slots that came.
    fn note_fetched(&self, group: &Group, sequence: Option<SequenceId>, asks: &[Ask], here: &[SlotId]) {
        let Some(moves) = &self.moves else { return };
        moves.push(here.iter().map(|slot| {
            let ask = asks.iter().find(|ask| group.slot_id(ask.page, ask.layer) == *slot);
            let block = ask.and_then(|ask| u32::try_from(ask.block).ok()).filter(|_| sequence.is_some());
            MoveEvent { sequence, block, ..group.moved(MoveKind::Fetched, *slot, group.host.slot_bytes() as u64) }
        }));
    }

    /// Reads records whose slots have frames.
    fn round(
        &self,
        spill: &Spilling,
        io: &mut Courier<'_>,
        turn: &mut Turn<'_>,
        group: &Group,
        wanted: &[Record],
        patience: &mut Patience,
    ) -> Round {
        let mut round = Round { tickets: Vec::new(), failed: None, bytes: 0 };
        for batch in wanted.chunks(wanted.len().div_ceil(spill.workers).max(1)) {
            round.tickets.extend(io.get(batch));
        }
        while !round.tickets.is_empty() {
            if !spill.wait(turn, io, patience) {
                break;
            }
            let mut over = Vec::new();
            self.settle(io, &mut |event| {
                let Event::Got(ticket, record, get, result) = event else { return };
                // An earlier call's, which gave it up.
                if !round.tickets.contains(ticket) {
                    return;
                }
                over.push(*ticket);
                let placed = match result {
                    Ok(()) => self.place(group, record.slot, get.page()),
                    Err(error) => Err(FetchCause::Store(error.clone())),
                };
                match placed {
                    Ok(()) => round.bytes += get.page().len() as u64,
                    Err(cause) => drop(round.failed.get_or_insert((*record, cause))),
                }
            });
            round.tickets.retain(|ticket| !over.contains(ticket));
        }
        round
    }

    /// Writes a page that came into its frame.
    fn place(&self, group: &Group, slot: SlotId, page: &[u8]) -> Result<(), FetchCause> {
        let Some(map) = group.map() else { return Ok(()) };
        let Some(frame) = map.lock().arriving(slot) else { return Ok(()) };
        let mut guard = group.host.write(frame, &self.main).map_err(FetchCause::Device)?;
        // The envelope says the length, so it is the slot's.
        guard.bytes_mut().copy_from_slice(page);
        guard.set_tag(Group::tag(slot.page));
        drop(guard);
        map.lock().fetched(slot, true);
        Ok(())
    }
}

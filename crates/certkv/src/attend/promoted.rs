//! Promoted sides in scratch (Tier-0): what a head holds of them while it reads, and what is offered for the next step.
//!
//! A side that is not there is read where its original lies, so nothing waits for a copy and losing one loses nothing.
//! Both are the same bits.
use crate::attend::certified::HeadCall;
use crate::attend::pages::Pages;
use crate::attend::sets::Sets;
use crate::group::{Group, Side};
use crate::step::Part;
use crate::work::HeadWork;
use crate::{Cache, Error};
use certkv_bound::BytesRead;
use certkv_control::BitSet;
use certkv_tier::{Item, Offer, ScratchLease, SideKey};

/// Sides of one KV head that are held in scratch, by block.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    keys: Vec<(usize, ScratchLease)>,
    values: Vec<(usize, ScratchLease)>,
}

impl Resident {
    /// Lets every side go and keeps the buffers.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
    }

    fn of(&self, side: Side) -> &Vec<(usize, ScratchLease)> {
        if side == Side::Key { &self.keys } else { &self.values }
    }

    /// The side's rows, if it is held.
    pub(crate) fn words(&self, side: Side, block: usize) -> Option<&[u16]> {
        let held = self.of(side);
        held.binary_search_by_key(&block, |(b, _)| *b).ok().map(|at| held[at].1.words())
    }

    /// Sides held of those that are read exactly.
    pub(crate) fn count(&self, sets: &Sets) -> usize {
        let of = |held: &[(usize, ScratchLease)], set: &BitSet| held.iter().filter(|(b, _)| set.contains(*b)).count();
        of(&self.keys, &sets.keys) + of(&self.values, &sets.values)
    }

    /// Counts one exact side of `bytes` bytes where it is read.
    pub(crate) fn charge(&self, side: Side, block: usize, bytes: usize, read: &mut BytesRead) {
        let tier = if self.words(side, block).is_some() { &mut read.scratch } else { &mut read.host };
        *tier += bytes as u64;
    }
}

impl HeadCall<'_> {
    /// Takes hold of one side of those `blocks` that are in scratch. Safe on many threads: a look-up is one short lock and
    /// changes nothing that another head sees. Costs nothing on a cache without scratch.
    ///
    /// # Errors
    /// What the device's checks say about a slot.
    pub(crate) fn hold(
        &self,
        side: Side,
        blocks: impl Iterator<Item = usize>,
        resident: &mut Resident,
    ) -> Result<(), Error> {
        let Some(scratch) = self.group.scratch.as_ref().filter(|s| s.slots_of(side) > 0) else { return Ok(()) };
        let held = if side == Side::Key { &mut resident.keys } else { &mut resident.values };
        for block in blocks {
            let (Some(page), Err(at)) = (self.pages.host_id(block), held.binary_search_by_key(&block, |(b, _)| *b))
            else {
                continue;
            };
            if held.try_reserve(1).is_err() {
                return Ok(());
            }
            let key = SideKey::new(page, self.layer - self.group.first, self.head, side);
            if let Some(lease) = scratch.lookup(&key, self.stream)? {
                held.insert(at, (block, lease));
            }
        }
        Ok(())
    }
}

/// Sides to be copied to scratch behind a layer; the buffer is kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    items: Vec<Item>,
    /// Sequences of the step: as many batches lie between two uses of a side, times layers.
    pub(crate) parts: usize,
}

impl Wanted {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
    }

    /// Notes what the next step will want of `layer`: keys of the guess, values that were read exactly, and both sides of
    /// blocks without codes. Sides that are there are named too, so that the others do not take their place. Only blocks
    /// whose originals are final: those of this step may still be rolled back.
    pub(crate) fn collect(
        &mut self,
        group: &Group,
        layer: usize,
        part: &Part,
        heads: &[HeadWork],
        pages: &Pages,
        uncoded: &BitSet,
    ) {
        let Some(scratch) = &group.scratch else { return };
        let closed = pages.closed();
        let memory = &part.state.heads[group.memories(layer)];
        for (head, (w, memory)) in heads.iter().zip(memory).enumerate() {
            let keys = memory.keys.iter().chain(uncoded.iter().filter(|b| !memory.keys.contains(*b)));
            let keys = keys.map(|block| (Side::Key, block));
            let values = w.sets.values.iter().map(|block| (Side::Value, block));
            for (side, block) in keys.chain(values).filter(|(_, block)| *block < closed) {
                let Some(page) = pages.host_id(block).filter(|_| scratch.slots_of(side) > 0) else { continue };
                // What was read exactly is in host memory still.
                let Ok(slot) = group.host_slot(page, layer) else { continue };
                if self.items.try_reserve(1).is_err() {
                    return;
                }
                let words = group.side(head, side);
                self.items.push(Item {
                    key: SideKey::new(page, layer - group.first, head, side),
                    slot,
                    range: 2 * words.start..2 * words.end,
                    tag: Some(Group::tag(page)),
                });
            }
        }
    }

    /// Enqueues the copies, behind what the computing stream was given. No guard of that stream may be alive.
    pub(crate) fn offer(&self, cache: &Cache, group: &Group) {
        if let (Some(scratch), Some(lane), false) = (&group.scratch, &cache.fills, self.items.is_empty()) {
            let spared = (self.parts.max(1) * group.layers) as u64;
            scratch.offer(Offer { lane, from: &group.host, after: Some(&cache.main), spared }, &self.items);
        }
    }
}

//! Full blocks whose originals leave for host memory beside the steps that follow.
//!
//! A step that fills blocks ends with their coding (`core/closing.rs`). Their rows stay in their tails while a copy engine takes them to the pages of
//! originals, on a stream of its own, so that nobody waits for the link. The blocks of one step are a *trip*, with one mark behind its copies.
//! Meanwhile the device's table of sides names the tails; once the copies are over it names the pages again, and so does what repairs have lent
//! (`rehome.cu`). What a step returns does not depend on when that is.
//!
//! Two rules. What is given up while copies are under way is free once they are over ([`Leaving::stamp`]): a tail has no other rows, a page no other
//! writer before. And whoever reads or writes pages of originals otherwise than launches of a step do, on the host or by copies,
//! [lands](GpuCache::land) what is under way first. Originals that may lie in a store have a way of their own ([`spill`](super::spill)).
use super::cache::GpuCache;
use super::core::Core;
use super::step::Part;
use crate::counters::Kind;
use crate::{Error, SequenceId};
use certkv_core::{planted, span};
use certkv_device::cuda::{CopyBatch, DeviceBuffer, Event as Mark};
use certkv_kernel::cuda::queue::{Download, Span};
use certkv_kernel::cuda::rehome::{self, Move};
use certkv_page::{Reservation, Stamp};
use std::collections::VecDeque;

/// What the device's table of sides names of a block that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Page,
    /// The device was begun to be told of the tail.
    Either,
    Tail,
}

/// A block that a step has filled, in all layers of its group.
#[derive(Debug, Clone, Copy)]
struct Leaver {
    group: usize,
    /// Its pages of originals and of records, and the tail that has its rows.
    host: u32,
    packed: u32,
    tail: u32,
    /// Number of its trip.
    trip: u64,
    named: Named,
}

/// Blocks under way. Asks the allocator for nothing once it has held as many.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Oldest first.
    away: VecDeque<Leaver>,
    /// Landed, and the device's table still names their tails.
    back: Vec<Leaver>,
    /// Behind the copies of each trip, with its number.
    marks: VecDeque<(Mark, u64)>,
    /// Numbers of the last trips that began, and ended.
    begun: u64,
    landed: u64,
    /// Copies are under way for nobody: of a trip that failed half-way, or of sequences that are all gone. Their pages may be free; what is enqueued
    /// next has to wait for them.
    astray: bool,
    /// Copies of a trip, and moves on their way to the device: memory to be used again.
    copies: CopyBatch,
    words: Vec<u64>,
}

impl Leaving {
    /// Of as many blocks as can be under way, each in so many layers.
    pub(super) fn new(core: &Core) -> Self {
        let (blocks, layers) = (core.sizes.tail_slots * core.sizes.groups.len(), core.sizes.layers);
        Self {
            away: VecDeque::with_capacity(blocks),
            back: Vec::with_capacity(blocks),
            marks: VecDeque::with_capacity(blocks),
            begun: 0,
            landed: 0,
            astray: false,
            copies: core.outward.batch(core.sizes.rows * layers),
            words: Vec::with_capacity(core.sizes.rows * layers * Move::WORDS),
        }
    }

    /// A list of copies, to be used for one call.
    pub(super) fn copies(&mut self) -> &mut CopyBatch {
        &mut self.copies
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.landed == self.begun
    }

    /// Whether nobody has to wait for copies before pages are used.
    pub(super) fn is_over(&self) -> bool {
        self.is_empty() && !self.astray
    }

    /// Whether copies are under way for nobody.
    pub(super) fn is_astray(&self) -> bool {
        self.astray
    }

    /// For pages that are given up now.
    fn stamp(&self) -> Stamp {
        if self.is_empty() { Stamp::UNTOUCHED } else { Stamp(self.begun) }
    }

    /// Whether pages behind a stamp are free. Launches need no stamp: one stream orders them.
    pub(super) fn passed(&self, stamp: Stamp) -> bool {
        self.is_empty() || stamp.0 <= self.landed || planted!(B30)
    }

    /// The tail in which the originals of a page of a group are, if they are under way.
    pub(super) fn tail_of(&self, group: usize, host: u32) -> Option<u32> {
        self.away.iter().find(|block| (block.group, block.host) == (group, host)).map(|block| block.tail)
    }

    /// The last trip whose copies are over, if there are any that have not landed.
    fn over(&self) -> Result<Option<u64>, Error> {
        let mut over = None;
        for (mark, trip) in &self.marks {
            if !mark.passed()? {
                break;
            }
            over = Some(*trip);
        }
        Ok(over)
    }

    /// Trips up to this one are over, or behind all that is enqueued from now on.
    fn forget_until(&mut self, trip: u64) {
        while let Some(block) = self.away.front().copied().filter(|block| block.trip <= trip) {
            self.back.extend((block.named != Named::Page).then_some(block));
            self.away.pop_front();
        }
        while self.marks.front().is_some_and(|(_, marked)| *marked <= trip) {
            self.marks.pop_front();
        }
        self.landed = trip;
    }

    /// No sequence is left: nobody waits for what is under way, but what comes next.
    pub(super) fn abandon(&mut self) {
        self.astray |= !self.is_empty();
        self.forget_until(self.begun);
    }

    /// Whether the device has to be told of something.
    fn has_news(&self) -> bool {
        !self.back.is_empty() || self.away.iter().any(|block| block.named != Named::Tail)
    }
}

/// For pages that are given up in a call that has [landed](GpuCache::land) what was under way.
pub(super) fn landed() -> Stamp {
    Stamp::UNTOUCHED
}

impl GpuCache {
    /// For pages of a group that are given up now: while copies are under way, whosever, they wait for the last of them.
    pub(super) fn stamp(&self, group: usize) -> Stamp {
        if self.core.sizes.group_spills(group) { Stamp::UNTOUCHED } else { self.leaving.stamp() }
    }

    /// Enqueues, behind all work of a step, that the originals of the blocks which it has filled leave. A copy for each block and layer, all of them one
    /// call, half a microsecond of the host each; nothing that comes later waits for them. What `parts` have of chunks the host has written itself.
    ///
    /// # Errors
    /// The driver's: the step cannot be finished.
    pub(super) fn depart(&mut self, parts: &[Part], drafting: bool) -> Result<(), Error> {
        let own = parts.iter().filter(|part| drafting || part.place.is_some());
        let spans = own
            .flat_map(|part| part.reservations.iter().enumerate())
            .flat_map(|(group, reservation)| Reservation::rows(reservation).map(move |span| (group, span)));
        let Self { core, leaving, .. } = self;
        let (s, trip, before) = (&core.sizes, leaving.begun + 1, leaving.away.len());
        let filled = spans.filter_map(|(group, span)| {
            let (host, packed, tail) = (span.host.index, span.packed?.index, span.tail?.index);
            (!s.group_spills(group)).then_some(Leaver { group, host, packed, tail, trip, named: Named::Page })
        });
        leaving.away.extend(filled);
        if leaving.away.len() == before {
            return Ok(());
        }
        leaving.begun = trip;
        let span = span!("store", blocks = (leaving.away.len() - before), bytes = _);
        let sent = (|| {
            let turn = core.outward.turn(&core.queue)?;
            let blocks = leaving.away.range(before..);
            let each = blocks.flat_map(|block| s.groups[block.group].layers.iter().map(move |layer| (*layer, block)));
            let copies = each.map(|(layer, block)| -> Result<Download<'_>, Error> {
                let (from_offset, to_offset) = (s.tail_at(layer, block.tail), s.host_at(layer, block.host));
                Ok(Download { from: &core.tails, from_offset, to: &core.originals, to_offset, bytes: s.original_bytes })
            });
            turn.download_all(&mut leaving.copies, copies)?;
            leaving.marks.push_back((turn.end()?, trip));
            let bytes = (leaving.copies.len() * s.original_bytes) as u64;
            span.record("bytes", bytes);
            Ok(bytes)
        })();
        if sent.is_err() {
            leaving.away.truncate(before);
            leaving.astray = true;
        }
        core.host.moved(Kind::Store, sent).map(drop)
    }

    /// Takes notice of what has landed by now. Waits for nobody.
    ///
    /// # Errors
    /// The driver's: nothing has landed.
    pub(super) fn arrive(&mut self) -> Result<(), Error> {
        if self.leaving.astray {
            self.land()?;
        }
        match self.leaving.over()? {
            Some(trip) => self.take_landed(trip),
            None => Ok(()),
        }
    }

    /// Has all that is enqueued from now on wait for what is under way, and so whoever waits for the queue: originals are in their pages then. Whether something was.
    ///
    /// # Errors
    /// The driver's: nothing has landed.
    pub(super) fn land(&mut self) -> Result<bool, Error> {
        if self.leaving.is_over() {
            return Ok(false);
        }
        self.core.queue.join(&self.core.outward)?;
        self.take_landed(self.leaving.begun)?;
        self.leaving.astray = false;
        Ok(true)
    }

    /// Takes notice that trips up to this one have landed.
    fn take_landed(&mut self, trip: u64) -> Result<(), Error> {
        // Copies to scratch that are owed may be from the tails.
        self.core.settle_all()?;
        self.leaving.forget_until(trip);
        self.let_free();
        // Frames of pages that were given up meanwhile.
        self.sweep();
        Ok(())
    }

    /// As [`land`](Self::land), if the block of a sequence is under way in any group.
    ///
    /// # Errors
    /// Unknown; the driver's.
    pub(super) fn land_block(&mut self, id: SequenceId, block: usize) -> Result<(), Error> {
        let tables = self.entry(id)?.tables.iter().enumerate();
        let mut pages = tables.filter_map(|(group, table)| Some((group, table.get(block)?.host.index)));
        if pages.any(|(group, host)| self.leaving.tail_of(group, host).is_some()) {
            self.land()?;
        }
        Ok(())
    }

    /// Tells the device of originals that are in tails since the last step, or in their pages again: one launch for each thousand or so blocks of a layer, and
    /// none where there are none.
    ///
    /// # Errors
    /// The driver's: nothing may be launched before this has succeeded.
    pub(super) fn tell_moves(&mut self) -> Result<(), Error> {
        let Self { core, ring, leaving, .. } = self;
        if !leaving.has_news() {
            return Ok(());
        }
        let (s, kit) = (&core.sizes, core.kit(0));
        leaving.words.clear();
        let left = leaving.away.iter().filter(|block| block.named != Named::Tail);
        let news = leaving.back.iter().map(|block| (block, true)).chain(left.map(|block| (block, false)));
        for (block, landed) in news {
            for layer in s.groups[block.group].layers.iter().copied() {
                let tail = core.tails.address_of(s.tail_at(layer, block.tail), s.original_bytes)?;
                let page = core.originals.span(s.host_at(layer, block.host), s.original_bytes)?.address();
                let (from, to) = if landed { (tail, page) } else { (page, tail) };
                let (named, lent) = (core.named_at(layer, block.host)?, core.lent_at(layer, block.packed)?);
                let moved = Move { named, lent, from, to };
                leaving.words.extend_from_slice(&moved.words());
            }
        }
        leaving
            .away
            .iter_mut()
            .filter(|block| block.named == Named::Page)
            .for_each(|block| block.named = Named::Either);
        for part in leaving.words.chunks(ring.most() / size_of::<Move>() * Move::WORDS) {
            let at = ring.take(&core.queue, size_of_val(part))?;
            ring.area().write(at, part)?;
            let list = (ring.area().span(at, size_of_val(part))?, part.len() / Move::WORDS);
            let whole = |buffer| Span::of(buffer, 0, DeviceBuffer::len(buffer));
            let written = [whole(&core.sides)?, whole(&core.memory)?];
            rehome::rehome(&core.queue, &kit.rehome, list, [2 * s.kv_heads, s.side_bytes], written)?;
        }
        leaving.back.clear();
        leaving.away.iter_mut().for_each(|block| block.named = Named::Tail);
        Ok(())
    }
}

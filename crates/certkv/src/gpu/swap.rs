//! A whole sequence out of the GPU's memory and back, at the rate of the link.
//!
//! A kernel copies pages and makes their digests of what it has read on the way: of device memory when they leave, of host memory when
//! they return. A seal is such a digest with who the page is: layer, block, format and the life of the slot that it lies in.
use super::cache::{GpuCache, coded};
use super::core::Core;
use super::leaving::landed;
use super::level_sizes::LevelSizes;
use super::sizes::{GroupSizes, Sizes};
use crate::Error;
use crate::counters::Kind;
use crate::seal::{SealError, format_id};
use crate::swap::nothing_outside;
use certkv_core::{
    OutOfMemory, PageId, RecordLayout, SequenceId, hash::hash64, hash::splitmix64, reserve_total, span, try_filled,
};
use certkv_kernel::cuda::queue::{Area, Span};
use certkv_kernel::cuda::swap::{self, SwapItem};
use certkv_page::{BlockTable, CopyOp, PageClass, SwapCopy, SwapPlan, TableError};
use std::sync::Arc;

/// A page of one layer on its way.
struct Passing {
    layer: usize,
    block: usize,
    level: u8,
    /// Who has written it.
    writer: u32,
    /// Its place in host memory.
    page: PageId,
}

/// Pages to a launch: it runs while the next list is made.
const PER_LAUNCH: usize = 1024;

/// Seals of what is swapped out.
#[derive(Debug)]
pub(super) struct Seals {
    /// Numbers of the layers' formats, or of those of all levels.
    formats: Vec<u64>,
    leveled: bool,
    pages: usize,
    /// `[layer][page]`.
    words: Vec<u64>,
}

impl Seals {
    /// For layers of these layouts, or of these levels. `calibration`: the number of the one that codes depend on, if they do on any.
    ///
    /// # Errors
    /// No memory for a word a page.
    pub(super) fn new(
        layouts: &[RecordLayout],
        levels: &[LevelSizes],
        calibration: Option<u64>,
        pages: usize,
    ) -> Result<Self, OutOfMemory> {
        let number = |layout: &RecordLayout| match calibration.filter(|_| layout.format.key.is_calibrated()) {
            Some(calibration) => hash64(&[format_id(layout), calibration]),
            None => format_id(layout),
        };
        let formats = match levels {
            [] => layouts.iter().map(number).collect(),
            levels => levels.iter().map(|level| number(&level.layout)).collect(),
        };
        Ok(Self { formats, leveled: !levels.is_empty(), pages, words: try_filled(layouts.len() * pages, 0)? })
    }

    /// The seal of a page, from the digests of all places.
    fn of(&self, Passing { layer, block, level, writer, page }: &Passing, digests: &[u64]) -> u64 {
        let written = u64::from(*writer) << 32 | *block as u64;
        let who = [*layer as u64, written, u64::from(page.index), u64::from(page.generation)];
        let format = self.formats[if self.leveled { usize::from(*level) } else { *layer }];
        let who = who.into_iter().fold(format, |seal, word| splitmix64(seal ^ word));
        splitmix64(who ^ digests[self.at(*layer, *page)])
    }

    fn at(&self, layer: usize, page: PageId) -> usize {
        layer * self.pages + page.index as usize
    }
}

impl Sizes {
    /// First byte of page `page` of records in `layer`, in host memory. Pages there have the size of the first level's.
    pub(super) fn swap_at(&self, layer: usize, page: u32) -> usize {
        let own = &self.of_layer[layer];
        own.swap_at + page as usize * own.page_bytes
    }

    /// Where the digest of that page comes, `u64` each, behind all pages.
    pub(super) fn swap_digest_at(&self, layer: usize, page: u32) -> usize {
        self.swap_bytes + 8 * (layer * self.swap_pages + page as usize)
    }

    /// Pages of records in host memory and their digests.
    pub(super) fn swap_area_bytes(&self) -> Option<usize> {
        self.swap_pages.checked_mul(8 * self.layers)?.checked_add(self.swap_bytes)
    }
}

impl GpuCache {
    /// As [`Cache::swap_out`](crate::Cache::swap_out): records go to pinned memory
    /// ([`GpuConfig::swap_tokens`](super::GpuConfig::swap_tokens)), an open block's rows to its originals. What the sequence
    /// remembers beside them, its row in the tables, stays. Waits for the device; one launch to some thousand pages.
    ///
    /// # Errors
    /// As [`Cache::swap_out`](crate::Cache::swap_out). The sequence is where it was.
    pub fn swap_out(&mut self, id: SequenceId) -> Result<u64, Error> {
        let span = span!("swap out", bytes = _);
        let moved = self.leave(id);
        let moved = self.core.host.moved(Kind::SwapOut, moved)?;
        span.record("bytes", moved);
        Ok(moved)
    }

    /// As [`Cache::swap_in`](crate::Cache::swap_in). Promoted sides are chosen anew by the first step, so that outputs of formats without
    /// residual planes need not be those of a sequence that stayed; their certificates hold as any. Waits for the device.
    ///
    /// # Errors
    /// As [`Cache::swap_in`](crate::Cache::swap_in). The sequence stays swapped out.
    pub fn swap_in(&mut self, id: SequenceId) -> Result<u64, Error> {
        let span = span!("swap in", bytes = _);
        let moved = self.come_back(id);
        let moved = self.core.host.moved(Kind::SwapIn, moved)?;
        span.record("bytes", moved);
        Ok(moved)
    }

    /// Whether a sequence is swapped out.
    ///
    /// # Errors
    /// Unknown.
    pub fn is_swapped_out(&self, id: SequenceId) -> Result<bool, Error> {
        Ok(self.entry(id)?.is_out())
    }

    fn leave(&mut self, id: SequenceId) -> Result<u64, Error> {
        self.land()?;
        self.reclaim()?;
        let plans = self.plan_swap(id, BlockTable::swap_out)?;
        match self.pass_all(&plans) {
            Ok((passing, bytes)) => {
                let digests = self.digests()?;
                for passed in passing {
                    let (at, seal) = (self.seals.at(passed.layer, passed.page), self.seals.of(&passed, &digests));
                    self.seals.words[at] = seal;
                }
                self.settle_swap(id, plans)?;
                Ok(bytes)
            }
            Err(error) => {
                plans.into_iter().for_each(|plan| plan.abort(landed));
                Err(error)
            }
        }
    }

    fn come_back(&mut self, id: SequenceId) -> Result<u64, Error> {
        self.land()?;
        self.reclaim()?;
        let plans = loop {
            match self.plan_swap(id, BlockTable::swap_in) {
                Err(error) if self.make_room_after(&error)? => {}
                result => break result?,
            }
        };
        let moved = self.pass_all(&plans).and_then(|(passing, bytes)| self.compare(&passing).map(|()| bytes));
        match moved {
            Ok(bytes) => {
                self.settle_swap(id, plans)?;
                self.mirror_table(id.slot as usize);
                Ok(bytes)
            }
            Err(error) => {
                plans.into_iter().for_each(|plan| plan.abort(landed));
                Err(error)
            }
        }
    }

    /// A plan for every group of layers, or none.
    fn plan_swap(
        &self,
        id: SequenceId,
        plan: impl Fn(&BlockTable) -> Result<SwapPlan, TableError>,
    ) -> Result<Vec<SwapPlan>, Error> {
        let mut plans = Vec::with_capacity(self.pools.len());
        for table in &self.entry(id)?.tables {
            match plan(table) {
                Ok(plan) => plans.push(plan),
                Err(error) => {
                    plans.into_iter().for_each(|plan: SwapPlan| plan.abort(landed));
                    self.let_free();
                    return Err(Error::from_table(error));
                }
            }
        }
        Ok(plans)
    }

    fn settle_swap(&mut self, id: SequenceId, plans: Vec<SwapPlan>) -> Result<(), Error> {
        let noted = self.swapped(id, &plans);
        for (group, plan) in plans.into_iter().enumerate() {
            // The plan is this table's, and nothing happened to it since.
            let table = &mut self.entry_mut(id)?.tables[group];
            let dropped = table.commit_swap(plan).map_err(|(error, _)| Error::from_table(error))?;
            let core = Arc::clone(&self.core);
            self.forget_later(id, group, coded(&core.sizes, &dropped), false);
            dropped.retire(landed)?;
        }
        if let Some(moves) = &self.moves {
            moves.push(noted);
        }
        self.let_free();
        Ok(())
    }

    /// Makes the copies of all groups' plans and waits for them.
    fn pass_all(&mut self, plans: &[SwapPlan]) -> Result<(Vec<Passing>, u64), Error> {
        let (mut all, mut sum) = (Vec::new(), 0);
        let pages = |(plan, group): (&SwapPlan, &GroupSizes)| plan.copies().len() * group.layers.len();
        reserve_total(&mut all, plans.iter().zip(&self.core.sizes.groups).map(pages).sum())?;
        for (group, plan) in plans.iter().enumerate() {
            sum += self.pass(group, plan, &mut all)?;
        }
        Ok((all, sum))
    }

    /// Makes the copies of a group's plan and waits for them: the bytes that moved. Adds the pages of records to `passing`.
    fn pass(&mut self, group: usize, plan: &SwapPlan, passing: &mut Vec<Passing>) -> Result<u64, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        let opened =
            plan.copies().iter().map(|copy| copy.op.to).filter(|to| to.class == PageClass::Host).map(|to| to.id);
        self.house(group, opened)?;
        let layers = &s.groups[group].layers;
        let mut list = Vec::new();
        reserve_total(&mut list, PER_LAUNCH * SwapItem::WORDS)?;
        let mut bytes = 0;
        for SwapCopy { block, writer, op } in plan.copies() {
            match (op.from.class, op.to.class) {
                (PageClass::Tail, PageClass::Host) => {
                    super::prefill::fetch_open(self, group, op.from.id.index, op.to.id)?;
                    bytes += (layers.len() * s.original_bytes) as u64;
                }
                (PageClass::Host, PageClass::Tail) => {
                    for layer in layers.iter().copied() {
                        core.fill_tail(layer, op.to.id.index, self.host_at(layer, op.from.id)?)?;
                    }
                    bytes += (layers.len() * s.original_bytes) as u64;
                }
                _ => {
                    for layer in layers.iter().copied() {
                        core.swap_item(layer, op)?.words().into_iter().for_each(|word| list.push(word));
                        let page = if plan.out() { op.to.id } else { op.from.id };
                        let level = op.level().unwrap_or(0);
                        passing.push(Passing { layer, block: *block, level, writer: *writer, page });
                        bytes += s.record_page_bytes(layer, level) as u64;
                        if list.len() == PER_LAUNCH * SwapItem::WORDS {
                            self.launch_swap(plan.out(), &list)?;
                            list.clear();
                        }
                    }
                }
            }
        }
        if !list.is_empty() {
            self.launch_swap(plan.out(), &list)?;
        }
        core.finish()?;
        Ok(bytes)
    }

    /// Enqueues the copies of a list, which travels by the staging ring.
    fn launch_swap(&mut self, out: bool, items: &[u64]) -> Result<(), Error> {
        let Self { core, ring, .. } = self;
        let at = ring.take(&core.queue, size_of_val(items))?;
        ring.area().write(at, items)?;
        let list = ring.area().span(at, size_of_val(items))?;
        let (area, pages) = (core.swap_area()?, core.sizes.swap_digest_at(0, 0));
        let device = Span::of(&core.packed, 0, core.packed.len())?;
        let (host, digests) = (area.span(0, pages)?, area.span(pages, area.len() - pages)?);
        let areas = if out { (device, Some(host), digests) } else { (host, Some(device), digests) };
        Ok(swap::launch(&core.queue, &core.kit(0).swap, list, items.len() / SwapItem::WORDS, areas)?)
    }

    /// What the kernel made of the pages that passed, by place. Others' are of long ago.
    fn digests(&self) -> Result<Vec<u64>, Error> {
        let mut digests = try_filled(self.seals.words.len(), 0)?;
        if !digests.is_empty() {
            self.core.swap_area()?.read(self.core.sizes.swap_digest_at(0, 0), &mut digests)?;
        }
        Ok(digests)
    }

    /// Whether what came from host memory is what left.
    fn compare(&self, passing: &[Passing]) -> Result<(), Error> {
        let digests = self.digests()?;
        for passed in passing {
            let (sealed, found) =
                (self.seals.words[self.seals.at(passed.layer, passed.page)], self.seals.of(passed, &digests));
            if sealed != found {
                let Passing { layer, block, .. } = *passed;
                return Err(Error::Damaged { layer, block, why: SealError::Digest { sealed, found } });
            }
        }
        Ok(())
    }

    /// Originals of a group's block that was cut while its sequence is swapped out, copied by the host.
    pub(super) fn copy_originals(&mut self, group: usize, copies: impl Iterator<Item = CopyOp>) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        let Core { originals, sizes: s, .. } = &*core;
        let mut page = try_filled(s.original_bytes / 2, 0u16)?;
        for op in copies.filter(|op| op.to.class == PageClass::Host) {
            // They are there, and make no room for the new ones.
            self.keep(op.from.id, true);
            let housed = self.house(group, core::iter::once(op.to.id));
            self.keep(op.from.id, false);
            housed?;
            core.finish()?;
            for layer in s.groups[group].layers.iter().copied() {
                originals.read(self.host_at(layer, op.from.id)?, &mut page)?;
                core.put_originals(self.host_at(layer, op.to.id)?, &page)?;
            }
        }
        Ok(())
    }
}

impl Core {
    fn swap_area(&self) -> Result<&Area, Error> {
        self.swap.as_ref().ok_or_else(nothing_outside)
    }

    fn swap_item(&self, layer: usize, op: &CopyOp) -> Result<SwapItem, Error> {
        let (s, swap, level) = (&self.sizes, self.swap_area()?, op.level().unwrap_or(0));
        let (bytes, leaves) = (s.record_page_bytes(layer, level), op.to.class == PageClass::Swap);
        let (packed, outside) = if leaves { (op.from.id, op.to.id) } else { (op.to.id, op.from.id) };
        let inside = Span::of(&self.packed, s.packed_at(layer, s.page_of(level, packed.index)), bytes)?;
        let outside_span = swap.span(s.swap_at(layer, outside.index), bytes)?;
        let digest = swap.span(s.swap_digest_at(layer, outside.index), 8)?;
        let (from, to) = if leaves { (inside, outside_span) } else { (outside_span, inside) };
        Ok(SwapItem::new(from, to, digest)?)
    }
}

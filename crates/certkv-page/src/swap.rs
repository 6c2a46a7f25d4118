//! The codes of one sequence, out of the device's memory and back.
use crate::error::TableError;
use crate::fork::{allocate, return_unseen};
use crate::lease::Lease;
use crate::pools::{CopyOp, Dropped, PageClass, PageRef, Pools};
use crate::stamp::Stamp;
use crate::table::{BlockEntry, BlockTable, SwappedPage};
use crate::word::Operation;
use certkv_core::{PageId, planted};
use core::mem;

/// A copy of a block that leaves the device or returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapCopy {
    /// Its number in the sequence.
    pub block: usize,
    /// Who has written it ([`BlockEntry::writer`]).
    pub writer: u32,
    /// Whole pages, but for an open block's rows, which go between its tail and its originals.
    pub op: CopyOp,
}

/// Pages taken for a sequence to leave the device or to return, and the copies to make. Nothing has moved yet: make the
/// copies, wait until they were seen to have succeeded, then [`BlockTable::commit_swap`].
///
/// Left to drop, the pages are retired behind [`Stamp::IDLE`] and the sequence stays where it is.
#[derive(Debug)]
#[must_use = "dropping a plan gives its pages back"]
pub struct SwapPlan {
    pools: Pools,
    table: u64,
    version: u64,
    out: bool,
    /// Blocks as they will be.
    entries: Vec<BlockEntry>,
    copies: Vec<SwapCopy>,
    /// New pages.
    taken: Vec<PageRef>,
    /// Pages of codes that are shared again: one more reference each.
    again: Vec<PageRef>,
    /// Codes on their way out: leased, so that nothing moves them meanwhile.
    sources: Vec<Lease>,
    /// Room for what the table gives up.
    dropped: Dropped,
}

impl SwapPlan {
    /// Leaves the device, or returns to it.
    pub fn out(&self) -> bool {
        self.out
    }

    /// The copies, in order.
    pub fn copies(&self) -> &[SwapCopy] {
        &self.copies
    }

    /// Blocks that return without a copy, because another sequence kept their codes.
    pub fn shared(&self) -> usize {
        self.again.len()
    }

    /// Gives all pages back, behind the stamp that `record` returns: a fence that follows everything enqueued on them.
    pub fn abort(mut self, record: impl FnOnce() -> Stamp) {
        self.give_back(record());
    }

    fn give_back(&mut self, stamp: Stamp) {
        self.sources.clear();
        // The plan is the only owner of new pages: nothing refuses.
        for page in self.taken.drain(..) {
            if page.class != PageClass::Tail {
                let _ = self.pools.of(page.class).apply(Operation::CloseAbort, page.id);
            }
            let _ = self.pools.give_up(page, stamp);
        }
        // The plan enqueued nothing on these, but whoever released them since may have.
        for page in self.again.drain(..) {
            let stamp = if stamp == Stamp::UNTOUCHED { Stamp::IDLE } else { stamp };
            let _ = self.pools.give_up(page, stamp);
        }
    }

    /// A new page that nobody can pin until the commit.
    fn take(&mut self, class: PageClass) -> Result<PageId, TableError> {
        let id = allocate(&self.pools, class)?;
        if class != PageClass::Tail
            && let Err(error) = self.pools.of(class).apply(Operation::CloseBegin, id)
        {
            return_unseen(&self.pools, class, id);
            return Err(TableError::Page { class, error });
        }
        self.taken.push(PageRef { class, id });
        Ok(id)
    }

    fn copy(
        &mut self,
        (block, writer): (usize, u32),
        (from, id): (PageClass, PageId),
        (to, into): (PageClass, PageId),
        rows: usize,
    ) {
        let (from, to) = (PageRef { class: from, id }, PageRef { class: to, id: into });
        self.copies.push(SwapCopy { block, writer, op: CopyOp { from, to, rows } });
    }
}

impl Drop for SwapPlan {
    fn drop(&mut self) {
        self.give_back(Stamp::IDLE);
    }
}

impl BlockTable {
    /// Swapped out.
    pub fn is_out(&self) -> bool {
        self.out
    }

    /// Nothing is appended to, and nothing shared of, what is swapped out.
    pub(crate) fn require_in(&self) -> Result<(), TableError> {
        if self.out { Err(TableError::SwappedOut) } else { Ok(()) }
    }

    /// A page in host memory for the codes of every full block, whatever its level; an open block's rows go to its originals.
    /// Afterwards the sequence holds no page of the device; those that others share stay with them.
    ///
    /// # Errors
    /// [`TableError::SwappedOut`]; [`TableError::Page`] when no page is free or codes are being moved; [`TableError::OutOfMemory`].
    /// Nothing changed.
    pub fn swap_out(&self) -> Result<SwapPlan, TableError> {
        self.require_in()?;
        let mut plan = self.plan(true)?;
        match self.fill_out(&mut plan) {
            Ok(()) => Ok(plan),
            Err(error) => {
                plan.give_back(Stamp::UNTOUCHED);
                Err(error)
            }
        }
    }

    fn fill_out(&self, plan: &mut SwapPlan) -> Result<(), TableError> {
        for (block, entry) in self.numbered() {
            let mut next = BlockEntry { packed: None, tail: None, ..*entry };
            if let Some(packed) = entry.packed {
                let class = entry.class();
                let refused = |error| TableError::Page { class, error };
                plan.sources.push(self.pools.of(class).lease(packed).map_err(refused)?);
                let page = plan.take(PageClass::Swap)?;
                next.swapped = Some(SwappedPage { page, left: packed });
                plan.copy((block, entry.writer), (class, packed), (PageClass::Swap, page), self.block);
            }
            if let Some(tail) = entry.tail {
                plan.copy(
                    (block, entry.writer),
                    (PageClass::Tail, tail),
                    (PageClass::Host, entry.host),
                    self.len % self.block,
                );
            }
            plan.entries.push(next);
        }
        Ok(())
    }

    /// A page on the device for the codes of every full block, of the level that it left with, and a tail for an open one. Pages
    /// that others kept since are shared again, and not copied.
    ///
    /// # Errors
    /// [`TableError::NotOut`], [`TableError::Page`], [`TableError::OutOfMemory`]. Nothing changed.
    pub fn swap_in(&self) -> Result<SwapPlan, TableError> {
        if !self.out {
            return Err(TableError::NotOut);
        }
        let mut plan = self.plan(false)?;
        match self.fill_in(&mut plan) {
            Ok(()) => Ok(plan),
            Err(error) => {
                plan.give_back(Stamp::UNTOUCHED);
                Err(error)
            }
        }
    }

    fn fill_in(&self, plan: &mut SwapPlan) -> Result<(), TableError> {
        for (block, entry) in self.numbered() {
            let mut next = BlockEntry { swapped: None, ..*entry };
            match entry.swapped {
                Some(SwappedPage { page, left }) => {
                    let class = if planted!(B28) { PageClass::Packed } else { entry.class() };
                    let packed = if self.pools.of(class).retain(left).is_ok() {
                        plan.again.push(PageRef { class, id: left });
                        left
                    } else {
                        let packed = plan.take(class)?;
                        plan.copy((block, entry.writer), (PageClass::Swap, page), (class, packed), self.block);
                        packed
                    };
                    next.packed = Some(packed);
                }
                None => {
                    let tail = plan.take(PageClass::Tail)?;
                    plan.copy(
                        (block, entry.writer),
                        (PageClass::Host, entry.host),
                        (PageClass::Tail, tail),
                        self.len % self.block,
                    );
                    next.tail = Some(tail);
                }
            }
            plan.entries.push(next);
        }
        Ok(())
    }

    /// An empty plan with room for everything, so that filling it fails for want of pages only.
    fn plan(&self, out: bool) -> Result<SwapPlan, TableError> {
        let n = self.entries.len();
        let no_memory = || TableError::OutOfMemory { what: "the pages of a swap" };
        let mut plan = SwapPlan {
            pools: self.pools.clone(),
            table: self.serial,
            version: self.version,
            out,
            entries: Vec::new(),
            copies: Vec::new(),
            taken: Vec::new(),
            again: Vec::new(),
            sources: Vec::new(),
            dropped: Dropped::with_room(&self.pools, n).ok_or_else(no_memory)?,
        };
        plan.entries.try_reserve_exact(n).map_err(|_| no_memory())?;
        plan.copies.try_reserve_exact(n).map_err(|_| no_memory())?;
        plan.taken.try_reserve_exact(n).map_err(|_| no_memory())?;
        plan.sources.try_reserve_exact(if out { n } else { 0 }).map_err(|_| no_memory())?;
        plan.again.try_reserve_exact(if out { 0 } else { n }).map_err(|_| no_memory())?;
        Ok(plan)
    }

    /// Moves the sequence: the copies were seen to have succeeded. What it leaves is to be retired.
    ///
    /// # Errors
    /// [`TableError::ForeignReservation`], [`TableError::OutdatedReservation`] if the table changed since, with the plan.
    #[expect(clippy::result_large_err, reason = "the plan goes back by value; boxing it could fail")]
    pub fn commit_swap(&mut self, mut plan: SwapPlan) -> Result<Dropped, (TableError, SwapPlan)> {
        if plan.table != self.serial {
            return Err((TableError::ForeignReservation, plan));
        }
        if plan.version != self.version {
            return Err((TableError::OutdatedReservation, plan));
        }
        for page in plan.taken.drain(..) {
            // Closed when they were taken, and nobody else may open or commit them; a tail stays Open.
            if page.class != PageClass::Tail {
                let closed = self.pools.of(page.class).apply(Operation::CloseCommit, page.id);
                debug_assert!(closed.is_ok(), "page of a swap: {closed:?}");
            }
        }
        plan.sources.clear();
        plan.again.clear();
        let mut dropped = mem::replace(&mut plan.dropped, Dropped::new(&self.pools));
        for (entry, next) in self.entries.iter_mut().zip(plan.entries.drain(..)) {
            let old = mem::replace(entry, next);
            for page in old.pages().filter(|page| page.class != PageClass::Host) {
                dropped.push(page.class, page.id);
            }
        }
        self.out = plan.out;
        self.version += 1;
        Ok(dropped)
    }
}

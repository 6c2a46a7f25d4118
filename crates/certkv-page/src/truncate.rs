//! Cutting a sequence shorter.
use crate::error::{PageError, TableError};
use crate::fork::{allocate, return_unseen};
use crate::lease::Lease;
use crate::pools::{CopyOp, Dropped, PageClass, PageRef};
use crate::stamp::Stamp;
use crate::table::{BlockEntry, BlockTable};
use certkv_core::PageId;

/// What a truncation leaves to do: enqueue the copies in order, then [`retire`](Self::retire).
#[derive(Debug)]
#[must_use = "the copies must be enqueued and the dropped pages retired"]
pub struct TruncateOps {
    /// The page that the copies read, if another table shares it or a reader holds it: leased, so that no move starts
    /// on it before the copies are enqueued.
    source: Option<Lease>,
    copies: [Option<CopyOp>; 2],
    renamed: Option<(PageId, PageId)>,
    dropped: Dropped,
}

impl TruncateOps {
    /// The copies, in order: host to host when the originals are shared, host to tail when a block was reopened.
    pub fn copies(&self) -> impl Iterator<Item = CopyOp> + '_ {
        self.copies.iter().flatten().copied()
    }

    /// The originals page that was reopened in place: its old id and its new one, in the same slot. Whoever labels
    /// memory with ids writes the new label before anything is read or written under it.
    pub fn renamed(&self) -> Option<(PageId, PageId)> {
        self.renamed
    }

    /// The pages that the table gave up.
    pub fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// [`Dropped::retire`], after the copies have been enqueued.
    ///
    /// # Errors
    /// As [`Dropped::retire`].
    pub fn retire(self, record: impl FnOnce() -> Stamp) -> Result<usize, PageError> {
        let Self { source, dropped, .. } = self;
        let retired = dropped.retire(record);
        drop(source);
        retired
    }
}

/// A block that was full and is open again.
struct Reopened {
    host: PageId,
    /// `None` while the sequence is swapped out.
    tail: Option<PageId>,
    /// The old host page stays with others; its rows must be copied.
    source: Option<Lease>,
}

impl BlockTable {
    /// Cuts the sequence to `len` tokens. Whole blocks behind it are given up. A full block that becomes partial is
    /// reopened: it gets a new tail, filled from the originals, and gives up its codes; originals that are shared with a
    /// fork, or held by a reader, are copied to a new page first. Swapped out, there is no tail until it comes back. An originals page that is reopened in place gets a new
    /// generation, so that nothing cached under its old id is found again.
    ///
    /// A table with a window can be cut to any length whose window is still there; that is so for a cut of up to
    /// [`Window::slack`](crate::Window::slack) tokens.
    ///
    /// # Errors
    /// [`TableError::BeyondEnd`]; [`TableError::WindowPassed`]; [`TableError::Page`] when no page is free or the originals are being moved;
    /// [`TableError::OutOfMemory`]. Nothing changed.
    pub fn truncate(&mut self, len: usize) -> Result<TruncateOps, TableError> {
        if len > self.len {
            return Err(TableError::BeyondEnd { asked: len, len: self.len });
        }
        self.check_cut(len)?;
        let rows = len % self.block;
        // Never in the hole, or the window would not be there.
        let keep = self.place(len.div_ceil(self.block)).unwrap_or(self.hole.start).min(self.entries.len());
        let gone = self.entries[keep..].iter().flat_map(|entry| entry.pages()).count();
        // Two more for the codes and the shared originals of a reopened block.
        let dropped = Dropped::with_room(&self.pools, gone + 2);
        let dropped = dropped.ok_or(TableError::OutOfMemory { what: "the pages of a truncation" })?;
        let mut ops = TruncateOps { source: None, copies: [None; 2], renamed: None, dropped };
        if len == self.len {
            return Ok(ops);
        }

        let last = keep.checked_sub(1).and_then(|block| self.entries.get(block).copied());
        // A block that was open before only shrinks: its rows stay where they are.
        if let Some(old) = last.filter(|entry| rows > 0 && entry.is_full()) {
            let Reopened { host, tail, source } = self.reopen(old)?;
            let page = |class, id| PageRef { class, id };
            let from = if source.is_some() { old.host } else { host };
            let copy = |to| Some(CopyOp { from: page(PageClass::Host, from), to, rows });
            if source.is_some() {
                ops.copies[0] = copy(page(PageClass::Host, host));
                ops.dropped.push(PageClass::Host, old.host);
            } else {
                ops.renamed = Some((old.host, host));
            }
            ops.copies[1] = tail.and_then(|tail| copy(page(PageClass::Tail, tail)));
            ops.source = source;
            if let Some(packed) = old.packed {
                ops.dropped.push(old.class(), packed);
            }
            if let Some(swapped) = old.swapped {
                ops.dropped.push(PageClass::Swap, swapped.page);
            }
            self.entries[keep - 1] = BlockEntry::open(host, tail, self.number());
        }
        for page in self.entries.drain(keep..).flat_map(BlockEntry::pages) {
            ops.dropped.push(page.class, page.id);
        }
        self.close_hole(len);
        self.len = len;
        self.version += 1;
        Ok(ops)
    }

    /// Pages for a full block that becomes open. The reopening in place comes last: it cannot be undone.
    fn reopen(&self, old: BlockEntry) -> Result<Reopened, TableError> {
        let pools = &self.pools;
        let tail = if self.out { None } else { Some(allocate(pools, PageClass::Tail)?) };
        let undo = |error| {
            if let Some(tail) = tail {
                return_unseen(pools, PageClass::Tail, tail);
            }
            Err(error)
        };
        let of_host = |error| TableError::Page { class: PageClass::Host, error };
        match pools.host.reopen(old.host) {
            Ok(host) => return Ok(Reopened { host, tail, source: None }),
            // Shared, read, or out of generations: a copy will do. Being moved: the lease below is refused too.
            Err(PageError::Shared { .. } | PageError::Refused { .. }) => {}
            Err(error) => return undo(of_host(error)),
        }
        let source = match pools.host.lease(old.host) {
            Ok(lease) => lease,
            Err(error) => return undo(of_host(error)),
        };
        match allocate(pools, PageClass::Host) {
            Ok(host) => Ok(Reopened { host, tail, source: Some(source) }),
            Err(error) => undo(error),
        }
    }
}

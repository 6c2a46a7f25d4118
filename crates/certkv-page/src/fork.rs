//! A second sequence that continues from the first.
use crate::error::{PageError, TableError};
use crate::pools::{CopyOp, PageClass, PageRef, Pools};
use crate::stamp::Stamp;
use crate::table::{BlockEntry, BlockTable};
use certkv_core::{PageId, planted};

/// One new page of `class`.
pub(crate) fn allocate(pools: &Pools, class: PageClass) -> Result<PageId, TableError> {
    pools.of(class).allocate().map_err(|error| TableError::Page { class, error })
}

/// Gives a page back that nobody has seen.
pub(crate) fn return_unseen(pools: &Pools, class: PageClass, id: PageId) {
    // Just allocated and owned by the caller alone, so nothing can refuse.
    let _ = pools.give_up(PageRef { class, id }, Stamp::UNTOUCHED);
}

impl BlockTable {
    /// A table over full blocks that somebody else holds, with references of its own.
    ///
    /// # Errors
    /// [`TableError::BadShape`] for more blocks than fit, [`TableError::Page`], [`TableError::OutOfMemory`]; nothing changed.
    pub(crate) fn adopt(
        pools: &Pools,
        block: usize,
        max_blocks: usize,
        full: impl Iterator<Item = BlockEntry>,
    ) -> Result<Self, TableError> {
        let mut table = Self::create(pools, block, max_blocks)?;
        // Room for all of them was taken, and no page is the table's until they are shared.
        let mut entries = core::mem::take(&mut table.entries);
        for entry in full {
            if entries.len() == max_blocks {
                return Err(TableError::BadShape { block, max_blocks });
            }
            entries.push(entry);
        }
        if !planted!(B6) {
            share(pools, &entries)?;
        }
        table.len = entries.len() * block;
        table.entries = entries;
        Ok(table)
    }

    /// A table with the same tokens: full blocks that are there are shared, an open block gets pages of its own. The copies fill those
    /// pages: the caller enqueues them before either sequence is written, truncated or released.
    ///
    /// # Errors
    /// [`TableError::Page`], [`TableError::OutOfMemory`], [`TableError::SwappedOut`]; nothing changed.
    pub fn fork(&self) -> Result<(BlockTable, Vec<CopyOp>), TableError> {
        self.require_in()?;
        let mut fork = Self::with_room(&self.pools, self.block, self.max_blocks(), self.room())?;
        (fork.window, fork.hole) = (self.window, self.hole());
        let mut copies = Vec::new();
        copies.try_reserve_exact(2).map_err(|_| TableError::OutOfMemory { what: "the copies of a fork" })?;
        let open = self.place(self.len / self.block).unwrap_or(self.entries.len()).min(self.entries.len());
        let (full, open) = self.entries.split_at(open);
        let pools = &self.pools;

        let own = match open.first() {
            None => None,
            Some(from) => {
                let host = allocate(pools, PageClass::Host)?;
                let tail =
                    allocate(pools, PageClass::Tail).inspect_err(|_| return_unseen(pools, PageClass::Host, host))?;
                Some((*from, host, tail))
            }
        };
        if let Err(error) = share(pools, full) {
            if let Some((_, host, tail)) = own {
                return_unseen(pools, PageClass::Host, host);
                return_unseen(pools, PageClass::Tail, tail);
            }
            return Err(error);
        }

        fork.entries.extend_from_slice(full);
        fork.len = self.len;
        if let Some((from, host, tail)) = own {
            let rows = self.len % self.block;
            let mut copy = |class, from, to| {
                copies.push(CopyOp { from: PageRef { class, id: from }, to: PageRef { class, id: to }, rows });
            };
            copy(PageClass::Host, from.host, host);
            if let Some(from) = from.tail {
                copy(PageClass::Tail, from, tail);
            }
            fork.entries.push(BlockEntry::open(host, Some(tail), fork.number()));
        }
        Ok((fork, copies))
    }
}

/// One more reference to every page of full blocks, all or none.
pub(crate) fn share(pools: &Pools, full: &[BlockEntry]) -> Result<(), TableError> {
    let of = |class| move |error: PageError| TableError::Page { class, error };
    let of_class = |class| {
        let pages = full.iter().flat_map(|entry| entry.pages());
        pages.filter(move |page| page.class == class).map(|page| page.id)
    };
    let classes =
        || pools.classes().filter(|class| matches!(class, PageClass::Host | PageClass::Packed | PageClass::Level(_)));
    for (done, class) in classes().enumerate() {
        if let Err(error) = pools.of(class).retain_all(of_class(class)) {
            for undo in classes().take(done) {
                // Never the last reference: whoever shares holds one.
                for id in of_class(undo) {
                    let _ = pools.of(undo).release(id);
                }
            }
            return Err(of(class)(error));
        }
    }
    Ok(())
}

/// Takes back what [`share`] did, while another owner still holds the pages.
pub(crate) fn unshare(pools: &Pools, full: &[BlockEntry]) {
    for page in full.iter().flat_map(|entry| entry.pages()) {
        let _ = pools.of(page.class).release(page.id);
    }
}

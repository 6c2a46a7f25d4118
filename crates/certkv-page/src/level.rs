//! Another level for a full block: its codes in another format, on a page of another class.
//!
//! The new page is the caller's alone until its codes are complete: Closing, so that nobody pins it. Then the entry of the one table
//! names it instead of the old page, in one act, and the old page goes when its last owner has. A table that shares the block keeps
//! what it had: codes under one id never change.
use crate::error::TableError;
use crate::fork::{allocate, return_unseen};
use crate::pools::{Dropped, PageClass, PageRef, Pools};
use crate::stamp::Stamp;
use crate::table::BlockTable;
use crate::word::Operation;
use certkv_core::{PageId, planted};
use core::fmt;

/// A page for the codes of one block at another level, owned until [`BlockTable::commit_change`].
///
/// Left to drop it gives the page back behind [`Stamp::IDLE`], since a stream may have written it.
#[derive(Debug)]
#[must_use = "dropping a change gives its page back"]
pub struct LevelChange {
    pools: Pools,
    table: u64,
    version: u64,
    block: usize,
    level: u8,
    host: PageId,
    /// What the block has: the page, which is known by its number among those of its level alone, and that.
    replaces: (Option<PageId>, u8),
    page: Option<PageId>,
}

impl LevelChange {
    /// Number of the block in its sequence.
    pub fn block(&self) -> usize {
        self.block
    }

    /// The level that it is to have.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Page of the originals to code.
    pub fn host(&self) -> PageId {
        self.host
    }

    /// Page for the codes, of class [`PageClass::of_level`]. It is Closing until the commit: nobody else can pin it.
    pub fn page(&self) -> Option<PageId> {
        self.page
    }

    /// Gives the page back, behind the stamp that `record` returns: a fence that follows everything enqueued on it.
    pub fn abort(mut self, record: impl FnOnce() -> Stamp) {
        self.give_back(record);
    }

    fn give_back(&mut self, record: impl FnOnce() -> Stamp) {
        let Some(id) = self.page.take() else { return };
        let class = PageClass::of_level(self.level);
        // The change is the only owner, so none of this is refused.
        let _ = self.pools.of(class).apply(Operation::CloseAbort, id);
        let _ = self.pools.give_up(PageRef { class, id }, record());
    }
}

impl Drop for LevelChange {
    fn drop(&mut self) {
        self.give_back(|| Stamp::IDLE);
    }
}

/// A change that was not committed; it comes back whole.
#[derive(Debug)]
pub struct RefusedChange {
    /// What was wrong.
    pub error: TableError,
    /// The change, unchanged.
    pub change: LevelChange,
}

impl fmt::Display for RefusedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl core::error::Error for RefusedChange {}

impl BlockTable {
    /// Takes a page for codes of `block` at `level`. The table does not change.
    ///
    /// # Errors
    /// [`TableError::NoLevel`] for a block that is not full, or a level that there is not; [`TableError::SwappedOut`];
    /// [`TableError::Page`] where the class has no page.
    pub fn begin_change(&self, block: usize, level: u8) -> Result<LevelChange, TableError> {
        self.require_in()?;
        let entry = self.get(block).filter(|entry| entry.packed.is_some() && level < self.pools.level_count());
        let entry = entry.ok_or(TableError::NoLevel { block, level })?;
        let class = PageClass::of_level(level);
        let page = allocate(&self.pools, class)?;
        if let Err(error) = self.pools.of(class).apply(Operation::CloseBegin, page) {
            return_unseen(&self.pools, class, page);
            return Err(TableError::Page { class, error });
        }
        let (pools, table, version) = (self.pools.clone(), self.serial, self.version);
        let (host, replaces) = (entry.host, (entry.packed, entry.level));
        Ok(LevelChange { pools, table, version, block, level, host, replaces, page: Some(page) })
    }

    /// Makes the codes those of the block: the caller has written all of them. What it had before goes behind the stamp that
    /// [`Dropped::retire`] is given, unless another table has it, too. A change that was begun before this table changed otherwise than in levels of other
    /// blocks is outdated.
    ///
    /// # Errors
    /// [`RefusedChange`] with the change; the table is unchanged.
    #[expect(clippy::result_large_err, reason = "the change goes back by value; boxing it could fail")]
    pub fn commit_change(&mut self, mut change: LevelChange) -> Result<Dropped, RefusedChange> {
        let found = match () {
            () if change.table != self.serial => Err(TableError::ForeignReservation),
            () if change.version != self.version && !self.only_levels_since(change.version) => {
                Err(TableError::OutdatedReservation)
            }
            () => {
                let missing = TableError::NoLevel { block: change.block, level: change.level };
                let place = self.place(change.block).filter(|place| *place < self.entries.len());
                let found = place.zip(change.page).ok_or(missing);
                found.and_then(|(place, page)| {
                    let entry = &self.entries[place];
                    let same = (entry.packed, entry.level) == change.replaces;
                    if same { Ok((place, page)) } else { Err(TableError::OutdatedReservation) }
                })
            }
        };
        let (place, page) = match found {
            Ok(found) => found,
            Err(error) => return Err(RefusedChange { error, change }),
        };
        let class = PageClass::of_level(change.level);
        if let Err(error) = self.pools.of(class).apply(Operation::CloseCommit, page) {
            return Err(RefusedChange { error: TableError::Page { class, error }, change });
        }
        change.page = None;
        let entry = &mut self.entries[place];
        let mut dropped = Dropped::new(&self.pools);
        if let Some(old) = entry.packed {
            dropped.push(entry.class(), old);
            if planted!(B27) {
                let _ = self.pools.of(entry.class()).release(old);
            }
        }
        (entry.packed, entry.level) = (Some(page), change.level);
        // A run of changes goes on, or begins.
        let from = if self.levels.end == self.version { self.levels.start } else { self.version };
        self.version += 1;
        self.levels = from..self.version;
        Ok(dropped)
    }

    /// Whether nothing but levels has changed since that version.
    fn only_levels_since(&self, version: u64) -> bool {
        self.levels.end == self.version && self.levels.start <= version
    }
}

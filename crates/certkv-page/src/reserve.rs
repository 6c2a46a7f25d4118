//! Pages taken for tokens that are not yet part of a sequence.
use crate::error::TableError;
use crate::fork::allocate;
use crate::pools::{PageClass, PageRef, Pools};
use crate::stamp::Stamp;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::table::BlockEntry;
use crate::word::Operation;
use certkv_core::PageId;

/// Where a run of new rows of one block goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// Index of the block in the sequence.
    pub block: usize,
    /// Page of the originals.
    pub host: PageId,
    /// Scratch slot, if the block was open before or stays open. A block that begins and fills within one reservation
    /// has none: its encoder reads the caller's rows or the originals.
    pub tail: Option<PageId>,
    /// Page for the codes, if these rows make the block full. It is Closing until the commit: nobody else can pin it.
    pub packed: Option<PageId>,
    /// The level of the codes; 0 unless [`BlockTable::reserve_at`](crate::BlockTable::reserve_at) was asked for another.
    pub level: u8,
    /// Number of the table ([`BlockTable::number`](crate::BlockTable::number)).
    pub writer: u32,
    /// First new row in the block.
    pub first_row: usize,
    /// Number of new rows, at least 1.
    pub rows: usize,
}

/// Pages of a reservation. The lists keep their memory from one reservation of a table to the next.
#[derive(Debug, Default)]
pub(crate) struct NewPages {
    pub(crate) host: Vec<PageId>,
    pub(crate) packed: Vec<PageId>,
    /// Levels of `packed`; empty where all are of the first.
    pub(crate) levels: Vec<u8>,
    /// Only the last block can stay open.
    pub(crate) tail: Option<PageId>,
}

impl NewPages {
    fn clear(&mut self) {
        self.host.clear();
        self.packed.clear();
        self.levels.clear();
        self.tail = None;
    }

    fn level(&self, at: usize) -> u8 {
        self.levels.get(at).copied().unwrap_or(0)
    }

    /// Pages of codes, each with its class.
    fn coded(&self) -> impl Iterator<Item = (PageClass, PageId)> + '_ {
        self.packed.iter().enumerate().map(|(at, id)| (PageClass::of_level(self.level(at)), *id))
    }

    /// Pages of codes at these levels, one by one.
    fn take_levels(&mut self, pools: &Pools, levels: &[u8]) -> Result<(), TableError> {
        let no_memory = |_| TableError::OutOfMemory { what: "the pages of a reservation" };
        self.packed.try_reserve(levels.len()).map_err(no_memory)?;
        self.levels.try_reserve(levels.len()).map_err(no_memory)?;
        for level in levels {
            self.packed.push(allocate(pools, PageClass::of_level(*level))?);
            self.levels.push(*level);
        }
        Ok(())
    }
}

/// All pages that appending `tokens` needs, owned until [`commit`](crate::BlockTable::commit).
///
/// Left to drop it gives everything back: at once if [`rows`](Self::rows) was never asked for, else behind
/// [`Stamp::IDLE`], since a stream may have written. A step that was enqueued calls [`abort`](Self::abort).
#[derive(Debug)]
#[must_use = "dropping a reservation gives its pages back"]
pub struct Reservation {
    pub(crate) pools: Pools,
    pub(crate) table: u64,
    pub(crate) version: u64,
    pub(crate) block: usize,
    pub(crate) len: usize,
    pub(crate) tokens: usize,
    /// The block that was open when the reservation was made.
    pub(crate) open: Option<BlockEntry>,
    pub(crate) pages: NewPages,
    pub(crate) shown: AtomicBool,
}

impl Reservation {
    /// Takes the pages; those of codes at `levels`, or all at the first. What was taken before a failure stays in the lists, for
    /// [`give_back`](Self::give_back).
    pub(crate) fn fill(&mut self, need: crate::Need, levels: &[u8]) -> Result<(), TableError> {
        let Self { pools, pages, .. } = self;
        let of = |class| move |error| TableError::Page { class, error };
        pools.host.allocate_many(need.host, &mut pages.host).map_err(of(PageClass::Host))?;
        match levels {
            [] => pools.packed.allocate_many(need.packed, &mut pages.packed).map_err(of(PageClass::Packed))?,
            levels => pages.take_levels(pools, levels)?,
        }
        if need.tail > 0 {
            pages.tail = Some(pools.tail.allocate().map_err(of(PageClass::Tail))?);
        }
        for (class, id) in pages.coded() {
            pools.of(class).apply(Operation::CloseBegin, id).map_err(of(class))?;
        }
        Ok(())
    }

    /// Tokens reserved.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Position of the first new token in its sequence.
    pub fn first(&self) -> usize {
        self.len
    }

    /// Where the new rows go, block by block. From here on the pages count as touched.
    pub fn rows(&self) -> impl Iterator<Item = RowSpan> + Clone + '_ {
        self.shown.store(true, Ordering::Relaxed);
        self.spans()
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = RowSpan> + Clone + '_ {
        let (size, end) = (self.block, self.len + self.tokens);
        let first = self.len / size;
        let last = if self.tokens == 0 { first } else { end.div_ceil(size) };
        // The open block, if any, comes first and brings its own host page and tail.
        let old = self.open.into_iter().map(|entry| (entry.host, entry.tail));
        let new = self.pages.host.iter().map(|host| (*host, None));
        (first..last).zip(old.chain(new)).map(move |(block, (host, tail))| {
            let (begin, full) = (block * size, (block + 1) * size);
            let (start, stop) = (begin.max(self.len), full.min(end));
            let stays_open = stop < full;
            RowSpan {
                block,
                host,
                tail: tail.or(if stays_open { self.pages.tail } else { None }),
                packed: if stays_open { None } else { self.pages.packed.get(block - first).copied() },
                level: if stays_open { 0 } else { self.pages.level(block - first) },
                writer: self.table as u32,
                first_row: start - begin,
                rows: stop - start,
            }
        })
    }

    /// Gives all pages back, behind the stamp that `record` returns: a fence that follows everything enqueued on them.
    pub fn abort(mut self, record: impl FnOnce() -> Stamp) {
        let stamp = record();
        self.give_back(stamp);
    }

    pub(crate) fn give_back(&mut self, stamp: Stamp) {
        let Self { pools, pages, .. } = self;
        // The reservation is the only owner of these pages, so none of this is refused; a page that `fill` did not
        // get to close is Open already.
        for (class, id) in pages.coded() {
            let _ = pools.of(class).apply(Operation::CloseAbort, id);
        }
        let host = pages.host.iter().map(|id| (PageClass::Host, *id));
        let tail = pages.tail.iter().map(|id| (PageClass::Tail, *id));
        for (class, id) in host.chain(pages.coded()).chain(tail) {
            let _ = pools.give_up(PageRef { class, id }, stamp);
        }
        pages.clear();
    }

    /// The lists, for the next reservation; whoever calls this has taken or given back the pages.
    pub(crate) fn into_spare(mut self) -> NewPages {
        self.pages.clear();
        core::mem::take(&mut self.pages)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let shown = self.shown.load(Ordering::Relaxed);
        self.give_back(if shown { Stamp::IDLE } else { Stamp::UNTOUCHED });
    }
}

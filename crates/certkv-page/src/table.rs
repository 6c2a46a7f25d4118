//! The pages of one sequence in one KV group.
use crate::error::TableError;
use crate::pools::{Dropped, MOST_LEVELS, PageClass, PageRef, Pools};
use crate::reserve::{NewPages, Reservation};
use crate::stamp::Stamp;
use crate::sync::atomic::AtomicBool;
use crate::window::Window;
use crate::word::Operation;
use certkv_core::PageId;
use core::fmt;
use core::ops::Range;

/// The pages of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// The originals, from the block's first token on.
    pub host: PageId,
    /// The codes, once the block is full.
    pub packed: Option<PageId>,
    /// The scratch slot, while the block is open.
    pub tail: Option<PageId>,
    /// The codes in host memory, while the sequence is swapped out.
    pub swapped: Option<SwappedPage>,
    /// The level of the codes: which format they have, and which class `packed`. 0 is the first, with which every block becomes
    /// full; see [`BlockTable::begin_change`].
    pub level: u8,
    /// Number of the table that has written the block, or does ([`BlockTable::number`]); those who share it keep that.
    pub writer: u32,
}

/// Codes of a full block that left the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwappedPage {
    /// Where they are.
    pub page: PageId,
    /// The page they left. If another table kept it alive, it is shared again on the way back: what is Packed under one
    /// generation never changes.
    pub left: PageId,
}

impl BlockEntry {
    /// All rows are there, and codes of them, wherever they are.
    pub const fn is_full(&self) -> bool {
        self.packed.is_some() || self.swapped.is_some()
    }

    /// An open block.
    pub(crate) const fn open(host: PageId, tail: Option<PageId>, writer: u32) -> Self {
        Self { host, packed: None, tail, swapped: None, level: 0, writer }
    }

    /// Class of `packed`.
    pub const fn class(&self) -> PageClass {
        PageClass::of_level(self.level)
    }

    pub(crate) fn pages(self) -> impl Iterator<Item = PageRef> + Clone {
        let coded = self.class();
        let page = |class| move |id| PageRef { class, id };
        [
            Some(self.host).map(page(PageClass::Host)),
            self.packed.map(page(coded)),
            self.tail.map(page(PageClass::Tail)),
            self.swapped.map(|swapped| swapped.page).map(page(PageClass::Swap)),
        ]
        .into_iter()
        .flatten()
    }
}

/// Pages that an append takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Host pages: one per block begun.
    pub host: usize,
    /// Packed pages: one per block made full.
    pub packed: usize,
    /// Tail slots: 1 if a block is begun and stays open, else 0.
    pub tail: usize,
    /// Pages of codes at the levels behind the first, from level 1 on: of a sequence that returns.
    pub levels: [usize; MOST_LEVELS - 1],
}

impl Need {
    /// Pages by class.
    pub fn by_class(self) -> impl Iterator<Item = (PageClass, usize)> {
        let first = [(PageClass::Host, self.host), (PageClass::Packed, self.packed), (PageClass::Tail, self.tail)];
        let levels = self.levels.into_iter().enumerate();
        first.into_iter().chain(levels.map(|(at, pages)| (PageClass::Level(at as u8 + 1), pages)))
    }
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// The blocks that became full.
    pub filled: Range<usize>,
    /// The tail slot that the filled block no longer needs, and the pages of blocks that the window has passed.
    pub dropped: Dropped,
    /// Blocks that the window has passed, by their number in the sequence.
    pub passed: Range<usize>,
}

/// A commit that did not happen; the reservation comes back whole.
#[derive(Debug)]
pub struct CommitError {
    /// What was wrong.
    pub error: TableError,
    /// The reservation, unchanged.
    pub reservation: Reservation,
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
impl core::error::Error for CommitError {}

/// Block index -> pages, of one sequence and one KV group.
///
/// All blocks but the last are full: their pages are Packed and may be shared with forks. The last may be open: its host
/// page and tail are Open and have one owner, so no page can be written through two tables. A slot index is valid in
/// every layer of the group.
///
/// With a [`Window`] the pages of blocks that no later query can see are given up by the commit that moves the window past
/// them; all other blocks keep their numbers.
#[derive(Debug)]
pub struct BlockTable {
    pub(crate) pools: Pools,
    pub(crate) serial: u64,
    /// Moves on with every change, so that a reservation made before it is recognised.
    pub(crate) version: u64,
    /// Versions between which nothing but levels has changed, up to the last such change.
    pub(crate) levels: core::ops::Range<u64>,
    pub(crate) block: usize,
    max_blocks: usize,
    pub(crate) len: usize,
    /// The blocks that are there, in order.
    pub(crate) entries: Vec<BlockEntry>,
    /// Swapped out: nothing is appended or shared.
    pub(crate) out: bool,
    /// Most of them at once.
    room: usize,
    pub(crate) window: Option<Window>,
    /// Blocks that are gone, all of them between `entries[hole.start - 1]` and `entries[hole.start]`.
    pub(crate) hole: Range<usize>,
    spare: NewPages,
}

impl BlockTable {
    /// An empty table for at most `max_blocks` blocks of `block` tokens. Its memory is taken here, so appending does
    /// not allocate.
    ///
    /// # Errors
    /// [`TableError::BadShape`], [`TableError::OutOfMemory`].
    pub fn create(pools: &Pools, block: usize, max_blocks: usize) -> Result<Self, TableError> {
        Self::with_room(pools, block, max_blocks, max_blocks)
    }

    pub(crate) fn with_room(pools: &Pools, block: usize, max_blocks: usize, room: usize) -> Result<Self, TableError> {
        if block == 0 || block.checked_mul(max_blocks).is_none() {
            return Err(TableError::BadShape { block, max_blocks });
        }
        let mut entries = Vec::new();
        entries.try_reserve_exact(room).map_err(|_| TableError::OutOfMemory { what: "a block table" })?;
        let serial = pools.host.next_serial();
        Ok(Self {
            pools: pools.clone(),
            serial,
            version: 0,
            levels: 0..0,
            block,
            max_blocks,
            len: 0,
            entries,
            out: false,
            room,
            window: None,
            hole: 0..0,
            spare: NewPages::default(),
        })
    }

    /// Host bytes of a table with room for `blocks` blocks at once: for the ledger.
    pub const fn bytes(blocks: usize) -> usize {
        blocks.saturating_mul(size_of::<BlockEntry>())
    }

    /// Most blocks that the table has at once: `max_blocks`, or what its window comes to.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Tokens committed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A number that no other table over these pages has, until four billion more were made: who wrote a block.
    pub fn number(&self) -> u32 {
        self.serial as u32
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block
    }

    /// Most blocks the table can hold.
    pub fn max_blocks(&self) -> usize {
        self.max_blocks
    }

    /// The blocks that are there, in order; all full but perhaps the last. Without a window the index is the block's number, with
    /// one see [`BlockTable::place`].
    pub fn blocks(&self) -> &[BlockEntry] {
        &self.entries
    }

    /// The allocators behind the pages.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// No other table can reach a page of this block. Always true of an open block. `false` for a block that the table
    /// does not have.
    pub fn is_exclusive(&self, block: usize) -> bool {
        self.get(block)
            .is_some_and(|entry| entry.pages().all(|page| self.pools.of(page.class).references(page.id) == Ok(1)))
    }

    /// Pages that appending `tokens` in one reservation takes; of a sequence that is swapped out, with those of its return.
    ///
    /// # Errors
    /// [`TableError::TooLong`]; [`TableError::LongChunk`] for more than the window allows at once.
    pub fn plan_append(&self, tokens: usize) -> Result<Need, TableError> {
        match self.window {
            Some(Window { chunk, .. }) if tokens > chunk => Err(TableError::LongChunk { tokens, chunk }),
            _ => self.count(tokens),
        }
    }

    /// Pages of `tokens` more tokens.
    pub(crate) fn count(&self, tokens: usize) -> Result<Need, TableError> {
        let (len, size, limit) = (self.len, self.block, self.max_blocks * self.block);
        if tokens > limit - len {
            return Err(TableError::TooLong { len, tokens, limit });
        }
        let end = len + tokens;
        let host = end.div_ceil(size) - len.div_ceil(size);
        let tail = usize::from(host > 0 && !end.is_multiple_of(size));
        let mut need = Need { host, packed: end / size - len / size, tail, ..Need::default() };
        if !self.out {
            return Ok(need);
        }
        need.tail += usize::from(!len.is_multiple_of(size));
        for entry in self.entries.iter().filter(|entry| entry.swapped.is_some()) {
            match usize::from(entry.level).checked_sub(1).and_then(|at| need.levels.get_mut(at)) {
                Some(pages) => *pages += 1,
                None => need.packed += 1,
            }
        }
        Ok(need)
    }

    /// Takes all pages for `tokens` more tokens, or none. The table does not change.
    ///
    /// # Errors
    /// As [`BlockTable::plan_append`]; [`TableError::Page`]; [`TableError::SwappedOut`].
    pub fn reserve(&mut self, tokens: usize) -> Result<Reservation, TableError> {
        self.reserve_at(tokens, &[])
    }

    /// As [`BlockTable::reserve`] for blocks that become full at `levels`, one for each of them, or all at the first if there are none: for
    /// a sequence that is restored.
    ///
    /// # Errors
    /// As [`BlockTable::reserve`]; [`TableError::NoLevel`] for a level that there is not, or too many or too few of them.
    pub fn reserve_at(&mut self, tokens: usize, levels: &[u8]) -> Result<Reservation, TableError> {
        self.require_in()?;
        let need = self.plan_append(tokens)?;
        self.take_pages(need, tokens, levels)
    }

    pub(crate) fn take_pages(&mut self, need: Need, tokens: usize, levels: &[u8]) -> Result<Reservation, TableError> {
        let (first, count) = (self.len / self.block, self.pools.level_count());
        if let Some(at) = levels.iter().position(|level| *level >= count) {
            return Err(TableError::NoLevel { block: first + at, level: levels[at] });
        }
        if !levels.is_empty() && levels.len() != need.packed {
            let at = levels.len().min(need.packed);
            return Err(TableError::NoLevel { block: first + at, level: levels.get(at).copied().unwrap_or(0) });
        }
        let mut reservation = Reservation {
            pools: self.pools.clone(),
            table: self.serial,
            version: self.version,
            block: self.block,
            len: self.len,
            tokens,
            open: self.entries.last().copied().filter(|entry| entry.tail.is_some()),
            pages: core::mem::take(&mut self.spare),
            shown: AtomicBool::new(false),
        };
        match reservation.fill(need, levels) {
            Ok(()) => Ok(reservation),
            Err(error) => {
                reservation.give_back(Stamp::UNTOUCHED);
                self.spare = reservation.into_spare();
                Err(error)
            }
        }
    }

    /// Makes the reserved rows part of the sequence: the caller has written (or enqueued) all of them, and the codes of
    /// the blocks they fill. Those blocks become Packed; the tail of the one that was open is given up, and so are blocks that
    /// the window has passed. A step of one token allocates nothing; should the host lack memory for the list of a long chunk,
    /// the rest is retired behind [`Stamp::IDLE`].
    ///
    /// # Errors
    /// [`CommitError`] with the reservation; the table is unchanged.
    #[expect(clippy::result_large_err, reason = "the reservation goes back by value; boxing it could fail")]
    pub fn commit(&mut self, reservation: Reservation) -> Result<Committed, CommitError> {
        if let Err(error) = self.prepare(&reservation) {
            return Err(CommitError { error, reservation });
        }
        let (before, len) = (self.len, self.len + reservation.tokens);
        let unseen = self.unseen(len);
        // Two pages of each block that goes, and a tail.
        let mut dropped =
            Dropped::with_room(&self.pools, 2 * unseen.len() + 1).unwrap_or_else(|| Dropped::new(&self.pools));
        for span in reservation.spans() {
            let full = span.packed.is_some();
            let tail = if full { None } else { span.tail };
            let entry =
                BlockEntry { packed: span.packed, level: span.level, ..BlockEntry::open(span.host, tail, span.writer) };
            if let Some(packed) = span.packed {
                // `prepare` and `reserve` closed these pages, and nobody else may open or commit them.
                let closed = self.pools.host.apply(Operation::CloseCommit, span.host);
                debug_assert!(closed.is_ok(), "host page of a full block: {closed:?}");
                let closed = self.pools.of(entry.class()).apply(Operation::CloseCommit, packed);
                debug_assert!(closed.is_ok(), "packed page of a full block: {closed:?}");
            }
            if full && let Some(tail) = span.tail {
                dropped.push(PageClass::Tail, tail);
            }
            match self.place(span.block).and_then(|place| self.entries.get_mut(place)) {
                Some(place) => *place = entry,
                None => self.entries.push(entry),
            }
        }
        let passed = self.hole.end..self.hole.end + unseen.len();
        for page in self.entries.drain(unseen).flat_map(BlockEntry::pages) {
            dropped.push(page.class, page.id);
        }
        self.hole.end = passed.end;
        self.len = len;
        self.version += 1;
        self.spare = reservation.into_spare();
        Ok(Committed { filled: before / self.block..self.len / self.block, dropped, passed })
    }

    /// Closes the host pages of the blocks that become full, all or none.
    fn prepare(&self, reservation: &Reservation) -> Result<(), TableError> {
        if reservation.table != self.serial {
            return Err(TableError::ForeignReservation);
        }
        if reservation.version != self.version {
            return Err(TableError::OutdatedReservation);
        }
        let filled = || reservation.spans().filter(|span| span.packed.is_some());
        for (done, span) in filled().enumerate() {
            if let Err(error) = self.pools.host.apply(Operation::CloseBegin, span.host) {
                for undo in filled().take(done) {
                    let _ = self.pools.host.apply(Operation::CloseAbort, undo.host);
                }
                return Err(TableError::Page { class: PageClass::Host, error });
            }
        }
        Ok(())
    }

    /// Gives up all pages. Should the host lack memory for the list, the rest is retired behind [`Stamp::IDLE`].
    pub fn release(mut self) -> Dropped {
        let entries = core::mem::take(&mut self.entries);
        let count = entries.iter().flat_map(|entry| entry.pages()).count();
        let mut dropped = Dropped::with_room(&self.pools, count).unwrap_or_else(|| Dropped::new(&self.pools));
        for page in entries.into_iter().flat_map(BlockEntry::pages) {
            dropped.push(page.class, page.id);
        }
        dropped
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        for page in core::mem::take(&mut self.entries).into_iter().flat_map(BlockEntry::pages) {
            // A refusal means tampering, which `PageAllocator::check` reports.
            let _ = self.pools.give_up(page, Stamp::IDLE);
        }
    }
}

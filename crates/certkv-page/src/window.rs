//! Block tables that keep the sinks and a window: the pages of blocks that no later query can see are given up.
//!
//! The query at position `p` sees token `t` if `t < sinks` or `t + tokens > p`: a window counts the current token. Blocks keep
//! the numbers that they have in the sequence; those that are gone are one range, the *hole*, behind the sinks' last block.
use crate::error::TableError;
use crate::fork::share;
use crate::pools::Pools;
use crate::reserve::Reservation;
use crate::table::{BlockEntry, BlockTable, Need};
use core::ops::Range;

/// What the queries of a KV group see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Newest tokens that a query sees, its own among them: at least 1.
    pub tokens: usize,
    /// First tokens of the sequence that every later query sees as well.
    pub sinks: usize,
    /// Tokens that can always be cut off again: so much more than the window is kept. `None` is a block.
    pub slack: Option<usize>,
    /// Most tokens of one reservation. Its pages are all there until it is committed, whatever the window is.
    pub chunk: usize,
}

impl Window {
    /// The last `tokens` tokens, without sinks, a block of slack, and up to 512 tokens at once.
    pub const fn new(tokens: usize) -> Self {
        Self { tokens, sinks: 0, slack: None, chunk: 512 }
    }

    /// The same with the first `sinks` tokens.
    #[must_use]
    pub const fn with_sinks(self, sinks: usize) -> Self {
        Self { sinks, ..self }
    }

    /// First token of the window of a query at position `p`. Tokens before it are seen only if they are sinks.
    pub const fn first(&self, p: usize) -> usize {
        (p.saturating_add(1)).saturating_sub(self.tokens)
    }

    /// Blocks that hold the sinks, whole.
    pub const fn sink_blocks(&self, block: usize) -> usize {
        self.sinks.div_ceil(block)
    }

    /// Most blocks that a table has at once, between steps and in one. Bounded by sinks, window, slack and chunk.
    pub const fn most_blocks(&self, block: usize, max_blocks: usize) -> usize {
        let span = self.kept(block).saturating_add(self.chunk).saturating_add(block - 1);
        let most = self.sink_blocks(block).saturating_add(span.div_ceil(block));
        if most < max_blocks { most } else { max_blocks }
    }

    const fn slack_of(&self, block: usize) -> usize {
        match self.slack {
            Some(slack) => slack,
            None => block,
        }
    }

    /// Tokens before a new one that are kept for it and for those that may be cut off.
    const fn kept(&self, block: usize) -> usize {
        self.tokens.saturating_sub(1).saturating_add(self.slack_of(block))
    }

    /// First block after the sinks that the query behind `len` tokens sees; at or beyond the end, if it sees none.
    pub const fn first_seen(&self, block: usize, len: usize) -> usize {
        let (seen, sinks) = (self.first(len) / block, self.sink_blocks(block));
        if seen > sinks { seen } else { sinks }
    }

    /// Blocks behind the sinks that no query from the one behind `len` tokens on sees, whether a table still has them or not.
    pub const fn hidden(&self, block: usize, len: usize) -> Range<usize> {
        self.sink_blocks(block)..self.first_seen(block, len)
    }

    /// Whether the query behind `len` tokens sees something of block number `number`, one of those before it.
    pub const fn sees_block(&self, block: usize, len: usize, number: usize) -> bool {
        number < self.sink_blocks(block) || number >= self.first_seen(block, len)
    }

    /// First block after the sinks that is kept at `len` tokens.
    fn first_kept(&self, block: usize, len: usize) -> usize {
        (len.saturating_sub(self.kept(block)) / block).max(self.sink_blocks(block))
    }
}

impl BlockTable {
    /// As [`BlockTable::create`] for a group whose queries see `window`. Its memory follows from [`Window::most_blocks`].
    ///
    /// # Errors
    /// [`TableError::BadWindow`] for a window of no token or a chunk of none; as [`BlockTable::create`].
    pub fn windowed(pools: &Pools, block: usize, max_blocks: usize, window: Window) -> Result<Self, TableError> {
        if window.tokens == 0 || window.chunk == 0 {
            return Err(TableError::BadWindow { tokens: window.tokens, chunk: window.chunk });
        }
        let sinks = if block == 0 { 0 } else { window.sink_blocks(block) };
        let room = if block == 0 { 0 } else { window.most_blocks(block, max_blocks) };
        let mut table = Self::with_room(pools, block, max_blocks, room)?;
        (table.window, table.hole) = (Some(window), sinks..sinks);
        Ok(table)
    }

    /// What queries see; `None` for everything.
    pub fn window(&self) -> Option<Window> {
        self.window
    }

    /// Blocks whose pages were given up because no later query can see them.
    pub fn hole(&self) -> Range<usize> {
        self.hole.clone()
    }

    /// Where block `block` of the sequence is, or will be, in [`BlockTable::blocks`]. `None` for one that is gone.
    pub fn place(&self, block: usize) -> Option<usize> {
        match block {
            b if b < self.hole.start => Some(b),
            b if b >= self.hole.end => Some(b - self.hole.len()),
            _ => None,
        }
    }

    /// Pages of block `block` of the sequence. `None` for one that is gone, or not begun.
    pub fn get(&self, block: usize) -> Option<&BlockEntry> {
        self.entries.get(self.place(block)?)
    }

    /// The blocks with their numbers in the sequence, in order.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &BlockEntry)> + '_ {
        let number = |place| if place < self.hole.start { place } else { place + self.hole.len() };
        self.entries.iter().enumerate().map(move |(place, entry)| (number(place), entry))
    }

    /// Blocks `range` of the sequence, if all of them are there.
    pub fn run(&self, range: Range<usize>) -> Option<&[BlockEntry]> {
        let whole = range.end <= self.hole.start || range.start >= self.hole.end || self.hole.is_empty();
        let first = if whole { self.place(range.start)? } else { return None };
        self.entries.get(first..first + range.len())
    }

    /// Most pages beyond those it has that growing by `tokens` takes at any moment, in as many steps as it likes. For admission: a
    /// window gives pages up on the way, so that this is bounded while [`BlockTable::plan_append`] is of one step.
    ///
    /// # Errors
    /// [`TableError::TooLong`].
    pub fn plan_growth(&self, tokens: usize) -> Result<Need, TableError> {
        let need = self.count(tokens)?;
        let Some(window) = self.window else { return Ok(need) };
        let most = window.most_blocks(self.block, self.max_blocks());
        // Swapped out, its full blocks are among those that `need` counts.
        let full = self.entries.iter().filter(|entry| entry.packed.is_some()).count();
        Ok(Need {
            host: need.host.min(most.saturating_sub(self.entries.len())),
            packed: need.packed.min(most.saturating_sub(full)),
            ..need
        })
    }

    /// Leaves out the blocks before `block`, behind the sinks', as if they had been there and were given up: for a sequence that is
    /// restored from what is left of it. The table has the sinks' blocks, and goes on with `block`.
    ///
    /// # Errors
    /// [`TableError::NoHole`] without a window, elsewhere, a second time, or beyond the end; nothing changed.
    pub fn leave_out(&mut self, block: usize) -> Result<(), TableError> {
        let behind_sinks = self.window.is_some() && self.hole.is_empty() && self.len == self.hole.start * self.block;
        if !behind_sinks || self.out || block < self.hole.start || block > self.max_blocks() {
            return Err(TableError::NoHole { block, len: self.len });
        }
        (self.hole.end, self.len) = (block, block * self.block);
        self.version += 1;
        Ok(())
    }

    /// A table of `end` full blocks that somebody else holds, with references of its own: the sinks', and from the end back as far as
    /// they are there without a gap, up to what a table of that length keeps. `page` gives those that are there.
    ///
    /// # Errors
    /// As [`BlockTable::windowed`]; [`TableError::BadShape`] for more blocks than fit or if a block that the next query sees is not
    /// there, [`TableError::Page`]; nothing changed.
    pub(crate) fn adopt_window(
        pools: &Pools,
        (block, max_blocks): (usize, usize),
        window: Window,
        end: usize,
        page: impl Fn(usize) -> Option<BlockEntry>,
    ) -> Result<Self, TableError> {
        let mut table = Self::windowed(pools, block, max_blocks, window)?;
        let bad = TableError::BadShape { block, max_blocks };
        if end > max_blocks {
            return Err(bad);
        }
        let (len, sinks) = (end * block, window.sink_blocks(block).min(end));
        let mut first = end;
        let least = window.first_kept(block, len);
        while first > least && page(first - 1).is_some() {
            first -= 1;
        }
        if first > window.first_seen(block, len).max(sinks) {
            return Err(bad);
        }
        // Room for all of them was taken, and no page is the table's until they are shared.
        let mut entries = core::mem::take(&mut table.entries);
        for number in (0..sinks).chain(first.max(sinks)..end) {
            entries.push(page(number).ok_or(bad)?);
        }
        share(pools, &entries)?;
        if first > table.hole.start {
            table.hole.end = first;
        }
        (table.entries, table.len) = (entries, len);
        Ok(table)
    }

    /// As [`BlockTable::reserve`] of the next block of a sequence that is restored, or of its last rows, however short the window's
    /// chunks are.
    ///
    /// # Errors
    /// [`TableError::NotABlock`] if it is none; as [`BlockTable::reserve`].
    pub fn reserve_block(&mut self, tokens: usize) -> Result<Reservation, TableError> {
        self.require_in()?;
        if tokens > self.block || !self.len.is_multiple_of(self.block) {
            return Err(TableError::NotABlock { len: self.len, tokens });
        }
        let need = self.count(tokens)?;
        self.take_pages(need, tokens, &[])
    }

    /// Whether the table can be cut to `len` tokens, as far as its window goes.
    ///
    /// # Errors
    /// [`TableError::WindowPassed`] if a query at `len` would see tokens that are gone.
    pub fn check_cut(&self, len: usize) -> Result<(), TableError> {
        let Some(window) = self.window.filter(|_| !self.hole.is_empty()) else { return Ok(()) };
        let least = (self.hole.end * self.block).saturating_add(window.tokens - 1);
        let within = self.hole.start * self.block;
        // A length within the sinks' blocks needs nothing behind them.
        if len < least && len > within {
            return Err(TableError::WindowPassed { asked: len, least, within });
        }
        Ok(())
    }

    /// Blocks that no query from `len` on, or of the slack before it, can see: places in the table.
    pub(crate) fn unseen(&self, len: usize) -> Range<usize> {
        let Some(window) = self.window else { return 0..0 };
        let gone = window.first_kept(self.block, len).saturating_sub(self.hole.end);
        if gone == 0 { 0..0 } else { self.hole.start..self.hole.start + gone }
    }

    /// After a cut to `len` tokens: a sequence that ends before its hole has none.
    pub(crate) fn close_hole(&mut self, len: usize) {
        if len <= self.hole.start * self.block {
            self.hole.end = self.hole.start;
        }
    }
}

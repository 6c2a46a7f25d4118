//! The pages that one layer of one sequence is read from, held while they are read.
use crate::attend::promoted::Resident;
use crate::attend::rows::Rows as Moved;
use crate::attend::seen::{Gathered, Rows, Seen};
use crate::attend::sets::Sets;
use crate::group::{Group, Side};
use crate::spill::{Ask, Turn};
use crate::step::Part;
use crate::{Cache, Error, SequenceId};
use certkv_codec::KeyMetric;
use certkv_control::BitSet;
use certkv_core::{KeyFormat, OutOfMemory, PageId, planted, reserve_total};
use certkv_device::ReadGuard;
use certkv_kernel::{Block, BlockSource, Tail};
use certkv_page::BlockEntry;
use core::ops::Range;

/// Consecutive blocks, as they are read, whose codes are of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) level: u8,
    pub(crate) blocks: Range<usize>,
}

/// Where the rows of an open block are read.
#[derive(Debug, Clone, Copy)]
enum Open {
    /// In its slot of open blocks.
    Tail(PageId),
    /// In its originals: a later token of the same chunk fills it, and it never had a slot.
    Host(PageId),
}

impl Open {
    fn hold(self, cache: &Cache, group: &Group, layer: usize) -> Result<ReadGuard, Error> {
        Ok(match self {
            // The rows of whoever has the first place, whose they are nobody asks.
            Self::Tail(id) if planted!(B13) => {
                group.tail.read(group.slot(PageId { index: 0, ..id }, layer), &cache.main)?
            }
            Self::Tail(id) => group.tail.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id))?,
            Self::Host(id) => group.host.read_tagged(group.host_slot(id, layer)?, &cache.main, Group::tag(id))?,
        })
    }
}

/// Guards of one layer's pages; the buffers are kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Packed page of every full block.
    packed: Vec<ReadGuard>,
    /// Originals by block, where they were asked for.
    host: Vec<Option<ReadGuard>>,
    /// Ids of the originals of every block, the open one included.
    host_ids: Vec<PageId>,
    /// Blocks whose originals are to be held.
    wanted: Vec<usize>,
    /// What is asked of the store.
    asks: Vec<Ask>,
    /// Ids of what is held, to be held again.
    packed_ids: Vec<PageId>,
    tail_id: Option<Open>,
    /// The open block's rows.
    tail: Option<ReadGuard>,
    /// Tokens in the open block.
    tail_tokens: usize,
    /// Whole blocks, and how many of them are not of this step.
    blocks: usize,
    closed: usize,
    /// All blocks by level, those of the first level last; one run of no block where there is none.
    runs: Vec<Run>,
    /// Numbers of the blocks in their sequence, where they are not read in that order.
    numbers: Vec<usize>,
    /// What the query sees, in a layer with a window.
    seen: Option<Seen>,
    /// Rows of blocks that are seen in part.
    gathered: Gathered,
}

impl Pages {
    /// Finds the pages of `part` in `layer`. For a decode step of the chunk's token `row`: with the tokens up to it visible; holds the packed
    /// ones and the open block; in a layer with a window what its query sees, see [`Seen`]. For a prompt's chunk (no `row`): with all
    /// tokens of the step visible; holds the open block; with a window the blocks that one of its queries sees.
    pub(crate) fn open(
        &mut self,
        cache: &Cache,
        group: &Group,
        index: usize,
        layer: usize,
        part: &Part,
        row: Option<usize>,
    ) -> Result<(), Error> {
        self.close();
        let size = group.layout.tokens();
        let (packed, total) = (row.is_some(), part.len + row.map_or(part.tokens, |row| row + 1));
        self.tail_tokens = total % size;
        let table = &part.state.tables[index];
        let (seen, rows) = match group.window.filter(|_| packed) {
            Some(window) => {
                let (seen, rows) = Seen::new(window, size, total);
                (Some(seen), rows)
            }
            None => (None, Default::default()),
        };
        self.seen = seen;
        let gathers = rows.iter().any(|(_, rows)| !rows.is_empty());
        // Of a chunk what its first query does not see is in nobody's way, whatever of it the table still has.
        let hidden = group.window.filter(|_| !packed).map_or(0..0, |window| window.hidden(size, part.len));
        let whole = |block: usize| seen.map_or(!hidden.contains(&block), |s| block < s.fixed || block >= s.from);
        // Level by level; a chunk reads originals alone, in their order.
        let levels = if packed { group.level_count() } else { 1 };
        let filled = part.reservations.get(index).map_or(0, |r| r.rows().count());
        self.reserve(table.blocks().len() + filled, packed, levels > 1)?;
        let hold = |level: u8, id: PageId| {
            group.packed_at(level).read_tagged(group.slot(id, layer), &cache.main, Group::tag(id))
        };
        let originals = |id: PageId| group.host.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id));
        // Guards of blocks that are seen in part, with the rows: at most the sinks' last and the window's first.
        let mut parts: [Option<(ReadGuard, Range<usize>)>; 2] = [None, None];
        let mut take = |block: usize, host: PageId| -> Result<(), Error> {
            for (place, (number, rows)) in parts.iter_mut().zip(&rows) {
                if *number == block && !rows.is_empty() {
                    *place = Some((originals(host)?, rows.clone()));
                }
            }
            Ok(())
        };
        for level in (0..levels).rev() {
            let first = self.closed;
            let here = |entry: &BlockEntry| entry.tail.is_none() && (levels == 1 || entry.level == level);
            for (block, entry) in table.numbered().filter(|(_, entry)| here(entry)) {
                take(block, entry.host)?;
                if whole(block) {
                    self.host_ids.push(entry.host);
                    self.closed += 1;
                    if let (true, Some(id)) = (packed, entry.packed) {
                        self.packed.push(hold(level, id)?);
                        self.packed_ids.push(id);
                    }
                    if levels > 1 {
                        self.numbers.push(block);
                    }
                }
            }
            if self.closed > first {
                self.runs.push(Run { level, blocks: first..self.closed });
            }
        }
        self.blocks = self.closed;
        let spans = part.reservations.get(index).into_iter().flat_map(|r| r.rows());
        for span in spans.take_while(|span| span.block * size < total) {
            let (full, whole) = ((span.block + 1) * size <= total, whole(span.block));
            if full {
                take(span.block, span.host)?;
            }
            // The open block is no block of its own where its rows are gathered.
            if if full { whole } else { !gathers } {
                self.host_ids.push(span.host);
            }
            self.blocks += usize::from(full && whole);
            if levels > 1 && full {
                self.numbers.push(span.block);
            }
            match span.packed {
                Some(id) if full && packed && whole => {
                    self.packed.push(hold(0, id)?);
                    self.packed_ids.push(id);
                }
                _ if !full => {
                    let open = span.tail.map_or(Open::Host(span.host), Open::Tail);
                    self.tail = Some(open.hold(cache, group, layer)?);
                    self.tail_id = Some(open);
                }
                _ => {}
            }
        }
        self.host.resize_with(self.host_ids.len(), || None);
        let expected = seen.map_or(total / size - hidden.len(), |seen| seen.blocks);
        if self.blocks != expected || (packed && self.packed.len() != expected) {
            return Err(Error::Order { layer, why: "a page of the sequence is missing" });
        }
        if self.tail.is_some() != (self.tail_tokens > 0) {
            return Err(Error::Order { layer, why: "a page of the sequence is missing" });
        }
        if gathers {
            self.gather(cache, group, layer, &part.state.centres[group.strand(layer)], &parts, &rows)?;
        }
        let blocks = self.blocks();
        // What became full in this step, and what was gathered, is at the first level.
        match self.runs.last_mut() {
            Some(last) if last.level == 0 => last.blocks.end = blocks,
            Some(Run { blocks: last, .. }) if last.end == blocks => {}
            _ => self.runs.push(Run { level: 0, blocks: self.closed..blocks }),
        }
        Ok(())
    }

    /// Asks for the memory of so many blocks, the open one among them.
    fn reserve(&mut self, blocks: usize, packed: bool, levels: bool) -> Result<(), OutOfMemory> {
        if packed {
            reserve_total(&mut self.packed, blocks)?;
            reserve_total(&mut self.packed_ids, blocks)?;
        }
        if levels {
            reserve_total(&mut self.numbers, blocks)?;
        }
        reserve_total(&mut self.host_ids, blocks)?;
        reserve_total(&mut self.host, blocks)?;
        reserve_total(&mut self.wanted, blocks)
    }

    /// Copies the rows that are seen of blocks in part, and of the open one. Costs a copy of fewer than three blocks.
    fn gather(
        &mut self,
        cache: &Cache,
        group: &Group,
        layer: usize,
        centre: &[f32],
        parts: &[Option<(ReadGuard, Range<usize>)>; 2],
        rows: &[Rows; 3],
    ) -> Result<(), Error> {
        let tail = self.tail.as_ref().map_or(&[][..], |guard| guard.words());
        let mut from: [(&[u16], Range<usize>); 3] = Default::default();
        for ((to, part), (_, rows)) in from.iter_mut().zip(parts.iter().chain([&None])).zip(rows) {
            *to = match part {
                Some((guard, rows)) => (guard.words(), rows.clone()),
                // The open block, of which the sinks or the window may be a part.
                None => (tail, rows.clone()),
            };
            if to.0.is_empty() && !to.1.is_empty() {
                return Err(Error::Order { layer, why: "a page that is seen in part is missing" });
            }
        }
        self.gathered.fill(group, &from, centre, cache.geometry().store);
        self.tail = None;
        self.tail_tokens = self.gathered.rest(group.layout.tokens());
        Ok(())
    }

    /// Blocks that are read: whole ones, then those of gathered rows.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks + self.gathered.blocks
    }

    /// The blocks by level, those of the first level last; the open block is read with the last run.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Level of `block`.
    pub(crate) fn level(&self, block: usize) -> u8 {
        self.runs.iter().find(|run| run.blocks.contains(&block)).map_or(0, |run| run.level)
    }

    /// Number in the sequence of `block`, in a layer without a window.
    pub(crate) fn number(&self, block: usize) -> usize {
        self.numbers.get(block).copied().unwrap_or(block)
    }

    /// Blocks, of these the first, whose originals are final: not of this step.
    pub(crate) fn closed(&self) -> usize {
        self.closed
    }

    /// What the query sees, in a layer with a window.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Blocks that are read from originals alone, as they are read: of those of the sequence the ones without codes and the protected ones, and what
    /// was gathered.
    pub(crate) fn uncoded(&self, known: &BitSet, protected: &[Range<usize>; 2], into: &mut BitSet) {
        let is_protected = |number: &usize| protected.iter().any(|p| p.contains(number));
        if self.seen.is_none() && self.numbers.is_empty() {
            into.copy_from(known);
            into.resize(self.blocks);
            for block in protected.iter().cloned().flatten() {
                into.insert(block);
            }
            return;
        }
        into.clear();
        into.resize(self.blocks());
        let number = |b: usize| match self.seen {
            Some(seen) if b >= seen.fixed => b - seen.fixed + seen.from,
            _ => self.number(b),
        };
        let exact = (0..self.blocks).filter(|b| known.contains(number(*b)) || is_protected(&number(*b)));
        for block in exact.chain(self.blocks..self.blocks()) {
            into.insert(block);
        }
    }

    /// Lists the blocks whose originals are to be held: at most `most`, each as often as it is listed.
    pub(crate) fn want(&mut self, most: usize, list: impl FnOnce(&mut Vec<usize>)) -> Result<(), OutOfMemory> {
        self.wanted.clear();
        reserve_total(&mut self.wanted, most)?;
        list(&mut self.wanted);
        Ok(())
    }

    /// Whether originals of a listed block are not in host memory.
    pub(crate) fn lacks(&self, group: &Group, layer: usize) -> bool {
        let Some(map) = group.map() else { return false };
        let map = map.lock();
        let absent = |block: &usize| match (self.host.get(*block), self.host_ids.get(*block)) {
            (Some(None), Some(id)) => map.frame(group.slot_id(*id, layer)).is_none(),
            _ => false,
        };
        self.wanted.iter().any(absent)
    }

    /// Reads the originals of listed blocks from the store where they lie there alone. Everything is let go meanwhile, and held
    /// again on return.
    ///
    /// # Errors
    /// [`Error::Fetch`], [`Error::OutOfMemory`]; nothing is held then.
    pub(crate) fn bring(
        &mut self,
        cache: &Cache,
        index: usize,
        layer: usize,
        sequence: SequenceId,
        turn: &mut Turn<'_>,
    ) -> Result<(), Error> {
        let group = &cache.groups[index];
        let most = self.wanted.len() + self.host.len();
        reserve_total(&mut self.wanted, most)?;
        let held = self.host.iter().enumerate().filter(|(_, guard)| guard.is_some()).map(|(block, _)| block);
        self.wanted.extend(held);
        self.wanted.sort_unstable();
        self.wanted.dedup();
        self.packed.clear();
        self.host.iter_mut().for_each(|guard| *guard = None);
        self.tail = None;
        self.asks.clear();
        reserve_total(&mut self.asks, self.wanted.len())?;
        let ids = &self.host_ids;
        self.asks.extend(self.wanted.iter().filter_map(|&block| Some(Ask { block, layer, page: *ids.get(block)? })));
        cache.bring(turn, index, Some(sequence), &self.asks)?;
        for &id in &self.packed_ids {
            self.packed.push(group.packed.read_tagged(group.slot(id, layer), &cache.main, Group::tag(id))?);
        }
        if let Some(open) = self.tail_id {
            self.tail = Some(open.hold(cache, group, layer)?);
        }
        Ok(())
    }

    /// Holds the originals of the listed blocks.
    pub(crate) fn hold_wanted(&mut self, cache: &Cache, group: &Group, layer: usize) -> Result<(), Error> {
        for &block in &self.wanted {
            if let (Some(guard @ None), Some(&id)) = (self.host.get_mut(block), self.host_ids.get(block)) {
                *guard = Some(group.host.read_tagged(group.host_slot(id, layer)?, &cache.main, Group::tag(id))?);
            }
        }
        Ok(())
    }

    /// Lets every page go and keeps the buffers.
    pub(crate) fn close(&mut self) {
        self.packed.clear();
        self.host.clear();
        self.host_ids.clear();
        self.wanted.clear();
        self.packed_ids.clear();
        self.tail_id = None;
        self.tail = None;
        self.tail_tokens = 0;
        self.gathered.clear();
        self.runs.clear();
        self.numbers.clear();
        (self.blocks, self.closed, self.seen) = (0, 0, None);
    }

    /// Blocks that have originals, the open one included.
    pub(crate) fn host_blocks(&self) -> usize {
        self.host_ids.len()
    }

    /// Id of the originals of `block`.
    pub(crate) fn host_id(&self, block: usize) -> Option<PageId> {
        self.host_ids.get(block).copied()
    }

    /// Tokens of the open block, or of gathered rows behind the last block.
    pub(crate) fn tail_tokens(&self) -> usize {
        self.tail_tokens
    }

    /// Originals of one side of `block`, if they are held.
    pub(crate) fn original<'a>(&'a self, group: &Group, block: usize, head: usize, side: Side) -> Option<&'a [u16]> {
        match block.checked_sub(self.blocks) {
            Some(gathered) if gathered < self.gathered.blocks => Some(self.gathered.side(group, gathered, head, side)),
            _ => self.host.get(block)?.as_ref().map(|guard| &guard.words()[group.side(head, side)]),
        }
    }

    /// Record of `head` in `block`; empty if the pages were opened without records.
    pub(crate) fn record<'a>(&'a self, group: &Group, block: usize, head: usize) -> &'a [u8] {
        match self.packed.get(block) {
            Some(guard) => &guard.bytes()[group.record_at(self.level(block), head)],
            None => block.checked_sub(self.blocks).map_or(&[], |gathered| self.gathered.record(group, gathered, head)),
        }
    }

    /// The open block of `head`.
    pub(crate) fn tail<'a>(&'a self, group: &Group, head: usize, centre_norm: f32) -> Option<Tail<'a>> {
        if !self.gathered.is_empty() {
            let first = self.gathered.blocks * group.layout.tokens();
            let of = |side| self.gathered.from(group, first, head, side);
            let (keys, values, tokens) = (of(Side::Key), of(Side::Value), self.tail_tokens);
            return (tokens > 0).then_some(Tail { keys, values, tokens, centre_norm });
        }
        let guard = self.tail.as_ref()?;
        Some(Tail {
            keys: &guard.words()[group.side(head, Side::Key)],
            values: &guard.words()[group.side(head, Side::Value)],
            tokens: self.tail_tokens + usize::from(planted!(B12)),
            centre_norm,
        })
    }
}

/// One KV head's view of the pages under a choice of promoted sides.
pub(crate) struct View<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) group: &'a Group,
    pub(crate) head: usize,
    /// Exact sides that are read from scratch instead of the host.
    pub(crate) resident: Option<&'a Resident>,
    /// How the sides are read; `None` for all of them from the originals.
    pub(crate) sets: Option<&'a Sets>,
    /// Rows that left their blocks, which stand behind these.
    pub(crate) rows: Option<&'a Moved>,
    /// The head's value centre.
    pub(crate) centre: &'a [f32],
    /// The layer whose calibration codes of keys are read by; `None` where no codes are.
    pub(crate) layer: Option<usize>,
}

impl<'a> View<'a> {
    /// The originals of all blocks.
    pub(crate) fn exact(pages: &'a Pages, group: &'a Group, head: usize) -> Self {
        Self { pages, group, head, resident: None, sets: None, rows: None, centre: &[], layer: None }
    }
}

impl BlockSource for View<'_> {
    fn block(&self, index: usize) -> Block<'_> {
        if let (Some(rows), Some(behind)) = (self.rows, index.checked_sub(self.pages.blocks())) {
            return rows.block(&self.group.layout, behind);
        }
        let side = |side| {
            if self.sets.is_some_and(|sets| !sets.of(side).0.contains(index)) {
                return None;
            }
            let copy = self.resident.and_then(|resident| resident.words(side, index));
            copy.or_else(|| self.pages.original(self.group, index, self.head, side))
        };
        Block {
            record: self.pages.record(self.group, index, self.head),
            keys: side(Side::Key),
            values: side(Side::Value),
            skip_values: self.sets.is_some_and(|sets| sets.skipped.contains(index)),
            fine_keys: self.sets.is_some_and(|sets| sets.fine_keys.contains(index)),
            fine_values: self.sets.is_some_and(|sets| sets.fine_values.contains(index)),
            left_out: self.rows.map_or(0, |rows| rows.left_out(index)),
        }
    }

    fn centre(&self) -> &[f32] {
        self.centre
    }

    fn key_metric(&self, format: KeyFormat) -> Option<KeyMetric<'_>> {
        self.group.key_metric(format, self.layer?, self.head)
    }
}

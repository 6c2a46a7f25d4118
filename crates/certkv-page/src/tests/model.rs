//! A plain model of pages with contents, and a driver that does random things to both.
//!
//! The world has an arena per class (one `u64` per row) in which rows are written and copied as an engine would, and a
//! device that is nothing but a clock: work enqueued at time t is done once the clock's hand has passed t.
use super::verify::Verdict;
use crate::word::{Operation, Snapshot, State};
use crate::{
    BlockTable, CopyOp, Dropped, Lease, PageClass, PageError, PageId, PageRef, Pools, Reservation, RowSpan, Stamp,
    SwapCopy, TableError, Window,
};
use certkv_core::hash::splitmix64;
use std::collections::{BTreeSet, HashSet};

/// What a row holds before anyone wrote it: the leavings of an earlier owner.
const POISON: u64 = 0xDEAD;
const CLASSES: [PageClass; 4] = [PageClass::Host, PageClass::Packed, PageClass::Tail, PageClass::Swap];

/// A defect that the driver commits on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plant {
    /// Fences are not waited for.
    EarlyReclaim,
    /// The stamp is taken long before the last reference is gone.
    OldStamp,
    /// A fork or truncation does not copy.
    SkipCopy,
    /// A live page is put on the free list.
    FreeLive,
    /// A reference is given up twice.
    ReleaseTwice,
    /// A page is allocated and forgotten.
    Leak,
    /// A freed slot keeps its generation.
    SameGeneration,
    /// A reader's pin vanishes.
    LosePin,
}

pub(super) struct Sequence {
    pub(super) table: BlockTable,
    pub(super) tokens: Vec<u64>,
    /// Blocks whose pages must be gone.
    pub(super) gone: BTreeSet<usize>,
}

impl Sequence {
    /// Blocks that nobody sees from now on, by the rule on tokens: query `p` sees `t < sinks` and `t + window > p`.
    fn slide(&mut self, block: usize) -> usize {
        let Some(w) = self.table.window() else { return 0 };
        let slack = w.slack.unwrap_or(block);
        let next = self.tokens.len();
        // The earliest query that may still come. One that cannot be is as if it were the first.
        let earliest = next.saturating_sub(slack);
        let sees = |t: usize| t < w.sinks || t + w.tokens > earliest;
        let with_sinks = |b: usize| b * block < w.sinks;
        let unseen = |b: &usize| !with_sinks(*b) && (b * block..(b + 1) * block).all(|t| !sees(t));
        let before = self.gone.len();
        self.gone.extend((0..next / block).filter(unseen));
        self.gone.len() - before
    }
}

/// Someone who still looks at rows of a page: device work until `until`, or a lease.
pub(super) struct Reader {
    pub(super) page: PageRef,
    pub(super) rows: Vec<u64>,
    until: u64,
    lease: Option<Lease>,
}

pub(super) struct World {
    pub(super) pools: Pools,
    pub(super) block: usize,
    pub(super) arenas: [Vec<u64>; 4],
    pub(super) sequences: Vec<Sequence>,
    pub(super) readers: Vec<Reader>,
    names: HashSet<PageRef>,
    /// Time of the last enqueued work, and how far the device has come.
    issued: u64,
    done: u64,
    next_token: u64,
    plant: Option<Plant>,
    pub(super) refused: u64,
    /// Pages that a mover has for itself.
    pub(super) movers: Vec<PageRef>,
    pub(super) seen: Coverage,
}

/// How often the driver reached what it is there for.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Coverage {
    pub(super) filled: u64,
    pub(super) forks: u64,
    pub(super) reopened: u64,
    pub(super) copied: u64,
    pub(super) moves: u64,
    pub(super) blocked: u64,
    pub(super) freed: u64,
    pub(super) held: u64,
    pub(super) swapped: u64,
    pub(super) returned: u64,
    pub(super) shared_again: u64,
    pub(super) cut_outside: u64,
    /// Blocks that a window passed, and cuts that a hole refused.
    pub(super) passed: u64,
    pub(super) barred: u64,
}

fn which(class: PageClass) -> usize {
    CLASSES.iter().position(|known| *known == class).unwrap()
}

impl World {
    /// Pools, block size and longest sequence follow from the seed.
    pub(super) fn new(seed: u64, plant: Option<Plant>) -> Self {
        let draw =
            |salt: u64, from: u64, to: u64| (from + splitmix64(seed ^ splitmix64(salt)) % (to - from + 1)) as usize;
        let block = [1, 2, 4, 5][draw(1, 0, 3)];
        let sizes = [draw(2, 8, 64), draw(3, 8, 64), draw(4, 8, 16), draw(5, 2, 32)];
        let swap = crate::PageAllocator::create(sizes[3]).unwrap();
        let pools = Pools { swap, ..super::pools(sizes[0], sizes[1], sizes[2]) };
        let arenas = sizes.map(|n| vec![POISON; n * block]);
        let (names, sequences, readers, movers, seen) = Default::default();
        let (issued, done, next_token) = (2, 0, 1 << 32);
        Self {
            pools,
            block,
            arenas,
            sequences,
            readers,
            names,
            issued,
            done,
            next_token,
            plant,
            refused: 0,
            movers,
            seen,
        }
    }

    pub(super) fn rows(&self, page: PageRef, rows: usize) -> &[u64] {
        let at = page.id.index as usize * self.block;
        &self.arenas[which(page.class)][at..at + rows]
    }

    fn write(&mut self, page: PageRef, first: usize, rows: &[u64]) {
        let at = page.id.index as usize * self.block + first;
        self.arenas[which(page.class)][at..at + rows.len()].copy_from_slice(rows);
    }

    /// A page that was just allocated: no id is ever given out twice, and its contents are garbage.
    fn greet(&mut self, class: PageClass, id: PageId) -> Verdict {
        let page = PageRef { class, id };
        if !self.names.insert(page) {
            return Err(format!("{page:?} was given out before"));
        }
        self.write(page, 0, &vec![POISON; self.block]);
        Ok(())
    }

    fn planted(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    fn retire(&mut self, dropped: Dropped) -> Verdict {
        let old = self.planted(Plant::OldStamp);
        self.issued += 1;
        let stamp = Stamp(if old { 1 } else { self.issued });
        dropped.retire(|| stamp).map(drop).map_err(|e| format!("retire: {e}"))
    }

    fn copy(&mut self, ops: &[CopyOp]) -> Verdict {
        for op in ops {
            self.greet(op.to.class, op.to.id)?;
            if !self.planted(Plant::SkipCopy) {
                let rows = self.rows(op.from, op.rows).to_vec();
                self.write(op.to, 0, &rows);
            }
        }
        Ok(())
    }

    /// Writes new tokens into the reserved pages and returns them.
    fn fill(&mut self, reservation: &Reservation, begun: usize) -> Result<Vec<u64>, String> {
        let mut tokens = vec![];
        for span in reservation.rows().collect::<Vec<RowSpan>>() {
            if span.block >= begun {
                self.greet(PageClass::Host, span.host)?;
                if let Some(id) = span.tail {
                    self.greet(PageClass::Tail, id)?;
                }
            }
            let rows: Vec<u64> = (0..span.rows as u64).map(|i| self.next_token + i).collect();
            self.next_token += rows.len() as u64;
            let host = PageRef { class: PageClass::Host, id: span.host };
            self.write(host, span.first_row, &rows);
            if let Some(id) = span.tail {
                self.write(PageRef { class: PageClass::Tail, id }, span.first_row, &rows);
            }
            if let Some(id) = span.packed {
                self.greet(PageClass::Packed, id)?;
                let codes = self.rows(host, self.block).to_vec();
                self.write(PageRef { class: PageClass::Packed, id }, 0, &codes);
            }
            tokens.extend(rows);
        }
        Ok(tokens)
    }

    /// A refusal is part of life when a pool is full; `Ok(None)`.
    fn allow<T>(&mut self, result: Result<T, TableError>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(
                TableError::Page { error: PageError::Exhausted { .. }, .. }
                | TableError::TooLong { .. }
                | TableError::SwappedOut
                | TableError::LongChunk { .. },
            ) => {
                self.refused += 1;
                Ok(None)
            }
            Err(TableError::Page { error: PageError::Refused { refused, .. }, .. }) if refused.moving => {
                self.refused += 1;
                self.seen.blocked += 1;
                Ok(None)
            }
            Err(error) => Err(format!("unexpected refusal: {error}")),
        }
    }

    /// One random operation, decoded from three numbers, and a full check of everything after it.
    pub(super) fn apply(&mut self, kind: u8, a: u64, b: u64) -> Verdict {
        let before: Vec<_> = CLASSES.iter().map(|c| self.pools.of(*c).counts()).collect();
        let refused = self.refused;
        self.act(kind, a, b)?;
        if self.refused > refused && before != CLASSES.iter().map(|c| self.pools.of(*c).counts()).collect::<Vec<_>>() {
            return Err("a refused call took pages".to_owned());
        }
        self.misbehave(a, b)?;
        self.verify()
    }

    fn act(&mut self, kind: u8, a: u64, b: u64) -> Verdict {
        let pick = if self.sequences.is_empty() { None } else { Some(a as usize % self.sequences.len()) };
        let small = b as usize % (3 * self.block + 2);
        match (kind % 22, pick) {
            (0, _) if self.sequences.len() < 6 => {
                let limit = 2 + b as usize % 14;
                let table = if a.is_multiple_of(2) {
                    BlockTable::create(&self.pools, self.block, limit)
                } else {
                    let window = Window {
                        tokens: 1 + (b >> 8) as usize % (3 * self.block),
                        sinks: (b >> 16) as usize % (2 * self.block + 1),
                        slack: [None, Some(0), Some(1), Some(2 * self.block)][(b >> 24) as usize % 4],
                        chunk: 1 + (b >> 32) as usize % (4 * self.block),
                    };
                    BlockTable::windowed(&self.pools, self.block, 16 * limit, window)
                };
                let table = table.map_err(|e| e.to_string())?;
                self.sequences.push(Sequence { table, tokens: vec![], gone: BTreeSet::new() });
            }
            (1..=5, Some(s)) => {
                let made = self.sequences[s].table.reserve(small);
                let Some(reservation) = self.allow(made)? else { return Ok(()) };
                let begun = self.sequences[s].tokens.len().div_ceil(self.block);
                let tokens = self.fill(&reservation, begun)?;
                let done = self.sequences[s].table.commit(reservation).map_err(|e| e.error.to_string())?;
                self.sequences[s].tokens.extend(tokens);
                self.seen.filled += done.filled.len() as u64;
                let gone = self.sequences[s].slide(self.block);
                if done.passed.len() != gone {
                    return Err(format!("{:?} passed, the model has {gone}", done.passed));
                }
                self.seen.passed += gone as u64;
                self.retire(done.dropped)?;
            }
            (6, Some(s)) => {
                let made = self.sequences[s].table.reserve(small);
                let Some(reservation) = self.allow(made)? else { return Ok(()) };
                let begun = self.sequences[s].tokens.len().div_ceil(self.block);
                match a % 3 {
                    0 => drop(reservation),
                    how => {
                        self.fill(&reservation, begun)?;
                        self.issued += 1;
                        let stamp = Stamp(self.issued);
                        if how == 1 { reservation.abort(|| stamp) } else { drop(reservation) }
                    }
                }
            }
            (7 | 8, Some(s)) if self.sequences.len() < 6 => {
                let made = self.sequences[s].table.fork();
                let Some((table, copies)) = self.allow(made)? else { return Ok(()) };
                self.copy(&copies)?;
                self.seen.forks += 1;
                let Sequence { tokens, gone, .. } = &self.sequences[s];
                let (tokens, gone) = (tokens.clone(), gone.clone());
                self.sequences.push(Sequence { table, tokens, gone });
            }
            (9..=11, Some(s)) => self.truncate(s, b)?,
            (12, Some(s)) => {
                let Sequence { table, .. } = self.sequences.swap_remove(s);
                if b.is_multiple_of(4) { drop(table) } else { self.retire(table.release())? }
            }
            (13 | 14, Some(s)) => self.read(s, b)?,
            (15, Some(s)) => self.lease(s, b)?,
            (18, Some(s)) => self.shift(s, b)?,
            (19 | 20, Some(s)) => self.swap(s, b)?,
            (16, _) => {
                let at = self.readers.iter().position(|reader| reader.lease.is_some());
                if let Some(at) = at {
                    self.readers.swap_remove(at);
                }
            }
            (17, _) => {
                self.done = if b.is_multiple_of(3) { self.issued } else { (self.done + b % 16).min(self.issued) };
                let done = self.done;
                self.readers.retain(|reader| reader.lease.is_some() || reader.until > done);
            }
            _ => self.reclaim(b),
        }
        Ok(())
    }

    /// Swaps a sequence out, or in; or plans it and thinks better of it.
    fn swap(&mut self, s: usize, b: u64) -> Verdict {
        let table = &self.sequences[s].table;
        let made = if table.is_out() { table.swap_in() } else { table.swap_out() };
        let Some(plan) = self.allow(made)? else { return Ok(()) };
        for SwapCopy { op, .. } in plan.copies() {
            // Originals of an open block are the sequence's already.
            if op.to.class != PageClass::Host {
                self.greet(op.to.class, op.to.id)?;
            }
            if !self.planted(Plant::SkipCopy) {
                let rows = self.rows(op.from, op.rows).to_vec();
                self.write(op.to, 0, &rows);
            }
        }
        self.issued += 1;
        let stamp = Stamp(self.issued);
        match b % 5 {
            0 => plan.abort(|| stamp),
            1 => drop(plan),
            _ => {
                let (out, shared) = (plan.out(), plan.shared() as u64);
                let dropped = self.sequences[s].table.commit_swap(plan).map_err(|(e, _)| format!("swap: {e}"))?;
                self.seen.swapped += u64::from(out);
                self.seen.returned += u64::from(!out);
                self.seen.shared_again += shared;
                self.retire(dropped)?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, s: usize, b: u64) -> Verdict {
        let len = self.sequences[s].table.len();
        // Mostly near the end, as a speculative decoder does.
        let to = if b.is_multiple_of(3) {
            (b >> 8) as usize % (len + 1)
        } else {
            len - (b >> 8) as usize % (len.min(3) + 1)
        };
        let made = self.sequences[s].table.truncate(to);
        let Sequence { table, gone, .. } = &mut self.sequences[s];
        let window = table.window();
        // What the next query would see must be there; what is refused must not be.
        let sees = |at: usize| (0..=at).filter(move |t| window.is_some_and(|w| *t < w.sinks || t + w.tokens > at));
        let block = self.block;
        let missing =
            |at: usize, gone: &BTreeSet<usize>| at > 0 && sees(at).any(|t| t < at && gone.contains(&(t / block)));
        let inside = gone.first().is_some_and(|first| to > first * block);
        if let Err(TableError::WindowPassed { asked, least, within }) = &made {
            self.seen.barred += 1;
            let all = (*asked == to)
                && gone.first().is_some_and(|first| first * block == *within)
                && !missing(*least, gone)
                && (missing(*least - 1, gone) || gone.contains(&((*least - 1) / block)));
            self.refused += 1;
            return if all && (missing(to, gone) || gone.contains(&(to / block))) {
                Ok(())
            } else {
                Err(format!("a cut to {to} was refused: {least} and more, {within} and less"))
            };
        }
        if made.is_ok() && inside && (missing(to, gone) || gone.contains(&(to / block))) {
            return Err(format!("a cut to {to} left a query without tokens"));
        }
        if made.is_ok() && !inside {
            gone.clear();
        }
        let Some(ops) = self.allow(made)? else { return Ok(()) };
        let copies: Vec<CopyOp> = ops.copies().collect();
        if self.sequences[s].table.is_out() {
            self.seen.cut_outside += u64::from(to < len);
        } else {
            self.seen.reopened += u64::from(copies.len() == 1);
            self.seen.copied += u64::from(copies.len() == 2);
        }
        self.copy(&copies)?;
        self.issued += 1;
        let stamp = Stamp(if self.planted(Plant::OldStamp) { 1 } else { self.issued });
        ops.retire(|| stamp).map_err(|e| format!("retire: {e}"))?;
        self.sequences[s].tokens.truncate(to);
        // Rows behind the cut will be written again in the same slot, in the order of one stream: that order is the
        // device's to keep, so running reads are not held to those rows. A leased page is not reopened in place unless
        // it was open all along.
        let rows = to % self.block;
        if let Some(entry) = self.sequences[s].table.blocks().last().filter(|_| rows > 0) {
            for page in entry.pages() {
                for reader in &mut self.readers {
                    let same = reader.page.class == page.class && reader.page.id.index == page.id.index;
                    if same && (reader.lease.is_none() || reader.page.id == page.id) {
                        reader.rows.truncate(rows);
                    }
                }
            }
        }
        Ok(())
    }

    /// A page of the sequence and how many of its rows are written.
    fn some_page(&self, s: usize, b: u64) -> Option<(PageRef, usize)> {
        let table = &self.sequences[s].table;
        let (number, entry) = table.numbered().nth(b as usize % table.blocks().len().max(1))?;
        let pages: Vec<PageRef> = entry.pages().collect();
        Some((pages[(b >> 16) as usize % pages.len()], self.block.min(table.len() - number * self.block)))
    }

    fn read(&mut self, s: usize, b: u64) -> Verdict {
        if let Some((page, rows)) = self.some_page(s, b).filter(|_| self.readers.len() < 24) {
            self.issued += 1;
            let (rows, until) = (self.rows(page, rows).to_vec(), self.issued);
            self.readers.push(Reader { page, rows, until, lease: None });
        }
        Ok(())
    }

    fn lease(&mut self, s: usize, b: u64) -> Verdict {
        if let Some((page, rows)) = self.some_page(s, b).filter(|_| self.readers.len() < 24) {
            let lease = match self.pools.of(page.class).lease(page.id) {
                Ok(lease) => lease,
                Err(PageError::Refused { refused, .. }) if refused.moving => return Ok(()),
                Err(error) => return Err(format!("lease: {error}")),
            };
            let rows = self.rows(page, rows).to_vec();
            self.readers.push(Reader { page, rows, until: 0, lease: Some(lease) });
        }
        Ok(())
    }

    /// Ends the oldest move, or begins one.
    fn shift(&mut self, s: usize, b: u64) -> Verdict {
        if self.movers.len() > 2 || !self.movers.is_empty() && b.is_multiple_of(2) {
            let page = self.movers.remove(0);
            return self.pools.of(page.class).move_end(page.id).map(drop).map_err(|e| format!("end of a move: {e}"));
        }
        let Some((page, _)) = self.some_page(s, b) else { return Ok(()) };
        let leased = self.readers.iter().any(|reader| reader.lease.is_some() && reader.page == page);
        match self.pools.of(page.class).move_begin(page.id) {
            Ok(()) if leased => Err(format!("{page:?} moves under a lease")),
            Ok(()) => {
                self.seen.moves += 1;
                self.movers.push(page);
                Ok(())
            }
            Err(PageError::Refused { .. }) => Ok(()),
            Err(error) => Err(format!("move: {error}")),
        }
    }

    fn reclaim(&mut self, b: u64) {
        let (issued, done, mut dice) = (self.issued, self.done, b);
        let early = self.planted(Plant::EarlyReclaim);
        let running = self.readers.iter().any(|reader| reader.lease.is_none());
        let same = self.planted(Plant::SameGeneration);
        let class = CLASSES[(b % 4) as usize];
        let pages = self.pools.of(class).clone();
        let before: Vec<Snapshot> = pages.shared.words.iter().map(|word| word.snapshot()).collect();
        let freed = pages.reclaim(&mut |stamp| {
            dice = splitmix64(dice);
            let passed = if stamp == Stamp::IDLE { done == issued || !running } else { stamp.0 <= done };
            // The device may always say "not yet".
            early || passed && dice % 4 > 0
        });
        self.seen.freed += freed as u64;
        self.seen.held += (pages.counts().retiring > 0) as u64;
        if same {
            for (word, old) in pages.shared.words.iter().zip(before) {
                let now = word.snapshot();
                if old.state == State::Retiring && now.state == State::Free {
                    word.force(Snapshot { generation: old.generation, ..now });
                }
            }
        }
    }

    /// Commits the planted defects that are deeds of their own.
    fn misbehave(&mut self, a: u64, b: u64) -> Verdict {
        let Some(plant) = self.plant.filter(|_| a % 64 == 7) else { return Ok(()) };
        let Some(s) = (!self.sequences.is_empty()).then(|| b as usize % self.sequences.len()) else { return Ok(()) };
        let Some((page, _)) = self.some_page(s, b) else { return Ok(()) };
        let pages = self.pools.of(page.class).clone();
        match plant {
            Plant::FreeLive => {
                let word = pages.word(page.id).map_err(|e| e.to_string())?;
                word.force(Snapshot { generation: page.id.generation + 1, state: State::Free, moving: false, pins: 0 });
                let mut books = pages.shared.books.lock();
                let crate::books::Books { free, slots, .. } = &mut *books;
                free.push_front(slots, page.id.index);
                books.live -= 1;
                books.slots[page.id.index as usize].references = 0;
            }
            Plant::ReleaseTwice => drop(pages.release(page.id)),
            Plant::Leak => drop(pages.allocate()),
            Plant::LosePin => {
                if let Some(lease) = self.readers.iter().find_map(|reader| reader.lease.as_ref()) {
                    for class in CLASSES {
                        let _ = self.pools.of(class).apply(Operation::Unpin, lease.id());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

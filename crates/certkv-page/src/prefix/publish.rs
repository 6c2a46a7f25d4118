//! Units come to be cached, and blocks of windows that cached units lacked.
use super::entry::{Content, NONE};
use super::evict::Evicted;
use super::index::{PrefixIndex, Published, State, Stop};
use super::key::{Chain, Prompt};
use crate::error::TableError;
use crate::fork::{share, unshare};
use crate::table::{BlockEntry, BlockTable};

/// A unit that needs a note.
#[derive(Debug, Clone, Copy)]
pub struct Unnoted<'a, T> {
    /// Its number in the prompt.
    pub number: usize,
    /// The note of the unit before it.
    pub before: Option<&'a T>,
    /// Its own so far, if it is cached and blocks of windows are to be added to it.
    pub own: Option<&'a T>,
    /// Which those are: group, and block of the sequence.
    pub filled: &'a [(usize, usize)],
}

/// References that a publication has yet to take: nobody sees the units that name them before the lock is open.
struct Owed {
    /// By group.
    pages: Vec<Vec<BlockEntry>>,
    /// Blocks that were put into cached units: entry, place in it.
    filled: Vec<(u32, usize)>,
}

impl Owed {
    /// All of them, or none.
    fn push_all(&mut self, pages: impl Iterator<Item = (usize, BlockEntry)> + Clone) -> Result<(), TableError> {
        for (done, (group, page)) in pages.clone().enumerate() {
            if let Err(error) = self.push(group, page) {
                for (group, _) in pages.take(done) {
                    self.pages[group].pop();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn push(&mut self, group: usize, page: BlockEntry) -> Result<(), TableError> {
        let what = "the pages of a publication";
        if self.pages.len() <= group {
            self.pages.try_reserve(group + 1 - self.pages.len()).map_err(|_| TableError::OutOfMemory { what })?;
            self.pages.resize_with(group + 1, Vec::new);
        }
        let pages = &mut self.pages[group];
        pages.try_reserve(1).map_err(|_| TableError::OutOfMemory { what })?;
        pages.push(page);
        Ok(())
    }
}

impl<T> PrefixIndex<T> {
    /// Caches the full units of a sequence: `prompt` is what it holds from its first token on, `tables` its pages, one table
    /// per group. Units that are there already stay as they are, but for blocks of groups with a window that they lack and a table has.
    ///
    /// A table with a window has given up pages: in a group that has a window, too, the unit is cached without them. In one that has
    /// none the publication ends there.
    ///
    /// `note` gives what to remember of a new unit, from its number and the note of the unit before it; `None` ends the
    /// publication, for pages that cannot follow those that are cached.
    pub fn publish(
        &self,
        chain: &Chain,
        prompt: Prompt<'_>,
        tables: &[&BlockTable],
        mut note: impl FnMut(usize, Option<&T>) -> Option<T>,
    ) -> Published {
        let held = tables.iter().map(|table| table.len()).min().unwrap_or(0);
        if tables.len() != self.groups.len() || tables.iter().any(|table| table.is_out()) {
            return self.nothing(Some(Stop::Declined));
        }
        let tokens = &prompt.tokens[..prompt.tokens.len().min(held)];
        let page = |group: usize, block: usize| tables.get(group)?.get(block).copied();
        self.publish_pages(chain, Prompt { tokens, ..prompt }, page, |unit| note(unit.number, unit.before))
    }

    fn nothing(&self, stop: Option<Stop>) -> Published {
        Published { known: 0, added: 0, filled: 0, usable: 0, stop, evicted: Evicted::new(&self.groups) }
    }

    /// As [`PrefixIndex::publish`] of all of `prompt`, from wherever its pages are: `page` gives those of a full block of a group, and the
    /// caller holds them. `note` may decline blocks of windows for a cached unit, which then stays as it is.
    pub fn publish_pages(
        &self,
        chain: &Chain,
        prompt: Prompt<'_>,
        page: impl Fn(usize, usize) -> Option<BlockEntry>,
        mut note: impl FnMut(Unnoted<'_, T>) -> Option<T>,
    ) -> Published {
        let mut published = self.nothing(None);
        // Most units are known by a page that they were found with; that is always there in a group without a window.
        let lead = self.groups.iter().position(|group| group.window.is_none()).unwrap_or(0);
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let mut path = core::mem::take(&mut state.path);
        path.clear();
        let mut owed = Owed { pages: Vec::new(), filled: Vec::new() };
        for (unit, content) in self.units(chain, prompt).enumerate() {
            let parent = path.last().copied().unwrap_or(NONE);
            let content = Content { parent, ..content };
            let first = page(lead, unit * (self.unit() / self.groups[lead].block));
            let found = first.and_then(|page| state.entries.find_by_page(&content, lead, &page)).map(Ok);
            match found.or_else(|| state.entries.find(&content)) {
                Some(Ok(slot)) => {
                    state.entries.nodes[slot as usize].used = now;
                    published.known += 1;
                    path.push(slot);
                    if let Err(error) = self.fill(&mut state, (unit, slot), &page, &mut note, &mut owed) {
                        published.stop = Some(Stop::Page(error));
                        break;
                    }
                    continue;
                }
                Some(Err(())) => {
                    state.stats.collisions += 1;
                    published.stop = Some(Stop::Collision);
                    break;
                }
                None => {}
            }
            let blocks = || self.blocks(unit).map(|(group, _, block)| (group, page(group, block)));
            if blocks().any(|(group, page)| page.is_none() && self.groups[group].window.is_none()) {
                published.stop = Some(Stop::Gone);
                break;
            }
            if blocks().any(|(group, page)| page.is_some_and(|page| state.entries.names(group, &page))) {
                published.stop = Some(Stop::Elsewhere);
                break;
            }
            let before = state.entries.nodes.get(parent as usize).and_then(|node| node.note.as_ref());
            let Some(remark) = note(Unnoted { number: unit, before, own: None, filled: &[] }) else {
                published.stop = Some(Stop::Declined);
                break;
            };
            if state.entries.is_full() && !self.evict_one(&mut state, parent, &mut published.evicted) {
                published.stop = Some(Stop::Full);
                break;
            }
            if let Err(error) = owed.push_all(blocks().filter_map(|(group, page)| Some((group, page?)))) {
                published.stop = Some(Stop::Page(error));
                break;
            }
            match state.entries.insert(&content, blocks().map(|(_, page)| page), remark, now) {
                Some(slot) => path.push(slot),
                // There was room a moment ago, under this lock.
                None => break,
            }
            published.added += 1;
        }
        published.filled = owed.filled.len();
        // References are taken at once. The policy does not know new units yet, and what a new one follows is spared: so none of those
        // that lack a reference was evicted for another.
        if let Some(error) = self.settle(&owed) {
            for slot in path.drain(published.known..).rev() {
                state.entries.remove(slot);
            }
            for (slot, place) in owed.filled {
                state.entries.put_block(slot, place, None);
            }
            (published.added, published.filled, published.stop) = (0, 0, Some(Stop::Page(error)));
        }
        state.stats.published += published.added as u64;
        let State { policy, entries, reach, log, .. } = &mut *state;
        published.usable = self.usable(entries, &path, reach);
        let (known, added) = path.split_at(published.known);
        if let Some(log) = log {
            added.iter().for_each(|slot| log.stored(entries, chain, *slot));
        }
        added.iter().rev().for_each(|slot| policy.insert(*slot, entries.nodes[*slot as usize].name));
        known.iter().rev().for_each(|slot| policy.touch(*slot));
        state.path = path;
        published
    }

    /// Blocks of a unit of a sequence: group, place in the unit, number in the sequence.
    fn blocks(&self, unit: usize) -> impl Iterator<Item = (usize, usize, usize)> + Clone + '_ {
        let each = self.groups.iter().enumerate().flat_map(move |(group, shape)| {
            let each = self.unit() / shape.block;
            (unit * each..(unit + 1) * each).map(move |block| (group, block))
        });
        each.enumerate().map(|(place, (group, block))| (group, place, block))
    }

    /// Gives a cached unit the blocks of windows that it lacks, and notes that those that there are were in a window now.
    fn fill(
        &self,
        state: &mut State<T>,
        (unit, slot): (usize, u32),
        page: &impl Fn(usize, usize) -> Option<BlockEntry>,
        note: &mut impl FnMut(Unnoted<'_, T>) -> Option<T>,
        owed: &mut Owed,
    ) -> Result<(), TableError> {
        let (now, entries, mut added, mut filled) = (state.clock, &mut state.entries, Vec::new(), Vec::new());
        for (group, place, block) in self.blocks(unit).filter(|(group, ..)| self.groups[*group].window.is_some()) {
            let Some(page) = page(group, block) else { continue };
            entries.nodes[slot as usize].seen_at = now;
            if entries.pages_of(slot)[place].is_none() && !entries.names(group, &page) {
                added.push((group, place, page));
                filled.push((group, block));
            }
        }
        if added.is_empty() {
            return Ok(());
        }
        let before = entries.nodes.get(entries.nodes[slot as usize].parent as usize);
        let (before, own) = (before.and_then(|node| node.note.as_ref()), entries.nodes[slot as usize].note.as_ref());
        let Some(remark) = note(Unnoted { number: unit, before, own, filled: &filled }) else { return Ok(()) };
        entries.nodes[slot as usize].note = Some(remark);
        for (group, place, page) in added {
            owed.push(group, page)?;
            entries.put_block(slot, place, Some(page));
            owed.filled.push((slot, place));
        }
        Ok(())
    }

    /// One more reference to every page that units name now, all or none.
    fn settle(&self, owed: &Owed) -> Option<TableError> {
        for (done, pages) in owed.pages.iter().enumerate() {
            if let Err(error) = share(&self.groups[done].pools, pages) {
                for (group, undo) in owed.pages[..done].iter().enumerate() {
                    unshare(&self.groups[group].pools, undo);
                }
                return Some(error);
            }
        }
        None
    }
}

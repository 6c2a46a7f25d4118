//! Levels of blocks on a GPU: another format for a full block, coded again from its originals in host memory.
//!
//! Each layer has block tables of its own, and a page of any level a number on the device. What chooses reads a block's word and masses by its number in the
//! sequence; what attends goes over the blocks of a level, whose lists the host keeps (`mirror.rs`) and sends when a step begins. A change is enqueued between steps,
//! so that no step sees half of one.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::prefill::{self, Coder};
use crate::Error;
use crate::counters::Kind;
use crate::levels::{Controlled, Level, given};
use certkv_core::{RecordLayout, SequenceId, planted, span};
use certkv_kernel::cuda::select::BLOCK_ENTRY;
use certkv_page::LevelChange;

impl GpuConfig {
    /// Longest chunk of which some are attended as steps are: kernels of drafts read one format.
    pub(super) fn draft_tokens(&self) -> usize {
        if self.levels.is_empty() { self.chunk_tokens } else { 0 }
    }

    /// Records of each level.
    pub(super) fn level_layouts(&self) -> Result<Vec<RecordLayout>, Error> {
        self.levels.iter().map(|level| Ok(RecordLayout::new(&self.geometry, level.format)?)).collect()
    }
}

impl GpuCache {
    /// What is not there yet for blocks that have levels.
    pub(super) fn without_levels(&self, what: &str) -> Result<(), Error> {
        match self.config.levels.is_empty() {
            true => Ok(()),
            false => {
                let why = format!("what has blocks with levels is not {what} on a GPU in this release");
                Err(Error::Config { field: "levels", why })
            }
        }
    }

    /// As [`GpuConfig::levels`].
    pub fn levels(&self) -> &[Level] {
        &self.config.levels
    }

    /// As [`Cache::level`](crate::Cache::level).
    ///
    /// # Errors
    /// Unknown sequence, bad layer, or a block that is not full.
    pub fn level(&self, id: SequenceId, layer: usize, block: usize) -> Result<usize, Error> {
        let s = &self.core.sizes;
        if layer >= s.layers {
            return Err(Error::Layer { layer, layers: s.layers });
        }
        let found = self.entry(id)?.tables[s.group_of(layer)].get(block).filter(|entry| entry.is_full());
        let found = found.ok_or(Error::Level { block, level: 0, why: "the block is not full" })?;
        Ok(found.level.into())
    }

    /// The same by a KV head: all heads of a block have its level here.
    ///
    /// # Errors
    /// As [`GpuCache::level`], or a head that the model does not have.
    pub fn level_of(&self, id: SequenceId, layer: usize, kv_head: usize, block: usize) -> Result<usize, Error> {
        self.check_head(kv_head)?;
        self.level(id, layer, block)
    }

    fn check_head(&self, kv_head: usize) -> Result<(), Error> {
        let expected = self.core.sizes.kv_heads;
        if kv_head < expected { Ok(()) } else { Err(Error::Shape { argument: "kv_head", expected, given: kv_head }) }
    }

    /// As [`GpuCache::change_level`] by a KV head, of the whole block.
    ///
    /// # Errors
    /// As [`GpuCache::change_level`], or a head that the model does not have.
    pub fn change_level_of(
        &mut self,
        id: SequenceId,
        layer: usize,
        kv_head: usize,
        block: usize,
        level: usize,
    ) -> Result<(), Error> {
        self.check_head(kv_head)?;
        self.change_level(id, layer, block, level)
    }

    /// As [`Cache::change_level`](crate::Cache::change_level): enqueues that a full block of one layer is coded again, from its originals in pinned memory, at another level of
    /// [`GpuConfig::levels`]. The next step reads it so, with nothing of it promoted. Sequences that share the block keep it as it was, on its old page; otherwise that page
    /// is free once steps before have been.
    ///
    /// Costs a launch that reads the block's originals over the host's link, and a longer message to the device in the next step. Waits for nothing, unless the block has
    /// been filled by the latest steps, whose originals may be under way.
    ///
    /// # Errors
    /// [`Error::Level`] for a block or level that there is not; [`Error::CapacityExhausted`] naming the level whose pages are used up; unknown sequence, bad layer; the driver's.
    /// The block has the level that it had.
    pub fn change_level(&mut self, id: SequenceId, layer: usize, block: usize, level: usize) -> Result<(), Error> {
        self.level(id, layer, block)?;
        let none = Error::Level { block, level, why: "there is no such level" };
        let to = u8::try_from(level).ok().filter(|_| level < self.core.sizes.levels.len().max(1)).ok_or(none)?;
        let mut changed = Ok(());
        self.change_levels(id, layer, &[(block, to)], &mut |_, result| changed = result);
        changed
    }

    /// As [`Cache::level_lists`](crate::Cache::level_lists): one for each layer.
    pub fn level_lists(&self) -> usize {
        self.core.sizes.layers
    }

    /// As [`Cache::set_levels`](crate::Cache::set_levels), `[layer][block]`: enqueues it. Blocks of a layer that have one level then are coded together, so that the host's link is what it takes: 5 us a block of 64
    /// tokens, 8 KV heads and 128 channels, where [`GpuCache::change_level`] one after the other takes 26.
    ///
    /// # Errors
    /// As there, but that no sequence is busy; the driver's.
    pub fn set_levels(&mut self, id: SequenceId, levels: &[Vec<usize>]) -> Result<Controlled, Error> {
        let (entry, s) = (self.entry(id)?, &self.core.sizes);
        if entry.is_out() {
            return Err(Error::SwappedOut);
        }
        let tables: Vec<_> = (0..s.layers).map(|layer| &entry.tables[s.group_of(layer)]).collect();
        let mut given = given(tables.into_iter(), levels, s.levels.len().max(1) as u8)?;
        let mut all = Controlled::default();
        for falls in [true, false] {
            for (layer, given) in given.iter_mut().enumerate() {
                given.carry_out(falls, &mut all, &mut |list, done| {
                    self.change_levels(id, layer, list, done);
                    Ok(())
                })?;
            }
        }
        Ok(all)
    }

    /// Changes levels in `layer`. `done` hears what became of each. Blocks are coded together, a launch for each level, unless pages run out before: then what has been begun
    /// is made first, and gives back its own.
    pub(super) fn change_levels(
        &mut self,
        id: SequenceId,
        layer: usize,
        changes: &[(usize, u8)],
        done: &mut dyn FnMut(usize, Result<(), Error>),
    ) {
        let group = self.core.sizes.group_of(layer);
        let mut begun: Vec<(usize, LevelChange)> = Vec::new();
        for (at, &(block, level)) in changes.iter().enumerate() {
            let result = match self.level(id, layer, block) {
                Ok(had) if had == usize::from(level) => Ok(None),
                Ok(_) => self.begin_change((id, group), (block, level), &mut |cache| {
                    let some = !begun.is_empty();
                    cache.make(id, layer, begun.drain(..), done);
                    some
                }),
                Err(error) => Err(error),
            };
            match result {
                Ok(Some(change)) => begun.push((at, change)),
                Ok(None) => done(at, Ok(())),
                Err(error) => self.moved(Err(error), at, done),
            }
        }
        self.make(id, layer, begun.drain(..), done);
        self.relist(id.slot as usize, group);
    }

    fn moved(&self, result: Result<u64, Error>, at: usize, done: &mut dyn FnMut(usize, Result<(), Error>)) {
        done(at, self.core.host.moved(Kind::Recode, result).map(drop));
    }

    /// Takes a page for a block; where there is none, `make` has what was begun before give back its own, if it is not nothing.
    fn begin_change(
        &mut self,
        (id, group): (SequenceId, usize),
        (block, level): (usize, u8),
        make: &mut dyn FnMut(&mut Self) -> bool,
    ) -> Result<Option<LevelChange>, Error> {
        self.land_block(id, block)?;
        loop {
            match self.entry(id)?.tables[group].begin_change(block, level).map_err(Error::from_table) {
                Err(error @ Error::CapacityExhausted { .. }) => {
                    if !make(self) && !self.make_room_after(&error)? {
                        return Err(error);
                    }
                    self.reclaim()?;
                }
                change => return change.map(Some),
            }
        }
    }

    /// Makes changes that were begun, by their numbers.
    fn make(
        &mut self,
        id: SequenceId,
        layer: usize,
        begun: impl Iterator<Item = (usize, LevelChange)>,
        done: &mut dyn FnMut(usize, Result<(), Error>),
    ) {
        let mut begun: Vec<(usize, LevelChange)> = begun.collect();
        let span = span!("recode", layer = layer, blocks = (begun.len()), bytes = _);
        let mut bytes = 0;
        for level in 0..self.core.sizes.levels.len() as u8 {
            let own: Vec<_> = begun.extract_if(.., |(_, change)| change.level() == level).collect();
            let together = self.code(id.slot as usize, layer, level, own.iter().map(|(_, change)| change));
            for (at, change) in own {
                // What cannot be coded together may be one by one.
                let coded = match together {
                    Ok(()) => Ok(()),
                    Err(_) => self.code(id.slot as usize, layer, level, [&change].into_iter()),
                };
                let made = match coded {
                    Ok(()) => self.commit(id, layer, change),
                    Err(error) => {
                        change.abort(|| self.stamp(self.core.sizes.group_of(layer)));
                        Err(error)
                    }
                };
                bytes += made.as_ref().map_or(0, |bytes| *bytes);
                self.moved(made, at, done);
            }
        }
        span.record("bytes", bytes);
    }

    /// Names the page of a change, which has been coded. Bytes of its records.
    fn commit(&mut self, id: SequenceId, layer: usize, change: LevelChange) -> Result<u64, Error> {
        let (group, row) = (self.core.sizes.group_of(layer), id.slot as usize);
        let (block, level) = (change.block(), usize::from(change.level()));
        let up = (self.core.sizes.levels.len() - 1 - level) as u8;
        let entry = self.entry_mut(id)?;
        let dropped = entry.tables[group].commit_change(change).map_err(|refused| Error::from_table(refused.error))?;
        entry.control.get_mut(layer).into_iter().for_each(|control| control.moved_to(block, up));
        let s = &self.core.sizes;
        let (bytes, word) = (s.levels[level].page_bytes, row * s.stride + block);
        // Of the old page and the block's words nothing is known any more; the row keeps what is promoted of others.
        self.forgotten[group].note_all(super::cache::coded(s, &dropped));
        self.forgotten[group].note(BLOCK_ENTRY | word as u32);
        dropped.retire(|| self.stamp(group))?;
        Ok(bytes as u64)
    }

    /// Enqueues that the new pages of changes to `level` are written.
    fn code<'c>(
        &mut self,
        row: usize,
        layer: usize,
        level: u8,
        changes: impl Iterator<Item = &'c LevelChange>,
    ) -> Result<(), Error> {
        if planted!(B26) {
            return Ok(());
        }
        let mut items = core::mem::take(&mut self.pack_items);
        items.clear();
        let missing = || Error::Order { layer, why: "a page of the sequence is missing" };
        let mut push = |change: &LevelChange| -> Result<(), Error> {
            let at = self.host_at(layer, change.host())?;
            let (s, page) = (&self.core.sizes, change.page().ok_or_else(missing)?);
            let of = &s.levels[usize::from(level)];
            let at_page = s.packed_at(layer, s.page_of(level, page.index));
            let record = self.core.packed.address_of(at_page, of.page_bytes)?;
            let originals = prefill::reachable(&self.core, at)?;
            let block = prefill::ToCode { originals, record, bytes: of.layout.bytes };
            prefill::push_items(&self.core, layer, row, block, &mut items)
        };
        let mut changes = changes;
        let pushed = changes.try_for_each(&mut push);
        let packed = pushed.and_then(|()| prefill::pack(self, layer, Coder::Level(level.into()), &items));
        self.pack_items = items;
        packed
    }

    /// Tells the mirror of a row's blocks in a group, where they have levels.
    pub(super) fn relist(&mut self, row: usize, group: usize) {
        let Self { core, mirror, sequences, .. } = self;
        let Some(entry) = sequences.get(row).filter(|_| !core.sizes.levels.is_empty()) else { return };
        let full = entry.tables[group].numbered().filter_map(|(block, entry)| {
            let page = entry.packed.filter(|_| entry.is_full())?;
            Some((block, usize::from(entry.level), core.sizes.page_of(entry.level, page.index), page.index))
        });
        mirror.relist(group, row, full);
    }
}

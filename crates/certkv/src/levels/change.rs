//! A full block coded again at another level.
use super::{encoder_of, order};
use crate::append::encode;
use crate::cache::Cache;
use crate::counters::Kind;
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::work::Workspace;
use crate::{Error, SequenceId};
use certkv_control::BitSet;
use certkv_core::{planted, span};
use certkv_page::LevelChange;

impl Cache {
    /// Level of a full block of `layer`: which of [`crate::Config::levels`], 0 without any.
    ///
    /// # Errors
    /// Unknown or busy sequence, bad layer, or a block that is not full. [`Error::Config`] where heads have levels of their own.
    pub fn level(&self, id: SequenceId, layer: usize, block: usize) -> Result<usize, Error> {
        self.all_heads("level_of")?;
        self.level_of(id, layer, 0, block)
    }

    /// Level of one KV head's records in a full block: the block's, but with [`crate::Config::levels_by_head`].
    ///
    /// # Errors
    /// As [`Cache::level`], or a head that the model does not have.
    pub fn level_of(&self, id: SequenceId, layer: usize, kv_head: usize, block: usize) -> Result<usize, Error> {
        let (index, _) = self.group_of(layer, kv_head)?;
        let found = self.ask(id, |state| {
            state.tables[index].get(block).filter(|entry| entry.is_full()).map(|entry| usize::from(entry.level))
        })?;
        found.ok_or(Error::Level { block, level: 0, why: "the block is not full" })
    }

    /// Codes a full block of one layer again, from its originals, at another level of [`crate::Config::levels`]. The next step reads
    /// it so. Sequences and cached prefixes that share the block keep it as it was, on its old page; otherwise that page is free once its
    /// readers are done. Cached prefixes that no sequence uses give way where the level has no page.
    ///
    /// Costs reading the block's originals in that layer and their encoding. Not while a step holds the sequence.
    ///
    /// # Errors
    /// [`Error::Level`] for a block or level that there is not, a block that has no codes, or originals that this level has none for;
    /// [`Error::CapacityExhausted`] naming the level whose pages are used up; [`Error::SwappedOut`]; unknown or busy sequence; a device
    /// error; [`Error::Config`] where heads have levels of their own. The block has the level that it had.
    pub fn change_level(&self, id: SequenceId, layer: usize, block: usize, level: usize) -> Result<(), Error> {
        self.all_heads("change_level_of")?;
        self.change_level_of(id, layer, 0, block, level)
    }

    /// Where one level is all heads'.
    fn all_heads(&self, instead: &str) -> Result<(), Error> {
        if self.config.levels_by_head {
            let why = format!("a block has no level of all its heads; `{instead}` names one");
            return Err(Error::Config { field: "levels_by_head", why });
        }
        Ok(())
    }

    /// As [`Cache::change_level`], of one KV head with [`crate::Config::levels_by_head`], and else of all that share its level.
    ///
    /// # Errors
    /// As [`Cache::change_level`], or a head that the model does not have.
    pub fn change_level_of(
        &self,
        id: SequenceId,
        layer: usize,
        kv_head: usize,
        block: usize,
        level: usize,
    ) -> Result<(), Error> {
        let (index, group) = self.group_of(layer, kv_head)?;
        let _turn = self.turn.lock();
        let none = Error::Level { block, level, why: "there is no such level" };
        let level = u8::try_from(level).ok().filter(|level| *level < group.level_count()).ok_or(none)?;
        self.with(id, |state| {
            if state.is_out() {
                return Err(Error::SwappedOut);
            }
            let mut work = self.workspace()?;
            let changed =
                self.change(group, index, layer, state, &mut work, &[(block, level)], &mut |_, result| result);
            self.return_workspace(work);
            changed
        })
    }

    /// Changes levels in `layer`, one after the other. `done` hears what became of each, and may go on after an error. What heads
    /// remember of other blocks stays theirs; of a block that was coded again they know nothing.
    ///
    /// # Errors
    /// What `done` returns.
    #[allow(clippy::too_many_arguments, reason = "the block, where it is, and what it is done with")]
    pub(super) fn change(
        &self,
        group: &Group,
        index: usize,
        layer: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        changes: &[(usize, u8)],
        done: &mut dyn FnMut(usize, Result<(), Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before: Vec<usize> = order(&state.tables[index], group.level_count()).map(|(_, block)| block).collect();
        let mut moved = BitSet::new(before.len());
        let mut result = Ok(());
        for (at, &(block, level)) in changes.iter().enumerate() {
            let had = state.tables[index].get(block).map(|entry| entry.level);
            let _span = span!("recode", layer = layer, block = block, level = level);
            let changed = self.change_one(group, index, layer, state, work, block, level);
            let changed = match had == Some(level) {
                true => changed,
                false => self.counters.moved(Kind::Recode, changed.map(|()| group.bytes_at(level) as u64)).map(drop),
            };
            if changed.is_ok() && had != Some(level) {
                moved.insert(block);
                let up = group.level_count() - 1 - level;
                state.control.get_mut(index).into_iter().for_each(|control| control.moved_to(block, up));
            }
            result = done(at, changed);
            if result.is_err() {
                break;
            }
        }
        if !moved.is_empty() {
            let mut old = vec![0; before.len()];
            before.iter().enumerate().for_each(|(at, block)| old[*block] = at);
            let after = order(&state.tables[index], group.level_count());
            let from: Vec<_> = after.map(|(_, block)| (!moved.contains(block)).then_some(old[block])).collect();
            state.renumber(group, &from);
        }
        result
    }

    #[allow(clippy::too_many_arguments, reason = "the block, where it is, and what it is done with")]
    fn change_one(
        &self,
        group: &Group,
        index: usize,
        layer: usize,
        state: &mut SequenceState,
        work: &mut Workspace,
        block: usize,
        level: u8,
    ) -> Result<(), Error> {
        let refused = |why| Error::Level { block, level: level.into(), why };
        let table = &mut state.tables[index];
        let entry = *table.get(block).filter(|entry| entry.is_full()).ok_or(refused("the block is not full"))?;
        if entry.level == level {
            return Ok(());
        }
        if state.uncoded[group.strand(layer)].contains(block) {
            return Err(refused("the block has no codes"));
        }
        self.reclaim(group);
        let change = loop {
            match table.begin_change(block, level).map_err(Error::from_table) {
                Err(error) if self.make_room(&error)? => {}
                change => break change?,
            }
        };
        let centre = &state.centres[group.strand(layer)];
        let coded = self.code(group, index, layer, centre, work, &change, entry.writer);
        let coded =
            coded.and_then(|coded| if coded { Ok(()) } else { Err(refused("no scales at this level hold it")) });
        if let Err(error) = coded {
            change.abort(|| self.stamp());
            return Err(error);
        }
        let dropped = table.commit_change(change).map_err(|refused| Error::from_table(refused.error))?;
        dropped.retire(|| self.stamp())?;
        Ok(())
    }

    /// Reads the originals and writes the records and the seal. False if scales overflow.
    #[allow(clippy::too_many_arguments, reason = "the block, where it is, and what it is done with")]
    fn code(
        &self,
        group: &Group,
        index: usize,
        layer: usize,
        centre: &[f32],
        work: &mut Workspace,
        change: &LevelChange,
        writer: u32,
    ) -> Result<bool, Error> {
        let (level, host) = (change.level(), change.host());
        if planted!(B26) {
            return Ok(true);
        }
        let missing = Error::Order { layer, why: "a page of the sequence is missing" };
        let page = change.page().ok_or(missing)?;
        let originals = group.host.read_tagged(group.host_slot(host, layer)?, &self.main, Group::tag(host))?;
        // Heads side by side, keys before values: as encoders want them.
        work.block.clear();
        work.block.extend_from_slice(originals.words());
        drop(originals);
        let mut to = group.packed_at(level).write(group.slot(page, layer), &self.main)?;
        to.set_tag(Group::tag(page));
        let Workspace { block, encoders, .. } = work;
        let encoders = &mut encoders[encoder_of(group, index, level)];
        let coded = encode(self, group, (layer, level), centre, block, encoders, to.bytes_mut())?;
        self.counters.saturated(coded.saturated);
        if coded.whole {
            group.seal_at(level, layer, change.block(), page).written_by(writer).write(to.bytes_mut());
        }
        Ok(coded.whole)
    }
}

//! Levels that a caller gives to all blocks of a sequence at once, as a plan has them.
use super::control::{Change, Controlled};
use super::ladder_levels;
use crate::cache::Cache;
use crate::{Error, SequenceId};
use certkv_page::BlockTable;

/// Levels of the full blocks of one group, those that they have and those that they are to have.
pub(crate) struct Given {
    now: Vec<u8>,
    wanted: Vec<u8>,
    count: u8,
}

/// Checks the levels that are given, a list for each table, whose blocks have `count` levels: of the first blocks of a group, the others stay as they are.
///
/// # Errors
/// [`Error::Shape`] for as many lists as there are no groups; [`Error::Level`] for more blocks than are full, or a level that there is not.
pub(crate) fn given<'a>(
    tables: impl ExactSizeIterator<Item = &'a BlockTable>,
    levels: &[Vec<usize>],
    count: u8,
) -> Result<Vec<Given>, Error> {
    if levels.len() != tables.len() {
        return Err(Error::Shape { argument: "levels", expected: tables.len(), given: levels.len() });
    }
    let of_group = |(table, levels): (&BlockTable, &Vec<usize>)| {
        let now = ladder_levels(table, count);
        let mut wanted = now.clone();
        for (block, &level) in levels.iter().enumerate() {
            let wrong = |why| Error::Level { block, level, why };
            let to = wanted.get_mut(block).ok_or(wrong("the block is not full"))?;
            *to = u8::try_from(level)
                .ok()
                .and_then(|level| (count - 1).checked_sub(level))
                .ok_or(wrong("there is no such level"))?;
        }
        Ok(Given { now, wanted, count })
    };
    tables.zip(levels).map(of_group).collect()
}

impl Given {
    /// Has `change` give the blocks of the group their levels: those that fall alone, as they leave pages to others, or all that are left.
    pub(crate) fn carry_out(
        &mut self,
        falls: bool,
        all: &mut Controlled,
        change: &mut Change<'_>,
    ) -> Result<(), Error> {
        let lower = |(now, wanted): (&u8, &u8)| *now.min(wanted);
        let wanted = if falls { self.now.iter().zip(&self.wanted).map(lower).collect() } else { self.wanted.clone() };
        let mut done = Controlled::default();
        let now = self.now.clone();
        let mut made = |list: &[(usize, u8)], done: super::control::Done<'_>| {
            change(list, &mut |at, result| {
                let (block, level) = list[at];
                if result.is_ok() {
                    self.now[block] = self.count - 1 - level;
                }
                done(at, result);
            })
        };
        done.make(&now, &wanted, &[], self.count, &mut made)?;
        all.changed += done.changed;
        if !falls {
            (all.refused, all.failed) = (all.refused + done.refused, all.failed + done.failed);
        }
        Ok(())
    }
}

impl Cache {
    /// Lists that [`Cache::set_levels`] takes: one for each layer, or KV head of a layer with [`crate::Config::levels_by_head`].
    pub fn level_lists(&self) -> usize {
        self.groups.len()
    }

    /// Gives full blocks of a sequence other levels, as [`crate::LevelPlan::levels`] has them: `[layer][block]`, or `[layer][KV head][block]` with [`crate::Config::levels_by_head`], layers and
    /// heads in one list. Blocks behind those of a list stay as they are. Those that fall go first, in all layers, as they leave pages to those that rise; a block for which there is no page, or
    /// that a level cannot hold, stays as it is and is counted, as by [`Cache::control`]. A step reads all of it or none: not while one holds the sequence.
    ///
    /// Costs as [`Cache::change_level`] for each block that has another level.
    ///
    /// # Errors
    /// [`Error::Shape`] naming `levels` for another number of lists; [`Error::Level`] for a block or level that there is not; [`Error::SwappedOut`]; unknown or busy sequence. Nothing changed.
    pub fn set_levels(&self, id: SequenceId, levels: &[Vec<usize>]) -> Result<Controlled, Error> {
        let count = self.groups.first().map_or(1, |group| group.level_count());
        let _turn = self.turn.lock();
        self.with(id, |state| {
            if state.is_out() {
                return Err(Error::SwappedOut);
            }
            let mut given = given(state.tables.iter(), levels, count)?;
            let (mut work, mut all) = (self.workspace()?, Controlled::default());
            let mut pass = |falls| {
                given.iter_mut().enumerate().try_for_each(|(index, given)| {
                    let group = &self.groups[index];
                    given.carry_out(falls, &mut all, &mut |list, done| {
                        let mut heard = |at, result| {
                            done(at, result);
                            Ok(())
                        };
                        self.change(group, index, group.first, state, &mut work, list, &mut heard)
                    })
                })
            };
            let done = pass(true).and_then(|()| pass(false));
            self.return_workspace(work);
            done.map(|()| all)
        })
    }
}

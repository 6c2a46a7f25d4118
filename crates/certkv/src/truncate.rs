//! Cutting a sequence shorter: all groups, or as far as whole blocks go.
use crate::Error;
use crate::cache::Cache;
use crate::group::Group;
use crate::levels::order;
use crate::sequence::SequenceState;
use crate::spill::Turn;
use certkv_core::{PageId, SequenceId};
use certkv_page::{BlockTable, PageError, Pools};

impl Cache {
    /// Cuts a sequence to `len` tokens. A block that becomes partial is reopened from its originals, bit for bit; where they were
    /// spilled, they are read first.
    ///
    /// # Errors
    /// [`Error::Length`] past the end; [`Error::WindowPassed`] if a layer's window at that length is gone; unknown or busy; no page for the reopened block: the sequence is unchanged.
    /// [`Error::Shortened`] after a failure half-way: it is cut to whole blocks.
    pub fn truncate(&self, id: SequenceId, len: usize) -> Result<(), Error> {
        let mut turn = self.turn.lock();
        loop {
            match self.try_truncate(&mut turn, id, len) {
                Err(error) if self.make_room(&error)? || self.forget_reopened(id, len, &error)? => {}
                result => {
                    self.sweep_all();
                    return result;
                }
            }
        }
    }

    fn try_truncate(&self, turn: &mut Turn<'_>, id: SequenceId, len: usize) -> Result<(), Error> {
        self.with(id, |state| {
            if len > state.len() {
                return Err(Error::Length { asked: len, len: state.len() });
            }
            self.check_cut(state, len)?;
            self.prepare_cut(turn, id, state, len)?;
            // It gives the turn up where it waits for the store: others may have taken the pages.
            self.check_cut(state, len)?;
            self.keep_numbers(state, len);
            // Rows on their way to the host come first, and so do copies that read a page which may be reopened.
            self.join_lane()?;
            self.join_fills()?;
            for index in 0..self.groups.len() {
                let before = state.tables[index].len();
                if let Err(cause) = self.cut(turn, index, &mut state.tables[index], len) {
                    if index == 0 && state.tables[0].len() == before {
                        return Err(cause);
                    }
                    return Err(self.cut_to_whole_blocks(state, len, cause));
                }
            }
            self.forget(state, len);
            Ok(())
        })
    }

    /// All groups or none: the pages that a reopened block needs are there before the first is cut.
    fn check_cut(&self, state: &SequenceState, len: usize) -> Result<(), Error> {
        for (group, table) in self.groups.iter().zip(&state.tables) {
            table.check_cut(len).map_err(Error::from_table)?;
            self.reclaim(group);
            check_reopened(table, &group.pools, len)?;
        }
        Ok(())
    }

    /// Where blocks have levels, heads count them as they are read: those that stay are renumbered. Should the cut fail, heads know less
    /// than they could, which costs bytes alone.
    fn keep_numbers(&self, state: &mut SequenceState, len: usize) {
        for (index, group) in self.groups.iter().enumerate().filter(|(_, group)| group.level_count() > 1) {
            let read = order(&state.tables[index], group.level_count());
            let stays =
                |(at, (_, block)): (usize, (u8, usize))| (block < len / group.layout.tokens()).then_some(Some(at));
            let from: Vec<_> = read.enumerate().filter_map(stays).collect();
            state.renumber(group, &from);
        }
    }

    /// Cuts one group's table and does what that leaves to do: labels, copies, retirement.
    fn cut(&self, turn: &mut Turn<'_>, index: usize, table: &mut BlockTable, len: usize) -> Result<(), Error> {
        let group = &self.groups[index];
        let ops = table.truncate(len).map_err(Error::from_table)?;
        let moved = self.relabel(index, ops.renamed());
        let moved = moved.and_then(|()| self.house_copies(turn, index, ops.copies()));
        let moved = moved.and_then(|()| self.execute(group, ops.copies()));
        self.forget_promoted(group, ops.dropped());
        ops.retire(|| self.stamp())?;
        moved
    }

    /// Reopened in place: the same rows under a new generation, in every layer.
    fn relabel(&self, index: usize, renamed: Option<(PageId, PageId)>) -> Result<(), Error> {
        let Some((old, new)) = renamed else { return Ok(()) };
        let group = &self.groups[index];
        self.renew_originals(index, old, new)?;
        if let Some(scratch) = &group.scratch {
            scratch.invalidate_page(old);
        }
        for layer in group.first..group.first + group.layers {
            group.host.write(group.host_slot(new, layer)?, &self.main)?.set_tag(Group::tag(new));
        }
        Ok(())
    }

    /// After a failure half-way, which cannot be undone: every group is cut to the last length at which all blocks are
    /// whole. That needs no page and no copy.
    fn cut_to_whole_blocks(&self, state: &mut SequenceState, len: usize, cause: Error) -> Error {
        // Block sizes are powers of two, so the largest is a multiple of all.
        let size = self.groups.iter().map(|group| group.layout.tokens()).max().unwrap_or(1);
        let mut whole = len / size * size;
        // A window may have passed that length; it never passes 0.
        while whole > 0 && state.tables.iter().any(|table| table.check_cut(whole).is_err()) {
            whole -= size;
        }
        for (group, table) in self.groups.iter().zip(&mut state.tables) {
            let cut = table.truncate(whole).map_err(Error::from_table);
            let cut = cut.and_then(|ops| {
                self.forget_promoted(group, ops.dropped());
                Ok(ops.retire(|| self.stamp())?)
            });
            if let Err(error) = cut {
                return error;
            }
        }
        self.forget(state, whole);
        Error::Shortened { len: whole, cause: Box::new(cause) }
    }

    /// Forgets what is known of blocks behind `len`.
    fn forget(&self, state: &mut SequenceState, len: usize) {
        for group in &self.groups {
            state.forget_from(group, len / group.layout.tokens());
        }
    }
}

/// Whether the pages are there that a cut to `len` tokens takes, should it reopen a block: its tail rows, and originals of its own where
/// another sequence has them too.
pub(crate) fn check_reopened(table: &BlockTable, pools: &Pools, len: usize) -> Result<(), Error> {
    let (block, rows) = (len / table.block_size(), len % table.block_size());
    let reopens = rows > 0 && table.get(block).is_some_and(|entry| entry.is_full());
    let copies = reopens && !table.is_exclusive(block);
    for (pages, wanted, class) in [(&pools.tail, reopens && !table.is_out(), "tail"), (&pools.host, copies, "host")] {
        let counts = pages.counts();
        if wanted && counts.free == 0 {
            let (retiring, capacity) = (counts.retiring, pages.capacity());
            let cause = PageError::Exhausted { asked: 1, free: 0, retiring, capacity };
            return Err(Error::CapacityExhausted { class, cause });
        }
    }
    Ok(())
}

//! Cutting a sequence shorter: all groups, or as far as whole blocks go.
use crate::Error;
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::SequenceState;
use certkv_core::{PageId, SequenceId};
use certkv_page::{BlockTable, PageError};

impl Cache {
    /// Cuts a sequence to `len` tokens. A block that becomes partial is reopened from its originals, bit for bit.
    ///
    /// # Errors
    /// [`Error::Length`] past the end; unknown or busy; no page for the reopened block: the sequence is unchanged.
    /// [`Error::Shortened`] after a failure half-way: it is cut to whole blocks.
    pub fn truncate(&self, id: SequenceId, len: usize) -> Result<(), Error> {
        let _turn = self.turn.lock();
        loop {
            match self.try_truncate(id, len) {
                Err(error) if self.make_room(&error)? || self.forget_reopened(id, len, &error)? => {}
                result => return result,
            }
        }
    }

    fn try_truncate(&self, id: SequenceId, len: usize) -> Result<(), Error> {
        self.with(id, |state| {
            if len > state.len() {
                return Err(Error::Length { asked: len, len: state.len() });
            }
            for (group, table) in self.groups.iter().zip(&state.tables) {
                group.pools.reclaim(&mut |stamp| self.passed(stamp));
                // All groups or none: the pages that a reopened block needs are there before the first is cut.
                let (block, rows) = (len / table.block_size(), len % table.block_size());
                let reopens = rows > 0 && table.blocks().get(block).is_some_and(|entry| entry.tail.is_none());
                let copies = reopens && !table.is_exclusive(block);
                for (pages, wanted, class) in
                    [(&group.pools.tail, reopens, "tail"), (&group.pools.host, copies, "host")]
                {
                    let counts = pages.counts();
                    if wanted && counts.free == 0 {
                        let (retiring, capacity) = (counts.retiring, pages.capacity());
                        let cause = PageError::Exhausted { asked: 1, free: 0, retiring, capacity };
                        return Err(Error::CapacityExhausted { class, cause });
                    }
                }
            }
            // Rows on their way to the host come first, and so do copies that read a page which may be reopened.
            self.join_lane()?;
            self.join_fills()?;
            for (index, group) in self.groups.iter().enumerate() {
                let before = state.tables[index].len();
                if let Err(cause) = self.cut(group, &mut state.tables[index], len) {
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

    /// Cuts one group's table and does what that leaves to do: labels, copies, retirement.
    fn cut(&self, group: &Group, table: &mut BlockTable, len: usize) -> Result<(), Error> {
        let ops = table.truncate(len).map_err(Error::from_table)?;
        let moved = self.relabel(group, ops.renamed()).and_then(|()| self.execute(group, ops.copies()));
        self.forget_promoted(group, ops.dropped());
        ops.retire(|| self.stamp())?;
        moved
    }

    /// Reopened in place: the same rows under a new generation, in every layer.
    fn relabel(&self, group: &Group, renamed: Option<(PageId, PageId)>) -> Result<(), Error> {
        let Some((old, new)) = renamed else { return Ok(()) };
        if let Some(scratch) = &group.scratch {
            scratch.invalidate_page(old);
        }
        for layer in group.first..group.first + group.layers {
            group.host.write(group.slot(new, layer), &self.main)?.set_tag(Group::tag(new));
        }
        Ok(())
    }

    /// After a failure half-way, which cannot be undone: every group is cut to the last length at which all blocks are
    /// whole. That needs no page and no copy.
    fn cut_to_whole_blocks(&self, state: &mut SequenceState, len: usize, cause: Error) -> Error {
        // Block sizes are powers of two, so the largest is a multiple of all.
        let size = self.groups.iter().map(|group| group.layout.tokens()).max().unwrap_or(1);
        let whole = len / size * size;
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
            let layers = group.first..group.first + group.layers;
            state.forget_from(layers, self.config.geometry.kv_heads, len / group.layout.tokens());
        }
    }
}

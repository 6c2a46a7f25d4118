//! Cutting a sequence shorter: all groups of layers, or as far as whole blocks go.
use super::cache::{GpuCache, coded};
use crate::Error;
use crate::truncate::check_reopened;
use certkv_core::SequenceId;
use std::sync::Arc;

impl GpuCache {
    /// Cuts a sequence to `len` tokens. A block that becomes partial is reopened from its originals, bit for bit; where they are spilled they are
    /// read first.
    ///
    /// # Errors
    /// [`Error::Length`] past the end; [`Error::WindowPassed`] if the window at that length is gone; unknown; no page for the reopened
    /// block; [`Error::Fetch`]: the sequence is unchanged. [`Error::Shortened`] if the device refused a copy: the sequence is cut to whole blocks.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        self.reclaim()?;
        let entry = self.entry(id)?;
        if len > entry.len() {
            return Err(Error::Length { asked: len, len: entry.len() });
        }
        loop {
            match self.check_cut(id, len) {
                Err(error) if self.make_room_after(&error)? || self.forget_reopened(id, len, &error)? => {}
                result => break result?,
            }
        }
        if !len.is_multiple_of(self.core.sizes.block) {
            // The rows of the block that is open again come from its page.
            self.land_block(id, len / self.core.sizes.block)?;
        }
        self.prepare_cut(id, len)?;
        for group in 0..self.pools.len() {
            if let Err(cause) = self.cut(id, group, len) {
                let unchanged = group == 0 && self.entry(id)?.tables[0].len() != len;
                return if unchanged { Err(cause) } else { self.cut_to_whole_blocks(id, len, cause) };
            }
        }
        self.cut_control(id, len);
        if let Err(cause) = self.core.forgive(id.slot as usize, len) {
            return self.cut_to_whole_blocks(id, len, cause);
        }
        self.sweep();
        Ok(())
    }

    /// Whether every group can be cut, as far as windows go; of several, whether the pages that reopened blocks need are there.
    fn check_cut(&self, id: SequenceId, len: usize) -> Result<(), Error> {
        let (tables, several) = (&self.entry(id)?.tables, self.pools.len() > 1);
        for (table, pools) in tables.iter().zip(&self.pools) {
            table.check_cut(len).map_err(Error::from_table)?;
            if several {
                check_reopened(table, pools, len)?;
            }
        }
        Ok(())
    }

    /// Cuts one group's table, and copies the rows of a block that is reopened.
    fn cut(&mut self, id: SequenceId, group: usize, len: usize) -> Result<(), Error> {
        let out = self.entry(id)?.is_out();
        let passed = !self.entry(id)?.tables[group].hole().is_empty();
        let ops = loop {
            match self.entry_mut(id)?.tables[group].truncate(len).map_err(Error::from_table) {
                Err(error) if self.make_room_after(&error)? || self.forget_reopened(id, len, &error)? => {}
                result => break result?,
            }
        };
        // Numbers of passed blocks come again where the cut has closed the hole.
        let again = passed && self.entry(id)?.tables[group].hole().is_empty();
        let core = Arc::clone(&self.core);
        self.forget_later(id, group, coded(&core.sizes, ops.dropped()), again);
        self.relist(id.slot as usize, group);
        let renewed = self.renew_originals(group, ops.renamed());
        let moved = renewed.and_then(|()| {
            if out { self.copy_originals(group, ops.copies()) } else { self.execute(group, ops.copies()) }
        });
        ops.retire(|| self.stamp(group))?;
        moved
    }

    /// After a failure half-way: every group is cut to the last length at which all blocks are whole, which needs no page and no copy.
    fn cut_to_whole_blocks(&mut self, id: SequenceId, len: usize, cause: Error) -> Result<(), Error> {
        let size = self.core.sizes.block;
        let mut whole = len / size * size;
        // A window may have passed that length; it never passes 0.
        while whole > 0 && self.entry(id)?.tables.iter().any(|table| table.check_cut(whole).is_err()) {
            whole -= size;
        }
        for group in 0..self.pools.len() {
            let passed = !self.entry(id)?.tables[group].hole().is_empty();
            let ops = self.entry_mut(id)?.tables[group].truncate(whole).map_err(Error::from_table)?;
            let again = passed && self.entry(id)?.tables[group].hole().is_empty();
            let core = Arc::clone(&self.core);
            self.forget_later(id, group, coded(&core.sizes, ops.dropped()), again);
            self.relist(id.slot as usize, group);
            ops.retire(|| self.stamp(group))?;
        }
        self.cut_control(id, whole);
        self.forgive_later(id.slot as usize, whole);
        Err(Error::Shortened { len: whole, cause: Box::new(cause) })
    }
}

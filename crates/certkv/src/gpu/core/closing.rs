//! The end of a step: blocks that it has filled are coded from their tails.
use super::Core;
use crate::Error;
use certkv_kernel::cuda::close::{self, Close, Closing};

impl Core {
    /// Enqueues, behind all appends and attention of a step of `seqs` sequences, that the blocks it has filled are coded, in all layers. What a recording of it
    /// closes depends on lengths in device memory. One launch for each format.
    pub(in crate::gpu) fn close(&self, seqs: usize) -> Result<(), Error> {
        self.close_blocks(seqs, false)
    }

    /// The same behind a step of drafts, which fill `filled` blocks; in a recording, at most.
    pub(in crate::gpu) fn close_drafts(&self, filled: usize) -> Result<(), Error> {
        self.close_blocks(filled, true)
    }

    /// `by_place`: those that drafts have filled, which are named one by one.
    fn close_blocks(&self, seqs: usize, by_place: bool) -> Result<(), Error> {
        let (t, c, of) = (&self.sizes.tables, &self.sizes.counters, &self.sizes.drafts);
        if seqs == 0 {
            return Ok(());
        }
        let (count, lens) = if by_place {
            (self.draft_span(&of.count(1))?, self.draft_span(&of.filled[1])?)
        } else {
            (self.table(&t.count)?, self.table(&t.after)?)
        };
        for (number, kit) in self.kits.iter().enumerate() {
            let own = self.kit_of.iter().enumerate().filter(|(_, kit)| **kit == number);
            let status = self.counter(&c.status)?;
            let args = Close { variant: &kit.variant, ctas: 2 * self.ctas, seqs, by_place, count, lens, status };
            close::close(&self.queue, &kit.close, &args, own.map(|(layer, _)| self.closing(layer, by_place)))?;
        }
        Ok(())
    }

    fn closing(&self, layer: usize, by_place: bool) -> Result<Closing<'_>, Error> {
        let mut tables = self.block_tables(layer)?;
        if by_place {
            let [rows, _, tails] = &self.sizes.drafts.filled;
            (tables.batch, tables.tails) = (self.draft_span(rows)?, self.draft_span(tails)?);
        }
        Ok(Closing {
            tables,
            tail_slots: self.tails_of(layer)?,
            packed: self.packed_of(layer)?,
            centres: self.of_layer(&self.centres, layer)?,
            metrics: self.metrics_of(layer)?,
            fixed: self.fixed_of(layer)?,
        })
    }
}

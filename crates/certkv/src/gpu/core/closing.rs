//! The end of a step: blocks that it has filled leave their tails.
use super::Core;
use crate::Error;
use certkv_kernel::cuda::close::{self, Close, Closing, Hosts};
use certkv_kernel::cuda::launch::Tables;

impl Core {
    /// Enqueues, behind all appends and attention of a step of `seqs` sequences, that the blocks it has filled are coded, in all layers, and their originals
    /// copied to the host. What a recording of it closes depends on lengths in device memory. One launch for each format.
    pub(in crate::gpu) fn close(&self, seqs: usize) -> Result<(), Error> {
        let (t, c) = (&self.sizes.tables, &self.sizes.counters);
        if seqs == 0 {
            return Ok(());
        }
        for (number, kit) in self.kits.iter().enumerate() {
            let own = self.kit_of.iter().enumerate().filter(|(_, kit)| **kit == number);
            let args = Close {
                variant: &kit.variant,
                ctas: 2 * self.ctas,
                seqs,
                by_place: false,
                count: self.table(&t.count)?,
                lens: self.table(&t.after)?,
                errors: self.counter(&c.errors)?,
                status: self.counter(&c.status)?,
            };
            close::close(&self.queue, &kit.close, &args, own.map(|(layer, _)| self.closing(layer)))?;
        }
        Ok(())
    }

    /// The same behind a step of drafts, which fill `filled` blocks; in a recording, at most.
    pub(in crate::gpu) fn close_drafts(&self, filled: usize) -> Result<(), Error> {
        let (s, of) = (&self.sizes, &self.sizes.drafts);
        if filled == 0 {
            return Ok(());
        }
        let [rows, lens, tails] = &of.filled;
        for (number, kit) in self.kits.iter().enumerate() {
            let own = self.kit_of.iter().enumerate().filter(|(_, kit)| **kit == number);
            let args = Close {
                variant: &kit.variant,
                ctas: 2 * self.ctas,
                seqs: filled,
                by_place: true,
                count: self.draft_span(&of.count(1))?,
                lens: self.draft_span(lens)?,
                errors: self.counter(&s.counters.errors)?,
                status: self.counter(&s.counters.status)?,
            };
            let layers = own.map(|(layer, _)| {
                let own = self.closing(layer)?;
                let tables = Tables { batch: self.draft_span(rows)?, tails: self.draft_span(tails)?, ..own.tables };
                Ok::<_, Error>(Closing { tables, ..own })
            });
            close::close(&self.queue, &kit.close, &args, layers)?;
        }
        Ok(())
    }

    fn closing(&self, layer: usize) -> Result<Closing<'_>, Error> {
        // Where originals spill, those of a block that fills leave its tail for a frame, when the step is over.
        let hosts = if self.sizes.spills(layer) {
            None
        } else {
            let table = self.table(&self.sizes.group(layer).tables.hosts)?;
            Some(Hosts { table, pages: self.host_pages(layer)? })
        };
        Ok(Closing {
            tables: self.block_tables(layer)?,
            tail_slots: self.tails_of(layer)?,
            packed: self.packed_of(layer)?,
            hosts,
            centres: self.of_layer(&self.centres, layer)?,
            metrics: self.metrics_of(layer)?,
            fixed: self.fixed_of(layer)?,
        })
    }
}

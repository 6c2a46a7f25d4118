//! The end of a step: blocks that it has filled leave their tails.
use super::Core;
use crate::Error;
use certkv_kernel::cuda::close::{self, Close, Closing, Hosts};

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

    pub(super) fn closing(&self, layer: usize) -> Result<Closing<'_>, Error> {
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

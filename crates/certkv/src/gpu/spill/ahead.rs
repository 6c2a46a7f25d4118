//! Originals back into host memory before a step asks for them.
use super::fetch::asks;
use crate::gpu::cache::GpuCache;
use crate::spill::Prefetched;
use crate::{Error, SequenceId};

impl GpuCache {
    /// Reads originals of a sequence back from the store, ahead of its next step: all of the layers in which heads needed every block in the last step that
    /// found some away (before one has: of every layer), layer by layer, as far as host memory has room. Heads of the dense rung then find what they would have
    /// waited for, and plans and repairs what they would have left on codes. They stay until others need their room. Does nothing where nothing is
    /// spilled; formats with residual planes hardly ever need any.
    ///
    /// Where something is missing the host waits until the device is idle, and for the store, at most as long as [`Spill::deadline`](crate::Spill::deadline) a layer.
    ///
    /// # Errors
    /// [`Error::Fetch`] names the first block that cannot be had; the step may do without it. [`Error::UnknownSequence`]; the driver's. What came stays.
    pub fn prefetch(&mut self, id: SequenceId) -> Result<Prefetched, Error> {
        let (entry, mut done) = (self.entry(id)?, Prefetched::default());
        let Some(spill) = &self.spill else { return Ok(done) };
        let (table, mut room) = (&entry.tables[spill.group()], spill.map.room());
        let full = table.blocks().iter().take_while(|entry| entry.is_full()).count();
        let mut layers = Vec::with_capacity(spill.layers.len());
        for (layer, _) in spill.layers.iter().zip(&spill.needed).filter(|(_, needed)| **needed) {
            let here = full.min(room);
            room -= here;
            done.wanted += full;
            done.left += full - here;
            layers.push(asks(id, table, *layer, here).collect::<Vec<_>>());
        }
        for asks in layers {
            let Some(spill) = &self.spill else { break };
            let away = asks.iter().filter(|ask| spill.map.frame(spill.slot(ask.page, ask.layer)).is_none()).count();
            self.bring(&asks)?;
            done.fetched += away;
            done.bytes += (away * self.core.sizes.original_bytes) as u64;
        }
        Ok(done)
    }
}

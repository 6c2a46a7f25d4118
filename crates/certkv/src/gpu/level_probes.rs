//! What each level would lose of each block: the block is coded once at every level, beside the pages of all, and what the error summaries say is kept.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::level_sizes::LevelSizes;
use super::prefill::{Coder, pack, push_items};
use super::sections::ALIGN;
use crate::levels::Probes;
use crate::{Control, Error, SequenceId};
use certkv_codec::decode::read_summary;
use core::ops::Range;
use std::sync::Arc;

/// Blocks that are coded together.
const TOGETHER: usize = 16;

/// Bytes of pages of [`TOGETHER`] blocks at any level; 0 where nobody asks what levels lose.
pub(super) fn bytes(config: &GpuConfig, levels: &[LevelSizes]) -> usize {
    let asked = config.control.as_ref().is_some_and(Control::wants_terms);
    let most = levels.iter().map(|level| level.page_bytes).max().unwrap_or(0);
    if asked { (TOGETHER * most).next_multiple_of(ALIGN) } else { 0 }
}

impl GpuCache {
    /// Codes the blocks of a layer that are not known yet, up to `blocks`, at every level. Waits for the device: costs a launch for each level and [`TOGETHER`] blocks, which reads
    /// their originals over the link, and their records back, once in the life of a block.
    ///
    /// # Errors
    /// Unknown sequence; the driver's. What was not seen to the end is looked at again.
    pub(super) fn probe(&mut self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        loop {
            let known = self.entry(id)?.control.get(layer).map_or(blocks, |control| control.probes.blocks());
            if known >= blocks {
                return Ok(());
            }
            let found = self.probe_some(id, layer, known..blocks.min(known + TOGETHER))?;
            if let Some(control) = self.entry_mut(id)?.control.get_mut(layer) {
                control.probes.append(found);
            }
        }
    }

    fn probe_some(&mut self, id: SequenceId, layer: usize, blocks: Range<usize>) -> Result<Probes, Error> {
        let core = Arc::clone(&self.core);
        let (s, row) = (&core.sizes, id.slot as usize);
        let mut found = Probes::new(s.kv_heads, s.levels.len());
        found.grow(blocks.len());
        let Some(spare) = &core.probed else { return Ok(found) };
        let missing = || Error::Order { layer, why: "a page of the sequence is missing" };
        let mut places = Vec::with_capacity(blocks.len());
        for block in blocks {
            self.land_block(id, block)?;
            let host = self.entry(id)?.tables[s.group_of(layer)].get(block).ok_or_else(missing)?.host;
            places.push(self.host_at(layer, host)?);
        }
        let mut records = Vec::new();
        for (level, of) in s.levels.iter().enumerate() {
            let mut items = core::mem::take(&mut self.pack_items);
            items.clear();
            let pushed = places.iter().enumerate().try_for_each(|(i, at)| {
                let record = spare.address_of(i * of.page_bytes, of.page_bytes)?;
                push_items(&core, layer, row, (*at, record, of.layout.bytes), &mut items)
            });
            let packed = pushed.and_then(|()| pack(self, layer, Coder::Level(level), &items));
            self.pack_items = items;
            packed?;
            records.resize(places.len() * of.page_bytes, 0u8);
            spare.read(core.queue.stream(), 0, &mut records)?;
            if self.config.erase {
                spare.fill(core.queue.stream(), 0, records.len(), 0)?;
            }
            let up = s.levels.len() - 1 - level;
            for (block, page) in records.chunks_exact(of.page_bytes).enumerate() {
                for (head, record) in page.chunks_exact(of.layout.bytes).enumerate() {
                    let summary = read_summary(&of.layout, record);
                    // A side whose scales overflow has infinite errors.
                    if summary.eps.is_finite() && summary.eta.is_finite() {
                        found.put(block, head, up, &summary);
                    }
                }
            }
        }
        Ok(found)
    }
}

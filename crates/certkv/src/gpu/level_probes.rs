//! What each level would lose of each block: the block is coded once at every level, beside the pages of all, and what the error summaries say is kept on the device. What levels lose in
//! the certificates of a step is made from that there (`kernels/losses.cu`); the host reads a number a block and level, or, where it needs those of each head, what is kept.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::control::SeenStep;
use super::level_sizes::LevelSizes;
use super::prefill::{Coder, ToCode, pack, push_items};
use super::sections::ALIGN;
use super::sizes::{Sizes, too_large};
use crate::{Control, Error, Measure, SequenceId};
use certkv_device::cuda::{DeviceBuffer, Touch};
use certkv_kernel::cuda::losses::{Losses, Probe, ProbeSizes, losses, probe};
use certkv_kernel::cuda::queue::Span;
use core::ops::Range;
use std::sync::Arc;

/// From a byte of a buffer to its end.
fn rest(buffer: &DeviceBuffer, at: usize) -> Result<Span<'_>, Error> {
    Ok(Span::of(buffer, at, buffer.len().saturating_sub(at))?)
}

/// Blocks that are coded together.
const TOGETHER: usize = 16;

/// Where things are in the buffer, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeSections {
    pub(super) of_layer: ProbeSizes,
    /// Pages of [`TOGETHER`] blocks at any level, and their originals.
    records: Range<usize>,
    originals: Range<usize>,
    /// `[layer]`: what levels lose.
    losses: Range<usize>,
    /// `[row][layer]`: what is known of blocks.
    numbers: Range<usize>,
    row_bytes: usize,
}

impl ProbeSections {
    /// `None` where nobody asks what levels lose.
    pub(super) fn of(config: &GpuConfig, levels: &[LevelSizes], stride: usize) -> Result<Option<Self>, Error> {
        match config.control.as_ref().is_some_and(Control::wants_terms) {
            true => Self::laid_out(config, levels, stride).ok_or_else(too_large).map(Some),
            false => Ok(None),
        }
    }

    /// `None` where the bytes cannot be counted.
    fn laid_out(config: &GpuConfig, levels: &[LevelSizes], stride: usize) -> Option<Self> {
        let g = &config.geometry;
        let of_layer = ProbeSizes { stride, kv_heads: g.kv_heads, levels: levels.len() };
        let most = levels.iter().map(|level| level.page_bytes).max().unwrap_or(0);
        let row_bytes = of_layer.bytes()?.checked_mul(g.layers)?;
        let original_bytes = 4 * config.block() * g.kv_width();
        let sizes = [
            TOGETHER * most,
            TOGETHER * original_bytes,
            of_layer.loss_bytes()?.checked_mul(g.layers)?,
            row_bytes.checked_mul(config.max_sequences)?,
        ];
        let mut at = 0usize;
        let [records, originals, losses, numbers] = sizes.map(|bytes| {
            let start = at;
            at = at.saturating_add(bytes).checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
            start..start.saturating_add(bytes)
        });
        (at < usize::MAX).then_some(Self { of_layer, records, originals, losses, numbers, row_bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.numbers.end
    }

    /// What is known of a row's blocks, in the first layer; and bytes from a layer's to the next's.
    pub(super) fn row(&self, row: usize) -> (usize, usize) {
        let of_layer = self.of_layer.bytes().unwrap_or(0);
        (self.numbers.start + row * self.row_bytes, of_layer)
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl Sizes {
    /// Bytes of the buffer; 0 where there is none.
    pub(super) fn probed_bytes(&self) -> usize {
        self.probed.as_ref().map_or(0, ProbeSections::bytes)
    }
}

impl GpuCache {
    /// Enqueues that the blocks of a layer that are not known yet, up to `blocks`, are coded at every level: a copy of their originals over the link, then two launches for each level and
    /// [`TOGETHER`] blocks, once in the life of a block.
    ///
    /// # Errors
    /// Unknown sequence; the driver's. What was not seen to the end is looked at again.
    pub(super) fn probe(&mut self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        loop {
            let known = self.entry(id)?.control.get(layer).map_or(blocks, |control| control.probes.apart());
            if known >= blocks {
                return Ok(());
            }
            let some = known..blocks.min(known + TOGETHER);
            let end = some.end;
            self.probe_some(id, layer, some)?;
            if let Some(control) = self.entry_mut(id)?.control.get_mut(layer) {
                control.probes.now_apart(end);
            }
        }
    }

    fn probe_some(&mut self, id: SequenceId, layer: usize, blocks: Range<usize>) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        let (s, row, stream) = (&core.sizes, id.slot as usize, core.queue.stream());
        let (Some(buffer), Some(of), Some((kits, ..))) = (&core.probed, &s.probed, &core.levels) else { return Ok(()) };
        let missing = || Error::Order { layer, why: "a page of the sequence is missing" };
        for (i, block) in blocks.clone().enumerate() {
            self.land_block(id, block)?;
            let host = self.entry(id)?.tables[s.group_of(layer)].get(block).ok_or_else(missing)?.host;
            let (from, to) = (self.host_at(layer, host)?, of.originals.start + i * s.original_bytes);
            core.queue.upload(buffer, to, &core.originals, from, s.original_bytes)?;
        }
        let (numbers, each) = of.row(row);
        let probes = Span::of(buffer, numbers + layer * each, each)?;
        for (level, records) in s.levels.iter().enumerate() {
            let mut items = core::mem::take(&mut self.pack_items);
            items.clear();
            let pushed = (0..blocks.len()).try_for_each(|i| {
                let from = Span::of(buffer, of.originals.start + i * s.original_bytes, s.original_bytes)?;
                let at = of.records.start + i * records.page_bytes;
                let record = buffer.address_of(at, records.page_bytes)?;
                // The kernel finds both through a list.
                let found = [Touch::read(from.address(), s.original_bytes), Touch::write(record, records.page_bytes)];
                stream.touch(&found)?;
                let block = ToCode { originals: from.address(), record, bytes: records.layout.bytes };
                push_items(&core, layer, row, block, &mut items)
            });
            let packed = pushed.and_then(|()| pack(self, layer, Coder::Level(level), &items));
            self.pack_items = items;
            packed?;
            let bytes = blocks.len() * records.page_bytes;
            let args = Probe {
                records: Span::of(buffer, of.records.start, bytes)?,
                layout: &records.layout,
                probes,
                sizes: of.of_layer,
                first: blocks.start,
                blocks: blocks.len(),
                up: s.levels.len() - 1 - level,
                fresh: level == 0,
            };
            probe(&core.queue, &kits.probe, &args)?;
            if self.config.erase {
                buffer.fill(stream, of.records.start, bytes, 0)?;
            }
        }
        if self.config.erase {
            buffer.fill(stream, of.originals.start, blocks.len() * s.original_bytes, 0)?;
        }
        Ok(())
    }

    /// As [`GpuCache::probe`], and reads what the host does not know of them.
    pub(super) fn probe_for_host(&mut self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        self.probe(id, layer, blocks)?;
        let core = Arc::clone(&self.core);
        let (Some(buffer), Some(of)) = (&core.probed, &core.sizes.probed) else { return Ok(()) };
        let known = self.entry(id)?.control.get(layer).map_or(blocks, |control| control.probes.blocks());
        if known >= blocks {
            return Ok(());
        }
        let (numbers, each) = of.row(id.slot as usize);
        let mut new = vec![0f32; (blocks - known) * of.of_layer.of_block()];
        let at = numbers + layer * each + 4 * known * of.of_layer.of_block();
        buffer.read(core.queue.stream(), at, &mut new)?;
        if let Some(control) = self.entry_mut(id)?.control.get_mut(layer) {
            control.probes.extend(&new);
        }
        Ok(())
    }

    /// What levels lose of a sequence's blocks by the last step, `[block][level of the ladder]`, of the layers that are `wanted`. `None` of those that the step said nothing of.
    pub(super) fn losses(
        &mut self,
        id: SequenceId,
        wanted: &[bool],
        measure: Measure,
    ) -> Result<Vec<Option<Vec<f64>>>, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        let mut found = vec![None; s.layers];
        let (first, last) = (wanted.iter().position(|wants| *wants), wanted.iter().rposition(|wants| *wants));
        let (blocks, seen) = (self.entry(id)?.len() / s.block, self.seen_step(id)?);
        let (Some((first, last)), Some(seen)) = (first.zip(last), seen.filter(|_| blocks > 0)) else {
            return Ok(found);
        };
        for layer in (first..=last).filter(|layer| wanted[*layer]) {
            self.probe(id, layer, blocks)?;
        }
        let (Some(buffer), Some(of)) = (&core.probed, &s.probed) else { return Ok(found) };
        self.enqueue_losses(id, first..last + 1, seen, blocks, measure == Measure::Linear)?;
        let (levels, each) = (s.levels.len(), of.of_layer.stride * s.levels.len());
        let mut read = vec![0f32; (last - first) * each + blocks * levels];
        buffer.read(core.queue.stream(), of.losses.start, &mut read)?;
        for layer in (first..=last).filter(|layer| wanted[*layer]) {
            let own = &read[(layer - first) * each..][..blocks * levels];
            found[layer] = own.iter().all(|x| x.is_finite()).then(|| own.iter().map(|x| f64::from(*x)).collect());
        }
        Ok(found)
    }

    fn enqueue_losses(
        &self,
        id: SequenceId,
        layers: Range<usize>,
        seen: SeenStep,
        blocks: usize,
        linear: bool,
    ) -> Result<(), Error> {
        let (core, row) = (&self.core, id.slot as usize);
        let s = &core.sizes;
        let (Some(buffer), Some(of), Some((kits, ..))) = (&core.probed, &s.probed, &core.levels) else { return Ok(()) };
        let (numbers, each) = of.row(row);
        let table = |layer: usize| 4 * (s.group(layer).tables.packed.start + row * s.stride);
        let apart = if s.layers > 1 { table(1) - table(0) } else { 0 };
        let words = s.masses_of(layers.start).start + 4 * row * s.kv_heads * s.stride * s.group;
        let firsts: Vec<u32> = s.levels.iter().map(|level| level.first).collect();
        let args = Losses {
            words: rest(&core.masses, words)?,
            certificates: rest(&core.certificates, core.certificate_at(layers.start, seen.place))?,
            probes: Span::of(buffer, numbers + layers.start * each, layers.len() * each)?,
            table: rest(&core.tables, table(layers.start))?,
            strides: [s.masses_of(0).len(), 2 * s.certificate_bytes(), each, apart],
            losses: Span::of(buffer, of.losses.start, of.losses.len())?,
            sizes: of.of_layer,
            layers: layers.len(),
            group: s.group,
            known: seen.before / s.block,
            blocks,
            linear,
            firsts: &firsts,
        };
        Ok(losses(&core.queue, &kits.losses, &args)?)
    }
}

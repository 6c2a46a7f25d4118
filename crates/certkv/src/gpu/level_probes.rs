//! What each level would lose of each block: the block is coded once at every level, beside the pages of all, and what the error summaries say is kept on the device. What levels lose in
//! the certificates of a step is made from that there (`kernels/losses.cu`); the host reads a number a block and level, or, where it needs those of each head, what is kept.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::control::SeenStep;
use super::level_sizes::LevelSizes;
use super::prefill::{Coder, ToCode, pack, push_items};
use super::sections::ALIGN;
use super::sizes::{Sizes, too_large};
use crate::levels::{LayerControl, Peaks};
use crate::{Control, Error, Measure, SequenceId};
use certkv_control::retention::Wants;
use certkv_device::cuda::{DeviceBuffer, Touch};
use certkv_kernel::cuda::losses::{Losses, PEAK_HEADER, Probe, ProbeSizes, losses, probe};
use certkv_kernel::cuda::queue::Span;
use core::ops::Range;
use std::sync::Arc;

/// From a byte of a buffer to its end.
fn rest(buffer: &DeviceBuffer, at: usize) -> Result<Span<'_>, Error> {
    Ok(Span::of(buffer, at, buffer.len().saturating_sub(at))?)
}

/// Blocks that are coded together: their heads fill the multiprocessors a few times.
const TOGETHER: usize = 64;

/// Where things are in the buffer, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeSections {
    pub(super) of_layer: ProbeSizes,
    /// Blocks that there is room for to be coded, [`TOGETHER`] at most.
    together: usize,
    /// Their pages at any level, and their originals.
    records: Range<usize>,
    originals: Range<usize>,
    /// `[row]`: what is known of the blocks of each layer, then what levels lose of them.
    rows: Range<usize>,
    row_bytes: usize,
    layers: usize,
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
        let row_bytes = of_layer.bytes()?.checked_add(of_layer.peak_bytes()?)?.checked_mul(g.layers)?;
        let original_bytes = 4 * config.block() * g.kv_width();
        let together = stride.min(TOGETHER);
        let sizes = [together * most, together * original_bytes, row_bytes.checked_mul(config.max_sequences)?];
        let mut at = 0usize;
        let [records, originals, rows] = sizes.map(|bytes| {
            let start = at;
            at = at.saturating_add(bytes).checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX);
            start..start.saturating_add(bytes)
        });
        (at < usize::MAX).then_some(Self { of_layer, together, records, originals, rows, row_bytes, layers: g.layers })
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.end
    }

    /// What is known of a row's blocks in a layer.
    fn numbers(&self, row: usize, layer: usize) -> Range<usize> {
        let bytes = self.of_layer.bytes().unwrap_or(0);
        let start = self.row(row) + layer * bytes;
        start..start + bytes
    }

    /// What levels lose of a row's blocks in a layer.
    fn peaks(&self, row: usize, layer: usize) -> Range<usize> {
        let bytes = self.of_layer.peak_bytes().unwrap_or(0);
        let start = self.numbers(row, self.layers).start + layer * bytes;
        start..start + bytes
    }

    /// Where a row is.
    pub(super) fn row(&self, row: usize) -> usize {
        self.rows.start + row * self.row_bytes
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
    /// Enqueues that the blocks of a layer that are not known yet, up to `blocks`, are coded at every level: copies of their originals over the link, one where they lie side by side, then two
    /// launches for each level and [`TOGETHER`] blocks, once in the life of a block.
    ///
    /// # Errors
    /// Unknown sequence; the driver's. What was not seen to the end is looked at again.
    pub(super) fn probe(&mut self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        loop {
            let known = self.entry(id)?.control.get(layer).map_or(blocks, |control| control.probes.apart());
            if known >= blocks {
                return Ok(());
            }
            let together = self.core.sizes.probed.as_ref().map_or(1, |of| of.together);
            let some = known..blocks.min(known + together);
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
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in blocks.clone() {
            self.land_block(id, block)?;
            let host = self.entry(id)?.tables[s.group_of(layer)].get(block).ok_or_else(missing)?.host;
            let from = self.host_at(layer, host)?;
            match runs.last_mut() {
                Some(run) if run.end == from => run.end += s.original_bytes,
                _ => runs.push(from..from + s.original_bytes),
            }
        }
        let mut to = of.originals.start;
        for run in runs {
            core.queue.upload(buffer, to, &core.originals, run.start, run.len())?;
            to += run.len();
        }
        let numbers = of.numbers(row, layer);
        let probes = Span::of(buffer, numbers.start, numbers.len())?;
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
        let mut new = vec![0f32; (blocks - known) * of.of_layer.of_block()];
        let at = of.numbers(id.slot as usize, layer).start + 4 * known * of.of_layer.of_block();
        buffer.read(core.queue.stream(), at, &mut new)?;
        if let Some(control) = self.entry_mut(id)?.control.get_mut(layer) {
            control.probes.extend(&new);
        }
        Ok(())
    }

    /// What levels lose of a sequence's blocks, `[block][level of the ladder]`, of the layers that decide: of all steps that they have looked at, of which the last is one, the largest.
    /// `None` of other layers, and of those that these steps said nothing of. Waits for the device where one decides.
    pub(super) fn losses(
        &mut self,
        id: SequenceId,
        wanted: &[Wants],
        measure: Measure,
    ) -> Result<Vec<Option<Vec<f64>>>, Error> {
        let blocks = self.entry(id)?.len() / self.core.sizes.block;
        if let Some(seen) = self.seen_step(id)?.filter(|_| blocks > 0) {
            let mut rest = wanted;
            while let Some(first) = rest.iter().position(|wants| *wants != Wants::Nothing) {
                let some = rest[first..].iter().take_while(|wants| **wants != Wants::Nothing).count();
                let start = wanted.len() - rest.len() + first;
                self.look(id, start..start + some, seen, blocks, measure)?;
                rest = &rest[first + some..];
            }
        }
        self.read_peaks(id, wanted)
    }

    /// Enqueues that layers look at what levels lose by the last step.
    fn look(
        &mut self,
        id: SequenceId,
        layers: Range<usize>,
        seen: SeenStep,
        blocks: usize,
        measure: Measure,
    ) -> Result<(), Error> {
        for layer in layers.clone() {
            self.probe(id, layer, blocks)?;
        }
        self.clear_peaks(id, layers.clone())?;
        self.enqueue_losses(id, layers.clone(), seen, blocks, measure == Measure::Linear)?;
        let looked_at = |control: &mut LayerControl| control.probes.looked_at(blocks);
        self.entry_mut(id)?.control[layers].iter_mut().for_each(looked_at);
        Ok(())
    }

    /// Enqueues that nothing is kept of losses but what is known: layers side by side of which nothing is are cleared together.
    fn clear_peaks(&self, id: SequenceId, layers: Range<usize>) -> Result<(), Error> {
        let (core, row) = (&self.core, id.slot as usize);
        let (Some(buffer), Some(of)) = (&core.probed, &core.sizes.probed) else { return Ok(()) };
        let control = &self.entry(id)?.control;
        let (each, end) = (4 * core.sizes.levels.len(), layers.end);
        let fill = |range: Range<usize>| buffer.fill(core.queue.stream(), range.start, range.len(), 0);
        let mut layer = layers.start;
        while layer < end {
            let Peaks { known, written } = control[layer].probes.peaks();
            let unknown = control[layer..end].iter().take_while(|control| control.probes.peaks().known == 0).count();
            let first = of.peaks(row, layer);
            if unknown > 0 {
                fill(first.start..of.peaks(row, layer + unknown - 1).end)?;
            } else if known < written {
                let of_block = |block: usize| first.start + 4 * PEAK_HEADER + block.min(core.sizes.stride) * each;
                fill(of_block(known)..of_block(written))?;
            }
            layer += unknown.max(1);
        }
        Ok(())
    }

    fn read_peaks(&mut self, id: SequenceId, wanted: &[Wants]) -> Result<Vec<Option<Vec<f64>>>, Error> {
        let core = Arc::clone(&self.core);
        let mut found = vec![None; wanted.len()];
        let (Some(buffer), Some(of)) = (&core.probed, &core.sizes.probed) else { return Ok(found) };
        let entry = self.entry_mut(id)?;
        let known: Vec<usize> = (wanted.iter().zip(&entry.control))
            .map(|(wants, control)| if *wants == Wants::Decision { control.probes.peaks().known } else { 0 })
            .collect();
        let (first, last) = (known.iter().position(|n| *n > 0), known.iter().rposition(|n| *n > 0));
        let Some((first, last)) = first.zip(last) else { return Ok(found) };
        let (levels, each) = (core.sizes.levels.len(), of.of_layer.peak_bytes().unwrap_or(0) / 4);
        let mut read = vec![0f32; (last - first) * each + PEAK_HEADER + known[last] * levels];
        buffer.read(core.queue.stream(), of.peaks(id.slot as usize, first).start, &mut read)?;
        for layer in (first..=last).filter(|layer| known[*layer] > 0) {
            let (header, own) = read[(layer - first) * each..].split_at(PEAK_HEADER);
            // Steps of which anything was no number are not among them.
            let whole = header[0] > 0.0;
            found[layer] = whole.then(|| own[..known[layer] * levels].iter().map(|x| f64::from(*x)).collect());
            entry.control[layer].probes.told();
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
        let reach = |section: fn(&ProbeSections, usize, usize) -> Range<usize>| {
            let [first, last] = [layers.start, layers.end - 1].map(|layer| section(of, row, layer));
            Ok::<_, Error>((Span::of(buffer, first.start, last.end - first.start)?, first.len()))
        };
        let ((probes, each), (peaks, of_peaks)) = (reach(ProbeSections::numbers)?, reach(ProbeSections::peaks)?);
        let table = |layer: usize| 4 * (s.group(layer).tables.packed.start + row * s.stride);
        let apart = if s.layers > 1 { table(1) - table(0) } else { 0 };
        let words = s.masses_of(layers.start).start + 4 * row * s.kv_heads * s.stride * s.group;
        let firsts: Vec<u32> = s.levels.iter().map(|level| level.first).collect();
        let args = Losses {
            words: rest(&core.masses, words)?,
            certificates: rest(&core.certificates, core.certificate_at(layers.start, seen.place))?,
            probes,
            table: rest(&core.tables, table(layers.start))?,
            strides: [s.masses_of(0).len(), 2 * s.certificate_bytes(), each, apart, of_peaks],
            peaks,
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

//! SmartKV where attention stays on the device: scores of blocks are kept there, and its controllers are told what they ask for.
//!
//! A call behind a step notes that the sequence is to be heard; those of all calls are one launch over all layers (`kernels/importance.cu`), which is enqueued when the next step begins, or a
//! controller looks at the drift of its scores, which are two numbers a layer then, or decides, by a score a block.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::control::Heard;
use super::core::Core;
use super::sizes::Sizes;
use crate::levels::{Decides, LayerControl, Scored, ladder_bits, of_block};
use crate::{Control, ControlEntry, Controlled, Error, SmartKv};
use certkv_control::smartkv::{Apart, Controller, Drift, Ladder, Needs};
use certkv_core::SequenceId;
use certkv_device::cuda::DeviceBuffer;
pub(super) use certkv_kernel::cuda::importance::Heard as HeardOf;
pub(super) use certkv_kernel::cuda::importance::Remembered;
use certkv_kernel::cuda::importance::{Importance, ImportanceOf, MOST_HEARD, Strides, importance};
use certkv_kernel::cuda::queue::Span;

/// Of a sequence, where there is a SmartKV without a gate: with one, danger is told of every step, and attention with it.
pub(super) fn remembered(config: &GpuConfig, stride: usize) -> Option<Remembered> {
    let g = &config.geometry;
    let by_scores = matches!(&config.control, Some(Control::SmartKv(smart)) if smart.rule.gate.is_none());
    by_scores.then(|| Remembered::new(g.layers, g.q_heads, stride))
}

impl Sizes {
    /// Of all rows.
    pub(super) fn remembered_bytes(&self) -> Option<usize> {
        self.remembered.map_or(Some(0), |of| of.bytes()?.checked_mul(self.rows))
    }

    fn remembered_at(&self, of: &Remembered, row: usize) -> usize {
        of.bytes().unwrap_or(0) * row
    }
}

impl Core {
    /// Enqueues that scores of the sequences that are `pending` follow the last step; none is afterwards. If it fails, those are that were not enqueued.
    fn hear(&self, smart: &SmartKv, pending: &mut Vec<HeardOf>) -> Result<(), Error> {
        let s = &self.sizes;
        let (Some((kits, ..)), Some(memory), Some(of)) = (&self.levels, &self.remembered, s.remembered) else {
            return Ok(());
        };
        let whole = |buffer| Span::of(buffer, 0, DeviceBuffer::len(buffer));
        let rule = &smart.rule.importance;
        while !pending.is_empty() {
            let some = pending.len().min(MOST_HEARD);
            let args = Importance {
                words: whole(&self.masses)?,
                certificates: whole(&self.certificates)?,
                strides: Strides {
                    words: [s.masses_of(0).len(), 4 * s.q_heads() * s.stride],
                    certificates: [2 * s.certificate_bytes(), s.certificate_bytes() / s.rows],
                },
                memory: whole(memory)?,
                remembered: of,
                group: s.group,
                heard: &pending[..some],
                of: ImportanceOf {
                    keep: rule.keep,
                    keep_head: rule.keep_head,
                    mix: rule.mix,
                    life: rule.life,
                    points: smart.rule.points,
                },
            };
            importance(&self.queue, &kits.importance, &args)?;
            pending.drain(..some);
        }
        Ok(())
    }

    /// Enqueues that of a row is remembered what is of another, whose blocks it has.
    fn remember_as(&self, from: usize, row: usize) -> Result<(), Error> {
        if let Some((probed, of)) = self.probed.as_ref().zip(self.sizes.probed.as_ref()) {
            let [from, to] = [from, row].map(|row| of.row(row));
            probed.copy_from(self.queue.stream(), to, probed, from, of.row_bytes())?;
        }
        let Some((memory, of)) = self.remembered.as_ref().zip(self.sizes.remembered) else { return Ok(()) };
        let [from, to] = [from, row].map(|row| self.sizes.remembered_at(&of, row));
        Ok(memory.copy_from(self.queue.stream(), to, memory, from, of.bytes().unwrap_or(0))?)
    }
}

/// What a layer's controller asked for, and was told.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Asked {
    needs: Needs,
    drift: Option<Drift>,
    decides: bool,
}

fn controller(layer: &LayerControl) -> Option<&Controller> {
    match &layer.decides {
        Decides::Smart(controller) => Some(controller),
        _ => None,
    }
}

impl GpuCache {
    /// [`GpuCache::control_logged`] where scores are on the device.
    pub(super) fn control_by_scores(
        &mut self,
        id: SequenceId,
        smart: &SmartKv,
        heard: &mut Heard,
        mut log: Option<&mut dyn FnMut(ControlEntry)>,
        all: &mut Controlled,
    ) -> Result<(), Error> {
        let blocks = self.ask(id, smart, heard)?;
        let asks = heard.asked.iter().any(|asked| asked.needs != Needs::default());
        if let Some(blocks) = blocks.filter(|_| asks) {
            self.see_who_decides(id, smart, blocks, heard)?;
        }
        let first = self.read_scores(id, smart, heard)?;
        for layer in 0..self.core.sizes.layers {
            let (Asked { needs, decides, .. }, logs) = (heard.asked[layer], log.is_some());
            heard.levels.clear();
            if decides || needs.levels || logs {
                self.levels_of_layer(id, layer, &mut heard.levels)?;
            }
            heard.attention.clear();
            if let Some(blocks) = blocks.filter(|_| decides) {
                let own = &heard.scores[(layer - first) * self.core.sizes.stride..][..blocks];
                heard.attention.extend(own.iter().map(|score| f64::from(*score)));
            }
            let entry = self.tell_scores(id, (layer, logs), smart, blocks, heard, all)?;
            if let Some((log, entry)) = log.as_mut().zip(entry) {
                log(entry);
            }
        }
        Ok(())
    }

    /// Which layers decide, from what they asked for.
    fn see_who_decides(
        &mut self,
        id: SequenceId,
        smart: &SmartKv,
        blocks: usize,
        heard: &mut Heard,
    ) -> Result<(), Error> {
        let budget = of_block(smart.bytes_per_token, (1, self.core.sizes.block));
        let Heard { levels, bits, cost, asked, .. } = heard;
        *bits = ladder_bits(&self.config.levels);
        *cost = self.ladder_cost();
        for (layer, asked) in asked.iter_mut().enumerate().filter(|(_, asked)| asked.needs != Needs::default()) {
            levels.clear();
            if asked.needs.levels {
                self.levels_of_layer(id, layer, levels)?;
            }
            let of = self.entry(id)?.control.get(layer);
            let Some((of, controller)) = of.and_then(|of| Some((of, controller(of)?))) else { continue };
            let levels = asked.needs.levels.then_some(&levels[..]);
            let told = Apart { kept: of.kept, items: blocks, levels, drift: asked.drift, scores: None };
            asked.decides = controller.trigger(&Ladder { bits, cost }, &told, budget)?.is_some();
        }
        Ok(())
    }

    /// Tells a layer's controller of a step after which there are `blocks`, if there was one: levels and scores are in `heard`, if it wants them. Then what it decides is done.
    fn tell_scores(
        &mut self,
        id: SequenceId,
        (layer, logs): (usize, bool),
        smart: &SmartKv,
        blocks: Option<usize>,
        heard: &mut Heard,
        all: &mut Controlled,
    ) -> Result<Option<ControlEntry>, Error> {
        let s = &self.core.sizes;
        let (count, heads) = (s.levels.len() as u8, 0..s.kv_heads);
        let budget = of_block(smart.bytes_per_token, (1, s.block));
        let Heard { levels, attention: scores, bits, cost, asked, widths, .. } = heard;
        let Asked { drift, decides, .. } = asked[layer];
        let Some(of) = self.entry_mut(id)?.control.get_mut(layer) else { return Ok(None) };
        let (kept, mut decision) = (of.kept, None);
        let Decides::Smart(controller) = &mut of.decides else { return Ok(None) };
        if let Some(blocks) = blocks {
            let scores = decides.then_some(&scores[..]);
            let told = Apart { kept, items: blocks, levels: Some(levels), drift, scores };
            decision = controller.tell_apart(widths, &Ladder { bits, cost }, &told, budget)?;
            of.told();
        }
        if let Some((decision, blocks)) = decision.as_ref().zip(blocks) {
            self.keep_scores(id, layer, blocks)?;
            all.carry_out(levels, decision, scores, count, &mut |list, done| {
                self.change_levels(id, layer, list, done);
                Ok(())
            })?;
        }
        let scored = |blocks| Scored { blocks, drift, scores: decides.then(|| scores.clone()) };
        Ok(logs.then(|| ControlEntry {
            scored: blocks.map(scored),
            decision,
            ..ControlEntry::of((layer, heads), kept, levels.clone())
        }))
    }

    /// Has scores follow the last step, if the sequence was in it with a single token, and asks controllers what they want to be told of it. How many blocks it has then.
    fn ask(&mut self, id: SequenceId, smart: &SmartKv, heard: &mut Heard) -> Result<Option<usize>, Error> {
        let (core, entry) = (&self.core, self.entry(id)?);
        let s = &core.sizes;
        heard.asked.clear();
        heard.asked.resize(s.layers, Asked::default());
        // Blocks have levels of their own in every layer, but there are as many.
        let blocks = entry.len() / s.block;
        let Some(seen) = self.seen_step(id)?.filter(|_| blocks > 0) else { return Ok(None) };
        let (Some(_), Some(memory), Some(of)) = (&core.levels, &core.remembered, s.remembered) else {
            return Ok(None);
        };
        let (mut kept, mut step) = (usize::MAX, 0);
        for (asked, layer) in heard.asked.iter_mut().zip(&entry.control) {
            let Some(controller) = controller(layer) else { continue };
            asked.needs = controller.needs(layer.kept, blocks);
            (kept, step) = (kept.min(layer.kept).min(controller.items()), controller.steps() as usize);
        }
        let looks = heard.asked.iter().any(|asked| asked.needs.drift);
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        heard.pending.push(HeardOf {
            row: id.slot,
            place: number(seen.place),
            known: number(seen.before / s.block),
            blocks: number(blocks),
            kept: number(kept),
            step: number(step),
            looks: u32::from(looks),
            unused: 0,
        });
        if looks {
            core.hear(smart, &mut heard.pending)?;
            let mut found = vec![0f32; 2 * s.layers];
            memory.read(core.queue.stream(), s.remembered_at(&of, id.slot as usize) + of.drift().start, &mut found)?;
            for (asked, of) in
                heard.asked.iter_mut().zip(found.as_chunks::<2>().0).filter(|(asked, _)| asked.needs.drift)
            {
                let [divergence, moved] = of.map(f64::from);
                asked.drift = Some(Drift { divergence, moved });
            }
        }
        Ok(Some(blocks))
    }

    /// Enqueues what was left to be heard of the last step, before another takes its place.
    pub(super) fn hear_pending(&mut self) -> Result<(), Error> {
        match &self.config.control {
            Some(Control::SmartKv(smart)) => self.core.hear(smart, &mut self.heard.pending),
            _ => Ok(()),
        }
    }

    /// A new row remembers what another does, whose blocks it has.
    pub(super) fn remember_as(&mut self, from: usize, row: usize) -> Result<(), Error> {
        self.hear_pending()?;
        self.core.remember_as(from, row)
    }

    /// Reads scores of the layers that decide, and of those between them; which is the first.
    fn read_scores(&self, id: SequenceId, smart: &SmartKv, heard: &mut Heard) -> Result<usize, Error> {
        let core = &self.core;
        let decide = |asked: &Asked| asked.decides;
        let (first, last) = (heard.asked.iter().position(decide), heard.asked.iter().rposition(decide));
        let (Some((first, last)), Some((memory, of))) =
            (first.zip(last), core.remembered.as_ref().zip(core.sizes.remembered))
        else {
            return Ok(0);
        };
        core.hear(smart, &mut heard.pending)?;
        heard.scores.resize((last + 1 - first) * core.sizes.stride, 0.0);
        let at = core.sizes.remembered_at(&of, id.slot as usize) + of.scores(first).start;
        memory.read(core.queue.stream(), at, &mut heard.scores)?;
        Ok(first)
    }

    /// Enqueues that a layer's scores are those of its last decision.
    fn keep_scores(&self, id: SequenceId, layer: usize, blocks: usize) -> Result<(), Error> {
        let core = &self.core;
        let Some((memory, of)) = core.remembered.as_ref().zip(core.sizes.remembered) else { return Ok(()) };
        let row = core.sizes.remembered_at(&of, id.slot as usize);
        let (from, to) = (row + of.scores(layer).start, row + of.before(layer).start);
        Ok(memory.copy_from(core.queue.stream(), to, memory, from, 4 * blocks)?)
    }
}

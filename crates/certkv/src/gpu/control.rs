//! Who decides on levels of a cache on a GPU, from the words that the last step has left on the device.
//!
//! Decisions are made on the host, by the same code as for a cache there. The words of a sequence are 4 bytes a block and query head in each layer: its mass, how even its weights are, and what
//! its keys' codes add to the bound. They come over the link where terms of each head or dangers are asked for; scores (`importance.rs`) and losses (`level_probes.rs`) are made of them
//! on the device.
use super::cache::{Entry, GpuCache};
use super::config::GpuConfig;
use super::importance::{Asked, HeardOf};
use super::policy::Rule;
use super::said::{Said, Shares};
use super::step::{GpuStep, Part, Progress};
use crate::levels::terms::{self, HeadTerms, Reading};
use crate::levels::{Deciders, Decides, LayerControl, Site, full_blocks, ladder_bits, of_block, planned, retained};
use crate::{Control, ControlEntry, Controlled, Error, LevelPlan, Measure, SmartKv};
use certkv_control::retention::Wants;
use certkv_control::smartkv::{Decision, Ladder, Told, WidthAllocator};
use certkv_core::SequenceId;
use certkv_kernel::cuda::args::{Certificate, MassWord};
use core::ops::Range;

/// A step of which a sequence had one token.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenStep {
    /// Which, of those that were begun.
    pub(super) step: u64,
    /// Place in the batch.
    pub(super) place: usize,
    /// Tokens before it: blocks that were full then have masses.
    pub(super) before: usize,
}

/// What a controller is told of one layer: buffers that are kept.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) levels: Vec<u8>,
    pub(super) attention: Vec<f64>,
    words: Vec<u32>,
    certificates: Vec<u32>,
    pub(super) widths: WidthAllocator,
    deciders: Deciders,
    /// Bits of the levels, and bytes of their pages, the last first.
    pub(super) bits: Vec<u8>,
    pub(super) cost: Vec<f64>,
    /// By layer, where scores are on the device; and those that were read.
    pub(super) asked: Vec<Asked>,
    pub(super) scores: Vec<f32>,
    /// Sequences whose last step is still to be heard.
    pub(super) pending: Vec<HeardOf>,
}

impl GpuConfig {
    /// Checks who decides, beside what a cache on the CPU checks.
    pub(super) fn check_control(&self) -> Result<(), Error> {
        let field = match &self.control {
            Some(Control::Retention(_)) => "control.retention",
            Some(Control::Budget(_)) => "control.budget",
            _ => "control",
        };
        match self.control.as_ref().is_some_and(Control::wants_terms) && self.common().mixes_metrics() {
            false => Ok(()),
            true => {
                let why = "it asks what levels lose: of calibrated keys in the calibration's metric, of the others in their own, which a GPU does not tell";
                Err(Error::Config { field, why: why.to_owned() })
            }
        }
    }
}

impl GpuStep<'_> {
    /// Whether every layer has left the masses of the batch's single tokens.
    pub(super) fn sees_masses(&self) -> bool {
        self.cache.core.sizes.controlled
            && self.rule != Rule::Dense
            && self.drafting.is_none()
            && self.progress.iter().all(|progress| *progress == Progress::Attended)
    }
}

impl GpuCache {
    /// Of a step that ends, in which `part` was: whether its masses are `there`.
    pub(super) fn see(&mut self, part: &Part, there: bool) -> Result<(), Error> {
        let (step, before) = (self.begun, part.len);
        self.entry_mut(part.id)?.seen = part.place.filter(|_| there).map(|place| SeenStep { step, place, before });
        Ok(())
    }

    /// A sequence was cut to `len` tokens.
    pub(super) fn cut_control(&mut self, id: SequenceId, len: usize) {
        let blocks = len / self.core.sizes.block;
        if let Ok(entry) = self.entry_mut(id) {
            entry.seen = None;
            entry.control.iter_mut().for_each(|layer| layer.cut(blocks));
        }
    }

    /// As [`Cache::control`](crate::Cache::control): lets [`GpuConfig::control`] look at what the last step said of each block, and enqueue other levels where it decides to. To be called
    /// behind a step that the sequence has been in with a single token, and before the next is begun: others are not seen. A layer is told nothing then, but which blocks there are.
    ///
    /// SmartKV's scores of blocks stay on the device: calls between two steps are one launch over all layers, enqueued when the next step begins. A call waits for the device where a layer looks at the drift of its scores, for two
    /// numbers a layer, or decides, for a number a block. Retention waits where it decides, for a number a block and level, or behind a gate in two steps of an interval, for words; the bound's budget where a plan is due,
    /// and gates in each call, for 4 bytes a block and query head. Who judges by what levels lose has a block that is new coded once at every level, where its originals go over the
    /// link. A decision is some sorts of the blocks, and [`GpuCache::change_level`] for those that change.
    ///
    /// # Errors
    /// Unknown sequence; [`Error::SwappedOut`]; the driver's.
    pub fn control(&mut self, id: SequenceId) -> Result<Controlled, Error> {
        self.control_logged(id, None)
    }

    /// As [`GpuCache::control`], with an entry for each layer to `log`.
    ///
    /// # Errors
    /// As [`GpuCache::control`].
    pub fn control_logged(
        &mut self,
        id: SequenceId,
        mut log: Option<&mut dyn FnMut(ControlEntry)>,
    ) -> Result<Controlled, Error> {
        self.may_decide(id)?;
        let mut all = Controlled::default();
        let Some(control) = self.config.control else { return Ok(all) };
        let mut heard = core::mem::take(&mut self.heard);
        let done = match &control {
            Control::SmartKv(smart) if self.core.remembered.is_some() => {
                self.control_by_scores(id, smart, &mut heard, log.take(), &mut all)
            }
            Control::SmartKv(smart) => {
                heard.bits = ladder_bits(&self.config.levels);
                heard.cost = self.ladder_cost();
                let logs = log.is_some();
                (0..self.core.sizes.layers).try_for_each(|layer| {
                    let entry = self.control_layer(id, layer, smart, &mut heard, logs, &mut all)?;
                    if let (Some(log), Some(entry)) = (&mut log, entry) {
                        log(entry);
                    }
                    Ok(())
                })
            }
            Control::Retention(retention) => {
                retained::control(retention, &mut OnGpu { cache: self, id, heard: &mut heard }, log.take(), &mut all)
            }
            Control::Budget(budget) => {
                planned::control(budget, &mut OnGpu { cache: self, id, heard: &mut heard }, log.take(), &mut all)
            }
        };
        self.heard = heard;
        // What was told is told once.
        self.entry_mut(id)?.seen = None;
        done.map(|()| all)
    }

    /// As [`Cache::plan_levels`](crate::Cache::plan_levels), by the last step that the sequence has been in with a single token. Waits for the device, as [`GpuCache::control`] does where something is
    /// decided.
    ///
    /// # Errors
    /// [`Error::Config`] naming `control` if that is none that judges by terms; unknown sequence; [`Error::SwappedOut`]; [`Error::Control`] for bytes or a tolerance that are no numbers; the driver's.
    pub fn plan_levels(&mut self, id: SequenceId, epsilon: f64, bytes: f64) -> Result<Option<LevelPlan>, Error> {
        planned::check_plan(self.config.control.as_ref(), epsilon)?;
        self.may_decide(id)?;
        let mut heard = core::mem::take(&mut self.heard);
        let planned = planned::plan(&mut OnGpu { cache: self, id, heard: &mut heard }, epsilon, bytes);
        self.heard = heard;
        planned
    }

    fn may_decide(&self, id: SequenceId) -> Result<(), Error> {
        if self.entry(id)?.is_out() { Err(Error::SwappedOut) } else { Ok(()) }
    }

    /// The last step, if the sequence was in it with a single token.
    pub(super) fn seen_step(&self, id: SequenceId) -> Result<Option<SeenStep>, Error> {
        Ok(self.entry(id)?.seen.filter(|seen| seen.step == self.begun))
    }

    /// Bytes of pages by level, the last first.
    pub(super) fn ladder_cost(&self) -> Vec<f64> {
        self.core.sizes.levels.iter().rev().map(|level| level.page_bytes as f64).collect()
    }

    /// Level of each full block in a layer, of the ladder.
    pub(super) fn levels_of_layer(&mut self, id: SequenceId, layer: usize, found: &mut Vec<u8>) -> Result<(), Error> {
        let (group, count) = (self.core.sizes.group_of(layer), self.core.sizes.levels.len() as u8);
        let Entry { tables, control, .. } = self.entry_mut(id)?;
        found.clear();
        found.extend_from_slice(control[layer].levels(&tables[group], count));
        Ok(())
    }

    fn control_layer(
        &mut self,
        id: SequenceId,
        layer: usize,
        smart: &SmartKv,
        heard: &mut Heard,
        logs: bool,
        all: &mut Controlled,
    ) -> Result<Option<ControlEntry>, Error> {
        let s = &self.core.sizes;
        let count = s.levels.len() as u8;
        self.levels_of_layer(id, layer, &mut heard.levels)?;
        let known = self.take_words(id, layer, heard.levels.len(), heard)?;
        let danger = match (known, smart.rule.gate) {
            (Some(known), Some(_)) => {
                let found = self.terms_of(id, layer, known, heard, &heard.levels, Reading::DANGER)?;
                found.map(|found| found.danger).filter(|danger| danger.len() == heard.levels.len())
            }
            _ => None,
        };
        let whole = self.take_attention(known, heard);
        let budget = of_block(smart.bytes_per_token, (1, self.core.sizes.block));
        let Heard { levels, attention, widths, bits, cost, .. } = heard;
        let Some(of) = self.entry_mut(id)?.control.get_mut(layer) else { return Ok(None) };
        let kept = of.kept;
        let Decides::Smart(controller) = &mut of.decides else { return Ok(None) };
        let told = Told { kept, attention: whole.then_some(&attention[..]), levels, danger: danger.as_deref() };
        let decision = controller.tell(widths, &Ladder { bits, cost }, &told, budget)?;
        let scores = decision.is_some().then(|| controller.scores().to_vec());
        of.told();
        if let (Some(decision), Some(scores)) = (&decision, scores) {
            all.carry_out(levels, decision, &scores, count, &mut |list, done| {
                self.change_levels(id, layer, list, done);
                Ok(())
            })?;
        }
        Ok(logs.then(|| ControlEntry {
            attention: whole.then(|| attention.clone()),
            danger,
            decision,
            ..ControlEntry::of((layer, 0..self.core.sizes.kv_heads), kept, levels.clone())
        }))
    }

    /// Shares of the attention of the last step, `[query head][block]`, from its words, of which `known` blocks have some; whether these are all: not if there are no words. Of a block
    /// that the step has filled, what no other has: it had no mass of its own.
    fn take_attention(&self, known: Option<usize>, heard: &mut Heard) -> bool {
        heard.attention.clear();
        let blocks = heard.levels.len();
        let Some(known) = known else { return false };
        let (s, Heard { attention, words, certificates, .. }) = (&self.core.sizes, heard);
        let of_head = s.stride * s.group;
        let certificates = certificates.as_chunks::<{ Certificate::WORDS }>().0;
        for (head, certificate) in certificates.iter().enumerate() {
            let of = Shares::of(f64::from(Certificate::from_words(certificate).lse) / core::f64::consts::LN_2);
            let own = &words[head / s.group * of_head..];
            let start = attention.len();
            let seen = own.chunks_exact(s.group).take(known);
            attention.extend(seen.map(|block| of.share(MassWord(block[head % s.group]))));
            let rest = 1.0 - attention[start..].iter().sum::<f64>();
            attention.resize(start + blocks, rest.max(0.0));
        }
        attention.iter().all(|share| share.is_finite())
    }

    /// Reads what the last step has left of `blocks` blocks of a layer, and its certificates. Of how many blocks there are words: all but one that the step has filled. `None` if the
    /// sequence was not in it with a single token, or has no block.
    fn take_words(
        &self,
        id: SequenceId,
        layer: usize,
        blocks: usize,
        heard: &mut Heard,
    ) -> Result<Option<usize>, Error> {
        let s = &self.core.sizes;
        let Some(seen) = self.seen_step(id)?.filter(|_| blocks > 0) else { return Ok(None) };
        let Heard { words, certificates, .. } = heard;
        let of_head = s.stride * s.group;
        words.clear();
        words.resize((s.kv_heads - 1) * of_head + blocks * s.group, 0);
        let at = s.masses_of(layer).start + 4 * id.slot as usize * s.kv_heads * of_head;
        self.core.masses.read(self.core.queue.stream(), at, words)?;
        certificates.clear();
        certificates.resize(s.q_heads() * Certificate::WORDS, 0);
        let at = self.core.certificate_at(layer, seen.place);
        self.core.certificates.read(self.core.queue.stream(), at, certificates)?;
        Ok(Some(blocks.min(seen.before / s.block)))
    }

    /// What the last step said of a layer's blocks, which have `levels`, in the terms of its certificates: from its words, of which `known` blocks have some.
    fn terms_of(
        &mut self,
        id: SequenceId,
        layer: usize,
        known: usize,
        heard: &Heard,
        levels: &[u8],
        reading: Reading,
    ) -> Result<Option<HeadTerms>, Error> {
        let blocks = levels.len();
        self.probe_for_host(id, layer, blocks)?;
        let s = &self.core.sizes;
        let (of_head, group) = (s.stride * s.group, s.group);
        let certificates = heard.certificates.as_chunks::<{ Certificate::WORDS }>().0;
        let heads = certificates.iter().enumerate().map(|(head, certificate)| {
            let words = heard.words[head / group * of_head..].chunks_exact(group).take(known);
            let words = words.map(|block| MassWord(block[head % group]));
            Said::new(&Certificate::from_words(certificate), words, blocks)
        });
        let heads: Vec<Said> = heads.collect();
        if !heads.iter().all(Said::is_whole) {
            return Ok(None);
        }
        let Some(control) = self.entry(id)?.control.get(layer) else { return Ok(None) };
        let coded = terms::coded_values(s.levels.iter().rev().map(|level| &level.layout));
        let seen = heads.iter().enumerate().map(|(head, said)| (head / group, said.seen()));
        Ok(Some(terms::of_heads(seen, heads.len(), &control.probes, levels, reading, &coded)))
    }
}

/// A sequence of a cache on a GPU.
struct OnGpu<'a> {
    cache: &'a mut GpuCache,
    id: SequenceId,
    heard: &'a mut Heard,
}

impl Site for OnGpu<'_> {
    fn groups(&self) -> usize {
        self.cache.core.sizes.layers
    }

    fn place(&self, group: usize) -> (usize, Range<usize>) {
        (group, 0..self.cache.core.sizes.kv_heads)
    }

    fn blocks(&self, group: usize) -> Result<usize, Error> {
        Ok(full_blocks(&self.cache.entry(self.id)?.tables[self.cache.core.sizes.group_of(group)]))
    }

    fn levels(&mut self, group: usize) -> Result<Vec<u8>, Error> {
        let mut levels = Vec::new();
        self.cache.levels_of_layer(self.id, group, &mut levels)?;
        Ok(levels)
    }

    fn cost(&self) -> Vec<f64> {
        self.cache.ladder_cost()
    }

    fn shape(&self) -> (usize, usize) {
        (1, self.cache.core.sizes.block)
    }

    fn seen(&mut self, group: usize, levels: &[u8], reading: Reading) -> Result<Option<HeadTerms>, Error> {
        match self.cache.take_words(self.id, group, levels.len(), self.heard)? {
            Some(known) => self.cache.terms_of(self.id, group, known, self.heard, levels, reading),
            None => Ok(None),
        }
    }

    fn losses(&mut self, wanted: &[Wants], measure: Measure) -> Result<Vec<Option<Vec<f64>>>, Error> {
        self.cache.losses(self.id, wanted, measure)
    }

    fn forget(&mut self) {
        if let Ok(entry) = self.cache.entry_mut(self.id) {
            entry.seen = None;
        }
    }

    fn deciders(&mut self) -> Result<(&mut [LayerControl], &mut Deciders), Error> {
        Ok((&mut self.cache.entry_mut(self.id)?.control, &mut self.heard.deciders))
    }

    fn make(
        &mut self,
        group: usize,
        levels: &[u8],
        decision: &Decision,
        scores: &[f64],
        all: &mut Controlled,
    ) -> Result<(), Error> {
        let count = self.cache.core.sizes.levels.len() as u8;
        all.carry_out(levels, decision, scores, count, &mut |list, done| {
            self.cache.change_levels(self.id, group, list, done);
            Ok(())
        })
    }
}

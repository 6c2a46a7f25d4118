//! Who decides on levels of a cache on a GPU: SmartKV, from the masses that the last step has left on the device.
//!
//! Decisions are made on the host, by the same code as for a cache there. The masses of a sequence are 4 bytes a block and query head in each layer; they come over the link when
//! [`GpuCache::control`] is called, and not in every step.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::policy::Rule;
use super::step::{GpuStep, Part, Progress};
use crate::levels::{Decides, find_levels, ladder_bits};
use crate::{Control, ControlEntry, Controlled, Error, SmartKv};
use certkv_control::smartkv::{Ladder, Told, WidthAllocator};
use certkv_core::SequenceId;
use certkv_kernel::cuda::args::{Certificate, MassWord};

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
    levels: Vec<u8>,
    attention: Vec<f64>,
    words: Vec<u32>,
    certificates: Vec<u32>,
    widths: WidthAllocator,
    /// Bits of the levels, and bytes of their pages, the last first.
    bits: Vec<u8>,
    cost: Vec<f64>,
}

impl GpuConfig {
    /// Checks who decides, beside what a cache on the CPU checks.
    pub(super) fn check_control(&self) -> Result<(), Error> {
        let wrong = |field, why: &str| Err(Error::Config { field, why: why.to_owned() });
        match &self.control {
            None => Ok(()),
            Some(Control::SmartKv(smart)) if smart.rule.gate.is_none() => Ok(()),
            Some(Control::SmartKv(_)) => wrong("control", "a gate asks what levels lose, which a GPU does not tell"),
            Some(Control::Retention(_)) => {
                wrong("control.retention", "it asks what levels lose, which a GPU does not tell")
            }
            Some(Control::Budget(_)) => wrong("control.budget", "it asks what levels lose, which a GPU does not tell"),
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
    /// Waits for the device, to read 4 bytes a block and query head of each layer; where a layer decides nothing it costs no more than that and a few operations for each of them, else some
    /// sorts of the blocks, and [`GpuCache::change_level`] for those that change.
    ///
    /// # Errors
    /// Unknown sequence; the driver's.
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
        self.entry(id)?;
        let mut all = Controlled::default();
        let Some(Control::SmartKv(smart)) = self.config.control else { return Ok(all) };
        let mut heard = core::mem::take(&mut self.heard);
        heard.bits = ladder_bits(&self.config.levels);
        heard.cost = self.core.sizes.levels.iter().rev().map(|level| level.page_bytes as f64).collect();
        let logs = log.is_some();
        let done = (0..self.core.sizes.layers).try_for_each(|layer| {
            let entry = self.control_layer(id, layer, &smart, &mut heard, logs, &mut all)?;
            if let (Some(log), Some(entry)) = (&mut log, entry) {
                log(entry);
            }
            Ok(())
        });
        self.heard = heard;
        // What was told is told once.
        self.entry_mut(id)?.seen = None;
        done.map(|()| all)
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
        let (group, count) = (s.group_of(layer), s.levels.len() as u8);
        find_levels(&self.entry(id)?.tables[group], count, &mut heard.levels);
        let whole = self.take_attention(id, layer, heard)?;
        let budget = smart.bytes_per_token * self.core.sizes.block as f64;
        let Heard { levels, attention, widths, bits, cost, .. } = heard;
        let Some(of) = self.entry_mut(id)?.control.get_mut(layer) else { return Ok(None) };
        let kept = of.kept;
        let Decides::Smart(controller) = &mut of.decides else { return Ok(None) };
        let told = Told { kept, attention: whole.then_some(&attention[..]), levels, danger: None };
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
            layer,
            kv_heads: 0..self.core.sizes.kv_heads,
            kept,
            attention: whole.then(|| attention.clone()),
            loss: None,
            danger: None,
            terms: None,
            levels: levels.clone(),
            decision,
            planned: None,
        }))
    }

    /// Shares of the attention of the last step, `[query head][block]`, and whether these are all: not if the sequence was not in it with a single token. Of a block that the
    /// step has filled, what no other has: it had no mass of its own.
    fn take_attention(&self, id: SequenceId, layer: usize, heard: &mut Heard) -> Result<bool, Error> {
        let (s, entry) = (&self.core.sizes, self.entry(id)?);
        let Heard { levels, attention, words, certificates, .. } = heard;
        attention.clear();
        let Some(seen) = entry.seen.filter(|seen| seen.step == self.begun && !levels.is_empty()) else {
            return Ok(false);
        };
        let (blocks, known) = (levels.len(), seen.before / s.block);
        let of_head = s.stride * s.group;
        words.clear();
        words.resize((s.kv_heads - 1) * of_head + blocks * s.group, 0);
        let at = s.masses_of(layer).start + 4 * id.slot as usize * s.kv_heads * of_head;
        self.core.masses.read(self.core.queue.stream(), at, words)?;
        certificates.clear();
        certificates.resize(s.q_heads() * Certificate::WORDS, 0);
        let at = self.core.certificate_at(layer, seen.place);
        self.core.certificates.read(self.core.queue.stream(), at, certificates)?;
        let certificates = certificates.as_chunks::<{ Certificate::WORDS }>().0;
        for (head, certificate) in certificates.iter().enumerate() {
            let of = Shares::of(f64::from(Certificate::from_words(certificate).lse) / core::f64::consts::LN_2);
            let own = &words[head / s.group * of_head..];
            let start = attention.len();
            let seen = own.chunks_exact(s.group).take(known.min(blocks));
            attention.extend(seen.map(|block| of.share(MassWord(block[head % s.group]))));
            let rest = 1.0 - attention[start..].iter().sum::<f64>();
            attention.resize(start + blocks, rest.max(0.0));
        }
        Ok(attention.iter().all(|share| share.is_finite()))
    }
}

/// Masses as parts of a sum: powers of two by their fractions, which are 32 to an octave in a word, as a call looks at every block and query head.
struct Shares {
    fractions: [f64; 32],
    /// Whole octaves of the sum.
    octaves: i32,
}

impl Shares {
    /// Of a sum of `2^total`.
    fn of(total: f64) -> Self {
        let octaves = total.floor();
        let fraction = |i: usize| (i as f64 / 32.0 - (total - octaves)).exp2();
        Self { fractions: core::array::from_fn(fraction), octaves: octaves as i32 }
    }

    fn share(&self, word: MassWord) -> f64 {
        let Some([octave, fraction]) = word.octaves() else { return 0.0 };
        let exponent = octave.saturating_sub(self.octaves).clamp(-1022, 1023);
        self.fractions[fraction as usize] * f64::from_bits(((exponent + 1023) as u64) << 52)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_powers_of_two() {
        for total in [-3.7, 0.0, 5.25, 90.123, -200.9] {
            let of = Shares::of(total);
            for log2 in (0..2000).map(|i| total - 30.0 + f64::from(i) / 50.0) {
                let word = MassWord((((log2 + 512.0) * 32.0) as u32) << 17 | 77);
                let want = (f64::from(word.log2_mass().unwrap()) - total).exp2();
                assert!((of.share(word) / want - 1.0).abs() < 1e-12, "{total} {log2}");
            }
            assert_eq!(of.share(MassWord(0)), 0.0);
        }
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(Shares::of(none).share(MassWord(1 << 20)).is_nan(), "no sum, no share");
        }
    }
}

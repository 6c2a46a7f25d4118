//! Certificates that the GPU leaves in memory of the host, to be read there without waiting for it.
//!
//! With [`GpuConfig::certificate_ring`](super::GpuConfig::certificate_ring) every step ends with one more launch, which writes what is known of
//! its heads into a ring; a recorded step has that launch in its graph. A thread that watches certificates reads them there at any time, without
//! a call to the driver, and sees either a whole step or that it missed it. Cost of a step: about 3 us and 16 bytes a layer, sequence and query
//! head over the link.
use super::core::Core;
use super::drafts;
use super::policy::Rule;
use super::step::{GpuStep, Progress};
use crate::{Error, Rung, Status};
use certkv_device::mailbox::{Missed, Slots};

use certkv_kernel::cuda::publish::{self, ENTRY_HEAD, LayerSet, Publish, PublishRule, head_of, shape_of, words_of};
use certkv_kernel::cuda::queue::{Area, Span};
use certkv_kernel::cuda::tensor::Tensor;
use std::sync::Arc;

/// Certificates of the last steps of a cache, see [`GpuCache::certificate_ring`](super::GpuCache::certificate_ring). Clones read the same
/// memory, from any thread; it stays readable when the cache is gone.
#[derive(Debug, Clone)]
pub struct CertificateRing {
    area: Area,
    slots: Slots,
}

/// What was published of one head's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PublishedCertificate {
    /// Upper bound on the distance from attention over the uncompressed cache, in the unit of the values.
    pub bound: f32,
    /// What it was held against.
    pub tolerance: f32,
    /// Norm of the output.
    pub norm: f32,
    /// What the bound is worth; of a sequence of which the device refused a row: [`Status::Failed`].
    pub status: Status,
    /// Rung on which the output was made.
    pub rung: Rung,
}

/// A step's certificates, copied out of the ring; can be read into again.
#[derive(Debug, Clone, Default)]
pub struct PublishedStep {
    words: Vec<u64>,
}

impl CertificateRing {
    pub(super) fn of(core: &Core) -> Option<Self> {
        core.ring.clone().zip(core.sizes.ring).map(|(area, slots)| Self { area, slots })
    }

    /// Steps that it keeps.
    pub fn len(&self) -> usize {
        self.slots.count()
    }

    /// Whether it keeps none: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps published so far. The newest that can be read is one less; see [`GpuStep::number`](super::GpuStep::number).
    pub fn published(&self) -> u64 {
        Slots::published(&self.area)
    }

    /// Copies the certificates of step `number` into `step`. Takes no lock, calls no driver; allocates only where `step` was never as large.
    ///
    /// # Errors
    /// The step is not published yet, or a later one has taken its place; `step` then holds nothing.
    pub fn read(&self, number: u64, step: &mut PublishedStep) -> Result<(), Missed> {
        let read = self.slots.read(&self.area, number, &mut step.words, ENTRY_HEAD, words_of);
        if read.is_err() {
            step.words.clear();
        }
        read
    }
}

impl PublishedStep {
    /// What [`GpuStep::publish_to`](super::GpuStep::publish_to) wrote, copied to the host; `None` where it is not whole.
    pub fn of_memory(words: &[u64]) -> Option<Self> {
        let entry = words.get(publish::ENTRY..)?;
        let words = entry.get(..words_of(entry))?.to_vec();
        Some(Self { words })
    }

    /// Places: of sequences with one token in the step, in the order of its chunks; in a step of [drafts](super::GpuConfig::chunk_tokens) beside such, of all its
    /// tokens.
    pub fn sequences(&self) -> usize {
        shape_of(&self.words).map_or(0, |shape| shape[0])
    }

    /// Layers.
    pub fn layers(&self) -> usize {
        shape_of(&self.words).map_or(0, |shape| shape[1])
    }

    /// Query heads of a sequence.
    pub fn q_heads(&self) -> usize {
        shape_of(&self.words).map_or(0, |shape| shape[2])
    }

    /// Of a query head of the sequence, or token, at `place`; `None` where there is none, and of a layer that the step did not attend.
    pub fn head(&self, layer: usize, place: usize, head: usize) -> Option<PublishedCertificate> {
        let words = head_of(&self.words, layer, place, head)?;
        let status = [Status::Uncertified, Status::Certified, Status::Exact, Status::Failed]
            .into_iter()
            .find(|status| *status as u8 == words.status)?;
        let rung = [Rung::Packed, Rung::MoreKeys, Rung::ExactValues, Rung::DenseHead, Rung::DenseLayer]
            .into_iter()
            .find(|rung| *rung as u8 == words.rung)?;
        Some(PublishedCertificate { bound: words.bound, tolerance: words.tolerance, norm: words.norm, status, rung })
    }
}

/// Whose certificates they are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whose {
    /// A batch of so many single tokens.
    Batch(usize),
    /// So many drafts, of so many tokens in all, and at most.
    Drafts { seqs: usize, tokens: usize, longest: usize },
}

impl Whose {
    /// Places of their entry.
    fn places(self) -> usize {
        match self {
            Self::Batch(seqs) => seqs,
            Self::Drafts { tokens, .. } => tokens,
        }
    }
}

/// Enqueues that the step's certificates go to the ring, if there is one. `attended`: by layer.
pub(super) fn publish(
    core: &Core,
    whose: Whose,
    rule: Rule,
    attended: impl Iterator<Item = bool>,
) -> Result<(), Error> {
    let (Some(ring), Some(slots)) = (&core.ring, core.sizes.ring) else { return Ok(()) };
    let state = core.counter(&core.sizes.counters.published)?;
    enqueue(core, (whose, rule, attended), (ring.span(0, 8 * slots.len())?, slots), state)
}

/// One slot for a step.
fn one_slot(core: &Core, whose: Whose) -> Result<Slots, Error> {
    let s = &core.sizes;
    let too_large = || Error::Config { field: "layers", why: "more certificates than the address space holds".into() };
    publish::slots(1, s.layers, whose.places(), s.q_heads()).ok_or_else(too_large)
}

impl GpuStep<'_> {
    /// Whose certificates it publishes.
    pub(super) fn whose(&self) -> Whose {
        match self.drafting {
            None => Whose::Batch(self.seqs),
            Some(_) => {
                let longest = drafts::longest(&self.parts, self.tokens);
                Whose::Drafts { seqs: self.parts.len(), tokens: self.tokens, longest }
            }
        }
    }

    /// Bytes that [`GpuStep::publish_to`] writes: 96, and 16 for each layer, sequence with one token, and query head; in a step of drafts beside such, for each token.
    ///
    /// # Errors
    /// [`Error::Config`] for more than the address space holds.
    pub fn published_bytes(&self) -> Result<usize, Error> {
        Ok(8 * one_slot(&self.cache.core, self.whose())?.len())
    }

    /// Enqueues that the certificates of the layers attended so far go to device memory of the caller, for kernels that come behind it on the stream: nothing
    /// waits, and a recording has it, too. `out` holds [`GpuStep::published_bytes`]: twelve words of 8 bytes (the first how often this cache has done so, the eleventh
    /// sequences and, above, layers, the twelfth query heads), then bound, tolerance and norm in single precision and status and rung in bytes, of
    /// `[layer][sequence][query head]`, sequences being those with one token; in a step of drafts beside such, tokens. Status 255: the layer was not attended. Costs about 3 us.
    ///
    /// # Errors
    /// [`Error::Shape`] for less memory; [`Error::Gpu`], for more than 256 layers, too. Nothing is enqueued then.
    pub fn publish_to(&mut self, out: Tensor<'_>) -> Result<(), Error> {
        let (expected, given) = (self.published_bytes()?, out.span().bytes());
        if given < expected {
            return Err(Error::Shape { argument: "certificates", expected, given });
        }
        let core = Arc::clone(&self.cache.core);
        let words = &core.sizes.counters.published;
        let state = core.counter(&(words.start + 4..words.end))?;
        let attended = self.progress.iter().map(|p| *p == Progress::Attended);
        let whose = self.whose();
        enqueue(&core, (whose, self.rule(), attended), (out.span(), one_slot(&core, whose)?), state)
    }
}

fn enqueue(
    core: &Core,
    (whose, rule, attended): (Whose, Rule, impl Iterator<Item = bool>),
    (ring, slots): (Span<'_>, Slots),
    state: Span<'_>,
) -> Result<(), Error> {
    let s = &core.sizes;
    let layers =
        |yes: &mut dyn Iterator<Item = bool>| LayerSet::of(yes.enumerate().filter(|(_, y)| *y).map(|(i, _)| i));
    let of_step = match whose {
        Whose::Batch(_) => core.left_of_batch()?,
        Whose::Drafts { seqs, longest, .. } => core.left_of_drafts(seqs, longest)?,
    };
    let args = Publish {
        errors: core.counter(&s.counters.errors)?,
        ring,
        slots,
        state,
        most: s.rows,
        layers: s.layers,
        seqs: whose.places(),
        kv_heads: s.kv_heads,
        group: s.group,
        rule: match rule {
            Rule::Packed => PublishRule::Packed,
            Rule::Certified(_) => PublishRule::Certified,
            Rule::Dense => PublishRule::Dense,
        },
        attended: layers(&mut { attended }),
        exact: layers(&mut (0..s.layers).map(|layer| core.kit(layer).exact)),
        left: of_step,
    };
    Ok(publish::launch(&core.queue, &core.kit(0).publish, &args)?)
}

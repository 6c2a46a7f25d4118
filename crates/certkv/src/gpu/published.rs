//! Certificates that the GPU leaves in memory of the host, to be read there without waiting for it.
//!
//! With [`GpuConfig::certificate_ring`](super::GpuConfig::certificate_ring) every step ends with one more launch, which writes what is known of
//! its heads into a ring; a recorded step has that launch in its graph. A thread that watches certificates reads them there at any time, without
//! a call to the driver, and sees either a whole step or that it missed it. Cost of a step: about 3 us and 16 bytes a layer, sequence and query
//! head over the link.
use super::core::Core;
use super::policy::Rule;
use crate::{Error, Rung, Status};
use certkv_device::mailbox::{Missed, Slots};

use certkv_kernel::cuda::publish::{self, ENTRY_HEAD, LayerSet, Publish, PublishRule, head_of, shape_of, words_of};
use certkv_kernel::cuda::queue::Area;

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
    /// Sequences with one token in the step; they have places in the order of its chunks.
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

    /// Of a query head of the sequence at `place`; `None` where there is none, and of a layer that the step did not attend.
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

/// Enqueues that the step's certificates go to the ring, if there is one. `attended`: by layer.
pub(super) fn publish(core: &Core, seqs: usize, rule: Rule, attended: impl Iterator<Item = bool>) -> Result<(), Error> {
    let (Some(ring), Some(slots)) = (&core.ring, core.sizes.ring) else { return Ok(()) };
    let s = &core.sizes;
    let layers =
        |yes: &mut dyn Iterator<Item = bool>| LayerSet::of(yes.enumerate().filter(|(_, y)| *y).map(|(i, _)| i));
    let args = Publish {
        certificates: core.all_certificates()?,
        lists: core.all_lists()?,
        errors: core.counter(&s.counters.errors)?,
        rows: core.batch()?,
        ring,
        slots,
        state: core.counter(&s.counters.published)?,
        most: s.rows,
        layers: s.layers,
        seqs,
        kv_heads: s.kv_heads,
        group: s.group,
        rule: match rule {
            Rule::Packed => PublishRule::Packed,
            Rule::Certified(_) => PublishRule::Certified,
            Rule::Dense => PublishRule::Dense,
        },
        attended: layers(&mut { attended }),
        exact: layers(&mut (0..s.layers).map(|layer| core.kit(layer).exact)),
    };
    Ok(publish::launch(&core.queue, &core.kit(0).publish, &args)?)
}

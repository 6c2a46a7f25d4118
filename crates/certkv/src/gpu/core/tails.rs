//! Open blocks: a layer's tails, and behind them the norms of their rows, which attention needs of blocks that have no error summary.
use super::Core;
use crate::Error;
use crate::gpu::sizes::Sizes;
use certkv_kernel::cuda::launch::row_norm_bytes;
use certkv_kernel::cuda::measure::{self, Measure};
use certkv_kernel::cuda::queue::Span;
use core::ops::Range;

impl Sizes {
    /// Bytes of the norms of one tail's rows.
    pub(in crate::gpu) fn norm_bytes(&self) -> usize {
        row_norm_bytes(self.kv_heads, self.block)
    }

    /// Bytes of a layer's tails in their buffer.
    pub(in crate::gpu) fn tails_at(&self, layer: usize) -> Range<usize> {
        let start = layer * self.tail_slots * (self.original_bytes + self.norm_bytes());
        start..start + self.tail_slots * self.original_bytes
    }

    /// First byte of the norms of the rows of tail `slot`.
    fn norms_at(&self, layer: usize, slot: u32) -> usize {
        self.tails_at(layer).end + slot as usize * self.norm_bytes()
    }
}

impl Core {
    /// The layer's tails.
    pub(in crate::gpu) fn tails_of(&self, layer: usize) -> Result<Span<'_>, Error> {
        let bytes = self.sizes.tails_at(layer);
        Ok(Span::of(&self.tails, bytes.start, bytes.len())?)
    }

    /// The norms of all their rows.
    pub(in crate::gpu) fn row_norms(&self, layer: usize) -> Result<Span<'_>, Error> {
        let s = &self.sizes;
        Ok(Span::of(&self.tails, s.norms_at(layer, 0), s.tail_slots * s.norm_bytes())?)
    }

    /// Enqueues that a tail is filled from the page of originals at byte `at`, and the norms of its rows are found.
    pub(in crate::gpu) fn fill_tail(&self, layer: usize, slot: u32, at: usize) -> Result<(), Error> {
        let (s, kit) = (&self.sizes, self.kit(layer));
        self.queue.upload(&self.tails, s.tail_at(layer, slot), &self.originals, at, s.original_bytes)?;
        let args = Measure {
            variant: &kit.variant,
            tail_slots: self.tails_of(layer)?,
            row_norms: self.row_norms(layer)?,
            slot: slot as usize,
            kv_heads: s.kv_heads,
        };
        Ok(measure::measure(&self.queue, &kit.measure, &args)?)
    }

    /// Enqueues that a tail, and what is known of its rows, is copied to another of the layer.
    pub(in crate::gpu) fn copy_tail(&self, layer: usize, from: u32, to: u32) -> Result<(), Error> {
        let (s, tails, stream) = (&self.sizes, &self.tails, self.queue.stream());
        tails.copy_from(stream, s.tail_at(layer, to), tails, s.tail_at(layer, from), s.original_bytes)?;
        Ok(tails.copy_from(stream, s.norms_at(layer, to), tails, s.norms_at(layer, from), s.norm_bytes())?)
    }
}

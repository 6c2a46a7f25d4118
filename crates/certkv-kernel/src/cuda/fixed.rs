//! Fixed scales of sides with one scale per block and group of channels, math.md (2.9a), as the kernels read them.
use super::queue::Span;
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::CudaError;

/// Channels that share a magnitude: `PIECE` of kernels/pack.cuh.
const PIECE: usize = 16;

/// What scales of a layer are made of in place of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct Fixed<'a> {
    /// `f32[kv_heads][2][dim / 16]`: magnitudes that are reached, of keys, then of values.
    pub reaches: Span<'a>,
    /// `u64`: elements beyond them are added.
    pub saturated: Span<'a>,
}

/// Bytes of a layer's magnitudes.
pub const fn reach_bytes(dim: usize, kv_heads: usize) -> usize {
    4 * kv_heads * 2 * (dim / PIECE)
}

impl Fixed<'_> {
    /// Both addresses, or 0 where blocks have scales of their own.
    pub(super) fn told(
        fixed: Option<Self>,
        on: &mut Touched,
        variant: &Variant,
        kv_heads: usize,
    ) -> Result<[u64; 2], CudaError> {
        let Some(Fixed { reaches, saturated }) = fixed else { return Ok([0; 2]) };
        let bytes = reach_bytes(variant.layout().dim, kv_heads);
        Ok([on.reads(reaches, "reaches", bytes)?, on.writes(saturated, "saturated", 8)?])
    }
}

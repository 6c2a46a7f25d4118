//! How much host memory there is for originals that may lie in a store. Pure arithmetic.
use super::config::GpuConfig;
use super::sizes::{GroupSizes, too_large};
use crate::Error;
use certkv_tier::spill::records::Records;

/// Host memory of the layers that see everything, where their originals spill: frames, each with room for a block in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameSizes {
    /// Those layers.
    pub(super) group: usize,
    pub(super) count: usize,
    /// Of these, kept for reading.
    pub(super) reserve: usize,
    /// First byte of them.
    pub(super) at: usize,
    /// Of records on their way.
    pub(super) buffer_bytes: usize,
}

/// Room for [`Spill::host_tokens`](crate::Spill::host_tokens) tokens and the open blocks in every layer, and to read the longest sequence in
/// one layer, or one page.
pub(super) fn frames(
    config: &GpuConfig,
    groups: &[GroupSizes],
    original_bytes: usize,
) -> Option<Result<FrameSizes, Error>> {
    let spill = config.spill.as_ref()?;
    let (number, group) = groups.iter().enumerate().find(|(_, group)| group.window.is_none())?;
    let (layers, block) = (group.layers.len(), config.block().max(1));
    let all = group.host_pages.saturating_mul(layers);
    if u32::try_from(all).is_err() {
        return Some(Err(too_large()));
    }
    let reserve = config.max_context.div_ceil(block).max(layers);
    let blocks = spill.host_tokens.div_ceil(block).max(1).saturating_add(config.max_sequences);
    let wanted = blocks.saturating_mul(layers).saturating_add(reserve);
    let (count, reserve) = if wanted < all { (wanted, reserve) } else { (all, 0) };
    let buffer_bytes = spill.in_flight.saturating_mul(Records::buffer_bytes(original_bytes));
    Some(Ok(FrameSizes { group: number, count, reserve, at: 0, buffer_bytes }))
}

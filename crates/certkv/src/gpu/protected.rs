//! Tokens that are always read from their originals: places of their own on the device, and the launch that fills them.
//!
//! Every KV head of a row has places for as many blocks as can be protected at once, in the layer's scratch behind its slots. So nothing that steps
//! choose takes them away. When a step begins, one launch (`kernels/protect.cu`) promotes the blocks that are protected then, in all layers, and copies what
//! their places have not got from the originals, which are in a tail still where the step before has filled the block, or come over the link: behind a
//! prompt, a swap, a file or a cached prefix.
use super::config::GpuConfig;
use super::draft_sections::most_tokens;
use super::sizes::Sizes;
use crate::{Error, Protection};
use core::ops::Range;

/// Places of a KV head of a row, in a layer that has codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtectedSizes {
    /// Of blocks with first tokens, and of those with the newest.
    places: [usize; 2],
    /// With no more tokens than a sequence can have.
    pub(super) rule: Protection,
}

impl ProtectedSizes {
    /// Of tables with `stride` blocks.
    pub(super) fn of(config: &GpuConfig, stride: usize) -> Self {
        let (block, queries) = (config.block(), most_tokens(config.chunk_tokens).max(1));
        let most = stride * block;
        let Protection { sinks, recent } = config.protection;
        let rule = Protection::new(sinks.min(most), recent.min(most));
        Self { places: rule.most_blocks(block, stride, queries), rule }
    }

    /// How many they are.
    pub(super) fn count(&self) -> usize {
        self.places.iter().sum()
    }
}

impl GpuConfig {
    /// Checks what is protected beside what it does not go with.
    pub(super) fn check_protection(&self) -> Result<(), Error> {
        let wrong = |why: &str| Err(Error::Config { field: "protection", why: why.to_owned() });
        match () {
            () if self.protection.is_none() => Ok(()),
            () if self.spill.is_some() => {
                wrong("originals may lie in a store, from which no step on a GPU waits for them")
            }
            () if self.formats.iter().any(|format| !format.refine.is_none()) => {
                wrong("a format has residual planes, and no originals on the device")
            }
            () => Ok(()),
        }
    }
}

impl Sizes {
    /// Bytes of a row's places in a layer.
    pub(super) fn places_of(&self, layer: usize, row: usize) -> Range<usize> {
        let each = self.kv_heads * self.of_layer[layer].places * 2 * self.side_bytes;
        let start = self.places_at(layer) + row * each;
        start..start + each
    }

    /// First byte of a layer's places of protected blocks: `[row][kv_head][place][keys, values]`.
    pub(super) fn places_at(&self, layer: usize) -> usize {
        self.slot_at(layer, self.of_layer[layer].slots.iter().sum())
    }
}

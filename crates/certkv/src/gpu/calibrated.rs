//! What keys are coded by on a GPU: checked as on the CPU when the cache is made, and sent to the device once, for every layer and KV head.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::core::Core;
use crate::calibrated::Calibrated;
use crate::seal::Seal;
use crate::{Config, Error};

use certkv_core::{PageId, RecordLayout};
use certkv_kernel::cuda::metrics::{metric_bytes, metric_words};
use certkv_kernel::cuda::queue::Span;
use std::sync::Arc;

/// What the keys of any layer take at most.
pub(super) fn most_metric_bytes(layouts: &[RecordLayout], kv_heads: usize) -> usize {
    layouts.iter().map(|layout| metric_bytes(layout, kv_heads)).max().unwrap_or(0)
}

impl GpuConfig {
    /// The calibration or the codebooks, where a format needs them.
    ///
    /// # Errors
    /// As for a cache on the CPU.
    pub(super) fn calibrated(&self) -> Result<Option<Arc<Calibrated>>, Error> {
        let mut common = Config::new(self.geometry, self.max_tokens);
        common.formats.clone_from(&self.formats);
        common.calibration.clone_from(&self.calibration);
        common.codebooks.clone_from(&self.codebooks);
        Calibrated::of(&common)
    }
}

impl Core {
    /// Sends what keys of all layers are coded by; waits for it.
    pub(super) fn send_metrics(&self, calibrated: &Calibrated) -> Result<(), Error> {
        let Some(metrics) = &self.metrics else { return Ok(()) };
        let mut all = Vec::with_capacity(self.sizes.metric_bytes / 4);
        for layer in 0..self.sizes.layers {
            let variant = &self.kit(layer).variant;
            if variant.is_calibrated() {
                let of = |head: usize| calibrated.metric(variant.layout().format.key, layer, head);
                all.extend((0..self.sizes.kv_heads).filter_map(of).flat_map(metric_words));
            }
            all.resize((layer + 1) * self.metric_stride() / 4, 0u32);
        }
        Ok(metrics.write(self.queue.stream(), 0, &all)?)
    }

    /// Bytes from one layer's to the next.
    const fn metric_stride(&self) -> usize {
        self.sizes.metric_bytes / self.sizes.layers
    }

    /// Those of a layer, where its keys are coded so.
    pub(super) fn metrics_of(&self, layer: usize) -> Result<Option<Span<'_>>, Error> {
        let variant = &self.kit(layer).variant;
        let Some(metrics) = self.metrics.as_ref().filter(|_| variant.is_calibrated()) else { return Ok(None) };
        let bytes = metric_bytes(variant.layout(), self.sizes.kv_heads);
        Ok(Some(Span::of(metrics, layer * self.metric_stride(), bytes)?))
    }
}

impl GpuCache {
    /// As [`Cache::calibration`](crate::Cache::calibration).
    pub fn calibration(&self) -> Option<&str> {
        self.calibrated.as_ref().map(|calibrated| calibrated.name())
    }

    /// The seal of a page of codes that leaves the cache.
    pub(super) fn seal(&self, layer: usize, block: usize, page: PageId) -> Seal {
        let layout = &self.layouts[layer];
        let seal = Seal::new(layout, layer, block, page);
        match self.calibrated.as_ref().filter(|_| layout.format.key.is_calibrated()) {
            Some(calibrated) => seal.under(calibrated.number()),
            None => seal,
        }
    }
}

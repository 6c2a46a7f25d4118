//! What keys are coded by on a GPU: checked as on the CPU when the cache is made, and sent to the device once, for every layer and KV head.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::core::Core;
use crate::calibrated::Calibrated;
use crate::seal::Seal;
use crate::{Config, Error};

use certkv_core::PageId;
use certkv_kernel::cuda::metrics::{metric_bytes, metric_words};
use certkv_kernel::cuda::queue::Span;
use std::sync::Arc;

impl GpuConfig {
    /// The calibration, where a format needs one.
    ///
    /// # Errors
    /// As for a cache on the CPU.
    pub(super) fn calibrated(&self) -> Result<Option<Arc<Calibrated>>, Error> {
        let mut common = Config::new(self.geometry, self.max_tokens);
        common.formats.clone_from(&self.formats);
        common.calibration.clone_from(&self.calibration);
        Calibrated::of(&common)
    }
}

impl Core {
    /// Sends what keys of all layers are coded by; waits for it.
    pub(super) fn send_metrics(&self, calibrated: &Calibrated) -> Result<(), Error> {
        let Some(metrics) = &self.metrics else { return Ok(()) };
        let heads = self.sizes.kv_heads;
        let of = |at: usize| calibrated.metric(at / heads, at % heads);
        let words: Vec<u32> = (0..self.sizes.layers * heads).filter_map(of).flat_map(metric_words).collect();
        Ok(metrics.write(self.queue.stream(), 0, &words)?)
    }

    /// Those of a layer, where its keys are coded so.
    pub(super) fn metrics_of(&self, layer: usize) -> Result<Option<Span<'_>>, Error> {
        let variant = &self.kit(layer).variant;
        let Some(metrics) = self.metrics.as_ref().filter(|_| variant.folds()) else { return Ok(None) };
        let bytes = metric_bytes(variant.layout(), self.sizes.kv_heads);
        Ok(Some(Span::of(metrics, layer * bytes, bytes)?))
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

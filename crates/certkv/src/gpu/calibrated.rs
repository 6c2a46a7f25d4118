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
        common.levels.clone_from(&self.levels);
        Calibrated::of(&common)
    }
}

impl Core {
    /// Sends what keys of all layers are coded by; waits for it.
    pub(super) fn send_metrics(&self, calibrated: &Calibrated) -> Result<(), Error> {
        let Some(metrics) = &self.metrics else { return Ok(()) };
        let (mut all, levels) = (Vec::with_capacity(self.sizes.metric_bytes / 4), self.sizes.levels.len().max(1));
        for (layer, level) in (0..self.sizes.layers).flat_map(|layer| (0..levels).map(move |level| (layer, level))) {
            let layout = self.coded_in(layer, level);
            if metric_bytes(layout, 1) > 0 {
                let of = |head: usize| calibrated.metric(layout.format.key, layer, head);
                all.extend((0..self.sizes.kv_heads).filter_map(of).flat_map(metric_words));
            }
            all.resize((layer * levels + level + 1) * self.metric_stride() / 4, 0u32);
        }
        Ok(metrics.write(self.queue.stream(), 0, &all)?)
    }

    /// Records of a level of a layer, or those of the layer where blocks have none.
    fn coded_in(&self, layer: usize, level: usize) -> &RecordLayout {
        self.sizes.levels.get(level).map_or_else(|| self.kit(layer).variant.layout(), |level| &level.layout)
    }

    /// Bytes from those of one layer, or of one of its levels, to the next.
    fn metric_stride(&self) -> usize {
        self.sizes.metric_bytes / (self.sizes.layers * self.sizes.levels.len().max(1))
    }

    /// Those of a layer, where its keys are coded so.
    pub(super) fn metrics_of(&self, layer: usize) -> Result<Option<Span<'_>>, Error> {
        self.metrics_at(layer, 0)
    }

    /// Those of a level of a layer, where its keys are coded so.
    pub(super) fn metrics_at(&self, layer: usize, level: usize) -> Result<Option<Span<'_>>, Error> {
        let bytes = metric_bytes(self.coded_in(layer, level), self.sizes.kv_heads);
        let Some(metrics) = self.metrics.as_ref().filter(|_| bytes > 0) else { return Ok(None) };
        let at = layer * self.sizes.levels.len().max(1) + level;
        Ok(Some(Span::of(metrics, at * self.metric_stride(), bytes)?))
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

//! Fixed scales on a GPU: checked as on the CPU when the cache is made, and sent to the device once; what they could not reach is counted there.
use super::cache::GpuCache;
use super::config::GpuConfig;
use super::core::Core;
use crate::{Config, Error, fixed};
use certkv_control::scales::Scales;
use certkv_kernel::cuda::fixed::{Fixed, reach_bytes};
use certkv_kernel::cuda::queue::Span;

/// Bytes before the magnitudes: the count, on a line of its own.
const COUNT: usize = 64;

impl GpuConfig {
    /// # Errors
    /// As for a cache on the CPU.
    pub(super) fn check_scales(&self) -> Result<(), Error> {
        let mut common = Config::new(self.geometry, self.max_tokens);
        common.formats.clone_from(&self.formats);
        common.scales.clone_from(&self.scales);
        fixed::check(&common)
    }

    /// Of device memory for them.
    pub(super) fn reach_bytes(&self) -> usize {
        let g = &self.geometry;
        self.scales.as_ref().map_or(0, |_| COUNT + g.layers * reach_bytes(g.head_dim, g.kv_heads))
    }
}

impl Core {
    /// Sends the magnitudes of all layers; waits for it.
    pub(super) fn send_reaches(&self, scales: &Scales) -> Result<(), Error> {
        let Some(reaches) = &self.reaches else { return Ok(()) };
        let heads = (0..self.sizes.layers).flat_map(|layer| (0..self.sizes.kv_heads).map(move |head| (layer, head)));
        let all: Vec<f32> = heads
            .filter_map(|(layer, head)| scales.head(layer, head))
            .flat_map(|(keys, values)| keys.iter().chain(values).copied())
            .collect();
        reaches.write(self.queue.stream(), 0, &[0u64; COUNT / 8])?;
        Ok(reaches.write(self.queue.stream(), COUNT, &all)?)
    }

    /// Those of a layer, where its format takes them.
    pub(super) fn fixed_of(&self, layer: usize) -> Result<Option<Fixed<'_>>, Error> {
        let layout = self.kit(layer).variant.layout();
        let Some(all) = self.reaches.as_ref().filter(|_| fixed::takes(&layout.format)) else { return Ok(None) };
        let bytes = reach_bytes(layout.dim, self.sizes.kv_heads);
        let reaches = Span::of(all, COUNT + layer * bytes, bytes)?;
        Ok(Some(Fixed { reaches, saturated: Span::of(all, 0, 8)? }))
    }
}

impl GpuCache {
    /// Elements that [`GpuConfig::scales`] could not reach since the cache was made; `None` without them. Waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn saturated(&self) -> Result<Option<u64>, Error> {
        let Some(reaches) = &self.core.reaches else { return Ok(None) };
        let mut count = [0u64];
        reaches.read(self.core.queue.stream(), 0, &mut count)?;
        Ok(Some(count[0]))
    }
}

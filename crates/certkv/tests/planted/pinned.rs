//! Pinned memory, on a fake driver with a limit: a cache that does not fit leaves what it found.
use crate::fake_cuda::Fake;
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::ordered;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Error, Geometry};

const FORMAT: &str = "k8-v4g32-b16";

fn cache(gpu: &Gpu) -> Result<GpuCache, Error> {
    let geometry = Geometry::new(1, GROUP * KV_HEADS, KV_HEADS, DIM)?;
    let mut config = GpuConfig::new(geometry, 8 * kernels::BLOCK);
    (config.max_context, config.max_sequences) = (4 * kernels::BLOCK, 2);
    GpuCache::new(gpu, &Compiler::new(), config.with_format(FORMAT.parse()?))
}

/// As much as a cache pins but for one page, twice, and then enough.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut left = Vec::new();
    let done = ordered(FORMAT, seed, |gpu| {
        let fake = Fake::get();
        let before = fake.live();
        let first = cache(gpu)?;
        let pinned = gpu.usage().pinned_bytes;
        drop(first);
        for _ in 0..2 {
            fake.limit_pinned(pinned - 1);
            let refused = cache(gpu).map(drop);
            fake.limit_pinned(usize::MAX);
            if refused.is_ok() || fake.live() != before || gpu.usage().pinned_bytes > 0 {
                left.push(format!("{refused:?}, {:?} where it was {before:?}", fake.live()));
            }
        }
        // Something for the checker of streams.
        let mut cache = cache(gpu)?;
        let chunks = [certkv::Chunk { sequence: cache.create()?, tokens: 1 }];
        let mut step = cache.begin(&chunks)?;
        let rows = vec![0x3c00; KV_HEADS * DIM];
        step.append_bits(0, &rows, &rows)?;
        step.finish()?;
        cache.synchronize()?;
        Ok(3)
    })?;
    left.pop().map_or(Ok(done), Err)
}

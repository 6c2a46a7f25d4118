//! Originals of full blocks that leave beside later steps, on a fake driver: the checker of real streams sees a tail that gets other rows while a copy of
//! what it had is under way.
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::ordered;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Certified, Chunk, Error, Geometry, Policy};

const FORMAT: &str = "k8-v4g32-b16";
const LAYERS: usize = 2;
const KV: usize = KV_HEADS * DIM;
const STEPS: usize = 3 * kernels::BLOCK;

/// Few sequences with few tails, and nobody who waits for the device.
fn decode(gpu: &Gpu) -> Result<u64, Error> {
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM)?;
    let mut config = GpuConfig::new(geometry, 8 * kernels::BLOCK);
    (config.max_context, config.max_sequences) = (4 * kernels::BLOCK, 2);
    let mut cache = GpuCache::new(gpu, &Compiler::new(), config.with_format(FORMAT.parse()?))?;
    let of = [cache.create()?, cache.create()?];
    let (rows, queries) = (vec![0x3c00; 2 * KV], vec![0.5; 2 * GROUP * KV]);
    for _ in 0..STEPS {
        let chunks = of.map(|sequence| Chunk { sequence, tokens: 1 });
        let mut step = cache.begin_with(&chunks, Policy::Certified(Certified::default()))?;
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows, &rows)?;
            step.attend(layer, &queries)?;
        }
        step.finish()?;
    }
    cache.synchronize()?;
    Ok((STEPS * LAYERS) as u64)
}

pub(crate) fn run(seed: u64) -> Result<u64, String> {
    ordered(FORMAT, seed, decode)
}

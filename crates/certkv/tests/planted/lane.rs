//! Plans beside attention, on a fake driver: the checker of real streams sees every attention, copy and coding that does not wait for them.
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::ordered;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Certified, Chunk, Error, Geometry, Policy};

const FORMAT: &str = "k8-v4g32-b16";
const LAYERS: usize = 3;
const KV: usize = KV_HEADS * DIM;
const STEPS: usize = 2 * kernels::BLOCK;

fn decode(gpu: &Gpu, seed: u64) -> Result<u64, Error> {
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM)?;
    let mut config = GpuConfig::new(geometry, 8 * kernels::BLOCK);
    (config.max_context, config.max_sequences, config.plan_apart) = (4 * kernels::BLOCK, 2, true);
    let mut cache = GpuCache::new(gpu, &Compiler::new(), config.with_format(FORMAT.parse()?))?;
    let of = [cache.create()?, cache.create()?];
    let (rows, queries) = (vec![0x3c00; 2 * KV], vec![0.5; 2 * GROUP * KV]);
    for i in 0..STEPS {
        let chunks = of.map(|sequence| Chunk { sequence, tokens: 1 });
        let mut step = cache.begin_with(&chunks, Policy::Certified(Certified::default()))?;
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows, &rows)?;
            step.attend(layer, &queries)?;
            // Some beside the next layer, some at the end, some not at all.
            if !(i + layer + seed as usize).is_multiple_of(3) {
                step.plan(layer)?;
            }
            if i % 5 == 2 {
                step.attend(layer, &queries)?;
            }
        }
        if i % 7 != 3 {
            step.finish()?;
        }
    }
    cache.truncate(of[0], 3)?;
    cache.synchronize()?;
    Ok((STEPS * LAYERS) as u64)
}

pub(crate) fn run(seed: u64) -> Result<u64, String> {
    ordered(FORMAT, seed, |gpu| decode(gpu, seed))
}

//! Pinned memory through which words travel to a GPU, on a fake driver: the checker of real streams sees every write of
//! the host to a slot whose copy it has not seen to be over.
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::ordered;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, Geometry, Policy};

const FORMAT: &str = "k8-v4g32-b16";
const SEQS: usize = 4;
const Q: usize = GROUP * KV_HEADS * DIM;
/// Attentions of 4 KiB of queries each: more than the ring's four slots of 256 KiB hold.
const TIMES: usize = 340;

/// A host that runs ahead of the GPU by more than the ring.
fn hurry(gpu: &Gpu) -> Result<u64, Error> {
    let geometry = Geometry::new(1, GROUP * KV_HEADS, KV_HEADS, DIM)?;
    let mut config = GpuConfig::new(geometry, 8 * kernels::BLOCK);
    (config.max_context, config.max_sequences) = (4 * kernels::BLOCK, SEQS);
    let mut cache = GpuCache::new(gpu, &Compiler::new(), config.with_format(FORMAT.parse()?))?;
    let mut chunks = Vec::new();
    for _ in 0..SEQS {
        chunks.push(Chunk { sequence: cache.create()?, tokens: 1 });
    }
    let mut step = cache.begin_with(&chunks, Policy::Packed)?;
    let rows = vec![0x3c00; SEQS * KV_HEADS * DIM];
    step.append_bits(0, &rows, &rows)?;
    for time in 0..TIMES {
        step.attend(0, &vec![time as f32; SEQS * Q])?;
    }
    step.finish()?;
    Ok(TIMES as u64)
}

pub(crate) fn run(seed: u64) -> Result<u64, String> {
    ordered(FORMAT, seed, hurry)
}

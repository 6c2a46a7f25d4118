//! Recorded steps, on a fake driver: one runs in the cache whose memory it names, and in no other.
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::ordered;
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, LayerIo, Tensor};
use certkv::{Chunk, Error, Geometry, Policy};

const FORMAT: &str = "k8-v4g32-b16";
const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;

fn cache(gpu: &Gpu) -> Result<GpuCache, Error> {
    let geometry = Geometry::new(1, GROUP * KV_HEADS, KV_HEADS, DIM)?;
    let mut config = GpuConfig::new(geometry, 8 * kernels::BLOCK);
    (config.max_context, config.max_sequences) = (4 * kernels::BLOCK, 2);
    GpuCache::new(gpu, &Compiler::new(), config.with_format(FORMAT.parse()?))
}

/// A recording of a cache that is gone, and its own, in steps of another cache.
fn replays(gpu: &Gpu) -> Result<(u64, bool), Error> {
    let [rows, wide] = [2 * KV, 4 * Q].map(|bytes| DeviceBuffer::new(gpu, bytes));
    let (rows, wide) = (rows?, wide?);
    let side = Tensor::of(&rows, 0, Element::F16, KV)?;
    let of_queries = Tensor::of(&wide, 0, Element::F32, Q)?;
    let io = [LayerIo { keys: side, values: side, query: of_queries, out: of_queries }];
    let gone = cache(gpu)?.record(1, &io, Policy::Packed)?;
    let mut here = cache(gpu)?;
    let own = here.record(1, &io, Policy::Packed)?;
    let chunks = [Chunk { sequence: here.create()?, tokens: 1 }];
    let mut step = here.begin_with(&chunks, Policy::Packed)?;
    let refused = matches!(step.replay(&gone), Err(Error::Order { layer: 0, .. }));
    if refused {
        step.replay(&own)?;
        step.finish()?;
    } else {
        drop(step);
    }
    here.synchronize()?;
    Ok((2, refused))
}

pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut refused = false;
    let done = ordered(FORMAT, seed, |gpu| {
        let (done, was) = replays(gpu)?;
        refused = was;
        Ok(done)
    })?;
    if refused { Ok(done) } else { Err("a recording ran over the memory of a cache that is gone".into()) }
}

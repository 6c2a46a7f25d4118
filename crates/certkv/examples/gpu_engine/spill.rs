//! Lives in a cache whose host memory has no room for all originals.
use crate::certified;
use crate::world::{Failure, Owed, Tally, World};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuCache, LayerIo, Tensor};
use certkv::store::{Backend, FileConfig, FileStore, MemoryStore};
use certkv::{Error, Spill};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where originals go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    Files,
}

impl Place {
    /// Room for a third of a sequence of `longest` tokens, beside what one layer of it takes.
    pub(crate) fn spill(self, longest: usize) -> Result<Spill, Failure> {
        let backend: Arc<dyn Backend> = match self {
            Self::Memory => Arc::new(MemoryStore::new(u64::MAX)),
            Self::Files => {
                let root = std::env::temp_dir().join(format!("certkv-gpu-spill-{}", std::process::id()));
                let config = FileConfig { root, quota: u64::MAX, durability: Default::default(), read_back: false };
                Arc::new(FileStore::open(config)?)
            }
        };
        Ok(Spill { deadline: Duration::from_secs(60), ..Spill::new(backend, longest / 3) })
    }
}

/// Chunk after chunk, until there are more originals than frames.
pub(crate) fn grow(cache: &mut GpuCache, world: &mut World, longest: usize) -> Result<Tally, Failure> {
    let (n, mut tally) = (world.held.len(), Tally::default());
    let each = longest / 16;
    for i in 0..10 {
        let tokens = each.min(longest - 40 - world.held[i % n].len);
        tally.add(&append(cache, world, i % n, tokens)?);
    }
    Ok(tally)
}

/// One chunk of `tokens` tokens of a sequence.
fn append(cache: &mut GpuCache, world: &mut World, at: usize, tokens: usize) -> Result<Tally, Failure> {
    let batch = [(at, tokens)];
    let (chunks, inputs) = (world.chunks(&batch), world.inputs(tokens));
    let mut step = cache.begin(&chunks)?;
    world.remember(&batch, &inputs);
    let tally = world.run(&mut step, &batch, &inputs, Owed { tolerance: Some(0.05), exact: false })?;
    step.finish()?;
    Ok(tally)
}

/// Whether a recorded step of some sequence is refused for want of originals: one is written anew until others have lost theirs.
fn recorded_is_refused(gpu: &Gpu, cache: &mut GpuCache, world: &mut World, longest: usize) -> Result<bool, Failure> {
    let shortest = (0..world.held.len()).min_by_key(|at| world.held[*at].len);
    for _ in 0..4 {
        for at in 0..world.held.len() {
            // One that is as long as any may be has no step more.
            if world.held[at].len < longest && recorded_step_is_refused(gpu, cache, world, at)? {
                return Ok(true);
            }
        }
        let Some(at) = shortest else { break };
        world.truncate(cache, at, 0)?;
        for _ in 0..4 {
            // A window may have kept its tokens.
            match (longest / 8).min(longest.saturating_sub(40 + world.held[at].len)) {
                0 => break,
                tokens => append(cache, world, at, tokens)?,
            };
        }
    }
    Ok(false)
}

fn recorded_step_is_refused(gpu: &Gpu, cache: &mut GpuCache, world: &World, at: usize) -> Result<bool, Failure> {
    let g = world.geometry;
    let room = |n: usize| DeviceBuffer::new(gpu, 4 * n);
    let (kv, q) = (g.kv_width(), g.q_width());
    let buffers = [room(kv)?, room(kv)?, room(q)?, room(q)?];
    let of = |i: usize, n| Tensor::of(&buffers[i], 0, Element::F32, n);
    let io = LayerIo { keys: of(0, kv)?, values: of(1, kv)?, query: of(2, q)?, out: of(3, q)? };
    let (policy, _) = certified(0.05);
    let graph = cache.record(1, &vec![io; g.layers], policy)?;
    let mut step = cache.begin_with(&world.chunks(&[(at, 1)]), policy)?;
    Ok(matches!(step.replay(&graph), Err(Error::Order { .. })))
}

/// What spilling came to, and that nothing of it is left; whether everything held.
pub(crate) fn end(
    gpu: &Gpu,
    cache: &mut GpuCache,
    world: &mut World,
    longest: usize,
    seed: u64,
) -> Result<bool, Failure> {
    let snapshot = cache.snapshot();
    let (Some(spill), Some(spills), Some(fetches)) = (snapshot.spill, snapshot.spills, snapshot.fetches) else {
        return Err("originals do not spill".into());
    };
    println!("{spill:?}");
    println!(
        "{} slots of {} bytes spilled, {} reads of {} bytes",
        spills.done.count(),
        spills.done.sum,
        fetches.done.count(),
        fetches.done.sum
    );
    let refused = recorded_is_refused(gpu, cache, world, longest)?;
    let faults = spills.failed + fetches.failed + u64::from(cache.check_spilled().is_some()) + u64::from(!refused);
    while !world.held.is_empty() {
        world.release(cache, 0)?;
    }
    cache.evict_prefixes(usize::MAX)?;
    let until = Instant::now() + Duration::from_secs(60);
    let left = loop {
        cache.tend_spilled();
        let spill = cache.snapshot().spill.unwrap_or_default();
        let records = spill.records.doomed + spill.records.putting;
        let left = cache.live_pages() + spill.resident + spill.stored + spill.spilled + records;
        if left == 0 || Instant::now() > until {
            break left;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let moved = spills.done.count() > 0 && fetches.done.count() > 0;
    let failed = faults + left as u64 + u64::from(!moved);
    println!(
        "GATE gpu-engine-spill executed={} failed={failed} controls={}/1 seed={seed:#x}",
        spills.done.count() + fetches.done.count(),
        u8::from(refused)
    );
    Ok(failed == 0)
}

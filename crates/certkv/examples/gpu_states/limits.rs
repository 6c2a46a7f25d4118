//! B20: a cache that the machine has no memory for is refused with a typed error, keeps nothing, and the next one works.
//!
//! Pinned memory is touched before it is registered, so that an amount near the machine's would be refused by the system's out-of-memory killer
//! alone. It is asked for in two ways: more than any address space has, which the system refuses at once, and more than the budget.
use super::bench::{Answer, Bench, Failure, Tally, bent, decode, different, policies, prefill, prompt, rows};
use certkv::gpu::{CudaError, DeviceBuffer, GpuConfig, GpuMachine};
use certkv::{Class, Error, Geometry};
use certkv_testkit::generate::Rng;
use std::time::Instant;

/// What frees and allocations of as many bytes may leave of a difference: the driver's own rounding.
const ROUNDING: usize = 32 << 20;
/// More than a process can map.
const ADDRESSES: usize = 1 << 47;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Device,
    Pinned,
    Budget,
}

fn is(error: &Error, want: Want) -> bool {
    matches!(
        (error, want),
        (Error::Gpu(CudaError::OutOfDeviceMemory { .. }), Want::Device)
            | (Error::Gpu(CudaError::OutOfPinnedMemory { call: "mmap", .. }), Want::Pinned)
            | (Error::Budget(_), Want::Budget)
    )
}

/// A small cache's answers.
fn works(bench: &Bench<'_>) -> Result<Vec<Answer>, Failure> {
    let (mut cache, mut r) = (bench.cache(bench.config(bench.formats[0], 8, 2)?)?, Rng::new(bench.seed));
    let (tokens, g) = (bench.block + 9, bench.geometry);
    let id = cache.create()?;
    prefill(&mut cache, id, tokens, &prompt(&g, tokens, &mut r))?;
    let mut answers = Vec::new();
    for (_, policy) in policies() {
        answers.extend(decode(&mut cache, &[id], &rows(&g, 1, &mut r), policy, false)?);
    }
    Ok(answers)
}

/// Configurations that are too large, each in another piece of memory.
fn cases(bench: &Bench<'_>, free: usize, total: usize) -> Result<Vec<(&'static str, GpuConfig, Want)>, Failure> {
    let machine = GpuMachine::of(bench.gpu)?;
    let small = |sequences: usize, blocks: usize| -> Result<GpuConfig, Failure> {
        let mut config = bench.config(bench.formats[0], blocks, sequences)?.with_scratch(0.0);
        config.max_context = 8 * bench.block;
        Ok(config)
    };
    let page = small(4, 64)?.plan(machine)?.of(Class::Packed) / 64;
    let side = 2 * bench.block * bench.geometry.head_dim;
    let mut behind = small(4, (total / 5 * 3) / page)?;
    let sides = (total / 5 * 3) / side / (2 * bench.geometry.layers);
    (behind.scratch_keys, behind.scratch_values) = (sides.min(1 << 24), sides.min(1 << 24));
    let plan = small(4, 64)?.plan(machine)?;
    let mut cases = vec![
        ("records alone", small(4, (total / 4 * 5) / page)?, Want::Device),
        ("scratch behind records", behind, Want::Device),
        ("tails behind records", small(4096, free.saturating_sub(1 << 30).max(page * 8) / page)?, Want::Device),
        ("device budget", GpuConfig { device_budget: plan.device.bytes - 1, ..small(4, 64)? }, Want::Budget),
        ("host budget", GpuConfig { host_budget: plan.host.bytes - 1, ..small(4, 64)? }, Want::Budget),
    ];
    let swaps = |layers: usize| -> Result<GpuConfig, Failure> {
        let g = bench.geometry;
        let geometry = Geometry { store: g.store, ..Geometry::new(layers, g.q_heads, g.kv_heads, g.head_dim)? };
        Ok(GpuConfig { geometry, swap_tokens: 1 << 31, ..small(4, 8)? })
    };
    let taken = |config: &GpuConfig| -> Result<usize, Failure> { Ok(config.plan(machine)?.of(Class::Host)) };
    let layers = 1 + 5 * (ADDRESSES / 4) / taken(&swaps(1)?)?;
    let swaps = swaps(layers.min(512))?;
    // Never less: what can be mapped would be touched.
    if taken(&swaps)? > ADDRESSES + (1 << 40) {
        cases.push(("pinned memory behind all else", swaps, Want::Pinned));
    } else {
        println!("pages are too small here to ask for more pinned memory than there are addresses");
    }
    Ok(cases)
}

/// A refusal, what it left, and a cache behind it.
fn refused(bench: &Bench<'_>, (name, config, want): (&str, GpuConfig, Want), well: &[Answer]) -> Result<bool, Failure> {
    let (before, usage) = (bench.gpu.memory_info()?.free, bench.gpu.usage());
    let start = Instant::now();
    let error = certkv::gpu::GpuCache::new(bench.gpu, bench.compiler, config).map(drop);
    let (took, after) = (start.elapsed().as_secs_f64(), bench.gpu.memory_info()?.free);
    let typed = error.as_ref().is_err_and(|error| is(error, want));
    let kept = bench.gpu.usage() != usage || before.abs_diff(after) > ROUNDING;
    let again = different(&works(bench)?, well, &bench.geometry) == 0;
    let text = error.map_or_else(|error| error.to_string(), |()| "no error".into());
    println!("{name}: {text}, after {took:.2} s; {} bytes less free", before.saturating_sub(after));
    if !typed || kept || !again {
        println!("WRONG {name}: typed {typed}, something kept {kept}, works again {again}");
    }
    Ok(typed && !kept && again)
}

pub(crate) fn run(bench: &Bench<'_>) -> Result<bool, Failure> {
    let mut tally = Tally::default();
    // What a driver takes for good with the first launches is taken before.
    let well = works(bench)?;
    let info = bench.gpu.memory_info()?;
    println!("{} of {} bytes of device memory free", info.free, info.total);
    for case in cases(bench, info.free, info.total)? {
        tally.executed += 1;
        tally.failed += usize::from(!refused(bench, case, &well)?);
    }
    if !bench.stubs {
        // Others have the memory that would do: as much as is left when they go.
        let most = info.free.saturating_sub(1 << 30);
        let others = DeviceBuffer::new(bench.gpu, most)?;
        let page = bench.config(bench.formats[0], 64, 4)?.plan(GpuMachine::of(bench.gpu)?)?.of(Class::Packed) / 64;
        let config = GpuConfig { max_context: 8 * bench.block, ..bench.config(bench.formats[0], (2 << 30) / page, 4)? };
        tally.executed += 1;
        tally.failed += usize::from(!refused(bench, ("beside others", config.clone(), Want::Device), &well)?);
        drop(others);
        tally.executed += 1;
        let fits = bench.cache(config).map(|cache| cache.live_pages() == 0);
        tally.failed += usize::from(!fits?);
    }
    let end = bench.gpu.memory_info()?.free;
    tally.executed += 1;
    tally.failed += usize::from(info.free.abs_diff(end) > ROUNDING);
    let held = DeviceBuffer::new(bench.gpu, 4 * ROUNDING)?;
    tally.control(end.abs_diff(bench.gpu.memory_info()?.free) > ROUNDING);
    drop(held);
    tally.control(different(&well, &bent(&well), &bench.geometry) == 1);
    let [device, pinned] = [CudaError::OutOfDeviceMemory { bytes: 1 }, CudaError::NoDriver].map(Error::Gpu);
    tally.control(is(&device, Want::Device) && !is(&device, Want::Pinned) && !is(&pinned, Want::Device));
    Ok(tally.gate("real-limits", bench.seed))
}

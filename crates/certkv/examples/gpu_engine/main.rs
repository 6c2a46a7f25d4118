//! The engine's CUDA path against attention in f64: `gpu_engine [--small] [--steps N] [--cubins FOLDER] [--cache FOLDER]
//! [--format F] [--window N] [--sinks N] [--chunks N] [--only windows|spill|levels] [--seed N]`; a format for each layer is written `F+F+..`.
//!
//! Ragged batches under every policy with forks, truncations, swaps, releases and dropped steps; every output is compared with
//! attention in f64 over the originals, which are read back bit for bit; then a recorded step is replayed beside a twin. Then the same in caches
//! whose layers have sliding windows with sinks, all of them and every second one, of `--window` and `--sinks` tokens; and in caches whose host
//! memory is too small for all originals, which spill to memory and to files; and in caches whose blocks have levels. Where all layers have windows some tokens are protected, and with originals
//! in bfloat16 all of them, so that steps may add nothing from codes. The happens-before checker is on
//! meanwhile. Longer chunks of up to `--chunks` tokens are attended by the GPU. Exit code 0: all hold, 1: something is wrong, 2: no GPU.
#[path = "../common/mod.rs"]
mod common;
mod device_rows;
mod fused;
mod levels;
mod losses;
mod ordered;
mod replay;
mod scored;
mod spill;
mod watch;
mod world;

use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Certified, Dtype, Eviction, Geometry, Policy, PrefixConfig, PrefixSecret, Protection, Tier, Window};
use common::Words;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use world::{Failure, Owed, STORES, Tally, World, abandon};

/// What is run.
struct Plan {
    small: bool,
    steps: usize,
    replays: usize,
    seed: u64,
    format: Option<String>,
    /// Of the lives with windows.
    window: Window,
    /// Of these lives alone.
    only: Option<String>,
    /// Longest chunk that the GPU attends.
    chunks: usize,
}

fn certified(tol_rel: f64) -> (Policy, Owed) {
    let policy = Policy::Certified(Certified { tol_rel, ..Certified::default() });
    (policy, Owed { tolerance: Some(tol_rel), exact: false })
}

/// Policies in turn: what they are called and what they owe.
fn policies() -> [(&'static str, Policy, Owed); 5] {
    let free = Owed { tolerance: None, exact: false };
    let (usual, within) = certified(0.05);
    let (strict, close) = certified(0.002);
    let (easy, wide) = certified(0.2);
    [
        ("certified 5%", usual, within),
        ("packed", Policy::Packed, free),
        ("certified 20%", easy, wide),
        ("certified 0.2%", strict, close),
        ("dense", Policy::Dense, Owed { tolerance: None, exact: true }),
    ]
}

/// What layers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Everything,
    /// All of them a window.
    Windows,
    /// The first and every second layer after it.
    Mixed,
}

impl Plan {
    fn runs(&self, lives: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == lives)
    }
}

/// One cache's life. Returns whether everything held.
fn life(
    gpu: &Gpu,
    compiler: &Compiler,
    plan: &Plan,
    (format, store, sight): (&str, Dtype, Sight),
    spilled: Option<spill::Place>,
) -> Result<bool, Failure> {
    let (layers, q_heads, kv_heads, dim) = if plan.small { (2, 4, 2, 64) } else { (4, 16, 4, 128) };
    let geometry = Geometry { store, ..Geometry::new(layers, q_heads, kv_heads, dim)? };
    let longest = if plan.small { 320 } else { 4096 };
    let mut config = GpuConfig::new(geometry, 8 * longest);
    config.formats = format.split('+').map(str::parse).collect::<Result<_, _>>()?;
    // Room for all promoted sides, for some, and for so few that they push each other out.
    config = config.with_scratch([0.5, 0.1, 0.01][plan.seed as usize % 3]);
    (config.max_context, config.max_sequences, config.threads) = (longest, 12, 4);
    config.certificate_ring = 4;
    // Plans come with attention in some lives, and beside it in the others.
    config.plan_apart = store == Dtype::Bf16 || sight == Sight::Mixed;
    config.chunk_tokens = plan.chunks.min(longest);
    config.swap_tokens = longest;
    let cached = PrefixConfig { secret: PrefixSecret::random()?, units: 4 * longest / 32, eviction: Eviction::S3Fifo };
    config.prefixes = Some(cached);
    let sees = |layer: &usize| sight == Sight::Windows || sight == Sight::Mixed && layer.is_multiple_of(2);
    config.windows = (0..layers).map(|layer| sees(&layer).then_some(plan.window)).collect();
    let windows = config.windows.clone();
    config.spill = spilled.map(|place| place.spill(longest)).transpose()?;
    let takes = spilled.is_none() && config.formats.iter().all(|format| format.refine.is_none());
    config.protection = match (store, sight) {
        _ if !takes => Protection::NONE,
        (Dtype::Bf16, _) => Protection::new(0, longest),
        (_, Sight::Windows) => Protection::new(5, if plan.small { 21 } else { 100 }),
        _ => Protection::NONE,
    };
    let mut world = World::new(geometry, windows, plan.seed);
    world.protected = config.protection.recent == longest;
    let keys: Vec<_> = config.formats.iter().map(|format| format.key).collect();
    if keys.iter().any(|key| key.is_folded()) {
        config.calibration = Some(world.calibration()?);
    }
    let tiers = Tier::ALL.into_iter().filter(|tier| keys.iter().any(|key| key.tier() == Some(*tier)));
    config.codebooks = tiers.map(|tier| world.codebooks(tier)).collect();
    let fixed = config.formats.iter().all(|format| format.key.page().is_some());
    if fixed {
        config.scales = Some(world.scales()?);
    }
    let start = Instant::now();
    let mut cache = GpuCache::new(gpu, compiler, config)?;
    println!("{format} {store} {sight:?} {spilled:?}: ready in {:.2} s", start.elapsed().as_secs_f64());
    let prompts: &[usize] = match (plan.small, spilled) {
        (true, _) => &[70, 1, 33, 64],
        (false, None) => &[1500, 1, 33, 700, 128],
        (false, Some(_)) => &[600, 1, 33, 400, 128],
    };
    let mut tallies = policies().map(|p| (p.0, Tally::default()));
    let (mut prefill, mut device) = (Tally::default(), [0; 4]);
    for _ in prompts {
        world.create(&mut cache)?;
    }
    let all: Vec<(usize, usize)> = prompts.iter().copied().enumerate().collect();
    let (chunks, inputs) = (world.chunks(&all), world.inputs(prompts.iter().sum()));
    let mut step = cache.begin(&chunks)?;
    world.remember(&all, &inputs);
    prefill.add(&world.run(&mut step, &all, &inputs, Owed { tolerance: Some(0.05), exact: false })?);
    step.finish()?;
    if spilled.is_some() {
        prefill.add(&spill::grow(&mut cache, &mut world, longest)?);
    }
    let (mut rows, mut lost) = world.read_back(&mut cache)?;
    for i in 0..plan.steps {
        disturb(&mut cache, &mut world, i, sight != Sight::Everything)?;
        if i % 5 == 2 && !world.held.is_empty() {
            let at = world.rng.below(world.held.len());
            world.swap(&mut cache, at)?;
        }
        let (name, policy, owed) = policies()[i / 2 % 5];
        // Far enough for the staging memory to come round several times.
        let held: usize = world.held.iter().map(|h| h.len + 8).sum();
        if i % 8 == 5 && held < 6 * longest && world.held.iter().all(|h| h.len + 16 < longest) {
            world.hurry(&mut cache, 8, policy)?;
        }
        // Some sequences rest, and now and then one gets a chunk beside the others' single tokens.
        let mut batch = Vec::new();
        for at in 0..world.held.len() {
            if world.rng.chance(0.8) && world.held[at].len + 8 < longest {
                // Drafts, longer chunks, and mostly steps.
                let chunk = match world.rng.below(10) {
                    0 => 2 + world.rng.below(40),
                    1 | 2 => 2 + world.rng.below(7),
                    _ => 1,
                };
                batch.push((at, chunk.min(longest - world.held[at].len)));
            }
        }
        if batch.is_empty() {
            continue;
        }
        let (chunks, inputs) = (world.chunks(&batch), world.inputs(batch.iter().map(|b| b.1).sum()));
        if i % 7 == 3 {
            abandon(&mut cache, &chunks, policy, &inputs)?;
        }
        let mut step = cache.begin_with(&chunks, policy)?;
        world.remember(&batch, &inputs);
        let tally = world.run(&mut step, &batch, &inputs, owed)?;
        if i % 3 == 1 {
            let seen = watch::in_device_memory(gpu, &mut step, &batch)?;
            device.iter_mut().zip(seen).for_each(|(all, n)| *all += n);
        }
        step.finish()?;
        if let Some((_, sum)) = tallies.iter_mut().find(|t| t.0 == name) {
            sum.add(&tally);
        }
        if i % 16 == 15 {
            let (n, wrong) = world.read_back(&mut cache)?;
            (rows, lost) = (rows + n, lost + wrong);
        }
    }
    let (n, wrong) = world.read_back(&mut cache)?;
    (rows, lost) = (rows + n, lost + wrong);
    prefill.print("first chunks");
    let mut sum = prefill;
    for (name, tally) in &tallies {
        tally.print(name);
        sum.add(tally);
    }
    println!(
        "GATE gpu-engine executed={} failed={} controls={}/{} seed={:#x}",
        sum.heads, sum.failed, sum.controls, sum.planted, plan.seed
    );
    println!(
        "GATE gpu-engine-chunks executed={} failed={} controls=0/0 seed={:#x}",
        sum.extended,
        usize::from(plan.chunks > 0 && sum.extended == 0),
        plan.seed
    );
    println!("GATE gpu-engine-originals executed={rows} failed={lost} controls=0/0 seed={:#x}", plan.seed);
    let [heads, wrong, planted, caught] = device;
    println!(
        "GATE gpu-engine-device executed={heads} failed={wrong} controls={caught}/{planted} seed={:#x}",
        plan.seed
    );
    lost += wrong + (planted - caught) + usize::from(heads == 0);
    for layer in 0..cache.geometry().layers {
        println!("layer {layer}: {:?}", cache.selection(layer)?);
    }
    if spilled.is_some() {
        let held = spill::end(gpu, &mut cache, &mut world, longest, plan.seed)?;
        return Ok(held && sum.failed + lost == 0 && sum.controls == sum.planted && sum.planted > 0);
    }
    while world.held.len() > 3 {
        world.release(&mut cache, 3)?;
    }
    for at in 0..world.held.len() {
        let len = world.held[at].len.min(longest / 4 + 11 * at);
        world.truncate(&mut cache, at, len)?;
        // Where the window has passed that: from the beginning.
        if world.held[at].len > len {
            world.truncate(&mut cache, at, 0)?;
        }
    }
    let refused = replay::refusal(gpu, &mut cache, &mut world)?;
    println!("GATE gpu-engine-refusals executed=2 failed={} controls=1/1 seed={:#x}", usize::from(!refused), plan.seed);
    let graphs = graphs(gpu, &mut cache, &mut world, plan)?;
    let (n, wrong) = world.read_back(&mut cache)?;
    lost += wrong;
    while !world.held.is_empty() {
        world.release(&mut cache, 0)?;
    }
    let (units, prefixes) = cache.prefix_stats().unwrap_or_default();
    println!(
        "GATE gpu-engine-prefixes executed={} failed={} controls=0/0 seed={:#x}, {units} units, {prefixes:?}",
        prefixes.hits,
        usize::from(prefixes.hits == 0),
        plan.seed
    );
    cache.evict_prefixes(usize::MAX)?;
    let left = cache.live_pages();
    println!("GATE gpu-engine-leaks executed={n} failed={left} controls=0/0 seed={:#x}", plan.seed);
    if let Some(beyond) = cache.saturated()? {
        println!(
            "GATE gpu-engine-fixed executed={beyond} failed={} controls=0/0 seed={:#x}",
            usize::from(beyond == 0),
            plan.seed
        );
        lost += usize::from(beyond == 0);
    }
    let caught = sum.controls == sum.planted && sum.planted > 0;
    Ok(sum.failed + lost + left == 0 && prefixes.hits > 0 && caught && graphs && refused)
}

/// Recordings of a step under three policies. Returns whether everything held.
fn graphs(gpu: &Gpu, cache: &mut GpuCache, world: &mut World, plan: &Plan) -> Result<bool, Failure> {
    let mut all = true;
    let recorded = policies().into_iter().filter(|p| ["certified 5%", "packed", "dense"].contains(&p.0));
    // Drafts are recorded where every layer has them.
    let drafts = if cache.attends_drafts() { &[1, 3][..] } else { &[1] };
    for ((name, policy, owed), tokens) in recorded.flat_map(|of| drafts.iter().map(move |tokens| (of, *tokens))) {
        let name = &format!("{}{}", name.split(' ').next().unwrap_or(name), if tokens > 1 { "-drafts" } else { "" });
        let ring = cache.certificate_ring().ok_or("the cache has a ring of certificates")?;
        let steps = if tokens > 1 { plan.replays / 4 } else { plan.replays };
        let (stop, layer) = (AtomicBool::new(false), world.geometry.layers - 1);
        let (r, seen) = thread::scope(|scope| {
            let watcher = scope.spawn(|| watch::watch(&ring, layer, &stop));
            let r = replay::run(gpu, cache, world, (world.held.len(), tokens, steps), (policy, owed));
            stop.store(true, Ordering::Release);
            (r, watcher.join())
        });
        let (r, seen) = (r?, seen.map_err(|_| "the watcher panicked")?);
        all &= watch::judge(name, &r.said, &seen, plan.seed) && r.unpublished == 0;
        r.tally.print(&format!("recorded {name}"));
        let each = |t: Duration| t.as_secs_f64() * 1e6 / r.steps.max(1) as f64;
        println!(
            "recording of {} nodes, {} runs: {:.0} us each; plainly {:.0} us",
            r.nodes,
            r.steps,
            each(r.recorded),
            each(r.plain)
        );
        let failed = r.different + r.tally.failed;
        println!(
            "GATE gpu-engine-graph-{} executed={} failed={failed} controls={}/{} seed={:#x}",
            name,
            r.steps * world.geometry.layers,
            r.tally.controls,
            r.tally.planted,
            plan.seed
        );
        all &= failed == 0 && r.tally.controls == r.tally.planted;
    }
    Ok(all)
}

/// Forks, truncations, releases, new sequences and such as begin with cached prefixes; with windows, files.
fn disturb(cache: &mut GpuCache, world: &mut World, step: usize, windowed: bool) -> Result<(), Failure> {
    let n = world.held.len();
    let at = world.rng.below(n.max(1));
    match step % 6 {
        0 if n < 8 => world.fork(cache, at),
        2 if n > 0 => {
            let len = world.rng.below(world.held[at].len + 1);
            // Not always far back: often within the last block, or to its edge.
            let near = world.held[at].len.saturating_sub(1 + step % 40);
            world.truncate(cache, at, if step.is_multiple_of(4) { len } else { near })
        }
        3 | 5 if n > 7 => world.release(cache, at),
        3 if n > 5 => world.release(cache, at),
        1 if (1..9).contains(&n) && windowed => world.copy(cache, at),
        1 | 4 if (1..11).contains(&n) => world.resume(cache, at),
        5 if n < 7 => world.create(cache),
        _ => Ok(()),
    }
}

fn all(gpu: &Gpu, compiler: &Compiler, plan: &Plan) -> Result<bool, Failure> {
    let info = gpu.info();
    println!("{}, sm_{}, {} multiprocessors", info.name, info.arch_number(), info.multiprocessors);
    let usual = if plan.small { "k8-v4g32-b16" } else { "k8-v4g32-b32" };
    let mut held = true;
    for store in STORES.into_iter().filter(|_| plan.format.is_none() && plan.only.is_none()) {
        held &= life(gpu, compiler, plan, (usual, store, Sight::Everything), None)?;
    }
    if plan.format.is_none() && plan.only.is_none() {
        let one = if plan.small { "ctq4-v4g32-b16" } else { "ctq4-tq4-b32" };
        let several = if plan.small { "gtq3-v4g32-b16" } else { "gtq3-tq3-b32" };
        let spherical = if plan.small { "s1-v4g32-b16" } else { "s1-tq3-b32" };
        // And one with fixed scales.
        let fixed = if plan.small { "p8-e4m3-b16" } else { "p8-e4m3-b32" };
        for taught in [one, several, spherical, fixed] {
            held &= life(gpu, compiler, plan, (taught, Dtype::F16, Sight::Everything), None)?;
        }
    }
    if let (Some(format), None) = (&plan.format, &plan.only) {
        held &= life(gpu, compiler, plan, (format, Dtype::F16, Sight::Everything), None)?;
    }
    for format in ["k8-v4g64-b16", "k8-c4-b32-r8.4", "tq4-tq4-b32"].into_iter().filter(|_| plan.only.is_none()) {
        held &= fused::holds(gpu, compiler, format, plan.seed)?;
    }
    let format = plan.format.as_deref().unwrap_or(usual);
    for sight in [Sight::Windows, Sight::Mixed].into_iter().filter(|_| plan.runs("windows")) {
        held &= life(gpu, compiler, plan, (format, Dtype::F16, sight), None)?;
    }
    // A format with residual planes has loans where the other has scratch.
    let refined = if plan.small { "k8-v4g32-b16-r8.4" } else { "k8-v4g32-b32-r4.4" };
    let places = [
        (format, Sight::Everything, spill::Place::Memory),
        (refined, Sight::Everything, spill::Place::Memory),
        (format, Sight::Mixed, spill::Place::Files),
    ];
    for (format, sight, place) in places.into_iter().filter(|_| plan.runs("spill")) {
        held &= life(gpu, compiler, plan, (format, Dtype::F16, sight), Some(place))?;
    }
    for ladder in levels::LADDERS.into_iter().filter(|_| plan.runs("levels") && plan.format.is_none()) {
        held &= levels::life(gpu, compiler, plan, ladder)?;
    }
    let order = gpu.order_report().unwrap_or_default();
    let (caught, planted) = ordered::planted(gpu)?;
    println!(
        "GATE gpu-order executed={} failed={} controls={caught}/{planted} seed={:#x}",
        order.accesses, order.unordered, plan.seed
    );
    println!("{} operations ordered", order.ops);
    held &= order.accesses > 0 && order.unordered == 0 && caught == planted;
    println!("{}", if held { "all held" } else { "SOMETHING IS WRONG" });
    Ok(held)
}

fn main() -> ExitCode {
    let words = Words::given();
    let compiler = words.compiler();
    let small = words.has("--small");
    let plan = Plan {
        small,
        steps: words.number("--steps", if small { 48 } else { 160 }),
        replays: words.number("--replays", if small { 40 } else { 200 }),
        seed: words.number("--seed", 1) as u64,
        format: words.value("--format").cloned(),
        window: Window {
            chunk: 4096,
            ..Window::new(words.number("--window", if small { 40 } else { 500 })).with_sinks(words.number("--sinks", 5))
        },
        chunks: words.number("--chunks", if small { 64 } else { 1024 }),
        only: words.value("--only").cloned(),
    };
    let gpu = match Gpu::open(0) {
        Ok(gpu) => {
            gpu.check_order();
            gpu
        }
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    match all(&gpu, &compiler, &plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

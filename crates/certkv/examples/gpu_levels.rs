//! What steps cost where blocks have levels, beside caches of one format, and what a change costs: `gpu_levels [--seqs N] [--context N] [--layers N] [--levels F,G,..]
//! [--deciders] [--tolerance T] [--cubins FOLDER] [--cache FOLDER]`.
//!
//! 32 query heads, 8 KV heads, 128 channels, random data; in us a layer, of steps in device memory from a recording, means of steps in which sequences grow: of each format
//! alone, and of a cache with all of them as levels, of which the first has all blocks, then every level as many, then the last has all, changed one by one and at once. Under the packed policy and a
//! certified one. Then what those who decide take; with `--deciders` that alone. No check: `gpu_engine --only levels` is one. Exit code 2: no GPU.
#[path = "common/mod.rs"]
mod common;
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, LayerIo, Tensor};
use certkv::{
    BoundBudget, Certified, Chunk, Control, Format, Geometry, Level, Policy, RecordLayout, Retention, SequenceId,
    SmartKv, Status,
};
use certkv_testkit::generate::Rng;
use common::Words;
use std::process::ExitCode;
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 24;

struct Plan {
    seqs: usize,
    context: usize,
    layers: usize,
    tolerance: f64,
}

fn halves(n: usize, r: &mut Rng) -> Vec<u16> {
    (0..n).map(|_| certkv::Dtype::F16.encode16(r.normal() as f32)).collect()
}

fn filled(plan: &Plan, cache: &mut GpuCache, r: &mut Rng) -> Result<Vec<SequenceId>, Failure> {
    let width = cache.geometry().kv_width();
    let [keys, values] = [halves(plan.context * width, r), halves(plan.context * width, r)];
    let mut ids = Vec::new();
    for _ in 0..plan.seqs {
        let sequence = cache.create()?;
        let mut step = cache.begin(&[Chunk { sequence, tokens: plan.context }])?;
        (0..plan.layers).try_for_each(|layer| step.append_bits(layer, &keys, &values))?;
        step.finish()?;
        ids.push(sequence);
    }
    Ok(ids)
}

/// Us a layer of recorded steps, under the packed policy and the certified one, and the share of heads that the latter repairs.
fn steps(gpu: &Gpu, plan: &Plan, cache: &mut GpuCache, ids: &[SequenceId]) -> Result<[f64; 3], Failure> {
    let g = *cache.geometry();
    let room = |n: usize| DeviceBuffer::new(gpu, 2 * n);
    let (kv, q) = (ids.len() * g.kv_width(), ids.len() * g.q_width());
    let [keys, values, query, out] = [room(kv)?, room(kv)?, room(q)?, room(q)?];
    let mut r = Rng::new(5);
    for buffer in [&keys, &values, &query] {
        buffer.write(cache.stream(), 0, &halves(buffer.len() / 2, &mut r))?;
    }
    let of = |buffer, n| Tensor::of(buffer, 0, Element::F16, n);
    let io = LayerIo { keys: of(&keys, kv)?, values: of(&values, kv)?, query: of(&query, q)?, out: of(&out, q)? };
    let chunks: Vec<_> = ids.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
    let certified = Policy::Certified(Certified { tol_rel: plan.tolerance, ..Certified::default() });
    let mut found = [0.0; 3];
    for (at, policy) in [Policy::Packed, certified].into_iter().enumerate() {
        let graph = cache.record(ids.len(), &vec![io; g.layers], policy)?;
        for i in 0..ROUNDS + 2 {
            cache.stream().synchronize()?;
            let start = Instant::now();
            let mut step = cache.begin_with(&chunks, policy)?;
            step.replay(&graph)?;
            step.cache().stream().synchronize()?;
            if i >= 2 {
                found[at] += start.elapsed().as_secs_f64() * 1e6 / (ROUNDS * g.layers) as f64;
            }
            if i == ROUNDS + 1 && at == 1 {
                let mut certificates = vec![certkv::Certificate::default(); ids.len() * g.q_heads];
                step.certificates(0, &mut certificates)?;
                let repaired = certificates.iter().filter(|c| c.repairs > 0).count();
                assert!(certificates.iter().all(|c| matches!(c.status, Status::Certified | Status::Exact)));
                found[2] = repaired as f64 / certificates.len() as f64;
            }
            // Not finished: every step is of the same length.
        }
    }
    Ok(found)
}

/// What a call of who decides takes, a layer, behind a step: a sequence's first, those that decide nothing, and those that do; those that decide nothing until the device has done
/// what they ask of it; and blocks that were moved.
fn deciding(plan: &Plan, cache: &mut GpuCache, ids: &[SequenceId], r: &mut Rng) -> Result<[f64; 5], Failure> {
    let g = *cache.geometry();
    let (mut first, mut quiet, mut busy, mut done_in, mut moved) = ((0.0, 0), (0.0, 0), (0.0, 0), (0.0, 0), 0);
    let chunks: Vec<_> = ids.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
    for round in 0..3 * ROUNDS {
        let (keys, values) = (halves(ids.len() * g.kv_width(), r), halves(ids.len() * g.kv_width(), r));
        let queries: Vec<f32> = (0..ids.len() * g.q_width()).map(|_| r.normal() as f32).collect();
        let mut step = cache.begin_with(&chunks, Policy::Packed)?;
        for layer in 0..plan.layers {
            step.append_bits(layer, &keys, &values)?;
            step.attend(layer, &queries)?;
        }
        step.finish()?;
        cache.synchronize()?;
        let (all, mut decided) = (Instant::now(), 0);
        for id in ids {
            let start = Instant::now();
            let done = cache.control(*id)?;
            decided += done.decided;
            let took = start.elapsed().as_secs_f64() * 1e6 / plan.layers as f64;
            let of = match (round, done.decided) {
                (0, _) => &mut first,
                (_, 0) => &mut quiet,
                _ => &mut busy,
            };
            (of.0, of.1) = (of.0 + took, of.1 + 1);
            moved += done.changed;
        }
        let called = all.elapsed().as_secs_f64();
        // What calls left to the next step runs when one begins: less what that takes by itself.
        let mut begins = [0.0; 2];
        for took in &mut begins {
            let start = Instant::now();
            drop(cache.begin_with(&chunks, Policy::Packed)?);
            cache.stream().synchronize()?;
            *took = start.elapsed().as_secs_f64();
        }
        if decided == 0 {
            let took = called + begins[0] - begins[1];
            done_in = (done_in.0 + 1e6 * took / (plan.layers * ids.len()) as f64, done_in.1 + 1);
        }
    }
    let mean = |(sum, n): (f64, usize)| sum / n.max(1) as f64;
    Ok([mean(first), mean(quiet), mean(busy), mean(done_in), moved as f64])
}

fn print(name: &str, [packed, certified, repaired]: [f64; 3]) {
    println!(
        "  {name:34} packed {packed:8.1}, certified {certified:8.1} us a layer, {:.1}% repaired",
        100.0 * repaired
    );
}

/// Of a cache of `plan`, without formats.
fn config(plan: &Plan) -> Result<GpuConfig, Failure> {
    let room = (plan.context + 128).next_multiple_of(64);
    let mut config = GpuConfig::new(Geometry::new(plan.layers, 32, 8, 128)?, plan.seqs * room);
    (config.max_context, config.max_sequences, config.threads) = (room, plan.seqs, 8);
    Ok(config)
}

/// All formats as levels, each with room for everything.
fn levels(plan: &Plan, formats: &[Format]) -> Result<Vec<Level>, Failure> {
    let tokens = config(plan)?.max_tokens;
    Ok(formats.iter().map(|format| Level { format: *format, tokens }).collect())
}

fn measure_steps(gpu: &Gpu, compiler: &Compiler, plan: &Plan, formats: &[Format]) -> Result<(), Failure> {
    let mut r = Rng::new(3);
    for format in formats {
        let mut cache = GpuCache::new(gpu, compiler, config(plan)?.with_format(*format))?;
        let ids = filled(plan, &mut cache, &mut r)?;
        print(&format.to_string(), steps(gpu, plan, &mut cache, &ids)?);
    }
    let mut cache = GpuCache::new(gpu, compiler, config(plan)?.with_levels(levels(plan, formats)?))?;
    let ids = filled(plan, &mut cache, &mut r)?;
    print("levels, all blocks at the first", steps(gpu, plan, &mut cache, &ids)?);
    let blocks = plan.context / formats[0].block;
    for (name, at_once) in [("levels, as many blocks at each", false), ("levels, all at the last", true)] {
        let level_of = |block: usize| if at_once { formats.len() - 1 } else { block % formats.len() };
        let (start, mut changes) = (Instant::now(), 0);
        if at_once {
            let lists = vec![(0..blocks).map(level_of).collect(); plan.layers];
            for id in &ids {
                changes += cache.set_levels(*id, &lists)?.changed;
            }
        } else {
            for (id, layer, block) in
                ids.iter().flat_map(|id| (0..plan.layers).flat_map(move |l| (0..blocks).map(move |b| (*id, l, b))))
            {
                changes += usize::from(cache.level(id, layer, block)? != level_of(block));
                cache.change_level(id, layer, block, level_of(block))?;
            }
        }
        let called = start.elapsed();
        cache.synchronize()?;
        let each = |t: std::time::Duration| t.as_secs_f64() * 1e6 / changes.max(1) as f64;
        println!(
            "  {changes} changes, {}: {:.1} us each, {:.1} until they are done",
            if at_once { "all at once" } else { "one by one" },
            each(called),
            each(start.elapsed())
        );
        print(name, steps(gpu, plan, &mut cache, &ids)?);
    }
    Ok(())
}

fn measure_deciders(gpu: &Gpu, compiler: &Compiler, plan: &Plan, formats: &[Format]) -> Result<(), Failure> {
    let (mut r, geometry) = (Rng::new(4), config(plan)?.geometry);
    let bytes = |format: &Format| RecordLayout::new(&geometry, *format).map(|layout| layout.bytes * geometry.kv_heads);
    let (most, least) = (bytes(&formats[0])? as f64, bytes(&formats[formats.len() - 1])? as f64);
    let budget = (0.5 * most + 0.5 * least) / formats[0].block as f64;
    let deciders: [(&str, Control); 3] = [
        ("SmartKV", SmartKv::new(budget).into()),
        ("retention", Retention::new(budget).into()),
        ("the bound's budget", Control::Budget(BoundBudget::new(budget))),
    ];
    for (name, control) in deciders {
        let config = GpuConfig { control: Some(control), ..config(plan)?.with_levels(levels(plan, formats)?) };
        let mut cache = GpuCache::new(gpu, compiler, config)?;
        let ids = filled(plan, &mut cache, &mut r)?;
        let [first, quiet, busy, done, moved] = deciding(plan, &mut cache, &ids, &mut r)?;
        println!(
            "  {name}: us a layer and sequence {first:.1} in the first call, then {quiet:.2} where nothing is decided ({done:.2} until the device is done), {busy:.1} where something is; {moved} blocks moved"
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let words = Words::given();
    let tolerance = words.value("--tolerance").and_then(|t| t.parse().ok()).unwrap_or(0.5);
    let (seqs, context, layers) =
        (words.number("--seqs", 8), words.number("--context", 32740), words.number("--layers", 2));
    let plan = Plan { seqs, context, layers, tolerance };
    let formats = words.value("--levels").map_or("k8-v4g64-b64,k4-v4g64-b64", String::as_str);
    let run = || -> Result<bool, Failure> {
        let formats = formats.split(',').map(str::parse).collect::<Result<Vec<Format>, _>>()?;
        let Ok(gpu) = Gpu::open(0) else { return Ok(false) };
        println!("{} x {}, {} layers, tolerance {}:", plan.seqs, plan.context, plan.layers, plan.tolerance);
        if !words.has("--deciders") {
            measure_steps(&gpu, &words.compiler(), &plan, &formats)?;
        }
        measure_deciders(&gpu, &words.compiler(), &plan, &formats)?;
        Ok(true)
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("no GPU");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

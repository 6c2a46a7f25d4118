//! What attention of a longer chunk costs in the engine: `gpu_chunks [--context N] [--tokens N,..] [--at-once N] [--formats F,G+H,..] [--cpu] [--cubins FOLDER]
//! [--cache FOLDER]`.
//!
//! One sequence, 32 query heads, 8 KV heads, 128 channels, random data, originals in pinned memory; `G+H` are levels, of which every second block has each. In ms a layer until all of it is
//! there, the best of four layers: the append, and attention under the packed policy (codes of what was stored before), the dense one (originals of all) and the certified one with a tolerance that codes
//! do not meet (both); with rows, queries and outputs in device memory, of 16 bits, and of the host, of single precision. `--at-once`: tokens of a chunk that are attended at once
//! (`GpuConfig::chunk_tokens`). `--cpu`: the dense policy without them, too. No check: `gpu_engine` is one. Exit code 2: no GPU.
#[path = "common/mod.rs"]
mod common;
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, Tensor};
use certkv::{Certificate, Certified, Chunk, Geometry, Level, Policy, SequenceId, Status};
use certkv_testkit::generate::Rng;
use common::Words;
use std::process::ExitCode;
use std::time::Instant;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LAYERS: usize = 4;

struct Plan {
    context: usize,
    tokens: Vec<usize>,
    at_once: usize,
}

fn halves(n: usize, r: &mut Rng) -> Vec<u16> {
    (0..n).map(|_| certkv::Dtype::F16.encode16(r.normal() as f32)).collect()
}

fn filled(plan: &Plan, cache: &mut GpuCache, r: &mut Rng) -> Result<SequenceId, Failure> {
    let width = cache.geometry().kv_width();
    let [keys, values] = [halves(plan.context * width, r), halves(plan.context * width, r)];
    let sequence = cache.create()?;
    if plan.context == 0 {
        return Ok(sequence);
    }
    let mut step = cache.begin(&[Chunk { sequence, tokens: plan.context }])?;
    (0..LAYERS).try_for_each(|layer| step.append_bits(layer, &keys, &values))?;
    step.finish()?;
    Ok(sequence)
}

/// The same in device memory.
fn on_device(
    gpu: &Gpu,
    cache: &mut GpuCache,
    sequence: SequenceId,
    tokens: usize,
    policy: Policy,
) -> Result<[f64; 2], Failure> {
    let g = *cache.geometry();
    let (kv, q) = (tokens * g.kv_width(), tokens * g.q_width());
    let room = |n: usize| DeviceBuffer::new(gpu, 2 * n);
    let [keys, values, query, out] = [room(kv)?, room(kv)?, room(q)?, room(q)?];
    let mut r = Rng::new(7);
    for buffer in [&keys, &values, &query] {
        buffer.write(cache.stream(), 0, &halves(buffer.len() / 2, &mut r))?;
    }
    let of = |buffer, n| Tensor::of(buffer, 0, Element::F16, n);
    let mut certificates = vec![Certificate::default(); tokens * g.q_heads];
    let mut best = [f64::INFINITY; 2];
    let mut step = cache.begin_with(&[Chunk { sequence, tokens }], policy)?;
    for layer in 0..LAYERS {
        let start = Instant::now();
        step.append_device(layer, of(&keys, kv)?, of(&values, kv)?)?;
        step.cache().stream().synchronize()?;
        best[0] = best[0].min(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        step.attend_device(layer, of(&query, q)?, of(&out, q)?)?;
        step.cache().stream().synchronize()?;
        best[1] = best[1].min(start.elapsed().as_secs_f64() * 1e3);
        step.certificates(layer, &mut certificates)?;
        assert!(certificates.iter().all(|c| fits(c, policy)));
    }
    Ok(best)
}

/// Whether a certificate is what a policy asks for.
fn fits(c: &Certificate, policy: Policy) -> bool {
    match policy {
        Policy::Packed => matches!(c.status, Status::Uncertified | Status::Exact),
        _ => c.status == Status::Exact,
    }
}

/// Ms a layer, the best of all: of the append and of attention; the step is given up.
fn step(
    cache: &mut GpuCache,
    sequence: SequenceId,
    tokens: usize,
    policy: Policy,
    layers: usize,
) -> Result<[f64; 2], Failure> {
    let g = *cache.geometry();
    let mut r = Rng::new(7);
    let (keys, values) = (halves(tokens * g.kv_width(), &mut r), halves(tokens * g.kv_width(), &mut r));
    let queries: Vec<f32> = (0..tokens * g.q_width()).map(|_| r.normal() as f32).collect();
    let (mut out, mut certificates) = (vec![0.0; queries.len()], vec![Certificate::default(); tokens * g.q_heads]);
    let mut best = [f64::INFINITY; 2];
    let mut step = cache.begin_with(&[Chunk { sequence, tokens }], policy)?;
    for layer in 0..layers {
        let start = Instant::now();
        step.append_bits(layer, &keys, &values)?;
        best[0] = best[0].min(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        step.attend(layer, &queries)?;
        best[1] = best[1].min(start.elapsed().as_secs_f64() * 1e3);
        step.outputs(layer, &mut out, &mut certificates)?;
        assert!(certificates.iter().all(|c| fits(c, policy)) && out.iter().all(|x| x.is_finite()));
    }
    Ok(best)
}

fn config(plan: &Plan, formats: &str) -> Result<GpuConfig, Failure> {
    let longest = plan.context + plan.tokens.iter().max().copied().unwrap_or(0);
    let mut config = GpuConfig::new(Geometry::new(LAYERS, 32, 8, 128)?, longest);
    (config.max_sequences, config.threads) = (2, 16);
    let all: Vec<&str> = formats.split('+').collect();
    if all.len() == 1 {
        return Ok(config.with_format(formats.parse()?));
    }
    let level = |format: &&str| -> Result<Level, Failure> { Ok(Level { format: format.parse()?, tokens: longest }) };
    Ok(config.with_levels(all.iter().map(level).collect::<Result<_, _>>()?))
}

fn measure(gpu: &Gpu, compiler: &Compiler, plan: &Plan, formats: &str, cpu: bool) -> Result<(), Failure> {
    let mut config = config(plan, formats)?;
    config.chunk_tokens = plan.at_once;
    let mut cache = GpuCache::new(gpu, compiler, config.clone())?;
    let id = filled(plan, &mut cache, &mut Rng::new(3))?;
    let levels = cache.levels().len();
    if levels > 0 {
        let blocks = plan.context / cache.layouts()[0].tokens();
        let each: Vec<usize> = (0..blocks).map(|block| block % levels).collect();
        cache.set_levels(id, &vec![each; LAYERS])?;
    }
    let tight = Policy::Certified(Certified { tol_rel: 1e-9, ..Certified::default() });
    for tokens in &plan.tokens {
        for device in [true, false] {
            let mut found = Vec::new();
            for policy in [Policy::Packed, Policy::Dense, tight] {
                found.push(match device {
                    true => on_device(gpu, &mut cache, id, *tokens, policy)?,
                    false => step(&mut cache, id, *tokens, policy, LAYERS)?,
                });
            }
            let rows = if device { "device" } else { "host" };
            println!(
                "{formats:28} {:7} {tokens:7} {rows:>6} {:10.2} {:10.2} {:10.2} {:12.2}",
                plan.context, found[0][0], found[0][1], found[1][1], found[2][1]
            );
        }
        if cpu {
            let mut cache = GpuCache::new(gpu, compiler, GpuConfig { chunk_tokens: 0, ..config.clone() })?;
            let id = filled(plan, &mut cache, &mut Rng::new(3))?;
            println!("on the CPU {:10.1} ms", step(&mut cache, id, *tokens, Policy::Dense, 1)?[1]);
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let words = Words::given();
    let list = |name: &str, usual: &str| words.value(name).map_or(usual, String::as_str).to_owned();
    let numbers = |text: String| text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
    let plan = || -> Result<Plan, Failure> {
        Ok(Plan {
            context: words.number("--context", 32768),
            tokens: numbers(list("--tokens", "2048"))?,
            at_once: words.number("--at-once", 2048),
        })
    };
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let run = || -> Result<(), Failure> {
        let plan = plan()?;
        println!(
            "{:28} {:>7} {:>7} {:>6} {:>10} {:>10} {:>10} {:>12}",
            "format", "before", "tokens", "rows", "append ms", "packed", "dense", "over it both"
        );
        for formats in list("--formats", "k8-v4g64-b64,k8-v4g64-b64+k4-v4g64-b64").split(',') {
            measure(&gpu, &words.compiler(), &plan, formats, words.has("--cpu"))?;
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

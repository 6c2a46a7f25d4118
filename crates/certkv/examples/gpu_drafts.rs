//! What drafts of several tokens cost in steps of the engine, beside single tokens: `gpu_drafts [--seqs N] [--context N] [--apart N] [--layers N] [--drafts T,..]
//! [--protect SINKS,RECENT] [--formats F,G] [--cubins FOLDER] [--cache FOLDER]`.
//!
//! Every sequence gets as many new tokens. 32 query heads, 8 KV heads, 128 channels, random data, packed policy; in us a layer: with rows, queries and outputs of
//! the host, until all layers are appended, attended and read, and of that the appends, medians of steps that are given up; in device memory, until all of
//! it is done, by calls and from a recording, means of steps in which sequences grow. They are `--apart` tokens longer, one than the other, modulo a block, so that not all
//! of their blocks fill at once. More than eight tokens are attended one sequence after the other (docs/gpu.md, "Longer chunks"). No check:
//! `gpu_engine` is one. Exit code 2: no GPU.
#[path = "common/mod.rs"]
mod common;
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, LayerIo, Tensor};
use certkv::{Certificate, Chunk, Geometry, Policy, Protection, SequenceId};
use certkv_testkit::generate::Rng;
use common::Words;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ROUNDS: usize = 32;

struct Plan {
    seqs: usize,
    context: usize,
    apart: usize,
    layers: usize,
    drafts: Vec<usize>,
    protection: Protection,
}

/// Halves of numbers around 1, of either sign.
fn halves(n: usize, r: &mut Rng) -> Vec<u16> {
    (0..n).map(|_| r.bits() as u16 & 0xbbff).collect()
}

/// One step of `tokens` tokens a sequence, which is given up. How long it took, and its appends.
fn step(cache: &mut GpuCache, ids: &[SequenceId], tokens: usize, r: &mut Rng) -> Result<[Duration; 2], Failure> {
    let g = *cache.geometry();
    let n = ids.len() * tokens;
    let (keys, values) = (halves(n * g.kv_width(), r), halves(n * g.kv_width(), r));
    let queries: Vec<f32> = (0..n * g.q_width()).map(|_| r.normal() as f32).collect();
    let (mut out, mut certificates) = (vec![0.0; queries.len()], vec![Certificate::default(); n * g.q_heads]);
    let chunks: Vec<_> = ids.iter().map(|id| Chunk { sequence: *id, tokens }).collect();
    let mut appends = Duration::ZERO;
    let start = Instant::now();
    let mut step = cache.begin_with(&chunks, Policy::Packed)?;
    for layer in 0..g.layers {
        let before = Instant::now();
        step.append_bits(layer, &keys, &values)?;
        appends += before.elapsed();
        step.attend(layer, &queries)?;
        step.outputs(layer, &mut out, &mut certificates)?;
    }
    Ok([start.elapsed(), appends])
}

/// The same in device memory, `ROUNDS` times by calls and from a recording: means.
fn on_device(gpu: &Gpu, cache: &mut GpuCache, ids: &[SequenceId], tokens: usize) -> Result<[Duration; 3], Failure> {
    let g = *cache.geometry();
    let n = ids.len() * tokens;
    let room = |bytes: usize| DeviceBuffer::new(gpu, bytes);
    let [keys, values, query, out] = [
        room(2 * n * g.kv_width())?,
        room(2 * n * g.kv_width())?,
        room(2 * n * g.q_width())?,
        room(2 * n * g.q_width())?,
    ];
    let mut r = Rng::new(5);
    for buffer in [&keys, &values, &query] {
        buffer.write(cache.stream(), 0, &halves(buffer.len() / 2, &mut r))?;
    }
    let of = |buffer| Tensor::of(buffer, 0, Element::F16, n * g.kv_width());
    let (keys, values) = (of(&keys)?, of(&values)?);
    let of = |buffer| Tensor::of(buffer, 0, Element::F16, n * g.q_width());
    let io = LayerIo { keys, values, query: of(&query)?, out: of(&out)? };
    let chunks: Vec<_> = ids.iter().map(|id| Chunk { sequence: *id, tokens }).collect();
    let graph = cache.record_drafts(ids.len(), tokens, &vec![io; g.layers], Policy::Packed)?;
    let mut times = [Duration::ZERO; 3];
    for i in 0..2 * (ROUNDS + 1) {
        // As a model would wait: for the step, and not for what leaves beside it.
        cache.stream().synchronize()?;
        let start = Instant::now();
        let mut step = cache.begin_with(&chunks, Policy::Packed)?;
        if i % 2 == 0 {
            for layer in 0..g.layers {
                step.append_device(layer, io.keys, io.values)?;
                step.attend_device(layer, io.query, io.out)?;
            }
        } else {
            step.replay(&graph)?;
        }
        step.finish()?;
        let enqueued = start.elapsed();
        cache.stream().synchronize()?;
        // The first of each finds what it needs.
        if i >= 2 {
            times[i % 2] += start.elapsed();
            times[2] += if i % 2 == 1 { enqueued } else { Duration::ZERO };
        }
    }
    Ok(times.map(|time| time / ROUNDS as u32))
}

fn measure(gpu: &Gpu, compiler: &Compiler, plan: &Plan, format: &str) -> Result<(), Failure> {
    let geometry = Geometry::new(plan.layers, 32, 8, 128)?;
    let longest = plan.drafts.iter().max().copied().unwrap_or(1);
    let grown: usize = plan.drafts.iter().map(|tokens| 2 * (ROUNDS + 1) * tokens).sum();
    let room = (plan.context + 64 + grown + longest).next_multiple_of(64) + 64;
    let mut config = GpuConfig::new(geometry, plan.seqs * room).with_format(format.parse()?);
    (config.max_context, config.max_sequences, config.threads) = (room, plan.seqs, 8);
    config.chunk_tokens = longest.max(2);
    config.protection = plan.protection;
    let mut cache = GpuCache::new(gpu, compiler, config)?;
    let mut r = Rng::new(3);
    let mut ids = Vec::new();
    for i in 0..plan.seqs {
        let sequence = cache.create()?;
        let tokens = plan.context + i * plan.apart % 64;
        let n = tokens * geometry.kv_width();
        let (keys, values) = (halves(n, &mut r), halves(n, &mut r));
        let mut step = cache.begin(&[Chunk { sequence, tokens }])?;
        (0..plan.layers).try_for_each(|layer| step.append_bits(layer, &keys, &values))?;
        step.finish()?;
        ids.push(sequence);
    }
    println!("{format}, {} x {}, {} apart:", plan.seqs, plan.context, plan.apart);
    for tokens in &plan.drafts {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.push(step(&mut cache, &ids, *tokens, &mut r)?);
        }
        times.sort();
        let [all, appends] = times[ROUNDS / 2].map(|t| t.as_secs_f64() * 1e6 / plan.layers as f64);
        print!("  {tokens:2} tokens: host {all:8.1} us a layer, appends {appends:7.1}");
        if *tokens <= 8 {
            let times = on_device(gpu, &mut cache, &ids, *tokens)?;
            let [calls, recorded, enqueued] = times.map(|t| t.as_secs_f64() * 1e6 / plan.layers as f64);
            let each = recorded / *tokens as f64;
            print!("; device {calls:8.1}, recorded {recorded:8.1}, {each:6.1} a token, enqueued in {enqueued:.1}");
        }
        println!();
    }
    Ok(())
}

fn main() -> ExitCode {
    let words = Words::given();
    let drafts = words.value("--drafts").map_or("1,2,4,8,9", String::as_str);
    let drafts = drafts.split(',').filter_map(|n| n.parse().ok()).collect();
    let (seqs, context, layers) =
        (words.number("--seqs", 32), words.number("--context", 8150), words.number("--layers", 4));
    let protected = words.value("--protect").and_then(|given| given.split_once(','));
    let protection = match protected.map(|(sinks, recent)| (sinks.parse(), recent.parse())) {
        Some((Ok(sinks), Ok(recent))) => Protection::new(sinks, recent),
        _ => Protection::NONE,
    };
    let plan = Plan { seqs, context, apart: words.number("--apart", 0), layers, drafts, protection };
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let formats = words.value("--formats").map_or("k8-v4g64-b64,k8-v4g64-b64-r8.4", String::as_str);
    for format in formats.split(',') {
        if let Err(error) = measure(&gpu, &words.compiler(), &plan, format) {
            eprintln!("{format}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

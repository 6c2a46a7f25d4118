//! Sequences out of a GPU's memory and back, and through a file; prefixes through a store: `gpu_swap [--tokens N] [--layers N] [--rounds N]
//! [--cubins FOLDER] [--cache FOLDER] [--formats F,G]`.
//!
//! A sequence is saved and restored, and leaves and returns between its steps while the restored one stays: outputs and certificates of
//! both are compared bit for bit. Cached prefixes go from one cache to a second one, and sequences that begin with them are compared in the
//! same way. Before that the rate of leaving and returning beside that of one pinned copy of as many bytes. Exit code 0: all
//! hold, 1: something is wrong, 2: no GPU.
#[path = "common/mod.rs"]
mod common;
use certkv::gpu::{Compiler, CudaError, DeviceBuffer, Gpu, GpuCache, GpuConfig};
use certkv::store::{Get, MemoryStore, Outcome, Store, StoreConfig};
use certkv::{
    Certificate, Certified, Chunk, Eviction, Geometry, Policy, PrefixConfig, PrefixScope, PrefixSecret, SaveScope,
    SequenceId,
};
use certkv_kernel::cuda::queue::Queue;
use certkv_testkit::generate::Rng;
use common::Words;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const FILE: SaveScope<'_> = SaveScope { model: b"gpu_swap", key: None };
const PREFIX: PrefixScope<'_> = PrefixScope::new(b"gpu_swap", b"gpu_swap");
const RUNS: usize = 5;

struct Plan {
    tokens: usize,
    layers: usize,
    rounds: usize,
}

fn normal(n: usize, r: &mut Rng) -> Vec<f32> {
    (0..n).map(|_| r.normal() as f32).collect()
}

/// Outputs and certificates of one token in one layer.
type Answer = (Vec<u32>, Vec<Certificate>);

/// The same, layer by layer.
type Answers = Vec<Answer>;

/// One token; its rows and queries come from the seed.
fn decode(cache: &mut GpuCache, sequence: SequenceId, seed: u64, policy: Policy) -> Result<Answers, Failure> {
    let g = *cache.geometry();
    let mut r = Rng::new(seed);
    let mut step = cache.begin_with(&[Chunk { sequence, tokens: 1 }], policy)?;
    let mut answers = Vec::new();
    for layer in 0..g.layers {
        let (keys, values) = (normal(g.kv_width(), &mut r), normal(g.kv_width(), &mut r));
        let queries: Vec<f32> = normal(g.q_width(), &mut r).iter().map(|x| 2.0 * x).collect();
        step.append(layer, &keys, &values)?;
        step.attend(layer, &queries)?;
        let (mut out, mut certificates) = (vec![f32::NAN; g.q_width()], vec![Certificate::default(); g.q_heads]);
        step.outputs(layer, &mut out, &mut certificates)?;
        answers.push((out.iter().map(|x| x.to_bits()).collect(), certificates));
    }
    step.finish()?;
    Ok(answers)
}

/// Heads whose output or certificate is another one.
fn different(a: &Answers, b: &Answers, dim: usize) -> usize {
    let heads = |(a, b): (&Answer, &Answer)| {
        let outputs = a.0.chunks(dim).zip(b.0.chunks(dim)).map(|(a, b)| a != b);
        let certificates = a.1.iter().zip(&b.1).map(|(a, b)| a != b);
        outputs.zip(certificates).filter(|(out, certificate)| *out || *certificate).count()
    };
    a.iter().zip(b).map(heads).sum()
}

fn cache_of(gpu: &Gpu, compiler: &Compiler, plan: &Plan, format: &str) -> Result<GpuCache, Failure> {
    let geometry = Geometry::new(plan.layers, 32, 8, 128)?;
    let room = plan.tokens + 1024;
    let config = GpuConfig {
        max_context: room,
        max_sequences: 4,
        swap_tokens: room,
        threads: 16,
        prefixes: Some(PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 64, eviction: Eviction::Lru }),
        ..GpuConfig::new(geometry, 2 * room)
    };
    Ok(GpuCache::new(gpu, compiler, config.with_format(format.parse()?))?)
}

fn fill(cache: &mut GpuCache, tokens: usize, seed: u64) -> Result<SequenceId, Failure> {
    let g = *cache.geometry();
    let mut r = Rng::new(seed);
    let sequence = cache.create()?;
    let mut step = cache.begin(&[Chunk { sequence, tokens }])?;
    for layer in 0..g.layers {
        // One token in sixteen is drawn, the others are it with signs and places exchanged: drawing takes longer than coding.
        let mut rows = || -> Vec<f32> {
            let drawn = normal(tokens.div_ceil(16) * g.kv_width(), &mut r);
            let row = |t: usize| {
                let from = &drawn[t / 16 * g.kv_width()..(t / 16 + 1) * g.kv_width()];
                let turn = t % 16 * 37;
                (0..g.kv_width())
                    .map(move |c| if (c + t).is_multiple_of(3) { -1.0 } else { 1.0 } * from[(c + turn) % from.len()])
            };
            (0..tokens).flat_map(row).collect()
        };
        let (keys, values) = (rows(), rows());
        step.append(layer, &keys, &values)?;
    }
    step.finish()?;
    Ok(sequence)
}

/// What to compare under: of formats without residual planes, what is promoted is chosen anew.
fn policy_of(format: &str) -> Policy {
    if format.contains("-r") { Policy::Certified(Certified::default()) } else { Policy::Packed }
}

/// Whether everything held.
fn as_if_it_had_stayed(cache: &mut GpuCache, plan: &Plan, format: &str) -> Result<bool, Failure> {
    let (policy, g) = (policy_of(format), *cache.geometry());
    let (mut executed, mut failed, mut caught) = (0, 0, 0);
    for tokens in [1, 63, 64, 200, 1000] {
        let leaves = fill(cache, tokens, tokens as u64)?;
        decode(cache, leaves, 5, policy)?;
        let mut file = Vec::new();
        cache.save(leaves, &FILE, &mut file)?;
        let stays = cache.restore(&FILE, &mut &file[..])?;
        let mut again = Vec::new();
        cache.save(stays, &FILE, &mut again)?;
        failed += usize::from(again != file);
        for round in 0..plan.rounds {
            cache.swap_out(leaves)?;
            let len = cache.len(leaves)?;
            let cut = if round % 3 == 1 { len.saturating_sub(round) } else { len };
            cache.truncate(leaves, cut)?;
            cache.truncate(stays, cut)?;
            cache.swap_in(leaves)?;
            let seed = (1000 * tokens + round) as u64;
            let (a, b) = (decode(cache, leaves, seed, policy)?, decode(cache, stays, seed, policy)?);
            executed += g.layers * g.q_heads;
            failed += different(&a, &b, g.head_dim);
            let mut other = b.clone();
            other[0].0[1] ^= 1;
            caught += different(&a, &other, g.head_dim).min(1);
        }
        cache.release(leaves)?;
        cache.release(stays)?;
    }
    failed += cache.live_pages();
    println!(
        "GATE gpu-swap-{format} executed={executed} failed={failed} controls={caught}/{} seed=0x5",
        5 * plan.rounds
    );
    Ok(failed == 0 && caught == 5 * plan.rounds)
}

/// What was submitted and is there.
fn stored(store: &Store) -> Result<Vec<Get>, Failure> {
    store.wait_timeout(Duration::from_secs(60));
    let (mut done, mut found) = (Vec::new(), Vec::new());
    store.drain_completions(&mut done);
    for (get, result) in
        done.into_iter().flat_map(|done| if let Outcome::Get(got) = done.outcome { got } else { vec![] })
    {
        result?;
        found.push(get);
    }
    Ok(found)
}

/// Whether sequences over units that came from a store are those over the units that were written here.
fn as_where_it_was_written(
    one: &mut GpuCache,
    other: &mut GpuCache,
    plan: &Plan,
    format: &str,
) -> Result<bool, Failure> {
    let (policy, g) = (policy_of(format), *one.geometry());
    let store = Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default())?;
    let (mut executed, mut failed, mut caught) = (0, 0, 0);
    for tokens in [64, 200, 1000] {
        let prompt: Vec<u32> = (0..tokens as u32).map(|t| t ^ (tokens as u32) << 16).collect();
        let writer = fill(one, tokens, tokens as u64)?;
        let cached = one.publish(writer, &PREFIX, prompt[..].into())?.cached;
        one.release(writer)?;
        store.submit_put(one.export_prefix(&PREFIX, prompt[..].into(), 0)?)?;
        stored(&store)?;
        store.submit_get(other.missing_prefix(&PREFIX, prompt[..].into())?)?;
        let came = other.import_prefix(&PREFIX, prompt[..].into(), &stored(&store)?)?;
        let ((a, here), (b, there)) =
            (one.create_from(&PREFIX, prompt[..].into())?, other.create_from(&PREFIX, prompt[..].into())?);
        failed += [cached, came, here, there].into_iter().filter(|n| *n == 0 || *n != tokens / 64 * 64).count();
        let mut files = [Vec::new(), Vec::new()];
        one.save(a, &FILE, &mut files[0])?;
        other.save(b, &FILE, &mut files[1])?;
        failed += usize::from(files[0] != files[1]);
        for round in 0..plan.rounds {
            let seed = (1000 * tokens + round) as u64;
            let (a, b) = (decode(one, a, seed, policy)?, decode(other, b, seed, policy)?);
            executed += g.layers * g.q_heads;
            failed += different(&a, &b, g.head_dim);
            let mut changed = b.clone();
            changed[0].0[1] ^= 1;
            caught += different(&a, &changed, g.head_dim).min(1);
        }
        one.release(a)?;
        other.release(b)?;
    }
    for cache in [one, other] {
        cache.evict_prefixes(usize::MAX)?;
        failed += cache.live_pages();
    }
    let planted = 3 * plan.rounds;
    println!("GATE gpu-units-{format} executed={executed} failed={failed} controls={caught}/{planted} seed=0x5");
    Ok(failed == 0 && caught == planted)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn seconds<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let start = Instant::now();
    let done = work()?;
    Ok((start.elapsed().as_secs_f64(), done))
}

/// Leaving and returning beside one pinned copy of as many bytes.
fn rates(gpu: &Gpu, cache: &mut GpuCache, plan: &Plan, format: &str) -> Result<(), Failure> {
    let id = fill(cache, plan.tokens, 9)?;
    cache.synchronize()?;
    let (mut out, mut back, mut bytes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..RUNS {
        let (time, moved) = seconds(|| Ok(cache.swap_out(id)?))?;
        out.push(time);
        bytes = moved as usize;
        back.push(seconds(|| Ok(cache.swap_in(id)?))?.0);
    }
    let (time, file) = seconds(|| {
        let mut file = Vec::new();
        cache.save(id, &FILE, &mut file)?;
        Ok(file)
    })?;
    let (again, restored) = seconds(|| Ok(cache.restore(&FILE, &mut &file[..])?))?;
    cache.release(id)?;
    cache.release(restored)?;
    let queue = Queue::new(gpu)?;
    let area = queue.pin(bytes, NonZeroUsize::new(16).unwrap_or(NonZeroUsize::MIN))?;
    let buffer = DeviceBuffer::new(gpu, bytes)?;
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let copies = seconds(|| {
            queue.download(&buffer, 0, &area, 0, bytes)?;
            Ok(queue.finish()?)
        })?;
        down.push(copies.0);
        let copies = seconds(|| {
            queue.upload(&buffer, 0, &area, 0, bytes)?;
            Ok(queue.finish()?)
        })?;
        up.push(copies.0);
    }
    let [out, back, down, up] = [out, back, down, up].map(median);
    let rate = |seconds: f64| bytes as f64 / seconds * 1e-9;
    println!("{format}: {} tokens, {} layers, {:.1} MB", plan.tokens, plan.layers, bytes as f64 * 1e-6);
    println!(
        "  out  {:7.2} ms  {:5.1} GB/s  {:.2} of one pinned copy's {:.1}",
        out * 1e3,
        rate(out),
        down / out,
        rate(down)
    );
    println!(
        "  back {:7.2} ms  {:5.1} GB/s  {:.2} of one pinned copy's {:.1}",
        back * 1e3,
        rate(back),
        up / back,
        rate(up)
    );
    println!("  saved {:.0} MB in {:.2} s, restored in {:.2} s", file.len() as f64 * 1e-6, time, again);
    Ok(())
}

fn all(words: &Words) -> Result<bool, Failure> {
    let compiler = words.compiler();
    let plan = Plan {
        tokens: words.number("--tokens", 32768),
        layers: words.number("--layers", 4),
        rounds: words.number("--rounds", 12),
    };
    let gpu = Gpu::open(0)?;
    let mut held = true;
    let formats: Vec<&str> =
        words.value("--formats").map_or("k8-v4g64-b64-r8.4,k8-v4g64-b64", |f| f).split(',').collect();
    for format in &formats {
        let mut cache = cache_of(&gpu, &compiler, &plan, format)?;
        rates(&gpu, &mut cache, &plan, format)?;
    }
    // Rates are those of a server: without the checker, which is on from here.
    gpu.check_order();
    for format in formats {
        let small = Plan { tokens: 1024, layers: plan.layers.min(2), ..plan };
        let mut cache = cache_of(&gpu, &compiler, &small, format)?;
        held &= as_if_it_had_stayed(&mut cache, &small, format)?;
        let mut other = cache_of(&gpu, &compiler, &small, format)?;
        held &= as_where_it_was_written(&mut cache, &mut other, &small, format)?;
    }
    println!("{}", if held { "all held" } else { "SOMETHING IS WRONG" });
    Ok(held)
}

fn main() -> ExitCode {
    let words = Words::given();
    match all(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(if e.is::<CudaError>() { 2 } else { 1 })
        }
    }
}

//! The measurement.
use super::rows::Row;
use crate::{
    engine::Calibrations,
    eval::{Backend, Engine, Gathered, Mode},
    model::{
        AttentionError, Config, ModelError,
        tape::{LayerRows, Tape},
    },
    progress::Progress,
    stats::quantile,
};
use certkv::calibration::{Calibration, CalibrationError, Heads, Meter, Rule, Source};
use certkv::spherical::{Codebooks, Gather, KeyHeads, Training};
use certkv::{Pairing, Tier};
use certkv_core::hash::splitmix64;
use half::f16;
use std::sync::Arc;
use std::time::Instant;

/// Heads of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self { heads: 32, kv_heads: 8, head_dim: 128 }
    }
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The layer.
    pub shape: Shape,
    /// Tokens in the cache.
    pub contexts: Vec<usize>,
    /// Ways of keeping it; the first is what the others are compared with.
    pub modes: Vec<Mode>,
    /// Timed steps of each.
    pub repeats: usize,
    /// Threads of the engine, and of the plain read.
    pub threads: usize,
    /// Seed of keys, values and queries.
    pub seed: u64,
}

/// Bytes of originals that the sequences of one measurement hold at least, so that no step finds its data in a cache.
const ROTATED: usize = 256 << 20;

/// Steps before the timed ones, for the promoted sets to settle.
const WARM: usize = 2;

/// Runs the benchmark.
///
/// # Errors
/// What the engine says.
pub fn run(plan: &Plan, engine: &mut dyn Engine, progress: &Progress) -> Result<Vec<Row>, ModelError> {
    let memory = vec![1u8; ROTATED];
    let mut bar = progress.bar("bench", (plan.contexts.len() * plan.modes.len()) as u64);
    let mut rows: Vec<Row> = Vec::new();
    for &context in &plan.contexts {
        let mut dense = None;
        for mode in &plan.modes {
            bar.note(&format!("{mode} at {context}"));
            let bandwidth = read(&memory, plan.threads);
            let mut row = measure(plan, mode, context, engine)?;
            row.bandwidth = bandwidth;
            row.floor = row.floor / bandwidth * 1e3;
            row.against_dense = *dense.get_or_insert(row.milliseconds) / row.milliseconds;
            rows.push(row);
            bar.advance(1);
        }
    }
    bar.finish();
    Ok(rows)
}

/// Bytes a second at which `threads` threads together read `memory`.
fn read(memory: &[u8], threads: usize) -> f64 {
    let part = memory.len() / threads.max(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = memory
            .chunks(part.max(1))
            .take(threads)
            .map(|bytes| scope.spawn(move || certkv_kernel::probe::bandwidth(bytes, 3)))
            .collect();
        // A reader cannot panic; if one did, its share is missing and the floor only gets higher.
        readers.into_iter().filter_map(|r| r.join().ok()).sum()
    })
}

/// The layer as a model of its own.
fn config(shape: Shape, context: usize) -> Config {
    Config { positions: context, ..Config::shape(1, shape.heads, shape.kv_heads, shape.head_dim) }
}

/// Standard normal numbers that depend on the seed only: sums of four uniform ones are close enough for a benchmark.
struct Normal(u64);

impl Normal {
    fn next(&mut self) -> f32 {
        self.0 = splitmix64(self.0);
        let sum: u64 = (0..4).map(|i| self.0 >> (16 * i) & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
    }

    fn row(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.next() * scale).collect()
    }
}

/// Keys and values with a mean of their own per channel, as real ones have.
fn prompt(shape: Shape, context: usize, seed: u64) -> Tape {
    let mut normal = Normal(splitmix64(seed));
    let width = shape.kv_heads * shape.head_dim;
    let mean = [normal.row(width, 1.0), normal.row(width, 1.0)];
    let mut layer = LayerRows::default();
    for _ in 0..context {
        layer.keys.extend(mean[0].iter().map(|m| f16::from_f32(m + normal.next())));
        layer.values.extend(mean[1].iter().map(|m| f16::from_f32(m + 0.5 * normal.next())));
    }
    Tape { layers: vec![layer], tokens: context }
}

/// What formats that are measured need, of the rows that are.
///
/// # Errors
/// [`CalibrationError`] for heads that no calibration has.
pub fn calibrations(plan: &Plan) -> Result<Calibrations, CalibrationError> {
    let mut found = Calibrations::default();
    for key in plan.modes.iter().map(|mode| mode.format.key) {
        if found.serve(key) {
            continue;
        }
        match key.tier() {
            Some(tier) => found.codebooks.push(Arc::new(codebooks(plan, tier)?)),
            None => found.schemes = Some(Arc::new(calibration(plan)?)),
        }
    }
    Ok(found)
}

fn codebooks(plan: &Plan, tier: Tier) -> Result<Codebooks, CalibrationError> {
    let Shape { kv_heads, head_dim, .. } = plan.shape;
    let heads = KeyHeads { layers: 1, kv_heads, head_dim };
    let tape = prompt(plan.shape, 512, plan.seed);
    let mut gather = Gather::new(heads)?;
    let keys: Vec<f32> = tape.layers.iter().flat_map(|rows| &rows.keys).map(|x| x.to_f32()).collect();
    gather.add(0, &keys)?;
    let training = Training { rounds: 8, ..Training::new(plan.seed) };
    let books = (0..kv_heads).map(|head| gather.train_head(0, head, tier, &training)).collect::<Result<_, _>>()?;
    let source = Source { model: [0; 32], text: [0; 32], tokens: gather.tokens() };
    Codebooks::new(heads, source, tier, training, books)
}

fn calibration(plan: &Plan) -> Result<Calibration, CalibrationError> {
    let Shape { heads: q_heads, kv_heads, head_dim } = plan.shape;
    let heads = Heads { layers: 1, q_heads, kv_heads, head_dim, rotary: head_dim, pairing: Pairing::Half };
    let tape = prompt(plan.shape, 512, plan.seed);
    let keys: Vec<f32> = tape.layers.iter().flat_map(|rows| &rows.keys).map(|x| x.to_f32()).collect();
    let mut normal = Normal(plan.seed ^ 0x51);
    let queries: Vec<f32> =
        (0..tape.tokens).flat_map(|turn| query(plan.shape, &tape, turn * STEADY, &mut normal)).collect();
    let mut meter = Meter::new(heads)?;
    meter.add(0, &queries, &keys)?;
    let (seen, tokens) = meter.finish()?;
    let source = Source { model: [0; 32], text: [0; 32], tokens };
    Calibration::choose(heads, source, Rule::new(4 * heads.pairs()), seen)
}

/// Steps for which a head looks at the same token.
const STEADY: usize = 8;

/// Queries that look at one token each and at the rest a little. Attention over pure noise would average the values away,
/// and a share of a vanishing norm is a tolerance that no format meets.
fn query(shape: Shape, tape: &Tape, turn: usize, normal: &mut Normal) -> Vec<f32> {
    let (d, width) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    let mut q = normal.row(shape.heads * d, 0.3);
    for (head, row) in q.chunks_exact_mut(d).enumerate() {
        let token = splitmix64((turn / STEADY * shape.heads + head) as u64) as usize % tape.tokens.max(1);
        let from = token * width + head * shape.kv_heads / shape.heads * d;
        for (x, k) in row.iter_mut().zip(&tape.layers[0].keys[from..from + d]) {
            *x += 0.5 * k.to_f32();
        }
    }
    q
}

fn measure(plan: &Plan, mode: &Mode, context: usize, engine: &mut dyn Engine) -> Result<Row, ModelError> {
    let shape = plan.shape;
    let c = config(shape, context + plan.repeats + WARM + 1);
    let size = context * c.dense_bytes_per_token();
    let count = ROTATED.div_ceil(size.max(1)).clamp(1, 64);
    let tape = prompt(shape, context, plan.seed);
    let mut backends = Vec::new();
    for _ in 0..count {
        let mut backend = engine.open(mode, &c, context + plan.repeats + WARM + 1)?;
        backend.load(&tape)?;
        backends.push(backend);
    }
    let mut gathered = Gathered::new(1, shape.heads);
    let mut normal = Normal(plan.seed ^ 0x51);
    let mut times = Vec::new();
    for i in 0..WARM * count + plan.repeats {
        let q = query(shape, &tape, i / count, &mut normal);
        let (k, v) = (normal.row(c.kv_width(), 1.0), normal.row(c.kv_width(), 1.0));
        let timed = i >= WARM * count;
        let (took, length) = step(backends[i % count].as_mut(), [&k, &v, &q], timed.then_some(&mut gathered), &c)?;
        if timed {
            times.push(took * 1e3);
        }
        debug_assert!(length > context);
    }
    times.sort_unstable_by(f64::total_cmp);
    let head_steps: u64 = gathered.rungs.iter().sum();
    let per_step = |x: u64| x as f64 / plan.repeats.max(1) as f64;
    Ok(Row {
        mode: mode.to_string(),
        context,
        milliseconds: quantile(&times, 0.5),
        fastest: quantile(&times, 0.0),
        floor: per_step(gathered.read.iter().sum()),
        read_share: gathered.read_share(),
        repaired: 1.0 - gathered.rungs[0] as f64 / head_steps.max(1) as f64,
        ..Row::default()
    })
}

/// One decode step; its certificates go to `gathered`. Returns seconds and the new length.
fn step(
    backend: &mut dyn Backend,
    [k, v, q]: [&[f32]; 3],
    gathered: Option<&mut Gathered>,
    c: &Config,
) -> Result<(f64, usize), AttentionError> {
    let length = backend.length() + 1;
    let mut out = vec![0.0; c.q_width()];
    let start = Instant::now();
    let mut pass = backend.begin(1)?;
    pass.attend(0, k, v, q, &mut out)?;
    if let Some(gathered) = gathered {
        let took = start.elapsed();
        gathered.begin_step();
        let dense = (length * c.head_dim * 4) as u64;
        gathered.add(0, pass.certificates(), c.heads / c.kv_heads, 1, dense);
        let again = Instant::now();
        pass.finish()?;
        return Ok(((took + again.elapsed()).as_secs_f64(), length));
    }
    pass.finish()?;
    Ok((start.elapsed().as_secs_f64(), length))
}

//! Every layer of every window decoded by the cache on the GPU, and what that took.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is beyond every bound")]
use crate::tape::{LAST, Window};
use crate::{Failure, Wanted};
use certkv::gpu::{Compiler, Gpu, GpuCache, SelectStats};
use certkv::{Certificate, Chunk, Geometry, Rung, Snapshot};
use certkv_cli::model::Config;
use half::slice::HalfFloatSliceExt;
use std::time::Instant;

/// Tokens of a chunk of the context, where host memory cannot hold all of it.
const PIECE: usize = 1024;

/// One layer.
#[derive(Debug, Clone, Default)]
struct Layer {
    /// Query heads times steps; of those: repaired, dense, beyond the bound.
    heads: [usize; 4],
    /// The same of each window's first step, which no plan came before.
    first: [usize; 4],
    /// Bound over tolerance of what was not repaired.
    bounds: Vec<f64>,
    stats: SelectStats,
    /// Sides of one kind that a pass over every block would read.
    sides: usize,
}

/// All layers.
#[derive(Debug, Default)]
pub(crate) struct Rates(Vec<Layer>);

fn share(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn add(a: &mut SelectStats, b: &SelectStats) {
    (a.keys, a.values) = (a.keys + b.keys, a.values + b.values);
    (a.resident, a.missing, a.copies) = (a.resident + b.resident, a.missing + b.missing, a.copies + b.copies);
    (a.evictions, a.refused, a.direct) = (a.evictions + b.evictions, a.refused + b.refused, a.direct + b.direct);
    (a.set_keys, a.set_values) = (a.set_keys + b.set_keys, a.set_values + b.set_values);
    (a.refined_keys, a.refined_values) = (a.refined_keys + b.refined_keys, a.refined_values + b.refined_values);
}

impl Rates {
    /// Outputs beyond their bound.
    pub(crate) fn beyond(&self) -> usize {
        self.0.iter().map(|l| l.heads[3] + l.first[3]).sum()
    }

    pub(crate) fn print(&self, context: usize, tolerance: f64, target: f64) {
        println!(
            "rates at {context} tokens, tolerance {tolerance}, plan {target}: layer: key blocks, value blocks promoted, or refined in the pass; in scratch; repaired, dense; first steps repaired; bound / tolerance"
        );
        let line = |name: &str, l: &Layer, bounds: &[f64]| {
            let s = &l.stats;
            let set = (s.set_keys + s.set_values + s.refined_keys + s.refined_values) as usize;
            println!(
                "  {name:>4}: {:5.1}% {:5.1}%  {:5.1}%  {:6.2}% {:5.2}%  {:5.1}%  {:.2} {:.2}  beyond {}  {s:?}",
                share((s.set_keys + s.refined_keys) as usize, l.sides),
                share((s.set_values + s.refined_values) as usize, l.sides),
                share(set.saturating_sub((s.direct + s.refused) as usize), set),
                share(l.heads[1], l.heads[0]),
                share(l.heads[2], l.heads[0]),
                share(l.first[1], l.first[0]),
                bounds.get(bounds.len() / 2).unwrap_or(&0.0),
                bounds.get(bounds.len() * 9 / 10).unwrap_or(&0.0),
                l.heads[3] + l.first[3],
            );
        };
        let mut sum = Layer::default();
        for (i, l) in self.0.iter().enumerate() {
            let mut bounds = l.bounds.clone();
            bounds.sort_by(f64::total_cmp);
            line(&i.to_string(), l, &bounds);
            for k in 0..4 {
                sum.heads[k] += l.heads[k];
                sum.first[k] += l.first[k];
            }
            sum.bounds.extend(&bounds);
            add(&mut sum.stats, &l.stats);
            sum.sides += l.sides;
        }
        sum.bounds.sort_by(f64::total_cmp);
        line("all", &sum, &sum.bounds);
    }
}

fn quantiles(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times.get(times.len().saturating_sub(1) * share / 100).copied().unwrap_or(f64::NAN);
    format!("median {:.2}, 90% {:.2}, longest {:.2}", at(50), at(90), at(100))
}

/// What moved between host memory and the store while steps ran, and what they waited for it.
fn store(before: &Snapshot, after: &Snapshot) {
    let of = |s: &Snapshot| {
        let (waits, moves) = (s.spill.map(|u| u.waits), [s.fetches, s.spills].map(|m| m.map(|m| m.done)));
        [waits, moves[0], moves[1]].map(|h| h.map_or((0, 0), |h| (h.count(), h.sum)))
    };
    let [waits, fetches, spills] = core::array::from_fn(|i| {
        let (before, after) = (of(before)[i], of(after)[i]);
        (after.0 - before.0, (after.1 - before.1) as f64 / 1e6)
    });
    println!(
        "  store: {} waits of {:.2} ms together; {} reads brought {:.1} MB, {} originals of {:.1} MB went; {:?}",
        waits.0, waits.1, fetches.0, fetches.1, spills.0, spills.1, after.spill
    );
}

/// Decodes all windows, one after the other.
pub(crate) fn measure(
    gpu: &Gpu,
    compiler: &Compiler,
    wanted: &Wanted,
    windows: &[Window],
    model: &Config,
    (tolerance, target): (f64, f64),
) -> Result<Rates, Failure> {
    let geometry = Geometry::new(model.layers, model.heads, model.kv_heads, model.head_dim)?;
    let mut layers = vec![Layer::default(); model.layers];
    for window in windows {
        let tokens = window.context.tokens;
        let config = wanted.config(geometry, (1, tokens + window.steps.len()), (tolerance, target))?;
        let block = config.formats[0].block;
        let mut cache = GpuCache::new(gpu, compiler, config)?;
        let sequence = cache.create()?;
        // Host memory holds a chunk's originals until the store has them.
        let piece = if wanted.spill.is_some() { PIECE } else { tokens };
        for first in (0..tokens).step_by(piece) {
            let end = tokens.min(first + piece);
            let width = model.kv_heads * model.head_dim;
            let mut step = cache.begin(&[Chunk { sequence, tokens: end - first }])?;
            for (layer, rows) in window.context.layers.iter().enumerate() {
                let [keys, values] = [&rows.keys, &rows.values].map(|side| &side[first * width..end * width]);
                step.append_bits(layer, keys.reinterpret_cast(), values.reinterpret_cast())?;
            }
            step.finish()?;
        }
        let mut step = cache.begin(&[Chunk { sequence, tokens: LAST }])?;
        for layer in 0..model.layers {
            let [keys, values, queries] = window.end(layer);
            step.append(layer, &keys, &values)?;
            step.attend(layer, &queries)?;
        }
        step.finish()?;
        let mut certificates = vec![Certificate::default(); model.heads];
        let mut out = vec![0.0f32; model.q_width()];
        let (mut times, mut ahead, mut came, before) = (Vec::new(), Vec::new(), 0, cache.snapshot());
        for (i, rows) in window.steps[LAST..].iter().enumerate() {
            let start = Instant::now();
            if wanted.spill.as_ref().is_some_and(|to| to.prefetch) {
                came += cache.prefetch(sequence)?.bytes;
                ahead.push(start.elapsed().as_secs_f64() * 1e3);
            }
            let start = Instant::now();
            let mut step = cache.begin(&[Chunk { sequence, tokens: 1 }])?;
            for (layer, row) in rows.iter().enumerate() {
                step.append(layer, &row.keys, &row.values)?;
                step.attend(layer, &row.queries)?;
                step.plan(layer)?;
                step.outputs(layer, &mut out, &mut certificates)?;
                let l = &mut layers[layer];
                for ((c, got), want) in
                    certificates.iter().zip(out.chunks(model.head_dim)).zip(row.out.chunks(model.head_dim))
                {
                    let square = |x: f64, (a, b): (&f32, &f32)| x + (f64::from(*a) - f64::from(*b)).powi(2);
                    let error = got.iter().zip(want).fold(0.0, square).sqrt();
                    // The reference is in single precision itself.
                    let beyond = !(error <= c.bound() + 1e-5 * c.out_norm);
                    let repaired = c.rung != Rung::Packed;
                    let counts = if i == 0 { &mut l.first } else { &mut l.heads };
                    counts[0] += 1;
                    counts[1] += usize::from(repaired);
                    counts[2] += usize::from(c.rung == Rung::DenseHead);
                    counts[3] += usize::from(beyond);
                    if i > 0 && !repaired {
                        l.bounds.push(c.bound() / c.tol);
                    }
                }
                l.sides += model.kv_heads * ((tokens + LAST + i + 1) / block);
            }
            step.finish()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        println!("  steps, ms: {}", quantiles(&mut times));
        if wanted.spill.is_some() {
            println!("  prefetches, ms: {}, {:.1} MB", quantiles(&mut ahead), came as f64 / 1e6);
            store(&before, &cache.snapshot());
        }
        for (layer, l) in layers.iter_mut().enumerate() {
            add(&mut l.stats, &cache.selection(layer)?);
        }
        let m = cache.memory();
        let device = cache.reserved_for(certkv_core::Class::Scratch) + m.packed + m.tables;
        println!(
            "  device memory over dense, scratch whole: {:.3}",
            device as f64 / (m.tokens * 4 * model.layers * model.kv_heads * model.head_dim) as f64
        );
    }
    Ok(Rates(layers))
}

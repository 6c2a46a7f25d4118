//! Real heads repeated until a batch of a large model is full; recorded steps of it, timed.
use crate::tape::{LAST, Window};
use crate::{Failure, Wanted, policy};
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, LayerIo, Tensor, TimedEvent};
use certkv::{Certificate, Chunk, Geometry, Policy, Rung};
use certkv_cli::model::Config;
use std::time::Instant;

const Q_HEADS: usize = 32;
const KV_HEADS: usize = 8;

/// Inputs of one step in device memory, `[layer]`.
struct Inputs(Vec<[DeviceBuffer; 4]>);

/// Which window and KV head stands at a place of the batch.
fn source(windows: usize, kv_heads: usize, sequence: usize, head: usize) -> (usize, usize) {
    let at = sequence * KV_HEADS + head;
    (at / kv_heads % windows, at % kv_heads)
}

/// Times `wanted.steps` steps of `wanted.tile` sequences of 32 query and 8 KV heads in every layer.
pub(crate) fn measure(
    gpu: &Gpu,
    compiler: &Compiler,
    wanted: &Wanted,
    windows: &[Window],
    model: &Config,
    (tolerance, target): (f64, f64),
) -> Result<(), Failure> {
    let (dim, group, n) = (model.head_dim, model.heads / model.kv_heads, wanted.tile);
    // Of a model with smaller groups every query head stands several times.
    let repeats = Q_HEADS / KV_HEADS / group;
    if repeats == 0 || repeats * group * KV_HEADS != Q_HEADS {
        return Err(format!("{group} query heads per KV head do not fill groups of {}", Q_HEADS / KV_HEADS).into());
    }
    let tokens = windows[0].context.tokens;
    let geometry = Geometry::new(model.layers, Q_HEADS, KV_HEADS, dim)?;
    let mut config = wanted.config(geometry, (n, tokens + wanted.steps + 64), (tolerance, target))?;
    config.queries = Element::F16;
    let start = Instant::now();
    let mut cache = GpuCache::new(gpu, compiler, config)?;
    let mut ids = Vec::new();
    // Of a ragged batch every sequence lacks some of the context's last rows, so that blocks fill in different steps.
    let block = cache.layouts()[0].tokens();
    let lengths: Vec<usize> =
        (0..n).map(|sequence| tokens - if wanted.ragged { sequence * block / n } else { 0 }).collect();
    for (sequence, &tokens) in lengths.iter().enumerate() {
        let id = cache.create()?;
        let mut step = cache.begin(&[Chunk { sequence: id, tokens }])?;
        for layer in 0..model.layers {
            let rows = |side: usize| {
                let mut all = vec![0u16; tokens * KV_HEADS * dim];
                for head in 0..KV_HEADS {
                    let (window, from) = source(windows.len(), model.kv_heads, sequence, head);
                    let tape = &windows[window].context.layers[layer];
                    let own = if side == 0 { &tape.keys } else { &tape.values };
                    for t in 0..tokens {
                        let row = &own[(t * model.kv_heads + from) * dim..][..dim];
                        let to = &mut all[(t * KV_HEADS + head) * dim..][..dim];
                        to.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_bits());
                    }
                }
                all
            };
            step.append_bits(layer, &rows(0), &rows(1))?;
        }
        step.finish()?;
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: LAST }])?;
        for layer in 0..model.layers {
            let ends: Vec<[Vec<f32>; 3]> = windows.iter().map(|w| w.end(layer)).collect();
            let rows = |side: usize, width: usize, repeats: usize| {
                let mut all = Vec::new();
                for t in 0..LAST {
                    for head in 0..KV_HEADS {
                        let (window, from) = source(windows.len(), model.kv_heads, sequence, head);
                        let row = &ends[window][side][(t * model.kv_heads + from) * width..][..width];
                        (0..repeats).for_each(|_| all.extend_from_slice(row));
                    }
                }
                all
            };
            step.append(layer, &rows(0, dim, 1), &rows(1, dim, 1))?;
            step.attend(layer, &rows(2, group * dim, repeats))?;
        }
        step.finish()?;
        ids.push(id);
    }
    cache.synchronize()?;
    let filled = start.elapsed().as_secs_f64();
    let bits = |x: &f32| half::f16::from_f32(*x).to_bits();
    let mut inputs = Vec::new();
    for at in LAST..wanted.steps {
        let mut layers = Vec::new();
        for layer in 0..model.layers {
            let gather = |width: usize, repeats: usize, of: &dyn Fn(&crate::tape::Row) -> Vec<f32>| -> Vec<u16> {
                let mut all = Vec::new();
                for sequence in 0..n {
                    for head in 0..KV_HEADS {
                        let (window, from) = source(windows.len(), model.kv_heads, sequence, head);
                        let row = of(&windows[window].steps[at][layer]);
                        for _ in 0..repeats {
                            all.extend(row[from * width..(from + 1) * width].iter().map(bits));
                        }
                    }
                }
                all
            };
            let rows = [
                gather(dim, 1, &|r| r.keys.clone()),
                gather(dim, 1, &|r| r.values.clone()),
                gather(group * dim, repeats, &|r| r.queries.clone()),
            ];
            let put = |rows: &[u16]| -> Result<DeviceBuffer, Failure> {
                let buffer = DeviceBuffer::new(gpu, 2 * rows.len())?;
                buffer.write(cache.stream(), 0, rows)?;
                Ok(buffer)
            };
            let out = DeviceBuffer::new(gpu, 4 * n * Q_HEADS * dim)?;
            layers.push([put(&rows[0])?, put(&rows[1])?, put(&rows[2])?, out]);
        }
        inputs.push(Inputs(layers));
    }
    cache.synchronize()?;
    let m = cache.memory();
    let device = cache.reserved_for(certkv_core::Class::Scratch) + m.packed + m.tables;
    println!(
        "  {n} x {tokens} tokens filled in {filled:.1} s; device memory over dense, scratch whole: {:.3}",
        device as f64 / (m.tokens * 4 * model.layers * KV_HEADS * dim) as f64
    );
    for kind in [policy(tolerance), Policy::Packed] {
        let mut graphs = Vec::new();
        for step in &inputs {
            let mut io = Vec::new();
            for [keys, values, query, out] in &step.0 {
                let of = |b, width, element| Tensor::of(b, 0, element, n * width * dim);
                io.push(LayerIo {
                    keys: of(keys, KV_HEADS, Element::F16)?,
                    values: of(values, KV_HEADS, Element::F16)?,
                    query: of(query, Q_HEADS, Element::F16)?,
                    out: of(out, Q_HEADS, Element::F32)?,
                });
            }
            graphs.push(cache.record(n, &io, kind)?);
        }
        let before: Vec<_> = (0..model.layers).map(|l| cache.selection(l)).collect::<Result<_, _>>()?;
        let chunks: Vec<Chunk> = ids.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
        let (mut times, mut repaired, mut heads) = (Vec::new(), 0, 0);
        let mut certificates = vec![Certificate::default(); n * Q_HEADS];
        let timer = TimedEvent::new(gpu)?;
        for graph in &graphs {
            let mut step = cache.begin_with(&chunks, kind)?;
            step.cache().synchronize()?;
            timer.start(step.cache().stream())?;
            step.replay(graph)?;
            timer.stop(step.cache().stream())?;
            step.cache().synchronize()?;
            times.push(f64::from(timer.elapsed_ms()?) * 1e3 / model.layers as f64);
            for layer in 0..model.layers {
                if kind != Policy::Packed {
                    step.certificates(layer, &mut certificates)?;
                    repaired += certificates.iter().filter(|c| c.rung != Rung::Packed).count();
                    heads += certificates.len();
                }
            }
            step.finish()?;
        }
        let (first, rest) = times.split_at(1);
        let mut sorted = rest.to_vec();
        sorted.sort_by(f64::total_cmp);
        let mut sums = [0usize; 4];
        for (layer, b) in before.iter().enumerate() {
            let a = cache.selection(layer)?;
            sums[0] += (a.set_keys - b.set_keys + a.refined_keys - b.refined_keys) as usize;
            sums[1] += (a.set_values - b.set_values + a.refined_values - b.refined_values) as usize;
            sums[2] += (a.direct - b.direct) as usize;
            sums[3] += (a.copies - b.copies) as usize;
        }
        let mean = rest.iter().sum::<f64>() / rest.len() as f64;
        let sides = model.layers * n * KV_HEADS * (tokens / block) * graphs.len();
        println!(
            "  tile {n} x {tokens}, {}: us a layer: first {:.1}, median {:.1}, mean {mean:.1}, least {:.1}, most {:.1}, last {:.1}; repaired {:.2}%, promoted or refined {:.1}% {:.1}%, direct {}, copies {}",
            if kind == Policy::Packed { "packed".into() } else { format!("certified {tolerance}, plan {target}") },
            first[0],
            sorted[sorted.len() / 2],
            sorted[0],
            sorted[sorted.len() - 1],
            times[times.len() - 1],
            100.0 * repaired as f64 / heads.max(1) as f64,
            100.0 * sums[0] as f64 / sides as f64,
            100.0 * sums[1] as f64 / sides as f64,
            sums[2],
            sums[3]
        );
        // Once more from the context on, in one go: nobody waits between steps, and what comes between their graphs counts.
        let back = |cache: &mut GpuCache| -> Result<(), Failure> {
            for (id, tokens) in ids.iter().zip(&lengths) {
                cache.truncate(*id, tokens + LAST)?;
            }
            Ok(cache.synchronize()?)
        };
        back(&mut cache)?;
        timer.start(cache.stream())?;
        for graph in &graphs {
            let mut step = cache.begin_with(&chunks, kind)?;
            step.replay(graph)?;
            step.finish()?;
        }
        timer.stop(cache.stream())?;
        cache.synchronize()?;
        let each = f64::from(timer.elapsed_ms()?) * 1e3 / (graphs.len() * model.layers) as f64;
        println!("    {} steps in one go: {each:.1} us a layer", graphs.len());
        // For the next policy.
        back(&mut cache)?;
    }
    Ok(())
}

//! What every sequence should hold, and attention over it in f64.
use super::device_rows;
use certkv::calibration::{Calibration, Heads, Meter, Rule, Source};
use certkv::gpu::{GpuCache, GpuStep};
use certkv::scales::{ScaleHeads, ScaleMeter, Scales};
use certkv::spherical::Codebooks;
use certkv::{
    Certificate, Chunk, Dtype, Error, Geometry, Pairing, Policy, PrefixScope, Rung, SaveScope, SequenceId, Side,
    Status, Window,
};
use certkv_core::{Tier, hash::splitmix64};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::thread;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One sequence: rows of every layer as the 16-bit patterns they were rounded to, `[token][kv_width]`.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) id: SequenceId,
    pub(crate) len: usize,
    pub(crate) keys: Vec<Vec<u16>>,
    pub(crate) values: Vec<Vec<u16>>,
}

/// Rows of one step, as the caller gives them: `[layer]`, `[token][width]`.
pub(crate) struct Inputs {
    pub(crate) keys: Vec<Vec<f32>>,
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) queries: Vec<Vec<f32>>,
}

/// What was compared.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) heads: usize,
    pub(crate) failed: usize,
    pub(crate) controls: usize,
    pub(crate) planted: usize,
    pub(crate) exact: usize,
    pub(crate) certified: usize,
    /// Repaired or dense.
    pub(crate) repaired: usize,
    pub(crate) dense: usize,
    /// Outputs of longer chunks that came with a bound: the GPU attended them.
    pub(crate) extended: usize,
    /// Sums of bound and error over the norm.
    pub(crate) bound: f64,
    pub(crate) error: f64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.heads += other.heads;
        self.failed += other.failed;
        self.controls += other.controls;
        self.planted += other.planted;
        self.exact += other.exact;
        self.extended += other.extended;
        self.certified += other.certified;
        self.repaired += other.repaired;
        self.dense += other.dense;
        self.bound += other.bound;
        self.error += other.error;
    }

    pub(crate) fn print(&self, name: &str) {
        let n = self.heads.max(1) as f64;
        println!(
            "{name:18} heads {:7} certified {:7} exact {:7} repaired {:6} dense {:6} mean bound {:.2e} mean error {:.2e} of the norm",
            self.heads,
            self.certified,
            self.exact,
            self.repaired,
            self.dense,
            self.bound / n,
            self.error / n
        );
    }
}

/// What a policy owes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owed {
    /// Every head certified within this share of its norm, or exact.
    pub(crate) tolerance: Option<f64>,
    /// Every head exact.
    pub(crate) exact: bool,
}

pub(crate) struct World {
    pub(crate) geometry: Geometry,
    pub(crate) rng: Rng,
    pub(crate) held: Vec<Held>,
    /// Per layer and channel: what all keys have in common.
    offsets: Vec<Vec<f64>>,
    /// What each 16-bit pattern stands for.
    numbers: Vec<f64>,
    /// By layer: what queries see.
    windows: Vec<Option<Window>>,
    /// Whether all tokens are protected: steps take nothing from codes.
    pub(crate) protected: bool,
}

/// A step that is dropped half-way; it leaves nothing behind.
pub(crate) fn abandon(cache: &mut GpuCache, chunks: &[Chunk], policy: Policy, inputs: &Inputs) -> Result<(), Failure> {
    let mut step = cache.begin_with(chunks, policy)?;
    step.append(0, &inputs.keys[0], &inputs.values[0])?;
    Ok(())
}

impl World {
    /// `windows`: one per layer.
    pub(crate) fn new(geometry: Geometry, windows: Vec<Option<Window>>, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let width = geometry.kv_width();
        let offsets = (0..geometry.layers)
            .map(|_| (0..width).map(|_| if rng.chance(0.1) { 6.0 * rng.normal() } else { rng.normal() }).collect())
            .collect();
        let numbers = (0..=u16::MAX).map(|bits| f64::from(geometry.store.decode16(bits))).collect();
        Self { geometry, rng, held: Vec::new(), offsets, numbers, windows, protected: false }
    }

    pub(crate) fn create(&mut self, cache: &mut GpuCache) -> Result<(), Failure> {
        let layers = self.geometry.layers;
        let (keys, values) = (vec![Vec::new(); layers], vec![Vec::new(); layers]);
        self.held.push(Held { id: cache.create()?, len: 0, keys, values });
        Ok(())
    }

    pub(crate) fn fork(&mut self, cache: &mut GpuCache, from: usize) -> Result<(), Failure> {
        let id = cache.fork(self.held[from].id)?;
        self.held.push(Held { id, ..self.held[from].clone() });
        Ok(())
    }

    /// Caches the full blocks of a sequence and begins another one with them.
    pub(crate) fn resume(&mut self, cache: &mut GpuCache, at: usize) -> Result<(), Failure> {
        let width = self.geometry.kv_width();
        let held = &self.held[at];
        // A token per row: its rows in all layers decide its number.
        let row = |token: usize| {
            let sides = held.keys.iter().chain(&held.values);
            let words = sides.flat_map(|side| &side[token * width..(token + 1) * width]);
            words.fold(0, |h, word| splitmix64(h ^ u64::from(*word))) as u32
        };
        let tokens: Vec<u32> = (0..held.len).map(row).collect();
        let scope = PrefixScope::new(b"one", b"model");
        cache.publish(held.id, &scope, tokens[..].into())?;
        let (id, found) = cache.create_from(&scope, tokens[..].into())?;
        self.held.push(Held { id, ..self.held[at].clone() });
        let cut = self.held.len() - 1;
        self.shorten(cut, found);
        Ok(())
    }

    /// Goes to a file, and comes back as another sequence.
    pub(crate) fn copy(&mut self, cache: &mut GpuCache, at: usize) -> Result<(), Failure> {
        let (scope, mut file) = (SaveScope { model: b"model", key: None }, Vec::new());
        cache.save(self.held[at].id, &scope, &mut file)?;
        let id = cache.restore(&scope, &mut &file[..])?;
        self.held.push(Held { id, ..self.held[at].clone() });
        Ok(())
    }

    /// Leaves the device and comes back.
    pub(crate) fn swap(&mut self, cache: &mut GpuCache, at: usize) -> Result<(), Failure> {
        cache.swap_out(self.held[at].id)?;
        cache.swap_in(self.held[at].id)?;
        Ok(())
    }

    pub(crate) fn truncate(&mut self, cache: &mut GpuCache, at: usize, len: usize) -> Result<(), Failure> {
        match cache.truncate(self.held[at].id, len) {
            // What a query there would see is gone.
            Err(Error::WindowPassed { .. }) if self.windows.iter().any(Option::is_some) => return Ok(()),
            cut => cut?,
        }
        self.shorten(at, len);
        Ok(())
    }

    fn shorten(&mut self, at: usize, len: usize) {
        let (width, held) = (self.geometry.kv_width(), &mut self.held[at]);
        held.len = len;
        for rows in held.keys.iter_mut().chain(&mut held.values) {
            rows.truncate(len * width);
        }
    }

    pub(crate) fn release(&mut self, cache: &mut GpuCache, at: usize) -> Result<(), Failure> {
        Ok(cache.release(self.held.swap_remove(at).id)?)
    }

    /// Rows that look like a model's: keys around an offset, values around nothing, some queries sharp.
    pub(crate) fn inputs(&mut self, tokens: usize) -> Inputs {
        let Self { geometry: g, rng, offsets, .. } = self;
        let (kv, q) = (g.kv_width(), g.q_width());
        let mut inputs = Inputs { keys: Vec::new(), values: Vec::new(), queries: Vec::new() };
        for offset in offsets.iter() {
            inputs.keys.push((0..tokens * kv).map(|i| (offset[i % kv] + rng.normal()) as f32).collect());
            inputs.values.push((0..tokens * kv).map(|_| (0.7 * rng.normal() + 0.1) as f32).collect());
            let mut queries = Vec::with_capacity(tokens * q);
            for _ in 0..tokens * g.q_heads {
                let sharp = if rng.chance(0.3) { 1.5 } else { 0.4 };
                queries.extend((0..g.head_dim).map(|_| (sharp * rng.normal()) as f32));
            }
            inputs.queries.push(queries);
        }
        inputs
    }

    /// Fixed scales that reach most of what such rows have, and not all.
    pub(crate) fn scales(&mut self) -> Result<Arc<Scales>, Failure> {
        let Geometry { layers, kv_heads, head_dim, .. } = self.geometry;
        let source = Source { model: [0; 32], text: [0; 32], tokens: 256 };
        let heads = ScaleHeads { layers, kv_heads, head_dim };
        let (mut meter, inputs) = (ScaleMeter::new(heads, source)?, self.inputs(256));
        for (layer, (keys, values)) in inputs.keys.iter().zip(&inputs.values).enumerate() {
            let width = kv_heads * head_dim;
            for (key, value) in keys.chunks_exact(width).zip(values.chunks_exact(width)) {
                meter.row(layer, key, value)?;
            }
        }
        Ok(Arc::new(Scales::choose(&meter, 95.0)?))
    }

    /// A calibration of such rows.
    pub(crate) fn calibration(&mut self) -> Result<Arc<Calibration>, Failure> {
        let Geometry { layers, q_heads, kv_heads, head_dim, .. } = self.geometry;
        let heads = Heads { layers, q_heads, kv_heads, head_dim, rotary: head_dim, pairing: Pairing::Half };
        let (mut meter, inputs) = (Meter::new(heads)?, self.inputs(Meter::LEAST_TOKENS as usize));
        for (layer, (queries, keys)) in inputs.queries.iter().zip(&inputs.keys).enumerate() {
            meter.add(layer, queries, keys)?;
        }
        let (seen, tokens) = meter.finish()?;
        let source = Source { model: [0; 32], text: [0; 32], tokens };
        Ok(Arc::new(Calibration::choose(heads, source, Rule::new(4 * heads.pairs()), seen)?))
    }

    /// Codebooks of spherical keys like those to come, the same for every layer.
    pub(crate) fn codebooks(&mut self, tier: Tier) -> Arc<Codebooks> {
        let inputs = self.inputs(256);
        Arc::new(certkv_testkit::calibrate::codebooks(&self.geometry, tier, &inputs.keys[0], 0))
    }

    /// The step's rows join what is held; `chunks` name sequences of this world.
    pub(crate) fn remember(&mut self, chunks: &[(usize, usize)], inputs: &Inputs) {
        let (width, store) = (self.geometry.kv_width(), self.geometry.store);
        let bits = |rows: &[f32]| rows.iter().map(|x| store.encode16(*x)).collect::<Vec<_>>();
        let mut first = 0;
        for &(at, tokens) in chunks {
            let held = &mut self.held[at];
            for layer in 0..self.geometry.layers {
                let range = first * width..(first + tokens) * width;
                held.keys[layer].extend(bits(&inputs.keys[layer][range.clone()]));
                held.values[layer].extend(bits(&inputs.values[layer][range]));
            }
            held.len += tokens;
            first += tokens;
        }
    }

    pub(crate) fn chunks(&self, of: &[(usize, usize)]) -> Vec<Chunk> {
        of.iter().map(|&(at, tokens)| Chunk { sequence: self.held[at].id, tokens }).collect()
    }

    /// Appends and attends every layer through host slices; `remember` must have been called.
    pub(crate) fn run(
        &self,
        step: &mut GpuStep<'_>,
        chunks: &[(usize, usize)],
        inputs: &Inputs,
        owed: Owed,
    ) -> Result<Tally, Failure> {
        let (g, tokens) = (&self.geometry, step.tokens());
        let mut out = vec![f32::NAN; tokens * g.q_width()];
        let mut certificates = vec![Certificate::default(); tokens * g.q_heads];
        let mut tally = Tally::default();
        // With chunks of several tokens every second step has its rows in device memory.
        let on_device = tokens > chunks.len() && tokens % 2 == 1;
        for layer in 0..g.layers {
            if on_device {
                device_rows::run(step, layer, inputs, (&mut out, &mut certificates))?;
            } else {
                step.append(layer, &inputs.keys[layer], &inputs.values[layer])?;
                step.attend(layer, &inputs.queries[layer])?;
            }
            if layer % 2 == 1 {
                step.plan(layer)?;
            }
            if !on_device {
                step.outputs(layer, &mut out, &mut certificates)?;
            }
            tally.add(&self.judge(layer, chunks, &inputs.queries[layer], &out, &certificates, owed));
        }
        // The others at the end, and once more, which does nothing.
        (0..g.layers).try_for_each(|layer| step.plan(layer))?;
        Ok(tally)
    }

    /// Steps of one token of every sequence whose results nobody reads: the host runs ahead of the GPU, as far as it is let. What became of
    /// the rows shows in the steps behind.
    pub(crate) fn hurry(&mut self, cache: &mut GpuCache, steps: usize, policy: Policy) -> Result<(), Failure> {
        for _ in 0..steps {
            let batch: Vec<_> = (0..self.held.len()).map(|at| (at, 1)).collect();
            let (chunks, inputs) = (self.chunks(&batch), self.inputs(batch.len()));
            let mut step = cache.begin_with(&chunks, policy)?;
            self.remember(&batch, &inputs);
            for layer in 0..self.geometry.layers {
                step.append(layer, &inputs.keys[layer], &inputs.values[layer])?;
                step.attend(layer, &inputs.queries[layer])?;
                step.plan(layer)?;
            }
            step.finish()?;
        }
        Ok(())
    }

    /// Compares a layer's outputs with f64; a control bends one output beyond its bound.
    pub(crate) fn judge(
        &self,
        layer: usize,
        chunks: &[(usize, usize)],
        queries: &[f32],
        out: &[f32],
        certificates: &[Certificate],
        owed: Owed,
    ) -> Tally {
        let g = &self.geometry;
        let firsts = chunks.iter().scan(0, |next, c| {
            *next += c.1;
            Some(*next - c.1)
        });
        let tallies: Vec<Tally> = thread::scope(|scope| {
            let jobs: Vec<_> = chunks
                .iter()
                .zip(firsts)
                .map(|(&(at, tokens), first)| {
                    let held = &self.held[at];
                    scope.spawn(move || {
                        let mut tally = Tally::default();
                        // Of a long chunk some rows, the last among them.
                        let every = 1 + tokens / 64;
                        for token in (0..tokens).rev().step_by(every) {
                            let seen = held.len - tokens + token + 1;
                            let row = first + token;
                            let q = row * g.q_width()..(row + 1) * g.q_width();
                            let c = row * g.q_heads..(row + 1) * g.q_heads;
                            let single = tokens == 1;
                            tally.add(&self.judge_token(
                                (held, layer, seen),
                                (&queries[q.clone()], &out[q]),
                                &certificates[c],
                                owed,
                                single,
                            ));
                        }
                        tally
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join().unwrap_or(Tally { failed: 1, ..Tally::default() })).collect()
        });
        let mut all = Tally::default();
        tallies.iter().for_each(|t| all.add(t));
        all
    }

    fn judge_token(
        &self,
        (held, layer, seen): (&Held, usize, usize),
        (queries, out): (&[f32], &[f32]),
        certificates: &[Certificate],
        owed: Owed,
        single: bool,
    ) -> Tally {
        let g = &self.geometry;
        let d = g.head_dim;
        let mut tally = Tally::default();
        for (h, c) in certificates.iter().enumerate() {
            let kv = h / g.group();
            let truth = self.dense((held, layer, seen), kv, &queries[h * d..(h + 1) * d]);
            let error = distance(&truth, &out[h * d..(h + 1) * d]);
            let norm = truth.iter().map(|x| x * x).sum::<f64>().sqrt();
            // Tolerances are shares of what was returned; the kernel's own norm is rounded.
            let given = 1.0001 * out[h * d..(h + 1) * d].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            // Longer chunks that the CPU attended have no bound on their rounding.
            let bounded = single || c.bound().is_finite();
            let bound = if bounded { c.bound() } else { 1e-4 * norm + 1e-5 };
            let mut good = error <= bound;
            if bounded {
                good &= match (owed.exact, owed.tolerance) {
                    (true, _) => c.status == Status::Exact,
                    (_, Some(tolerance)) => match c.status {
                        Status::Exact => true,
                        Status::Certified => c.quantisation() <= tolerance * given,
                        _ => false,
                    },
                    // Over originals alone a chunk is exact under every policy.
                    _ => c.status == Status::Uncertified || !single && c.status == Status::Exact,
                };
            }
            if self.protected && single && c.status != Status::Exact {
                good &= c.e_key + c.e_val == 0.0;
            }
            if !good && tally.failed < 3 {
                println!(
                    "WRONG {:?} layer {layer} head {h} tokens {seen}: error {error:.3e} bound {bound:.3e} {c:?}",
                    held.id
                );
            }
            tally.heads += 1;
            tally.failed += usize::from(!good);
            tally.extended += usize::from(!single && bounded);
            tally.exact += usize::from(c.status == Status::Exact);
            tally.certified += usize::from(c.status == Status::Certified);
            tally.repaired += usize::from(single && matches!(c.rung, Rung::MoreKeys | Rung::ExactValues));
            tally.dense += usize::from(single && c.rung == Rung::DenseHead);
            tally.bound += bound.min(1e30) / norm.max(1e-30);
            tally.error += error / norm.max(1e-30);
            if h == 0 && bound.is_finite() {
                let mut bent = out[..d].to_vec();
                bent[0] += (2.5 * bound + 1e-3) as f32;
                tally.planted += 1;
                let away = distance(&truth, &bent);
                tally.controls += usize::from(away > bound || away.is_nan());
            }
        }
        tally
    }

    fn dense(&self, (held, layer, seen): (&Held, usize, usize), kv: usize, query: &[f32]) -> Vec<f64> {
        let g = &self.geometry;
        let (d, width) = (g.head_dim, g.kv_width());
        let row = |rows: &[u16], t: usize, c: usize| self.numbers[usize::from(rows[t * width + kv * d + c])];
        let (keys, values) = (&held.keys[layer], &held.values[layer]);
        let logit = |t: usize| (0..d).map(|c| f64::from(query[c]) * row(keys, t, c)).sum::<f64>() * f64::from(g.scale);
        // The rule itself: the query's own position is `seen - 1`.
        let sees = |t: &usize| self.windows[layer].is_none_or(|w| *t < w.sinks || *t + w.tokens >= seen);
        let tokens: Vec<usize> = (0..seen).filter(sees).collect();
        let logits: Vec<f64> = tokens.iter().map(|t| logit(*t)).collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut out, mut sum) = (vec![0.0; d], 0.0);
        for (t, z) in tokens.into_iter().zip(&logits) {
            let w = (z - most).exp();
            sum += w;
            for (c, o) in out.iter_mut().enumerate() {
                *o += w * row(values, t, c);
            }
        }
        out.iter_mut().for_each(|o| *o /= sum);
        out
    }

    /// What each full block has of the attention of a query behind a sequence's last token, and whether blocks say so within what their codes change.
    pub(crate) fn shares(&self, held: &Held, layer: usize, kv: usize, query: &[f32], block: usize) -> Vec<f64> {
        let g = &self.geometry;
        let (d, width) = (g.head_dim, g.kv_width());
        let key = |t: usize, c: usize| self.numbers[usize::from(held.keys[layer][t * width + kv * d + c])];
        let logit = |t: usize| (0..d).map(|c| f64::from(query[c]) * key(t, c)).sum::<f64>() * f64::from(g.scale);
        let logits: Vec<f64> = (0..held.len).map(logit).collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|z| (z - most).exp()).collect();
        let all: f64 = weights.iter().sum();
        weights.chunks_exact(block).map(|block| block.iter().sum::<f64>() / all).collect()
    }

    /// Reads every original back: how many rows were compared, how many sides differ.
    pub(crate) fn read_back(&self, cache: &mut GpuCache) -> Result<(usize, usize), Failure> {
        let (g, mut rows, mut wrong) = (&self.geometry, 0, 0);
        let (d, width) = (g.head_dim, g.kv_width());
        for held in &self.held {
            for layer in 0..g.layers {
                for head in 0..g.kv_heads {
                    for (side, want) in [(Side::Key, &held.keys[layer]), (Side::Value, &held.values[layer])] {
                        let got = match cache.originals(held.id, layer, head, side) {
                            // Of what the window has passed the rows are gone.
                            Err(Error::Gone { .. }) if self.windows[layer].is_some() => continue,
                            got => got?,
                        };
                        let want = want.chunks_exact(width).flat_map(|row| &row[head * d..(head + 1) * d]);
                        let same = got.len() == held.len * d && got.iter().eq(want);
                        rows += held.len;
                        wrong += usize::from(!same);
                        if !same {
                            println!("WRONG originals of {:?} layer {layer} head {head} {side:?}", held.id);
                        }
                    }
                }
            }
        }
        Ok((rows, wrong))
    }
}

fn distance(truth: &[f64], out: &[f32]) -> f64 {
    truth.iter().zip(out).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}

/// Only these are meant here.
pub(crate) const STORES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

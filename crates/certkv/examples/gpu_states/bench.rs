//! What all parts work with: caches, rows, what a step said, and counts of what was compared.
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Certificate, Certified, Chunk, Geometry, Policy, SequenceId, Side};
use certkv_testkit::generate::Rng;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A machine, and the shape of the caches on it.
pub(crate) struct Bench<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) compiler: &'a Compiler,
    pub(crate) geometry: Geometry,
    /// One without residual planes, one with them; blocks of one size.
    pub(crate) formats: [&'a str; 2],
    pub(crate) block: usize,
    pub(crate) seed: u64,
    /// The kernels are stand-ins that read no rows: what real ones alone can show is left out.
    pub(crate) stubs: bool,
}

/// Whether a format has residual planes.
pub(crate) fn refines(format: &str) -> bool {
    format.contains("-r")
}

impl Bench<'_> {
    /// A cache for `blocks` blocks, as many in each of `sequences` sequences. Scratch holds every side, and a step may copy all of them: what is
    /// read exactly does not depend on which copies came first.
    pub(crate) fn config(&self, format: &str, blocks: usize, sequences: usize) -> Result<GpuConfig, Failure> {
        let mut config =
            GpuConfig::new(self.geometry, blocks * self.block).with_format(format.parse()?).with_scratch(1.0);
        (config.max_sequences, config.copies_per_step, config.threads) = (sequences, 1 << 14, 16);
        Ok(config)
    }

    pub(crate) fn cache(&self, config: GpuConfig) -> Result<GpuCache, Failure> {
        Ok(GpuCache::new(self.gpu, self.compiler, config)?)
    }
}

/// The policies of decode steps, with their names in gates.
pub(crate) fn policies() -> [(&'static str, Policy); 3] {
    let certified = Policy::Certified(Certified { tol_rel: 0.05, ..Certified::default() });
    [("packed", Policy::Packed), ("certified", certified), ("dense", Policy::Dense)]
}

/// What a step brings, by layer: `[token][width]`.
pub(crate) struct Rows {
    pub(crate) keys: Vec<Vec<u16>>,
    pub(crate) values: Vec<Vec<u16>>,
    pub(crate) queries: Vec<Vec<f32>>,
}

/// Keys around an offset, values around nothing; nothing is asked.
pub(crate) fn prompt(g: &Geometry, tokens: usize, r: &mut Rng) -> Rows {
    let mut rows = Rows { keys: Vec::new(), values: Vec::new(), queries: Vec::new() };
    for _ in 0..g.layers {
        let offset = |i: usize| if i % 11 == 3 { 4.0 } else { 0.3 };
        let n = tokens * g.kv_width();
        rows.keys.push((0..n).map(|i| g.store.encode16((offset(i) + r.normal()) as f32)).collect());
        rows.values.push((0..n).map(|_| g.store.encode16((0.1 + 0.7 * r.normal()) as f32)).collect());
    }
    rows
}

/// The same with queries, some of them sharp.
pub(crate) fn rows(g: &Geometry, tokens: usize, r: &mut Rng) -> Rows {
    let mut rows = prompt(g, tokens, r);
    for _ in 0..g.layers {
        let mut queries = Vec::with_capacity(tokens * g.q_width());
        for _ in 0..tokens * g.q_heads {
            let sharp = if r.chance(0.3) { 1.5 } else { 0.4 };
            queries.extend((0..g.head_dim).map(|_| (sharp * r.normal()) as f32));
        }
        rows.queries.push(queries);
    }
    rows
}

/// What a step said of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// Bits of outputs, certificates, and bits of masses if they were asked for.
    Told { out: Vec<u32>, certificates: Vec<Certificate>, masses: Vec<u32> },
    /// An error's text.
    Refused(String),
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Heads that differ, and masses of a layer that do as one more.
pub(crate) fn different(a: &[Answer], b: &[Answer], g: &Geometry) -> usize {
    let of_layer = |(a, b): (&Answer, &Answer)| match (a, b) {
        (Answer::Told { out: x, certificates: c, masses: m }, Answer::Told { out: y, certificates: d, masses: n })
            if x.len() == y.len() =>
        {
            let outputs = x.chunks(g.head_dim).zip(y.chunks(g.head_dim)).map(|(x, y)| x != y);
            let heads = outputs.zip(c.iter().zip(d)).filter(|(out, (c, d))| *out || c != d).count();
            heads + usize::from(m != n)
        }
        _ => usize::from(a != b) * g.q_heads,
    };
    a.iter().zip(b).map(of_layer).sum::<usize>() + a.len().abs_diff(b.len()) * g.q_heads
}

/// How many outputs the answers hold, by head.
pub(crate) fn heads(answers: &[Answer], g: &Geometry) -> usize {
    let of_layer = |answer: &Answer| match answer {
        Answer::Told { out, .. } => out.len() / g.head_dim,
        Answer::Refused(_) => 0,
    };
    answers.iter().map(of_layer).sum()
}

/// The answers with one bit of one output turned: no comparison may let that pass.
pub(crate) fn bent(answers: &[Answer]) -> Vec<Answer> {
    let mut other = answers.to_vec();
    match other.last_mut() {
        Some(Answer::Told { out, .. }) if !out.is_empty() => out[0] ^= 1,
        Some(last) => *last = Answer::Refused("bent".into()),
        None => {}
    }
    other
}

/// A chunk of a sequence, appended alone.
pub(crate) fn prefill(cache: &mut GpuCache, sequence: SequenceId, tokens: usize, rows: &Rows) -> Result<(), Failure> {
    let layers = cache.geometry().layers;
    let mut step = cache.begin(&[Chunk { sequence, tokens }])?;
    for layer in 0..layers {
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
    }
    Ok(step.finish()?)
}

/// A token of each sequence, through host slices.
pub(crate) fn decode(
    cache: &mut GpuCache,
    of: &[SequenceId],
    rows: &Rows,
    policy: Policy,
    with_masses: bool,
) -> Result<Vec<Answer>, Failure> {
    let g = *cache.geometry();
    let chunks: Vec<Chunk> = of.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
    let mut step = cache.begin_with(&chunks, policy)?;
    let mut answers = Vec::with_capacity(g.layers);
    for layer in 0..g.layers {
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
        step.attend(layer, &rows.queries[layer])?;
        let mut out = vec![f32::NAN; of.len() * g.q_width()];
        let mut certificates = vec![Certificate::default(); of.len() * g.q_heads];
        answers.push(match step.outputs(layer, &mut out, &mut certificates) {
            Ok(()) => {
                let masses = if with_masses { step.cache().mass_bits()? } else { Vec::new() };
                Answer::Told { out: bits(&out), certificates, masses }
            }
            Err(error) => Answer::Refused(error.to_string()),
        });
    }
    step.finish()?;
    Ok(answers)
}

/// All originals of a sequence.
pub(crate) fn originals(cache: &mut GpuCache, id: SequenceId) -> Result<Vec<u16>, Failure> {
    let g = *cache.geometry();
    let mut all = Vec::new();
    for layer in 0..g.layers {
        for head in 0..g.kv_heads {
            for side in [Side::Key, Side::Value] {
                all.extend(cache.originals(id, layer, head, side)?);
            }
        }
    }
    Ok(all)
}

/// What was compared.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) executed: usize,
    pub(crate) failed: usize,
    pub(crate) caught: usize,
    pub(crate) planted: usize,
}

impl Tally {
    /// A control: a difference that was planted, and whether it was seen.
    pub(crate) fn control(&mut self, seen: bool) {
        self.planted += 1;
        self.caught += usize::from(seen);
    }

    /// Prints the gate; whether all held.
    pub(crate) fn gate(&self, id: &str, seed: u64) -> bool {
        let Self { executed, failed, caught, planted } = self;
        println!("GATE {id} executed={executed} failed={failed} controls={caught}/{planted} seed={seed:#x}");
        *executed > 0 && *failed == 0 && caught == planted && *planted > 0
    }
}

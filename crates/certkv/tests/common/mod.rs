//! The plain model that the cache is compared with: rows in vectors, attention in `f64`.
#![allow(dead_code, reason = "each test file uses its part")]
pub(crate) mod calibrate;
pub(crate) mod towards;

use certkv::{Cache, Certificate, Chunk, Dtype, Error, Geometry, Policy, Rung, SequenceId, Side, Status, Window};
use certkv_testkit::generate::{Rng, decode};
use certkv_testkit::oracle::{Attention, distance, norm};

/// Rows of one side, `[layer][token * kv_width]`, as 16-bit patterns.
pub(crate) type Layers = Vec<Vec<u16>>;

/// What a sequence should hold.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model {
    pub(crate) keys: Layers,
    pub(crate) values: Layers,
}

impl Model {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self { keys: vec![Vec::new(); geometry.layers], values: vec![Vec::new(); geometry.layers] }
    }

    pub(crate) fn len(&self, geometry: &Geometry) -> usize {
        self.keys[0].len() / geometry.kv_width()
    }

    pub(crate) fn append(&mut self, rows: &Self) {
        for (mine, new) in self.keys.iter_mut().zip(&rows.keys).chain(self.values.iter_mut().zip(&rows.values)) {
            mine.extend_from_slice(new);
        }
    }

    pub(crate) fn truncate(&mut self, geometry: &Geometry, len: usize) {
        self.keys.iter_mut().chain(&mut self.values).for_each(|rows| rows.truncate(len * geometry.kv_width()));
    }

    /// One head's rows, `[token][dim]`.
    pub(crate) fn side(&self, geometry: &Geometry, layer: usize, head: usize, side: Side) -> Vec<u16> {
        let rows = if side == Side::Key { &self.keys } else { &self.values };
        let (dim, width) = (geometry.head_dim, geometry.kv_width());
        rows[layer].chunks_exact(width).flat_map(|row| row[head * dim..(head + 1) * dim].to_vec()).collect()
    }

    /// Exact attention of every query head over the first `tokens` tokens.
    pub(crate) fn attend(&self, geometry: &Geometry, layer: usize, tokens: usize, queries: &[f32]) -> Vec<Vec<f64>> {
        let dim = geometry.head_dim;
        let sides: Vec<_> = (0..geometry.kv_heads)
            .map(|head| {
                let of = |side| decode(&self.side(geometry, layer, head, side)[..tokens * dim], geometry.store);
                (of(Side::Key), of(Side::Value))
            })
            .collect();
        queries
            .chunks_exact(dim)
            .enumerate()
            .map(|(h, q)| {
                let q: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
                let (keys, values) = &sides[h / geometry.group()];
                Attention::plain(&q, f64::from(geometry.scale)).dense(keys, values, 16).unwrap().output
            })
            .collect()
    }
}

/// Exact attention of each query head at position `p` over what it sees, in f64.
pub(crate) fn exact(
    g: &Geometry,
    model: &Model,
    layer: usize,
    p: usize,
    window: Option<Window>,
    queries: &[f32],
) -> Vec<Vec<f64>> {
    let dim = g.head_dim;
    let seen: Vec<usize> = (0..=p).filter(|t| window.is_none_or(|w| *t < w.sinks || t + w.tokens > p)).collect();
    let side = |head, side| {
        let rows = model.side(g, layer, head, side);
        let rows: Vec<u16> = seen.iter().flat_map(|t| rows[t * dim..(t + 1) * dim].to_vec()).collect();
        decode(&rows, g.store)
    };
    let of_head = |(h, q): (usize, &[f32])| {
        let q: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
        let (keys, values) = (side(h / g.group(), Side::Key), side(h / g.group(), Side::Value));
        Attention::plain(&q, f64::from(g.scale)).dense(&keys, &values, 16).unwrap().output
    };
    queries.chunks_exact(dim).enumerate().map(of_head).collect()
}

/// `tokens` random rows: mostly plain, some channels large, now and then a token of zeros.
pub(crate) fn random_rows(geometry: &Geometry, tokens: usize, r: &mut Rng) -> Model {
    rows_of(geometry, tokens, r, Rng::normal)
}

/// The same twice as fast, from numbers that are nearly normal: for long runs.
pub(crate) fn quick_rows(geometry: &Geometry, tokens: usize, r: &mut Rng) -> Model {
    rows_of(geometry, tokens, r, Rng::nearly_normal)
}

fn rows_of(geometry: &Geometry, tokens: usize, r: &mut Rng, number: fn(&mut Rng) -> f64) -> Model {
    let mut rows = Model::new(geometry);
    for side in [&mut rows.keys, &mut rows.values] {
        for layer in side {
            for _ in 0..tokens {
                let scale = if r.chance(0.02) { 0.0 } else { 1.0 };
                layer.extend((0..geometry.kv_width()).map(|c| {
                    let outlier = if c % 29 == 3 { 8.0 } else { 1.0 };
                    Dtype::F16.encode16((number(r) * scale * outlier) as f32)
                }));
            }
        }
    }
    rows
}

pub(crate) fn random_queries(geometry: &Geometry, tokens: usize, r: &mut Rng) -> Vec<f32> {
    let spread = 0.3 + 2.0 * r.uniform();
    (0..tokens * geometry.q_width()).map(|_| (r.normal() * spread) as f32).collect()
}

/// Outputs and certificates of one attend call.
pub(crate) struct Answer {
    pub(crate) out: Vec<f32>,
    pub(crate) certificates: Vec<Certificate>,
}

impl Answer {
    pub(crate) fn new(geometry: &Geometry, tokens: usize) -> Self {
        Self {
            out: vec![f32::NAN; tokens * geometry.q_width()],
            certificates: vec![Certificate::default(); tokens * geometry.q_heads],
        }
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        self.out.iter().map(|x| x.to_bits()).collect()
    }
}

/// Runs one whole step over one sequence: appends `rows`, attends in every layer with `queries`, finishes.
pub(crate) fn step(
    cache: &Cache,
    sequence: SequenceId,
    rows: &Model,
    queries: &[f32],
    policy: Policy,
) -> Result<Vec<Answer>, Error> {
    let geometry = *cache.geometry();
    let tokens = rows.len(&geometry);
    let mut step = cache.begin_with(&[Chunk { sequence, tokens }], policy)?;
    let mut answers = Vec::new();
    for layer in 0..geometry.layers {
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
        let mut answer = Answer::new(&geometry, tokens);
        step.attend(layer, queries, &mut answer.out, &mut answer.certificates)?;
        answers.push(answer);
    }
    step.finish()?;
    Ok(answers)
}

/// Appends `rows` without attending.
pub(crate) fn fill(cache: &Cache, sequence: SequenceId, rows: &Model) -> Result<(), Error> {
    let geometry = *cache.geometry();
    let mut step = cache.begin(&[Chunk { sequence, tokens: rows.len(&geometry) }])?;
    for layer in 0..geometry.layers {
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
    }
    step.finish()
}

/// Decode outputs whose true error is beyond their bound, or whose status does not say what happened.
pub(crate) fn decode_faults(exact: &[Vec<f64>], answer: &[f32], certificates: &[Certificate], tol_rel: f64) -> usize {
    let dim = exact[0].len();
    let wrong = |(h, exact): &(usize, &Vec<f64>)| {
        let (got, c) = (&answer[h * dim..(h + 1) * dim], &certificates[*h]);
        let got: Vec<f64> = got.iter().map(|x| f64::from(*x)).collect();
        let stated = match c.status {
            Status::Certified => c.quantisation() <= tol_rel * norm(&got) * (1.0 + 1e-9),
            Status::Exact => c.quantisation() == 0.0 && c.rung >= Rung::DenseHead,
            _ => false,
        };
        !(stated && distance(exact, &got) <= c.bound())
    };
    exact.iter().enumerate().filter(wrong).count()
}

/// Heads and sides whose stored originals differ from the model's, over all layers.
pub(crate) fn original_faults(cache: &Cache, id: SequenceId, model: &Model) -> usize {
    let geometry = *cache.geometry();
    let mut wrong = 0;
    for layer in 0..geometry.layers {
        for head in 0..geometry.kv_heads {
            for side in [Side::Key, Side::Value] {
                let stored = cache.originals(id, layer, head, side).unwrap();
                wrong += usize::from(stored != model.side(&geometry, layer, head, side));
            }
        }
    }
    wrong
}

/// Whether an error is what an injected fault became, at once or when a copy was waited for.
pub(crate) fn is_injected(error: &Error) -> bool {
    match error {
        Error::Shortened { cause, .. } => is_injected(cause),
        other => ["injected fault", "copies failed"].iter().any(|words| other.to_string().contains(words)),
    }
}

//! An attention that measures the cache behind it.
use super::{
    backend::Backend,
    gather::{Gathered, SHARES},
    oracle,
};
use crate::model::{
    Attention, AttentionError, Config, Pass,
    tape::{LayerRows, Tape},
};
use certkv_bound::Certificate;
use std::time::Instant;

/// Passes decode steps to a cache, collects its certificates and, on sampled steps, recomputes the outputs exactly from
/// the same half-precision rows.
pub struct Probe<'a> {
    backend: &'a mut dyn Backend,
    book: Book<'a>,
}

/// What a probe writes to, apart from the cache it drives.
struct Book<'a> {
    prompt: &'a Tape,
    since: Tape,
    gathered: &'a mut Gathered,
    config: &'a Config,
    block: usize,
    every: u64,
}

impl<'a> Probe<'a> {
    /// Measures `backend`, which holds `prompt`, into `gathered`. `block` is the tokens per block of its format; outputs
    /// are recomputed on every `every`-th step, never if it is 0.
    pub fn new(
        backend: &'a mut dyn Backend,
        prompt: &'a Tape,
        gathered: &'a mut Gathered,
        config: &'a Config,
        block: usize,
        every: u64,
    ) -> Self {
        let since = Tape { layers: vec![LayerRows::default(); config.layers], tokens: 0 };
        Self { backend, book: Book { prompt, since, gathered, config, block, every } }
    }
}

impl Book<'_> {
    /// Notes one layer of a step over `tokens` tokens.
    fn note(&mut self, layer: usize, tokens: usize, certificates: &[Certificate]) {
        let c = self.config;
        let dense = (tokens * c.head_dim * 2 * 2) as u64;
        let blocks = tokens.div_ceil(self.block) as u64;
        self.gathered.add(layer, certificates, c.heads / c.kv_heads, blocks, dense);
    }

    fn witness(&mut self, layer: usize, q: &[f32], out: &[f32], certificates: &[Certificate]) {
        let (heads, d) = (self.config.heads, self.config.head_dim);
        let pieces = [&self.prompt.layers[layer], &self.since.layers[layer]];
        let exact = oracle::attention(pieces, q, heads, self.config.kv_heads);
        for head in 0..heads {
            let error = exact.error(head, &out[head * d..(head + 1) * d]);
            let bound = certificates.get(head).map_or(f64::INFINITY, Certificate::bound);
            self.gathered.witness(bound, error, exact.norm(head, d));
            let coverage = exact.coverage(head, heads, self.block, &SHARES);
            self.gathered.coverage.push(std::array::from_fn(|i| coverage[i] as f32));
        }
    }
}

impl Attention for Probe<'_> {
    fn length(&self) -> usize {
        self.backend.length()
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        if tokens != 1 {
            return Err(AttentionError::Order("a probe measures single decode steps"));
        }
        self.book.gathered.begin_step();
        let length = self.backend.length() + tokens;
        let start = Instant::now();
        let inner = self.backend.begin(tokens)?;
        self.book.gathered.attend_seconds += start.elapsed().as_secs_f64();
        Ok(Box::new(Probed { inner, book: &mut self.book, length }))
    }
}

/// A decode step that is measured.
struct Probed<'p, 'a> {
    inner: Box<dyn Pass + 'p>,
    book: &'p mut Book<'a>,
    length: usize,
}

impl Pass for Probed<'_, '_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        let start = Instant::now();
        self.inner.attend(layer, k, v, q, out)?;
        self.book.gathered.attend_seconds += start.elapsed().as_secs_f64();
        let certificates = self.inner.certificates();
        self.book.note(layer, self.length, certificates);
        let (every, steps) = (self.book.every, self.book.gathered.steps);
        if every > 0 {
            let start = Instant::now();
            self.book.since.push(layer, k, v)?;
            if steps % every == 1 % every {
                self.book.witness(layer, q, out, certificates);
            }
            self.book.gathered.witness_seconds += start.elapsed().as_secs_f64();
        }
        Ok(())
    }

    fn certificates(&self) -> &[Certificate] {
        self.inner.certificates()
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        let start = Instant::now();
        self.inner.finish()?;
        self.book.gathered.attend_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }
}

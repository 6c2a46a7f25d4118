//! An attention that measures the cache behind it.
use super::{
    backend::Backend,
    gather::{Gathered, SHARES},
    oracle,
};
use crate::model::{
    Attention, AttentionError, Config,
    tape::{LayerRows, Tape},
};
use half::f16;
use std::time::Instant;

/// Passes decode steps to a cache, collects its certificates and, on sampled steps, recomputes the outputs exactly from
/// the same half-precision rows.
pub struct Probe<'a> {
    backend: &'a mut dyn Backend,
    prompt: &'a Tape,
    since: Vec<LayerRows>,
    gathered: &'a mut Gathered,
    config: &'a Config,
    block: usize,
    /// Every how many steps outputs are recomputed; 0 for never.
    every: u64,
}

impl<'a> Probe<'a> {
    /// Measures `backend`, which holds `prompt`, into `gathered`. `block` is the tokens per block of its format.
    pub fn new(
        backend: &'a mut dyn Backend,
        prompt: &'a Tape,
        gathered: &'a mut Gathered,
        config: &'a Config,
        block: usize,
        every: u64,
    ) -> Self {
        let since = vec![LayerRows::default(); config.layers];
        Self { backend, prompt, since, gathered, config, block, every }
    }

    fn witness(&mut self, layer: usize, q: &[f32], out: &[f32]) {
        let (heads, d) = (self.config.heads, self.config.head_dim);
        let pieces = [&self.prompt.layers[layer], &self.since[layer]];
        let exact = oracle::attention(pieces, q, heads, self.config.kv_heads);
        for head in 0..heads {
            let error = exact.error(head, &out[head * d..(head + 1) * d]);
            let bound = self.backend.certificates().get(head).map_or(f64::INFINITY, |c| c.bound());
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

    fn begin(&mut self, tokens: usize) -> Result<(), AttentionError> {
        if tokens != 1 {
            return Err(AttentionError::Order("a probe measures single decode steps"));
        }
        self.gathered.begin_step();
        let start = Instant::now();
        self.backend.begin(tokens)?;
        self.gathered.attend_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        let start = Instant::now();
        self.backend.attend(layer, k, v, q, out)?;
        self.gathered.attend_seconds += start.elapsed().as_secs_f64();
        let c = self.config;
        let tokens = self.backend.length() + 1;
        let dense = (tokens * c.head_dim * 2 * 2) as u64;
        let blocks = tokens.div_ceil(self.block) as u64;
        self.gathered.add(layer, self.backend.certificates(), c.heads / c.kv_heads, blocks, dense);
        if self.every > 0 {
            self.since[layer].keys.extend(k.iter().map(|&x| f16::from_f32(x)));
            self.since[layer].values.extend(v.iter().map(|&x| f16::from_f32(x)));
            if self.gathered.steps % self.every == 1 % self.every {
                self.witness(layer, q, out);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), AttentionError> {
        let start = Instant::now();
        self.backend.finish()?;
        self.gathered.attend_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }
}

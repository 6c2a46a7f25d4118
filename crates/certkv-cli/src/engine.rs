//! The engine as the evaluation sees it: one cache per mode, one sequence in it.
use crate::{
    eval::{self, Backend, Engine, Footprint},
    model::{self, Attention, AttentionError, Pass, tape::Tape},
};
use certkv::{Cache, Certificate, Certified, Chunk, Config, Error, Geometry, Policy, Seed000, SequenceId, Step};
use half::slice::HalfFloatSliceExt;

/// Caches of this library on the CPU.
#[derive(Debug, Clone, Copy)]
pub struct CpuEngine {
    threads: usize,
}

impl CpuEngine {
    /// Caches that use `threads` threads.
    pub const fn new(threads: usize) -> Self {
        Self { threads }
    }
}

/// The engine that every command uses, with `threads` threads.
pub fn engine(threads: usize) -> Box<dyn Engine> {
    Box::new(CpuEngine::new(threads))
}

pub(crate) fn refused(e: Error) -> AttentionError {
    AttentionError::Cache(Box::new(e))
}

pub(crate) fn policy(policy: eval::Policy) -> Policy {
    match policy {
        eval::Policy::Dense => Policy::Dense,
        eval::Policy::Packed => Policy::Packed,
        eval::Policy::Certified { tolerance } => {
            Policy::Certified(Certified { tol_rel: tolerance, ..Certified::default() })
        }
        eval::Policy::Seed000 => Policy::Seed000(Seed000::default()),
    }
}

impl Engine for CpuEngine {
    fn open(
        &mut self,
        mode: &eval::Mode,
        model: &model::Config,
        capacity: usize,
    ) -> Result<Box<dyn Backend>, AttentionError> {
        let geometry = Geometry::new(model.layers, model.heads, model.kv_heads, model.head_dim)
            .map_err(|e| refused(Error::Geometry(e)))?;
        // Whole blocks are what a cache gives out, and the last one is rarely full.
        let tokens = capacity.next_multiple_of(mode.format.block) + mode.format.block;
        let mut config = Config::new(geometry, tokens).with_format(mode.format);
        config.max_sequences = 2;
        config.threads = self.threads;
        config.policy = policy(mode.policy);
        let cache = Cache::new(config).map_err(refused)?;
        let sequence = cache.create().map_err(refused)?;
        Ok(Box::new(One { cache, sequence, length: 0, heads: model.heads }))
    }
}

/// A cache with one sequence.
struct One {
    cache: Cache,
    sequence: SequenceId,
    length: usize,
    heads: usize,
}

impl Backend for One {
    fn load(&mut self, prompt: &Tape) -> Result<(), AttentionError> {
        let fresh = self.cache.create().map_err(refused)?;
        self.cache.release(self.sequence).map_err(refused)?;
        (self.sequence, self.length) = (fresh, 0);
        if prompt.tokens == 0 {
            return Ok(());
        }
        let chunk = Chunk { sequence: self.sequence, tokens: prompt.tokens };
        let mut step = self.cache.begin(&[chunk]).map_err(refused)?;
        for (layer, rows) in prompt.layers.iter().enumerate() {
            let (keys, values) = (rows.keys.reinterpret_cast(), rows.values.reinterpret_cast());
            step.append_bits(layer, keys, values).map_err(refused)?;
        }
        step.finish().map_err(refused)?;
        self.length = prompt.tokens;
        Ok(())
    }

    fn truncate(&mut self, length: usize) -> Result<(), AttentionError> {
        self.cache.truncate(self.sequence, length).map_err(refused)?;
        self.length = length;
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        let m = self.cache.memory();
        Footprint {
            tokens: m.tokens,
            packed: m.packed as u64,
            scratch: m.scratch as u64,
            tables: m.tables as u64,
            host: m.host as u64,
        }
    }
}

impl Attention for One {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        let step = self.cache.begin(&[Chunk { sequence: self.sequence, tokens }]).map_err(refused)?;
        // Prefill is exact up to arithmetic; nobody reads its certificates.
        let certificates = if tokens == 1 { vec![Certificate::UNCERTIFIED; self.heads] } else { Vec::new() };
        Ok(Box::new(Open { step, certificates, tokens, length: &mut self.length }))
    }
}

/// A step of the one sequence.
struct Open<'a> {
    step: Step<'a>,
    certificates: Vec<Certificate>,
    tokens: usize,
    length: &'a mut usize,
}

impl Pass for Open<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.step.append(layer, k, v).map_err(refused)?;
        self.step.attend(layer, q, out, &mut self.certificates).map_err(refused)
    }

    fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        let Self { step, tokens, length, .. } = *self;
        step.finish().map_err(refused)?;
        *length += tokens;
        Ok(())
    }
}

//! One sequence of a cache as the evaluation sees it, wherever the cache lies.
use crate::{
    eval::{Backend, Footprint, Mode},
    model::{self, Attention, AttentionError, Pass, tape::Tape},
};
use certkv::{Certificate, Chunk, Error, Geometry, MemoryUse, SequenceId};
use half::slice::HalfFloatSliceExt;

pub(crate) fn refused(e: Error) -> AttentionError {
    AttentionError::Cache(Box::new(e))
}

/// Shape and tokens of a cache for `capacity` tokens of a model.
pub(crate) fn room(mode: &Mode, model: &model::Config, capacity: usize) -> Result<(Geometry, usize), AttentionError> {
    let geometry = Geometry::new(model.layers, model.heads, model.kv_heads, model.head_dim)
        .map_err(|e| refused(Error::Geometry(e)))?;
    // Whole blocks are what a cache gives out, and the last one is rarely full.
    Ok((geometry, capacity.next_multiple_of(mode.block()) + mode.block()))
}

/// What caches have in common.
pub(crate) trait Store: Send {
    type Step<'c>: Layers
    where
        Self: 'c;

    fn create(&mut self) -> Result<SequenceId, Error>;
    fn release(&mut self, id: SequenceId) -> Result<(), Error>;
    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error>;
    fn begin(&mut self, chunk: Chunk) -> Result<Self::Step<'_>, Error>;
    fn memory(&self) -> MemoryUse;
}

/// What their steps have in common.
pub(crate) trait Layers {
    fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Error>;
    fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Error>;
    /// Attends and brings the outputs back.
    fn attend(&mut self, layer: usize, q: &[f32], out: &mut [f32], found: &mut [Certificate]) -> Result<(), Error>;
    fn finish(self) -> Result<(), Error>;
}

/// A cache with one sequence.
pub(crate) struct One<C> {
    cache: C,
    sequence: SequenceId,
    length: usize,
    heads: usize,
}

impl<C: Store> One<C> {
    /// An empty sequence of a model with `heads` query heads. The cache has room for a second one, which `load` fills.
    pub(crate) fn new(mut cache: C, heads: usize) -> Result<Self, AttentionError> {
        let sequence = cache.create().map_err(refused)?;
        Ok(Self { cache, sequence, length: 0, heads })
    }
}

impl<C: Store> Backend for One<C> {
    fn load(&mut self, prompt: &Tape) -> Result<(), AttentionError> {
        let fresh = self.cache.create().map_err(refused)?;
        self.cache.release(self.sequence).map_err(refused)?;
        (self.sequence, self.length) = (fresh, 0);
        if prompt.tokens == 0 {
            return Ok(());
        }
        let chunk = Chunk { sequence: self.sequence, tokens: prompt.tokens };
        let mut step = self.cache.begin(chunk).map_err(refused)?;
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

impl<C: Store> Attention for One<C> {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        let Self { cache, sequence, length, heads } = self;
        let step = cache.begin(Chunk { sequence: *sequence, tokens }).map_err(refused)?;
        // Prefill is exact up to arithmetic; nobody reads its certificates.
        let certificates = if tokens == 1 { vec![Certificate::UNCERTIFIED; *heads] } else { Vec::new() };
        Ok(Box::new(Open { step, certificates, tokens, length }))
    }
}

/// A step of the one sequence.
struct Open<'a, S> {
    step: S,
    certificates: Vec<Certificate>,
    tokens: usize,
    length: &'a mut usize,
}

impl<S: Layers> Pass for Open<'_, S> {
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

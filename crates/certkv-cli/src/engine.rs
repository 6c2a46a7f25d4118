//! The caches under test: the engine behind the evaluation's traits.
use crate::eval::{Backend, Engine, Footprint, Mode, Policy};
use crate::model::{Attention, AttentionError, Config as Model, Pass, tape::Tape};
use certkv::{Cache, Certificate, Certified, Chunk, Config, Error, Geometry, Seed000, SequenceId, Step};

/// The engine that every command uses, with `threads` kernel threads.
pub fn engine(threads: usize) -> Box<dyn Engine> {
    Box::new(Certkv { threads })
}

struct Certkv {
    threads: usize,
}

/// One sequence in a cache of its own.
struct Sequence {
    cache: Cache,
    id: SequenceId,
    length: usize,
    layers: usize,
    certificates: Vec<Certificate>,
}

fn cache_error(e: Error) -> AttentionError {
    AttentionError::Cache(Box::new(e))
}

impl Engine for Certkv {
    fn open(&mut self, mode: &Mode, model: &Model, capacity: usize) -> Result<Box<dyn Backend>, AttentionError> {
        let geometry = Geometry::new(model.layers, model.heads, model.kv_heads, model.head_dim);
        let geometry = geometry.map_err(|e| cache_error(e.into()))?;
        let policy = match mode.policy {
            Policy::Dense => certkv::Policy::Dense,
            Policy::Packed => certkv::Policy::Packed,
            Policy::Certified { tolerance } => {
                certkv::Policy::Certified(Certified { tol_rel: tolerance, ..Certified::default() })
            }
            Policy::Seed000 => certkv::Policy::Seed000(Seed000::default()),
        };
        let config = Config {
            policy,
            threads: self.threads,
            max_sequences: 2,
            ..Config::new(geometry, capacity).with_format(mode.format)
        };
        let cache = Cache::new(config).map_err(cache_error)?;
        let id = cache.create().map_err(cache_error)?;
        Ok(Box::new(Sequence { cache, id, length: 0, layers: model.layers, certificates: Vec::new() }))
    }
}

impl Backend for Sequence {
    fn load(&mut self, prompt: &Tape) -> Result<(), AttentionError> {
        self.truncate(0)?;
        // A fresh sequence: nothing that an earlier prompt taught the guess may help this one.
        self.cache.release(self.id).map_err(cache_error)?;
        self.id = self.cache.create().map_err(cache_error)?;
        if prompt.tokens == 0 {
            return Ok(());
        }
        let chunk = Chunk { sequence: self.id, tokens: prompt.tokens };
        let mut step = self.cache.begin(&[chunk]).map_err(cache_error)?;
        for (layer, rows) in prompt.layers.iter().enumerate() {
            let bits = |rows: &[half::f16]| rows.iter().map(|x| x.to_bits()).collect::<Vec<u16>>();
            step.append_bits(layer, &bits(&rows.keys), &bits(&rows.values)).map_err(cache_error)?;
        }
        step.finish().map_err(cache_error)?;
        self.length = prompt.tokens;
        Ok(())
    }

    fn truncate(&mut self, length: usize) -> Result<(), AttentionError> {
        self.cache.truncate(self.id, length).map_err(cache_error)?;
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

impl Attention for Sequence {
    fn length(&self) -> usize {
        self.length
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        let step = self.cache.begin(&[Chunk { sequence: self.id, tokens }]).map_err(cache_error)?;
        let heads = self.cache.geometry().q_heads;
        self.certificates.clear();
        Ok(Box::new(Open {
            step,
            decode: (tokens == 1).then_some(heads),
            tokens,
            layers: self.layers,
            certificates: &mut self.certificates,
            length: &mut self.length,
        }))
    }
}

/// A step of the engine as a pass of the model.
struct Open<'a> {
    step: Step<'a>,
    /// Query heads of a decode step; prefill wants no certificates.
    decode: Option<usize>,
    tokens: usize,
    layers: usize,
    certificates: &'a mut Vec<Certificate>,
    length: &'a mut usize,
}

impl Pass for Open<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        debug_assert!(layer < self.layers);
        self.certificates.clear();
        if let Some(heads) = self.decode {
            self.certificates.resize(heads, Certificate::UNCERTIFIED);
        }
        self.step.append(layer, k, v).map_err(cache_error)?;
        self.step.attend(layer, q, out, self.certificates).map_err(cache_error)
    }

    fn certificates(&self) -> &[Certificate] {
        self.certificates
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.step.finish().map_err(cache_error)?;
        *self.length += self.tokens;
        Ok(())
    }
}

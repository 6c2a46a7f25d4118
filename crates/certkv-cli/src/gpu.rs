//! The engine on a GPU as the evaluation sees it. The model's forward pass stays on the CPU.
use crate::{
    engine::{CpuEngine, refused},
    error::CliError,
    eval::{self, Backend, Engine, Footprint},
    model::{self, Attention, AttentionError, Pass, tape::Tape},
};
use certkv::gpu::{Ahead, Compiler, Gpu, GpuCache, GpuConfig, GpuStep};
use certkv::{Certificate, Chunk, Error, Geometry, SequenceId};
use half::slice::HalfFloatSliceExt;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Where caches lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Device {
    /// In this program's memory.
    #[default]
    Cpu,
    /// On a GPU, by its number.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Self, CliError> {
        let number = |n: &str| n.parse().ok().map(Self::Cuda);
        let found = if text == "cpu" { Some(Self::Cpu) } else { text.strip_prefix("cuda:").and_then(number) };
        found.ok_or_else(|| CliError::Usage(format!("--device: `{text}` is neither cpu nor cuda:N")))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Caches on one GPU. The published policy, which is for the CPU, runs there.
#[derive(Debug)]
pub struct GpuEngine {
    gpu: Gpu,
    compiler: Compiler,
    threads: usize,
    cpu: CpuEngine,
}

impl GpuEngine {
    /// Opens GPU `ordinal`. `kernels` is a folder with machine code made ahead of time, where compiled code is kept, too.
    ///
    /// # Errors
    /// [`CliError::Input`] without a driver or without this GPU.
    pub fn open(ordinal: u32, kernels: Option<&Path>, threads: usize) -> Result<Self, CliError> {
        let gpu = Gpu::open(ordinal).map_err(|e| CliError::Input(Box::new(Error::Gpu(e))))?;
        let mut compiler = Compiler::new();
        if let Some(folder) = kernels {
            compiler = compiler.with_ahead(Ahead::Folder(folder.into())).with_cache(folder);
        }
        Ok(Self { gpu, compiler, threads, cpu: CpuEngine::new(threads) })
    }
}

impl Engine for GpuEngine {
    fn open(
        &mut self,
        mode: &eval::Mode,
        model: &model::Config,
        capacity: usize,
    ) -> Result<Box<dyn Backend>, AttentionError> {
        if mode.policy == eval::Policy::Seed000 {
            return self.cpu.open(mode, model, capacity);
        }
        let geometry = Geometry::new(model.layers, model.heads, model.kv_heads, model.head_dim)
            .map_err(|e| refused(Error::Geometry(e)))?;
        // Whole blocks are what a cache gives out, and the last one is rarely full.
        let tokens = capacity.next_multiple_of(mode.format.block) + mode.format.block;
        let mut config = GpuConfig::new(geometry, tokens);
        config.format = mode.format;
        config.max_sequences = 2;
        config.threads = self.threads.min(256);
        config.policy = crate::engine::policy(mode.policy);
        let mut cache = GpuCache::new(&self.gpu, &self.compiler, config).map_err(refused)?;
        let sequence = cache.create().map_err(refused)?;
        Ok(Box::new(One { cache, sequence, length: 0, heads: model.heads }))
    }
}

/// A cache with one sequence.
struct One {
    cache: GpuCache,
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
        let Self { cache, sequence, length, heads } = self;
        let step = cache.begin(&[Chunk { sequence: *sequence, tokens }]).map_err(refused)?;
        // Prefill is exact up to arithmetic; nobody reads its certificates.
        let certificates = if tokens == 1 { vec![Certificate::UNCERTIFIED; *heads] } else { Vec::new() };
        Ok(Box::new(Open { step, certificates, tokens, length }))
    }
}

/// A step of the one sequence.
struct Open<'a> {
    step: GpuStep<'a>,
    certificates: Vec<Certificate>,
    tokens: usize,
    length: &'a mut usize,
}

impl Pass for Open<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.step.append(layer, k, v).map_err(refused)?;
        self.step.attend(layer, q).map_err(refused)?;
        self.step.outputs(layer, out, &mut self.certificates).map_err(refused)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_and_nothing_else_is() {
        assert_eq!("cpu".parse::<Device>().unwrap(), Device::Cpu);
        assert_eq!("cuda:3".parse::<Device>().unwrap(), Device::Cuda(3));
        for bad in ["", "gpu", "cuda", "cuda:", "cuda:-1", "CPU", "cuda:4294967296"] {
            assert!(matches!(bad.parse::<Device>(), Err(CliError::Usage(_))), "{bad}");
        }
        assert_eq!(Device::Cuda(2).to_string(), "cuda:2");
    }
}

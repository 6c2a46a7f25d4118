//! The engine on a GPU as the evaluation sees it. The model's forward pass stays on the CPU.
use crate::{
    engine::{Calibrations, CpuEngine},
    error::CliError,
    eval::{self, Backend, Engine},
    model::{self, AttentionError},
    sequence::{Layers, One, Store, refused, room},
};
use certkv::gpu::{Ahead, Compiler, Gpu, GpuCache, GpuConfig, GpuStep};
use certkv::{Certificate, Chunk, Error, MemoryUse, Protection, SequenceId};
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
    /// What formats with calibrated keys code them by.
    calibrations: Calibrations,
    protection: Protection,
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
        let (calibrations, protection) = (Calibrations::default(), Protection::NONE);
        Ok(Self { gpu, compiler, threads, calibrations, protection, cpu: CpuEngine::new(threads) })
    }

    /// The same with what calibrated formats need.
    #[must_use]
    pub fn calibrated(self, calibrations: Calibrations) -> Self {
        Self { cpu: self.cpu.calibrated(calibrations.clone()), calibrations, ..self }
    }

    /// The same with tokens that are always read exactly.
    #[must_use]
    pub fn protecting(self, protection: Protection) -> Self {
        Self { cpu: self.cpu.protecting(protection), protection, ..self }
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
        let (geometry, tokens) = room(mode, model, capacity)?;
        let mut config = GpuConfig::new(geometry, tokens);
        config.formats = mode.formats().to_vec();
        (config.calibration, config.codebooks) = self.calibrations.of(mode.formats());
        (config.max_sequences, config.protection) = (2, self.protection);
        config.threads = self.threads.min(256);
        config.policy = crate::engine::policy(mode.policy);
        let cache = GpuCache::new(&self.gpu, &self.compiler, config).map_err(refused)?;
        Ok(Box::new(One::new(cache, model.heads)?))
    }
}

impl Store for GpuCache {
    type Step<'c> = GpuStep<'c>;

    fn create(&mut self) -> Result<SequenceId, Error> {
        GpuCache::create(self)
    }

    fn release(&mut self, id: SequenceId) -> Result<(), Error> {
        GpuCache::release(self, id)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        GpuCache::truncate(self, id, len)
    }

    fn begin(&mut self, chunk: Chunk) -> Result<GpuStep<'_>, Error> {
        GpuCache::begin(self, &[chunk])
    }

    fn memory(&self) -> MemoryUse {
        GpuCache::memory(self)
    }
}

impl Layers for GpuStep<'_> {
    fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Error> {
        GpuStep::append(self, layer, keys, values)
    }

    fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Error> {
        GpuStep::append_bits(self, layer, keys, values)
    }

    fn attend(&mut self, layer: usize, q: &[f32], out: &mut [f32], found: &mut [Certificate]) -> Result<(), Error> {
        GpuStep::attend(self, layer, q)?;
        self.outputs(layer, out, found)
    }

    fn finish(self) -> Result<(), Error> {
        GpuStep::finish(self)
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

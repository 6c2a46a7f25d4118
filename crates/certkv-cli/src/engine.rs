//! The engine on the CPU as the evaluation sees it: one cache per mode, one sequence in it.
use crate::{
    eval::{self, Backend, Engine},
    model::{self, AttentionError},
    sequence::{Layers, One, Store, refused, room},
};
use certkv::calibration::Calibration;
use certkv::scales::Scales;
use certkv::spherical::Codebooks;
use certkv::{
    Cache, Certificate, Certified, Chunk, Config, Error, Format, KeyFormat, MemoryUse, Policy, Protection, Seed000,
    SequenceId, Step,
};
use std::sync::Arc;

/// What calibrated keys are coded by.
#[derive(Debug, Clone, Default)]
pub struct Calibrations {
    /// Of formats such as ctq4 and gtq3.
    pub schemes: Option<Arc<Calibration>>,
    /// Of spherical keys, one for each tier at most.
    pub codebooks: Vec<Arc<Codebooks>>,
}

impl Calibrations {
    /// True if there is what keys of `key` need.
    pub fn serve(&self, key: KeyFormat) -> bool {
        match key.tier() {
            Some(_) => self.directions(key).is_some(),
            None => self.schemes.is_some() || !key.is_calibrated(),
        }
    }

    /// What these formats need, as a configuration has it.
    pub fn of(&self, formats: &[Format]) -> (Option<Arc<Calibration>>, Vec<Arc<Codebooks>>) {
        let keys = || formats.iter().map(|format| format.key);
        let schemes = keys().any(|key| key.is_folded());
        let books = self.codebooks.iter().filter(|books| keys().any(|key| key.tier() == Some(books.tier())));
        (self.schemes.clone().filter(|_| schemes), books.cloned().collect())
    }

    /// Directions of spherical keys of this tier.
    pub fn directions(&self, key: KeyFormat) -> Option<Arc<Codebooks>> {
        self.codebooks.iter().find(|books| Some(books.tier()) == key.tier()).cloned()
    }
}

/// Caches of this library on the CPU.
#[derive(Debug, Clone)]
pub struct CpuEngine {
    threads: usize,
    side_by_side: bool,
    calibrations: Calibrations,
    scales: Option<Arc<Scales>>,
    row_share: f64,
    protection: Protection,
}

impl CpuEngine {
    /// Caches that use `threads` threads.
    pub fn new(threads: usize) -> Self {
        let protection = Protection::NONE;
        let calibrations = Calibrations::default();
        Self { threads, side_by_side: false, calibrations, scales: None, row_share: 0.0, protection }
    }

    /// The same for modes that run side by side ([`eval::Plan::side_by_side`]): a cache takes one thread, and only a dense one, which prompts
    /// go through before the others have them, takes all.
    #[must_use]
    pub fn side_by_side(self) -> Self {
        Self { side_by_side: true, ..self }
    }

    /// The same with what calibrated formats need.
    #[must_use]
    pub fn calibrated(self, calibrations: Calibrations) -> Self {
        Self { calibrations, ..self }
    }

    /// The same with fixed scales, for formats with one scale per block.
    #[must_use]
    pub fn scaled(self, scales: Option<Arc<Scales>>) -> Self {
        Self { scales, ..self }
    }

    /// The same with tokens that are always read exactly ([`Config::protection`]).
    #[must_use]
    pub fn protecting(self, protection: Protection) -> Self {
        Self { protection, ..self }
    }

    /// The same with that share of rows that may be read by themselves ([`Certified::row_share`]).
    #[must_use]
    pub fn with_rows(self, row_share: f64) -> Self {
        Self { row_share, ..self }
    }
}

/// The engine that every command uses, with `threads` threads.
pub fn engine(threads: usize) -> Box<dyn Engine> {
    Box::new(CpuEngine::new(threads))
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
        let (geometry, tokens) = room(mode, model, capacity)?;
        let mut config = Config::new(geometry, tokens);
        config.formats = mode.formats().to_vec();
        (config.calibration, config.codebooks) = self.calibrations.of(mode.formats());
        let page = mode.formats().iter().any(|format| format.key.page().is_some() || format.value.page().is_some());
        config.scales = self.scales.clone().filter(|_| page);
        (config.max_sequences, config.protection) = (2, self.protection);
        config.threads = if self.side_by_side && mode.policy != eval::Policy::Dense { 1 } else { self.threads };
        config.policy = match policy(mode.policy) {
            Policy::Certified(certified) => Policy::Certified(Certified { row_share: self.row_share, ..certified }),
            other => other,
        };
        let cache = Cache::new(config).map_err(refused)?;
        Ok(Box::new(One::new(cache, model.heads)?))
    }
}

impl Store for Cache {
    type Step<'c> = Step<'c>;

    fn create(&mut self) -> Result<SequenceId, Error> {
        Cache::create(self)
    }

    fn release(&mut self, id: SequenceId) -> Result<(), Error> {
        Cache::release(self, id)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), Error> {
        Cache::truncate(self, id, len)
    }

    fn begin(&mut self, chunk: Chunk) -> Result<Step<'_>, Error> {
        Cache::begin(self, &[chunk])
    }

    fn memory(&self) -> MemoryUse {
        Cache::memory(self)
    }
}

impl Layers for Step<'_> {
    fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Error> {
        Step::append(self, layer, keys, values)
    }

    fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Error> {
        Step::append_bits(self, layer, keys, values)
    }

    fn attend(&mut self, layer: usize, q: &[f32], out: &mut [f32], found: &mut [Certificate]) -> Result<(), Error> {
        Step::attend(self, layer, q, out, found)
    }

    fn finish(self) -> Result<(), Error> {
        Step::finish(self)
    }
}

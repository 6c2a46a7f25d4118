//! Values of options, and the options that commands share.
use crate::{
    calibrate,
    demo::defaults,
    engine::{Calibrations, CpuEngine},
    error::CliError,
    eval::Engine,
    gpu::{Device, GpuEngine},
    model::Config,
    progress::Progress,
};
use certkv::calibration::{Calibration, CalibrationError};
use certkv::scales::Scales;
use certkv::spherical::{self, Codebooks};
use certkv::{Pairing, Protection};
use lexopt::{Parser, ValueExt};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// What steps read exactly beside what their tolerance asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exactly {
    /// Share of tokens that certified steps may read one by one.
    pub rows: f64,
    /// First and newest tokens, under every policy.
    pub protection: Protection,
}

/// Options that every long-running command has.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// `--assets`.
    pub assets: Option<PathBuf>,
    /// `--report`.
    pub report: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
    /// `--seed`.
    pub seed: Option<u64>,
    /// `--threads`.
    pub threads: Option<usize>,
    /// `--quiet`.
    pub quiet: bool,
    /// `--device`.
    pub device: Device,
    /// `--kernels`.
    pub kernels: Option<PathBuf>,
}

/// The calibrations and codebooks in `paths`, for the model in `folder` of configuration `model`.
///
/// # Errors
/// [`CliError::Input`] naming the file, if it cannot be read, is neither, or is of another model; [`CliError::Usage`] for a second one of the
/// same kind.
pub fn calibrations(paths: &[PathBuf], folder: &Path, model: &Config) -> Result<Calibrations, CliError> {
    let mut found = Calibrations::default();
    if paths.is_empty() {
        return Ok(found);
    }
    let digest = calibrate::model_digest(folder)?;
    for path in paths {
        let refused = |why: &dyn std::fmt::Display| CliError::input(format!("{}: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(|e| refused(&e))?;
        let again = if bytes.starts_with(&spherical::MAGIC) {
            let books = Codebooks::from_bytes(&bytes).map_err(|e| refused(&e))?;
            let heads = calibrate::key_heads(&calibrate::heads(model, Pairing::Half));
            books.check_for(&heads, &digest).map_err(|e| refused(&e))?;
            let again = found.codebooks.iter().any(|other| other.tier() == books.tier());
            found.codebooks.push(Arc::new(books));
            again
        } else {
            let schemes = Calibration::from_bytes(&bytes).map_err(|e| refused(&e))?;
            schemes.check_for(&calibrate::heads(model, schemes.heads().pairing), &digest).map_err(|e| refused(&e))?;
            found.schemes.replace(Arc::new(schemes)).is_some()
        };
        if again {
            return Err(CliError::Usage(format!("--calibration {}: a second file of its kind", path.display())));
        }
    }
    Ok(found)
}

/// The fixed scales in `path`, for the model in `folder`.
///
/// # Errors
/// [`CliError::Input`] naming the file, if it cannot be read, holds no scales, or those of another model. Heads are the cache's to check.
pub fn scales(path: &Path, folder: &Path) -> Result<Arc<Scales>, CliError> {
    let refused = |why: &dyn std::fmt::Display| CliError::input(format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refused(&e))?;
    let found = Scales::from_bytes(&bytes).map_err(|e| refused(&e))?;
    if found.source().model == calibrate::model_digest(folder)? {
        Ok(Arc::new(found))
    } else {
        Err(refused(&CalibrationError::OtherModel))
    }
}

impl Common {
    /// Takes the option `name` if it is one of these.
    ///
    /// # Errors
    /// [`CliError::Usage`] for a missing or malformed value.
    pub fn take(&mut self, name: &str, parser: &mut Parser) -> Result<bool, CliError> {
        match name {
            "assets" => self.assets = Some(parser.value()?.into()),
            "report" => self.report = Some(parser.value()?.into()),
            "json" => self.json = true,
            "seed" => self.seed = Some(number(parser, "--seed")?),
            "threads" => self.threads = Some(bounded(parser, "--threads", 1, 1024)?),
            "quiet" => self.quiet = true,
            "device" => self.device = parser.value()?.string()?.parse()?,
            "kernels" => self.kernels = Some(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Progress bars as asked for.
    pub fn progress(&self) -> Progress {
        Progress::new(self.quiet)
    }

    /// The engine of the device that was asked for.
    ///
    /// # Errors
    /// [`CliError::Input`] where the machine has no such GPU, or no driver.
    pub fn engine(&self, threads: usize) -> Result<Box<dyn Engine>, CliError> {
        self.calibrated_engine(threads, Calibrations::default(), None, Exactly::default())
    }

    /// The same, with calibrations and fixed scales for formats that take them, and what is read exactly beside that. On a GPU none takes scales or rows.
    ///
    /// # Errors
    /// As [`Common::engine`].
    pub fn calibrated_engine(
        &self,
        threads: usize,
        calibrations: Calibrations,
        scales: Option<Arc<Scales>>,
        exactly: Exactly,
    ) -> Result<Box<dyn Engine>, CliError> {
        let Exactly { rows, protection } = exactly;
        Ok(match self.device {
            Device::Cpu => {
                let engine = CpuEngine::new(threads).calibrated(calibrations).scaled(scales);
                Box::new(engine.with_rows(rows).protecting(protection))
            }
            Device::Cuda(_) if rows > 0.0 => {
                return Err(CliError::Usage("--rows: single rows are read on the CPU only".into()));
            }
            Device::Cuda(ordinal) => {
                let engine = GpuEngine::open(ordinal, self.kernels.as_deref(), threads)?.calibrated(calibrations);
                Box::new(engine.protecting(protection))
            }
        })
    }

    /// Seed of the bootstrap.
    pub fn seed_or_default(&self) -> u64 {
        self.seed.unwrap_or(defaults::SEED)
    }

    /// Sets the size of the thread pool and returns it. A pool that is already running keeps its size.
    pub fn start_threads(&self) -> usize {
        if let Some(n) = self.threads {
            // Fails only if a pool exists, as in tests that run several commands in one process.
            let _ = rayon::ThreadPoolBuilder::new().num_threads(n).build_global();
        }
        rayon::current_num_threads()
    }
}

/// The next value as a number.
///
/// # Errors
/// [`CliError::Usage`] naming the option.
pub fn number<T: std::str::FromStr>(parser: &mut Parser, option: &str) -> Result<T, CliError> {
    let text = parser.value()?.string()?;
    text.parse().map_err(|_| CliError::Usage(format!("{option}: `{text}` is not a number that fits")))
}

/// The next value as an integer between `low` and `high`.
///
/// # Errors
/// [`CliError::Usage`] naming the option.
pub fn bounded(parser: &mut Parser, option: &str, low: usize, high: usize) -> Result<usize, CliError> {
    let n: usize = number(parser, option)?;
    if (low..=high).contains(&n) {
        Ok(n)
    } else {
        Err(CliError::Usage(format!("{option}: {n} is not between {low} and {high}")))
    }
}

/// The next value as numbers of first and newest tokens, as `4,128`.
///
/// # Errors
/// [`CliError::Usage`] naming the option.
pub fn ends(parser: &mut Parser, option: &str) -> Result<Protection, CliError> {
    let text = parser.value()?.string()?;
    let both = text.split_once(',').map(|(sinks, recent)| (sinks.parse(), recent.parse()));
    match both {
        Some((Ok(sinks), Ok(recent))) => Ok(Protection::new(sinks, recent)),
        _ => Err(CliError::Usage(format!("{option}: `{text}` is not two numbers of tokens, such as 4,128"))),
    }
}

/// The next value as a share of at most `most`.
///
/// # Errors
/// [`CliError::Usage`] naming the option.
pub fn share(parser: &mut Parser, option: &str, most: f64) -> Result<f64, CliError> {
    let x: f64 = number(parser, option)?;
    if (0.0..=most).contains(&x) {
        Ok(x)
    } else {
        Err(CliError::Usage(format!("{option}: {x} is not between 0 and {most}")))
    }
}

/// The next value as a relative tolerance: above 0, at most 10.
///
/// # Errors
/// [`CliError::Usage`] naming the option.
pub fn tolerance(parser: &mut Parser) -> Result<f64, CliError> {
    let t: f64 = number(parser, "--tolerance")?;
    if t > 0.0 && t <= 10.0 {
        Ok(t)
    } else {
        Err(CliError::Usage(format!("--tolerance: {t} is not above 0 and at most 10")))
    }
}

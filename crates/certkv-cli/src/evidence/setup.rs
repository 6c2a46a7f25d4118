//! What every measurement starts from: the model, its text and prompts, and what was calibrated on the part that nothing else reads.
use super::plan::{Sizes, Text};
use crate::{
    assets,
    calibrate::{self, Pair},
    engine::Calibrations,
    error::CliError,
    model::{Config, Llama},
    progress::Progress,
    tasks::{Prompt, Selection, Window, reader},
};
use certkv_control::{
    Calibration,
    calibration::{Heads, Meter, Rule, Source},
    spherical::{Codebooks, Gather, Training},
};
use certkv_core::{Pairing, Tier, hash::hash64};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Tasks that are a needle in a haystack.
pub(super) const NEEDLES: [&str; 3] = ["niah_single", "niah_multikey", "niah_grid"];

/// What reads windows of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Codecs in caches.
    Codecs,
    /// Logits of key formats.
    Logits,
    /// SmartKV.
    SmartKv,
    /// The ablation of spherical keys.
    Spherical,
    /// Its witnesses.
    Tail,
}

impl Use {
    const fn name(self) -> &'static str {
        match self {
            Self::Codecs => "codecs",
            Self::Logits => "logits",
            Self::SmartKv => "SmartKV",
            Self::Spherical => "spherical",
            Self::Tail => "witnesses",
        }
    }
}

/// A model and what it is measured with.
pub struct Setup {
    /// Name of the model.
    pub name: String,
    /// The model.
    pub model: Llama,
    /// Its heads.
    pub heads: Heads,
    /// Energies and centres of its calibration text.
    pub calibration: Arc<Calibration>,
    /// Keys of the same text.
    pub gather: Gather,
    /// The text.
    pub text: Text,
    /// How much is measured.
    pub sizes: Sizes,
    /// Seed of windows, prompts and intervals.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Where progress is shown.
    pub progress: Progress,
    assets: PathBuf,
}

impl Setup {
    /// Loads the model in `folder` and calibrates it.
    ///
    /// # Errors
    /// [`CliError`] for a model, text or prompts that are refused.
    pub fn new(
        folder: &Path,
        assets: Option<&Path>,
        sizes: Sizes,
        seed: u64,
        threads: usize,
        progress: Progress,
    ) -> Result<Self, CliError> {
        let assets = assets::locate(assets)?;
        let path = assets.join("eval/text.bin");
        let bytes =
            std::fs::read(&path).map_err(|e| CliError::input(format!("cannot read {}: {e}", path.display())))?;
        let text = Text::new(bytes, sizes.calibration - 1)?;
        let model = Llama::load(folder)?;
        if !model.tokens().are_bytes() {
            let why =
                "a sweep answers byte by byte: of a model with a tokenizer `eval` and `calibrate --evidence` tell more";
            return Err(CliError::Usage(why.into()));
        }
        let heads = calibrate::heads(model.config(), Pairing::Half);
        let mut gather = Gather::new(calibrate::key_heads(&heads)).map_err(CliError::refused)?;
        let mut meter = Meter::new(heads).map_err(CliError::refused)?;
        let mut bar = progress.bar("calibration", sizes.calibration as u64);
        let read = [model.tokens().encode(text.calibration())?];
        calibrate::watch(&model, &read, &mut Pair(&mut gather, &mut meter), |n| bar.advance(n as u64))?;
        bar.finish();
        let (seen, tokens) = meter.finish().map_err(CliError::refused)?;
        let digest = calibrate::model_digest(folder)?;
        let source = Source { model: digest, text: calibrate::text_digest([text.calibration()]), tokens };
        let rule = Rule::new(3 * heads.pairs());
        let calibration = Arc::new(Calibration::choose(heads, source, rule, seen).map_err(CliError::refused)?);
        let name = folder.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
        Ok(Self { name, model, heads, calibration, gather, text, sizes, seed, threads, progress, assets })
    }

    /// A text as the model reads it.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, CliError> {
        Ok(self.model.tokens().encode(text)?)
    }

    /// Shape of the model.
    pub fn config(&self) -> &Config {
        self.model.config()
    }

    /// The windows that `use_of` reads, and where each begins.
    ///
    /// # Errors
    /// See [`Text::windows`].
    pub fn windows(&self, use_of: Use) -> Result<Vec<(usize, Window)>, CliError> {
        let Sizes { windows, length, scored, logits, smart, spherical, spherical_windows, .. } = self.sizes;
        let (count, length, scored) = match use_of {
            Use::Codecs => (windows, length, scored),
            Use::Logits => (windows, logits, 1),
            Use::SmartKv => (windows, smart[0] + smart[1], 1),
            Use::Spherical => (spherical_windows, spherical[0] - 1, 1),
            Use::Tail => (1, spherical[1] - 1, 1),
        };
        self.text.windows(count, length, scored, hash64(&[self.seed, use_of as u64]))
    }

    /// Where windows begin, by what reads them.
    ///
    /// # Errors
    /// See [`Text::windows`].
    pub fn starts(&self) -> Result<Vec<(String, Vec<u64>)>, CliError> {
        let all = [Use::Codecs, Use::Logits, Use::SmartKv, Use::Spherical, Use::Tail];
        let starts = |use_of: Use| {
            let windows = self.windows(use_of)?;
            let length = windows.first().map_or(0, |(_, w)| w.bytes.len());
            let starts = windows.iter().map(|(at, _)| *at as u64).collect();
            Ok((format!("{}, {length} each:", use_of.name()), starts))
        };
        all.into_iter().map(starts).collect()
    }

    /// `count` prompts of each needle task, drawn by the seed; of four thousand tokens, or of one if `short`.
    ///
    /// # Errors
    /// [`CliError`] for a file that is refused.
    pub fn needles(&self, count: usize, short: bool) -> Result<Vec<Prompt>, CliError> {
        let file = if short { "eval/tasks_1024.jsonl.gz" } else { "eval/tasks_4096.jsonl.gz" };
        let tasks = NEEDLES.map(str::to_owned).to_vec();
        let selection = Selection { tasks, limit: Some(count), length: None, seed: Some(self.seed) };
        Ok(selection.apply(reader::read(&self.assets.join(file))?)?)
    }

    /// How codebooks are trained.
    pub fn training(&self, seed: u64) -> Training {
        Training::new(seed)
    }

    /// What every calibrated format is given: the calibration, and directions of every tier, trained on the same text.
    ///
    /// # Errors
    /// What training says.
    pub fn calibrations(&self) -> Result<Calibrations, CliError> {
        let (heads, training) = (calibrate::key_heads(&self.heads), self.training(self.seed));
        let train = |tier| {
            let books = calibrate::train(&self.gather, &heads, tier, &training, || ())?;
            Codebooks::new(heads, *self.calibration.source(), tier, training, books).map(Arc::new)
        };
        let codebooks = Tier::ALL.into_iter().map(train).collect::<Result<_, _>>().map_err(CliError::refused)?;
        Ok(Calibrations { schemes: Some(self.calibration.clone()), codebooks })
    }

    /// Seeds by what they draw.
    pub fn seeds(&self) -> Vec<(String, Vec<u64>)> {
        vec![
            ("windows, prompts, bootstrap".into(), vec![self.seed]),
            ("instances of the width problem".into(), vec![self.seed]),
            ("codebooks".into(), (0..self.sizes.books).map(|i| self.seed + i).collect()),
            ("sampled answers".into(), (0..self.sizes.answers[1] as u64).map(|i| self.seed + i).collect()),
        ]
    }
}

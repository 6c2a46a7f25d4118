//! What an evaluation found.
use super::{backend::Footprint, gather::Gathered, mode::Mode};

/// One prompt answered by one mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Name of the prompt.
    pub id: String,
    /// Its task.
    pub task: String,
    /// Its nominal length.
    pub length: usize,
    /// Tokens of the answer that were right.
    pub right: usize,
    /// Tokens of the answer: bytes of models of such.
    pub tokens: usize,
    /// What the model chose.
    pub answer: String,
}

impl Trial {
    /// Whether every token was right.
    pub fn correct(&self) -> bool {
        self.right == self.tokens
    }
}

/// One window of text scored by one mode.
#[derive(Debug, Clone, PartialEq)]
pub struct TextTrial {
    /// Part of the text.
    pub part: String,
    /// Bytes of the window.
    pub length: usize,
    /// Bits needed.
    pub bits: f64,
    /// Bytes predicted.
    pub bytes: usize,
}

/// Everything one mode did.
#[derive(Debug, Clone)]
pub struct ModeOutcome {
    /// The mode.
    pub mode: Mode,
    /// Answers, in the order of the prompts.
    pub trials: Vec<Trial>,
    /// Windows, in the order given.
    pub text: Vec<TextTrial>,
    /// Certificates, times and bytes of the decode steps.
    pub gathered: Gathered,
    /// Bytes held at the longest prompt.
    pub footprint: Footprint,
}

impl ModeOutcome {
    /// Right answers and prompts, of one task or of all.
    pub fn accuracy(&self, task: Option<&str>) -> (u64, u64) {
        let mine = || self.trials.iter().filter(|t| task.is_none_or(|name| t.task == name));
        (mine().filter(|t| t.correct()).count() as u64, mine().count() as u64)
    }

    /// Bits per byte of one part or of all; `None` without text.
    pub fn bits_per_byte(&self, part: Option<&str>) -> Option<f64> {
        let mine = || self.text.iter().filter(|t| part.is_none_or(|name| t.part == name));
        let bytes: usize = mine().map(|t| t.bytes).sum();
        (bytes > 0).then(|| mine().map(|t| t.bits).sum::<f64>() / bytes as f64)
    }
}

/// An evaluation of several modes on the same prompts and windows.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// In the order of the plan.
    pub modes: Vec<ModeOutcome>,
    /// Seconds in all.
    pub seconds: f64,
}

impl Outcome {
    /// Tasks in order of first appearance.
    pub fn tasks(&self) -> Vec<String> {
        let mut tasks: Vec<String> = Vec::new();
        for trial in self.modes.iter().flat_map(|m| &m.trials) {
            if !tasks.contains(&trial.task) {
                tasks.push(trial.task.clone());
            }
        }
        tasks
    }

    /// The dense mode on the same model as `mode`: what it is compared with.
    pub fn baseline(&self, mode: &Mode) -> Option<&ModeOutcome> {
        self.modes.iter().find(|m| m.mode == Mode::dense(mode.twin))
    }
}

//! Paired comparison of a mode with dense attention on the same prompts and windows.
use super::outcome::ModeOutcome;
use crate::stats::{Interval, Table, paired_bootstrap};

/// What changed against the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Paired answers; the baseline is the first.
    pub table: Table,
    /// Exact McNemar p-value of equal accuracy.
    pub p_value: f64,
    /// Difference of accuracy (mode minus baseline) with its 95 % interval; `None` without prompts.
    pub accuracy: Option<Interval>,
    /// Difference of bits per byte over windows; `None` without text.
    pub bits: Option<Interval>,
}

/// Compares `mode` with `baseline`, which ran the same prompts and windows in the same order. `task` restricts the
/// answers to one task.
pub fn compare(baseline: &ModeOutcome, mode: &ModeOutcome, task: Option<&str>, seed: u64) -> Comparison {
    let pairs: Vec<(bool, bool)> = baseline
        .trials
        .iter()
        .zip(&mode.trials)
        .filter(|(a, b)| a.id == b.id && task.is_none_or(|t| a.task == t))
        .map(|(a, b)| (a.correct(), b.correct()))
        .collect();
    let score = |right: bool| f64::from(u8::from(right));
    let differences: Vec<f64> = pairs.iter().map(|&(a, b)| score(b) - score(a)).collect();
    let table = Table::from_pairs(pairs);
    let bits: Vec<f64> =
        baseline.text.iter().zip(&mode.text).map(|(a, b)| (b.bits - a.bits) / a.bytes.max(1) as f64).collect();
    Comparison {
        table,
        p_value: table.p_value(),
        accuracy: paired_bootstrap(&differences, seed),
        bits: paired_bootstrap(&bits, seed),
    }
}

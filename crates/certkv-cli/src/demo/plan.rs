//! What the demonstration runs: enough prompts to see the difference, few enough for three minutes on two cores.
use super::defaults;
use crate::{
    error::CliError,
    eval::{Mode, Plan, Policy, Work, score::Judging},
    tasks::{Selection, reader, text},
};
use std::path::Path;

/// Tasks that the untouched model is asked: a needle, a dictionary entry, a chain of variables, a word count.
const BASE_TASKS: [&str; 4] = ["niah_single", "kv", "vt", "cwe"];

/// Tasks that tell caches apart on the twin: those with several look-ups or near misses.
const TWIN_TASKS: [&str; 6] = ["niah_multikey", "niah_multiquery", "niah_multivalue", "kv", "kv_near", "vt"];

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Prompts per task of the model at 4K, and at 8K.
    pub base: [usize; 2],
    /// Prompts per task of the twin, at 4K.
    pub twin: usize,
    /// Windows of each part of the text at 4K, and at 8K.
    pub windows: [usize; 2],
    /// Bytes predicted at the end of each window.
    pub scored: usize,
}

impl Size {
    /// The demonstration as documented.
    pub const FULL: Self = Self { base: [2, 1], twin: 4, windows: [1, 1], scored: 128 };

    /// A glance, in a fraction of the time.
    pub const QUICK: Self = Self { base: [1, 0], twin: 1, windows: [1, 0], scored: 64 };
}

/// The plan over the prompts in `assets`.
///
/// # Errors
/// [`CliError::Input`] when the bundled prompts or text are damaged.
pub fn plan(assets: &Path, size: Size, seed: u64) -> Result<Plan, CliError> {
    let eval = assets.join("eval");
    let pick = |length: usize, tasks: &[&str], limit: usize| {
        let selection = Selection {
            tasks: tasks.iter().map(|t| (*t).to_owned()).collect(),
            limit: Some(limit),
            length: None,
            seed: Some(seed),
        };
        if limit == 0 {
            return Ok(Vec::new());
        }
        selection.apply(reader::read(&eval.join(format!("tasks_{length}.jsonl.gz")))?)
    };
    let mut base = Work::default();
    for (length, prompts, windows) in [(4096, size.base[0], size.windows[0]), (8192, size.base[1], size.windows[1])] {
        base.prompts.extend(pick(length, &BASE_TASKS, prompts)?);
        if windows > 0 {
            let cut = text::Cut { length, scored: Some(size.scored), limit: windows };
            base.windows.extend(text::windows(&eval.join("text.bin"), &defaults::TEXT_PARTS, cut)?);
        }
    }
    let twin = Work { prompts: pick(4096, &TWIN_TASKS, size.twin)?, windows: Vec::new() };
    let format = defaults::FORMAT;
    let modes = vec![
        Mode::dense(true),
        Mode::packed(defaults::TWIN_FORMAT, true)?,
        Mode::certified(defaults::TWIN_FORMAT, defaults::TOLERANCE, true)?,
        Mode::dense(false),
        Mode::packed(format, false)?,
        Mode::certified(format, defaults::TOLERANCE, false)?,
        Mode { policy: Policy::Seed000, ..Mode::packed(format, false)? },
    ];
    Ok(Plan { modes, base, twin, judging: Judging::TeacherForcing, witness_every: 8, side_by_side: false })
}

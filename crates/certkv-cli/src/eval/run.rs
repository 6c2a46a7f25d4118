//! The evaluation itself: every prompt is prefilled once per model, in full precision, and then answered by every mode.
use super::{
    backend::{Backend, Engine},
    gather::Gathered,
    mode::Mode,
    outcome::{ModeOutcome, Outcome, TextTrial, Trial},
    probe::Probe,
    score::{self, Judging},
};
use crate::{
    model::{
        Llama, ModelError,
        tape::{Recorder, Tape},
    },
    progress::Progress,
    tasks::{Prompt, Window},
};
use rayon::prelude::*;
use std::time::Instant;

/// Questions and text for the modes of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Questions.
    pub prompts: Vec<Prompt>,
    /// Held-out text.
    pub windows: Vec<Window>,
}

impl Work {
    /// Tokens of the longest prompt or window, BOS included.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(Prompt::tokens).chain(self.windows.iter().map(|w| w.bytes.len() + 1)).max().unwrap_or(0)
    }
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ways of keeping the cache.
    pub modes: Vec<Mode>,
    /// What the model's modes are asked.
    pub base: Work,
    /// What the twin's modes are asked.
    pub twin: Work,
    /// How answers are judged.
    pub judging: Judging,
    /// Every how many decode steps the true error is recomputed; 0 for never.
    pub witness_every: u64,
    /// Modes answer side by side, on the threads of the process. Their seconds say nothing then.
    pub side_by_side: bool,
}

impl Plan {
    /// The work of the twin or of the model.
    pub const fn work(&self, twin: bool) -> &Work {
        if twin { &self.twin } else { &self.base }
    }
}

/// The models that the modes run on.
#[derive(Clone, Copy)]
pub struct Models<'a> {
    /// The model.
    pub base: &'a Llama,
    /// Its outlier twin, if a mode needs it.
    pub twin: Option<&'a Llama>,
}

/// Decode tokens that a cache must have room for beyond its prompt.
const SLACK: usize = 64;

struct Lane {
    backend: Box<dyn Backend>,
    outcome: ModeOutcome,
}

/// Runs `plan`. Modes of the twin are left out when `models` has none.
///
/// # Errors
/// What the models or the caches say; nothing is returned then.
pub fn run(
    plan: &Plan,
    models: Models<'_>,
    engine: &mut dyn Engine,
    progress: &Progress,
) -> Result<Outcome, ModelError> {
    let start = Instant::now();
    let mut done: Vec<(usize, ModeOutcome)> = Vec::new();
    for (twin, model) in [(false, Some(models.base)), (true, models.twin)] {
        let mine: Vec<(usize, &Mode)> = plan.modes.iter().enumerate().filter(|(_, m)| m.twin == twin).collect();
        let Some(model) = model else { continue };
        if mine.is_empty() {
            continue;
        }
        for (index, lane) in mine.iter().map(|(i, _)| *i).zip(run_model(plan, &mine, model, engine, progress)?) {
            done.push((index, lane));
        }
    }
    done.sort_by_key(|(index, _)| *index);
    Ok(Outcome { modes: done.into_iter().map(|(_, m)| m).collect(), seconds: start.elapsed().as_secs_f64() })
}

fn run_model(
    plan: &Plan,
    modes: &[(usize, &Mode)],
    model: &Llama,
    engine: &mut dyn Engine,
    progress: &Progress,
) -> Result<Vec<ModeOutcome>, ModelError> {
    let config = model.config();
    let twin = modes[0].1.twin;
    let asked = plan.work(twin);
    let capacity = asked.longest() + SLACK;
    let mut prefiller = engine.open(&Mode::dense(twin), config, capacity)?;
    let mut lanes = Vec::new();
    for (_, mode) in modes {
        let outcome = ModeOutcome {
            mode: (*mode).clone(),
            trials: Vec::new(),
            text: Vec::new(),
            gathered: Gathered::new(config.layers, config.heads),
            footprint: Default::default(),
        };
        lanes.push(Lane { backend: engine.open(mode, config, capacity)?, outcome });
    }
    let name = if twin { "outlier twin" } else { "model" };
    let work = asked.prompts.iter().map(|p| p.prompt.len()).chain(asked.windows.iter().map(|w| w.bytes.len()));
    let mut bar = progress.bar(name, work.sum::<usize>() as u64);
    for prompt in &asked.prompts {
        bar.note(&format!("{} {}", prompt.task, prompt.length));
        let (tokens, truth) = model.tokens().split(prompt.prompt.as_bytes(), prompt.answer.as_bytes())?;
        let (opening, tape) = prefill(model, prefiller.as_mut(), &tokens)?;
        each(plan, &mut lanes, |lane| {
            let (answered, seconds) =
                lane.measure(plan, model, &tape, |probe| score::answer(model, probe, opening, &truth, plan.judging))?;
            lane.outcome.gathered.decode_seconds += seconds;
            lane.outcome.trials.push(Trial {
                id: prompt.id.clone(),
                task: prompt.task.clone(),
                length: prompt.length,
                right: answered.right,
                tokens: truth.len(),
                answer: model.tokens().decode(&answered.tokens)?,
            });
            Ok(())
        })?;
        bar.advance(prompt.prompt.len() as u64);
    }
    for window in &asked.windows {
        bar.note(&format!("text {} {}", window.part, window.bytes.len()));
        let (context, scored) = window.bytes.split_at(window.bytes.len() - window.scored);
        let (tokens, truth) = model.tokens().split(context, scored)?;
        let (opening, tape) = prefill(model, prefiller.as_mut(), &tokens)?;
        each(plan, &mut lanes, |lane| {
            let (bits, seconds) =
                lane.measure(plan, model, &tape, |probe| score::bits(model, probe, opening, &truth))?;
            lane.outcome.gathered.decode_seconds += seconds;
            let length = window.bytes.len();
            lane.outcome.text.push(TextTrial { part: window.part.clone(), length, bits, bytes: scored.len() });
            Ok(())
        })?;
        bar.advance(window.bytes.len() as u64);
    }
    bar.finish();
    Ok(lanes.into_iter().map(|lane| lane.outcome).collect())
}

/// Has every lane do `work`, one after the other unless the plan says otherwise.
fn each(
    plan: &Plan,
    lanes: &mut [Lane],
    work: impl Fn(&mut Lane) -> Result<(), ModelError> + Sync + Send,
) -> Result<(), ModelError> {
    if plan.side_by_side { lanes.par_iter_mut().try_for_each(work) } else { lanes.iter_mut().try_for_each(work) }
}

/// Fills `cache` with all of `tokens` but the last, which is returned with the record.
fn prefill(model: &Llama, cache: &mut dyn Backend, tokens: &[u32]) -> Result<(u32, Tape), ModelError> {
    cache.truncate(0)?;
    let (&opening, context) =
        tokens.split_last().ok_or(ModelError::Config { field: "bos_token_id", reason: "gave no token".into() })?;
    let mut recorder = Recorder::new(cache, model.config().layers);
    model.prefill(context, &mut recorder, |_| {})?;
    Ok((opening, recorder.into_tape()))
}

impl Lane {
    fn measure<T>(
        &mut self,
        plan: &Plan,
        model: &Llama,
        tape: &Tape,
        f: impl FnOnce(&mut Probe<'_>) -> Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        self.backend.load(tape)?;
        let block = self.outcome.mode.block();
        let mut probe = Probe::new(
            self.backend.as_mut(),
            tape,
            &mut self.outcome.gathered,
            model.config(),
            block,
            plan.witness_every,
        );
        let result = f(&mut probe)?;
        let footprint = self.backend.footprint();
        if footprint.tokens >= self.outcome.footprint.tokens {
            self.outcome.footprint = footprint;
        }
        Ok(result)
    }
}

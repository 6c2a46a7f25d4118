//! From the outcome of an evaluation to the data of its report.
use super::{
    data::{
        Coverage, Heat, Kind, Memory, ModeRow, ReportData, SCHEMA, Setting, TaskScore, TextScore, Timeline, Transcript,
    },
    sweep,
};
use crate::{
    eval::{Mode, ModeOutcome, Outcome, Plan, Policy, compare::compare, gather::SHARES},
    model::Config,
    stats::{Quantiles, quantile, wilson},
};

/// Bins of a rung time line: about one every eight pixels of the page.
const BINS: usize = 120;

/// Longest piece of a prompt that a transcript quotes.
const QUOTE: usize = 160;

/// Sums an evaluation up. `setting` has what only the caller knows; the model's numbers are filled in here.
pub fn build(plan: &Plan, outcome: &Outcome, config: &Config, setting: Setting) -> ReportData {
    let seed = setting.seed;
    let prompts = [false, true]
        .map(|twin| outcome.modes.iter().filter(|m| m.mode.twin == twin).map(|m| m.trials.len()).max().unwrap_or(0));
    ReportData {
        schema: SCHEMA,
        setting: Setting {
            layers: config.layers,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            dense_bytes_per_token: config.dense_bytes_per_token(),
            prompts,
            longest: [&plan.base, &plan.twin]
                .into_iter()
                .flat_map(|w| w.prompts.iter().map(|p| p.length).chain(w.windows.iter().map(|w| w.bytes.len())))
                .max()
                .unwrap_or(0),
            seconds: outcome.seconds,
            version: env!("CARGO_PKG_VERSION").into(),
            ..setting
        },
        modes: outcome.modes.iter().map(|m| row(outcome, m, seed)).collect(),
        transcripts: transcripts(plan, outcome),
        heat: of_certified(outcome, heat),
        timelines: of_certified(outcome, timeline),
        coverage: coverage(outcome),
        curves: sweep::build::curves(outcome),
    }
}

fn kind(mode: &Mode) -> Kind {
    match mode.policy {
        Policy::Dense => Kind::Dense,
        Policy::Packed => Kind::Naive,
        Policy::Certified { .. } => Kind::Certified,
        Policy::Seed000 => Kind::Seed000,
    }
}

fn row(outcome: &Outcome, m: &ModeOutcome, seed: u64) -> ModeRow {
    let g = &m.gathered;
    let tokens = m.footprint.tokens.max(1) as f64;
    let head_steps: u64 = g.rungs.iter().sum();
    ModeRow {
        name: m.mode.to_string(),
        kind: kind(&m.mode),
        format: m.mode.named(),
        heads: (!m.mode.heads.is_empty()).then(|| m.mode.written()),
        tolerance: m.mode.tolerance(),
        twin: m.mode.twin,
        overall: score(outcome, m, None, seed),
        tasks: outcome.tasks().iter().map(|t| score(outcome, m, Some(t), seed)).filter(|s| s.n > 0).collect(),
        text: text(outcome, m),
        bytes_per_token: m.footprint.per_token(),
        memory: Memory {
            packed: m.footprint.packed as f64 / tokens,
            scratch: m.footprint.scratch as f64 / tokens,
            tables: m.footprint.tables as f64 / tokens,
            host: m.footprint.host as f64 / tokens,
        },
        tokens_per_second: g.tokens_per_second(),
        attention_share: if g.own_seconds() > 0.0 { g.attend_seconds / g.own_seconds() } else { 0.0 },
        steps: g.steps,
        rungs: g.rungs,
        certified: g.certified as f64 / head_steps.max(1) as f64,
        e_key: Quantiles::of(g.e_key.iter().copied()),
        e_val: Quantiles::of(g.e_val.iter().copied()),
        tightness: Quantiles::of(g.tightness.iter().copied()),
        true_error: Quantiles::of(g.true_error.iter().copied()),
        error_curve: percentiles(g.true_error.clone()),
        bound_curve: percentiles(g.bounds.concat()),
        violations: g.violations,
        read_share: g.read_share(),
    }
}

/// The percentiles 0, 1, .. 100; nothing of nothing.
fn percentiles(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.sort_unstable_by(f64::total_cmp);
    if numbers.is_empty() {
        return Vec::new();
    }
    (0..=100).map(|p| quantile(&numbers, f64::from(p) / 100.0)).collect()
}

fn score(outcome: &Outcome, m: &ModeOutcome, task: Option<&str>, seed: u64) -> TaskScore {
    let (right, n) = m.accuracy(task);
    let (low, high) = wilson(right, n);
    let mine = |t: &&crate::eval::Trial| task.is_none_or(|name| t.task == name);
    let mut score = TaskScore {
        task: task.unwrap_or_default().into(),
        right,
        n,
        each: m.trials.iter().filter(mine).map(|t| t.correct()).collect(),
        interval: [low, high],
        p_value: 1.0,
        ..TaskScore::default()
    };
    if let Some(baseline) = outcome.baseline(&m.mode).filter(|b| b.mode != m.mode) {
        let c = compare(baseline, m, task, seed);
        score.set_table(&c.table);
        score.p_value = c.p_value;
        score.delta = c.accuracy.map(|i| [i.mean, i.low, i.high]);
    }
    score
}

fn text(outcome: &Outcome, m: &ModeOutcome) -> Vec<TextScore> {
    let mut parts: Vec<Option<&str>> = Vec::new();
    for trial in &m.text {
        if !parts.contains(&Some(trial.part.as_str())) {
            parts.push(Some(&trial.part));
        }
    }
    parts.push(None);
    let baseline = outcome.baseline(&m.mode).filter(|b| b.mode != m.mode);
    parts
        .into_iter()
        .filter_map(|part| {
            let bits = m.bits_per_byte(part)?;
            let delta = baseline.and_then(|b| b.bits_per_byte(part)).map(|dense| bits / dense - 1.0);
            Some(TextScore { part: part.unwrap_or("all").into(), bits, delta })
        })
        .collect()
}

/// Prompts of the twin: first those that dense and certified answer right and naive does not, then other disagreements.
fn transcripts(plan: &Plan, outcome: &Outcome) -> Vec<Transcript> {
    let twins: Vec<(usize, &ModeOutcome)> = outcome.modes.iter().enumerate().filter(|(_, m)| m.mode.twin).collect();
    let mut all: Vec<(usize, Transcript)> = Vec::new();
    for (i, prompt) in plan.twin.prompts.iter().enumerate() {
        let trials: Vec<_> = twins.iter().filter_map(|(m, o)| Some((*m, o.trials.get(i)?))).collect();
        if trials.is_empty() {
            continue;
        }
        let naive = |m: usize| outcome.modes[m].mode.policy == Policy::Packed;
        let telling = trials.iter().all(|(m, t)| t.correct() != naive(*m));
        let agree = trials.windows(2).all(|pair| pair[0].1.correct() == pair[1].1.correct());
        let question = prompt.prompt.trim_end_matches('\n').rsplit("\nQuestion: ").next().unwrap_or_default();
        let skip = question.chars().count().saturating_sub(QUOTE);
        all.push((
            if telling { 0 } else { 1 + usize::from(agree) },
            Transcript {
                task: prompt.task.clone(),
                length: prompt.length,
                question: question.chars().skip(skip).collect(),
                truth: prompt.answer.clone(),
                answers: trials.into_iter().map(|(m, t)| (m, t.answer.clone())).collect(),
            },
        ));
    }
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, t)| t).take(24).collect()
}

fn of_certified<T>(outcome: &Outcome, f: impl Fn(usize, &ModeOutcome) -> T) -> Vec<T> {
    outcome
        .modes
        .iter()
        .enumerate()
        .filter(|(_, m)| matches!(m.mode.policy, Policy::Certified { .. } | Policy::Seed000))
        .map(|(i, m)| f(i, m))
        .collect()
}

fn heat(mode: usize, m: &ModeOutcome) -> Heat {
    let (_, heads) = m.gathered.shape;
    let median = |cell: &Vec<f64>| (!cell.is_empty()).then(|| Quantiles::of(cell.iter().copied()).median);
    Heat {
        mode,
        median: m.gathered.bounds.chunks(heads.max(1)).map(|layer| layer.iter().map(median).collect()).collect(),
    }
}

fn timeline(mode: usize, m: &ModeOutcome) -> Timeline {
    let steps = &m.gathered.timeline;
    let count = steps.len().min(BINS);
    let bins = (0..count)
        .map(|b| {
            let mut sums = [0.0; 5];
            for step in &steps[b * steps.len() / count..(b + 1) * steps.len() / count] {
                for (sum, n) in sums.iter_mut().zip(step) {
                    *sum += f64::from(*n);
                }
            }
            let all: f64 = sums.iter().sum();
            sums.map(|s| s / all.max(1.0))
        })
        .collect();
    Timeline { mode, steps_per_bin: steps.len() as f64 / count.max(1) as f64, bins }
}

/// The mass of a dense run: what any choice of blocks has to work with.
fn coverage(outcome: &Outcome) -> Vec<Coverage> {
    let mut all = Vec::new();
    for m in outcome.modes.iter().filter(|m| m.mode.policy == Policy::Dense && !m.gathered.coverage.is_empty()) {
        let column = |i: usize| {
            let mut c: Vec<f64> = m.gathered.coverage.iter().map(|row| f64::from(row[i])).collect();
            c.sort_unstable_by(f64::total_cmp);
            c
        };
        let columns: Vec<Vec<f64>> = (0..SHARES.len()).map(column).collect();
        let at = |p: f64| columns.iter().map(|c| quantile(c, p)).collect();
        all.push(Coverage {
            name: if m.mode.twin { "twin".into() } else { "model".into() },
            shares: SHARES.to_vec(),
            median: at(0.5),
            low: at(0.1),
            high: at(0.9),
        });
    }
    all
}

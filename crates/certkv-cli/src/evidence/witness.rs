//! The witnesses of stability W1 to W6, as far as this model has what they ask about.
use super::{
    Setup, Use,
    data::{Cell, Show, Table, largest, mean},
    retained::{RESTLESS, RULE, Reference, TIERS, Variant, measure, rungs, spherical_ways},
    spherical::{BUDGET, Shared, joint},
    tiered::{Boxed, Choice, Tiered},
};
use crate::{
    calibrate::{Measured, Way, log_sum},
    error::CliError,
    model::llama::argmax,
    tasks::Prompt,
};
use certkv_codec::spherical::Tier;
use certkv_core::hash::hash64;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Policies that witnesses are taken of.
const POLICIES: usize = 4;

/// Dense, joint at the budget, b1 everywhere, and for scale TurboQuant of 4 bits.
fn policies<'a>(ways: &'a [Way<'static>], learned: &[Measured], values: f64) -> [Variant<'a>; POLICIES] {
    let everywhere = |name: &str, way: usize| Variant {
        name: name.into(),
        rungs: rungs(ways, learned, values, &[way], false),
        choice: Choice::First,
    };
    [
        Variant { name: "dense".into(), rungs: Vec::new(), choice: Choice::Dense },
        Variant { name: format!("joint, {BUDGET}"), ..joint(ways, learned, values, BUDGET) },
        everywhere("spherical b1", 0),
        everywhere("TurboQuant 4 bits", TIERS + 2),
    ]
}

pub(super) fn tables(
    setup: &Setup,
    ways: &[Way<'static>],
    learned: &[Measured],
    values: f64,
) -> Result<Vec<Table>, CliError> {
    let policies = policies(ways, learned, values);
    let [_, length] = setup.sizes.spherical;
    let windows = setup.windows(Use::Tail)?;
    let mut references = Vec::new();
    for (_, window) in &windows {
        references.push(Reference::new(setup, &window.bytes).map_err(CliError::Internal)?);
    }
    let restless = |name: &str, rule| Variant {
        name: name.into(),
        choice: Choice::Retained { budget: BUDGET, rule, blind: false, even: false },
        ..joint(ways, learned, values, BUDGET)
    };
    let swings = [restless("joint, with", RULE), restless("joint, without", RESTLESS)];
    let books: Vec<Vec<Way<'static>>> =
        (0..setup.sizes.books).map(|i| spherical_ways(setup, setup.seed + i, &[Tier::B1])).collect::<Result<_, _>>()?;
    let trained: Vec<Variant<'_>> = books
        .iter()
        .map(|ways| Variant {
            name: String::new(),
            rungs: rungs(ways, learned, values, &[0], false),
            choice: Choice::First,
        })
        .collect();
    let bar = Shared::new(setup, "witnesses", windows.len() * (POLICIES + 2 + books.len()));
    let step = || bar.step();
    let tail = measure(setup, &references, &policies, step)?;
    let swings_found = measure(setup, &references, &swings, step)?;
    let seeds = measure(setup, &references, &trained, step)?;
    bar.finish();
    let answers = answers(setup, &policies).map_err(CliError::Internal)?;

    let names: Vec<(&str, Show)> = policies.iter().map(|p| (p.name.as_str(), Show::Fixed(4))).collect();
    let title = format!("Witnesses: {} windows of {length} tokens, {} prompts", windows.len(), answers[0].prompts);
    let mut table = Table::new(&title, &names);
    let unknown =
        |why: &str| [format!("not measured: {why}"), "–".into(), "–".into(), "–".into()].map(Cell::words).to_vec();
    let mut row = |name: &str, f: &dyn Fn(usize) -> Cell| table.row(name, (0..POLICIES).map(f).collect());
    let none = || Cell::words("–");
    let beside = |p: usize, f: &dyn Fn(usize, usize) -> f64| {
        let both = answers[p].lengths.iter().zip(&answers[0].lengths);
        both.map(|(mine, dense)| f(*mine, *dense)).collect::<Vec<_>>()
    };
    let share = |p: usize, f: &dyn Fn(usize, usize) -> bool| mean(&beside(p, &|a, b| f64::from(u8::from(f(a, b)))));
    row("W1 length: tokens until a sentence ends", &|p| Cell::plain(mean(&beside(p, &|mine, _| mine as f64))));
    row("W1 difference from dense, 95%", &|p| Cell::plain(most_of(beside(p, &|a, b| a.abs_diff(b) as f64))));
    row("W1 share that ends before dense", &|p| Cell::plain(share(p, &|a, b| a < b)));
    row("W1 share without an end", &|p| Cell::plain(share(p, &|a, _| a >= LONGEST)));
    let drift = |p: usize, f: &dyn Fn(&super::retained::Moved) -> f64| match &tail[p] {
        Some(found) => Cell::mean(&found.iter().map(f).collect::<Vec<_>>(), setup.seed),
        None => none(),
    };
    row("W2 logits: drift, nats", &|p| drift(p, &|m| mean(&m.drift)));
    row("W2 largest drift of a token", &|p| drift(p, &|m| largest(m.drift.iter().copied())));
    row("W2 ten likeliest that stay", &|p| drift(p, &|m| mean(&m.overlap)));
    row("W3 seeds: sampled answers right", &|p| Cell::mean(&answers[p].right, setup.seed));
    row("W3 spread of that over seeds", &|p| Cell::plain(answers[p].spread()));
    row("W3 answers, JSD from dense, nats", &|p| if p == 0 { none() } else { Cell::mean(&answers[p].jsd, setup.seed) });
    table.row("W4 refusals", unknown("a model of bytes that refuses nothing"));
    table.row("W5 controller", vec![none(), Cell::words("next table"), none(), none()]);
    let mut row = |name: &str, f: &dyn Fn(usize) -> Cell| table.row(name, (0..POLICIES).map(f).collect());
    row("W6 tail: drift, third quarter", &|p| drift(p, &super::retained::Moved::before));
    row("W6 drift, last quarter", &|p| drift(p, &super::retained::Moved::tail));
    row("W6 needles, first choices right", &|p| Cell::plain(answers[p].forced));

    let columns = [
        ("changes", Show::Count),
        ("a block and 100 updates", Show::Fixed(3)),
        ("back to the level before", Show::Count),
        ("against a rest, for a limit", Show::Count),
        ("drift, nats", Show::Fixed(4)),
    ];
    let mut controller = Table::new("W5: thresholds on two sides and a rest, with and without", &columns);
    for (variant, found) in swings.iter().zip(&swings_found) {
        let found = found.as_deref().unwrap_or_default();
        let sum = |f: fn(&super::tiered::Deeds) -> u64| found.iter().map(|m| f(&m.deeds)).sum::<u64>() as f64;
        controller.row(
            variant.name.clone(),
            vec![
                Cell::plain(sum(|d| d.changed)),
                Cell::plain(100.0 * sum(|d| d.changed) / sum(|d| d.held)),
                Cell::plain(sum(|d| d.returned)),
                Cell::plain(sum(|d| d.forced)),
                Cell::mean(&found.iter().map(|m| mean(&m.drift)).collect::<Vec<_>>(), setup.seed),
            ],
        );
    }
    let mut training =
        Table::new("W3: directions trained from other seeds, b1 everywhere", &[("drift, nats", Show::Fixed(4))]);
    for (i, found) in seeds.iter().enumerate() {
        let drifts: Vec<f64> = found.iter().flatten().map(|m| mean(&m.drift)).collect();
        training.row(format!("seed {}", setup.seed + i as u64), vec![Cell::mean(&drifts, setup.seed)]);
    }
    Ok(vec![table, controller, training])
}

/// Tokens that an end is waited for.
const LONGEST: usize = 48;
/// What ends a sentence, and every answer to these prompts.
const END: u32 = b'.' as u32;

/// What 95% of the numbers are at most.
fn most_of(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let at = (all.len() * 19).div_ceil(20).saturating_sub(1);
    all.get(at).copied().unwrap_or(0.0)
}

/// What came of the prompts under one policy.
#[derive(Debug, Clone, Default)]
struct Answers {
    prompts: usize,
    /// Share of prompts whose every byte is the first choice, the right ones before it.
    forced: f64,
    /// Share of sampled answers that are right, by seed.
    right: Vec<f64>,
    /// Jensen-Shannon divergence of answers from those of dense, by prompt.
    jsd: Vec<f64>,
    /// Tokens of the model's own first choices until a sentence ends, by prompt; [`LONGEST`] if none does.
    lengths: Vec<usize>,
}

impl Answers {
    /// Standard deviation over seeds.
    fn spread(&self) -> f64 {
        let middle = mean(&self.right);
        mean(&self.right.iter().map(|x| (x - middle).powi(2)).collect::<Vec<_>>()).sqrt()
    }
}

/// A token by its probability, `u` being uniform.
fn draw(logits: &[f32], u: f64) -> u32 {
    let wide: Vec<f64> = logits.iter().map(|z| f64::from(*z)).collect();
    let (all, mut sum) = (log_sum(&wide), 0.0);
    let at = wide.iter().position(|z| {
        sum += (z - all).exp();
        sum > u
    });
    at.unwrap_or(wide.len().saturating_sub(1)) as u32
}

/// One prompt under one policy.
struct Answer {
    /// Whether all first choices are right, the right ones before them.
    right: bool,
    sampled: Vec<Vec<u32>>,
    length: usize,
}

fn answer(setup: &Setup, policy: &Variant<'_>, number: usize, prompt: &Prompt) -> Result<Answer, Boxed> {
    let tokens = setup.encode(prompt.prompt.as_bytes())?;
    let truth: Vec<u32> = prompt.answer.bytes().map(u32::from).collect();
    let mut cache = Tiered::new(&setup.model, &policy.rungs, policy.choice, tokens.len() + truth.len() + 64 + LONGEST)?;
    let mut last = Vec::new();
    cache.feed(&tokens, |_, logits| last = logits.to_vec())?;
    let run = |most: usize, end: Option<u32>, next: &mut dyn FnMut(usize, &[f32]) -> u32| -> Result<Vec<u32>, Boxed> {
        let (mut cache, mut logits, mut said) = (cache.clone(), last.clone(), Vec::new());
        for i in 0..most {
            let token = next(i, &logits);
            said.push(token);
            if end == Some(token) {
                break;
            }
            cache.feed(&[token], |_, found| logits = found.to_vec())?;
        }
        Ok(said)
    };
    let mut right = true;
    run(truth.len(), None, &mut |i, logits| {
        right &= argmax(logits) == truth[i] as usize;
        truth[i]
    })?;
    let mut sampled = Vec::new();
    for seed in 0..setup.sizes.answers[1] as u64 {
        sampled.push(run(truth.len(), None, &mut |i, logits| {
            let word = hash64(&[setup.seed + seed, number as u64, i as u64]);
            draw(logits, (word >> 11) as f64 / (1u64 << 53) as f64)
        })?);
    }
    let length = run(LONGEST, Some(END), &mut |_, logits| argmax(logits) as u32)?.len();
    Ok(Answer { right, sampled, length })
}

/// Jensen-Shannon divergence of two sets of answers, in nats.
fn jsd(a: &[Vec<u32>], b: &[Vec<u32>]) -> f64 {
    let mut counts: BTreeMap<&[u32], [f64; 2]> = BTreeMap::new();
    for (side, answers) in [a, b].into_iter().enumerate() {
        for answer in answers {
            counts.entry(answer).or_default()[side] += 1.0 / answers.len() as f64;
        }
    }
    let term = |p: f64, middle: f64| if p > 0.0 { 0.5 * p * (p / middle).ln() } else { 0.0 };
    counts.values().map(|[p, q]| term(*p, 0.5 * (p + q)) + term(*q, 0.5 * (p + q))).sum()
}

fn answers(setup: &Setup, policies: &[Variant<'_>; POLICIES]) -> Result<[Answers; POLICIES], Boxed> {
    let prompts =
        setup.needles(setup.sizes.answers[0].div_ceil(super::setup::NEEDLES.len()), true).map_err(Box::new)?;
    let bar = Shared::new(setup, "answers", prompts.len() * policies.len());
    let mut all: Vec<Vec<Answer>> = Vec::new();
    for policy in policies {
        let of = |(number, prompt): (usize, &Prompt)| {
            let found = answer(setup, policy, number, prompt);
            bar.step();
            found
        };
        all.push(prompts.par_iter().enumerate().map(of).collect::<Result<_, Boxed>>()?);
    }
    bar.finish();
    Ok(std::array::from_fn(|p| {
        let truth = |i: usize| prompts[i].answer.bytes().map(u32::from).collect::<Vec<_>>();
        let share = |n: usize| n as f64 / prompts.len() as f64;
        let right = |seed: usize| {
            share(all[p].iter().enumerate().filter(|(i, found)| found.sampled[seed] == truth(*i)).count())
        };
        Answers {
            prompts: prompts.len(),
            forced: share(all[p].iter().filter(|found| found.right).count()),
            right: (0..setup.sizes.answers[1]).map(right).collect(),
            jsd: all[p].iter().zip(&all[0]).map(|(mine, dense)| jsd(&dense.sampled, &mine.sampled)).collect(),
            lengths: all[p].iter().map(|found| found.length).collect(),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart_and_drawn_by_their_probability() {
        let (a, b) = (vec![vec![1, 2], vec![1, 3]], vec![vec![4], vec![5]]);
        assert!((jsd(&a, &b) - std::f64::consts::LN_2).abs() < 1e-12 && jsd(&a, &a) == 0.0);
        let half = [0.0f32, 0.0, f32::NEG_INFINITY];
        assert_eq!([0.0, 0.49, 0.51, 0.999].map(|u| draw(&half, u)), [0, 0, 1, 1]);
        let all = Answers { right: vec![0.0, 1.0], ..Answers::default() };
        assert_eq!(all.spread(), 0.5);
        assert_eq!(most_of((1..=40).rev().map(f64::from).collect()), 38.0);
    }
}

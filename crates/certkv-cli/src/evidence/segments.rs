//! A4: retention that is told what a block is a part of (the beginning, the passage that holds the answer, the newest text), against
//! retention that is not, at equal bytes.
use super::{
    Setup,
    data::{Cell, Show, Table, mean},
    retained::{RULE, TIERS, rungs},
    setup::NEEDLES,
    spherical::{BUDGET, Shared},
    tiered::{Boxed, Choice, Protected, RECENT, Rung, Tiered},
};
use crate::{
    calibrate::{BLOCK, Measured, Way, divergence},
    error::CliError,
    model::llama::argmax,
    tasks::Prompt,
};
use core::ops::RangeInclusive;
use rayon::prelude::*;

/// What is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Nothing is coded.
    Dense,
    Nothing,
    Prefix,
    Recent,
    Retrieved,
    All,
}

const VARIANTS: [(Told, &str); 6] = [
    (Told::Dense, "dense"),
    (Told::Nothing, "no segment known"),
    (Told::Prefix, "the prefix protected"),
    (Told::Recent, "the newest blocks protected"),
    (Told::Retrieved, "the retrieved passage protected"),
    (Told::All, "all three protected"),
];

/// What became of one prompt.
struct Found {
    /// Logits before each token of the answer, the right ones before it.
    logits: Vec<Vec<f64>>,
    bytes: f64,
    /// Share of blocks kept: prefix, retrieved, recent, others.
    kept: [f64; 4],
}

impl Found {
    /// Whether every first choice is right.
    fn right(&self, prompt: &Prompt) -> bool {
        let choice = |z: &[f64]| argmax(&z.iter().map(|x| *x as f32).collect::<Vec<_>>());
        self.logits.iter().zip(prompt.answer.bytes()).all(|(z, token)| choice(z) == usize::from(token))
    }

    /// Mean over the answer's tokens, in nats.
    fn drift(&self, dense: &Self) -> f64 {
        mean(&dense.logits.iter().zip(&self.logits).map(|(a, b)| divergence(a, b)).collect::<Vec<_>>())
    }
}

/// Blocks that hold the answer. The first token is the beginning's, so that text is one behind its bytes.
fn retrieved(prompt: &Prompt) -> RangeInclusive<usize> {
    let at = prompt.prompt.find(prompt.answer.trim()).unwrap_or(0) + 1;
    at / BLOCK..=(at + prompt.answer.len()) / BLOCK
}

/// One prompt and its right answer, under retention that was told.
fn measure(setup: &Setup, rungs: &[Rung<'_>], told: Told, prompt: &Prompt) -> Result<Found, Boxed> {
    let holds = retrieved(prompt);
    let retained = Choice::Retained { budget: BUDGET, rule: RULE, blind: false, even: false };
    let (choice, all) = (if told == Told::Dense { Choice::Dense } else { retained }, told == Told::All);
    let mut blocks = Vec::new();
    if all || told == Told::Prefix {
        blocks.push(0);
    }
    if all || told == Told::Retrieved {
        blocks.extend(holds.clone());
    }
    let recent = if all || told == Told::Recent { RECENT } else { 0 };
    let (tokens, answer) = (setup.encode(prompt.prompt.as_bytes())?, prompt.answer.as_bytes());
    let cache = Tiered::new(&setup.model, rungs, choice, tokens.len() + answer.len() + BLOCK)?;
    let mut cache = cache.protecting(Protected { blocks, recent });
    let wide = |logits: &[f32]| logits.iter().map(|z| f64::from(*z)).collect::<Vec<f64>>();
    let mut last = Vec::new();
    cache.feed(&tokens, |_, logits| last = wide(logits))?;
    let mut logits = vec![last];
    for token in answer.iter().take(answer.len().saturating_sub(1)) {
        cache.feed(&[u32::from(*token)], |_, found| logits.push(wide(found)))?;
    }
    let newest = tokens.len() / BLOCK;
    let kinds: [&dyn Fn(usize) -> bool; 3] =
        [&|b| b == 0, &|b| holds.contains(&b), &|b| b + RECENT >= newest && b < newest];
    let [prefix, passage, recent] = kinds.map(|is| cache.kept(is));
    let others = cache.kept(&|b| !kinds.iter().any(|is| is(b)));
    Ok(Found { logits, bytes: cache.deeds().bytes, kept: [prefix, passage, recent, others] })
}

/// Keys of TurboQuant at 4 and 2 bits and dropping, within the witnesses' budget: with spherical keys no needle is found at all.
pub(super) fn table(
    setup: &Setup,
    ways: &[Way<'static>],
    learned: &[Measured],
    values: f64,
) -> Result<Table, CliError> {
    let rungs = rungs(ways, learned, values, &[TIERS + 2, TIERS], true);
    let prompts = setup
        .needles(setup.sizes.answers[0].div_ceil(NEEDLES.len()), true)
        .map_err(|e| CliError::Internal(e.into()))?;
    let bar = Shared::new(setup, "segments", VARIANTS.len() * prompts.len());
    let columns = [
        ("answers right", Show::Percent(0)),
        ("drift of the answer, nats", Show::Fixed(3)),
        ("bytes", Show::Fixed(1)),
        ("prefix kept", Show::Percent(0)),
        ("passage kept", Show::Percent(0)),
        ("newest kept", Show::Percent(0)),
        ("others kept", Show::Percent(0)),
    ];
    let title = format!(
        "A4: segments, {} prompts of 1K, TurboQuant keys of 4 or 2 bits or none, {BUDGET} bytes",
        prompts.len()
    );
    let mut table = Table::new(&title, &columns);
    let mut dense: Vec<Found> = Vec::new();
    for (told, name) in VARIANTS {
        let of = |prompt: &Prompt| {
            let found = measure(setup, &rungs, told, prompt);
            bar.step();
            found
        };
        let found: Vec<Found> = prompts.par_iter().map(of).collect::<Result<_, Boxed>>().map_err(CliError::Internal)?;
        let right: Vec<f64> = found.iter().zip(&prompts).map(|(f, p)| f64::from(u8::from(f.right(p)))).collect();
        let drift: Vec<f64> = found.iter().zip(&dense).map(|(f, dense)| f.drift(dense)).collect();
        let each = |f: &dyn Fn(&Found) -> f64| mean(&found.iter().map(f).collect::<Vec<_>>());
        let kept = |i: usize| Cell::plain(each(&|f| f.kept[i]));
        let beside = |cell: Cell| if told == Told::Dense { Cell::words("–") } else { cell };
        let cells = vec![
            Cell::mean(&right, setup.seed),
            beside(Cell::mean(&drift, setup.seed)),
            beside(Cell::plain(each(&|f| f.bytes))),
            kept(0),
            kept(1),
            kept(2),
            kept(3),
        ];
        table.row(name, cells);
        if told == Told::Dense {
            dense = found;
        }
    }
    bar.finish();
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passage_is_where_the_answer_is() {
        let text = format!("{}it is 70739.{}", "a".repeat(121), "b".repeat(90));
        let (id, task, length) = (String::new(), String::new(), 0);
        let mut prompt = Prompt { id, task, length, prompt: text, answer: "70739.".into() };
        // From byte 127 on, which is token 128, to token 134.
        assert_eq!(retrieved(&prompt), 2..=2);
        prompt.prompt.remove(0);
        assert_eq!(retrieved(&prompt), 1..=2);
    }
}

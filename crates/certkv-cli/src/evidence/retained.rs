//! Spherical keys under a policy of retention: variants of the ablation, and what the model makes of each.
use super::{
    Setup,
    data::mean,
    tiered::{Boxed, Choice, Deeds, HeadUse, Rung, Tiered, VALUES},
};
use crate::{
    calibrate::{self, BLOCK, Coding, Measured, TOP, Way, divergence, log_sum, stored_values, top},
    error::CliError,
};
use certkv_codec::{spherical::Tier, turboquant::Radius};
use certkv_control::{
    calibration::Rule,
    retention::RetentionRule,
    spherical::{HeadBooks, Objective, Training},
};
use rayon::prelude::*;
use std::sync::Arc;

/// Keys that a rung can have: spherical tiers, then TurboQuant of 2 and 1 bits, then TurboQuant of 4 for scale.
pub(super) const TIERS: usize = 3;

/// Two-sided thresholds and a rest, in share of attention by byte of a block.
pub(super) const RULE: RetentionRule = RetentionRule { up: 1e-7, down: 1e-8, cooldown: 2 };
/// The same without either: whatever is better by anything changes at once.
pub(super) const RESTLESS: RetentionRule = RetentionRule { up: 1e-300, down: 0.0, cooldown: 0 };

/// Spherical ways in the tiers b1, b2, b3, with codebooks that a seed trains. Radii are lengths, as published: what drifts least without a
/// certificate.
pub(super) fn spherical_ways(setup: &Setup, seed: u64, tiers: &[Tier]) -> Result<Vec<Way<'static>>, CliError> {
    let (heads, training) =
        (calibrate::key_heads(&setup.heads), Training { objective: Objective::Cosine, ..setup.training(seed) });
    let mut ways = Vec::new();
    for tier in tiers {
        let books = calibrate::train(&setup.gather, &heads, *tier, &training, || ()).map_err(CliError::refused)?;
        let books: Arc<Vec<HeadBooks>> = Arc::new(books);
        let words = move |layer: usize, head: usize| {
            books.get(layer * heads.kv_heads + head).map_or_else(Vec::new, |head| head.words.clone())
        };
        ways.push(calibrate::spherical_way(format!("spherical {tier}"), *tier, Radius::Norm, BLOCK, words));
    }
    Ok(ways)
}

/// All ways of the ablation in the order that [`TIERS`] says.
pub(super) fn ways(setup: &Setup) -> Result<Vec<Way<'static>>, CliError> {
    let mut ways = spherical_ways(setup, setup.seed, &Tier::ALL)?;
    let codings = [2, 1, 4].map(|bits| Coding {
        rule: Rule { least: bits, most: bits, ..Rule::published(usize::from(bits) * setup.heads.pairs()) },
        radius: Radius::LeastSquares,
    });
    let turbo = calibrate::ways(&setup.calibration, &codings).map_err(CliError::refused)?;
    for (mut way, bits) in turbo.into_iter().zip([2, 1, 4]) {
        way.name = format!("TurboQuant {bits} bits");
        ways.push(way);
    }
    Ok(ways)
}

/// Bytes of a value.
pub(super) fn value_bytes(setup: &Setup) -> Result<f64, CliError> {
    Ok(stored_values(VALUES, setup.heads.head_dim, &[]).map_err(CliError::refused)?.1)
}

/// The rungs with these ways, and with dropping behind them if `drop`.
pub(super) fn rungs<'a>(
    ways: &'a [Way<'static>],
    measured: &[Measured],
    values: f64,
    which: &[usize],
    drop: bool,
) -> Vec<Rung<'a>> {
    let coded = which.iter().map(|i| Rung {
        bytes: measured[*i].bytes + values,
        way: Some(&ways[*i]),
        moved: measured[*i].moved.clone(),
    });
    let dropped = drop.then(|| Rung { bytes: 0.0, way: None, moved: Vec::new() });
    coded.chain(dropped).collect()
}

/// Next-token logits of a text under dense attention, the second half of its positions.
pub(super) struct Reference {
    tokens: Vec<u32>,
    logits: Vec<Vec<f64>>,
    tops: Vec<Vec<usize>>,
}

/// How far a policy's next-token distributions are from the dense ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Moved {
    /// `KL(dense || policy)` by position, in nats.
    pub(super) drift: Vec<f64>,
    /// Share of the ten likeliest that stay, by position.
    pub(super) overlap: Vec<f64>,
    /// Change of the bits that the text takes, by byte.
    pub(super) bits: f64,
    pub(super) deeds: Deeds,
    /// By layer and key head.
    pub(super) heads: Vec<HeadUse>,
}

impl Moved {
    /// Mean drift of the last quarter of the text: the second half of what is measured.
    pub(super) fn tail(&self) -> f64 {
        mean(&self.drift[self.drift.len() / 2..])
    }

    /// Mean drift of the quarter before that.
    pub(super) fn before(&self) -> f64 {
        mean(&self.drift[..self.drift.len() / 2])
    }
}

fn wide(logits: &[f32]) -> Vec<f64> {
    logits.iter().map(|z| f64::from(*z)).collect()
}

/// Runs a text under a policy; logits of the second half, and the cache behind it.
fn forced<'a>(
    setup: &'a Setup,
    tokens: &[u32],
    rungs: &'a [Rung<'a>],
    choice: Choice,
) -> Result<(Vec<Vec<f64>>, Tiered<'a>), Boxed> {
    let mut cache = Tiered::new(&setup.model, rungs, choice, tokens.len())?;
    let mut found = Vec::new();
    cache.feed(tokens, |at, logits| {
        if 2 * at >= tokens.len() {
            found.push(wide(logits));
        }
    })?;
    Ok((found, cache))
}

impl Reference {
    pub(super) fn new(setup: &Setup, text: &[u8]) -> Result<Self, Boxed> {
        let tokens = setup.encode(text)?;
        let (logits, _) = forced(setup, &tokens, &[], Choice::Dense)?;
        let tops = logits.iter().map(|z| top(z)).collect();
        Ok(Self { tokens, logits, tops })
    }

    /// What a policy moves.
    pub(super) fn moved(&self, setup: &Setup, rungs: &[Rung<'_>], choice: Choice) -> Result<Moved, Boxed> {
        let (coded, cache) = forced(setup, &self.tokens, rungs, choice)?;
        let drift = self.logits.iter().zip(&coded).map(|(a, b)| divergence(a, b)).collect();
        let kept = |(before, z): (&Vec<usize>, &Vec<f64>)| {
            let after = top(z);
            before.iter().filter(|token| after.contains(token)).count() as f64 / TOP as f64
        };
        let overlap = self.tops.iter().zip(&coded).map(kept).collect();
        // The token that follows each position but the last.
        let next = &self.tokens[self.tokens.len() - self.logits.len() + 1..];
        let bits = |z: &[Vec<f64>]| -> f64 {
            let each = z.iter().zip(next).map(|(z, token)| log_sum(z) - z[*token as usize]);
            each.sum::<f64>() / std::f64::consts::LN_2 / next.len() as f64
        };
        let bits = bits(&coded) - bits(&self.logits);
        Ok(Moved { drift, overlap, bits, deeds: cache.deeds(), heads: cache.heads() })
    }
}

/// A variant of the ablation: its name, its rungs, and who decides.
pub(super) struct Variant<'a> {
    pub(super) name: String,
    pub(super) rungs: Vec<Rung<'a>>,
    pub(super) choice: Choice,
}

impl Variant<'_> {
    /// The cheapest that the variant can be, if that is above its budget.
    pub(super) fn floor(&self) -> Option<f64> {
        let Choice::Retained { budget, .. } = self.choice else { return None };
        let floor = self.rungs.iter().map(|r| r.bytes).fold(f64::INFINITY, f64::min);
        (floor > budget).then_some(floor)
    }
}

/// Every variant over every reference, side by side; `None` where the budget is below the floor. `[variant][window]`.
pub(super) fn measure(
    setup: &Setup,
    references: &[Reference],
    variants: &[Variant<'_>],
    done: impl Fn() + Sync,
) -> Result<Vec<Option<Vec<Moved>>>, CliError> {
    let of = |variant: &Variant<'_>| -> Result<Option<Vec<Moved>>, Boxed> {
        let mut moved = Vec::new();
        for reference in references.iter().filter(|_| variant.floor().is_none()) {
            moved.push(reference.moved(setup, &variant.rungs, variant.choice)?);
            done();
        }
        Ok(if moved.is_empty() { None } else { Some(moved) })
    };
    variants.par_iter().map(of).collect::<Result<_, Boxed>>().map_err(CliError::Internal)
}

//! A3: what retention gives to each key head, against the same bytes for every one of them.
use super::{
    Setup,
    data::{Cell, Show, Table, mean},
    retained::{Moved, RULE, Reference, TIERS, Variant, measure, rungs},
    spherical::{BUDGET, Shared},
    tiered::Choice,
};
use crate::{
    calibrate::{Measured, Way},
    error::CliError,
};

/// Ends of the histogram's bins, in shares of the budget.
const ENDS: [f64; 4] = [0.5, 1.0, 1.5, 2.0];

/// How unlike numbers from 0 on are: 0 where all are the same, nearly 1 where one is all.
fn gini(x: &[f64]) -> f64 {
    let (n, sum) = (x.len() as f64, x.iter().sum::<f64>());
    let apart: f64 = x.iter().flat_map(|a| x.iter().map(move |b| (a - b).abs())).sum();
    if sum > 0.0 { apart / (2.0 * n * sum) } else { 0.0 }
}

/// Places in order; equal numbers share theirs.
fn ranks(x: &[f64]) -> Vec<f64> {
    let rank = |a: &f64| {
        let below = x.iter().filter(|b| *b < a).count() as f64;
        below + (x.iter().filter(|b| *b == a).count() as f64 - 1.0) / 2.0
    };
    x.iter().map(rank).collect()
}

/// Correlation of ranks (Spearman); 0 where one side does not differ.
fn rank_correlation(x: &[f64], y: &[f64]) -> f64 {
    let [x, y] = [ranks(x), ranks(y)];
    let [a, b] = [mean(&x), mean(&y)];
    let product = |x: &[f64], a: f64, y: &[f64], b: f64| x.iter().zip(y).map(|(x, y)| (x - a) * (y - b)).sum::<f64>();
    let size = (product(&x, a, &x, a) * product(&y, b, &y, b)).sqrt();
    if size > 0.0 { product(&x, a, &y, b) / size } else { 0.0 }
}

/// Keys of TurboQuant at 4 and 2 bits and dropping, and spherical tiers and dropping, over every reference.
pub(super) fn table(
    setup: &Setup,
    references: &[Reference],
    ways: &[Way<'static>],
    learned: &[Measured],
    values: f64,
) -> Result<Table, CliError> {
    let mut variants = Vec::new();
    for (keys, which) in
        [("TurboQuant 4, 2, drop", vec![TIERS + 2, TIERS]), ("spherical b1, b2, b3, drop", vec![0, 1, 2])]
    {
        for (who, even) in [("by need", false), ("even", true)] {
            let rungs = rungs(ways, learned, values, &which, true);
            let choice = Choice::Retained { budget: BUDGET, rule: RULE, blind: false, even };
            variants.push(Variant { name: format!("{keys}, {who}"), rungs, choice });
        }
    }
    let bar = Shared::new(setup, "heads", variants.len() * references.len());
    let found = measure(setup, references, &variants, || bar.step())?;
    bar.finish();
    let mut columns = vec![("bytes", Show::Fixed(1)), ("drift, nats", Show::Fixed(4))];
    columns.extend([("least of a head", Show::Fixed(1)), ("most", Show::Fixed(1)), ("Gini", Show::Fixed(3))]);
    columns.extend(
        ["heads to half the budget", "to all of it", "to 1.5 of it", "to 2", "above"]
            .map(|name| (name, Show::Fixed(1))),
    );
    columns.push(("correlation with far attention", Show::Fixed(2)));
    let title = format!("A3: heads, {BUDGET} bytes, {} of them", setup.heads.layers * setup.heads.kv_heads);
    let mut table = Table::new(&title, &columns);
    for (variant, found) in variants.iter().zip(&found) {
        let found = found.as_deref().unwrap_or_default();
        let each = |f: &dyn Fn(&Moved) -> f64| found.iter().map(f).collect::<Vec<_>>();
        let bytes = |m: &Moved| m.heads.iter().map(|head| head.bytes).collect::<Vec<_>>();
        let within = |low: f64, high: f64| {
            let count =
                |m: &Moved| bytes(m).iter().filter(|b| **b > low * BUDGET && **b <= high * BUDGET).count() as f64;
            Cell::plain(mean(&each(&count)))
        };
        let far = |m: &Moved| rank_correlation(&bytes(m), &m.heads.iter().map(|head| head.far).collect::<Vec<_>>());
        let mut cells = vec![
            Cell::plain(mean(&each(&|m| m.deeds.bytes))),
            Cell::mean(&each(&|m| mean(&m.drift)), setup.seed),
            Cell::plain(mean(&each(&|m| bytes(m).into_iter().fold(f64::INFINITY, f64::min)))),
            Cell::plain(mean(&each(&|m| bytes(m).into_iter().fold(0.0, f64::max)))),
            Cell::mean(&each(&|m| gini(&bytes(m))), setup.seed),
        ];
        let lows = [f64::NEG_INFINITY].into_iter().chain(ENDS);
        cells.extend(lows.zip(ENDS.into_iter().chain([f64::INFINITY])).map(|(low, high)| within(low, high)));
        cells.push(Cell::mean(&each(&far), setup.seed));
        table.row(variant.name.clone(), cells);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_the_textbook_s() {
        assert_eq!((gini(&[3.0; 5]), gini(&[0.0, 0.0, 0.0, 8.0]), gini(&[0.0; 3])), (0.0, 0.75, 0.0));
        assert!((gini(&[1.0, 2.0, 3.0]) - 2.0 / 9.0).abs() < 1e-15);
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 7.0]), [1.5, 0.0, 1.5, 3.0]);
        assert!((rank_correlation(&[1.0, 20.0, 300.0], &[0.1, 0.2, 0.9]) - 1.0).abs() < 1e-15);
        assert!((rank_correlation(&[1.0, 2.0, 3.0], &[9.0, 8.0, -1.0]) + 1.0).abs() < 1e-15);
        assert_eq!(rank_correlation(&[1.0; 3], &[1.0, 2.0, 3.0]), 0.0);
    }
}

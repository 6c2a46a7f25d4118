//! Bits for pairs that are coded together in whole tiles: the schedules of Block-GTQ records, math.md (9.2a).
use crate::error::{countable, finite, length};
use crate::{ControlError, Energies};

/// Distortion of 1 to 6 bits, (2.13) for many channels: constants, as schedules are part of what codes mean.
const ETA: [f64; 6] = [0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.0006442];

/// Bits of every pair, 1 to `most` (at most 6), `budget` in all, that minimise (9.3): pairs of one width are coded together, by their
/// `energies` in the metric that they are coded in. Pairs take part in descending order of `score`, ties by number, and each width has a run
/// of them that is a multiple of `tile` long, wider ones first. `bits` is overwritten. Costs `most (pairs/tile)^2 budget/tile`.
///
/// # Errors
/// [`ControlError::Length`] if energies or scores differ in number, or `tile` does not divide them; [`ControlError::Invalid`] for one that is
/// negative or not finite; [`ControlError::Bits`] for a budget that no such widths have; [`ControlError::TooMany`]. `bits` is unchanged then.
pub fn allocate_tiles(
    energies: &Energies<'_>,
    score: &[f64],
    tile: usize,
    budget: usize,
    most: u8,
    bits: &mut Vec<u8>,
) -> Result<(), ControlError> {
    let pairs = score.len();
    countable(pairs)?;
    length("queries", energies.queries.len(), pairs)?;
    length("keys", energies.keys.len(), pairs)?;
    finite("queries", energies.queries)?;
    finite("keys", energies.keys)?;
    finite("score", score)?;
    if tile == 0 || !pairs.is_multiple_of(tile) {
        return Err(ControlError::Length { what: "score", got: pairs, need: pairs.next_multiple_of(tile.max(1)) });
    }
    let (tiles, widths) = (pairs / tile, usize::from(most).min(ETA.len()));
    if !budget.is_multiple_of(tile) || budget < pairs || budget > widths * pairs {
        return Err(ControlError::Bits { budget, floor: pairs, ceiling: widths * pairs });
    }
    let mut order: Vec<usize> = (0..pairs).collect();
    order.sort_by(|a, b| score[*b].total_cmp(&score[*a]).then(a.cmp(b)));
    let sums = |of: &[f64]| {
        // Relative to the loudest pair, so that no product overflows.
        let loudest = of.iter().fold(0.0f64, |m, x| x.max(m));
        let sum = |run: &[usize]| run.iter().map(|pair| of[*pair] / loudest.max(f64::MIN_POSITIVE)).sum::<f64>();
        order.chunks_exact(tile).map(sum).collect::<Vec<f64>>()
    };
    let (a, k) = (sums(energies.queries), sums(energies.keys));
    // `best[t][u]`: least objective of the loudest `t` tiles in `u` bits a pair of each tile, with the widths so far.
    let (row, mut taken) = (budget / tile + 1, vec![0u32; widths * (tiles + 1) * (budget / tile + 1)]);
    let mut best = vec![f64::INFINITY; (tiles + 1) * row];
    best[0] = 0.0;
    for width in (1..=widths).rev() {
        let before = best.clone();
        for from in 0..tiles {
            let (mut of_queries, mut of_keys) = (0.0, 0.0);
            for to in from + 1..=tiles {
                (of_queries, of_keys) = (of_queries + a[to - 1], of_keys + k[to - 1]);
                let (run, more) = (to - from, (to - from) * width);
                let cost = of_queries * of_keys * ETA[width - 1] / run as f64;
                for used in 0..row.saturating_sub(more) {
                    let (found, at) = (before[from * row + used] + cost, to * row + used + more);
                    if found < best[at] {
                        best[at] = found;
                        taken[(width - 1) * (tiles + 1) * row + at] = run as u32;
                    }
                }
            }
        }
    }
    bits.clear();
    bits.resize(pairs, 1);
    let (mut to, mut used) = (tiles, row - 1);
    for width in 1..=widths {
        let run = taken[((width - 1) * (tiles + 1) + to) * row + used] as usize;
        for pair in &order[(to - run) * tile..to * tile] {
            bits[*pair] = width as u8;
        }
        (to, used) = (to - run, used - run * width);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn eta(_: usize, bits: u8) -> f64 {
        ETA[usize::from(bits) - 1]
    }

    proptest! {
        /// Against every schedule of runs.
        #[test]
        fn no_runs_are_better(
            (tiles, tile) in (1usize..6, 1usize..4), share in 0.0f64..1.0,
            energies in proptest::collection::vec((prop_oneof![Just(0.0), Just(1.0), 0.001f64..50.0], 0.001f64..9.0), 15),
        ) {
            let pairs = tiles * tile;
            let (a, k): (Vec<f64>, Vec<f64>) = energies[..pairs].iter().copied().unzip();
            let e = Energies { queries: &a, keys: &k };
            let score = e.scores(crate::Score::Logit2).unwrap();
            let budget = pairs + (share * (5 * tiles) as f64) as usize * tile;
            let mut bits = Vec::new();
            allocate_tiles(&e, &score, tile, budget, 6, &mut bits).unwrap();
            prop_assert_eq!(bits.iter().map(|b| usize::from(*b)).sum::<usize>(), budget);
            prop_assert!((1..=6).all(|b| bits.iter().filter(|x| **x == b).count().is_multiple_of(tile)), "{:?}", bits);
            let mut order: Vec<usize> = (0..pairs).collect();
            order.sort_by(|i, j| score[*j].total_cmp(&score[*i]).then(i.cmp(j)));
            prop_assert!(order.windows(2).all(|w| bits[w[0]] >= bits[w[1]]), "loud pairs have no fewer bits: {:?}", bits);
            let found = e.group_objective(&bits, None, eta).unwrap();
            for mut code in 0..6usize.pow(tiles as u32) {
                let widths: Vec<u8> = (0..tiles).map(|_| { let b = 1 + (code % 6) as u8; code /= 6; b }).collect();
                if widths.is_sorted_by(|a, b| a >= b) && tile * widths.iter().map(|b| usize::from(*b)).sum::<usize>() == budget {
                    let mut other = vec![0; pairs];
                    order.iter().enumerate().for_each(|(i, pair)| other[*pair] = widths[i / tile]);
                    let other = e.group_objective(&other, None, eta).unwrap();
                    prop_assert!(found <= other * (1.0 + 1e-9), "{:?} against {:?}", bits, widths);
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (ones, mut bits) = ([1.0; 4], vec![9]);
        let e = Energies { queries: &ones, keys: &ones };
        for (tile, budget) in [(0, 8), (3, 8), (2, 9), (2, 2), (2, 26), (2, 0)] {
            let refused = allocate_tiles(&e, &ones, tile, budget, 6, &mut bits).unwrap_err();
            assert!(matches!(refused, ControlError::Length { .. } | ControlError::Bits { .. }), "{refused}");
        }
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            let wrong = [1.0, bad, 1.0, 1.0];
            for (what, e, score) in [
                ("queries", Energies { queries: &wrong, keys: &ones }, &ones),
                ("keys", Energies { queries: &ones, keys: &wrong }, &ones),
                ("score", e, &wrong),
            ] {
                let refused = allocate_tiles(&e, score, 2, 8, 6, &mut bits).unwrap_err();
                assert_eq!(refused, ControlError::Invalid { what, index: 1 });
            }
        }
        assert!(allocate_tiles(&e, &[1.0; 3], 1, 8, 6, &mut bits).is_err());
        assert_eq!(bits, [9]);
        // Energies of any size, and none at all.
        for size in [0.0, f64::MAX, f64::MIN_POSITIVE / 8.0] {
            let energies = [size, 0.0, size, 0.0];
            let e = Energies { queries: &energies, keys: &energies };
            allocate_tiles(&e, &energies, 2, 8, 6, &mut bits).unwrap();
            assert_eq!(bits.iter().map(|b| usize::from(*b)).sum::<usize>(), 8, "{size}");
        }
    }
}

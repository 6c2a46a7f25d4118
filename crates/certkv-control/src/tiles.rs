//! Bits for pairs that are coded together in whole tiles: the schedules of Block-GTQ records, math.md (9.2a).
use crate::error::{finite, length};
use crate::{ControlError, Energies};

/// Distortion of 1 to 6 bits, (2.13) for many channels: constants, as schedules are part of what codes mean.
const ETA: [f64; 6] = [0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.0006442];

/// Mean square of the cosine between queries and keys that all pairs of a head are taken to have in common, math.md (9.2a).
const ALIGNED: f64 = 0.25;
/// Most tiles of a head.
const TILES: usize = 16;

/// Bits of every pair, 1 to `most` (at most 6), `budget` in all, of least expected error of logits if pairs of one width are coded together
/// (9.2a), by their `energies` in the metric that they are coded in. Pairs take part in descending order of `score`, ties by number, and each
/// width has a run of them that is a multiple of `tile` long, wider ones first. `bits` is overwritten. Costs as many sums as there are such
/// schedules: a few hundred for 8 tiles of 3 bits in the mean, a thousand for 16.
///
/// # Errors
/// [`ControlError::Length`] if energies or scores differ in number, or `tile` does not divide them; [`ControlError::Invalid`] for one that is
/// negative or not finite; [`ControlError::Bits`] for a budget that no such widths have; [`ControlError::TooMany`] for more than 16 tiles.
/// `bits` is unchanged then.
pub fn allocate_tiles(
    energies: &Energies<'_>,
    score: &[f64],
    tile: usize,
    budget: usize,
    most: u8,
    bits: &mut Vec<u8>,
) -> Result<(), ControlError> {
    let pairs = score.len();
    length("queries", energies.queries.len(), pairs)?;
    length("keys", energies.keys.len(), pairs)?;
    finite("queries", energies.queries)?;
    finite("keys", energies.keys)?;
    finite("score", score)?;
    if tile == 0 || !pairs.is_multiple_of(tile) {
        return Err(ControlError::Length { what: "score", got: pairs, need: pairs.next_multiple_of(tile.max(1)) });
    }
    let (tiles, widths) = (pairs / tile, usize::from(most).min(ETA.len()));
    if tiles > TILES {
        return Err(ControlError::TooMany(tiles));
    }
    if !budget.is_multiple_of(tile) || budget < pairs || budget > widths * pairs {
        return Err(ControlError::Bits { budget, floor: pairs, ceiling: widths * pairs });
    }
    let mut order: Vec<usize> = (0..pairs).collect();
    order.sort_by(|a, b| score[*b].total_cmp(&score[*a]).then(a.cmp(b)));
    // Relative to the loudest pair, so that no product overflows.
    let part = |of: &[f64], pair: usize| {
        let loudest = of.iter().fold(0.0f64, |m, x| x.max(m));
        of[pair] / loudest.max(f64::MIN_POSITIVE)
    };
    let sums = |of: &dyn Fn(usize) -> f64| {
        let (mut sum, mut sums) = (0.0, vec![0.0]);
        for run in order.chunks_exact(tile) {
            sum += run.iter().map(|pair| of(*pair)).sum::<f64>();
            sums.push(sum);
        }
        sums
    };
    let queries = sums(&|pair| part(energies.queries, pair));
    let keys = sums(&|pair| part(energies.keys, pair));
    let products = sums(&|pair| part(energies.queries, pair).sqrt() * part(energies.keys, pair).sqrt());
    let search = Search { queries, keys, products, channels: 2 * tile, budget: budget / tile };
    let (mut best, mut found) = (f64::INFINITY, [0; ETA.len()]);
    search.widths(widths, &mut [0; ETA.len()], State::default(), &mut best, &mut found);
    bits.clear();
    bits.resize(pairs, 1);
    let mut left = &order[..];
    for (width, run) in found.iter().enumerate().rev() {
        let (own, rest) = left.split_at(run * tile);
        own.iter().for_each(|pair| bits[*pair] = width as u8 + 1);
        left = rest;
    }
    Ok(())
}

/// Sums over the loudest `t` tiles at `[t]`.
struct Search {
    queries: Vec<f64>,
    keys: Vec<f64>,
    products: Vec<f64>,
    channels: usize,
    budget: usize,
}

/// What the widths taken so far come to.
#[derive(Clone, Copy, Default)]
struct State {
    tiles: usize,
    used: usize,
    random: f64,
    aligned: f64,
}

impl Search {
    /// Tries every number of tiles of `width` bits, and of narrower ones behind them; `runs` are those taken, by width.
    fn widths(&self, width: usize, runs: &mut [usize; 6], at: State, best: &mut f64, found: &mut [usize; 6]) {
        let (all, last) = (self.keys.len() - 1, width == 1);
        let left = all - at.tiles;
        for run in if last { left } else { 0 }..=left {
            let used = at.used + run * width;
            if used + (left - run) > self.budget || used + (left - run) * (width - 1) < self.budget {
                continue;
            }
            let mut next = State { tiles: at.tiles + run, used, ..at };
            if run > 0 {
                let (eta, of) = (ETA[width - 1], |sums: &[f64]| sums[next.tiles] - sums[at.tiles]);
                next.random += of(&self.queries) * of(&self.keys) * eta * (1.0 - eta) / (run * self.channels) as f64;
                next.aligned += of(&self.products) * eta;
            }
            runs[width - 1] = run;
            if last {
                let error = next.random + ALIGNED * next.aligned * next.aligned;
                // The first of equals; NaN is none.
                if error < *best {
                    (*best, *found) = (error, *runs);
                }
            } else {
                self.widths(width - 1, runs, next, best, found);
            }
        }
    }
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
            let expected = |bits: &[u8]| {
                let shrunk = |n: usize, b: u8| eta(n, b) * (1.0 - eta(n, b));
                let aligned: f64 = score.iter().zip(bits).map(|(s, b)| s.sqrt() * eta(0, *b)).sum();
                e.group_objective(bits, None, shrunk).unwrap() + ALIGNED * aligned * aligned
            };
            let found = expected(&bits);
            for mut code in 0..6usize.pow(tiles as u32) {
                let widths: Vec<u8> = (0..tiles).map(|_| { let b = 1 + (code % 6) as u8; code /= 6; b }).collect();
                if widths.is_sorted_by(|a, b| a >= b) && tile * widths.iter().map(|b| usize::from(*b)).sum::<usize>() == budget {
                    let mut other = vec![0; pairs];
                    order.iter().enumerate().for_each(|(i, pair)| other[*pair] = widths[i / tile]);
                    let other = expected(&other);
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
        let many = [1.0; 17];
        let refused =
            allocate_tiles(&Energies { queries: &many, keys: &many }, &many, 1, 34, 6, &mut bits).unwrap_err();
        assert_eq!((refused, &bits[..]), (ControlError::TooMany(17), &[9][..]));
        // Energies of any size, and none at all.
        for size in [0.0, f64::MAX, f64::MIN_POSITIVE / 8.0] {
            let energies = [size, 0.0, size, 0.0];
            let e = Energies { queries: &energies, keys: &energies };
            allocate_tiles(&e, &energies, 2, 8, 6, &mut bits).unwrap();
            assert_eq!(bits.iter().map(|b| usize::from(*b)).sum::<usize>(), 8, "{size}");
        }
    }
}

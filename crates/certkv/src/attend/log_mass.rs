//! Logarithms of blocks' masses, and what single precision knows of them.
use crate::work::HeadWork;
use certkv_bound::checks::Ranking;
use certkv_core::{OutOfMemory, reserve_total};

/// Nats below the largest mass from which a block's can be lost: what is left of 2^-126 when its tokens, 2^6 at most, and weights of 2^12 are taken off.
const LEAST_MASS: f64 = 74.0;

/// Log-mass of a block by the masses of the last pass, nats; minus infinity without one.
pub(super) fn log_mass(work: &HeadWork, h: usize, b: usize) -> f64 {
    let of = |m: certkv_kernel::Mass| f64::from(m.exponent) * core::f64::consts::LN_2 + f64::from(m.w).ln();
    work.masses.get(h, b).map_or(f64::NEG_INFINITY, of)
}

/// Log-masses below this, beside these, are no numbers of single precision: all that is known of them is that they lie below it.
pub(super) fn least_known(logs: impl IntoIterator<Item = f64>) -> f64 {
    logs.into_iter().fold(f64::NEG_INFINITY, f64::max) - LEAST_MASS
}

/// The most that a log-mass can be of which that is the least known. NaN stays NaN.
pub(super) fn at_least(log: f64, least: f64) -> f64 {
    if log < least { least } else { log }
}

/// Whether the leading blocks are certain, with the lists that it takes to see.
#[derive(Debug, Default)]
pub(crate) struct Leaders {
    low: Vec<f64>,
    high: Vec<f64>,
    ranking: Ranking,
}

impl Leaders {
    /// Asks for the memory of so many blocks.
    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        for list in [&mut self.low, &mut self.high] {
            list.clear();
            reserve_total(list, blocks)?;
        }
        self.ranking.reserve(blocks)
    }

    /// Whether the leading `r` of some blocks are those that their masses say (7.3), of `(log-mass from codes, Delta + zeta)` for every block.
    pub(super) fn are_certain(&mut self, blocks: impl Iterator<Item = (f64, f64)> + Clone, r: usize) -> bool {
        let least = least_known(blocks.clone().map(|(log, _)| log));
        self.low.clear();
        self.high.clear();
        // Lower and upper ends of the true log-masses (5.20).
        for (log, spread) in blocks {
            self.low.push(if log < least { f64::NEG_INFINITY } else { log - spread });
            self.high.push(at_least(log, least) + spread);
        }
        self.ranking.is_certified(&self.low, &self.high, r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certified(blocks: &[(f64, f64)], r: usize) -> bool {
        Leaders::default().are_certain(blocks.iter().copied(), r)
    }

    #[test]
    fn a_mass_that_vanished_may_be_as_large_as_what_vanishes() {
        let gone = f64::NEG_INFINITY;
        assert!(certified(&[(0.0, 1.0), (-3.0, 1.0), (gone, 2.0)], 1));
        // Codes of a block that nothing is left of may hide the largest.
        assert!(!certified(&[(0.0, 1.0), (-3.0, 1.0), (gone, 75.0)], 1));
        assert!(!certified(&[(0.0, 1.0), (-3.0, 1.0), (-90.0, 75.0)], 1));
        // Of two that vanished none is known to lead the other, and a number that is none certifies nothing.
        assert!(!certified(&[(0.0, 0.1), (gone, 0.1), (gone, 0.1)], 2));
        assert!(!certified(&[(0.0, 0.1), (f64::NAN, 0.1)], 1));
        assert!(certified(&[(0.0, 0.1), (-73.0, 0.1), (-80.0, 0.1)], 1));
    }
}

//! Rows of the kinds of data that the tests know.
use super::Rng;

/// Kinds of data, from kind to hostile.
pub const KINDS: usize = 7;

/// One row.
pub fn token(rng: &mut Rng, kind: usize, dim: usize, value: bool, position: usize) -> Vec<f64> {
    (0..dim)
        .map(|c| {
            let x = rng.normal();
            match kind {
                0 => x,
                // Outlier channels.
                1 if c % 37 == 3 => 12.0 * x + 20.0,
                // Heavy tails.
                2 => (x * x * x).clamp(-60.0, 60.0),
                // A sink and near ties.
                3 if position == 0 && !value => 4.0,
                3 => 1.0 + 0.001 * x,
                // Constant channels and zeros.
                4 if c % 2 == 0 => 0.75,
                4 if c % 5 == 0 => 0.0,
                // Large norms.
                5 => 30.0 * x,
                // Nearly everything tiny.
                6 if position % 11 != 5 => 1e-4 * x,
                _ => x,
            }
        })
        .collect()
}

//! Randomised Hadamard rotation, math.md (2.10), (2.11): orthogonal for every number of channels, a few additions per channel.
use certkv_core::hash::hash64;
use core::ops::{Add, Mul, Sub};

/// The rotation of every record that has one; part of the format, like the order of its codes.
pub const SEED: u64 = 0x6365_7274_6b76_0001;

/// A number that can be rotated.
pub trait Real: Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// The nearest number of this type.
    fn of(x: f64) -> Self;
}

impl Real for f64 {
    fn of(x: f64) -> Self {
        x
    }
}

impl Real for f32 {
    fn of(x: f64) -> Self {
        x as f32
    }
}

/// `R` for `n` channels and one seed. Turning allocates nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation<T> {
    n: usize,
    /// Sizes of the transforms and the factor `m^(-1/2)` of each, largest first: the binary parts of `n`.
    parts: Vec<(usize, T)>,
    rounds: Vec<Round<T>>,
}

/// One round: permute, then signs, then the transforms.
#[derive(Debug, Clone, PartialEq)]
struct Round<T> {
    /// The permutation before the signs, as exchanges of two channels; none in the first round.
    swaps: Vec<(usize, usize)>,
    signs: Vec<T>,
}

impl<T: Real> Rotation<T> {
    /// The rotation of `n` channels by `seed`.
    pub fn new(n: usize, seed: u64) -> Self {
        let bits = (0..usize::BITS).rev().map(|b| 1usize << b).filter(|m| n & m != 0);
        let parts: Vec<_> = bits.map(|m| (m, T::of((m as f64).powf(-0.5)))).collect();
        let rounds = if parts.len() > 1 { 2 } else { 1 };
        let round = |r: u64| {
            let sign = |i: usize| T::of(if hash64(&[seed, r, i as u64]) >> 63 == 0 { 1.0 } else { -1.0 });
            let mut order: Vec<usize> = (0..n).collect();
            if r > 0 {
                order.sort_by_key(|i| (hash64(&[seed, 100 + r, *i as u64]), *i));
            }
            Round { swaps: exchanges(&order), signs: (0..n).map(sign).collect() }
        };
        Self { n, parts, rounds: (0..rounds).map(round).collect() }
    }

    /// Signs of the only round of a size that is a power of two, a bit a channel, set for -1; `None` for other sizes.
    pub fn sign_words(&self) -> Option<Vec<u32>> {
        let [round] = self.rounds.as_slice() else { return None };
        let negative = |sign: &T| T::of(0.0) > *sign;
        Some(round.signs.chunks(32).map(|c| c.iter().rev().fold(0, |w, s| w << 1 | u32::from(negative(s)))).collect())
    }

    /// Sizes of the transforms of a round, in the order of the channels.
    pub fn parts(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|(size, _)| *size)
    }

    /// What comes before the transforms of each round: which channel each becomes, and whether its sign is then -1.
    pub fn rounds(&self) -> impl Iterator<Item = (Vec<usize>, Vec<bool>)> {
        self.rounds.iter().map(|round| {
            let mut order: Vec<usize> = (0..self.n).collect();
            round.swaps.iter().for_each(|&(i, j)| order.swap(i, j));
            (order, round.signs.iter().map(|sign| T::of(0.0) > *sign).collect())
        })
    }

    /// Channels.
    pub const fn channels(&self) -> usize {
        self.n
    }

    /// How many roundings a channel of `R x` sees, each relative to a number of the norm of `x` or less: a rotated vector is
    /// off by at most `gamma_n ||x||`, as every stage is orthogonal but for its factor.
    pub fn roundings(&self) -> usize {
        let stages = self.parts.iter().map(|(m, _)| m.ilog2() as usize).max().unwrap_or(0);
        // The factor is rounded, and so is its product.
        self.rounds.len() * (stages + 2)
    }

    /// `x` becomes `R x`. Rows of another length are left alone.
    pub fn turn(&self, x: &mut [T]) {
        if x.len() != self.n {
            return;
        }
        for round in &self.rounds {
            round.swaps.iter().for_each(|&(i, j)| x.swap(i, j));
            x.iter_mut().zip(&round.signs).for_each(|(x, s)| *x = *x * *s);
            self.transform(x);
        }
    }

    /// `x` becomes `R^T x`, the inverse of [`Rotation::turn`].
    pub fn turn_back(&self, x: &mut [T]) {
        if x.len() != self.n {
            return;
        }
        for round in self.rounds.iter().rev() {
            self.transform(x);
            x.iter_mut().zip(&round.signs).for_each(|(x, s)| *x = *x * *s);
            round.swaps.iter().rev().for_each(|&(i, j)| x.swap(i, j));
        }
    }

    /// A Hadamard transform of each part, scaled to be orthogonal; its own inverse.
    fn transform(&self, x: &mut [T]) {
        let mut rest = x;
        for &(m, factor) in &self.parts {
            let (part, after) = core::mem::take(&mut rest).split_at_mut(m);
            rest = after;
            let mut half = 1;
            while half < m {
                for pair in part.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    for (a, b) in low.iter_mut().zip(high) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                half *= 2;
            }
            part.iter_mut().for_each(|x| *x = *x * factor);
        }
    }
}

/// The exchanges, one after another, that put element `order[i]` at `i`.
fn exchanges(order: &[usize]) -> Vec<(usize, usize)> {
    let (mut now, mut swaps) = ((0..order.len()).collect::<Vec<_>>(), Vec::new());
    for (i, want) in order.iter().enumerate() {
        if let Some(j) = now.iter().position(|x| x == want).filter(|j| *j != i) {
            now.swap(i, j);
            swaps.push((i, j));
        }
    }
    swaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    #[test]
    fn norms_and_products_stay_and_turning_back_undoes_it() {
        for n in [2, 6, 10, 64, 80, 96, 128, 192, 256] {
            let row = |seed: u64| -> Vec<f64> {
                (0..n as u64).map(|i| (splitmix64(i ^ seed) % 2001) as f64 / 1000.0 - 1.0).collect()
            };
            let (x, y) = (row(0), row(1 << 40));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let rotation = Rotation::<f64>::new(n, 7);
            let (mut a, mut b) = (x.clone(), y.clone());
            rotation.turn(&mut a);
            rotation.turn(&mut b);
            assert!(
                (dot(&a, &a) - dot(&x, &x)).abs() < 1e-12 * n as f64
                    && (dot(&a, &b) - dot(&x, &y)).abs() < 1e-12 * n as f64
            );
            assert!(n < 8 || a.iter().zip(&x).any(|(a, x)| (a - x).abs() > 0.1));

            // Single precision stays within the roundings declared.
            let single = Rotation::<f32>::new(n, 7);
            let mut s: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let mut exact: Vec<f64> = s.iter().map(|x| f64::from(*x)).collect();
            single.turn(&mut s);
            rotation.turn(&mut exact);
            let off = s.iter().zip(&exact).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
            assert!(off <= single.roundings() as f64 * 2f64.powi(-24) * dot(&x, &x).sqrt());

            // As it is told to kernels: order, signs, transforms.
            let mut told = x.clone();
            for (order, negative) in rotation.rounds() {
                let from = told.clone();
                let signed = order
                    .iter()
                    .zip(negative)
                    .map(|(from_at, minus)| if minus { -from[*from_at] } else { from[*from_at] });
                told = signed.collect();
                let mut at = 0;
                for size in rotation.parts() {
                    let part = told[at..at + size].to_vec();
                    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                    for i in 0..size {
                        let sum: f64 = part.iter().enumerate().map(|(j, x)| sign(i, j) * x).sum();
                        told[at + i] = sum * (size as f64).powf(-0.5);
                    }
                    at += size;
                }
            }
            assert!(told.iter().zip(&a).all(|(told, a)| (told - a).abs() < 1e-12));

            rotation.turn_back(&mut a);
            assert!(a.iter().zip(&x).all(|(a, x)| (a - x).abs() < 1e-14));
        }
    }
}

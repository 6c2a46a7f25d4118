//! Blocks that are hard to code, and plain float64 measurements to judge codes by.
#![allow(dead_code, reason = "each test binary uses its own part")]
use certkv_core::{Dtype, hash::hash64};

/// Uniform in [-1, 1).
pub(crate) fn uniform(seed: u64, i: usize) -> f64 {
    (hash64(&[seed, i as u64]) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// A (rows, dim) block of finite patterns: each channel is of a kind drawn from the seed (constant, zero, huge offset
/// with a tiny range, subnormal, near the largest half, plain), and now and then a token is all zero.
pub(crate) fn block(seed: u64, rows: usize, dim: usize, store: Dtype) -> Vec<u16> {
    let kind = |c: usize| hash64(&[seed, 1, c as u64]) % 8;
    let zero_row = hash64(&[seed, 2]) as usize % (4 * rows);
    let all_zero = hash64(&[seed, 3]).is_multiple_of(16);
    let element = |i: usize| {
        let (t, c) = (i / dim, i % dim);
        let u = uniform(seed, i);
        if all_zero || t == zero_row {
            return 0.0;
        }
        match kind(c) {
            0 => 1.5,
            1 => 0.0,
            2 => 100.0 + 0.0625 * (4.0 * u).round(),
            3 => u * 2f64.powi(-20),
            4 => 60000f64.copysign(u),
            5 => u * 50.0,
            _ => u + uniform(seed, i + 1) + uniform(seed, i + 2),
        }
    };
    (0..rows * dim).map(|i| store.encode16(element(i) as f32)).collect()
}

/// Patterns as numbers.
pub(crate) fn numbers(words: &[u16], store: Dtype) -> Vec<f64> {
    words.iter().map(|w| f64::from(store.decode16(*w))).collect()
}

/// Largest Euclidean norm of a row.
pub(crate) fn largest_norm(x: &[f64], dim: usize) -> f64 {
    x.chunks_exact(dim).map(|r| r.iter().map(|v| v * v).sum::<f64>()).fold(0.0, f64::max).sqrt()
}

/// Largest singular value by power iteration: from below, and close.
pub(crate) fn spectral(e: &[f64], dim: usize) -> f64 {
    let top = e.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if top == 0.0 {
        return 0.0;
    }
    let mut x: Vec<f64> = (0..dim).map(|c| 1.0 + uniform(7, c)).collect();
    let mut value = 0.0;
    for _ in 0..60 {
        let length = x.iter().map(|v| v * v).sum::<f64>().sqrt();
        x.iter_mut().for_each(|v| *v /= length);
        let y: Vec<f64> =
            e.chunks_exact(dim).map(|r| r.iter().zip(&x).map(|(a, b)| a / top * b).sum::<f64>()).collect();
        value = y.iter().map(|v| v * v).sum::<f64>().sqrt();
        let mut z = vec![0.0; dim];
        for (r, y) in e.chunks_exact(dim).zip(&y) {
            z.iter_mut().zip(r).for_each(|(z, a)| *z += a / top * y);
        }
        if z.iter().all(|v| *v == 0.0) {
            break;
        }
        x = z;
    }
    value * top
}

/// `x - y`.
pub(crate) fn difference(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(a, b)| a - b).collect()
}

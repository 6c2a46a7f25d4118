//! Blocks left out of the pass: how large their logits could have been and what that costs, math.md (5.22)-(5.25).
use crate::terms::product;

/// `a * b` with `0 * inf = 0`; NaN stays NaN.
fn signed_product(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 { 0.0 } else { a * b }
}

/// NaN becomes `+inf`: an unknown upper bound bounds nothing.
fn closed(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x }
}

/// `zbar_b = s sum_c max(q_c lo_c, q_c hi_c)` (5.22): upper bound of every logit of a block whose keys lie in the box
/// `[lo, hi]` per channel. Before soft-capping and bias.
pub fn logit_box(query: &[f64], low: &[f64], high: &[f64], scale: f64) -> f64 {
    let sum: f64 = query
        .iter()
        .zip(low)
        .zip(high)
        .map(|((&q, &a), &b)| if q >= 0.0 { signed_product(q, b) } else { signed_product(q, a) })
        .sum();
    closed(scale * sum)
}

/// How the channels of a head pair up under RoPE (2.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Pair `i` is channels `i` and `i + d/2`.
    Half,
    /// Pair `i` is channels `2i` and `2i + 1`.
    Interleaved,
}

/// `zbar_b = s (q.mu + sum_i ||q_i|| rad_i)` (5.23): keys within `radius[i]` of `centre` in RoPE pair `i`.
/// `radius` has `query.len() / 2` entries.
pub fn logit_ball(query: &[f64], centre: &[f64], radius: &[f64], pairing: Pairing, scale: f64) -> f64 {
    let half = query.len() / 2;
    let dot: f64 = query.iter().zip(centre).map(|(a, b)| a * b).sum();
    let spread: f64 = (0..half)
        .map(|i| {
            let (a, b) = match pairing {
                Pairing::Half => (query[i], query[i + half]),
                Pairing::Interleaved => (query[2 * i], query[2 * i + 1]),
            };
            product(a.hypot(b), radius.get(i).copied().unwrap_or(f64::NAN))
        })
        .sum();
    closed(scale * (dot + spread))
}

/// Upper bound of the logit after soft-capping at `cap` (0: none) and adding the block's largest bias (1.1). Both are
/// monotone, so they keep an upper bound.
pub fn after_cap_and_bias(logit_up: f64, cap: f64, largest_bias: f64) -> f64 {
    let z = if cap > 0.0 { cap * (logit_up / cap).tanh() } else { logit_up };
    closed(z + largest_bias)
}

/// `omega_b = n_b e^{zbar_b - L'}` (5.24), relative to the partition of what was kept; 0 if no token is visible.
pub fn omega(tokens: usize, logit_up: f64, lse: f64) -> f64 {
    if tokens == 0 { 0.0 } else { product(tokens as f64, exp_up(logit_up - lse)) }
}

/// `e^x` with NaN as `+inf`.
pub(crate) fn exp_up(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x.exp() }
}

/// What dropping one block adds to the numerator of (5.10): `omega_b D_b`, with `D_b = R_b + ||O' - c||` (5.25).
pub fn term(omega: f64, radius: f64, out_distance: f64) -> f64 {
    product(omega, radius + out_distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::Lcg;

    #[test]
    fn box_and_ball_cover_every_key_inside_them() {
        let mut r = Lcg(21);
        for _ in 0..300 {
            let d = 6;
            let q: Vec<f64> = (0..d).map(|_| r.normal()).collect();
            let keys: Vec<Vec<f64>> = (0..5).map(|_| (0..d).map(|_| 1.0 + r.normal()).collect()).collect();
            let low: Vec<f64> = (0..d).map(|c| keys.iter().map(|k| k[c]).fold(f64::INFINITY, f64::min)).collect();
            let high: Vec<f64> = (0..d).map(|c| keys.iter().map(|k| k[c]).fold(f64::NEG_INFINITY, f64::max)).collect();
            let mid: Vec<f64> = low.iter().zip(&high).map(|(a, b)| (a + b) / 2.0).collect();
            let top = keys
                .iter()
                .map(|k| 0.5 * k.iter().zip(&q).map(|(a, b)| a * b).sum::<f64>())
                .fold(f64::NEG_INFINITY, f64::max);
            assert!(logit_box(&q, &low, &high, 0.5) >= top - 1e-12);
            for pairing in [Pairing::Half, Pairing::Interleaved] {
                let at = |i: usize| match pairing {
                    Pairing::Half => (i, i + d / 2),
                    Pairing::Interleaved => (2 * i, 2 * i + 1),
                };
                let rad: Vec<f64> = (0..d / 2)
                    .map(|i| {
                        let (a, b) = at(i);
                        keys.iter().map(|k| (k[a] - mid[a]).hypot(k[b] - mid[b])).fold(0.0, f64::max)
                    })
                    .collect();
                assert!(logit_ball(&q, &mid, &rad, pairing, 0.5) >= top - 1e-12);
            }
        }
    }

    #[test]
    fn unknown_ranges_bound_nothing() {
        assert_eq!(logit_box(&[1.0], &[0.0], &[f64::NAN], 1.0), f64::INFINITY);
        assert_eq!(logit_box(&[0.0], &[f64::NEG_INFINITY], &[f64::INFINITY], 1.0), 0.0);
        assert_eq!(logit_ball(&[1.0, 1.0], &[0.0, 0.0], &[], Pairing::Half, 1.0), f64::INFINITY);
        assert_eq!(omega(0, f64::INFINITY, 0.0), 0.0);
        assert_eq!(omega(4, f64::NAN, 0.0), f64::INFINITY);
        assert_eq!(term(0.0, f64::INFINITY, 1.0), 0.0);
        assert!(after_cap_and_bias(1e9, 5.0, 0.25) <= 5.25);
    }
}

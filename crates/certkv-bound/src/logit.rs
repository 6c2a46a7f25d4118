//! How far a logit computed from codes can be from the exact one, math.md section 4.
//!
//! `query` is one head's query after RoPE, `scale` the logit scale `s`, results are in nats. The slices of one call
//! belong to one block and have one entry per channel unless said otherwise; extra entries of the longer slice are not
//! read. `Delta` bounds every token's error, `Lambda` the 2-norm over the block's tokens.
use crate::terms::product;

/// Unit roundoff of single precision, `2^-24`.
pub const U32: f64 = 1.0 / 16_777_216.0;

/// `sum_i |x_i| y_i` for non-negative `y`, widening on damage.
fn weighted_l1(x: &[f64], y: impl Iterator<Item = f64>) -> f64 {
    x.iter().zip(y).map(|(&a, b)| product(a.abs(), b)).sum()
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|a| a * a).sum::<f64>().sqrt()
}

/// `Delta = s sum_c |q_c| e_c` (4.2), `error[c] >= |k_c - k^_c|` for every token of the block.
pub fn delta_channels(query: &[f64], error: &[f64], scale: f64) -> f64 {
    product(scale, weighted_l1(query, error.iter().copied()))
}

/// (4.2) for per-channel affine keys, whose error is at most half a step `sigma[c]` (Lemma 2.1).
pub fn delta_half_steps(query: &[f64], sigma: &[f64], scale: f64) -> f64 {
    product(scale, weighted_l1(query, sigma.iter().map(|s| 0.5 * s)))
}

/// `(Delta+, Delta-)` of (4.3): `above[c] >= max_t (k - k^)^+`, `below[c] >= max_t (k^ - k)^+`, so that
/// `-Delta- <= delta <= Delta+`.
pub fn delta_signed(query: &[f64], above: &[f64], below: &[f64], scale: f64) -> (f64, f64) {
    let (mut up, mut down) = (0.0, 0.0);
    for ((&q, &a), &b) in query.iter().zip(above).zip(below) {
        let (raises, lowers) = if q >= 0.0 { (a, b) } else { (b, a) };
        up += product(q.abs(), raises);
        down += product(q.abs(), lowers);
    }
    (product(scale, up), product(scale, down))
}

/// One group of channels with a bound of its error: `e_{b,G}` for [`delta_groups`], `sopg_{b,G}` for
/// [`lambda_groups`] (3.5), (3.6).
#[derive(Debug, Clone, Copy)]
pub struct ChannelGroup<'a> {
    /// Channels of the group; indices outside the query count as a query of NaN, which widens to `+inf`.
    pub channels: &'a [usize],
    /// Bound of the group's error, in the metric of the balance scale if there is one.
    pub error: f64,
}

/// `s sum_G ||q_G / S_G|| x_G`, the common form of (4.4) and (4.9). `balance` is the codec's scale `S`, one per channel.
fn grouped(query: &[f64], groups: &[ChannelGroup<'_>], balance: Option<&[f64]>, scale: f64) -> f64 {
    let at = |c: usize| {
        let q = query.get(c).copied().unwrap_or(f64::NAN);
        match balance {
            Some(s) => q / s.get(c).copied().unwrap_or(f64::NAN),
            None => q,
        }
    };
    let sum = groups.iter().map(|g| product(norm(g.channels.iter().map(|&c| at(c))), g.error)).sum();
    product(scale, sum)
}

/// `Delta = s sum_G || q_G/S_G || e_{b,G}` (4.4).
pub fn delta_groups(query: &[f64], groups: &[ChannelGroup<'_>], balance: Option<&[f64]>, scale: f64) -> f64 {
    grouped(query, groups, balance, scale)
}

/// `Delta = s ||q|| eps_b` (4.5), `eps = max_t ||k_t - k^_t||`.
pub fn delta_norm(query: &[f64], eps: f64, scale: f64) -> f64 {
    product(scale, product(norm(query.iter().copied()), eps))
}

/// `Delta = s ||q|| ||sigma||/2` (4.6), the loosest: one number per block.
pub fn delta_sigma_norm(query: &[f64], sigma: &[f64], scale: f64) -> f64 {
    product(scale, 0.5 * product(norm(query.iter().copied()), norm(sigma.iter().copied())))
}

/// The least of the forms that are available (4.7). A NaN among them is damage, not absence, and gives `+inf`; so does
/// an empty list.
pub fn least(forms: &[f64]) -> f64 {
    let mut best = f64::INFINITY;
    for &x in forms {
        if !(x >= 0.0) {
            return f64::INFINITY;
        }
        best = best.min(x);
    }
    best
}

/// `Lambda = s kappa_b || q o sigma ||` (4.8), per-channel affine keys.
pub fn lambda_channels(query: &[f64], sigma: &[f64], kappa: f64, scale: f64) -> f64 {
    product(scale, product(kappa, norm(query.iter().zip(sigma).map(|(q, s)| q * s))))
}

/// `Lambda = s sum_G || q_G/S_G || sopg_{b,G}` (4.9), any codec.
pub fn lambda_groups(query: &[f64], groups: &[ChannelGroup<'_>], balance: Option<&[f64]>, scale: f64) -> f64 {
    grouped(query, groups, balance, scale)
}

/// `gamma_n = n u/(1 - n u)` (4.11); `+inf` once `n u >= 1`.
pub fn gamma(n: f64, u: f64) -> f64 {
    let x = n * u;
    if x < 1.0 { x / (1.0 - x) } else { f64::INFINITY }
}

/// What the arithmetic slack of a weight depends on, (4.12).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightArithmetic {
    /// `A_b = sum_c |q_c| x_c`, `x_c` the largest magnitude entering channel `c`'s products (or a Cauchy-Schwarz bound
    /// of it, `||q|| ||x||`).
    pub magnitude: f64,
    /// Channels `d` of a dot product.
    pub channels: usize,
    /// Relative rounding of the operands in a matrix unit: 0 as stored, `2^-11` for f16, `2^-8` for bf16.
    pub operand_round: f64,
    /// `Z = max|z - m|` over the visible tokens.
    pub logit_range: f64,
    /// Roundings of the running maximum's rescaling: the number of times it changed; 0 in a two-pass kernel, and 0 when
    /// the running exponent is an integer, because scaling by a power of two is exact.
    pub rescales: usize,
}

/// `zeta_b` of (4.12): bound of `|log(computed weight) - z'_t|` up to a constant common to all tokens, for dot products
/// in any order and an `exp` within 2 ulp. In nats.
pub fn zeta(a: &WeightArithmetic, scale: f64) -> f64 {
    let g = gamma(a.channels as f64 + 4.0, U32);
    product(product(scale, a.magnitude), g + a.operand_round * (1.0 + g))
        + product(2.0 * U32, a.logit_range)
        + 4.0 * U32 * (1.0 + a.rescales as f64)
}

/// `Delta_q = s (max_c |q_c sigma_c| / 254) max_t sum_c |code_tc|` (4.14): the scaled query rounded to 8 bits with one
/// scale per block. Add it to `Delta_b`; it is not bounded by `Delta_b`.
pub fn delta_query_int8(query: &[f64], sigma: &[f64], code_l1: f64, scale: f64) -> f64 {
    let top = query.iter().zip(sigma).map(|(q, s)| (q * s).abs()).fold(0.0, |m, x| if x <= m { m } else { x });
    product(scale, product(top / 254.0, code_l1))
}

/// (4.15), the query term for digits of any width: the scaled query `q o sigma` rounded to a grid of step `step`,
///
/// `Delta_q = s (step/2) max_t sum_c |code_tc|`.
///
/// Rounding moves each `q_c sigma_c` by at most `step/2`, and `code_tc` multiplies it. (4.14) is the case
/// `step = max_c |q_c sigma_c| / 127`. `code_l1 = max_t sum_c |code_tc|` belongs to the codes *as multiplied*: signed
/// codes give at most `128 d` ([`delta_query_grid_cap`]), unsigned ones `255 d` unless the constant 128 is multiplied
/// with the *rounded* query too, which makes them signed codes again.
pub fn delta_query_grid(step: f64, code_l1: f64, scale: f64) -> f64 {
    product(scale, product(0.5 * step, code_l1))
}

/// (4.15) without looking at the codes: `s (step/2) 128 d`, since a signed 8-bit code is at most 128 in magnitude.
pub fn delta_query_grid_cap(step: f64, channels: usize, scale: f64) -> f64 {
    delta_query_grid(step, 128.0 * channels as f64, scale)
}

/// (4.15) in the 2-norm over a block's `n` tokens: `Lambda_q = sqrt(n) Delta_q`. Add it to `Lambda_b`.
pub fn lambda_query_grid(delta_q: f64, tokens: usize) -> f64 {
    product((tokens as f64).sqrt(), delta_q)
}

/// (5.29), the value term of integer digits: weights times value scales, `w_t sigma_{t,G}`, rounded to a grid of step
/// `step` (relative to the same `e^m` as the sums) move the block's part of `o` by at most
///
/// `(step/2) n_b (2^m - 1) sqrt(d)`
///
/// in the Euclidean norm: per channel `n_b` errors of `step/2`, each times a code of at most `2^m - 1`, then
/// Cauchy-Schwarz over `d` channels. Add it to the value sum `v` of (5.11).
pub fn weight_grid_term(step: f64, tokens: usize, value_bits: u32, channels: usize) -> f64 {
    let largest_code = 2f64.powi(value_bits.min(64) as i32) - 1.0;
    product(0.5 * step, tokens as f64 * largest_code * (channels as f64).sqrt())
}

#[cfg(test)]
mod tests;

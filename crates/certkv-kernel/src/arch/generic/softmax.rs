//! Base-2 softmax with an integer running exponent.
//!
//! A weight is `p(x - rint x) 2^(rint x - m)`: the split and the power of two are exact, so the weight of a token is the
//! same real number whatever the running exponent `m` was, and rescaling loses nothing. Repair depends on this.
use crate::line::{Line, madd};
use crate::query::{Shape, Softmax, X_STRIDE};
use crate::slack::CLAMP;

#[allow(clippy::approx_constant, reason = "a fitted coefficient that happens to be near ln 2")]
/// Coefficients of `2^f` on [-1/2, 1/2], lowest first: interpolation at Chebyshev nodes, 2.5e-9 from `2^f`; evaluated
/// in `f32` within 1.4 u fused, 2.5 u unfused.
pub(crate) const EXP2: [f32; 7] =
    [1.0, 0.693_147_2, 0.240_226_5, 0.055_503_27, 0.009_618_057, 0.001_340_042_8, 0.000_154_614_45];

/// `2^k` for an integer-valued `k`, by one or two exact factors; 0 below the subnormals, inf above the range.
#[inline(always)]
pub(crate) fn power(k: f32) -> f32 {
    let k = k.clamp(-300.0, 300.0) as i32;
    let unit = |e: i32| f32::from_bits(((e.clamp(-126, 127) + 127) as u32) << 23);
    let first = k.clamp(-126, 127);
    let second = (k - first).clamp(-126, 127);
    unit(first) * unit(second) * if k < -252 { 0.0 } else { 1.0 }
}

/// `2^x` scaled by `2^-m`.
#[inline(always)]
pub(crate) fn weight(x: f32, m: f32) -> f32 {
    let whole = x.round_ties_even();
    let f = x - whole;
    let mut p = EXP2[6];
    for c in EXP2[..6].iter().rev() {
        p = madd(p, f, *c);
    }
    p * power(whole - m)
}

/// Turns logits into weights, in place, and moves the running exponents.
#[inline(always)]
pub(crate) fn weigh(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
    s.moved = false;
    for h in 0..shape.heads {
        let x = &mut x[h * X_STRIDE..h * X_STRIDE + shape.tokens / 16];
        let mut most = -2.0 * CLAMP;
        for t in 0..n {
            let v = &mut x[t / 16].0[t % 16];
            // NaN fails both comparisons and stays NaN: it must reach the output, not vanish in a maximum.
            *v = if *v < -CLAMP {
                -CLAMP
            } else if *v > CLAMP {
                CLAMP
            } else {
                *v
            };
            most = if *v > most { *v } else { most };
        }
        let m = if most.ceil() > s.exponent[h] { most.ceil() } else { s.exponent[h] };
        s.rescale[h] = power(s.exponent[h] - m);
        s.moved |= m != s.exponent[h];
        s.exponent[h] = m;
        let (mut sum, mut square, mut largest) = (Line::ZERO, Line::ZERO, 0.0f32);
        for t in 0..16 * x.len() {
            let v = &mut x[t / 16].0[t % 16];
            *v = if t < n { weight(*v, m) } else { 0.0 };
            sum.0[t % 16] += *v;
            square.0[t % 16] = madd(*v, *v, square.0[t % 16]);
            largest = if *v > largest { *v } else { largest };
        }
        (s.sum[h], s.square[h], s.max[h]) = (sum.sum(), square.sum(), largest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polynomial_is_accurate_everywhere() {
        let mut worst = 0.0f64;
        for i in -(1 << 20)..=(1 << 20) {
            let f = i as f32 / (1 << 21) as f32;
            let exact = f64::from(f).exp2();
            worst = worst.max((f64::from(weight(f, 0.0)) / exact - 1.0).abs());
        }
        assert!(worst < 2.5 * crate::slack::U, "{}", worst / crate::slack::U);
        assert!(worst > 0.5 * crate::slack::U, "the comparison itself does not resolve the rounding");
    }

    #[test]
    fn weights_do_not_depend_on_the_running_exponent() {
        for i in 0..4000 {
            let x = (i as f32 - 2000.0) * 0.037;
            let (a, b) = (weight(x, 80.0), weight(x, 95.0));
            if b > 1e-30 {
                assert_eq!(a, b * 32768.0);
            }
        }
        assert_eq!((power(-149.0), power(-150.0), power(128.0)), (f32::from_bits(1), 0.0, f32::INFINITY));
    }
}

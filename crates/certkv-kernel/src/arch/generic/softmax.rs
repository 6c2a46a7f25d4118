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

/// `2^k` for an integer-valued `k` in -126..=127, by its bits and without a conversion: adding `2^23 + 127` leaves the
/// biased exponent in the low bits.
#[inline(always)]
pub(crate) fn two_to(k: f32) -> f32 {
    f32::from_bits((k + 8_388_735.0).to_bits() << 23)
}

/// `2^x` scaled by `2^-m`, for `|x| <= 2^22` and `x - m` at most 127. The wide form of a call is 16 lanes.
#[inline(always)]
pub(crate) fn weight(x: f32, m: f32) -> f32 {
    // Nearest integer: 1.5 2^23 pushes the fraction out.
    let whole = (x + 12_582_912.0) - 12_582_912.0;
    let f = x - whole;
    let mut p = EXP2[6];
    for i in (0..6).rev() {
        p = madd(p, f, EXP2[i]);
    }
    // Two factors reach the subnormals; below 2^-252 the product is 0 as it should be.
    let k = whole - m;
    let k = if k < -252.0 { -252.0 } else { k };
    let first = if k < -126.0 { -126.0 } else { k };
    p * two_to(first) * two_to(k - first)
}

/// Turns logits into weights, in place, and moves the running exponents.
#[inline(always)]
pub(crate) fn weigh(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
    s.moved = false;
    for h in 0..shape.heads {
        let x = &mut x[h * X_STRIDE..h * X_STRIDE + shape.tokens / 16];
        let mut lanes = [-2.0 * CLAMP; 16];
        for (l, line) in x.iter_mut().enumerate() {
            let left = n.saturating_sub(16 * l).min(16) as i32;
            for i in 0..16 {
                // NaN fails every comparison and stays NaN: it must reach the output, not vanish in a maximum.
                let v = line.0[i];
                let v = if v < -CLAMP { -CLAMP } else { v };
                let v = if v > CLAMP { CLAMP } else { v };
                line.0[i] = if (i as i32) < left { v } else { -2.0 * CLAMP };
                lanes[i] = if line.0[i] > lanes[i] { line.0[i] } else { lanes[i] };
            }
        }
        let most = lanes.iter().fold(-2.0 * CLAMP, |a, &b| if b > a { b } else { a }).ceil();
        let m = if most > s.exponent[h] { most } else { s.exponent[h] };
        s.rescale[h] = if m == s.exponent[h] { 1.0 } else { power(s.exponent[h] - m) };
        s.moved |= m != s.exponent[h];
        s.exponent[h] = m;
        let (mut sum, mut square) = (Line::ZERO, Line::ZERO);
        for (l, line) in x.iter_mut().enumerate() {
            let left = n.saturating_sub(16 * l).min(16) as i32;
            for i in 0..16 {
                let v = weight(line.0[i], m);
                let v = if (i as i32) < left { v } else { 0.0 };
                line.0[i] = v;
                sum.0[i] += v;
                square.0[i] = madd(v, v, square.0[i]);
            }
        }
        (s.sum[h], s.square[h], s.max[h]) = (sum.sum(), square.sum(), power(most - m));
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

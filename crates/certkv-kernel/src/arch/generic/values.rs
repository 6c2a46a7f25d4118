//! `o += sum_t w_t v_t` for one block: integer dot products on codes, fused multiply-adds on rows.
use super::keys::{meta_at, row, unpack};
use crate::block::Side;
use crate::line::Line;
use crate::query::{Cursor, GROUPS, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack, X_STRIDE};
use certkv_core::Dtype;

/// `2^-100`: below it the inverse of a weight could overflow, and the block's coded part is all residual.
pub(crate) const LEAST_WEIGHT: f32 = 7.9e-31;

/// Coded block: `v^ = sigma (code - 2^(m-1)) + mid`, `mid = z + 2^(m-1) sigma`. The first part is summed in integers
/// with `w_t sigma_t = unit * digit + residual`, the second in lanes of the scratch.
pub(crate) fn value_codes(
    v: &ValueCodes<'_>,
    w: &[Line],
    s: &Softmax,
    shape: Shape,
    scratch: &mut ValueScratch,
    o: &mut [Line],
    _: &mut Cursor,
) -> ValueSlack {
    let (dim, tokens, lines) = (shape.dim, shape.tokens, shape.dim_lines());
    unpack(v.section, v.bits, tokens * dim, 0, &mut scratch.codes);
    let half = (1i32 << (v.bits - 1)) as f32;
    let groups = dim / v.group;
    let (mut sigma_square, mut middle) = (0.0f32, [0.0f32; 64]);
    for g in 0..groups {
        let (mut sigma, mut mid, mut most) = ([0.0f32; 64], [0.0f32; 64], 0.0f32);
        for t in 0..tokens {
            sigma[t] = meta_at(v.scales, Dtype::F16, g * tokens + t);
            mid[t] = sigma[t].mul_add(half, meta_at(v.scales, Dtype::F16, (groups + g) * tokens + t));
            middle[t] = mid[t].mul_add(mid[t], middle[t]);
            most = if sigma[t] > most || sigma[t].is_nan() { sigma[t] } else { most };
        }
        sigma_square = most.mul_add(most, sigma_square);
        let inverse = if most > 0.0 { 65535.0 / most } else { 0.0 };
        for h in 0..shape.heads {
            let (inverse_weight, weight_unit) =
                if s.max[h] < LEAST_WEIGHT { (0.0, 0.0) } else { (1.0 / s.max[h], s.max[h] / 65535.0) };
            let unit = weight_unit * most;
            let w = &w[h * X_STRIDE..];
            let mut digits = [0i32; 64];
            for t in 0..tokens {
                let wt = w[t / 16].0[t % 16];
                digits[t] = ((wt * inverse_weight) * (sigma[t] * inverse)).round_ties_even() as i32;
                let lane = &mut scratch.middle[h * GROUPS + g].0[t % 16];
                *lane = wt.mul_add(mid[t], *lane);
            }
            for c in g * v.group..(g + 1) * v.group {
                let mut sum = 0i32;
                for (t, digit) in digits[..tokens].iter().enumerate() {
                    let code = scratch.codes[t / 4 * (dim / 16) + c / 16].0[c % 16 * 4 + t % 4];
                    sum += (i32::from(code) - half as i32) * digit;
                }
                let slot = &mut o[h * lines + c / 16].0[c % 16];
                *slot = (sum as f32).mul_add(unit, *slot);
            }
        }
    }
    let most = middle.iter().fold(0.0f32, |a, &b| if b > a || b.is_nan() { b } else { a });
    let group = v.group as f32;
    ValueSlack { sigma: (sigma_square * group).sqrt(), middle: (most * group).sqrt() }
}

/// Rows: one chain per output element, in token order.
pub(crate) fn value_rows(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    let lines = shape.dim_lines();
    let mut v = [Line::ZERO; 16];
    for t in 0..side.n {
        row(side, t, shape, &mut v);
        for h in 0..shape.heads {
            for l in 0..lines {
                o[h * lines + l].axpy(w[h * X_STRIDE + t / 16].0[t % 16], &v[l]);
            }
        }
    }
}

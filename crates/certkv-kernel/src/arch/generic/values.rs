//! `o += sum_t w_t v_t` for one block: integer dot products on codes, fused multiply-adds on rows.
use super::keys::{meta_at, nearest, row};
use super::pairs::{Sums, add_products, by_heads, digits_of_four};
use super::unpack::unpack_levels;
use crate::block::Side;
use crate::line::{Line, madd};
use crate::query::{Cursor, GROUPS, HEADS, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack, X_STRIDE};
use certkv_core::Dtype;

/// Largest digit: signed words hold it.
pub(crate) const LEVELS: f32 = 32767.0;

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
    let (dim, tokens) = (shape.dim, shape.tokens);
    unpack_levels(v.section, v.bits, tokens * dim, v.levels, &mut scratch.codes);
    let groups = dim / v.group;
    let mut slack = Slack::default();
    for g in 0..groups {
        let mut scales = [[Line::ZERO; 4]; 2];
        for t in 0..tokens {
            let at = |i: usize| meta_at(v.scales, Dtype::F16, (i * groups + g) * tokens + t);
            scales[0][t / 16].0[t % 16] = at(0);
            // Without offsets: what makes the middle 0.
            scales[1][t / 16].0[t % 16] = if v.offsets { at(1) } else { -(v.half() as f32) * at(0) };
        }
        let plan = Plan { group: g, half: v.half() as f32 };
        let units = plan.digits(&mut scales, w, s, shape, scratch, &mut slack);
        by_heads(shape.heads, |head, n| match n {
            1 => sum_heads::<1>(v, scratch, &units, shape, (g, head), o),
            2 => sum_heads::<2>(v, scratch, &units, shape, (g, head), o),
            _ => sum_heads::<4>(v, scratch, &units, shape, (g, head), o),
        });
    }
    slack.finish(v.group)
}

/// Group `g` of the channels of `N` heads from `head` on, side by side: what is read of the codes is read once for them.
#[inline(always)]
fn sum_heads<const N: usize>(
    v: &ValueCodes<'_>,
    scratch: &ValueScratch,
    units: &[f32; HEADS],
    shape: Shape,
    (g, head): (usize, usize),
    o: &mut [Line],
) {
    let (lines, n) = (shape.dim_lines(), shape.tokens / 4);
    let mut quads = [[digits_of_four([0; 4]); N]; 16];
    let mut from = [0; N];
    for h in 0..N {
        let words = scratch.words[(head + h) * 64..].as_chunks::<4>().0;
        for (quads, four) in quads[..n].iter_mut().zip(words) {
            quads[h] = digits_of_four(*four);
            from[h] -= four.iter().map(|&digit| i32::from(digit)).sum::<i32>();
        }
        from[h] *= v.half();
    }
    for four in g * v.group / 4..(g + 1) * v.group / 4 {
        let (line, at) = (four / 4, four % 4);
        let mut sums = from.map(Sums::new);
        for (quad, digits) in quads[..n].iter().enumerate() {
            add_products(&scratch.codes[quad * lines + line].0.as_chunks().0[at], digits, &mut sums);
        }
        for (h, sums) in sums.into_iter().enumerate() {
            let o = &mut o[(head + h) * lines + line].0.as_chunks_mut::<4>().0[at];
            for (o, sum) in o.iter_mut().zip(sums.get()) {
                *o = madd(sum as f32, units[head + h], *o);
            }
        }
    }
}

/// One group of channels of one block.
#[derive(Debug, Clone, Copy)]
struct Plan {
    group: usize,
    /// `2^(m-1)`.
    half: f32,
}

/// Sums behind [`ValueSlack`].
#[derive(Debug, Clone, Copy)]
struct Slack {
    sigma_square: f32,
    middle: [Line; 4],
}

impl Default for Slack {
    fn default() -> Self {
        Self { sigma_square: 0.0, middle: [Line::ZERO; 4] }
    }
}

impl Slack {
    /// The two numbers of the bound, for groups of `group` channels. NaN is kept.
    fn finish(&self, group: usize) -> ValueSlack {
        let lanes = self.middle.iter().flat_map(|l| l.0);
        let most = lanes.fold(0.0f32, |a, b| if b > a || b.is_nan() { b } else { a });
        let group = group as f32;
        ValueSlack { sigma: (self.sigma_square * group).sqrt(), middle: (most * group).sqrt() }
    }
}

impl Plan {
    /// Digits of `w sigma` of every head into `scratch.words[head][64]`, offsets into `scratch.middle`; returns the value
    /// of one unit of each head's digits. `scales` holds `sigma` and `z` of the block's tokens and is used up.
    fn digits(
        &self,
        [sigma, mid]: &mut [[Line; 4]; 2],
        w: &[Line],
        s: &Softmax,
        shape: Shape,
        scratch: &mut ValueScratch,
        slack: &mut Slack,
    ) -> [f32; HEADS] {
        let n = shape.tokens / 16;
        let mut largest = [0.0f32; 16];
        for l in 0..n {
            for i in 0..16 {
                let x = sigma[l].0[i];
                mid[l].0[i] = madd(x, self.half, mid[l].0[i]);
                largest[i] = if x > largest[i] { x } else { largest[i] };
            }
            let square = mid[l];
            slack.middle[l].fma(&square, &square);
        }
        let most = largest.iter().fold(0.0f32, |a, &b| if b > a { b } else { a });
        slack.sigma_square = madd(most, most, slack.sigma_square);
        let inverse = if most > 0.0 { LEVELS / most } else { 0.0 };
        for line in sigma.iter_mut() {
            line.scale(inverse);
        }
        let mut units = [0.0; HEADS];
        for h in 0..shape.heads {
            let usable = s.max[h] >= LEAST_WEIGHT;
            let (inverse, unit) = if usable { (1.0 / s.max[h], s.max[h] / LEVELS) } else { (0.0, 0.0) };
            units[h] = unit * most;
            for l in 0..n {
                let w = &w[h * X_STRIDE + l];
                let words = &mut scratch.words.as_chunks_mut::<16>().0[h * 4 + l];
                for i in 0..16 {
                    words[i] = nearest((w.0[i] * inverse) * sigma[l].0[i]) as i16;
                }
                scratch.middle[h * GROUPS + self.group].fma(w, &mid[l]);
            }
        }
        units
    }
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

//! Logits of one block: digits of the scaled query, integer dot products on codes, and plain dot products on rows.
use super::pairs::{Sums, add_products, by_heads, digits_of_four};
use super::unpack::unpack_levels;
use crate::block::{Element, Side};
use crate::line::{Codes, Line, madd};
use crate::query::{Cursor, DIGIT_STRIDE, Digits, GROUPS, KeyCodes, QUERY_LEVELS, Scaling, Shape, X_STRIDE};
use certkv_core::Dtype;

/// Element `i` of a metadata array of type `meta`.
#[inline]
pub(crate) fn meta_at(bytes: &[u8], meta: Dtype, i: usize) -> f32 {
    match meta {
        Dtype::F32 => match bytes.get(4 * i..4 * i + 4) {
            Some(&[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => f32::NAN,
        },
        _ => match bytes.get(2 * i..2 * i + 2) {
            Some(&[a, b]) => Element::of(meta).decode(u16::from_le_bytes([a, b])),
            _ => f32::NAN,
        },
    }
}

/// Nearest integer (ties to even) of `|x| < 2^21`, in a form that compilers turn into wide code: adding 1.5 2^23 leaves
/// the integer in the low bits.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4b40_0000)
}

/// Digits of `y` for one head; `group` channels share an entry of `sums`. Fills everything but `offset`.
#[inline(always)]
pub(crate) fn digits_of(y: &[Line], head: usize, group: usize, out: &mut Digits) {
    let mut lanes = [0.0f32; 16];
    let (mut l1, mut square) = (Line::ZERO, Line::ZERO);
    for line in y {
        for i in 0..16 {
            let a = line.0[i].abs();
            lanes[i] = if a <= lanes[i] { lanes[i] } else { a };
            l1.0[i] += a;
            square.0[i] = madd(a, a, square.0[i]);
        }
    }
    let most = lanes.iter().fold(0.0f32, |a, &b| if b <= a { a } else { b });
    out.l1[head] = l1.sum();
    out.square[head] = square.sum();
    out.sums[head] = [0; GROUPS];
    // Below 2^-100 the inverse of the step could overflow: such a query scores as 0 and all of it is residual.
    let (inverse, step) = if most < 7.9e-31 { (0.0, 0.0) } else { (QUERY_LEVELS / most, most / QUERY_LEVELS) };
    out.step[head] = step;
    let mut residual = Line::ZERO;
    let bytes = out.bytes[head * DIGIT_STRIDE..(head + 1) * DIGIT_STRIDE].as_chunks_mut::<64>().0;
    let words = out.words[head * 256..(head + 1) * 256].as_chunks_mut::<16>().0;
    for (l, line) in y.iter().enumerate() {
        let (bytes, words) = (&mut bytes[l / 2], &mut words[l]);
        let (low, high) = bytes[16 * (l % 2)..].split_at_mut(32);
        let mut digits = [0i32; 16];
        for i in 0..16 {
            let scaled = line.0[i] * inverse;
            digits[i] = nearest(scaled);
            residual.0[i] += (scaled - digits[i] as f32).abs();
        }
        for i in 0..16 {
            low[i] = digits[i] as i8;
            high[i] = ((digits[i] + 128) >> 8) as i8;
            words[i] = digits[i] as i16;
        }
        // Groups are multiples of 16 channels.
        out.sums[head][16 * l / group] += digits.iter().sum::<i32>();
    }
    out.residual[head] = if step == 0.0 { out.l1[head] } else { residual.sum() * step };
}

/// Digits of `q o sigma`, and `sum q_c z_c`.
pub(crate) fn channel_digits(q: &[Line], scales: &[u8], meta: Dtype, shape: Shape, out: &mut Digits, _: &mut Cursor) {
    let mut decoded = [[Line::ZERO; 16]; 2];
    for (i, part) in decoded.iter_mut().enumerate() {
        for c in 0..shape.dim {
            part[c / 16].0[c % 16] = meta_at(scales, meta, i * shape.dim + c);
        }
    }
    channel_heads(q, &decoded, shape, out);
}

/// All heads, given `sigma` and `z` as lines.
#[inline(always)]
pub(crate) fn channel_heads(q: &[Line], [sigma, z]: &[[Line; 16]; 2], shape: Shape, out: &mut Digits) {
    let lines = shape.dim_lines();
    let mut y = [Line::ZERO; 16];
    for h in 0..shape.heads {
        let mut offset = Line::ZERO;
        for l in 0..lines {
            let ql = &q[h * lines + l];
            for i in 0..16 {
                y[l].0[i] = ql.0[i] * sigma[l].0[i];
            }
            offset.fma(ql, &z[l]);
        }
        out.offset[h] = offset.sum();
        digits_of(&y[..lines], h, shape.dim, out);
        if out.step[h] != 0.0 {
            // Half a step a channel (4.15): wide code does not measure the residual either.
            out.residual[h] = out.step[h] * (0.5 * shape.dim as f32);
        }
    }
}

/// Logits on codes.
pub(crate) fn score_codes(
    k: &KeyCodes<'_>,
    digits: &Digits,
    scratch: &mut [Codes],
    shape: Shape,
    x: &mut [Line],
    _: &mut Cursor,
) {
    match k.scaling {
        Scaling::Parts { parts, .. } => parts.unpack(k.section, shape.tokens, scratch, unpack_levels),
        _ => unpack_levels(k.section, k.bits, shape.tokens * shape.dim, k.levels, scratch),
    }
    by_heads(shape.heads, |head, n| match n {
        1 => score_heads::<1>(k, digits, scratch, shape, head, x),
        2 => score_heads::<2>(k, digits, scratch, shape, head, x),
        _ => score_heads::<4>(k, digits, scratch, shape, head, x),
    });
}

/// Logits of `N` heads from `head` on, side by side: what is read of the codes is read once for them.
#[inline(always)]
fn score_heads<const N: usize>(
    k: &KeyCodes<'_>,
    digits: &Digits,
    scratch: &[Codes],
    shape: Shape,
    head: usize,
    x: &mut [Line],
) {
    let half = k.half();
    let mut quads = [[digits_of_four([0; 4]); N]; 64];
    for (quad, of_heads) in quads[..shape.dim / 4].iter_mut().enumerate() {
        for (h, to) in of_heads.iter_mut().enumerate() {
            let four = digits.words[(head + h) * 256 + 4 * quad..].first_chunk().unwrap_or(&[0; 4]);
            *to = digits_of_four(*four);
        }
    }
    for four in 0..shape.tokens / 4 {
        let (tile, at) = (four / 4, four % 4);
        let mut logits: [[f32; 4]; N] = core::array::from_fn(|h| [k.add[head + h]; 4]);
        for g in 0..k.groups(shape.dim) {
            let run = k.run(g, shape);
            let mut sums: [Sums; N] = core::array::from_fn(|h| Sums::new(-half * digits.sums[head + h][g]));
            for quad in run.quads.clone() {
                add_products(&scratch[run.line(tile, quad)].0.as_chunks().0[at], &quads[quad], &mut sums);
            }
            let scales: [f32; 4] = match k.scales() {
                None => [1.0; 4],
                Some(scales) => core::array::from_fn(|i| meta_at(scales, Dtype::F16, g * shape.tokens + 4 * four + i)),
            };
            for (h, logit) in logits.iter_mut().enumerate() {
                let sums = sums[h].get();
                for i in 0..4 {
                    logit[i] = madd(sums[i] as f32, scales[i] * k.mul[head + h], logit[i]);
                }
            }
        }
        for (h, logit) in logits.iter().enumerate() {
            x[(head + h) * X_STRIDE + tile].0.as_chunks_mut().0[at] = *logit;
        }
    }
}

/// One row as lines.
pub(crate) fn row(side: &Side<'_>, token: usize, shape: Shape, out: &mut [Line; 16]) {
    for (l, line) in out[..shape.dim_lines()].iter_mut().enumerate() {
        *line = side.line(token * shape.dim + 16 * l);
    }
}

/// Logits on rows.
pub(crate) fn score_rows(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    let lines = shape.dim_lines();
    let mut k = [Line::ZERO; 16];
    for t in 0..side.n {
        row(side, t, shape, &mut k);
        for h in 0..shape.heads {
            let mut acc = Line::ZERO;
            for l in 0..lines {
                acc.fma(&q[h * lines + l], &k[l]);
            }
            x[h * X_STRIDE + t / 16].0[t % 16] = acc.sum() * mul;
        }
    }
}

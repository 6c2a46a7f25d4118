//! Logits of one block on codes.
use super::products::{Quad, all_heads, pair_up, unpack};
use super::{BF16, F16, abs, largest, load8, load16, sum16, total};
use crate::arch::generic::keys::meta_at;
use crate::line::{Codes, Line};
use crate::query::{Cursor, Digits, HEADS, KeyCodes, QUERY_LEVELS, Scaling, Shape, X_STRIDE};
use certkv_core::Dtype;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Quads of digits of a head.
const QUADS: usize = 64;

/// Digits of `q o sigma`.
pub(super) fn channel_digits(q: &[Line], scales: &[u8], meta: Dtype, shape: Shape, out: &mut Digits, _: &mut Cursor) {
    assert!(scales.len() >= 2 * shape.dim * meta.bytes() && shape.dim <= 256 && shape.heads <= HEADS);
    assert!(q.len() >= shape.heads * shape.dim_lines() && out.words.len() >= shape.heads * 256);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        let mut decoded = [[Line::ZERO; 16]; 2];
        for (i, part) in decoded.iter_mut().enumerate() {
            for l in 0..shape.dim_lines() {
                let at = i * shape.dim + 16 * l;
                let halves = scales.as_ptr().add(2 * at);
                match meta {
                    Dtype::F16 => load16::<F16>(halves, &mut part[l]),
                    Dtype::Bf16 => load16::<BF16>(halves, &mut part[l]),
                    Dtype::F32 => part[l] = Line(core::array::from_fn(|j| meta_at(scales, meta, at + j))),
                }
            }
        }
        for head in 0..shape.heads {
            channel_head(&q[head * shape.dim_lines()..][..shape.dim_lines()], &decoded, head, out);
        }
    }
}

/// One head, as `generic::keys::channel_heads`.
///
/// # Safety
/// The asserts of [`channel_digits`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn channel_head(q: &[Line], [sigma, z]: &[[Line; 16]; 2], head: usize, out: &mut Digits) {
    let zero = _mm256_setzero_ps();
    let mut y = [[MaybeUninit::<__m256>::uninit(); 2]; 16];
    let (mut most, mut l1, mut square, mut offset) = (_mm256_setzero_si256(), [zero; 2], [zero; 2], [zero; 2]);
    for l in 0..q.len() {
        for i in 0..2 {
            // SAFETY: halves of lines, which are 64 aligned bytes.
            let load = |line: &Line| unsafe { _mm256_load_ps(line.0.as_ptr().add(8 * i)) };
            let (q, v) = (load(&q[l]), _mm256_mul_ps(load(&q[l]), load(&sigma[l])));
            y[l][i].write(v);
            let a = abs(v);
            most = _mm256_max_epi32(most, _mm256_castps_si256(a));
            l1[i] = _mm256_add_ps(l1[i], a);
            square[i] = _mm256_fmadd_ps(v, v, square[i]);
            offset[i] = _mm256_fmadd_ps(q, load(&z[l]), offset[i]);
        }
    }
    (out.l1[head], out.square[head], out.offset[head]) = (sum16(l1), sum16(square), sum16(offset));
    let most = f32::from_bits(largest(most) as u32);
    // Below 2^-100 the inverse of the step could overflow: such a query scores as 0 and all of it is residual. NaN counts as usable.
    let (inverse, step) = if most < 7.9e-31 { (0.0, 0.0) } else { (QUERY_LEVELS / most, most / QUERY_LEVELS) };
    let inverse = _mm256_set1_ps(inverse);
    let mut sum = _mm256_setzero_si256();
    for (l, y) in y.iter().enumerate().take(q.len()) {
        // SAFETY: both halves were written above; 16 words of the head.
        unsafe {
            let digit = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(y[i].assume_init(), inverse));
            let (a, b) = (digit(0), digit(1));
            // Of what is no number, too, a word: no sum is beyond 2^31.
            let words = _mm256_permute4x64_epi64::<0xd8>(_mm256_packs_epi32(a, b));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
            _mm256_storeu_si256(out.words.as_mut_ptr().add(head * 256 + 16 * l).cast(), words);
        }
    }
    out.sums[head][0] = total(sum);
    out.step[head] = step;
    // Half a step a channel (4.15).
    out.residual[head] = if step == 0.0 { out.l1[head] } else { step * (0.5 * (16 * q.len()) as f32) };
}

/// Logits on codes: 8 bits in place, other widths unpacked first.
pub(super) fn score_codes(
    k: &KeyCodes<'_>,
    digits: &Digits,
    scratch: &mut [Codes],
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let count = shape.tokens * shape.dim;
    assert!(k.fits(shape) && scratch.len() * 64 >= count && shape.heads <= HEADS);
    assert!(digits.words.len() >= shape.heads * 256 && shape.dim <= 256 && x.len() >= shape.heads * X_STRIDE);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe { tiles(k, digits, scratch, shape, x, ahead) }
}

/// # Safety
/// The asserts of [`score_codes`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles(
    k: &KeyCodes<'_>,
    digits: &Digits,
    scratch: &mut [Codes],
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let codes: *const u8 = match k.scaling {
        Scaling::Parts { parts, .. } => {
            parts.unpack(k.section, shape.tokens, scratch, |s, b, n, l, out| unpack(s, b, n, l, out));
            scratch.as_ptr().cast()
        }
        _ if k.bits == 8 => k.section.as_ptr(),
        _ => {
            unpack(k.section, k.bits, shape.tokens * shape.dim, k.levels, scratch);
            scratch.as_ptr().cast()
        }
    };
    let mut quads = [const { Quad::uninit() }; HEADS * QUADS];
    for h in 0..shape.heads {
        for l in 0..shape.dim_lines() {
            // SAFETY: 16 words of a head are 4 of its quads.
            unsafe {
                let words = _mm256_loadu_si256(digits.words.as_ptr().add(h * 256 + 16 * l).cast());
                _mm256_storeu_si256(quads.as_mut_ptr().add(h * QUADS + 4 * l).cast(), pair_up(words));
            }
        }
    }
    let half = k.half();
    let mut start = [0; HEADS];
    for tile in 0..shape.tokens / 16 {
        for h in 0..shape.heads {
            x[h * X_STRIDE + tile] = Line([k.add[h]; 16]);
        }
        for g in 0..k.groups(shape.dim) {
            let run = k.run(g, shape);
            for (start, sums) in start.iter_mut().zip(&digits.sums).take(shape.heads) {
                *start = -half * sums[g];
            }
            // SAFETY: the group's tokens lie inside the scales.
            let scale = k.scales().map(|scales| unsafe {
                let p = scales.as_ptr().add(2 * (g * shape.tokens + 16 * tile));
                [load8::<F16>(p), load8::<F16>(p.add(16))]
            });
            // SAFETY: the group's quads of the tile lie inside the codes, its channels inside the heads' digits.
            unsafe {
                let lines = (codes.add(run.line(tile, run.quads.start) * 64), 64, run.quads.len());
                let quads = quads.as_ptr().add(run.quads.start);
                all_heads(lines, quads, QUADS, &start[..shape.heads], ahead, |h, sums| {
                    let logit = x[h * X_STRIDE + tile].0.as_mut_ptr();
                    let mul = _mm256_set1_ps(k.mul[h]);
                    for i in 0..2 {
                        let unit = scale.map_or(mul, |scale| _mm256_mul_ps(scale[i], mul));
                        let p = logit.add(8 * i);
                        _mm256_store_ps(p, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), unit, _mm256_load_ps(p)));
                    }
                });
            }
        }
    }
}

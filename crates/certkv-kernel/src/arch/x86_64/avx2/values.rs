//! `o += sum_t w_t v_t` for one block on codes.
use super::products::{Quad, all_heads, pair_up, unpack};
use super::{F16, abs, largest, load8, sum16, total};
use crate::arch::generic::values::{LEAST_WEIGHT, LEVELS};
use crate::channel_values::Join;
use crate::line::Line;
use crate::query::{Cursor, GROUPS, HEADS, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack, X_STRIDE};
use core::arch::x86_64::*;

/// Quads of digits of a head.
const QUADS: usize = 16;

/// Coded block.
pub(super) fn value_codes(
    v: &ValueCodes<'_>,
    w: &[Line],
    s: &Softmax,
    shape: Shape,
    scratch: &mut ValueScratch,
    o: &mut [Line],
    ahead: &mut Cursor,
) -> ValueSlack {
    let count = shape.tokens * shape.dim;
    assert!(shape.heads <= HEADS && w.len() >= shape.heads * X_STRIDE && o.len() >= shape.heads * shape.dim_lines());
    assert!(v.section.len() >= count * v.bits / 8 && scratch.codes.len() * 64 >= count);
    assert!(v.scales.len() >= v.scale_bytes(shape) && scratch.middle.len() >= HEADS * GROUPS);
    assert!(shape.dim / v.group <= GROUPS);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        match shape.tokens / 16 {
            1 => coded::<1>(v, w, s, shape, scratch, o, ahead),
            2 => coded::<2>(v, w, s, shape, scratch, o, ahead),
            _ => coded::<4>(v, w, s, shape, scratch, o, ahead),
        }
    }
}

/// `N` lines of tokens.
///
/// # Safety
/// The asserts of [`value_codes`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn coded<const N: usize>(
    v: &ValueCodes<'_>,
    w: &[Line],
    s: &Softmax,
    shape: Shape,
    scratch: &mut ValueScratch,
    o: &mut [Line],
    ahead: &mut Cursor,
) -> ValueSlack {
    let (dim, tokens, lines) = (shape.dim, 16 * N, shape.dim_lines());
    let codes: *const u8 = if v.bits == 8 {
        v.section.as_ptr()
    } else {
        unpack(v.section, v.bits, tokens * dim, v.levels, &mut scratch.codes);
        scratch.codes.as_ptr().cast()
    };
    let (groups, zero) = (dim / v.group, _mm256_setzero_ps());
    let half = _mm256_set1_ps(v.half() as f32);
    let (mut sigma_square, mut middle) = (0.0f32, [[zero; 2]; N]);
    let mut quads = [const { Quad::uninit() }; HEADS * QUADS];
    let (mut units, mut start) = ([0.0f32; HEADS], [0i32; HEADS]);
    for g in 0..groups {
        let (mut sigma, mut mid, mut most) = ([[zero; 2]; N], [[zero; 2]; N], zero);
        for (l, i) in (0..N).flat_map(|l| [(l, 0), (l, 1)]) {
            // SAFETY: 16 tokens of the group's sigma, and of z where there is one, lie inside the scales.
            let z = unsafe {
                let at = |part: usize| v.scales.as_ptr().add(2 * (part * tokens + 16 * l + 8 * i));
                sigma[l][i] = load8::<F16>(at(g));
                // Without offsets: what makes the middle 0.
                if v.offsets {
                    load8::<F16>(at(groups + g))
                } else {
                    _mm256_mul_ps(sigma[l][i], _mm256_sub_ps(zero, half))
                }
            };
            mid[l][i] = _mm256_fmadd_ps(sigma[l][i], half, z);
            middle[l][i] = _mm256_fmadd_ps(mid[l][i], mid[l][i], middle[l][i]);
            // The operand order leaves NaN out: it is in the middle, too, and reaches the output from there.
            most = _mm256_max_ps(sigma[l][i], most);
        }
        let most = f32::from_bits(largest(_mm256_castps_si256(most)) as u32);
        sigma_square = most.mul_add(most, sigma_square);
        let inverse = _mm256_set1_ps(if most > 0.0 { LEVELS / most } else { 0.0 });
        for (l, i) in (0..N).flat_map(|l| [(l, 0), (l, 1)]) {
            sigma[l][i] = _mm256_mul_ps(sigma[l][i], inverse);
        }
        for h in 0..shape.heads {
            let usable = s.max[h] >= LEAST_WEIGHT;
            let (inverse, unit) = if usable { (1.0 / s.max[h], s.max[h] / LEVELS) } else { (0.0, 0.0) };
            let inverse = _mm256_set1_ps(inverse);
            units[h] = unit * most;
            let mut sum = _mm256_setzero_si256();
            let lane = scratch.middle[h * GROUPS + g].0.as_mut_ptr();
            // SAFETY: lines are 64 aligned bytes; 16 digits are 4 of the head's quads.
            unsafe {
                let mut of_middle = [_mm256_load_ps(lane), _mm256_load_ps(lane.add(8))];
                for l in 0..N {
                    let w = w[h * X_STRIDE + l].0.as_ptr();
                    let mut digit = [_mm256_setzero_si256(); 2];
                    for i in 0..2 {
                        let w = _mm256_load_ps(w.add(8 * i));
                        digit[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_mul_ps(w, inverse), sigma[l][i]));
                        of_middle[i] = _mm256_fmadd_ps(w, mid[l][i], of_middle[i]);
                    }
                    // Of what is no number, too, a word: no sum is beyond 2^31.
                    let words = _mm256_permute4x64_epi64::<0xd8>(_mm256_packs_epi32(digit[0], digit[1]));
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
                    _mm256_storeu_si256(quads.as_mut_ptr().add(h * QUADS + 4 * l).cast(), pair_up(words));
                }
                _mm256_store_ps(lane, of_middle[0]);
                _mm256_store_ps(lane.add(8), of_middle[1]);
            }
            start[h] = -v.half() * total(sum);
        }
        for line in g * v.group / 16..(g + 1) * v.group / 16 {
            // SAFETY: all token quads of 16 channels lie inside the codes; a head has as many quads of digits, written above.
            unsafe {
                let from = (codes.add(64 * line), 4 * dim, tokens / 4);
                all_heads(from, quads.as_ptr(), QUADS, &start[..shape.heads], ahead, |h, sums| {
                    let slot = o[h * lines + line].0.as_mut_ptr();
                    let unit = _mm256_set1_ps(units[h]);
                    for i in 0..2 {
                        let p = slot.add(8 * i);
                        _mm256_store_ps(p, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), unit, _mm256_load_ps(p)));
                    }
                });
            }
        }
    }
    let mut most = _mm256_setzero_si256();
    for m in middle.iter().flatten() {
        most = _mm256_max_epi32(most, _mm256_castps_si256(abs(*m)));
    }
    let (most, group) = (f32::from_bits(largest(most) as u32), v.group as f32);
    ValueSlack { sigma: (sigma_square * group).sqrt(), middle: (most * group).sqrt() }
}

/// Sums of codes with a scale and an offset per channel, as [`Join::run`].
pub(super) fn join_channels(join: &Join<'_>, shape: Shape, o: &mut [Line]) -> f32 {
    assert!(join.fits(shape) && o.len() >= shape.heads * shape.dim_lines());
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { join_lines(join, shape, o) }
}

/// # Safety
/// The assert of [`join_channels`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn join_lines(join: &Join<'_>, shape: Shape, o: &mut [Line]) -> f32 {
    let (eights, mut square) = (shape.dim / 8, [_mm256_setzero_ps(); 2]);
    let (scales, sums, o) = (join.scales.as_ptr(), join.sums.as_ptr().cast::<f32>(), o.as_mut_ptr().cast::<f32>());
    for c in 0..eights {
        // SAFETY: 8 channels' pairs of halves; 8 channels of every head's sums and output, which are aligned lines.
        unsafe {
            let (a, b) = (load8::<F16>(scales.add(32 * c)), load8::<F16>(scales.add(32 * c + 16)));
            // Two pairs of each half of `a` and `b` side by side, then in order.
            let order = |x| _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(x)));
            let sigma = order(_mm256_shuffle_ps::<0x88>(a, b));
            let z = order(_mm256_shuffle_ps::<0xdd>(a, b));
            square[c % 2] = _mm256_fmadd_ps(sigma, sigma, square[c % 2]);
            for h in 0..shape.heads {
                let (p, weight) = (o.add(h * shape.dim + 8 * c), join.weights[h]);
                let sum = _mm256_load_ps(sums.add(h * shape.dim + 8 * c));
                let mut x = _mm256_fmadd_ps(sigma, sum, _mm256_load_ps(p));
                x = _mm256_fmadd_ps(_mm256_set1_ps(weight), z, x);
                if let Some(half) = join.half {
                    x = _mm256_fmadd_ps(_mm256_set1_ps(half * weight), sigma, x);
                }
                _mm256_store_ps(p, x);
            }
        }
    }
    sum16(square)
}

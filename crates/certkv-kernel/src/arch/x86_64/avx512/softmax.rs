//! Weights of one block, and the certificate's tiles.
use super::{lanes, max4, put, sum8};
use crate::arch::generic::softmax::{EXP2, power};
use crate::certify::{Sums, tiles_body};
use crate::line::Line;
use crate::masses::{BlockTile, HeadTile};
use crate::query::{HEADS, Shape, Softmax, X_STRIDE};
use crate::slack::CLAMP;
use crate::stage::{RawBlocks, RawHead, Shared, seal_body};
use core::arch::x86_64::*;

/// `2^x 2^-m`, as `generic::softmax::weight`. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn weight(x: __m512, m: __m512) -> __m512 {
    let whole = _mm512_roundscale_ps::<0x08>(x);
    let f = _mm512_sub_ps(x, whole);
    let mut p = _mm512_set1_ps(EXP2[6]);
    for i in (0..6).rev() {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP2[i]));
    }
    _mm512_scalef_ps(p, _mm512_sub_ps(whole, m))
}

/// Clamps logits; an operand order that keeps NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn clamp(x: __m512) -> __m512 {
    _mm512_min_ps(_mm512_set1_ps(CLAMP), _mm512_max_ps(_mm512_set1_ps(-CLAMP), x))
}

/// Mask of the tokens of line `line` below `n`.
#[inline]
fn below(n: usize, line: usize) -> u16 {
    let left = n.saturating_sub(16 * line).min(16);
    ((1u32 << left) - 1) as u16
}

/// Logits to weights.
pub(super) fn weigh(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
    assert!(x.len() >= shape.heads * X_STRIDE && shape.heads <= HEADS && shape.tokens <= 16 * X_STRIDE);
    // SAFETY: the table is handed out only where the features exist.
    unsafe {
        match shape.tokens / 16 {
            1 => weigh_lines::<1>(x, n, shape.heads, s),
            2 => weigh_lines::<2>(x, n, shape.heads, s),
            _ => weigh_lines::<4>(x, n, shape.heads, s),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh_lines<const L: usize>(x: &mut [Line], n: usize, heads: usize, s: &mut Softmax) {
    s.moved = false;
    let mut h = 0;
    while h < heads {
        match heads - h {
            1 => weigh_heads::<1, L>(x, n, h, s),
            2 | 3 => weigh_heads::<2, L>(x, n, h, s),
            _ => weigh_heads::<4, L>(x, n, h, s),
        }
        h += match heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

/// `H` heads of `L` lines: logits, exponents and weights stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh_heads<const H: usize, const L: usize>(x: &mut [Line], n: usize, first: usize, s: &mut Softmax) {
    let x = &mut x[first * X_STRIDE..(first + H) * X_STRIDE];
    let mut v = [[_mm512_setzero_ps(); L]; H];
    let mut most = [_mm512_set1_ps(-2.0 * CLAMP); 4];
    for h in 0..H {
        for l in 0..L {
            // SAFETY: a line is 64 aligned bytes.
            v[h][l] = clamp(unsafe { _mm512_load_ps(x[h * X_STRIDE + l].0.as_ptr()) });
            most[h] = _mm512_mask_max_ps(most[h], below(n, l), most[h], v[h][l]);
        }
    }
    // The new exponents of all heads at once, head `h` in lane `h` of every four; a NaN maximum leaves the exponent (the
    // weights carry the NaN on).
    let top = _mm512_roundscale_ps::<0x0a>(max4(most));
    let mut old = [0.0; 4];
    old[..H].copy_from_slice(&s.exponent[first..first + H]);
    let old = _mm512_broadcast_f32x4(_mm_setr_ps(old[0], old[1], old[2], old[3]));
    let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(top, old);
    let m = _mm512_mask_mov_ps(old, above, top);
    // The largest weight is at most this power of two: known before any weight is.
    put::<H>(&mut s.max, first, _mm512_castps512_ps128(_mm512_scalef_ps(_mm512_set1_ps(1.0), _mm512_sub_ps(top, m))));
    s.rescale[first..first + H].fill(1.0);
    if above & ((1 << H) - 1) != 0 {
        let top = lanes(top);
        for h in first..first + H {
            if top[h - first] > s.exponent[h] {
                s.rescale[h] = power(s.exponent[h] - top[h - first]);
                s.moved = true;
                s.exponent[h] = top[h - first];
            }
        }
    }
    let spread = [
        _mm512_permute_ps::<0x00>(m),
        _mm512_permute_ps::<0x55>(m),
        _mm512_permute_ps::<0xaa>(m),
        _mm512_permute_ps::<0xff>(m),
    ];
    let zero = _mm512_setzero_ps();
    let mut sums = [zero; 8];
    for h in 0..H {
        for l in 0..L {
            let w = _mm512_maskz_mov_ps(below(n, l), weight(v[h][l], spread[h]));
            // SAFETY: a line is 64 aligned bytes.
            unsafe { _mm512_store_ps(x[h * X_STRIDE + l].0.as_mut_ptr(), w) };
            sums[h] = _mm512_add_ps(sums[h], w);
            sums[4 + h] = _mm512_fmadd_ps(w, w, sums[4 + h]);
        }
    }
    let sums = sum8(&sums);
    put::<H>(&mut s.sum, first, _mm256_castps256_ps128(sums));
    put::<H>(&mut s.square, first, _mm256_extractf32x4_ps::<1>(sums));
}

/// [`tiles_body`] with wide instructions.
pub(super) fn certify_tiles(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    fn wide(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
        tiles_body::<true>(b, r, stride, exponent, super::finish)
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, r, stride, exponent) }
}

/// [`seal_body`] with wide instructions.
pub(super) fn seal(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    fn wide(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
        seal_body(b, x, k, r);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, x, k, r) }
}

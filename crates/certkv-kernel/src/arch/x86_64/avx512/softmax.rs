//! Weights of one block, and the certificate's tiles.
use super::{lanes, max4, sum16};
use crate::arch::generic::softmax::{EXP2, power};
use crate::certify::{Sums, tile_body};
use crate::line::Line;
use crate::masses::{BlockTile, HeadTile};
use crate::query::{HEADS, Shape, Softmax, X_STRIDE};
use crate::slack::CLAMP;
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
    let zero = _mm512_setzero_ps();
    let nothing = _mm512_set1_ps(-2.0 * CLAMP);
    for first in (0..heads).step_by(4) {
        let count = (heads - first).min(4);
        let mut most = [nothing; 4];
        for i in 0..count {
            for l in 0..L {
                let to = &mut x[(first + i) * X_STRIDE + l].0;
                // SAFETY: a line is 64 aligned bytes.
                let v = unsafe { _mm512_load_ps(to.as_ptr()) };
                most[i] = _mm512_mask_max_ps(most[i], below(n, l), most[i], clamp(v));
            }
        }
        // The new exponents of four heads at once; a NaN maximum leaves the exponent (the weights carry the NaN on).
        let top = lanes(_mm512_roundscale_ps::<0x0a>(max4(most)));
        let mut largest = [zero; 4];
        let mut sums = [zero; 16];
        for i in 0..count {
            let h = first + i;
            s.rescale[h] = 1.0;
            if top[i] > s.exponent[h] {
                s.rescale[h] = power(s.exponent[h] - top[i]);
                s.moved = true;
                s.exponent[h] = top[i];
            }
            let m = _mm512_set1_ps(s.exponent[h]);
            for l in 0..L {
                let to = &mut x[h * X_STRIDE + l].0;
                // SAFETY: a line is 64 aligned bytes.
                unsafe {
                    let w = weight(clamp(_mm512_load_ps(to.as_ptr())), m);
                    let w = _mm512_maskz_mov_ps(below(n, l), w);
                    _mm512_store_ps(to.as_mut_ptr(), w);
                    sums[i] = _mm512_add_ps(sums[i], w);
                    sums[8 + i] = _mm512_fmadd_ps(w, w, sums[8 + i]);
                    largest[i] = _mm512_max_ps(largest[i], w);
                }
            }
        }
        let (sums, largest) = (lanes(sum16(&sums)), lanes(max4(largest)));
        for i in 0..count {
            (s.sum[first + i], s.square[first + i], s.max[first + i]) = (sums[i], sums[8 + i], largest[i]);
        }
    }
}

/// [`tile_body`] with wide instructions.
pub(super) fn certify_tile(b: &BlockTile, r: &HeadTile, exponent: f32, s: &mut Sums) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    fn wide(b: &BlockTile, r: &HeadTile, exponent: f32, s: &mut Sums) {
        tile_body(b, r, exponent, s);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, r, exponent, s) }
}

//! Weights of one block.
use super::sum16;
use crate::arch::generic::softmax::{EXP2, power};
use crate::line::Line;
use crate::query::{HEADS, Shape, Softmax, X_STRIDE};
use crate::slack::CLAMP;
use core::arch::x86_64::*;

/// `2^k` for an integer-valued `k` in -126..=127, as `generic::softmax::two_to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_to(k: __m256) -> __m256 {
    let bits = _mm256_castps_si256(_mm256_add_ps(k, _mm256_set1_ps(8_388_735.0)));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(bits))
}

/// `2^x 2^-m`, as `generic::softmax::weight`. NaN stays NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn weight(x: __m256, m: __m256) -> __m256 {
    let whole = _mm256_round_ps::<0x08>(x);
    let f = _mm256_sub_ps(x, whole);
    let mut p = _mm256_set1_ps(EXP2[6]);
    for i in (0..6).rev() {
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2[i]));
    }
    let k = _mm256_max_ps(_mm256_sub_ps(whole, m), _mm256_set1_ps(-252.0));
    let first = _mm256_max_ps(k, _mm256_set1_ps(-126.0));
    _mm256_mul_ps(_mm256_mul_ps(p, two_to(first)), two_to(_mm256_sub_ps(k, first)))
}

/// Logits to weights.
pub(super) fn weigh(x: &mut [Line], n: usize, shape: Shape, s: &mut Softmax) {
    assert!(x.len() >= shape.heads * X_STRIDE && shape.heads <= HEADS && shape.tokens <= 16 * X_STRIDE);
    s.moved = false;
    for h in 0..shape.heads {
        let x = &mut x[h * X_STRIDE..h * X_STRIDE + shape.tokens / 16];
        // SAFETY: the table is handed out only where the features exist.
        unsafe {
            if n >= shape.tokens {
                weigh_head::<true>(x, n, h, s);
            } else {
                weigh_head::<false>(x, n, h, s);
            }
        }
    }
}

/// Lanes of the eight tokens from `from` on that are below `n`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn below(n: usize, from: usize) -> __m256 {
    let left = _mm256_set1_epi32(n as i32 - from as i32);
    _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)))
}

/// One head; `FULL` where all tokens are there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn weigh_head<const FULL: bool>(x: &mut [Line], n: usize, h: usize, s: &mut Softmax) {
    let (low, high, nothing) = (_mm256_set1_ps(-CLAMP), _mm256_set1_ps(CLAMP), _mm256_set1_ps(-2.0 * CLAMP));
    let mut most = [nothing; 2];
    for (l, line) in x.iter_mut().enumerate() {
        for i in 0..2 {
            let p = line.0[8 * i..].as_mut_ptr();
            // SAFETY: half of a line, which is 64 aligned bytes.
            unsafe {
                // An operand order that keeps NaN.
                let mut logit = _mm256_min_ps(high, _mm256_max_ps(low, _mm256_load_ps(p)));
                if !FULL {
                    logit = _mm256_blendv_ps(nothing, logit, below(n, 16 * l + 8 * i));
                }
                _mm256_store_ps(p, logit);
                // And one that leaves it out: the weights carry it on.
                most[i] = _mm256_max_ps(logit, most[i]);
            }
        }
    }
    let most = _mm256_max_ps(most[0], most[1]);
    let four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    let most = _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two))).ceil();
    let m = if most > s.exponent[h] { most } else { s.exponent[h] };
    s.rescale[h] = if m == s.exponent[h] { 1.0 } else { power(s.exponent[h] - m) };
    s.moved |= m != s.exponent[h];
    s.exponent[h] = m;
    let (mut sum, mut square) = ([_mm256_setzero_ps(); 2], [_mm256_setzero_ps(); 2]);
    let exponent = _mm256_set1_ps(m);
    for (l, line) in x.iter_mut().enumerate() {
        for i in 0..2 {
            let p = line.0[8 * i..].as_mut_ptr();
            // SAFETY: as above.
            unsafe {
                let mut w = weight(_mm256_load_ps(p), exponent);
                if !FULL {
                    w = _mm256_and_ps(w, below(n, 16 * l + 8 * i));
                }
                sum[i] = _mm256_add_ps(sum[i], w);
                square[i] = _mm256_fmadd_ps(w, w, square[i]);
                _mm256_store_ps(p, w);
            }
        }
    }
    (s.sum[h], s.square[h], s.max[h]) = (sum16(sum), sum16(square), power(most - m));
}

//! Prefill on one stretch: the register-blocked product of `generic::strip`.
//!
//! Three rows by 32 tokens (or 32 channels) are 12 accumulators; every load of keys or values serves three rows, every broadcast four
//! vectors.
use super::softmax::weight;
use super::sum16;
use crate::arch::generic::softmax::power;
use crate::arch::generic::strip as plain;
use crate::line::Line;
use crate::prefill::{Stretch, Strip};
use crate::slack::CLAMP;
use core::arch::x86_64::*;

/// Rows per register block.
const R: usize = 3;

/// All rows.
pub(super) fn strip(s: &Stretch, rows: &mut Strip<'_>) {
    let n = rows.visible.len();
    if !rows.fit(s) {
        return plain::strip(s, rows);
    }
    let mut r = 0;
    while r < n {
        // SAFETY: the table is handed out only where the features exist. The lengths checked above give every block `[r, r + size)` its
        // queries, outputs and states.
        unsafe {
            match n - r {
                1 => block::<1>(s, rows, r),
                2 => block::<2>(s, rows, r),
                _ => block::<R>(s, rows, r),
            }
        }
        r += R.min(n - r);
    }
}

/// Lanes of eight tokens whose bits are set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lanes_of(bits: u8) -> __m256 {
    let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let set = _mm256_and_si256(_mm256_set1_epi32(bits.into()), each);
    _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each))
}

/// Rows `r .. r + N`.
///
/// # Safety
/// `rows` holds those rows and `s` a full stretch.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block<const N: usize>(s: &Stretch, rows: &mut Strip<'_>, r: usize) {
    let (dim, lines) = (s.dim, s.dim / 16);
    let (keys, q) = (s.keys.as_ptr().cast::<f32>(), rows.q.as_ptr().cast::<f32>());
    // Logits, then weights.
    let mut w = [[Line::ZERO; 4]; N];
    for half in 0..2 {
        let mut x = [[_mm256_setzero_ps(); 4]; N];
        for c in 0..dim {
            // SAFETY: `keys` has `dim * 64` elements; row `r + i` of `q` has `dim` elements.
            unsafe {
                let k = keys.add(c * 64 + 32 * half);
                let k =
                    [_mm256_load_ps(k), _mm256_load_ps(k.add(8)), _mm256_load_ps(k.add(16)), _mm256_load_ps(k.add(24))];
                for i in 0..N {
                    let qi = _mm256_set1_ps(*q.add((r + i) * dim + c));
                    for j in 0..4 {
                        x[i][j] = _mm256_fmadd_ps(qi, k[j], x[i][j]);
                    }
                }
            }
        }
        for i in 0..N {
            for j in 0..4 {
                let to = w[i][2 * half + j / 2].0[8 * (j % 2)..].as_mut_ptr();
                // SAFETY: half of a line, which is 64 aligned bytes.
                unsafe { _mm256_store_ps(to, x[i][j]) };
            }
        }
    }
    for i in 0..N {
        let row = r + i;
        let o = &mut rows.o[row * lines..(row + 1) * lines];
        weigh(&mut w[i], rows.visible[row], rows.unit, &mut rows.exponent[row], &mut rows.l[row], o);
    }
    // Behind the last token that any row of the block sees, all weights are 0.
    let seen = 64 - (0..N).fold(0, |any, i| any | rows.visible[r + i]).leading_zeros() as usize;
    let (values, o) = (s.values.as_ptr().cast::<f32>(), rows.o.as_mut_ptr().cast::<f32>());
    let weights = w.as_ptr().cast::<f32>();
    for c in (0..dim).step_by(32) {
        // SAFETY: `o` has `dim` elements per row, `values` 64 rows of `dim`, `weights` 64 elements a row; `c + 32 <= dim`.
        unsafe {
            let mut acc = [[_mm256_setzero_ps(); 4]; N];
            for i in 0..N {
                for j in 0..4 {
                    acc[i][j] = _mm256_load_ps(o.add((r + i) * dim + c + 8 * j));
                }
            }
            for t in 0..seen {
                let v = values.add(t * dim + c);
                let v =
                    [_mm256_load_ps(v), _mm256_load_ps(v.add(8)), _mm256_load_ps(v.add(16)), _mm256_load_ps(v.add(24))];
                for i in 0..N {
                    let wi = _mm256_set1_ps(*weights.add(64 * i + t));
                    for j in 0..4 {
                        acc[i][j] = _mm256_fmadd_ps(wi, v[j], acc[i][j]);
                    }
                }
            }
            for i in 0..N {
                for j in 0..4 {
                    _mm256_store_ps(o.add((r + i) * dim + c + 8 * j), acc[i][j]);
                }
            }
        }
    }
}

/// One row: products to weights in place, and its state moved to them.
#[target_feature(enable = "avx2,fma,f16c")]
fn weigh(x: &mut [Line; 4], visible: u64, unit: f32, exponent: &mut f32, l: &mut f32, o: &mut [Line]) {
    let (unit, low, high) = (_mm256_set1_ps(unit), _mm256_set1_ps(-CLAMP), _mm256_set1_ps(CLAMP));
    let mut most = _mm256_set1_ps(*exponent);
    for (g, mask) in visible.to_le_bytes().into_iter().enumerate() {
        let p = x[g / 2].0[8 * (g % 2)..].as_mut_ptr();
        // SAFETY: half of a line, which is 64 aligned bytes.
        unsafe {
            // The operand order keeps NaN: minimum and maximum are their second operand when one is NaN.
            let v = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_mul_ps(_mm256_load_ps(p), unit)));
            _mm256_store_ps(p, v);
            // And here leaves it out: the weights carry it on.
            let above = _mm256_max_ps(_mm256_ceil_ps(v), most);
            most = _mm256_blendv_ps(most, above, lanes_of(mask));
        }
    }
    let four = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps::<1>(most));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    let m = _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    if m != *exponent {
        let f = power(*exponent - m);
        *l *= f;
        o.iter_mut().for_each(|line| line.scale(f));
        *exponent = m;
    }
    let (m, mut sum) = (_mm256_set1_ps(m), [_mm256_setzero_ps(); 2]);
    for (g, mask) in visible.to_le_bytes().into_iter().enumerate() {
        let p = x[g / 2].0[8 * (g % 2)..].as_mut_ptr();
        // SAFETY: as above.
        unsafe {
            let w = _mm256_and_ps(weight(_mm256_load_ps(p), m), lanes_of(mask));
            _mm256_store_ps(p, w);
            sum[g % 2] = _mm256_add_ps(sum[g % 2], w);
        }
    }
    *l += sum16(sum);
}

//! Prefill on one stretch of 64 tokens: 6 rows x 64 tokens, then 6 rows x 64 channels, in registers.
use super::load16;
use super::softmax::{below, clamp, weight};
use crate::arch::generic::softmax::power;
use crate::block::Rows;
use crate::line::Line;
use crate::prefill::{STRETCH, Stretch, Strip};
use crate::slack::CLAMP;
use certkv_core::Dtype;
use core::arch::x86_64::*;

/// Rows of a strip: 6 x 4 accumulators, 4 operands and a broadcast fit 32 registers.
const ROWS: usize = 6;

/// Rows to the stretch: keys transposed.
pub(super) fn unpack(keys: Rows<'_>, values: Rows<'_>, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    assert!(keys.len() >= n * out.dim && values.len() >= n * out.dim && at + n <= STRETCH && at % 16 == 0);
    assert!(out.keys.len() >= out.dim * 4 && out.values.len() >= STRETCH * out.dim / 16);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        if store == Dtype::Bf16 {
            unpack_typed::<true>(keys.as_ptr(), values.as_ptr(), n, at, out);
        } else {
            unpack_typed::<false>(keys.as_ptr(), values.as_ptr(), n, at, out);
        }
    }
}

/// # Safety
/// The asserts of [`unpack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack_typed<const BF16: bool>(k: *const u16, v: *const u16, n: usize, at: usize, out: &mut Stretch) {
    let (dim, lines) = (out.dim, out.dim / 16);
    for t0 in (0..n).step_by(16) {
        for l in 0..lines {
            let rows: [__m512; 16] = core::array::from_fn(|i| {
                if t0 + i < n {
                    // SAFETY: row `t0 + i < n`, channels 16 l .. 16 l + 16.
                    unsafe { load16::<BF16>(k.add((t0 + i) * dim + 16 * l)) }
                } else {
                    _mm512_setzero_ps()
                }
            });
            for (c, column) in transpose(&rows).into_iter().enumerate() {
                let to = &mut out.keys[(16 * l + c) * 4 + (at + t0) / 16];
                // SAFETY: a line is 64 aligned bytes.
                unsafe { _mm512_store_ps(to.0.as_mut_ptr(), column) };
            }
        }
    }
    for t in 0..n {
        for l in 0..lines {
            let to = out.values[(at + t) * lines + l].0.as_mut_ptr();
            // SAFETY: row `t < n`, channels 16 l .. 16 l + 16; a line is 64 aligned bytes.
            unsafe { _mm512_store_ps(to, load16::<BF16>(v.add(t * dim + 16 * l))) };
        }
    }
}

/// 16 x 16 transpose.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(r: &[__m512; 16]) -> [__m512; 16] {
    let zero = _mm512_setzero_ps();
    let (mut t, mut u, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let low = |a, b| _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    let high = |a, b| _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    for j in 0..4 {
        u[4 * j] = low(t[4 * j], t[4 * j + 2]);
        u[4 * j + 1] = high(t[4 * j], t[4 * j + 2]);
        u[4 * j + 2] = low(t[4 * j + 1], t[4 * j + 3]);
        u[4 * j + 3] = high(t[4 * j + 1], t[4 * j + 3]);
    }
    // 128-bit group g of u[4 j + k] is column 4 g + k of rows 4 j .. 4 j + 4.
    for k in 0..4 {
        let a = _mm512_shuffle_f32x4::<0x88>(u[k], u[4 + k]);
        let b = _mm512_shuffle_f32x4::<0xdd>(u[k], u[4 + k]);
        let c = _mm512_shuffle_f32x4::<0x88>(u[8 + k], u[12 + k]);
        let d = _mm512_shuffle_f32x4::<0xdd>(u[8 + k], u[12 + k]);
        out[k] = _mm512_shuffle_f32x4::<0x88>(a, c);
        out[8 + k] = _mm512_shuffle_f32x4::<0xdd>(a, c);
        out[4 + k] = _mm512_shuffle_f32x4::<0x88>(b, d);
        out[12 + k] = _mm512_shuffle_f32x4::<0xdd>(b, d);
    }
    out
}

/// All rows. A row that sees nothing of the stretch is left alone, and so is its strip.
pub(super) fn strip(s: &Stretch, rows: &mut Strip<'_>) {
    let (n, count) = (s.dim / 16, rows.visible.len());
    assert!(s.keys.len() >= s.dim * 4 && s.values.len() >= STRETCH * n && n % 2 == 0);
    assert!(rows.q.len() >= count * n && rows.o.len() >= count * n);
    assert!(rows.exponent.len() >= count && rows.l.len() >= count);
    let mut r = 0;
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        while r < count {
            let left = count - r;
            let here = if left >= ROWS { ROWS } else { 1 };
            let most = rows.visible[r..r + here].iter().copied().max().unwrap_or(0);
            if most > 0 {
                if here == ROWS { rows_of::<ROWS>(s, rows, r, most) } else { rows_of::<1>(s, rows, r, most) }
            }
            r += here;
        }
    }
}

/// # Safety
/// The asserts of [`strip`], `r + R <= rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn rows_of<const R: usize>(s: &Stretch, rows: &mut Strip<'_>, r: usize, most: usize) {
    let (n, zero) = (s.dim / 16, _mm512_setzero_ps());
    let mut weights = [[Line::ZERO; 4]; R];
    // SAFETY: all lines are 64 aligned bytes inside the slices that `strip` measured.
    unsafe {
        let q = rows.q.as_ptr().add(r * n).cast::<f32>();
        let k = s.keys.as_ptr().cast::<f32>();
        let mut acc = [[zero; 4]; R];
        for c in 0..s.dim {
            let key: [__m512; 4] = core::array::from_fn(|i| _mm512_load_ps(k.add(64 * c + 16 * i)));
            for i in 0..R {
                let q = _mm512_set1_ps(*q.add(i * s.dim + c));
                for j in 0..4 {
                    acc[i][j] = _mm512_fmadd_ps(q, key[j], acc[i][j]);
                }
            }
        }
        let unit = _mm512_set1_ps(rows.unit);
        for i in 0..R {
            let mut largest = _mm512_set1_ps(-2.0 * CLAMP);
            for j in 0..4 {
                let x = clamp(_mm512_mul_ps(acc[i][j], unit));
                acc[i][j] = _mm512_mask_mov_ps(_mm512_set1_ps(-2.0 * CLAMP), below(rows.visible[r + i], j), x);
                largest = _mm512_max_ps(largest, acc[i][j]);
            }
            let (old, top) = (rows.exponent[r + i], _mm512_reduce_max_ps(largest).ceil());
            if top > old && rows.visible[r + i] > 0 {
                let f = power(old - top);
                rows.exponent[r + i] = top;
                rows.l[r + i] *= f;
                for line in &mut rows.o[(r + i) * n..(r + i + 1) * n] {
                    line.scale(f);
                }
            }
            let m = _mm512_set1_ps(rows.exponent[r + i]);
            let mut sum = zero;
            for j in 0..4 {
                let w = _mm512_maskz_mov_ps(below(rows.visible[r + i], j), weight(acc[i][j], m));
                _mm512_store_ps(weights[i][j].0.as_mut_ptr(), w);
                sum = _mm512_add_ps(sum, w);
            }
            rows.l[r + i] += _mm512_reduce_add_ps(sum);
        }
        let w = weights.as_ptr().cast::<f32>();
        let v = s.values.as_ptr().cast::<f32>();
        let o = rows.o.as_mut_ptr().add(r * n).cast::<f32>();
        let mut line = 0;
        while line < n {
            if line + 4 <= n {
                add_values::<R, 4>(w, v.add(16 * line), o.add(16 * line), s.dim, most);
                line += 4;
            } else {
                add_values::<R, 2>(w, v.add(16 * line), o.add(16 * line), s.dim, most);
                line += 2;
            }
        }
    }
}

/// `o[i] += sum_t w[i][t] v[t]` on `L` lines of channels; weights past a row's last token are 0 and values there finite.
///
/// # Safety
/// `R` rows of 64 aligned weights at `w`; `tokens` rows of `dim` values at `v` and `R` of outputs at `o`, `16 L` channels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn add_values<const R: usize, const L: usize>(
    w: *const f32,
    v: *const f32,
    o: *mut f32,
    dim: usize,
    tokens: usize,
) {
    // SAFETY: as the function's.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); L]; R];
        for i in 0..R {
            for l in 0..L {
                acc[i][l] = _mm512_load_ps(o.add(i * dim + 16 * l));
            }
        }
        for t in 0..tokens {
            let value: [__m512; L] = core::array::from_fn(|l| _mm512_load_ps(v.add(t * dim + 16 * l)));
            for i in 0..R {
                let w = _mm512_set1_ps(*w.add(64 * i + t));
                for l in 0..L {
                    acc[i][l] = _mm512_fmadd_ps(w, value[l], acc[i][l]);
                }
            }
        }
        for i in 0..R {
            for l in 0..L {
                _mm512_store_ps(o.add(i * dim + 16 * l), acc[i][l]);
            }
        }
    }
}

//! Prefill on one stretch with AVX-512: the register-blocked product of `generic::strip`.
//!
//! Six rows by 64 tokens (or 64 channels) are 24 accumulators; every load of keys or values serves six rows, every
//! broadcast four lines. Keys are transposed 16 x 16 when the stretch is unpacked.
use crate::arch::generic::softmax::{EXP2, power};
use crate::arch::generic::strip as plain;
use crate::block::Rows;
use crate::line::Line;
use crate::prefill::{Stretch, Strip};
use crate::slack::CLAMP;
use certkv_core::Dtype;
use core::arch::x86_64::*;

/// Rows per register block.
const R: usize = 6;

/// All rows. Only called through the AVX-512 table, which exists only where the instructions do.
pub(crate) fn strip(s: &Stretch, rows: &mut Strip<'_>) {
    let n = rows.visible.len();
    if !rows.fit(s) {
        return plain::strip(s, rows);
    }
    let mut r = 0;
    while r < n {
        let left = n - r;
        // SAFETY: the table that holds this function is only handed out on machines with AVX-512 F, BW, DQ and VL (see
        // `avx512::ops`). The lengths checked above give every block `[r, r + size)` its queries, outputs and states.
        unsafe {
            match left {
                1 => block::<1>(s, rows, r),
                2 => block::<2>(s, rows, r),
                3 => block::<3>(s, rows, r),
                4 => block::<4>(s, rows, r),
                5 => block::<5>(s, rows, r),
                _ => block::<R>(s, rows, r),
            }
        }
        r += left.min(R);
    }
}

/// `2^(x - m)` for 16 logits, as `generic::softmax::weight`.
///
/// # Safety
/// AVX-512 F and DQ.
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn weight(x: __m512, m: __m512) -> __m512 {
    let whole = _mm512_roundscale_ps::<0x08>(x);
    let f = _mm512_sub_ps(x, whole);
    let mut p = _mm512_set1_ps(EXP2[6]);
    for c in EXP2[..6].iter().rev() {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(*c));
    }
    _mm512_scalef_ps(p, _mm512_sub_ps(whole, m))
}

/// Rows `r .. r + N`.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL; `rows` holds those rows and `s` a full stretch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn block<const N: usize>(s: &Stretch, rows: &mut Strip<'_>, r: usize) {
    let (dim, lines) = (s.dim, s.dim / 16);
    let mut x = [[_mm512_setzero_ps(); 4]; N];
    let keys = s.keys.as_ptr().cast::<f32>();
    let q = rows.q.as_ptr().cast::<f32>();
    for c in 0..dim {
        // SAFETY: `keys` has `dim * 64` elements; row `r + i < rows` of `q` has `dim` elements.
        unsafe {
            // Plain index loops: an iterator or closure that is not inlined would pass vectors through memory.
            let mut k = [_mm512_setzero_ps(); 4];
            for j in 0..4 {
                k[j] = _mm512_load_ps(keys.add(c * 64 + j * 16));
            }
            for i in 0..N {
                let qi = _mm512_set1_ps(*q.add((r + i) * dim + c));
                for j in 0..4 {
                    x[i][j] = _mm512_fmadd_ps(qi, k[j], x[i][j]);
                }
            }
        }
    }
    let (unit, high) = (_mm512_set1_ps(rows.unit), _mm512_set1_ps(CLAMP));
    let low = _mm512_set1_ps(-CLAMP);
    let mut w = [[Line::ZERO; 4]; N];
    for i in 0..N {
        let visible = rows.visible[r + i];
        let mask = |j: usize| -> __mmask16 { (visible >> (16 * j)) as u16 };
        let mut most = _mm512_set1_ps(rows.exponent[r + i]);
        for (j, x) in x[i].iter_mut().enumerate() {
            // The operand order keeps NaN: min and max return their second operand when one is NaN.
            *x = _mm512_max_ps(low, _mm512_min_ps(high, _mm512_mul_ps(*x, unit)));
            most = _mm512_mask_max_ps(most, mask(j), most, _mm512_roundscale_ps::<0x0A>(*x));
        }
        let m = _mm512_reduce_max_ps(most);
        if m != rows.exponent[r + i] {
            let f = power(rows.exponent[r + i] - m);
            rows.l[r + i] *= f;
            for line in &mut rows.o[(r + i) * lines..(r + i + 1) * lines] {
                line.scale(f);
            }
            rows.exponent[r + i] = m;
        }
        let mut sum = _mm512_setzero_ps();
        for (j, x) in x[i].iter().enumerate() {
            // SAFETY: the features of this function.
            let v = unsafe { weight(*x, _mm512_set1_ps(m)) };
            let v = _mm512_maskz_mov_ps(mask(j), v);
            sum = _mm512_add_ps(sum, v);
            // SAFETY: a `Line` is 64 aligned bytes.
            unsafe { _mm512_store_ps(w[i][j].0.as_mut_ptr(), v) };
        }
        rows.l[r + i] += _mm512_reduce_add_ps(sum);
    }
    let values = s.values.as_ptr().cast::<f32>();
    let o = rows.o.as_mut_ptr().cast::<f32>();
    // Behind the last token that any row of the block sees, all weights are 0.
    let seen = 64 - (0..N).fold(0, |any, i| any | rows.visible[r + i]).leading_zeros() as usize;
    let mut c = 0;
    while c < dim {
        let wide = (dim - c).min(64) / 16;
        // SAFETY: `o` has `dim` elements per row, `values` 64 rows of `dim`; `c + 16 wide <= dim`.
        unsafe {
            match wide {
                4 => accumulate::<N, 4>(&w, values, o, r, c, dim, seen),
                _ => accumulate::<N, 2>(&w, values, o, r, c, dim, seen),
            }
        }
        c += if wide == 4 { 64 } else { 32 };
    }
}

/// `o[r + i][c .. c + 16 W] += sum_t w[i][t] v[t][c ..]`.
///
/// # Safety
/// AVX-512 F; the pointers reach the rows and channels named.
#[target_feature(enable = "avx512f")]
unsafe fn accumulate<const N: usize, const W: usize>(
    w: &[[Line; 4]; N],
    values: *const f32,
    o: *mut f32,
    r: usize,
    c: usize,
    dim: usize,
    seen: usize,
) {
    // SAFETY: the caller's promise, line by line.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); W]; N];
        for i in 0..N {
            for j in 0..W {
                acc[i][j] = _mm512_load_ps(o.add((r + i) * dim + c + 16 * j));
            }
        }
        let w = w.as_ptr().cast::<f32>();
        for t in 0..seen {
            let mut v = [_mm512_setzero_ps(); W];
            for j in 0..W {
                v[j] = _mm512_load_ps(values.add(t * dim + c + 16 * j));
            }
            for i in 0..N {
                let wi = _mm512_set1_ps(*w.add(64 * i + t));
                for j in 0..W {
                    acc[i][j] = _mm512_fmadd_ps(wi, v[j], acc[i][j]);
                }
            }
        }
        for i in 0..N {
            for j in 0..W {
                _mm512_store_ps(o.add((r + i) * dim + c + 16 * j), acc[i][j]);
            }
        }
    }
}

/// Rows to the stretch, as `generic::strip::unpack`.
pub(crate) fn unpack(keys: Rows<'_>, values: Rows<'_>, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    let dim = out.dim;
    let whole = n.is_multiple_of(16) && at.is_multiple_of(16) && dim.is_multiple_of(16) && at + n <= 64;
    if !whole
        || keys.len() < n * dim
        || values.len() < n * dim
        || out.keys.len() < dim * 4
        || out.values.len() < 4 * dim
    {
        return plain::unpack(keys, values, store, n, at, out);
    }
    // SAFETY: features as for `strip`; `n` whole tiles of 16 rows of `dim` elements are there on both sides.
    unsafe { unpack_tiles(keys.as_ptr(), values.as_ptr(), store, n, at, out) }
}

/// Sixteen 16-bit elements as `f32`.
///
/// # Safety
/// AVX-512 F; `from` has 16 elements.
#[target_feature(enable = "avx512f")]
unsafe fn widen(from: *const u16, store: Dtype) -> __m512 {
    // SAFETY: the caller's promise; unaligned load.
    let bits = unsafe { _mm256_loadu_si256(from.cast()) };
    match store {
        Dtype::Bf16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
        _ => _mm512_cvtph_ps(bits),
    }
}

/// # Safety
/// AVX-512 F; `n` rows of `out.dim` elements behind both pointers, `at + n <= 64`, the stretch full size.
#[target_feature(enable = "avx512f")]
unsafe fn unpack_tiles(keys: *const u16, values: *const u16, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    let dim = out.dim;
    let (to_keys, to_values) = (out.keys.as_mut_ptr().cast::<f32>(), out.values.as_mut_ptr().cast::<f32>());
    for t in (0..n).step_by(16) {
        for c in (0..dim).step_by(16) {
            // SAFETY: rows `t .. t + 16 <= n`, channels `c .. c + 16 <= dim` of both sides, and the same places of the stretch.
            unsafe {
                let mut tile = [_mm512_setzero_ps(); 16];
                for (i, row) in tile.iter_mut().enumerate() {
                    *row = widen(keys.add((t + i) * dim + c), store);
                    let v = widen(values.add((t + i) * dim + c), store);
                    _mm512_store_ps(to_values.add((at + t + i) * dim + c), v);
                }
                transpose(&mut tile);
                for (i, column) in tile.iter().enumerate() {
                    _mm512_store_ps(to_keys.add((c + i) * 64 + at + t), *column);
                }
            }
        }
    }
}

/// Transposes a 16 x 16 tile in registers.
///
/// # Safety
/// AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(m: &mut [__m512; 16]) {
    // 4 x 4 blocks within 128-bit lanes first, then the lanes.
    let mut a = *m;
    for i in (0..16).step_by(4) {
        let (lo0, hi0) = (_mm512_unpacklo_ps(m[i], m[i + 1]), _mm512_unpackhi_ps(m[i], m[i + 1]));
        let (lo1, hi1) = (_mm512_unpacklo_ps(m[i + 2], m[i + 3]), _mm512_unpackhi_ps(m[i + 2], m[i + 3]));
        let pd = |x| _mm512_castps_pd(x);
        a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(lo0), pd(lo1)));
        a[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(lo0), pd(lo1)));
        a[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(hi0), pd(hi1)));
        a[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(hi0), pd(hi1)));
    }
    for j in 0..4 {
        let (p, q) = (a[j], a[4 + j]);
        let (r, s) = (a[8 + j], a[12 + j]);
        let (pq0, pq1) = (_mm512_shuffle_f32x4::<0x88>(p, q), _mm512_shuffle_f32x4::<0xDD>(p, q));
        let (rs0, rs1) = (_mm512_shuffle_f32x4::<0x88>(r, s), _mm512_shuffle_f32x4::<0xDD>(r, s));
        m[j] = _mm512_shuffle_f32x4::<0x88>(pq0, rs0);
        m[8 + j] = _mm512_shuffle_f32x4::<0xDD>(pq0, rs0);
        m[4 + j] = _mm512_shuffle_f32x4::<0x88>(pq1, rs1);
        m[12 + j] = _mm512_shuffle_f32x4::<0xDD>(pq1, rs1);
    }
}

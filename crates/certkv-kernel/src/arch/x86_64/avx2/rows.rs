//! Rows: 16-bit numbers and 8-bit floating-point codes.
use super::{BF16, E4M3, E5M2, F16, bytes_of, load_pair, load8};
use crate::arch::at_once;
use crate::block::{Element, Side};
use crate::line::Line;
use crate::query::{Shape, X_STRIDE};
use core::arch::x86_64::*;

/// Base-2 logits of rows.
pub(super) fn score_rows(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    assert!(side.n <= shape.tokens && side.len() >= side.n * shape.dim && shape.tokens <= 16 * X_STRIDE);
    assert!(q.len() >= shape.heads * shape.dim_lines() && x.len() >= shape.heads * X_STRIDE);
    if side.n == 0 {
        return;
    }
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        match side.element {
            Element::F16 => row_heads::<F16>(side, q, mul, shape, x),
            Element::Bf16 => row_heads::<BF16>(side, q, mul, shape, x),
            Element::E4m3 => row_heads::<E4M3>(side, q, mul, shape, x),
            Element::E5m2 => row_heads::<E5M2>(side, q, mul, shape, x),
        }
    }
}

/// # Safety
/// The asserts of [`score_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_heads<const KIND: u8>(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    let mut h = 0;
    while h < shape.heads {
        let width = at_once(shape.heads - h);
        // SAFETY: as the function's; `h + width <= heads`.
        unsafe {
            match width {
                1 => row_dots::<1, 8, KIND>(side, q, mul, h, shape, x),
                2 => row_dots::<2, 4, KIND>(side, q, mul, h, shape, x),
                _ => row_dots::<4, 2, KIND>(side, q, mul, h, shape, x),
            }
        }
        h += width;
    }
}

/// `H` heads x `T` tokens at a time, the first eight of a line's channels and then the others: so many sums as there are registers for, and fewer
/// loads than products. A head's logit has the same bits for every `H`, those of [`Line::sum`].
///
/// # Safety
/// The asserts of [`score_rows`], `first + H <= heads`, `H T = 8`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_dots<const H: usize, const T: usize, const KIND: u8>(
    side: &Side<'_>,
    q: &[Line],
    mul: f32,
    first: usize,
    shape: Shape,
    x: &mut [Line],
) {
    let (rows, n, lines) = (side.as_ptr(), side.n, shape.dim_lines());
    let ahead = if first == 0 { side.ahead } else { 0 };
    let q = q[first * lines..(first + H) * lines].as_ptr().cast::<f32>();
    for t0 in (0..n).step_by(T) {
        let mut eights = [[_mm256_setzero_ps(); 8]; 2];
        // Rows past `n` are never read: the last row stands in, and its logits are masked by `weigh`.
        let mut row = [rows; T];
        for t in 0..T {
            // SAFETY: row min(t0 + t, n - 1) lies inside the side.
            row[t] = unsafe { rows.add((t0 + t).min(n - 1) * shape.dim * bytes_of(KIND)) };
        }
        for (i, eights) in eights.iter_mut().enumerate() {
            let mut acc = [_mm256_setzero_ps(); 8];
            for l in 0..lines {
                // SAFETY: 16 channels of each row; lines of `H` queries.
                unsafe {
                    let mut k = [_mm256_setzero_ps(); T];
                    for t in 0..T {
                        let p = row[t].add((16 * l + 8 * i) * bytes_of(KIND));
                        if i == 0 && l % (4 / bytes_of(KIND)) == 0 {
                            _mm_prefetch::<_MM_HINT_T1>(p.wrapping_byte_offset(ahead).cast());
                        }
                        k[t] = load8::<KIND>(p);
                    }
                    for h in 0..H {
                        let q = _mm256_load_ps(q.add(16 * (h * lines + l) + 8 * i));
                        for t in 0..T {
                            acc[h * T + t] = _mm256_fmadd_ps(q, k[t], acc[h * T + t]);
                        }
                    }
                }
            }
            *eights = acc;
        }
        let mut out = [0.0f32; 8];
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let sums = sum_four([0, 1, 2, 3].map(|j| _mm256_add_ps(eights[0][4 * i + j], eights[1][4 * i + j])));
            // SAFETY: four numbers.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), _mm_mul_ps(sums, _mm_set1_ps(mul))) };
        }
        for h in 0..H {
            let to = &mut x[(first + h) * X_STRIDE + t0 / 16].0[t0 % 16..t0 % 16 + T];
            for t in 0..T {
                to[t] = out[h * T + t];
            }
        }
    }
}

/// Sums of eight lanes each, by halves: to four lanes, then two sums to a register, then one lane each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_four(eights: [__m256; 4]) -> __m128 {
    let mut four = [_mm_setzero_ps(); 4];
    for i in 0..4 {
        four[i] = _mm_add_ps(_mm256_castps256_ps128(eights[i]), _mm256_extractf128_ps::<1>(eights[i]));
    }
    let pairs = |a, b| _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    let (a, b) = (pairs(four[0], four[1]), pairs(four[2], four[3]));
    _mm_add_ps(_mm_shuffle_ps::<0x88>(a, b), _mm_shuffle_ps::<0xdd>(a, b))
}

/// `o += sum_t w_t v_t`.
pub(super) fn value_rows(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    assert!(side.n <= shape.tokens && side.len() >= side.n * shape.dim && w.len() >= shape.heads * X_STRIDE);
    assert!(o.len() >= shape.heads * shape.dim_lines() && shape.dim_lines().is_multiple_of(2));
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        match side.element {
            Element::F16 => row_lines::<F16>(side, w, shape, o),
            Element::Bf16 => row_lines::<BF16>(side, w, shape, o),
            Element::E4m3 => row_lines::<E4M3>(side, w, shape, o),
            Element::E5m2 => row_lines::<E5M2>(side, w, shape, o),
        }
    }
}

/// # Safety
/// The asserts of [`value_rows`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_lines<const KIND: u8>(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    let lines = shape.dim_lines();
    let mut h = 0;
    while h < shape.heads {
        let width = at_once(shape.heads - h);
        let mut line = 0;
        while line < lines {
            let wide = line + 4 <= lines;
            // SAFETY: `h + width <= heads`; every head dimension has an even number of lines.
            unsafe {
                match (width, wide) {
                    (1, true) => row_sums::<1, 4, KIND>(side, w, h, line, shape, o),
                    (1, false) => row_sums::<1, 2, KIND>(side, w, h, line, shape, o),
                    (2, _) => row_sums::<2, 2, KIND>(side, w, h, line, shape, o),
                    _ => row_sums::<4, 1, KIND>(side, w, h, line, shape, o),
                }
            }
            line += match (width, wide) {
                (1, true) => 4,
                (1 | 2, _) => 2,
                _ => 1,
            };
        }
        h += width;
    }
}

/// One chain per output element, in token order, whatever the number of heads.
///
/// # Safety
/// The asserts of [`value_rows`], `first + H <= heads`, `line + L <= dim / 16`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn row_sums<const H: usize, const L: usize, const KIND: u8>(
    side: &Side<'_>,
    w: &[Line],
    first: usize,
    line: usize,
    shape: Shape,
    o: &mut [Line],
) {
    let (rows, n, lines) = (side.as_ptr(), side.n, shape.dim_lines());
    let ahead = if first == 0 { side.ahead } else { 0 };
    let weights = w[first * X_STRIDE..(first + H) * X_STRIDE].as_ptr().cast::<f32>();
    let mut acc = [[[_mm256_setzero_ps(); 2]; L]; H];
    // SAFETY: lines are 64 aligned bytes; 16 channels of `L` lines of every row below `n`; 64 weights a head.
    unsafe {
        for h in 0..H {
            for l in 0..L {
                let p = o[(first + h) * lines + line + l].0.as_ptr();
                acc[h][l] = [_mm256_load_ps(p), _mm256_load_ps(p.add(8))];
            }
        }
        for t in 0..n {
            let p = rows.add((t * shape.dim + 16 * line) * bytes_of(KIND));
            for l in 0..L {
                let p = p.add(16 * l * bytes_of(KIND));
                if (line + l).is_multiple_of(4 / bytes_of(KIND)) {
                    _mm_prefetch::<_MM_HINT_T1>(p.wrapping_byte_offset(ahead).cast());
                }
                let v = load_pair::<KIND>(p);
                for h in 0..H {
                    let w = _mm256_set1_ps(*weights.add(h * 16 * X_STRIDE + t));
                    for i in 0..2 {
                        acc[h][l][i] = _mm256_fmadd_ps(w, v[i], acc[h][l][i]);
                    }
                }
            }
        }
        for h in 0..H {
            for l in 0..L {
                let p = o[(first + h) * lines + line + l].0.as_mut_ptr();
                _mm256_store_ps(p, acc[h][l][0]);
                _mm256_store_ps(p.add(8), acc[h][l][1]);
            }
        }
    }
}

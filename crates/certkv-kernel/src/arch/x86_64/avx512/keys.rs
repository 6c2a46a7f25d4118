//! Logits of one block.
use super::{BF16, E4M3, E5M2, F16, bytes_of, lanes, larger, load16, max4, place, put, split, step, sum16};
use crate::arch::generic::unpack::{self as plain, Bytes};
use crate::block::{Element, Side};
use crate::line::{Codes, Line};
use crate::parts::Run;
use crate::query::{Cursor, DIGIT_STRIDE, Digits, HEADS, KeyCodes, Levels, QUERY_LEVELS, Scaling, Shape, X_STRIDE};
use certkv_core::Dtype;
use core::arch::x86_64::*;

/// Digits of `q o sigma`.
pub(super) fn channel_digits(
    q: &[Line],
    scales: &[u8],
    meta: Dtype,
    shape: Shape,
    out: &mut Digits,
    ahead: &mut Cursor,
) {
    assert!(q.len() >= shape.heads * shape.dim_lines() && shape.heads <= HEADS && shape.dim <= 256);
    assert!(shape.dim.is_multiple_of(32) && scales.len() >= 2 * shape.dim * meta.bytes());
    assert!(out.bytes.len() >= shape.heads * DIGIT_STRIDE);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        match meta {
            Dtype::F16 => channel::<0>(q, scales.as_ptr(), shape, out, ahead),
            Dtype::Bf16 => channel::<1>(q, scales.as_ptr(), shape, out, ahead),
            Dtype::F32 => channel::<2>(q, scales.as_ptr(), shape, out, ahead),
        }
    }
}

/// # Safety
/// 16 elements of the metadata type (0: f16, 1: bf16, 2: f32) are readable at element `i` of `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn meta16<const META: u8>(p: *const u8, i: usize) -> __m512 {
    // SAFETY: as the function's.
    unsafe {
        match META {
            0 => load16::<F16>(p.add(2 * i)),
            1 => load16::<BF16>(p.add(2 * i)),
            _ => _mm512_loadu_ps(p.add(4 * i).cast()),
        }
    }
}

/// # Safety
/// The asserts of [`channel_digits`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn channel<const META: u8>(q: &[Line], scales: *const u8, shape: Shape, out: &mut Digits, ahead: &mut Cursor) {
    let mut h = 0;
    while h < shape.heads {
        // SAFETY: as the function's; `h` plus the width of each call is at most `heads`.
        unsafe {
            match shape.heads - h {
                1 => channel_heads::<1, META>(q, scales, h, shape, out, ahead),
                2 | 3 => channel_heads::<2, META>(q, scales, h, shape, out, ahead),
                _ => channel_heads::<4, META>(q, scales, h, shape, out, ahead),
            }
        }
        h += match shape.heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

/// # Safety
/// The asserts of [`channel_digits`], `first + H <= heads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn channel_heads<const H: usize, const META: u8>(
    q: &[Line],
    scales: *const u8,
    first: usize,
    shape: Shape,
    out: &mut Digits,
    ahead: &mut Cursor,
) {
    let n = shape.dim_lines();
    let zero = _mm512_setzero_ps();
    let q = q[first * n..(first + H) * n].as_ptr();
    let mut cursor = *ahead;
    // Slots of the sums: heads' l1, squares, offset, digits.
    let (mut most, mut sums) = ([zero; 4], [zero; 16]);
    for l in 0..n {
        step(&mut cursor);
        step(&mut cursor);
        // SAFETY: channels 16 l .. 16 l + 16 of sigma lie inside the scales; lines are 64 aligned bytes.
        unsafe {
            let sigma = meta16::<META>(scales, 16 * l);
            for h in 0..H {
                let v = _mm512_mul_ps(_mm512_load_ps(q.add(h * n + l).cast()), sigma);
                let a = _mm512_abs_ps(v);
                most[h] = larger(most[h], a);
                sums[h] = _mm512_add_ps(sums[h], a);
                sums[4 + h] = _mm512_fmadd_ps(v, v, sums[4 + h]);
            }
        }
    }
    // A query too small for the inverse of its step scores as 0, and all of it is residual. NaN counts as usable.
    let most = max4(most);
    let usable = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(most, _mm512_set1_ps(7.9e-31));
    let levels = _mm512_set1_ps(QUERY_LEVELS);
    let inverse = _mm512_maskz_div_ps(usable, levels, most);
    let width = _mm512_castps512_ps128(_mm512_maskz_div_ps(usable, most, levels));
    // Head `h` is in lane `h` of every four.
    let inverse = [
        _mm512_permute_ps::<0x00>(inverse),
        _mm512_permute_ps::<0x55>(inverse),
        _mm512_permute_ps::<0xaa>(inverse),
        _mm512_permute_ps::<0xff>(inverse),
    ];
    // What does not need the steps fills the wait for them.
    for l in 0..n {
        // SAFETY: channels 16 l .. 16 l + 16 of z lie inside the scales; lines are 64 aligned bytes.
        unsafe {
            let z = meta16::<META>(scales, shape.dim + 16 * l);
            for h in 0..H {
                sums[8 + h] = _mm512_fmadd_ps(_mm512_load_ps(q.add(h * n + l).cast()), z, sums[8 + h]);
            }
        }
    }
    // Adding 1.5 2^23 rounds to an integer and leaves it in the low bits; with 128 more, byte 1 is the high digit and byte
    // 0 the low one with its sign bit flipped.
    let magic = _mm512_set1_ps(12_583_040.0);
    let flip = _mm512_castsi256_si512(_mm256_set1_epi8(-128));
    let flip = _mm512_zextsi256_si512(_mm512_castsi512_si256(flip));
    let ones = _mm512_set1_epi8(1);
    // Sums of low digits in the lower half, of high digits in the upper.
    let mut total = [_mm512_setzero_si512(); H];
    let p = out.bytes[first * DIGIT_STRIDE..(first + H) * DIGIT_STRIDE].as_mut_ptr();
    for l in (0..n).step_by(2) {
        // SAFETY: channels 16 l .. 16 l + 32 of sigma lie inside the scales.
        let sigma = unsafe { [meta16::<META>(scales, 16 * l), meta16::<META>(scales, 16 * l + 16)] };
        for h in 0..H {
            step(&mut cursor);
            // SAFETY: lines are 64 aligned bytes; 16 l + 32 <= dim <= 256: the store lies inside the head's digits.
            unsafe {
                let mut raised = [_mm512_setzero_si512(); 2];
                for i in 0..2 {
                    let v = _mm512_mul_ps(_mm512_load_ps(q.add(h * n + l + i).cast()), sigma[i]);
                    raised[i] = _mm512_castps_si512(_mm512_fmadd_ps(v, inverse[h], magic));
                }
                let bytes = _mm512_xor_si512(split(raised[0], raised[1]), flip);
                total[h] = _mm512_dpbusd_epi32(total[h], ones, bytes);
                _mm512_storeu_si512(p.add(h * DIGIT_STRIDE + 32 * l).cast(), bytes);
            }
        }
    }
    *ahead = cursor;
    let worth = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(1.0), _mm512_set1_ps(256.0));
    for h in 0..H {
        // Below 2^24 and so exact in f32, lane by lane and in sum.
        sums[12 + h] = _mm512_mul_ps(_mm512_cvtepi32_ps(total[h]), worth);
    }
    let sums = sum16(&sums);
    let l1 = _mm512_castps512_ps128(sums);
    put::<H>(&mut out.l1, first, l1);
    put::<H>(&mut out.square, first, _mm512_extractf32x4_ps::<1>(sums));
    put::<H>(&mut out.offset, first, _mm512_extractf32x4_ps::<2>(sums));
    put::<H>(&mut out.step, first, width);
    // Half a step a channel (4.15): measuring the residual costs more time than it saves bound.
    let small = _mm_cmp_ps_mask::<_CMP_EQ_OQ>(width, _mm_setzero_ps());
    let residual = _mm_mul_ps(_mm_set1_ps(0.5 * shape.dim as f32), width);
    put::<H>(&mut out.residual, first, _mm_mask_mov_ps(residual, small, l1));
    let mut digits = [0.0; HEADS];
    put::<4>(&mut digits, 0, _mm512_extractf32x4_ps::<3>(sums));
    for h in 0..H {
        out.sums[first + h][0] = digits[h] as i32;
    }
}

/// Logits on codes: 8 bits in place, 4 bits in place where a line of bytes holds two tiles, other widths unpacked first.
pub(super) fn score_codes(
    k: &KeyCodes<'_>,
    digits: &Digits,
    scratch: &mut [Codes],
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let count = shape.tokens * shape.dim;
    assert!(k.fits(shape) && scratch.len() * 64 >= count);
    assert!(digits.bytes.len() >= shape.heads * DIGIT_STRIDE && x.len() >= shape.heads * X_STRIDE);
    let parts = if let Scaling::Parts { parts, .. } = k.scaling { Some(parts) } else { None };
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        if k.bits == 4 && shape.tokens >= 32 && parts.is_none() {
            match k.levels {
                Some(_) => heads::<2, LEVELS4>(k, k.section.as_ptr(), digits, shape, x, ahead),
                None => heads::<2, CODES4>(k, k.section.as_ptr(), digits, shape, x, ahead),
            }
            return;
        }
        let codes = match parts {
            Some(parts) => {
                parts.unpack(k.section, shape.tokens, scratch, |s, b, n, l, out| unpack::<false>(s, b, n, l, out));
                scratch.as_ptr().cast()
            }
            None if k.bits == 8 => k.section.as_ptr(),
            None => {
                unpack::<false>(k.section, k.bits, count, k.levels, scratch);
                scratch.as_ptr().cast()
            }
        };
        if shape.tokens >= 32 {
            heads::<2, BYTES>(k, codes, digits, shape, x, ahead);
        } else {
            heads::<1, BYTES>(k, codes, digits, shape, x, ahead);
        }
    }
}

/// The plain unpacking, and levels by one byte shuffle.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
pub(super) fn unpack<const RAISED: bool>(
    section: &[u8],
    bits: usize,
    count: usize,
    levels: Option<&Levels>,
    out: &mut [Codes],
) {
    let Some(levels) = levels else { return plain::unpack::<RAISED>(section, bits, count, out, |codes| codes) };
    plain::unpack::<false>(section, bits, count, out, |codes| look_up(levels, codes));
}

/// What codes stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
fn look_up(levels: &Levels, mut codes: Bytes) -> Bytes {
    // SAFETY: the table and the codes are 64 bytes.
    unsafe {
        let table = _mm512_loadu_si512(levels.as_ptr().cast());
        let found = _mm512_permutexvar_epi8(_mm512_loadu_si512(codes.as_ptr().cast()), table);
        _mm512_storeu_si512(codes.as_mut_ptr().cast(), found);
    }
    codes
}

/// How the inner loops find codes: as bytes, as two nibbles a byte, or as nibbles that stand for a level.
pub(super) const BYTES: u8 = 0;
pub(super) const CODES4: u8 = 1;
pub(super) const LEVELS4: u8 = 2;

/// All heads and tiles, `T` tiles at a time.
///
/// # Safety
/// The asserts of [`score_codes`]; `codes` points at the section (nibbles) or at `tokens * dim` bytes of 8-bit codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn heads<const T: usize, const W: u8>(
    k: &KeyCodes<'_>,
    codes: *const u8,
    digits: &Digits,
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let mut h = 0;
    while h < shape.heads {
        // SAFETY: as the function's; `h` plus the width of each call is at most `heads`.
        unsafe {
            match shape.heads - h {
                1 => tiles::<1, T, W>(k, codes, digits, h, shape, x, ahead),
                2 | 3 => tiles::<2, T, W>(k, codes, digits, h, shape, x, ahead),
                _ => tiles::<4, T, W>(k, codes, digits, h, shape, x, ahead),
            }
        }
        h += match shape.heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

/// `H` heads from `first` on, all tiles.
///
/// # Safety
/// As [`heads`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn tiles<const H: usize, const T: usize, const W: u8>(
    k: &KeyCodes<'_>,
    codes: *const u8,
    digits: &Digits,
    first: usize,
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let count = shape.tokens / 16;
    let base = digits.bytes[first * DIGIT_STRIDE..].as_ptr();
    let half = k.half();
    // Per-channel keys have asked for lines while their digits were made; others have the key loop only.
    let twice = W == BYTES && !matches!(k.scaling, Scaling::Channel);
    for pair in 0..count / T {
        // With nibbles the two tiles of a byte line are half a block apart.
        let mut tile = [0; T];
        for i in 0..T {
            tile[i] = if W != BYTES { pair + i * count / 2 } else { pair * T + i };
        }
        let mut logit = [[_mm512_setzero_ps(); T]; H];
        for g in 0..k.groups(shape.dim) {
            let run = k.run(g, shape);
            let mut bias = [0; H];
            for h in 0..H {
                bias[h] = -half * digits.sums[first + h][g];
            }
            // SAFETY: tiles and quads lie inside the codes, `first + H <= heads` digits exist.
            let sums = unsafe { products::<H, T, W>(codes, k.levels, tile, &run, base, bias, ahead, twice) };
            for i in 0..T {
                // SAFETY: 16 tokens of the group's scales lie inside `scales`.
                let scale = k
                    .scales()
                    .map(|scales| unsafe { load16::<F16>(scales.as_ptr().add(2 * (g * shape.tokens + 16 * tile[i]))) });
                for h in 0..H {
                    let mul = _mm512_set1_ps(k.mul[first + h]);
                    let unit = scale.map_or(mul, |s| _mm512_mul_ps(s, mul));
                    // Added here, not set before the products: sixteen sums of integers need the registers.
                    let before = if g == 0 { _mm512_set1_ps(k.add[first + h]) } else { logit[h][i] };
                    logit[h][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[h][i]), unit, before);
                }
            }
        }
        for h in 0..H {
            for i in 0..T {
                let to = &mut x[(first + h) * X_STRIDE + tile[i]];
                // SAFETY: a line is 64 aligned bytes.
                unsafe { _mm512_store_ps(to.0.as_mut_ptr(), logit[h][i]) };
            }
        }
    }
}

/// The inner loop: integer sums of `H` heads over `T` tiles of 16 tokens, exact.
///
/// # Safety
/// The quads of the run in all tiles lie inside `codes`; `base` has `H` heads of digits at [`DIGIT_STRIDE`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn products<const H: usize, const T: usize, const W: u8>(
    codes: *const u8,
    levels: Option<&Levels>,
    tile: [usize; T],
    run: &Run,
    base: *const i8,
    bias: [i32; H],
    ahead: &mut Cursor,
    twice: bool,
) -> [[__m512i; T]; H] {
    let mut low = [[_mm512_setzero_si512(); T]; H];
    let mut high = [[_mm512_setzero_si512(); T]; H];
    let nibble = _mm512_set1_epi8(15);
    // SAFETY: the table is 64 bytes.
    let table = levels.map_or(nibble, |t| unsafe { _mm512_loadu_si512(t.as_ptr().cast()) });
    let mut cursor = *ahead;
    for quad in run.quads.clone() {
        step(&mut cursor);
        if twice {
            step(&mut cursor);
        }
        let mut line = [_mm512_setzero_si512(); T];
        // SAFETY: as the function's.
        unsafe {
            if W != BYTES {
                let p = codes.add(run.line(tile[0], quad) * 64);
                let raw = _mm512_loadu_si512(p.cast());
                if W == CODES4 {
                    line[0] = _mm512_and_si512(raw, nibble);
                    line[T - 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(raw), nibble);
                } else {
                    // The table repeats itself every 16 bytes: what else is in an index does not matter.
                    line[0] = _mm512_permutexvar_epi8(raw, table);
                    line[T - 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(raw), table);
                }
            } else {
                for i in 0..T {
                    let p = codes.add(run.line(tile[i], quad) * 64);
                    line[i] = _mm512_loadu_si512(p.cast());
                }
            }
            for h in 0..H {
                let p = base.add(h * DIGIT_STRIDE + place(quad));
                let lo = _mm512_set1_epi32(p.cast::<i32>().read_unaligned());
                let hi = _mm512_set1_epi32(p.add(32).cast::<i32>().read_unaligned());
                for i in 0..T {
                    low[h][i] = _mm512_dpbusd_epi32(low[h][i], line[i], lo);
                    high[h][i] = _mm512_dpbusd_epi32(high[h][i], line[i], hi);
                }
            }
        }
    }
    *ahead = cursor;
    // The digits' sums come last: they are ready long after the first digits are.
    for h in 0..H {
        let bias = _mm512_set1_epi32(bias[h]);
        for i in 0..T {
            let sum = _mm512_add_epi32(low[h][i], _mm512_slli_epi32::<8>(high[h][i]));
            low[h][i] = _mm512_add_epi32(sum, bias);
        }
    }
    low
}

/// Logits on 16-bit rows.
pub(super) fn score_rows(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    assert!(side.n <= shape.tokens && side.len() >= side.n * shape.dim);
    assert!(q.len() >= shape.heads * shape.dim_lines() && x.len() >= shape.heads * X_STRIDE);
    assert!(shape.tokens <= 16 * X_STRIDE);
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn row_heads<const KIND: u8>(side: &Side<'_>, q: &[Line], mul: f32, shape: Shape, x: &mut [Line]) {
    let mut h = 0;
    while h < shape.heads {
        // SAFETY: as the function's; `h` plus the width of each call is at most `heads`.
        unsafe {
            match shape.heads - h {
                1 => row_dots::<1, 16, KIND>(side, q, mul, h, shape, x),
                2 | 3 => row_dots::<2, 8, KIND>(side, q, mul, h, shape, x),
                _ => row_dots::<4, 4, KIND>(side, q, mul, h, shape, x),
            }
        }
        h += match shape.heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

/// `H` heads x `T` tokens (16 sums) at a time. A head's logit has the same bits for every `H`.
///
/// # Safety
/// The asserts of [`score_rows`], `first + H <= heads`, `H T = 16`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn row_dots<const H: usize, const T: usize, const KIND: u8>(
    side: &Side<'_>,
    q: &[Line],
    mul: f32,
    first: usize,
    shape: Shape,
    x: &mut [Line],
) {
    let (rows, n) = (side.as_ptr(), side.n);
    let ahead = if first == 0 { side.ahead } else { 0 };
    let lines = shape.dim_lines();
    let q = q[first * lines..(first + H) * lines].as_ptr();
    for t0 in (0..n).step_by(T) {
        let mut acc = [_mm512_setzero_ps(); 16];
        // Rows past `n` are never read: the last row stands in, and its logits are masked by `weigh`.
        let mut row = [rows; T];
        for t in 0..T {
            // SAFETY: row min(t0 + t, n - 1) lies inside the side.
            row[t] = unsafe { rows.add((t0 + t).min(n - 1) * shape.dim * bytes_of(KIND)) };
        }
        for l in 0..lines {
            // SAFETY: 16 channels of each row; lines of `H` queries.
            unsafe {
                let mut k = [_mm512_setzero_ps(); T];
                for t in 0..T {
                    let p = row[t].add(16 * l * bytes_of(KIND));
                    if l % (4 / bytes_of(KIND)) == 0 {
                        _mm_prefetch::<_MM_HINT_T1>(p.wrapping_byte_offset(ahead).cast());
                    }
                    k[t] = load16::<KIND>(p);
                }
                for h in 0..H {
                    let q = _mm512_load_ps(q.add(h * lines + l).cast());
                    for t in 0..T {
                        acc[h * T + t] = _mm512_fmadd_ps(q, k[t], acc[h * T + t]);
                    }
                }
            }
        }
        let sums = lanes(_mm512_mul_ps(sum16(&acc), _mm512_set1_ps(mul)));
        for h in 0..H {
            let to = &mut x[(first + h) * X_STRIDE + t0 / 16].0[t0 % 16..t0 % 16 + T];
            for t in 0..T {
                to[t] = sums[h * T + t];
            }
        }
    }
}

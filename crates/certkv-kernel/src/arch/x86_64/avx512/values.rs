//! `o += sum_t w_t v_t` for one block.
use super::keys::{BYTES, CODES4, LEVELS4, unpack};
use super::{BF16, E4M3, E5M2, F16, bytes_of, larger, load16, place, split, step};
use crate::arch::generic::values::LEAST_WEIGHT;
use crate::block::{Element, Side};
use crate::channel_values::Join;
use crate::line::Line;
use crate::query::{Cursor, GROUPS, HEADS, Levels, Shape, Softmax, ValueCodes, ValueScratch, ValueSlack, X_STRIDE};
use core::arch::x86_64::*;

/// Bytes from one head's weight digits to the next: 32 low bytes, then 32 high bytes, for every 32 tokens (see [`place`]).
/// Groups are [`HEADS`] times as far.
const STRIDE: usize = 128;

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
    assert!(v.scales.len() >= v.scale_bytes(shape));
    assert!(scratch.bytes.len() * 64 >= GROUPS * HEADS * STRIDE && scratch.middle.len() >= HEADS * GROUPS);
    assert!(shape.dim / v.group <= GROUPS);
    // SAFETY: the table is handed out only where the features exist; the asserts give the lengths.
    unsafe {
        match (shape.tokens / 16, v.bits, v.levels) {
            (1, 4, None) => coded::<1, CODES4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (2, 4, None) => coded::<2, CODES4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (_, 4, None) => coded::<4, CODES4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (1, 4, _) => coded::<1, LEVELS4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (2, 4, _) => coded::<2, LEVELS4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (_, 4, _) => coded::<4, LEVELS4>(v, v.section.as_ptr(), w, s, shape, scratch, o, ahead),
            (lines, bits, _) => {
                let codes = if bits == 8 {
                    v.section.as_ptr()
                } else {
                    // Codes raised to the top of their byte: flipping bit 7 then makes them signed and centred. Levels are there.
                    unpack::<true>(v.section, bits, count, v.levels, &mut scratch.codes);
                    scratch.codes.as_ptr().cast()
                };
                match lines {
                    1 => coded::<1, BYTES>(v, codes, w, s, shape, scratch, o, ahead),
                    2 => coded::<2, BYTES>(v, codes, w, s, shape, scratch, o, ahead),
                    _ => coded::<4, BYTES>(v, codes, w, s, shape, scratch, o, ahead),
                }
            }
        }
    }
}

/// Largest of `16 N` non-negative f16 values: their bit patterns are ordered like the values, NaN comes last.
///
/// # Safety
/// `32 N` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn largest_f16<const N: usize>(p: *const u8) -> f32 {
    let sign = _mm256_set1_epi16(0x7fff);
    let mut most = _mm256_setzero_si256();
    for l in 0..N {
        // SAFETY: as the function's.
        let v = unsafe { _mm256_loadu_si256(p.add(32 * l).cast()) };
        most = _mm256_max_epu16(most, _mm256_and_si256(v, sign));
    }
    let most = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    // The instruction knows minima only.
    let least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_xor_si128(least, _mm_set1_epi16(-1))))
}

/// `N` lines of tokens.
///
/// # Safety
/// The asserts of [`value_codes`]; `codes` points at the section (nibbles) or at `tokens * dim` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,f16c")]
unsafe fn coded<const N: usize, const W: u8>(
    v: &ValueCodes<'_>,
    codes: *const u8,
    w: &[Line],
    s: &Softmax,
    shape: Shape,
    scratch: &mut ValueScratch,
    o: &mut [Line],
    ahead: &mut Cursor,
) -> ValueSlack {
    let (tokens, dim) = (16 * N, shape.dim);
    let groups = dim / v.group;
    let half = _mm512_set1_ps(v.half() as f32);
    // Codes stand `8 - bits` bits too high, levels do not.
    let raised = 1.0 / (1u32 << (8 - v.width())) as f32;
    let zero = _mm512_setzero_ps();
    // Largest sigma of each group, and the factor that brings it to the largest digit.
    let (mut largest, mut factor) = ([0.0f32; GROUPS], [0.0f32; GROUPS]);
    for (g, (largest, factor)) in largest.iter_mut().zip(&mut factor).enumerate().take(groups) {
        // SAFETY: the group's sigma lie inside the scales.
        *largest = unsafe { largest_f16::<N>(v.scales.as_ptr().add(2 * g * tokens)) };
        *factor = if *largest > 0.0 { 65535.0 / *largest } else { 0.0 };
    }
    let mut unit = [0.0f32; HEADS];
    // Weights relative to the largest; their lanes are written before they are read.
    let mut relative = [[core::mem::MaybeUninit::<Line>::uninit(); N]; HEADS];
    for h in 0..shape.heads {
        let usable = s.max[h] >= LEAST_WEIGHT;
        unit[h] = if usable { s.max[h] * (raised / 65535.0) } else { 0.0 };
        let inverse = _mm512_set1_ps(if usable { 1.0 / s.max[h] } else { 0.0 });
        for l in 0..N {
            // SAFETY: lines are 64 aligned bytes.
            unsafe {
                let w = _mm512_load_ps(w[h * X_STRIDE + l].0.as_ptr());
                _mm512_store_ps(relative[h][l].as_mut_ptr().cast(), _mm512_mul_ps(w, inverse));
            }
        }
    }
    // Adding 2^23 rounds to an integer and leaves it in the low bits.
    let magic = _mm512_set1_ps(8_388_608.0);
    let (mut sigma_square, mut middle) = (0.0f32, [zero; N]);
    for g in 0..groups {
        let (mut sigma, mut mid) = ([zero; N], [zero; N]);
        let factor = _mm512_set1_ps(factor[g]);
        for l in 0..N {
            // SAFETY: 16 tokens of the group's sigma, and of z where there is one, lie inside the scales.
            let z = unsafe {
                sigma[l] = load16::<F16>(v.scales.as_ptr().add(2 * (g * tokens + 16 * l)));
                if v.offsets {
                    load16::<F16>(v.scales.as_ptr().add(2 * ((groups + g) * tokens + 16 * l)))
                } else {
                    // What makes the middle 0.
                    _mm512_mul_ps(sigma[l], _mm512_sub_ps(zero, half))
                }
            };
            mid[l] = _mm512_fmadd_ps(sigma[l], half, z);
            middle[l] = _mm512_fmadd_ps(mid[l], mid[l], middle[l]);
            sigma[l] = _mm512_mul_ps(sigma[l], factor);
        }
        sigma_square = largest[g].mul_add(largest[g], sigma_square);
        for h in 0..shape.heads {
            step(ahead);
            scratch.units[g][h] = unit[h] * largest[g];
            let mut digit = [_mm512_setzero_si512(); N];
            let lane = &mut scratch.middle[h * GROUPS + g].0;
            // SAFETY: lines are 64 aligned bytes, `relative[h]` was written above; a head's digits are 128 bytes.
            unsafe {
                let mut sum = _mm512_load_ps(lane.as_ptr());
                for l in 0..N {
                    let r = _mm512_load_ps(relative[h][l].as_ptr().cast());
                    digit[l] = _mm512_castps_si512(_mm512_fmadd_ps(r, sigma[l], magic));
                    sum = _mm512_fmadd_ps(_mm512_load_ps(w[h * X_STRIDE + l].0.as_ptr()), mid[l], sum);
                }
                _mm512_store_ps(lane.as_mut_ptr(), sum);
                let p = scratch.bytes.as_mut_ptr().cast::<u8>().add((g * HEADS + h) * STRIDE);
                if N == 1 {
                    _mm512_storeu_si512(p.cast(), split(digit[0], digit[0]));
                } else {
                    for i in 0..N / 2 {
                        _mm512_storeu_si512(p.add(64 * i).cast(), split(digit[2 * i], digit[2 * i + 1]));
                    }
                }
            }
        }
    }
    // As integers NaN is the largest, if its sign is taken away.
    let mut most = zero;
    for m in middle {
        most = larger(most, _mm512_abs_ps(m));
    }
    let most = _mm512_reduce_max_epi32(_mm512_castps_si512(most));
    let most = f32::from_bits(most as u32);
    // All digits first, then all products: no product waits for the digits' latency.
    for g in 0..groups {
        // SAFETY: `g` is below [`GROUPS`], which the scratch has room for.
        let digits = unsafe { scratch.bytes.as_ptr().cast::<u8>().add(g * HEADS * STRIDE) };
        let units = &scratch.units[g];
        let mut line = g * v.group / 16;
        let end = (g + 1) * v.group / 16;
        while line < end {
            // SAFETY: as the function's; `line + 2 <= end` in the wide form.
            unsafe {
                if line + 2 <= end {
                    group_heads::<2, W>(codes, v.levels, ahead, digits, line, units, shape, o);
                    line += 2;
                } else {
                    group_heads::<1, W>(codes, v.levels, ahead, digits, line, units, shape, o);
                    line += 1;
                }
            }
        }
    }
    let group = v.group as f32;
    ValueSlack { sigma: (sigma_square * group).sqrt(), middle: (most * group).sqrt() }
}

/// `L` lines of channels for all heads.
///
/// # Safety
/// As [`coded`]; channels `16 line .. 16 (line + L)` exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn group_heads<const L: usize, const W: u8>(
    codes: *const u8,
    levels: Option<&Levels>,
    ahead: &mut Cursor,
    digits: *const u8,
    line: usize,
    units: &[f32; HEADS],
    shape: Shape,
    o: &mut [Line],
) {
    let mut h = 0;
    while h < shape.heads {
        // SAFETY: as the function's; `h` plus the width of each call is at most `heads`.
        unsafe {
            match shape.heads - h {
                1 => products::<1, L, W>(codes, levels, ahead, digits, line, units, h, shape, o),
                2 | 3 => products::<2, L, W>(codes, levels, ahead, digits, line, units, h, shape, o),
                _ => products::<4, L, W>(codes, levels, ahead, digits, line, units, h, shape, o),
            }
        }
        h += match shape.heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
    }
}

/// Low and high sums of `H` heads x `L` lines.
type Sums<const H: usize, const L: usize> = [[[__m512i; L]; H]; 2];

/// One quad of tokens: `4 H L` exact multiply-adds of bytes per lane.
///
/// # Safety
/// `digits` points at the quad's low bytes of `H` heads, [`STRIDE`] apart, the high bytes 32 further.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quad<const H: usize, const L: usize>(digits: *const u8, codes: [__m512i; L], sums: &mut Sums<H, L>) {
    for h in 0..H {
        // SAFETY: as the function's.
        let (lo, hi) = unsafe {
            let p = digits.add(h * STRIDE);
            (p.cast::<i32>().read_unaligned(), p.add(32).cast::<i32>().read_unaligned())
        };
        let (lo, hi) = (_mm512_set1_epi32(lo), _mm512_set1_epi32(hi));
        for l in 0..L {
            sums[0][h][l] = _mm512_dpbusd_epi32(sums[0][h][l], lo, codes[l]);
            sums[1][h][l] = _mm512_dpbusd_epi32(sums[1][h][l], hi, codes[l]);
        }
    }
}

/// The inner loop: `H` heads x `L` lines of 16 channels over all token quads. Digits are unsigned bytes, codes signed.
///
/// # Safety
/// As [`group_heads`], `first + H <= heads`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")]
unsafe fn products<const H: usize, const L: usize, const W: u8>(
    codes: *const u8,
    levels: Option<&Levels>,
    ahead: &mut Cursor,
    digits: *const u8,
    line: usize,
    units: &[f32; HEADS],
    first: usize,
    shape: Shape,
    o: &mut [Line],
) {
    let zero = _mm512_setzero_si512();
    let mut sums = [[[zero; L]; H]; 2];
    let flip = _mm512_set1_epi8(-128);
    let top = _mm512_set1_epi8(-16);
    let quads = shape.tokens / 4;
    // SAFETY: the table is 64 bytes.
    let table = levels.map_or(zero, |t| unsafe { _mm512_loadu_si512(t.as_ptr().cast()) });
    let table = _mm512_xor_si512(table, flip);
    for q in 0..if W != BYTES { quads / 2 } else { quads } {
        // SAFETY: quad `q` of channels `16 line ..` lies inside the codes (half of the quads for nibbles); a head has low
        // and high digit bytes of 64 tokens and `4 q + 4 <= tokens <= 64`.
        unsafe {
            let p = codes.add(q * 4 * shape.dim + 64 * line);
            let digits = digits.add(first * STRIDE);
            let (mut raw, mut even, mut odd) = ([zero; L], [zero; L], [zero; L]);
            for l in 0..L {
                step(ahead);
                raw[l] = _mm512_loadu_si512(p.add(64 * l).cast());
            }
            if W == LEVELS4 {
                // The table repeats itself every 16 bytes: what else is in an index does not matter.
                for l in 0..L {
                    even[l] = _mm512_permutexvar_epi8(raw[l], table);
                    odd[l] = _mm512_permutexvar_epi8(_mm512_srli_epi16::<4>(raw[l]), table);
                }
                quad::<H, L>(digits.add(place(q)), even, &mut sums);
                quad::<H, L>(digits.add(place(q + quads / 2)), odd, &mut sums);
            } else if W == CODES4 {
                // Nibbles to the top of their bytes, then bit 7 flipped: (raw ^ 0x80) & 0xf0 in one ternary operation.
                for l in 0..L {
                    even[l] = _mm512_ternarylogic_epi64::<0x28>(_mm512_slli_epi16::<4>(raw[l]), flip, top);
                    odd[l] = _mm512_ternarylogic_epi64::<0x28>(raw[l], flip, top);
                }
                quad::<H, L>(digits.add(place(q)), even, &mut sums);
                quad::<H, L>(digits.add(place(q + quads / 2)), odd, &mut sums);
            } else {
                for l in 0..L {
                    even[l] = _mm512_xor_si512(raw[l], flip);
                }
                quad::<H, L>(digits.add(place(q)), even, &mut sums);
            }
        }
    }
    let [low, high] = sums;
    let n = shape.dim_lines();
    for h in 0..H {
        let unit = _mm512_set1_ps(units[first + h]);
        for l in 0..L {
            let sum = _mm512_add_epi32(low[h][l], _mm512_slli_epi32::<8>(high[h][l]));
            let p = o[(first + h) * n + line + l].0.as_mut_ptr();
            // SAFETY: a line is 64 aligned bytes.
            unsafe { _mm512_store_ps(p, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), unit, _mm512_load_ps(p))) };
        }
    }
}

/// Sums of codes with a scale and an offset per channel, as [`Join::run`].
pub(super) fn join_channels(join: &Join<'_>, shape: Shape, o: &mut [Line]) -> f32 {
    assert!(join.fits(shape) && o.len() >= shape.heads * shape.dim_lines());
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { join_lines(join, shape, o) }
}

/// # Safety
/// The assert of [`join_channels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn join_lines(join: &Join<'_>, shape: Shape, o: &mut [Line]) -> f32 {
    let (lines, mut square) = (shape.dim_lines(), _mm512_setzero_ps());
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    for line in 0..lines {
        // SAFETY: 16 channels' pairs of halves; lines are 64 aligned bytes.
        unsafe {
            let p = join.scales.as_ptr().add(64 * line);
            let (a, b) = (load16::<F16>(p), load16::<F16>(p.add(32)));
            let (sigma, z) = (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b));
            square = _mm512_fmadd_ps(sigma, sigma, square);
            for h in 0..shape.heads {
                let (to, weight) = (o[h * lines + line].0.as_mut_ptr(), join.weights[h]);
                let sum = _mm512_load_ps(join.sums[h * lines + line].0.as_ptr());
                let mut x = _mm512_fmadd_ps(sigma, sum, _mm512_load_ps(to));
                x = _mm512_fmadd_ps(_mm512_set1_ps(weight), z, x);
                if let Some(half) = join.half {
                    x = _mm512_fmadd_ps(_mm512_set1_ps(half * weight), sigma, x);
                }
                _mm512_store_ps(to, x);
            }
        }
    }
    _mm512_reduce_add_ps(square)
}

/// Rows: one chain per output element, in token order, whatever the number of heads.
pub(super) fn value_rows(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    assert!(side.n <= shape.tokens && side.len() >= side.n * shape.dim && w.len() >= shape.heads * X_STRIDE);
    assert!(o.len() >= shape.heads * shape.dim_lines() && shape.tokens <= 16 * X_STRIDE);
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn row_lines<const KIND: u8>(side: &Side<'_>, w: &[Line], shape: Shape, o: &mut [Line]) {
    let lines = shape.dim_lines();
    let mut h = 0;
    while h < shape.heads {
        let width = match shape.heads - h {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        let mut line = 0;
        while line < lines {
            let wide = line + 4 <= lines;
            // SAFETY: `h + width <= heads`; every head dimension has an even number of lines.
            unsafe {
                match (width, wide) {
                    (1, true) => row_sums::<1, 4, KIND>(side, w, h, line, shape, o),
                    (1, false) => row_sums::<1, 2, KIND>(side, w, h, line, shape, o),
                    (2, true) => row_sums::<2, 4, KIND>(side, w, h, line, shape, o),
                    (2, false) => row_sums::<2, 2, KIND>(side, w, h, line, shape, o),
                    (_, true) => row_sums::<4, 4, KIND>(side, w, h, line, shape, o),
                    (_, false) => row_sums::<4, 2, KIND>(side, w, h, line, shape, o),
                }
            }
            line += if wide { 4 } else { 2 };
        }
        h += width;
    }
}

/// # Safety
/// The asserts of [`value_rows`], `first + H <= heads`, `line + L <= dim / 16`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
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
    let mut acc = [[_mm512_setzero_ps(); L]; H];
    // SAFETY: lines are 64 aligned bytes; 16 channels of `L` lines of every row below `n`; 64 weights a head.
    unsafe {
        for h in 0..H {
            for l in 0..L {
                acc[h][l] = _mm512_load_ps(o[(first + h) * lines + line + l].0.as_ptr());
            }
        }
        for t in 0..n {
            let p = rows.add((t * shape.dim + 16 * line) * bytes_of(KIND));
            let mut v = [_mm512_setzero_ps(); L];
            for l in 0..L {
                let p = p.add(16 * l * bytes_of(KIND));
                if (line + l).is_multiple_of(4 / bytes_of(KIND)) {
                    _mm_prefetch::<_MM_HINT_T1>(p.wrapping_byte_offset(ahead).cast());
                }
                v[l] = load16::<KIND>(p);
            }
            for h in 0..H {
                let w = _mm512_set1_ps(*weights.add(h * 16 * X_STRIDE + t));
                for l in 0..L {
                    acc[h][l] = _mm512_fmadd_ps(w, v[l], acc[h][l]);
                }
            }
        }
        for h in 0..H {
            for l in 0..L {
                _mm512_store_ps(o[(first + h) * lines + line + l].0.as_mut_ptr(), acc[h][l]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::Dtype;
    use certkv_core::hash::splitmix64;

    #[test]
    fn the_largest_scale_is_found_wherever_it_lies() {
        if super::super::ops().is_none() {
            return;
        }
        let largest = |bits: &[u16; 32]| {
            let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            // SAFETY: the features are there, see `ops`; 64 bytes.
            unsafe { largest_f16::<2>(bytes.as_ptr()) }
        };
        for at in 0..32 {
            for most in [0x0001u16, 0x03ff, 0x2100, 0x7bff, 0x7c00] {
                let mut bits: [u16; 32] =
                    core::array::from_fn(|i| (splitmix64((i + 32 * at) as u64) % u64::from(most)) as u16);
                bits[at] = most;
                // A negative zero must not hide the others.
                bits[(at + 7) % 32] = 0x8000;
                assert_eq!(largest(&bits), Dtype::F16.decode16(most), "{most:#x} at {at}");
            }
            let mut bits = [0x7c00u16; 32];
            bits[at] = 0x7e00;
            assert!(largest(&bits).is_nan(), "NaN at {at}");
        }
    }
}

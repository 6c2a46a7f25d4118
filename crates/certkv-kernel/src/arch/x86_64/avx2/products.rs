//! Integer products of codes and digits.
//!
//! A line of 64 codes is 16 outputs x 4: in each 32 bits the four codes of one output. Even and odd bytes, widened to words where they
//! are, make two pairs of codes for each of eight outputs, which `vpmaddwd` multiplies with the same two pairs of digits and adds. So no sum is
//! ever horizontal, and what codes are too large by comes off once, by the sum of the digits.
use super::step;
use crate::arch::at_once;
use crate::arch::generic::unpack as plain;
use crate::line::Codes;
use crate::query::{Cursor, Levels};
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Digits of four codes, those of the even ones first.
pub(super) type Quad = MaybeUninit<u64>;

/// Four quads of digits: words in their order to [`Quad`]s.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pair_up(words: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
    );
    _mm256_shuffle_epi8(words, order)
}

/// `start + sum_i code_i digit_i` for 16 outputs and `H` heads: `lines` lines `stride` bytes apart, a quad of digits each, heads
/// `head_stride` quads apart. Below 2^31: digits are below 2^15, codes below 2^8, products at most 256.
///
/// # Safety
/// `lines` lines of 64 bytes at `codes`, as many quads, written, at the digits of every head.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn products<const H: usize>(
    (codes, stride, lines): (*const u8, usize, usize),
    digits: *const Quad,
    head_stride: usize,
    start: [i32; H],
    ahead: &mut Cursor,
) -> [[__m256i; 2]; H] {
    let mut acc = [[_mm256_setzero_si256(); 2]; H];
    for h in 0..H {
        acc[h] = [_mm256_set1_epi32(start[h]); 2];
    }
    let even = _mm256_set1_epi16(0xff);
    let mut cursor = *ahead;
    for i in 0..lines {
        step(&mut cursor);
        // SAFETY: as the function's.
        unsafe {
            let p = codes.add(i * stride);
            let mut code = [[_mm256_setzero_si256(); 2]; 2];
            for j in 0..2 {
                let bytes = _mm256_loadu_si256(p.add(32 * j).cast());
                code[j] = [_mm256_and_si256(bytes, even), _mm256_srli_epi16::<8>(bytes)];
            }
            for h in 0..H {
                let quad = digits.add(h * head_stride + i).cast::<i32>();
                let pair = [_mm256_set1_epi32(*quad), _mm256_set1_epi32(*quad.add(1))];
                for j in 0..2 {
                    let first = _mm256_madd_epi16(code[j][0], pair[0]);
                    let other = _mm256_madd_epi16(code[j][1], pair[1]);
                    acc[h][j] = _mm256_add_epi32(acc[h][j], _mm256_add_epi32(first, other));
                }
            }
        }
    }
    *ahead = cursor;
    acc
}

/// Calls `each` with [`products`] of every head, `start[head]` before them.
///
/// # Safety
/// As [`products`], for all heads of `start`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn all_heads(
    codes: (*const u8, usize, usize),
    digits: *const Quad,
    head_stride: usize,
    start: &[i32],
    ahead: &mut Cursor,
    mut each: impl FnMut(usize, [__m256i; 2]),
) {
    let mut h = 0;
    while h < start.len() {
        let width = at_once(start.len() - h);
        // SAFETY: as the function's; `h + width` is at most the number of heads.
        unsafe {
            let at = digits.add(h * head_stride);
            match width {
                1 => {
                    let [a] = products::<1>(codes, at, head_stride, [start[h]], ahead);
                    each(h, a);
                }
                2 => {
                    let two = products::<2>(codes, at, head_stride, [start[h], start[h + 1]], ahead);
                    for (i, sums) in two.into_iter().enumerate() {
                        each(h + i, sums);
                    }
                }
                _ => {
                    let start = [start[h], start[h + 1], start[h + 2], start[h + 3]];
                    let four = products::<4>(codes, at, head_stride, start, ahead);
                    for (i, sums) in four.into_iter().enumerate() {
                        each(h + i, sums);
                    }
                }
            }
        }
        h += width;
    }
}

/// The plain unpacking, and levels by byte shuffles.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack(section: &[u8], bits: usize, count: usize, levels: Option<&Levels>, out: &mut [Codes]) {
    match levels {
        None => plain::unpack::<false>(section, bits, count, out, |codes| codes),
        Some(levels) if bits <= 4 => {
            plain::unpack::<false>(section, bits, count, out, |codes| look_up::<1>(levels, codes))
        }
        Some(levels) => plain::unpack::<false>(section, bits, count, out, |codes| look_up::<4>(levels, codes)),
    }
}

/// What codes below `16 N` stand for.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn look_up<const N: usize>(levels: &Levels, mut codes: plain::Bytes) -> plain::Bytes {
    for half in codes.as_chunks_mut::<32>().0 {
        // SAFETY: 16 of the 64 bytes of the table; 32 bytes of codes.
        unsafe {
            let code = _mm256_loadu_si256(half.as_ptr().cast());
            let mut found = _mm256_setzero_si256();
            for n in 0..N {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().add(16 * n).cast()));
                // A byte above 127 finds 0: those of other parts of the table are raised there.
                let own = _mm256_sub_epi8(code, _mm256_set1_epi8(16 * n as i8));
                let own = _mm256_adds_epu8(own, _mm256_set1_epi8(0x70));
                found = _mm256_or_si256(found, _mm256_shuffle_epi8(table, own));
            }
            _mm256_storeu_si256(half.as_mut_ptr().cast(), found);
        }
    }
    codes
}

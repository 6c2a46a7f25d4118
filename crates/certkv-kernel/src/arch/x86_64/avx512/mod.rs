//! AVX-512 with VBMI and VNNI (Zen 4, Ice Lake and later).
//!
//! Codes are multiplied in place: a 64-byte line holds 16 tokens x 4 channels (keys) or 16 channels x 4 tokens (values),
//! `vpdpbusd` with four broadcast digits adds 4 products to each of 16 sums, and no sum is ever horizontal. Digits are 16
//! bits in two bytes, so a line costs two instructions per head.
use super::{BF16, E4M3, E5M2, F16, bytes_of, finish, own, step, strip512};
use crate::arch::Ops;
use crate::query::HEADS;
use core::arch::x86_64::*;

mod directions;
mod keys;
mod softmax;
mod values;

static OPS: Ops = Ops {
    weight_levels: 65535.0,
    channel_digits: keys::channel_digits,
    score_codes: keys::score_codes,
    score_rows: keys::score_rows,
    fill_directions: directions::fill_directions,
    score_directions: directions::score_directions,
    weigh: softmax::weigh,
    value_codes: values::value_codes,
    join_channels: values::join_channels,
    value_rows: values::value_rows,
    certify_tiles: softmax::certify_tiles,
    seal: softmax::seal,
    finish,
    own,
    strip: strip512::strip,
    unpack_stretch: strip512::unpack,
};

/// The functions, if the machine has every feature they are compiled for. They are reachable only through this.
pub(crate) fn ops() -> Option<&'static Ops> {
    let all = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    all.then_some(&OPS)
}

/// Byte order of [`split`]: byte 0 of the 32 dwords of two vectors, then byte 1.
static SPLIT: crate::line::Codes = {
    let mut order = [0; 64];
    let mut i = 0;
    while i < 32 {
        order[i] = 4 * i as u8;
        order[32 + i] = 4 * i as u8 + 1;
        i += 1;
    }
    crate::line::Codes(order)
};

/// Where the low bytes of quad `quad` of a head's digits lie; the high bytes are 32 further. Digits of 32 channels or tokens
/// are one line, low bytes first: one store each.
#[inline(always)]
fn place(quad: usize) -> usize {
    4 * quad + 4 * (quad & !7)
}

/// The low bytes of 32 dwords in the first half, their second bytes in the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn split(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: 64 aligned bytes.
    let order = unsafe { _mm512_load_si512(SPLIT.0.as_ptr().cast()) };
    _mm512_permutex2var_epi8(a, order, b)
}

/// Sixteen numbers of a row as f32, in the unit of [`crate::block::Element`].
///
/// # Safety
/// `16 bytes_of(KIND)` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn load16<const KIND: u8>(p: *const u8) -> __m512 {
    // SAFETY: the caller vouches for so many readable bytes; loads have no alignment requirement.
    unsafe {
        match KIND {
            F16 => _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
            BF16 => {
                let half = _mm256_loadu_si256(p.cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            }
            E4M3 => {
                // The magnitude moves by one less than the sign: all copies of the sign but the first go.
                let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())));
                _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(0xbfffu16 as i16)))
            }
            _ => _mm512_cvtph_ps(_mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())))),
        }
    }
}

/// One level of a tree of sums: both vectors folded by 8, 4, 2 or 1 lanes (`FOLD`), `a`'s sums where the lane number
/// lacks that bit, `b`'s where it has it. Blends run on every unit, shuffles on few: two blends and one shuffle a pair.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fold<const FOLD: u8>(a: __m512, b: __m512) -> __m512 {
    match FOLD {
        8 => _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4::<0x4e>(a, b)),
        4 => {
            let other = _mm512_mask_blend_ps(0xf0f0, b, a);
            _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_shuffle_f32x4::<0xb1>(other, other))
        }
        2 => {
            let other = _mm512_mask_blend_ps(0xcccc, b, a);
            _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_permute_ps::<0x4e>(other))
        }
        _ => {
            let other = _mm512_mask_blend_ps(0xaaaa, b, a);
            _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, a, b), _mm512_permute_ps::<0xb1>(other))
        }
    }
}

/// Sums of the lanes of sixteen vectors, as one vector. Every input goes through the same tree of additions, whatever its
/// place: a head's logit has the same bits in any group.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn sum16(v: &[__m512; 16]) -> __m512 {
    let mut a = [_mm512_setzero_ps(); 8];
    for i in 0..8 {
        a[i] = fold::<8>(v[i], v[i + 8]);
    }
    for i in 0..4 {
        a[i] = fold::<4>(a[i], a[i + 4]);
    }
    for i in 0..2 {
        a[i] = fold::<2>(a[i], a[i + 2]);
    }
    fold::<1>(a[0], a[1])
}

/// Sums of the lanes of eight vectors through the tree of [`sum16`], with the same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn sum8(v: &[__m512; 8]) -> __m256 {
    let mut a = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        a[i] = fold::<8>(v[i], v[i + 4]);
    }
    for i in 0..2 {
        a[i] = fold::<4>(a[i], a[i + 2]);
    }
    let a = fold::<2>(a[0], a[1]);
    // Every sum is there twice, side by side.
    let a = _mm512_add_ps(a, _mm512_permute_ps::<0xb1>(a));
    _mm256_castsi256_ps(_mm512_cvtepi64_epi32(_mm512_castps_si512(a)))
}

/// The larger of non-negative lanes, as integers: their bit patterns are ordered like the values, twice as many units do
/// it, and NaN is the largest.
#[inline]
#[target_feature(enable = "avx512f")]
fn larger(a: __m512, b: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
}

/// Largest lanes of four vectors, in lanes 0 to 3 (and again in every group of four).
#[inline]
#[target_feature(enable = "avx512f")]
fn max4(v: [__m512; 4]) -> __m512 {
    let ab = _mm512_max_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    let cd = _mm512_max_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
    let m = _mm512_max_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    let m = _mm512_max_ps(m, _mm512_shuffle_f32x4::<0x4e>(m, m));
    _mm512_max_ps(m, _mm512_shuffle_f32x4::<0xb1>(m, m))
}

/// The first `H` (1, 2 or 4) lanes to `to[first ..]`. Four go in one store: whoever copies the array then reads it from
/// the store queue and does not wait for the cache.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn put<const H: usize>(to: &mut [f32; HEADS], first: usize, v: __m128) {
    let to = &mut to[first..first + H];
    if H == 4 {
        // SAFETY: `to` has four elements.
        unsafe { _mm_storeu_ps(to.as_mut_ptr(), v) };
    } else {
        let mut four = [0.0; 4];
        // SAFETY: four elements.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), v) };
        to.copy_from_slice(&four[..H]);
    }
}

/// A vector's lanes on the stack.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(v: __m512) -> [f32; 16] {
    let mut out = crate::line::Line::ZERO;
    // SAFETY: `out` is 64 bytes, 64-aligned.
    unsafe { _mm512_store_ps(out.0.as_mut_ptr(), v) };
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;
    use certkv_core::hash::splitmix64;

    #[test]
    fn sums_of_lanes_are_bit_equal_in_every_place() {
        if ops().is_none() {
            return;
        }
        let rows: [Line; 16] = core::array::from_fn(|i| {
            Line(core::array::from_fn(|j| splitmix64((16 * i + j) as u64) as i32 as f32 * 2f32.powi(j as i32 - 40)))
        });
        // SAFETY: the features are there, see `ops`; a line is 64 aligned bytes.
        unsafe {
            let v: [__m512; 16] = core::array::from_fn(|i| _mm512_load_ps(rows[i].0.as_ptr()));
            let all = lanes(sum16(&v));
            for shift in 0..8 {
                let mut eight = [0.0f32; 8];
                _mm256_storeu_ps(eight.as_mut_ptr(), sum8(&core::array::from_fn(|i| v[(i + shift) % 16])));
                for i in 0..8 {
                    let plain = rows[(i + shift) % 16].sum();
                    assert_eq!(eight[i].to_bits(), plain.to_bits(), "sum8, vector {i} of rotation {shift}");
                    assert_eq!(all[(i + shift) % 16].to_bits(), plain.to_bits(), "sum16, vector {}", (i + shift) % 16);
                }
            }
        }
    }
}

//! AVX2 with FMA and F16C.
//!
//! There is no byte product that cannot saturate, so codes are widened to 16 bits and multiplied with 16-bit digits by `vpmaddwd`
//! (`products`). What is seldom called is the plain form, compiled with wider registers.
use super::{BF16, E4M3, E5M2, F16, bytes_of, finish, step};
use crate::arch::Ops;
use crate::arch::generic::values::LEVELS;
use crate::block::Rows;
use crate::certify::{Sums, tiles_body};
use crate::directions::{DirectionCodes, Directions, fill_body, score_body};
use crate::line::Line;
use crate::masses::{BlockTile, HeadTile};
use crate::prefill::{STRETCH, Stretch};
use crate::query::{Cursor, Shape};
use crate::stage::{RawBlocks, RawHead, Shared, seal_body};
use certkv_codec::spherical::Spherical;
use certkv_core::Dtype;
use core::arch::x86_64::*;

mod keys;
mod products;
mod rows;
mod softmax;
mod strip;
mod values;

static OPS: Ops = Ops {
    weight_levels: LEVELS,
    channel_digits: keys::channel_digits,
    score_codes: keys::score_codes,
    score_rows: rows::score_rows,
    fill_directions,
    score_directions,
    weigh: softmax::weigh,
    value_codes: values::value_codes,
    join_channels: values::join_channels,
    value_rows: rows::value_rows,
    certify_tiles,
    seal,
    finish,
    own: |_| {},
    strip: strip::strip,
    unpack_stretch,
};

/// The functions, if the machine has every feature they are compiled for. They are reachable only through this.
pub(crate) fn ops() -> Option<&'static Ops> {
    let all = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    all.then_some(&OPS)
}

/// Eight numbers of a row as f32, in the unit of [`crate::block::Element`].
///
/// # Safety
/// `8 bytes_of(KIND)` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load8<const KIND: u8>(p: *const u8) -> __m256 {
    // SAFETY: the caller vouches for so many readable bytes; loads have no alignment requirement.
    unsafe {
        match KIND {
            F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))),
            E4M3 => {
                // The magnitude moves by one less than the sign: all copies of the sign but the first go.
                let wide = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast())));
                _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(0xbfffu16 as i16)))
            }
            // A code is a half's high byte.
            _ => _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(p.cast()))),
        }
    }
}

/// Sixteen numbers of a row, the first eight and the others.
///
/// # Safety
/// `16 bytes_of(KIND)` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_pair<const KIND: u8>(p: *const u8) -> [__m256; 2] {
    // SAFETY: as the function's.
    unsafe {
        match KIND {
            E4M3 => {
                // As in `load8`, sixteen in a register as long as they are words.
                let wide = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())));
                let halves = _mm256_and_si256(wide, _mm256_set1_epi16(0xbfffu16 as i16));
                [_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves)].map(|x| _mm256_cvtph_ps(x))
            }
            _ => [load8::<KIND>(p), load8::<KIND>(p.add(8 * bytes_of(KIND)))],
        }
    }
}

/// Sixteen numbers of a row as a line.
///
/// # Safety
/// `16 bytes_of(KIND)` bytes are readable at `p`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load16<const KIND: u8>(p: *const u8, out: &mut Line) {
    // SAFETY: the caller vouches for the bytes; a line is 64 aligned bytes.
    unsafe {
        let [first, second] = load_pair::<KIND>(p);
        _mm256_store_ps(out.0.as_mut_ptr(), first);
        _mm256_store_ps(out.0.as_mut_ptr().add(8), second);
    }
}

/// Sum of sixteen lanes by halving, as [`Line::sum`](crate::line::Line::sum) forms it.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum16([low, high]: [__m256; 2]) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The largest of eight integers. Of magnitudes as integers NaN is the largest.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest(x: __m256i) -> i32 {
    let four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0x4e>(four));
    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0xb1>(two)))
}

/// Sum of eight integers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total(x: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0x4e>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0xb1>(two)))
}

/// `x` without its sign.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn abs(x: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
}

fn fill_directions(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
    /// # Safety
    /// The features are there.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
        fill_body::<true>(books, q, unit, shape, work);
    }
    // SAFETY: reachable only through `ops`, which looked for the features.
    unsafe { wide(books, q, unit, shape, work) }
}

fn score_directions(k: &DirectionCodes<'_>, work: &mut Directions, shape: Shape, x: &mut [Line], _: &mut Cursor) {
    /// # Safety
    /// The features are there.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide(k: &DirectionCodes<'_>, work: &mut Directions, shape: Shape, x: &mut [Line]) {
        score_body::<true>(k, work, shape, x);
    }
    // SAFETY: reachable only through `ops`, which looked for the features.
    unsafe { wide(k, work, shape, x) }
}

fn certify_tiles(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
    #[target_feature(enable = "avx2,fma")]
    fn wide(b: &[BlockTile], r: &[HeadTile], stride: usize, exponent: f32) -> Sums {
        tiles_body::<true>(b, r, stride, exponent, |_| {})
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, r, stride, exponent) }
}

/// [`seal_body`] with wide instructions.
fn seal(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
    #[target_feature(enable = "avx2,fma")]
    fn wide(b: &RawBlocks, x: &RawHead, k: Shared, r: &mut HeadTile) {
        seal_body(b, x, k, r);
    }
    // SAFETY: the table is handed out only where the features exist.
    unsafe { wide(b, x, k, r) }
}

fn unpack_stretch(keys: Rows<'_>, values: Rows<'_>, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    let dim = out.dim;
    assert!(keys.len() >= n * dim && values.len() >= n * dim && at + n <= STRETCH && dim <= 256);
    /// # Safety
    /// The assert above.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn wide<const KIND: u8>(k: *const u8, v: *const u8, n: usize, at: usize, out: &mut Stretch) {
        let dim = out.dim;
        for t in 0..n {
            for l in 0..dim / 16 {
                let (from, mut key) = (2 * (t * dim + 16 * l), Line::ZERO);
                // SAFETY: channels 16 l .. 16 l + 16 of row `t < n` of both sides.
                unsafe {
                    load16::<KIND>(k.add(from), &mut key);
                    load16::<KIND>(v.add(from), &mut out.values[(at + t) * dim / 16 + l]);
                }
                for (c, x) in key.0.into_iter().enumerate() {
                    out.keys[(16 * l + c) * 4 + (at + t) / 16].0[(at + t) % 16] = x;
                }
            }
        }
    }
    let (k, v) = (keys.as_ptr().cast(), values.as_ptr().cast());
    // SAFETY: the table is handed out only where the features exist; the assert gives the lengths.
    unsafe { if store == Dtype::Bf16 { wide::<BF16>(k, v, n, at, out) } else { wide::<F16>(k, v, n, at, out) } }
}

//! Spherical keys: sixteen tokens of a group are one look-up in its products, which stay in registers.
use super::step;
use crate::directions::{DirectionCodes, Directions, fill_body};
use crate::line::Line;
use crate::query::{Cursor, Shape, X_STRIDE};
use certkv_codec::spherical::Spherical;
use core::arch::x86_64::*;

pub(super) fn fill_directions(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
    /// # Safety
    /// The features are there: reachable only through `ops`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    unsafe fn wide(books: &Spherical, q: &[Line], unit: f32, shape: Shape, work: &mut Directions) {
        fill_body::<false>(books, q, unit, shape, work);
    }
    // SAFETY: `OPS` is handed out by `ops` alone, which has looked for the features.
    unsafe { wide(books, q, unit, shape, work) }
}

pub(super) fn score_directions(
    k: &DirectionCodes<'_>,
    work: &mut Directions,
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    assert!(k.fits(shape) && matches!(shape.tokens, 16 | 32 | 64) && shape.heads <= 16);
    assert!(x.len() >= shape.heads * X_STRIDE && work.table().len() >= ((shape.heads * k.groups) << k.bits) + 8);
    let tiles = match shape.tokens {
        16 => wide::<1>,
        32 => wide::<2>,
        _ => wide::<4>,
    };
    // SAFETY: `OPS` is handed out by `ops` alone, which has looked for the features; the asserts are what `wide` asks for.
    unsafe { tiles(k, work, shape, x, ahead) }
}

/// # Safety
/// The features are there, the codes and the table fit the shape, `x` has lines for it, and blocks have `16 TILES` tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn wide<const TILES: usize>(
    k: &DirectionCodes<'_>,
    work: &mut Directions,
    shape: Shape,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    work.unpack(k, shape);
    for h in 0..shape.heads {
        let x = &mut x[h * X_STRIDE..h * X_STRIDE + TILES];
        // SAFETY: the caller's, and a head that there is.
        unsafe {
            match k.bits {
                6 => head::<TILES, 64>(work, k.groups, h, x, ahead),
                4 => head::<TILES, 16>(work, k.groups, h, x, ahead),
                _ => head::<TILES, 8>(work, k.groups, h, x, ahead),
            }
        }
    }
}

/// Logits of head `h`.
///
/// # Safety
/// The table has `(h + 1) groups` books of `WORDS` products and 8 more floats, `work` the codes of so many groups, all below `WORDS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn head<const TILES: usize, const WORDS: usize>(
    work: &Directions,
    groups: usize,
    h: usize,
    x: &mut [Line],
    ahead: &mut Cursor,
) {
    let mut sums = [_mm512_setzero_ps(); TILES];
    for g in 0..groups {
        step(ahead);
        // SAFETY: a book of 8 products is read with the 8 floats behind it, whose lanes no index names; what is read of codes is
        // `[group][token]`.
        unsafe {
            let book = work.table().as_ptr().add((h * groups + g) * WORDS);
            let part = |i: usize| if 16 * i < WORDS { _mm512_loadu_ps(book.add(16 * i)) } else { _mm512_setzero_ps() };
            let book = [part(0), part(1), part(2), part(3)];
            for (tile, sum) in sums.iter_mut().enumerate() {
                let at = 16 * (g * TILES + tile);
                let index = _mm512_cvtepu8_epi32(_mm_loadu_si128(work.indices.as_ptr().add(at).cast()));
                let product = if WORDS == 64 {
                    let low = _mm512_permutex2var_ps(book[0], index, book[1]);
                    let high = _mm512_permutex2var_ps(book[2], index, book[3]);
                    _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(32)), low, high)
                } else {
                    _mm512_permutexvar_ps(index, book[0])
                };
                *sum = _mm512_fmadd_ps(_mm512_loadu_ps(work.radii.as_ptr().add(at)), product, *sum);
            }
        }
    }
    for (line, sum) in x.iter_mut().zip(sums) {
        // SAFETY: a line is 64 aligned bytes.
        unsafe { _mm512_store_ps(line.0.as_mut_ptr(), sum) };
    }
}

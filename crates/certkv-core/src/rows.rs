//! Rows of a caller's tensor: how far they reach, and what rounding takes from them.
use crate::Dtype;

/// Elements from the first to behind the last of rows of `dim` elements each, so many in two directions (tokens and heads) with a stride of elements each.
/// `None` if two rows share an element. The stride of a direction of one row does not count.
pub fn extent(directions: [(usize, u64); 2], dim: usize) -> Option<u128> {
    let reaches = directions.map(|(n, stride)| (n.max(1) - 1) as u128 * u128::from(stride));
    // Rows of one direction lie inside a stride of the other.
    let apart = |(n, stride): (usize, u64), inner: u128| n <= 1 || u128::from(stride) >= inner + dim as u128;
    let [outer, inner] = directions;
    let first = apart(inner, 0) && apart(outer, reaches[1]);
    let second = apart(outer, 0) && apart(inner, reaches[0]);
    (first || second).then_some(reaches[0] + reaches[1] + dim as u128)
}

/// Rounds a row of at most 256 numbers to a 16-bit type, in place, and says how far it moved; single precision stays as it is.
///
/// # Errors
/// Where in the row the first number stands that the type cannot hold. What stands before it was rounded.
pub fn round(dtype: Dtype, row: &mut [f32]) -> Result<f64, usize> {
    if !dtype.is_sixteen_bit() {
        return Ok(0.0);
    }
    let mut square = 0.0;
    for (at, x) in row.iter_mut().enumerate() {
        let rounded = dtype.decode16(dtype.encode16(*x));
        if !rounded.is_finite() {
            return Err(at);
        }
        // Both are singles, so that the difference is one of doubles.
        square += (f64::from(rounded) - f64::from(*x)).powi(2);
        *x = rounded;
    }
    // The sum of so many squares and its root are off by less than this.
    Ok(square.sqrt() * (1.0 + 1e-12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_share_elements_have_no_extent() {
        let of = |token, head| extent([(3, token), (2, head)], 64);
        assert_eq!((of(128, 64), of(200, 70), of(64, 192)), (Some(384), Some(534), Some(384)));
        for (token, head) in [(127, 64), (0, 63), (64, 191), (64, 64), (1, 0), (0, 0)] {
            assert_eq!(of(token, head), None, "{token} {head}");
        }
        assert_eq!(of(u64::MAX, 64), Some(2 * u128::from(u64::MAX) + 128));
        assert_eq!((extent([(1, 3), (2, 64)], 64), extent([(3, 64), (1, 3)], 64)), (Some(128), Some(192)));
    }

    #[test]
    fn rounding_says_how_far_a_row_moved() {
        let before: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 * 0.001).collect();
        for dtype in [Dtype::F16, Dtype::Bf16] {
            let mut row = before.clone();
            let lost = round(dtype, &mut row).expect("numbers");
            let moved: f64 = row.iter().zip(&before).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
            assert!(moved > 0.0005 && lost >= moved && lost < moved * 1.001, "{dtype:?}: {moved} {lost}");
            assert!(row.iter().all(|x| dtype.decode16(dtype.encode16(*x)) == *x));
        }
        let mut row = before.clone();
        assert_eq!((round(Dtype::F32, &mut row), &row), (Ok(0.0), &before));
        row[7] = 7e4;
        assert_eq!((round(Dtype::F16, &mut row.clone()), round(Dtype::Bf16, &mut row).is_ok()), (Err(7), true));
        row[3] = f32::MAX;
        assert_eq!(round(Dtype::Bf16, &mut row), Err(3));
    }
}

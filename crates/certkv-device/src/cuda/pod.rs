//! Numbers whose bytes may be copied to and from a GPU as they are.

mod sealed {
    pub trait Sealed {}
}

/// A number without padding, of which every bit pattern is a value.
///
/// # Safety
/// Sealed: the implementations here are all there are.
pub unsafe trait Pod: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! pod {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}
        // SAFETY: a primitive number has no padding and no invalid bit pattern.
        unsafe impl Pod for $number {}
    )*};
}
pod!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

/// Checks that a range lies inside a buffer of `len` bytes.
pub(super) fn check_range(
    argument: &'static str,
    start: usize,
    bytes: usize,
    len: usize,
) -> Result<(), super::error::CudaError> {
    match start.checked_add(bytes) {
        Some(end) if end <= len => Ok(()),
        _ => Err(super::error::CudaError::OutOfRange { argument, start, bytes, len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<T: Pod>(values: &[T]) -> usize {
        size_of_val(values)
    }

    #[test]
    fn numbers_of_every_width_are_pod() {
        assert_eq!(
            [bytes_of(&[1u8; 3]), bytes_of(&[1u16; 3]), bytes_of(&[1u32; 3]), bytes_of(&[1f32; 3])],
            [3, 6, 12, 12]
        );
        assert_eq!([bytes_of(&[1u64; 3]), bytes_of(&[1f64; 3])], [24, 24]);
    }

    #[test]
    fn a_range_may_end_at_the_end_but_not_after_it_nor_overflow() {
        assert_eq!(check_range("a", 0, 0, 0), Ok(()));
        assert_eq!(check_range("a", 3, 5, 8), Ok(()));
        for (start, bytes) in [(4, 5), (9, 0), (usize::MAX, 2), (1, usize::MAX)] {
            let error = check_range("a", start, bytes, 8).expect_err("past the end");
            assert_eq!(error, super::super::CudaError::OutOfRange { argument: "a", start, bytes, len: 8 });
        }
    }
}

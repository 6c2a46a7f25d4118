//! Checks of what a C caller hands in, before anything is read or written through it.
use crate::guard::Failure;
use crate::status::certkv_status::{
    CERTKV_INVALID_ARGUMENT, CERTKV_MISALIGNED, CERTKV_NULL_POINTER, CERTKV_OVERLAP, CERTKV_SHAPE, CERTKV_STRUCT_SIZE,
};
use core::{ptr, slice};

/// Larger sizes are taken for garbage: no struct of this library comes near.
const LARGEST_STRUCT: usize = 4096;

/// Refuses NULL.
pub(crate) fn not_null<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Err(Failure::new(CERTKV_NULL_POINTER, format!("{name} is NULL"))) } else { Ok(()) }
}

/// Refuses NULL and pointers that are not aligned for `T`.
pub(crate) fn aligned<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    not_null(pointer, name)?;
    if pointer.is_aligned() {
        return Ok(());
    }
    let why = format!("{name} is not aligned to {} bytes", align_of::<T>());
    Err(Failure::new(CERTKV_MISALIGNED, why))
}

/// An array argument: aligned, not NULL unless it is empty, and no longer than memory can be.
pub(crate) fn array<T>(pointer: *const T, len: u64, name: &str) -> Result<usize, Failure> {
    if len == 0 {
        return Ok(0);
    }
    aligned(pointer, name)?;
    let bytes = u128::from(len) * size_of::<T>() as u128;
    // The end of the array must be an address too.
    if bytes > isize::MAX as u128 || pointer.addr() as u128 + bytes > usize::MAX as u128 {
        return Err(Failure::new(CERTKV_INVALID_ARGUMENT, format!("{name}: {len} elements do not fit memory")));
    }
    Ok(len as usize)
}

/// As [`array`], as a slice.
///
/// # Safety
/// If `pointer` is not NULL and aligned, `len` elements at it are readable and stay unchanged while the slice lives.
pub(crate) unsafe fn slice<'a, T: Copy>(pointer: *const T, len: u64, name: &str) -> Result<&'a [T], Failure> {
    match array(pointer, len, name)? {
        0 => Ok(&[]),
        // SAFETY: not NULL, aligned and within the address space, by `array`; readable by the caller's promise.
        len => Ok(unsafe { slice::from_raw_parts(pointer, len) }),
    }
}

/// Refuses a number of elements that the geometry does not expect. `expected` is a product, hence the width.
pub(crate) fn count(given: u64, expected: u128, name: &str) -> Result<(), Failure> {
    if u128::from(given) == expected {
        return Ok(());
    }
    Err(Failure::new(CERTKV_SHAPE, format!("{name}: {given} elements given, {expected} expected")))
}

/// Refuses two buffers of which one is written if they share a byte. Lengths are of arrays that [`array`] accepted.
pub(crate) fn disjoint<A, B>(a: (*const A, usize, &str), b: (*const B, usize, &str)) -> Result<(), Failure> {
    let range = |start: usize, bytes: usize| (start as u128, start as u128 + bytes as u128);
    let (a_start, a_end) = range(a.0.addr(), a.1 * size_of::<A>());
    let (b_start, b_end) = range(b.0.addr(), b.1 * size_of::<B>());
    if a_start < b_end && b_start < a_end && a.1 > 0 && b.1 > 0 {
        return Err(Failure::new(CERTKV_OVERLAP, format!("{} and {} overlap", a.2, b.2)));
    }
    Ok(())
}

/// `struct_size`, the first field of a growing struct: at least `least` and cut to the size that this library knows.
///
/// # Safety
/// If not NULL and aligned, `object` starts with an initialised `uint32_t`.
pub(crate) unsafe fn struct_size<T>(object: *const T, name: &str, least: usize) -> Result<usize, Failure> {
    aligned(object, name)?;
    // SAFETY: not NULL and aligned, checked above; readable by the caller's promise.
    known_size::<T>(unsafe { object.cast::<u32>().read() }, name, least)
}

/// A caller's size of a growing struct, cut to the size that this library knows.
pub(crate) fn known_size<T>(size: u32, name: &str, least: usize) -> Result<usize, Failure> {
    let size = size as usize;
    if size < least || size > LARGEST_STRUCT {
        let why = format!("{name}: struct_size is {size}, must be sizeof the struct ({} here)", size_of::<T>());
        return Err(Failure::new(CERTKV_STRUCT_SIZE, why));
    }
    Ok(size.min(size_of::<T>()))
}

/// Refuses a struct of a newer header that sets fields which this library does not know.
///
/// # Safety
/// `object` passed [`struct_size`] and has the bytes that its `struct_size` promises.
pub(crate) unsafe fn unknown_tail<T>(object: *const T, name: &str) -> Result<(), Failure> {
    // SAFETY: readable, by the caller's promise.
    let size = unsafe { object.cast::<u32>().read() } as usize;
    for at in size_of::<T>()..size {
        // SAFETY: `at` is below `struct_size`, so the byte belongs to the struct.
        if unsafe { object.cast::<u8>().add(at).read() } != 0 {
            let why = format!("{name}: byte {at} is set, this library knows {} bytes", size_of::<T>());
            return Err(Failure::new(CERTKV_STRUCT_SIZE, why));
        }
    }
    Ok(())
}

/// Writes the first `size` bytes of `value`.
///
/// # Safety
/// `object` has `size` writable bytes, and `size` is at most the size of `T`.
pub(crate) unsafe fn write_prefix<T>(object: *mut T, value: &T, size: usize) {
    // SAFETY: both sides have `size` bytes by the caller's promise; `value` is a Rust reference that C cannot alias.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), object.cast::<u8>(), size) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_arrays_are_refused_before_they_are_touched() {
        let word = [0u64; 2];
        let odd = word.as_ptr().cast::<u8>().wrapping_add(1).cast::<f32>();
        let status = |r: Result<usize, Failure>| r.unwrap_err().status;
        assert_eq!(status(array(ptr::null::<f32>(), 1, "a")), CERTKV_NULL_POINTER);
        assert_eq!(status(array(odd, 1, "a")), CERTKV_MISALIGNED);
        assert_eq!(status(array(word.as_ptr(), u64::MAX, "a")), CERTKV_INVALID_ARGUMENT);
        assert_eq!(status(array(word.as_ptr(), 1 << 61, "a")), CERTKV_INVALID_ARGUMENT);
        let high = ptr::without_provenance::<u64>(usize::MAX - 15);
        assert_eq!(status(array(high, 2, "a")), CERTKV_INVALID_ARGUMENT);
        assert_eq!(array(ptr::null::<f32>(), 0, "a").unwrap(), 0);
        assert_eq!(array(word.as_ptr(), 2, "a").unwrap(), 2);
    }

    #[test]
    fn overlap_is_seen_to_the_byte() {
        let buffer = [0f32; 8];
        let at = |i: usize, len: usize| (buffer.as_ptr().wrapping_add(i), len, "x");
        assert!(disjoint(at(0, 4), at(4, 4)).is_ok() && disjoint(at(4, 4), at(0, 4)).is_ok());
        assert!(disjoint(at(0, 0), at(0, 8)).is_ok());
        for (a, b) in [((0, 5), (4, 4)), ((4, 4), (0, 5)), ((0, 8), (3, 1)), ((2, 2), (2, 2))] {
            assert_eq!(disjoint(at(a.0, a.1), at(b.0, b.1)).unwrap_err().status, CERTKV_OVERLAP);
        }
    }
}

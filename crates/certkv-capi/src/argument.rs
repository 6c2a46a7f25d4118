//! Checks of what a C caller hands in, before anything is read or written through it.
use crate::guard::Failure;
use crate::status::certkv_status::{
    CERTKV_INVALID_ARGUMENT, CERTKV_MISALIGNED, CERTKV_NULL_POINTER, CERTKV_OVERLAP, CERTKV_SHAPE, CERTKV_STRUCT_SIZE,
};
use core::ffi::{c_char, c_void};
use core::mem::zeroed;
use core::{ptr, slice};
use std::path::PathBuf;

/// Larger sizes are taken for garbage: no struct of this library comes near.
const LARGEST_STRUCT: usize = 4096;

/// A value out of its range.
pub(crate) fn invalid(why: String) -> Failure {
    Failure::new(CERTKV_INVALID_ARGUMENT, why)
}

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

/// As [`struct_size`] of a struct that may be left out: `None` for NULL.
///
/// # Safety
/// `object` is NULL or names a struct of the bytes that its first field says.
pub(crate) unsafe fn optional_struct<T>(object: *const T, name: &str, least: usize) -> Result<Option<usize>, Failure> {
    if object.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    unsafe { struct_size(object, name, least) }.map(Some)
}

/// A caller's size of a growing struct, cut to the size that this library knows.
pub(crate) fn known_size<T>(size: u32, name: &str, least: usize) -> Result<usize, Failure> {
    let size = size as usize;
    // The size of a struct is a multiple of its alignment: no other ends inside a pointer.
    if size < least || size > LARGEST_STRUCT || !size.is_multiple_of(align_of::<T>()) {
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

/// A copy of a caller's growing struct. Fields that its header does not have are 0; a newer one must have set none that this library
/// does not know.
///
/// # Safety
/// `object` is NULL or a struct of its `struct_size` bytes, and zero bits are a value of `T`.
pub(crate) unsafe fn read_struct<T: Copy>(object: *const T, name: &str, least: usize) -> Result<T, Failure> {
    // SAFETY: by the caller's promise.
    let size = unsafe { struct_size(object, name, least)? };
    // SAFETY: as above, and the size was checked.
    unsafe { unknown_tail(object, name)? };
    // SAFETY: zero bits are a value, by the caller's promise.
    let mut given: T = unsafe { zeroed() };
    // SAFETY: the caller's struct has `size` bytes, and `given` has no fewer.
    unsafe { ptr::copy_nonoverlapping(object.cast::<u8>(), (&raw mut given).cast::<u8>(), size) };
    Ok(given)
}

/// An out parameter that may be NULL: aligned if it is not.
pub(crate) fn optional<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Ok(()) } else { aligned(pointer, name) }
}

/// Writes `value` unless `pointer` is NULL.
///
/// # Safety
/// `pointer` passed [`optional`] and is NULL or a variable of this type.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not NULL, aligned, and a variable of this type by the caller's promise.
        unsafe { pointer.write(value) };
    }
}

/// Most bytes of a name: who needs more gives a digest.
pub(crate) const MOST_NAME: u64 = 4096;

/// A name of any bytes, at most [`MOST_NAME`].
///
/// # Safety
/// If `pointer` is not NULL, `bytes` bytes at it are readable and stay unchanged while the slice lives.
pub(crate) unsafe fn name<'a>(pointer: *const c_void, bytes: u64, name: &str) -> Result<&'a [u8], Failure> {
    if bytes > MOST_NAME {
        let why = format!("{name}: {bytes} bytes, must be at most {MOST_NAME}; longer ones by a digest");
        return Err(Failure::new(CERTKV_INVALID_ARGUMENT, why));
    }
    // SAFETY: by the caller's promise.
    unsafe { slice(pointer.cast::<u8>(), bytes, name) }
}

/// A secret of 32 bytes.
///
/// # Safety
/// If `pointer` is not NULL, 32 bytes at it are readable.
pub(crate) unsafe fn key(pointer: *const u8, name: &str) -> Result<[u8; 32], Failure> {
    array(pointer, 32, name)?;
    // SAFETY: not NULL and within the address space, by `array`; readable by the caller's promise; bytes have no alignment.
    Ok(unsafe { pointer.cast::<[u8; 32]>().read() })
}

/// Most bytes of the name of a file or a folder.
pub(crate) const MOST_PATH: usize = 4095;

/// A C string of at most `parts` parts with `+` between them, of at most `most` bytes each; one part may have any byte. Nothing is read
/// behind the terminator, nor behind the first byte too many. The error says what `name` has.
///
/// # Safety
/// `text` is a C string.
pub(crate) unsafe fn characters(text: *const c_char, name: &str, most: usize, parts: usize) -> Result<String, String> {
    let (mut bytes, mut part, mut plus) = (Vec::new(), 0, 0);
    loop {
        // SAFETY: every byte up to and including the terminator is readable, and none before this one was it.
        let byte = unsafe { text.add(bytes.len()).read() } as u8;
        match byte {
            0 => return String::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8")),
            b'+' if plus + 1 < parts => (part, plus) = (0, plus + 1),
            _ if part == most => return Err(format!("{name} has more than {most} characters")),
            _ => part += 1,
        }
        bytes.push(byte);
    }
}

/// The name of a file or a folder, from an argument that is called `path`.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn path(path: *const c_char) -> Result<PathBuf, Failure> {
    not_null(path, "path")?;
    let invalid = |why: String| Failure::new(CERTKV_INVALID_ARGUMENT, why);
    // SAFETY: by the caller's promise.
    let text = unsafe { characters(path, "path", MOST_PATH, 1) }.map_err(invalid)?;
    if text.is_empty() { Err(invalid("path is empty".to_owned())) } else { Ok(text.into()) }
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

//! Sequences in files.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::{Failure, guard};
use crate::sequence::{CERTKV_NO_SEQUENCE, certkv_sequence, id, number};
use crate::status::certkv_status::{self, CERTKV_FILE, CERTKV_FILE_DAMAGED, CERTKV_FILE_REFUSED, CERTKV_RESERVED};
use certkv::SaveScope;
use core::ffi::{c_char, c_void};
use core::mem::offset_of;
use std::path::Path;

/// Whose sequences files hold. Set all of it to 0 bytes, then `struct_size` and what there is to say. Borrowed during a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_save_scope {
    /// sizeof(certkv_save_scope) of the caller's header.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// What the rows depend on and the cache cannot know, by name or digest: weights, adapter, rotation of positions. A file is restored
    /// under the same bytes only.
    pub model: *const c_void,
    /// Bytes of it, at most 4096.
    pub model_bytes: u64,
    /// 32 bytes, the key of the digests; NULL for none. Without one they tell damage, with one forgery, too.
    pub key: *const u8,
}

/// What a scope points to.
struct Scope<'a> {
    model: &'a [u8],
    key: Option<[u8; 32]>,
}

impl Scope<'_> {
    fn lent(&self) -> SaveScope<'_> {
        SaveScope { model: self.model, key: self.key.as_ref() }
    }
}

/// # Safety
/// `given` is NULL or a struct of its `struct_size` bytes, and its pointers are NULL or have the bytes that it says, unchanged while the
/// result lives.
unsafe fn scope<'a>(given: *const certkv_save_scope) -> Result<Scope<'a>, Failure> {
    // SAFETY: by the caller's promise; integers and pointers, for which zero bits are a value.
    let given = unsafe { argument::read_struct(given, "scope", offset_of!(certkv_save_scope, key))? };
    if given.reserved != 0 {
        return Err(Failure::new(CERTKV_RESERVED, "scope->reserved is not 0"));
    }
    // SAFETY: by the caller's promise.
    let model = unsafe { argument::name(given.model, given.model_bytes, "scope->model")? };
    let key = match given.key.is_null() {
        true => None,
        // SAFETY: by the caller's promise.
        false => Some(unsafe { argument::key(given.key, "scope->key")? }),
    };
    Ok(Scope { model, key })
}

/// Says which file it was.
fn at(path: &Path, failure: Failure) -> Failure {
    match failure.status {
        CERTKV_FILE | CERTKV_FILE_REFUSED | CERTKV_FILE_DAMAGED => {
            Failure { message: format!("path {}: {}", path.display(), failure.message), ..failure }
        }
        _ => failure,
    }
}

/// Writes a sequence to a file that appears under its name when it is whole and on the disk, in place of one that was there. The sequence
/// is unchanged; one that is swapped out is saved as any other. `path` is UTF-8, ends with a 0 byte and has at most 4095 others; `scope` and
/// `path` are borrowed during the call. `*bytes` is filled with the bytes written; `bytes` may be NULL.
///
/// Threads: any, at any time; the sequence is busy meanwhile. On the host other calls go on between its blocks, on a GPU they wait.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, FILE, DEVICE,
/// OUT_OF_MEMORY, POISONED; of originals that are spilled, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY; on a GPU
/// BUSY_STEP while a step is open, NOT_FINITE and OVERFLOW (a row from device memory that was refused, see certkv_step_append). A file of that name is as it was, and
/// `*bytes` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_save(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    scope: *const certkv_save_scope,
    path: *const c_char,
    bytes: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::optional(bytes, "bytes")?;
        // SAFETY: the caller gives NULL or a scope with what it names.
        let scope = unsafe { self::scope(scope)? };
        // SAFETY: the caller gives NULL or a C string.
        let path = unsafe { argument::path(path)? };
        let (id, lent) = (id(sequence), scope.lent());
        let written = cache::with(cache, |held| {
            let saved = held.engine.on(|on| on.save_file(id, &lent, &path), |on| on.save_file(id, &lent, &path));
            saved.map_err(|failure| at(&path, failure))
        })?;
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(bytes, written) };
        Ok(())
    })
}

/// Makes a sequence from a file that certkv_sequence_save wrote: in this cache, or in another one of the same geometry and formats on the
/// same kind of machine (codes lie in another order on a GPU). `*sequence` is filled. What the sequence would have returned next, it
/// returns; on a GPU formats without residual planes choose anew what is read exactly, under the same tolerance. `scope` and `path`: as
/// certkv_sequence_save.
///
/// Threads: any, at any time; on a GPU other calls wait.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE, FILE, FILE_REFUSED, FILE_DAMAGED (also: another
/// key), TOO_MANY_SEQUENCES, LENGTH, CAPACITY, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, and
/// `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_restore(
    cache: *mut certkv_cache,
    scope: *const certkv_save_scope,
    path: *const c_char,
    sequence: *mut certkv_sequence,
) -> certkv_status {
    guard(|| {
        argument::aligned(sequence, "sequence")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { sequence.write(CERTKV_NO_SEQUENCE) };
        // SAFETY: the caller gives NULL or a scope with what it names.
        let scope = unsafe { self::scope(scope)? };
        // SAFETY: the caller gives NULL or a C string.
        let path = unsafe { argument::path(path)? };
        let lent = scope.lent();
        let made = cache::with(cache, |held| {
            let restored = held.engine.on(|on| on.restore_file(&lent, &path), |on| on.restore_file(&lent, &path));
            restored.map_err(|failure| at(&path, failure))
        })?;
        // SAFETY: as above.
        unsafe { sequence.write(number(made)) };
        Ok(())
    })
}

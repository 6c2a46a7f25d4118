//! Sequences that leave the device's memory and return.
use crate::argument;
use crate::cache::{self, Held, certkv_cache};
use crate::guard::{Failure, guard};
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status;

/// Runs `swap` and says what it moved.
///
/// # Safety
/// `bytes` is NULL or names a variable that may be written.
unsafe fn moved(
    cache: *mut certkv_cache,
    bytes: *mut u64,
    swap: impl FnOnce(&Held) -> Result<u64, Failure>,
) -> Result<(), Failure> {
    argument::optional(bytes, "bytes")?;
    let moved = cache::with(cache, |held| swap(held))?;
    // SAFETY: checked above; the caller gives NULL or a variable of this type.
    unsafe { argument::put(bytes, moved) };
    Ok(())
}

/// Takes a sequence's codes out of device memory into room that `config->swap_tokens` gave them, so that others find pages. Until
/// certkv_sequence_swap_in it has its tokens and may be cut, saved and released, and neither stepped nor forked nor published. Pages that forks
/// or cached prefixes share stay with them. `*bytes` is filled with the bytes moved; `bytes` may be NULL.
///
/// Threads: any, at any time; on the host other calls go on between the sequence's blocks, on a GPU they wait.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT (already), CAPACITY (of
/// `config->swap_tokens`), DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. The sequence is where it
/// was, and `*bytes` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_swap_out(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    bytes: *mut u64,
) -> certkv_status {
    guard(|| {
        let swap = |held: &Held| held.engine.on(|on| on.swap_out(id(sequence)), |on| on.swap_out(id(sequence)));
        // SAFETY: the caller gives NULL or a variable.
        unsafe { moved(cache, bytes, swap) }
    })
}

/// Brings a sequence back. On the host its next outputs and certificates are those that it would have had without leaving, on a GPU too
/// for formats with residual planes; others choose anew there what is read exactly, under the same tolerance. `*bytes` is filled with the
/// bytes moved; `bytes` may be NULL.
///
/// Threads: as certkv_sequence_swap_out.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, NOT_SWAPPED_OUT, CAPACITY (cached prefixes
/// have given way by then), DAMAGED (the codes are not what left), DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open.
/// The sequence stays swapped out, and `*bytes` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_swap_in(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    bytes: *mut u64,
) -> certkv_status {
    guard(|| {
        let swap = |held: &Held| held.engine.on(|on| on.swap_in(id(sequence)), |on| on.swap_in(id(sequence)));
        // SAFETY: the caller gives NULL or a variable.
        unsafe { moved(cache, bytes, swap) }
    })
}

/// Whether a sequence is swapped out; `*swapped_out` is filled with 1 or 0.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED; on a GPU BUSY_STEP while a step is open.
/// `*swapped_out` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_is_swapped_out(
    cache: *const certkv_cache,
    sequence: certkv_sequence,
    swapped_out: *mut u32,
) -> certkv_status {
    guard(|| {
        argument::aligned(swapped_out, "swapped_out")?;
        let id = id(sequence);
        let out = cache::with(cache, |held| held.engine.on(|on| on.is_swapped_out(id), |on| on.is_swapped_out(id)))?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { swapped_out.write(out.into()) };
        Ok(())
    })
}

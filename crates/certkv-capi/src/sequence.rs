//! Sequences: numbers with a generation, so that a stale one is a status.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::guard;
use crate::status::certkv_status;
use certkv::SequenceId;

/// A sequence of one cache: its slot in the low half, which of the process's sequences it is in the high half. Valid until it is
/// released; later sequences, and those of other caches, have other numbers. Never 0.
pub type certkv_sequence = u64;
/// No sequence.
pub const CERTKV_NO_SEQUENCE: certkv_sequence = 0;

pub(crate) fn id(sequence: certkv_sequence) -> SequenceId {
    SequenceId { slot: sequence as u32, generation: (sequence >> 32) as u32 }
}

pub(crate) fn number(id: SequenceId) -> certkv_sequence {
    (u64::from(id.generation) << 32) | u64::from(id.slot)
}

/// Makes an empty sequence; `*sequence` is filled.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, TOO_MANY_SEQUENCES, OUT_OF_MEMORY, POISONED; on a GPU DEVICE, and BUSY_STEP
/// while a step is open, as of every call on its sequences. Nothing changed, and `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_create(
    cache: *mut certkv_cache,
    sequence: *mut certkv_sequence,
) -> certkv_status {
    guard(|| {
        argument::aligned(sequence, "sequence")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { sequence.write(CERTKV_NO_SEQUENCE) };
        let made = cache::with(cache, |held| held.engine.create())?;
        // SAFETY: as above.
        unsafe { sequence.write(number(made)) };
        Ok(())
    })
}

/// Makes a sequence with the tokens of `parent`; `*fork` is filled. Full blocks are shared, an open block is copied.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: as certkv_sequence_create; UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, CAPACITY, DEVICE. Nothing changed, and `*fork`
/// is CERTKV_NO_SEQUENCE if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_fork(
    cache: *mut certkv_cache,
    parent: certkv_sequence,
    fork: *mut certkv_sequence,
) -> certkv_status {
    guard(|| {
        argument::aligned(fork, "fork")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { fork.write(CERTKV_NO_SEQUENCE) };
        let made = cache::with(cache, |held| held.engine.fork(id(parent)))?;
        // SAFETY: as above.
        unsafe { fork.write(number(made)) };
        Ok(())
    })
}

/// Cuts a sequence to its first `length` tokens, also one that is swapped out.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, LENGTH, CAPACITY, POISONED; of originals of the block that is cut and
/// that are spilled, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED: nothing changed.
/// DEVICE, OUT_OF_MEMORY: the sequence may have been cut to whole blocks instead; certkv_sequence_length says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_truncate(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    length: u64,
) -> certkv_status {
    guard(|| {
        cache::with(cache, |held| {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            held.engine.truncate(id(sequence), length)
        })
    })
}

/// Ends a sequence. Pages that it shared stay with the others.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_release(cache: *mut certkv_cache, sequence: certkv_sequence) -> certkv_status {
    guard(|| cache::with(cache, |held| held.engine.release(id(sequence))))
}

/// Tokens of a sequence, without those of a step that is not finished; `*length` is filled.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, POISONED. `*length` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_length(
    cache: *const certkv_cache,
    sequence: certkv_sequence,
    length: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::aligned(length, "length")?;
        let tokens = cache::with(cache, |held| held.engine.len(id(sequence)))?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { length.write(tokens as u64) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_id_are_one() {
        for given in [1 << 32, (7 << 32) | 3, u64::MAX] {
            assert_eq!(number(id(given)), given);
        }
    }
}

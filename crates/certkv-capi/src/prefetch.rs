//! Originals of a sequence back from the store, ahead of its step.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::guard::guard;
use crate::sequence::{certkv_sequence, id};
use crate::status::certkv_status;
use core::mem::offset_of;

/// What certkv_sequence_prefetch brought, in originals of one block in one layer.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_prefetched {
    /// sizeof(certkv_prefetched), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// What the next step is expected to read.
    pub wanted: u64,
    /// Of those, what came from the store; the others were there.
    pub fetched: u64,
    /// Of those, what host memory has no room for beside the others, and stays away.
    pub left: u64,
    /// Bytes that came.
    pub bytes: u64,
}

/// Reads originals of a sequence back from `config->spill_store`, ahead of its next step, which waits for the store only for what else it needs. On the host those that
/// it reads first if it attends as the last one did, under CERTKV_POLICY_DENSE all; on a GPU all of the layers in which heads needed every block in the last step that
/// found some away (of every layer, before one has). As far as `config->spill_host_tokens` have room; they stay until others need it, so call it soon before the step. Does nothing without a store. `prefetched`, whose
/// `struct_size` must be set, is filled; it may be NULL.
///
/// Threads: any, at any time; blocks while the store answers, at most `config->spill_deadline_ms` a layer. On the host steps of other sequences go on meanwhile.
/// Stream: on a GPU the cache's own; blocks until its work is done where something is missing.
/// Capture: not allowed.
/// Errors: MISALIGNED, STRUCT_SIZE, NULL_POINTER (`cache`), INVALID_HANDLE, UNKNOWN_SEQUENCE, BUSY_SEQUENCE, STORE_FAILED, STORE_LATE, STORE_NOT_FOUND, STORE_DAMAGED, CAPACITY (of host
/// memory: too much is on its way), DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. What came stays; `prefetched` is unchanged, and the
/// sequence may be stepped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_prefetch(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    prefetched: *mut certkv_prefetched,
) -> certkv_status {
    guard(|| {
        let least = offset_of!(certkv_prefetched, wanted);
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::optional_struct(prefetched, "prefetched", least)? };
        let id = id(sequence);
        let found = cache::with(cache, |held| held.engine.on(|on| on.prefetch(id), |on| on.prefetch(id)))?;
        let Some(size) = size else { return Ok(()) };
        let filled = certkv_prefetched {
            struct_size: size as u32,
            reserved: 0,
            wanted: found.wanted as u64,
            fetched: found.fetched as u64,
            left: found.left as u64,
            bytes: found.bytes,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(prefetched, &filled, size) };
        Ok(())
    })
}

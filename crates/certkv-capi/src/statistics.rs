//! Bytes and tokens that a cache holds.
use crate::argument;
use crate::cache::{self, certkv_cache};
use crate::engine::Memory;
use crate::guard::guard;
use crate::status::certkv_status;
use core::mem::offset_of;

/// Memory of a cache at one moment, in bytes unless it says otherwise. Sequences that are part of a step are left out
/// of `tables` and `tokens`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_memory {
    /// sizeof(certkv_memory), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Tokens held by live sequences; shared blocks count for each.
    pub tokens: u64,
    /// Pages in use; 0 after every sequence was released and every cached prefix evicted.
    pub live_pages: u64,
    /// Packed pages in use: codes, scales, summaries, padding.
    pub packed: u64,
    /// Open blocks and exact sides in use (16-bit, device).
    pub scratch: u64,
    /// Block tables and per-head memory of live sequences.
    pub tables: u64,
    /// 16-bit originals in use, and codes of sequences that are swapped out (host).
    pub host: u64,
    /// Taken when the cache was made for: packed pages.
    pub reserved_packed: u64,
    /// The same for scratch.
    pub reserved_scratch: u64,
    /// The same for tables.
    pub reserved_tables: u64,
    /// The same for host memory.
    pub reserved_host: u64,
    /// Device budget; UINT64_MAX for none.
    pub device_limit: u64,
    /// Host budget; UINT64_MAX for none.
    pub host_limit: u64,
}

/// Fills `memory`, whose `struct_size` must be set, with what the cache holds now; on a GPU while a step is open, with what it held when that began.
///
/// Threads: any, at any time; figures of a cache at work may be a moment apart.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_HANDLE, POISONED. `memory` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_memory(cache: *const certkv_cache, memory: *mut certkv_memory) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(memory, "memory", offset_of!(certkv_memory, tokens))? };
        let filled = cache::with(cache, |held| {
            let Memory { live_pages, used, reserved: (reserved, limits) } = held.engine.memory();
            let [reserved_packed, reserved_scratch, reserved_tables, reserved_host] = reserved.map(|n| n as u64);
            Ok(certkv_memory {
                struct_size: size as u32,
                reserved: 0,
                tokens: used.tokens as u64,
                live_pages: live_pages as u64,
                packed: used.packed as u64,
                scratch: used.scratch as u64,
                tables: used.tables as u64,
                host: used.host as u64,
                reserved_packed,
                reserved_scratch,
                reserved_tables,
                reserved_host,
                device_limit: limits.0 as u64,
                host_limit: limits.1 as u64,
            })
        })?;
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(memory, &filled, size) };
        Ok(())
    })
}

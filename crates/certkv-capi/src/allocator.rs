//! Memory of the host's for the pages of a cache.
use crate::argument;
use crate::guard::Failure;
use crate::status::certkv_status::{CERTKV_NULL_POINTER, CERTKV_RESERVED};
use certkv::HostMemory;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::Arc;

/// Functions for the memory in which a cache on the host has its pages: codes, originals, open blocks, scratch, and codes that are swapped out. Set all
/// of it to 0 bytes, then `struct_size`, `context` and the functions. Other memory (tables, indexes, work areas) is the system's.
///
/// They are copied: they and `context` must stay until the cache, its steps and the calls on it are over, when as many calls of `free` have returned as
/// calls of `allocate` gave memory. certkv_cache_create calls `allocate` a few times for each run of layers of one format and window; nothing
/// is taken later.
///
/// Threads. They are called on the thread that makes the cache, and on the one that ends its last user. No lock of the library is held: they may
/// call into it, but not for this cache. They must return, by no exception and no longjmp.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_allocator {
    /// sizeof(certkv_allocator) of the caller's header.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Handed to each function.
    pub context: *mut c_void,
    /// `bytes` bytes, at least 1, at a multiple of `alignment`, a power of two (64 now); nobody else's until `free`. The library fills them with 0.
    /// NULL if there are none; what is not aligned goes back at once and counts as none: certkv_cache_create returns CERTKV_OUT_OF_MEMORY then.
    pub allocate: Option<unsafe extern "C" fn(context: *mut c_void, bytes: u64, alignment: u64) -> *mut c_void>,
    /// Takes back what `allocate` gave for these numbers; never NULL.
    pub free: Option<unsafe extern "C" fn(context: *mut c_void, memory: *mut c_void, bytes: u64, alignment: u64)>,
}

#[derive(Debug)]
struct Functions {
    context: *mut c_void,
    allocate: unsafe extern "C" fn(*mut c_void, u64, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64),
}

// SAFETY: the host's promise: functions and context are for any thread.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

// SAFETY: the host's promise, of `certkv_allocator::allocate`.
unsafe impl HostMemory for Functions {
    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the host's function with its context.
        NonNull::new(unsafe { (self.allocate)(self.context, bytes as u64, align as u64) }.cast())
    }

    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: as above; the memory is this allocator's and nobody uses it, by the caller's promise.
        unsafe { (self.free)(self.context, memory.as_ptr().cast(), bytes as u64, align as u64) }
    }
}

/// The allocator of a configuration; NULL for the system's.
///
/// # Safety
/// `given` is NULL or a struct of its `struct_size` bytes whose functions and context keep the promises of [`certkv_allocator`].
pub(crate) unsafe fn read(given: *const certkv_allocator) -> Result<Option<Arc<dyn HostMemory>>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise; integers, a pointer and functions that may be NULL, for which zero bits are a value.
    let given = unsafe {
        argument::read_struct(given, "config->allocator", offset_of!(certkv_allocator, free) + size_of::<usize>())?
    };
    if given.reserved != 0 {
        return Err(Failure::new(CERTKV_RESERVED, "config->allocator->reserved is not 0"));
    }
    let null = |which: &str| Failure::new(CERTKV_NULL_POINTER, format!("config->allocator->{which} is NULL"));
    Ok(Some(Arc::new(Functions {
        context: given.context,
        allocate: given.allocate.ok_or_else(|| null("allocate"))?,
        free: given.free.ok_or_else(|| null("free"))?,
    })))
}

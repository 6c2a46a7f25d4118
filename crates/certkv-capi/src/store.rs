//! The store handle: a place outside the process that keeps records.
use crate::argument;
use crate::callbacks::{Callbacks, certkv_store_callbacks};
use crate::guard::{Failure, guard};
use crate::handle::Registry;
use crate::status::certkv_status::{self, CERTKV_FILE, CERTKV_INVALID_ARGUMENT};
use certkv::store::{Backend, Durability, FileConfig, FileStore, MemoryStore};
use core::ffi::c_char;
use core::ptr;
use std::sync::Arc;

/// A place outside the process that keeps records under keys of 32 bytes (Tier-3): originals of live sequences (`config->spill_store`) and
/// cached prefixes (certkv_cache_export_prefix). Opaque.
///
/// One store may serve several caches, and those of other processes: no two records of different contents have one name. Every record is sealed
/// with its name and a digest, and what comes back is compared before a byte of it is used: a record that was damaged, cut, replaced by another one
/// or is of an earlier time is CERTKV_STORE_DAMAGED and never data.
#[derive(Debug)]
pub struct certkv_store {
    _opaque: [u8; 0],
}

static STORES: Registry<Arc<dyn Backend>> = Registry::new(0x75, "store");

/// What a live handle stands for.
pub(crate) fn backend(handle: *const certkv_store) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::clone(&*STORES.get(handle)?))
}

/// Gives out what `open` makes.
///
/// # Safety
/// `store` is NULL or names a variable that may be written.
unsafe fn give(
    store: *mut *mut certkv_store,
    open: impl FnOnce() -> Result<Arc<dyn Backend>, Failure>,
) -> Result<(), Failure> {
    argument::aligned(store, "store")?;
    // SAFETY: not NULL and aligned; the caller gives a variable of this type.
    unsafe { store.write(ptr::null_mut()) };
    let handle = STORES.insert(Arc::new(open()?));
    // SAFETY: as above.
    unsafe { store.write(handle) };
    Ok(())
}

/// Most bytes, of which 0 is no limit.
fn limit(quota: u64) -> u64 {
    if quota == 0 { u64::MAX } else { quota }
}

/// A folder as a store.
///
/// # Safety
/// `path` is NULL or a C string.
unsafe fn files(path: *const c_char, quota: u64, flags: u32) -> Result<Arc<dyn Backend>, Failure> {
    // SAFETY: by the caller's promise.
    let root = unsafe { argument::path(path)? };
    if flags & !(CERTKV_FILES_SYNCED | CERTKV_FILES_READ_BACK | CERTKV_FILES_UNREAD) != 0 {
        return Err(Failure::new(CERTKV_INVALID_ARGUMENT, format!("flags = {flags:#x}: not CERTKV_FILES values")));
    }
    let durability = if flags & CERTKV_FILES_SYNCED != 0 { Durability::Synced } else { Durability::Fast };
    let read_back = flags & CERTKV_FILES_UNREAD == 0;
    let opened = FileStore::open(FileConfig { root, quota, durability, read_back });
    // The text names the path.
    Ok(Arc::new(opened.map_err(|error| Failure::new(CERTKV_FILE, format!("path {error}")))?))
}

/// For certkv_store_open_files: a record counts as stored when the disk has it. Without it, when every process of this machine sees it; a loss of
/// power may then take records away, or damage them, which is seen.
pub const CERTKV_FILES_SYNCED: u32 = 1;
/// For certkv_store_open_files: each file is read back and compared before it gets its name. So it is without this flag, too, unless CERTKV_FILES_UNREAD is given.
pub const CERTKV_FILES_READ_BACK: u32 = 2;
/// For certkv_store_open_files: files get their names without being read. A record that is not what was written is seen when it is got.
pub const CERTKV_FILES_UNREAD: u32 = 4;

/// Makes a store of the host's own functions. `*store` is filled; the caller ends it with certkv_store_destroy. `callbacks` is borrowed during the
/// call; `callbacks->context` is the store's until `callbacks->destroy` was called.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER (also: a function that must be there), MISALIGNED, STRUCT_SIZE, RESERVED. No function was called, `destroy` neither, and
/// `*store` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_store_create(
    callbacks: *const certkv_store_callbacks,
    store: *mut *mut certkv_store,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes, and NULL or a variable.
        unsafe { give(store, || Ok(Arc::new(Callbacks::read(callbacks)?))) }
    })
}

/// Opens a folder as a store, or makes it: one file a record. Nothing else belongs there, and one process at a time has it open. What a crash left
/// half-written is removed, and the bytes are counted, which looks at every file. `path` is UTF-8, ends with a 0 byte, has at most 4095 others and
/// is borrowed during the call. `quota`: most bytes of all files; 0 for no limit. `flags`: CERTKV_FILES values, added. `*store` is filled; the caller
/// ends it with certkv_store_destroy.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, INVALID_ARGUMENT, FILE (also: the folder is open already). `*store` is NULL if it can be written; the folder may
/// have been made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_store_open_files(
    path: *const c_char,
    quota: u64,
    flags: u32,
    store: *mut *mut certkv_store,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a C string, and NULL or a variable.
        unsafe { give(store, || files(path, limit(quota), flags)) }
    })
}

/// Makes a store in this process's memory, of at most `quota` bytes; 0 for no limit. For tests, and to measure other stores against. `*store` is
/// filled; the caller ends it with certkv_store_destroy.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED. Nothing is held then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_store_create_memory(quota: u64, store: *mut *mut certkv_store) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives NULL or a variable.
        unsafe { give(store, || Ok(Arc::new(MemoryStore::new(limit(quota))))) }
    })
}

/// Ends a handle. NULL is allowed. The store itself ends, and `callbacks->destroy` is called, when no cache and no call uses it any more: caches that
/// spill to it keep it until they are destroyed.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: INVALID_HANDLE, for a store that is destroyed already; nothing happened then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_store_destroy(store: *mut certkv_store) -> certkv_status {
    guard(|| if store.is_null() { Ok(()) } else { STORES.remove(store).map(drop) })
}

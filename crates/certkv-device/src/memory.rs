//! One block of zeroed memory, aligned to 64 bytes and mapped lazily.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Cache-line and vector-register alignment of every slot.
pub(crate) const ALIGN: usize = 64;

/// Owns an allocation. Who may touch which bytes is decided by the arena's borrow words.
#[derive(Debug)]
pub(crate) struct Memory {
    raw: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
}

// SAFETY: `Memory` is an owned allocation; it has no thread affinity.
unsafe impl Send for Memory {}
// SAFETY: `Memory` hands out raw pointers only; every dereference is justified where it happens.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` of zeroes; `None` if the size overflows or the system has none.
    ///
    /// Asks for the allocator's natural alignment and aligns by hand: a larger alignment would make the system
    /// allocator clear the memory itself, and so touch every page of an arena that may never be used.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.checked_add(ALIGN)?, align_of::<u128>()).ok()?;
        // SAFETY: the layout's size is at least ALIGN, so not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = raw.as_ptr().align_offset(ALIGN);
        debug_assert!(skip < ALIGN);
        // SAFETY: `skip < ALIGN` and the allocation is ALIGN bytes longer than asked for.
        let base = unsafe { raw.add(skip) };
        Some(Self { raw, layout, base })
    }

    /// First byte, aligned to [`ALIGN`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `alloc_zeroed` with this layout and is freed once.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) }
    }
}

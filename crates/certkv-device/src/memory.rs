//! One block of zeroed memory, aligned to 64 bytes: the system's, mapped lazily, or an embedder's.
use core::fmt;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

/// Cache-line and vector-register alignment of every slot.
pub(crate) const ALIGN: usize = 64;

/// Where arenas come from, for an embedder with memory of its own: huge pages, one node of several, a pool.
///
/// # Safety
/// [`HostMemory::allocate`] gives memory of that size that is nobody else's, readable and writable until [`HostMemory::free`].
pub unsafe trait HostMemory: Send + Sync + fmt::Debug {
    /// `bytes` bytes, more than none, at a multiple of `align`, a power of two; what is in them does not matter. `None` if there are none.
    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Takes back what [`HostMemory::allocate`] gave for the same two numbers.
    ///
    /// # Safety
    /// It is of this allocator, not given back before, and nobody uses it any more.
    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize, align: usize);
}

/// The same memory, all of which is overwritten with zeroes before it goes back.
pub fn erased(source: Arc<dyn HostMemory>) -> Arc<dyn HostMemory> {
    Arc::new(Erased(source))
}

#[derive(Debug)]
struct Erased(Arc<dyn HostMemory>);

// SAFETY: both calls are those of a source that promises the same.
unsafe impl HostMemory for Erased {
    fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.allocate(bytes, align)
    }

    unsafe fn free(&self, memory: NonNull<u8>, bytes: usize, align: usize) {
        // SAFETY: the caller's promise: `bytes` bytes that `allocate` gave, and that nobody uses any more.
        unsafe { memory.as_ptr().write_bytes(0, bytes) };
        // SAFETY: the caller's promise is about the source's memory.
        unsafe { self.0.free(memory, bytes, align) };
    }
}

#[derive(Debug)]
enum Owner {
    System { raw: NonNull<u8>, layout: Layout },
    Host { source: Arc<dyn HostMemory>, bytes: usize },
}

/// Owns an allocation. Who may touch which bytes is decided by the arena's borrow words.
#[derive(Debug)]
pub(crate) struct Memory {
    owner: Owner,
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
        Some(Self { owner: Owner::System { raw, layout }, base })
    }

    /// The same from an embedder's memory, all of which this touches. `None` also if it is not aligned.
    pub(crate) fn zeroed_from(source: &Arc<dyn HostMemory>, bytes: usize) -> Option<Self> {
        let base = source.allocate(bytes, ALIGN)?;
        // From here on it goes back whatever happens.
        let memory = Self { owner: Owner::Host { source: Arc::clone(source), bytes }, base };
        if base.as_ptr().align_offset(ALIGN) != 0 {
            return None;
        }
        // SAFETY: the embedder's promise: `bytes` writable bytes that are nobody else's.
        unsafe { base.as_ptr().write_bytes(0, bytes) };
        Some(memory)
    }

    /// First byte, aligned to [`ALIGN`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: `raw` came from `alloc_zeroed` with this layout and is freed once.
            Owner::System { raw, layout } => unsafe { dealloc(raw.as_ptr(), *layout) },
            // SAFETY: `base` came from this source with these numbers and is freed once; who uses it keeps its owner.
            Owner::Host { source, bytes } => unsafe { source.free(self.base, *bytes, ALIGN) },
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{DeviceError, SimDevice, SimOptions};
    use std::sync::Mutex;

    /// Memory of the system with something in it; refuses and misaligns where it is told to.
    #[derive(Debug, Default)]
    struct Dirty {
        given: Mutex<Vec<(usize, usize)>>,
        /// Bytes that were not zero in what went back.
        left: Mutex<usize>,
        refuses: bool,
        skew: usize,
    }

    impl Dirty {
        fn layout(bytes: usize, align: usize) -> Layout {
            Layout::from_size_align(bytes + align, align).unwrap()
        }
    }

    // SAFETY: an allocation of its own for each call.
    unsafe impl HostMemory for Dirty {
        fn allocate(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
            if self.refuses {
                return None;
            }
            // SAFETY: a layout of more than no bytes.
            let raw = NonNull::new(unsafe { std::alloc::alloc(Self::layout(bytes, align)) })?;
            // SAFETY: it has `bytes + align` bytes, and `skew` is below `align`.
            let memory = unsafe {
                raw.as_ptr().write_bytes(0xa5, bytes + align);
                raw.add(self.skew)
            };
            self.given.lock().unwrap().push((memory.addr().get(), bytes));
            Some(memory)
        }
        unsafe fn free(&self, memory: NonNull<u8>, bytes: usize, align: usize) {
            let mut given = self.given.lock().unwrap();
            let at = given.iter().position(|seen| *seen == (memory.addr().get(), bytes)).expect("given before");
            given.swap_remove(at);
            // SAFETY: from `allocate`, with as many bytes, all of which were written then.
            let bytes = unsafe { core::slice::from_raw_parts(memory.as_ptr(), bytes) };
            *self.left.lock().unwrap() += bytes.iter().filter(|byte| **byte != 0).count();
            let bytes = bytes.len();
            // SAFETY: from `allocate`, with the same layout, once.
            unsafe { dealloc(memory.sub(self.skew).as_ptr(), Self::layout(bytes, align)) }
        }
    }

    #[test]
    fn arenas_lie_in_an_embedders_memory() {
        let source = Arc::new(Dirty::default());
        let device = SimDevice::with_memory(SimOptions::default(), Some(Arc::clone(&source) as Arc<dyn HostMemory>));
        let arena = device.arena("pages", 3, 100).unwrap();
        let [(start, bytes)] = source.given.lock().unwrap()[..] else { panic!("one allocation") };
        assert_eq!((bytes, start % ALIGN), (3 * 128, 0));
        for slot in 0..3 {
            let page = arena.read(slot, &device.host()).unwrap();
            assert!(page.bytes().iter().all(|byte| *byte == 0), "zeroed");
            assert_eq!(page.bytes().as_ptr().addr(), start + slot as usize * 128);
        }
        drop(arena);
        assert!(source.given.lock().unwrap().is_empty());
        for (memory, left) in [(source.clone() as Arc<dyn HostMemory>, 100), (erased(source.clone()), 0)] {
            *source.left.lock().unwrap() = 0;
            let device = SimDevice::with_memory(SimOptions::default(), Some(memory));
            let arena = device.arena("pages", 3, 100).unwrap();
            arena.write(1, &device.host()).unwrap().bytes_mut().fill(7);
            drop(arena);
            assert!(source.given.lock().unwrap().is_empty());
            assert_eq!(*source.left.lock().unwrap(), left, "what it had goes back with it, or does not");
        }
        for (refuses, skew) in [(true, 0), (false, 16)] {
            let source = Arc::new(Dirty { refuses, skew, ..Dirty::default() });
            let device =
                SimDevice::with_memory(SimOptions::default(), Some(Arc::clone(&source) as Arc<dyn HostMemory>));
            let refused = device.arena("pages", 3, 100).map(drop);
            assert!(matches!(refused, Err(DeviceError::OutOfMemory { name: "pages", bytes: 384 })), "{refused:?}");
            assert!(source.given.lock().unwrap().is_empty());
        }
    }
}

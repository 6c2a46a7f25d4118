//! Anonymous host memory in huge pages, touched by several threads: pinning it afterwards is ten times faster than an
//! allocation by the driver.
use super::error::CudaError;
use core::ffi::c_void;
use core::num::NonZeroUsize;
use core::ptr;

/// Bytes of a huge page; mappings of at least this size start at a multiple of it.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Mapped zeroed memory, unmapped on drop.
pub(super) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory without ties to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a mapping by itself hands out a raw pointer only.
unsafe impl Sync for Mapping {}

const fn page_of(bytes: usize) -> usize {
    if bytes >= HUGE { HUGE } else { PAGE }
}

/// Bytes that a mapping of `bytes` takes: whole pages. `None` if the address space does not hold them.
pub(super) const fn mapped_bytes(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page_of(bytes))
}

impl Mapping {
    /// Maps `bytes`, rounded up to whole pages, and touches all of them with `threads` threads.
    pub(super) fn new(bytes: usize, threads: NonZeroUsize) -> Result<Self, CudaError> {
        let failed = |code| CudaError::OutOfPinnedMemory { bytes, call: "mmap", code };
        let page = page_of(bytes);
        let rounded = mapped_bytes(bytes).filter(|n| *n > 0).ok_or_else(|| failed(libc::ENOMEM))?;
        // Room to cut the start off up to a multiple of the page.
        let room = rounded.checked_add(page - PAGE).ok_or_else(|| failed(libc::ENOMEM))?;
        let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping of no file, wherever the system likes.
        let raw = unsafe { libc::mmap(ptr::null_mut(), room, read_write, private, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)));
        }
        let head = raw.addr().next_multiple_of(page) - raw.addr();
        let start = raw.wrapping_byte_add(head);
        cut(raw, head);
        cut(start.wrapping_byte_add(rounded), room - head - rounded);
        let mapping = Self { start: start.cast(), bytes: rounded };
        if page == HUGE {
            // SAFETY: the whole mapping. Advice only: without huge pages it works and is slower to pin.
            unsafe { libc::madvise(start, rounded, libc::MADV_HUGEPAGE) };
        }
        mapping.touch(threads);
        Ok(mapping)
    }

    /// First byte, a multiple of 4096 (of 2 MiB for mappings of that size).
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes mapped.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes one byte of every page, so that the pages exist, on the memory node of the threads that wrote.
    fn touch(&self, threads: NonZeroUsize) {
        let share = self.bytes.div_ceil(threads.get()).next_multiple_of(HUGE);
        std::thread::scope(|scope| {
            for first in (0..self.bytes).step_by(share).skip(1) {
                let touch = move || self.touch_range(first, share);
                // Without a thread this one does its share.
                if std::thread::Builder::new().name("certkv-touch".to_owned()).spawn_scoped(scope, touch).is_err() {
                    self.touch_range(first, share);
                }
            }
            self.touch_range(0, share);
        });
    }

    fn touch_range(&self, first: usize, bytes: usize) {
        for at in (first..self.bytes.min(first + bytes)).step_by(PAGE) {
            // SAFETY: inside the mapping, which nobody else has seen yet; the threads' shares are disjoint.
            unsafe { self.start.add(at).write_volatile(0) };
        }
    }

    /// Keeps the memory mapped for ever.
    pub(super) fn leak(self) {
        core::mem::forget(self);
    }
}

/// Unmaps a part at an end of a new mapping. A failure leaves address space behind, no memory: it was never touched.
fn cut(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: a part of a mapping of our own that nobody uses.
        unsafe { libc::munmap(start, bytes) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us and unmapped once. Fails only for arguments that are not a mapping.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("not zero")
    }

    #[test]
    fn mappings_are_zero_writable_and_aligned() {
        for (bytes, mapped, align) in
            [(1, PAGE, PAGE), (PAGE + 1, 2 * PAGE, PAGE), (HUGE, HUGE, HUGE), (5 * HUGE - 7, 5 * HUGE, HUGE)]
        {
            let mapping = Mapping::new(bytes, threads(3)).expect("memory");
            assert_eq!((mapping.bytes(), mapping.start().addr() % align), (mapped, 0));
            // SAFETY: the whole mapping, which only this test knows.
            let all = unsafe { core::slice::from_raw_parts_mut(mapping.start(), mapping.bytes()) };
            assert!(all.iter().all(|b| *b == 0));
            all.fill(7);
        }
    }

    #[test]
    fn every_page_is_touched_whatever_the_number_of_threads() {
        for n in [1, 2, 5, 64] {
            let mapping = Mapping::new(3 * HUGE, threads(n)).expect("memory");
            let mut resident = vec![0u8; mapping.bytes() / PAGE];
            // SAFETY: one byte of room for every page of the mapping.
            let code = unsafe { libc::mincore(mapping.start().cast(), mapping.bytes(), resident.as_mut_ptr()) };
            assert_eq!(code, 0);
            assert!(resident.iter().all(|r| r & 1 == 1), "{n} threads");
        }
    }

    #[test]
    fn impossible_sizes_are_typed_errors() {
        for bytes in [0, 1 << 50, usize::MAX - PAGE, usize::MAX] {
            match Mapping::new(bytes, threads(2)).map(|m| m.bytes()) {
                Err(CudaError::OutOfPinnedMemory { bytes: asked, call: "mmap", code }) => {
                    assert_eq!((asked, code), (bytes, libc::ENOMEM));
                }
                other => panic!("{bytes}: {other:?}"),
            }
        }
    }
}

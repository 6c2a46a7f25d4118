//! An allocator that refuses the request which the thread has asked it to.
#![allow(dead_code, reason = "each user takes a part")]
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes of a request that counts.
    static LEAST: Cell<usize> = const { Cell::new(0) };
    /// Such requests of this thread until one is refused; 0: none is.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread was given and has not given back, while it is counted.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Refuses the request that the thread has asked it to.
struct Refusing;

impl Refusing {
    fn refuses(bytes: usize) -> bool {
        let left = LEFT.try_with(Cell::get).unwrap_or(0);
        if left == 0 || bytes < LEAST.get() {
            return false;
        }
        LEFT.with(|l| l.set(left - 1));
        left == 1
    }

    fn hold(bytes: isize) {
        let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    }
}

// SAFETY: what the system's allocator gives, or null, which every caller must expect.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return core::ptr::null_mut();
        }
        Self::hold(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return core::ptr::null_mut();
        }
        Self::hold(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if Self::refuses(bytes) {
            return core::ptr::null_mut();
        }
        Self::hold(bytes as isize - layout.size() as isize);
        // SAFETY: the caller's block and layout.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::hold(-(layout.size() as isize));
        // SAFETY: the caller's block and layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Makes the `nth` request of at least `least` bytes in `call` fail; what the call says, and whether one was.
pub(crate) fn refused<T>(least: usize, nth: u64, call: impl FnOnce() -> T) -> (T, bool) {
    LEAST.set(least);
    LEFT.set(nth);
    let answer = call();
    (answer, LEFT.replace(0) == 0)
}

/// Bytes that this thread was given and has not given back.
pub(crate) fn held() -> isize {
    HELD.get()
}

/// `work` is refused nothing, whatever the thread has asked for: what stands in the place of a machine.
pub(crate) fn spared<T>(work: impl FnOnce() -> T) -> T {
    let left = LEFT.replace(0);
    let answer = work();
    LEFT.set(left);
    answer
}

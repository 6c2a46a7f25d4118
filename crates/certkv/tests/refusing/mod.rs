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

/// Refuses `call` each of its requests of at least `least` bytes in turn, of more than `all` some, and gives how many. It says that memory is wanting, and
/// holds no such request afterwards unless it `keeps` what it had done before.
pub(crate) fn each<T>(
    what: &str,
    (least, all, keeps): (usize, u64, bool),
    mut call: impl FnMut() -> Result<T, certkv::Error>,
) -> (u64, T) {
    let mut nth = 1;
    for refusals in 0.. {
        let before = held();
        let (made, reached) = refused(least, nth, &mut call);
        match made {
            Ok(made) if !reached => return (refusals, made),
            Ok(_) => panic!("{what}, request {nth}: not heard"),
            Err(error) => assert!(error.to_string().contains("memory"), "{what}, request {nth}: {error}"),
        }
        let kept = held() - before;
        assert!(keeps || kept < least as isize, "{what}, request {nth}: {kept} bytes stay");
        nth = if nth < all { nth + 1 } else { nth + nth / 3 };
    }
    unreachable!("requests without end")
}

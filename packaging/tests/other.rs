//! Another Rust library in the same program: it has an allocator of its own, which counts, and catches a panic of its own.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static TAKEN: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations so far.
#[unsafe(no_mangle)]
pub extern "C" fn other_taken() -> u64 {
    TAKEN.load(Relaxed)
}

/// Whether a panic was raised, allocated for and caught.
#[unsafe(no_mangle)]
pub extern "C" fn other_catches() -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    std::panic::catch_unwind(|| vec![0; 4][std::hint::black_box(9)]).is_err()
}

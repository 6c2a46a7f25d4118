//! What the calls of a decode step ask the allocator for: beginning, appending, attending and finishing, steps in which a block becomes full among
//! them. Nothing, in sequences whose lengths the cache has seen before: on the host, and on a GPU over a driver without one, where nothing is said of
//! what a driver asks for.
//!
//! The allocator of this program counts, over all threads. In debug builds devices check the order of all accesses, and allocate for that, so that
//! this holds in release builds: `cargo test --release -p certkv-capi --test allocations -- --nocapture`.
#[path = "../lives/cache.rs"]
mod cache;
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
mod host;
#[allow(dead_code, reason = "bodies of kernels that other tests plant defects in")]
#[path = "../../../certkv/tests/gpu_fake/kernels.rs"]
mod kernels;
mod life;
mod on_gpu;

use cache::message;
use life::Step;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Counting;

static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tests take turns: the count is one for the process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests of a call.
fn asked<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = ASKED.load(Ordering::Relaxed);
    let done = call();
    (ASKED.load(Ordering::Relaxed) - before, done)
}

/// Steps that asked for something.
fn asking(steps: &[Step]) -> usize {
    steps.iter().filter(|calls| calls.iter().sum::<u64>() > 0).count()
}

//! What the calls of a decode step ask the allocator for: beginning, appending, attending and finishing, steps in which a block becomes full among
//! them. Nothing, in sequences whose lengths the cache has seen before: on the host, and on a GPU over a driver without one, where nothing is said of
//! what a driver asks for.
//!
//! The allocator of this program counts, over all threads. In debug builds devices check the order of all accesses, and allocate for that, so that
//! this holds in release builds: `cargo test --release -p certkv-capi --test allocations -- --nocapture`.
#[path = "../lives/cache.rs"]
mod cache;
#[path = "../../../certkv-device/tests/counting/mod.rs"]
mod counting;
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
mod host;
#[allow(dead_code, reason = "bodies of kernels that other tests plant defects in")]
#[path = "../../../certkv/tests/gpu_fake/kernels.rs"]
mod kernels;
mod life;
mod on_gpu;

use cache::message;
use counting::asked;
use life::Step;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests take turns: the count is one for the process.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Steps that asked for something.
fn asking(steps: &[Step]) -> usize {
    steps.iter().filter(|calls| calls.iter().sum::<u64>() > 0).count()
}

//! The one source of locks and atomics: parking_lot and `core` in production, loom or shuttle under their `cfg`.
//!
//! Every crate re-exports this as its own `sync` module. Locks have parking_lot's signatures everywhere: `lock()`
//! returns the guard. loom treats `SeqCst` accesses as `AcqRel` and does not explore load buffering.

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub use core::sync::atomic;
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
    pub use std::{sync::Arc, thread};

    /// Locks that ask the allocator for nothing, ever: parking_lot's ask where a thread waits for the first time. With std's signatures.
    pub mod steady {
        pub use std::sync::{Condvar, Mutex, MutexGuard};
    }
}

#[cfg(any(loom, shuttle))]
mod imp {
    #[cfg(loom)]
    use loom::sync as model;
    #[cfg(shuttle)]
    use shuttle::sync as model;

    #[cfg(loom)]
    pub use loom::thread;
    pub use model::{Arc, MutexGuard, atomic};
    #[cfg(shuttle)]
    pub use shuttle::thread;

    /// Locks with std's signatures.
    pub mod steady {
        pub use super::model::{Condvar, Mutex, MutexGuard};
    }

    /// A model mutex with parking_lot's signature: a poisoned lock is a finding, so it is passed on.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(model::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex holding `value`.
        pub fn new(value: T) -> Self {
            Self(model::Mutex::new(value))
        }
        /// Locks; blocks the model thread.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.lock() {
                Ok(guard) => guard,
                Err(poisoned) => poisoned.into_inner(),
            }
        }
    }
}

pub use imp::*;

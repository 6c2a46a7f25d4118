//! Residency and moves: the scratch cache of promoted blocks (Tier-0), the pool of originals (Tier-2), the lanes that
//! copy between them, the [`store`] of whole pages outside the process (Tier-3), and the [`spill`] of originals to it.
//!
//! A move returns a fence or a [`MoveError`] that carries back what did not move. Nothing is visible before its copy
//! was seen to have succeeded; nothing that someone holds or may still read is overwritten. No lock is held while a
//! copy is enqueued, and nothing here waits for the device unless a fence could not be recorded.
#![forbid(unsafe_code)]

mod error;
mod host;
mod lane;
mod original;
mod scratch;
mod side;
pub mod spill;
// Real threads and real I/O: nothing for a model checker.
#[cfg(not(any(loom, shuttle)))]
pub mod store;

pub use error::{MoveCause, MoveError};
pub use host::{Originals, RowStore};
pub use lane::Lane;
pub use original::{LayoutError, OriginalLayout};
pub use scratch::{Census, Item, Occupancy, Offer, Scratch, ScratchConfig, ScratchLease, ScratchStats};
pub use side::{Side, SideKey};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

//! Who owns which page, and when a slot may be used again.
//!
//! Bottom up:
//!
//! * [`word`]: one atomic per page (generation, state, moving, pins). Every transition is one compare-and-swap whose
//!   refusal says why. The whole state machine is the pure function [`word::step`]; docs/states.md is its table.
//! * [`alloc`]: [`PageAllocator`], a slab of slot *indices* of one page class. The memory behind the indices belongs to
//!   the device's arenas. Counts references; keeps the queue of retiring pages.
//! * [`lease`]: a pin that gives itself back. Whoever looks a page up holds a lease, never a bare id.
//! * [`table`]: [`BlockTable`], the pages of one sequence in one KV group; append, fork, truncate, swap, release, and other formats for
//!   blocks that are full ([`LevelChange`]).
//! * [`window`]: tables that give up what no later query can see.
//! * [`streams`]: tables of groups whose tokens have mixed widths, a stream for each head and width.
//! * [`prefix`]: [`PrefixIndex`], full blocks that other sequences may continue from, found by their tokens.
//! * [`policy`]: which of those go first when room is needed.
//! * [`latest`]: a ring of numbered events, of which any number of readers take what is left.
//!
//! Three rules hold everywhere. An operation that fails changes nothing. A page whose last reference is gone is reused
//! only after a fence that covers every access to it ([`Stamp`]). A freed slot gets a new generation, so an id that
//! outlives its page is an error and never another sequence's data.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod error;
pub mod latest;
pub mod lease;
pub mod policy;
pub mod pools;
pub mod prefix;
pub mod reserve;
pub mod stamp;
pub mod streams;
pub mod table;
pub mod window;
pub mod word;

mod books;
mod check;
mod erase;
mod fork;
mod inspect;
mod level;
mod reclaim;
mod swap;
mod truncate;

pub(crate) use certkv_core::sync;

pub use alloc::{PageAllocator, Released};
pub use certkv_core::PageId;
pub use check::Violation;
pub use error::{PageError, TableError};
pub use inspect::Counts;
pub use lease::Lease;
pub use level::{LevelChange, RefusedChange};
pub use policy::EvictionPolicy;
pub use pools::{CopyOp, Dropped, MOST_LEVELS, PageClass, PageRef, Pools};
pub use prefix::{CachedUnit, PrefixIndex};
pub use reserve::{Reservation, RowSpan};
pub use stamp::Stamp;
pub use swap::{SwapCopy, SwapPlan};
pub use table::{BlockEntry, BlockTable, CommitError, Committed, Need, SwappedPage};
pub use truncate::TruncateOps;
pub use window::Window;
pub use word::{Operation, PageWord, Reason, Refused, Snapshot, State, WordError};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
#[cfg(all(test, any(loom, shuttle)))]
mod torn;

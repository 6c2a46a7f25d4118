//! Blocks that other sequences may continue from, found by what was said.
//!
//! * [`key`]: names of blocks, 256-bit keyed hashes over every field that decides what a page holds: what a page is called
//!   outside the process.
//! * [`index`]: [`PrefixIndex`], a tree of cached blocks: longest prefix; `reach`, how much of it can be continued where groups have
//!   windows; `publish`, `evict`, `hold`, `visit`.
//! * [`events`]: what became of cached units, for routers.
//! * [`admit`]: whether a request would fit, and how much to evict ahead of time.
//!
//! The index holds a reference of its own on every page it names. A look-up returns tables that hold theirs, taken under
//! the same lock under which an eviction removes an entry: what was found cannot go before it is used.
pub mod admit;
pub mod events;
pub mod index;
pub mod key;

mod entry;
mod evict;
mod hold;
mod publish;
mod reach;
mod visit;

pub use crate::latest::{EventsRead, NotYet};
pub use admit::{Admission, Watermarks};
pub use events::{Cached, EventKind, PrefixEvent, PrefixEvents};
pub use evict::Evicted;
pub use hold::Held;
pub use index::{GroupShape, Hit, PrefixIndex, PrefixStats, Published, Stop};
pub use key::{BlockKey, Chain, Mark, MarkDigest, NoRandomness, PrefixSecret, Prompt, Scope};
pub use publish::Unnoted;
pub use visit::CachedUnit;

//! Tier-3: whole pages outside the process, under 256-bit keys.
//!
//! A [`Store`] takes batches and gives back completions, without a runtime: threads, a bounded queue and a descriptor to
//! wait on. Behind it is a [`Backend`]: files ([`FileStore`]), with features an object store or Redis, memory for tests.
//!
//! Every stored page is sealed ([`seal`]) with its key, its identity, its format and a digest, and every page read is
//! opened before the caller sees a byte: damage, a stale page, another page under this key are [`StoreError::Corrupt`] and
//! never data. A put is visible whole or not at all.
mod backend;
mod batch;
mod error;
mod execute;
mod file;
mod front;
mod key;
mod memory;
#[cfg(any(feature = "redis", feature = "object-store"))]
mod names;
#[cfg(feature = "object-store")]
mod object;
#[cfg(feature = "redis")]
mod redis;
mod seal;
#[cfg(test)]
mod tests;

pub use backend::{Backend, Parts};
pub use batch::{Completion, Get, Outcome, Put, Ticket};
pub use error::{Busy, StillRunning, StoreError};
pub use file::{Durability, FileConfig, FileStore};
pub use front::{Store, StoreConfig};
pub use key::StoreKey;
pub use memory::MemoryStore;
#[cfg(feature = "object-store")]
pub use object::{ObjectBackend, ObjectConfig};
#[cfg(feature = "redis")]
pub use redis::{RedisBackend, RedisConfig};
pub use seal::{Field, Identity, SEAL_BYTES, SealError, open, seal};

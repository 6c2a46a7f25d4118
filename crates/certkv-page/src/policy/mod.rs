//! Which cached block goes first when room is needed.
mod list;
mod lru;
mod s3fifo;

pub use lru::Lru;
pub use s3fifo::S3Fifo;

use core::fmt;

/// An order of eviction over the entries of an index. It decides the order only: what may go at all, the index says.
///
/// Calls come one at a time, under the index's lock. An entry is in the policy from [`insert`](Self::insert) until
/// [`remove`](Self::remove) or until [`victim`](Self::victim) returned it; a slot is used again afterwards.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// `slot` holds a new entry. Of a new path, the deepest comes first. `name` is a hash of all that the entry stands for: the same
    /// contents have the same name as long as the index lives.
    fn insert(&mut self, slot: u32, name: u64);

    /// The entry was used. Of a path, the deepest comes first, so that what others build on counts as younger.
    fn touch(&mut self, slot: u32);

    /// The entry is gone for another reason.
    fn remove(&mut self, slot: u32);

    /// Picks and removes the entry to go next. `idle` tells whether an entry may go: not while blocks follow it, nor
    /// while a sequence uses its pages. `None`: no entry is idle. Must end after a number of questions that is
    /// proportional to the entries.
    fn victim(&mut self, idle: &mut dyn FnMut(u32) -> bool) -> Option<u32>;

    /// Entries in the policy.
    fn len(&self) -> usize;

    /// No entry.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

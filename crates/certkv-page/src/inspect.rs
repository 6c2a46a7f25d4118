//! What the books say: counts for the caller's ledger and metrics.
use crate::alloc::PageAllocator;

/// Pages of one class by where they are. The four always add up to the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Ready to be allocated.
    pub free: usize,
    /// Referenced, or just released and not yet retired.
    pub live: usize,
    /// Waiting for a fence, a lease or a move.
    pub retiring: usize,
    /// Out of generations, never used again: 0 until one slot was freed or reopened 2^32 - 2 times.
    pub worn: usize,
}

impl Counts {
    /// The capacity they must add up to.
    pub const fn sum(self) -> usize {
        self.free + self.live + self.retiring + self.worn
    }
}

impl PageAllocator {
    /// The counts at one moment.
    pub fn counts(&self) -> Counts {
        let books = self.shared.books.lock();
        Counts {
            free: books.free.len,
            live: books.live,
            retiring: books.retiring.len + books.detached,
            worn: books.worn,
        }
    }
}

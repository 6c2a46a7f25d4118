//! What the books say: counts for the caller's ledger and metrics.
use crate::alloc::PageAllocator;
use crate::word::State;

/// Pages of one class by where they are. The four always add up to the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Ready to be allocated.
    pub free: usize,
    /// Referenced, or just released and not yet retired.
    pub live: usize,
    /// Waiting for a fence, a lease or a move, or to be erased.
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
    /// Indices of the slots that nobody holds, erased or not. Others may take some of them meanwhile: the caller keeps them from it.
    pub fn free_slots(&self) -> impl Iterator<Item = u32> + '_ {
        let free = |index: &u32| {
            let state = self.shared.words[*index as usize].snapshot().state;
            matches!(state, State::Free | State::Worn)
        };
        (0..self.capacity() as u32).filter(free)
    }

    /// The counts at one moment.
    pub fn counts(&self) -> Counts {
        let books = self.shared.books.lock();
        Counts { free: books.free.len, live: books.live, retiring: books.returning(), worn: books.worn }
    }
}

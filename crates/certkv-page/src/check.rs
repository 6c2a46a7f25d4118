//! The invariants of one slab, checked in full: for tests, simulations and a health call.
use crate::alloc::PageAllocator;
use crate::books::{Books, List};
use crate::inspect::Counts;
use crate::word::{Snapshot, State};
use core::fmt;

/// An invariant that does not hold: the books are wrong, and no page of the class can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The counts do not add up to the capacity.
    Conservation {
        /// The counts.
        counts: Counts,
        /// What they should add up to.
        capacity: usize,
    },
    /// A list has another number of slots than it says, or runs in a circle.
    List {
        /// Slots the list claims.
        claimed: usize,
        /// Slots met before it ended or was given up.
        met: usize,
    },
    /// A slot's state does not fit the list it is in.
    Misplaced {
        /// The slot.
        index: u32,
        /// Its state.
        state: State,
        /// Its references.
        references: u32,
    },
    /// A page that nobody may hold is pinned or being moved, or a page that is still written has two owners.
    Held {
        /// The slot.
        index: u32,
        /// Its state.
        state: State,
        /// Its pins.
        pins: u32,
        /// Its references.
        references: u32,
    },
    /// More slots are outside the lists than are accounted for.
    Lost {
        /// Slots in no list, by their words.
        found: Counts,
        /// What the books say.
        booked: Counts,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page books violated: {self:?}")
    }
}
impl std::error::Error for Violation {}

fn walk(books: &Books, list: List, mut visit: impl FnMut(u32) -> Result<(), Violation>) -> Result<(), Violation> {
    let (mut at, mut met) = (list.head, 0);
    while let Some(slot) = books.slots.get(at as usize) {
        if met == list.len {
            return Err(Violation::List { claimed: list.len, met: met + 1 });
        }
        visit(at)?;
        met += 1;
        at = slot.next;
    }
    if met == list.len { Ok(()) } else { Err(Violation::List { claimed: list.len, met }) }
}

impl PageAllocator {
    /// Checks every invariant of the slab in O(capacity) under its lock, without allocating. Leases may come and go
    /// meanwhile; a `reclaim` running on another thread only hides the pages it has in hand.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn check(&self) -> Result<Counts, Violation> {
        let books = self.shared.books.lock();
        let capacity = self.capacity();
        let counts = Counts { free: books.free.len, live: books.live, retiring: books.returning(), worn: books.worn };
        if counts.sum() != capacity {
            return Err(Violation::Conservation { counts, capacity });
        }
        let page = |index: u32| (self.shared.words[index as usize].snapshot(), books.slots[index as usize].references);
        let member = |expected: State| {
            move |index: u32| match page(index) {
                (Snapshot { state, .. }, 0) if state == expected => Ok(()),
                (Snapshot { state, .. }, references) => Err(Violation::Misplaced { index, state, references }),
            }
        };
        // A list has as many members as it claims, all in the one state of that list; so it is enough to count the
        // states over all slots to know that no slot is in two lists, and none in no list.
        walk(&books, books.free, member(State::Free))?;
        walk(&books, books.retiring, member(State::Retiring))?;
        books.soiled.map_or(Ok(()), |soiled| walk(&books, soiled, member(State::Free)))?;
        let mut found = Counts::default();
        for index in 0..capacity as u32 {
            let (Snapshot { state, pins, moving, .. }, references) = page(index);
            let held = pins > 0 || moving;
            match state {
                State::Free => found.free += 1,
                State::Retiring => found.retiring += 1,
                State::Worn => found.worn += 1,
                State::Open | State::Closing | State::Packed => found.live += 1,
            }
            let wrong = match state {
                State::Free | State::Worn => held || references > 0,
                State::Retiring => references > 0,
                State::Open | State::Closing => moving || references > 1,
                State::Packed => moving && pins > 0,
            };
            if wrong {
                return Err(Violation::Held { index, state, pins, references });
            }
        }
        // What is to be erased is free, but not yet to be had.
        let erased = books.to_be_erased();
        let booked = Counts { free: counts.free + erased, retiring: counts.retiring - erased, ..counts };
        if found == booked { Ok(counts) } else { Err(Violation::Lost { found, booked }) }
    }
}

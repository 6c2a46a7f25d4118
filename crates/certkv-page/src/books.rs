//! What the allocator's lock protects: references, stamps and the two lists that link the slots by index.
use crate::error::PageError;
use crate::stamp::Stamp;

/// End of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// One slot's part of the books. A slot is in at most one list, so one link is enough.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) next: u32,
    pub(crate) references: u32,
    /// Meaningful while the page is retiring.
    pub(crate) stamp: Stamp,
}

/// A queue of slots linked through [`Slot::next`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: usize,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL, len: 0 };

    pub(crate) fn push_front(&mut self, slots: &mut [Slot], index: u32) {
        slots[index as usize].next = self.head;
        if self.head == NIL {
            self.tail = index;
        }
        self.head = index;
        self.len += 1;
    }

    pub(crate) fn push_back(&mut self, slots: &mut [Slot], index: u32) {
        self.append(slots, Self { head: index, tail: index, len: 1 });
        slots[index as usize].next = NIL;
    }

    pub(crate) fn pop_front(&mut self, slots: &mut [Slot]) -> Option<u32> {
        let index = self.head;
        if index == NIL {
            return None;
        }
        self.head = slots[index as usize].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        slots[index as usize].next = NIL;
        Some(index)
    }

    /// Puts all of `other` behind `self`.
    pub(crate) fn append(&mut self, slots: &mut [Slot], other: Self) {
        match (self.head, other.head) {
            (_, NIL) => {}
            (NIL, _) => *self = other,
            _ => {
                slots[self.tail as usize].next = other.head;
                self.tail = other.tail;
                self.len += other.len;
            }
        }
    }
}

/// The books of one page class.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: List,
    /// Oldest first.
    pub(crate) retiring: List,
    /// Free pages that hold what their last owners left; `None` where nobody erases it, and they are free like all others.
    pub(crate) soiled: Option<List>,
    /// Retiring pages that a running `reclaim` has taken off the queue.
    pub(crate) detached: usize,
    /// Soiled pages that a running `erase` has taken off their list.
    pub(crate) erasing: usize,
    pub(crate) live: usize,
    pub(crate) worn: usize,
}

impl Books {
    /// All slots free, lowest index first.
    pub(crate) fn create(capacity: u32) -> Result<Self, PageError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(capacity as usize).map_err(|_| PageError::OutOfMemory { what: "page slots" })?;
        slots.extend((0..capacity).map(|i| Slot {
            next: if i + 1 == capacity { NIL } else { i + 1 },
            references: 0,
            stamp: Stamp::UNTOUCHED,
        }));
        let free = match capacity {
            0 => List::EMPTY,
            n => List { head: 0, tail: n - 1, len: n as usize },
        };
        Ok(Self { slots, free, retiring: List::EMPTY, soiled: None, detached: 0, erasing: 0, live: 0, worn: 0 })
    }

    /// Pages on their way back that no allocation can have yet.
    pub(crate) fn returning(&self) -> usize {
        self.retiring.len + self.detached + self.to_be_erased()
    }

    /// Those of them that nobody holds any more.
    pub(crate) fn to_be_erased(&self) -> usize {
        self.soiled.map_or(0, |soiled| soiled.len) + self.erasing
    }

    /// Queues a retiring slot behind `stamp`.
    pub(crate) fn enqueue(&mut self, index: u32, stamp: Stamp) {
        self.slots[index as usize].stamp = stamp;
        self.retiring.push_back(&mut self.slots, index);
    }
}

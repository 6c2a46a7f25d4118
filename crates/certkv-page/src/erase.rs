//! Pages that nobody holds any more are erased before they are anybody else's.
use crate::alloc::PageAllocator;
use crate::books::{Books, List};
use certkv_core::PageId;

/// Pages taken off the list of soiled ones while they are erased. What is left goes back, also when the caller's closure panics.
struct Hand<'a> {
    pages: &'a PageAllocator,
    left: List,
    kept: List,
}

impl Hand<'_> {
    /// Names the first pages of those that are left; returns how many.
    fn name(&self, ids: &mut [PageId]) -> usize {
        let (books, words) = (self.pages.shared.books.lock(), &self.pages.shared.words);
        let (mut at, mut named) = (self.left.head, 0);
        while let (Some(id), Some(word)) = (ids.get_mut(named), words.get(at as usize)) {
            *id = PageId { index: at, generation: word.generation() };
            at = books.slots[at as usize].next;
            named += 1;
        }
        named
    }

    /// Sees to the first so many pages of those that are left.
    fn settle(&mut self, count: usize, erased: bool) {
        let mut books = self.pages.shared.books.lock();
        let Books { slots, free, erasing, .. } = &mut *books;
        for _ in 0..count {
            let Some(index) = self.left.pop_front(slots) else { return };
            if erased {
                *erasing -= 1;
                free.push_front(slots, index);
            } else {
                self.kept.push_back(slots, index);
            }
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let mut books = self.pages.shared.books.lock();
        let Books { slots, soiled, erasing, .. } = &mut *books;
        *erasing -= self.kept.len + self.left.len;
        self.kept.append(slots, self.left);
        if let Some(soiled) = soiled {
            soiled.append(slots, self.kept);
        }
    }
}

/// Pages that are named at once.
const AT_ONCE: usize = 64;

impl PageAllocator {
    /// Calls `wipe` with free pages that have not been erased since they were given up, some at a time, under the generations that their next owners
    /// have, and never with the allocator's lock held. Where it returns true they can be allocated; otherwise it is asked about them again by the next
    /// call. Returns how many were erased. Of a slab that was not made by [`create_erased`](Self::create_erased) there are none.
    pub fn erase(&self, wipe: &mut dyn FnMut(&[PageId]) -> bool) -> usize {
        let mut hand = {
            let mut books = self.shared.books.lock();
            let left = books.soiled.as_mut().map_or(List::EMPTY, |soiled| core::mem::replace(soiled, List::EMPTY));
            books.erasing += left.len;
            Hand { pages: self, left, kept: List::EMPTY }
        };
        let (mut ids, mut erased) = ([PageId { index: 0, generation: 0 }; AT_ONCE], 0);
        loop {
            let some = match hand.name(&mut ids) {
                0 => return erased,
                count => &ids[..count],
            };
            let done = wipe(some);
            hand.settle(some.len(), done);
            erased += if done { some.len() } else { 0 };
        }
    }
}

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
    fn next(&self) -> Option<PageId> {
        let index = self.left.head;
        let word = self.pages.shared.words.get(index as usize)?;
        Some(PageId { index, generation: word.generation() })
    }

    /// Sees to the page that was next.
    fn settle(&mut self, erased: bool) {
        let mut books = self.pages.shared.books.lock();
        let Books { slots, free, erasing, .. } = &mut *books;
        let Some(index) = self.left.pop_front(slots) else { return };
        if erased {
            *erasing -= 1;
            free.push_front(slots, index);
        } else {
            self.kept.push_back(slots, index);
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

impl PageAllocator {
    /// Calls `wipe` with each free page that has not been erased since it was given up, under the generation that its next owner has, and never
    /// with the allocator's lock held. Where it returns true the page can be allocated; otherwise it is asked about again by the next call.
    /// Returns how many were erased. Of a slab that was not made by [`create_erased`](Self::create_erased) there are none.
    pub fn erase(&self, wipe: &mut dyn FnMut(PageId) -> bool) -> usize {
        let mut hand = {
            let mut books = self.shared.books.lock();
            let left = books.soiled.as_mut().map_or(List::EMPTY, |soiled| core::mem::replace(soiled, List::EMPTY));
            books.erasing += left.len;
            Hand { pages: self, left, kept: List::EMPTY }
        };
        let mut erased = 0;
        while let Some(id) = hand.next() {
            let done = wipe(id);
            hand.settle(done);
            erased += usize::from(done);
        }
        erased
    }
}

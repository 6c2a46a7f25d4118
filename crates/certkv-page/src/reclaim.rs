//! Retiring pages become free, oldest first, when their fence has passed and nobody holds them.
use crate::alloc::PageAllocator;
use crate::books::{Books, List};
use crate::stamp::Stamp;
use certkv_core::planted;

/// Pages taken off the retiring queue while the device is asked about them. Whatever is not freed goes back in order,
/// also when the caller's closure panics.
struct Walk<'a> {
    pages: &'a PageAllocator,
    ahead: List,
    kept: List,
}

impl<'a> Walk<'a> {
    fn start(pages: &'a PageAllocator) -> (Self, Option<Stamp>) {
        let mut books = pages.shared.books.lock();
        let ahead = core::mem::replace(&mut books.retiring, List::EMPTY);
        books.detached += ahead.len;
        let first = stamp_at(&books, ahead);
        (Self { pages, ahead, kept: List::EMPTY }, first)
    }

    /// Frees or keeps the run of pages at the head that carry `stamp`. Returns how many became free and the next stamp.
    fn settle(&mut self, stamp: Stamp, passed: bool) -> (usize, Option<Stamp>) {
        let mut books = self.pages.shared.books.lock();
        let mut freed = 0;
        while stamp_at(&books, self.ahead) == Some(stamp) {
            let Some(index) = self.ahead.pop_front(&mut books.slots) else { break };
            if passed && self.pages.free(&mut books, index) {
                books.detached -= 1;
                freed += 1;
            } else {
                self.kept.push_back(&mut books.slots, index);
            }
        }
        (freed, stamp_at(&books, self.ahead))
    }
}

fn stamp_at(books: &Books, list: List) -> Option<Stamp> {
    books.slots.get(list.head as usize).map(|slot| slot.stamp)
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        let mut books = self.pages.shared.books.lock();
        let Books { slots, retiring, detached, .. } = &mut *books;
        *detached -= self.kept.len + self.ahead.len;
        // Pages retired meanwhile are younger: they stay behind.
        self.kept.append(slots, self.ahead);
        self.kept.append(slots, *retiring);
        *retiring = self.kept;
    }
}

impl PageAllocator {
    /// Frees the retiring pages whose stamp has passed, oldest first, and returns how many. A page that is leased or
    /// being moved stays, and so does one whose fence has not passed; neither holds up the pages behind it, so one slow
    /// reader cannot starve the class.
    ///
    /// `passed` is called once per run of equal stamps and never with the allocator's lock held.
    pub fn reclaim(&self, passed: &mut dyn FnMut(Stamp) -> bool) -> usize {
        let (mut walk, mut next) = Walk::start(self);
        let mut total = 0;
        while let Some(stamp) = next {
            let go = stamp == Stamp::UNTOUCHED || planted!(B3) || passed(stamp);
            let (freed, following) = walk.settle(stamp, go);
            total += freed;
            if !go && planted!(B21) {
                break;
            }
            next = following;
        }
        total
    }
}

//! The slab of slot indices of one page class: allocation, references, retirement.
use crate::books::{Books, List};
use crate::error::PageError;
use crate::stamp::Stamp;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::word::{FIRST_GENERATION, Operation, PageWord, Snapshot, State};
use certkv_core::{PageId, fail_point, planted};
use core::fmt;

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a page whose last reference is gone must be retired"]
pub struct Released {
    /// No reference is left: the caller must [`retire`](PageAllocator::retire) the page.
    pub last: bool,
}

/// The lock of a class while several pages are let go.
pub(crate) struct LettingGo<'a> {
    pages: &'a PageAllocator,
    books: MutexGuard<'a, Books>,
}

impl LettingGo<'_> {
    /// As [`PageAllocator::release`]: whether no reference is left.
    pub(crate) fn release(&mut self, id: PageId) -> Result<bool, PageError> {
        Ok(self.pages.drop_reference(&mut self.books, id)? == 0)
    }

    /// Whether there is one reference to the page.
    pub(crate) fn is_sole(&self, id: PageId) -> bool {
        self.pages.counted(&self.books, id) == Ok(1)
    }

    /// As [`PageAllocator::retire`].
    pub(crate) fn retire(&mut self, id: PageId, stamp: Stamp) -> Result<(), PageError> {
        self.pages.mark_retiring(&mut self.books, id)?;
        self.books.enqueue(id.index, stamp);
        Ok(())
    }
}

pub(crate) struct Shared {
    pub(crate) words: Box<[PageWord]>,
    pub(crate) books: Mutex<Books>,
    serial: AtomicU64,
}

/// Allocator of one page class: a handle, cheap to clone, on one slab of at most `u32::MAX - 1` slots.
///
/// All memory is taken by [`create`](Self::create). Words are read and pinned without the lock; references and lists
/// change under it. The lock is never held while the device is asked anything.
#[derive(Clone)]
pub struct PageAllocator {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for PageAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageAllocator").field("capacity", &self.capacity()).field("counts", &self.counts()).finish()
    }
}

impl PageAllocator {
    /// A slab of `capacity` free slots. 0 is allowed: every allocation then fails.
    ///
    /// # Errors
    /// [`PageError::TooManyPages`], [`PageError::OutOfMemory`].
    pub fn create(capacity: usize) -> Result<Self, PageError> {
        Self::create_at(capacity, FIRST_GENERATION)
    }

    /// As [`create`](Self::create), where a page that was given up is handed out again only when [`erase`](Self::erase) has seen to it.
    /// Until then it counts as retiring.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_erased(capacity: usize) -> Result<Self, PageError> {
        let pages = Self::create(capacity)?;
        pages.shared.books.lock().soiled = Some(List::EMPTY);
        Ok(pages)
    }

    /// As [`create`](Self::create), with slots that are already at `generation`: tests reach the last one this way.
    pub(crate) fn create_at(capacity: usize, generation: u32) -> Result<Self, PageError> {
        fail_point!("page.alloc.create")?;
        let slots = u32::try_from(capacity).ok().filter(|n| *n < u32::MAX);
        let slots = slots.ok_or(PageError::TooManyPages { asked: capacity })?;
        let books = Books::create(slots)?;
        let mut words = Vec::new();
        words.try_reserve_exact(capacity).map_err(|_| PageError::OutOfMemory { what: "page words" })?;
        words.extend((0..slots).map(|_| PageWord::free_at(generation)));
        let words = words.into_boxed_slice();
        Ok(Self { shared: Arc::new(Shared { words, books: Mutex::new(books), serial: AtomicU64::new(1) }) })
    }

    /// Host bytes that a slab of `capacity` slots takes: for the ledger.
    pub const fn bytes(capacity: usize) -> usize {
        capacity.saturating_mul(size_of::<PageWord>() + size_of::<crate::books::Slot>())
    }

    /// Where the slab is: handles on one slab have one address.
    pub(crate) fn address(&self) -> usize {
        core::ptr::from_ref(&*self.shared).addr()
    }

    /// Slots of the class.
    pub fn capacity(&self) -> usize {
        self.shared.words.len()
    }

    /// A number that no earlier call on this slab returned.
    pub(crate) fn next_serial(&self) -> u64 {
        self.shared.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// The word of `id`, if the class has such a slot.
    #[inline(always)]
    pub(crate) fn word(&self, id: PageId) -> Result<&PageWord, PageError> {
        let capacity = self.capacity();
        self.shared.words.get(id.index as usize).ok_or(PageError::OutOfRange { id, capacity })
    }

    /// One transition of the word of `id`.
    #[inline]
    pub(crate) fn apply(&self, operation: Operation, id: PageId) -> Result<Snapshot, PageError> {
        self.word(id)?.apply(operation, id.generation).map_err(|e| PageError::of_word(id, e))
    }

    /// The word of `id` if the id is current.
    ///
    /// # Errors
    /// [`PageError::OutOfRange`], [`PageError::Stale`].
    #[inline(always)]
    pub fn snapshot(&self, id: PageId) -> Result<Snapshot, PageError> {
        let now = self.word(id)?.snapshot();
        if now.generation == id.generation { Ok(now) } else { Err(PageError::Stale { id, found: now.generation }) }
    }

    /// One page, Open, with one reference: the caller's.
    ///
    /// # Errors
    /// [`PageError::Exhausted`]; [`PageError::Fault`] in tests.
    pub fn allocate(&self) -> Result<PageId, PageError> {
        fail_point!("page.allocate")?;
        let mut books = self.shared.books.lock();
        self.require(&books, 1)?;
        self.take(&mut books)
    }

    /// Appends `n` pages to `into`, all or none.
    ///
    /// # Errors
    /// [`PageError::Exhausted`], [`PageError::OutOfMemory`] (for `into`), [`PageError::Fault`]; `into` is then as before.
    pub fn allocate_many(&self, n: usize, into: &mut Vec<PageId>) -> Result<(), PageError> {
        into.try_reserve(n).map_err(|_| PageError::OutOfMemory { what: "a list of pages" })?;
        let before = into.len();
        let mut books = self.shared.books.lock();
        self.require(&books, n)?;
        for _ in 0..n {
            let taken = fail_point!("page.allocate").map_err(PageError::from).and_then(|()| self.take(&mut books));
            match taken {
                Ok(id) => into.push(id),
                Err(error) => {
                    // Nobody saw these ids, so no stream touched the pages and nothing can refuse.
                    for id in into.drain(before..).rev().filter(|_| !planted!(B19)) {
                        let _ =
                            self.drop_reference(&mut books, id).and_then(|_| self.retire_now_locked(&mut books, id));
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn require(&self, books: &Books, asked: usize) -> Result<(), PageError> {
        let (free, retiring) = (books.free.len, books.returning());
        if asked <= free {
            Ok(())
        } else {
            Err(PageError::Exhausted { asked, free, retiring, capacity: self.capacity() })
        }
    }

    #[inline(always)]
    fn take(&self, books: &mut Books) -> Result<PageId, PageError> {
        let index = books.free.head;
        let Some(word) = self.shared.words.get(index as usize) else {
            return Err(PageError::Exhausted {
                asked: 1,
                free: 0,
                retiring: books.returning(),
                capacity: self.capacity(),
            });
        };
        // A free slot's word changes only under this lock.
        let id = match word.open_free() {
            Some(generation) => PageId { index, generation },
            // A slot on the list that is not free was tampered with: the refusal says how it was found.
            None => {
                let id = PageId { index, generation: word.snapshot().generation };
                self.apply(Operation::Open, id)?;
                id
            }
        };
        books.free.pop_front(&mut books.slots);
        books.slots[index as usize].references = 1;
        books.live += 1;
        Ok(id)
    }

    /// References of a current id; 0 when it is retiring or about to be.
    #[inline(always)]
    fn counted(&self, books: &Books, id: PageId) -> Result<u32, PageError> {
        let found = self.word(id)?.generation();
        if found != id.generation {
            return Err(PageError::Stale { id, found });
        }
        Ok(books.slots[id.index as usize].references)
    }

    /// References to `id`: 0 between the last release and the retirement.
    ///
    /// # Errors
    /// [`PageError::OutOfRange`], [`PageError::Stale`].
    pub fn references(&self, id: PageId) -> Result<u32, PageError> {
        self.counted(&self.shared.books.lock(), id)
    }

    /// Adds one reference. Only a Packed page can be shared: a page that is still written has one owner.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::Unreferenced`], [`PageError::NotShareable`], [`PageError::TooManyReferences`].
    pub fn retain(&self, id: PageId) -> Result<(), PageError> {
        self.retain_all(core::iter::once(id))
    }

    /// Adds one reference to each page, all or none, under one lock.
    pub(crate) fn retain_all(&self, ids: impl Iterator<Item = PageId> + Clone) -> Result<(), PageError> {
        let mut books = self.shared.books.lock();
        for (done, id) in ids.clone().enumerate() {
            if let Err(error) = self.retain_locked(&mut books, id) {
                for undo in ids.take(done) {
                    books.slots[undo.index as usize].references -= 1;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn retain_locked(&self, books: &mut Books, id: PageId) -> Result<(), PageError> {
        let references = match self.counted(books, id)? {
            0 => return Err(PageError::Unreferenced { id }),
            n => n.checked_add(1).ok_or(PageError::TooManyReferences { id })?,
        };
        // Reopening asks for one reference under this lock, so a page cannot open between here and the count.
        if self.snapshot(id)?.state != State::Packed {
            return Err(PageError::NotShareable { id });
        }
        books.slots[id.index as usize].references = references;
        Ok(())
    }

    /// Gives one reference up.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::Unreferenced`] for a second release; nothing changes.
    pub fn release(&self, id: PageId) -> Result<Released, PageError> {
        let last = self.drop_reference(&mut self.shared.books.lock(), id)? == 0;
        Ok(Released { last })
    }

    /// To give up references or retire pages, several under one lock.
    pub(crate) fn letting_go(&self) -> LettingGo<'_> {
        LettingGo { pages: self, books: self.shared.books.lock() }
    }

    fn drop_reference(&self, books: &mut Books, id: PageId) -> Result<u32, PageError> {
        let counted = self.counted(books, id)?;
        let left = counted.checked_sub(1).or(if planted!(B7) { Some(0) } else { None });
        let left = left.ok_or(PageError::Unreferenced { id })?;
        books.slots[id.index as usize].references = left;
        Ok(left)
    }

    /// Puts a page without references behind `stamp`: it is free once [`reclaim`](Self::reclaim) finds the stamp passed
    /// and the page unpinned. Leases and a running move may outlive this call; new pins are refused.
    ///
    /// # Errors
    /// [`PageError::Shared`] while a reference is left; [`PageError::Refused`] when it is Closing or already retired.
    pub fn retire(&self, id: PageId, stamp: Stamp) -> Result<(), PageError> {
        self.letting_go().retire(id, stamp)
    }

    /// Retires a page without references that no stream ever touched. `true`: it is free now; `false`: a lease holds
    /// it, and a later [`reclaim`](Self::reclaim) frees it without asking for a fence.
    ///
    /// # Errors
    /// As [`retire`](Self::retire).
    pub fn retire_now(&self, id: PageId) -> Result<bool, PageError> {
        self.retire_now_locked(&mut self.shared.books.lock(), id)
    }

    /// Gives up the only reference to a page that no stream ever touched, and frees it: [`release`](Self::release) and
    /// [`retire_now`](Self::retire_now) under one lock. `false`: a lease holds it still.
    ///
    /// # Errors
    /// [`PageError::Stale`], [`PageError::Unreferenced`], [`PageError::Shared`]; nothing changes.
    pub fn give_back(&self, id: PageId) -> Result<bool, PageError> {
        let mut books = self.shared.books.lock();
        match self.counted(&books, id)? {
            1 => {}
            0 => return Err(PageError::Unreferenced { id }),
            references => return Err(PageError::Shared { id, references }),
        }
        books.slots[id.index as usize].references = 0;
        // Closing is the one state that does not retire: the reference comes back.
        match self.leave(&mut books, id) {
            Ok(freed) => Ok(freed),
            Err(error) => {
                books.slots[id.index as usize].references = 1;
                Err(error)
            }
        }
    }

    fn retire_now_locked(&self, books: &mut Books, id: PageId) -> Result<bool, PageError> {
        match self.counted(books, id)? {
            0 => {}
            references => return Err(PageError::Shared { id, references }),
        }
        self.leave(books, id)
    }

    /// Takes a page without references out of the live ones: to the free list, or in line if somebody holds it.
    #[inline(always)]
    fn leave(&self, books: &mut Books, id: PageId) -> Result<bool, PageError> {
        let left = self.word(id)?.retire_or_free(id.generation).map_err(|e| PageError::of_word(id, e))?;
        books.live -= 1;
        let freed = Self::settle(books, id.index, left);
        if !freed {
            books.enqueue(id.index, Stamp::UNTOUCHED);
        }
        Ok(freed)
    }

    /// Counts a slot that was let go among those it belongs to. `false`: somebody holds it still.
    #[inline(always)]
    fn settle(books: &mut Books, index: u32, state: State) -> bool {
        match state {
            State::Free => books.soiled.as_mut().unwrap_or(&mut books.free).push_front(&mut books.slots, index),
            // Out of generations: a slot lost for good is better than an id that means two pages.
            State::Worn => books.worn += 1,
            _ => return false,
        }
        true
    }

    /// The page stops being live and is in no list yet.
    fn mark_retiring(&self, books: &mut Books, id: PageId) -> Result<(), PageError> {
        match self.counted(books, id)? {
            0 => self.apply(Operation::Retire, id)?,
            references => return Err(PageError::Shared { id, references }),
        };
        books.live -= 1;
        Ok(())
    }

    /// Frees a retiring slot that is in no list. `false`: pinned or being moved, and nothing changed.
    pub(crate) fn free(&self, books: &mut Books, index: u32) -> bool {
        let word = &self.shared.words[index as usize];
        let left = word.apply(Operation::Free, word.snapshot().generation);
        left.is_ok_and(|page| Self::settle(books, index, page.state))
    }

    /// Makes a Packed page writable again for its only owner, under a new generation: what was cached under `id` can
    /// no longer be found. Its rows stay as they are.
    pub(crate) fn reopen(&self, id: PageId) -> Result<PageId, PageError> {
        let books = self.shared.books.lock();
        match self.counted(&books, id)? {
            1 => Ok(PageId { generation: self.apply(Operation::Reopen, id)?.generation, ..id }),
            0 => Err(PageError::Unreferenced { id }),
            references => Err(PageError::Shared { id, references }),
        }
    }

    /// Takes the contents of a Packed, unpinned page for a mover alone. A copy that only reads takes a
    /// [`lease`](Self::lease) instead.
    ///
    /// # Errors
    /// [`PageError::Refused`], [`PageError::Stale`].
    pub fn move_begin(&self, id: PageId) -> Result<(), PageError> {
        self.apply(Operation::MoveBegin, id).map(drop)
    }

    /// Ends a move, done or failed. The page may have been retired in between: the state tells.
    ///
    /// # Errors
    /// [`PageError::Refused`] when no move runs.
    pub fn move_end(&self, id: PageId) -> Result<State, PageError> {
        self.apply(Operation::MoveEnd, id).map(|page| page.state)
    }
}

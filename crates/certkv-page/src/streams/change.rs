//! Fork, cut and release, and pages on their way out.
use super::map::Stream;
use super::table::StreamTable;
use super::{StreamClass, StreamError};
use crate::error::PageError;
use crate::stamp::Stamp;
use certkv_core::PageId;

/// Rows `0..rows` to be copied from one page to another of the same width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCopy {
    /// Number of the width.
    pub class: usize,
    /// Where the rows are.
    pub from: PageId,
    /// Where they go.
    pub to: PageId,
    /// How many, from row 0; some of them may be dead.
    pub rows: usize,
}

/// References that a table no longer needs and still holds, so that the pages outlive the copies just ordered. Left to drop, the
/// pages are retired behind [`Stamp::IDLE`].
#[derive(Debug)]
#[must_use = "the pages wait for the stamp of the work that may still use them"]
pub struct StreamDropped {
    classes: Vec<StreamClass>,
    pages: Vec<(usize, PageId)>,
    /// The references are gone; what is still listed waits for its stamp only.
    released: bool,
}

impl StreamDropped {
    pub(super) fn empty() -> Self {
        Self { classes: Vec::new(), pages: Vec::new(), released: false }
    }

    /// Room for `n` pages, so that `push` cannot fail.
    pub(super) fn with_room(classes: &[StreamClass], n: usize) -> Option<Self> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(n).ok()?;
        Some(Self { classes: classes.to_vec(), pages, released: false })
    }

    pub(super) fn push(&mut self, class: usize, id: PageId) {
        self.pages.push((class, id));
    }

    /// The pages with the numbers of their classes, shared or not.
    pub fn pages(&self) -> impl Iterator<Item = (usize, PageId)> + '_ {
        self.pages.iter().copied()
    }

    /// As [`Dropped::retire`](crate::Dropped::retire): gives the references up, takes the stamp, and retires behind it the pages
    /// that lost their last reference. Returns how many those are.
    ///
    /// # Errors
    /// The first refusal, which means that references were tampered with; all other pages are retired all the same.
    pub fn retire(mut self, record: impl FnOnce() -> Stamp) -> Result<usize, PageError> {
        self.let_go(record)
    }

    fn let_go(&mut self, record: impl FnOnce() -> Stamp) -> Result<usize, PageError> {
        let mut refused = None;
        let Self { classes, pages, .. } = self;
        if !core::mem::replace(&mut self.released, true) {
            pages.retain(|(class, id)| match classes[*class].pages.release(*id) {
                Ok(released) => released.last,
                Err(error) => {
                    refused.get_or_insert(error);
                    false
                }
            });
        }
        let count = pages.len();
        if count > 0 {
            let stamp = record();
            for (class, id) in pages.drain(..) {
                if let Err(error) = classes[class].pages.retire(id, stamp) {
                    refused.get_or_insert(error);
                }
            }
        }
        refused.map_or(Ok(count), Err)
    }
}

impl Drop for StreamDropped {
    fn drop(&mut self) {
        // A refusal means tampering, which `PageAllocator::check` reports; a drop has nobody to tell.
        let _ = self.let_go(|| Stamp::IDLE);
    }
}

impl StreamTable {
    /// Cuts the sequence to `len` tokens. Nothing is copied: their rows are dead, and pages without a row in use are given up.
    ///
    /// # Errors
    /// [`StreamError::BeyondEnd`], [`StreamError::OutOfMemory`]; nothing changed.
    pub fn truncate(&mut self, len: usize) -> Result<StreamDropped, StreamError> {
        if len > self.len {
            return Err(StreamError::BeyondEnd { asked: len, len: self.len });
        }
        // No more pages than rows, nor than there are.
        let most = ((self.len - len).saturating_mul(self.heads)).min(self.all_pages().count());
        let dropped = StreamDropped::with_room(&self.classes, most);
        let mut dropped = dropped.ok_or(StreamError::OutOfMemory { what: "the pages of a truncation" })?;
        if len == self.len {
            return Ok(dropped);
        }
        let classes = self.classes.len();
        for (head, places) in self.places.iter_mut().enumerate() {
            for place in places.drain(len..).rev() {
                let class = usize::from(place.class);
                let stream = &mut self.streams[head * classes + class];
                if let Some(id) = stream.kill(place.slot, place.row, self.classes[class].rows) {
                    dropped.push(class, id);
                }
            }
        }
        for (i, stream) in self.streams.iter_mut().enumerate() {
            if let Some(id) = stream.trim(self.classes[i % classes].rows) {
                dropped.push(i % classes, id);
            }
        }
        self.len = len;
        self.version += 1;
        Ok(dropped)
    }

    /// A table with the same tokens: full pages are shared, open ones get a page of their own. The copies fill those: the caller
    /// enqueues them before either sequence is written, cut or released.
    ///
    /// # Errors
    /// [`StreamError::Page`], [`StreamError::OutOfMemory`]; nothing changed.
    pub fn fork(&self) -> Result<(Self, Vec<StreamCopy>), StreamError> {
        let lacking = StreamError::OutOfMemory { what: "a table of streams" };
        let mut fork = Self::create(&self.classes, self.heads, self.max_tokens)?;
        let mut copies = Vec::new();
        copies.try_reserve_exact(self.streams.len()).map_err(|_| lacking)?;
        if let Err(error) = self.share_with(&mut fork, &mut copies) {
            fork.give_back_unseen();
            return Err(error);
        }
        for (mine, places) in fork.places.iter_mut().zip(&self.places) {
            mine.extend_from_slice(places);
        }
        fork.len = self.len;
        Ok((fork, copies))
    }

    /// Streams of a fork, one after the other; what a failure leaves are those before it.
    fn share_with(&self, fork: &mut Self, copies: &mut Vec<StreamCopy>) -> Result<(), StreamError> {
        let classes = self.classes.len();
        for (i, (stream, into)) in self.streams.iter().zip(&mut fork.streams).enumerate() {
            let (number, class) = (i % classes, &self.classes[i % classes]);
            let of = |error| StreamError::Page { bits: class.bits, error };
            let mut own = stream.try_clone().ok_or(StreamError::OutOfMemory { what: "a table of streams" })?;
            let full = || stream.used().filter(|(slot, _)| stream.open != Some(*slot as u32)).map(|(_, page)| page.id);
            class.pages.retain_all(full()).map_err(of)?;
            if let Some(page) = stream.open_page() {
                let to = class.pages.allocate().map_err(of).inspect_err(|_| {
                    for id in full() {
                        // Never the last reference: this table holds one.
                        let _ = class.pages.release(id);
                    }
                })?;
                copies.push(StreamCopy { class: number, from: page.id, to, rows: page.rows as usize });
                own.rename_open(to);
            }
            *into = own;
        }
        Ok(())
    }

    /// Undoes a fork that failed: open pages were not seen by anybody, full ones have other owners.
    fn give_back_unseen(&mut self) {
        let classes = self.classes.len();
        for (i, stream) in self.streams.iter_mut().enumerate() {
            let pages = &self.classes[i % classes].pages;
            let open = stream.open;
            for (slot, page) in stream.used() {
                let _ = if open == Some(slot as u32) {
                    pages.give_back(page.id).map(drop)
                } else {
                    pages.release(page.id).map(drop)
                };
            }
            *stream = Stream::default();
        }
    }

    /// Gives up all pages. Should the host lack memory for the list, they are retired behind [`Stamp::IDLE`].
    pub fn release(mut self) -> StreamDropped {
        let Some(mut dropped) = StreamDropped::with_room(&self.classes, self.all_pages().count()) else {
            return StreamDropped::empty();
        };
        for (class, id) in self.all_pages() {
            dropped.push(class, id);
        }
        self.streams.clear();
        dropped
    }
}

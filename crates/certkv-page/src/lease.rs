//! A pinned page: what a look-up returns instead of a bare id.
use crate::alloc::PageAllocator;
use crate::error::PageError;
use crate::word::Operation;
use certkv_core::PageId;

/// One pin on one page. While it lives, the page keeps its generation and its slot is not reused, reopened or moved;
/// dropping it unpins. It holds no reference: the page may be retired meanwhile and is freed after the last lease.
#[derive(Debug)]
#[must_use = "dropping a lease unpins the page at once"]
pub struct Lease {
    pages: PageAllocator,
    id: PageId,
}

impl Lease {
    /// The leased page.
    pub fn id(&self) -> PageId {
        self.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // While pinned the page keeps its generation, so only a tampered word could refuse.
        let _ = self.pages.apply(Operation::Unpin, self.id);
    }
}

impl PageAllocator {
    /// Pins `id`, if it is current, Open or Packed, and not being moved. Takes no lock.
    ///
    /// # Errors
    /// [`PageError::OutOfRange`], [`PageError::Stale`], [`PageError::Refused`].
    pub fn lease(&self, id: PageId) -> Result<Lease, PageError> {
        self.apply(Operation::Pin, id)?;
        Ok(Lease { pages: self.clone(), id })
    }
}

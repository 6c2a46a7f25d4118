//! Handles: numbers that look like pointers. They are looked up, never dereferenced, and none is given out twice, so a
//! stale or foreign handle is refused soundly, also while another thread destroys the object.
use crate::guard::Failure;
use crate::status::certkv_status::CERTKV_INVALID_HANDLE;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The live objects of one kind. A handle is `serial << 8 | kind`. The kind is a magic, so that a handle of another
/// kind is never found; it is odd, so that no pointer to an object of two or more bytes' alignment is one.
pub(crate) struct Registry<T> {
    kind: u8,
    name: &'static str,
    next: AtomicUsize,
    live: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new(kind: u8, name: &'static str) -> Self {
        Self { kind, name, next: AtomicUsize::new(1), live: RwLock::new(BTreeMap::new()) }
    }

    /// A handle for `object`.
    pub(crate) fn insert<H>(&self, object: Arc<T>) -> *mut H {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        let handle = (serial << 8) | usize::from(self.kind);
        self.live.write().insert(handle, object);
        ptr::without_provenance_mut(handle)
    }

    fn unknown(&self) -> Failure {
        Failure::new(CERTKV_INVALID_HANDLE, format!("not a live {}: never created, or destroyed", self.name))
    }

    /// The object of a live handle.
    pub(crate) fn get<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        crate::argument::not_null(handle, self.name)?;
        self.live.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown())
    }

    /// Ends a handle; the object lives on while calls on it are under way.
    pub(crate) fn remove<H>(&self, handle: *const H) -> Result<Arc<T>, Failure> {
        let removed = self.live.write().remove(&handle.addr());
        removed.ok_or_else(|| self.unknown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::certkv_status::CERTKV_NULL_POINTER;

    #[test]
    fn handles_are_refused_after_their_end_and_by_other_kinds() {
        let (numbers, others) = (Registry::<u32>::new(0xa1, "number"), Registry::<u32>::new(0xa2, "other"));
        let first: *mut u8 = numbers.insert(Arc::new(7));
        assert_eq!(*numbers.get(first).unwrap(), 7);
        assert_eq!(others.get(first).unwrap_err().status, CERTKV_INVALID_HANDLE);
        assert_eq!(numbers.get(ptr::null::<u8>()).unwrap_err().status, CERTKV_NULL_POINTER);
        assert_eq!(*numbers.remove(first).unwrap(), 7);
        assert_eq!(numbers.remove(first).unwrap_err().status, CERTKV_INVALID_HANDLE);
        assert_ne!(numbers.insert::<u8>(Arc::new(8)), first, "no handle twice");
        assert!(numbers.get(first).is_err() && numbers.get(&raw const numbers).is_err());
    }
}

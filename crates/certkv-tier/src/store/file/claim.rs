//! Who may change which file, and how many bytes all have.
use super::FileStore;
use crate::store::error::StoreError;
use crate::store::key::StoreKey;
use std::collections::HashSet;

/// Bytes taken and keys claimed.
#[derive(Debug)]
pub(super) struct Books {
    bytes: u64,
    claimed: HashSet<StoreKey>,
}

impl Books {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, claimed: HashSet::new() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Saturates: a file that somebody else replaced by a longer one was never counted.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The right to change one key's file; readers need none. Without it two writers of one key could each take the other's
/// file for the one they replaced, and the byte count would drift.
pub(super) struct Claim<'a> {
    store: &'a FileStore,
    key: StoreKey,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.store.books.lock().claimed.remove(&self.key);
        self.store.unclaimed.notify_all();
    }
}

/// Bytes taken from the quota, given back on drop unless kept.
pub(super) struct Room<'a> {
    store: &'a FileStore,
    bytes: u64,
}

impl Room<'_> {
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.store.books.lock().give_back(self.bytes);
        }
    }
}

impl FileStore {
    /// Waits for another writer of the same key.
    pub(super) fn claim(&self, key: &StoreKey) -> Claim<'_> {
        let mut books = self.books.lock();
        while !books.claimed.insert(*key) {
            self.unclaimed.wait(&mut books);
        }
        Claim { store: self, key: *key }
    }

    pub(super) fn reserve(&self, key: StoreKey, bytes: u64) -> Result<Room<'_>, StoreError> {
        let mut books = self.books.lock();
        let free = self.config.quota.saturating_sub(books.bytes);
        if bytes > free {
            return Err(StoreError::Full { key, bytes, free: Some(free) });
        }
        books.bytes += bytes;
        Ok(Room { store: self, bytes })
    }
}

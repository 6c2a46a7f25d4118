//! A store with blocking calls, pages to put into it, and a folder to do so.
use crate::store::{
    Backend, Completion, Get, Identity, Outcome, Put, Store, StoreConfig, StoreError, StoreKey, Ticket,
};
use certkv_core::hash::{hash64, splitmix64};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, process};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that goes when the test does.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("certkv-store-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn key(n: u64) -> StoreKey {
    let mut key = [0; 32];
    for (i, word) in key.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&hash64(&[n, i as u64]).to_le_bytes());
    }
    StoreKey(key)
}

pub(super) fn identity(block: u32, generation: u64) -> Identity {
    Identity { sequence: 7, layer: 3, block, generation, format: 0xF0, layout: 0x1A }
}

/// Bytes that differ from page to page, and in every word.
pub(super) fn page(n: u64, bytes: usize) -> Vec<u8> {
    let start = splitmix64(n);
    (0..bytes).map(|i| (splitmix64(start ^ (i as u64 / 8)) >> (8 * (i % 8))) as u8).collect()
}

pub(super) fn put(n: u64, generation: u64, bytes: usize) -> Put {
    Put { key: key(n), identity: identity(n as u32, generation), page: page(hash64(&[n, generation]), bytes) }
}

pub(super) fn get(n: u64, generation: u64) -> Get {
    Get::new(key(n), identity(n as u32, generation), Vec::new())
}

pub(super) fn config(workers: usize) -> StoreConfig {
    StoreConfig { workers, outstanding: 16, page_bytes: 1 << 17, close_timeout: PATIENCE }
}

/// Waits for one batch; other completions must not be outstanding.
pub(super) struct Client(pub(super) Store);

impl Client {
    pub(super) fn new(backend: impl Backend + 'static, workers: usize) -> Self {
        Self::over(&Arc::new(backend), workers)
    }

    /// Over a back end that the test keeps.
    pub(super) fn over<B: Backend + 'static>(backend: &Arc<B>, workers: usize) -> Self {
        Self(Store::new(Arc::<B>::clone(backend), config(workers)).unwrap())
    }

    pub(super) fn wait(&self, ticket: Ticket) -> Outcome {
        let mut done = Vec::new();
        assert!(self.0.wait_timeout(PATIENCE), "no completion");
        assert_eq!(self.0.drain_completions(&mut done), 1);
        let Completion { ticket: found, outcome } = done.pop().unwrap();
        assert_eq!(found, ticket);
        outcome
    }

    pub(super) fn put(&self, batch: Vec<Put>) -> Vec<Result<(), StoreError>> {
        let Outcome::Put(done) = self.wait(self.0.submit_put(batch.clone()).unwrap()) else {
            panic!("another outcome")
        };
        // Whatever came of it, every buffer is back, as it was and in order.
        assert!(done.iter().map(|(put, _)| put).eq(&batch));
        done.into_iter().map(|(_, result)| result).collect()
    }

    pub(super) fn get(&self, batch: Vec<Get>) -> Vec<(Get, Result<(), StoreError>)> {
        let asked: Vec<_> = batch.iter().map(Get::key).collect();
        let Outcome::Get(done) = self.wait(self.0.submit_get(batch).unwrap()) else { panic!("another outcome") };
        assert!(done.iter().map(|(get, _)| get.key()).eq(asked));
        assert!(done.iter().all(|(get, result)| result.is_ok() || get.page().is_empty()));
        done
    }

    /// The page of one key.
    pub(super) fn page(&self, n: u64, generation: u64) -> Result<Vec<u8>, StoreError> {
        let (get, result) = self.get(vec![get(n, generation)]).pop().unwrap();
        result.map(|()| get.page().to_vec())
    }

    pub(super) fn exists(&self, keys: Vec<StoreKey>) -> Vec<Result<bool, StoreError>> {
        let Outcome::Exists(done) = self.wait(self.0.submit_exists(keys).unwrap()) else { panic!("another outcome") };
        done.into_iter().map(|(_, result)| result).collect()
    }

    pub(super) fn delete(&self, keys: Vec<StoreKey>) -> Vec<Result<(), StoreError>> {
        let Outcome::Delete(done) = self.wait(self.0.submit_delete(keys).unwrap()) else { panic!("another outcome") };
        done.into_iter().map(|(_, result)| result).collect()
    }
}

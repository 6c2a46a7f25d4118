//! Back ends that misbehave on purpose.
use crate::store::{Backend, Parts, SEAL_BYTES, StoreError, StoreKey};
use certkv_core::InjectedFault;
use certkv_core::sync::{Condvar, Mutex};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What an armed call does instead of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing, and says so: what a correct back end does.
    Refuses,
    /// Nothing, and says it was done: a swallowed error.
    Swallows,
    /// Half of it, and says it was not done: written in place instead of renamed.
    Tears,
    /// All of it, and says it was not done: an answer that was lost.
    DoesItAnyway,
    /// Panics.
    Panics,
}

/// Fails chosen calls, whichever thread they are on.
pub(super) struct Faulty<B> {
    pub(super) inner: B,
    fault: Fault,
    fail: Mutex<Vec<u64>>,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl<B: Backend> Faulty<B> {
    pub(super) fn new(inner: B, fault: Fault) -> Self {
        Self { inner, fault, fail: Mutex::new(Vec::new()), calls: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Counts from 1 again and makes these calls fail.
    pub(super) fn arm(&self, calls: &[u64]) {
        *self.fail.lock() = calls.to_vec();
        self.calls.store(0, Ordering::SeqCst);
        self.failed.store(0, Ordering::SeqCst);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    fn step<R>(
        &self,
        key: &StoreKey,
        work: impl FnOnce() -> Result<R, StoreError>,
        half: impl FnOnce(),
        nothing: R,
    ) -> Result<R, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if !self.fail.lock().contains(&call) {
            return work();
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        let refused = Err(StoreError::Injected { key: *key, fault: InjectedFault { point: "store.faulty" } });
        match self.fault {
            Fault::Refuses => refused,
            Fault::Swallows => Ok(nothing),
            Fault::Tears => {
                half();
                refused
            }
            Fault::DoesItAnyway => {
                let _ = work();
                Err(StoreError::unavailable(*key, "no answer"))
            }
            Fault::Panics => panic!("a back end panics, as the test wants"),
        }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        let half = || drop(self.inner.put(key, &[record[0], &record[1][..record[1].len() / 2]]));
        self.step(key, || self.inner.put(key, record), half, ())
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        self.step(key, || self.inner.get(key, limit, into), || (), ())
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        self.step(key, || self.inner.exists(key), || (), false)
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        self.step(key, || self.inner.delete(key), || (), ())
    }
}

/// Holds every call until the gate opens.
#[derive(Default)]
pub(super) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    pub(super) fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// Calls that arrived so far.
    pub(super) fn arrived(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
    }
}

pub(super) struct Gated<B>(pub(super) B, pub(super) Arc<Gate>);

impl<B: Backend> Backend for Gated<B> {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        self.1.pass();
        self.0.put(key, record)
    }
    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        self.1.pass();
        self.0.get(key, limit, into)
    }
    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        self.1.pass();
        self.0.exists(key)
    }
    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        self.1.pass();
        self.0.delete(key)
    }
}

/// The record under a key as it lies there, unopened.
pub(super) fn raw(backend: &dyn Backend, key: &StoreKey) -> Vec<u8> {
    let mut record = Vec::new();
    backend.get(key, usize::MAX, &mut record).unwrap();
    record
}

/// What a store that did not look would hand out.
pub(super) fn unopened(record: &[u8]) -> &[u8] {
    record.get(SEAL_BYTES..).unwrap_or_default()
}

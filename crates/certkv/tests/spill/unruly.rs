//! Back ends that do what no back end should, on chosen calls.
use certkv::store::{Backend, MemoryStore, Parts, StoreError, StoreKey};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an armed call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing, and says so.
    Refuses,
    /// All of it, and says it was not done.
    DoesItAnyway,
    /// Says that there is no room, or no record.
    SaysNo,
    /// Panics.
    Panics,
    /// A bit of the record is flipped, on its way in or out, unseen.
    Flips,
    /// The record is cut short, unseen.
    Cuts,
    /// The record of another key, unseen.
    Swaps,
    /// What the key had when another cache of the same shape used it: a whole record, with another identity.
    Stale,
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::Refuses,
    Fault::DoesItAnyway,
    Fault::SaysNo,
    Fault::Panics,
    Fault::Flips,
    Fault::Cuts,
    Fault::Swaps,
    Fault::Stale,
];

/// Memory, with faults on calls that are counted from 1.
pub(crate) struct Unruly {
    pub(crate) inner: MemoryStore,
    armed: Mutex<HashMap<u64, Fault>>,
    calls: AtomicU64,
    fired: AtomicU64,
    /// Every record that was put, in order.
    seen: Mutex<Vec<(StoreKey, Vec<u8>)>>,
    /// Everything fails, with this.
    down: Mutex<Option<Fault>>,
    /// How long puts and deletes take.
    takes: Mutex<[Duration; 2]>,
}

impl Unruly {
    pub(crate) fn new() -> Self {
        Self {
            inner: MemoryStore::new(u64::MAX),
            armed: Mutex::default(),
            calls: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            seen: Mutex::default(),
            down: Mutex::default(),
            takes: Mutex::default(),
        }
    }

    pub(crate) fn arm(&self, faults: &[(u64, Fault)]) {
        *self.armed.lock().unwrap() = faults.iter().copied().collect();
    }

    pub(crate) fn down(&self, fault: Option<Fault>) {
        *self.down.lock().unwrap() = fault;
    }

    /// From now on every put takes so long, and every delete.
    pub(crate) fn take(&self, put: Duration, delete: Duration) {
        *self.takes.lock().unwrap() = [put, delete];
    }

    fn wait(&self, which: usize) {
        let time = self.takes.lock().unwrap()[which];
        if !time.is_zero() {
            std::thread::sleep(time);
        }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }

    fn fault(&self) -> Option<Fault> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = self.armed.lock().unwrap().get(&call).copied().or(*self.down.lock().unwrap());
        self.fired.fetch_add(u64::from(fault.is_some()), Ordering::SeqCst);
        fault
    }

    /// A record of another key, the oldest that was ever seen.
    fn another(&self, key: &StoreKey) -> Option<Vec<u8>> {
        self.seen.lock().unwrap().iter().find(|(other, _)| other != key).map(|(_, record)| record.clone())
    }

    fn spoil(&self, fault: Fault, key: &StoreKey, record: &mut Vec<u8>) {
        match fault {
            Fault::Flips => {
                let at = record.len() / 2;
                record[at] ^= 4;
            }
            Fault::Cuts => record.truncate(record.len() / 2),
            Fault::Swaps | Fault::Stale => {
                if let Some(other) = self.another(key) {
                    *record = other;
                }
                if fault == Fault::Stale {
                    // The key in the envelope is the right one, as if an earlier owner's page lay under it.
                    record[16..48].copy_from_slice(&key.0);
                }
            }
            _ => {}
        }
    }
}

const fn gone(key: &StoreKey) -> StoreError {
    StoreError::Unavailable { key: *key, cause: String::new() }
}

impl Backend for Unruly {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        self.wait(0);
        let mut whole = record.concat();
        let fault = self.fault();
        match fault {
            Some(Fault::Refuses) => return Err(gone(key)),
            Some(Fault::SaysNo) => return Err(StoreError::Full { key: *key, bytes: 1, free: Some(0) }),
            Some(Fault::Panics) => panic!("a back end panics, as the test wants"),
            Some(fault) => self.spoil(fault, key, &mut whole),
            None => self.seen.lock().unwrap().push((*key, whole.clone())),
        }
        self.inner.put(key, &[&whole, &[]])?;
        if fault == Some(Fault::DoesItAnyway) { Err(gone(key)) } else { Ok(()) }
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        match self.fault() {
            Some(Fault::Refuses | Fault::DoesItAnyway) => Err(gone(key)),
            Some(Fault::SaysNo) => Err(StoreError::NotFound { key: *key }),
            Some(Fault::Panics) => panic!("a back end panics, as the test wants"),
            Some(fault) => {
                self.inner.get(key, limit, into)?;
                self.spoil(fault, key, into);
                Ok(())
            }
            None => self.inner.get(key, limit, into),
        }
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        self.inner.exists(key)
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        self.wait(1);
        match self.fault() {
            Some(Fault::DoesItAnyway) => self.inner.delete(key).and(Err(gone(key))),
            Some(Fault::Panics) => panic!("a back end panics, as the test wants"),
            Some(_) => Err(gone(key)),
            None => self.inner.delete(key),
        }
    }
}

//! A store whose records a test can take into its hands.
use certkv::store::{Backend, Get, Outcome, Parts, Put, Store, StoreConfig, StoreError, StoreKey};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Map = HashMap<StoreKey, Vec<u8>>;

#[derive(Debug, Default)]
struct Records(Mutex<Map>);

impl Records {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Records {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        self.map().insert(*key, record.concat());
        Ok(())
    }

    fn get(&self, key: &StoreKey, _limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        into.clear();
        into.extend_from_slice(self.map().get(key).ok_or(StoreError::NotFound { key: *key })?);
        Ok(())
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        Ok(self.map().contains_key(key))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        self.map().remove(key);
        Ok(())
    }
}

pub(crate) struct Shelf {
    store: Store,
    records: Arc<Records>,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        let records = Arc::new(Records::default());
        let config = StoreConfig { workers: 1, ..StoreConfig::default() };
        Self { store: Store::new(Arc::clone(&records) as Arc<dyn Backend>, config).expect("threads"), records }
    }

    pub(crate) fn clear(&self) {
        self.records.map().clear();
    }

    /// What a record is; `None` if there is none.
    pub(crate) fn change<T>(&self, key: &StoreKey, change: impl FnOnce(&mut Vec<u8>) -> T) -> Option<T> {
        self.records.map().get_mut(key).map(change)
    }

    fn outcome(&self) -> Outcome {
        assert!(self.store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
        let mut done = Vec::new();
        self.store.drain_completions(&mut done);
        done.pop().expect("one batch at a time").outcome
    }

    pub(crate) fn put(&self, puts: Vec<Put>) {
        self.store.submit_put(puts).expect("room");
        let Outcome::Put(results) = self.outcome() else { panic!("another outcome") };
        assert!(results.iter().all(|(_, result)| result.is_ok()));
    }

    /// Every get, and whether the store says that it is what was asked for.
    pub(crate) fn answers(&self, gets: Vec<Get>) -> Vec<(Get, Result<(), StoreError>)> {
        self.store.submit_get(gets).expect("room");
        let Outcome::Get(results) = self.outcome() else { panic!("another outcome") };
        results
    }

    /// Gets up to the first that is not there.
    pub(crate) fn get(&self, gets: Vec<Get>) -> Vec<Get> {
        self.answers(gets).into_iter().take_while(|(_, result)| result.is_ok()).map(|(get, _)| get).collect()
    }
}

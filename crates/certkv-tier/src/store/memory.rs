//! Records in this process: for tests of adapters, and the measure of every other back end.
use super::backend::{Backend, Parts, record_bytes};
use super::error::StoreError;
use super::key::StoreKey;
use certkv_core::sync::Mutex;
use std::collections::HashMap;

/// A map under one lock, with a byte quota.
#[derive(Debug)]
pub struct MemoryStore {
    records: Mutex<Records>,
    quota: u64,
}

#[derive(Debug, Default)]
struct Records {
    map: HashMap<StoreKey, Vec<u8>>,
    bytes: u64,
}

impl MemoryStore {
    /// An empty one that holds at most `quota` bytes of records, envelopes included.
    pub fn new(quota: u64) -> Self {
        Self { records: Mutex::default(), quota }
    }

    /// Bytes of all records.
    pub fn bytes(&self) -> u64 {
        self.records.lock().bytes
    }
}

impl Backend for MemoryStore {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        let whole = record.concat();
        let mut records = self.records.lock();
        let old = records.map.get(key).map_or(0, |r| r.len() as u64);
        let (others, bytes) = (records.bytes - old, record_bytes(record));
        let free = self.quota.saturating_sub(others);
        if bytes > free {
            return Err(StoreError::Full { key: *key, bytes, free: Some(free) });
        }
        records.map.insert(*key, whole);
        records.bytes = others + bytes;
        Ok(())
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        let records = self.records.lock();
        let record = records.map.get(key).ok_or(StoreError::NotFound { key: *key })?;
        if record.len() > limit {
            return Err(StoreError::TooLarge { key: *key, bytes: record.len() as u64, limit: limit as u64 });
        }
        into.clear();
        into.extend_from_slice(record);
        Ok(())
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        Ok(self.records.lock().map.contains_key(key))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        let mut records = self.records.lock();
        if let Some(record) = records.map.remove(key) {
            records.bytes -= record.len() as u64;
        }
        Ok(())
    }
}

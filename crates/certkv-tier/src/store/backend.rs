//! What a place that keeps records must do.
use super::error::StoreError;
use super::key::StoreKey;

/// A record to be stored: envelope and payload, one after the other.
pub type Parts<'a> = [&'a [u8]; 2];

/// A place outside the process that keeps records under keys. Calls block and come from several threads at once.
///
/// A put is whole or not there: a reader finds the old record or the new one, never a part. What a back end reads may be
/// damaged or someone else's; the store opens its seal before anyone sees it. No call may block for ever: a store cannot
/// close while one does.
pub trait Backend: Send + Sync {
    /// Stores a record in place of what was there. The parts are at most as long as the store's largest record.
    ///
    /// # Errors
    /// `Full`, `Unavailable`. The key keeps what it had, or a remote back end whose answer was lost may have the new
    /// record.
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError>;

    /// Reads the record into `into`, in place of what that held.
    ///
    /// # Errors
    /// `NotFound`; `TooLarge` for more than `limit` bytes, before they are read; `Unavailable`.
    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError>;

    /// Whether a record is there. It may be damaged: only a get tells.
    ///
    /// # Errors
    /// `Unavailable`.
    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError>;

    /// Forgets a record. One that is not there is no error.
    ///
    /// # Errors
    /// `Unavailable`; the record may be gone all the same.
    fn delete(&self, key: &StoreKey) -> Result<(), StoreError>;

    /// Several puts; one result each, in order. For back ends that do them in one round trip.
    fn put_batch(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        records.iter().map(|(key, record)| self.put(key, record)).collect()
    }

    /// Several gets; one result each, in order.
    fn get_batch(&self, limit: usize, gets: &mut [(StoreKey, &mut Vec<u8>)]) -> Vec<Result<(), StoreError>> {
        gets.iter_mut().map(|(key, into)| self.get(key, limit, into)).collect()
    }

    /// Several look-ups; one result each, in order.
    fn exists_batch(&self, keys: &[StoreKey]) -> Vec<Result<bool, StoreError>> {
        keys.iter().map(|key| self.exists(key)).collect()
    }

    /// Several deletes; one result each, in order.
    fn delete_batch(&self, keys: &[StoreKey]) -> Vec<Result<(), StoreError>> {
        keys.iter().map(|key| self.delete(key)).collect()
    }
}

/// Whether bytes are a record's, and nothing else.
#[cfg_attr(
    not(any(feature = "redis", feature = "object-store")),
    allow(dead_code, reason = "those read back what they wrote")
)]
pub(crate) fn is(bytes: &[u8], record: &Parts<'_>) -> bool {
    bytes.len() as u64 == record_bytes(record) && bytes.split_at(record[0].len()) == (record[0], record[1])
}

/// Bytes of a record.
pub(crate) fn record_bytes(record: &Parts<'_>) -> u64 {
    record.iter().map(|part| part.len() as u64).sum()
}

//! What goes into a store and what comes back: every buffer travels by value, both ways.
use super::error::StoreError;
use super::key::StoreKey;
use super::seal::{Identity, SEAL_BYTES};

/// A page to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// Its name.
    pub key: StoreKey,
    /// Which contents it has.
    pub identity: Identity,
    /// Its bytes.
    pub page: Vec<u8>,
}

/// A page asked for, and the buffer that it is read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    key: StoreKey,
    identity: Identity,
    /// Envelope and page once they were opened; empty until then, and after an error.
    record: Vec<u8>,
}

impl Get {
    /// Asks for the page of `key` with just these contents. `buffer` is emptied and grows to the page and its envelope
    /// of [`SEAL_BYTES`]; one that came back before has room already.
    pub fn new(key: StoreKey, identity: Identity, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self { key, identity, record: buffer }
    }

    /// Name of the page.
    pub fn key(&self) -> StoreKey {
        self.key
    }

    /// Contents that it must have.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The page's bytes. Empty unless its result is `Ok`.
    pub fn page(&self) -> &[u8] {
        self.record.get(SEAL_BYTES..).unwrap_or_default()
    }

    /// The buffer, for the next get.
    pub fn into_buffer(self) -> Vec<u8> {
        self.record
    }

    pub(super) fn record_mut(&mut self) -> &mut Vec<u8> {
        &mut self.record
    }

    pub(super) fn record(&self) -> &[u8] {
        &self.record
    }
}

/// Names a batch from its submission to its completion. Unique within a store, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// A batch that is over. Items are in the order of the batch, each with its own result.
#[derive(Debug)]
pub struct Completion {
    /// What the submission returned.
    pub ticket: Ticket,
    /// Items and results.
    pub outcome: Outcome,
}

/// Items and results of a batch.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Of `submit_put`. `Ok`: a get finds the page from now on.
    Put(Vec<(Put, Result<(), StoreError>)>),
    /// Of `submit_get`. `Ok`: the page is in its buffer and is the one asked for.
    Get(Vec<(Get, Result<(), StoreError>)>),
    /// Of `submit_exists`. A page that is there may still turn out to be corrupt.
    Exists(Vec<(StoreKey, Result<bool, StoreError>)>),
    /// Of `submit_delete`. `Ok`: a get no longer finds the page.
    Delete(Vec<(StoreKey, Result<(), StoreError>)>),
}

/// A batch on its way to a worker.
#[derive(Debug)]
pub(super) enum Batch {
    Put(Vec<Put>),
    Get(Vec<Get>),
    Exists(Vec<StoreKey>),
    Delete(Vec<StoreKey>),
}

impl Batch {
    /// The outcome of a batch that no worker took.
    pub(super) fn closed(self) -> Outcome {
        let closed = |key| StoreError::Closed { key };
        match self {
            Self::Put(items) => Outcome::Put(fail(items, |put| closed(put.key))),
            Self::Get(items) => Outcome::Get(fail(items, |get| closed(get.key))),
            Self::Exists(keys) => Outcome::Exists(fail(keys, |key| closed(*key))),
            Self::Delete(keys) => Outcome::Delete(fail(keys, |key| closed(*key))),
        }
    }
}

fn fail<T, R>(items: Vec<T>, error: impl Fn(&T) -> StoreError) -> Vec<(T, Result<R, StoreError>)> {
    items
        .into_iter()
        .map(|item| {
            let error = error(&item);
            (item, Err(error))
        })
        .collect()
}

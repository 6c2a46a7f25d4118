//! One batch, from seal to back end and back: what a worker does.
use super::backend::{Backend, Parts, record_bytes};
use super::batch::{Batch, Get, Outcome, Put};
use super::error::StoreError;
use super::key::StoreKey;
use super::seal;
use certkv_core::{InjectedFault, fail_point};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `batch` on this thread. `limit`: bytes of the largest record.
pub(super) fn execute(backend: &dyn Backend, limit: usize, batch: Batch) -> Outcome {
    match batch {
        Batch::Put(items) => Outcome::Put(put(backend, limit, items)),
        Batch::Get(items) => Outcome::Get(get(backend, limit, items)),
        Batch::Exists(keys) => {
            let admit = |i: usize| injected(keys[i], fail_point!("store.exists"));
            let results = each(&keys, admit, |some| backend.exists_batch(&pick(&keys, some)));
            Outcome::Exists(keys.into_iter().zip(results).collect())
        }
        Batch::Delete(keys) => {
            let admit = |i: usize| injected(keys[i], fail_point!("store.delete"));
            let results = each(&keys, admit, |some| backend.delete_batch(&pick(&keys, some)));
            Outcome::Delete(keys.into_iter().zip(results).collect())
        }
    }
}

fn put(backend: &dyn Backend, limit: usize, items: Vec<Put>) -> Vec<(Put, Result<(), StoreError>)> {
    let heads: Vec<_> = items.iter().map(|put| seal::seal(&put.key, &put.identity, &put.page)).collect();
    let keys: Vec<_> = items.iter().map(|put| put.key).collect();
    let record = |i: usize| -> Parts<'_> { [&heads[i], &items[i].page] };
    let admit = |i: usize| {
        let bytes = record_bytes(&record(i));
        if bytes > limit as u64 {
            return Err(StoreError::TooLarge { key: keys[i], bytes, limit: limit as u64 });
        }
        injected(keys[i], fail_point!("store.put"))
    };
    let store = |some: &[usize]| {
        let records: Vec<_> = some.iter().map(|&i| (keys[i], record(i))).collect();
        backend.put_batch(&records)
    };
    let results = each(&keys, admit, store);
    items.into_iter().zip(results).collect()
}

fn get(backend: &dyn Backend, limit: usize, mut items: Vec<Get>) -> Vec<(Get, Result<(), StoreError>)> {
    let keys: Vec<_> = items.iter().map(Get::key).collect();
    let admit = |i: usize| injected(keys[i], fail_point!("store.get"));
    let read = |some: &[usize]| {
        let mut wanted = some.iter().copied().peekable();
        let mut gets: Vec<_> = items
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| wanted.next_if_eq(i).is_some())
            .map(|(i, get)| (keys[i], get.record_mut()))
            .collect();
        backend.get_batch(limit, &mut gets)
    };
    let results = each(&keys, admit, read);
    items.into_iter().zip(results).map(|(get, result)| opened(get, result)).collect()
}

/// The one gate between a back end and a caller: bytes that are not the page asked for are gone when it returns.
fn opened(mut get: Get, result: Result<(), StoreError>) -> (Get, Result<(), StoreError>) {
    let result = result.and_then(|()| match seal::open(&get.key(), get.identity(), get.record()) {
        Ok(_) => Ok(()),
        Err(reason) => Err(StoreError::Corrupt { key: get.key(), reason }),
    });
    if result.is_err() {
        get.record_mut().clear();
    }
    (get, result)
}

/// Calls the back end with the indices of the items that `admit` lets pass; one result per item, whatever it does.
fn each<R>(
    keys: &[StoreKey],
    admit: impl FnMut(usize) -> Result<(), StoreError>,
    call: impl FnOnce(&[usize]) -> Vec<Result<R, StoreError>>,
) -> Vec<Result<R, StoreError>> {
    let admitted: Vec<_> = (0..keys.len()).map(admit).collect();
    let some: Vec<_> = (0..keys.len()).filter(|&i| admitted[i].is_ok()).collect();
    // A back end is the embedder's code: its panic must not take buffers or a worker with it.
    let done = if some.is_empty() { Ok(Vec::new()) } else { catch_unwind(AssertUnwindSafe(|| call(&some))) };
    let panicked = done.is_err();
    let mut done = done.unwrap_or_default().into_iter();
    let mut next = |key: StoreKey| match done.next() {
        Some(result) => result,
        None if panicked => Err(StoreError::Panicked { key }),
        None => Err(StoreError::unavailable(key, "the back end gave no result")),
    };
    admitted.into_iter().zip(keys).map(|(admitted, key)| admitted.and_then(|()| next(*key))).collect()
}

fn pick(keys: &[StoreKey], some: &[usize]) -> Vec<StoreKey> {
    some.iter().map(|&i| keys[i]).collect()
}

pub(super) fn injected(key: StoreKey, point: Result<(), InjectedFault>) -> Result<(), StoreError> {
    point.map_err(|fault| StoreError::Injected { key, fault })
}

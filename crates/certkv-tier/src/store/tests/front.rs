//! The front: nothing grows, nothing blocks, nothing handed in is lost, and closing ends.
use super::client::{Client, PATIENCE, config, get, key, put};
use super::wrappers::{Fault, Faulty, Gate, Gated};
use crate::store::{
    Backend, Completion, MemoryStore, Outcome, Parts, Put, StillRunning, Store, StoreConfig, StoreError, StoreKey,
};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

const NO_QUOTA: u64 = u64::MAX;

fn gated(workers: usize) -> (Store, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let backend = Gated(MemoryStore::new(NO_QUOTA), Arc::clone(&gate));
    (Store::new(Arc::new(backend), config(workers)).unwrap(), gate)
}

fn drained(store: &Store, n: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < n && store.wait_timeout(PATIENCE) {
        store.drain_completions(&mut done);
    }
    assert_eq!(done.len(), n);
    done
}

#[test]
fn verbs_do_what_they_say() {
    let client = Client::new(MemoryStore::new(NO_QUOTA), 2);
    assert_eq!(client.put(vec![put(1, 1, 100), put(2, 1, 0), put(3, 1, 70_000)]), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(client.exists(vec![key(3), key(4), key(2)]), [Ok(true), Ok(false), Ok(true)]);
    assert_eq!(client.page(3, 1), Ok(put(3, 1, 70_000).page));
    assert_eq!(client.page(2, 1), Ok(Vec::new()));
    assert_eq!(client.delete(vec![key(3), key(4)]), [Ok(()), Ok(())]);
    assert_eq!(client.page(3, 1), Err(StoreError::NotFound { key: key(3) }));
    assert!(client.put(Vec::new()).is_empty());
}

/// One item's failure is its own, and a buffer that came back is used again.
#[test]
fn results_are_per_item() {
    let client = Client::new(MemoryStore::new(1500), 1);
    let results = client.put(vec![put(1, 1, 600), put(2, 1, 900), put(3, 1, 500)]);
    assert_eq!(results[1], Err(StoreError::Full { key: key(2), bytes: 1028, free: Some(772) }));
    assert!(results[0].is_ok() && results[2].is_ok());
    let mut done = client.get(vec![get(1, 1), get(2, 1), get(3, 2)]);
    assert!(matches!(done[2].1, Err(StoreError::Corrupt { .. })) && done[2].0.page().is_empty());
    assert_eq!(done[1].1, Err(StoreError::NotFound { key: key(2) }));
    let buffer = done.swap_remove(0).0.into_buffer();
    let (at, room) = (buffer.as_ptr(), buffer.capacity());
    let again = client.get(vec![crate::store::Get::new(key(3), super::client::identity(3, 1), buffer)]).remove(0);
    assert_eq!((again.1, again.0.page()), (Ok(()), &put(3, 1, 500).page[..]));
    let buffer = again.0.into_buffer();
    assert_eq!((buffer.as_ptr(), buffer.capacity()), (at, room));
}

#[test]
fn too_many_batches_are_handed_back() {
    let (store, gate) = gated(2);
    let limit = config(2).outstanding;
    for n in 0..limit as u64 {
        store.submit_put(vec![put(n, 1, 50)]).unwrap();
    }
    let busy = store.submit_put(vec![put(99, 1, 50)]).unwrap_err();
    assert_eq!((busy.batch, busy.outstanding, busy.limit), (vec![put(99, 1, 50)], limit, limit));
    gate.open();
    // What is done and not drained counts, or completions would grow without bound.
    while store.poll() < limit {
        assert!(store.wait_timeout(PATIENCE));
        std::thread::yield_now();
    }
    assert!(store.submit_exists(vec![key(0)]).is_err());
    drained(&store, limit);
    assert_eq!(store.outstanding(), 0);
    store.submit_exists(vec![key(0)]).unwrap();
    drained(&store, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn the_descriptor_is_readable_while_completions_wait() {
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsFd;
    let (store, gate) = gated(1);
    // Non-blocking and shared with the store's own: a read takes the signal, as an event loop would.
    let mut event = std::fs::File::from(store.as_fd().try_clone_to_owned().unwrap());
    let mut readable = || match event.read(&mut [0; 8]) {
        Ok(n) => n == 8,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    };
    store.submit_put(vec![put(1, 1, 50)]).unwrap();
    assert!(!readable() && !store.wait_timeout(Duration::from_millis(20)));
    gate.open();
    assert!(store.wait_timeout(PATIENCE));
    // The signal follows the completion.
    let start = Instant::now();
    while !readable() {
        assert!(start.elapsed() < PATIENCE);
    }
    drained(&store, 1);
    store.submit_exists(vec![key(1)]).unwrap();
    drained(&store, 1);
    // At most one signal is left over from a completion that was drained before it.
    let _ = (store.drain_completions(&mut Vec::new()), readable());
    std::thread::sleep(Duration::from_millis(20));
    let _ = readable();
    assert!(!readable());
}

#[test]
fn closing_finishes_what_runs_and_fails_what_waits() {
    let (store, gate) = gated(1);
    for n in 0..4 {
        store.submit_put(vec![put(n, 1, 50)]).unwrap();
    }
    store.submit_get(vec![get(0, 1)]).unwrap();
    while gate.arrived() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(store.close(Duration::from_millis(20)), Err(StillRunning { workers: 1 }));
    let closed = drained(&store, 4);
    for Completion { outcome, .. } in &closed {
        match outcome {
            Outcome::Put(done) => assert!(
                done.iter()
                    .all(|(put, result)| *result == Err(StoreError::Closed { key: put.key }) && put.page.len() == 50)
            ),
            Outcome::Get(done) => assert_eq!(done[0].1, Err(StoreError::Closed { key: key(0) })),
            _ => panic!("another outcome"),
        }
    }
    let busy = store.submit_delete(vec![key(0)]).unwrap_err();
    assert_eq!((busy.batch, busy.limit), (vec![key(0)], 0));
    gate.open();
    assert_eq!(store.close(PATIENCE), Ok(()));
    let Outcome::Put(done) = drained(&store, 1).remove(0).outcome else { panic!("another outcome") };
    assert_eq!(done, [(put(0, 1, 50), Ok(()))]);
    assert_eq!(store.close(PATIENCE), Ok(()));
}

#[test]
fn dropping_does_not_wait_for_ever() {
    let gate = Arc::new(Gate::default());
    let backend = Arc::new(Gated(MemoryStore::new(NO_QUOTA), Arc::clone(&gate)));
    let config = StoreConfig { close_timeout: Duration::from_millis(30), ..config(3) };
    let store = Store::new(Arc::clone(&backend) as Arc<dyn Backend>, config).unwrap();
    for n in 0..5 {
        store.submit_put(vec![put(n, 1, 50)]).unwrap();
    }
    while gate.arrived() < 3 {
        std::thread::yield_now();
    }
    let start = Instant::now();
    drop(store);
    assert!(start.elapsed() >= Duration::from_millis(30) && start.elapsed() < PATIENCE);
    gate.open();
    // The workers end on their own and let go of everything.
    while Arc::strong_count(&backend) > 1 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn a_back_end_that_panics_takes_nothing_with_it() {
    let backend = Arc::new(Faulty::new(MemoryStore::new(NO_QUOTA), Fault::Panics));
    let client = Client::over(&backend, 1);
    backend.arm(&[2]);
    let results = client.put(vec![put(1, 1, 50), put(2, 1, 50)]);
    assert_eq!(results, [1, 2].map(|n| Err(StoreError::Panicked { key: key(n) })));
    assert_eq!(client.put(vec![put(2, 2, 50)]), [Ok(())]);
    assert_eq!(client.page(2, 2), Ok(put(2, 2, 50).page));
}

/// Breaks the contract: results are missing.
struct Forgetful;

impl Backend for Forgetful {
    fn put(&self, _: &StoreKey, _: &Parts<'_>) -> Result<(), StoreError> {
        Ok(())
    }
    fn get(&self, _: &StoreKey, _: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        into.extend_from_slice(&[1; 300]);
        Ok(())
    }
    fn exists(&self, _: &StoreKey) -> Result<bool, StoreError> {
        Ok(true)
    }
    fn delete(&self, _: &StoreKey) -> Result<(), StoreError> {
        Ok(())
    }
    fn put_batch(&self, _: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        vec![Ok(())]
    }
}

#[test]
fn missing_results_are_errors_and_made_up_pages_are_corrupt() {
    let client = Client::new(Forgetful, 1);
    let results = client.put(vec![put(1, 1, 50), put(2, 1, 50)]);
    assert!(results[0].is_ok() && matches!(results[1], Err(StoreError::Unavailable { .. })));
    assert!(matches!(client.page(1, 1), Err(StoreError::Corrupt { .. })));
}

#[test]
fn pages_over_the_limit_go_neither_in_nor_out() {
    let backend = Arc::new(MemoryStore::new(NO_QUOTA));
    let narrow = Client(Store::new(backend.clone(), StoreConfig { page_bytes: 1000, ..config(1) }).unwrap());
    let wide = Client(Store::new(backend, config(1)).unwrap());
    let refused = Err(StoreError::TooLarge { key: key(1), bytes: 1129, limit: 1128 });
    assert_eq!(narrow.put(vec![put(1, 1, 1001), put(2, 1, 1000)]), [refused.clone(), Ok(())]);
    assert_eq!(wide.put(vec![put(1, 1, 1001)]), [Ok(())]);
    assert_eq!(narrow.page(1, 1).map(drop), refused);
}

#[test]
fn many_callers_share_a_store() {
    let client = Client::new(MemoryStore::new(NO_QUOTA), 3);
    let (store, start) = (&client.0, Instant::now());
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            scope.spawn(move || {
                for i in 0..50 {
                    let mut batch: Vec<Put> = vec![put(t * 50 + i, 1, 300)];
                    while let Err(busy) = store.submit_put(batch) {
                        assert!(start.elapsed() < PATIENCE);
                        batch = busy.batch;
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut tickets: Vec<_> = drained(store, 200).into_iter().map(|done| done.ticket).collect();
        tickets.sort();
        tickets.dedup();
        assert_eq!(tickets.len(), 200);
    });
    for n in 0..200 {
        assert_eq!(client.page(n, 1), Ok(put(n, 1, 300).page));
    }
}

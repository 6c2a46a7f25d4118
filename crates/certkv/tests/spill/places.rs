//! Where originals are, what the numbers say of it, and what a caller is told.
use crate::common::{Model, fill, original_faults, random_queries, random_rows, step};
use crate::life::{config, geometry, left_behind, spilling};
use crate::unruly::{Fault, Unruly};
use certkv::store::{Backend, MemoryStore, Parts, StoreError, StoreKey};
use certkv::{Cache, Certified, Class, Config, Error, FetchCause, Mode, Policy, Pool, SequenceId, SimOptions, Spill};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEVICE: SimOptions = SimOptions { mode: Mode::Eager, check: true };

fn filled(cache: &Cache, tokens: usize) -> (SequenceId, Model) {
    let (mut r, g) = (Rng::new(1), geometry());
    let (id, mut model) = (cache.create().unwrap(), Model::new(&g));
    while model.len(&g) < tokens {
        let rows = random_rows(&g, 30.min(tokens - model.len(&g)), &mut r);
        fill(cache, id, &rows).unwrap();
        model.append(&rows);
    }
    (id, model)
}

fn decode(cache: &Cache, id: SequenceId, model: &mut Model, policy: Policy) -> Result<(), Error> {
    let (mut r, g) = (Rng::new(2), geometry());
    let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
    step(cache, id, &rows, &queries, policy)?;
    model.append(&rows);
    Ok(())
}

#[test]
fn a_block_that_cannot_be_read_is_named_and_others_go_on() {
    let backend = Arc::new(Unruly::new());
    let cache = Cache::new(spilling(DEVICE, backend.clone())).unwrap();
    // The steps below end a block and begin none: a new one would want room from a store that takes nothing.
    let (id, mut model) = filled(&cache, 398);
    backend.down(Some(Fault::SaysNo));
    let error = decode(&cache, id, &mut model, Policy::Dense).unwrap_err();
    let Error::Fetch(told) = &error else { panic!("{error}") };
    assert_eq!(told.sequence, Some(id));
    assert!(told.layer < 7 && told.block < 25 && matches!(told.cause, FetchCause::Store(StoreError::NotFound { .. })));
    assert!(error.to_string().contains("originals of block"), "{error}");
    assert!(matches!(cache.originals(id, told.layer, 0, certkv::Side::Key), Err(Error::Fetch(_))));
    // Codes are where they were.
    decode(&cache, id, &mut model, Policy::Packed).unwrap();
    assert!(cache.snapshot().fetches.unwrap().failed >= 2);
    backend.down(None);
    decode(&cache, id, &mut model, Policy::Dense).unwrap();
    assert_eq!(original_faults(&cache, id, &model), 0);
    cache.release(id).unwrap();
    assert_eq!(left_behind(&cache, true), [0; 3]);
}

#[test]
fn what_was_brought_ahead_is_not_waited_for() {
    let cache = Cache::new(spilling(DEVICE, Arc::new(MemoryStore::new(u64::MAX)))).unwrap();
    let fetched = || cache.snapshot().fetches.unwrap().done.sum;
    let (first, mut model) = filled(&cache, 300);
    let (second, mut other) = filled(&cache, 300);
    let certified = Policy::Certified(Certified { tol_rel: 0.02, ..Certified::default() });
    // What the last step read exactly is what the next one is expected to.
    decode(&cache, first, &mut model, certified).unwrap();
    decode(&cache, second, &mut other, Policy::Dense).unwrap();
    let before = fetched();
    let ahead = cache.prefetch(first).unwrap();
    let after = fetched();
    assert!(ahead.fetched > 4 && ahead.fetched + ahead.left <= ahead.wanted, "{ahead:?}");
    assert_eq!(ahead.bytes, after - before);
    let again = cache.prefetch(first).unwrap();
    assert!(again.fetched <= ahead.left && again.wanted == ahead.wanted, "{again:?}");
    // By another step's wants it had to wait for the store, and now for less of it.
    let waited = |ahead: bool| {
        decode(&cache, second, &mut other.clone(), Policy::Dense).unwrap();
        if ahead {
            cache.prefetch(first).unwrap();
        }
        let from = fetched();
        decode(&cache, first, &mut model.clone(), certified).unwrap();
        fetched() - from
    };
    let (without, with) = (waited(false), waited(true));
    assert!(with < without, "{with} bytes waited for, {without} without");
    println!(
        "GATE spill-prefetch executed={} failed=0 controls=1/1 seed=0x1 {with} of {without} bytes waited for",
        ahead.wanted
    );
    cache.release(first).unwrap();
    assert!(matches!(cache.prefetch(first), Err(Error::UnknownSequence(_))));
    let plain = Cache::new(config(DEVICE)).unwrap();
    let id = plain.create().unwrap();
    assert_eq!(plain.prefetch(id).unwrap(), certkv::Prefetched::default());
}

/// Gets hang while it is shut.
struct Slow(MemoryStore, AtomicBool);

impl Backend for Slow {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        self.0.put(key, record)
    }
    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        while self.1.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.get(key, limit, into)
    }
    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        self.0.exists(key)
    }
    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        self.0.delete(key)
    }
}

#[test]
fn a_store_that_does_not_answer_is_not_waited_for_longer_than_said() {
    let backend = Arc::new(Slow(MemoryStore::new(u64::MAX), AtomicBool::new(false)));
    let mut config = spilling(DEVICE, backend.clone());
    config.spill.iter_mut().for_each(|spill| spill.deadline = Duration::from_millis(200));
    let cache = Cache::new(config).unwrap();
    let (id, mut model) = filled(&cache, 400);
    backend.1.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let error = decode(&cache, id, &mut model, Policy::Dense).unwrap_err();
    assert!(matches!(&error, Error::Fetch(told) if matches!(told.cause, FetchCause::Late { .. })), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < Duration::from_secs(5));
    assert!(error.to_string().contains("did not answer in 200ms"), "{error}");
    // What came too late is nobody's.
    backend.1.store(false, Ordering::SeqCst);
    decode(&cache, id, &mut model, Policy::Dense).unwrap();
    assert_eq!(original_faults(&cache, id, &model), 0);
    let waits = cache.snapshot().spill.unwrap().waits;
    assert!(waits.count() > 0 && waits.sum >= 200_000_000, "{waits:?}");
    cache.release(id).unwrap();
    assert_eq!(left_behind(&cache, true), [0; 3]);
}

#[test]
fn bytes_in_the_store_stay_within_their_budget() {
    let backend = Arc::new(MemoryStore::new(u64::MAX));
    let mut config = spilling(DEVICE, backend.clone());
    let budget = 100_000;
    config.spill.iter_mut().for_each(|spill| spill.disk_budget = budget);
    let cache = Cache::new(config).unwrap();
    let (mut r, g) = (Rng::new(1), geometry());
    let (id, mut model) = (cache.create().unwrap(), Model::new(&g));
    let refused = loop {
        let rows = random_rows(&g, 20, &mut r);
        match fill(&cache, id, &rows) {
            Ok(()) => model.append(&rows),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::CapacityExhausted { class: "host", .. }), "{refused}");
    let snapshot = cache.snapshot();
    let disk = snapshot.pool(Pool::Disk);
    assert!(disk.budget == budget && disk.peak <= budget && disk.reserved > budget / 2, "{disk:?}");
    assert!(backend.bytes() as usize <= disk.reserved && snapshot.spills.unwrap().refused > 0);
    // Reading goes on, to the last row.
    decode(&cache, id, &mut model, Policy::Dense).ok();
    assert_eq!(cache.len(id).unwrap(), model.len(&g));
    assert_eq!(original_faults(&cache, id, &model), 0);
    cache.release(id).unwrap();
    assert_eq!(left_behind(&cache, true), [0; 3]);
    assert_eq!(backend.bytes(), 0);
}

#[test]
fn a_cache_that_goes_takes_its_records_along() {
    let backend = Arc::new(MemoryStore::new(u64::MAX));
    let cache = Cache::new(spilling(DEVICE, backend.clone())).unwrap();
    // Another one on the same back end: neither finds the other's records.
    let other = Cache::new(spilling(DEVICE, backend.clone())).unwrap();
    let (_, model) = filled(&cache, 300);
    let (id, _) = filled(&other, 300);
    assert!(backend.bytes() > 0);
    drop(cache);
    assert_eq!(original_faults(&other, id, &model), 0);
    drop(other);
    assert_eq!(backend.bytes(), 0);
}

#[test]
fn a_put_that_is_under_way_does_not_outlive_its_cache() {
    for released in [false, true] {
        let backend = Arc::new(Unruly::new());
        backend.take(Duration::from_millis(30), Duration::ZERO);
        let cache = Cache::new(spilling(DEVICE, backend.clone())).unwrap();
        let (id, _) = filled(&cache, 300);
        if released {
            // Pages that are given up before their puts end: no map names what these store.
            cache.release(id).unwrap();
        }
        assert!(cache.snapshot().spill.unwrap().records.putting > 0);
        drop(cache);
        assert_eq!(backend.inner.bytes(), 0, "a record that nobody names, released: {released}");
    }
}

/// A store that is slow to delete is slow, and not late: deletes of many records leave room in its queue for what others wait for.
#[test]
fn deletes_do_not_stand_in_the_way_of_reads() {
    let backend = Arc::new(Unruly::new());
    let mut config = spilling(DEVICE, backend.clone());
    config.spill.iter_mut().for_each(|spill| (spill.workers, spill.in_flight) = (1, 2));
    (config.max_tokens, config.max_sequences) = (8 * 640, 9);
    let cache = Cache::new(config).unwrap();
    let (id, mut model) = filled(&cache, 300);
    let others: Vec<SequenceId> = (0..8).map(|_| filled(&cache, 600).0).collect();
    backend.take(Duration::ZERO, Duration::from_millis(1));
    others.into_iter().for_each(|other| cache.release(other).unwrap());
    let doomed = cache.snapshot().spill.unwrap().records.doomed;
    assert!(doomed > 10 * 64, "{doomed} records to be deleted");
    decode(&cache, id, &mut model, Policy::Dense).unwrap();
    assert!(cache.snapshot().spill.unwrap().records.doomed > 64, "deletes were over before anybody read");
    assert_eq!(original_faults(&cache, id, &model), 0);
    backend.take(Duration::ZERO, Duration::ZERO);
    cache.release(id).unwrap();
    assert_eq!(left_behind(&cache, true), [0; 3]);
}

#[test]
fn less_host_memory_is_planned_and_taken() {
    let backend: Arc<dyn Backend> = Arc::new(MemoryStore::new(u64::MAX));
    // Room for codes that are swapped out is host memory, too, and the same in both.
    let config = Config { swap_tokens: 0, ..spilling(DEVICE, backend.clone()) };
    let plain = Config { spill: None, ..config.clone() };
    let (with, without) = (config.plan().unwrap(), plain.plan().unwrap());
    assert!(with.host.bytes * 5 < without.host.bytes * 3, "{} of {}", with.host.bytes, without.host.bytes);
    let cache = Cache::new(Config { host_budget: with.host.bytes, ..config.clone() }).unwrap();
    assert_eq!(cache.snapshot().class(Class::Host).reserved, with.of(Class::Host));
    assert_eq!(cache.snapshot().class(Class::Tables).reserved, with.of(Class::Tables));
    let (id, _) = filled(&cache, 600);
    let snapshot = cache.snapshot();
    assert!(snapshot.class(Class::Host).used <= with.of(Class::Host));
    let spill = snapshot.spill.unwrap();
    assert!(spill.spilled > spill.resident + spill.stored, "{spill:?}");
    cache.release(id).unwrap();
    assert!(Cache::new(Config { host_budget: with.host.bytes - 1, ..config.clone() }).is_err());
    for change in [
        |spill: &mut Spill| spill.workers = 0,
        |spill: &mut Spill| spill.workers = 257,
        |spill: &mut Spill| spill.in_flight = 1,
        |spill: &mut Spill| spill.deadline = Duration::ZERO,
        |spill: &mut Spill| spill.deadline = Duration::MAX,
    ] {
        let mut wrong = config.clone();
        wrong.spill.iter_mut().for_each(change);
        assert!(matches!(Cache::new(wrong), Err(Error::Config { field: "spill", .. })));
    }
}

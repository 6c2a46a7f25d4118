//! Originals of live sequences in a host's store.
use crate::host::{Host, Store, Way};
use crate::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(60);

/// Dense, so that every step reads all originals.
fn wide() -> certkv_config {
    certkv_config { max_tokens: 640, max_sequences: 3, prefix_units: 0, policy: CERTKV_POLICY_DENSE, ..config() }
}

fn spilling(store: &Store) -> certkv_config {
    certkv_config {
        spill_store: store.0,
        spill_host_tokens: 64,
        spill_deadline_ms: 20_000,
        spill_in_flight: 8,
        ..wide()
    }
}

/// One step of one token: its outputs, or what attending said. Nothing is kept of it either way.
fn attend(cache: &Cache, sequence: certkv_sequence, seed: u8) -> Result<Vec<f32>, certkv_status> {
    let step = cache.begin(sequence, 1)?;
    let (row, query) = ([f32::from(seed) / 256.0; KV], [0.25f32; Q]);
    let (mut out, mut all) = ([7f32; Q], Vec::new());
    let mut said = CERTKV_OK;
    // SAFETY: every buffer has the elements that are given with it.
    unsafe {
        for layer in 0..LAYERS {
            let (at, n) = (row.as_ptr().cast(), KV as u64);
            assert_eq!(certkv_step_append(step, layer, at, at, n, CERTKV_F32, CERTKV_SPACE_HOST), CERTKV_OK);
            let (from, to) = (query.as_ptr(), out.as_mut_ptr());
            said = certkv_step_attend(step, layer, from, to, Q as u64, ptr::null_mut(), 0, CERTKV_SPACE_HOST);
            if said != CERTKV_OK {
                assert!(layer > 0 || out.iter().all(|x| *x == 7.0), "an output of a step that failed");
                break;
            }
            all.extend_from_slice(&out);
        }
        assert_eq!(certkv_step_abort(step), CERTKV_OK);
    }
    if said == CERTKV_OK { Ok(all) } else { Err(said) }
}

/// A long sequence in pieces, as long as the store keeps up.
fn fill(cache: &Cache, tokens: u64, seed: u64) -> certkv_sequence {
    let made = cache.create();
    (0..tokens / 20).for_each(|i| drop(cache.append(made, 20, seed + i)));
    made
}

/// What a step returned, to the bit: norms of prompts are NaN.
fn bits((outputs, certificates): (Vec<f32>, Vec<certkv_certificate>)) -> (Vec<u32>, String) {
    (outputs.iter().map(|x| x.to_bits()).collect(), format!("{certificates:?}"))
}

/// Two sequences in a cache that spills, and in one that does not; what attending to them says is the same to the bit.
fn lives_alike(store: &Store) -> certkv_snapshot {
    for policy in [CERTKV_POLICY_CERTIFIED, CERTKV_POLICY_DENSE] {
        let (spilled, plain) =
            (Cache::new(&certkv_config { policy, ..spilling(store) }), Cache::new(&certkv_config { policy, ..wide() }));
        let ids = [&spilled, &plain].map(|cache| [fill(cache, 300, 1), fill(cache, 280, 77)]);
        for seed in 0..6 {
            for which in [0, 1] {
                let [a, b] = [(&spilled, ids[0][which]), (&plain, ids[1][which])]
                    .map(|(cache, id)| bits(cache.append(id, 1, seed)));
                assert!(a == b, "outputs and certificates");
            }
        }
        // A cut inside a block whose originals are away.
        for (cache, id) in [(&spilled, ids[0][0]), (&plain, ids[1][0])] {
            // SAFETY: no pointers but the handle.
            assert_eq!(unsafe { certkv_sequence_truncate(cache.0, id, 37) }, CERTKV_OK, "{}", message());
        }
        assert!(bits(spilled.append(ids[0][0], 3, 9)) == bits(plain.append(ids[1][0], 3, 9)));
        let seen = spilled.snapshot();
        assert_eq!(plain.snapshot().spills, certkv_moves::default());
        if policy == CERTKV_POLICY_DENSE {
            assert!(seen.originals_spilled > 10 && seen.spills.done > 20 && seen.fetches.done > 5, "{seen:?}");
            assert!(
                seen.disk.used > 0
                    && seen.disk_memory.budget == u64::MAX
                    && seen.host.reserved < plain.snapshot().host.reserved
            );
            return seen;
        }
    }
    unreachable!()
}

#[test]
fn what_was_spilled_comes_back_to_the_bit() {
    let host = Arc::new(Host::default());
    let store = host.store();
    lives_alike(&store);
    assert!(host.got.load(SeqCst) > 20 && host.put.load(SeqCst) > 20 && host.looked.load(SeqCst) == 0);
    assert_eq!((host.len(), host.on_mine.load(SeqCst)), (0, 0), "what a cache had there goes with it");
    assert_eq!(host.destroyed.load(SeqCst), 0);
    drop(store);
    assert_eq!((host.destroyed.load(SeqCst), Arc::strong_count(&host)), (1, 1));
    // Memory, and files.
    let folder = c_path(&folder("spills"));
    let (mut memory, mut files, mut again) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: a C string and locals.
    unsafe {
        assert_eq!(certkv_store_create_memory(0, &mut memory), CERTKV_OK);
        assert_eq!(certkv_store_open_files(folder.as_ptr(), 0, CERTKV_FILES_READ_BACK, &mut files), CERTKV_OK);
        assert_eq!(certkv_store_open_files(folder.as_ptr(), 0, 0, &mut again), CERTKV_FILE);
    }
    assert!(again.is_null() && message().contains("another store has it open"), "{}", message());
    let (memory, files) = (Store(memory), Store(files));
    assert_eq!(lives_alike(&memory).fetches.failed, 0);
    assert_eq!(lives_alike(&files).fetches.failed, 0);
    drop(files);
    // SAFETY: as above.
    assert_eq!(unsafe { certkv_store_open_files(folder.as_ptr(), 0, CERTKV_FILES_SYNCED, &mut again) }, CERTKV_OK);
    drop(Store(again));
}

#[test]
fn as_many_threads_call_the_store_as_were_asked_for() {
    for (workers, together) in [(0, true), (1, false)] {
        let host = Arc::new(Host::default());
        let store = host.store();
        let cache = Cache::new(&certkv_config { spill_workers: workers, ..spilling(&store) });
        let a = fill(&cache, 500, 1);
        // The first get waits for another thread to come.
        let (inner, patience) = (Arc::downgrade(&host), Duration::from_millis(if together { 15_000 } else { 300 }));
        *host.inside.lock().unwrap() = Some(Box::new(move || {
            let (host, start) = (inner.upgrade().unwrap(), Instant::now());
            while !host.together.load(SeqCst) && start.elapsed() < patience {
                std::thread::yield_now();
            }
        }));
        assert!(attend(&cache, a, 3).is_ok(), "{}", message());
        assert_eq!(host.together.load(SeqCst), together);
    }
}

#[test]
fn a_cache_keeps_its_store_and_not_the_handle() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let (one, two) = (Cache::new(&spilling(&store)), Cache::new(&spilling(&store)));
    let stale = store.0;
    drop(store);
    let (a, b) = (fill(&one, 300, 1), fill(&two, 300, 1));
    assert_eq!(attend(&one, a, 3), attend(&two, b, 3));
    assert!(host.len() > 20 && host.destroyed.load(SeqCst) == 0);
    drop(one);
    assert!(attend(&two, b, 3).is_ok() && host.len() > 10, "the other's records are the other's");
    drop(two);
    assert_eq!((host.destroyed.load(SeqCst), host.len()), (1, 0));
    let mut none = ptr::dangling_mut();
    // SAFETY: whole structs; a handle that has ended is refused, not followed.
    unsafe {
        assert_eq!(
            certkv_cache_create(&certkv_config { spill_store: stale, ..wide() }, &mut none),
            CERTKV_INVALID_HANDLE
        );
        assert_eq!(certkv_store_destroy(stale), CERTKV_INVALID_HANDLE);
    }
    assert!(none.is_null() && message().contains("store"), "{}", message());
}

#[test]
fn a_host_that_does_wrong_is_a_status_and_nothing_else() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let (cache, plain) = (Cache::new(&spilling(&store)), Cache::new(&wide()));
    let [a, b] = [&cache, &plain].map(|cache| fill(cache, 500, 1));
    let right = attend(&plain, b, 3);
    let table = [
        (Way::Fails, CERTKV_STORE_FAILED, "code 5"),
        (Way::Silent, CERTKV_STORE_FAILED, "failed"),
        (Way::Babbles, CERTKV_STORE_FAILED, "77"),
        (Way::Refuses, CERTKV_STORE_NOT_FOUND, "not stored"),
        (Way::Loses, CERTKV_STORE_NOT_FOUND, "not stored"),
        (Way::Huge, CERTKV_STORE_DAMAGED, "the most"),
        (Way::Long, CERTKV_STORE_FAILED, "for a buffer of"),
        (Way::Empty, CERTKV_STORE_DAMAGED, "corrupt"),
        (Way::Short, CERTKV_STORE_DAMAGED, "corrupt"),
        (Way::Flips, CERTKV_STORE_DAMAGED, "corrupt"),
        (Way::Swaps, CERTKV_STORE_DAMAGED, "corrupt"),
    ];
    for (way, status, word) in table {
        assert_eq!(attend(&cache, a, 3), right, "before {way:?}");
        // Nothing of the first layer is in host memory then: it was read first.
        *host.gets.lock().unwrap() = way;
        assert_eq!(attend(&cache, a, 3), Err(status), "{way:?}");
        assert!(message().contains(word) && message().contains("originals of block"), "{way:?}: {}", message());
        // What needs no originals works.
        assert_eq!(cache.length(a), 500);
        cache.release(cache.create());
        *host.gets.lock().unwrap() = Way::Right;
    }
    assert_eq!(attend(&cache, a, 3), right);
    assert_eq!(cache.append(a, 1, 5), plain.append(b, 1, 5));
    let seen = cache.snapshot();
    assert!(seen.fetches.failed >= table.len() as u64, "{seen:?}");
    // Deletes that fail are tried again; a cache does not wait for them longer than its deadline.
    *host.removes.lock().unwrap() = Way::Fails;
    cache.release(a);
    let start = Instant::now();
    while cache.snapshot().record_delete_failures == 0 {
        cache.release(fill(&cache, 20, 5));
        assert!(start.elapsed() < WAIT, "no delete failed");
    }
    assert!(cache.snapshot().records_doomed > 0 && host.len() > 0);
    *host.removes.lock().unwrap() = Way::Right;
    drop(cache);
    assert_eq!(host.len(), 0);
}

#[test]
fn a_host_that_takes_nothing_fills_host_memory_up() {
    let host = Arc::new(Host::default());
    let store = host.store();
    for way in [Way::Fails, Way::Silent, Way::Babbles, Way::Refuses, Way::Huge] {
        *host.puts.lock().unwrap() = way;
        let cache = Cache::new(&certkv_config { spill_deadline_ms: 5_000, ..spilling(&store) });
        let a = cache.create();
        let mut said = Ok(0);
        for i in 0..30 {
            said = cache.begin(a, 20).map(|step| {
                abort(step);
                cache.append(a, 20, i);
                cache.length(a)
            });
            if said.is_err() {
                break;
            }
        }
        assert_eq!(said, Err(CERTKV_CAPACITY), "{way:?}");
        let held = cache.length(a);
        assert!(held >= 64 && host.len() == 0, "{way:?}: {held} tokens");
        // What is in host memory is there; one more token may be the first of a block.
        let said = attend(&cache, a, 3);
        assert!(
            said.is_ok() || held.is_multiple_of(BLOCK) && said == Err(CERTKV_CAPACITY),
            "{way:?} {held}: {}",
            message()
        );
        assert!(cache.snapshot().spills.refused + cache.snapshot().spills.failed > 0);
        // It has room again.
        *host.puts.lock().unwrap() = Way::Right;
        let start = Instant::now();
        while cache.begin(a, 20).map(abort).is_err() {
            assert!(start.elapsed() < WAIT, "{way:?}: {}", message());
        }
        cache.append(a, 20, 40);
        assert_eq!(cache.length(a), held + 20);
    }
    // A budget is the same.
    let cache = Cache::new(&certkv_config { spill_budget: 100_000, ..spilling(&store) });
    let a = cache.create();
    let least = (0..30).find(|i| {
        let step = cache.begin(a, 20).map(abort);
        step.inspect(|()| drop(cache.append(a, 20, *i))).is_err()
    });
    assert!(least.is_some() && cache.snapshot().disk.peak <= 100_000 && cache.snapshot().disk_memory.budget == 100_000);
}

fn abort(step: *mut certkv_step) {
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_abort(step) }, CERTKV_OK);
}

#[test]
fn a_host_that_does_not_return_is_late_and_the_cache_goes_on() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let (cache, plain) =
        (Cache::new(&certkv_config { spill_deadline_ms: 1_500, ..spilling(&store) }), Cache::new(&wide()));
    let [a, b] = [&cache, &plain].map(|cache| fill(cache, 500, 1));
    let right = attend(&plain, b, 3);
    *host.gets.lock().unwrap() = Way::Hangs;
    let start = Instant::now();
    let said = attend(&cache, a, 3);
    assert_eq!(said, Err(CERTKV_STORE_LATE), "{}", message());
    assert!(start.elapsed() < WAIT && message().contains("did not answer in 1.5s"), "{}", message());
    // Others go on; who needs the store is late again.
    assert_eq!(attend(&cache, a, 3), Err(CERTKV_STORE_LATE));
    assert_eq!(cache.length(a), 500);
    *host.gets.lock().unwrap() = Way::Right;
    host.let_go();
    let start = Instant::now();
    while attend(&cache, a, 3).is_err() {
        assert!(start.elapsed() < WAIT, "{}", message());
    }
    assert_eq!(attend(&cache, a, 3), right, "a get that came late is nobody's");
    drop((cache, store));
    // A thread of the store may be the last to leave.
    let start = Instant::now();
    while host.destroyed.load(SeqCst) == 0 {
        assert!(start.elapsed() < WAIT);
    }
}

#[test]
fn a_callback_may_call_the_cache_that_it_serves() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let config = certkv_config { spill_deadline_ms: 1_500, spill_workers: 1, ..spilling(&store) };
    let (cache, plain) = (Arc::new(Cache::new(&config)), Cache::new(&wide()));
    let [a, b] = [&*cache, &plain].map(|cache| fill(cache, 500, 1));
    let right = attend(&plain, b, 3);
    // What needs no store: once the puts that `fill` began are over, host memory has room for another block.
    let room = u64::from(LAYERS) * (64 / 16 + 3);
    let start = Instant::now();
    while cache.snapshot().originals_resident + u64::from(LAYERS) > room {
        assert!(start.elapsed() < WAIT, "{:?}", cache.snapshot());
        assert_eq!(attend(&cache, a, 3), right, "{}", message());
    }
    let (done, tell) = std::sync::mpsc::channel();
    let inner = Arc::downgrade(&cache);
    *host.inside.lock().unwrap() = Some(Box::new(move || {
        let cache = inner.upgrade().unwrap();
        let made = cache.create();
        let small = cache.append(made, 3, 1).0.len();
        cache.release(made);
        done.send((cache.snapshot().sequences, small)).unwrap();
    }));
    assert_eq!(attend(&cache, a, 3), right, "{}", message());
    assert_eq!(tell.recv_timeout(WAIT).unwrap(), (1, 3 * Q * LAYERS as usize));
    let (done, tell) = std::sync::mpsc::channel();
    let inner = Arc::downgrade(&cache);
    *host.inside_put.lock().unwrap() = Some(Box::new(move || {
        let cache = inner.upgrade().unwrap();
        let made = cache.create();
        let length = cache.length(made);
        cache.release(made);
        done.send((length, cache.snapshot().disk.used)).unwrap();
    }));
    cache.release(fill(&cache, 100, 50));
    let (length, used) = tell.recv_timeout(WAIT).unwrap();
    assert!(length == 0 && used > 0);
    // What waits for the callback itself: nobody waits for ever.
    let (done, tell) = std::sync::mpsc::channel();
    let inner = Arc::downgrade(&cache);
    let fork = {
        let mut fork = 0;
        // SAFETY: the out parameter is a local.
        assert_eq!(unsafe { certkv_sequence_fork(cache.0, a, &mut fork) }, CERTKV_OK);
        fork
    };
    *host.inside.lock().unwrap() = Some(Box::new(move || {
        let cache = inner.upgrade().unwrap();
        done.send(attend(&cache, fork, 3)).unwrap();
    }));
    assert_eq!(attend(&cache, a, 3), Err(CERTKV_STORE_LATE));
    assert_eq!(tell.recv_timeout(WAIT).unwrap(), Err(CERTKV_STORE_LATE));
    let start = Instant::now();
    while attend(&cache, a, 3).is_err() {
        assert!(start.elapsed() < WAIT, "{}", message());
    }
    assert_eq!(attend(&cache, fork, 3), attend(&cache, a, 3));
}

//! Cached prefixes from one cache to another, through a store.
use crate::host::{Host, Store, Way};
use crate::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

static SECRET: [u8; 32] = [9; 32];

fn kept() -> certkv_config {
    certkv_config { max_tokens: 640, prefix_units: 40, prefix_secret: SECRET.as_ptr(), ..config() }
}

/// A cache with a published prompt of 500 tokens: 31 units.
fn published() -> (Cache, Vec<u32>) {
    let (cache, tokens) = (Cache::new(&kept()), (0..500).collect::<Vec<u32>>());
    let a = cache.create();
    (0..25).for_each(|i| drop(cache.append(a, 20, i)));
    assert_eq!(cache.publish(a, &prefix_scope(b"tenant"), &tokens).unwrap().cached, 496);
    cache.release(a);
    (cache, tokens)
}

/// Both continue from what is cached, with the same bits.
fn alike(one: &Cache, other: &Cache, tokens: &[u32], found: u64) {
    let [a, b] = [one, other].map(|cache| cache.create_from(&prefix_scope(b"tenant"), tokens).unwrap());
    assert_eq!((a.1, b.1), (found, found));
    for seed in 0..4 {
        assert_eq!(one.append(a.0, 1, seed), other.append(b.0, 1, seed));
    }
    one.release(a.0);
    other.release(b.0);
}

#[test]
fn a_prefix_is_carried_in_pieces_and_found_elsewhere() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let ((one, tokens), other) = (published(), Cache::new(&kept()));
    let before = one.snapshot();
    assert_eq!(other.missing(store.0, &tokens), Ok([31, 0]));
    assert_eq!(other.import(store.0, &tokens, 0), Ok(0));
    assert_eq!(one.export(store.0, &tokens[..50], 0), Ok(3));
    assert_eq!(other.missing(store.0, &tokens), Ok([31, 3]));
    assert_eq!(other.import(store.0, &tokens, 0), Ok(48));
    assert_eq!(other.missing(store.0, &tokens), Ok([28, 0]));
    assert_eq!(one.export(store.0, &tokens, 3), Ok(28));
    assert_eq!((host.len(), host.put.load(SeqCst)), (31, 31));
    assert_eq!(other.missing(store.0, &tokens), Ok([28, 28]));
    assert_eq!(other.import(store.0, &tokens, 0), Ok(496));
    assert_eq!(other.import(store.0, &tokens, 0), Ok(496), "nothing is asked for");
    assert_eq!(other.missing(store.0, &tokens), Ok([0, 0]));
    alike(&one, &other, &tokens, 496);
    let after = one.snapshot();
    assert_eq!(after.prefix_lookups, before.prefix_lookups + 1, "carrying is no look-up");
    assert_eq!((host.got.load(SeqCst), host.on_mine.load(SeqCst)), (1 + 3 + 16 + 12 + 28, 0));
    // Beyond its end, and what is not cached, there is nothing to carry.
    for first in [31, 32, u64::MAX] {
        assert_eq!(one.export(store.0, &tokens, first), Ok(0));
    }
    assert_eq!(Cache::new(&kept()).export(store.0, &tokens, 0), Ok(0));
    // Where there is room for a part, a part.
    let small = Cache::new(&certkv_config { max_tokens: 100, ..kept() });
    let cached = small.import(store.0, &tokens, 0).unwrap();
    assert!((16..=112).contains(&cached), "{cached}");
    // Under another secret, and of another format, other names.
    static OTHER: [u8; 32] = [8; 32];
    for config in [
        certkv_config { prefix_secret: OTHER.as_ptr(), ..kept() },
        certkv_config { format: c"k8-v8g32-b16".as_ptr(), ..kept() },
    ] {
        assert_eq!(Cache::new(&config).missing(store.0, &tokens), Ok([31, 0]));
    }
    drop(store);
    assert_eq!(host.destroyed.load(SeqCst), 1, "no call of the caches holds it");
}

#[test]
fn files_carry_a_prefix_too_and_what_was_done_to_them_is_seen() {
    let dir = folder("carried");
    let path = c_path(&dir);
    let open = || {
        let mut made = ptr::null_mut();
        // SAFETY: a C string and a local.
        assert_eq!(unsafe { certkv_store_open_files(path.as_ptr(), 0, 0, &mut made) }, CERTKV_OK);
        Store(made)
    };
    let ((one, tokens), store) = (published(), open());
    assert_eq!(one.export(store.0, &tokens, 0), Ok(31));
    drop(store);
    let (store, other) = (open(), Cache::new(&kept()));
    assert_eq!(other.import(store.0, &tokens, 0), Ok(496));
    alike(&one, &other, &tokens, 496);
    // Every file loses a bit.
    let folders = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    for file in folders.flat_map(|folder| fs::read_dir(folder).unwrap()) {
        let file = file.unwrap().path();
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    let fresh = Cache::new(&kept());
    assert_eq!(fresh.import(store.0, &tokens, 0), Err(CERTKV_STORE_DAMAGED));
    assert!(message().contains("corrupt"), "{}", message());
    assert_eq!((fresh.missing(store.0, &tokens), fresh.snapshot().prefix_units), (Ok([31, 31]), 0));
    // They are replaced.
    assert_eq!(one.export(store.0, &tokens, 0), Ok(31));
    assert_eq!(fresh.import(store.0, &tokens, 0), Ok(496));
    // A quota.
    let mut made = ptr::null_mut();
    // SAFETY: the out parameter is a local.
    assert_eq!(unsafe { certkv_store_create_memory(10_000, &mut made) }, CERTKV_OK);
    assert_eq!(one.export(Store(made).0, &tokens, 0), Err(CERTKV_STORE_FULL));
}

#[test]
fn a_host_that_does_wrong_carries_nothing() {
    let host = Arc::new(Host::default());
    let store = host.store();
    let (one, tokens) = published();
    let ways = [
        (Way::Fails, CERTKV_STORE_FAILED, CERTKV_STORE_FAILED),
        (Way::Silent, CERTKV_STORE_FAILED, CERTKV_STORE_FAILED),
        (Way::Babbles, CERTKV_STORE_FAILED, CERTKV_STORE_FAILED),
        (Way::Huge, CERTKV_STORE_FAILED, CERTKV_STORE_DAMAGED),
        (Way::Refuses, CERTKV_STORE_FULL, CERTKV_OK),
        (Way::Loses, CERTKV_OK, CERTKV_OK),
        (Way::Empty, CERTKV_OK, CERTKV_STORE_DAMAGED),
        (Way::Short, CERTKV_OK, CERTKV_STORE_DAMAGED),
        (Way::Long, CERTKV_OK, CERTKV_STORE_FAILED),
        (Way::Flips, CERTKV_OK, CERTKV_STORE_DAMAGED),
        (Way::Swaps, CERTKV_OK, CERTKV_STORE_DAMAGED),
    ];
    for (way, putting, getting) in ways {
        *host.puts.lock().unwrap() = way;
        let said = one.export(store.0, &tokens, 0);
        assert_eq!(said, if putting == CERTKV_OK { Ok(31) } else { Err(putting) }, "{way:?}");
        *host.puts.lock().unwrap() = Way::Right;
        assert_eq!(one.export(store.0, &tokens, 0), Ok(31));
        let other = Cache::new(&kept());
        *host.gets.lock().unwrap() = way;
        let said = other.import(store.0, &tokens, 0);
        assert_eq!(said, if getting == CERTKV_OK { Ok(0) } else { Err(getting) }, "{way:?}");
        assert_eq!(other.snapshot().prefix_units, 0, "{way:?}");
        *host.gets.lock().unwrap() = Way::Right;
        assert_eq!(other.import(store.0, &tokens, 0), Ok(496));
        alike(&one, &other, &tokens, 496);
    }
    // A host that does not return.
    let other = Cache::new(&kept());
    *host.gets.lock().unwrap() = Way::Hangs;
    let start = Instant::now();
    assert_eq!(other.import(store.0, &tokens, 100), Err(CERTKV_STORE_LATE));
    assert!(start.elapsed() < Duration::from_secs(60) && message().contains("100ms"), "{}", message());
    *host.gets.lock().unwrap() = Way::Right;
    assert_eq!(other.import(store.0, &tokens, 0), Ok(496), "the next call has threads of its own");
    host.let_go();
    drop(store);
    let start = Instant::now();
    while host.destroyed.load(SeqCst) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    // A unit that was not all there when it was asked for is as if it had not come.
    assert_eq!(other.snapshot().prefix_units, 31);
}

//! Cached prefixes that travel through a store: from one cache to another, bit for bit or not at all.
mod common;

use certkv::store::{Durability, FileConfig, FileStore, Get, MemoryStore, Outcome, Store, StoreConfig};
use certkv::{
    Cache, Certificate, Config, Error, Eviction, Geometry, Policy, PrefixConfig, PrefixScope, PrefixSecret, SaveError,
};
use certkv_testkit::generate::Rng;
use common::{Answer, fill, original_faults, random_queries, random_rows, step};
use std::sync::Arc;
use std::time::Duration;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

fn cache(secret: u8, max_tokens: usize) -> Cache {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([secret; 32]), units: 16, eviction: Eviction::Lru };
    Cache::new(Config { formats: formats.into(), prefixes: Some(prefixes), ..Config::new(geometry(), max_tokens) })
        .unwrap()
}

/// The one outcome of what was submitted.
fn outcome(store: &Store) -> Outcome {
    assert!(store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
    let mut done = Vec::new();
    store.drain_completions(&mut done);
    assert_eq!(done.len(), 1);
    done.remove(0).outcome
}

fn put_all(store: &Store, cache: &Cache, tokens: &[u32], first: usize) -> usize {
    let puts = cache.export_prefix(&SCOPE, tokens.into(), first).unwrap();
    let unit = cache.prefix_unit().unwrap();
    // Centres of three layers are all there; no block is without codes, so no word names one.
    let around = 16 * (2 + 1 + 2);
    assert!(puts.iter().all(|put| put.page.len() + around == unit.bytes) && unit.tokens == 32);
    store.submit_put(puts).unwrap();
    let Outcome::Put(results) = outcome(store) else { panic!("another outcome") };
    assert!(results.iter().all(|(_, result)| result.is_ok()));
    results.len()
}

/// Gets up to the first that is not there.
fn get_all(store: &Store, wanted: Vec<Get>) -> Vec<Get> {
    store.submit_get(wanted).unwrap();
    let Outcome::Get(results) = outcome(store) else { panic!("another outcome") };
    results.into_iter().take_while(|(_, result)| result.is_ok()).map(|(get, _)| get).collect()
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

fn through(store: &Store) {
    let mut r = Rng::new(1);
    let (one, other) = (cache(5, 400), cache(5, 500));
    let tokens: Vec<u32> = (0..110).collect();
    let (id, mut model) = (one.create().unwrap(), random_rows(&geometry(), 110, &mut r));
    fill(&one, id, &model).unwrap();
    one.publish(id, &SCOPE, tokens[..].into()).unwrap();
    assert_eq!(put_all(store, &one, &tokens[..70], 0), 2, "units of 32");
    assert_eq!(put_all(store, &one, &tokens, 2), 1, "what is new");

    let wanted = other.missing_prefix(&SCOPE, tokens[..].into()).unwrap();
    assert_eq!(wanted.len(), 3);
    let found = get_all(store, wanted);
    assert_eq!(other.import_prefix(&SCOPE, tokens[..].into(), &found).unwrap(), 96);
    assert_eq!(other.import_prefix(&SCOPE, tokens[..].into(), &found).unwrap(), 96, "again: they are there already");
    assert_eq!(other.missing_prefix(&SCOPE, tokens[..].into()).unwrap().len(), 0);
    let seen = other.prefix_stats().unwrap().1;
    assert_eq!((seen.lookups, seen.asked, seen.hits), (0, 0, 0), "what is carried was not looked up");
    let (there, tokens_found) = other.create_from(&SCOPE, tokens[..].into()).unwrap();
    let (here, _) = one.create_from(&SCOPE, tokens[..].into()).unwrap();
    model.truncate(&geometry(), 96);
    assert_eq!((tokens_found, original_faults(&other, there, &model)), (96, 0));
    for _ in 0..30 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let run = |cache: &Cache, id| step(cache, id, &rows, &queries, Policy::default()).unwrap();
        assert!(same(&run(&one, here), &run(&other, there)));
    }
    other.release(there).unwrap();
    assert_eq!(other.evict_prefixes(9).unwrap(), 3);
    assert_eq!(other.live_pages(), 0);

    // Another secret, another tenant: other names, nothing there.
    for (cache, scope) in [(cache(6, 400), SCOPE), (cache(5, 400), PrefixScope { domain: b"other", ..SCOPE })] {
        let wanted = cache.missing_prefix(&scope, tokens[..].into()).unwrap();
        assert_eq!((wanted.len(), get_all(store, wanted).len()), (3, 0));
    }
}

#[test]
fn a_prefix_goes_through_memory() {
    through(&Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap());
}

#[test]
fn a_prefix_outlives_the_process_in_files() {
    let root = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("offload-{}", std::process::id()));
    let config = FileConfig { root: root.clone(), quota: 1 << 30, durability: Durability::Synced, read_back: true };
    through(&Store::new(Arc::new(FileStore::open(config).unwrap()), StoreConfig::default()).unwrap());
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn units_of_another_place_are_refused() {
    let mut r = Rng::new(2);
    let store = Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap();
    let (one, other) = (cache(5, 400), cache(5, 400));
    let tokens: Vec<u32> = (0..96).collect();
    let id = one.create().unwrap();
    fill(&one, id, &random_rows(&geometry(), 96, &mut r)).unwrap();
    one.publish(id, &SCOPE, tokens[..].into()).unwrap();
    put_all(&store, &one, &tokens, 0);
    let mut found = get_all(&store, other.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
    found.swap(1, 2);
    let refused = |units: &[Get]| match other.import_prefix(&SCOPE, tokens[..].into(), units) {
        Err(Error::Save(SaveError::Malformed { section: "unit", .. })) => other.prefix_stats().unwrap().0,
        result => panic!("{result:?}"),
    };
    assert_eq!(refused(&found), 1, "the first came before");
    // One that nobody read.
    let unread = other.missing_prefix(&SCOPE, tokens[..].into()).unwrap();
    assert_eq!(refused(&unread), 1);
    found.swap(1, 2);
    assert_eq!(other.import_prefix(&SCOPE, tokens[..].into(), &found).unwrap(), 96);
    // No room: as far as it goes, and nothing is left behind.
    let small = cache(5, 64);
    let busy = small.create().unwrap();
    fill(&small, busy, &random_rows(&geometry(), 20, &mut r)).unwrap();
    let live = small.live_pages();
    assert_eq!(small.import_prefix(&SCOPE, tokens[..].into(), &found).unwrap(), 32);
    small.evict_prefixes(9).unwrap();
    assert_eq!(small.live_pages(), live);
}

/// Between a cache and a store a unit lies in somebody's memory: the store seals what it is given.
#[test]
fn a_unit_that_was_changed_on_its_way_is_no_unit() {
    let mut r = Rng::new(3);
    let store = Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap();
    let (one, other) = (cache(5, 400), cache(5, 400));
    let tokens: Vec<u32> = (0..64).collect();
    let id = one.create().unwrap();
    fill(&one, id, &random_rows(&geometry(), 64, &mut r)).unwrap();
    one.publish(id, &SCOPE, tokens[..].into()).unwrap();
    let puts = one.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    let import = |put| {
        store.submit_put(vec![put]).unwrap();
        outcome(&store);
        let found = get_all(&store, other.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
        let result = other.import_prefix(&SCOPE, tokens[..].into(), &found);
        let units = other.evict_prefixes(9).unwrap();
        assert_eq!(other.live_pages(), 0);
        (result, units)
    };
    assert_eq!(import(puts[0].clone()).0.unwrap(), 32, "the second is not there yet");
    let length = puts[1].page.len();
    for at in (0..64).chain((64..length).step_by(211)).chain(length - 16..length) {
        let mut put = puts[1].clone();
        put.page[at] ^= 1 << (at % 8);
        let (result, units) = import(put);
        assert!(matches!(result, Err(Error::Save(SaveError::Damaged { section: "unit" }))), "byte {at}: {result:?}");
        assert_eq!(units, 1, "what came before");
    }
    let (result, units) = import(puts[1].clone());
    assert_eq!((result.unwrap(), units), (64, 2), "as it was");
}

//! Events of cached prefixes from the engine: what a router needs, in order, and nothing where nobody asked.
mod common;

use certkv::store::{Get, MemoryStore, Outcome, Store, StoreConfig, StoreKey};
use certkv::{
    BlockKey, Cache, Config, Error, EventKind, Eviction, Geometry, Mark, NotYet, PrefixConfig, PrefixEvent,
    PrefixScope, PrefixSecret, Prompt,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_rows};
use core::time::Duration;
use std::sync::Arc;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");
const UNIT: usize = 16;

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config(units: usize, prefix_events: usize) -> Config {
    let secret = PrefixSecret::new([5; 32]);
    let prefixes = Some(PrefixConfig { secret, units, eviction: Eviction::Lru });
    let format = "k8-v4g32-b16".parse().unwrap();
    Config { prefixes, prefix_events, ..Config::new(geometry(), 160) }.with_format(format)
}

/// Appends and publishes a sequence of these tokens, and ends it.
fn publish(cache: &Cache, tokens: &[u32]) {
    let id = cache.create().unwrap();
    fill(cache, id, &random_rows(&geometry(), tokens.len(), &mut Rng::new(u64::from(tokens[0])))).unwrap();
    cache.publish(id, &SCOPE, tokens.into()).unwrap();
    cache.release(id).unwrap();
}

/// Kind, unit, key and tokens of each event from `from` on.
fn told(cache: &Cache, from: u64) -> Vec<(EventKind, u32, BlockKey, Vec<u32>)> {
    let events = cache.prefix_events().unwrap();
    assert_eq!(events.unit(), UNIT);
    let (mut some, mut tokens) = ([PrefixEvent::NONE; 32], [0; 32 * UNIT]);
    let said = events.read(from, &mut some, &mut tokens).unwrap();
    assert_eq!((said.lost, said.next), (0, said.newest));
    let with = some.iter().zip(tokens.chunks(UNIT)).take(said.read);
    with.map(|(event, tokens)| (event.kind, event.unit, event.key, tokens.to_vec())).collect()
}

#[test]
fn a_router_hears_of_prefixes_that_come_and_go() {
    let cache = Cache::new(config(4, 32)).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    publish(&cache, &tokens);
    let keys = [UNIT, 2 * UNIT].map(|n| cache.prefix_key(&SCOPE, tokens[..n].into()).unwrap());
    let stored = |i: usize| (EventKind::Stored, i as u32, keys[i], tokens[i * UNIT..(i + 1) * UNIT].to_vec());
    assert_eq!(told(&cache, 0), [stored(0), stored(1)]);
    // Names are those of the store, so that a router knows a unit wherever it is.
    let exported = cache.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    assert_eq!(exported.iter().map(|put| put.key).collect::<Vec<_>>(), keys.map(|key| StoreKey(key.0)));
    cache.prefix_events().unwrap().exported(1, keys[1]);
    assert_eq!(told(&cache, 2), [(EventKind::Exported, 1, keys[1], vec![0; UNIT])]);
    // Another scope, other marks, other names; the scope's own is the parent of the first.
    let root = cache.prefix_key(&SCOPE, tokens[..UNIT - 1].into()).unwrap();
    let other = cache.prefix_key(&PrefixScope::new(b"other", b"model"), tokens[..UNIT].into()).unwrap();
    let marks = [Mark { at: 3, what: b"image" }];
    let marked = cache.prefix_key(&SCOPE, Prompt { tokens: &tokens[..UNIT], marks: &marks }).unwrap();
    assert!(root != keys[0] && other != keys[0] && marked != keys[0] && marked != other);
    let now = cache.cached_prefixes().unwrap();
    assert_eq!((now.next, now.units[0].parent, now.units[1].parent), (3, root, keys[0]));
    assert_eq!((now.units.len(), &now.tokens[..]), (2, &tokens[..32]));
    // What goes by itself, to make room for others, is told as what goes on request.
    let others: Vec<u32> = (100..180).collect();
    publish(&cache, &others[..64]);
    let later = told(&cache, 3);
    let kinds: Vec<_> = later.iter().map(|(kind, unit, ..)| (*kind, *unit)).collect();
    let gone = [(EventKind::Removed, 1), (EventKind::Removed, 0)];
    let come = [0, 1, 2, 3].map(|unit| (EventKind::Stored, unit));
    assert_eq!(kinds, [&gone[..], &come[..]].concat());
    assert_eq!((later[0].2, later[1].2), (keys[1], keys[0]));
    cache.evict_prefixes(1).unwrap();
    assert_eq!(told(&cache, 9), [(EventKind::Removed, 3, later[5].2, vec![0; UNIT])]);
}

/// The one outcome of what was submitted.
fn outcome(store: &Store) -> Outcome {
    assert!(store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
    let mut done = Vec::new();
    store.drain_completions(&mut done);
    done.remove(0).outcome
}

#[test]
fn units_that_arrive_are_stored() {
    let tokens: Vec<u32> = (0..48).collect();
    let (from, to) = (Cache::new(config(4, 8)).unwrap(), Cache::new(config(4, 8)).unwrap());
    publish(&from, &tokens);
    let store = Store::new(Arc::new(MemoryStore::new(1 << 24)), StoreConfig::default()).unwrap();
    store.submit_put(from.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap()).unwrap();
    assert!(matches!(outcome(&store), Outcome::Put(results) if results.len() == 3));
    store.submit_get(to.missing_prefix(&SCOPE, tokens[..].into()).unwrap()).unwrap();
    let Outcome::Get(gets) = outcome(&store) else { panic!("another outcome") };
    let gets: Vec<Get> = gets.into_iter().map(|(get, _)| get).collect();
    assert_eq!(to.import_prefix(&SCOPE, tokens[..].into(), &gets).unwrap(), 48);
    assert_eq!(told(&to, 0), told(&from, 0));
}

#[test]
fn events_that_nobody_asked_for_are_not_there() {
    let quiet = Cache::new(config(4, 0)).unwrap();
    assert!(quiet.prefix_events().is_none());
    let refused = |e: Result<_, Error>| match e {
        Err(Error::Config { field, .. }) => field,
        _ => "",
    };
    assert_eq!(refused(quiet.cached_prefixes().map(drop)), "prefix_events");
    let none = Config { prefixes: None, ..config(4, 0) };
    let cache = Cache::new(none.clone()).unwrap();
    assert!(cache.prefix_events().is_none());
    assert_eq!(refused(cache.cached_prefixes().map(drop)), "prefixes");
    assert_eq!(refused(cache.prefix_key(&SCOPE, [1][..].into()).map(drop)), "prefixes");
    assert_eq!(refused(Cache::new(Config { prefix_events: 1, ..none }).map(drop)), "prefix_events");
    assert_eq!(refused(Cache::new(config(4, (1 << 24) + 1)).map(drop)), "prefix_events");
    let events = Cache::new(config(4, 8)).unwrap().prefix_events().unwrap();
    assert_eq!(events.read(1, &mut [], &mut []), Err(NotYet { asked: 1, next: 0 }), "they outlive the cache");
}

//! The spans that docs/metrics.md names open and close around their moves, with their fields, and no other does.
mod common;
mod listener;

use certkv::{
    Cache, Certified, Config, Eviction, Geometry, Policy, PrefixConfig, PrefixScope, PrefixSecret, SaveScope, Scrub,
    Spill, store::MemoryStore,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};
use listener::{Listener, documented};
use std::sync::Arc;

fn work(listener: &Listener) {
    let geometry = Geometry::new(2, 4, 2, 64).unwrap();
    let prefixes = PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 8, eviction: Eviction::Lru };
    let format = "t2-v3g32-b16".parse().unwrap();
    let config = Config {
        swap_tokens: 256,
        scratch_keys: 6,
        scratch_values: 4,
        prefixes: Some(prefixes),
        ..Config::new(geometry, 1024)
    };
    let cache = Cache::new(config.with_format(format)).unwrap();
    let mut r = Rng::new(1);
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry, 150, &mut r)).unwrap();
    let policy = Policy::Certified(Certified { tol_rel: 0.005, ..Certified::default() });
    for _ in 0..3 {
        let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
        step(&cache, id, &rows, &queries, policy).unwrap();
    }
    let stored = listener.spans("store");
    assert_eq!(stored.len(), 2 * 4, "a span a layer and step");
    assert_eq!(stored[1].values, [("layer", 1), ("tokens", 150), ("bytes", 150 * 2 * 64 * 4)].into());

    let (scope, names) = (PrefixScope::new(b"tenant", b"model"), (0..150).collect::<Vec<u32>>());
    cache.publish(id, &scope, names[..].into()).unwrap();
    assert_eq!(listener.spans("publish")[0].values, [("asked", 150), ("added", 128)].into());
    let (again, _) = cache.create_from(&scope, names[..70].into()).unwrap();
    assert_eq!(listener.spans("continue")[0].values, [("asked", 70), ("found", 64)].into());
    let fork = cache.fork(id).unwrap();
    // The open block's nine rows, and the host's, of two heads and sides in two layers.
    assert_eq!(listener.spans("copy")[0].values["layers"], 2);
    assert_eq!(listener.spans("copy")[0].values["bytes"], cache.snapshot().copies.done.sum);
    let (mut file, whose) = (Vec::new(), SaveScope { model: b"model", key: None });
    cache.save(id, &whose, &mut file).unwrap();
    assert_eq!(listener.spans("save")[0].values, [("bytes", file.len() as u64)].into());
    let back = cache.restore(&whose, &mut &file[..]).unwrap();
    assert_eq!(listener.spans("restore")[0].values, [("bytes", file.len() as u64)].into());
    for (name, moved) in [("swap out", cache.swap_out(back).unwrap()), ("swap in", cache.swap_in(back).unwrap())] {
        assert_eq!(listener.spans(name)[0].values, [("bytes", moved)].into());
    }
    let looked = cache.scrub(Scrub { pages: 3, originals: false }).unwrap();
    assert_eq!(listener.spans("scrub")[0].values["pages"], looked.pages as u64);
    for id in [id, again, fork, back] {
        cache.release(id).unwrap();
    }
    assert_eq!(cache.evict_prefixes(3).unwrap(), 3);
    assert_eq!(listener.spans("evict").last().unwrap().values, [("units", 3)].into());
    let fills = listener.spans("fill");
    let moved: u64 = fills.iter().map(|fill| fill.values["moved"]).sum();
    let filled: u64 = cache.snapshot().scratch.unwrap().iter().map(|side| side.stats.filled).sum();
    assert!(moved > 0 && filled <= moved, "{filled} seen to be there, {moved} enqueued");
}

/// Originals to a store and back.
fn spill(listener: &Listener) {
    let geometry = Geometry::new(4, 2, 1, 64).unwrap();
    let spill = Some(Spill::new(Arc::new(MemoryStore::new(u64::MAX)), 16));
    let config = Config { spill, max_sequences: 1, ..Config::new(geometry, 512) };
    let cache = Cache::new(config.with_format("k8-v4g32-b16".parse().unwrap())).unwrap();
    let (mut r, id) = (Rng::new(1), cache.create().unwrap());
    for _ in 0..40 {
        fill(&cache, id, &random_rows(&geometry, 10, &mut r)).unwrap();
    }
    let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
    step(&cache, id, &rows, &queries, Policy::Dense).unwrap();
    let slots: u64 = listener.spans("spill").iter().map(|span| span.values["slots"]).sum();
    let bytes: u64 = listener.spans("fetch").iter().map(|span| span.values["bytes"]).sum();
    let snapshot = cache.snapshot();
    assert!(slots >= snapshot.spills.unwrap().done.count() && bytes == snapshot.fetches.unwrap().done.sum && bytes > 0);
}

/// A block to another level.
fn recode(listener: &Listener) {
    let geometry = Geometry::new(2, 2, 1, 64).unwrap();
    let levels = ["t8-v8g64-b16", "t4-v4g64-b16"].map(|f| certkv::Level { format: f.parse().unwrap(), tokens: 64 });
    let cache = Cache::new(Config::new(geometry, 64).with_levels(levels.to_vec())).unwrap();
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry, 40, &mut Rng::new(1))).unwrap();
    cache.change_level(id, 1, 1, 1).unwrap();
    assert_eq!(listener.spans("recode")[0].values, [("layer", 1), ("block", 1), ("level", 1)].into());
}

#[test]
fn spans_open_and_close_around_moves() {
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
        work(&listener);
        spill(&listener);
        recode(&listener);
    });
    assert_eq!(documented(0), listener.names());
}

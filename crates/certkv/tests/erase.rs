//! What sequences leave in memory: nothing, where the cache is told to erase it, by whichever way they give it up.
mod common;

use certkv::store::MemoryStore;
use certkv::{
    Cache, Chunk, Config, Eviction, Geometry, Level, Mode, Policy, PrefixConfig, PrefixScope, PrefixSecret, SequenceId,
    SimOptions, Spill, Window,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};
use std::sync::Arc;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"circle", b"model");

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

fn config(erase: bool) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { formats: formats.into(), device, erase, ..Config::new(geometry(), 600) }
}

/// A sequence of so many tokens, some of which came in steps of their own.
fn filled(cache: &Cache, tokens: usize, r: &mut Rng) -> SequenceId {
    let id = cache.create().unwrap();
    fill(cache, id, &random_rows(&geometry(), tokens, r)).unwrap();
    for _ in 0..3 {
        let (rows, queries) = (random_rows(&geometry(), 1, r), random_queries(&geometry(), 1, r));
        step(cache, id, &rows, &queries, Policy::default()).unwrap();
    }
    id
}

/// Bytes left in memory that nobody holds, after `life` in a cache that erases, and in one that does not.
fn left(name: &str, config: &dyn Fn(bool) -> Config, life: &dyn Fn(&Cache, &mut Rng)) -> [usize; 2] {
    let both = [true, false].map(|erase| {
        let cache = Cache::new(config(erase)).unwrap();
        assert_eq!(cache.residue().unwrap(), 0, "{name}: nothing was there");
        life(&cache, &mut Rng::new(5));
        let report = cache.check_report();
        assert_eq!(report.findings(), 0, "{name}: {report:?}");
        cache.residue().unwrap()
    });
    println!("{name}: {} bytes left, {} where nothing is erased", both[0], both[1]);
    both
}

#[test]
fn nothing_is_left_whichever_way_it_goes() {
    let plain = |erase| config(erase);
    let release = |cache: &Cache, r: &mut Rng| {
        let (stays, goes) = (filled(cache, 90, r), filled(cache, 75, r));
        let fork = cache.fork(goes).unwrap();
        cache.release(goes).unwrap();
        cache.release(fork).unwrap();
        assert_eq!(cache.len(stays).unwrap(), 93);
    };
    let truncate = |cache: &Cache, r: &mut Rng| {
        let id = filled(cache, 130, r);
        cache.truncate(id, 64).unwrap();
    };
    let swapping = |erase| Config { swap_tokens: 300, ..config(erase) };
    let swap = |cache: &Cache, r: &mut Rng| {
        let (out, back) = (filled(cache, 100, r), filled(cache, 75, r));
        cache.swap_out(out).unwrap();
        cache.swap_out(back).unwrap();
        cache.swap_in(back).unwrap();
    };
    let dropped = |cache: &Cache, r: &mut Rng| {
        let id = filled(cache, 60, r);
        let rows = random_rows(&geometry(), 40, r);
        let mut unfinished = cache.begin(&[Chunk { sequence: id, tokens: 40 }]).unwrap();
        unfinished.append_bits(0, &rows.keys[0], &rows.values[0]).unwrap();
        drop(unfinished);
    };
    let units = PrefixConfig { secret: PrefixSecret::new([3; 32]), units: 8, eviction: Eviction::Lru };
    let cached = move |erase| Config { prefixes: Some(units.clone()), ..config(erase) };
    let evict = |cache: &Cache, r: &mut Rng| {
        let id = filled(cache, 125, r);
        let tokens: Vec<u32> = (0..128).collect();
        assert!(cache.publish(id, &SCOPE, (&tokens[..]).into()).unwrap().added > 0);
        cache.release(id).unwrap();
        assert!(cache.live_pages() > 0, "what is cached stays");
        assert!(cache.evict_prefixes(usize::MAX).unwrap() > 0);
        assert_eq!(cache.live_pages(), 0);
    };
    let windowed = |erase| {
        let window = Window { chunk: 200, ..Window::new(30).with_sinks(4) };
        Config { windows: vec![Some(window)], ..config(erase) }
    };
    let slide = |cache: &Cache, r: &mut Rng| {
        filled(cache, 150, r);
    };
    let scratch = |erase| Config { scratch_keys: 64, scratch_values: 64, ..config(erase) };
    let promoted = |cache: &Cache, r: &mut Rng| {
        let id = filled(cache, 150, r);
        let other = filled(cache, 90, r);
        for _ in 0..12 {
            let (rows, queries) = (random_rows(&geometry(), 1, r), random_queries(&geometry(), 1, r));
            step(cache, id, &rows, &queries, Policy::default()).unwrap();
        }
        assert!(cache.memory().scratch > 0);
        cache.release(id).unwrap();
        cache.release(other).unwrap();
    };
    let ladder = |erase| {
        let level = |format: &str| Level { format: format.parse().unwrap(), tokens: 300 };
        let levels = ["t8-v8g64-b16", "t4-v4g64-b16", "t2-tq2-b16"].map(level);
        let device = SimOptions { mode: Mode::Eager, check: true };
        Config { device, erase, ..Config::new(geometry(), 300).with_levels(levels.to_vec()) }
    };
    let recode = |cache: &Cache, r: &mut Rng| {
        let id = filled(cache, 90, r);
        for block in 0..5 {
            cache.change_level(id, block % 3, block, 1 + block % 2).unwrap();
        }
    };
    let spilling = |erase| {
        let spill = Spill::new(Arc::new(MemoryStore::new(u64::MAX)), 64);
        Config { spill: Some(spill), ..config(erase).with_format("k8-v4g32-b16".parse().unwrap()) }
    };
    let spill = |cache: &Cache, r: &mut Rng| {
        let ids = [(); 4].map(|()| filled(cache, 60, r));
        cache.release(ids[1]).unwrap();
        cache.truncate(ids[2], 20).unwrap();
        let (rows, queries) = (random_rows(&geometry(), 1, r), random_queries(&geometry(), 1, r));
        step(cache, ids[0], &rows, &queries, Policy::Dense).unwrap();
        cache.release(ids[0]).unwrap();
    };
    type Life<'a> = (&'a str, &'a dyn Fn(bool) -> Config, &'a dyn Fn(&Cache, &mut Rng));
    let lives: [Life<'_>; 9] = [
        ("release", &plain, &release),
        ("truncate", &plain, &truncate),
        ("swap", &swapping, &swap),
        ("dropped step", &plain, &dropped),
        ("evicted prefixes", &cached, &evict),
        ("window", &windowed, &slide),
        ("scratch", &scratch, &promoted),
        ("levels", &ladder, &recode),
        ("spilled originals", &spilling, &spill),
    ];
    let (mut failed, mut seen) = (0, 0);
    for (name, config, life) in lives {
        let [erased, as_it_is] = left(name, config, life);
        failed += usize::from(erased > 0);
        seen += usize::from(as_it_is > 0);
    }
    println!("GATE erase executed={} failed={failed} controls={seen}/{} seed=0x5", lives.len(), lives.len());
    assert_eq!((failed, seen), (0, lives.len()));
}

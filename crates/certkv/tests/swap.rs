//! Sequences out of the device's memory and back: as if they had stayed, or a reason, and nothing lost.
mod common;

use certkv::{
    Cache, Certificate, Config, Error, Eviction, Geometry, Mode, Policy, PrefixConfig, PrefixScope, PrefixSecret,
    SaveScope, SequenceId, SimOptions,
};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};

const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

fn config(max_tokens: usize, swap_tokens: usize) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { formats: formats.into(), device, swap_tokens, ..Config::new(geometry(), max_tokens) }
}

fn with_tokens(cache: &Cache, tokens: usize, seed: u64) -> (SequenceId, Model) {
    let (id, rows) = (cache.create().unwrap(), random_rows(&geometry(), tokens, &mut Rng::new(seed)));
    if tokens > 0 {
        fill(cache, id, &rows).unwrap();
    }
    (id, rows)
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

fn saved(cache: &Cache, id: SequenceId) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.save(id, &FILE, &mut bytes).unwrap();
    bytes
}

/// Bytes on the device beside tables.
fn on_device(cache: &Cache) -> usize {
    let memory = cache.memory();
    memory.packed + memory.scratch
}

#[test]
fn a_sequence_that_was_away_goes_on_as_one_that_stayed() {
    let mut r = Rng::new(1);
    for tokens in [0, 1, 15, 16, 17, 64, 75, 96, 130] {
        let caches = [0, 200].map(|swap_tokens| Cache::new(config(600, swap_tokens)).unwrap());
        let [stays, leaves] = [0, 1].map(|i| with_tokens(&caches[i], tokens, 7));
        let mut model = stays.1;
        for round in 0..30 {
            if r.chance(0.4) {
                let file = saved(&caches[1], leaves.0);
                let before = caches[1].memory();
                let out = caches[1].swap_out(leaves.0).unwrap();
                assert!(caches[1].is_swapped_out(leaves.0).unwrap());
                assert_eq!(on_device(&caches[1]), 0, "something stayed on the device");
                assert_eq!(original_faults(&caches[1], leaves.0, &model), 0);
                assert!(saved(&caches[1], leaves.0) == file, "swapped out it is another file");
                let back = caches[1].swap_in(leaves.0).unwrap();
                assert_eq!((out, caches[1].memory()), (back, before));
            }
            if r.chance(0.2) && tokens > 0 {
                let len = r.below(model.len(&geometry()) + 1);
                caches[1].swap_out(leaves.0).unwrap();
                caches[0].truncate(stays.0, len).unwrap();
                caches[1].truncate(leaves.0, len).unwrap();
                caches[1].swap_in(leaves.0).unwrap();
                model.truncate(&geometry(), len);
            }
            let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
            let run = |cache: &Cache, id| step(cache, id, &rows, &queries, Policy::default()).unwrap();
            assert!(same(&run(&caches[0], stays.0), &run(&caches[1], leaves.0)), "{tokens} tokens, round {round}");
            model.append(&rows);
        }
        assert_eq!(original_faults(&caches[1], leaves.0, &model), 0);
        caches[1].swap_out(leaves.0).unwrap();
        caches[1].release(leaves.0).unwrap();
        assert_eq!((caches[1].live_pages(), caches[1].check_report().findings()), (0, 0));
    }
}

#[test]
fn what_others_kept_is_shared_again_and_not_copied() {
    let cache = Cache::new(config(400, 400)).unwrap();
    let (id, model) = with_tokens(&cache, 96, 2);
    let fork = cache.fork(id).unwrap();
    let before = cache.memory();
    assert!(cache.swap_out(id).unwrap() > 0);
    assert_eq!(cache.memory().packed, before.packed, "the fork lost pages");
    assert_eq!(cache.swap_in(id).unwrap(), 0, "pages that were there were copied");
    assert_eq!(cache.memory(), before);
    // Both away: the first that returns brings pages of its own, the other too.
    cache.swap_out(id).unwrap();
    cache.swap_out(fork).unwrap();
    assert_eq!(on_device(&cache), 0);
    assert!(cache.swap_in(id).unwrap() > 0 && cache.swap_in(fork).unwrap() > 0);
    assert_eq!(cache.memory().packed, 2 * before.packed);
    for id in [id, fork] {
        assert_eq!(original_faults(&cache, id, &model), 0);
        cache.release(id).unwrap();
    }
    assert_eq!(cache.live_pages(), 0);
}

#[test]
fn sequences_that_are_out_leave_others_all_tokens() {
    let config = Config { max_sequences: 2, ..config(320, 320) };
    let cache = Cache::new(config).unwrap();
    let (out, rows) = with_tokens(&cache, 320, 8);
    cache.swap_out(out).unwrap();
    let (other, others) = with_tokens(&cache, 320, 9);
    assert_eq!(original_faults(&cache, out, &rows) + original_faults(&cache, other, &others), 0);
    assert!(matches!(cache.swap_in(out), Err(Error::CapacityExhausted { class: "packed", .. })));
    cache.release(other).unwrap();
    cache.swap_in(out).unwrap();
    assert_eq!(original_faults(&cache, out, &rows), 0);
    cache.release(out).unwrap();
    assert_eq!(cache.live_pages(), 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let prefixes = PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 8, eviction: Eviction::Lru };
    let cache = Cache::new(Config { prefixes: Some(prefixes), ..config(160, 96) }).unwrap();
    let (id, rows) = with_tokens(&cache, 96, 3);
    let tokens: Vec<u32> = (0..96).collect();
    let scope = PrefixScope::new(b"one", b"model");
    assert!(matches!(cache.swap_in(id), Err(Error::NotSwappedOut)));
    cache.swap_out(id).unwrap();
    let before = (cache.memory(), cache.live_pages());
    let (one, queries) = (random_rows(&geometry(), 1, &mut Rng::new(4)), vec![0.5; geometry().q_width()]);
    assert!(matches!(step(&cache, id, &one, &queries, Policy::default()), Err(Error::SwappedOut)));
    assert!(matches!(cache.fork(id), Err(Error::SwappedOut)));
    assert!(matches!(cache.swap_out(id), Err(Error::SwappedOut)));
    assert!(matches!(cache.publish(id, &scope, tokens[..].into()), Err(Error::SwappedOut)));
    assert!(matches!(cache.truncate(id, 97), Err(Error::Length { .. })));
    assert_eq!((cache.memory(), cache.live_pages()), before);

    // No room for a second one outside, and none inside for both.
    let (other, _) = with_tokens(&cache, 96, 5);
    assert!(matches!(cache.swap_out(other), Err(Error::CapacityExhausted { class: "swap", .. })));
    assert!(!cache.is_swapped_out(other).unwrap());
    assert!(matches!(cache.swap_in(id), Err(Error::CapacityExhausted { class: "packed", .. })));
    assert!(cache.is_swapped_out(id).unwrap());
    // What is cached gives way to a sequence that returns.
    cache.publish(other, &scope, tokens[..].into()).unwrap();
    cache.release(other).unwrap();
    cache.swap_in(id).unwrap();
    assert_eq!(original_faults(&cache, id, &rows), 0);
    cache.release(id).unwrap();
    for refused in [cache.swap_out(id).err(), cache.swap_in(id).err(), cache.is_swapped_out(id).err()] {
        assert!(matches!(refused, Some(Error::UnknownSequence(_))));
    }
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!(cache.live_pages(), 0);

    let none = Cache::new(config(160, 0)).unwrap();
    let (id, _) = with_tokens(&none, 40, 6);
    assert!(matches!(none.swap_out(id), Err(Error::CapacityExhausted { class: "swap", .. })));
    let snapshot = none.snapshot();
    assert_eq!((snapshot.swap_outs.refused, snapshot.swap_outs.done.count()), (1, 0));
}

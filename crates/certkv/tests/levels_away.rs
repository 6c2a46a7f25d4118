//! Sequences whose blocks have levels, away and back: as if they had stayed, to the last bit of every certificate and every decision of
//! who decides levels, or a reason.
mod common;

use certkv::bound_budget::BoundRule;
use certkv::{
    BoundBudget, Cache, Certificate, Config, Error, Geometry, Level, Mode, Policy, Retention, SaveScope, SequenceId,
    SimOptions, SmartKv, retention, smartkv,
};
use certkv_testkit::generate::Rng;
use common::{Answer, fill, original_faults, random_queries, random_rows, step};

const LADDER: [&str; 4] = ["t8-v8g64-b16", "t4-v4g64-b16", "tq3-v3g64-b16", "t2-tq2-b16"];

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config(max_tokens: usize) -> Config {
    let level = |format: &str| Level { format: format.parse().unwrap(), tokens: max_tokens };
    let rule = smartkv::Rule { base: 4, ..Default::default() };
    let control = SmartKv { rule, ..SmartKv::new(150.0) };
    let config = Config::new(geometry(), max_tokens).with_levels(LADDER.map(level).to_vec());
    Config { control: Some(control.into()), device: SimOptions { mode: Mode::Eager, check: true }, ..config }
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

/// Levels of all full blocks, by layer.
fn levels(cache: &Cache, id: SequenceId) -> Vec<Vec<usize>> {
    let full = cache.len(id).unwrap() / 16;
    (0..2).map(|layer| (0..full).map(|block| cache.level(id, layer, block).unwrap()).collect()).collect()
}

/// A sequence that is decoded, cut, decided on and changed by hand, beside one that is the same and goes away now and then: `away` takes it
/// there and back. Returns how many levels changed.
fn beside(
    tokens: usize,
    rounds: usize,
    config: &Config,
    away: &mut dyn FnMut(&Cache, SequenceId) -> SequenceId,
) -> usize {
    let mut r = Rng::new(tokens as u64);
    let caches = [(); 2].map(|()| Cache::new(config.clone()).unwrap());
    let mut model = random_rows(&geometry(), tokens, &mut r);
    let mut ids = caches.each_ref().map(|cache| {
        let id = cache.create().unwrap();
        if tokens > 0 {
            fill(cache, id, &model).unwrap();
        }
        id
    });
    let mut changed = 0;
    for round in 0..rounds {
        if r.chance(0.3) {
            let before = levels(&caches[1], ids[1]);
            ids[1] = away(&caches[1], ids[1]);
            assert_eq!(levels(&caches[1], ids[1]), before, "round {round}");
        }
        for _ in 0..r.below(3) {
            let (layer, block, level) = (r.below(2), r.below(model.len(&geometry()) / 16 + 1), r.below(LADDER.len()));
            let done = [0, 1].map(|i| caches[i].change_level(ids[i], layer, block, level).is_ok());
            assert_eq!(done[0], done[1]);
        }
        if r.chance(0.1) {
            let len = model.len(&geometry()) - r.below(model.len(&geometry()).min(20) + 1);
            (0..2).for_each(|i| caches[i].truncate(ids[i], len).unwrap());
            model.truncate(&geometry(), len);
        }
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let policy = [Policy::default(), Policy::Packed, Policy::default()][round % 3];
        let answers = [0, 1].map(|i| step(&caches[i], ids[i], &rows, &queries, policy).unwrap());
        assert!(same(&answers[0], &answers[1]), "{tokens} tokens, round {round}");
        model.append(&rows);
        let decided = [0, 1].map(|i| caches[i].control(ids[i]).unwrap());
        assert_eq!(decided[0], decided[1], "{tokens} tokens, round {round}");
        changed += decided[0].changed;
        assert_eq!(levels(&caches[0], ids[0]), levels(&caches[1], ids[1]));
    }
    for (cache, id) in caches.iter().zip(ids) {
        assert_eq!(original_faults(cache, id, &model), 0);
        cache.release(id).unwrap();
        assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
    }
    changed
}

#[test]
fn a_sequence_that_was_swapped_out_goes_on_as_one_that_stayed() {
    let retained = Retention { rule: retention::Rule { every: 4, ..Default::default() }, ..Retention::new(150.0) };
    let planned = BoundBudget { rule: BoundRule { every: 4, ..Default::default() }, ..BoundBudget::new(150.0) };
    for control in [config(400).control, Some(retained.into()), Some(planned.into())] {
        let config = Config { swap_tokens: 400, control, ..config(400) };
        goes_on(&config);
    }
}

fn goes_on(config: &Config) {
    let mut changed = 0;
    for tokens in [0, 15, 16, 75, 130, 257] {
        changed += beside(tokens, 30, config, &mut |cache, id| {
            let (memory, at) = (cache.memory(), levels(cache, id));
            let out = cache.swap_out(id).unwrap();
            assert_eq!(cache.memory().packed + cache.memory().scratch, 0, "something stayed on the device");
            assert!(matches!(cache.control(id), Err(Error::SwappedOut)));
            assert_eq!(levels(cache, id), at, "levels are not known outside");
            let back = cache.swap_in(id).unwrap();
            assert_eq!((back, cache.memory()), (out, memory));
            id
        });
    }
    assert!(changed > 50, "levels hardly changed: {changed}");
}

/// From a file, into the cache that it left and into one that is larger, also while it is swapped out.
#[test]
fn a_restored_sequence_has_its_levels_and_goes_on_as_it_would_have() {
    let scope = SaveScope { model: b"m", key: None };
    let config = Config { swap_tokens: 400, control: None, ..config(500) };
    let saved = |cache: &Cache, id| {
        let mut bytes = Vec::new();
        cache.save(id, &scope, &mut bytes).unwrap();
        bytes
    };
    for tokens in [0, 15, 16, 75, 130, 257] {
        beside(tokens, 30, &config, &mut |cache, id| {
            let bytes = saved(cache, id);
            cache.swap_out(id).unwrap();
            assert!(saved(cache, id) == bytes, "swapped out it is another file");
            cache.release(id).unwrap();
            assert_eq!(cache.live_pages(), 0);
            let back = cache.restore(&scope, &mut &bytes[..]).unwrap();
            assert!(saved(cache, back) == bytes, "saved again it is another file");
            let other = Cache::new(Config { max_sequences: 3, swap_tokens: 0, ..self::config(900) }).unwrap();
            let there = other.restore(&scope, &mut &bytes[..]).unwrap();
            assert!(saved(&other, there) == bytes, "in another cache it is another file");
            back
        });
    }
}

/// Who decides levels begins anew with a sequence from a file, and decides.
#[test]
fn a_restored_sequence_is_decided_on() {
    let (cache, scope, mut r) = (Cache::new(config(400)).unwrap(), SaveScope { model: b"m", key: None }, Rng::new(7));
    let (id, mut bytes) = (cache.create().unwrap(), Vec::new());
    fill(&cache, id, &random_rows(&geometry(), 200, &mut r)).unwrap();
    cache.save(id, &scope, &mut bytes).unwrap();
    cache.release(id).unwrap();
    let id = cache.restore(&scope, &mut &bytes[..]).unwrap();
    let mut decided = 0;
    for _ in 0..12 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        step(&cache, id, &rows, &queries, Policy::default()).unwrap();
        decided += cache.control(id).unwrap().changed;
    }
    assert!(decided > 0);
}

/// Where a level has no page the whole sequence waits, and returns when it has. Admission says so before.
#[test]
fn a_sequence_waits_for_pages_of_its_levels() {
    let mut config = Config { swap_tokens: 200, ..config(200) };
    config.levels[2].tokens = 32;
    let cache = Cache::new(config).unwrap();
    let mut r = Rng::new(1);
    let [one, two] = [(); 2].map(|()| {
        let id = cache.create().unwrap();
        fill(&cache, id, &random_rows(&geometry(), 70, &mut r)).unwrap();
        id
    });
    [0, 3].into_iter().for_each(|block| cache.change_level(one, 1, block, 2).unwrap());
    let before = levels(&cache, one);
    cache.swap_out(one).unwrap();
    let fits = certkv::Admission::Fits;
    assert_eq!(cache.admit(Some(one), 1).unwrap(), fits);
    cache.change_level(two, 1, 2, 2).unwrap();
    let lacks = cache.admit(Some(one), 1).unwrap();
    assert!(matches!(lacks, certkv::Admission::Lacks { group: 1, pages: 1, .. }), "{lacks:?}");
    let memory = cache.memory();
    let refused = cache.swap_in(one).unwrap_err();
    assert!(matches!(refused, Error::CapacityExhausted { class: "level 2", .. }), "{refused}");
    assert_eq!((cache.memory(), cache.is_swapped_out(one).unwrap()), (memory, true));
    cache.change_level(two, 1, 2, 3).unwrap();
    assert_eq!(cache.admit(Some(one), 1).unwrap(), fits);
    cache.swap_in(one).unwrap();
    assert_eq!(levels(&cache, one), before);
    [one, two].into_iter().for_each(|id| cache.release(id).unwrap());
    assert_eq!(cache.live_pages(), 0);
}

/// What a fork kept is shared again at its level, and what it changed meanwhile stays its own.
#[test]
fn a_fork_keeps_its_levels_while_the_other_is_away() {
    let cache = Cache::new(Config { swap_tokens: 200, ..config(400) }).unwrap();
    let (id, model) = (cache.create().unwrap(), random_rows(&geometry(), 96, &mut Rng::new(3)));
    fill(&cache, id, &model).unwrap();
    (0..6).for_each(|block| cache.change_level(id, block % 2, block, block % 4).unwrap());
    let fork = cache.fork(id).unwrap();
    let (before, page) = (levels(&cache, id), cache.packed_page(id, 0, 2).unwrap());
    cache.swap_out(id).unwrap();
    cache.change_level(fork, 0, 2, 3).unwrap();
    assert_eq!(cache.swap_in(id).unwrap(), page.len() as u64, "one block was copied: the one that the fork gave up");
    assert_eq!((levels(&cache, id), cache.level(fork, 0, 2).unwrap()), (before, 3));
    let queries = random_queries(&geometry(), 1, &mut Rng::new(4));
    let rows = random_rows(&geometry(), 1, &mut Rng::new(5));
    for id in [id, fork] {
        step(&cache, id, &rows, &queries, Policy::default()).unwrap();
        cache.release(id).unwrap();
    }
    assert_eq!(cache.live_pages(), 0);
}

//! Cached prefixes whose blocks have levels: each block is found at the level that it had when it came to be cached, to the last bit, and
//! whoever changes it changes its own.
mod common;

use certkv::{
    Admission, CLASSES, Cache, Class, Config, Error, Eviction, Geometry, Level, Mode, Policy, PrefixConfig,
    PrefixEvent, PrefixScope, PrefixSecret, SaveScope, SequenceId, SimOptions, SmartKv, smartkv, store,
};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};

const LADDER: [&str; 3] = ["t8-v8g64-b16", "t4-v4g64-b16", "t2-tq2-b16"];
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"one", b"model");

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config(tokens: [usize; 3]) -> Config {
    let level = |(format, tokens): (&str, usize)| Level { format: format.parse().unwrap(), tokens };
    let config = Config::new(geometry(), tokens[0]).with_levels(LADDER.into_iter().zip(tokens).map(level).collect());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 16, eviction: Eviction::Lru };
    Config {
        prefixes: Some(prefixes),
        prefix_events: 16,
        device: SimOptions { mode: Mode::Eager, check: true },
        ..config
    }
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).collect()
}

fn levels(cache: &Cache, id: SequenceId) -> Vec<Vec<usize>> {
    let full = cache.len(id).unwrap() / 16;
    (0..2).map(|layer| (0..full).map(|block| cache.level(id, layer, block).unwrap()).collect()).collect()
}

fn bits(answers: &[Answer]) -> Vec<(Vec<u32>, Vec<u64>)> {
    let of = |a: &Answer| (a.bits(), a.certificates.iter().map(|c| c.bound().to_bits()).collect());
    answers.iter().map(of).collect()
}

/// A sequence of `n` tokens with blocks at every level.
fn mixed(cache: &Cache, n: usize, seed: u64) -> (SequenceId, Model) {
    let (id, model) = (cache.create().unwrap(), random_rows(&geometry(), n, &mut Rng::new(seed)));
    fill(cache, id, &model).unwrap();
    (0..n / 16).for_each(|block| {
        cache.change_level(id, 0, block, block % 3).unwrap();
        cache.change_level(id, 1, block, (block + 1) % 3).unwrap();
    });
    (id, model)
}

#[test]
fn what_is_found_has_the_levels_that_it_was_cached_with() {
    let cache = Cache::new(config([600; 3])).unwrap();
    let (first, model) = mixed(&cache, 96, 1);
    let (prompt, before) = (tokens(96), levels(&cache, first));
    let fork = cache.fork(first).unwrap();
    assert_eq!(cache.publish(first, &SCOPE, prompt[..].into()).unwrap().added, 96);
    // The writer goes on to other levels, and is published again: what is cached stays as it is.
    (0..6).for_each(|block| cache.change_level(first, 0, block, 1).unwrap());
    assert_eq!(cache.publish(first, &SCOPE, prompt[..].into()).unwrap().added, 0);
    let continued = |n: usize| {
        let (id, found) = cache.create_from(&SCOPE, prompt[..n].into()).unwrap();
        assert_eq!(found, n / 16 * 16);
        id
    };
    let found = continued(96);
    assert_eq!(levels(&cache, found), before);
    let mut r = Rng::new(2);
    for round in 0..20 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let policy = [Policy::default(), Policy::Packed][round % 2];
        let answers = [fork, found].map(|id| bits(&step(&cache, id, &rows, &queries, policy).unwrap()));
        assert_eq!(answers[0], answers[1], "round {round}");
        if round == 10 {
            // A change copies on write: the same of both, of blocks that the index has, too.
            [fork, found].into_iter().for_each(|id| cache.change_level(id, 1, 2, 1).unwrap());
        }
    }
    let again = continued(90);
    assert_eq!(levels(&cache, again), before.iter().map(|of| of[..5].to_vec()).collect::<Vec<_>>());
    assert_eq!(cache.originals(again, 0, 0, certkv::Side::Key).unwrap().len(), 80 * 64);
    let mut cut = model;
    cut.truncate(&geometry(), 80);
    assert_eq!(original_faults(&cache, again, &cut), 0);
    [first, fork, found, again].into_iter().for_each(|id| cache.release(id).unwrap());
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
}

/// Who decides levels decides on what was found, too; that a sequence was away and came back changes nothing of it.
#[test]
fn what_is_found_is_decided_on_swapped_and_saved() {
    let rule = smartkv::Rule { base: 4, ..Default::default() };
    let control = Some(SmartKv { rule, ..SmartKv::new(200.0) }.into());
    let cache = Cache::new(Config { control, swap_tokens: 200, ..config([600; 3]) }).unwrap();
    let (first, _) = mixed(&cache, 160, 3);
    cache.publish(first, &SCOPE, tokens(160)[..].into()).unwrap();
    let (id, _) = cache.create_from(&SCOPE, tokens(160)[..].into()).unwrap();
    let (before, packed) = (levels(&cache, id), cache.memory().packed);
    cache.swap_out(id).unwrap();
    assert_eq!((cache.swap_in(id).unwrap(), levels(&cache, id), cache.memory().packed), (0, before.clone(), packed));
    let (scope, mut file) = (SaveScope { model: b"m", key: None }, Vec::new());
    cache.save(id, &scope, &mut file).unwrap();
    let restored = cache.restore(&scope, &mut &file[..]).unwrap();
    assert_eq!(levels(&cache, restored), before);
    let (mut r, mut changed) = (Rng::new(4), 0);
    for _ in 0..40 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        step(&cache, id, &rows, &queries, Policy::default()).unwrap();
        changed += cache.control(id).unwrap().changed;
    }
    assert!(changed > 0);
    let (other, _) = cache.create_from(&SCOPE, tokens(160)[..].into()).unwrap();
    assert_eq!((levels(&cache, other), levels(&cache, first)), (before.clone(), before));
}

/// What is cached gives way to a block that changes and to a sequence that returns, where the pages of a level run out; and nothing else.
#[test]
fn cached_blocks_give_their_levels_pages_back() {
    let cache = Cache::new(Config { swap_tokens: 200, ..config([400, 64, 400]) }).unwrap();
    let (first, _) = mixed(&cache, 96, 5);
    let prompt = tokens(96);
    cache.publish(first, &SCOPE, prompt[..].into()).unwrap();
    cache.release(first).unwrap();
    // Of four pages of level 1 in a layer two are cached.
    let (id, model) = (cache.create().unwrap(), random_rows(&geometry(), 96, &mut Rng::new(6)));
    fill(&cache, id, &model).unwrap();
    (0..2).for_each(|block| cache.change_level(id, 0, block, 1).unwrap());
    assert_eq!(cache.find_prefix(&SCOPE, prompt[..].into()).unwrap().cached, 96);
    cache.change_level(id, 0, 2, 1).unwrap();
    // Layer 0 had level 1 in blocks 1 and 4: the last of them and what follows it went.
    assert_eq!(cache.find_prefix(&SCOPE, prompt[..].into()).unwrap().cached, 64);
    let (away, before) = (cache.fork(id).unwrap(), levels(&cache, id));
    cache.release(id).unwrap();
    cache.swap_out(away).unwrap();
    let (other, _) = mixed(&cache, 48, 7);
    cache.change_level(other, 0, 0, 1).unwrap();
    // Three pages are wanted, one is free and one cached: refused, for what a sequence has; what is cached has given way by then.
    let waits = cache.swap_in(away).unwrap_err();
    assert!(matches!(waits, Error::CapacityExhausted { class: "level 1", .. }), "{waits}");
    assert!(cache.find_prefix(&SCOPE, prompt[..].into()).unwrap().cached <= 16);
    assert!(matches!(cache.admit(Some(away), 1).unwrap(), Admission::Lacks { group: 0, pages: 1, .. }));
    cache.change_level(other, 0, 0, 2).unwrap();
    assert_eq!(cache.admit(Some(away), 1).unwrap(), Admission::Fits);
    cache.swap_in(away).unwrap();
    assert_eq!((levels(&cache, away), original_faults(&cache, away, &model)), (before, 0));
    [away, other].into_iter().for_each(|id| cache.release(id).unwrap());
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!(cache.live_pages(), 0);
}

/// The name of a unit says its levels: no cache takes those of another ladder for its own. Into stores they do not go.
#[test]
fn units_of_other_levels_have_other_names() {
    let mut names = Vec::new();
    for ladder in [&LADDER[..], &LADDER[..2], &["t8-v8g64-b16", "t4-v4g64-b16", "t2-v2g64-b16"], &[]] {
        let level = |format: &&str| Level { format: format.parse().unwrap(), tokens: 200 };
        let config = config([200; 3]);
        let cache = Cache::new(Config { levels: ladder.iter().map(level).collect(), ..config }).unwrap();
        let id = cache.create().unwrap();
        fill(&cache, id, &random_rows(&geometry(), 32, &mut Rng::new(8))).unwrap();
        cache.publish(id, &SCOPE, tokens(32)[..].into()).unwrap();
        let mut events = [PrefixEvent::NONE; 4];
        let read = cache.prefix_events().unwrap().read(0, &mut events, &mut []).unwrap().read;
        names.extend(events[..read].iter().map(|event| event.key.0));
        let puts = cache.export_prefix(&SCOPE, tokens(32)[..].into(), 0);
        let gets: Result<Vec<store::Get>, Error> = cache.missing_prefix(&SCOPE, tokens(64)[..].into());
        let taken = cache.import_prefix(&SCOPE, tokens(64)[..].into(), &[]);
        let refused = [puts.map(drop), gets.map(drop), taken.map(drop)];
        let levels = |done: &Result<(), Error>| matches!(done, Err(Error::Config { field: "levels", .. }));
        assert!(refused.iter().all(|done| levels(done) != ladder.is_empty()), "{refused:?}");
    }
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!((all, names.len()), (8, 8));
}

/// Swapping and cached prefixes beside levels: planned is what is reserved, and what sequences have is never more.
#[test]
fn the_ledger_knows_what_is_away_and_what_is_cached() {
    let config = Config { swap_tokens: 200, ..config([400, 160, 240]) };
    let plan = config.plan().unwrap();
    let cache = Cache::new(config.clone()).unwrap();
    for class in CLASSES {
        assert_eq!(cache.reserved_for(class), plan.of(class), "{class:?}");
    }
    let budget = plan.host.bytes;
    assert!(Cache::new(Config { host_budget: budget, ..config.clone() }).is_ok());
    assert!(matches!(Cache::new(Config { host_budget: budget - 1, ..config }), Err(Error::Budget(_))));
    let used = |class: Class| cache.snapshot().classes.iter().find(|of| of.class == class).unwrap().used;
    let (id, _) = mixed(&cache, 96, 9);
    // Pages that blocks have left are used until somebody sees that their readers are done.
    cache.live_pages();
    let (packed, host) = (used(Class::Packed), used(Class::Host));
    cache.swap_out(id).unwrap();
    // A page outside is one of the first level's, whichever its block has: 6 blocks of two layers.
    let top = cache.layout(0).unwrap().bytes * 2 + 64;
    assert_eq!((used(Class::Packed), used(Class::Host)), (0, host + 12 * top.next_multiple_of(64)));
    cache.swap_in(id).unwrap();
    cache.publish(id, &SCOPE, tokens(96)[..].into()).unwrap();
    cache.release(id).unwrap();
    assert_eq!((used(Class::Packed), used(Class::Host) <= host), (packed, true), "cached pages are used ones");
    assert!(CLASSES.into_iter().all(|class| used(class) <= cache.reserved_for(class)));
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!((used(Class::Packed), used(Class::Host)), (0, 0));
}

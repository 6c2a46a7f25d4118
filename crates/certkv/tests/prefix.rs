//! Sequences that continue from cached blocks: the same bytes, the same outputs, and never another circle's.
mod common;

use certkv::{
    Admission, Cache, Certificate, Chunk, Config, Error, Eviction, Geometry, Mode, Policy, PrefixConfig, PrefixScope,
    PrefixSecret, Prompt, SequenceId, SimOptions, Stop, Watermarks,
};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");

fn config(geometry: Geometry, max_tokens: usize) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 16, eviction: Eviction::Lru };
    Config { formats: formats.into(), prefixes: Some(prefixes), ..Config::new(geometry, max_tokens) }
}

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

/// A sequence of `tokens` tokens with random rows.
fn filled(cache: &Cache, tokens: usize, r: &mut Rng) -> (SequenceId, Model) {
    let (id, rows) = (cache.create().unwrap(), random_rows(&geometry(), tokens, r));
    fill(cache, id, &rows).unwrap();
    (id, rows)
}

fn publish(cache: &Cache, id: SequenceId, tokens: &[u32]) -> (usize, usize) {
    let done = cache.publish(id, &SCOPE, tokens.into()).unwrap();
    (done.cached, done.added)
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

#[test]
fn a_continued_sequence_is_the_one_it_continues() {
    let mut r = Rng::new(1);
    let cache = Cache::new(config(geometry(), 400)).unwrap();
    let (first, mut model) = filled(&cache, 75, &mut r);
    let tokens: Vec<u32> = (0..75).collect();
    assert_eq!(publish(&cache, first, &tokens), (64, 64), "two whole units of 32");
    assert_eq!(publish(&cache, first, &tokens), (64, 0));
    let (second, found) = cache.create_from(&SCOPE, Prompt::from(&tokens[..])).unwrap();
    assert_eq!((found, cache.len(second).unwrap()), (64, 64));
    model.truncate(&geometry(), 64);
    assert_eq!(original_faults(&cache, second, &model), 0);
    for layer in 0..3 {
        for block in 0..2 {
            let page = |id| cache.packed_page(id, layer, block).unwrap();
            assert_eq!(page(first), page(second));
        }
    }
    // A fork that was cut to the same length is the same sequence: every output and certificate from here on is equal.
    let fork = cache.fork(first).unwrap();
    cache.truncate(fork, 64).unwrap();
    cache.release(first).unwrap();
    for _ in 0..40 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let policy = Policy::default();
        let answers = [second, fork].map(|id| step(&cache, id, &rows, &queries, policy).unwrap());
        assert!(same(&answers[0], &answers[1]));
        model.append(&rows);
    }
    assert_eq!(original_faults(&cache, second, &model), 0);
    let ([.., tables, _], _) = cache.reserved();
    cache.release(second).unwrap();
    cache.release(fork).unwrap();
    assert!(cache.live_pages() > 0, "the prefix is still there");
    assert_eq!(cache.evict_prefixes(9).unwrap(), 2);
    assert_eq!((cache.live_pages(), cache.prefix_stats().unwrap().0), (0, 0));
    let centres = 3 * 2 * 64 * 4;
    assert_eq!(cache.reserved().0[2], tables - centres, "the centres are given back with the last unit");
}

#[test]
fn circles_never_meet() {
    let mut r = Rng::new(2);
    let cache = Cache::new(config(geometry(), 200)).unwrap();
    let (id, _) = filled(&cache, 40, &mut r);
    let tokens: Vec<u32> = (0..40).collect();
    assert_eq!(publish(&cache, id, &tokens), (32, 32));
    let found = |scope: &PrefixScope<'_>| {
        let (id, found) = cache.create_from(scope, Prompt::from(&tokens[..])).unwrap();
        cache.release(id).unwrap();
        found
    };
    assert_eq!(found(&SCOPE), 32, "the control");
    let others = [
        PrefixScope { domain: b"other", ..SCOPE },
        PrefixScope { model: b"other", ..SCOPE },
        PrefixScope { adapter: Some(b""), ..SCOPE },
        PrefixScope { salt: Some(b""), ..SCOPE },
        PrefixScope { tolerance: 1, ..SCOPE },
        PrefixScope { first_position: 1, ..SCOPE },
    ];
    assert!(others.iter().all(|scope| found(scope) == 0));
}

#[test]
fn cached_blocks_give_way_to_sequences() {
    let mut r = Rng::new(3);
    let cache = Cache::new(config(geometry(), 128)).unwrap();
    for round in 0..6u32 {
        let (id, model) = filled(&cache, 100, &mut r);
        let tokens: Vec<u32> = (0..100).map(|i| round * 1000 + i).collect();
        assert_eq!(publish(&cache, id, &tokens), (96, 96));
        assert_eq!(original_faults(&cache, id, &model), 0);
        cache.release(id).unwrap();
    }
    let (units, stats) = cache.prefix_stats().unwrap();
    assert!(stats.evicted >= 12 && units <= 4, "{units} units, {stats:?}");
    assert_eq!(cache.admit(None, 128).unwrap(), Admission::FitsAfterEviction { units: 3 });
    // What is in use is not evicted: a second sequence of that size does not fit.
    let (id, _) = filled(&cache, 100, &mut r);
    let error = cache.admit(None, 100).unwrap();
    assert!(matches!(error, Admission::Lacks { group: 0, .. }), "{error:?}");
    let other = cache.create().unwrap();
    let refused = fill(&cache, other, &random_rows(&geometry(), 100, &mut r));
    assert!(matches!(refused, Err(Error::CapacityExhausted { .. })));
    assert_eq!((cache.len(other).unwrap(), cache.len(id).unwrap()), (0, 100));
}

/// With watermarks a step finds its pages without anybody having to go, until there is nothing left that could.
#[test]
fn room_is_kept_ahead_of_need() {
    let marks = Some(Watermarks { low: 64, high: 96 });
    let lives = |prefix_watermarks| {
        let mut r = Rng::new(9);
        let cache = Cache::new(Config { prefix_watermarks, ..config(geometry(), 256) }).unwrap();
        let (small, _) = filled(&cache, 1, &mut r);
        let found = (0..8u32).map(|round| {
            let (id, _) = filled(&cache, 64, &mut r);
            publish(&cache, id, &(0..64).map(|i| round * 1000 + i).collect::<Vec<_>>());
            cache.release(id).unwrap();
            fill(&cache, small, &random_rows(&geometry(), 1, &mut r)).unwrap();
            cache.admit(None, 64).unwrap()
        });
        let found: Vec<Admission> = found.collect();
        (found, cache.prefix_stats().unwrap())
    };
    let there = |found: &Admission| matches!(found, Admission::Fits | Admission::FitsSoon);
    let (found, (units, stats)) = lives(marks);
    assert!(found.iter().all(there), "{found:?}");
    // No more goes than has to: up to the high mark.
    assert!(units >= 4 && stats.evicted > 0, "{units} units, {stats:?}");
    let (found, _) = lives(None);
    assert!(!found.iter().all(there), "{found:?}");
    for (low, high, prefixes) in [(97, 96, true), (64, 257, true), (64, 96, false)] {
        let mut wrong = Config { prefix_watermarks: Some(Watermarks { low, high }), ..config(geometry(), 256) };
        wrong.prefixes = wrong.prefixes.filter(|_| prefixes);
        let refused = Cache::new(wrong).map(drop);
        assert!(matches!(refused, Err(Error::Config { field: "prefix_watermarks", .. })), "{refused:?}");
    }
}

/// Two prompts at once: the same tokens with another centre. The second keeps its own blocks and adds none that would not
/// fit; both stay right.
#[test]
fn blocks_with_another_centre_are_not_mixed() {
    let mut r = Rng::new(4);
    let cache = Cache::new(config(geometry(), 400)).unwrap();
    let rows = random_rows(&geometry(), 96, &mut r);
    let tokens: Vec<u32> = (0..96).collect();
    let mut short = rows.clone();
    short.truncate(&geometry(), 40);
    let (one, two) = (cache.create().unwrap(), cache.create().unwrap());
    fill(&cache, one, &short).unwrap();
    fill(&cache, two, &rows).unwrap();
    assert_eq!(publish(&cache, one, &tokens), (32, 32));
    let done = cache.publish(two, &SCOPE, (&tokens[..]).into()).unwrap();
    assert_eq!((done.cached, done.added, done.stop), (32, 0, Some(Stop::Declined)));
    let (three, found) = cache.create_from(&SCOPE, (&tokens[..]).into()).unwrap();
    assert_eq!(found, 32);
    let mut model = rows.clone();
    model.truncate(&geometry(), 32);
    assert_eq!(original_faults(&cache, three, &model), 0);
    assert_eq!(original_faults(&cache, two, &rows), 0);
}

#[test]
fn wrong_calls_change_nothing() {
    let mut r = Rng::new(5);
    let plain = Cache::new(Config { prefixes: None, ..config(geometry(), 64) }).unwrap();
    let id = plain.create().unwrap();
    assert!(matches!(plain.publish(id, &SCOPE, (&[][..]).into()), Err(Error::Config { field: "prefixes", .. })));
    assert!(plain.prefix_stats().is_none());
    assert_eq!(plain.admit(None, 64).unwrap(), Admission::Fits);
    assert!(matches!(plain.admit(None, 640).unwrap_err(), Error::TooLong { .. }));
    let none = PrefixConfig { units: 0, ..config(geometry(), 64).prefixes.unwrap() };
    let refused = Cache::new(Config { prefixes: Some(none), ..config(geometry(), 64) });
    assert!(matches!(refused, Err(Error::Config { field: "prefixes", .. })));

    let cache = Cache::new(Config { max_sequences: 1, ..config(geometry(), 64) }).unwrap();
    let (id, _) = filled(&cache, 40, &mut r);
    let tokens: Vec<u32> = (0..40).collect();
    publish(&cache, id, &tokens);
    let live = cache.live_pages();
    let refused = cache.create_from(&SCOPE, (&tokens[..]).into());
    assert!(matches!(refused, Err(Error::TooManySequences { max_sequences: 1 })));
    let step = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    assert!(matches!(cache.publish(id, &SCOPE, (&tokens[..]).into()), Err(Error::BusySequence(_))));
    drop(step);
    assert_eq!(cache.live_pages(), live);
    cache.release(id).unwrap();
    assert!(matches!(cache.publish(id, &SCOPE, (&tokens[..]).into()), Err(Error::UnknownSequence(_))));
}

/// Many sequences come, continue, cut and go beside each other on a device that runs copies late and checks every access.
#[test]
fn prefixes_under_pressure_on_an_adversarial_device() {
    let (mut found_sum, mut evicted) = (0, 0);
    for seed in 0..6 {
        let mut r = Rng::new(100 + seed);
        let device = SimOptions { mode: Mode::Adversarial { seed }, check: true };
        let cache = Cache::new(Config {
            device,
            max_sequences: 4,
            scratch_keys: 8,
            scratch_values: 8,
            ..config(geometry(), 220)
        })
        .unwrap();
        // Prompts by name: the rows of a token are decided by everything before it, as in a model.
        let prompts: Vec<(Vec<u32>, Model)> = (0..5u32)
            .map(|p| ((0..96).map(|i| if i < 32 { i } else { 1000 * p + i }).collect(), p))
            .map(|(tokens, p)| {
                let mut rows = random_rows(&geometry(), 32, &mut Rng::new(7));
                rows.append(&random_rows(&geometry(), 64, &mut Rng::new(1000 + u64::from(p))));
                (tokens, rows)
            })
            .collect();
        let mut live: Vec<(SequenceId, usize)> = Vec::new();
        for _ in 0..120 {
            let p = r.below(prompts.len());
            let (tokens, rows) = &prompts[p];
            match cache.create_from(&SCOPE, (&tokens[..]).into()) {
                Ok((id, found)) => {
                    found_sum += found;
                    let mut rest = rows.clone();
                    for side in rest.keys.iter_mut().chain(&mut rest.values) {
                        side.drain(..found * geometry().kv_width());
                    }
                    if found == tokens.len() || fill(&cache, id, &rest).is_ok() {
                        assert_eq!(original_faults(&cache, id, rows), 0);
                        cache.publish(id, &SCOPE, (&tokens[..]).into()).unwrap();
                        live.push((id, p));
                    } else {
                        cache.release(id).unwrap();
                    }
                }
                Err(error) => assert!(matches!(error, Error::TooManySequences { .. }), "{error}"),
            }
            while live.len() > 1 + r.below(3) {
                let (id, p) = live.swap_remove(r.below(live.len()));
                let queries = random_queries(&geometry(), 1, &mut r);
                let tail = random_rows(&geometry(), 1, &mut r);
                match step(&cache, id, &tail, &queries, Policy::default()) {
                    Ok(answers) => {
                        let mut model = prompts[p].1.clone();
                        model.append(&tail);
                        let exact = model.attend(&geometry(), 0, 97, &queries);
                        assert_eq!(common::decode_faults(&exact, &answers[0].out, &answers[0].certificates, 0.05), 0);
                        cache.truncate(id, 33 + r.below(60)).unwrap();
                    }
                    Err(error) => assert!(matches!(error, Error::CapacityExhausted { .. }), "{error}"),
                }
                cache.release(id).unwrap();
            }
        }
        for (id, _) in live.drain(..) {
            cache.release(id).unwrap();
        }
        evicted += cache.prefix_stats().unwrap().1.evicted;
        cache.evict_prefixes(usize::MAX).unwrap();
        assert_eq!(cache.live_pages(), 0);
        let report = cache.check_report();
        assert_eq!(report.findings(), 0, "{report:?}");
    }
    assert!(found_sum > 5000 && evicted > 50, "{found_sum} tokens found, {evicted} units evicted");
}

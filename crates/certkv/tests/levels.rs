//! Blocks of one sequence in several formats, changed between steps: every output within its bound, on any number of threads the same
//! bits, no page lost, nobody else's bits touched, and changes that fail are as if they had not been asked for.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(error <= bound) is how NaN fails")]
mod common;
#[path = "planted/levels.rs"]
mod life;

use certkv::{Cache, Class, Config, Dtype, Error, Geometry, Level, Policy, Window};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, random_queries, random_rows, step};
use life::{LADDERS, Seen};

fn ladder(number: usize, tokens: usize) -> Vec<Level> {
    LADDERS[number].iter().map(|f| Level { format: f.parse().unwrap(), tokens }).collect()
}

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn bits(answers: &[Answer]) -> Vec<Vec<u32>> {
    answers.iter().map(Answer::bits).collect()
}

#[test]
fn whatever_levels_do_outputs_stay_within_their_bounds() {
    let mut seen = Seen::default();
    let mut failed = 0;
    for seed in 0..60 {
        if let Err(what) = life::live(seed, 1, seed % 2 == 1, &mut seen) {
            failed += 1;
            eprintln!("seed {seed}: {what}");
        }
    }
    let Seen { changed, refused, exhausted, failed: injected, heads, mixed, exact, certified, .. } = seen;
    println!(
        "{heads} heads, {mixed} over several levels, {certified} certified, {exact} exact; {changed} changes, {refused} refused, \
         {exhausted} without a page, {injected} failed"
    );
    assert_eq!(failed, 0);
    let least = [changed, refused, exhausted, injected, mixed, exact, certified].map(|n| n.min(10));
    assert_eq!(least, [10; 7], "something hardly happened");
}

#[test]
fn every_block_returns_at_its_level() {
    let (mut seen, mut failed) = (Seen::default(), 0);
    for seed in 0..100 {
        if let Err(what) = life::travel(seed, 1, seed % 2 == 1, &mut seen) {
            failed += 1;
            eprintln!("seed {seed}: {what}");
        }
    }
    let Seen { changed, heads, mixed, certified, left, returned, waited, filed, .. } = seen;
    println!(
        "{heads} heads, {mixed} over several levels, {certified} certified; {changed} changes, {left} left, {returned} returned, \
         {waited} waited, {filed} from files"
    );
    assert_eq!(failed, 0);
    let least = [changed, mixed, certified, left, returned, waited, filed].map(|n| n.min(5));
    assert_eq!(least, [5; 7], "something hardly happened");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let mut full = 0;
    for seed in 3..11 {
        let of = |threads| {
            let mut seen = Seen::default();
            life::live(seed, threads, false, &mut seen).unwrap();
            seen
        };
        let (one, two, three) = (of(1), of(2), of(3));
        assert!(one.bits == two.bits && one.bits == three.bits, "seed {seed}");
        full += usize::from(one.changed > 0 && !one.bits.is_empty());
    }
    assert!(full >= 6, "{full} lives in which something happened");
}

/// A cache of one sequence of `tokens` tokens and what it holds, and its fork.
fn with_fork(tokens: usize, levels: Vec<Level>, r: &mut Rng) -> (Cache, [certkv::SequenceId; 2], Model) {
    let cache = Cache::new(Config::new(geometry(), 2 * tokens + 128).with_levels(levels)).unwrap();
    let rows = random_rows(&geometry(), tokens, r);
    let first = cache.create().unwrap();
    fill(&cache, first, &rows).unwrap();
    let fork = cache.fork(first).unwrap();
    (cache, [first, fork], rows)
}

#[test]
fn a_change_through_one_sequence_touches_no_other() {
    let levels = || ladder(1, 400);
    let (changed, [first, fork], _) = with_fork(90, levels(), &mut Rng::new(5));
    let (untouched, [_, twin], _) = with_fork(90, levels(), &mut Rng::new(5));
    for (block, level) in [(0, 2), (1, 1), (3, 2), (4, 1), (1, 2)] {
        changed.change_level(first, 0, block, level).unwrap();
        changed.change_level(first, 1, 4 - block, level).unwrap();
    }
    let mut r = Rng::new(6);
    for n in 0..12 {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let policy = [Policy::default(), Policy::Packed, Policy::Dense][n % 3];
        let here = step(&changed, fork, &rows, &queries, policy).unwrap();
        let there = step(&untouched, twin, &rows, &queries, policy).unwrap();
        assert_eq!(bits(&here), bits(&there), "step {n}");
        let other = step(&changed, first, &rows, &queries, policy).unwrap();
        assert!(policy == Policy::Dense || bits(&other) != bits(&there), "the change changed nothing");
        if n == 5 {
            // A fork's own change, of a block that it still shares, and one back.
            changed.change_level(first, 0, 0, 0).unwrap();
            changed.release(first).unwrap();
            return_of(&changed, fork, &untouched, twin, &mut r);
            return;
        }
    }
}

/// The other sequence is gone; what it left stays whole.
fn return_of(a: &Cache, fork: certkv::SequenceId, b: &Cache, twin: certkv::SequenceId, r: &mut Rng) {
    for _ in 0..3 {
        let (rows, queries) = (random_rows(&geometry(), 1, r), random_queries(&geometry(), 1, r));
        let (here, there) =
            (step(a, fork, &rows, &queries, Policy::Packed), step(b, twin, &rows, &queries, Policy::Packed));
        assert_eq!(bits(&here.unwrap()), bits(&there.unwrap()));
    }
    a.release(fork).unwrap();
    assert_eq!(a.live_pages(), 0);
}

/// Down and up again gives the codes that were there: they are made from the originals, whatever was in between.
/// As a plan has them, and back: pages that some blocks leave are others' at once, and what changes has the bits that one change after the other leaves.
#[test]
fn levels_of_all_blocks_are_set_at_once() {
    // Of 10 blocks in two layers half have room below the first level, and hardly one more anywhere.
    let tokens = [400, 96, 80];
    let levels = (0..3).map(|i| Level { tokens: tokens[i], ..ladder(1, 400)[i] }).collect();
    let (one, [id, other], _) = with_fork(165, levels, &mut Rng::new(3));
    one.release(other).unwrap();
    let now = |cache: &Cache, id| -> Vec<Vec<usize>> {
        (0..2).map(|layer| (0..10).map(|block| cache.level(id, layer, block).unwrap()).collect()).collect()
    };
    let first = vec![vec![1, 1, 2, 2, 0, 0, 0, 0, 0, 0], vec![0, 0, 0, 0, 0, 0, 1, 1, 2]];
    let done = one.set_levels(id, &first).unwrap();
    assert_eq!((done.changed, done.refused + done.failed, done.decided), (7, 0, 0), "{done:?}");
    let mut held = now(&one, id);
    assert_eq!((&held[0], &held[1][..9], held[1][9]), (&first[0], &first[1][..], 0));
    // The two levels change places: the pages that each wants are the other's.
    let turned = held.iter().map(|of| of.iter().map(|level| [0, 2, 1][*level]).collect()).collect::<Vec<Vec<usize>>>();
    let done = one.set_levels(id, &turned).unwrap();
    assert_eq!((done.changed, done.refused + done.failed), (7, 0), "{done:?}");
    held = now(&one, id);
    assert_eq!(held, turned);
    let too_many = vec![vec![2; 10]; 2];
    let done = one.set_levels(id, &too_many).unwrap();
    let after = now(&one, id);
    let moved = after.iter().flatten().zip(held.iter().flatten()).filter(|(now, had)| now != had).count();
    let stayed = after.iter().flatten().filter(|level| **level != 2).count();
    assert!(stayed > 0 && (done.changed, done.refused) == (moved, stayed), "{done:?}: {after:?}");
    // Nothing is changed by what cannot be.
    for (wrong, what) in [
        (vec![vec![0]; 3], "levels"),
        (vec![vec![0; 11], vec![]], "not full"),
        (vec![vec![], vec![1, 3]], "no such level"),
    ] {
        let error = one.set_levels(id, &wrong).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(now(&one, id), after);
    }
    one.truncate(id, 0).unwrap();
    assert_eq!(one.set_levels(id, &[vec![], vec![]]).unwrap(), certkv::Controlled::default());
    one.release(id).unwrap();
    assert_eq!((one.live_pages(), one.memory()), (0, Default::default()));
}

#[test]
fn a_level_is_made_from_the_originals() {
    let mut r = Rng::new(9);
    let (cache, [first, _], _) = with_fork(200, ladder(0, 640), &mut r);
    let page = |block| cache.packed_page(first, 0, block).unwrap()[64..].to_vec();
    let (top, other) = (page(1), page(2));
    for level in [3, 1, 2, 0] {
        cache.change_level(first, 0, 1, level).unwrap();
        assert_eq!(cache.level(first, 0, 1).unwrap(), level);
        assert_eq!(page(1) == top, level == 0);
        assert_eq!((page(2), cache.level(first, 1, 1).unwrap()), (other.clone(), 0));
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut levels = ladder(0, 640);
    levels[2].tokens = 64;
    let (cache, [first, fork], _) = with_fork(200, levels, &mut Rng::new(2));
    let level = |error| matches!(error, Err(Error::Level { .. }));
    assert!(level(cache.change_level(first, 0, 3, 1)), "an open block");
    assert!(level(cache.change_level(first, 0, 99, 1)) && level(cache.change_level(first, 0, 0, 4)));
    assert!(matches!(cache.change_level(first, 2, 0, 1), Err(Error::Layer { .. })));
    cache.change_level(first, 0, 0, 2).unwrap();
    let full = cache.change_level(first, 0, 1, 2).unwrap_err();
    assert!(matches!(full, Error::CapacityExhausted { class: "level 2", .. }), "{full}");
    assert_eq!([0, 1].map(|block| cache.level(first, 0, block).unwrap()), [2, 0]);
    // Its page is free once nobody has it.
    cache.change_level(first, 0, 0, 3).unwrap();
    cache.change_level(fork, 0, 1, 2).unwrap();
    // A step that is open.
    let open = cache.begin(&[certkv::Chunk { sequence: first, tokens: 1 }]).unwrap();
    assert!(matches!(cache.change_level(first, 0, 1, 1), Err(Error::BusySequence(_))));
    cache.change_level(fork, 0, 0, 1).unwrap();
    drop(open);
    cache.change_level(first, 0, 1, 1).unwrap();
    assert!(matches!(cache.swap_out(first), Err(Error::CapacityExhausted { class: "swap", .. })));
    let plain = Cache::new(Config::new(geometry(), 128)).unwrap();
    let sequence = plain.create().unwrap();
    fill(&plain, sequence, &random_rows(&geometry(), 64, &mut Rng::new(1))).unwrap();
    assert_eq!(plain.level(sequence, 0, 0).unwrap(), 0);
    assert!(level(plain.change_level(sequence, 0, 0, 1)));
}

/// Originals whose scales no f16 holds at the level are left where they are.
#[test]
fn what_a_level_has_no_scales_for_stays() {
    let geometry = Geometry { store: Dtype::Bf16, ..geometry() };
    let levels = ["t8-v8g64-b16", "t2-v2g64-b16"].map(|f| Level { format: f.parse().unwrap(), tokens: 160 });
    let cache = Cache::new(Config::new(geometry, 160).with_levels(levels.to_vec())).unwrap();
    let sequence = cache.create().unwrap();
    let mut rows = Model::new(&geometry);
    for side in [&mut rows.keys, &mut rows.values] {
        // A scale of 2^16 / 127 fits, one of 2^16 does not.
        side.iter_mut()
            .for_each(|layer| layer.extend((0..32 * 128).map(|i| Dtype::Bf16.encode16([65536.0, -1.0][i % 2]))));
    }
    fill(&cache, sequence, &rows).unwrap();
    let before = cache.packed_page(sequence, 0, 0).unwrap();
    let refused = cache.change_level(sequence, 0, 0, 1).unwrap_err();
    assert!(matches!(refused, Error::Level { block: 0, level: 1, .. }), "{refused}");
    assert_eq!((cache.level(sequence, 0, 0).unwrap(), cache.packed_page(sequence, 0, 0).unwrap()), (0, before));
    cache.release(sequence).unwrap();
    assert_eq!(cache.live_pages(), 0);
}

#[test]
fn the_plan_knows_every_level() {
    let config = |tokens| Config::new(geometry(), 640).with_levels(ladder(0, tokens));
    let (some, more) = (config(640).plan().unwrap(), config(704).plan().unwrap());
    let cache = Cache::new(config(640)).unwrap();
    assert_eq!(cache.reserved_for(Class::Packed), some.of(Class::Packed));
    // A page of each level more in both layers: seal and two records each, padded.
    let page = |f: &&str| {
        let layout = certkv::RecordLayout::new(&geometry(), f.parse().unwrap()).unwrap();
        (64 + 2 * layout.bytes).next_multiple_of(64)
    };
    assert_eq!(more.of(Class::Packed) - some.of(Class::Packed), 2 * LADDERS[0].iter().map(page).sum::<usize>());
    // Of heads apart, a page of each head.
    let apart = |tokens| Config { levels_by_head: true, ..config(tokens) }.plan().unwrap();
    let page = |f: &&str| {
        let layout = certkv::RecordLayout::new(&geometry(), f.parse().unwrap()).unwrap();
        (64 + layout.bytes).next_multiple_of(64)
    };
    let more = apart(704).of(Class::Packed) - apart(640).of(Class::Packed);
    assert_eq!(more, 4 * LADDERS[0].iter().map(page).sum::<usize>());
    let cache = Cache::new(Config { levels_by_head: true, ..config(640) }).unwrap();
    assert_eq!(cache.reserved_for(Class::Packed), apart(640).of(Class::Packed));
    let requests = certkv::Requests { count: 2, tokens: 640, scratch: 0.0 };
    let answer = certkv::Plan::for_requests(&config(640), requests).unwrap();
    let twice = answer.plan.of(Class::Packed) as f64 / some.of(Class::Packed) as f64;
    assert!((twice - 2.0).abs() < 0.01, "{twice}");
    let budget = some.device.bytes;
    assert!(Cache::new(Config { device_budget: budget, ..config(640) }).is_ok());
    assert!(matches!(Cache::new(Config { device_budget: budget - 1, ..config(640) }), Err(Error::Budget(_))));
}

#[test]
fn a_ladder_that_is_none_is_refused_by_field() {
    let good = || Config::new(geometry(), 640).with_levels(ladder(0, 640));
    let levels = |formats: &[&str]| {
        let level = |f: &&str| Level { format: f.parse().unwrap(), tokens: 640 };
        Config::new(geometry(), 640).with_levels(formats.iter().map(level).collect())
    };
    let nine = vec!["t8-v8g64-b64"; 9];
    for (config, field) in [
        (levels(&["t8-v8g64-b64"]), "levels"),
        (levels(&nine), "levels"),
        (levels(&["t4-v4g64-b64", "t8-v8g64-b64"]), "levels"),
        (levels(&["t4-v4g64-b64", "t4-v4g64-b64"]), "levels"),
        (levels(&["t8-v8g64-b64", "t4-v4g64-b32"]), "levels"),
        (levels(&["f16-v8g64-b64", "t4-v4g64-b64"]), "levels"),
        (levels(&["t8-v8g64-b64", "t4-f16-b64"]), "levels"),
        (levels(&["t8-v8g64-b64", "ctq4-v4g64-b64"]), "calibration"),
        (levels(&["t8-v8g64-b64", "s1-v4g64-b64"]), "codebooks"),
        (Config { levels: ladder(0, 0), ..good() }, "levels"),
        (Config { levels: ladder(0, 64), ..good() }, "levels"),
        (good().with_format("t4-v4g64-b64".parse().unwrap()), "levels"),
        (good().with_window(Window::new(64)), "windows"),
    ] {
        match Cache::new(config) {
            Err(Error::Config { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert!(Cache::new(good()).is_ok());
}

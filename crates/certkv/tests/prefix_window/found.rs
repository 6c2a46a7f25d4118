//! What is found, what goes on from it, and what gives way.
use crate::common::Model;
use crate::common::{Answer, fill, random_queries, random_rows, step};
use crate::*;
use certkv::{Admission, Cache, CachedPrefix, Config, Dtype, Error, Geometry, Policy, Side, Window};
use certkv_testkit::generate::Rng;

#[test]
fn a_prompt_is_found_again_and_so_is_the_conversation_but_nothing_between() {
    let cache = Cache::new(config(&windows(), 1000)).unwrap();
    let (tokens, rows) = ((0..300).collect::<Vec<u32>>(), random_rows(&geometry(), 300, &mut Rng::new(1)));
    let first = cache.create().unwrap();
    append(&cache, first, &rows, 0, 110).unwrap();
    assert_eq!(publish(&cache, first, &tokens), (96, 96));
    assert_eq!(found(&cache, &tokens[..109]), 96, "the prompt again, without its last token");
    // A turn later.
    append(&cache, first, &rows, 110, 260).unwrap();
    assert_eq!(publish(&cache, first, &tokens), (256, 160));
    cache.release(first).unwrap();
    assert_eq!((found(&cache, &tokens), found(&cache, &tokens[..110])), (256, 96));
    assert_eq!(cache.find_prefix(&SCOPE, tokens[..200].into()).unwrap(), CachedPrefix { cached: 192, found: 96 });
    assert_eq!(found(&cache, &tokens[..200]), 96, "there the window is gone");
    // Whoever computes it brings its window along, and the window before it.
    let (second, at) = cache.create_from(&SCOPE, tokens[..200].into()).unwrap();
    append(&cache, second, &rows, at, 200).unwrap();
    assert_eq!(publish(&cache, second, &tokens[..200]), (192, 0));
    assert_eq!((found(&cache, &tokens[..200]), found(&cache, &tokens)), (192, 256));
    cache.release(second).unwrap();
    // The hole is where the window says, and the originals of the other layer are there.
    let (third, _) = cache.create_from(&SCOPE, tokens[..].into()).unwrap();
    assert!(matches!(cache.originals(third, 0, 0, Side::Key), Err(Error::Gone { first: 0, end }) if end <= 256 - 39));
    assert!(matches!(cache.originals(third, 2, 0, Side::Key), Err(Error::Gone { first: 16, .. })));
    let whole = part(&rows, 0..256).side(&geometry(), 1, 1, Side::Value);
    assert_eq!(cache.originals(third, 1, 1, Side::Value).unwrap(), whole);
    assert!(matches!(cache.truncate(third, 100), Err(Error::WindowPassed { asked: 100, .. })));
    cache.release(third).unwrap();
    emptied(&cache);
}

#[test]
fn a_continued_sequence_is_one_that_was_appended_whole() {
    let formats = ["k8-v4g32-b16", "tq4-tq4-b32", "k8-f16-b16", "t4-v4g32-b32"];
    for (seed, (tokens, sinks)) in [(40, 0), (1, 0), (20, 3), (100, 33), (7, 70)].into_iter().enumerate() {
        let mut r = Rng::new(seed as u64);
        let window = Some(Window { chunk: 40, ..Window::new(tokens).with_sinks(sinks) });
        let windows = if seed % 2 == 0 { vec![window, None, window] } else { vec![window; 3] };
        let mut config = config(&windows, 800);
        config.formats = vec![
            formats[seed % 4].parse().unwrap(),
            formats[(seed + 1) % 4].parse().unwrap(),
            formats[0].parse().unwrap(),
        ];
        (config.scratch_keys, config.scratch_values) = (6 * (seed % 2), 6 * (seed % 2));
        let cache = Cache::new(config).unwrap();
        let (names, mut rows) = ((0..150).collect::<Vec<u32>>(), random_rows(&geometry(), 150, &mut r));
        let [one, whole] = [cache.create().unwrap(), cache.create().unwrap()];
        append(&cache, one, &rows, 0, 150).unwrap();
        assert_eq!(publish(&cache, one, &names), (128, 128));
        cache.release(one).unwrap();
        append(&cache, whole, &rows, 0, 128).unwrap();
        let (continued, at) = cache.create_from(&SCOPE, names[..].into()).unwrap();
        assert_eq!(at, 128);
        rows.truncate(&geometry(), 128);
        let policies =
            [Policy::default(), Policy::default(), Policy::Dense, Policy::Packed, Policy::Seed000(Default::default())];
        for turn in 0..60 {
            let n = if turn % 20 == 19 { 35 } else { 1 };
            let (new, queries) = (random_rows(&geometry(), n, &mut r), random_queries(&geometry(), n, &mut r));
            let policy = policies[turn % 5];
            let answers = [continued, whole].map(|id| step(&cache, id, &new, &queries, policy).unwrap());
            // A chunk has no figures in its certificates.
            let bits = |answers: &[Answer]| answers.iter().map(Answer::bits).collect::<Vec<_>>();
            assert!(bits(&answers[0]) == bits(&answers[1]), "windows of {tokens}, turn {turn}");
            assert!(n > 1 || same(&answers[0], &answers[1]), "windows of {tokens}, turn {turn}");
            rows.append(&new);
            if n == 1 && matches!(policy, Policy::Certified(_)) {
                assert_eq!(faults(&rows, &windows, &queries, &answers[0]), 0, "windows of {tokens}, turn {turn}");
            }
        }
        [continued, whole].into_iter().for_each(|id| cache.release(id).unwrap());
        emptied(&cache);
    }
}

/// Two prompts at once: the window of one is coded with other centres, and does not fill the units of the other.
#[test]
fn windows_with_another_centre_are_not_mixed() {
    let cache = Cache::new(config(&windows(), 1000)).unwrap();
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut Rng::new(8)));
    let [one, two, three] = [(); 3].map(|()| cache.create().unwrap());
    append(&cache, one, &rows, 0, 230).unwrap();
    // The first unit is filled, too.
    fill(&cache, two, &part(&rows, 0..70)).unwrap();
    append(&cache, three, &rows, 0, 70).unwrap();
    assert_eq!(publish(&cache, one, &tokens), (224, 224));
    let before = cache.find_prefix(&SCOPE, tokens[..70].into()).unwrap();
    assert_eq!((before.cached, before.found), (64, 0));
    assert_eq!((publish(&cache, two, &tokens), found_in_use(&cache, &tokens[..70])), ((0, 0), 0));
    assert_eq!(publish(&cache, three, &tokens), (64, 0), "the control: the same centres");
    [one, two, three].into_iter().for_each(|id| cache.release(id).unwrap());
    emptied(&cache);
}

/// Rows that no scale holds: which blocks have no codes is known of those that came later, too.
#[test]
fn blocks_without_codes_are_known_as_such_wherever_they_came_from() {
    let wide = Geometry { store: Dtype::Bf16, ..geometry() };
    let cache = Cache::new(Config { geometry: wide, ..config(&windows(), 1000) }).unwrap();
    // Patterns of f16 as bf16 ones: some are beyond 65504.
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut Rng::new(9)));
    let [one, two, whole] = [(); 3].map(|()| cache.create().unwrap());
    append(&cache, one, &rows, 0, 230).unwrap();
    append(&cache, two, &rows, 0, 130).unwrap();
    append(&cache, whole, &rows, 0, 128).unwrap();
    publish(&cache, one, &tokens);
    assert_eq!(publish(&cache, two, &tokens), (128, 0));
    let (continued, at) = cache.create_from(&SCOPE, tokens[..130].into()).unwrap();
    assert_eq!(at, 128);
    let mut r = Rng::new(10);
    for _ in 0..20 {
        let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let answers = [continued, whole].map(|id| step(&cache, id, &new, &queries, Policy::default()).unwrap());
        assert!(same(&answers[0], &answers[1]));
    }
    [one, two, whole, continued].into_iter().for_each(|id| cache.release(id).unwrap());
    emptied(&cache);
}

/// The pages of windows run out long before those of the other layers: windows go, oldest first, and the units stay.
#[test]
fn windows_that_nobody_uses_give_way_and_their_units_stay() {
    let tight = |window: Window| Some(Window { chunk: 40, ..window });
    let windows = [tight(Window::new(40)), None, tight(Window::new(20).with_sinks(3))];
    let cache = Cache::new(Config { max_sequences: 2, ..config(&windows, 2000) }).unwrap();
    let prompts: Vec<(Vec<u32>, Model)> = (0..10u32)
        .map(|p| ((0..100).map(|i| 1000 * p + i).collect(), random_rows(&geometry(), 100, &mut Rng::new(p.into()))))
        .collect();
    for (tokens, rows) in &prompts {
        let id = cache.create().unwrap();
        append(&cache, id, rows, 0, 100).unwrap();
        assert_eq!(publish(&cache, id, tokens), (96, 96));
        cache.release(id).unwrap();
    }
    let (units, stats) = cache.prefix_stats().unwrap();
    assert!((units, stats.evicted) == (30, 0) && stats.hollowed > 10, "{units} units, {stats:?}");
    let hits: Vec<usize> = prompts.iter().map(|(tokens, _)| found(&cache, tokens)).collect();
    assert_eq!((hits[0], hits[9]), (0, 96), "{hits:?}: the newest is there");
    let cached = |tokens: &[u32]| cache.find_prefix(&SCOPE, tokens.into()).unwrap().cached;
    assert!(prompts.iter().all(|(tokens, _)| cached(tokens) == 96));
    // Both sequences fit, as what is cached gives way; the answer says that no unit has to.
    assert_eq!(cache.admit(None, 400).unwrap(), Admission::FitsAfterEviction { units: 0 });
    let both = [cache.create().unwrap(), cache.create().unwrap()];
    for from in (0..100).step_by(40) {
        for id in both {
            append(&cache, id, &prompts[0].1, from, (from + 40).min(100)).unwrap();
        }
    }
    assert_eq!(cache.prefix_stats().unwrap().0, 30);
    // The first brings the window of its prompt back.
    assert_eq!((publish(&cache, both[0], &prompts[0].0), found_in_use(&cache, &prompts[0].0)), ((96, 0), 96));
    both.into_iter().for_each(|id| cache.release(id).unwrap());
    emptied(&cache);
}

/// Whoever gives a slack of nothing is found at whole units only: what is cached says so.
#[test]
fn without_slack_the_last_unit_has_no_window() {
    let windows = [Some(Window { slack: Some(0), ..Window::new(20) }), None, None];
    let cache = Cache::new(config(&windows, 400)).unwrap();
    let (tokens, rows) = ((0..96).collect::<Vec<u32>>(), random_rows(&geometry(), 96, &mut Rng::new(3)));
    let id = cache.create().unwrap();
    append(&cache, id, &rows, 0, 90).unwrap();
    assert_eq!(publish(&cache, id, &tokens), (0, 64));
    assert_eq!(cache.find_prefix(&SCOPE, tokens[..].into()).unwrap(), CachedPrefix { cached: 64, found: 0 });
    append(&cache, id, &rows, 90, 96).unwrap();
    assert_eq!(publish(&cache, id, &tokens), (96, 32));
    cache.release(id).unwrap();
    emptied(&cache);
}

//! Cached prefixes of caches whose layers have sliding windows: what is found goes on as the sequence that wrote it, bit for bit, every
//! output within its bound of exact attention over what is visible, and windows that nobody uses give way.
mod common;

use certkv::seal::digest;
use certkv::store::{Get, MemoryStore, Outcome, Put, Store, StoreConfig};
use certkv::{
    Admission, Cache, Certificate, Chunk, Config, Dtype, Error, Eviction, Geometry, Mode, Policy, PrefixConfig,
    PrefixScope, PrefixSecret, SequenceId, Side, SimOptions, Window,
};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, decode_faults, exact, fill, random_queries, random_rows, step};
use std::sync::Arc;
use std::time::Duration;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

/// Units of 32 tokens; blocks of 16 in the first and last layer.
fn config(windows: &[Option<Window>], max_tokens: usize) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 64, eviction: Eviction::Lru };
    let config = Config::new(geometry(), max_tokens);
    Config { formats: formats.into(), windows: windows.into(), prefixes: Some(prefixes), max_sequences: 4, ..config }
}

/// The first layer sees 40 tokens, the last 20 and three sinks.
fn windows() -> Vec<Option<Window>> {
    let chunk = |window: Window| Some(Window { chunk: 80, ..window });
    vec![chunk(Window::new(40)), None, chunk(Window::new(20).with_sinks(3))]
}

/// Rows `range` of a model.
fn part(model: &Model, range: std::ops::Range<usize>) -> Model {
    let width = geometry().kv_width();
    let cut =
        |side: &common::Layers| side.iter().map(|rows| rows[range.start * width..range.end * width].into()).collect();
    Model { keys: cut(&model.keys), values: cut(&model.values) }
}

/// Appends tokens `from..to` of a model in chunks of 40.
fn append(cache: &Cache, id: SequenceId, model: &Model, from: usize, to: usize) -> Result<(), Error> {
    let mut at = from;
    while at < to {
        let end = (at / 40 * 40 + 40).min(to);
        fill(cache, id, &part(model, at..end))?;
        at = end;
    }
    Ok(())
}

fn publish(cache: &Cache, id: SequenceId, tokens: &[u32]) -> (usize, usize) {
    let done = cache.publish(id, &SCOPE, tokens.into()).unwrap();
    (done.cached, done.added)
}

fn found(cache: &Cache, tokens: &[u32]) -> usize {
    let peek = cache.find_prefix(&SCOPE, tokens.into()).unwrap();
    let (id, found) = cache.create_from(&SCOPE, tokens.into()).unwrap();
    assert_eq!((peek.found, cache.len(id).unwrap()), (found, found));
    cache.release(id).unwrap();
    found
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

/// The same, wherever the bytes were read: what scratch holds is another matter.
fn alike(a: &[Answer], b: &[Answer]) -> bool {
    let figures = |answers: &[Answer]| -> Vec<Certificate> {
        let certificates = answers.iter().flat_map(|a| a.certificates.clone());
        certificates.map(|c| Certificate { bytes: Default::default(), ..c }).collect()
    };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && figures(a) == figures(b)
}

/// Outputs of a decode step beyond their bounds.
fn faults(model: &Model, windows: &[Option<Window>], queries: &[f32], answers: &[Answer]) -> usize {
    let last = model.len(&geometry()) - 1;
    let of_layer = |(layer, answer): (usize, &Answer)| {
        let truth = exact(&geometry(), model, layer, last, windows[layer], queries);
        decode_faults(&truth, &answer.out, &answer.certificates, 0.05)
    };
    answers.iter().enumerate().map(of_layer).sum()
}

fn emptied(cache: &Cache) {
    cache.evict_prefixes(usize::MAX).unwrap();
    assert_eq!(cache.live_pages(), 0);
    let report = cache.check_report();
    assert_eq!(report.findings(), 0, "{report:?}");
}

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
    assert_eq!(
        cache.find_prefix(&SCOPE, tokens[..200].into()).unwrap(),
        certkv::CachedPrefix { cached: 192, found: 96 }
    );
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

fn found_in_use(cache: &Cache, tokens: &[u32]) -> usize {
    cache.find_prefix(&SCOPE, tokens.into()).unwrap().found
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
    assert_eq!(cache.find_prefix(&SCOPE, tokens[..].into()).unwrap(), certkv::CachedPrefix { cached: 64, found: 0 });
    append(&cache, id, &rows, 90, 96).unwrap();
    assert_eq!(publish(&cache, id, &tokens), (96, 32));
    cache.release(id).unwrap();
    emptied(&cache);
}

fn store() -> Store {
    Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap()
}

fn outcome(store: &Store) -> Outcome {
    assert!(store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
    let mut done = Vec::new();
    store.drain_completions(&mut done);
    done.remove(0).outcome
}

fn put(store: &Store, puts: Vec<Put>) {
    store.submit_put(puts).unwrap();
    let Outcome::Put(results) = outcome(store) else { panic!("another outcome") };
    assert!(results.iter().all(|(_, result)| result.is_ok()));
}

/// Gets up to the first that is not there.
fn get(store: &Store, wanted: Vec<Get>) -> Vec<Get> {
    if wanted.is_empty() {
        return wanted;
    }
    store.submit_get(wanted).unwrap();
    let Outcome::Get(results) = outcome(store) else { panic!("another outcome") };
    results.into_iter().take_while(|(_, result)| result.is_ok()).map(|(get, _)| get).collect()
}

#[test]
fn units_with_holes_travel() {
    let mut r = Rng::new(4);
    let [one, other] = [600, 500].map(|tokens| Cache::new(config(&windows(), tokens)).unwrap());
    let shelf = store();
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut r));
    let id = one.create().unwrap();
    append(&one, id, &rows, 0, 230).unwrap();
    publish(&one, id, &tokens);
    one.release(id).unwrap();
    let puts = one.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    let most = one.prefix_unit().unwrap().bytes;
    let sizes: Vec<usize> = puts.iter().map(|put| put.page.len()).collect();
    assert!(sizes.len() == 7 && sizes[2] < sizes[0] && sizes[0] < sizes[6] && sizes[6] <= most, "{sizes:?} of {most}");
    put(&shelf, puts.clone());

    let wanted = |cache: &Cache, to: usize| -> Vec<u32> {
        let gets = cache.missing_prefix(&SCOPE, tokens[..to].into()).unwrap();
        gets.iter().map(|get| get.identity().block).collect()
    };
    let import = |cache: &Cache, to: usize| {
        let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..to].into()).unwrap());
        cache.import_prefix(&SCOPE, tokens[..to].into(), &gets).unwrap()
    };
    // Up to 128 tokens there is no window in the store, nor is there one behind.
    assert_eq!(import(&other, 130), 0);
    assert_eq!(other.find_prefix(&SCOPE, tokens[..130].into()).unwrap().cached, 128);
    assert_eq!(wanted(&other, 130), [2, 3], "the sinks came, but 40 and 20 tokens before 128 did not");
    assert_eq!(import(&other, 230), 224);
    assert_eq!(wanted(&other, 230), Vec::<u32>::new());
    let [here, there] = [&one, &other].map(|cache| cache.create_from(&SCOPE, tokens[..].into()).unwrap().0);
    let mut model = part(&rows, 0..224);
    for _ in 0..30 {
        let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        let answers = [(&one, here), (&other, there)]
            .map(|(cache, id)| step(cache, id, &new, &queries, Policy::default()).unwrap());
        model.append(&new);
        assert!(same(&answers[0], &answers[1]));
        assert_eq!(faults(&model, &windows(), &queries, &answers[1]), 0);
    }
    one.release(here).unwrap();
    other.release(there).unwrap();
    // Another window is another model's rows: other names.
    let narrow = [Some(Window::new(39)), None, windows()[2]];
    let stranger = Cache::new(config(&narrow, 500)).unwrap();
    assert_eq!(get(&shelf, stranger.missing_prefix(&SCOPE, tokens[..].into()).unwrap()).len(), 0);
    // Where windows went and units stayed, the store has them still.
    let full = Cache::new(Config { max_sequences: 1, ..config(&windows(), 500) }).unwrap();
    assert_eq!(import(&full, 230), 224);
    let busy = full.create().unwrap();
    append(&full, busy, &random_rows(&geometry(), 160, &mut r), 0, 160).unwrap();
    let tight = full.find_prefix(&SCOPE, tokens[..].into()).unwrap();
    full.release(busy).unwrap();
    if tight.found < 224 {
        assert_eq!((tight.cached, import(&full, 230)), (224, 224));
    }
    [&one, &other, &full].into_iter().for_each(emptied);
}

/// Whoever writes units with right digests can write nonsense: no panic, no page lost, and what is taken is a sequence.
#[test]
fn nonsense_in_units_with_holes_harms_nobody() {
    let mut r = Rng::new(5);
    let cache = Cache::new(config(&windows(), 600)).unwrap();
    let (tokens, rows) = ((0..230).collect::<Vec<u32>>(), random_rows(&geometry(), 230, &mut r));
    let id = cache.create().unwrap();
    append(&cache, id, &rows, 0, 230).unwrap();
    publish(&cache, id, &tokens);
    cache.release(id).unwrap();
    let puts = cache.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    // Centres of three layers, no block without codes; then a word for each of two groups with a window.
    let head = 3 * (8 + 4 * geometry().kv_width()) + 8;
    emptied(&cache);
    let shelf = store();
    put(&shelf, puts.clone());
    let (mut refused, mut taken) = (0, 0);
    for case in 0..1200 {
        let at = r.below(puts.len());
        let mut page = puts[at].page.clone();
        page.truncate(page.len() - 8);
        match case % 4 {
            0 => page[head + 8 * r.below(2)] = r.bits() as u8,
            1 => page[head + 1 + r.below(7)] = 1 << r.below(8),
            2 => page.truncate(r.below(page.len())),
            _ => {
                let byte = r.below(page.len());
                page[byte] ^= 1 << r.below(8);
            }
        }
        let sealed = digest(&page).to_le_bytes();
        page.extend(sealed);
        put(&shelf, vec![Put { page, ..puts[at].clone() }]);
        let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
        put(&shelf, vec![puts[at].clone()]);
        match cache.import_prefix(&SCOPE, tokens[..].into(), &gets) {
            Ok(_) => {
                taken += 1;
                let (id, _) = cache.create_from(&SCOPE, tokens[..].into()).unwrap();
                let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                // Whatever it holds, the step ends in an answer or an error.
                let _ = step(&cache, id, &new, &queries, Policy::default());
                cache.release(id).unwrap();
            }
            Err(Error::Save(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        emptied(&cache);
    }
    println!(
        "GATE prefix-window-nonsense executed=1200 failed=0 controls=1/1 seed=0x5 refused={refused} taken={taken}"
    );
    assert!(refused > 300 && taken > 100, "{refused} {taken}");
}

struct Talk {
    tokens: Vec<u32>,
    rows: Model,
}

impl Talk {
    fn grow(&mut self, n: usize, r: &mut Rng) {
        self.rows.append(&random_rows(&geometry(), n, r));
        let first = self.tokens[self.tokens.len() - 1] + 1;
        self.tokens.extend((0..n as u32).map(|i| first + i));
    }
}

/// Conversations that begin alike, come back, branch and are cut, on a device that runs copies late and checks every access.
#[test]
fn conversations_come_back_under_pressure() {
    let (mut hits, mut short, mut hollowed, mut evicted, mut decoded, mut twins) = (0, 0, 0, 0, 0, 0);
    for seed in 0..8 {
        let mut r = Rng::new(100 + seed);
        let mut window =
            |most: usize| Some(Window { chunk: 40, ..Window::new(1 + r.below(most)).with_sinks(r.below(40)) });
        let windows = match seed % 3 {
            0 => vec![window(60), None, window(30)],
            1 => vec![None, window(50), None],
            _ => vec![window(40); 3],
        };
        let device = SimOptions { mode: if seed < 4 { Mode::Adversarial { seed } } else { Mode::Eager }, check: true };
        let mut config = Config { device, ..config(&windows, 500) };
        (config.scratch_keys, config.scratch_values) = (8, 8);
        config.swap_tokens = 300;
        let cache = Cache::new(config).unwrap();
        // All begin with the same 40 tokens, a chunk, and so with the same centres.
        let system = random_rows(&geometry(), 40, &mut Rng::new(7));
        let mut talks: Vec<Talk> = (0..4u32)
            .map(|p| {
                let mut talk = Talk { tokens: (0..40).collect(), rows: system.clone() };
                talk.grow(10 + r.below(60), &mut r);
                talk.tokens[40..].iter_mut().for_each(|t| *t += 10_000 * p);
                talk
            })
            .collect();
        let allowed = |error: &Error| matches!(error, Error::CapacityExhausted { .. } | Error::TooManySequences { .. });
        let mut live: Vec<(SequenceId, usize, usize)> = Vec::new();
        for _ in 0..150 {
            let p = r.below(talks.len());
            let asked = if r.chance(0.7) { talks[p].tokens.len() } else { 40 + r.below(talks[p].tokens.len() - 40) };
            let peek = cache.find_prefix(&SCOPE, talks[p].tokens[..asked].into()).unwrap();
            match cache.create_from(&SCOPE, talks[p].tokens[..asked].into()) {
                Ok((id, found)) => {
                    assert!(found == peek.found && found <= peek.cached);
                    (hits, short) = (hits + found, short + usize::from(found < peek.cached));
                    // A twin that is appended whole, where there is room for it.
                    if found >= 40
                        && r.chance(0.3)
                        && let Ok(twin) = cache.create()
                    {
                        if append(&cache, twin, &talks[p].rows, 0, found).is_ok() {
                            let (new, queries) =
                                (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                            let fork = cache.fork(id);
                            let answers = [fork, Ok(twin)].map(|id| {
                                id.and_then(|id| {
                                    let answers = step(&cache, id, &new, &queries, Policy::default());
                                    if id != twin {
                                        cache.release(id).unwrap();
                                    }
                                    answers
                                })
                            });
                            if let [Ok(a), Ok(b)] = &answers {
                                assert!(alike(a, b), "seed {seed}: another sequence than its twin");
                                let mut model = part(&talks[p].rows, 0..found);
                                model.append(&new);
                                assert_eq!(faults(&model, &windows, &queries, a), 0);
                                twins += 1;
                            }
                        }
                        cache.release(twin).unwrap();
                    }
                    match append(&cache, id, &talks[p].rows, found, asked) {
                        Ok(()) => live.push((id, p, asked)),
                        Err(error) => {
                            assert!(allowed(&error), "{error}");
                            cache.release(id).unwrap();
                        }
                    }
                }
                Err(error) => assert!(allowed(&error), "{error}"),
            }
            if !live.is_empty() {
                let at = r.below(live.len());
                let (id, p, len) = live[at];
                match r.below(6) {
                    // The next turn, if this is the newest of it.
                    0 | 1 if len == talks[p].tokens.len() && len < 300 => {
                        let before = (talks[p].tokens.len(), talks[p].rows.clone());
                        talks[p].grow(1 + r.below(40), &mut r);
                        let end = talks[p].tokens.len();
                        match append(&cache, id, &talks[p].rows, len, end) {
                            Ok(()) => live[at].2 = end,
                            Err(error) => {
                                assert!(allowed(&error), "{error}");
                                talks[p].tokens.truncate(before.0);
                                talks[p].rows = before.1;
                                let there = cache.len(id).unwrap();
                                live[at].2 = there.min(before.0);
                                if there > before.0 {
                                    cache.release(id).unwrap();
                                    live.swap_remove(at);
                                }
                            }
                        }
                    }
                    2 => {
                        let to = r.below(len + 1);
                        match cache.truncate(id, to) {
                            Ok(()) => live[at].2 = to,
                            Err(error) => {
                                assert!(allowed(&error) || matches!(error, Error::WindowPassed { .. }), "{error}")
                            }
                        }
                    }
                    3 => {
                        if let Err(error) = cache.swap_out(id).and_then(|_| cache.swap_in(id)) {
                            assert!(allowed(&error), "{error}");
                            cache.release(id).unwrap();
                            live.swap_remove(at);
                        }
                    }
                    _ => {
                        cache.publish(id, &SCOPE, talks[p].tokens[..len].into()).unwrap();
                    }
                }
            }
            while live.len() > 1 + r.below(3) {
                let (id, p, len) = live.swap_remove(r.below(live.len()));
                let (new, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
                match step(&cache, id, &new, &queries, Policy::default()) {
                    Ok(answers) => {
                        let mut model = part(&talks[p].rows, 0..len);
                        model.append(&new);
                        assert_eq!(faults(&model, &windows, &queries, &answers), 0, "seed {seed}");
                        decoded += 1;
                    }
                    Err(error) => assert!(allowed(&error), "{error}"),
                }
                cache.release(id).unwrap();
            }
            if r.chance(0.05) {
                cache.evict_prefixes(r.below(4)).unwrap();
            }
        }
        for (id, ..) in live.drain(..) {
            cache.release(id).unwrap();
        }
        assert!(cache.memory().tables <= cache.reserved().0[2], "tables take more than was reserved");
        let stats = cache.prefix_stats().unwrap().1;
        (hollowed, evicted) = (hollowed + stats.hollowed, evicted + stats.evicted);
        emptied(&cache);
    }
    println!(
        "{hits} tokens found, {short} look-ups shortened, {hollowed} blocks given up, {evicted} units evicted, {decoded} decoded, {twins} twins"
    );
    assert!(hits > 5000 && short > 20 && hollowed > 20 && evicted > 20 && decoded > 300 && twins > 30);
}

#[test]
fn wrong_calls_are_named() {
    let cache = Cache::new(Config { prefixes: None, ..config(&windows(), 100) }).unwrap();
    assert!(matches!(cache.find_prefix(&SCOPE, (&[1][..]).into()), Err(Error::Config { field: "prefixes", .. })));
    let cache = Cache::new(config(&windows(), 400)).unwrap();
    let id = cache.create().unwrap();
    append(&cache, id, &random_rows(&geometry(), 100, &mut Rng::new(1)), 0, 100).unwrap();
    let long = cache.begin(&[Chunk { sequence: id, tokens: 81 }]).map(drop).unwrap_err();
    assert!(matches!(long, Error::LongChunk { tokens: 81, chunk: 80 }), "{long}");
    let tokens: Vec<u32> = (0..100).collect();
    publish(&cache, id, &tokens);
    // A get from behind a gap is refused.
    let puts = cache.export_prefix(&SCOPE, tokens[..].into(), 0).unwrap();
    cache.release(id).unwrap();
    emptied(&cache);
    let shelf = store();
    put(&shelf, puts);
    let gets = get(&shelf, cache.missing_prefix(&SCOPE, tokens[..].into()).unwrap());
    for wrong in [&gets[1..], &[gets[0].clone(), gets[2].clone()], &[gets[0].clone(), gets[0].clone()]] {
        let refused = cache.import_prefix(&SCOPE, tokens[..].into(), wrong);
        assert!(matches!(refused, Err(Error::Save(_))), "{refused:?}");
        emptied(&cache);
    }
    assert_eq!(cache.import_prefix(&SCOPE, tokens[..].into(), &gets).unwrap(), 96);
    emptied(&cache);
}

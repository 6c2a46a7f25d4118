//! Sequences in files: what comes back is what went in, to the last bit of every certificate, or a reason.
mod common;

use certkv::{
    Cache, Certificate, Chunk, Config, Dtype, Error, Geometry, Level, Mode, Policy, SaveError, SaveScope, SequenceId,
    SimOptions, Window,
};
use certkv_core::fail;
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const SCOPE: SaveScope<'_> = SaveScope { model: b"weights 7, theta 10000", key: None };

fn geometry() -> Geometry {
    Geometry::new(3, 4, 2, 64).unwrap()
}

fn config(max_tokens: usize) -> Config {
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32", "tq4-tq4-b16"].map(|f| f.parse().unwrap());
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { formats: formats.into(), device, ..Config::new(geometry(), max_tokens) }
}

/// The first layers with windows, of which a sequence holds a part.
fn windowed(max_tokens: usize) -> Config {
    let window = Window { tokens: 40, sinks: 5, slack: Some(20), chunk: 50 };
    Config { windows: vec![Some(window), Some(window.with_sinks(0)), None], ..config(max_tokens) }
}

/// Blocks at several levels.
fn leveled(max_tokens: usize) -> Config {
    let ladder = ["k8-v4g32-b16", "t4-v4g64-b16", "tq3-v3g64-b16", "t2-tq2-b16"];
    let level = |format: &str| Level { format: format.parse().unwrap(), tokens: max_tokens };
    config(max_tokens).with_levels(ladder.map(level).to_vec())
}

/// Gives the blocks of a sequence levels, where there are any.
fn mix(cache: &Cache, id: SequenceId, levels: usize) {
    let full = cache.len(id).unwrap() / 16;
    for (at, (layer, block)) in (0..3).flat_map(|layer| (0..full).map(move |block| (layer, block))).enumerate() {
        cache.change_level(id, layer, block, at * 7 % levels).unwrap();
    }
}

/// A sequence that has decoded for a while, so that there is something to remember.
fn lived(cache: &Cache, tokens: usize, r: &mut Rng) -> (SequenceId, Model) {
    let id = cache.create().unwrap();
    let mut model = Model::new(&geometry());
    let decoded = tokens.min(9);
    while model.len(&geometry()) < tokens - decoded {
        let rows = random_rows(&geometry(), (tokens - decoded - model.len(&geometry())).min(50), r);
        fill(cache, id, &rows).unwrap();
        model.append(&rows);
    }
    for _ in 0..decoded {
        let rows = random_rows(&geometry(), 1, r);
        step(cache, id, &rows, &random_queries(&geometry(), 1, r), Policy::default()).unwrap();
        model.append(&rows);
    }
    (id, model)
}

fn saved(cache: &Cache, id: SequenceId) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert_eq!(cache.save(id, &SCOPE, &mut bytes).unwrap(), bytes.len() as u64);
    bytes
}

fn same(a: &[Answer], b: &[Answer]) -> bool {
    let certificates =
        |answers: &[Answer]| -> Vec<Certificate> { answers.iter().flat_map(|a| a.certificates.clone()).collect() };
    a.iter().zip(b).all(|(a, b)| a.bits() == b.bits()) && certificates(a) == certificates(b)
}

/// Why `bytes` are refused; the cache must be as it was.
fn refusal(cache: &Cache, scope: &SaveScope<'_>, mut bytes: &[u8]) -> SaveError {
    let before = (cache.live_pages(), cache.memory());
    let refused = cache.restore(scope, &mut bytes);
    assert_eq!((cache.live_pages(), cache.memory()), before, "a refused file left something behind");
    match refused {
        Err(Error::Save(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restored_sequence_goes_on_as_it_would_have() {
    let mut r = Rng::new(1);
    let refinable = || ["k4-v4g32-b16-r4.4", "k8-c4-b32-r8.4", "k3-v3g32-b16-r5.3"].map(|f| f.parse().unwrap());
    let of = |residuals: bool, tokens: usize| match residuals {
        true => Config { formats: refinable().into(), ..config(tokens) },
        false => config(tokens),
    };
    for (tokens, residuals) in [0, 1, 15, 16, 17, 64, 75, 96, 130].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let cache = Cache::new(of(residuals, 600)).unwrap();
        // Pages of the other cache lie elsewhere, and it is larger.
        let other = Cache::new(of(residuals, 900)).unwrap();
        lived(&other, 40, &mut r);
        let (id, mut model) = lived(&cache, tokens, &mut r);
        let bytes = saved(&cache, id);
        let [here, there] = [&cache, &other].map(|cache| cache.restore(&SCOPE, &mut &bytes[..]).unwrap());
        assert!(saved(&cache, here) == bytes, "saved again it is the same file");
        for _ in 0..24 {
            let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
            let run = |cache: &Cache, id| step(cache, id, &rows, &queries, Policy::default()).unwrap();
            let answers = [run(&cache, id), run(&cache, here), run(&other, there)];
            assert!(same(&answers[0], &answers[1]) && same(&answers[0], &answers[2]), "{tokens} tokens");
            model.append(&rows);
        }
        assert_eq!(original_faults(&cache, here, &model) + original_faults(&other, there, &model), 0);
        cache.truncate(here, model.len(&geometry()) / 2).unwrap();
        assert_eq!((cache.check_report().findings(), other.check_report().findings()), (0, 0));
    }
}

/// Of layers with windows what is left comes back, after cuts and out of a swap, in a cache that keeps more than it has to.
#[test]
fn what_is_left_of_a_window_comes_back() {
    let mut r = Rng::new(6);
    for tokens in [0, 5, 16, 61, 64, 100, 257, 400] {
        let cache = Cache::new(Config { swap_tokens: 500, ..windowed(1200) }).unwrap();
        let keeps = |w: Option<Window>| w.map(|w| Window { slack: Some(90), chunk: 7, ..w });
        let other = windowed(1500);
        let other = Cache::new(Config { windows: other.windows.into_iter().map(keeps).collect(), ..other }).unwrap();
        let (id, model) = lived(&cache, tokens, &mut r);
        cache.truncate(id, tokens.saturating_sub(r.below(20))).unwrap();
        let bytes = saved(&cache, id);
        cache.swap_out(id).unwrap();
        assert!(saved(&cache, id) == bytes, "swapped out it is the same file");
        cache.swap_in(id).unwrap();
        let [here, there] = [&cache, &other].map(|cache| cache.restore(&SCOPE, &mut &bytes[..]).unwrap());
        assert!(saved(&cache, here) == bytes && saved(&other, there) == bytes, "saved again it is the same file");
        for _ in 0..70 {
            let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
            let run = |cache: &Cache, id| step(cache, id, &rows, &queries, Policy::default()).unwrap();
            let answers = [run(&cache, id), run(&cache, here), run(&other, there)];
            assert!(same(&answers[0], &answers[1]) && same(&answers[0], &answers[2]), "{tokens} tokens");
        }
        // More than what is left is not in the file.
        let whole = saved_whole(&model, &mut r);
        assert!(tokens < 200 || bytes.len() * 10 < whole * 9, "{} bytes, {whole} whole", bytes.len());
        [id, here].into_iter().for_each(|id| cache.release(id).unwrap());
        other.release(there).unwrap();
        assert_eq!((cache.live_pages(), other.live_pages()), (0, 0));
    }
    // Another window is another sequence.
    let cache = Cache::new(windowed(300)).unwrap();
    let (id, _) = lived(&cache, 80, &mut r);
    let bytes = saved(&cache, id);
    for tokens in [39, 41] {
        let narrow = |w: Option<Window>| w.map(|w| Window { tokens, ..w });
        let config = windowed(300);
        let other = Cache::new(Config { windows: config.windows.into_iter().map(narrow).collect(), ..config }).unwrap();
        assert!(matches!(refusal(&other, &SCOPE, &bytes), SaveError::Differs { what, .. } if what == "group"));
    }
    assert!(matches!(refusal(&Cache::new(config(300)).unwrap(), &SCOPE, &bytes), SaveError::Differs { .. }));
}

/// Bytes of a file of as many tokens without windows.
fn saved_whole(model: &Model, r: &mut Rng) -> usize {
    let cache = Cache::new(config(600)).unwrap();
    let (id, _) = lived(&cache, model.len(&geometry()), r);
    saved(&cache, id).len()
}

/// Codes whose scale overflows its type do not exist; the block is read from its originals, there as here.
#[test]
fn blocks_without_codes_come_back() {
    let geometry = Geometry { store: Dtype::Bf16, ..geometry() };
    let cache = Cache::new(Config { geometry, ..config(200) }).unwrap();
    let id = cache.create().unwrap();
    let mut rows = Model::new(&geometry);
    let mut r = Rng::new(2);
    for side in rows.keys.iter_mut().chain(&mut rows.values) {
        let huge = |r: &mut Rng| Dtype::Bf16.encode16((r.normal() * 1e34) as f32);
        side.extend((0..40 * geometry.kv_width()).map(|i| if i % 7 == 0 { huge(&mut r) } else { 0 }));
    }
    fill(&cache, id, &rows).unwrap();
    let bytes = saved(&cache, id);
    let back = cache.restore(&SCOPE, &mut &bytes[..]).unwrap();
    assert!(saved(&cache, back) == bytes);
    assert_eq!(original_faults(&cache, back, &rows), 0);
    let more = random_rows(&geometry, 1, &mut r);
    let queries = vec![1e-30; geometry.q_width()];
    let answers = [id, back].map(|id| step(&cache, id, &more, &queries, Policy::Dense).unwrap());
    assert!(same(&answers[0], &answers[1]));
}

#[test]
fn a_file_of_something_else_is_refused_with_the_reason() {
    let mut r = Rng::new(3);
    let cache = Cache::new(config(200)).unwrap();
    let (id, _) = lived(&cache, 40, &mut r);
    let bytes = saved(&cache, id);
    let differs = |what: &str, other: Config, scope: &SaveScope<'_>| {
        let error = refusal(&Cache::new(other).unwrap(), scope, &bytes);
        assert!(matches!(&error, SaveError::Differs { what: found, .. } if found == what), "{what}: {error}");
    };
    let shape = |layers, q, kv, dim| Config {
        geometry: Geometry::new(layers, q, kv, dim).unwrap(),
        formats: config(200).formats,
        ..config(200)
    };
    differs("query-heads", shape(3, 8, 2, 64), &SCOPE);
    differs("kv-heads", shape(3, 4, 4, 64), &SCOPE);
    differs("head-dim", shape(3, 4, 2, 128), &SCOPE);
    differs("layers", Config { formats: vec!["k8-v4g32-b16".parse().unwrap()], ..shape(4, 4, 2, 64) }, &SCOPE);
    differs("store", Config { geometry: Geometry { store: Dtype::Bf16, ..geometry() }, ..config(200) }, &SCOPE);
    differs("scale", Config { geometry: Geometry { scale: 0.1, ..geometry() }, ..config(200) }, &SCOPE);
    differs("groups", Config { formats: vec!["k8-v4g32-b16".parse().unwrap()], ..config(200) }, &SCOPE);
    let formats = ["k8-v4g32-b16", "t4-v4g32-b16", "k8-v4g32-b16"].map(|f| f.parse().unwrap());
    differs("group", Config { formats: formats.into(), ..config(200) }, &SCOPE);
    differs("model", config(200), &SaveScope { model: b"weights 8, theta 10000", ..SCOPE });
    assert_eq!(refusal(&cache, &SCOPE, b"CERTKV"), SaveError::NotASequence);
    assert_eq!(refusal(&cache, &SCOPE, b"something else altogether"), SaveError::NotASequence);
    let mut newer = bytes.clone();
    newer[8] = 4;
    assert_eq!(refusal(&cache, &SCOPE, &newer), SaveError::Version { found: 4, known: 3 });
    let text = String::from_utf8_lossy(&bytes[24..300]);
    assert!(text.starts_with("layers 3\nquery-heads 4\n"), "whoever opens it can read what it is: {text}");
}

/// Of levels the header says the formats, and the reason names them. What has none says nothing of them.
#[test]
fn a_file_with_other_levels_is_refused() {
    let mut r = Rng::new(13);
    let with = |change: &dyn Fn(&mut Vec<Level>)| {
        let mut config = leveled(200);
        change(&mut config.levels);
        config.formats = vec![config.levels[0].format];
        Cache::new(config).unwrap()
    };
    let cache = with(&|_| {});
    let (id, _) = lived(&cache, 40, &mut r);
    mix(&cache, id, 4);
    cache.change_level(id, 0, 0, 3).unwrap();
    let bytes = saved(&cache, id);
    let differs = |cache: &Cache, what: &str, bytes: &[u8]| match refusal(cache, &SCOPE, bytes) {
        SaveError::Differs { what: found, file, here } if found == what => (file, here),
        other => panic!("{what}: {other}"),
    };
    let all = "k8-v4g32-b16, t4-v4g64-b16, tq3-v3g64-b16, t2-tq2-b16".to_owned();
    let fewer = differs(&with(&|levels| levels.truncate(3)), "levels", &bytes);
    assert_eq!(fewer, (all.clone(), "k8-v4g32-b16, t4-v4g64-b16, tq3-v3g64-b16".to_owned()));
    let other = with(&|levels| levels[2].format = "tq3-v3g32-b16".parse().unwrap());
    assert_eq!(differs(&other, "levels", &bytes).0, all);
    differs(&with(&|levels| levels[0].format = "t8-v8g64-b16".parse().unwrap()), "group", &bytes);
    // Of one layer, which is a group either way.
    let one = Geometry::new(1, 4, 2, 64).unwrap();
    let single = |levels: bool| {
        let config = Config { geometry: one, ..leveled(200) };
        Cache::new(if levels { config } else { Config { levels: Vec::new(), ..config } }).unwrap()
    };
    let empty = [true, false].map(|levels| {
        let cache = single(levels);
        let id = cache.create().unwrap();
        (saved(&cache, id), cache)
    });
    assert_eq!(differs(&empty[1].1, "levels", &empty[0].0), (all.clone(), "none".into()));
    assert_eq!(differs(&empty[0].1, "levels", &empty[1].0), ("none".into(), all));
    // What each level has pages for is not of the file.
    let tight = with(&|levels| levels[3].tokens = 48);
    tight.restore(&SCOPE, &mut &bytes[..]).unwrap();
    let none = with(&|levels| levels[3].tokens = 16);
    let live = none.live_pages();
    let short = none.restore(&SCOPE, &mut &bytes[..]).unwrap_err();
    assert!(matches!(short, Error::CapacityExhausted { class: "level 3", .. }), "{short}");
    assert_eq!(none.live_pages(), live);
    // A file without levels is what it was before there were any.
    let header = String::from_utf8_lossy(&sections(&empty[1].0)[0].1).into_owned();
    let lines: Vec<_> = header.lines().filter_map(|line| line.split(' ').next()).collect();
    let known = ["layers", "query-heads", "kv-heads", "head-dim", "store", "scale", "codecs", "groups", "group"];
    assert_eq!(lines, [&known[..], &["model", "tokens"]].concat());
}

#[test]
fn a_key_tells_forgery() {
    let mut r = Rng::new(4);
    let cache = Cache::new(config(200)).unwrap();
    let (id, _) = lived(&cache, 40, &mut r);
    let (mine, other) = ([1; 32], [2; 32]);
    let scope = |key| SaveScope { key, ..SCOPE };
    let mut keyed = Vec::new();
    cache.save(id, &scope(Some(&mine)), &mut keyed).unwrap();
    for (key, bytes) in [(Some(&other), &keyed), (None, &keyed), (Some(&mine), &saved(&cache, id))] {
        assert_eq!(refusal(&cache, &scope(key), bytes), SaveError::Damaged { section: "header" });
    }
    cache.restore(&scope(Some(&mine)), &mut &keyed[..]).unwrap();
}

#[test]
fn damage_is_seen_wherever_it_is() {
    damage(config(400), 5);
    damage(leveled(400), 15);
}

fn damage(config: Config, seed: u64) {
    let (mut r, levels) = (Rng::new(seed), config.levels.len());
    let cache = Cache::new(config).unwrap();
    let (id, _) = lived(&cache, 75, &mut r);
    if levels > 0 {
        mix(&cache, id, levels);
    }
    let bytes = saved(&cache, id);
    let (mut flips, mut cuts, mut swaps) = (0, 0, 0);
    // All of the head, and a thousand places behind it.
    let places = (0..800).chain((0..1000).map(|_| r.below(bytes.len()))).collect::<Vec<_>>();
    for at in places {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << r.below(8);
        refusal(&cache, &SCOPE, &damaged);
        flips += 1;
    }
    for _ in 0..300 {
        let end = r.below(bytes.len());
        let error = refusal(&cache, &SCOPE, &bytes[..end]);
        assert!(matches!(error, SaveError::Truncated { .. } | SaveError::NotASequence), "{error}");
        cuts += 1;
    }
    // Two stretches exchanged, as torn or misdirected writes leave them.
    for _ in 0..300 {
        let (a, b, n) = (r.below(bytes.len() - 512), r.below(bytes.len() - 512), 2 + r.below(510));
        let mut damaged = bytes.clone();
        damaged[a..a + n].copy_from_slice(&bytes[b..b + n]);
        damaged[b..b + n].copy_from_slice(&bytes[a..a + n]);
        if damaged != bytes {
            refusal(&cache, &SCOPE, &damaged);
            swaps += 1;
        }
    }
    let mut longer = bytes.clone();
    longer.extend_from_slice(b"what follows is somebody else's");
    let back = cache.restore(&SCOPE, &mut &longer[..]).unwrap();
    assert!(saved(&cache, back) == bytes, "the control: the undamaged file");
    println!("GATE save-corruption executed={} failed=0 controls=1/1 seed={seed:#x}", flips + cuts + swaps);
    assert!(flips >= 1000 && cuts >= 300 && swaps >= 200);
}

/// A disk that is full after `left` bytes, and a reader that breaks off.
struct Breaks {
    left: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl Write for Breaks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.left);
        self.left -= n;
        if n == 0 && !bytes.is_empty() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Breaks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = into.len().min(self.left);
        into[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        (self.at, self.left) = (self.at + n, self.left - n);
        if n == 0 && !into.is_empty() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(n) }
    }
}

#[test]
fn a_disk_that_fails_costs_nothing() {
    let mut r = Rng::new(6);
    let cache = Cache::new(config(300)).unwrap();
    let (id, model) = lived(&cache, 75, &mut r);
    let bytes = saved(&cache, id);
    let live = cache.live_pages();
    for _ in 0..200 {
        let left = r.below(bytes.len());
        let failed = cache.save(id, &SCOPE, &mut Breaks { left, bytes: vec![], at: 0 });
        assert!(
            matches!(failed, Err(Error::Save(SaveError::Io { kind: io::ErrorKind::StorageFull, .. }))),
            "{failed:?}"
        );
        let failed = cache.restore(&SCOPE, &mut Breaks { left, bytes: bytes.clone(), at: 0 });
        assert!(
            matches!(failed, Err(Error::Save(SaveError::Io { kind: io::ErrorKind::ConnectionReset, .. }))),
            "{failed:?}"
        );
    }
    assert_eq!((cache.live_pages(), original_faults(&cache, id, &model)), (live, 0));
    assert!(saved(&cache, id) == bytes);
}

#[test]
fn no_room_is_an_error_and_leaves_none_behind() {
    let mut r = Rng::new(7);
    let cache = Cache::new(config(600)).unwrap();
    let (id, _) = lived(&cache, 130, &mut r);
    let bytes = saved(&cache, id);
    let small = Cache::new(config(100)).unwrap();
    assert!(matches!(small.restore(&SCOPE, &mut &bytes[..]), Err(Error::TooLong { tokens: 130, .. })));
    let full = Cache::new(config(200)).unwrap();
    lived(&full, 100, &mut r);
    let live = full.live_pages();
    assert!(matches!(full.restore(&SCOPE, &mut &bytes[..]), Err(Error::CapacityExhausted { .. })));
    let one = Cache::new(Config { max_sequences: 1, ..config(600) }).unwrap();
    one.create().unwrap();
    assert!(matches!(one.restore(&SCOPE, &mut &bytes[..]), Err(Error::TooManySequences { .. })));
    assert_eq!((full.live_pages(), small.live_pages(), one.live_pages()), (live, 0, 0));

    let busy = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    assert!(matches!(cache.save(id, &SCOPE, &mut Vec::new()), Err(Error::BusySequence(_))));
    drop(busy);
    cache.release(id).unwrap();
    assert!(matches!(cache.save(id, &SCOPE, &mut Vec::new()), Err(Error::UnknownSequence(_))));
}

/// A folder of this process's own, and a file in it that a save may replace.
fn an_older_file(name: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("one.certkv");
    std::fs::write(&path, "an older file").unwrap();
    (folder, path)
}

#[test]
fn a_file_appears_when_it_is_whole() {
    let mut r = Rng::new(8);
    let cache = Cache::new(config(300)).unwrap();
    let (id, model) = lived(&cache, 75, &mut r);
    let (folder, path) = an_older_file("save");
    let missing = cache.save_file(id, &SCOPE, &folder.join("no such folder/one.certkv"));
    assert!(matches!(missing, Err(Error::Save(SaveError::Io { kind: io::ErrorKind::NotFound, .. }))));
    let busy = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    assert!(cache.save_file(id, &SCOPE, &path).is_err());
    drop(busy);
    assert_eq!(std::fs::read(&path).unwrap(), b"an older file", "a failed save leaves it alone");
    cache.save_file(id, &SCOPE, &path).unwrap();
    let back = cache.restore_file(&SCOPE, &path).unwrap();
    assert_eq!(original_faults(&cache, back, &model), 0);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing partial is left");
    assert!(matches!(cache.restore_file(&SCOPE, &folder), Err(Error::Save(_))));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Every call of the file system fails in turn, and with it every fault point of a save: the older file stays, nothing partial is left, and
/// the next save succeeds.
#[test]
fn a_save_outlives_the_failure_of_any_call() {
    let mut r = Rng::new(9);
    let cache = Cache::new(config(300)).unwrap();
    let (id, model) = lived(&cache, 75, &mut r);
    let (folder, path) = an_older_file("save-faults");
    let mut failed = Vec::new();
    for nth in 1.. {
        fail::arm(Some(nth));
        let done = cache.save_file(id, &SCOPE, &path);
        let fired = fail::fired();
        fail::arm(None);
        let Some(point) = fired else {
            done.unwrap();
            break;
        };
        let e = done.expect_err(point);
        assert!(e.to_string().contains("injected fault"), "{point}: {e}");
        assert_eq!(std::fs::read(&path).unwrap(), b"an older file", "{point}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "{point} left something");
        failed.push(point);
    }
    for point in ["save.create", "save.write", "save.sync", "save.rename"] {
        assert!(failed.contains(&point), "{point} never failed: {failed:?}");
    }
    let live = cache.live_pages();
    let mut opened = 0;
    for nth in 1.. {
        fail::arm(Some(nth));
        let back = cache.restore_file(&SCOPE, &path);
        let fired = fail::fired();
        fail::arm(None);
        let Some(point) = fired else {
            assert_eq!(original_faults(&cache, back.unwrap(), &model), 0);
            break;
        };
        let e = back.expect_err(point);
        assert!(e.to_string().contains("injected fault"), "{point}: {e}");
        assert_eq!(cache.live_pages(), live, "{point}");
        opened += u64::from(point == "restore.open");
    }
    assert_eq!(opened, 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The sections of a file: tag and contents.
fn sections(file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let (mut at, mut out) = (12, Vec::new());
    while at < file.len() {
        let tag = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let length = u64::from_le_bytes(file[at + 4..at + 12].try_into().unwrap()) as usize;
        out.push((tag, file[at + 12..at + 12 + length].to_vec()));
        at += 12 + length + 32;
    }
    out
}

/// A file of these sections, with digests that are right.
fn forged(sections: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = [&b"CERTKVS\n"[..], &3u32.to_le_bytes()].concat();
    for (tag, contents) in sections {
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&(contents.len() as u64).to_le_bytes());
        file.extend_from_slice(contents);
        let digest = blake3::hash(&file);
        file.extend_from_slice(digest.as_bytes());
    }
    file
}

/// Whoever writes files with right digests can write nonsense: no panic, no page lost, and what is taken is a sequence.
#[test]
fn nonsense_with_right_digests_harms_nobody() {
    nonsense(config(300), 75, 9);
    nonsense(windowed(300), 140, 10);
    nonsense(leveled(300), 75, 11);
}

/// A step looks at the hints of all heads of a group.
#[test]
fn hints_for_some_heads_alone_are_refused() {
    let cache = Cache::new(config(300)).unwrap();
    let (id, _) = lived(&cache, 75, &mut Rng::new(12));
    let mut parts = sections(&saved(&cache, id));
    // The state ends with the hints of the last head: how many, and two numbers each.
    let state = &mut parts[1].1;
    let at = state.len() - 16 * 2 - 8;
    assert_eq!(state[at..at + 8], 2u64.to_le_bytes());
    state[at..at + 8].copy_from_slice(&1u64.to_le_bytes());
    state.truncate(at + 8 + 16);
    let refused = refusal(&cache, &SCOPE, &forged(&parts));
    assert!(matches!(refused, SaveError::Malformed { why, .. } if why.contains("hints")), "{refused}");
}

fn nonsense(config: Config, tokens: usize, seed: u64) {
    let (mut r, levels) = (Rng::new(seed), config.levels.len());
    let cache = Cache::new(config).unwrap();
    let (id, _) = lived(&cache, tokens, &mut r);
    if levels > 0 {
        mix(&cache, id, levels);
    }
    let whole = sections(&saved(&cache, id));
    assert!(forged(&whole) == saved(&cache, id), "the control: the forger writes what we write");
    let live = cache.live_pages();
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..1500 {
        let mut parts = whole.clone();
        for _ in 0..1 + r.below(3) {
            // Header and state are parsed; pages are copied.
            let which = if r.chance(0.8) { r.below(2) } else { r.below(parts.len()) };
            let contents = &mut parts[which].1;
            match r.below(5) {
                0 if !contents.is_empty() => {
                    let at = r.below(contents.len());
                    contents[at] ^= 1 << r.below(8);
                }
                1 => contents.truncate(r.below(contents.len() + 1)),
                2 => contents.extend((0..r.below(40)).map(|_| r.bits() as u8)),
                3 if contents.len() >= 8 => {
                    let at = r.below(contents.len() / 8) * 8;
                    let n = [0, 1, u64::MAX, u64::MAX / 4, 1 << 32, r.bits()][r.below(6)];
                    contents[at..at + 8].copy_from_slice(&n.to_le_bytes());
                }
                _ => {
                    let (a, b) = (r.below(parts.len()), r.below(parts.len()));
                    parts.swap(a, b);
                }
            }
        }
        match cache.restore(&SCOPE, &mut &forged(&parts)[..]) {
            Ok(back) => {
                taken += 1;
                let rows = random_rows(&geometry(), 1, &mut r);
                // Whatever it remembers, the step ends in an answer or an error.
                let _ = step(&cache, back, &rows, &random_queries(&geometry(), 1, &mut r), Policy::default());
                cache.release(back).unwrap();
            }
            Err(Error::Save(_) | Error::TooLong { .. } | Error::CapacityExhausted { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        assert_eq!(cache.live_pages(), live);
    }
    println!("GATE save-nonsense executed=1500 failed=0 controls=1/1 seed={seed:#x} refused={refused} taken={taken}");
    assert!(refused > 700 && taken > 0);
}

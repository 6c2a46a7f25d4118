//! KV heads of one layer in formats of their own: each head's outputs, certificates and originals are those that it has in a cache where
//! all heads have its format, whatever lives the sequences lead.
mod common;

use certkv::gpu::{GpuConfig, GpuMachine};
use certkv::store::MemoryStore;
use certkv::{
    Cache, Certified, Chunk, Config, Error, Eviction, Format, Geometry, Mode, Policy, PrefixConfig, PrefixScope,
    PrefixSecret, SaveError, SaveScope, Seed000, SequenceId, Side, SimOptions, Spill, Tolerance, Window,
};
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, random_queries, random_rows};
use std::sync::Arc;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");
const SAVED: SaveScope<'_> = SaveScope { model: b"model", key: None };
const LAYERS: usize = 4;
const HEADS: usize = 3;
/// Most tokens of a block.
const UNIT: usize = 64;

fn geometry() -> Geometry {
    Geometry::new(LAYERS, 2 * HEADS, HEADS, 64).unwrap()
}

/// Formats `[layer][head]`: two layers alike, of which the outer heads share a format and not a table, one of one format, one of three.
fn formats(seed: u64) -> Vec<Format> {
    let sets = [
        ["k8-v4g32-b16", "tq4-tq3-b64", "k4-v4g32-b32-r4.4"],
        ["t4-v4g32-b32", "k8-f16-b16", "k8-c4-b64"],
        ["k4-v4g64-b64-r5.4", "p8g32-p6g32-b16", "f16-v4g32-b32"],
    ];
    let [a, b, c] = sets[seed as usize % 3].map(|format| format.parse().unwrap());
    vec![a, b, a, a, b, a, c, c, c, b, c, a]
}

fn config(seed: u64, formats: Vec<Format>) -> Config {
    let prefixes = PrefixConfig { secret: PrefixSecret::new([3; 32]), units: 16, eviction: Eviction::Lru };
    let window = Some(Window { tokens: 50, sinks: 20, slack: Some(UNIT), chunk: 90 });
    Config {
        formats,
        windows: if seed % 2 == 1 { vec![window, window, None, None] } else { Vec::new() },
        max_sequences: 5,
        prefixes: Some(prefixes),
        swap_tokens: 1500,
        chunk_tokens: 2,
        threads: 1 + seed as usize % 2,
        device: SimOptions { mode: [Mode::Eager, Mode::Adversarial { seed }][seed as usize / 2 % 2], check: true },
        ..Config::new(geometry(), 1500)
    }
}

/// The cache of mixed formats, and one of each format that some head has.
struct Beside {
    mixed: Cache,
    formats: Vec<Format>,
    uniform: Vec<(Format, Cache)>,
}

impl Beside {
    fn new(seed: u64) -> Self {
        let formats = formats(seed);
        let mut kinds = formats.clone();
        kinds.sort_by_key(ToString::to_string);
        kinds.dedup();
        let cache = |format: Format| (format, Cache::new(config(seed, vec![format])).unwrap());
        let mut mixed = config(seed, formats.clone());
        if seed.is_multiple_of(3) {
            // Residency must not show.
            mixed.spill = Some(Spill { in_flight: 12, ..Spill::new(Arc::new(MemoryStore::new(1 << 30)), 100) });
        }
        (mixed.scratch_keys, mixed.scratch_values) = ((seed % 4) as usize * 15, (seed % 4) as usize * 10);
        Self { mixed: Cache::new(mixed).unwrap(), formats, uniform: kinds.into_iter().map(cache).collect() }
    }

    fn caches(&self) -> impl Iterator<Item = &Cache> {
        core::iter::once(&self.mixed).chain(self.uniform.iter().map(|(_, cache)| cache))
    }

    fn each<T>(&self, mut act: impl FnMut(usize, &Cache) -> Result<T, Error>) -> Vec<T> {
        self.caches().enumerate().map(|(at, cache)| act(at, cache).unwrap()).collect()
    }

    /// Number of the cache that has the format of a head.
    fn of(&self, layer: usize, head: usize) -> usize {
        let format = self.formats[layer * HEADS + head];
        1 + self.uniform.iter().position(|(uniform, _)| *uniform == format).unwrap()
    }
}

/// One step of one sequence, with a tolerance for every query head where there are any.
fn step(
    cache: &Cache,
    sequence: SequenceId,
    rows: &Model,
    queries: &[f32],
    policy: Policy,
    tolerances: &[Tolerance],
) -> Result<Vec<Answer>, Error> {
    let geometry = geometry();
    let chunks = [Chunk { sequence, tokens: rows.len(&geometry) }];
    let mut step = cache.begin_with(&chunks, policy)?;
    if !tolerances.is_empty() {
        step.set_tolerances(tolerances)?;
    }
    let mut answers = Vec::new();
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
        let mut answer = Answer::new(&geometry, chunks[0].tokens);
        step.attend(layer, queries, &mut answer.out, &mut answer.certificates)?;
        answers.push(answer);
    }
    step.finish()?;
    Ok(answers)
}

/// Bits of outputs, and certificates, of one KV head.
fn of_head(answer: &Answer, head: usize) -> (Vec<u32>, String) {
    let g = geometry();
    let (width, group) = (g.group() * g.head_dim, g.group());
    let rows = answer.out.chunks_exact(g.q_width()).flat_map(|row| &row[head * width..(head + 1) * width]);
    let certificates = answer.certificates.chunks_exact(g.q_heads).map(|row| &row[head * group..(head + 1) * group]);
    // What lies in scratch, and is read there, is each cache's own.
    let mut certificates: Vec<_> = certificates.flatten().copied().collect();
    for c in &mut certificates {
        c.bytes.host += core::mem::take(&mut c.bytes.scratch);
    }
    (rows.map(|x| x.to_bits()).collect(), format!("{certificates:?}"))
}

/// A random life; how many answers of heads were compared, and how many of them two formats gave different ones.
fn life(seed: u64, turns: usize) -> (usize, usize) {
    let (beside, mut r) = (Beside::new(seed), Rng::new(seed ^ 0x5eed));
    let g = geometry();
    // Where originals spill no rows are read alone.
    let row_share = if seed.is_multiple_of(3) { 0.0 } else { 0.1 };
    let certified = |tol_rel| Policy::Certified(Certified { tol_rel, row_share, ..Certified::default() });
    // By cache, and what the sequence holds.
    let mut live: Vec<(Vec<SequenceId>, Model)> = Vec::new();
    let (mut compared, mut unlike) = (0, 0);
    for turn in 0..turns {
        if live.is_empty() || (live.len() < 3 && r.chance(0.15)) {
            live.push((beside.each(|_, cache| cache.create()), Model::new(&g)));
        }
        let at = r.below(live.len());
        let len = live[at].1.len(&g);
        let windowed = seed % 2 == 1;
        match r.below(14) {
            0 if live.len() < 3 && len > 0 => {
                let (ids, rows) = &live[at];
                let forks = beside.each(|c, cache| cache.fork(ids[c]));
                live.push((forks, rows.clone()));
            }
            1 if len > 0 => {
                let (ids, rows) = &mut live[at];
                // Windows do not come back, by different lengths where blocks are of different size.
                let to = if windowed { len - r.below(len.min(3)) } else { r.below(len + 1) };
                beside.each(|c, cache| cache.truncate(ids[c], to));
                rows.truncate(&g, to);
            }
            2 => {
                let ids = &live[at].0;
                beside.each(|c, cache| cache.swap_out(ids[c]));
                beside.each(|c, cache| cache.swap_in(ids[c]));
            }
            3 => {
                let ids = &mut live[at].0;
                *ids = beside.each(|c, cache| {
                    let mut file = Vec::new();
                    cache.save(ids[c], &SAVED, &mut file)?;
                    cache.release(ids[c])?;
                    cache.restore(&SAVED, &mut file.as_slice())
                });
            }
            4 if len >= UNIT && live.len() < 3 && !windowed => {
                let names: Vec<u32> = (0..(len / UNIT * UNIT) as u32).map(|t| t + 1000 * turn as u32).collect();
                let ids = &live[at].0;
                beside.each(|c, cache| cache.publish(ids[c], &SCOPE, names[..].into()));
                let found = beside.each(|_, cache| cache.create_from(&SCOPE, names[..].into()));
                assert!(found.iter().all(|(_, tokens)| *tokens == names.len()), "{found:?}");
                let mut rows = live[at].1.clone();
                rows.truncate(&g, names.len());
                live.push((found.into_iter().map(|(id, _)| id).collect(), rows));
            }
            5 if live.len() > 1 => {
                let (ids, _) = live.swap_remove(at);
                beside.each(|c, cache| cache.release(ids[c]));
            }
            _ => {
                let n = match r.below(8) {
                    _ if len > 300 => 1,
                    0 => 1 + r.below(80),
                    1 => 2,
                    _ => 1,
                };
                let (rows, queries) = (random_rows(&g, n, &mut r), random_queries(&g, n, &mut r));
                let policy = match r.below(6) {
                    0 => Policy::Packed,
                    1 => Policy::Dense,
                    2 => Policy::Seed000(Seed000::default()),
                    3 => certified(0.004),
                    _ => certified(0.05),
                };
                let tolerances: Vec<Tolerance> = match policy {
                    Policy::Certified(_) if r.chance(0.3) => {
                        (0..g.q_heads).map(|h| Tolerance::relative(0.003 * (1 + h * h) as f64)).collect()
                    }
                    _ => Vec::new(),
                };
                let ids = &live[at].0;
                let answers = beside.each(|c, cache| step(cache, ids[c], &rows, &queries, policy, &tolerances));
                live[at].1.append(&rows);
                for (layer, head) in (0..LAYERS).flat_map(|layer| (0..HEADS).map(move |head| (layer, head))) {
                    let [mine, theirs] = [0, beside.of(layer, head)].map(|c| of_head(&answers[c][layer], head));
                    assert_eq!(mine, theirs, "seed {seed}, turn {turn}, {policy:?}, layer {layer}, head {head}");
                    let other = beside.of(layer, (head + 1) % HEADS);
                    compared += 1;
                    unlike += usize::from(of_head(&answers[other][layer], head) != mine);
                }
            }
        }
        if turn % 10 == 0 {
            let (ids, rows) = &live[at % live.len()];
            for (layer, head) in (0..LAYERS).flat_map(|layer| (0..HEADS).map(move |head| (layer, head))) {
                for side in [Side::Key, Side::Value] {
                    match beside.mixed.originals(ids[0], layer, head, side) {
                        Err(Error::Gone { .. }) if windowed => {}
                        found => assert!(found.unwrap() == rows.side(&g, layer, head, side), "{layer}, {head}"),
                    }
                }
            }
        }
    }
    for (ids, _) in live {
        beside.each(|c, cache| cache.release(ids[c]));
    }
    beside.each(|_, cache| cache.evict_prefixes(usize::MAX));
    let spilled = beside.mixed.snapshot().spills;
    assert!(spilled.is_none_or(|moves| moves.done.count() > 0), "seed {seed}: nothing left host memory");
    assert_eq!(beside.mixed.live_pages(), 0, "seed {seed}");
    let report = beside.mixed.check_report();
    assert!(report.unordered == 0 && report.wrong_content == 0, "{report:?}");
    (compared, unlike)
}

#[test]
fn a_head_has_what_it_would_have_among_heads_of_its_format() {
    let (mut compared, mut unlike) = (0, 0);
    for seed in 0..12 {
        let (here, other) = life(seed, 70);
        compared += here;
        unlike += other;
    }
    println!("{compared} answers of KV heads, of which another format gave {unlike} others");
    assert!(compared > 3000 && 2 * unlike > compared);
}

/// As many pages as are asked for are taken: what is planned is what is reserved, each head in the bytes of its format.
#[test]
fn heads_take_the_bytes_of_their_formats() {
    let of = |formats: Vec<Format>| Config { formats, ..Config::new(geometry(), 6400) };
    let packed = |config: &Config| config.plan().unwrap().of(certkv::Class::Packed);
    let [wide, narrow]: [Format; 2] = ["k8-v8g64-b64", "k2-v2g64-b64"].map(|format| format.parse().unwrap());
    let mixed = of([[wide, narrow, narrow]; LAYERS].concat());
    let thirds = (packed(&of(vec![wide])) + 2 * packed(&of(vec![narrow]))) / 3;
    let apart = packed(&mixed).abs_diff(thirds) as f64 / thirds as f64;
    assert!(apart < 0.02, "{} and {thirds}", packed(&mixed));
    let cache = Cache::new(mixed).unwrap();
    let pages = cache.snapshot().pages;
    let heads: Vec<_> = pages.iter().map(|page| (page.layers, page.first_kv_head, page.kv_heads)).collect();
    assert_eq!(heads, [(LAYERS, 0, 1), (LAYERS, 1, 2)]);
    let layouts = [0, 1, 2].map(|head| cache.layout_of(1, head).unwrap().format);
    assert_eq!(layouts, [wide, narrow, narrow]);
    assert!(matches!(cache.layout_of(0, HEADS), Err(Error::Shape { argument: "kv_head", .. })));
    assert!(matches!(cache.layout_of(LAYERS, 0), Err(Error::Layer { .. })));
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry(), 70, &mut Rng::new(1))).unwrap();
    let [page, other] = [0, 2].map(|head| cache.packed_page_of(id, 0, head, 0).unwrap().len());
    assert!(page > other, "one wide head, {page} bytes, and two narrow ones, {other}");
}

/// A list that says the same of every head is no other cache.
#[test]
fn a_list_of_one_format_is_that_format() {
    let format: Format = "k8-v4g32-b16".parse().unwrap();
    let cache = |formats| Cache::new(config(0, formats)).unwrap();
    let [one, all] = [vec![format], vec![format; LAYERS * HEADS]].map(cache);
    assert_eq!(all.snapshot().pages.len(), 1);
    let mut file = Vec::new();
    let id = one.create().unwrap();
    fill(&one, id, &random_rows(&geometry(), 100, &mut Rng::new(2))).unwrap();
    one.save(id, &SAVED, &mut file).unwrap();
    all.restore(&SAVED, &mut file.as_slice()).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let [a, b]: [Format; 2] = ["k8-v4g32-b16", "t4-v4g32-b16"].map(|format| format.parse().unwrap());
    let said = |result: Result<(), Error>| result.unwrap_err().to_string();
    let new = |formats| Cache::new(config(0, formats)).map(drop);
    for wrong in [2, HEADS, LAYERS * HEADS - 1, LAYERS * HEADS + 1] {
        let why = said(new(vec![a; wrong]));
        assert!(why.contains(&format!("{wrong} formats")) && why.contains("KV head (12)"), "{why}");
    }
    // On a GPU a layer has one format; the same list of one format is taken.
    let mut lists = [vec![a; LAYERS * HEADS], vec![a; LAYERS * HEADS]];
    lists[1][7] = b;
    let [same, mixed] = lists.clone().map(|formats| GpuConfig { formats, ..GpuConfig::new(geometry(), 640) });
    same.plan(GpuMachine::H200).unwrap();
    let why = said(mixed.plan(GpuMachine::H200).map(drop));
    assert!(why.contains("layer 2") && why.contains("on a GPU"), "{why}");
    // A file of the same formats at other heads.
    let [one, other] = [[a, b, b], [b, b, a]].map(|layer| Cache::new(config(0, [layer; LAYERS].concat())).unwrap());
    let mut file = Vec::new();
    let id = one.create().unwrap();
    fill(&one, id, &random_rows(&geometry(), 40, &mut Rng::new(3))).unwrap();
    one.save(id, &SAVED, &mut file).unwrap();
    let refused = other.restore(&SAVED, &mut file.as_slice());
    assert!(matches!(&refused, Err(Error::Save(SaveError::Differs { what, .. })) if what == "group"), "{refused:?}");
    one.restore(&SAVED, &mut file.as_slice()).unwrap();
}

//! The same life in a cache with room for all originals and in one that has room for a few.
use crate::common::{Model, fill, original_faults, random_queries, random_rows, step};
use certkv::store::{Backend, FileConfig, FileStore, MemoryStore};
use certkv::{
    Cache, Certified, Config, Error, Eviction, Geometry, Mode, Policy, PrefixConfig, PrefixScope, PrefixSecret,
    SaveScope, Seed000, SequenceId, SimOptions, Spill,
};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");
const SAVED: SaveScope<'_> = SaveScope { model: b"model", key: None };

pub(crate) fn geometry() -> Geometry {
    Geometry::new(7, 2, 1, 64).unwrap()
}

/// Two groups: four layers with blocks of 16, three with blocks of 32.
pub(crate) fn config(device: SimOptions) -> Config {
    let formats = [0, 0, 0, 0, 1, 1, 1].map(|i| ["k8-v4g32-b16", "k4-v4g32-b32-r4.4"][i].parse().unwrap());
    let prefixes = PrefixConfig { secret: PrefixSecret::new([7; 32]), units: 6, eviction: Eviction::Lru };
    Config {
        formats: formats.into(),
        max_sequences: 4,
        prefixes: Some(prefixes),
        swap_tokens: 640,
        device,
        ..Config::new(geometry(), 640)
    }
}

pub(crate) fn spilling(device: SimOptions, backend: Arc<dyn Backend>) -> Config {
    let spill = Spill { workers: 2, in_flight: 12, deadline: Duration::from_secs(20), ..Spill::new(backend, 32) };
    Config { spill: Some(spill), erase: true, ..config(device) }
}

fn policy(r: &mut Rng, beside: bool) -> Policy {
    let certified =
        |tol_rel, explore_rate| Policy::Certified(Certified { tol_rel, explore_rate, ..Certified::default() });
    match r.below(6) {
        0 => Policy::Dense,
        1 => Policy::Packed,
        2 => Policy::Seed000(Seed000::default()),
        3 => certified(0.004, 0.0),
        4 if !beside => certified(0.02, 0.05),
        _ => certified(0.05, 0.0),
    }
}

/// What a life has shown: bits of outputs and certificates, and how many of each operation there were.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) answers: Vec<(Vec<u32>, String)>,
    pub(crate) operations: [u64; 8],
}

/// A random life of up to three sequences at a time. `beside` another, it does nothing whose outcome depends on the other's: exploration
/// draws are numbered over the cache, cached prefixes make room for others.
pub(crate) fn life(cache: &Cache, seed: u64, operations: usize, beside: bool) -> Result<Shown, Error> {
    let g = geometry();
    let (mut r, mut shown) = (Rng::new(seed), Shown::default());
    let mut live: Vec<(SequenceId, Model)> = Vec::new();
    for number in 0..operations {
        let kind = if live.is_empty() { 0 } else { r.below(14) };
        let at = if live.is_empty() { 0 } else { r.below(live.len()) };
        let mut did = |kind: usize| shown.operations[kind] += 1;
        match kind {
            0 if live.len() < 3 => {
                let rows = random_rows(&g, 20 + r.below(12), &mut r);
                let id = cache.create()?;
                fill(cache, id, &rows)?;
                live.push((id, rows));
                did(0);
            }
            1 if live.len() < 3 => {
                let fork = cache.fork(live[at].0)?;
                let model = live[at].1.clone();
                live.push((fork, model));
                did(1);
            }
            2 => {
                let len = live[at].1.len(&g);
                // Often into a full block that is long over.
                let cut = if r.chance(0.5) { len - r.below(len.min(20)) } else { r.below(len + 1) };
                // Cut outside, originals that are in the store alone come back for it.
                let away = r.chance(0.4);
                if away {
                    cache.swap_out(live[at].0)?;
                }
                cache.truncate(live[at].0, cut)?;
                live[at].1.truncate(&g, cut);
                if away {
                    cache.swap_in(live[at].0)?;
                }
                if cut == 0 {
                    cache.release(live[at].0)?;
                    live.swap_remove(at);
                }
                did(2);
            }
            3 if live.len() > 1 => {
                let (id, model) = live.swap_remove(at);
                assert_eq!(original_faults(cache, id, &model), 0, "operation {number}");
                cache.release(id)?;
                did(3);
            }
            4 if !beside => {
                let name = |row: &[u16]| row.iter().fold(7, |h: u32, w| h.wrapping_mul(31) ^ u32::from(*w));
                let names: Vec<u32> = live[at].1.keys[0].chunks_exact(64).map(name).collect();
                cache.publish(live[at].0, &SCOPE, names[..].into())?;
                if live.len() < 3 {
                    let (id, found) = cache.create_from(&SCOPE, names[..].into())?;
                    let mut model = live[at].1.clone();
                    model.truncate(&g, found);
                    if found == 0 {
                        cache.release(id)?;
                    } else {
                        live.push((id, model));
                    }
                }
                did(4);
            }
            5 if live.len() < 3 => {
                let mut file = Vec::new();
                cache.save(live[at].0, &SAVED, &mut file)?;
                let back = cache.restore(&SAVED, &mut &file[..])?;
                let model = live[at].1.clone();
                live.push((back, model));
                did(5);
            }
            6..=8 if live[at].1.len(&g) < 150 => {
                let rows = random_rows(&g, 1 + r.below(30), &mut r);
                let queries = random_queries(&g, rows.len(&g), &mut r);
                let policy = policy(&mut r, beside);
                for answer in step(cache, live[at].0, &rows, &queries, policy)? {
                    shown.answers.push((answer.bits(), format!("{:?}", answer.certificates)));
                }
                live[at].1.append(&rows);
                shown.operations[6] += 1;
            }
            _ => {
                if number.is_multiple_of(3) {
                    let ahead = cache.prefetch(live[at].0)?;
                    assert!(ahead.fetched + ahead.left <= ahead.wanted, "{ahead:?}");
                }
                let rows = random_rows(&g, 1, &mut r);
                let (queries, policy) = (random_queries(&g, 1, &mut r), policy(&mut r, beside));
                for answer in step(cache, live[at].0, &rows, &queries, policy)? {
                    shown.answers.push((answer.bits(), format!("{:?}", answer.certificates)));
                }
                live[at].1.append(&rows);
                shown.operations[7] += 1;
            }
        }
    }
    for (id, model) in live {
        assert_eq!(original_faults(cache, id, &model), 0);
        cache.release(id)?;
    }
    Ok(shown)
}

/// After everything was released: waits until the last record is deleted, and says what is left: pages, frames, records.
pub(crate) fn left_behind(cache: &Cache, prefixes: bool) -> [usize; 3] {
    if prefixes {
        cache.evict_prefixes(usize::MAX).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let pages = cache.live_pages();
        let spill = cache.snapshot().spill.unwrap();
        let here = spill.resident + spill.stored;
        let left = [pages, here, spill.spilled + spill.records.doomed + spill.records.putting];
        if left == [0; 3] || Instant::now() > until {
            return left;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn compare(
    name: &str,
    device: impl Fn(u64) -> SimOptions,
    seeds: u64,
    operations: usize,
    backend: &dyn Fn() -> Arc<dyn Backend>,
) {
    let (mut executed, mut failed, mut counted) = (0, 0, [0; 8]);
    let (mut spilled, mut fetched, mut most) = (0, 0, 0);
    let mut first: Option<Shown> = None;
    for seed in 0..seeds {
        let plain = Cache::new(config(SimOptions { mode: Mode::Eager, check: false })).unwrap();
        let expected = life(&plain, seed, operations, false).unwrap();
        let cache = Cache::new(spilling(device(seed), backend())).unwrap();
        let shown = life(&cache, seed, operations, false).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
        executed += shown.answers.len();
        failed += shown.answers.iter().zip(&expected.answers).filter(|(a, b)| a != b).count();
        assert_eq!(shown.answers.len(), expected.answers.len());
        shown.operations.iter().zip(&mut counted).for_each(|(n, all)| *all += n);
        let snapshot = cache.snapshot();
        let (spills, fetches) = (snapshot.spills.unwrap(), snapshot.fetches.unwrap());
        spilled += spills.done.count();
        fetched += fetches.done.sum;
        most = most.max(snapshot.class(certkv::Class::Disk).peak);
        assert_eq!((spills.failed, fetches.failed), (0, 0));
        assert_eq!(left_behind(&cache, true), [0; 3], "{name}, seed {seed}: pages, frames, records");
        assert_eq!(cache.snapshot().class(certkv::Class::Disk).reserved, 0);
        assert_eq!(cache.residue().unwrap(), 0, "bytes left in memory that nobody holds");
        assert_eq!(cache.check_report().findings(), 0, "{:?}", cache.check_report());
        first.get_or_insert(shown);
    }
    // The control: another life does not have these bits.
    let plain = Cache::new(config(SimOptions { mode: Mode::Eager, check: false })).unwrap();
    let other = life(&plain, seeds + 1, operations, false).unwrap();
    let caught = u8::from(first.is_some_and(|first| first != other));
    println!(
        "{name}: operations {counted:?}, {spilled} slots spilled, {fetched} bytes fetched, at most {most} bytes stored"
    );
    println!("GATE {name} executed={executed} failed={failed} controls={caught}/1 seed=0x0");
    assert!(failed == 0 && caught == 1);
    assert!(spilled > 100 && fetched > 0 && counted.iter().all(|n| *n > 0), "{counted:?}");
}

fn lives() -> u64 {
    std::env::var("CERTKV_SPILL_LIVES").ok().and_then(|v| v.parse().ok()).unwrap_or(4)
}

#[test]
fn spilled_originals_change_no_bit() {
    let memory: &dyn Fn() -> Arc<dyn Backend> = &|| Arc::new(MemoryStore::new(u64::MAX));
    compare("spill-life", |_| SimOptions { mode: Mode::Eager, check: true }, 2 * lives(), 120, memory);
}

#[test]
fn spilled_originals_change_no_bit_when_copies_run_late() {
    let memory: &dyn Fn() -> Arc<dyn Backend> = &|| Arc::new(MemoryStore::new(u64::MAX));
    compare(
        "spill-life-adversarial",
        |seed| SimOptions { mode: Mode::Adversarial { seed }, check: true },
        lives(),
        80,
        memory,
    );
}

#[test]
fn files_do_as_well() {
    let root = std::env::temp_dir().join(format!("certkv-spill-{}", std::process::id()));
    let number = std::cell::Cell::new(0);
    let files: &dyn Fn() -> Arc<dyn Backend> = &|| {
        number.set(number.get() + 1);
        let root = root.join(number.get().to_string());
        let config = FileConfig { root, quota: u64::MAX, durability: Default::default(), read_back: false };
        Arc::new(FileStore::open(config).unwrap())
    };
    compare("spill-life-files", |_| SimOptions { mode: Mode::Eager, check: true }, 2, 80, files);
    std::fs::remove_dir_all(&root).unwrap();
}

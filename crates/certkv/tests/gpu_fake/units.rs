//! Cached prefixes of one cache in another, by way of a store: bit for bit, or not at all.
use crate::fake_cuda::Fake;
use crate::fake_cuda::sweep::{Fault, Tally, code_for};
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Plant};
use crate::life::{self, FORMATS, LAYERS, config};
use crate::shelf::Shelf;
use crate::{alone, chosen};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::seal::digest;
use certkv::store::{Get, Put, StoreError};
use certkv::{
    Cache, Chunk, Config, Error, Geometry, Policy, PrefixScope, PrefixSecret, SaveError, SaveScope, SequenceId,
    Watermarks,
};
use certkv_testkit::generate::Rng;

const KV: usize = KV_HEADS * DIM;
const UNITS: usize = 3;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };
/// Of the store's own envelope.
const ENVELOPE: usize = certkv::store::SEAL_BYTES;
/// In front of the pages of a unit: widths and centres by layer, and that no block is without codes.
const HEAD: usize = LAYERS * (8 + 4 * KV) + 8;
const ORIGINALS: usize = 2 * KV * BLOCK * 2;
/// In front of the records of a page.
const SEAL: usize = 64;

fn tokens() -> Vec<u32> {
    (0..(UNITS * BLOCK) as u32).collect()
}

/// A cache with the units of [`tokens`].
fn published(gpu: &Gpu, compiler: &Compiler, config: GpuConfig) -> GpuCache {
    let mut cache = GpuCache::new(gpu, compiler, config).expect("a cache");
    let (id, len) = (cache.create().expect("a sequence"), UNITS * BLOCK);
    let mut r = Rng::new(3);
    let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: len }], Policy::Packed).expect("room");
    for layer in 0..LAYERS {
        let mut rows = || (0..len * KV).map(|_| r.bits() as u16 & 0xbbff).collect::<Vec<_>>();
        let (keys, values) = (rows(), rows());
        step.append_bits(layer, &keys, &values).expect("rows");
    }
    step.finish().expect("a chunk");
    cache.publish(id, &SCOPE, tokens()[..].into()).expect("prefixes are cached");
    cache.release(id).expect("a release");
    cache
}

fn export(cache: &mut GpuCache) -> Vec<Put> {
    cache.export_prefix(&SCOPE, tokens()[..].into(), 0).expect("units")
}

fn missing(cache: &GpuCache) -> Vec<Get> {
    cache.missing_prefix(&SCOPE, tokens()[..].into()).expect("prefixes are cached")
}

fn import(cache: &mut GpuCache, units: &[Get]) -> Result<usize, Error> {
    cache.import_prefix(&SCOPE, tokens()[..].into(), units).map(|tokens| tokens / BLOCK)
}

/// Units that are cached, which are forgotten, and no page is left.
fn emptied(cache: &mut GpuCache) -> usize {
    let units = cache.evict_prefixes(usize::MAX).expect("prefixes are cached");
    assert_eq!(cache.live_pages(), 0, "pages are left");
    units
}

/// Everything that a sequence over the cached units is.
fn bytes(cache: &mut GpuCache) -> Vec<u8> {
    let (id, _): (SequenceId, usize) = cache.create_from(&SCOPE, tokens()[..].into()).expect("room");
    let mut file = Vec::new();
    cache.save(id, &FILE, &mut file).expect("a file");
    cache.release(id).expect("a release");
    file
}

/// The fake with a cache that has units and an empty one.
fn pair(work: impl FnOnce(&Gpu, &Compiler, [&mut GpuCache; 2], &Shelf)) {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut one = published(&gpu, compiler, config(FORMATS[0]));
    let mut other = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("a cache");
    work(&gpu, compiler, [&mut one, &mut other], &Shelf::new());
    assert_eq!((emptied(&mut one), fake.violations()), (UNITS, 0));
}

/// One life under `faults`.
fn live(tally: &mut Tally, fake: &Fake, compiler: &Compiler, shelf: &Shelf, faults: &[Fault], how: (&str, bool)) {
    let mut wrong = Vec::new();
    kernels::begin(how.0);
    shelf.clear();
    tally.run(fake, faults, how.1, || life::travel::run(compiler, how.0, shelf, faults, &mut wrong));
    let failed = fake.last_failed();
    tally.wrong.extend(wrong.iter().map(|w| format!("{failed} ({faults:?}, {how:?}): {w}")));
}

#[test]
fn units_outlive_the_failure_of_any_call() {
    let (fake, compiler, _turn) = alone();
    let (shelf, mut all) = (Shelf::new(), Tally::default());
    let lives = [(0, false, 3, false), (1, true, 4, false), (2, true, 5, false), (0, true, 7, true)];
    let mut last = 0;
    for (format, deferred, stride, lost) in lives {
        let how = (FORMATS[format], deferred);
        live(&mut all, fake, compiler, &shelf, &[], how);
        assert!(all.wrong.is_empty(), "without a fault: {:?}", all.wrong);
        let names = fake.trace();
        let before = all.executed;
        // How caches are made is another sweep's.
        let made = names.iter().rposition(|name| *name == "cuMemAlloc_v2").unwrap_or_default();
        last = names.iter().rposition(|name| *name == "cuMemcpyHtoDAsync_v2").unwrap_or_default() as u64 + 1;
        for i in chosen(&names, stride).into_iter().filter(|i| *i > made) {
            let at = i as u64 + 1;
            let code = if lost { [700, 719, 999][i % 3] } else { code_for(names[i], at) };
            live(&mut all, fake, compiler, &shelf, &[Fault { at, code, lost }], how);
        }
        println!("{how:?}, lost {lost}: {} of {} calls", all.executed - before, names.len() - made);
    }
    all.print_wrong();
    // Another row, a sequence that nobody gives back, an error that nobody is told of.
    let swallowed = [Fault { at: last, code: 1, lost: false }];
    let planted = [(Plant::OtherRow, &[][..]), (Plant::Leak, &[]), (Plant::Swallowed, &swallowed)];
    let caught = planted.iter().filter(|(what, faults)| {
        kernels::plant(*what);
        let mut control = Tally::default();
        live(&mut control, fake, compiler, &shelf, faults, (FORMATS[0], true));
        kernels::plant(Plant::Nothing);
        !control.wrong.is_empty()
    });
    let (caught, executed, failed) = (caught.count(), all.executed, all.wrong.len());
    println!("GATE fake-driver-units executed={executed} failed={failed} controls={caught}/3 seed=0x7");
    assert!(failed == 0 && caught == 3 && executed > 200);
}

/// With watermarks a step leaves room, as on the host: what it finds free is what the mark says, until nothing is left to go.
#[test]
fn room_is_kept_ahead_of_need() {
    let (fake, compiler, _turn) = alone();
    let [kept, taken] = [Some(Watermarks { low: 3 * BLOCK, high: 5 * BLOCK }), None].map(|prefix_watermarks| {
        fake.reset();
        kernels::begin(FORMATS[0]);
        let gpu = Gpu::open(0).expect("the fake");
        let config = GpuConfig { prefix_watermarks, swap_tokens: 0, ..config(FORMATS[0]) };
        let mut cache = published(&gpu, compiler, config);
        // Three of eight blocks are cached units; a sequence takes three more, and one that begins.
        let id = cache.create().expect("a sequence");
        let rows = vec![0x3800; 3 * BLOCK * KV];
        for tokens in [3 * BLOCK, 1] {
            let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], Policy::Packed).expect("room");
            (0..LAYERS)
                .for_each(|layer| step.append_bits(layer, &rows[..tokens * KV], &rows[..tokens * KV]).expect("rows"));
            step.finish().expect("a step");
        }
        let units = cache.prefix_stats().expect("prefixes are cached").0;
        cache.release(id).expect("a release");
        assert_eq!((emptied(&mut cache), fake.violations()), (units, 0));
        units
    });
    assert_eq!((kept, taken), (UNITS - 3, UNITS));
}

/// Places in a unit that are looked at one by one, and some of all others.
fn places(page: usize) -> impl Iterator<Item = usize> {
    let each = (page - HEAD - 8) / LAYERS;
    let special = move |at: usize| match at.checked_sub(HEAD) {
        None => at % (8 + 4 * KV) < 16,
        Some(at) => at >= LAYERS * each || (ORIGINALS..ORIGINALS + SEAL + 16).contains(&(at % each)),
    };
    (0..page).filter(move |at| special(*at) || at % 31 == 0)
}

#[test]
fn damage_is_never_data() {
    pair(|_, _, [one, other], shelf| {
        let puts = export(one);
        shelf.put(puts.clone());
        let (mut executed, mut failed, mut last) = (0, 0, 0);
        // In the store: the seal of what lies there is the store's.
        for (unit, put) in puts.iter().enumerate() {
            let length = put.page.len();
            for at in (0..ENVELOPE).chain(places(length).map(|at| ENVELOPE + at)) {
                let flip = |record: &mut Vec<u8>| record[at] ^= 1 << (at % 8);
                shelf.change(&put.key, flip).expect("a record");
                let found = shelf.get(missing(other));
                failed += usize::from(found.len() != unit);
                executed += 1;
                if at % 64 == 0 {
                    assert_eq!(import(other, &found).expect("what is whole"), unit);
                    last = emptied(other);
                }
                shelf.change(&put.key, flip).expect("a record");
            }
            assert_eq!(last, unit);
        }
        // On its way there: the unit's own digest tells, and the seals of its records.
        let (mut refused, mut seals) = (0, 0);
        let each = (puts[0].page.len() - HEAD - 8) / LAYERS;
        for at in places(puts[0].page.len()) {
            let unit = at % UNITS;
            for forged in [false, true] {
                let in_page = at.checked_sub(HEAD).filter(|at| *at < LAYERS * each).map(|at| at % each);
                // With a new digest the centres and originals are as good as any.
                if forged && in_page.is_none_or(|at| at < ORIGINALS) {
                    continue;
                }
                let mut damaged = puts[unit].clone();
                damaged.page[at] ^= 1 << (at % 8);
                if forged {
                    seal_anew(&mut damaged.page);
                }
                shelf.put(vec![damaged]);
                let found = shelf.get(missing(other));
                assert_eq!(found.len(), UNITS, "the store knows nothing of it");
                match import(other, &found) {
                    Err(Error::Save(SaveError::Damaged { section: "unit" })) if !forged => refused += 1,
                    Err(Error::Save(SaveError::Malformed { section: "block", .. })) if forged => seals += 1,
                    result => panic!("byte {at} of unit {unit}, forged: {forged}: {result:?}"),
                }
                executed += 1;
                failed += usize::from(emptied(other) != unit);
                shelf.put(vec![puts[unit].clone()]);
            }
        }
        // Other lengths, with right digests.
        for cut in [0, 4, HEAD - 1, HEAD, HEAD + each, puts[1].page.len() - 9, puts[1].page.len()] {
            let mut damaged = puts[1].clone();
            damaged.page.resize(cut, 0);
            damaged.page.extend([0; 8]);
            seal_anew(&mut damaged.page);
            shelf.put(vec![damaged]);
            let result = import(other, &shelf.get(missing(other)));
            assert!(matches!(result, Err(Error::Save(SaveError::Malformed { section: "unit", .. }))), "{result:?}");
            assert_eq!(emptied(other), 1);
            executed += 1;
        }
        shelf.put(puts.clone());
        assert_eq!(import(other, &shelf.get(missing(other))).expect("whole units"), UNITS);
        assert!(bytes(one) == bytes(other), "another sequence");
        emptied(other);
        // Controls: a forged original and a forged centre are data of another sequence, and that is seen.
        let mut caught = 0;
        for at in [HEAD + 5, 12] {
            let mut forged = puts.clone();
            for put in &mut forged {
                put.page[at] ^= 1;
                seal_anew(&mut put.page);
            }
            shelf.put(forged);
            assert_eq!(import(other, &shelf.get(missing(other))).expect("as good as any"), UNITS);
            caught += usize::from(bytes(one) != bytes(other));
            emptied(other);
        }
        println!("GATE gpu-units-damage executed={executed} failed={failed} controls={caught}/2 seed=0x3");
        assert!(failed == 0 && caught == 2 && refused > 1000 && seals > 300, "{refused} {seals}");
    });
}

/// The digest at the end of a unit, as of what is before it.
fn seal_anew(page: &mut [u8]) {
    let (all, last) = page.split_last_chunk_mut::<8>().expect("a digest");
    *last = digest(all).to_le_bytes();
}

#[test]
fn units_of_another_place_are_refused() {
    pair(|gpu, compiler, [one, other], shelf| {
        let puts = export(one);
        assert_eq!((puts.len(), export(other).len()), (UNITS, 0));
        assert_eq!(one.export_prefix(&SCOPE, tokens()[..].into(), 2).expect("a unit"), puts[2..]);
        shelf.put(puts.clone());
        let mut found = shelf.get(missing(other));
        let mut refused = |units: &[Get], left| {
            let result = import(other, units);
            assert!(matches!(result, Err(Error::Save(SaveError::Malformed { section: "unit", .. }))), "{result:?}");
            assert_eq!(emptied(other), left);
        };
        found.swap(1, 2);
        refused(&found, 1);
        found.swap(1, 2);
        refused(&found[1..], 0);
        refused(&[found[0].clone(), found[1].clone(), found[1].clone()], 2);
        let unread = missing(one.evict_prefixes(0).map(|_| &*one).expect("prefixes are cached"));
        assert!(unread.is_empty());
        // Exchanged in the store.
        let taken = [0, 1].map(|i| shelf.change(&puts[i].key, |record| record.clone()).expect("a record"));
        let [first, second] = taken;
        shelf.change(&puts[0].key, |record| *record = second).expect("a record");
        shelf.change(&puts[1].key, |record| *record = first).expect("a record");
        let answers = shelf.answers(missing(other));
        assert!(answers[..2].iter().all(|(_, result)| matches!(result, Err(StoreError::Corrupt { .. }))));
        // A get that the store refused has no page.
        let gets: Vec<Get> = answers.into_iter().map(|(get, _)| get).collect();
        assert!(matches!(import(other, &gets), Err(Error::Save(SaveError::Malformed { .. }))));
        shelf.put(puts);
        // Another secret, format, tenant or model: other names, nothing there, and what is there is refused.
        let named = |change: fn(&mut GpuConfig), format: &str| {
            let mut config = config(format);
            change(&mut config);
            GpuCache::new(gpu, compiler, config).expect("a cache")
        };
        let secret = |config: &mut GpuConfig| {
            config.prefixes.as_mut().expect("cached").secret = PrefixSecret::new([2; 32]);
        };
        let strangers = [
            (named(secret, FORMATS[0]), SCOPE),
            (named(|_| (), FORMATS[1]), SCOPE),
            (named(|_| (), FORMATS[0]), PrefixScope { domain: b"other", ..SCOPE }),
            (named(|_| (), FORMATS[0]), PrefixScope { model: b"other", ..SCOPE }),
        ];
        for (mut stranger, scope) in strangers {
            let wanted = stranger.missing_prefix(&scope, tokens()[..].into()).expect("names");
            assert_eq!((wanted.len(), shelf.get(wanted).len()), (UNITS, 0));
            let result = stranger.import_prefix(&scope, tokens()[..].into(), &found);
            assert!(matches!(result, Err(Error::Save(SaveError::Malformed { section: "unit", .. }))), "{result:?}");
            assert_eq!(emptied(&mut stranger), 0);
        }
        // The control: the right one takes them.
        assert_eq!((import(other, &found).expect("units"), emptied(other)), (UNITS, UNITS));
    });
}

#[test]
fn a_machine_refuses_the_other_ones_units() {
    pair(|_, _, [one, other], shelf| {
        let gpu = config(FORMATS[0]);
        let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM).expect("a geometry");
        let host = Config { prefixes: gpu.prefixes, ..Config::new(geometry, 8 * BLOCK) };
        let host = Cache::new(host.with_format(FORMATS[0].parse().expect("a format"))).expect("a cache");
        let (id, all) = (host.create().expect("a sequence"), tokens());
        let mut step = host.begin(&[Chunk { sequence: id, tokens: all.len() }]).expect("room");
        let rows: Vec<f32> = (0..all.len() * KV).map(|i| (i % 17) as f32).collect();
        (0..LAYERS).for_each(|layer| step.append(layer, &rows, &rows).expect("rows"));
        step.finish().expect("a chunk");
        host.publish(id, &SCOPE, all[..].into()).expect("prefixes are cached");
        shelf.put(host.export_prefix(&SCOPE, all[..].into(), 0).expect("units"));
        shelf.put(export(one));
        host.release(id).expect("a release");
        assert_eq!(host.evict_prefixes(9).expect("units"), UNITS);
        // Both lie there, each for its own kind.
        let of_host = shelf.get(host.missing_prefix(&SCOPE, all[..].into()).expect("names"));
        let of_gpu = shelf.get(missing(other));
        assert_eq!((of_host.len(), of_gpu.len()), (UNITS, UNITS));
        let differs = |result: Result<usize, Error>, there: &str, from: &str| {
            let Err(Error::Save(SaveError::Differs { what, file, here })) = result else { panic!("{result:?}") };
            assert_eq!((&what[..], &file[..], &here[..]), ("order", there, from));
        };
        differs(import(other, &of_host), "rows", "fragments-2");
        differs(host.import_prefix(&SCOPE, all[..].into(), &of_gpu), "fragments-2", "rows");
        assert_eq!((emptied(other), host.live_pages()), (0, 0));
        // The control: each takes its own.
        assert_eq!(import(other, &of_gpu).expect("units"), UNITS);
        assert_eq!(host.import_prefix(&SCOPE, all[..].into(), &of_host).expect("units"), all.len());
    });
}

/// Pages that a released sequence's last step still writes are filled behind it.
#[test]
fn an_import_waits_for_those_before_it() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    fake.defer(true);
    let gpu = Gpu::open(0).expect("the fake");
    let (mut one, shelf) = (published(&gpu, compiler, config(FORMATS[0])), Shelf::new());
    shelf.put(export(&mut one));
    let mut other = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("a cache");
    let id = other.create().expect("a sequence");
    for tokens in [BLOCK - 1, 1] {
        let mut step = other.begin_with(&[Chunk { sequence: id, tokens }], Policy::Packed).expect("room");
        for layer in 0..LAYERS {
            step.append_bits(layer, &vec![0x3c00; tokens * KV], &vec![0x3c00; tokens * KV]).expect("rows");
        }
        step.finish().expect("a step");
    }
    // Nobody has waited for the append that closes the block.
    other.release(id).expect("a release");
    let found = shelf.get(missing(&other));
    assert_eq!(import(&mut other, &found).expect("units"), UNITS);
    assert!(bytes(&mut one) == bytes(&mut other), "rows of the sequence before");
    assert_eq!((emptied(&mut one), emptied(&mut other), fake.violations()), (UNITS, UNITS, 0));
    fake.defer(false);
}

#[test]
fn units_without_room_stay_away() {
    pair(|gpu, compiler, [one, _], shelf| {
        shelf.put(export(one));
        let mut small = config(FORMATS[0]);
        (small.max_tokens, small.max_context) = (2 * BLOCK, 2 * BLOCK);
        let mut small = GpuCache::new(gpu, compiler, small).expect("a cache");
        let found = shelf.get(missing(&small));
        assert_eq!((import(&mut small, &found).expect("as far as it goes"), emptied(&mut small)), (2, 2));
        // A sequence that is there keeps its pages.
        let id = small.create().expect("a sequence");
        let mut step = small.begin_with(&[Chunk { sequence: id, tokens: BLOCK + 1 }], Policy::Packed).expect("room");
        (0..LAYERS).for_each(|layer| {
            let rows = vec![0; (BLOCK + 1) * KV];
            step.append_bits(layer, &rows, &rows).expect("rows");
        });
        step.finish().expect("a chunk");
        let live = small.live_pages();
        assert_eq!(import(&mut small, &found).expect("as far as it goes"), 1);
        small.evict_prefixes(9).expect("units");
        assert_eq!(small.live_pages(), live);
        let mut short = config(FORMATS[0]);
        short.max_context = BLOCK;
        let mut short = GpuCache::new(gpu, compiler, short).expect("a cache");
        assert_eq!((import(&mut short, &found).expect("as far as it goes"), emptied(&mut short)), (1, 1));
    });
}

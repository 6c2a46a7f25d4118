//! Calibrated keys on a GPU: what is refused, what every launch is told of them, and whose codes are read under which calibration.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{LAYERS, config};
use certkv::calibration::{Calibration, CalibrationError, Heads, Meter, Rule, Source};
use certkv::gpu::{Gpu, GpuCache, GpuConfig, GpuMachine};
use certkv::spherical::{Codebooks, HeadBooks, KeyHeads, Training};
use certkv::{
    Cache, Chunk, Config, Error, Geometry, Level, Pairing, Policy, PrefixScope, SaveError, SaveScope, SequenceId,
};
use certkv_codec::{KeyGroups, KeyMetric};
use certkv_core::{TURBO_BITS, Tier, tiles::gtq_tile};
use certkv_kernel::cuda::Compiler;
use certkv_kernel::cuda::metrics::metric_words;
use certkv_testkit::generate::Rng;
use std::sync::Arc;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const CODED: &str = "ctq4-v4g32-b16";
const GROUPED: &str = "gtq3-v4g32-b16";
const DIRECTED: &str = "s1-v4g32-b16";
const PLAIN: &str = "k8-v4g32-b16";
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

/// Every layer has other keys.
fn calibration(seed: u64, model: u8) -> Arc<Calibration> {
    let heads = Heads {
        layers: LAYERS,
        q_heads: GROUP * KV_HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        rotary: DIM,
        pairing: Pairing::Half,
    };
    let (mut meter, mut r) = (Meter::new(heads).expect("heads"), Rng::new(seed));
    let tokens = Meter::LEAST_TOKENS as usize;
    for layer in 0..LAYERS {
        let mut rows =
            |width: usize, mean: f32| (0..tokens * width).map(|_| r.normal() as f32 + mean).collect::<Vec<_>>();
        let (queries, keys) = (rows(Q, 0.0), rows(KV, 1.0 + layer as f32));
        meter.add(layer, &queries, &keys).expect("rows");
    }
    let (seen, tokens) = meter.finish().expect("tokens enough");
    let source = Source { model: [model; 32], text: [0; 32], tokens };
    Arc::new(Calibration::choose(heads, source, Rule::new(4 * heads.pairs()), seen).expect("a rule that fits"))
}

fn with(formats: [&str; LAYERS], calibration: &Arc<Calibration>) -> GpuConfig {
    let formats = formats.map(|f| f.parse().expect("a format")).to_vec();
    GpuConfig { formats, ..config(PLAIN) }.with_calibration(Arc::clone(calibration))
}

/// Directions that every layer and head has others of.
fn codebooks(seed: u64, model: u8, tier: Tier) -> Arc<Codebooks> {
    let (mut r, heads) = (Rng::new(seed), KeyHeads { layers: LAYERS, kv_heads: KV_HEADS, head_dim: DIM });
    let mut word = |_| {
        let word = r.normals(tier.group());
        let length = word.iter().map(|x| x * x).sum::<f64>().sqrt();
        word.into_iter().map(|x| (x / length) as f32).collect::<Vec<_>>()
    };
    let mut head = |_| HeadBooks {
        words: (0..DIM / tier.group() * tier.words()).flat_map(&mut word).collect(),
        loss: vec![1.0; DIM / tier.group()],
    };
    let books = (0..LAYERS * KV_HEADS).map(&mut head).collect();
    let source = Source { model: [model; 32], text: [0; 32], tokens: 4096 };
    Arc::new(Codebooks::new(heads, source, tier, Training::new(seed), books).expect("directions"))
}

/// What kernels are to be told of the spherical keys of a layer.
fn words(books: &Codebooks, layer: usize) -> Vec<u32> {
    let of = |head| books.head(layer, head).expect("a head").words.iter().map(|x| x.to_bits());
    (0..KV_HEADS).flat_map(of).collect()
}

/// What kernels are to be told of the keys of a layer of one width.
fn metrics(calibration: &Calibration, layer: usize) -> Vec<u32> {
    let of = |head| calibration.head(layer, head).expect("a head").1;
    let both = |head| [of(head).centre.clone(), of(head).balance.clone()];
    (0..KV_HEADS).flat_map(both).flatten().map(f32::to_bits).collect()
}

/// And of one of several: what a cache on a CPU codes them by, as kernels have it.
fn tables(calibration: &Calibration, layer: usize, halves: usize) -> Vec<u32> {
    let heads = calibration.heads();
    let of = |head| {
        let bits = calibration.tiled(layer, head, gtq_tile(BLOCK) / 2, halves * heads.pairs() / 2, TURBO_BITS);
        let groups = KeyGroups::new(&bits.expect("widths"), heads.pairing, heads.rotary).expect("groups");
        let scheme = calibration.head(layer, head).expect("a head").1;
        let scale = groups.weighted(&scheme.balance);
        let metric = KeyMetric::new(&scheme.centre, &scale).and_then(|metric| metric.grouped(&groups));
        metric_words(metric.expect("a metric"))
    };
    (0..KV_HEADS).flat_map(of).collect()
}

/// Two blocks by one chunk, attended as a chunk, and then a step.
fn lived(cache: &mut GpuCache, policy: Policy) -> SequenceId {
    let (id, mut r) = (cache.create().expect("a sequence"), Rng::new(5));
    for tokens in [2 * BLOCK, BLOCK, 1] {
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], policy).expect("room");
        for layer in 0..LAYERS {
            let mut rows = || (0..tokens * KV).map(|_| r.bits() as u16 & 0xbbff).collect::<Vec<_>>();
            let (keys, values) = (rows(), rows());
            step.append_bits(layer, &keys, &values).expect("rows");
            step.attend(layer, &vec![0.25; tokens * Q]).expect("attention");
        }
        step.finish().expect("the end");
    }
    id
}

#[test]
fn a_calibration_is_there_if_and_only_if_a_format_needs_it() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let refused = |config: GpuConfig| GpuCache::new(&gpu, compiler, config).map(|_| ()).expect_err("refused");
    let mine = calibration(1, 0);
    for (config, says) in [
        (config(CODED), CODED),
        (config(PLAIN).with_calibration(Arc::clone(&mine)), "None"),
        (GpuConfig { calibration: None, ..with([PLAIN, CODED], &mine) }, CODED),
    ] {
        match refused(config) {
            Error::Config { field: "calibration", why } => assert!(why.contains(says), "{why}"),
            other => panic!("{other}"),
        }
    }
    for (what, geometry) in [
        ("layers", Geometry::new(LAYERS + 1, GROUP * KV_HEADS, KV_HEADS, DIM)),
        ("q_heads", Geometry::new(LAYERS, 2 * GROUP * KV_HEADS, KV_HEADS, DIM)),
        ("kv_heads", Geometry::new(LAYERS, GROUP * KV_HEADS, 2 * KV_HEADS, DIM)),
        ("head_dim", Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, 2 * DIM)),
    ] {
        let formats = vec![CODED.parse().expect("a format")];
        let error = refused(GpuConfig { geometry: geometry.expect("a geometry"), formats, ..with([CODED; 2], &mine) });
        let Error::Calibration(CalibrationError::OtherHeads { what: found, .. }) = error else { panic!("{error}") };
        assert_eq!(found, what);
    }
    // Spherical keys have directions of their tier.
    let books = |tier| with([DIRECTED, CODED], &mine).with_codebooks(codebooks(1, 0, tier));
    for (config, says) in [(with([DIRECTED, CODED], &mine), DIRECTED), (books(Tier::B3), "tier b3, where s1 needs b1")]
    {
        let Error::Config { field: "codebooks", why } = refused(config) else { panic!("not the codebooks") };
        assert!(why.contains(says), "{why}");
    }
    assert!(GpuCache::new(&gpu, compiler, books(Tier::B1)).is_ok());
    assert!(GpuCache::new(&gpu, compiler, with(["ctq5-tq6-b16"; 2], &mine)).is_ok());
    // What it takes is reserved, and it has the name that it has on a CPU.
    let plan = |config: &GpuConfig| config.plan(GpuMachine::H200).expect("a plan").device.bytes;
    let cache = GpuCache::new(&gpu, compiler, with([CODED; 2], &mine)).expect("a cache");
    assert!(plan(&with([CODED; 2], &mine)) >= plan(&config("tq4-v4g32-b16")) + LAYERS * KV_HEADS * 2 * DIM * 4);
    let geometry = *cache.geometry();
    let host = Config::new(geometry, 64).with_format(CODED.parse().expect("a format")).with_calibration(mine);
    assert_eq!(cache.calibration(), Cache::new(host).expect("a cache").calibration());
    drop(cache);
    assert_eq!(GpuCache::new(&gpu, compiler, config(PLAIN)).expect("a cache").calibration(), None);
}

#[test]
fn every_launch_is_told_of_the_keys_of_its_layer() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (gpu, mine) = (Gpu::open(0).expect("the fake"), calibration(1, 0));
    let own = [metrics(&mine, 0), metrics(&mine, 1)];
    let grouped = [tables(&mine, 0, 6), tables(&mine, 1, 8)];
    let of_table = grouped[0].len() / KV_HEADS;
    assert!(own[0] != own[1] && grouped[0] != grouped[1] && of_table > 2 * DIM);
    for (words, formats, want) in [
        (2 * DIM, [CODED; 2], own.clone()),
        (2 * DIM, [CODED, PLAIN], [own[0].clone(), Vec::new()]),
        (2 * DIM, [PLAIN, "ctq3-tq3-b16"], [Vec::new(), own[1].clone()]),
        (of_table, [GROUPED, "gtq4-tq3-b16"], grouped.clone()),
        (of_table, [PLAIN, "gtq4-v4g32-b16"], [Vec::new(), grouped[1].clone()]),
    ] {
        told_of(&gpu, compiler, (with(formats, &mine), words), &want);
    }
    // Spherical keys in all layers, and in one beside plain ones.
    let (books, per_head) = (codebooks(3, 0, Tier::B1), DIM << Tier::B1.bits());
    let own = [words(&books, 0), words(&books, 1)];
    let formats = [DIRECTED; 2].map(|f| f.parse().expect("a format")).to_vec();
    let directed = GpuConfig { formats, ..config(PLAIN) }.with_codebooks(Arc::clone(&books));
    told_of(&gpu, compiler, (directed.clone(), per_head), &own);
    let formats = [DIRECTED, PLAIN].map(|f| f.parse().expect("a format")).to_vec();
    let beside = GpuConfig { formats, ..directed.clone() };
    told_of(&gpu, compiler, (beside, per_head), &[own[0].clone(), Vec::new()]);
    assert_eq!(fake.violations(), 0);
    let plan = |config: &GpuConfig| config.plan(GpuMachine::H200).expect("a plan").device.bytes;
    assert!(plan(&directed) >= LAYERS * KV_HEADS * per_head * 4);
}

/// A life of a cache, every launch of which is told of the keys of its layer: so many `words` a head.
fn told_of(gpu: &Gpu, compiler: &Compiler, (config, words): (GpuConfig, usize), want: &[Vec<u32>; LAYERS]) {
    kernels::begin(Box::leak(config.formats[0].to_string().into_boxed_str()));
    kernels::watch_metrics(words);
    let formats = config.formats.clone();
    let mut cache = GpuCache::new(gpu, compiler, config).expect("a cache");
    lived(&mut cache, Policy::Packed);
    lived(&mut cache, Policy::default());
    let told = kernels::watched_metrics();
    for kernel in ["attend", "close", "pack", "extend"] {
        let mut said: Vec<&[u32]> = told.iter().filter(|t| t.0 == kernel).map(|t| &t.1[..]).collect();
        // Repairs and plans go over a layer again.
        said.dedup();
        assert!(said.len() >= 2, "{kernel}: {} launches", said.len());
        for (said, want) in said.iter().zip(want.iter().cycle()) {
            assert_eq!(said, want, "{kernel}, {formats:?}");
        }
    }
}

/// Layers of one width and of several have what they are told of at places of their own.
#[test]
fn keys_of_one_width_stand_beside_those_of_several() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (gpu, mine) = (Gpu::open(0).expect("the fake"), calibration(1, 0));
    kernels::begin(CODED);
    kernels::watch_metrics(2 * DIM);
    let mut cache = GpuCache::new(&gpu, compiler, with([CODED, GROUPED], &mine)).expect("a cache");
    lived(&mut cache, Policy::Packed);
    let told = kernels::watched_metrics();
    let own = [metrics(&mine, 0), tables(&mine, 1, 6)[..KV_HEADS * 2 * DIM].to_vec()];
    let said: Vec<&[u32]> = told.iter().filter(|told| told.0 == "close").map(|told| &told.1[..]).collect();
    assert!(said.len() >= 2 && said.iter().zip(own.iter().cycle()).all(|(said, want)| said == want));
    let plan = |formats| with(formats, &mine).plan(GpuMachine::H200).expect("a plan").device.bytes;
    assert!(plan([GROUPED; 2]) >= LAYERS * 4 * tables(&mine, 0, 6).len());
    assert_eq!(fake.violations(), 0);
}

/// Layers of two tiers are told of the directions of theirs.
#[test]
fn keys_of_one_tier_stand_beside_those_of_another() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let per_head = DIM << Tier::B3.bits();
    kernels::begin(DIRECTED);
    kernels::watch_metrics(per_head);
    let formats = [DIRECTED, "s3-v4g32-b16"].map(|f| f.parse().expect("a format")).to_vec();
    let books = [Tier::B3, Tier::B1].map(|tier| codebooks(5, 0, tier));
    let lacking = GpuConfig { formats, ..config(PLAIN) }.with_codebooks(Arc::clone(&books[0]));
    let refused = GpuCache::new(&gpu, compiler, lacking.clone()).map(drop);
    assert!(matches!(refused, Err(Error::Config { field: "codebooks", why }) if why.contains("s1 needs b1")));
    let mut cache = GpuCache::new(&gpu, compiler, lacking.with_codebooks(Arc::clone(&books[1]))).expect("a cache");
    lived(&mut cache, Policy::Packed);
    let told = kernels::watched_metrics();
    let own = [words(&books[1], 0)[..KV_HEADS * per_head].to_vec(), words(&books[0], 1)];
    let said: Vec<&[u32]> = told.iter().filter(|told| told.0 == "close").map(|told| &told.1[..]).collect();
    assert!(said.len() >= 2 && said.iter().zip(own.iter().cycle()).all(|(said, want)| said == want));
    assert_eq!(fake.violations(), 0);
}

#[test]
fn codes_are_read_under_their_calibration_alone() {
    let (fake, compiler, _turn) = alone();
    for coded in [CODED, GROUPED, DIRECTED] {
        fake.reset();
        read_under_one_calibration(compiler, coded);
        assert_eq!(fake.violations(), 0);
    }
}

fn read_under_one_calibration(compiler: &Compiler, coded: &'static str) {
    kernels::begin(coded);
    let gpu = Gpu::open(0).expect("the fake");
    let open = |seed, model| {
        let config = if coded == DIRECTED {
            let formats = [coded, PLAIN].map(|f| f.parse().expect("a format")).to_vec();
            GpuConfig { formats, ..config(PLAIN) }.with_codebooks(codebooks(seed, model, Tier::B1))
        } else {
            with([coded, PLAIN], &calibration(seed, model))
        };
        GpuCache::new(&gpu, compiler, config).expect("a cache")
    };
    let (mut one, mut same) = (open(1, 0), open(1, 0));
    let id = lived(&mut one, Policy::Packed);
    one.swap_out(id).expect("room");
    one.swap_in(id).expect("room");
    let tokens: Vec<u32> = (0..3 * BLOCK as u32).collect();
    one.publish(id, &SCOPE, tokens[..].into()).expect("prefixes are cached");
    let mut file = Vec::new();
    one.save(id, &FILE, &mut file).expect("a file");
    let text = String::from_utf8_lossy(&file).into_owned();
    assert!(text.contains(one.calibration().expect("a name")));
    let back = same.restore(&FILE, &mut &file[..]).expect("the same calibration");
    let mut again = Vec::new();
    same.save(back, &FILE, &mut again).expect("a file");
    assert!(file == again, "another file");
    let names = |cache: &GpuCache| -> Vec<_> {
        let gets = cache.missing_prefix(&SCOPE, tokens[..].into()).expect("prefixes are cached");
        gets.iter().map(|get| get.key()).collect()
    };
    let wanted = names(&same);
    assert_eq!(wanted.len(), 3);
    // Of another text, or of another model that happens to have the same rows.
    for (seed, model) in [(9, 0), (1, 1)] {
        let mut other = open(seed, model);
        match other.restore(&FILE, &mut &file[..]) {
            Err(Error::Save(SaveError::Differs { what, file, here })) => {
                assert_eq!((what.as_str(), Some(file.as_str())), ("calibration", one.calibration()));
                assert_eq!(Some(here.as_str()), other.calibration());
            }
            refused => panic!("{refused:?}"),
        }
        assert_eq!(other.live_pages(), 0);
        assert!(names(&other).iter().all(|name| !wanted.contains(name)));
    }
    // Units end with their seals, which hold the number of the calibration where a layer's codes depend on it.
    let unit = one.export_prefix(&SCOPE, tokens[..].into(), 0).expect("units").remove(0);
    let seals: Vec<u64> = unit
        .page
        .windows(8)
        .enumerate()
        .filter(|(_, eight)| *eight == b"CERTKVP1")
        .map(|(at, _)| u64::from_le_bytes(*unit.page[at + 40..].first_chunk().expect("a seal")))
        .collect();
    let plain: Vec<u64> = one.layouts().iter().map(certkv::seal::format_id).collect();
    assert_eq!(seals.len(), LAYERS);
    assert!(seals[0] != plain[0] && seals[1] == plain[1]);
}

/// Of keys whose levels have widths of their own every launch is told those of its level.
#[test]
fn levels_are_told_of_their_own_keys() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin("gtq4-tq4-b16");
    let (gpu, calibration) = (Gpu::open(0).expect("the fake"), calibration(21, 1));
    let level = |format: &str| Level { format: format.parse().expect("a format"), tokens: 8 * BLOCK };
    let plain = GpuConfig { prefixes: None, swap_tokens: 0, chunk_tokens: 0, ..config(PLAIN) };
    let leveled = plain.with_levels(vec![level("gtq4-tq4-b16"), level("gtq2-tq2-b16")]);
    let refused = GpuCache::new(&gpu, compiler, leveled.clone()).map(drop);
    assert!(matches!(refused, Err(Error::Config { field: "calibration", .. })), "{refused:?}");
    let config = leveled.with_calibration(Arc::clone(&calibration));
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let want: Vec<[Vec<u32>; 2]> =
        (0..LAYERS).map(|layer| [8, 4].map(|halves| tables(&calibration, layer, halves))).collect();
    assert!(want.iter().all(|[first, second]| first != second && first.len() == second.len()));
    let id = lived(&mut cache, Policy::Packed);
    cache.synchronize().expect("the fake");
    kernels::watch_metrics(want[0][0].len() / KV_HEADS);
    cache.change_level(id, 1, 0, 1).expect("a page");
    let rows = vec![0.5; KV];
    let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], Policy::Packed).expect("a step");
    for layer in 0..LAYERS {
        step.append(layer, &rows, &rows).expect("rows");
        step.attend(layer, &rows.repeat(GROUP)).expect("outputs");
    }
    step.finish().expect("the end");
    cache.synchronize().expect("the fake");
    let told = kernels::watched_metrics();
    let of = |kernel| told.iter().filter(move |(name, _)| *name == kernel).map(|(_, words)| words);
    assert!(of("pack").eq([&want[1][1]]), "the level that the block gets");
    assert!(of("attend").eq(want.iter().flatten()), "both levels of every layer");
}

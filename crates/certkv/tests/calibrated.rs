//! Calibrated keys in a cache: outputs within their bounds under every policy, tighter bounds where keys have an offset, and codes
//! that are never read under another calibration.
mod common;

use certkv::calibration::{Calibration, CalibrationError, Heads};
use certkv::spherical::{Codebooks, KeyHeads};
use certkv::store::{Get, MemoryStore, Outcome, Store, StoreConfig};
use certkv::{
    Cache, Config, Dtype, Error, Geometry, Mode, Pairing, Policy, PrefixConfig, PrefixScope, PrefixSecret, SaveError,
    SaveScope, SequenceId, SimOptions, Status, Tier, Window,
};
use certkv_testkit::calibrate::{calibration, codebooks};
use certkv_testkit::generate::Rng;
use common::{Model, decode_faults, fill, original_faults, random_queries, step};
use std::sync::Arc;
use std::time::Duration;

const SCOPE: SaveScope<'_> = SaveScope { model: b"weights 7", key: None };
const PREFIX: PrefixScope<'_> = PrefixScope::new(b"us", b"weights 7");

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

/// Keys with a loud mean and channels of unlike size.
fn rows(tokens: usize, r: &mut Rng) -> Model {
    let mut rows = common::random_rows(&geometry(), tokens, r);
    for (i, bits) in rows.keys.iter_mut().flatten().enumerate() {
        let c = i % 64;
        let x = f64::from(Dtype::F16.decode16(*bits)) * if c.is_multiple_of(8) { 2.0 } else { 0.3 };
        *bits = Dtype::F16.encode16((x + if c % 16 == 5 { 6.0 } else { 0.0 }) as f32);
    }
    rows
}

/// Rows that the newest token sees.
fn visible(model: &Model, window: Window) -> Model {
    let (mut seen, width, len) = (Model::new(&geometry()), geometry().kv_width(), model.len(&geometry()));
    for (to, from) in [(&mut seen.keys, &model.keys), (&mut seen.values, &model.values)] {
        for (to, from) in to.iter_mut().zip(from) {
            for (t, row) in from.chunks_exact(width).enumerate() {
                if t < window.sinks || t + window.tokens > len - 1 {
                    to.extend_from_slice(row);
                }
            }
        }
    }
    seen
}

/// A calibration of such rows.
fn calibrated(seed: u64, model: u8) -> Arc<Calibration> {
    let (mut r, g) = (Rng::new(seed), geometry());
    let keys: Vec<f32> = rows(200, &mut r).keys[0].iter().map(|bits| Dtype::F16.decode16(*bits)).collect();
    Arc::new(calibration(&g, &keys, &random_queries(&g, 200, &mut r), model))
}

fn config(format: &str) -> Config {
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { device, ..Config::new(geometry(), 600).with_format(format.parse().unwrap()) }
}

/// Codebooks trained on such rows.
fn trained(tier: Tier, seed: u64, model: u8) -> Arc<Codebooks> {
    let rows = rows(200, &mut Rng::new(seed));
    let keys: Vec<f32> = rows.keys[0].iter().map(|bits| Dtype::F16.decode16(*bits)).collect();
    Arc::new(codebooks(&geometry(), tier, &keys, model))
}

/// A configuration with what its formats need.
fn under(mut config: Config, seed: u64, model: u8) -> Config {
    let formats = config.formats.iter().chain(config.levels.iter().map(|level| &level.format));
    let keys: Vec<_> = formats.map(|format| format.key).filter(|key| key.is_calibrated()).collect();
    config.calibration = keys.iter().find(|key| key.tier().is_none()).map(|_| calibrated(seed, model));
    let tiers = Tier::ALL.into_iter().filter(|tier| keys.iter().any(|key| key.tier() == Some(*tier)));
    config.codebooks = tiers.map(|tier| trained(tier, seed, model)).collect();
    config
}

fn with(format: &str) -> Config {
    under(config(format), 1, 0)
}

fn saved(cache: &Cache, id: SequenceId) -> Vec<u8> {
    let mut bytes = Vec::new();
    cache.save(id, &SCOPE, &mut bytes).unwrap();
    bytes
}

/// The one outcome of what was submitted.
fn outcome(store: &Store) -> Outcome {
    assert!(store.wait_timeout(Duration::from_secs(20)), "the store does not answer");
    let mut done = Vec::new();
    store.drain_completions(&mut done);
    done.remove(0).outcome
}

/// A sequence of `tokens` tokens, the last few decoded.
fn lived(cache: &Cache, tokens: usize, r: &mut Rng) -> (SequenceId, Model) {
    let (id, mut model) = (cache.create().unwrap(), rows(tokens - 5, r));
    fill(cache, id, &model).unwrap();
    for _ in 0..5 {
        let row = rows(1, r);
        step(cache, id, &row, &random_queries(&geometry(), 1, r), cache.policy()).unwrap();
        model.append(&row);
    }
    (id, model)
}

#[test]
fn outputs_are_within_their_bounds_under_every_policy_and_window() {
    let (mut r, mut checked) = (Rng::new(2), 0);
    let windows = [None, Some(Window { tokens: 70, sinks: 5, slack: None, chunk: 300 })];
    for (format, window) in [
        ("ctq4-v4g32-b32", 0),
        ("ctq3-tq4-b16", 0),
        ("ctq6-f16-b64", 1),
        ("ctq1-v4g32-b16", 1),
        ("gtq3-tq3-b32", 0),
        ("gtq2-v4g32-b16", 1),
        ("gtq4.5-f16-b64", 0),
        ("s1-tq3-b64", 0),
        ("s2-f16-b32", 1),
        ("s3-v4g32-b16", 0),
    ] {
        let mut config = Config { scratch_keys: 8, ..with(format) };
        config.windows = windows[window].into_iter().map(Some).collect();
        let cache = Cache::new(config).unwrap();
        let (id, mut model) = lived(&cache, 210, &mut r);
        let fork = cache.fork(id).unwrap();
        for i in 0..40 {
            let policy = if i % 5 == 0 { Policy::Packed } else { Policy::default() };
            let (row, queries) = (rows(1, &mut r), random_queries(&geometry(), 1, &mut r));
            let answers = step(&cache, id, &row, &queries, policy).unwrap();
            model.append(&row);
            let seen = windows[window].map_or_else(|| model.clone(), |window| visible(&model, window));
            for (layer, answer) in answers.iter().enumerate() {
                let exact = seen.attend(&geometry(), layer, seen.len(&geometry()), &queries);
                if policy == Policy::Packed {
                    for (h, c) in answer.certificates.iter().enumerate() {
                        let got: Vec<f64> = answer.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                        let error = certkv_testkit::oracle::distance(&exact[h], &got);
                        assert!(c.status == Status::Uncertified && error <= c.bound(), "{format}: {error} {c:?}");
                        checked += 1;
                    }
                } else {
                    assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, 0.05), 0, "{format} {i}");
                    checked += answer.certificates.len();
                }
            }
        }
        if window == 0 {
            assert_eq!(original_faults(&cache, id, &model), 0);
        }
        cache.truncate(fork, 190).unwrap();
        [id, fork].into_iter().for_each(|id| cache.release(id).unwrap());
        assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
    }
    println!("{checked} outputs checked");
    assert!(checked > 1200);
}

#[test]
fn bounds_are_tighter_than_those_of_plain_codes() {
    let mean = |config: Config| {
        let (cache, mut r) = (Cache::new(config).unwrap(), Rng::new(5));
        let (id, _) = lived(&cache, 300, &mut r);
        let mut sum = 0.0;
        for _ in 0..10 {
            let queries = random_queries(&geometry(), 1, &mut r).iter().map(|x| 0.02 * x).collect::<Vec<_>>();
            let answers = step(&cache, id, &rows(1, &mut r), &queries, Policy::Packed).unwrap();
            sum += answers.iter().flat_map(|a| &a.certificates).map(|c| c.e_key).sum::<f64>();
        }
        sum
    };
    let (plain, calibrated) = (mean(config("tq4-f16-b32")), mean(with("ctq4-f16-b32")));
    let grouped = mean(with("gtq4-f16-b32"));
    println!("key terms: plain {plain}, calibrated {calibrated}, in groups {grouped}");
    assert!(calibrated > 0.0 && 1.5 * calibrated < plain, "{calibrated} {plain}");
    assert!(grouped > 0.0 && grouped < calibrated, "{grouped} {calibrated}");
}

#[test]
fn a_calibration_is_there_if_and_only_if_a_format_needs_it() {
    let refused = |config: Config| Cache::new(config).map(|_| ()).unwrap_err();
    for (config, says) in [
        (config("ctq4-v4g32-b32"), "ctq4-v4g32-b32"),
        (config("gtq2.5-v4g32-b32"), "gtq2.5-v4g32-b32"),
        (config("tq4-v4g32-b32").with_calibration(calibrated(1, 0)), "None"),
        (with("s1-v4g32-b32").with_calibration(calibrated(1, 0)), "None"),
    ] {
        match refused(config) {
            Error::Config { field: "calibration", why } => assert!(why.contains(says), "{why}"),
            other => panic!("{other}"),
        }
    }
    // One layer of two needs it.
    let formats = ["tq4-v4g32-b32", "ctq4-v4g32-b32"].map(|f| f.parse().unwrap()).to_vec();
    Cache::new(Config { formats: formats.clone(), ..with("ctq4-v4g32-b32") }).unwrap();
    assert!(matches!(
        refused(Config { formats, ..config("tq4-v4g32-b32") }),
        Error::Config { field: "calibration", .. }
    ));
    for (what, geometry) in [
        ("layers", Geometry::new(3, 4, 2, 64)),
        ("q_heads", Geometry::new(2, 8, 2, 64)),
        ("kv_heads", Geometry::new(2, 4, 4, 64)),
        ("head_dim", Geometry::new(2, 4, 2, 128)),
    ] {
        for format in ["ctq4-v4g32-b32", "gtq3-v4g32-b32"] {
            let error = refused(Config { geometry: geometry.unwrap(), ..with(format) });
            let Error::Calibration(CalibrationError::OtherHeads { what: found, .. }) = error else { panic!("{error}") };
            assert!(found == what && error.to_string().starts_with("config.calibration"), "{what}: {error}");
        }
    }
    // The model is known to whoever has it.
    let heads = Heads { layers: 2, q_heads: 4, kv_heads: 2, head_dim: 64, rotary: 64, pairing: Pairing::Half };
    let mine = calibrated(1, 3);
    assert_eq!(mine.check_for(&heads, &[3; 32]), Ok(()));
    assert_eq!(mine.check_for(&heads, &[4; 32]), Err(CalibrationError::OtherModel));
    let mut bytes = mine.to_bytes();
    assert_eq!(Calibration::from_bytes(&bytes).as_ref(), Ok(&*mine));
    bytes[8] ^= 1;
    assert!(matches!(Calibration::from_bytes(&bytes), Err(CalibrationError::Version { .. })));
}

#[test]
fn codebooks_are_there_if_and_only_if_a_format_needs_them() {
    let refused = |config: Config| Cache::new(config).map(|_| ()).unwrap_err();
    for (config, says) in [
        (config("s1-v4g32-b32"), "s1-v4g32-b32 codes keys by one"),
        (config("s1-v4g32-b32").with_codebooks(trained(Tier::B2, 1, 0)), "codebooks of tier b2, where s1 needs b1"),
        (config("tq4-v4g32-b32").with_codebooks(trained(Tier::B1, 1, 0)), "no format has keys of tier b1"),
        (with("ctq4-v4g32-b32").with_codebooks(trained(Tier::B1, 1, 0)), "no format has keys of tier b1"),
        (with("s1-v4g32-b32").with_codebooks(trained(Tier::B3, 1, 0)), "no format has keys of tier b3"),
        (with("s1-v4g32-b32").with_codebooks(trained(Tier::B1, 2, 0)), "2 of tier b1"),
    ] {
        match refused(config) {
            Error::Config { field: "codebooks", why } => assert!(why.contains(says), "{why}"),
            other => panic!("{other}"),
        }
    }
    for (what, geometry) in [
        ("layers", Geometry::new(3, 4, 2, 64)),
        ("kv_heads", Geometry::new(2, 4, 4, 64)),
        ("head_dim", Geometry::new(2, 4, 2, 128)),
    ] {
        let error = refused(Config { geometry: geometry.unwrap(), ..with("s3-v4g32-b32") });
        assert!(matches!(error, Error::Calibration(CalibrationError::OtherHeads { what: found, .. }) if found == what));
    }
    // Keys do not care how many queries meet them.
    Cache::new(Config { geometry: Geometry::new(2, 8, 2, 64).unwrap(), ..with("s3-v4g32-b32") }).unwrap();
    // A file of another model or version, and directions that are none.
    let mine = trained(Tier::B3, 1, 3);
    let heads = KeyHeads { layers: 2, kv_heads: 2, head_dim: 64 };
    assert_eq!(mine.check_for(&heads, &[3; 32]), Ok(()));
    assert_eq!(mine.check_for(&heads, &[4; 32]), Err(CalibrationError::OtherModel));
    let mut bytes = mine.to_bytes();
    assert_eq!(Codebooks::from_bytes(&bytes).as_ref(), Ok(&*mine));
    bytes[8] ^= 1;
    assert!(matches!(Codebooks::from_bytes(&bytes), Err(CalibrationError::Version { .. })));
    for bad in [f32::NAN, 1.5] {
        let mut books: Vec<_> = (0..4).map(|at| mine.head(at / 2, at % 2).unwrap().clone()).collect();
        books[2].words[40] = bad;
        let refused = Codebooks::new(heads, *mine.source(), Tier::B3, *mine.training(), books).unwrap_err();
        assert_eq!(refused, CalibrationError::Number { layer: 1, head: 0, what: "directions", index: 1 });
    }
    // Levels need what their formats do, and layers may have keys of several tiers.
    let level = |f: &str| certkv::Level { format: f.parse().unwrap(), tokens: 600 };
    let leveled = config("s1-v4g32-b32").with_levels(["s1-v4g32-b32", "s3-v2g32-b32"].map(level).to_vec());
    let lacking = leveled.clone().with_codebooks(trained(Tier::B1, 1, 0));
    assert!(
        matches!(refused(lacking.clone()), Error::Config { field: "codebooks", why } if why.contains("s3 needs b3"))
    );
    let named = |config| Cache::new(config).unwrap().calibration().unwrap().to_owned();
    let (one, other) = (trained(Tier::B1, 1, 0), trained(Tier::B3, 1, 0));
    let whole = named(lacking.with_codebooks(other.clone()));
    assert_eq!(whole, named(leveled.clone().with_codebooks(other).with_codebooks(one)), "in any order");
    assert_ne!(whole, named(under(leveled, 2, 0)));
    let formats = ["s2-v4g32-b32", "s3-v4g32-b32"].map(|f| f.parse().unwrap()).to_vec();
    Cache::new(under(Config { formats, ..config("f16-f16-b32") }, 1, 0)).unwrap();
    // A layer with a calibration beside one with codebooks: the cache's name is of both.
    let both = |seed| {
        let formats = ["ctq4-v4g32-b32", "s1-v4g32-b32"].map(|f| f.parse().unwrap()).to_vec();
        Cache::new(under(Config { formats, ..config("f16-f16-b32") }, seed, 0)).unwrap()
    };
    let (cache, mut r) = (both(1), Rng::new(3));
    let digests = [certkv::calibration_digest(&calibrated(1, 0)), certkv::codebooks_digest(&trained(Tier::B1, 1, 0))];
    assert_eq!(cache.calibration().unwrap().len(), 64);
    assert!(digests.iter().all(|d| d.map(|byte| format!("{byte:02x}")).concat() != cache.calibration().unwrap()));
    assert!(both(1).calibration() == cache.calibration() && both(2).calibration() != cache.calibration());
    let (id, mut model) = lived(&cache, 150, &mut r);
    let (row, queries) = (rows(1, &mut r), random_queries(&geometry(), 1, &mut r));
    let answers = step(&cache, id, &row, &queries, Policy::default()).unwrap();
    model.append(&row);
    for (layer, answer) in answers.iter().enumerate() {
        let exact = model.attend(&geometry(), layer, model.len(&geometry()), &queries);
        assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, 0.05), 0);
    }
}

/// Widths are those of the head, the format and its block, whatever the calibration itself was asked for; a layer has its own format.
#[test]
fn every_layer_has_the_widths_of_its_format() {
    let (mut r, calibration) = (Rng::new(11), calibrated(1, 0));
    let formats = ["gtq2-tq2-b16", "gtq5-v4g32-b64"].map(|f| f.parse().unwrap()).to_vec();
    let cache =
        Cache::new(Config { formats, ..config("f16-f16-b32") }.with_calibration(Arc::clone(&calibration))).unwrap();
    let (id, _) = lived(&cache, 150, &mut r);
    for _ in 0..8 {
        let answers =
            step(&cache, id, &rows(1, &mut r), &random_queries(&geometry(), 1, &mut r), Policy::Packed).unwrap();
        let bits = |layer: usize| answers[layer].certificates.iter().map(|c| c.e_key).sum::<f64>();
        // Three bits more are worth a factor of eight; blocks are longer, though.
        assert!(bits(0) > 2.0 * bits(1), "{} {}", bits(0), bits(1));
    }
    // What `certkv calibrate --budget` chose is no matter: the name of the file is.
    let other = calibration.with_rule(certkv::calibration::Rule::new(96)).unwrap();
    let other = Cache::new(config("gtq3-tq3-b32").with_calibration(other.into())).unwrap();
    assert!(other.calibration().is_some() && other.calibration() != cache.calibration());
    for (layer, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for (tile, budget) in [(8, 96), (16, 64), (8, 80)] {
            let bits = calibration.tiled(layer, head, tile, budget, 6).unwrap();
            assert_eq!(bits.iter().map(|b| usize::from(*b)).sum::<usize>(), budget);
            assert!((1..=6).all(|w| bits.iter().filter(|b| **b == w).count().is_multiple_of(tile)), "{bits:?}");
        }
    }
    assert!(calibration.tiled(2, 0, 8, 96, 6).is_err() && calibration.tiled(0, 2, 8, 96, 6).is_err());
    assert!(calibration.tiled(0, 0, 8, 95, 6).is_err() && calibration.tiled(0, 0, 5, 96, 6).is_err());
}

#[test]
fn a_saved_sequence_goes_on_under_its_calibration_alone() {
    ["ctq4-tq4-b16", "gtq3-tq3-b32", "s1-tq3-b32"].into_iter().for_each(saved_under_its_calibration);
}

fn saved_under_its_calibration(format: &str) {
    let mut r = Rng::new(6);
    let formats = [format, "k8-v4g32-b32"].map(|f| f.parse().unwrap()).to_vec();
    let config = |seed, model| {
        under(Config { formats: formats.clone(), swap_tokens: 300, ..config("tq4-tq4-b16") }, seed, model)
    };
    let cache = Cache::new(config(1, 0)).unwrap();
    let (id, _) = lived(&cache, 130, &mut r);
    let bytes = saved(&cache, id);
    let again = Cache::new(config(1, 0)).unwrap();
    let back = again.restore(&SCOPE, &mut &bytes[..]).unwrap();
    cache.swap_out(id).unwrap();
    cache.swap_in(id).unwrap();
    for _ in 0..20 {
        let (row, queries) = (rows(1, &mut r), random_queries(&geometry(), 1, &mut r));
        let [a, b] =
            [(&cache, id), (&again, back)].map(|(c, id)| step(c, id, &row, &queries, Policy::default()).unwrap());
        for (a, b) in a.iter().zip(&b) {
            assert_eq!((a.bits(), &a.certificates), (b.bits(), &b.certificates));
        }
    }
    assert_eq!(saved(&cache, id), saved(&again, back));
    // Of another text, or of another model that happens to have the same rows: another file, and refused as such.
    for (seed, model) in [(9, 0), (1, 1)] {
        let other = Cache::new(config(seed, model)).unwrap();
        match other.restore(&SCOPE, &mut &bytes[..]) {
            Err(Error::Save(SaveError::Differs { what, file, here })) => {
                assert_eq!((what.as_str(), Some(file.as_str())), ("calibration", cache.calibration()));
                assert_eq!(Some(here.as_str()), other.calibration());
            }
            refused => panic!("{refused:?}"),
        }
        assert_eq!(other.live_pages(), 0);
    }
    // Seals say so, too, whoever forges the header.
    let page = cache.packed_page(id, 0, 0).unwrap();
    let seal = certkv::seal::Seal::read(&page).unwrap();
    assert_ne!(seal.format, certkv::seal::format_id(cache.layout(0).unwrap()));
    let plain = certkv::seal::Seal::read(&cache.packed_page(id, 1, 0).unwrap()).unwrap();
    assert_eq!(plain.format, certkv::seal::format_id(cache.layout(1).unwrap()));
}

#[test]
fn cached_prefixes_are_those_of_one_calibration() {
    ["ctq4-v4g32-b32", "gtq3-v4g32-b32", "s2-v4g32-b32"].into_iter().for_each(prefixes_of_one_calibration);
}

fn prefixes_of_one_calibration(format: &str) {
    let mut r = Rng::new(7);
    let prefixes = || PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 16, eviction: Default::default() };
    let open = |seed| {
        let config = under(config(format), seed, 0);
        Cache::new(Config { prefixes: Some(prefixes()), ..config }).unwrap()
    };
    let (one, same, other) = (open(1), open(1), open(9));
    let tokens: Vec<u32> = (0..64).collect();
    let (id, model) = (one.create().unwrap(), rows(64, &mut r));
    fill(&one, id, &model).unwrap();
    assert_eq!(one.publish(id, &PREFIX, tokens[..].into()).unwrap().cached, 64);
    let store = Store::new(Arc::new(MemoryStore::new(u64::MAX)), StoreConfig::default()).unwrap();
    let found = |wanted: Vec<Get>| -> Vec<Get> {
        store.submit_get(wanted).unwrap();
        let Outcome::Get(results) = outcome(&store) else { panic!("another outcome") };
        results.into_iter().take_while(|(_, result)| result.is_ok()).map(|(get, _)| get).collect()
    };
    store.submit_put(one.export_prefix(&PREFIX, tokens[..].into(), 0).unwrap()).unwrap();
    assert!(matches!(outcome(&store), Outcome::Put(results) if results.len() == 2));
    let units = found(same.missing_prefix(&PREFIX, tokens[..].into()).unwrap());
    // Under another calibration the same prompt has other names, and what is brought under them all the same is refused.
    let wanted = other.missing_prefix(&PREFIX, tokens[..].into()).unwrap();
    assert!(wanted.len() == 2 && wanted.iter().all(|get| units.iter().all(|unit| unit.key() != get.key())));
    assert_eq!(found(wanted).len(), 0);
    match other.import_prefix(&PREFIX, tokens[..].into(), &units) {
        Err(Error::Save(SaveError::Malformed { section: "unit", .. })) => {}
        refused => panic!("{refused:?}"),
    }
    assert_eq!(same.import_prefix(&PREFIX, tokens[..].into(), &units).unwrap(), 64);
    let [here, there] = [&one, &same].map(|cache| cache.create_from(&PREFIX, tokens[..].into()).unwrap());
    assert_eq!((here.1, there.1), (64, 64));
    for _ in 0..10 {
        let (row, queries) = (rows(1, &mut r), random_queries(&geometry(), 1, &mut r));
        let [a, b] =
            [(&one, here.0), (&same, there.0)].map(|(c, id)| step(c, id, &row, &queries, Policy::default()).unwrap());
        for (a, b) in a.iter().zip(&b) {
            assert_eq!((a.bits(), &a.certificates), (b.bits(), &b.certificates));
        }
    }
}

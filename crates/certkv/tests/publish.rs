//! Every number that docs/metrics.md names is given to the recorder, with its labels, and no other; and the numbers are right.
mod common;

use certkv::calibration::Source;
use certkv::scales::{ScaleHeads, Scales};
use certkv::{
    Cache, Certified, Class, Config, Eviction, Geometry, Policy, Pool, PrefixConfig, PrefixScope, PrefixSecret,
    SaveScope, Snapshot, Spill, store::MemoryStore,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Keeps the last value of every key.
#[derive(Debug, Default, Clone)]
struct Kept(Arc<Mutex<BTreeMap<String, (&'static str, f64)>>>);

struct Slot(Kept, String);

impl Slot {
    fn keep(&self, kind: &'static str, value: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), (kind, value));
    }
}

impl GaugeFn for Slot {
    fn increment(&self, _: f64) {
        panic!("a snapshot sets");
    }
    fn decrement(&self, _: f64) {
        panic!("a snapshot sets");
    }
    fn set(&self, value: f64) {
        self.keep("gauge", value);
    }
}

impl CounterFn for Slot {
    fn increment(&self, _: u64) {
        panic!("a snapshot sets");
    }
    fn absolute(&self, value: u64) {
        self.keep("counter", value as f64);
    }
}

impl Kept {
    /// `name key=value ...`, labels in the order of their keys.
    fn slot(&self, key: &Key) -> Arc<Slot> {
        let labels: BTreeSet<String> =
            key.labels().map(|label| format!(" {}={}", label.key(), label.value())).collect();
        Arc::new(Slot(self.clone(), key.name().to_owned() + &labels.into_iter().collect::<String>()))
    }

    fn get(&self, key: &str) -> f64 {
        self.0.lock().unwrap().get(key).unwrap_or_else(|| panic!("no {key}: {self:#?}")).1
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("{key}: histograms are published as counters");
    }
}

/// A cache with everything in it, after some work: its last snapshot.
fn worked() -> Snapshot {
    let geometry = Geometry::new(2, 4, 2, 64).unwrap();
    let prefixes = PrefixConfig { secret: PrefixSecret::new([5; 32]), units: 4, eviction: Eviction::Lru };
    let heads = ScaleHeads { layers: 2, kv_heads: 2, head_dim: 64 };
    let source = Source { model: [1; 32], text: [2; 32], tokens: 1 };
    let scales = Scales::new(heads, source, 100.0, vec![1.0; 16], vec![1.0; 16]).unwrap();
    let config = Config {
        scratch_keys: 6,
        scratch_values: 4,
        prefixes: Some(prefixes),
        device_budget: 1 << 26,
        spill: Some(Spill::new(Arc::new(MemoryStore::new(u64::MAX)), 160)),
        ..Config::new(geometry, 1024).with_format("p2-v3g32-b16".parse().unwrap()).with_scales(Arc::new(scales))
    };
    let cache = Cache::new(config).unwrap();
    let mut r = Rng::new(1);
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry, 150, &mut r)).unwrap();
    let policy = Policy::Certified(Certified { tol_rel: 0.005, ..Certified::default() });
    for _ in 0..6 {
        let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
        step(&cache, id, &rows, &queries, policy).unwrap();
    }
    let (scope, names) = (PrefixScope::new(b"tenant", b"model"), (0..150).collect::<Vec<u32>>());
    cache.publish(id, &scope, names[..].into()).unwrap();
    cache.create_from(&scope, names[..64].into()).unwrap();
    cache.fork(id).unwrap();
    let (mut file, scope) = (Vec::new(), SaveScope { model: b"model", key: None });
    cache.save(id, &scope, &mut file).unwrap();
    cache.restore(&scope, &mut &file[..]).unwrap();
    assert!(cache.restore(&scope, &mut &file[..40]).is_err());
    cache.snapshot()
}

/// The table of docs/metrics.md: name, and its labels.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    let mut table = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| `certkv_")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(str::trim).filter(|label| !label.is_empty());
        for name in cells[0].split(',').map(|name| name.trim().trim_matches('`').to_owned()) {
            let mut labels: BTreeSet<String> = labels.clone().map(str::to_owned).collect();
            labels.insert("cache".into());
            if name.ends_with("_bucket") {
                labels.insert("le".into());
            }
            assert!(table.insert(name, labels).is_none(), "{row}: named twice");
        }
    }
    table
}

fn emitted(kept: &Kept) -> BTreeMap<String, BTreeSet<String>> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for key in kept.0.lock().unwrap().keys() {
        let name = key.split(' ').next().unwrap().to_owned();
        let labels = key.match_indices('=').map(|(at, _)| key[..at].rsplit(' ').next().unwrap().to_owned()).collect();
        let before = names.insert(name.clone(), labels);
        assert!(before.is_none_or(|labels| labels == names[&name]), "{key}: labels that others of the name lack");
    }
    names
}

#[test]
fn every_documented_name_is_emitted_and_no_other() {
    let (snapshot, kept) = (worked(), Kept::default());
    metrics::with_local_recorder(&kept, || snapshot.publish("a"));
    let (told, said) = (documented(), emitted(&kept));
    assert_eq!(told, said);
    // The control: an emission that the table does not name is seen.
    GaugeFn::set(&*kept.slot(&Key::from_name("certkv_unheard_of")), 1.0);
    assert_ne!(told, emitted(&kept));
    // A cache without scratch and prefixes says nothing of them.
    let (bare, kept) = (Cache::new(Config::new(Geometry::new(1, 2, 1, 64).unwrap(), 64)).unwrap(), Kept::default());
    metrics::with_local_recorder(&kept, || bare.snapshot().publish("b"));
    assert!(emitted(&kept).keys().all(|name| !["scratch", "prefix", "spill"].iter().any(|part| name.contains(part))));
    assert!(
        !emitted(&kept).contains_key("certkv_pool_budget_bytes")
            || kept.get("certkv_pool_budget_bytes cache=b pool=disk") == 0.0
    );
}

#[test]
fn what_is_published_is_the_snapshot() {
    let (snapshot, kept) = (worked(), Kept::default());
    metrics::with_local_recorder(&kept, || snapshot.publish("a"));
    let packed = snapshot.class(Class::Packed);
    assert!(packed.used > 0 && packed.used < packed.reserved);
    assert_eq!(kept.get("certkv_bytes_used cache=a class=packed"), packed.used as f64);
    assert_eq!(kept.get("certkv_pool_budget_bytes cache=a pool=device"), (1u64 << 26) as f64);
    assert_eq!(kept.get("certkv_pool_bytes_peak cache=a pool=host"), snapshot.pool(Pool::Host).peak as f64);
    assert_eq!(kept.get("certkv_sequences cache=a state=idle"), 4.0);
    assert_eq!(kept.get("certkv_moves cache=a kind=restore result=refused"), 1.0);
    assert_eq!(kept.get("certkv_moves cache=a kind=save result=done"), 1.0);
    let saved = snapshot.saves.done.sum;
    assert_eq!(kept.get("certkv_move_bytes_sum cache=a kind=save"), saved as f64);
    assert_eq!(kept.get("certkv_move_bytes_bucket cache=a kind=save le=+Inf"), 1.0);
    // Buckets are cumulative: the one that holds the saved bytes is the first with a count.
    let upper = (saved + 1).next_power_of_two() - 1;
    assert_eq!(kept.get(&format!("certkv_move_bytes_bucket cache=a kind=save le={upper}")), 1.0);
    assert_eq!(kept.get(&format!("certkv_move_bytes_bucket cache=a kind=save le={}", upper / 2)), 0.0);
    let outputs = snapshot.outputs.unwrap();
    assert_eq!(kept.get("certkv_outputs cache=a status=certified"), outputs.certified as f64);
    assert_eq!(kept.get("certkv_outputs_by_rung cache=a rung=dense head"), outputs.by_rung[3] as f64);
}

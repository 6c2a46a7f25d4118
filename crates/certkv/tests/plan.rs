//! The plan is what is taken: the ledger's bytes to the last one, the allocator's to within 1%; and a full cache that has worked is
//! within it.
mod common;

use certkv::{
    ByClass, CLASSES, Cache, Certified, Chunk, Class, Config, Eviction, Geometry, Mode, Plan, Policy, Pool,
    PrefixConfig, PrefixScope, PrefixSecret, SequenceId, SimOptions, Snapshot, Window,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_queries, random_rows, step};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Bytes that this thread holds of the system allocator, and the most it held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // Gone while a thread ends; nothing is measured then.
    let _ = HELD.try_with(|held| {
        let now = held.get().0 + bytes;
        held.set((now, held.get().1.max(now)));
    });
}

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");
const SEED: u64 = 0x91;
const TOKENS: usize = 4096;
const SEQUENCES: usize = 3;

/// What was measured of one cache.
struct Measured {
    plan: Plan,
    /// Reserved when it was made.
    made: ByClass,
    /// When it was full and had worked.
    full: Snapshot,
    /// The most in use by class (packed, scratch, tables, host).
    used: [usize; 4],
    /// Bytes of the allocator, when it was made.
    heap: usize,
    /// Of the plan, what sequences take when they come.
    sequences: usize,
    /// Bytes of the allocator beyond the plan, at the most: what steps work with, which is not the cache's.
    work: isize,
}

impl Measured {
    /// What a plan says that is not so.
    fn faults(&self, plan: &Plan) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |right: bool, what: String| {
            if !right {
                faults.push(what);
            }
        };
        check(plan.classes == self.made, format!("planned {:?}, reserved {:?}", plan.classes, self.made));
        for (class, used) in CLASSES.into_iter().zip(self.used) {
            check(used <= plan.of(class), format!("{class}: {used} in use of {}", plan.of(class)));
        }
        let packed = (self.used[0], plan.of(Class::Packed));
        check(packed.0 == packed.1, format!("not full: {packed:?}"));
        for (pool, planned, later) in [(Pool::Device, plan.device.bytes, plan.later), (Pool::Host, plan.host.bytes, 0)]
        {
            let peak = self.full.pool(pool).peak;
            let right = peak >= planned && peak <= planned + later && peak as f64 <= planned as f64 * 1.01;
            check(right, format!("{pool}: peak {peak} of {planned} planned"));
        }
        let off = self.off(plan);
        check(off.abs() <= 0.01, format!("{} bytes allocated, {:.2}% off the plan", self.heap, 100.0 * off));
        faults
    }

    /// How far what the allocator gave is from what was planned to be taken at once.
    fn off(&self, plan: &Plan) -> f64 {
        let at_once = plan.classes.iter().sum::<usize>().saturating_sub(self.sequences);
        self.heap as f64 / at_once as f64 - 1.0
    }
}

/// Appends in chunks: what a step works with is as small beside the cache as in a server.
fn grow(cache: &Cache, id: SequenceId, tokens: usize, r: &mut Rng) {
    for _ in 0..tokens / 64 {
        fill(cache, id, &random_rows(cache.geometry(), 64, r)).unwrap();
    }
    if !tokens.is_multiple_of(64) {
        fill(cache, id, &random_rows(cache.geometry(), tokens % 64, r)).unwrap();
    }
}

fn measure(config: &Config) -> Measured {
    let plan = config.plan().unwrap();
    let mut r = Rng::new(SEED);
    let before = HELD.get().0;
    HELD.set((before, before));
    let cache = Cache::new(config.clone()).unwrap();
    let heap = (HELD.get().0 - before) as usize;
    // One sequence more takes its tables, and three pages' words.
    let wider = Config { max_sequences: config.max_sequences + 1, ..config.clone() }.plan().unwrap();
    let sequences = config.max_sequences * (wider.of(Class::Tables) - plan.of(Class::Tables));
    let made = cache.snapshot().classes.map(|class| class.reserved);
    let mut used = [0; 4];
    let mut look = |cache: &Cache| {
        let m = cache.memory();
        used.iter_mut().zip([m.packed, m.scratch, m.tables, m.host]).for_each(|(most, now)| *most = now.max(*most));
    };
    // Two sequences that end in open blocks; a fork of the first shares what is full.
    let ids = [cache.create().unwrap(), cache.create().unwrap()];
    grow(&cache, ids[0], TOKENS / 2 - 70, &mut r);
    let names: Vec<u32> = (0..TOKENS as u32).collect();
    if config.prefixes.is_some() {
        assert!(cache.publish(ids[0], &SCOPE, names[..TOKENS / 2 - 70].into()).unwrap().cached > 0);
    }
    let fork = cache.fork(ids[0]).unwrap();
    grow(&cache, ids[1], TOKENS / 2 - 70, &mut r);
    look(&cache);
    let policy = Policy::Certified(Certified { tol_rel: 0.005, row_share: 0.25, ..Certified::default() });
    for _ in 0..3 {
        for id in [ids[0], ids[1], fork] {
            let (rows, queries) =
                (random_rows(cache.geometry(), 1, &mut r), random_queries(cache.geometry(), 1, &mut r));
            step(&cache, id, &rows, &queries, policy).unwrap();
        }
        look(&cache);
    }
    cache.release(fork).unwrap();
    if config.prefixes.is_some() {
        let (again, found) = cache.create_from(&SCOPE, names[..TOKENS / 4].into()).unwrap();
        assert!(found > 0);
        look(&cache);
        cache.release(again).unwrap();
    }
    // To the last block: every page of codes is in use.
    for id in ids {
        let rest = TOKENS / 2 - cache.len(id).unwrap();
        grow(&cache, id, rest, &mut r);
        look(&cache);
    }
    let refused = cache.begin(&[Chunk { sequence: ids[0], tokens: TOKENS }]).is_err();
    assert!(refused, "there is more room than was planned");
    look(&cache);
    let work = HELD.get().1 - before - plan.classes.iter().sum::<usize>() as isize;
    Measured { plan, made, full: cache.snapshot(), used, heap, sequences, work }
}

fn configs() -> Vec<(String, Config)> {
    let shapes = [(2, 8, 2, 64), (3, 4, 2, 128), (4, 16, 4, 64)];
    let formats: [&[&str]; 4] = [&["k8-v4g64-b64"], &["k8-v8g32-b32"], &["t2-v3g32-b16"], &["f16-f16-b64"]];
    let prefixes = |units, eviction| Some(PrefixConfig { secret: PrefixSecret::new([9; 32]), units, eviction });
    let mut all = Vec::new();
    let device = SimOptions { mode: Mode::Eager, check: false };
    for (layers, q_heads, kv_heads, dim) in shapes {
        let geometry = Geometry::new(layers, q_heads, kv_heads, dim).unwrap();
        let base = Config { max_sequences: SEQUENCES, device, ..Config::new(geometry, TOKENS) };
        for format in formats {
            let Ok(parsed) = format.iter().map(|f| f.parse()).collect::<Result<Vec<_>, _>>() else { continue };
            let name = format!("{layers}x{kv_heads}x{dim} {format:?}");
            all.push((name.clone(), Config { formats: parsed.clone(), ..base.clone() }));
            let more = Config {
                formats: parsed,
                scratch_keys: 37,
                scratch_values: 8,
                prefixes: prefixes(200, Eviction::S3Fifo),
                prefix_events: 300,
                ..base.clone()
            };
            all.push((name + ", scratch, S3-FIFO", more));
        }
        // Several groups, with blocks of several sizes.
        let mixed = ["k8-v4g32-b32", "k8-v4g32-b64"].iter().cycle().take(layers).map(|f| f.parse().unwrap()).collect();
        let prefixes = prefixes(64, Eviction::Lru);
        // Windows that hide nothing of these sequences: what counts is what is taken for them.
        let window = Some(Window { chunk: TOKENS, ..Window::new(TOKENS).with_sinks(3) });
        let windows = [window, None].iter().cycle().take(layers).copied().collect();
        let config = Config { formats: mixed, windows, scratch_keys: 11, scratch_values: 40, prefixes, ..base };
        all.push((format!("{layers}x{kv_heads}x{dim} mixed, windows, scratch, LRU"), config));
    }
    all
}

#[test]
fn what_is_planned_is_what_is_taken() {
    let (mut executed, mut failed, mut planted, mut caught) = (0, 0, 0, 0);
    let mut worst: f64 = 0.0;
    for (name, config) in configs() {
        let measured = measure(&config);
        let faults = measured.faults(&measured.plan);
        executed += 1;
        failed += usize::from(!faults.is_empty());
        faults.iter().for_each(|fault| println!("{name}: {fault}"));
        let (all, off) = (measured.plan.classes.iter().sum::<usize>(), 100.0 * measured.off(&measured.plan));
        println!("{name}: {all} bytes planned, {off:+.2}% when made, steps take {} besides", measured.work);
        worst = if off.abs() > worst.abs() { off } else { worst };
        // The control: a class that the plan forgets is seen.
        for class in CLASSES.into_iter().filter(|class| measured.plan.of(*class) > 0) {
            let mut forgetful = measured.plan;
            forgetful.classes[class as usize] = 0;
            planted += 1;
            caught += usize::from(!measured.faults(&forgetful).is_empty());
        }
        // A budget of exactly the plan is enough, one of a byte less is not.
        let tight =
            Config { device_budget: measured.plan.device.bytes, host_budget: measured.plan.host.bytes, ..config };
        assert!(tight.plan().unwrap().fits() && Cache::new(tight.clone()).is_ok(), "{name}");
        for short in [
            Config { device_budget: tight.device_budget - 1, ..tight.clone() },
            Config { host_budget: tight.host_budget - 1, ..tight.clone() },
        ] {
            assert!(!short.plan().unwrap().fits() && Cache::new(short).is_err(), "{name}");
        }
    }
    println!(
        "GATE plan executed={executed} failed={failed} controls={caught}/{planted} seed={SEED:#x}; heap {worst:+.2}% off at worst"
    );
    assert!(executed > 20 && failed == 0 && caught == planted && planted > 80);
}

//! The cache on a GPU over a fake driver: every call made to fail once and for good, in the life of a cache. A failure is a typed
//! error that names the call; what was committed is there bit for bit; the same call succeeds the next time; no output is claimed
//! that this step did not write; nothing leaks.
mod apart;
mod calibrated;
mod drafts;
mod erased;
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
mod fixed;
mod forgotten;
mod fused;
mod history;
mod hurry;
mod judged;
mod kernels;
mod leaving;
mod levels;
mod levels_chunks;
mod levels_faults;
mod levels_refused;
mod life;
#[path = "../listener/mod.rs"]
mod listener;
mod memory;
mod model;
mod plan;
mod published;
mod refused;
#[path = "../refusing/mod.rs"]
mod refusing;
mod scored;
mod scrubbed;
mod shelf;
mod spans;
mod spill;
mod states;
mod swap;
mod tolerance;
mod turns;
mod units;
#[path = "../spill/unruly.rs"]
mod unruly;
mod window;

use certkv::Error;
use certkv::gpu::{Compiler, CudaError, Gpu, GpuCache, GpuConfig};
use certkv_testkit::generate::Rng;
use fake_cuda::Fake;
use fake_cuda::sweep::{Fault, Tally, Watchdog, code_for};
use kernels::Plant;
use life::{FORMATS, Manner, config};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The fake is one for the process: tests take turns.
fn alone() -> (&'static Fake, &'static Compiler, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Watchdog::start();
    let fake = Fake::get();
    fake.with_compiler();
    kernels::declare(fake);
    (fake, COMPILER.get_or_init(Compiler::new), turn)
}

/// One life: its format, whether the GPU works only when it is asked, and how errors are met.
#[derive(Debug, Clone, Copy)]
struct How {
    format: &'static str,
    deferred: bool,
    manner: Manner,
    /// Whether originals spill.
    spills: bool,
    /// Whether plans have calls of their own.
    apart: bool,
}

impl How {
    fn config(&self) -> GpuConfig {
        let config = if self.spills { life::spilling::config(self.format) } else { config(self.format) };
        GpuConfig { plan_apart: self.apart, ..config }
    }
}

/// One life under `faults`.
fn live(tally: &mut Tally, fake: &Fake, compiler: &Compiler, faults: &[Fault], how: How) {
    let mut wrong = Vec::new();
    kernels::begin(how.format);
    tally.run(fake, faults, how.deferred, || life::run(compiler, how, faults, &mut wrong));
    for (count, what) in [
        (&kernels::OVERFLOWS, "heads behind the end of a list"),
        (&kernels::LOST, "lists of copies lost"),
        (&kernels::UNMEASURED, "rows with norms of others"),
    ] {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            wrong.push(format!("{count} {what}"));
        }
    }
    let failed = fake.last_failed();
    tally.wrong.extend(wrong.iter().map(|w| format!("{failed} ({faults:?}, {how:?}): {w}")));
}

fn asked(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Where lives run fast, calls of each life are failed one in so many, others from life to life: `CERTKV_FAULTS_EVERY`, 1 for all of them. All of
/// them as well are N processes with `CERTKV_FAULTS_EVERY=N`, each with another `CERTKV_FAULTS_FROM` below N.
fn every() -> Option<usize> {
    (!cfg!(debug_assertions)).then(|| asked("CERTKV_FAULTS_EVERY").unwrap_or(12).max(1))
}

const SEED: u64 = 0x5eed_cafe_0002;

/// Lives with two faults.
fn pairs() -> usize {
    every().map_or(15, |every| 6000 / every)
}

/// Names of the calls of a life without a fault.
fn calls(fake: &Fake, compiler: &Compiler, how: How) -> Vec<&'static str> {
    let mut tally = Tally::default();
    live(&mut tally, fake, compiler, &[], how);
    assert!(tally.wrong.is_empty(), "without a fault: {:?}", tally.wrong);
    fake.trace()
}

/// Calls to be failed: one in eight strides, or in [`every`], and the first and last of each function.
fn chosen(names: &[&'static str], stride: usize) -> Vec<usize> {
    let edge = |i: &usize| names[..*i].contains(&names[*i]) && names[i + 1..].contains(&names[*i]);
    let (every, from) = (every(), stride + asked("CERTKV_FAULTS_FROM").unwrap_or(0));
    let taken = |i: &usize| every.map_or(i.is_multiple_of(8 * stride), |every| (i + from).is_multiple_of(every));
    (0..names.len()).filter(|i| taken(i) || !edge(i)).collect()
}

/// The calls of a life fail, once each with a code that fits; or for good.
fn sweep(fake: &Fake, compiler: &Compiler, how: How, stride: usize, lost: bool) -> Tally {
    let mut all = Tally::default();
    let names = calls(fake, compiler, how);
    for i in chosen(&names, stride) {
        let at = i as u64 + 1;
        let code = if lost { [700, 719, 999][i % 3] } else { code_for(names[i], at) };
        live(&mut all, fake, compiler, &[Fault { at, code, lost }], how);
    }
    println!("{how:?}, lost {lost}: {} of {} calls", all.executed, names.len());
    all
}

const fn how(format: &'static str, deferred: bool, manner: Manner) -> How {
    How { format, deferred, manner, spills: false, apart: false }
}

#[test]
fn a_cache_outlives_the_failure_of_any_call() {
    let (fake, compiler, _turn) = alone();
    let mut all = Tally::default();
    let [planned, refined, exact] = FORMATS;
    all.add(sweep(fake, compiler, how(planned, false, Manner::Anew), 23, false));
    all.add(sweep(fake, compiler, how(planned, true, Manner::Again), 29, false));
    let apart = |deferred, manner| How { apart: true, ..how(planned, deferred, manner) };
    all.add(sweep(fake, compiler, apart(false, Manner::Again), 31, false));
    all.add(sweep(fake, compiler, apart(true, Manner::Anew), 53, false));
    all.add(sweep(fake, compiler, apart(true, Manner::Anew), 59, true));
    all.add(sweep(fake, compiler, how(refined, true, Manner::Anew), 37, false));
    all.add(sweep(fake, compiler, how(refined, false, Manner::Again), 41, false));
    all.add(sweep(fake, compiler, how(exact, true, Manner::Again), 61, false));
    all.add(sweep(fake, compiler, how(planned, true, Manner::Anew), 43, true));
    all.add(sweep(fake, compiler, how(refined, false, Manner::Again), 47, true));
    let planned = how(planned, true, Manner::Anew);
    let seed = SEED + asked("CERTKV_FAULTS_FROM").unwrap_or(0) as u64;
    let (names, mut random) = (calls(fake, compiler, planned), Rng::new(seed));
    for _ in 0..pairs() {
        let two = [(); 2].map(|()| {
            let i = random.below(names.len());
            Fault { at: i as u64 + 1, code: code_for(names[i], random.bits()), lost: false }
        });
        live(&mut all, fake, compiler, &two, planned);
    }
    all.print_wrong();
    all.print_reached();
    let (caught, planted) = controls(fake, compiler);
    println!(
        "GATE fake-driver-engine executed={} failed={} controls={caught}/{planted} seed={seed:#x}",
        all.executed,
        all.wrong.len()
    );
    assert!(all.wrong.is_empty() && caught == planted);
}

/// Planted defects, and how many of them are seen.
fn controls(fake: &Fake, compiler: &Compiler) -> (usize, usize) {
    let plants = [
        Plant::StaleOutput,
        Plant::NoCopies,
        Plant::Leak,
        Plant::OtherRow,
        Plant::Swallowed,
        Plant::Rot,
        Plant::NoNorms,
    ];
    let how = how(FORMATS[0], false, Manner::Anew);
    let launch = calls(fake, compiler, how).iter().rposition(|name| *name == "cuLaunchKernelEx");
    let sees = |what: &Plant| {
        kernels::plant(*what);
        let mut tally = Tally::default();
        let at = launch.map_or(0, |i| i as u64 + 1);
        let faults = if *what == Plant::Swallowed { vec![Fault { at, code: 1, lost: false }] } else { Vec::new() };
        live(&mut tally, fake, compiler, &faults, how);
        kernels::plant(Plant::Nothing);
        !tally.wrong.is_empty()
    };
    (plants.iter().filter(|what| sees(what)).count(), plants.len())
}

/// A cache that does not fit takes nothing, whichever allocation it is that does not; one that fits is served in the same process.
#[test]
fn a_cache_that_does_not_fit_takes_nothing() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let before = fake.live();
    let [device, pinned] = {
        let _cache = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("no limit");
        let usage = gpu.usage();
        [usage.device_bytes, usage.pinned_bytes]
    };
    let mut refused = 0;
    for sixteenth in 0..16 {
        fake.limit_device(device * sixteenth / 16);
        let error = GpuCache::new(&gpu, compiler, config(FORMATS[0])).map(drop);
        assert!(matches!(error, Err(Error::Gpu(CudaError::OutOfDeviceMemory { .. }))), "{error:?}");
        assert_eq!((fake.live(), gpu.usage()), (before, Default::default()));
        fake.limit_device(usize::MAX);
        fake.limit_pinned(pinned * sixteenth / 16);
        let error = GpuCache::new(&gpu, compiler, config(FORMATS[0])).map(drop);
        let pinned = matches!(
            error,
            Err(Error::Gpu(CudaError::OutOfPinnedMemory { call: "cuMemHostRegister_v2", code: 2, .. }))
        );
        assert!(pinned, "{error:?}");
        assert_eq!((fake.live(), gpu.usage()), (before, Default::default()));
        fake.limit_pinned(usize::MAX);
        refused += 2;
    }
    // Just enough is enough, and a smaller one fits where the larger did not.
    fake.limit_device(device);
    fake.limit_pinned(pinned);
    drop(GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("as much as it says"));
    fake.limit_device(device - 1);
    assert!(GpuCache::new(&gpu, compiler, config(FORMATS[0])).is_err());
    let mut smaller = config(FORMATS[0]);
    (smaller.max_tokens, smaller.max_context, smaller.max_sequences) = (2 * kernels::BLOCK, kernels::BLOCK, 1);
    let mut cache = GpuCache::new(&gpu, compiler, smaller).expect("a smaller one");
    cache.create().expect("and it works");
    drop(cache);
    drop(gpu);
    assert_eq!((fake.live(), fake.reaped(), fake.violations()), ([0; 8], [0; 8], 0));
    println!("GATE fake-driver-limits executed={refused} failed=0 controls=1/1 seed=0x0");
}

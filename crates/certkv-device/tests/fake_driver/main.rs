//! Every call of the driver made to fail, one after the other, two at a time, and for good. Runs without a GPU: the driver is a fake
//! (`fake_cuda/`). After each failure there is a typed error that names the call, or none where the failure changes nothing; nothing
//! panics, hangs or leaks, and the driver was never used in a way that it need not survive.
#[path = "../fake_cuda/mod.rs"]
mod fake_cuda;
mod honest;
mod machine;
mod workload;

use fake_cuda::Fake;
use fake_cuda::sweep::{Fault, IGNORED, Ran, Tally, Watchdog, code_for};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The fake is one for the process: tests take turns.
fn alone() -> (&'static Fake, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Watchdog::start();
    let fake = Fake::get();
    workload::declare(fake);
    (fake, turn)
}

const SEED: u64 = 0x5eed_cafe_0001;
/// Runs with two faults.
const PAIRS: u64 = 2000;

/// A small generator, the same on every machine.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Names of the calls that a run makes.
fn calls(fake: &Fake, deferred: bool) -> Vec<&'static str> {
    let mut tally = Tally::default();
    let mut clean = false;
    tally.run(fake, &[], deferred, || {
        let ran = workload::run();
        clean = ran.result.is_ok();
        ran
    });
    assert!(clean && tally.wrong.is_empty(), "without a fault: {:?}", tally.wrong);
    fake.trace()
}

/// What a test may do to a run to see whether the sweep sees it.
type Spoil = fn(Ran) -> Ran;

fn sweep(fake: &Fake, deferred: bool, spoil: Spoil) -> Tally {
    let names = calls(fake, deferred);
    let mut tally = Tally::default();
    for (i, name) in names.iter().enumerate() {
        let at = i as u64 + 1;
        let usual = Fault { at, code: code_for(name, at), lost: false };
        for fault in [usual, Fault { code: [700, 719, 999][i % 3], lost: true, ..usual }] {
            tally.run(fake, &[fault], deferred, || spoil(workload::run()));
        }
    }
    tally
}

#[test]
fn every_call_fails_once_and_for_good() {
    let (fake, _turn) = alone();
    let mut all = Tally::default();
    for deferred in [false, true] {
        all.add(sweep(fake, deferred, |ran| ran));
    }
    let (lengths, mut state) = ([false, true].map(|deferred| calls(fake, deferred).len() as u64), SEED);
    for pair in 0..PAIRS {
        let deferred = pair % 2 == 1;
        let faults = [(); 2].map(|()| {
            let at = 1 + next(&mut state) % lengths[usize::from(deferred)];
            Fault { at, code: [1, 2, 999][next(&mut state) as usize % 3], lost: false }
        });
        all.run(fake, &faults, deferred, workload::run);
    }
    all.print_wrong();
    let never = all.print_reached();
    let (caught, planted) = controls(fake);
    println!(
        "GATE fake-driver executed={} failed={} controls={caught}/{planted} seed={SEED:#x}",
        all.executed,
        all.wrong.len()
    );
    assert!(all.wrong.is_empty() && never.is_empty() && caught == planted);
    assert!(all.survived.keys().all(|name| IGNORED.iter().any(|(ignored, _)| ignored == name)));
}

/// Defects put into the work on purpose, and how many of them a sweep finds.
fn controls(fake: &Fake) -> (usize, usize) {
    let defects: [Spoil; 3] = [
        // An error that somebody swallows.
        |ran| Ran { result: Ok(()), ..ran },
        // An error of another name.
        |ran| Ran { result: ran.result.map_err(|_| ("something went wrong".to_owned(), None)), ..ran },
        // A release that failed and was not counted.
        |ran| Ran { unreleased: 0, ..ran },
    ];
    let mut caught = defects.iter().filter(|defect| !sweep(fake, false, **defect).wrong.is_empty()).count();
    let mut runs = |work: fn() -> Ran| {
        let mut tally = Tally::default();
        tally.run(fake, &[], false, work);
        caught += usize::from(!tally.wrong.is_empty());
    };
    runs(leaks_a_buffer);
    runs(panics);
    runs(hangs);
    (caught, defects.len() + 3)
}

fn leaks_a_buffer() -> Ran {
    let gpu = certkv_device::cuda::Gpu::open(0).expect("no fault");
    std::mem::forget(certkv_device::cuda::DeviceBuffer::new(&gpu, 64).expect("no fault"));
    workload::run()
}

fn panics() -> Ran {
    panic!("on purpose");
}

fn hangs() -> Ran {
    std::thread::sleep(std::time::Duration::from_millis(1100));
    workload::run()
}

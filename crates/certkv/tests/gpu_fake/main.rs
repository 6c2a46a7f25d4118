//! The cache on a GPU over a fake driver: every call made to fail once and for good, in the life of a cache. A failure is a typed
//! error that names the call; what was committed is there bit for bit; the same call succeeds the next time; no output is claimed
//! that this step did not write; nothing leaks.
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
mod kernels;
mod life;

use certkv::gpu::Compiler;
use fake_cuda::Fake;
use fake_cuda::sweep::{Fault, Tally, Watchdog, code_for};
use life::Manner;
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

/// One life under `faults`.
fn live(tally: &mut Tally, fake: &Fake, compiler: &Compiler, faults: &[Fault], deferred: bool, manner: Manner) {
    let mut wrong = Vec::new();
    kernels::forget();
    tally.run(fake, faults, deferred, || life::run(compiler, manner, &mut wrong));
    for (count, what) in
        [(&kernels::OVERFLOWS, "heads behind the end of a list"), (&kernels::LOST, "lists of copies lost")]
    {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            wrong.push(format!("{count} {what}"));
        }
    }
    let failed = fake.last_failed();
    tally.wrong.extend(wrong.iter().map(|w| format!("{failed} ({faults:?}, deferred {deferred}, {manner:?}): {w}")));
}

/// Calls from one failed to the next: all of them where they run fast.
const STRIDE: usize = if cfg!(debug_assertions) { 11 } else { 1 };

#[test]
fn a_cache_outlives_the_failure_of_any_call() {
    let (fake, compiler, _turn) = alone();
    let mut all = Tally::default();
    for (i, (deferred, manner)) in [(false, Manner::Anew), (true, Manner::Again)].into_iter().enumerate() {
        live(&mut all, fake, compiler, &[], deferred, manner);
        let names = fake.trace();
        println!("{} calls, deferred {deferred}, {manner:?}", names.len());
        for (at, name) in names.iter().enumerate().skip(i).step_by(STRIDE) {
            let at = at as u64 + 1;
            let usual = Fault { at, code: code_for(name, at), lost: false };
            live(&mut all, fake, compiler, &[usual], deferred, manner);
        }
    }
    all.print_wrong();
    println!("GATE fake-driver-engine executed={} failed={} controls=0/0 seed=0x0", all.executed, all.wrong.len());
}

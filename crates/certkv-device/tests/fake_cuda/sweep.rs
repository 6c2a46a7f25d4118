//! Runs a piece of work again and again, with another call of the driver made to fail each time, and judges what came of it.
use super::{CONTEXT, Fake, KINDS, driver_functions};
use certkv_device::cuda::CudaError;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

/// How long a run may take, with one call failed or all of them.
const MOST: Duration = Duration::from_secs(1);

/// What one run came to.
pub struct Ran {
    /// Its error, and that of the driver behind it if there is one.
    pub result: Result<(), (String, Option<CudaError>)>,
    /// What the library says that the driver did not release.
    pub unreleased: usize,
}

/// One fault.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Which call, from 1 on.
    pub at: u64,
    /// What it returns.
    pub code: i32,
    /// Whether the context is lost with it.
    pub lost: bool,
}

/// Calls whose failure changes nothing that a caller would have to know, with the reason.
pub const IGNORED: &[(&str, &str)] = &[
    ("cuCtxPopCurrent_v2", "the work is done; the thread keeps our context on its stack"),
    ("cuCtxPushCurrent_v2", "in front of a release: counted as unreleased; or of a call that is tried again"),
    ("cuMemFree_v2", "a release: counted as unreleased"),
    ("cuMemHostUnregister", "a release: counted as unreleased, and the pages stay mapped"),
    ("cuStreamDestroy_v2", "a release: counted as unreleased"),
    ("cuEventDestroy_v2", "a release: counted as unreleased"),
    ("cuGraphDestroy", "a release: counted as unreleased"),
    ("cuGraphExecDestroy", "a release: counted as unreleased"),
    ("cuModuleUnload", "a release: counted as unreleased"),
    ("cuDevicePrimaryCtxRelease_v2", "the end: nobody is left to be told"),
    ("cuStreamSynchronize", "the wait of a drop: it is tried again"),
    ("cuStreamEndCapture", "of a recording that is given up: it is tried again"),
    ("cuStreamIsCapturing", "of a recording that is given up: it is ended as if it went on"),
];

/// The code that fits a call best: memory runs out, all else is refused or unknown by turns.
pub fn code_for(name: &str, n: u64) -> i32 {
    match name {
        "cuMemAlloc_v2" | "cuMemHostRegister_v2" | "cuGraphInstantiateWithFlags" | "cuModuleLoadData" => 2,
        // Code 1 is an answer: there is no such parameter.
        "cuFuncGetParamInfo" => 999,
        _ if n.is_multiple_of(2) => 1,
        _ => 999,
    }
}

/// Whether what comes after a failed push of the context is the same once more.
fn is_repeated(after: &[&str]) -> bool {
    let repeated = ["cuStreamSynchronize", "cuStreamEndCapture", "cuStreamIsCapturing"];
    after.first() == Some(&"cuCtxPushCurrent_v2") && after.get(1).is_some_and(|call| repeated.contains(call))
}

/// What a sweep came to.
#[derive(Default)]
pub struct Tally {
    /// Calls made to fail.
    pub executed: u64,
    /// Runs that broke a promise, each with what was wrong.
    pub wrong: Vec<String>,
    /// Runs that ended well although a call failed, by call.
    pub survived: BTreeMap<&'static str, u64>,
    /// Functions of the driver that were made to fail.
    pub reached: BTreeSet<&'static str>,
}

/// Ends the process if a run hangs: a test that waits for ever reports nothing.
pub struct Watchdog;

/// Beginnings and ends of runs so far: odd within one. Between two sweeps other tests take as long as they take.
static RUNS: AtomicU64 = AtomicU64::new(0);

impl Watchdog {
    /// Watches this process from now on.
    pub fn start() {
        thread::spawn(|| {
            let mut last = (0, Instant::now());
            loop {
                thread::sleep(Duration::from_secs(1));
                let now = RUNS.load(Ordering::Relaxed);
                if now != last.0 {
                    last = (now, Instant::now());
                } else if now % 2 == 1 && last.1.elapsed() > Duration::from_secs(60) {
                    println!("a run hangs: fake driver, run {}", now / 2);
                    process::exit(3);
                }
            }
        });
    }
}

impl Tally {
    /// One run under `faults`, judged. One that takes too long is run again: it may have waited for the machine.
    pub fn run(&mut self, fake: &Fake, faults: &[Fault], deferred: bool, mut work: impl FnMut() -> Ran) {
        let mut run = || {
            fake.reset();
            fake.empty_stack();
            fake.defer(deferred);
            for fault in faults {
                fake.fail(fault.at, fault.code, fault.lost);
            }
            RUNS.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            let ran = (catch_unwind(AssertUnwindSafe(&mut work)), start.elapsed());
            RUNS.fetch_add(1, Ordering::Relaxed);
            ran
        };
        let (mut ran, mut took) = run();
        if took > MOST {
            (ran, took) = run();
        }
        let injected = fake.injected();
        self.executed += injected;
        let failed = fake.last_failed();
        if injected > 0 {
            self.reached.insert(failed);
        }
        let mut wrong = Vec::new();
        if took > MOST {
            wrong.push(format!("took {took:?}"));
        }
        match ran {
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                wrong.push(format!("panicked: {}", text.unwrap_or_default()));
            }
            Ok(ran) => self.judge(fake, faults, &ran, failed, &mut wrong),
        }
        if fake.violations() > 0 {
            wrong.push(format!("{} violations, the last: {}", fake.violations(), fake.last_violation()));
        }
        let pops = faults.iter().filter_map(|f| fake.trace().get(f.at as usize - 1).copied());
        let pops = pops.filter(|name| *name == "cuCtxPopCurrent_v2").count();
        if fake.depth() as usize > pops {
            wrong.push(format!("{} contexts left on the thread's stack", fake.depth()));
        }
        if !wrong.is_empty() {
            self.wrong.push(format!("{failed} ({faults:?}, deferred {deferred}): {}", wrong.join("; ")));
        }
    }

    fn judge(&mut self, fake: &Fake, faults: &[Fault], ran: &Ran, failed: &'static str, wrong: &mut Vec<String>) {
        let lost = faults.iter().any(|f| f.lost) && fake.injected() > 0;
        let [first] = faults else { return self.leaks(fake, ran, lost, wrong) };
        match &ran.result {
            Ok(()) if fake.injected() == 0 => wrong.push("the call was never made".to_owned()),
            Ok(()) => {
                *self.survived.entry(failed).or_default() += 1;
                let ignored = IGNORED.iter().any(|(name, _)| *name == failed);
                let released = failed != "cuCtxPushCurrent_v2" || ran.unreleased > 0;
                if !ignored || !(released || is_repeated(&fake.trace()[first.at as usize..])) {
                    wrong.push("the failure was not reported".to_owned());
                }
            }
            Err((text, cuda)) => {
                let (call, code) = match cuda {
                    Some(CudaError::Call { call, code, .. }) => (*call, *code),
                    Some(CudaError::OutOfDeviceMemory { .. }) => ("cuMemAlloc_v2", 2),
                    Some(CudaError::OutOfPinnedMemory { call, code, .. }) => (*call, *code),
                    _ => ("", 0),
                };
                // A lost context may be met first by a call whose failure is ignored.
                if (call != failed && !lost) || code != first.code {
                    wrong.push(format!("reported as: {text}"));
                }
            }
        }
        self.leaks(fake, ran, lost, wrong);
    }

    /// What is left when everything was dropped: what the library said, and no more.
    fn leaks(&self, fake: &Fake, ran: &Ran, lost: bool, wrong: &mut Vec<String>) {
        let (live, reaped) = (fake.live(), fake.reaped());
        if live[CONTEXT] > 0 && !fake.trace().contains(&"cuDevicePrimaryCtxRelease_v2") {
            wrong.push("the context was not released".to_owned());
        }
        let left: u64 = live.iter().chain(&reaped).sum::<u64>() - live[CONTEXT];
        if left != ran.unreleased as u64 {
            let list: Vec<String> = (0..CONTEXT)
                .filter(|k| live[*k] + reaped[*k] > 0)
                .map(|k| format!("{} {}", live[k] + reaped[k], KINDS[k]))
                .collect();
            wrong.push(format!("left: {} ({} told)", list.join(", "), ran.unreleased));
        }
        if fake.endless() > 0 && !lost {
            wrong.push("a stream still records".to_owned());
        }
    }

    /// Takes another sweep's results in.
    pub fn add(&mut self, other: Self) {
        self.executed += other.executed;
        self.wrong.extend(other.wrong);
        self.reached.extend(other.reached);
        for (name, n) in other.survived {
            *self.survived.entry(name).or_default() += n;
        }
    }

    /// Prints how many functions of the driver were made to fail, and names and returns the others.
    pub fn print_reached(&self) -> Vec<String> {
        let table = driver_functions();
        let never: Vec<_> = table.iter().filter(|name| !self.reached.contains(name.as_str())).cloned().collect();
        println!("ignored, with the number of runs: {:?}", self.survived);
        println!("functions made to fail: {} of {}; never: {never:?}", table.len() - never.len(), table.len());
        never
    }

    /// Prints what broke a promise, shortened.
    pub fn print_wrong(&self) {
        for line in self.wrong.iter().take(25) {
            println!("WRONG {line}");
        }
        if self.wrong.len() > 25 {
            println!("and {} more", self.wrong.len() - 25);
        }
    }
}

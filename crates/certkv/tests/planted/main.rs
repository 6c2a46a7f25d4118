//! Failures that caches of this kind had in the field (docs/states.md, section 7), brought back one at a time where the
//! rule against each is kept: every one of them is seen, and nothing is where none is planted.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(error <= bound) is how NaN fails")]
mod beside;
#[path = "../common/mod.rs"]
mod common;
mod departs;
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
mod files;
mod ids;
#[path = "../gpu_fake/kernels.rs"]
#[allow(dead_code, reason = "its controls belong to another gate")]
mod kernels;
mod lane;
#[allow(dead_code, reason = "what happened is another test's to judge")]
mod levels;
mod life;
mod names;
mod pages;
mod pinned;
mod recorded;
mod rows;
mod slots;
mod staging;

use certkv::Error;
use certkv::gpu::Gpu;
use certkv_core::plant::{self, BUGS, Bug};
use certkv_core::planted;
use fake_cuda::Fake;

const SEED: u64 = 0x6275_6773;

/// What a run does: operations, or what it found wrong.
type Run = fn(u64) -> Result<u64, String>;

/// A bug, what looks for it, and how many runs it gets.
struct Check {
    bug: Bug,
    what: &'static str,
    runs: u64,
    run: Run,
}

const fn check(bug: Bug, what: &'static str, runs: u64, run: Run) -> Check {
    Check { bug, what, runs, run }
}

/// Work over the fake driver, whose GPU works at once or only when it is asked: the checker of real streams finds nothing.
fn ordered(format: &str, seed: u64, work: impl FnOnce(&Gpu) -> Result<u64, Error>) -> Result<u64, String> {
    let fake = Fake::get();
    fake.with_compiler();
    kernels::declare(fake);
    kernels::begin(format);
    fake.reset();
    fake.defer(seed >> 32 & 1 == 1);
    let gpu = Gpu::open(0).map_err(|e| e.to_string())?;
    gpu.check_order();
    let done = work(&gpu).map_err(|e| e.to_string())?;
    match gpu.order_report() {
        Some(report) if report.unordered == 0 && report.accesses > 0 => Ok(done),
        report => Err(format!("{report:?}")),
    }
}

/// Runs of a life: each is some forty operations.
const LIVES: u64 = if cfg!(debug_assertions) { 100 } else { 400 };

const CHECKS: [Check; 29] = [
    check(Bug::B1, "order of a life's accesses", LIVES, life::run),
    check(Bug::B2, "order of a life's accesses", LIVES, life::run),
    check(Bug::B3, "order of a life's accesses", LIVES, life::run),
    check(Bug::B4, "order of the host's writes to pinned memory", 4, staging::run),
    check(Bug::B5, "order of a life's accesses", LIVES, life::run),
    check(Bug::B6, "tags and originals of a life", LIVES, life::run),
    check(Bug::B7, "a second release", LIVES, pages::run),
    check(Bug::B8, "ids that a life meets", LIVES, life::run),
    check(Bug::B9, "what prompts under another adapter find", 20, names::run),
    check(Bug::B10, "what prompts of other tokens find", 20, names::run),
    check(Bug::B11, "what prompts of another circle find", 20, names::run),
    check(Bug::B12, "bits under four fills of unwritten rows", LIVES, rows::run),
    check(Bug::B13, "bits beside four kinds of neighbours", LIVES, beside::run),
    check(Bug::B14, "bytes of slots 4 GiB apart", 4, slots::run),
    check(Bug::B15, "recordings of a cache that is gone", 4, recorded::run),
    check(Bug::B16, "files of a format of the same size", 4, files::run),
    check(Bug::B17, "a life's bounds", LIVES, life::run),
    check(Bug::B18, "tags of a life's sides", LIVES, life::run),
    check(Bug::B19, "pages behind calls that fail", LIVES, pages::run_failing),
    check(Bug::B20, "pinned memory behind caches that do not fit", 4, pinned::run),
    check(Bug::B21, "pages behind a reader that does not end", LIVES, pages::run_behind_a_reader),
    check(Bug::B22, "ids of the past and of another cache", 4, ids::run),
    check(Bug::B23, "pages with a bit changed", 4, files::run_rot),
    check(Bug::B25, "how much a gate looked at", 4, pages::run),
    check(Bug::B26, "tags and bounds of a life with levels", LIVES, levels::run),
    check(Bug::B27, "tags and pages of a life with levels", LIVES, levels::run),
    check(Bug::B28, "tags and codes of a life with levels that travels", LIVES, levels::run_travels),
    check(Bug::B29, "order of accesses of plans beside attention", 4, lane::run),
    check(Bug::B30, "order of accesses while originals leave", 4, departs::run),
];

/// A panic that crosses the C interface ends the process: `certkv-capi/tests/panics.rs` has a child that does.
const ELSEWHERE: Bug = Bug::B24;

/// What a run found wrong. One that looked at nothing has not found that nothing is.
fn look(run: Run, seed: u64) -> Option<String> {
    let done = if planted!(B25) { Ok(0) } else { run(seed) };
    match done {
        Ok(0) => Some("nothing was looked at".into()),
        Ok(_) => None,
        Err(what) => Some(what),
    }
}

/// Seed of a check's run.
fn seed(run: u64) -> u64 {
    SEED ^ run << 32
}

#[test]
fn every_planted_bug_is_caught() {
    let (mut executed, mut failed, mut caught) = (0, 0, 0);
    let mut clean: Vec<(Run, u64)> = Vec::new();
    for Check { run, runs, .. } in &CHECKS {
        match clean.iter_mut().find(|(known, _)| std::ptr::fn_addr_eq(*known, *run)) {
            Some((_, most)) => *most = (*most).max(*runs),
            None => clean.push((*run, *runs)),
        }
    }
    plant::arm(None);
    for (run, runs) in clean {
        for n in 0..runs {
            executed += 1;
            if let Some(what) = look(run, seed(n)) {
                println!("nothing planted, seed {:#x}: {what}", seed(n));
                failed += 1;
            }
        }
    }
    for Check { bug, what, runs, run } in &CHECKS {
        plant::arm(Some(*bug));
        let found: Vec<String> = (0..*runs).filter_map(|n| look(*run, seed(n))).collect();
        let committed = plant::committed();
        plant::arm(None);
        executed += runs;
        let first = found.first().map_or("", |first| first);
        println!(
            "planted {bug:?}: {what}: caught in {} of {runs} runs, committed {committed} times: {first}",
            found.len()
        );
        assert!(committed > 0, "{bug:?} was never reached");
        caught += usize::from(!found.is_empty());
    }
    println!("GATE planted executed={executed} failed={failed} controls={caught}/{} seed={SEED:#x}", CHECKS.len());
    assert!(BUGS.iter().all(|bug| *bug == ELSEWHERE || CHECKS.iter().any(|check| check.bug == *bug)));
    assert_eq!((failed, caught), (0, CHECKS.len()));
}

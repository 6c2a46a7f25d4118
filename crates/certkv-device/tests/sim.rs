//! The gate of the simulated device: a manager of production shape is clean over many seeds, and each planted bug is
//! caught.
mod manager;

use certkv_core::hash::hash64;
use manager::{BUGS, Bug, Finding, Manager};
use std::time::Instant;

const STEPS: usize = 200;

/// Tests only: `CERTKV_SIM_SEEDS` raises the number of schedules.
fn seeds() -> u64 {
    let default = if cfg!(debug_assertions) { 500 } else { 20_000 };
    std::env::var("CERTKV_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default)
}

fn run(seed: u64, bug: Option<Bug>) -> (Result<(), Finding>, u64, u64, u64) {
    // Every other seed runs with injected faults.
    let mut manager =
        Manager::new(hash64(&[seed, 0xce27]), bug, seed.is_multiple_of(2) || bug == Some(Bug::CopyFailureIgnored));
    let result = manager.run(STEPS);
    let report = manager.device.report();
    (result, report.ops, report.findings(), manager.reads)
}

#[test]
fn gate_clean_manager_and_planted_bugs() {
    let (seeds, start) = (seeds(), Instant::now());
    let (mut ops, mut reads, mut failed) = (0, 0, 0);
    for seed in 0..seeds {
        let (result, n, findings, read) = run(seed, None);
        ops += n;
        reads += read;
        if result.is_err() || findings != 0 {
            println!("seed {seed}: {result:?}, {findings} findings");
            failed += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "clean: {seeds} seeds, {ops} ops, {:.0} seeds/s, {:.2} us/op",
        seeds as f64 / seconds,
        seconds * 1e6 / ops as f64
    );
    let tries = seeds.min(2000);
    let mut caught = 0;
    for bug in BUGS {
        let found = (0..tries).filter(|&seed| matches!(run(seed, Some(bug)), (Err(_), ..) | (_, _, 1.., _))).count();
        println!("planted {bug:?}: caught in {found} of {tries} seeds");
        caught += usize::from(found > 0);
    }
    println!("GATE sim executed={ops} failed={failed} controls={caught}/{} seed=0xce27", BUGS.len());
    assert!(ops > seeds * STEPS as u64 && reads > seeds * 20, "the gate did not run: {ops} ops, {reads} reads");
    assert_eq!((failed, caught), (0, BUGS.len()));
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 4, 77] {
        let (first, second) = (run(seed, Some(Bug::ReuseWithoutFence)), run(seed, Some(Bug::ReuseWithoutFence)));
        assert_eq!(first, second);
    }
}

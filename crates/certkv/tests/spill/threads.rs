//! Several threads on one cache that spills: each life has the bits that it has alone.
use crate::life::{config, left_behind, life, spilling};
use certkv::store::MemoryStore;
use certkv::{Cache, Config, Mode, SimOptions};
use std::sync::Arc;

fn together(name: &str, mode: Mode, operations: usize) {
    let device = SimOptions { mode, check: true };
    let wide = |config: Config| Config { max_sequences: 8, max_tokens: 1400, ..config };
    let shared = Cache::new(wide(spilling(device, Arc::new(MemoryStore::new(u64::MAX))))).unwrap();
    let lives: Vec<_> = std::thread::scope(|scope| {
        let run = |seed| {
            let cache = &shared;
            scope.spawn(move || life(cache, seed, operations, true))
        };
        let handles: Vec<_> = [100, 101].map(run).into();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let (mut executed, mut failed) = (0, 0);
    let mut alone = Vec::new();
    for (seed, shown) in [100, 101].into_iter().zip(lives) {
        let shown = shown.unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
        let plain = Cache::new(wide(config(SimOptions { mode: Mode::Eager, check: false }))).unwrap();
        alone.push(life(&plain, seed, operations, true).unwrap());
        executed += shown.answers.len();
        let expected = &alone[alone.len() - 1].answers;
        assert_eq!(shown.answers.len(), expected.len());
        failed += shown.answers.iter().zip(expected).filter(|(a, b)| a != b).count();
    }
    let caught = u8::from(alone[0] != alone[1]);
    println!("GATE {name} executed={executed} failed={failed} controls={caught}/1 seed=0x64");
    assert_eq!(left_behind(&shared, true), [0; 3]);
    assert_eq!(shared.check_report().findings(), 0, "{:?}", shared.check_report());
    assert!(caught == 1 && executed > 100 && failed == 0);
}

#[test]
fn threads_spill_side_by_side() {
    together("spill-threads", Mode::Eager, 90);
}

#[test]
fn threads_spill_side_by_side_when_copies_run_late() {
    together("spill-threads-adversarial", Mode::Adversarial { seed: 3 }, 50);
}

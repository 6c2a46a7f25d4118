//! The gate: many random operations against the model, and planted defects that must be found.
use super::model::{Coverage, Plant, World};
use super::verify::Verdict;
use crate::{PageAllocator, PageError};
use certkv_core::hash::splitmix64;
use certkv_core::plant::{self, Bug};
use proptest::prelude::*;

const SEED: u64 = 0x7061_6765;
const WORLDS: u64 = 160;
const OPS: u64 = 1000;

/// One world of `OPS` operations: how many ran, how many were refused, what was reached, and the verdict.
fn run(seed: u64, plant: Option<Plant>) -> (u64, u64, Coverage, Verdict) {
    let mut world = World::new(seed, plant);
    let mut dice = splitmix64(seed);
    let mut roll = || {
        dice = splitmix64(dice);
        dice
    };
    for op in 0..OPS {
        let verdict = world.apply(roll() as u8, roll(), roll());
        if verdict.is_err() {
            return (op + 1, world.refused, world.seen, verdict);
        }
    }
    (OPS, world.refused, world.seen, Ok(()))
}

/// A page comes back while work still uses it: the model sees other rows.
fn a_world_goes_wrong() -> bool {
    (0..20).any(|world| run(SEED ^ world << 32, None).3.is_err())
}

/// Of a page that somebody else holds by now.
fn a_second_release_passes() -> bool {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    assert!(pages.release(id).unwrap().last);
    pages.release(id) != Err(PageError::Unreferenced { id })
}

#[test]
fn random_operations_keep_every_promise() {
    let (mut executed, mut refused, mut failed, mut reached) = (0, 0, vec![], [0; 14]);
    for world in 0..super::worlds(WORLDS) {
        let seed = SEED ^ world << 32;
        let (ops, full, seen, verdict) = run(seed, None);
        let Coverage { filled, forks, reopened, copied, moves, blocked, freed, held, passed, barred, .. } = seen;
        let Coverage { swapped, returned, shared_again, cut_outside, .. } = seen;
        let usual = [filled, forks, reopened, copied, moves, blocked, freed, held, passed, barred];
        let all = usual.into_iter().chain([swapped, returned, shared_again, cut_outside]);
        for (sum, n) in reached.iter_mut().zip(all) {
            *sum += n;
        }
        executed += ops;
        refused += full;
        if let Err(what) = verdict {
            failed.push(format!("seed {seed:x}, operation {ops}: {what}"));
        }
    }
    let plants = [
        Plant::EarlyReclaim,
        Plant::OldStamp,
        Plant::SkipCopy,
        Plant::FreeLive,
        Plant::ReleaseTwice,
        Plant::Leak,
        Plant::SameGeneration,
        Plant::LosePin,
    ];
    let missed: Vec<Plant> = plants
        .into_iter()
        .filter(|plant| (0..20).all(|world| run(SEED ^ world << 32, Some(*plant)).3.is_ok()))
        .collect();
    let bugs: [(Bug, fn() -> bool); 2] = [(Bug::B3, a_world_goes_wrong), (Bug::B7, a_second_release_passes)];
    assert!(bugs.iter().all(|(_, seen)| !seen()), "seen although nothing is planted");
    let unseen: Vec<Bug> = bugs
        .into_iter()
        .filter(|(bug, seen)| {
            plant::arm(Some(*bug));
            let seen = seen();
            assert!(plant::committed() > 0, "{bug:?} was never reached");
            plant::arm(None);
            !seen
        })
        .map(|(bug, _)| bug)
        .collect();
    println!(
        "GATE page-model executed={executed} failed={} controls={}/{} seed={SEED:x} refused={refused} reached={reached:?}",
        failed.len(),
        plants.len() - missed.len() + bugs.len() - unseen.len(),
        plants.len() + bugs.len()
    );
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!((missed, unseen), (vec![], vec![]));
    assert!(
        reached.iter().all(|n| *n >= 100),
        "filled, forks, reopened, copied, moves, blocked, freed, held, passed, barred, swapped, returned, shared again, cut outside: {reached:?}"
    );
    assert!(executed >= 100_000, "{executed} operations are too few");
    assert!(refused > executed / 200, "pools so large that only {refused} calls were refused prove little");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The same driver under a shrinker: a failure comes back as a short list of operations.
    #[test]
    fn short_histories_keep_every_promise(
        seed in any::<u64>(),
        history in prop::collection::vec((any::<u8>(), any::<u64>(), any::<u64>()), 1..200),
    ) {
        let mut world = World::new(seed, None);
        for (kind, a, b) in history {
            let verdict = world.apply(kind, a, b);
            prop_assert!(verdict.is_ok(), "{verdict:?}");
        }
    }
}

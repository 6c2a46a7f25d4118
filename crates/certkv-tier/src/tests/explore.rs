//! Every sequence of a few operations on a cache of two slots, with leases held across operations.
use super::world::{World, key, page, right};
use crate::{MoveCause, ScratchLease, Side, SideKey};
use certkv_device::{DeviceError, Mode};

const OPS: usize = 8;

fn side(p: u32) -> SideKey {
    key(page(p), 0, 0, Side::Key)
}

/// Runs one sequence; returns the number of look-ups that found something.
fn run(world: &World, mut code: usize, length: usize) -> usize {
    let mut leases: Vec<ScratchLease> = Vec::new();
    let mut hits = 0;
    for _ in 0..length {
        match code % OPS {
            op @ 0..3 => {
                let wanted = side(op as u32);
                match world.prefetch(&[wanted]) {
                    Ok(fence) => {
                        let visible = world.scratch.contains(&wanted);
                        assert!(visible || !fence.passed() || world.scratch.contains(&wanted));
                    }
                    Err(error) => {
                        let why = error.not_moved[0].1;
                        let live = matches!(why, MoveCause::Device(DeviceError::GuardsLive { .. }));
                        assert!(!leases.is_empty() && (live || why == MoveCause::Full), "{error:?}");
                    }
                }
            }
            op @ 3..6 => {
                let lease = world.read(&side(op as u32 - 3), 1).unwrap();
                hits += usize::from(lease.is_some());
                leases.extend(lease);
            }
            6 if leases.is_empty() => {
                world.scratch.invalidate_page(page(0));
                assert!(!world.scratch.contains(&side(0)));
            }
            6 => drop(leases.remove(0)),
            _ => {
                world.scratch.invalidate_page(page(1));
                assert!(!world.scratch.contains(&side(1)));
            }
        }
        code /= OPS;
        assert!(leases.iter().all(right), "a held side changed");
        world.assert_books([2, 0], leases.len() as u32);
    }
    drop(leases);
    let _ = world.device.synchronize();
    world.assert_books([2, 0], 0);
    assert_eq!(world.device.report().findings(), 0);
    for p in 0..3 {
        world.scratch.invalidate_page(page(p));
    }
    assert_eq!(world.scratch.census(Side::Key).empty, 2);
    hits
}

#[test]
fn every_short_sequence_keeps_the_books() {
    // Longer sequences in release builds, where they cost less.
    let length = if cfg!(debug_assertions) { 5 } else { 6 };
    for (mode, name) in [(Mode::Eager, "eager"), (Mode::Adversarial { seed: 5 }, "adversarial")] {
        let world = World::stored(mode, 2, 0);
        let sequences = OPS.pow(length);
        let hits: usize = (0..sequences).map(|code| run(&world, code, length as usize)).sum();
        println!("{name}: {sequences} sequences, {hits} hits");
        assert!(hits > sequences / 10);
    }
}

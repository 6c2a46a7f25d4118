//! Every fault point in turn, and two at a time: nothing is lost, nothing incomplete is visible, the books stay exact.
use super::world::{PAGES, World, page, sides_of, tag, word};
use crate::{Scratch, ScratchConfig};
use certkv_core::fail;
use certkv_core::hash::splitmix64;
use certkv_core::plant::{self, Bug};
use certkv_device::{DeviceError, Mode};

const SLOTS: [u32; 2] = [3, 3];

/// Stores, fills, reads, evicts, invalidates and fills again; errors are what the caller would see and are retried
/// by nobody.
fn scenario(world: &World) {
    for p in (0..PAGES).map(page) {
        // An engine checks that the stores succeeded before it gives the tail up; here the tail simply stays.
        if let Ok(written) = world.readers[0].record() {
            let stored = world.store(p, &written);
            // What did move is ordered by the error's fence.
            let fence = stored.map_or_else(|error| error.fence, Some);
            let _ = fence.map(|fence| fence.synchronize());
        }
    }
    for p in (0..PAGES).map(page) {
        let keys: Vec<_> = sides_of(p).take(4).collect();
        let _ = world.prefetch(&keys).map(|fence| fence.completed());
        for key in &keys {
            let _ = world.read(key, 0).map(drop);
            let _ = world.read(key, 1).map(drop);
        }
    }
    world.scratch.invalidate_page(page(1));
    let _ = world.prefetch(&sides_of(page(0)).take(4).collect::<Vec<_>>()).map(drop);
}

/// What must hold after any fault, and that everything works again.
fn recovers(world: &World) {
    let _ = world.device.synchronize();
    world.assert_books(SLOTS, 0);
    for p in (0..PAGES).map(page) {
        // The tail is still the authority; storing again brings the original back.
        let written = world.readers[0].record().unwrap();
        world.store(p, &written).unwrap().synchronize().unwrap();
        let keys: Vec<_> = sides_of(p).take(6).collect();
        for key in &keys {
            drop(world.read(key, 0).unwrap());
        }
        world.prefetch(&keys).unwrap().synchronize().unwrap();
        assert!(keys.iter().all(|k| world.read(k, 1).unwrap().is_some()));
    }
    assert_eq!(world.device.report().findings(), 0);
    world.assert_books(SLOTS, 0);
}

fn sweep(mode: Mode, early: bool) -> u64 {
    for nth in 1.. {
        let world = World::stored(mode, SLOTS[0], SLOTS[1]);
        if early {
            world.scratch.show_early();
        }
        fail::arm(Some(nth));
        scenario(&world);
        let fired = fail::fired();
        fail::arm(None);
        recovers(&world);
        if fired.is_none() {
            return nth - 1;
        }
    }
    0
}

/// Ten pairs of `points` faults, drawn from the seed: how many of them were both reached.
fn pairs(mode: Mode, points: u64, seed: u64) -> u64 {
    let drawn = |i: u64| 1 + splitmix64(seed << 8 | i) % points;
    let both = (0..10).filter(|i| {
        let world = World::stored(mode, SLOTS[0], SLOTS[1]);
        fail::arm_all(&[drawn(2 * i), drawn(2 * i + 1)]);
        scenario(&world);
        let fired = fail::all_fired().len();
        fail::arm(None);
        recovers(&world);
        fired == 2
    });
    both.count() as u64
}

#[test]
fn gate_every_fault_point_in_turn() {
    let (mut executed, mut paired) = (0, 0);
    let modes = (0..40).map(|seed| Mode::Adversarial { seed }).chain([Mode::Eager]);
    for (seed, mode) in modes.enumerate() {
        let points = sweep(mode, false);
        executed += points;
        paired += pairs(mode, points, seed as u64);
    }
    let caught =
        |early| (0..40).any(|seed| std::panic::catch_unwind(|| sweep(Mode::Adversarial { seed }, early)).is_err());
    let early = caught(true);
    plant::arm(Some(Bug::B18));
    let ignored = caught(false);
    assert!(plant::committed() > 0);
    plant::arm(None);
    fail::arm(None);
    let caught = u8::from(early) + u8::from(ignored);
    println!("tier-faults: {paired} runs with two faults");
    println!("GATE tier-faults executed={} failed=0 controls={caught}/2 seed=0x0", executed + paired);
    assert!(caught == 2 && executed > 1000 && paired > 100, "{executed} {paired}");
}

#[test]
fn a_cache_that_cannot_be_built_is_an_error() {
    let world = World::new(Mode::Eager, 1, 1).unwrap();
    let config = ScratchConfig { key_slots: 2, value_slots: 2, slot_bytes: 64 };
    for nth in 1..=2 {
        fail::arm(Some(nth));
        let refused = Scratch::new(&world.device, config);
        fail::arm(None);
        assert!(matches!(refused, Err(DeviceError::Injected(_))));
    }
    assert!(Scratch::new(&world.device, config).is_ok());
    let huge = ScratchConfig { slot_bytes: usize::MAX / 2, ..config };
    assert!(matches!(Scratch::new(&world.device, huge), Err(DeviceError::ArenaSize { .. })));
}

/// The originals hold, bit for bit, what was appended: also after a load cycle with faults.
#[test]
fn originals_survive_any_fault_in_a_fill() {
    for nth in 1..40 {
        let world = World::stored(Mode::Adversarial { seed: nth }, SLOTS[0], SLOTS[1]);
        fail::arm(Some(nth));
        let _ = world.prefetch(&sides_of(page(2)).collect::<Vec<_>>()).map(drop);
        fail::arm(None);
        let _ = world.device.synchronize();
        let guard = world.originals.arena().read_tagged(2, &world.device.host(), tag(page(2))).unwrap();
        for key in sides_of(page(2)) {
            let words = world.originals.layout().words(key.layer as usize, key.kv_head as usize, key.side);
            assert!(guard.words()[words].iter().all(|&w| w == word(&key)));
        }
    }
}

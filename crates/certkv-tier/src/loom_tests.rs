//! The pin protocol under every interleaving: real scratch, real eager device, model threads.
use crate::{Item, Lane, MoveCause, MoveError, Scratch, ScratchConfig, Side, SideKey};
use certkv_core::PageId;
use certkv_core::plant::{self, Bug};
use certkv_core::sync::{Arc, thread};
use certkv_device::{Arena, DeviceError, Mode, SimDevice, SimOptions, Stream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct World {
    scratch: Scratch,
    lane: Lane,
    originals: Arena,
    compute: Stream,
}

fn key(page: u32) -> SideKey {
    SideKey { page: PageId { index: page, generation: 1 }, layer: 0, kv_head: 0, side: Side::Key }
}

/// One slot, holding page 0.
fn world() -> World {
    let device = SimDevice::new(SimOptions { mode: Mode::Eager, check: false });
    let scratch = Scratch::new(&device, ScratchConfig { key_slots: 1, value_slots: 0, slot_bytes: 64 }).unwrap();
    let (lane, originals) = (Lane::new(&device, "lane"), device.arena("originals", 2, 64).unwrap());
    let compute = device.stream("compute");
    for page in 0..2 {
        originals.write(page, &compute).unwrap().bytes_mut().fill(page as u8);
    }
    let world = World { scratch, lane, originals, compute };
    world.fetch(0).unwrap();
    world
}

impl World {
    fn fetch(&self, page: u32) -> Result<(), MoveError> {
        let item = Item { key: key(page), slot: page, range: 0..64, tag: None };
        self.scratch.prefetch(&self.lane, &self.originals, &[item]).map(drop)
    }

    /// Looks a page up and holds it; the borrow word reports a fill that did not respect the pin.
    fn read(&self, page: u32) -> Result<bool, DeviceError> {
        let lease = self.scratch.lookup(&key(page), &self.compute)?;
        Ok(lease.is_some_and(|lease| {
            assert!(lease.bytes().iter().all(|&b| b == page as u8));
            true
        }))
    }
}

fn evict_while_reading(bug: Option<Bug>) {
    // All of a model's threads are one of the machine's.
    plant::arm(bug);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let world = Arc::new(world());
        let other = world.clone();
        let reader = thread::spawn(move || other.read(0).unwrap());
        if let Err(error) = world.fetch(1) {
            assert_eq!(error.not_moved, [(0, MoveCause::Full)]);
        }
        let _found = reader.join().unwrap();
        assert_eq!(world.scratch.census(Side::Key).pins, 0);
        assert!(world.fetch(1).is_ok() && world.read(1).unwrap());
    });
}

#[test]
fn a_pinned_slot_is_never_refilled() {
    evict_while_reading(None);
}

#[test]
#[should_panic]
fn control_ignored_pins_are_caught() {
    evict_while_reading(Some(Bug::B6));
}

#[test]
fn an_invalidated_page_is_not_found_and_its_slot_returns() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let world = Arc::new(world());
        let other = world.clone();
        let reader = thread::spawn(move || other.read(0).unwrap());
        world.scratch.invalidate_page(key(0).page);
        assert!(!world.read(0).unwrap());
        reader.join().unwrap();
        let census = world.scratch.census(Side::Key);
        assert_eq!((census.empty, census.pins), (1, 0));
    });
}

/// A side is promoted while its page ends: it is dropped before, on its way or after, and its slot is not lost.
#[test]
fn a_promotion_and_the_end_of_its_page_leave_one_slot() {
    // Not of the model: how often the side was there at the end, and how often not.
    static THERE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let world = Arc::new(world());
        let other = world.clone();
        let end = thread::spawn(move || other.scratch.invalidate_page(key(1).page));
        world.fetch(1).unwrap();
        end.join().unwrap();
        let there = world.read(1).unwrap();
        let census = world.scratch.census(Side::Key);
        assert_eq!((census.valid, census.empty), (u32::from(there), u32::from(!there)));
        assert_eq!((census.filling, census.retiring, census.pins), (0, 0, 0));
        THERE[usize::from(there)].fetch_add(1, Relaxed);
        world.fetch(0).unwrap();
        assert!(world.read(0).unwrap());
    });
    let [gone, there] = THERE.each_ref().map(|n| n.load(Relaxed));
    println!("gone at the end of {gone} executions, there at the end of {there}");
    assert!(gone > 0 && there > 0);
}

/// Two sides are promoted to the one slot there is: each evicts the other or finds no room, and one of them stays.
#[test]
fn of_two_promotions_to_one_slot_one_stays() {
    static STAYED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let world = Arc::new(world());
        let other = world.clone();
        let fetch = |world: &World, page| match world.fetch(page) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.not_moved, [(0, MoveCause::Full)]),
        };
        let again = thread::spawn(move || fetch(&other, 0));
        fetch(&world, 1);
        again.join().unwrap();
        let there = [0, 1].map(|page| world.read(page).unwrap());
        assert_ne!(there[0], there[1]);
        assert_eq!(world.scratch.census(Side::Key).valid, 1);
        STAYED[usize::from(there[1])].fetch_add(1, Relaxed);
    });
    let [first, second] = STAYED.each_ref().map(|n| n.load(Relaxed));
    println!("the first stayed in {first} executions, the second in {second}");
    assert!(first > 0 && second > 0);
}

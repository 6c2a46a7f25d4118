//! The pin protocol under every interleaving: real scratch, real eager device, model threads.
use crate::{Item, Lane, MoveCause, MoveError, Scratch, ScratchConfig, Side, SideKey};
use certkv_core::PageId;
use certkv_core::plant::{self, Bug};
use certkv_core::sync::{Arc, thread};
use certkv_device::{Arena, DeviceError, Mode, SimDevice, SimOptions, Stream};

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

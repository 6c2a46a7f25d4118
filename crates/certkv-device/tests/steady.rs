//! The production path allocates nothing once arenas and streams exist. Alone in its binary: it counts allocations.
use certkv_device::{Copy2d, Dst, Mode, SimDevice, SimOptions, Src};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of a thousand rounds of guards, copies and fences. The test harness may allocate beside them, so the
/// least of several tries counts.
fn allocations(device: &SimDevice) -> u64 {
    let (one, two) = (device.arena("one", 4, 256).unwrap(), device.arena("two", 4, 256).unwrap());
    let (compute, lane) = (device.stream("compute"), device.stream("lane"));
    let tries = (0..5).map(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for round in 0..1000 {
            let slot = round % 4;
            one.write(slot, &compute).unwrap().set_tag(7);
            lane.wait(&compute.record().unwrap()).unwrap();
            let src = Src { arena: &one, slot, range: 0..64, expect: Some(7) };
            device.copy_2d(&lane, src, Dst { arena: &two, slot, offset: 0 }, Copy2d { count: 2, pitch: 128 }).unwrap();
            let fence = lane.record().unwrap();
            compute.wait(&fence).unwrap();
            assert_eq!(two.read_tagged(slot, &compute, 7).unwrap().words().len(), 128);
            assert!(fence.passed() && device.passed(fence.stamp()));
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    });
    tries.min().unwrap_or(u64::MAX)
}

#[test]
fn steady_state_allocates_nothing() {
    let production = allocations(&SimDevice::new(SimOptions { mode: Mode::Eager, check: false }));
    let checked = allocations(&SimDevice::new(SimOptions { mode: Mode::Eager, check: true }));
    println!("GATE steady executed=1000 failed={production} controls={}/1 seed=0x0", u8::from(checked > 0));
    assert_eq!(production, 0);
    // The checker does allocate: the count can be other than zero.
    assert!(checked > 0);
}

//! The production path allocates nothing once arenas and streams exist. Alone in its binary: it counts allocations.
mod counting;

use certkv_device::{Copy2d, Dst, Mode, SimDevice, SimOptions, Src};
use counting::asked;

/// Allocations of a thousand rounds of guards, copies and fences. The test harness may allocate beside them, so the
/// least of several tries counts.
fn allocations(device: &SimDevice) -> u64 {
    let (one, two) = (device.arena("one", 4, 256).unwrap(), device.arena("two", 4, 256).unwrap());
    let (compute, lane) = (device.stream("compute"), device.stream("lane"));
    let tries = (0..5).map(|_| {
        let rounds = || {
            (0..1000).for_each(|round| {
                let slot = round % 4;
                one.write(slot, &compute).unwrap().set_tag(7);
                lane.wait(&compute.record().unwrap()).unwrap();
                let src = Src { arena: &one, slot, range: 0..64, expect: Some(7) };
                device
                    .copy_2d(&lane, src, Dst { arena: &two, slot, offset: 0 }, Copy2d { count: 2, pitch: 128 })
                    .unwrap();
                let fence = lane.record().unwrap();
                compute.wait(&fence).unwrap();
                assert_eq!(two.read_tagged(slot, &compute, 7).unwrap().words().len(), 128);
                assert!(fence.passed() && device.passed(fence.stamp()));
            })
        };
        asked(rounds).0
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

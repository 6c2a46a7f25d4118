//! Guards, streams, fences and copies of the simulated device, one rule at a time.
use certkv_core::fail;
use certkv_device::*;

fn device(mode: Mode, check: bool) -> SimDevice {
    SimDevice::new(SimOptions { mode, check })
}

fn all_kinds() -> Vec<SimDevice> {
    let modes = [Mode::Eager, Mode::Adversarial { seed: 7 }];
    modes.iter().flat_map(|&m| [device(m, false), device(m, true)]).collect()
}

fn src(arena: &Arena, slot: u32, range: std::ops::Range<usize>) -> Src<'_> {
    Src { arena, slot, range, expect: None }
}

fn dst(arena: &Arena, slot: u32, offset: usize) -> Dst<'_> {
    Dst { arena, slot, offset }
}

#[test]
fn slots_are_zeroed_aligned_and_apart() {
    let device = device(Mode::Eager, false);
    let arena = device.arena("odd", 3, 100).unwrap();
    let stream = device.stream("compute");
    let mut one = arena.write(1, &stream).unwrap();
    assert_eq!(one.bytes().as_ptr() as usize % 64, 0);
    assert_eq!((one.bytes().len(), one.words().len(), one.floats().len()), (100, 50, 25));
    assert!(one.bytes().iter().all(|&b| b == 0));
    one.words_mut().fill(0xabcd);
    one.floats_mut()[24] = 1.5;
    assert_eq!(one.floats()[24], 1.5);
    for slot in [0, 2] {
        assert!(arena.read(slot, &stream).unwrap().bytes().iter().all(|&b| b == 0));
    }
}

#[test]
fn a_large_arena_costs_nothing_until_it_is_touched() {
    // 64 GiB of address space: clearing it would fail or take very long.
    let device = device(Mode::Eager, false);
    match device.arena("huge", 1 << 6, 1 << 30) {
        Ok(arena) => assert_eq!(arena.read(63, &device.host()).unwrap().bytes()[(1 << 30) - 1], 0),
        Err(error) => assert!(matches!(error, DeviceError::OutOfMemory { .. })),
    }
}

#[test]
fn impossible_arenas_are_refused() {
    let device = device(Mode::Eager, true);
    for (slots, bytes) in [(0, 64), (4, 0), (u32::MAX, usize::MAX), (2, usize::MAX / 2), (1, usize::MAX)] {
        assert!(matches!(device.arena("bad", slots, bytes), Err(DeviceError::ArenaSize { .. })), "{slots} x {bytes}");
    }
    assert!(matches!(device.arena("big", 1 << 16, 1 << 45), Err(DeviceError::OutOfMemory { .. })));
    fail::arm(Some(1));
    let refused = device.arena("x", 1, 64);
    assert!(matches!(refused, Err(DeviceError::Injected(f)) if f.point == "device.arena.alloc"));
    fail::arm(None);
}

#[test]
fn readers_share_and_writers_exclude() {
    for device in all_kinds() {
        let arena = device.arena("a", 2, 64).unwrap();
        let stream = device.stream("compute");
        let (one, two) = (arena.read(0, &stream).unwrap(), arena.read(0, &stream).unwrap());
        let refused = arena.write(0, &stream).unwrap_err();
        let held = Held::Readers(2);
        assert_eq!(refused, DeviceError::Conflict { arena: arena.id(), slot: 0, wanted: Access::Write, held });
        assert!(arena.is_held(0) && !arena.is_held(1));
        drop((one, two));
        let writer = arena.write(0, &stream).unwrap();
        assert!(matches!(arena.read(0, &stream), Err(DeviceError::Conflict { held: Held::Writer, .. })));
        assert!(matches!(arena.poison(0), Err(DeviceError::Conflict { .. })));
        drop(writer);
        assert!(matches!(arena.read(2, &stream), Err(DeviceError::NoSuchSlot { slot: 2, slots: 2, .. })));
        assert!(!arena.is_held(0));
    }
}

#[test]
fn guards_travel_between_threads() {
    let device = device(Mode::Eager, true);
    let arena = device.arena("a", 8, 4096).unwrap();
    let stream = device.stream("compute");
    std::thread::scope(|scope| {
        for slot in 0..8 {
            let (arena, stream) = (&arena, &stream);
            scope.spawn(move || {
                for round in 0..100u8 {
                    let mut guard = arena.write(slot, stream).unwrap();
                    guard.bytes_mut().fill(round);
                    drop(guard);
                    assert!(arena.read(slot, stream).unwrap().bytes().iter().all(|&b| b == round));
                }
            });
        }
    });
    assert_eq!(device.report().findings(), 0);
}

#[test]
fn copies_move_ranges_rows_and_tags() {
    for device in all_kinds() {
        let (from, to) = (device.arena("from", 1, 256).unwrap(), device.arena("to", 2, 300).unwrap());
        let stream = device.stream("lane");
        let mut guard = from.write(0, &stream).unwrap();
        guard.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        guard.set_tag(9);
        drop(guard);
        device.copy(&stream, src(&from, 0, 16..32), dst(&to, 0, 100)).unwrap();
        device.copy_2d(&stream, src(&from, 0, 8..12), dst(&to, 1, 0), Copy2d { count: 4, pitch: 64 }).unwrap();
        let fence = stream.record().unwrap();
        fence.synchronize().unwrap();
        let read = to.read_tagged(0, &stream, 9).unwrap();
        assert_eq!(read.bytes()[100..116], (16..32).collect::<Vec<u8>>()[..]);
        assert!(read.bytes()[..100].iter().chain(&read.bytes()[116..]).all(|&b| b == 0));
        let read = to.read(1, &stream).unwrap();
        for row in 0..4u8 {
            let at = 64 * row as usize;
            assert_eq!(read.bytes()[at..at + 5], [64 * row + 8, 64 * row + 9, 64 * row + 10, 64 * row + 11, 0]);
        }
    }
}

#[test]
fn impossible_copies_are_refused() {
    for device in all_kinds() {
        let (a, b) = (device.arena("a", 2, 64).unwrap(), device.arena("b", 1, 32).unwrap());
        let stream = device.stream("lane");
        let out = |r: Result<(), DeviceError>| matches!(r, Err(DeviceError::OutOfRange { .. }));
        assert!(out(device.copy(&stream, src(&a, 0, 0..33), dst(&b, 0, 0))));
        assert!(out(device.copy(&stream, src(&a, 0, 0..8), dst(&b, 0, 25))));
        assert!(out(device.copy(&stream, src(&a, 0, 60..65), dst(&b, 0, 0))));
        let reversed = std::ops::Range { start: 9, end: 8 };
        assert!(out(device.copy(&stream, src(&a, 0, reversed), dst(&b, 0, 0))));
        assert!(out(device.copy(&stream, src(&a, 0, 0..8), dst(&b, 0, usize::MAX))));
        for (count, pitch) in [(5, 16), (usize::MAX, 8), (2, usize::MAX)] {
            assert!(out(device.copy_2d(&stream, src(&a, 0, 0..8), dst(&a, 1, 0), Copy2d { count, pitch })));
        }
        device.copy_2d(&stream, src(&a, 0, 0..8), dst(&a, 1, 0), Copy2d { count: 0, pitch: usize::MAX }).unwrap();
        let same = device.copy(&stream, src(&a, 0, 0..8), dst(&a, 0, 8));
        assert_eq!(same, Err(DeviceError::SameSlot { arena: a.id(), slot: 0 }));
        assert!(matches!(device.copy(&stream, src(&a, 2, 0..8), dst(&b, 0, 0)), Err(DeviceError::NoSuchSlot { .. })));
        let batch = [(src(&a, 0, 0..8), dst(&b, 0, 0)), (src(&a, 9, 0..8), dst(&b, 0, 0))];
        let failed = device.copy_many(&stream, batch).unwrap_err().failed;
        assert!(matches!(failed[..], [(1, DeviceError::NoSuchSlot { slot: 9, .. })]));
        let other = SimDevice::new(SimOptions::default());
        assert_eq!(other.copy(&stream, src(&a, 0, 0..8), dst(&b, 0, 0)), Err(DeviceError::Foreign));
        assert_eq!(a.read(0, &other.stream("s")).unwrap_err(), DeviceError::Foreign);
        assert_eq!(stream.wait(&other.stream("s").record().unwrap()), Err(DeviceError::Foreign));
    }
}

#[test]
fn a_missing_wait_is_reported_and_shows_as_stale_data() {
    let mut stale = 0;
    for seed in 0..64 {
        for check in [true, false] {
            let device = device(Mode::Adversarial { seed }, check);
            let (from, to) = (device.arena("from", 1, 64).unwrap(), device.arena("to", 1, 64).unwrap());
            let (compute, lane) = (device.stream("compute"), device.stream("lane"));
            from.write(0, &device.host()).unwrap().bytes_mut().fill(5);
            device.copy(&lane, src(&from, 0, 0..64), dst(&to, 0, 0)).unwrap();
            match to.read(0, &compute) {
                Ok(guard) => {
                    assert!(!check);
                    stale += usize::from(guard.bytes()[0] == 0);
                }
                Err(error) => {
                    let (earlier, later) = ("lane", "compute");
                    let (earlier_access, later_access) = (Access::CopyTo, Access::Read);
                    let (arena, slot) = (to.id(), 0);
                    let told = DeviceError::Unordered { arena, slot, earlier, earlier_access, later, later_access };
                    assert_eq!((error, device.report().unordered), (told, 1));
                }
            }
            let fence = lane.record().unwrap();
            compute.wait(&fence).unwrap();
            assert_eq!(to.read(0, &compute).unwrap().bytes()[0], 5);
        }
    }
    assert!(stale > 8, "the schedule is not adversarial: {stale} of 64");
}

#[test]
fn what_the_host_saw_orders_what_it_enqueues() {
    for by_stamp in [true, false] {
        let device = device(Mode::Adversarial { seed: 1 }, true);
        let (from, to) = (device.arena("from", 1, 64).unwrap(), device.arena("to", 1, 64).unwrap());
        let (compute, lane) = (device.stream("compute"), device.stream("lane"));
        device.copy(&lane, src(&from, 0, 0..64), dst(&to, 0, 0)).unwrap();
        assert!(to.poison(0).is_err());
        let fence = lane.record().unwrap();
        let polls =
            (0..).take_while(|_| !(if by_stamp { device.passed(fence.stamp()) } else { fence.passed() })).count();
        assert!(polls < 10_000);
        to.poison(0).unwrap();
        let guard = to.read(0, &compute).unwrap();
        assert!(guard.words().iter().all(|&w| w == 0xffff) && guard.floats()[0].is_nan());
        assert!(!device.passed(fence.stamp() + 1));
    }
}

#[test]
fn stamps_grow_and_old_ones_stay_passed() {
    for device in all_kinds() {
        let (one, two) = (device.stream("one"), device.stream("two"));
        let mut last = 0;
        for _ in 0..10_000 {
            for stream in [&one, &two] {
                let stamp = stream.record().unwrap().stamp();
                assert!(stamp > last);
                last = stamp;
            }
            two.sync_point();
            one.sync_point();
        }
        device.synchronize().unwrap();
        assert!((1..=last).all(|stamp| device.passed(stamp)));
    }
}

#[test]
fn a_fence_with_guards_alive_is_refused() {
    let device = device(Mode::Eager, true);
    let arena = device.arena("a", 1, 64).unwrap();
    let stream = device.stream("compute");
    let guard = arena.read(0, &stream).unwrap();
    assert_eq!(stream.record().unwrap_err(), DeviceError::GuardsLive { stream: "compute", guards: 1 });
    assert!(stream.synchronize().is_err());
    drop(guard);
    let _fence = stream.record().unwrap();
}

#[test]
fn the_idle_stamp_passes_when_nothing_is_in_flight() {
    for device in all_kinds() {
        let (from, to) = (device.arena("from", 1, 64).unwrap(), device.arena("to", 1, 64).unwrap());
        let lane = device.stream("lane");
        for _ in 0..20 {
            device.copy(&lane, src(&from, 0, 0..64), dst(&to, 0, 0)).unwrap();
        }
        assert!(device.passed(0) && !device.passed(1));
        assert!((0..10_000).any(|_| device.passed(SimDevice::IDLE)));
        to.poison(0).unwrap();
        if device.options().check {
            let guard = to.read(0, &lane).unwrap();
            assert!(!device.is_idle() && device.synchronize().is_err());
            drop(guard);
        }
        assert!(device.is_idle());
    }
}

#[test]
fn a_copy_that_fails_late_fails_its_fence_once() {
    let mut late = 0;
    for seed in 0..32 {
        let device = device(Mode::Adversarial { seed }, true);
        let (from, to) = (device.arena("from", 1, 64).unwrap(), device.arena("to", 1, 64).unwrap());
        let lane = device.stream("lane");
        from.set_tag(0, 3).unwrap();
        fail::arm(Some(2));
        device.copy(&lane, src(&from, 0, 0..64), dst(&to, 0, 0)).unwrap();
        let fence = lane.record();
        let Ok(fence) = fence else {
            // The copy had not run when the second point was reached: that point was the record.
            fail::arm(None);
            continue;
        };
        let outcome = fence.synchronize();
        fail::arm(None);
        assert_eq!(outcome, Err(DeviceError::CopyFailed { stream: "lane", copies: 1 }));
        assert_eq!(fence.completed(), outcome.map(|()| true));
        assert_eq!((to.tag(0).unwrap(), device.report().failed_copies), (UNTAGGED, 1));
        let next = lane.record().unwrap();
        assert_eq!(next.synchronize(), Ok(()));
        late += 1;
    }
    assert!(late > 0, "no schedule ran the copy before the record");
}

#[test]
fn tags_tell_owners_apart() {
    for device in all_kinds() {
        let arena = device.arena("a", 2, 64).unwrap();
        let stream = device.stream("compute");
        arena.write(0, &stream).unwrap().set_tag(41);
        assert!(arena.read_tagged(0, &stream, 41).is_ok());
        let wrong = arena.read_tagged(0, &stream, 42).unwrap_err();
        assert_eq!(wrong, DeviceError::WrongContent { arena: arena.id(), slot: 0, expected: 42, found: 41 });
        assert!(arena.write_tagged(0, &stream, 42).is_err() && !arena.is_held(0));
        let expect = Some(42);
        let copied = device.copy(&stream, Src { expect, ..src(&arena, 0, 0..8) }, dst(&arena, 1, 0));
        assert!(copied.and_then(|()| stream.synchronize()).is_err());
        stream.synchronize().unwrap();
        arena.erase(0).unwrap();
        assert_eq!(arena.tag(0), Ok(UNTAGGED));
    }
}

#[test]
fn memory_outlives_its_handles() {
    let device = device(Mode::Adversarial { seed: 3 }, true);
    let (from, to) = (device.arena("from", 1, 64).unwrap(), device.arena("to", 1, 64).unwrap());
    let lane = device.stream("lane");
    let guard = from.read(0, &device.host()).unwrap();
    device.copy(&lane, src(&from, 0, 0..64), dst(&to, 0, 0)).unwrap();
    drop((from, to));
    device.synchronize().unwrap();
    assert_eq!(guard.bytes()[0], 0);
}

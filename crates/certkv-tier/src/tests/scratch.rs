//! The cache, one rule at a time.
use super::world::{World, key, page, sides_of};
use crate::{Item, Lane, MoveCause, Offer, Scratch, ScratchConfig, ScratchStats, Side};
use certkv_core::plant::{self, Bug};
use certkv_device::{DeviceError, Mode, SimDevice, SimOptions};

#[test]
fn fills_are_found_and_counted() {
    let world = World::stored(Mode::Eager, 4, 4);
    let keys: Vec<_> = sides_of(page(0)).collect();
    assert!(world.read(&keys[0], 0).unwrap().is_none());
    let fence = world.prefetch(&keys).unwrap();
    assert_eq!(fence.completed(), Ok(true));
    assert!(keys.iter().all(|k| world.read(k, 0).unwrap().is_some()));
    assert!(world.read(&key(page(1), 0, 0, Side::Key), 0).unwrap().is_none());
    // What is there is not copied again.
    let ops = world.device.report().ops;
    let _fence = world.prefetch(&keys).unwrap();
    assert_eq!(world.device.report().ops, ops + 1);
    let mut stats = ScratchStats { hits: 8, misses: 2, filled: 8, ..ScratchStats::default() };
    // In the batch that asked for them.
    (0..8).for_each(|_| stats.age_at_hit.record(0));
    assert_eq!(world.scratch.stats(), stats);
}

#[test]
fn second_chance_spares_what_was_used_and_pins_hold() {
    let world = World::stored(Mode::Eager, 3, 0);
    let keys: Vec<_> = (0..3).map(|p| key(page(p), 0, 0, Side::Key)).collect();
    let next: Vec<_> = (0..3).map(|p| key(page(p), 1, 0, Side::Key)).collect();
    let _f = world.prefetch(&keys).unwrap();
    let _f = world.prefetch(&next[..1]).unwrap();
    // The hand went round once and took the first slot; now only what is looked up has a second chance.
    assert!(!world.scratch.contains(&keys[0]));
    drop(world.read(&keys[1], 0).unwrap());
    let _f = world.prefetch(&next[1..2]).unwrap();
    assert!(world.scratch.contains(&keys[1]) && !world.scratch.contains(&keys[2]));
    let leases: Vec<_> =
        [keys[1], next[0], next[1]].iter().map(|k| world.read(k, 1).unwrap().expect("resident")).collect();
    let refused = world.prefetch(&[next[0], next[2], keys[0]]).unwrap_err();
    assert_eq!(refused.not_moved, [(1, MoveCause::Full), (2, MoveCause::Full)]);
    assert!(refused.fence.is_none());
    assert!(leases.iter().all(super::world::right));
    world.assert_books([3, 0], 3);
    drop(leases);
    assert!(world.prefetch(&[next[2]]).is_ok());
    let stats = world.scratch.stats();
    assert_eq!((stats.evictions, stats.refused, stats.age_at_eviction.count()), (3, 2, 3));
    assert!(stats.age_at_eviction.sum >= 3, "what goes was not in the batch that evicts it: {stats:?}");
    // The first look-up was a batch behind what had asked for the side; of the three held later two were asked for in batches before the last.
    assert_eq!((stats.age_at_hit.count(), stats.age_at_hit.sum), (stats.hits, 1 + 1 + 1), "{stats:?}");
}

#[test]
fn a_side_without_slots_caches_nothing() {
    let world = World::stored(Mode::Eager, 1, 0);
    let keys = [key(page(0), 0, 0, Side::Key), key(page(0), 0, 0, Side::Value)];
    let error = world.prefetch(&keys).unwrap_err();
    assert_eq!(error.not_moved, [(1, MoveCause::Full)]);
    assert!(error.fence.is_some() && world.scratch.contains(&keys[0]));
    assert!(world.read(&keys[1], 0).unwrap().is_none());
}

#[test]
fn bad_items_are_named_and_the_rest_moves() {
    let world = World::stored(Mode::Eager, 4, 4);
    let good = key(page(0), 0, 1, Side::Value);
    let mut items = vec![world.item(good), world.item(key(page(1), 0, 0, Side::Key)), world.item(good)];
    items.push(world.item(key(page(2), 0, 0, Side::Key)));
    items.push(world.item(key(page(2), 7, 0, Side::Key)));
    items[1].range.end -= 1;
    items[3].tag = Some(5);
    let error = world.scratch.prefetch(&world.fills, world.originals.arena(), &items).unwrap_err();
    let [(1, MoveCause::WrongSize { given: 63, slot: 64 }), (3, MoveCause::Device(wrong)), (4, size)] =
        error.not_moved[..]
    else {
        panic!("{error:?}")
    };
    assert!(matches!(wrong, DeviceError::WrongContent { expected: 5, .. }));
    assert!(matches!(size, MoveCause::WrongSize { given: 0, .. }));
    assert!(world.read(&good, 0).unwrap().is_some());
    world.assert_books([4, 4], 0);
    let text = error.to_string();
    assert!(text.contains("3 items") && text.contains("63 bytes"), "{text}");
}

#[test]
fn retired_pages_are_not_found_and_held_sides_stay_until_dropped() {
    let world = World::stored(Mode::Eager, 4, 4);
    let keys: Vec<_> = sides_of(page(0)).collect();
    let _f = world.prefetch(&keys).unwrap();
    let lease = world.read(&keys[2], 1).unwrap().expect("resident");
    world.scratch.invalidate_page(page(0));
    assert!(keys.iter().all(|k| !world.scratch.contains(k)));
    assert!(super::world::right(&lease));
    let census = world.scratch.census(Side::Key);
    assert_eq!((census.empty, census.retiring, census.pins), (3, 1, 1));
    drop(lease);
    assert_eq!(world.scratch.census(Side::Key).empty, 4);
    assert_eq!(world.scratch.stats().invalidated, 8);
    world.scratch.invalidate_page(page(0));
}

#[test]
fn a_fill_in_flight_is_a_miss_until_it_was_seen_to_finish() {
    let mut pending = 0;
    for seed in 0..50 {
        let world = World::stored(Mode::Adversarial { seed }, 2, 2);
        let side = key(page(0), 1, 1, Side::Value);
        let fence = world.prefetch(&[side]).unwrap();
        pending += usize::from(world.read(&side, 0).unwrap().is_none());
        fence.synchronize().unwrap();
        assert!(world.read(&side, 1).unwrap().is_some());
    }
    assert!(pending > 5, "{pending} of 50");
}

#[test]
fn a_reader_with_live_guards_blocks_reuse_of_what_it_read() {
    let world = World::stored(Mode::Eager, 2, 0);
    let keys: Vec<_> = (0..3).map(|p| key(page(p), 0, 0, Side::Key)).collect();
    let _f = world.prefetch(&keys[..2]).unwrap();
    drop(world.read(&keys[1], 1).unwrap());
    let lease = world.read(&keys[0], 1).unwrap();
    let error = world.prefetch(&keys[2..]).unwrap_err();
    assert!(matches!(error.not_moved[..], [(0, MoveCause::Device(DeviceError::GuardsLive { guards: 1, .. }))]));
    world.assert_books([2, 0], 1);
    drop(lease);
    assert!(world.prefetch(&keys[2..]).is_ok());
}

#[test]
fn a_batch_does_not_evict_what_it_also_wants() {
    let world = World::stored(Mode::Eager, 3, 0);
    let keys: Vec<_> = sides_of(page(0)).chain(sides_of(page(1))).filter(|k| k.side == Side::Key).collect();
    let _f = world.prefetch(&keys[..3]).unwrap();
    for wanted in [[0, 3, 4], [4, 5, 0], [6, 5, 7], [7, 1, 6]] {
        let wanted = wanted.map(|i| keys[i]);
        let _f = world.prefetch(&wanted).unwrap();
        assert!(wanted.iter().all(|k| world.scratch.contains(k)));
    }
}

/// A working set larger than the cache, used in turns: what there is room for stays, instead of all going just before its
/// turn comes.
#[test]
fn an_offer_spares_what_recent_batches_wanted() {
    for (spared, hits) in [(1, 0), (2, 0), (3, 8), (4, 8)] {
        let world = World::stored(Mode::Eager, 2, 0);
        let turns: Vec<_> = (0..3).map(|p| [key(page(p), 0, 0, Side::Key), key(page(p), 0, 1, Side::Key)]).collect();
        for turn in (0..5).flat_map(|_| &turns) {
            turn.iter().for_each(|k| drop(world.read(k, 0).unwrap()));
            let items = turn.map(|k| world.item(k));
            let how = Offer { lane: &world.fills, from: world.originals.arena(), after: None, spared };
            world.scratch.offer(how, &items);
        }
        assert_eq!(world.scratch.stats().hits, hits, "spared {spared}");
        // What nobody wants any more goes when its time is over.
        let next = [key(page(0), 1, 0, Side::Key), key(page(0), 1, 1, Side::Key)];
        for _ in 0..spared {
            let how = Offer { lane: &world.fills, from: world.originals.arena(), after: None, spared };
            world.scratch.offer(how, &next.map(|k| world.item(k)));
        }
        assert!(next.iter().all(|k| world.scratch.contains(k)), "spared {spared}");
        world.assert_books([2, 0], 0);
    }
}

#[test]
fn an_offer_comes_after_the_stream_it_names() {
    for (waits, copied) in [(true, 1), (false, 0)] {
        let world = World::stored(Mode::Adversarial { seed: 2 }, 2, 0);
        let side = key(page(1), 0, 0, Side::Key);
        // The original is written again, on a stream that nobody else has waited for.
        let mut guard = world.originals.arena().write(1, &world.readers[1]).unwrap();
        guard.words_mut()[0] = super::world::word(&side);
        drop(guard);
        let after = waits.then_some(&world.readers[1]);
        let how = Offer { lane: &world.fills, from: world.originals.arena(), after, spared: 1 };
        world.scratch.offer(how, &[world.item(side)]);
        world.device.synchronize().unwrap();
        assert_eq!(usize::from(world.read(&side, 0).unwrap().is_some()), copied);
        // The control: without the wait the checker refuses the copy.
        assert_eq!(world.device.report().unordered, u64::from(!waits));
    }
}

/// Without the checker: the pin is the first wall and the borrow word the second, which shows when the first is gone.
#[test]
fn a_pin_is_respected_in_production_and_its_loss_is_caught() {
    let device = SimDevice::new(SimOptions { mode: Mode::Eager, check: false });
    for (bug, cause) in [(None, "no slot"), (Some(Bug::B6), "while 1 readers hold it")] {
        let config = ScratchConfig { key_slots: 1, value_slots: 0, slot_bytes: 64 };
        let scratch = Scratch::new(&device, config).unwrap();
        plant::arm(bug);
        let (lane, compute) = (Lane::new(&device, "lane"), device.stream("compute"));
        let originals = device.arena("originals", 2, 64).unwrap();
        let item = |p| Item { key: key(page(p), 0, 0, Side::Key), slot: p, range: 0..64, tag: None };
        let _f = scratch.prefetch(&lane, &originals, &[item(0)]).unwrap();
        let lease = scratch.lookup(&item(0).key, &compute).unwrap().expect("resident");
        let _f = scratch.prefetch(&lane, &originals, &[item(0)]).unwrap();
        // The second chance of the only slot is used up by the first refusal.
        let error = scratch.prefetch(&lane, &originals, &[item(1)]).unwrap_err();
        assert!(error.to_string().contains(cause), "{error}");
        plant::arm(None);
        drop(lease);
        assert!(scratch.prefetch(&lane, &originals, &[item(1)]).is_ok());
    }
}

//! Orders of eviction.
use crate::policy::{EvictionPolicy, Lru, S3Fifo};
use certkv_core::hash::splitmix64;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

#[test]
fn lru_lets_the_longest_unused_go_and_passes_over_what_is_in_use() {
    let mut lru = Lru::create(4).unwrap();
    (0..4).for_each(|slot| lru.insert(slot, slot.into()));
    lru.touch(0);
    lru.remove(2);
    assert_eq!(lru.victim(&mut |slot| slot != 1), Some(3));
    // 1 was in use, and is now younger than 0.
    assert_eq!(lru.victim(&mut |_| true), Some(0));
    assert_eq!(lru.victim(&mut |_| false), None);
    assert_eq!((lru.victim(&mut |_| true), lru.victim(&mut |_| true)), (Some(1), None));
    assert!(lru.is_empty());
}

/// A short small queue behind a main one in use is no reason to find nobody.
#[test]
fn whoever_may_go_is_found() {
    let mut fifo = S3Fifo::create(100).unwrap();
    // Two that came back are in the main queue; what follows them is new.
    (0..2).for_each(|slot| fifo.insert(slot, slot.into()));
    assert_eq!([(); 2].map(|()| fifo.victim(&mut |_| true)), [Some(0), Some(1)]);
    (0..3).for_each(|slot| fifo.insert(slot, slot.into()));
    assert_eq!(fifo.victim(&mut |slot| slot == 2), Some(2));
    assert_eq!(fifo.victim(&mut |_| false), None);
}

proptest! {
    #[test]
    fn nobody_is_found_only_if_nobody_may_go(
        size in 1..80usize, deeds in prop::collection::vec((0..6u8, any::<u64>()), 1..300), which in 0..2,
    ) {
        let mut policy: Box<dyn EvictionPolicy> =
            if which == 0 { Box::new(Lru::create(size).unwrap()) } else { Box::new(S3Fifo::create(size).unwrap()) };
        let mut live: Vec<(u32, u64)> = vec![];
        for (deed, n) in deeds {
            let at = n as usize % live.len().max(1);
            match deed {
                0 | 1 if live.len() < size => {
                    let slot = (0..size as u32).find(|s| live.iter().all(|l| l.0 != *s)).unwrap();
                    // Names come back, so that ghosts are known.
                    let name = n % (2 * size as u64);
                    if live.iter().all(|l| l.1 != name) {
                        policy.insert(slot, name);
                        live.push((slot, name));
                    }
                }
                2 if !live.is_empty() => policy.touch(live[at].0),
                3 if !live.is_empty() => {
                    policy.remove(live[at].0);
                    live.remove(at);
                }
                _ => {
                    let idle = |slot: u32| splitmix64(n ^ u64::from(slot)).is_multiple_of([2, 7, 40][n as usize % 3]);
                    let some = live.iter().any(|l| idle(l.0));
                    let found = policy.victim(&mut |slot| idle(slot));
                    prop_assert_eq!(found.is_some(), some);
                    if let Some(slot) = found {
                        prop_assert!(idle(slot));
                        live.retain(|l| l.0 != slot);
                    }
                }
            }
            prop_assert_eq!(policy.len(), live.len());
        }
    }
}

/// A cache of `capacity` keys under a policy: hits among `asked`.
fn hits(policy: &mut dyn EvictionPolicy, capacity: usize, asked: impl Iterator<Item = u64>) -> (usize, usize) {
    let (mut slots, mut keys, mut free) = (HashMap::new(), HashMap::new(), (0..capacity as u32).collect::<Vec<_>>());
    let (mut hits, mut total) = (0, 0);
    for name in asked {
        total += 1;
        if let Some(slot) = slots.get(&name) {
            policy.touch(*slot);
            hits += 1;
            continue;
        }
        let slot = free.pop().unwrap_or_else(|| {
            let slot = policy.victim(&mut |_| true).expect("somebody goes");
            slots.remove(&keys.remove(&slot).expect("a victim was in the cache"));
            slot
        });
        slots.insert(name, slot);
        keys.insert(slot, name);
        policy.insert(slot, name);
        assert_eq!(policy.len(), slots.len());
    }
    (hits, total)
}

/// Sixty names that come again and again, and between any two of them three that never do.
fn with_scans(n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(|i| if i % 4 == 0 { splitmix64(i) % 60 } else { 1000 + i })
}

#[test]
fn a_scan_does_not_flush_what_is_used() {
    let hot = |policy: &mut dyn EvictionPolicy| {
        let (hits, total) = hits(policy, 100, with_scans(40_000));
        hits as f64 / (total / 4) as f64
    };
    let (lru, s3) = (hot(&mut Lru::create(100).unwrap()), hot(&mut S3Fifo::create(100).unwrap()));
    println!("hits of the names that come again: LRU {lru:.2}, S3-FIFO {s3:.2}");
    assert!(s3 > 0.9, "S3-FIFO {s3}");
    assert!(lru < 0.5, "LRU {lru}: the scan was no scan");
}

#[test]
fn both_let_everything_go_once_and_nothing_twice() {
    for policy in [&mut Lru::create(64).unwrap() as &mut dyn EvictionPolicy, &mut S3Fifo::create(64).unwrap()] {
        let mut seed = 5;
        let mut roll = |n: u64| {
            seed = splitmix64(seed);
            seed % n
        };
        let (mut inside, mut free) = (HashSet::new(), (0..64u32).collect::<Vec<_>>());
        for step in 0..20_000 {
            match roll(4) {
                0 | 1 if !free.is_empty() => {
                    let slot = free.swap_remove(roll(free.len() as u64) as usize);
                    policy.insert(slot, roll(200));
                    inside.insert(slot);
                }
                2 => {
                    let used: HashSet<u32> = inside.iter().copied().filter(|s| (s + step) % 3 == 0).collect();
                    match policy.victim(&mut |slot| !used.contains(&slot)) {
                        Some(slot) => {
                            assert!(inside.remove(&slot) && !used.contains(&slot));
                            free.push(slot);
                        }
                        None => assert_eq!(used.len(), inside.len(), "somebody was idle"),
                    }
                }
                _ => {
                    if let Some(slot) = inside.iter().next().copied() {
                        if roll(8) == 0 {
                            policy.remove(slot);
                            inside.remove(&slot);
                            free.push(slot);
                        } else {
                            policy.touch(slot);
                        }
                    }
                }
            }
            assert_eq!(policy.len(), inside.len());
        }
    }
}

#[test]
fn who_comes_back_soon_was_no_stray() {
    let mut policy = S3Fifo::create(20).unwrap();
    (0..20).for_each(|slot| policy.insert(slot, slot.into()));
    assert_eq!(policy.victim(&mut |_| true), Some(0));
    // The name that just went comes back in the slot that is free, beside a new one.
    policy.insert(0, 0);
    assert_eq!(policy.victim(&mut |_| true), Some(1));
    policy.insert(1, 100);
    // A hundred strays later it is still there.
    for stray in 0..100 {
        let slot = policy.victim(&mut |_| true).unwrap();
        assert_ne!(slot, 0);
        policy.insert(slot, 1000 + stray);
    }
}

//! The map against a model that says where every slot's rows are: whatever happens, they are somewhere, and nobody else's.
use super::map::{Census, Pick, Residency, STATES, SlotId, State};
use certkv_core::PageId;
use certkv_core::hash::splitmix64;
use std::collections::{BTreeMap, BTreeSet};

const LAYERS: usize = 3;
const PAGES: usize = 12;
const FRAMES: usize = 17;
const RESERVE: usize = 6;

/// What a slot should hold: its own name. Frames and store are filled with names, so a mix-up shows.
#[derive(Default)]
struct World {
    frames: BTreeMap<u32, SlotId>,
    store: BTreeMap<SlotId, SlotId>,
    /// Frames that are given up, with readers until the stamp.
    reading: BTreeSet<(u32, u64)>,
    live: BTreeMap<u32, (u32, bool)>,
    puts: Vec<Pick>,
    fetches: Vec<SlotId>,
    dead: Vec<SlotId>,
    stamp: u64,
    passed: u64,
    state: u64,
}

impl World {
    fn below(&mut self, n: usize) -> usize {
        self.state = splitmix64(self.state);
        (self.state >> 20) as usize % n
    }

    fn page(&self, index: u32) -> PageId {
        PageId { index, generation: self.live[&index].0 }
    }

    fn some_page(&mut self) -> Option<PageId> {
        let indices: Vec<u32> = self.live.keys().copied().collect();
        if indices.is_empty() {
            return None;
        }
        let at = self.below(indices.len());
        Some(self.page(indices[at]))
    }

    /// A frame is written: nobody may read it any more.
    fn write(&mut self, frame: u32, slot: SlotId) {
        assert!(
            !self.reading.iter().any(|(f, stamp)| *f == frame && *stamp > self.passed),
            "a frame that is read is overwritten"
        );
        self.frames.insert(frame, slot);
    }
}

fn slots(page: PageId) -> impl Iterator<Item = SlotId> {
    (0..LAYERS as u32).map(move |layer| SlotId { page, layer })
}

/// Runs a history; `spoilt` plants a fault: a frame is taken without its stamp having passed.
fn history(seed: u64, spoilt: bool) -> Result<[usize; STATES.len()], String> {
    let mut map = Residency::new(PAGES, LAYERS, FRAMES, RESERVE).unwrap();
    let mut w = World { state: seed, ..World::default() };
    let mut seen = [0; STATES.len()];
    let mut generations = [0u32; PAGES];
    for _ in 0..2000 {
        match w.below(14) {
            0..=2 => {
                // A new page; `live` stands for the allocator.
                let index = w.below(PAGES) as u32;
                if !w.live.contains_key(&index) {
                    generations[index as usize] += 1;
                    let page = PageId { index, generation: generations[index as usize] };
                    if map.house(page, &mut w.dead) {
                        w.live.insert(index, (page.generation, false));
                        for slot in slots(page) {
                            let frame = map.frame(slot).unwrap();
                            w.write(frame, slot);
                        }
                    } else if map.lacks(LAYERS) == 0 && map.census().free >= LAYERS {
                        return Err("a page was refused for which there was room".into());
                    }
                }
            }
            3 | 4 => {
                if let Some(page) = w.some_page() {
                    map.close(page);
                    w.live.get_mut(&page.index).unwrap().1 = true;
                }
            }
            5 | 6 => {
                let (n, mut picks) = (1 + w.below(5), Vec::new());
                map.spill(n, &mut picks);
                for pick in picks {
                    if w.frames[&pick.frame] != pick.slot {
                        return Err(format!("{pick:?} would store another's rows"));
                    }
                    w.puts.push(pick);
                }
            }
            7 | 8 if !w.puts.is_empty() => {
                let at = w.below(w.puts.len());
                let pick = w.puts.swap_remove(at);
                match w.below(4) {
                    0 => map.unspill(&pick, &mut w.dead),
                    how => {
                        // A failed put may have stored its record all the same.
                        if how != 1 || w.below(2) == 0 {
                            w.store.insert(pick.slot, pick.slot);
                        }
                        if !map.spilled(pick.slot, how != 1) {
                            w.dead.push(pick.slot);
                        }
                    }
                }
            }
            9 => {
                w.stamp += 1;
                let all = w.live.keys().flat_map(|i| slots(w.page(*i)));
                let held: Vec<_> = all.filter_map(|slot| Some((slot, map.frame(slot)?))).collect();
                let n = 1 + w.below(6);
                map.evict(n, w.stamp, |_| {});
                let stamp = w.stamp;
                for (_, frame) in held.into_iter().filter(|(slot, _)| map.frame(*slot).is_none()) {
                    w.reading.insert((frame, stamp));
                }
            }
            10 => {
                if w.below(2) == 0 {
                    w.passed = w.stamp;
                }
                while let Some(stamp) = map.oldest().filter(|stamp| *stamp <= w.passed || spoilt) {
                    map.reclaim(stamp);
                }
            }
            11 => {
                let spilled: Vec<SlotId> =
                    w.live.keys().flat_map(|i| slots(w.page(*i))).filter(|s| map.state(*s) == State::Spilled).collect();
                if !spilled.is_empty() {
                    let slot = spilled[w.below(spilled.len())];
                    if map.fetch(slot).is_some() {
                        w.fetches.push(slot);
                    }
                }
                if !w.fetches.is_empty() && w.below(3) > 0 {
                    let at = w.below(w.fetches.len());
                    let slot = w.fetches.swap_remove(at);
                    let there = w.below(4) > 0;
                    if let Some(frame) = map.arriving(slot)
                        && there
                    {
                        let rows = *w.store.get(&slot).ok_or(format!("{slot:?} is in no place"))?;
                        if w.reading.iter().any(|(f, stamp)| *f == frame && *stamp > w.passed) {
                            return Err("a frame that is read is overwritten".into());
                        }
                        w.frames.insert(frame, rows);
                    }
                    map.fetched(slot, there);
                }
            }
            12 => {
                if let Some(page) = w.some_page().filter(|page| w.live[&page.index].1) {
                    let new = PageId { generation: page.generation + 1, ..page };
                    let room = map.lacks(map.reopens(page)) == 0;
                    let here = slots(page).all(|slot| map.frame(slot).is_some());
                    if room && map.renew(page, new, &mut w.dead) {
                        assert!(here);
                        generations[page.index as usize] = new.generation;
                        w.live.insert(page.index, (new.generation, false));
                        for slot in slots(new) {
                            let frame = map.frame(slot).unwrap();
                            w.frames.insert(frame, slot);
                        }
                    }
                }
            }
            _ => {
                if let Some(page) = w.some_page() {
                    w.live.remove(&page.index);
                    let live = w.live.clone();
                    map.sweep(|id| live.get(&id.index).is_some_and(|(g, _)| *g == id.generation), &mut w.dead);
                }
            }
        }
        for slot in w.dead.drain(..) {
            w.store.remove(&slot);
        }
        if let Some(wrong) = map.check() {
            return Err(wrong.into());
        }
        // Every live slot's rows are where the map says, and its own.
        for page in w.live.keys().map(|index| w.page(*index)) {
            for slot in slots(page) {
                let rows = match map.frame(slot) {
                    Some(frame) => w.frames.get(&frame),
                    None => w.store.get(&slot),
                };
                if rows != Some(&slot) {
                    return Err(format!("{slot:?} is {:?} and holds {rows:?}", map.state(slot)));
                }
            }
        }
        map.census().slots.iter().zip(&mut seen).for_each(|(n, seen)| *seen += n);
    }
    // Everything goes: no frame and no record is left.
    for pick in w.puts.drain(..) {
        w.store.insert(pick.slot, pick.slot);
        if !map.spilled(pick.slot, true) {
            w.dead.push(pick.slot);
        }
    }
    map.sweep(|_| false, &mut w.dead);
    while let Some(stamp) = map.oldest() {
        map.reclaim(stamp);
    }
    for slot in w.dead.drain(..) {
        w.store.remove(&slot);
    }
    let census = Census { free: FRAMES, ..Census::default() };
    let left = map.census();
    if (left.free, left.retiring, left.of(State::Absent)) != (census.free, 0, PAGES * LAYERS) || !w.store.is_empty() {
        return Err(format!("{left:?}, {} records left", w.store.len()));
    }
    Ok(seen)
}

#[test]
fn rows_are_always_somewhere_and_never_anothers() {
    let (mut executed, mut failed, mut seen) = (0, 0, [0; STATES.len()]);
    for seed in 0..60 {
        executed += 2000;
        match history(seed, false) {
            Ok(states) => states.iter().zip(&mut seen).for_each(|(n, seen)| *seen += n),
            Err(error) => {
                failed += 1;
                println!("seed {seed}: {error}");
            }
        }
    }
    let caught = (0..10).filter(|seed| !matches!(std::panic::catch_unwind(|| history(*seed, true)), Ok(Ok(_)))).count();
    println!("GATE spill-map executed={executed} failed={failed} controls={}/1 seed=0x0", usize::from(caught > 0));
    assert!(failed == 0 && caught > 0);
    assert!(seen.iter().all(|n| *n > 0), "a state that no history reached: {seen:?}");
}

#[test]
fn what_was_used_last_goes_last() {
    let mut map = Residency::new(8, 1, 6, 2).unwrap();
    let slot = |index| SlotId { page: PageId { index, generation: 1 }, layer: 0 };
    let mut none = Vec::new();
    for index in 0..4 {
        assert!(map.house(slot(index).page, &mut none));
        map.close(slot(index).page);
    }
    // The store lacks as many as it may.
    assert!(!map.house(slot(4).page, &mut none) && map.lacks(1) == 1 && map.behind() == 2);
    let mut picks = Vec::new();
    map.spill(4, &mut picks);
    assert!(picks.iter().all(|pick| map.spilled(pick.slot, true)));
    assert_eq!(map.evict(1, 1, |_| {}), 1);
    // All were used when they came; the hand took that away from them. Used since: slots 2 and 3.
    map.touch(slot(2));
    map.touch(slot(3));
    assert_eq!(map.evict(1, 1, |_| {}), 1);
    assert!(map.frame(slot(2)).is_some() && map.frame(slot(3)).is_some());
    map.pin(slot(2));
    assert_eq!(map.evict(9, 2, |_| {}), 1);
    assert!(map.frame(slot(2)).is_some() && map.frame(slot(3)).is_none());
    map.unpin(slot(2));
    assert_eq!((map.evict(9, 2, |_| {}), map.oldest()), (1, Some(1)));
    map.reclaim(2);
    assert_eq!(map.census().free, 2);
    map.reclaim(1);
    assert_eq!(map.census().free, 4);
    assert_eq!(map.fetch(slot(2)).map(|_| map.state(slot(2))), Some(State::Fetching));
    map.fetched(slot(2), false);
    assert_eq!(map.state(slot(2)), State::Spilled);
    // Another generation is another slot.
    assert_eq!(map.frame(SlotId { page: PageId { generation: 2, ..slot(2).page }, layer: 0 }), None);
}

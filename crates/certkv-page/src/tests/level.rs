//! Levels: the entry changes when the codes are complete, in one table, and every page of every class comes back.
use super::pools;
use crate::policy::Lru;
use crate::prefix::{Admission, GroupShape, PrefixIndex};
use crate::word::State;
use crate::{BlockEntry, BlockTable, Need, PageAllocator, PageClass, PageError, Pools, Stamp, TableError};
use certkv_core::hash::splitmix64;
use std::collections::HashMap;

fn with_levels(packed: usize, levels: &[usize]) -> Pools {
    let levels: Vec<PageAllocator> = levels.iter().map(|n| PageAllocator::create(*n).unwrap()).collect();
    Pools { levels: levels.into(), ..pools(64, packed, 16) }
}

fn append(table: &mut BlockTable, tokens: usize) {
    let reservation = table.reserve(tokens).unwrap();
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
}

fn live(pools: &Pools) -> Vec<usize> {
    pools.classes().map(|class| pools.of(class).check().unwrap().live).collect()
}

#[test]
fn nobody_sees_a_page_before_its_codes_are_complete() {
    let pools = with_levels(4, &[2, 1]);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 9);
    let old = *table.get(1).unwrap();
    let change = table.begin_change(1, 2).unwrap();
    let page = change.page().unwrap();
    assert_eq!(pools.levels[1].snapshot(page).unwrap().state, State::Closing);
    assert!(pools.levels[1].lease(page).is_err() && pools.packed.lease(old.packed.unwrap()).is_ok());
    assert_eq!(table.get(1), Some(&old));
    let dropped = table.commit_change(change).unwrap();
    assert_eq!(table.get(1).map(|entry| (entry.packed, entry.level, entry.host)), Some((Some(page), 2, old.host)));
    // The old page is there until its stamp has passed.
    assert_eq!(dropped.retire(|| Stamp(7)), Ok(1));
    pools.reclaim(&mut |stamp| stamp < Stamp(7));
    assert_eq!(pools.packed.counts().retiring, 1);
    pools.reclaim(&mut |_| true);
    assert_eq!((pools.packed.counts().free, pools.levels[1].counts().free), (3, 0));
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let pools = with_levels(4, &[1]);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 9);
    for (block, level) in [(2, 1), (3, 1), (0, 2), (0, 9)] {
        assert_eq!(table.begin_change(block, level).unwrap_err(), TableError::NoLevel { block, level });
    }
    let change = table.begin_change(0, 1).unwrap();
    let full = table.begin_change(1, 1).unwrap_err();
    assert!(matches!(full, TableError::Page { class: PageClass::Level(1), error: PageError::Exhausted { .. } }));
    // Not by another table, and not after this one changed.
    let (mut fork, _) = table.fork().unwrap();
    let refused = fork.commit_change(change).unwrap_err();
    assert_eq!(refused.error, TableError::ForeignReservation);
    append(&mut table, 1);
    let refused = table.commit_change(refused.change).unwrap_err();
    assert_eq!(refused.error, TableError::OutdatedReservation);
    refused.change.abort(|| Stamp(1));
    pools.reclaim(&mut |_| true);
    assert_eq!((pools.levels[0].counts().free, table.get(0).unwrap().level), (1, 0));
}

/// Codes of several blocks can be written together.
#[test]
fn changes_of_several_blocks_are_begun_before_the_first_is_committed() {
    let pools = with_levels(6, &[4]);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 13);
    let all: Vec<_> = [0, 2, 0, 1].map(|block| table.begin_change(block, 1).unwrap()).into();
    let mut refused = Vec::new();
    for change in all {
        match table.commit_change(change) {
            Ok(dropped) => drop(dropped.retire(|| Stamp(1)).unwrap()),
            Err(of) => refused.push((of.change.block(), of.error)),
        }
    }
    // The block that was changed meanwhile.
    assert_eq!(refused, [(0, TableError::OutdatedReservation)]);
    assert_eq!([0, 1, 2].map(|block| table.get(block).unwrap().level), [1; 3]);
    // What else changes outdates them all.
    let late = table.begin_change(1, 0).unwrap();
    append(&mut table, 1);
    change(&mut table, 2, 0);
    assert_eq!(table.commit_change(late).unwrap_err().error, TableError::OutdatedReservation);
    pools.reclaim(&mut |_| true);
    assert_eq!(pools.levels[0].counts().live, 2);
}

fn change(table: &mut BlockTable, block: usize, level: u8) {
    let change = table.begin_change(block, level).unwrap();
    table.commit_change(change).unwrap().retire(|| Stamp(1)).unwrap();
}

fn swap(table: &mut BlockTable) -> (usize, usize) {
    let plan = if table.is_out() { table.swap_in() } else { table.swap_out() }.unwrap();
    let (copies, shared) = (plan.copies().len(), plan.shared());
    table.commit_swap(plan).unwrap().retire(|| Stamp(1)).unwrap();
    table.pools().reclaim(&mut |_| true);
    (copies, shared)
}

/// Out and in: each block on a page of its own level, or its old page if somebody kept it; all or nothing where a level has no page.
#[test]
fn a_block_returns_at_the_level_that_it_left_with() {
    let pools = Pools { swap: PageAllocator::create(8).unwrap(), ..with_levels(6, &[2, 2]) };
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 18);
    [(0, 2), (2, 1), (3, 1)].into_iter().for_each(|(block, level)| change(&mut table, block, level));
    pools.reclaim(&mut |_| true);
    let levels = |table: &BlockTable| table.blocks().iter().map(|entry| entry.level).collect::<Vec<_>>();
    let before = live(&pools);
    assert_eq!(swap(&mut table), (5, 0));
    assert_eq!((levels(&table), live(&pools)), (vec![2, 0, 1, 1, 0], vec![5, 0, 0, 4, 0, 0]));
    assert_eq!(table.begin_change(0, 1).unwrap_err(), TableError::SwappedOut);
    let need = table.plan_append(3).unwrap();
    assert_eq!((need.packed, need.tail, &need.levels[..3]), (2, 2, &[2, 1, 0][..]));
    // One of the levels is short: nothing was taken, of it or of the others.
    let other = pools.levels[0].allocate().unwrap();
    let short = table.swap_in().unwrap_err();
    assert!(matches!(short, TableError::Page { class: PageClass::Level(1), error: PageError::Exhausted { .. } }));
    assert_eq!((levels(&table), live(&pools)), (vec![2, 0, 1, 1, 0], vec![5, 0, 0, 4, 1, 0]));
    pools.levels[0].give_back(other).unwrap();
    assert_eq!(swap(&mut table), (5, 0));
    assert_eq!((levels(&table), live(&pools)), (vec![2, 0, 1, 1, 0], before));
    table.blocks().iter().filter_map(|entry| Some((entry.class(), entry.packed?))).for_each(|(class, page)| {
        assert_eq!(pools.of(class).references(page), Ok(1));
    });
    // What a fork kept is shared again, in the class that it has.
    let (fork, _) = table.fork().unwrap();
    swap(&mut table);
    assert_eq!(swap(&mut table), (1, 4));
    for table in [table, fork] {
        table.release().retire(|| Stamp(1)).unwrap();
    }
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), [0; 6]);
}

/// A table that is restored takes a page of each block's level, or none of any.
#[test]
fn a_reservation_takes_pages_of_the_levels_asked_for() {
    let pools = with_levels(4, &[2, 1]);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    let none = live(&pools);
    for (levels, wrong) in [(&[0, 3][..], (1, 3)), (&[0, 1, 1], (2, 1)), (&[1], (1, 0))] {
        let refused = table.reserve_at(9, levels).unwrap_err();
        assert_eq!(refused, TableError::NoLevel { block: wrong.0, level: wrong.1 });
    }
    let short = table.reserve_at(14, &[1, 2, 2]).unwrap_err();
    assert!(matches!(short, TableError::Page { class: PageClass::Level(2), error: PageError::Exhausted { .. } }));
    assert_eq!(live(&pools), none);
    table.reserve_at(14, &[1, 2, 0]).unwrap().abort(|| Stamp(1));
    pools.reclaim(&mut |_| true);
    drop(table.reserve_at(14, &[1, 2, 0]).unwrap());
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), none);
    let reservation = table.reserve_at(14, &[1, 2, 0]).unwrap();
    let spans: Vec<_> = reservation.rows().map(|span| (span.packed, span.level)).collect();
    assert_eq!(spans.iter().map(|span| span.1).collect::<Vec<_>>(), [1, 2, 0, 0]);
    let closing = |at: usize, level| {
        pools.of(PageClass::of_level(level)).snapshot(spans[at].0.unwrap()).unwrap().state == State::Closing
    };
    assert!(closing(0, 1) && closing(1, 2) && closing(2, 0) && spans[3].0.is_none());
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
    assert_eq!(table.blocks().iter().map(|entry| entry.level).collect::<Vec<_>>(), [1, 2, 0, 0]);
    assert_eq!(live(&pools), [4, 1, 1, 0, 1, 1]);
    append(&mut table, 2);
    assert_eq!(table.get(3).map(|entry| (entry.is_full(), entry.level)), Some((true, 0)));
    table.release().retire(|| Stamp(1)).unwrap();
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), none);
}

/// What is cached keeps its levels, whatever tables that share it do; room in one class is made of the units that have pages of it.
#[test]
fn a_cached_block_keeps_its_level() {
    let (pools, chain) = (with_levels(8, &[4, 2]), super::prefix::chain(b"a"));
    let shape = GroupShape { pools: pools.clone(), block: 4, max_blocks: 8, window: None };
    let index = PrefixIndex::create(vec![shape], 8, Box::new(Lru::create(8).unwrap())).unwrap();
    let tokens: Vec<u32> = (0..16).collect();
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 16);
    change(&mut table, 1, 1);
    change(&mut table, 2, 2);
    drop(index.publish(&chain, (&tokens[..]).into(), &[&table], |_, _| Some(())));
    let levels = |table: &BlockTable| table.blocks().iter().map(|entry| entry.level).collect::<Vec<_>>();
    let found = |tokens: &[u32]| index.longest(&chain, tokens.into()).unwrap().tables.remove(0);
    let mut other = found(&tokens);
    assert_eq!(other.blocks(), table.blocks());
    // A change of whoever shares it, and published again: what is cached stays.
    change(&mut other, 1, 0);
    change(&mut table, 2, 1);
    drop(index.publish(&chain, (&tokens[..]).into(), &[&table], |_, _| Some(())));
    assert_eq!([&table, &other, &found(&tokens)].map(levels), [vec![0, 1, 1, 0], vec![0, 0, 2, 0], vec![0, 1, 2, 0]]);
    // Level 2 has a page that nobody has, and one that the other sequence has, too.
    pools.reclaim(&mut |_| true);
    let need = |at: usize, pages| {
        let mut need = Need::default();
        need.levels[at] = pages;
        [need]
    };
    assert_eq!(index.admit(&need(1, 1)), Admission::Fits);
    assert_eq!(index.admit(&need(1, 2)), Admission::Lacks { group: 0, class: PageClass::Level(2), pages: 1 });
    for table in [table, other] {
        table.release().retire(|| Stamp(1)).unwrap();
    }
    pools.reclaim(&mut |_| true);
    assert_eq!(index.admit(&need(1, 2)), Admission::FitsAfterEviction { units: 0 });
    let evicted = index.make_room(0, PageClass::Level(2), 1);
    assert_eq!(evicted.units, 2, "the unit with the page and the one behind it");
    evicted.retire(|_| Stamp(1)).unwrap();
    pools.reclaim(&mut |_| true);
    assert_eq!((index.admit(&need(1, 2)), index.len()), (Admission::Fits, 2));
    assert!(index.make_room(0, PageClass::Level(2), 1).is_empty(), "nothing has such a page");
    // By the policy, too: units at any level are idle once nobody has their pages.
    let kept = found(&tokens);
    assert_eq!((levels(&kept), index.evict(9).units), (vec![0, 1], 0));
    kept.release().retire(|| Stamp(1)).unwrap();
    assert_eq!(index.evict(9).units, 2);
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), [0; 6]);
}

/// Tables that are forked, cut, changed and released in any order: each page has as many owners as tables that name it.
#[test]
fn every_page_of_every_class_comes_back() {
    let (changed, moved) = histories(false);
    assert!(changed > 200 && moved == 0, "{changed} {moved}");
}

/// The same with tables that leave the device and return.
#[test]
fn every_page_comes_back_from_outside_too() {
    let (changed, moved) = histories(true);
    assert!(changed > 50 && moved > 200, "{changed} {moved}");
}

/// How many blocks changed, and how many tables left or returned.
fn histories(swaps: bool) -> (u64, u64) {
    let (mut changed, mut moved) = (0, 0);
    for seed in 0..50 {
        let (mut pools, mut state) = (with_levels(24, &[6, 9, 3]), seed);
        if swaps {
            pools.swap = PageAllocator::create(20).unwrap();
        }
        let mut below = |n: usize| {
            state = splitmix64(state);
            (state >> 20) as usize % n
        };
        let mut tables = vec![BlockTable::create(&pools, 4, 16).unwrap()];
        for _ in 0..120 {
            let at = below(tables.len());
            if swaps && below(3) == 0 {
                let plan = if tables[at].is_out() { tables[at].swap_in() } else { tables[at].swap_out() };
                match plan {
                    Ok(plan) if below(4) > 0 => {
                        tables[at].commit_swap(plan).unwrap().retire(|| Stamp(1)).unwrap();
                        moved += 1;
                    }
                    Ok(plan) => plan.abort(|| Stamp(1)),
                    Err(TableError::Page { error: PageError::Exhausted { .. }, .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                pools.reclaim(&mut |_| true);
            }
            match below(8) {
                0 => {
                    if let Ok((fork, _)) = tables[at].fork() {
                        tables.push(fork);
                    }
                }
                1 if tables.len() > 1 => drop(tables.swap_remove(at).release().retire(|| Stamp(1)).unwrap()),
                2 => {
                    let len = below(tables[at].len() + 1);
                    if let Ok(ops) = tables[at].truncate(len) {
                        ops.retire(|| Stamp(1)).unwrap();
                    }
                }
                3 | 4 => {
                    let tokens = 1 + below(7);
                    if let Ok(reservation) = tables[at].reserve(tokens) {
                        tables[at].commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
                    }
                }
                _ => {
                    let (before, block, level) = (tables[at].blocks().len(), below(16), below(4) as u8);
                    match tables[at].begin_change(block, level) {
                        Ok(change) if below(5) > 0 => {
                            tables[at].commit_change(change).unwrap().retire(|| Stamp(1)).unwrap();
                            changed += 1;
                        }
                        Ok(change) if below(2) > 0 => change.abort(|| Stamp(1)),
                        // Dropped, or refused.
                        _ => {}
                    }
                    assert_eq!(before, tables[at].blocks().len());
                }
            }
            pools.reclaim(&mut |_| true);
            for class in pools.classes() {
                let of = |table: &BlockTable| -> Vec<_> {
                    table.blocks().iter().flat_map(|e| e.pages()).filter(|p| p.class == class).map(|p| p.id).collect()
                };
                let mut named: Vec<_> = tables.iter().flat_map(of).collect();
                named.iter().for_each(|id| {
                    let owners = named.iter().filter(|other| *other == id).count() as u32;
                    assert_eq!(pools.of(class).references(*id), Ok(owners), "{class} of seed {seed}");
                });
                named.sort_unstable_by_key(|id| id.index);
                named.dedup();
                assert_eq!(pools.of(class).check().unwrap().live, named.len(), "{class} of seed {seed}");
            }
        }
        for table in tables {
            table.release().retire(|| Stamp(1)).unwrap();
        }
        pools.reclaim(&mut |_| true);
        assert_eq!(live(&pools), [0; 7]);
    }
    (changed, moved)
}

/// Tables that begin with what is cached, change, are published and end, while room is made in every class: what is found has the pages and
/// levels of its first publication, and every page comes back.
#[test]
fn cached_blocks_of_any_level_are_found_as_they_were_published() {
    let (mut found, mut mixed, mut evicted) = (0, 0, 0);
    for seed in 0..60 {
        let (pools, chain, mut state) = (with_levels(40, &[6, 9, 3]), super::prefix::chain(b"a"), splitmix64(seed));
        let shape = GroupShape { pools: pools.clone(), block: 4, max_blocks: 16, window: None };
        let index = PrefixIndex::create(vec![shape], 12, Box::new(Lru::create(12).unwrap())).unwrap();
        let mut below = |n: usize| {
            state = splitmix64(state);
            (state >> 20) as usize % n
        };
        let mut tables: Vec<(BlockTable, Vec<u32>)> = Vec::new();
        // By all tokens up to its end: a block as it was published first.
        let mut cached: HashMap<Vec<u32>, BlockEntry> = HashMap::new();
        let mut prompts: Vec<Vec<u32>> = vec![Vec::new()];
        let mut next = 0u32;
        for _ in 0..200 {
            if tables.is_empty() {
                tables.push((BlockTable::create(&pools, 4, 16).unwrap(), Vec::new()));
            }
            let at = below(tables.len());
            match below(10) {
                0 if tables.len() > 1 => drop(tables.swap_remove(at).0.release().retire(|| Stamp(1)).unwrap()),
                1 => {
                    let len = below(tables[at].0.len() + 1);
                    if let Ok(ops) = tables[at].0.truncate(len) {
                        ops.retire(|| Stamp(1)).unwrap();
                        tables[at].1.truncate(len);
                    }
                }
                2..4 => {
                    let tokens = 1 + below(12);
                    if let Ok(reservation) = tables[at].0.reserve(tokens) {
                        tables[at].0.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
                        tables[at].1.extend((0..tokens as u32).map(|token| next + token));
                        next += tokens as u32;
                    }
                }
                4 => {
                    let (table, tokens) = &tables[at];
                    let done = index.publish(&chain, (&tokens[..]).into(), &[table], |_, _| Some(()));
                    for unit in done.known..done.known + done.added {
                        cached.insert(tokens[..4 * (unit + 1)].to_vec(), *table.get(unit).unwrap());
                    }
                    prompts.push(tokens.clone());
                    done.evicted.retire(|_| Stamp(1)).unwrap();
                }
                5 if tables.len() < 6 => {
                    let prompt = &prompts[below(prompts.len())];
                    let mut hit = index.longest(&chain, (&prompt[..]).into()).unwrap();
                    let table = hit.tables.remove(0);
                    for (block, entry) in table.blocks().iter().enumerate() {
                        assert_eq!(cached.get(&prompt[..4 * (block + 1)]), Some(entry), "seed {seed}");
                        found += 1;
                        mixed += u64::from(entry.level > 0);
                    }
                    tables.push((table, prompt[..hit.tokens].to_vec()));
                }
                6 => {
                    let class =
                        [PageClass::Packed, PageClass::Level(1), PageClass::Level(2), PageClass::Host][below(4)];
                    let before = pools.of(class).counts().live;
                    let gone = index.make_room(0, class, 1 + below(2));
                    let (units, empty) = (gone.units as u64, gone.is_empty());
                    gone.retire(|_| Stamp(1)).unwrap();
                    pools.reclaim(&mut |_| true);
                    // Of originals a unit goes that sequences may still have.
                    let fewer = pools.of(class).counts().live < before;
                    assert!(empty || fewer || class == PageClass::Host, "{class} of seed {seed}");
                    evicted += units;
                }
                _ => {
                    let (block, level) = (below(16), below(4) as u8);
                    if let Ok(change) = tables[at].0.begin_change(block, level) {
                        tables[at].0.commit_change(change).unwrap().retire(|| Stamp(1)).unwrap();
                    }
                }
            }
            pools.reclaim(&mut |_| true);
            let _ = live(&pools);
        }
        for (table, _) in tables {
            table.release().retire(|| Stamp(1)).unwrap();
        }
        // Nobody else has a page of it: all of it is idle, at whatever level.
        index.evict(usize::MAX).retire(|_| Stamp(1)).unwrap();
        assert!(index.is_empty(), "seed {seed}");
        pools.reclaim(&mut |_| true);
        assert_eq!(live(&pools), [0; 7], "seed {seed}");
    }
    assert!(found > 500 && mixed > 100 && evicted > 100, "{found} {mixed} {evicted}");
}

//! Levels: the entry changes when the codes are complete, in one table, and every page of every class comes back.
use super::pools;
use crate::word::State;
use crate::{BlockTable, PageAllocator, PageClass, PageError, Pools, Stamp, TableError};
use certkv_core::hash::splitmix64;

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
    // Pages outside have one size.
    let change = table.begin_change(0, 1).unwrap();
    table.commit_change(change).unwrap().retire(|| Stamp(1)).unwrap();
    assert!(matches!(table.swap_out(), Err(TableError::NoLevel { block: 0, level: 1 })));
}

/// Tables that are forked, cut, changed and released in any order: each page has as many owners as tables that name it.
#[test]
fn every_page_of_every_class_comes_back() {
    let mut changed = 0;
    for seed in 0..50 {
        let (pools, mut state) = (with_levels(24, &[6, 9, 3]), seed);
        let mut below = |n: usize| {
            state = splitmix64(state);
            (state >> 20) as usize % n
        };
        let mut tables = vec![BlockTable::create(&pools, 4, 16).unwrap()];
        for _ in 0..120 {
            let at = below(tables.len());
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
    assert!(changed > 200, "{changed}");
}

//! The index, one rule each.
use super::super::pools;
use super::{SECRET, chain, scope};
use crate::policy::Lru;
use crate::prefix::{Admission, Chain, GroupShape, Mark, PrefixIndex, Prompt, Scope, Stop, Watermarks};
use crate::{BlockTable, Need, PageClass, Pools, Stamp, TableError};

const BLOCK: usize = 4;

fn index(pools: &Pools, capacity: usize) -> PrefixIndex<usize> {
    let group = GroupShape { pools: pools.clone(), block: BLOCK, max_blocks: 16, window: None };
    PrefixIndex::create(vec![group], capacity, Box::new(Lru::create(capacity).unwrap())).unwrap()
}

/// A sequence of `tokens` tokens.
fn filled(pools: &Pools, tokens: usize) -> BlockTable {
    let mut table = BlockTable::create(pools, BLOCK, 16).unwrap();
    append(&mut table, tokens);
    table
}

fn append(table: &mut BlockTable, tokens: usize) {
    let reservation = table.reserve(tokens).unwrap();
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
}

fn publish(
    index: &PrefixIndex<usize>,
    chain: &Chain,
    tokens: &[u32],
    table: &BlockTable,
) -> (usize, usize, Option<Stop>) {
    let done = index.publish(chain, tokens.into(), &[table], |unit, before| {
        assert_eq!(before.copied(), unit.checked_sub(1));
        Some(unit)
    });
    done.evicted.retire(|_| Stamp(1)).unwrap();
    (done.known, done.added, done.stop)
}

fn free(pools: &Pools) -> [usize; 3] {
    pools.reclaim(&mut |_| true);
    [&pools.host, &pools.packed, &pools.tail].map(|pages| pages.check().unwrap().free)
}

#[test]
fn a_prefix_is_found_and_continued() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8);
    let tokens: Vec<u32> = (0..14).collect();
    let table = filled(&pools, 14);
    assert_eq!(publish(&index, &chain, &tokens, &table), (0, 3, None), "the open block is nobody else's");
    assert_eq!(publish(&index, &chain, &tokens, &table), (3, 0, None));

    let hit = index.longest(&chain, Prompt::from(&tokens[..])).unwrap();
    assert_eq!((hit.tokens, &hit.notes[..], hit.tables[0].blocks()), (12, &[0, 1, 2][..], &table.blocks()[..3]));
    assert_eq!(pools.host.references(table.blocks()[0].host), Ok(3));
    // It lives on without the one that wrote it, and grows like any other.
    table.release().retire(|| Stamp(1)).unwrap();
    let mut mine = hit.tables.into_iter().next().unwrap();
    append(&mut mine, 3);
    assert_eq!((mine.len(), mine.blocks().len()), (15, 4));

    let other: Vec<u32> = (0..8).chain([77, 77, 77, 77]).collect();
    let part = index.longest(&chain, Prompt::from(&other[..])).unwrap();
    assert_eq!((part.tokens, part.tables[0].len()), (8, 8));
    let none = index.longest(&chain, Prompt::from(&[1, 2, 3, 4][..])).unwrap();
    assert_eq!((none.tokens, none.tables[0].len(), none.notes.len()), (0, 0, 0));
    drop((part, none, mine));
    assert_eq!(free(&pools), [13, 13, 4], "three units are cached");
    drop(index);
    assert_eq!(free(&pools), [16, 16, 4]);
}

#[test]
fn scopes_never_meet() {
    let pools = pools(16, 16, 4);
    let index = index(&pools, 8);
    let tokens: Vec<u32> = (0..8).collect();
    let table = filled(&pools, 8);
    assert_eq!(publish(&index, &chain(b"a"), &tokens, &table), (0, 2, None));
    let found =
        |scope: &Scope<'_>| index.longest(&Chain::new(&SECRET, scope), Prompt::from(&tokens[..])).unwrap().tokens;
    assert_eq!(found(&scope(b"a")), 8, "the control: the same scope hits");
    assert_eq!(found(&scope(b"b")), 0);
    assert_eq!(found(&Scope { adapter: Some(b"x"), ..scope(b"a") }), 0);
    let marks = [Mark { at: 5, what: b"image" }];
    let marked = index.longest(&chain(b"a"), Prompt { tokens: &tokens, marks: &marks }).unwrap();
    assert_eq!(marked.tokens, 4, "up to the block of the mark");
}

#[test]
fn a_page_has_one_name() {
    let pools = pools(16, 16, 4);
    let index = index(&pools, 8);
    let tokens: Vec<u32> = (0..8).collect();
    let table = filled(&pools, 8);
    assert_eq!(publish(&index, &chain(b"a"), &tokens, &table), (0, 2, None));
    assert_eq!(publish(&index, &chain(b"b"), &tokens, &table), (0, 0, Some(Stop::Elsewhere)));
    let (fork, _) = table.fork().unwrap();
    assert_eq!(publish(&index, &chain(b"a"), &[9; 8], &fork), (0, 0, Some(Stop::Elsewhere)));
    index.clear().retire(|_| Stamp(1)).unwrap();
    assert_eq!(publish(&index, &chain(b"b"), &tokens, &table), (0, 2, None));
}

#[test]
fn a_collision_of_hashes_is_a_miss() {
    let pools = pools(64, 64, 4);
    let index = index(&pools, 32);
    // One byte of the hash counts: 256 places for everything.
    index.shorten_hashes(8);
    let mut collided = 0;
    for first in 0..400u32 {
        let tokens: Vec<u32> = (0..4).map(|i| first * 4 + i).collect();
        let found = index.longest(&chain(b"a"), Prompt::from(&tokens[..])).unwrap();
        assert_eq!(found.tokens, 0, "tokens that were never published");
        let table = filled(&pools, 4);
        let (_, added, stop) = publish(&index, &chain(b"a"), &tokens, &table);
        collided += usize::from(stop == Some(Stop::Collision));
        assert_eq!(added, usize::from(stop.is_none()));
        let again = index.longest(&chain(b"a"), Prompt::from(&tokens[..])).unwrap();
        assert_eq!(again.tokens, 4 * added);
        if added == 1 {
            assert_eq!(again.tables[0].blocks(), table.blocks(), "its own pages and no others");
        }
        drop((again, found));
        table.release().retire(|| Stamp(1)).unwrap();
        pools.reclaim(&mut |_| true);
    }
    assert!(collided > 5 && index.stats().collisions > 10, "{collided} collisions");
}

#[test]
fn eviction_takes_leaves_that_nobody_uses() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8);
    let tokens: Vec<u32> = (0..16).collect();
    let table = filled(&pools, 16);
    publish(&index, &chain, &tokens, &table);
    assert_eq!(index.evict(9).units, 0, "in use");
    assert_eq!(index.idle_units(), 0);
    table.release().retire(|| Stamp(1)).unwrap();
    let held = index.longest(&chain, Prompt::from(&tokens[..8])).unwrap();
    assert_eq!(index.idle_units(), 2);
    let gone = index.evict(9);
    assert_eq!(gone.units, 2, "the two behind what is held");
    assert_eq!(gone.retire(|_| Stamp(1)), Ok(4));
    assert_eq!(index.longest(&chain, Prompt::from(&tokens[..])).unwrap().tokens, 8);
    drop(held);
    assert_eq!(index.evict(1).units, 1);
    assert_eq!(index.longest(&chain, Prompt::from(&tokens[..])).unwrap().tokens, 4, "the deepest went first");
    assert_eq!(index.clear().units, 1);
    assert_eq!((index.len(), free(&pools)), (0, [16, 16, 4]));
}

#[test]
fn a_full_index_makes_room_or_says_so() {
    let (pools, chain) = (pools(64, 64, 4), chain(b"a"));
    let index = index(&pools, 2);
    let prompt = |n: u32| (0..8).map(|i| n * 8 + i).collect::<Vec<u32>>();
    let (first, second) = (filled(&pools, 8), filled(&pools, 8));
    assert_eq!(publish(&index, &chain, &prompt(1), &first), (0, 2, None));
    assert_eq!(publish(&index, &chain, &prompt(2), &second), (0, 0, Some(Stop::Full)), "the first is in use");
    first.release().retire(|| Stamp(1)).unwrap();
    assert_eq!(publish(&index, &chain, &prompt(2), &second), (0, 2, None));
    assert_eq!(index.longest(&chain, Prompt::from(&prompt(1)[..])).unwrap().tokens, 0);
    assert_eq!((index.len(), index.stats().evicted), (2, 2));
    // What a new unit is about to follow is not evicted for it.
    let longer: Vec<u32> = prompt(2).into_iter().chain(100..108).collect();
    append(&mut { second }, 8);
    let third = filled(&pools, 16);
    assert_eq!(publish(&index, &chain, &longer, &third), (2, 0, Some(Stop::Full)));
}

#[test]
fn a_note_may_decline() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8);
    let table = filled(&pools, 12);
    let tokens: Vec<u32> = (0..12).collect();
    let done = index.publish(&chain, (&tokens[..]).into(), &[&table], |unit, _| (unit < 1).then_some(unit));
    assert_eq!((done.added, done.stop), (1, Some(Stop::Declined)));
    drop(done);
    let done = index.publish(&chain, (&tokens[..]).into(), &[], |unit, _| Some(unit));
    assert_eq!((done.added, done.stop), (0, Some(Stop::Declined)), "a table per group");
}

#[test]
fn groups_of_different_blocks_share_units() {
    let (small, large) = (pools(32, 32, 4), pools(32, 32, 4));
    let shape = |pools: &Pools, block| GroupShape { pools: pools.clone(), block, max_blocks: 16, window: None };
    let groups = vec![shape(&small, 2), shape(&large, 8)];
    let index = PrefixIndex::create(groups, 4, Box::new(Lru::create(4).unwrap())).unwrap();
    assert_eq!(index.unit(), 8);
    let mut tables = [BlockTable::create(&small, 2, 16).unwrap(), BlockTable::create(&large, 8, 16).unwrap()];
    tables.iter_mut().for_each(|table| append(table, 20));
    let tokens: Vec<u32> = (0..20).collect();
    let done = index.publish(&chain(b"a"), (&tokens[..]).into(), &[&tables[0], &tables[1]], |_, _| Some(()));
    assert_eq!((done.added, done.stop), (2, None));
    let hit = index.longest(&chain(b"a"), (&tokens[..]).into()).unwrap();
    assert_eq!(hit.tables[0].blocks(), &tables[0].blocks()[..8]);
    assert_eq!(hit.tables[1].blocks(), &tables[1].blocks()[..2]);
    drop((done, hit, tables, index));
    assert_eq!((free(&small), free(&large)), ([32, 32, 4], [32, 32, 4]));
    let twice = vec![shape(&small, 2), shape(&small, 8)];
    let refused = PrefixIndex::<()>::create(twice, 4, Box::new(Lru::create(4).unwrap())).map(drop);
    assert!(matches!(refused, Err(TableError::BadShape { .. })));
    let uneven = vec![shape(&small, 3), shape(&large, 8)];
    let refused = PrefixIndex::<()>::create(uneven, 4, Box::new(Lru::create(4).unwrap())).map(drop);
    assert!(matches!(refused, Err(TableError::BadShape { .. })));
}

#[test]
fn a_truncated_sequence_leaves_the_cached_rows_alone() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8);
    let mut table = filled(&pools, 8);
    let tokens: Vec<u32> = (0..8).collect();
    publish(&index, &chain, &tokens, &table);
    let cached = table.blocks().to_vec();
    let ops = table.truncate(6).unwrap();
    assert_eq!((ops.renamed(), ops.copies().count()), (None, 2), "copied, not reopened in place");
    ops.retire(|| Stamp(1)).unwrap();
    let hit = index.longest(&chain, Prompt::from(&tokens[..])).unwrap();
    assert_eq!(hit.tables[0].blocks(), cached);
}

#[test]
fn admission_counts_what_could_be_had() {
    let (pools, chain) = (pools(8, 8, 2), chain(b"a"));
    let index = index(&pools, 8);
    let need = |blocks, tail| [Need { host: blocks, packed: blocks, tail, ..Need::default() }];
    assert_eq!(index.admit(&need(8, 0)), Admission::Fits);
    let table = filled(&pools, 24);
    let tokens: Vec<u32> = (0..24).collect();
    publish(&index, &chain, &tokens, &table);
    assert_eq!(index.admit(&need(2, 1)), Admission::Fits);
    let lacks = |class, pages| Admission::Lacks { group: 0, class, pages };
    assert_eq!(index.admit(&need(3, 0)), lacks(PageClass::Host, 1));
    table.release().retire(|| Stamp(1)).unwrap();
    assert_eq!(index.admit(&need(5, 0)), Admission::FitsAfterEviction { units: 3 });
    assert_eq!(index.admit(&need(9, 0)), lacks(PageClass::Host, 1));
    assert_eq!(index.admit(&need(1, 3)), lacks(PageClass::Tail, 1));
    index.evict(3).retire(|_| Stamp(9)).unwrap();
    assert_eq!(index.admit(&need(5, 0)), Admission::FitsSoon);
    pools.reclaim(&mut |_| true);
    assert_eq!(index.admit(&need(5, 0)), Admission::Fits);

    let marks = Watermarks { low: 16, high: 40 };
    let counts = |free, retiring| crate::Counts { free, retiring, ..Default::default() };
    assert_eq!([counts(2, 0), counts(1, 1), counts(1, 0), counts(0, 0)].map(|c| marks.wanted(c, 8)), [0, 0, 4, 5]);
    assert_eq!([counts(6, 0), counts(5, 0)].map(|c| marks.wanted(c, 3)), [0, 9]);
}

/// Eviction ahead of need begins below the low mark, ends at the high one, and leaves what is in use.
#[test]
fn room_is_kept_between_the_marks() {
    let (pools, chain) = (pools(8, 8, 2), chain(b"a"));
    let index = index(&pools, 8);
    let marks = |low, high| Watermarks { low, high };
    let table = filled(&pools, 5 * BLOCK);
    let tokens: Vec<u32> = (0..5 * BLOCK as u32).collect();
    publish(&index, &chain, &tokens, &table);
    // Three of eight pages are free; the sequence holds the others.
    assert!(index.evict_ahead(marks(4 * BLOCK, 6 * BLOCK)).is_none());
    table.release().retire(|| Stamp(1)).unwrap();
    assert!(index.evict_ahead(marks(3 * BLOCK, 6 * BLOCK)).is_none());
    let evicted = index.evict_ahead(marks(3 * BLOCK + 1, 6 * BLOCK)).unwrap();
    assert_eq!(evicted.units, 3);
    evicted.retire(|_| Stamp(9)).unwrap();
    // What retires counts.
    assert!(index.evict_ahead(marks(6 * BLOCK, 8 * BLOCK)).is_none());
    let rest = index.evict_ahead(marks(6 * BLOCK + 1, 1000)).unwrap();
    assert_eq!(rest.units, 2);
    rest.retire(|_| Stamp(9)).unwrap();
    assert!(index.evict_ahead(marks(1000, 1000)).is_none());
}

/// A unit of two blocks of which a cut sequence still uses the first: not idle, but its second page can be had.
#[test]
fn a_unit_that_is_used_in_part_can_be_evicted_at_last() {
    let (small, large) = (pools(8, 8, 4), pools(8, 8, 4));
    let shape = |pools: &Pools, block| GroupShape { pools: pools.clone(), block, max_blocks: 16, window: None };
    let index =
        PrefixIndex::create(vec![shape(&small, 2), shape(&large, 4)], 4, Box::new(Lru::create(4).unwrap())).unwrap();
    let mut tables = [BlockTable::create(&small, 2, 16).unwrap(), BlockTable::create(&large, 4, 16).unwrap()];
    tables.iter_mut().for_each(|table| append(table, 8));
    let tokens: Vec<u32> = (0..8).collect();
    drop(index.publish(&chain(b"a"), (&tokens[..]).into(), &[&tables[0], &tables[1]], |_, _| Some(())));
    assert_eq!(index.evict_stranded().units, 0, "all is used");
    for table in &mut tables {
        table.truncate(2).unwrap().retire(|| Stamp(1)).unwrap();
    }
    assert_eq!(index.evict(9).units, 1, "the second unit is idle");
    assert_eq!(index.evict(9).units, 0, "the first is not: the cut sequence uses a block of it");
    assert_eq!(index.evict_stranded().units, 1);
    assert_eq!((index.evict_stranded().units, index.len()), (0, 0));
    assert_eq!((free(&small)[0], free(&large)[0]), (7, 7), "what is used stays with who uses it");
}

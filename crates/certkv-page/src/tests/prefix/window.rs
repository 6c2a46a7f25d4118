//! Units that lack blocks of groups with a window, one rule each.
use super::chain;
use crate::policy::Lru;
use crate::prefix::{Admission, GroupShape, PrefixIndex, Stop};
use crate::{BlockTable, Need, PageClass, Pools, Stamp, TableError, Window};

const TOKENS: usize = 40;

/// Queries see themselves, seven tokens before and one sink; a unit of slack.
const NARROW: Window = Window { tokens: 8, sinks: 1, slack: Some(4), chunk: 8 };

fn index(groups: &[(&Pools, usize, Option<Window>)]) -> PrefixIndex<usize> {
    let shape = |(pools, block, window): &(&Pools, usize, Option<Window>)| GroupShape {
        pools: (*pools).clone(),
        block: *block,
        max_blocks: 32,
        window: *window,
    };
    PrefixIndex::create(groups.iter().map(shape).collect(), 20, Box::new(Lru::create(20).unwrap())).unwrap()
}

fn append(table: &mut BlockTable, tokens: usize) {
    for _ in 0..tokens / 4 {
        let reservation = table.reserve(4).unwrap();
        table.commit(reservation).unwrap().dropped.retire(|| Stamp::UNTOUCHED).unwrap();
        table.pools().reclaim(&mut |_| true);
    }
}

fn table(pools: &Pools, block: usize, window: Option<Window>, tokens: usize) -> BlockTable {
    let mut table = match window {
        Some(window) => BlockTable::windowed(pools, block, 32, window).unwrap(),
        None => BlockTable::create(pools, block, 32).unwrap(),
    };
    append(&mut table, tokens);
    table
}

fn tokens() -> Vec<u32> {
    (0..TOKENS as u32).collect()
}

/// Units known, added, blocks filled, units that can be continued.
fn publish(index: &PrefixIndex<usize>, tables: &[&BlockTable]) -> [usize; 4] {
    let done = index.publish(&chain(b"w"), tokens()[..].into(), tables, |unit, _| Some(unit));
    assert_eq!(done.stop, None);
    done.evicted.retire(|_| Stamp::UNTOUCHED).unwrap();
    [done.known, done.added, done.filled, done.usable]
}

fn live(pools: &Pools) -> usize {
    pools.host.check().unwrap().live
}

#[test]
fn a_unit_is_cached_without_what_has_left_the_window() {
    let (all, narrow) = (super::super::pools(64, 64, 4), super::super::pools(64, 64, 4));
    let index = index(&[(&all, 4, None), (&narrow, 2, Some(NARROW))]);
    let mut tables = [table(&all, 4, None, 24), table(&narrow, 2, Some(NARROW), 24)];
    // The next query sees from token 17 on, the slack reaches to 13: block 6. The sink is in block 0.
    assert_eq!(tables[1].hole(), 1..6);
    assert_eq!(publish(&index, &[&tables[0], &tables[1]]), [0, 6, 0, 6]);
    let (scope, prompt) = (chain(b"w"), tokens());
    let found = |to: usize| index.longest(&scope, prompt[..to].into()).unwrap();
    // Behind 20 tokens the query sees from 13 on, behind 16 from 9 on, behind 4 tokens three of the sink's unit.
    assert_eq!([24, 20, 16, 4].map(|to| found(to).tokens), [24, 20, 0, 0]);
    assert_eq!((index.known(&scope, prompt[..16].into()), found(16).tables[1].len()), ((4, 0), 0));
    let hit = found(40);
    assert_eq!((hit.tables[1].hole(), hit.tables[1].window(), hit.notes.len()), (1..6, Some(NARROW), 6));
    assert_eq!(hit.tables[1].blocks(), tables[1].blocks());
    assert_eq!(hit.tables[1].plan_growth(4).unwrap().host, 2);
    drop(hit);
    // Further on the window moves, and the blocks that it gives up stay with the index.
    tables.iter_mut().for_each(|table| append(table, 16));
    assert_eq!(publish(&index, &[&tables[0], &tables[1]]), [6, 4, 0, 10]);
    assert_eq!([40, 36, 32, 28, 24, 20].map(|to| found(to).tokens), [40, 36, 24, 24, 24, 20]);
    // Another sequence of these tokens has what is missing between.
    let other = [table(&all, 4, None, 32), table(&narrow, 2, Some(NARROW), 32)];
    assert_eq!(publish(&index, &[&other[0], &other[1]]), [8, 0, 2, 8]);
    assert_eq!(publish(&index, &[&other[0], &other[1]]), [8, 0, 0, 8]);
    assert_eq!([40, 36, 32, 28, 24, 20].map(|to| found(to).tokens), [40, 36, 32, 28, 24, 20]);
    drop((tables, other));
    index.clear().retire(|_| Stamp::UNTOUCHED).unwrap();
    [&all, &narrow].into_iter().for_each(|pools| assert!(pools.reclaim(&mut |_| true) < 99));
    assert_eq!((live(&all), live(&narrow)), (0, 0));
}

#[test]
fn windows_go_by_age_and_units_stay() {
    let (all, narrow) = (super::super::pools(64, 64, 4), super::super::pools(9, 9, 4));
    let index = index(&[(&all, 4, None), (&narrow, 4, Some(NARROW))]);
    let (scope, prompt) = (chain(b"w"), tokens());
    let mut tables = [table(&all, 4, None, 20), table(&narrow, 4, Some(NARROW), 20)];
    publish(&index, &[&tables[0], &tables[1]]);
    tables.iter_mut().for_each(|table| append(table, 20));
    publish(&index, &[&tables[0], &tables[1]]);
    let [full, mine] = tables;
    full.release().retire(|| Stamp::UNTOUCHED).unwrap();
    mine.release().retire(|| Stamp::UNTOUCHED).unwrap();
    [&all, &narrow].into_iter().for_each(|pools| assert!(pools.reclaim(&mut |_| true) < 99));
    // Of each length a window of three blocks, and the sink's.
    assert_eq!((live(&narrow), index.len()), (7, 10));
    let need = |pages: usize| [Need::default(), Need { host: pages, packed: pages, tail: 0, ..Need::default() }];
    assert_eq!(index.admit(&need(2)), Admission::Fits);
    assert_eq!(index.admit(&need(3)), Admission::FitsAfterEviction { units: 0 });
    let lacks = Admission::Lacks { group: 1, class: PageClass::Host, pages: 1 };
    assert_eq!(index.admit(&need(10)), lacks);
    // The older window was looked at last: so the newer goes first. The sink's block belongs to both.
    assert_eq!(index.longest(&scope, prompt[..20].into()).unwrap().tokens, 20);
    narrow.reclaim(&mut |_| true);
    let evicted = index.make_room(1, PageClass::Packed, 2);
    assert_eq!((evicted.units, evicted.blocks), (0, 2));
    evicted.retire(|_| Stamp::UNTOUCHED).unwrap();
    let known = |to: usize| index.known(&scope, prompt[..to].into());
    assert_eq!((known(40), known(20)), ((10, 5), (5, 5)));
    // Nothing is had where a sequence holds it.
    let hit = index.longest(&scope, prompt[..20].into()).unwrap();
    let evicted = index.make_room(1, PageClass::Host, 9);
    assert_eq!((evicted.units, evicted.blocks), (0, 1));
    evicted.retire(|_| Stamp::UNTOUCHED).unwrap();
    assert!(index.make_room(1, PageClass::Host, 9).is_empty() && index.make_room(7, PageClass::Host, 9).is_empty());
    assert_eq!((index.stats().hollowed, index.stats().evicted, index.len()), (3, 0, 10));
    // Who is about to write a page that the index shares has the block forgotten, and nothing else.
    let page = hit.tables[1].get(4).unwrap().host;
    let evicted = index.forget(1, page);
    assert_eq!((evicted.units, evicted.blocks), (0, 1));
    evicted.retire(|_| Stamp::UNTOUCHED).unwrap();
    assert!(index.forget(1, page).is_empty());
    assert_eq!((narrow.host.references(page), known(20), index.len()), (Ok(1), (5, 4), 10), "the slack");
    // What the sequence holds stays, the units behind it go.
    assert_eq!(index.evict(9).units, 5);
    assert!(index.evict_stranded().is_empty() && index.len() == 5);
    drop(hit);
    index.clear().retire(|_| Stamp::UNTOUCHED).unwrap();
    [&all, &narrow].into_iter().for_each(|pools| assert!(pools.reclaim(&mut |_| true) < 99));
    assert_eq!((live(&all), live(&narrow)), (0, 0));
}

#[test]
fn who_copies_gets_what_is_there_and_learns_what_lacks() {
    let (all, narrow) = (super::super::pools(64, 64, 4), super::super::pools(64, 64, 4));
    let index = index(&[(&all, 4, None), (&narrow, 2, Some(NARROW))]);
    let (scope, prompt) = (chain(b"w"), tokens());
    assert_eq!(index.lacking(&scope, prompt[..10].into()), [0, 1]);
    let tables = [table(&all, 4, None, 24), table(&narrow, 2, Some(NARROW), 24)];
    publish(&index, &[&tables[0], &tables[1]]);
    let held = index.hold(&scope, prompt[..].into()).unwrap();
    for block in 0..14 {
        assert_eq!(held.block(1, block), tables[1].get(block), "{block}");
        assert_eq!(held.block(0, block), tables[0].get(block), "{block}");
    }
    assert!(held.block(2, 0).is_none() && held.notes == [0, 1, 2, 3, 4, 5]);
    // 24 tokens have their window, 40 will have one of their own, 16 lack theirs: tokens 9 to 15, of which two blocks are there.
    assert_eq!(index.lacking(&scope, prompt[..].into()), [6, 7, 8, 9]);
    assert_eq!(index.lacking(&scope, prompt[..16].into()), [2]);
    assert_eq!(index.lacking(&scope, prompt[..27].into()), [0usize; 0]);
    assert_eq!(index.stats().lookups, 0);
}

/// Where every layer has a window, what lies between has no page at all.
#[test]
fn units_without_pages_lead_to_those_that_have_some() {
    let narrow = super::super::pools(16, 16, 4);
    let index = index(&[(&narrow, 4, Some(NARROW))]);
    let mine = table(&narrow, 4, Some(NARROW), 40);
    assert_eq!(publish(&index, &[&mine]), [0, 10, 0, 10]);
    assert_eq!(publish(&index, &[&mine]), [10, 0, 0, 10]);
    mine.release().retire(|| Stamp::UNTOUCHED).unwrap();
    narrow.reclaim(&mut |_| true);
    let hit = index.longest(&chain(b"w"), tokens()[..].into()).unwrap();
    assert_eq!((hit.tokens, hit.tables[0].blocks().len(), live(&narrow)), (40, 4, 4));
    drop(hit);
    // The leaf goes first, and with it the window.
    index.evict(1).retire(|_| Stamp::UNTOUCHED).unwrap();
    assert_eq!(index.known(&chain(b"w"), tokens()[..].into()), (9, 9), "the slack");
    index.evict(1).retire(|_| Stamp::UNTOUCHED).unwrap();
    assert_eq!(index.known(&chain(b"w"), tokens()[..].into()), (8, 1), "the sink's unit");
}

#[test]
fn pages_of_another_name_and_notes_that_decline_fill_nothing() {
    let (all, narrow) = (super::super::pools(64, 64, 4), super::super::pools(64, 64, 4));
    let index = index(&[(&all, 4, None), (&narrow, 4, Some(NARROW))]);
    let (scope, prompt) = (chain(b"w"), tokens());
    let tables = [table(&all, 4, None, 40), table(&narrow, 4, Some(NARROW), 40)];
    publish(&index, &[&tables[0], &tables[1]]);
    let other = [table(&all, 4, None, 20), table(&narrow, 4, Some(NARROW), 20)];
    let page = |group: usize, block: usize| other[group].get(block).copied();
    let declined = index.publish_pages(&scope, prompt[..20].into(), page, |unit| {
        assert!(unit.own == Some(&unit.number) && unit.filled == [(1, unit.number)]);
        None
    });
    assert_eq!((declined.known, declined.filled, declined.stop, declined.usable), (5, 0, None, 1), "the sink's unit");
    // The same table in another circle, and its pages under other tokens.
    let elsewhere = index.publish(&chain(b"x"), prompt[..].into(), &[&tables[0], &tables[1]], |unit, _| Some(unit));
    assert_eq!((elsewhere.added, elsewhere.stop), (0, Some(Stop::Elsewhere)));
    let renamed = |group: usize, block: usize| if group == 0 { page(0, block) } else { tables[1].get(9).copied() };
    let nothing = index.publish_pages(&scope, prompt[..20].into(), renamed, |unit| Some(unit.number));
    assert_eq!((nothing.known, nothing.filled), (5, 0));
    // Without room for another reference nothing is filled.
    let done = index.publish_pages(&scope, prompt[..20].into(), page, |unit| Some(unit.number));
    assert_eq!((done.known, done.filled, done.usable), (5, 3, 5));
}

#[test]
fn a_table_is_adopted_only_with_what_its_query_sees() {
    let narrow = super::super::pools(64, 64, 4);
    let whole = table(&narrow, 4, None, 40);
    let adopt = |lacks: usize, end: usize| {
        let page = |block: usize| whole.get(block).copied().filter(|_| block != lacks);
        BlockTable::adopt_window(&narrow, (4, 32), NARROW, end, page)
    };
    // Behind 40 tokens the query sees from 33 on, and slack keeps from 29 on.
    let blocks = |lacks, end| adopt(lacks, end).map(|table| (table.len(), table.hole(), table.blocks().len()));
    assert_eq!(blocks(99, 10), Ok((40, 1..7, 4)));
    assert_eq!(blocks(7, 10), Ok((40, 1..8, 3)));
    assert_eq!(blocks(99, 2), Ok((8, 1..1, 2)));
    assert_eq!(blocks(99, 0), Ok((0, 1..1, 0)));
    for lacks in [0, 8, 9] {
        assert!(matches!(blocks(lacks, 10), Err(TableError::BadShape { .. })), "{lacks}");
    }
    assert!(matches!(blocks(99, 33), Err(TableError::BadShape { .. })));
    assert_eq!(live(&narrow), 10);
}

//! Tables with a window: what is kept, what is given up, and what can be cut.
use super::pools;
use crate::policy::Lru;
use crate::prefix::{GroupShape, PrefixIndex, Stop};
use crate::{BlockTable, Need, PageClass, Pools, Stamp, TableError, Window};
use certkv_core::hash::splitmix64;
use proptest::prelude::*;

fn window(tokens: usize, sinks: usize, slack: usize, chunk: usize) -> Window {
    Window { tokens, sinks, slack: Some(slack), chunk }
}

fn append(table: &mut BlockTable, tokens: usize) {
    let reservation = table.reserve(tokens).unwrap();
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
    table.pools().reclaim(&mut |_| true);
}

fn live(pools: &Pools) -> [usize; 3] {
    [&pools.host, &pools.packed, &pools.tail].map(|pages| pages.check().unwrap().live)
}

fn numbers(table: &BlockTable) -> Vec<usize> {
    table.numbered().map(|(number, _)| number).collect()
}

#[test]
fn sinks_and_window_stay_and_the_middle_goes() {
    let pools = pools(16, 16, 4);
    // Query 22 sees tokens 0..5 and 17..=22; two tokens of slack: from 15 on.
    let mut table = BlockTable::windowed(&pools, 4, 100, window(6, 5, 2, 8)).unwrap();
    append(&mut table, 8);
    append(&mut table, 8);
    assert_eq!((numbers(&table), table.hole()), (vec![0, 1, 2, 3], 2..2));
    append(&mut table, 6);
    assert_eq!((numbers(&table), table.hole()), (vec![0, 1, 3, 4, 5], 2..3));
    assert_eq!(live(&pools), [5, 4, 1]);
    assert_eq!((table.place(1), table.place(2), table.place(3)), (Some(1), None, Some(2)));
    assert!(table.get(2).is_none() && table.get(6).is_none() && !table.is_exclusive(2));
    assert!(table.run(1..3).is_none() && table.run(0..2).is_some() && table.run(3..6).is_some());
    assert_eq!(table.run(3..6).unwrap()[0], *table.get(3).unwrap());
    drop(table);
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), [0, 0, 0]);
}

#[test]
fn a_long_context_takes_no_more_pages_than_a_short_one_and_decoding_does_not_allocate() {
    let pools = pools(12, 12, 4);
    let w = Window { chunk: 1, ..Window::new(16).with_sinks(4) };
    let mut table = BlockTable::windowed(&pools, 4, 1 << 20, w).unwrap();
    // Sinks 1, window and slack 19 tokens before the new one, in at most 6 blocks.
    assert_eq!((table.room(), w.most_blocks(4, 1 << 20)), (7, 7));
    let (mut most, places) = (0, table.blocks().as_ptr());
    for _ in 0..100 * 16 {
        let reservation = table.reserve(1).unwrap();
        let done = table.commit(reservation).unwrap();
        // Within what a list of dropped pages holds without heap memory.
        assert!(done.dropped.pages().count() <= 3 && done.passed.len() <= 1);
        done.dropped.retire(|| Stamp(1)).unwrap();
        pools.reclaim(&mut |_| true);
        most = most.max(live(&pools)[0]);
        assert_eq!(table.blocks().as_ptr(), places);
    }
    assert_eq!((table.len(), most), (1600, 7));
    assert_eq!(table.plan_append(2), Err(TableError::LongChunk { tokens: 2, chunk: 1 }));
    let growth = table.plan_growth(100_000).unwrap();
    assert!(growth.host <= 7 - live(&pools)[0] && growth.packed <= 7 && growth.tail == 0, "{growth:?}");
    assert_eq!(
        BlockTable::create(&pools, 4, 100).unwrap().plan_growth(9),
        Ok(Need { host: 3, packed: 2, tail: 1, ..Need::default() })
    );
}

#[test]
fn a_cut_behind_the_window_is_refused_by_name_and_the_slack_is_always_there() {
    let pools = pools(32, 32, 4);
    let mut table = BlockTable::windowed(&pools, 4, 100, window(8, 4, 6, 4)).unwrap();
    for _ in 0..10 {
        append(&mut table, 4);
    }
    // Query 34, after a cut of 6, sees from token 27 on: block 6.
    assert_eq!(table.hole(), 1..6);
    let before = (table.blocks().to_vec(), live(&pools));
    let refused = table.truncate(30).unwrap_err();
    assert_eq!(refused, TableError::WindowPassed { asked: 30, least: 31, within: 4 });
    assert!(refused.to_string().contains("31 or more, or 4 or less"));
    assert_eq!((table.blocks().to_vec(), live(&pools), table.len()), (before.0, before.1, 40));
    let (mut fork, _) = table.fork().unwrap();
    assert_eq!((fork.hole(), numbers(&fork)), (table.hole(), numbers(&table)));
    table.truncate(31).unwrap().retire(|| Stamp(1)).unwrap();
    assert_eq!((table.hole(), numbers(&table), table.len()), (1..6, vec![0, 6, 7], 31));
    append(&mut table, 4);
    // Only the sinks' block is left, and the sequence grows from there as one without a hole.
    fork.truncate(3).unwrap().retire(|| Stamp(1)).unwrap();
    assert_eq!((fork.hole(), numbers(&fork)), (1..1, vec![0]));
    append(&mut fork, 4);
    assert_eq!(numbers(&fork), [0, 1]);
    drop((table, fork));
    pools.reclaim(&mut |_| true);
    assert_eq!(live(&pools), [0, 0, 0]);
}

#[test]
fn what_one_table_gave_up_its_fork_keeps() {
    let pools = pools(16, 16, 4);
    let mut table = BlockTable::windowed(&pools, 4, 100, window(4, 0, 0, 8)).unwrap();
    append(&mut table, 6);
    let (fork, _) = table.fork().unwrap();
    append(&mut table, 8);
    assert_eq!((numbers(&table), numbers(&fork)), (vec![2, 3], vec![0, 1]));
    assert!(fork.is_exclusive(0), "the other reference went with the window");
    let mut chunks = BlockTable::windowed(&pools, 4, 100, window(1, 0, 0, 8)).unwrap();
    append(&mut chunks, 8);
    assert_eq!((numbers(&chunks), chunks.hole(), chunks.blocks().len()), (vec![], 0..2, 0));
    append(&mut chunks, 1);
    assert_eq!(numbers(&chunks), [2]);
}

#[test]
fn a_window_of_nothing_is_refused() {
    let pools = pools(4, 4, 4);
    for (tokens, chunk) in [(0, 1), (1, 0)] {
        let refused = BlockTable::windowed(&pools, 4, 4, window(tokens, 0, 0, chunk)).unwrap_err();
        assert_eq!(refused, TableError::BadWindow { tokens, chunk });
    }
    let huge = window(usize::MAX, usize::MAX, usize::MAX, usize::MAX);
    assert_eq!(BlockTable::windowed(&pools, 4, 9, huge).unwrap().room(), 9);
    assert!(matches!(BlockTable::windowed(&pools, 0, 4, huge), Err(TableError::BadShape { .. })));
}

#[test]
fn a_unit_whose_pages_are_gone_is_not_published() {
    let pools = pools(32, 32, 4);
    let group = GroupShape { pools: pools.clone(), block: 4, max_blocks: 16, window: None };
    let index = PrefixIndex::create(vec![group], 8, Box::new(Lru::create(8).unwrap())).unwrap();
    let chain = super::prefix::chain(b"w");
    let tokens: Vec<u32> = (0..24).collect();
    let publish = |table: &BlockTable| {
        let done = index.publish(&chain, tokens.as_slice().into(), &[table], |unit, _| Some(unit));
        let answer = (done.known, done.added, done.stop);
        done.evicted.retire(|_| Stamp(1)).unwrap();
        answer
    };
    let mut table = BlockTable::windowed(&pools, 4, 16, window(5, 4, 0, 8)).unwrap();
    append(&mut table, 8);
    append(&mut table, 8);
    assert_eq!(table.hole(), 1..3);
    assert_eq!(publish(&table), (0, 1, Some(Stop::Gone)), "the sinks' block");
    // Another sequence wrote the units between: what comes behind the hole follows them.
    let mut full = BlockTable::create(&pools, 4, 16).unwrap();
    append(&mut full, 12);
    assert_eq!(publish(&full), (1, 2, None));
    assert_eq!(publish(&table), (3, 1, None));
    let hit = index.longest(&chain, tokens.as_slice().into()).unwrap();
    assert_eq!((hit.tokens, hit.tables[0].window(), hit.tables[0].blocks()[3]), (16, None, *table.get(3).unwrap()));
    let shared = pools.of(PageClass::Host).references(table.get(3).unwrap().host);
    assert_eq!(shared, Ok(3), "the table, the index and what was found");
}

proptest! {
    /// Any window and any appends, cuts within the slack included: what a query may see is there, what the bound says is enough.
    #[test]
    fn every_visible_token_has_its_page(
        block in prop::sample::select(vec![1usize, 2, 4, 7]),
        tokens in 1usize..20, sinks in 0usize..12, slack in 0usize..9, chunk in 1usize..12, seed: u64,
    ) {
        let w = window(tokens, sinks, slack, chunk);
        let pools = pools(64, 64, 4);
        let mut table = BlockTable::windowed(&pools, block, 200, w).unwrap();
        let mut dice = seed;
        for _ in 0..60 {
            dice = splitmix64(dice);
            let n = (1 + dice as usize % chunk).min(200 * block - table.len());
            if table.plan_growth(n).is_ok() {
                append(&mut table, n);
            }
            let back = (dice >> 32) as usize % (slack.min(n) + 1);
            table.truncate(table.len() - back).unwrap().retire(|| Stamp(1)).unwrap();
            pools.reclaim(&mut |_| true);
            let next = table.len();
            for t in 0..next {
                if t < sinks || t + tokens > next {
                    prop_assert!(table.get(t / block).is_some(), "token {t} of {next}");
                }
            }
            prop_assert!(table.blocks().len() <= table.room());
            prop_assert_eq!(live(&pools)[0], table.blocks().len());
        }
    }
}

/// What is left of a table, block by block into a new one.
fn rebuilt(of: &BlockTable, window: Window) -> BlockTable {
    let mut table = BlockTable::windowed(of.pools(), of.block_size(), of.max_blocks(), window).unwrap();
    for (number, _) in of.numbered() {
        if number == of.hole().end {
            table.leave_out(number).unwrap();
        }
        let rows = (of.len() - number * of.block_size()).min(of.block_size());
        let reservation = table.reserve_block(rows).unwrap();
        assert!(table.blocks().len() < table.room());
        table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
    }
    // Nothing is left behind the hole where a sequence was cut there.
    if !of.hole().is_empty() && table.hole().is_empty() {
        table.leave_out(of.hole().end).unwrap();
    }
    table.pools().reclaim(&mut |_| true);
    table
}

proptest! {
    /// A table that is rebuilt from what is left of another one goes on as that does.
    #[test]
    fn what_is_left_of_a_table_makes_another_one(
        (block, tokens, sinks, slack, chunk) in (1usize..5, 1usize..12, 0usize..7, 0usize..9, 1usize..9),
        seed in any::<u64>(),
    ) {
        let (pools, window) = (pools(200, 200, 8), window(tokens, sinks, slack, chunk));
        let mut table = BlockTable::windowed(&pools, block, 60, window).unwrap();
        let mut twin: Option<BlockTable> = None;
        for i in 0..40u64 {
            let roll = splitmix64(seed ^ i);
            let more = 1 + (roll >> 8) as usize % chunk;
            let cut = table.len().saturating_sub((roll >> 8) as usize % (slack + 2));
            for table in [Some(&mut table), twin.as_mut()].into_iter().flatten() {
                if !roll.is_multiple_of(4) {
                    if table.len() + more <= 60 * block {
                        append(table, more);
                    }
                } else if table.check_cut(cut).is_ok() {
                    table.truncate(cut).unwrap().retire(|| Stamp(1)).unwrap();
                    table.pools().reclaim(&mut |_| true);
                }
            }
            if roll.is_multiple_of(7) || twin.is_none() {
                twin = Some(rebuilt(&table, window));
            }
            let twin = twin.as_ref().unwrap();
            prop_assert_eq!((table.len(), table.hole(), numbers(&table)), (twin.len(), twin.hole(), numbers(twin)));
            for len in 0..=table.len() {
                prop_assert_eq!(table.check_cut(len), twin.check_cut(len));
            }
        }
        drop((table, twin));
        pools.reclaim(&mut |_| true);
        prop_assert_eq!(live(&pools), [0, 0, 0]);
    }
}

#[test]
fn blocks_are_left_out_behind_the_sinks_alone() {
    let pools = pools(16, 16, 4);
    let mut whole = BlockTable::create(&pools, 4, 10).unwrap();
    assert_eq!(whole.leave_out(3).unwrap_err(), TableError::NoHole { block: 3, len: 0 });
    let mut table = BlockTable::windowed(&pools, 4, 10, window(6, 5, 2, 8)).unwrap();
    assert_eq!(table.leave_out(3).unwrap_err(), TableError::NoHole { block: 3, len: 0 });
    append(&mut table, 8);
    for block in [1, 11] {
        assert_eq!(table.leave_out(block).unwrap_err(), TableError::NoHole { block, len: 8 });
    }
    let stale = table.reserve_block(4).unwrap();
    table.leave_out(5).unwrap();
    assert_eq!((table.len(), table.hole(), numbers(&table)), (20, 2..5, vec![0, 1]));
    assert_eq!(table.leave_out(6).unwrap_err(), TableError::NoHole { block: 6, len: 20 });
    let refused = table.commit(stale).unwrap_err();
    assert_eq!(refused.error, TableError::OutdatedReservation);
    refused.reservation.abort(|| Stamp(1));
    assert_eq!(table.reserve_block(5).unwrap_err(), TableError::NotABlock { len: 20, tokens: 5 });
    append(&mut table, 3);
    assert_eq!(table.reserve_block(2).unwrap_err(), TableError::NotABlock { len: 23, tokens: 2 });
    assert!(matches!(table.check_cut(21), Err(TableError::WindowPassed { .. })));
}

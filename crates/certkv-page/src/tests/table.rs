//! Appending, forking, truncating, releasing: one rule each.
use super::pools;
use crate::word::State;
use crate::{BlockTable, CopyOp, Need, PageClass, PageError, PageRef, Pools, RowSpan, Stamp, TableError};

fn append(table: &mut BlockTable, tokens: usize) {
    let reservation = table.reserve(tokens).unwrap();
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
}

fn free(pools: &Pools) -> [usize; 3] {
    [&pools.host, &pools.packed, &pools.tail].map(|pages| pages.check().unwrap().free)
}

fn page(class: PageClass, id: crate::PageId) -> PageRef {
    PageRef { class, id }
}

#[test]
fn an_append_is_planned_exactly() {
    let pools = pools(8, 8, 8);
    let mut table = BlockTable::create(&pools, 4, 3).unwrap();
    let need = |host, packed, tail| Ok(Need { host, packed, tail, ..Need::default() });
    assert_eq!(table.plan_append(0), need(0, 0, 0));
    assert_eq!(table.plan_append(3), need(1, 0, 1));
    assert_eq!(table.plan_append(4), need(1, 1, 0));
    assert_eq!(table.plan_append(9), need(3, 2, 1));
    assert_eq!(table.plan_append(12), need(3, 3, 0));
    assert_eq!(table.plan_append(13), Err(TableError::TooLong { len: 0, tokens: 13, limit: 12 }));
    append(&mut table, 3);
    assert_eq!(table.plan_append(1), need(0, 1, 0));
    assert_eq!(table.plan_append(2), need(1, 1, 1));
    assert_eq!(table.plan_append(usize::MAX), Err(TableError::TooLong { len: 3, tokens: usize::MAX, limit: 12 }));
    assert!(matches!(BlockTable::create(&pools, 0, 1), Err(TableError::BadShape { .. })));
    assert!(matches!(BlockTable::create(&pools, 2, usize::MAX), Err(TableError::BadShape { .. })));
}

#[test]
fn a_reservation_says_where_rows_go() {
    let pools = pools(8, 8, 8);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 3);
    let old = table.blocks()[0];
    let reservation = table.reserve(6).unwrap();
    let spans: Vec<RowSpan> = reservation.rows().collect();
    assert_eq!(spans.len(), 3);
    let shape = |s: &RowSpan| (s.block, s.first_row, s.rows, s.tail.is_some(), s.packed.is_some());
    assert_eq!(
        spans.iter().map(shape).collect::<Vec<_>>(),
        [(0, 3, 1, true, true), (1, 0, 4, false, true), (2, 0, 1, true, false)]
    );
    assert_eq!((spans[0].host, spans[0].tail), (old.host, old.tail));
    assert_eq!(pools.packed.snapshot(spans[1].packed.unwrap()).unwrap().state, State::Closing);
    assert_eq!((table.len(), table.blocks().len()), (3, 1), "nothing is visible before the commit");

    let done = table.commit(reservation).unwrap();
    assert_eq!(done.filled, 0..2);
    assert_eq!(done.dropped.pages().collect::<Vec<_>>(), [page(PageClass::Tail, old.tail.unwrap())]);
    assert_eq!(done.dropped.retire(|| Stamp(3)), Ok(1));
    assert_eq!(table.len(), 9);
    for entry in &table.blocks()[..2] {
        assert_eq!(pools.host.snapshot(entry.host).unwrap().state, State::Packed);
        assert_eq!(pools.packed.snapshot(entry.packed.unwrap()).unwrap().state, State::Packed);
        assert_eq!(entry.tail, None);
    }
    assert_eq!(table.blocks()[2].tail, spans[2].tail);
    assert_eq!(free(&pools), [5, 6, 6]);
    assert_eq!(pools.reclaim(&mut |_| true), 1);
    assert_eq!(free(&pools), [5, 6, 7]);
}

#[test]
fn a_reservation_goes_back_whole() {
    let pools = pools(8, 1, 8);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    let unseen = table.reserve(6).unwrap();
    assert_eq!(free(&pools), [6, 0, 7]);
    drop(unseen);
    assert_eq!(free(&pools), [8, 1, 8], "pages that nobody saw are free at once");

    let seen = table.reserve(6).unwrap();
    assert_eq!(seen.rows().count(), 2);
    drop(seen);
    assert_eq!(pools.reclaim(&mut |stamp| stamp != Stamp::IDLE), 0, "somebody may be writing");
    assert_eq!(pools.reclaim(&mut |stamp| stamp == Stamp::IDLE), 4);

    let aborted = table.reserve(6).unwrap();
    assert_eq!(aborted.rows().count(), 2);
    aborted.abort(|| Stamp(17));
    assert_eq!(pools.reclaim(&mut |stamp| stamp == Stamp(17)), 4);

    let full = table.reserve(8).unwrap_err();
    assert!(matches!(
        full,
        TableError::Page { class: PageClass::Packed, error: PageError::Exhausted { asked: 2, free: 1, .. } }
    ));
    assert_eq!(free(&pools), [8, 1, 8]);
    append(&mut table, 4);
    assert_eq!(table.len(), 4);
}

#[test]
fn a_reservation_fits_one_table_at_one_moment() {
    let pools = pools(8, 8, 8);
    let mut one = BlockTable::create(&pools, 4, 8).unwrap();
    let mut two = BlockTable::create(&pools, 4, 8).unwrap();
    let reservation = one.reserve(5).unwrap();
    let refused = two.commit(reservation).unwrap_err();
    assert_eq!((refused.error, two.len()), (TableError::ForeignReservation, 0));
    let twin = one.reserve(5).unwrap();
    one.commit(refused.reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
    let refused = one.commit(twin).unwrap_err();
    assert_eq!((refused.error, one.len()), (TableError::OutdatedReservation, 5));
    drop(refused);
    assert_eq!(free(&pools), [6, 7, 7]);
}

#[test]
fn a_fork_shares_what_is_full_and_copies_what_is_open() {
    let pools = pools(8, 8, 8);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 7);
    let (mut fork, copies) = table.fork().unwrap();
    let (a, b) = (table.blocks()[1], fork.blocks()[1]);
    assert_eq!(table.blocks()[0], fork.blocks()[0]);
    assert!(!table.is_exclusive(0) && table.is_exclusive(1) && fork.is_exclusive(1) && !table.is_exclusive(2));
    let copy = |class, from, to| CopyOp { from: page(class, from), to: page(class, to), rows: 3 };
    let expected = [copy(PageClass::Host, a.host, b.host), copy(PageClass::Tail, a.tail.unwrap(), b.tail.unwrap())];
    assert_eq!(copies, expected);
    assert!(a.host != b.host && a.tail != b.tail);

    append(&mut fork, 1);
    assert_eq!((table.len(), fork.len()), (7, 8));
    let (whole, copies) = fork.fork().unwrap();
    assert!(copies.is_empty() && whole.blocks() == fork.blocks());
    assert_eq!(whole.release().retire(|| unreachable!("all pages are shared")), Ok(0));
    assert_eq!(fork.release().retire(|| Stamp(2)), Ok(2), "block 1; block 0 is the parent's too");
    assert!(table.is_exclusive(0));
    drop(table);
    assert_eq!(pools.reclaim(&mut |_| true), 7);
    assert_eq!(free(&pools), [8, 8, 8]);
}

#[test]
fn a_fork_that_fails_changes_nothing() {
    for (host, tail) in [(2, 8), (8, 1)] {
        let pools = pools(host, 8, tail);
        let mut table = BlockTable::create(&pools, 4, 8).unwrap();
        append(&mut table, 7);
        let before = free(&pools);
        assert!(matches!(table.fork(), Err(TableError::Page { error: PageError::Exhausted { .. }, .. })));
        assert_eq!(free(&pools), before);
        assert!(table.is_exclusive(0));
    }
}

#[test]
fn a_cut_inside_a_full_block_reopens_it_under_a_new_name() {
    let pools = pools(8, 8, 8);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 10);
    let old = table.blocks().to_vec();
    let ops = table.truncate(6).unwrap();
    let new = table.blocks()[1];
    assert_eq!((new.host.index, new.host.generation), (old[1].host.index, old[1].host.generation + 1));
    assert!(pools.host.lease(old[1].host).is_err(), "what was cached under the old id is not found");
    let copy = CopyOp { from: page(PageClass::Host, new.host), to: page(PageClass::Tail, new.tail.unwrap()), rows: 2 };
    assert_eq!(ops.copies().collect::<Vec<_>>(), [copy]);
    assert_eq!(ops.renamed(), Some((old[1].host, new.host)));
    let gone: Vec<PageRef> = ops.dropped().pages().collect();
    let expected = [
        (PageClass::Packed, old[1].packed.unwrap()),
        (PageClass::Host, old[2].host),
        (PageClass::Tail, old[2].tail.unwrap()),
    ];
    assert_eq!(gone, expected.map(|(class, id)| page(class, id)));
    assert_eq!(ops.retire(|| Stamp(4)), Ok(3));
    assert_eq!((table.len(), table.blocks().len()), (6, 2));
    append(&mut table, 2);
    assert_eq!(pools.host.snapshot(new.host).unwrap().state, State::Packed);
}

#[test]
fn a_cut_of_shared_or_leased_originals_copies_them() {
    for leased in [false, true] {
        let pools = pools(8, 8, 8);
        let mut table = BlockTable::create(&pools, 4, 8).unwrap();
        append(&mut table, 4);
        let old = table.blocks()[0];
        let lease = leased.then(|| pools.host.lease(old.host).unwrap());
        let fork = (!leased).then(|| table.fork().unwrap().0);
        let ops = table.truncate(3).unwrap();
        let new = table.blocks()[0];
        assert_ne!(new.host.index, old.host.index);
        assert!(table.is_exclusive(0));
        let copy = |to| CopyOp { from: page(PageClass::Host, old.host), to, rows: 3 };
        let expected = [copy(page(PageClass::Host, new.host)), copy(page(PageClass::Tail, new.tail.unwrap()))];
        assert_eq!(ops.copies().collect::<Vec<_>>(), expected);
        assert_eq!(ops.renamed(), None);
        assert!(pools.host.move_begin(old.host).is_err(), "the source stays put until the copies are enqueued");
        assert_eq!(ops.retire(|| Stamp(1)), Ok(if leased { 2 } else { 0 }));
        if let Some(fork) = fork {
            assert_eq!(fork.blocks()[0], old);
            assert_eq!(pools.host.snapshot(old.host).unwrap().state, State::Packed);
        }
        drop(lease);
    }
}

#[test]
fn small_cuts_and_wrong_cuts() {
    let pools = pools(3, 8, 1);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 11);
    assert_eq!(table.truncate(12).unwrap_err(), TableError::BeyondEnd { asked: 12, len: 11 });
    let before = (table.blocks().to_vec(), free(&pools));
    for len in [11, 9] {
        let ops = table.truncate(len).unwrap();
        assert_eq!((ops.copies().count(), ops.dropped().pages().count(), table.len()), (0, 0, len));
        ops.retire(|| unreachable!("nothing to retire")).unwrap();
        assert_eq!((table.blocks().to_vec(), free(&pools)), before, "an open block only shrinks");
    }
    let full = table.truncate(7).unwrap_err();
    assert!(matches!(full, TableError::Page { class: PageClass::Tail, error: PageError::Exhausted { .. } }));
    assert_eq!((table.blocks().to_vec(), free(&pools), table.len()), (before.0, before.1, 9));
    table.truncate(8).unwrap().retire(|| Stamp(1)).unwrap();
    pools.reclaim(&mut |_| true);

    pools.host.move_begin(table.blocks()[1].host).unwrap();
    let moving = table.truncate(7).unwrap_err();
    assert!(matches!(moving, TableError::Page { class: PageClass::Host, error: PageError::Refused { .. } }));
    assert_eq!((free(&pools), table.len()), ([1, 6, 1], 8));
    pools.host.move_end(table.blocks()[1].host).unwrap();
    table.truncate(0).unwrap().retire(|| Stamp(1)).unwrap();
    assert!(table.is_empty());
    pools.reclaim(&mut |_| true);
    assert_eq!(free(&pools), [3, 8, 1]);
}

#[test]
fn a_truncation_outdates_a_reservation() {
    let pools = pools(8, 8, 8);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 6);
    let reservation = table.reserve(2).unwrap();
    table.truncate(5).unwrap().retire(|| Stamp(1)).unwrap();
    let refused = table.commit(reservation).unwrap_err();
    assert_eq!(refused.error, TableError::OutdatedReservation);
    assert_eq!(refused.reservation.tokens(), 2);
}

#[test]
fn a_fence_that_cannot_be_recorded_loses_no_page() {
    let pools = pools(4, 4, 4);
    let mut table = BlockTable::create(&pools, 4, 8).unwrap();
    append(&mut table, 9);
    let dropped = table.release();
    let walk = std::panic::AssertUnwindSafe(|| dropped.retire(|| panic!("device lost")));
    std::panic::catch_unwind(walk).unwrap_err();
    assert_eq!(pools.reclaim(&mut |stamp| stamp == Stamp::IDLE), 6);
    assert_eq!(free(&pools), [4, 4, 4]);
}

#[test]
fn decoding_reuses_the_lists_of_a_table() {
    let pools = pools(64, 56, 8);
    let mut table = BlockTable::create(&pools, 4, 64).unwrap();
    append(&mut table, 5);
    let (mut lists, mut entries) = (vec![], vec![]);
    for _ in 0..200 {
        let full = table.reserve(256 - table.len()).map(drop).unwrap_err();
        assert!(matches!(full, TableError::Page { class: PageClass::Packed, .. }));
        let reservation = table.reserve(1).unwrap();
        lists.push((reservation.pages.host.as_ptr(), reservation.pages.packed.as_ptr()));
        let done = table.commit(reservation).unwrap();
        assert!(done.dropped.pages().count() <= 1);
        done.dropped.retire(|| Stamp(1)).unwrap();
        pools.reclaim(&mut |_| true);
        entries.push(table.blocks().as_ptr());
    }
    lists.dedup();
    entries.dedup();
    assert_eq!((lists.len(), entries.len()), (1, 1), "a list was allocated again");
    let movable = |_: &(dyn Send + Sync)| {};
    movable(&table);
}

//! Allocation, references, retirement, generations.
use crate::word::{Operation, Reason, Refused, State};
use crate::{Counts, PageAllocator, PageError, PageId, Stamp};

fn counts(pages: &PageAllocator) -> Counts {
    pages.check().unwrap()
}

/// A Packed page with one reference.
fn packed(pages: &PageAllocator) -> PageId {
    let id = pages.allocate().unwrap();
    pages.apply(Operation::CloseBegin, id).unwrap();
    pages.apply(Operation::CloseCommit, id).unwrap();
    id
}

#[test]
fn a_page_goes_around_and_comes_back_as_another() {
    let pages = PageAllocator::create(2).unwrap();
    let id = pages.allocate().unwrap();
    assert_eq!(pages.retire(id, Stamp(5)), Err(PageError::Shared { id, references: 1 }));
    assert!(pages.release(id).unwrap().last);
    pages.retire(id, Stamp(5)).unwrap();
    assert_eq!(counts(&pages), Counts { free: 1, live: 0, retiring: 1, worn: 0 });
    assert_eq!(pages.reclaim(&mut |stamp| stamp.0 < 5), 0);
    assert_eq!(pages.reclaim(&mut |stamp| stamp.0 <= 5), 1);
    assert_eq!(counts(&pages), Counts { free: 2, live: 0, retiring: 0, worn: 0 });

    let again = pages.allocate().unwrap();
    assert_eq!((again.index, again.generation), (id.index, id.generation + 1));
    let stale = PageError::Stale { id, found: again.generation };
    assert_eq!(pages.release(id), Err(stale));
    assert_eq!(pages.retain(id), Err(stale));
    assert_eq!(pages.retire(id, Stamp(1)), Err(stale));
    assert_eq!(pages.lease(id).unwrap_err(), stale);
    let outside = PageId { index: 2, generation: 1 };
    assert_eq!(pages.release(outside), Err(PageError::OutOfRange { id: outside, capacity: 2 }));
    assert!(matches!(pages.snapshot(PageId { index: 1, generation: 0 }), Err(PageError::Stale { .. })), "zeroed id");
}

#[test]
fn many_pages_come_all_or_none() {
    let pages = PageAllocator::create(4).unwrap();
    let mut ids = vec![];
    pages.allocate_many(3, &mut ids).unwrap();
    let full = pages.allocate_many(2, &mut ids).unwrap_err();
    assert_eq!(full, PageError::Exhausted { asked: 2, free: 1, retiring: 0, capacity: 4 });
    assert_eq!(ids.len(), 3);
    assert_eq!(counts(&pages).free, 1);
    pages.allocate_many(0, &mut ids).unwrap();
    pages.allocate_many(1, &mut ids).unwrap();
    assert!(matches!(pages.allocate(), Err(PageError::Exhausted { asked: 1, free: 0, .. })));
    assert_eq!(
        PageAllocator::create(0).unwrap().allocate().unwrap_err(),
        PageError::Exhausted { asked: 1, free: 0, retiring: 0, capacity: 0 }
    );
    let huge = u32::MAX as usize;
    assert_eq!(PageAllocator::create(huge).unwrap_err(), PageError::TooManyPages { asked: huge });
}

#[test]
fn a_page_that_nobody_saw_goes_back_in_one_call() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    assert_eq!(pages.give_back(id), Ok(true));
    assert!(matches!(pages.give_back(id), Err(PageError::Stale { .. })));
    let id = pages.allocate().unwrap();
    pages.apply(Operation::CloseBegin, id).unwrap();
    assert!(matches!(pages.give_back(id), Err(PageError::Refused { .. })));
    assert_eq!(pages.references(id), Ok(1), "refused, and nothing changed");
    pages.apply(Operation::CloseCommit, id).unwrap();
    pages.retain(id).unwrap();
    assert_eq!(pages.give_back(id), Err(PageError::Shared { id, references: 2 }));
    assert!(!pages.release(id).unwrap().last);
    let lease = pages.lease(id).unwrap();
    assert_eq!(pages.give_back(id), Ok(false), "a reader holds it");
    drop(lease);
    assert_eq!(pages.reclaim(&mut |_| false), 1, "no fence to wait for");
}

#[test]
fn a_second_release_is_an_error_without_effect() {
    let pages = PageAllocator::create(1).unwrap();
    let id = packed(&pages);
    pages.retain(id).unwrap();
    assert!(!pages.release(id).unwrap().last);
    assert!(pages.release(id).unwrap().last);
    let before = counts(&pages);
    assert_eq!(pages.release(id), Err(PageError::Unreferenced { id }));
    assert_eq!(pages.retain(id), Err(PageError::Unreferenced { id }), "a released page is not revived");
    assert_eq!(counts(&pages), before);
    pages.retire(id, Stamp(1)).unwrap();
    assert_eq!(pages.release(id), Err(PageError::Unreferenced { id }));
    let refused =
        Refused { operation: Operation::Retire, reason: Reason::State, state: State::Retiring, moving: false, pins: 0 };
    assert_eq!(pages.retire(id, Stamp(1)), Err(PageError::Refused { id, refused }));
    assert_eq!(counts(&pages).retiring, 1);
}

#[test]
fn only_final_contents_are_shared() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    assert_eq!(pages.retain(id), Err(PageError::NotShareable { id }));
    pages.apply(Operation::CloseBegin, id).unwrap();
    assert_eq!(pages.retain(id), Err(PageError::NotShareable { id }));
    pages.apply(Operation::CloseCommit, id).unwrap();
    pages.retain(id).unwrap();
    assert_eq!(pages.references(id), Ok(2));
    pages.shared.books.lock().slots[0].references = u32::MAX;
    assert_eq!(pages.retain(id), Err(PageError::TooManyReferences { id }));
}

#[test]
fn pages_retained_together_are_retained_all_or_none() {
    let pages = PageAllocator::create(3).unwrap();
    let (a, b, open) = (packed(&pages), packed(&pages), pages.allocate().unwrap());
    let all = [a, b, a, open];
    assert_eq!(pages.retain_all(all.into_iter()), Err(PageError::NotShareable { id: open }));
    assert_eq!((pages.references(a), pages.references(b)), (Ok(1), Ok(1)));
    pages.retain_all([a, b, a].into_iter()).unwrap();
    assert_eq!((pages.references(a), pages.references(b)), (Ok(3), Ok(2)));
}

#[test]
fn reclaim_goes_in_order_and_asks_once_per_run_of_stamps() {
    let pages = PageAllocator::create(8).unwrap();
    let mut ids = vec![];
    pages.allocate_many(6, &mut ids).unwrap();
    for (id, stamp) in ids.iter().zip([7, 7, 3, 3, 9, 7]) {
        let _ = pages.release(*id).unwrap();
        pages.retire(*id, Stamp(stamp)).unwrap();
    }
    let mut asked = vec![];
    let freed = pages.reclaim(&mut |stamp| {
        asked.push(stamp.0);
        // The allocator's lock is free while the device is asked.
        assert_eq!(pages.counts().retiring + pages.counts().free, 8);
        stamp.0 == 3
    });
    assert_eq!((freed, asked), (2, vec![7, 3, 9, 7]));
    assert_eq!(counts(&pages), Counts { free: 4, live: 0, retiring: 4, worn: 0 });

    // A page retired while a walk runs stays behind the older ones.
    let late = pages.allocate().unwrap();
    let _ = pages.release(late).unwrap();
    let mut first = true;
    pages.reclaim(&mut |_| {
        if core::mem::take(&mut first) {
            pages.retire(late, Stamp(1)).unwrap();
        }
        false
    });
    let mut order = vec![];
    assert_eq!(pages.reclaim(&mut |stamp| (order.push(stamp.0), true).1), 5);
    assert_eq!(order, [7, 9, 7, 1]);
    assert_eq!(counts(&pages).free, 8);
}

#[test]
fn a_panic_in_the_callers_closure_loses_no_page() {
    let pages = PageAllocator::create(4).unwrap();
    for stamp in 1..=3 {
        let id = pages.allocate().unwrap();
        let _ = pages.release(id).unwrap();
        pages.retire(id, Stamp(stamp)).unwrap();
    }
    let walk = std::panic::AssertUnwindSafe(|| {
        pages.reclaim(&mut |s| if s.0 == 2 { panic!("device lost") } else { s.0 == 1 })
    });
    std::panic::catch_unwind(walk).unwrap_err();
    assert_eq!(counts(&pages), Counts { free: 2, live: 0, retiring: 2, worn: 0 });
    assert_eq!(pages.reclaim(&mut |_| true), 2);
}

#[test]
fn an_untouched_page_comes_back_at_once() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    assert_eq!(pages.retire_now(id), Err(PageError::Shared { id, references: 1 }));
    let _ = pages.release(id).unwrap();
    assert_eq!(pages.retire_now(id), Ok(true));
    let id = pages.allocate().unwrap();
    let lease = pages.lease(id).unwrap();
    let _ = pages.release(id).unwrap();
    assert_eq!(pages.retire_now(id), Ok(false), "a lease holds it");
    drop(lease);
    assert_eq!(pages.reclaim(&mut |_| unreachable!("no stream touched it")), 1);
    assert_eq!(counts(&pages).free, 1);
}

#[test]
fn a_slot_out_of_generations_is_lost_and_not_reused() {
    let pages = PageAllocator::create_at(2, u32::MAX - 1).unwrap();
    let id = pages.allocate().unwrap();
    let _ = pages.release(id).unwrap();
    assert_eq!(pages.retire_now(id), Ok(true));
    let last = packed(&pages);
    assert_eq!((last.index, last.generation), (id.index, u32::MAX));
    let spent = pages.reopen(last).unwrap_err();
    assert!(matches!(spent, PageError::Refused { refused: Refused { reason: Reason::GenerationsSpent, .. }, .. }));
    let _ = pages.release(last).unwrap();
    pages.retire(last, Stamp(1)).unwrap();
    assert_eq!(pages.reclaim(&mut |_| true), 1);
    assert_eq!(counts(&pages), Counts { free: 1, live: 0, retiring: 0, worn: 1 });
    assert_ne!(pages.allocate().unwrap().index, last.index);
    assert!(matches!(pages.allocate(), Err(PageError::Exhausted { .. })));
    assert!(pages.lease(last).is_err());
}

#[test]
fn a_reopened_page_has_a_new_name() {
    let pages = PageAllocator::create(1).unwrap();
    let id = packed(&pages);
    pages.retain(id).unwrap();
    assert_eq!(pages.reopen(id), Err(PageError::Shared { id, references: 2 }));
    let _ = pages.release(id).unwrap();
    let lease = pages.lease(id).unwrap();
    assert!(matches!(pages.reopen(id), Err(PageError::Refused { .. })));
    drop(lease);
    let new = pages.reopen(id).unwrap();
    assert_eq!((new.index, new.generation), (id.index, id.generation + 1));
    assert_eq!(pages.snapshot(new).unwrap().state, State::Open);
    assert!(matches!(pages.lease(id), Err(PageError::Stale { .. })));
    assert_eq!(pages.references(new), Ok(1));
}

#[test]
fn a_page_is_erased_before_it_is_handed_out_again() {
    let pages = PageAllocator::create_erased(2).unwrap();
    let (first, second) = (pages.allocate().unwrap(), pages.allocate().unwrap());
    assert!(pages.release(first).unwrap().last);
    pages.retire(first, Stamp(5)).unwrap();
    assert_eq!(pages.erase(&mut |_| panic!("its fence has not passed")), 0);
    assert_eq!(pages.reclaim(&mut |_| true), 1);
    assert_eq!(pages.give_back(second), Ok(true), "nobody saw it, but who knows");
    let waits = Counts { free: 0, live: 0, retiring: 2, worn: 0 };
    assert_eq!((counts(&pages), pages.counts()), (waits, waits));
    assert_eq!(pages.allocate().unwrap_err(), PageError::Exhausted { asked: 1, free: 0, retiring: 2, capacity: 2 });
    // They cannot be erased yet; whoever asks next hears of them again.
    for done in [false, true] {
        let mut asked = vec![];
        let erased = pages.erase(&mut |ids| {
            assert_eq!(pages.counts(), waits, "the lock is not held, and nobody can have them meanwhile");
            asked.extend_from_slice(ids);
            done
        });
        asked.sort_by_key(|id| id.index);
        assert_eq!((erased, asked.len()), (if done { 2 } else { 0 }, 2));
        assert_eq!(asked[0], PageId { generation: first.generation + 1, ..first }, "as its next owner names it");
        assert_eq!(counts(&pages), if done { Counts { free: 2, retiring: 0, ..waits } } else { waits });
    }
    assert_eq!(pages.erase(&mut |_| true), 0);
    let mut again = vec![];
    pages.allocate_many(2, &mut again).unwrap();
}

#[test]
fn a_panic_while_pages_are_erased_loses_none() {
    let pages = PageAllocator::create_erased(200).unwrap();
    let mut ids = vec![];
    pages.allocate_many(200, &mut ids).unwrap();
    ids.iter().for_each(|id| assert_eq!(pages.give_back(*id), Ok(true)));
    let mut seen = vec![];
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pages.erase(&mut |ids| {
            assert!(seen.is_empty(), "the second time");
            seen.extend_from_slice(ids);
            true
        })
    }));
    assert!(result.is_err());
    assert_eq!(counts(&pages), Counts { free: seen.len(), live: 0, retiring: 200 - seen.len(), worn: 0 });
    assert_eq!(pages.erase(&mut |_| true), 200 - seen.len());
    assert_eq!(counts(&pages).free, 200);
    let usual = PageAllocator::create(1).unwrap();
    let id = usual.allocate().unwrap();
    assert_eq!(
        (usual.give_back(id), usual.erase(&mut |_| panic!("free as it is")), usual.counts().free),
        (Ok(true), 0, 1)
    );
}

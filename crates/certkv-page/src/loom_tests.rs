//! Races on page words and lists, in every interleaving that loom explores.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p certkv-page --release --lib loom`. Each test is
//! one small story of two threads; flags beside the pages stand for their contents.
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use crate::sync::{Arc, thread};
use crate::torn::a_torn_transition;
use crate::word::{Operation, State};
use crate::{PageAllocator, PageError, PageId, Stamp};

/// A Packed page with one reference.
fn packed(pages: &PageAllocator) -> PageId {
    let id = pages.allocate().unwrap();
    pages.apply(Operation::CloseBegin, id).unwrap();
    pages.apply(Operation::CloseCommit, id).unwrap();
    id
}

fn last_reference_gone(pages: &PageAllocator, id: PageId) {
    assert!(pages.release(id).unwrap().last);
}

#[test]
fn a_pin_and_a_free_never_meet() {
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let id = packed(&pages);
        let reading = Arc::new(AtomicBool::new(false));
        let reader = {
            let (pages, reading) = (pages.clone(), reading.clone());
            thread::spawn(move || match pages.lease(id) {
                Ok(lease) => {
                    reading.store(true, Relaxed);
                    assert_ne!(pages.snapshot(id).unwrap().state, State::Free);
                    reading.store(false, Relaxed);
                    drop(lease);
                }
                Err(PageError::Stale { .. } | PageError::Refused { .. }) => {}
                Err(error) => panic!("{error}"),
            })
        };
        last_reference_gone(&pages, id);
        pages.retire(id, Stamp(1)).unwrap();
        if pages.reclaim(&mut |_| true) == 1 {
            assert!(!reading.load(Relaxed), "freed under a reader");
            assert!(matches!(pages.lease(id), Err(PageError::Stale { .. })));
        }
        reader.join().unwrap();
        pages.reclaim(&mut |_| true);
        assert_eq!(pages.check().unwrap().free, 1);
    });
}

#[test]
fn a_reader_of_a_packed_page_sees_final_contents() {
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let id = pages.allocate().unwrap();
        let codes = Arc::new(AtomicU32::new(0));
        let reader = {
            let (pages, codes) = (pages.clone(), codes.clone());
            thread::spawn(move || {
                if let Ok(_lease) = pages.lease(id)
                    && pages.snapshot(id).unwrap().state == State::Packed
                {
                    assert_eq!(codes.load(Relaxed), 1);
                }
            })
        };
        pages.apply(Operation::CloseBegin, id).unwrap();
        assert!(pages.lease(id).is_err(), "no new reader while the codes are written");
        codes.store(1, Relaxed);
        let closed = pages.apply(Operation::CloseCommit, id).unwrap();
        assert!(closed.pins <= 1);
        reader.join().unwrap();
        let page = pages.snapshot(id).unwrap();
        assert_eq!((page.state, page.pins), (State::Packed, 0), "no pin was lost or invented");
    });
}

#[test]
fn a_mover_and_a_reader_never_meet() {
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let id = packed(&pages);
        let (reading, moving) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (pages, reading, moving) = (pages.clone(), reading.clone(), moving.clone());
            thread::spawn(move || {
                if let Ok(_lease) = pages.lease(id) {
                    reading.store(true, Relaxed);
                    assert!(!moving.load(Relaxed), "read under a mover");
                    reading.store(false, Relaxed);
                }
            })
        };
        if pages.move_begin(id).is_ok() {
            moving.store(true, Relaxed);
            assert!(!reading.load(Relaxed), "moved under a reader");
            moving.store(false, Relaxed);
            assert_eq!(pages.move_end(id), Ok(State::Packed));
        }
        reader.join().unwrap();
        assert_eq!(pages.snapshot(id).unwrap().pins, 0);
    });
}

#[test]
fn a_page_is_not_reopened_under_a_reader() {
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let id = packed(&pages);
        let writing = Arc::new(AtomicBool::new(false));
        let reader = {
            let (pages, writing) = (pages.clone(), writing.clone());
            thread::spawn(move || {
                if let Ok(_lease) = pages.lease(id) {
                    assert!(!writing.load(Relaxed), "the old id still reads the new contents");
                }
            })
        };
        if let Ok(new) = pages.reopen(id) {
            writing.store(true, Relaxed);
            assert_eq!(pages.snapshot(new).unwrap().state, State::Open);
        }
        reader.join().unwrap();
    });
}

#[test]
fn two_threads_share_two_slots() {
    loom::model(|| {
        let pages = PageAllocator::create(2).unwrap();
        let owners = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let work = |me: u32, pages: PageAllocator, owners: Arc<[AtomicU32; 2]>| {
            let mut last = None;
            for _ in 0..2 {
                let id = pages.allocate().unwrap();
                assert_ne!(Some(id), last, "an id came back");
                let owner = &owners[id.index as usize];
                assert_eq!(owner.swap(me, Relaxed), 0, "two owners of one slot");
                assert_eq!(owner.swap(0, Relaxed), me);
                last_reference_gone(&pages, id);
                assert_eq!(pages.retire_now(id), Ok(true));
                assert!(matches!(pages.release(id), Err(PageError::Stale { .. })));
                last = Some(id);
            }
        };
        let other = {
            let (pages, owners) = (pages.clone(), owners.clone());
            thread::spawn(move || work(1, pages, owners))
        };
        work(2, pages.clone(), owners);
        other.join().unwrap();
        assert_eq!(pages.check().unwrap().free, 2);
    });
}

#[test]
fn one_of_two_releases_is_the_last() {
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let id = packed(&pages);
        pages.retain(id).unwrap();
        let other = {
            let pages = pages.clone();
            thread::spawn(move || pages.release(id).unwrap().last)
        };
        let mine = pages.release(id).unwrap().last;
        assert!(mine ^ other.join().unwrap());
        assert_eq!(pages.release(id), Err(PageError::Unreferenced { id }));
    });
}

#[test]
fn two_reclaims_free_each_page_once() {
    loom::model(|| {
        let pages = PageAllocator::create(2).unwrap();
        for stamp in [1, 2] {
            let id = pages.allocate().unwrap();
            last_reference_gone(&pages, id);
            pages.retire(id, Stamp(stamp)).unwrap();
        }
        let other = {
            let pages = pages.clone();
            thread::spawn(move || pages.reclaim(&mut |stamp| stamp == Stamp(1)))
        };
        let mine = pages.reclaim(&mut |_| true);
        let freed = mine + other.join().unwrap();
        assert_eq!(pages.reclaim(&mut |_| true), 2 - freed);
        assert_eq!(pages.check().unwrap().free, 2);
    });
}

/// The control: loom must find the reader under the mover.
#[test]
#[should_panic(expected = "read under a mover")]
fn the_planted_torn_transition_is_found() {
    loom::model(a_torn_transition);
}

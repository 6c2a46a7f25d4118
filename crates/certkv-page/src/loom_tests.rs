//! Races on page words and lists, in every interleaving that loom explores.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p certkv-page --release --lib loom`. Each test is
//! one small story of two threads; flags beside the pages stand for their contents.
use crate::policy::Lru;
use crate::prefix::{Chain, GroupShape, PrefixIndex, PrefixSecret, Scope};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use crate::sync::{Arc, thread};
use crate::torn::a_torn_transition;
use crate::word::{Operation, State};
use crate::{BlockTable, PageAllocator, PageError, PageId, Pools, Stamp};

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

/// Gives back what is due and erases it: what the page held, and whether it was this thread that did so.
fn wipe(pages: &PageAllocator, rows: &AtomicU32, busy: &AtomicBool) -> usize {
    pages.reclaim(&mut |_| true);
    pages.erase(&mut |_| {
        assert!(!busy.swap(true, Relaxed), "erased beside somebody");
        rows.store(0, Relaxed);
        busy.store(false, Relaxed);
        true
    })
}

#[test]
fn a_page_is_erased_behind_its_readers() {
    loom::model(|| {
        let pages = PageAllocator::create_erased(1).unwrap();
        let (rows, busy) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicBool::new(false)));
        let id = packed(&pages);
        let lease = pages.lease(id).unwrap();
        let reader = {
            let (rows, busy) = (rows.clone(), busy.clone());
            thread::spawn(move || {
                assert!(!busy.swap(true, Relaxed), "read beside an eraser");
                assert_eq!(rows.load(Relaxed), 1, "erased under a reader");
                busy.store(false, Relaxed);
                drop(lease);
            })
        };
        last_reference_gone(&pages, id);
        pages.retire(id, Stamp(1)).unwrap();
        let early = wipe(&pages, &rows, &busy);
        reader.join().unwrap();
        assert_eq!(early + wipe(&pages, &rows, &busy), 1);
        assert_eq!((pages.check().unwrap().free, rows.load(Relaxed)), (1, 0));
    });
}

#[test]
fn two_erasers_and_an_owner_are_never_at_one_page() {
    loom::model(|| {
        let pages = PageAllocator::create_erased(1).unwrap();
        let (rows, busy) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicBool::new(false)));
        let id = pages.allocate().unwrap();
        assert_eq!(pages.give_back(id), Ok(true));
        let other = {
            let (pages, rows, busy) = (pages.clone(), rows.clone(), busy.clone());
            thread::spawn(move || wipe(&pages, &rows, &busy))
        };
        let mine = wipe(&pages, &rows, &busy);
        if let Ok(next) = pages.allocate() {
            assert!(!busy.swap(true, Relaxed), "handed out while it is erased");
            assert_eq!((rows.load(Relaxed), next.generation), (0, id.generation + 1));
            busy.store(false, Relaxed);
        }
        assert_eq!(mine + other.join().unwrap(), 1, "once");
    });
}

/// The control: loom must find the reader under the mover.
#[test]
#[should_panic(expected = "read under a mover")]
fn the_planted_torn_transition_is_found() {
    loom::model(a_torn_transition);
}

/// A look-up and an eviction of the same unit: whoever comes second sees what the first did, and a page that was found is
/// not free.
#[test]
fn what_was_found_is_not_evicted() {
    // Not of the model: how often each came first.
    static FIRST: [std::sync::atomic::AtomicUsize; 2] = [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    loom::model(|| {
        let pools = Pools {
            host: PageAllocator::create(1).unwrap(),
            packed: PageAllocator::create(1).unwrap(),
            tail: PageAllocator::create(0).unwrap(),
            swap: PageAllocator::create(0).unwrap(),
            levels: Default::default(),
        };
        let group = GroupShape { pools: pools.clone(), block: 1, max_blocks: 1, window: None };
        let index = Arc::new(PrefixIndex::create(vec![group], 1, Box::new(Lru::create(1).unwrap())).unwrap());
        let scope =
            Scope { domain: b"", model: b"", adapter: None, salt: None, layout: b"", tolerance: 0, first_position: 0 };
        let chain = Chain::new(&PrefixSecret::new([1; 32]), &scope);
        let mut table = BlockTable::create(&pools, 1, 1).unwrap();
        let reservation = table.reserve(1).unwrap();
        table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
        let tokens = [3u32];
        let done = index.publish(&chain, (&tokens[..]).into(), &[&table], |_, _| Some(()));
        assert_eq!(done.added, 1);
        table.release().retire(|| Stamp(1)).unwrap();

        let evictor = {
            let (index, pools) = (index.clone(), pools.clone());
            thread::spawn(move || {
                let evicted = index.evict(1);
                let units = evicted.units;
                evicted.retire(|_| Stamp(1)).unwrap();
                pools.reclaim(&mut |_| true);
                units
            })
        };
        let hit = index.longest(&chain, (&tokens[..]).into()).unwrap();
        for entry in hit.tables.iter().flat_map(|table| table.blocks()) {
            assert_eq!(pools.host.snapshot(entry.host).unwrap().state, State::Packed);
            assert_eq!(pools.packed.snapshot(entry.packed.unwrap()).unwrap().state, State::Packed);
        }
        let (found, evicted) = (hit.tokens, evictor.join().unwrap());
        assert_eq!(found + evicted, 1, "either found and held, or evicted");
        FIRST[evicted].fetch_add(1, Relaxed);
        drop((hit, index));
        pools.reclaim(&mut |_| true);
        assert_eq!((pools.host.check().unwrap().free, pools.packed.check().unwrap().free), (1, 1));
    });
    let [found, evicted] = FIRST.each_ref().map(|n| n.load(Relaxed));
    println!("found first in {found} executions, evicted first in {evicted}");
    assert!(found > 0 && evicted > 0);
}

/// A fork of the parent's blocks while another thread cuts the parent's twin: nobody's page is opened under a reader.
#[test]
fn a_fork_and_a_truncation_share_no_open_page() {
    loom::model(|| {
        let pools = Pools {
            host: PageAllocator::create(3).unwrap(),
            packed: PageAllocator::create(1).unwrap(),
            tail: PageAllocator::create(2).unwrap(),
            swap: PageAllocator::create(0).unwrap(),
            levels: Default::default(),
        };
        let mut parent = BlockTable::create(&pools, 2, 1).unwrap();
        let reservation = parent.reserve(2).unwrap();
        parent.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
        let (twin, _) = parent.fork().unwrap();
        let cutter = {
            let mut parent = parent;
            thread::spawn(move || {
                let ops = parent.truncate(1).unwrap();
                let renamed = ops.renamed();
                ops.retire(|| Stamp(1)).unwrap();
                (parent, renamed)
            })
        };
        let (fork, _) = twin.fork().unwrap();
        let (parent, renamed) = cutter.join().unwrap();
        assert_eq!(renamed, None, "the twin holds the page: the rows are copied");
        assert_eq!(fork.blocks(), twin.blocks());
        assert_ne!(parent.blocks()[0].host, twin.blocks()[0].host);
        for entry in twin.blocks() {
            assert_eq!(pools.host.snapshot(entry.host).unwrap().state, State::Packed);
            assert_eq!(pools.host.references(entry.host), Ok(2));
        }
        drop((parent, fork, twin));
        pools.reclaim(&mut |_| true);
        assert_eq!([&pools.host, &pools.packed, &pools.tail].map(|p| p.check().unwrap().free), [3, 1, 2]);
    });
}

/// A block is closed while another thread asks for its codes: it is refused, or they are final.
#[test]
fn a_closing_block_is_refused_or_final() {
    static FIRST: [std::sync::atomic::AtomicUsize; 2] = [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    loom::model(|| {
        let pools = Pools {
            host: PageAllocator::create(1).unwrap(),
            packed: PageAllocator::create(1).unwrap(),
            tail: PageAllocator::create(0).unwrap(),
            swap: PageAllocator::create(0).unwrap(),
            levels: Default::default(),
        };
        let mut table = BlockTable::create(&pools, 1, 1).unwrap();
        let reservation = table.reserve(1).unwrap();
        let page = reservation.rows().find_map(|span| span.packed).unwrap();
        let codes = Arc::new(AtomicU32::new(0));
        let reader = {
            let (packed, codes) = (pools.packed.clone(), codes.clone());
            thread::spawn(move || match packed.lease(page) {
                Ok(_lease) => {
                    assert_eq!(codes.load(Relaxed), 1, "codes that are not final");
                    true
                }
                Err(PageError::Refused { .. }) => false,
                Err(error) => panic!("{error}"),
            })
        };
        codes.store(1, Relaxed);
        table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
        assert_eq!(pools.packed.snapshot(page).unwrap().state, State::Packed);
        FIRST[usize::from(reader.join().unwrap())].fetch_add(1, Relaxed);
        drop(table);
        pools.reclaim(&mut |_| true);
        assert_eq!((pools.host.check().unwrap().free, pools.packed.check().unwrap().free), (1, 1));
    });
    let [refused, read] = FIRST.each_ref().map(|n| n.load(Relaxed));
    println!("refused in {refused} executions, read in {read}");
    assert!(refused > 0 && read > 0);
}

/// A page is freed and given out as the target of a copy while somebody asks for what it held: nobody reads the copy under
/// the old name.
#[test]
fn a_page_that_is_read_is_no_copys_target() {
    static SEEN: [std::sync::atomic::AtomicUsize; 3] = [const { std::sync::atomic::AtomicUsize::new(0) }; 3];
    loom::model(|| {
        let pages = PageAllocator::create(1).unwrap();
        let old = packed(&pages);
        let rows = Arc::new(AtomicU32::new(1));
        let reader = {
            let (pages, rows) = (pages.clone(), rows.clone());
            thread::spawn(move || match pages.lease(old) {
                Ok(_lease) => {
                    assert_eq!(rows.load(Relaxed), 1, "the old id reads the copy");
                    true
                }
                Err(PageError::Stale { .. } | PageError::Refused { .. }) => false,
                Err(error) => panic!("{error}"),
            })
        };
        last_reference_gone(&pages, old);
        pages.retire(old, Stamp(1)).unwrap();
        pages.reclaim(&mut |_| true);
        let target = pages.allocate();
        match target {
            Ok(new) => {
                assert_ne!(new, old);
                rows.store(2, Relaxed);
            }
            Err(PageError::Exhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let (read, copied) = (reader.join().unwrap(), target.is_ok());
        assert!(read || copied, "the page is lost");
        SEEN[usize::from(read) * (1 + usize::from(copied))].fetch_add(1, Relaxed);
    });
    let [refused, held, over] = SEEN.each_ref().map(|n| n.load(Relaxed));
    println!("freed first in {refused} executions, held in {held}, read before in {over}");
    assert!(refused > 0 && held > 0 && over > 0);
}

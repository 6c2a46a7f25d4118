//! Longer races than loom can exhaust: four threads and dozens of operations under random schedules.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p certkv-page --release --lib -- shuttle --nocapture`.
use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};
use crate::sync::{Arc, thread};
use crate::torn::a_torn_transition;
use crate::word::{Operation, State};
use crate::{PageAllocator, PageError, PageId, Stamp};

const THREADS: u32 = 4;
const ROUNDS: u32 = 6;
const SCHEDULES: usize = 3000;

/// What stands for the contents of a slot: who writes it, and how many read it.
#[derive(Default)]
struct Slot {
    writer: AtomicU32,
    readers: AtomicU32,
}

struct World {
    pages: PageAllocator,
    slots: [Slot; 2],
    /// Pages that the others may try to read: index and generation.
    shown: AtomicU32,
    generation: AtomicU32,
}

impl World {
    fn read(&self, id: PageId) {
        // An open page may be read while it grows; what is checked here is a finished one.
        if let Ok(_lease) = self.pages.lease(id)
            && self.pages.snapshot(id).unwrap().state == State::Packed
        {
            let slot = &self.slots[id.index as usize];
            slot.readers.fetch_add(1, SeqCst);
            assert_eq!(slot.writer.load(SeqCst), 0, "read under a writer");
            slot.readers.fetch_sub(1, SeqCst);
        }
    }

    /// One page from allocation to retirement, shown to the others in between.
    fn live(&self, me: u32) {
        let id = match self.pages.allocate() {
            Ok(id) => id,
            Err(PageError::Exhausted { .. }) => {
                self.pages.reclaim(&mut |_| true);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let slot = &self.slots[id.index as usize];
        assert_eq!(slot.writer.swap(me, SeqCst), 0, "two owners of one slot");
        assert_eq!(slot.readers.load(SeqCst), 0, "handed out under a reader");
        assert_eq!(slot.writer.swap(0, SeqCst), me);
        self.pages.apply(Operation::CloseBegin, id).unwrap();
        self.pages.apply(Operation::CloseCommit, id).unwrap();
        self.shown.store(id.index, SeqCst);
        self.generation.store(id.generation, SeqCst);
        self.read(id);
        if self.pages.move_begin(id).is_ok() {
            assert_eq!(slot.writer.swap(me, SeqCst), 0, "two movers");
            assert_eq!(slot.readers.load(SeqCst), 0, "moved under a reader");
            assert_eq!(slot.writer.swap(0, SeqCst), me);
            self.pages.move_end(id).unwrap();
        }
        assert!(self.pages.release(id).unwrap().last);
        self.pages.retire(id, Stamp(u64::from(me))).unwrap();
    }
}

fn story() {
    let slots = [Slot::default(), Slot::default()];
    let pages = PageAllocator::create(2).unwrap();
    let world = Arc::new(World { pages, slots, shown: AtomicU32::new(0), generation: AtomicU32::new(0) });
    let threads: Vec<_> = (1..=THREADS)
        .map(|me| {
            let world = world.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    if (me + round).is_multiple_of(2) {
                        world.live(me);
                    } else {
                        // An id put together from two stores may never have existed: it has to be refused like a stale one.
                        let (index, generation) = (world.shown.load(SeqCst), world.generation.load(SeqCst));
                        world.read(PageId { index, generation });
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.pages.reclaim(&mut |_| true);
    assert_eq!(world.pages.check().unwrap().free, 2);
}

#[test]
fn shuttle_four_threads_share_two_slots() {
    shuttle::check_random(story, SCHEDULES);
    shuttle::check_pct(story, SCHEDULES, 3);
    // The control: a transition that is torn must be found.
    let caught = std::panic::catch_unwind(|| shuttle::check_random(a_torn_transition, SCHEDULES)).is_err();
    let (executed, caught) = (2 * SCHEDULES, u8::from(caught));
    println!("GATE page-shuttle executed={executed} failed=0 controls={caught}/1 seed=random");
    assert_eq!(caught, 1);
}

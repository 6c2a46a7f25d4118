//! The fault that every model checker of this crate is shown: a load and a store in place of the compare-and-swap.
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};
use crate::sync::{Arc, thread};
use crate::word::{Operation, PageWord};

/// A reader and a mover on a word whose transitions are torn. Panics with "read under a mover" on the schedule that shows it.
pub(crate) fn a_torn_transition() {
    let word = Arc::new(PageWord::free_at(1));
    for operation in [Operation::Open, Operation::CloseBegin, Operation::CloseCommit] {
        word.apply(operation, 1).unwrap();
    }
    let moving = Arc::new(AtomicBool::new(false));
    let mover = {
        let (word, moving) = (word.clone(), moving.clone());
        thread::spawn(move || {
            if word.apply_torn(Operation::MoveBegin, 1).is_ok() {
                moving.store(true, Relaxed);
                moving.store(false, Relaxed);
            }
        })
    };
    if word.apply_torn(Operation::Pin, 1).is_ok() {
        assert!(!moving.load(Relaxed), "read under a mover");
    }
    mover.join().unwrap();
}

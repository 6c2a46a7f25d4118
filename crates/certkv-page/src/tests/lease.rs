//! Pins and moves.
use crate::word::{MAX_PINS, Operation, Reason, Snapshot, State};
use crate::{PageAllocator, PageError, Refused, Stamp};

#[test]
fn a_leased_page_is_not_freed() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    let (one, two) = (pages.lease(id).unwrap(), pages.lease(id).unwrap());
    assert_eq!((one.id(), pages.snapshot(id).unwrap().pins), (id, 2));
    let _ = pages.release(id).unwrap();
    pages.retire(id, Stamp(1)).unwrap();
    drop(one);
    assert_eq!(pages.reclaim(&mut |_| true), 0);
    assert!(matches!(pages.lease(id), Err(PageError::Refused { .. })), "no new readers of a retiring page");
    drop(two);
    assert_eq!(pages.reclaim(&mut |_| true), 1);
    pages.check().unwrap();
}

#[test]
fn a_mover_is_alone_and_outlived() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    assert!(pages.move_begin(id).is_err(), "an open page is not moved");
    pages.apply(Operation::CloseBegin, id).unwrap();
    pages.apply(Operation::CloseCommit, id).unwrap();
    let lease = pages.lease(id).unwrap();
    let refused = Refused {
        operation: Operation::MoveBegin,
        reason: Reason::Pinned,
        state: State::Packed,
        moving: false,
        pins: 1,
    };
    assert_eq!(pages.move_begin(id), Err(PageError::Refused { id, refused }));
    drop(lease);
    pages.move_begin(id).unwrap();
    assert!(pages.move_begin(id).is_err());
    assert!(pages.lease(id).is_err());
    let _ = pages.release(id).unwrap();
    pages.retire(id, Stamp(1)).unwrap();
    assert_eq!(pages.reclaim(&mut |_| true), 0, "the mover still writes");
    assert_eq!(pages.move_end(id), Ok(State::Retiring));
    assert!(pages.move_end(id).is_err());
    assert_eq!(pages.reclaim(&mut |_| true), 1);
}

#[test]
fn too_many_pins_are_an_error() {
    let pages = PageAllocator::create(1).unwrap();
    let id = pages.allocate().unwrap();
    let full = Snapshot { pins: MAX_PINS, ..pages.snapshot(id).unwrap() };
    pages.word(id).unwrap().force(full);
    let refused = Refused {
        operation: Operation::Pin,
        reason: Reason::PinOverflow,
        state: State::Open,
        moving: false,
        pins: MAX_PINS,
    };
    assert_eq!(pages.lease(id).unwrap_err(), PageError::Refused { id, refused });
    assert_eq!(pages.snapshot(id), Ok(full), "the overflow did not spill into the moving bit");
}

//! Turns of a lane: ordered behind the queue where they begin, marked where they are dropped, and the queue behind them where it joins.
use crate::alone;
use certkv::gpu::{CudaError, DeviceBuffer, Gpu};
use certkv_kernel::cuda::queue::{Area, Download, Queue};
use core::num::NonZeroUsize;

/// A buffer, a page of pinned memory, the queue of both, and what a copy from one to the other is.
fn memory(gpu: &Gpu) -> (DeviceBuffer, Queue, Area) {
    let queue = Queue::new(gpu).expect("a stream");
    let area = queue.pin(4096, NonZeroUsize::MIN).expect("room");
    (DeviceBuffer::new(gpu, 4096).expect("room"), queue, area)
}

fn copy(on: &Queue, from: &DeviceBuffer, to: &Area) -> Result<(), CudaError> {
    let download = Download { from, from_offset: 0, to, to_offset: 0, bytes: 4096 };
    on.download_all(&mut on.batch(1), core::iter::once(Ok(download)))
}

/// Two accesses of different streams, both of which write: the checker refuses the second unless events stand between them.
#[test]
fn dropping_a_turn_records_the_event_that_orders_what_follows() {
    let (fake, _, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    gpu.check_order();
    let (buffer, queue, area) = memory(&gpu);
    let lane = queue.lane().expect("a stream");
    let count = |name: &str| fake.trace().iter().filter(|call| **call == name).count();
    let asked = || [count("cuEventRecord"), count("cuStreamWaitEvent")];
    copy(&queue, &buffer, &area).expect("the first");
    let start = asked();
    // Behind the queue's copy: both write the same bytes of the host.
    let turn = lane.turn(&queue).expect("an event and a wait");
    assert_eq!(asked(), [start[0] + 1, start[1] + 1]);
    copy(&turn, &buffer, &area).expect("ordered");
    drop(turn);
    assert_eq!(asked(), [start[0] + 2, start[1] + 1], "its event");
    let unordered = copy(&queue, &buffer, &area).expect_err("nobody has joined the lane");
    assert!(matches!(unordered, CudaError::Unordered { .. }), "{unordered}");
    queue.join(&lane).expect("a wait");
    assert_eq!(asked(), [start[0] + 2, start[1] + 2], "the event that the turn has left");
    copy(&queue, &buffer, &area).expect("ordered");
    // Whoever ends a turn has its event; who joins then marks the lane anew.
    let turn = lane.turn(&queue).expect("an event and a wait");
    copy(&turn, &buffer, &area).expect("ordered");
    let event = turn.end().expect("an event");
    event.synchronize().expect("the copy has run");
    let before = asked();
    queue.join(&lane).expect("an event and a wait");
    assert_eq!(asked(), [before[0] + 1, before[1] + 1]);
    copy(&queue, &buffer, &area).expect("ordered");
    queue.finish().expect("idle");
}

/// What the driver refuses while a turn is dropped is told to who joins; nothing is lost.
#[test]
fn an_event_that_a_drop_could_not_record_is_an_error_of_who_joins() {
    let (fake, _, _turn) = alone();
    let mut refused = Vec::new();
    for n in 1..8 {
        fake.reset();
        let gpu = Gpu::open(0).expect("the fake");
        gpu.check_order();
        let (buffer, queue, area) = memory(&gpu);
        let lane = queue.lane().expect("a stream");
        let turn = lane.turn(&queue).expect("an event and a wait");
        copy(&turn, &buffer, &area).expect("nothing else");
        fake.empty_stack();
        let failed = fake.injected();
        fake.fail(n, 1, false);
        drop(turn);
        let dropped = fake.injected() - failed;
        fake.calm();
        fake.empty_stack();
        let told = queue.join(&lane).is_err();
        assert!(!told || dropped == 1, "nothing was wrong");
        if told {
            refused.push(fake.last_failed());
            queue.join(&lane).expect("the driver is well again");
        }
        copy(&queue, &buffer, &area).expect("ordered");
        queue.finish().expect("idle");
    }
    assert!(refused.contains(&"cuEventRecord"), "{refused:?}");
}

//! The happens-before checker of real streams.
//!
//! A GPU runs streams at the same time, and mostly in an order that hides a missing event. The checker does not look at what ran: it keeps a
//! vector clock per stream and one for the host, which recorded and waited-for events, and waits of the host, join; and for every byte that
//! copies, fills, launches and the host touch, who did it last. An access that is not ordered after an earlier conflicting one is
//! [`CudaError::Unordered`], before it is enqueued, whatever the hardware would have made of it.
//!
//! It sees what it is told: copies and fills of buffers, the host's reads and writes of pinned memory, what [`GpuStream::touch`] says of a
//! launch, and recorded work at every run. Not seen: work of other libraries, words read by [`PinnedBuffer::load`](super::PinnedBuffer::load),
//! whose protocol is another, and what kernels reach through addresses in memory.
use super::error::{Accessor, CudaError};
use super::gpu::Gpu;
use super::stream::GpuStream;
use crate::error::Access;
use crate::order::{Ranges, VectorClock};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of device memory, or of pinned memory as the device sees it, and what is done with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether they may be written.
    pub writes: bool,
}

impl Touch {
    /// Reads `bytes` bytes from `address` on.
    pub const fn read(address: u64, bytes: usize) -> Self {
        Self { address, bytes: bytes as u64, writes: false }
    }

    /// May write them.
    pub const fn write(address: u64, bytes: usize) -> Self {
        Self { address, bytes: bytes as u64, writes: true }
    }
}

/// What the checker has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderReport {
    /// Copies, fills, launches, marks, waits, and accesses of the host to pinned memory.
    pub ops: u64,
    /// Byte ranges that were checked.
    pub accesses: u64,
    /// Accesses refused as [`CudaError::Unordered`].
    pub unordered: u64,
    /// Operations recorded by somebody else's capture, whose runs are not seen.
    pub unseen: u64,
}

impl Gpu {
    /// Turns the happens-before checker on, for this handle and its clones, from now on. Debug builds have it on from the start. Each
    /// operation then takes a lock and looks up the bytes that it touches.
    pub fn check_order(&self) {
        self.context.order.get_or_init(Order::default);
    }

    /// Whether the checker is on.
    pub fn checks_order(&self) -> bool {
        self.context.order.get().is_some()
    }

    /// What the checker has seen; `None` if it is off.
    pub fn order_report(&self) -> Option<OrderReport> {
        self.context.order.get().map(|order| order.lock().report)
    }
}

impl GpuStream {
    /// Tells the checker what the launch that comes next reads and writes. Without the checker it costs a load.
    ///
    /// # Errors
    /// [`CudaError::Unordered`] if that is not ordered after earlier accesses; the driver's.
    pub fn touch(&self, touched: &[Touch]) -> Result<(), CudaError> {
        let Some(order) = self.context.order.get() else { return Ok(()) };
        let recording = self.capturing()?;
        order.touch(self.raw.addr(), recording, touched)
    }
}

/// What an event stands for.
#[derive(Debug)]
pub(super) enum Mark {
    /// The checker was off.
    Unknown,
    /// Everything that this clock covers.
    After(VectorClock),
    /// A place in the recording of this number.
    Recorded(u64),
}

/// Number of recordings that others make.
const FOREIGN: u64 = 0;
const HOST: usize = 0;

#[derive(Default)]
pub(super) struct Order(Mutex<State>);

struct State {
    /// The host's, then the streams'.
    clocks: Vec<VectorClock>,
    /// Handles, in the order of the clocks; the host's is 0.
    handles: Vec<usize>,
    /// Index of each live stream.
    streams: HashMap<usize, usize>,
    memory: Ranges,
    /// Streams that record, and the number of the recording.
    recording: HashMap<usize, u64>,
    /// What recordings under way hold.
    recorded: HashMap<u64, Vec<Touch>>,
    recordings: u64,
    report: OrderReport,
}

impl Default for State {
    fn default() -> Self {
        Self {
            clocks: vec![VectorClock::default()],
            handles: vec![0],
            streams: HashMap::new(),
            memory: Ranges::default(),
            recording: HashMap::new(),
            recorded: HashMap::new(),
            recordings: FOREIGN,
            report: OrderReport::default(),
        }
    }
}

impl State {
    fn index(&mut self, handle: usize) -> usize {
        *self.streams.entry(handle).or_insert_with(|| {
            self.clocks.push(VectorClock::default());
            self.handles.push(handle);
            self.clocks.len() - 1
        })
    }

    /// Starts an operation of a stream, which is ordered after all that the host did and saw before; or one of the host's.
    fn begin(&mut self, who: usize) -> u64 {
        self.report.ops += 1;
        if who != HOST {
            let host = self.clocks[HOST].clone();
            self.clocks[who].join(&host);
        }
        self.clocks[who].tick(who as u32)
    }

    fn access(&mut self, who: usize, touched: &[Touch]) -> Result<(), CudaError> {
        let at = self.begin(who);
        let kind = |t: &Touch| if t.writes { Access::Write } else { Access::Read };
        for t in touched {
            self.report.accesses += 1;
            let range = t.address..t.address + t.bytes;
            if let Some(earlier) = self.memory.unordered(&range, kind(t), &self.clocks[who]) {
                self.report.unordered += 1;
                let of = |who: usize, writes| Accessor { stream: (who != HOST).then(|| self.handles[who]), writes };
                let (later, earlier) = (of(who, t.writes), of(earlier.stream as usize, earlier.access.writes()));
                return Err(CudaError::Unordered { address: t.address, bytes: t.bytes, earlier, later });
            }
        }
        for t in touched {
            self.memory.note(t.address..t.address + t.bytes, kind(t), who as u32, at);
        }
        Ok(())
    }

    fn see(&mut self, clock: &VectorClock) {
        self.clocks[HOST].join(clock);
    }
}

impl Order {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation of a stream. `recording`: it is recorded, not run.
    pub(super) fn touch(&self, stream: usize, recording: bool, touched: &[Touch]) -> Result<(), CudaError> {
        let mut state = self.lock();
        if recording {
            let number = state.recording.get(&stream).copied().unwrap_or(FOREIGN);
            match state.recorded.get_mut(&number) {
                Some(list) => list.extend_from_slice(touched),
                None => state.report.unseen += 1,
            }
            return Ok(());
        }
        // Others' recordings end without a word.
        state.recording.remove(&stream);
        let who = state.index(stream);
        state.access(who, touched)
    }

    /// An access of the host.
    pub(super) fn touch_on_host(&self, touched: Touch) -> Result<(), CudaError> {
        self.lock().access(HOST, &[touched])
    }

    pub(super) fn record(&self, stream: usize, recording: bool) -> Mark {
        let mut state = self.lock();
        if recording {
            return Mark::Recorded(state.recording.get(&stream).copied().unwrap_or(FOREIGN));
        }
        let who = state.index(stream);
        state.begin(who);
        Mark::After(state.clocks[who].clone())
    }

    pub(super) fn wait(&self, stream: usize, mark: &Mark) {
        let mut state = self.lock();
        match mark {
            Mark::Unknown => {}
            Mark::After(clock) => {
                let who = state.index(stream);
                state.begin(who);
                state.clocks[who].join(clock);
            }
            Mark::Recorded(number) => {
                state.recording.insert(stream, *number);
            }
        }
    }

    /// The host saw that the mark has passed.
    pub(super) fn passed(&self, mark: &Mark) {
        if let Mark::After(clock) = mark {
            self.lock().see(clock);
        }
    }

    /// The host saw that the stream has done all its work.
    pub(super) fn finished(&self, stream: usize) {
        let mut state = self.lock();
        let who = state.index(stream);
        let clock = state.clocks[who].clone();
        state.see(&clock);
    }

    pub(super) fn begin_recording(&self, stream: usize) {
        let mut state = self.lock();
        state.recordings += 1;
        let number = state.recordings;
        state.recording.insert(stream, number);
        state.recorded.insert(number, Vec::new());
    }

    /// What was recorded since.
    pub(super) fn end_recording(&self, stream: usize) -> Arc<[Touch]> {
        let mut state = self.lock();
        let Some(number) = state.recording.get(&stream).copied() else { return Arc::default() };
        state.recording.retain(|_, of| *of != number);
        state.recorded.remove(&number).unwrap_or_default().into()
    }

    /// Memory that is freed, once the work that uses it is done.
    pub(super) fn free(&self, address: u64, bytes: usize) {
        self.lock().memory.forget(address..address + bytes as u64);
    }

    /// A stream that is destroyed: its handle may come again. What it did is not forgotten.
    pub(super) fn destroy(&self, stream: usize) {
        self.lock().streams.remove(&stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: usize = 0xa0;
    const B: usize = 0xb0;
    const WRITE: Touch = Touch::write(0x1000, 64);
    const READ: Touch = Touch::read(0x1020, 64);

    #[test]
    fn streams_need_an_event_between_a_write_and_another_access() {
        let order = Order::default();
        order.touch(A, false, &[WRITE]).expect("the first");
        let error = order.touch(B, false, &[READ]).expect_err("nothing orders it");
        assert!(error.to_string().contains("a read on stream 0xb0"), "{error}");
        assert!(error.to_string().contains("a write on stream 0xa0"), "{error}");
        let mark = order.record(A, false);
        order.wait(B, &mark);
        order.touch(B, false, &[READ]).expect("ordered by the event");
        order.touch(A, false, &[READ]).expect("two reads need no order");
        order.touch(A, false, &[WRITE]).expect_err("the other stream may still read");
        assert_eq!(order.lock().report.unordered, 2);
    }

    #[test]
    fn the_host_needs_to_have_seen_the_end() {
        let order = Order::default();
        order.touch_on_host(WRITE).expect("the first");
        order.touch(A, false, &[READ]).expect("enqueued after it");
        order.touch_on_host(READ).expect("two reads");
        order.touch_on_host(WRITE).expect_err("the copy may still read");
        let mark = order.record(A, false);
        order.touch_on_host(WRITE).expect_err("a mark is not a wait");
        order.passed(&mark);
        order.touch_on_host(WRITE).expect("seen");
        order.touch(B, false, &[WRITE]).expect("what the host saw orders its streams, too");
        order.finished(B);
        order.touch_on_host(READ).expect("waited for");
    }

    #[test]
    fn recorded_work_counts_when_it_runs() {
        let order = Order::default();
        order.begin_recording(A);
        order.touch(A, true, &[WRITE]).expect("not run yet");
        let fork = order.record(A, true);
        order.wait(B, &fork);
        order.touch(B, true, &[READ]).expect("recorded with the other");
        let touched = order.end_recording(A);
        assert_eq!(*touched, [WRITE, READ]);
        order.touch(B, false, &[WRITE]).expect("the stream no longer records");
        order.touch(A, false, &touched).expect_err("the run is not ordered after it");
        let mark = order.record(B, false);
        order.wait(A, &mark);
        order.touch(A, false, &touched).expect("ordered");
        // What others record is not seen, and does not outlast it.
        order.touch(A, true, &[WRITE]).expect("unseen");
        assert_eq!(order.lock().report.unseen, 1);
    }

    #[test]
    fn memory_and_handles_come_again() {
        let order = Order::default();
        order.touch(A, false, &[WRITE]).expect("the first");
        order.destroy(A);
        order.touch(A, false, &[WRITE]).expect_err("another stream of the same handle");
        order.free(WRITE.address, WRITE.bytes as usize);
        order.touch(B, false, &[WRITE]).expect("another buffer");
    }
}

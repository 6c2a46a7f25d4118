//! A stream with the pinned memory that its work touches, so that callers enqueue copies and kernels without `unsafe`.
//!
//! Three things make an enqueued address valid for as long as the GPU may use it:
//! - Device memory is freed by a call that waits for the work that uses it ([`DeviceBuffer`]).
//! - Pinned memory is made by the queue, which keeps every piece until it has waited for its own work, when it is dropped.
//! - A [`Recording`] is run only through the queue that made it, and whoever keeps it keeps the buffers it names.
//!
//! What the host may see while the GPU works is the caller's to order ([`Queue::finish`], [`Queue::mark`]); a mistake there
//! gives old or new bytes, never memory that is not there.
use super::lane::Lane;
use certkv_device::cuda::{
    CopyBatch, CudaError, DeviceBuffer, Event, EventPool, Gpu, GpuStream, GraphExec, PinnedBuffer, Pod, Priority,
};
use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A range of device memory, or of pinned memory as the device sees it.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    address: u64,
    bytes: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// `bytes` bytes of a buffer from `offset` on.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn of(buffer: &'a DeviceBuffer, offset: usize, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self { address: buffer.address_of(offset, bytes)?, bytes, memory: PhantomData })
    }

    pub(super) fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes, memory: PhantomData }
    }

    /// First byte, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address, if `needs` bytes are there.
    pub(super) fn holding(&self, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        if needs > self.bytes {
            return Err(CudaError::OutOfRange { argument, start: 0, bytes: needs, len: self.bytes });
        }
        Ok(self.address)
    }
}

/// Everything pinned that work of one queue may touch.
type Kept = Mutex<Vec<Arc<PinnedBuffer>>>;

/// Pinned memory of a queue, mapped into the device's address space. Clones share it.
#[derive(Clone)]
pub struct Area {
    buffer: Arc<PinnedBuffer>,
    owner: Arc<Kept>,
    /// Host accesses of several threads; the GPU is ordered by whoever enqueues.
    host: Arc<RwLock<()>>,
}

impl Area {
    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "an area is never empty")]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Copies numbers in. Work that reads the range and was not waited for may see either content.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn write<T: Pod>(&self, offset: usize, from: &[T]) -> Result<(), CudaError> {
        let _alone = self.host.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the lock keeps every other thread out, as the host reaches the buffer through areas alone.
        unsafe { self.buffer.copy_in_shared(offset, from) }
    }

    /// Copies numbers out. Work that writes the range and was not waited for may or may not be seen.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn read<T: Pod>(&self, offset: usize, into: &mut [T]) -> Result<(), CudaError> {
        let _shared = self.host.read().unwrap_or_else(PoisonError::into_inner);
        self.buffer.copy_out(offset, into)
    }

    /// Word `at` of 8 bytes, which a kernel may be writing at this moment.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn load(&self, at: usize, order: Ordering) -> Result<u64, CudaError> {
        self.buffer.load(at, order)
    }

    /// A range as kernels see it.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn span(&self, offset: usize, bytes: usize) -> Result<Span<'_>, CudaError> {
        Ok(Span { address: self.buffer.device_address_of(offset, bytes)?, bytes, memory: PhantomData })
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.buffer.fmt(f)
    }
}

/// A stream, its events and its pinned memory. Dropping it waits for its work.
pub struct Queue {
    stream: GpuStream,
    events: EventPool,
    gpu: Gpu,
    kept: Arc<Kept>,
}

impl Queue {
    /// A queue with nothing in it.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Self::over(gpu, Arc::default())
    }

    fn over(gpu: &Gpu, kept: Arc<Kept>) -> Result<Self, CudaError> {
        let (stream, events) = (GpuStream::new(gpu, Priority::Normal)?, EventPool::new(gpu, 4)?);
        Ok(Self { stream, events, gpu: gpu.clone(), kept })
    }

    /// A lane over the same pinned memory, which stays until both are dropped. Turns order what runs there behind this queue's work, and
    /// [`Queue::join`] this queue's behind theirs.
    ///
    /// # Errors
    /// The driver's.
    pub fn lane(&self) -> Result<Lane, CudaError> {
        Ok(Lane::over(Self::over(&self.gpu, Arc::clone(&self.kept))?))
    }

    /// Has what is enqueued from now on wait for all turns of the lane so far. The host does not wait, and a recording holds it.
    ///
    /// # Errors
    /// The driver's, also what it said when the last turn was dropped: nothing waits, and another call may.
    pub fn join(&self, lane: &Lane) -> Result<(), CudaError> {
        lane.joined_by(self)
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The stream, for other work in the same order.
    pub fn stream(&self) -> &GpuStream {
        &self.stream
    }

    /// Zeroed pinned memory, kept as long as the queue. About 30 ms a GiB.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`]; the driver's.
    pub fn pin(&self, bytes: usize, threads: NonZeroUsize) -> Result<Area, CudaError> {
        let buffer = Arc::new(PinnedBuffer::new(&self.gpu, bytes, threads)?);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&buffer));
        Ok(Area { buffer, owner: Arc::clone(&self.kept), host: Arc::default() })
    }

    fn own(&self, area: &Area) -> Result<(), CudaError> {
        if Arc::ptr_eq(&area.owner, &self.kept) { Ok(()) } else { Err(CudaError::Foreign { argument: "area" }) }
    }

    /// Enqueues a copy to the device.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::Foreign`] for another queue's area; the driver's.
    pub fn upload(
        &self,
        to: &DeviceBuffer,
        to_offset: usize,
        from: &Area,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.own(from)?;
        // SAFETY: the queue keeps its areas until its work is done; see the head of the module for what the host writes
        // meanwhile.
        unsafe { to.write_pinned(&self.stream, to_offset, &from.buffer, from_offset, bytes) }
    }

    /// Enqueues a copy from the device.
    ///
    /// # Errors
    /// As [`Queue::upload`].
    pub fn download(
        &self,
        from: &DeviceBuffer,
        from_offset: usize,
        to: &Area,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.own(to)?;
        // SAFETY: as in `upload`.
        unsafe { from.read_pinned(&self.stream, from_offset, &to.buffer, to_offset, bytes) }
    }

    /// An empty list of copies for [`Queue::download_all`] or [`Queue::upload_all`], with room for so many.
    pub fn batch(&self, room: usize) -> CopyBatch {
        CopyBatch::new(&self.gpu, room)
    }

    /// Enqueues copies from the device, in no order among themselves, with one call where the driver has it: less of the host's time than a call each, and of
    /// the link's. `list` is memory to be used again.
    ///
    /// # Errors
    /// As [`Queue::upload`]; those of `copies`. Some may be under way.
    pub fn download_all<'b, E: From<CudaError>>(
        &self,
        list: &mut CopyBatch,
        copies: impl Iterator<Item = Result<Download<'b>, E>>,
    ) -> Result<(), E> {
        list.clear();
        for copy in copies {
            let Download { from, from_offset, to, to_offset, bytes } = copy?;
            self.own(to)?;
            list.push_back(&to.buffer, to_offset, from, from_offset, bytes)?;
        }
        // SAFETY: as in `upload`; device memory is freed by a call that waits for the work that uses it. Nothing else is on the list.
        Ok(unsafe { list.submit(&self.stream) }?)
    }

    /// The same to the device.
    ///
    /// # Errors
    /// As [`Queue::download_all`].
    pub fn upload_all<'b, E: From<CudaError>>(
        &self,
        list: &mut CopyBatch,
        copies: impl Iterator<Item = Result<Upload<'b>, E>>,
    ) -> Result<(), E> {
        list.clear();
        for copy in copies {
            let Upload { to, to_offset, from, from_offset, bytes } = copy?;
            self.own(from)?;
            list.push(to, to_offset, &from.buffer, from_offset, bytes)?;
        }
        // SAFETY: as in `download_all`.
        Ok(unsafe { list.submit(&self.stream) }?)
    }

    /// Marks what was enqueued so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self) -> Result<Event, CudaError> {
        self.stream.record(&self.events)
    }

    /// Blocks until all work is done.
    ///
    /// # Errors
    /// The driver's, and those of the work.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    /// Records what `work` enqueues on this queue instead of running it. What it may not do: wait, allocate, or use
    /// another queue.
    ///
    /// # Errors
    /// The error of `work`, or the driver's.
    pub fn record<E: From<CudaError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Recording, E> {
        let capture = self.stream.begin_capture()?;
        work()?;
        let graph = capture.end()?;
        let nodes = graph.nodes()?;
        let run = graph.instantiate()?;
        run.upload(&self.stream)?;
        Ok(Recording { run, nodes, owner: Arc::clone(&self.kept) })
    }

    /// Enqueues a recording. Whoever holds the recording holds the device buffers that it names, too.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] for a recording of another queue; the driver's.
    pub fn replay(&self, recording: &Recording) -> Result<(), CudaError> {
        if !Arc::ptr_eq(&recording.owner, &self.kept) {
            return Err(CudaError::Foreign { argument: "recording" });
        }
        // SAFETY: pinned memory lives as long as the queue, modules as long as the functions that the recording's owner
        // keeps beside it with the buffers, see above.
        unsafe { recording.run.launch(&self.stream) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        /// Of a wait that the driver refuses although the GPU still works.
        const WAITS: usize = 4;
        // A context that is lost runs nothing any more. A driver that refuses every wait refuses to unregister, too: pages then stay mapped.
        let done = || self.stream.synchronize().map_or_else(|error| error.context_lost(), |()| true);
        let _done = (0..WAITS).any(|_| done());
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// A copy from the device.
#[derive(Debug, Clone, Copy)]
pub struct Download<'b> {
    /// Whose bytes.
    pub from: &'b DeviceBuffer,
    /// From which on.
    pub from_offset: usize,
    /// Pinned memory of the queue.
    pub to: &'b Area,
    /// Where they go.
    pub to_offset: usize,
    /// How many.
    pub bytes: usize,
}

/// A copy to the device.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'b> {
    /// Where its bytes go.
    pub to: &'b DeviceBuffer,
    /// From which on.
    pub to_offset: usize,
    /// Pinned memory of the queue.
    pub from: &'b Area,
    /// Where they are.
    pub from_offset: usize,
    /// How many.
    pub bytes: usize,
}

/// Work recorded by [`Queue::record`].
#[derive(Debug)]
pub struct Recording {
    run: GraphExec,
    nodes: usize,
    owner: Arc<Kept>,
}

impl Recording {
    /// Kernels, copies and fills in it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

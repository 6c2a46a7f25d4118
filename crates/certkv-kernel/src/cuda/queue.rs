//! A stream with the pinned memory that its work touches, so that callers enqueue copies and kernels without `unsafe`.
//!
//! Three things make an enqueued address valid for as long as the GPU may use it:
//! - Device memory is freed by a call that waits for the work that uses it ([`DeviceBuffer`]).
//! - Pinned memory is made by the queue, which keeps every piece until it has waited for its own work, when it is dropped.
//! - A [`Recording`] is run only through the queue that made it, and whoever keeps it keeps the buffers it names.
//!
//! What the host may see while the GPU works is the caller's to order ([`Queue::finish`], [`Queue::mark`]); a mistake there
//! gives old or new bytes, never memory that is not there.
use super::args::Element;
use certkv_device::cuda::{
    CudaError, DeviceBuffer, Event, EventPool, Gpu, GpuStream, GraphExec, PinnedBuffer, Pod, Priority,
};
use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

impl Element {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

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

/// Rows of a caller: each in one piece, and maybe something else between them, as in a buffer of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Rows.
    pub count: usize,
    /// Elements of a row.
    pub width: usize,
    /// Elements from a row to the next, at least `width`: a multiple of 8, below 2^32. Of one row it does not count.
    pub stride: usize,
}

impl Rows {
    /// Whether the rows follow each other.
    fn dense(&self) -> bool {
        self.count <= 1 || self.stride == self.width
    }

    /// Elements from the first to behind the last, if kernels can step over what is between.
    fn extent(&self, argument: &'static str) -> Result<usize, CudaError> {
        let elements = self.count.saturating_mul(self.width);
        if self.dense() {
            return Ok(elements);
        }
        let wrong = |why| Err(CudaError::BadArgument { argument, why });
        if self.stride < self.width {
            return wrong("rows that overlap");
        }
        if !self.stride.is_multiple_of(8) {
            return wrong("a stride that is no multiple of 8 elements");
        }
        if u32::try_from(self.stride).is_err() {
            return wrong("a stride of 2^32 elements or more");
        }
        Ok((self.count - 1).saturating_mul(self.stride).saturating_add(self.width))
    }
}

/// Elements of a caller in device memory, one after the other or in [`Rows`].
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    address: u64,
    element: Element,
    elements: usize,
    /// `None`: one after the other.
    rows: Option<Rows>,
    memory: PhantomData<&'a ()>,
}

impl<'a> Tensor<'a> {
    /// `elements` elements of a buffer from byte `offset` on, a multiple of 16.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::Misaligned`].
    pub fn of(buffer: &'a DeviceBuffer, offset: usize, element: Element, elements: usize) -> Result<Self, CudaError> {
        let bytes = elements.saturating_mul(element.bytes());
        let address = buffer.address_of(offset, bytes)?;
        if !address.is_multiple_of(16) {
            return Err(CudaError::Misaligned { argument: "tensor", address, needs: 16 });
        }
        Ok(Self { address, element, elements, rows: None, memory: PhantomData })
    }

    /// As [`Tensor::of`], in rows.
    ///
    /// # Errors
    /// As there; [`CudaError::BadArgument`] for a stride that kernels do not take.
    pub fn rows_of(buffer: &'a DeviceBuffer, offset: usize, element: Element, rows: Rows) -> Result<Self, CudaError> {
        let all = Self::of(buffer, offset, element, rows.extent("tensor")?)?;
        Ok(all.in_rows(rows))
    }

    /// The rows of memory that holds their extent.
    fn in_rows(self, rows: Rows) -> Self {
        Self { elements: rows.count * rows.width, rows: (!rows.dense()).then_some(rows), ..self }
    }

    /// Memory of another library at a device address.
    ///
    /// # Errors
    /// [`CudaError::Misaligned`] if it is no multiple of 16, [`CudaError::WrongMemorySpace`]; the driver's.
    ///
    /// # Safety
    /// As many elements are there, for as long as work that uses the tensor is enqueued, recorded or running.
    pub unsafe fn at(
        gpu: &Gpu,
        argument: &'static str,
        address: u64,
        element: Element,
        elements: usize,
    ) -> Result<Self, CudaError> {
        gpu.check_device_pointer(argument, address, 16)?;
        Ok(Self { address, element, elements, rows: None, memory: PhantomData })
    }

    /// As [`Tensor::at`], in rows.
    ///
    /// # Errors
    /// As there; [`CudaError::BadArgument`] for a stride that kernels do not take.
    ///
    /// # Safety
    /// As there, of all elements from the first row to the end of the last.
    pub unsafe fn rows_at(
        gpu: &Gpu,
        argument: &'static str,
        address: u64,
        element: Element,
        rows: Rows,
    ) -> Result<Self, CudaError> {
        let extent = rows.extent(argument)?;
        // SAFETY: by the caller's promise.
        Ok(unsafe { Self::at(gpu, argument, address, element, extent)? }.in_rows(rows))
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Type of the elements.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Number of elements, without what lies between rows.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The rows, if they do not follow each other.
    pub fn rows(&self) -> Option<Rows> {
        self.rows
    }

    /// The address, if `needs` elements are there, one after the other.
    pub(super) fn holding(&self, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        if self.rows.is_some() {
            return Err(CudaError::BadArgument {
                argument,
                why: "rows at a distance, which the kernel does not step over",
            });
        }
        self.long_enough(argument, needs)
    }

    /// The address, elements to the next row, and from the first row to behind the last, if `count` rows of `width` elements are there.
    pub(super) fn holding_rows(
        &self,
        argument: &'static str,
        count: usize,
        width: usize,
    ) -> Result<(u64, usize, usize), CudaError> {
        let given = self.rows.unwrap_or(Rows { count, width, stride: width });
        if given.width != width {
            return Err(CudaError::BadArgument { argument, why: "rows of another width" });
        }
        let extent = Rows { count, ..given }.extent(argument)?;
        Ok((self.long_enough(argument, count.saturating_mul(width))?, given.stride, extent))
    }

    fn long_enough(&self, argument: &'static str, needs: usize) -> Result<u64, CudaError> {
        if needs > self.elements {
            let each = self.element.bytes();
            return Err(CudaError::OutOfRange {
                argument,
                start: 0,
                bytes: needs.saturating_mul(each),
                len: self.elements.saturating_mul(each),
            });
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
        Ok(Self {
            stream: GpuStream::new(gpu, Priority::Normal)?,
            events: EventPool::new(gpu, 4)?,
            gpu: gpu.clone(),
            kept: Arc::default(),
        })
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

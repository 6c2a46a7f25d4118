//! Device memory.
use super::api::{Driver, OUT_OF_MEMORY, call};
use super::context::Context;
use super::error::CudaError;
use super::gpu::Gpu;
use super::order::Touch;
use super::pinned::PinnedBuffer;
use super::pod::{Pod, check_range};
use super::stream::GpuStream;
use certkv_core::fail_point;
use core::fmt;
use core::sync::atomic::Ordering;
use cudarc::driver::sys::CUdeviceptr;
use std::sync::Arc;

/// A piece of device memory, aligned to 256 bytes. Its content is undefined until something writes it.
///
/// Offsets and lengths are in bytes. Calls that return before the GPU is done say so; they are ordered by their stream.
pub struct DeviceBuffer {
    context: Arc<Context>,
    address: CUdeviceptr,
    len: usize,
}

impl DeviceBuffer {
    /// Allocates. Blocks the device at times: not for a hot path, and not while this thread records a graph.
    ///
    /// # Errors
    /// [`CudaError::OutOfDeviceMemory`]; [`CudaError::BadArgument`] for zero bytes; the driver's.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        if bytes == 0 {
            return Err(CudaError::BadArgument { argument: "bytes", why: "a buffer of no bytes" });
        }
        fail_point!("cuda.alloc")?;
        let context = Arc::clone(&gpu.context);
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: points to an address.
        match unsafe { call!(context.api, cuMemAlloc_v2(&raw mut address, bytes)) } {
            Err(CudaError::Call { code: OUT_OF_MEMORY, .. }) => return Err(CudaError::OutOfDeviceMemory { bytes }),
            other => other?,
        }
        drop(entered);
        context.counters.device_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self { context, address, len: bytes })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether the memory is of this context.
    pub(super) fn on(&self, context: &Context) -> bool {
        self.context.raw == context.raw
    }

    /// Address of `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn address_of(&self, offset: usize, bytes: usize) -> Result<u64, CudaError> {
        check_range("device range", offset, bytes, self.len)?;
        Ok(self.address + offset as u64)
    }

    /// Copies numbers here and waits for the stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub fn write<T: Pod>(&self, stream: &GpuStream, offset: usize, from: &[T]) -> Result<(), CudaError> {
        // SAFETY: `from` is borrowed until the stream was waited for below, or until the context is lost. A driver that refuses to
        // wait again and again on a context that works is none: only a stream that records does so, and that spoils the recording.
        unsafe { self.write_async(stream, offset, from) }?;
        stream.settle()
    }

    /// Waits for the stream and copies numbers from here.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub fn read<T: Pod>(&self, stream: &GpuStream, offset: usize, into: &mut [T]) -> Result<(), CudaError> {
        // SAFETY: `into` is borrowed until the stream was waited for below, or until the context is lost. A driver that refuses to
        // wait again and again on a context that works is none: only a stream that records does so, and that spoils the recording.
        unsafe { self.read_async(stream, offset, into) }?;
        stream.settle()
    }

    /// Enqueues a copy of numbers to here. Truly asynchronous from pinned memory only.
    ///
    /// # Safety
    /// `from` stays alive and unchanged until the stream has passed the copy; if the stream records, until the last run.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub unsafe fn write_async<T: Pod>(&self, stream: &GpuStream, offset: usize, from: &[T]) -> Result<(), CudaError> {
        let bytes = size_of_val(from);
        // SAFETY: the caller's contract; the range was checked.
        self.enqueue(stream, (offset, bytes, true), None, |api, to| unsafe {
            call!(api, cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), bytes, stream.raw))
        })
    }

    /// Enqueues a copy of numbers from here. Truly asynchronous into pinned memory only.
    ///
    /// # Safety
    /// `into` stays alive and untouched until the stream has passed the copy; if the stream records, until the last run.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub unsafe fn read_async<T: Pod>(
        &self,
        stream: &GpuStream,
        offset: usize,
        into: &mut [T],
    ) -> Result<(), CudaError> {
        let (bytes, into) = (size_of_val(into), into.as_mut_ptr());
        // SAFETY: the caller's contract; the range was checked, and every bit pattern is a value.
        self.enqueue(stream, (offset, bytes, false), None, |api, from| unsafe {
            call!(api, cuMemcpyDtoHAsync_v2(into.cast(), from, bytes, stream.raw))
        })
    }

    /// Enqueues a copy from pinned memory to here.
    ///
    /// # Safety
    /// The range of `from` is not written, and `from` not dropped, until the stream has passed the copy (every run, if it
    /// records).
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub unsafe fn write_pinned(
        &self,
        stream: &GpuStream,
        offset: usize,
        from: &PinnedBuffer,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let host = from.pointer(from_offset, bytes)?;
        let read = Touch::read(from.device_address_of(from_offset, bytes)?, bytes);
        // SAFETY: the caller's contract; both ranges were checked.
        self.enqueue(stream, (offset, bytes, true), Some(read), |api, to| unsafe {
            call!(api, cuMemcpyHtoDAsync_v2(to, host.cast(), bytes, stream.raw))
        })
    }

    /// Enqueues a copy from here to pinned memory.
    ///
    /// # Safety
    /// The range of `into` is neither read nor written, and `into` not dropped, until the stream has passed the copy
    /// (every run, if it records).
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub unsafe fn read_pinned(
        &self,
        stream: &GpuStream,
        offset: usize,
        into: &PinnedBuffer,
        into_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let host = into.pointer(into_offset, bytes)?;
        let written = Touch::write(into.device_address_of(into_offset, bytes)?, bytes);
        // SAFETY: the caller's contract; both ranges were checked.
        self.enqueue(stream, (offset, bytes, false), Some(written), |api, from| unsafe {
            call!(api, cuMemcpyDtoHAsync_v2(host.cast(), from, bytes, stream.raw))
        })
    }

    /// Enqueues a copy from other device memory to here. The ranges must not overlap.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::Foreign`], [`CudaError::ForeignStream`]; [`CudaError::BadArgument`] if the
    /// ranges overlap; the driver's.
    pub fn copy_from(
        &self,
        stream: &GpuStream,
        offset: usize,
        from: &Self,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), CudaError> {
        if from.context.raw != self.context.raw {
            return Err(CudaError::Foreign { argument: "source buffer" });
        }
        let source = from.address_of(from_offset, bytes)?;
        let target = self.address_of(offset, bytes)?;
        if source < target + bytes as u64 && target < source + bytes as u64 {
            return Err(CudaError::BadArgument { argument: "source range", why: "overlaps the destination" });
        }
        // SAFETY: both ranges lie in live buffers of this GPU; freeing a buffer waits for work that uses it.
        self.enqueue(stream, (offset, bytes, true), Some(Touch::read(source, bytes)), |api, to| unsafe {
            call!(api, cuMemcpyDtoDAsync_v2(to, source, bytes, stream.raw))
        })
    }

    /// Enqueues setting every byte of a range.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`], [`CudaError::ForeignStream`]; the driver's.
    pub fn fill(&self, stream: &GpuStream, offset: usize, bytes: usize, value: u8) -> Result<(), CudaError> {
        // SAFETY: the range lies in a live buffer; freeing a buffer waits for work that uses it.
        self.enqueue(stream, (offset, bytes, true), None, |api, to| unsafe {
            call!(api, cuMemsetD8Async(to, value, bytes, stream.raw))
        })
    }

    /// Checks the range (its offset, bytes, and whether it is written) and the stream, tells the happens-before checker of it and of the `other`
    /// side, and runs `work` with the address in the context. No bytes, no work.
    fn enqueue(
        &self,
        stream: &GpuStream,
        (offset, bytes, writes): (usize, usize, bool),
        other: Option<Touch>,
        work: impl FnOnce(&Driver, CUdeviceptr) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let address = self.address_of(offset, bytes)?;
        if stream.context.raw != self.context.raw {
            return Err(CudaError::ForeignStream);
        }
        fail_point!("cuda.copy")?;
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        let own = Touch { address, bytes: bytes as u64, writes };
        stream.touch(&[own, other.unwrap_or(own)])?;
        work(self.context.api, address)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // Before the address can be another's.
        if let Some(order) = self.context.order.get() {
            order.free(self.address, self.len);
        }
        // SAFETY: allocated by us and freed once; the driver waits for work that may use the memory.
        if self.context.release(|api| unsafe { (api.cuMemFree_v2)(self.address) }) {
            self.context.counters.device_bytes.fetch_sub(self.len, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes at {:#x})", self.len, self.address)
    }
}

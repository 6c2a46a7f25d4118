//! Pinned host memory that the GPU reaches.
use super::api::{OUT_OF_MEMORY, call};
use super::context::Context;
use super::error::CudaError;
use super::gpu::Gpu;
use super::mapping::{Mapping, mapped_bytes};
use super::order::Touch;
use super::pod::{Pod, check_range};
use certkv_core::{fail_point, planted};
use core::fmt;
use core::num::NonZeroUsize;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use cudarc::driver::sys::CUdeviceptr;
use std::sync::Arc;

/// Cached host memory in huge pages, registered for every context and mapped into the GPU's address space. Zeroed.
///
/// Copies from it run at the rate of the link, and kernels read it through [`PinnedBuffer::device_address`].
pub struct PinnedBuffer {
    context: Arc<Context>,
    /// Taken on drop.
    mapping: Option<Mapping>,
    start: *mut u8,
    device: CUdeviceptr,
    len: usize,
}

// SAFETY: plain memory without ties to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: the safe methods on `&self` only read; writers through `&self` are `unsafe` and exclude readers by contract.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Bytes of host memory that a buffer of `bytes` takes: whole pages, huge ones from 2 MiB on. For the ledger; `None` if no address
    /// space holds them.
    pub const fn mapped_bytes(bytes: usize) -> Option<usize> {
        mapped_bytes(bytes)
    }

    /// Maps, touches with `threads` threads and registers. About 30 ms a GiB with 16 threads and huge pages.
    ///
    /// A failure leaves nothing behind. Memory that the machine does not have may be refused only by the system's
    /// out-of-memory killer: reserve it from a budget first.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`]; the driver's.
    pub fn new(gpu: &Gpu, bytes: usize, threads: NonZeroUsize) -> Result<Self, CudaError> {
        /// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        fail_point!("cuda.pin")?;
        let context = Arc::clone(&gpu.context);
        let mapping = Mapping::new(bytes, threads)?;
        let start = mapping.start();
        let entered = context.enter()?;
        // SAFETY: a whole mapping of our own.
        let code = unsafe { (context.api.cuMemHostRegister_v2)(start.cast(), mapping.bytes(), PORTABLE_AND_MAPPED) };
        if code == OUT_OF_MEMORY {
            return Err(CudaError::OutOfPinnedMemory { bytes, call: "cuMemHostRegister_v2", code });
        }
        context.api.check("cuMemHostRegister_v2", code)?;
        drop(entered);
        context.counters.pinned_bytes.fetch_add(mapping.bytes(), Ordering::Relaxed);
        // From here on a failure unregisters and unmaps.
        let mut buffer = Self { context, mapping: Some(mapping), start, device: 0, len: bytes };
        fail_point!("cuda.pin.map")?;
        let entered = buffer.context.enter()?;
        let mut device = 0;
        // SAFETY: registered just now with a device mapping; points to an address.
        unsafe { call!(buffer.context.api, cuMemHostGetDevicePointer_v2(&raw mut device, start.cast(), 0)) }?;
        drop(entered);
        buffer.device = device;
        Ok(buffer)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// First byte on the host, a multiple of 4096.
    ///
    /// Reading and writing through it is a data race with every copy and kernel on the range that has not passed, and
    /// with other threads: order them by an event that was seen to have passed.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// First byte in the GPU's address space.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Address on the GPU of `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn device_address_of(&self, offset: usize, bytes: usize) -> Result<u64, CudaError> {
        check_range("pinned range", offset, bytes, self.len)?;
        Ok(self.device + offset as u64)
    }

    /// Pointer on the host to `bytes` bytes from `offset` on; as [`PinnedBuffer::as_ptr`].
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn pointer(&self, offset: usize, bytes: usize) -> Result<*mut u8, CudaError> {
        check_range("pinned range", offset, bytes, self.len)?;
        Ok(self.start.wrapping_add(offset))
    }

    /// Word `at` of 8 bytes, which the GPU may be writing at this moment, with 8-byte stores.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`].
    pub fn load(&self, at: usize, order: Ordering) -> Result<u64, CudaError> {
        let word = self.pointer(at.saturating_mul(8), 8)?.cast::<u64>();
        // SAFETY: in range, aligned as the buffer's start is to a page, alive as long as `self`; the host's own writes exclude readers by
        // contract, and what the GPU writes meanwhile is outside of the language's memory: such a load sees one of its stores.
        Ok(unsafe { AtomicU64::from_ptr(word) }.load(order))
    }

    /// Tells the happens-before checker of an access by the host.
    fn touch(&self, offset: usize, bytes: usize, writes: bool) -> Result<(), CudaError> {
        let Some(order) = self.context.order.get() else { return Ok(()) };
        order.touch_on_host(Touch { address: self.device + offset as u64, bytes: bytes as u64, writes })
    }

    /// Copies numbers in. Enqueued copies and kernels that touch the range were promised, where they were enqueued, to
    /// have passed.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`]; [`CudaError::Unordered`] if that is checked.
    pub fn copy_in<T: Pod>(&mut self, offset: usize, from: &[T]) -> Result<(), CudaError> {
        // SAFETY: `&mut self` excludes other threads.
        unsafe { self.copy_in_shared(offset, from) }
    }

    /// Copies numbers in while others use other ranges.
    ///
    /// # Safety
    /// No other thread reads or writes the range during the call.
    ///
    /// # Errors
    /// As [`PinnedBuffer::copy_in`].
    pub unsafe fn copy_in_shared<T: Pod>(&self, offset: usize, from: &[T]) -> Result<(), CudaError> {
        let bytes = size_of_val(from);
        let to = self.pointer(offset, bytes)?;
        self.touch(offset, bytes, true)?;
        // SAFETY: the range was checked; `from` is a borrow, so it is not inside of a range that may be written.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast(), to, bytes) };
        Ok(())
    }

    /// Copies numbers out; as [`PinnedBuffer::copy_in`].
    ///
    /// # Errors
    /// As [`PinnedBuffer::copy_in`].
    pub fn copy_out<T: Pod>(&self, offset: usize, into: &mut [T]) -> Result<(), CudaError> {
        let bytes = size_of_val(into);
        let from = self.pointer(offset, bytes)?;
        self.touch(offset, bytes, false)?;
        // SAFETY: the range was checked; writers exclude readers by contract; every bit pattern is a value.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr().cast(), bytes) };
        Ok(())
    }

    /// The bytes of a range in place.
    ///
    /// # Safety
    /// Neither a thread nor the GPU writes the range while the slice lives.
    ///
    /// # Errors
    /// As [`PinnedBuffer::copy_in`].
    pub unsafe fn bytes(&self, offset: usize, bytes: usize) -> Result<&[u8], CudaError> {
        let start = self.pointer(offset, bytes)?;
        self.touch(offset, bytes, false)?;
        // SAFETY: the range was checked and is initialised; nobody writes it by contract.
        Ok(unsafe { core::slice::from_raw_parts(start, bytes) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        if planted!(B20) {
            return mapping.leak();
        }
        // Before the address can be another's.
        if let Some(order) = self.context.order.get() {
            order.free(self.device, self.len);
        }
        // SAFETY: registered by us and unregistered once.
        if self.context.release(|api| unsafe { (api.cuMemHostUnregister)(self.start.cast()) }) {
            self.context.counters.pinned_bytes.fetch_sub(mapping.bytes(), Ordering::Relaxed);
        } else {
            // The GPU may still reach the pages: they must not become someone else's.
            mapping.leak();
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes at {:?}, {:#x} on the GPU)", self.len, self.start, self.device)
    }
}

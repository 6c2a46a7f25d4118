//! Streams: ours, or the caller's for the length of a call.
use super::api::call;
use super::context::Context;
use super::error::CudaError;
use super::event::{Event, EventPool};
use super::gpu::Gpu;
use certkv_core::fail_point;
use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr;
use cudarc::driver::sys::{CUstream, CUstream_flags};
use std::sync::Arc;

/// Which of two streams the GPU serves first when both have work. Running blocks are not interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// After the others.
    Low,
    /// As any stream made without a priority.
    #[default]
    Normal,
    /// Before the others.
    High,
}

/// A queue of work on a GPU.
pub struct GpuStream {
    pub(super) context: Arc<Context>,
    pub(super) raw: CUstream,
    owned: bool,
}

// SAFETY: a stream is a handle that any thread may use; the driver locks it.
unsafe impl Send for GpuStream {}
// SAFETY: as above.
unsafe impl Sync for GpuStream {}

impl GpuStream {
    /// A stream of our own. It does not synchronise with the legacy default stream. Dropping it lets its work finish.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Gpu, priority: Priority) -> Result<Self, CudaError> {
        fail_point!("cuda.stream")?;
        let context = Arc::clone(&gpu.context);
        let entered = context.enter()?;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: both point to integers.
        unsafe { call!(context.api, cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)) }?;
        let priority = match priority {
            Priority::Low => least,
            Priority::Normal => 0,
            Priority::High => greatest,
        };
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = ptr::null_mut();
        // SAFETY: points to a handle; the priority is in range.
        unsafe { call!(context.api, cuStreamCreateWithPriority(&raw mut raw, flags, priority)) }?;
        drop(entered);
        Ok(Self { context, raw, owned: true })
    }

    /// The caller's stream. Null is the legacy default stream of the GPU's primary context.
    ///
    /// # Safety
    /// `raw` is null, one of CUDA's special stream handles, or a live `CUstream` (`cudaStream_t`) that outlives the value.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`] if the stream is not of the GPU's primary context; the driver's.
    pub unsafe fn borrow(gpu: &Gpu, raw: *mut c_void) -> Result<Self, CudaError> {
        let context = Arc::clone(&gpu.context);
        let raw: CUstream = raw.cast();
        let entered = context.enter()?;
        let mut owner = ptr::null_mut();
        // SAFETY: a live stream by contract, and room for one handle.
        unsafe { call!(context.api, cuStreamGetCtx(raw, &raw mut owner)) }?;
        drop(entered);
        if owner != context.raw {
            return Err(CudaError::ForeignStream);
        }
        Ok(Self { context, raw, owned: false })
    }

    /// The handle, for another library.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    /// Marks what was enqueued so far. Costs about 1 us.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] if the pool is of another GPU; the driver's.
    pub fn record(&self, pool: &EventPool) -> Result<Event, CudaError> {
        pool.record(self)
    }

    /// Lets what is enqueued from now on wait until the event's mark has passed. Costs about 1 us; nobody blocks.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] if the event is of another GPU; the driver's.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        fail_point!("cuda.wait")?;
        let _entered = self.enter_with(event.context(), "event")?;
        // SAFETY: both handles are live and of this context.
        unsafe { call!(self.context.api, cuStreamWaitEvent(self.raw, event.raw(), 0)) }?;
        if let Some(order) = self.context.order.get() {
            order.wait(self.raw.addr(), event.mark());
        }
        Ok(())
    }

    /// Blocks until all work is done.
    ///
    /// # Errors
    /// The driver's, and those of the work: a kernel that failed reports here.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        fail_point!("cuda.synchronize")?;
        self.finish()
    }

    /// [`GpuStream::synchronize`] without a fault point, for callers whose borrows end with the wait.
    pub(super) fn finish(&self) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: a live stream.
        unsafe { call!(self.context.api, cuStreamSynchronize(self.raw)) }?;
        self.finished();
        Ok(())
    }

    /// [`GpuStream::finish`] for a copy whose memory is the caller's only as long as the call: a wait that was refused on a GPU that still
    /// works leaves the copy under way, so it is asked for again. Its error stays one.
    pub(super) fn settle(&self) -> Result<(), CudaError> {
        const WAITS: usize = 4;
        let first = self.finish();
        if let Err(error) = &first {
            let _settled = (1..WAITS).any(|_| error.context_lost() || self.finish().is_ok());
        }
        first
    }

    /// Whether all work is done.
    ///
    /// # Errors
    /// As [`GpuStream::synchronize`].
    pub fn idle(&self) -> Result<bool, CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: a live stream.
        let code = unsafe { (self.context.api.cuStreamQuery)(self.raw) };
        let idle = self.context.api.ready("cuStreamQuery", code)?;
        if idle {
            self.finished();
        }
        Ok(idle)
    }

    /// The host saw the end of all its work.
    fn finished(&self) {
        if let Some(order) = self.context.order.get() {
            order.finished(self.raw.addr());
        }
    }

    /// Whether the stream records its work into a graph instead of running it, by us or by its owner.
    ///
    /// # Errors
    /// The driver's.
    pub fn capturing(&self) -> Result<bool, CudaError> {
        let _entered = self.context.enter()?;
        let mut status: c_int = 0;
        // SAFETY: a live stream; the status is an `enum` of C, written as an integer.
        unsafe { call!(self.context.api, cuStreamIsCapturing(self.raw, (&raw mut status).cast())) }?;
        Ok(status != 0)
    }

    /// Makes the context current for a call that also names something of `other`.
    pub(super) fn enter_with(
        &self,
        other: &Arc<Context>,
        argument: &'static str,
    ) -> Result<super::context::Entered<'_>, CudaError> {
        // Two opens of one GPU share its primary context, so handles of both work together.
        if other.raw != self.context.raw {
            return Err(CudaError::Foreign { argument });
        }
        self.context.enter()
    }
}

impl Drop for GpuStream {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: created by us and destroyed once; the driver releases it when its work is done.
            self.context.release(|api| unsafe { (api.cuStreamDestroy_v2)(self.raw) });
            if let Some(order) = self.context.order.get() {
                order.destroy(self.raw.addr());
            }
        }
    }
}

impl fmt::Debug for GpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuStream").field("raw", &self.raw).field("owned", &self.owned).finish()
    }
}

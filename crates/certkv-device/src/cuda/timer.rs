//! Time on the GPU between two points of a stream, for benchmarks.
use super::api::call;
use super::context::Context;
use super::error::CudaError;
use super::gpu::Gpu;
use super::stream::GpuStream;
use core::fmt;
use core::ptr;
use cudarc::driver::sys::{CUevent, CUevent_flags};
use std::sync::Arc;

/// Two events with timing.
pub struct TimedEvent {
    context: Arc<Context>,
    start: CUevent,
    stop: CUevent,
}

// SAFETY: events are handles that any thread may use; the driver locks them.
unsafe impl Send for TimedEvent {}

impl TimedEvent {
    /// A stopwatch, used again and again.
    ///
    /// # Errors
    /// [`CudaError::MissingSymbol`] with a driver before CUDA 12.8; the driver's.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        let context = Arc::clone(&gpu.context);
        if context.api.cuEventElapsedTime_v2.is_none() {
            return Err(CudaError::MissingSymbol { library: "CUDA driver", symbol: "cuEventElapsedTime_v2" });
        }
        // Null handles are skipped on drop, so a failure half-way leaves nothing behind.
        let mut timer = Self { context, start: ptr::null_mut(), stop: ptr::null_mut() };
        let (api, flags) = (timer.context.api, CUevent_flags::CU_EVENT_DEFAULT as u32);
        for event in [&mut timer.start, &mut timer.stop] {
            let _entered = timer.context.enter()?;
            // SAFETY: points to a handle.
            unsafe { call!(api, cuEventCreate(event, flags)) }?;
        }
        Ok(timer)
    }

    /// Starts at the end of what is enqueued on the stream.
    ///
    /// # Errors
    /// [`CudaError::Foreign`] for a stream of another GPU; the driver's.
    pub fn start(&self, stream: &GpuStream) -> Result<(), CudaError> {
        self.record(self.start, stream)
    }

    /// Stops at the end of what is enqueued on the stream.
    ///
    /// # Errors
    /// As [`TimedEvent::start`].
    pub fn stop(&self, stream: &GpuStream) -> Result<(), CudaError> {
        self.record(self.stop, stream)
    }

    /// Waits for the stop and returns the milliseconds since the start, to about half a microsecond.
    ///
    /// # Errors
    /// The driver's, also when it was not started and stopped; those of the work before the stop.
    pub fn elapsed_ms(&self) -> Result<f32, CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: a live event.
        unsafe { call!(self.context.api, cuEventSynchronize(self.stop)) }?;
        let Some(elapsed) = self.context.api.cuEventElapsedTime_v2 else { return Ok(f32::NAN) };
        let mut ms = 0.0;
        // SAFETY: two live events with timing, and room for a number.
        self.context.api.check("cuEventElapsedTime_v2", unsafe { elapsed(&raw mut ms, self.start, self.stop) })?;
        Ok(ms)
    }

    fn record(&self, event: CUevent, stream: &GpuStream) -> Result<(), CudaError> {
        let _entered = stream.enter_with(&self.context, "timer")?;
        // SAFETY: both handles are live and of this context.
        unsafe { call!(self.context.api, cuEventRecord(event, stream.raw)) }
    }
}

impl Drop for TimedEvent {
    fn drop(&mut self) {
        for event in [self.start, self.stop] {
            if !event.is_null() {
                // SAFETY: made by us and destroyed once.
                self.context.release(|api| unsafe { (api.cuEventDestroy_v2)(event) });
            }
        }
    }
}

impl fmt::Debug for TimedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedEvent").finish_non_exhaustive()
    }
}

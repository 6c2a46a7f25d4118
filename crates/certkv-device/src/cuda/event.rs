//! Marks in streams, taken from a pool: making an event costs more than recording one.
use super::api::call;
use super::context::Context;
use super::error::CudaError;
use super::gpu::Gpu;
use super::order::Mark;
use super::stream::GpuStream;
use certkv_core::fail_point;
use core::fmt;
use core::ptr;
use cudarc::driver::sys::{CUevent, CUevent_flags};
use std::sync::{Arc, Mutex, PoisonError};

/// Events without timing, made when needed and used again when dropped. Clones share the pool.
#[derive(Clone)]
pub struct EventPool {
    core: Arc<PoolCore>,
}

struct PoolCore {
    context: Arc<Context>,
    free: Mutex<Vec<Raw>>,
}

/// An event's handle.
#[derive(Clone, Copy)]
struct Raw(CUevent);

// SAFETY: an event is a handle that any thread may use; the driver locks it.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl EventPool {
    /// A pool with `ready` events made in advance.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Gpu, ready: usize) -> Result<Self, CudaError> {
        let core = PoolCore { context: Arc::clone(&gpu.context), free: Mutex::default() };
        for _ in 0..ready {
            let event = core.make()?;
            core.put(event);
        }
        Ok(Self { core: Arc::new(core) })
    }

    /// Events that wait for use.
    pub fn ready(&self) -> usize {
        self.core.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(super) fn record(&self, stream: &GpuStream) -> Result<Event, CudaError> {
        fail_point!("cuda.record")?;
        let _entered = stream.enter_with(&self.core.context, "event pool")?;
        let free = self.core.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = match free {
            Some(raw) => raw,
            None => self.core.make()?,
        };
        // From here on a failure puts the event back.
        let mut event = Event { pool: Arc::clone(&self.core), raw, mark: Mark::Unknown };
        // SAFETY: both handles are live and of this context.
        unsafe { call!(self.core.context.api, cuEventRecord(raw.0, stream.raw)) }?;
        if let Some(order) = self.core.context.order.get() {
            event.mark = order.record(stream.raw.addr(), stream.capturing()?);
        }
        Ok(event)
    }
}

impl PoolCore {
    fn make(&self) -> Result<Raw, CudaError> {
        fail_point!("cuda.event")?;
        let _entered = self.context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: points to a handle.
        unsafe { call!(self.context.api, cuEventCreate(&raw mut raw, flags)) }?;
        Ok(Raw(raw))
    }

    fn put(&self, raw: Raw) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(raw);
    }
}

impl Drop for PoolCore {
    fn drop(&mut self) {
        let free = core::mem::take(self.free.get_mut().unwrap_or_else(PoisonError::into_inner));
        for raw in free {
            // SAFETY: made by us and destroyed once; every event in use keeps the pool alive.
            self.context.release(|api| unsafe { (api.cuEventDestroy_v2)(raw.0) });
        }
    }
}

/// A mark in a stream: the end of what was enqueued before [`GpuStream::record`].
///
/// Dropping it is always allowed: streams that were told to wait for it keep waiting for the mark, not for the event.
#[must_use]
pub struct Event {
    pool: Arc<PoolCore>,
    raw: Raw,
    /// For the happens-before checker.
    mark: Mark,
}

impl Event {
    /// Whether the mark has passed.
    ///
    /// # Errors
    /// The driver's; those of the work before the mark; a mark that was recorded into a graph cannot be asked.
    pub fn passed(&self) -> Result<bool, CudaError> {
        let api = self.pool.context.api;
        let _entered = self.pool.context.enter()?;
        // SAFETY: a live event.
        let passed = api.ready("cuEventQuery", unsafe { (api.cuEventQuery)(self.raw.0) })?;
        if passed {
            self.seen();
        }
        Ok(passed)
    }

    /// The host saw that the mark has passed.
    fn seen(&self) {
        if let Some(order) = self.pool.context.order.get() {
            order.passed(&self.mark);
        }
    }

    /// Blocks until the mark has passed.
    ///
    /// # Errors
    /// As [`Event::passed`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        fail_point!("cuda.synchronize")?;
        let _entered = self.pool.context.enter()?;
        // SAFETY: a live event.
        unsafe { call!(self.pool.context.api, cuEventSynchronize(self.raw.0)) }?;
        self.seen();
        Ok(())
    }

    pub(super) fn mark(&self) -> &Mark {
        &self.mark
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.pool.context
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw.0
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.pool.put(self.raw);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.raw.0).finish()
    }
}

impl fmt::Debug for EventPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventPool").field("ready", &self.ready()).finish()
    }
}

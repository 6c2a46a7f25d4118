//! The primary context of a GPU, and making it current for the length of a call.
use super::api::{Driver, call};
use super::error::CudaError;
use super::gpu::GpuInfo;
use super::order::Order;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::sync::OnceLock;

/// What this process holds on a GPU through us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of device memory in live buffers.
    pub device_bytes: usize,
    /// Bytes of pinned host memory in live buffers.
    pub pinned_bytes: usize,
    /// Things that the driver refused to release when they were dropped, since the GPU was opened.
    pub unreleased: usize,
}

/// Counters behind [`Usage`]. Statistics only: no other memory is ordered by them.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) device_bytes: AtomicUsize,
    pub(super) pinned_bytes: AtomicUsize,
    unreleased: AtomicUsize,
}

/// A retained primary context. Released when the last handle of the GPU is dropped.
pub(super) struct Context {
    pub(super) api: &'static Driver,
    pub(super) device: CUdevice,
    pub(super) raw: CUcontext,
    pub(super) info: GpuInfo,
    pub(super) counters: Counters,
    /// The happens-before checker, if it is on.
    pub(super) order: OnceLock<Order>,
}

// SAFETY: a context is a handle that any thread may use; the driver locks it.
unsafe impl Send for Context {}
// SAFETY: as above, and the counters are atomic.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn retain(api: &'static Driver, device: CUdevice, info: GpuInfo) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: a device that the driver named, and room for one handle.
        unsafe { call!(api, cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        let order = OnceLock::new();
        if cfg!(debug_assertions) {
            order.get_or_init(Order::default);
        }
        Ok(Self { api, device, raw, info, counters: Counters::default(), order })
    }

    /// Makes the context current in this thread until the guard is dropped. About as dear as two uncontended locks.
    pub(super) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { call!(self.api, cuCtxPushCurrent_v2(self.raw)) }?;
        Ok(Entered { context: self, not_send: PhantomData })
    }

    /// Runs a release call of a drop and counts its failure.
    pub(super) fn release(&self, release: impl FnOnce(&Driver) -> i32) -> bool {
        let released = self.enter().is_ok_and(|entered| release(entered.context.api) == 0);
        if !released {
            self.counters.unreleased.fetch_add(1, Ordering::Relaxed);
        }
        released
    }

    /// What is held.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            device_bytes: self.counters.device_bytes.load(Ordering::Relaxed),
            pinned_bytes: self.counters.pinned_bytes.load(Ordering::Relaxed),
            unreleased: self.counters.unreleased.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`. A failure means that the driver is shutting down with the process.
        unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// The context is current in this thread; on drop the one before it is again.
pub(super) struct Entered<'a> {
    context: &'a Context,
    /// The stack of contexts belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: this thread pushed our context, and guards are dropped in reverse order of their creation.
        let code = unsafe { (self.context.api.cuCtxPopCurrent_v2)(&raw mut popped) };
        // A pop that the driver refuses names no context. It is not tried again: it might be the caller's that goes then.
        let ours = code != 0 || popped == self.context.raw;
        debug_assert!(ours, "someone left a context on the stack inside one of our calls");
    }
}

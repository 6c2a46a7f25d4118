//! A step that keeps its cache alive.
use crate::cache::Held;
use crate::engine::{Engine, OnGpu};
use crate::guard::Failure;
use crate::status::certkv_status::CERTKV_SHAPE;
use certkv::gpu::{Element, GpuCache, GpuCapture, GpuStep, Rows, Tensor};
use certkv::{Certificate, Certified, Chunk, Policy, Step, Tolerance};
use core::ffi::c_void;
use core::mem::transmute;
use core::ptr::NonNull;
use std::sync::Arc;

/// Rows of a caller in device memory.
#[derive(Clone, Copy)]
pub(crate) struct DeviceRows {
    pub(crate) address: u64,
    pub(crate) element: Element,
    pub(crate) rows: Rows,
}

impl DeviceRows {
    /// # Safety
    /// They are there for as long as work that uses the tensor is enqueued, recorded or running.
    unsafe fn tensor<'a>(self, gpu: &OnGpu, argument: &'static str) -> Result<Tensor<'a>, Failure> {
        // SAFETY: by the caller's promise.
        let tensor = unsafe { Tensor::rows_at(gpu.gpu(), argument, self.address, self.element, self.rows) };
        tensor.map_err(|error| certkv::Error::Gpu(error).into())
    }
}

/// A step together with the cache that it borrows.
pub(crate) struct OwnedStep {
    /// Borrows from `cache`, or from what it has away; declared first, so dropped first.
    step: Open,
    /// Never replaced. An `Arc`'s target stays where it is when the `Arc` moves.
    cache: Arc<Held>,
}

enum Open {
    Host(Step<'static>),
    Gpu(GpuOpen),
}

/// A step on a GPU, and the cache that it took away from its place.
struct GpuOpen {
    /// `None` once it is over.
    step: Option<GpuStep<'static>>,
    /// Dropped after it.
    _away: Away,
}

/// The cache of a step; brought back when this is dropped.
struct Away {
    cache: NonNull<GpuCache>,
    home: Arc<Held>,
}

// SAFETY: stands for a `Box<GpuCache>`, which may be sent if the cache may.
unsafe impl Send for Away where GpuCache: Send {}

impl Drop for Away {
    fn drop(&mut self) {
        // SAFETY: from `Box::leak` in `begin`, and nothing borrows from it any more: the step beside it is gone.
        let cache = unsafe { Box::from_raw(self.cache.as_ptr()) };
        if let Engine::Gpu(gpu) = &self.home.engine {
            gpu.bring(cache);
        }
    }
}

impl Drop for GpuOpen {
    fn drop(&mut self) {
        // Before the cache goes home.
        drop(self.step.take());
    }
}

impl GpuOpen {
    fn begin(home: &Arc<Held>, gpu: &OnGpu, chunks: &[Chunk], policy: Option<Policy>) -> Result<Self, Failure> {
        let cache = NonNull::from(Box::leak(gpu.take()?));
        let away = Away { cache, home: Arc::clone(home) };
        // SAFETY: a live cache at a fixed address that nothing else reaches; the step is dropped before `away`, and its stretched
        // lifetime is seen by nobody: see `OwnedStep::with`.
        let cache = unsafe { &mut *cache.as_ptr() };
        let step = match policy {
            Some(policy) => cache.begin_with(chunks, policy)?,
            None => cache.begin(chunks)?,
        };
        Ok(Self { step: Some(step), _away: away })
    }
}

/// A step's own policy, if it has one, with what only the cache's can say; else the cache's.
fn own(policy: Option<Policy>, of_cache: Policy) -> Policy {
    match (policy, of_cache) {
        (Some(Policy::Certified(own)), Policy::Certified(Certified { row_share, .. })) => {
            Policy::Certified(Certified { row_share, ..own })
        }
        (own, of_cache) => own.unwrap_or(of_cache),
    }
}

impl OwnedStep {
    /// Under `policy`, or the cache's own.
    pub(crate) fn begin(cache: Arc<Held>, chunks: &[Chunk], policy: Option<Policy>) -> Result<Self, Failure> {
        let step = match &cache.engine {
            Engine::Host(engine) => {
                let step = engine.begin_with(chunks, own(policy, engine.policy()))?;
                // SAFETY: only the lifetime changes. The step borrows `cache.engine`, which lives at a fixed address for as
                // long as the `Arc` beside it, and both fields are private: the step is dropped, or consumed by `finish`,
                // before the `Arc`. Nobody sees the stretched lifetime: `with` hands the step out for a lifetime of the
                // caller's naming.
                Open::Host(unsafe { transmute::<Step<'_>, Step<'static>>(step) })
            }
            Engine::Gpu(gpu) => Open::Gpu(GpuOpen::begin(&cache, gpu, chunks, policy)?),
        };
        Ok(Self { step, cache })
    }

    pub(crate) fn tokens(&self) -> usize {
        match &self.step {
            Open::Host(step) => step.tokens(),
            Open::Gpu(open) => open.step.as_ref().map_or(0, GpuStep::tokens),
        }
    }

    pub(crate) fn q_heads(&self) -> usize {
        self.cache.engine.geometry().q_heads
    }

    /// Of the attend calls that follow.
    pub(crate) fn set_tolerances(&mut self, tolerances: &[Tolerance]) -> Result<(), Failure> {
        match &mut self.step {
            Open::Host(step) => Ok(step.set_tolerances(tolerances)?),
            Open::Gpu(open) => {
                let step = open.step.as_mut().ok_or_else(crate::stepping::over)?;
                Ok(step.set_tolerances(tolerances)?)
            }
        }
    }

    /// Lends the step. The closures must work for every lifetime, so nothing borrowed through the step can leave them.
    fn with<T>(
        &mut self,
        host: impl for<'c> FnOnce(&mut Step<'c>) -> Result<T, certkv::Error>,
        gpu: impl for<'c> FnOnce(&mut GpuStep<'c>) -> Result<T, certkv::Error>,
    ) -> Result<T, Failure> {
        Ok(match &mut self.step {
            Open::Host(step) => host(step),
            Open::Gpu(open) => gpu(open.step.as_mut().ok_or_else(crate::stepping::over)?),
        }?)
    }

    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), Failure> {
        self.with(|s| s.append(layer, keys, values), |s| s.append(layer, keys, values))
    }

    pub(crate) fn append_bits(&mut self, layer: usize, keys: &[u16], values: &[u16]) -> Result<(), Failure> {
        self.with(|s| s.append_bits(layer, keys, values), |s| s.append_bits(layer, keys, values))
    }

    /// On a GPU this waits for the outputs.
    pub(crate) fn attend(
        &mut self,
        layer: usize,
        queries: &[f32],
        out: &mut [f32],
        certificates: &mut [Certificate],
    ) -> Result<(), Failure> {
        match &mut self.step {
            Open::Host(step) => Ok(step.attend(layer, queries, out, certificates)?),
            Open::Gpu(open) => {
                let step = open.step.as_mut().ok_or_else(crate::stepping::over)?;
                step.attend(layer, queries)?;
                Ok(step.outputs(layer, out, certificates)?)
            }
        }
    }

    pub(crate) fn plan(&mut self, layer: usize) -> Result<(), Failure> {
        self.with(|s| s.plan(layer), |s| s.plan(layer))
    }

    fn gpu(&mut self) -> Result<(&OnGpu, &mut GpuStep<'static>), Failure> {
        let gpu = self.cache.engine.on_gpu()?;
        match &mut self.step {
            Open::Gpu(open) => Ok((gpu, open.step.as_mut().ok_or_else(crate::stepping::over)?)),
            Open::Host(_) => Err(crate::stepping::over()),
        }
    }

    /// Keys and values in device memory.
    ///
    /// # Safety
    /// They are there until the work that this enqueues is done.
    pub(crate) unsafe fn append_device(
        &mut self,
        layer: usize,
        [keys, values]: [DeviceRows; 2],
    ) -> Result<(), Failure> {
        let (gpu, step) = self.gpu()?;
        // SAFETY: by the caller's promise.
        let [keys, values] = unsafe { [keys.tensor(gpu, "keys")?, values.tensor(gpu, "values")?] };
        Ok(step.append_device(layer, keys, values)?)
    }

    /// Queries and outputs in device memory.
    ///
    /// # Safety
    /// As [`OwnedStep::append_device`]; nobody else reads or writes the outputs until then.
    pub(crate) unsafe fn attend_device(
        &mut self,
        layer: usize,
        [queries, out]: [DeviceRows; 2],
    ) -> Result<(), Failure> {
        let (gpu, step) = self.gpu()?;
        // SAFETY: by the caller's promise.
        let [queries, out] = unsafe { [queries.tensor(gpu, "queries")?, out.tensor(gpu, "out")?] };
        Ok(step.attend_device(layer, queries, out)?)
    }

    /// Certificates of a layer that was attended on a GPU; waits for them.
    pub(crate) fn certificates(&mut self, layer: usize, certificates: &mut [Certificate]) -> Result<(), Failure> {
        let (_, step) = self.gpu()?;
        Ok(step.certificates(layer, certificates)?)
    }

    /// Orders the step's work and that of the caller's `stream`: see [`OnGpu::order`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn order(&mut self, stream: *mut c_void, own_waits: bool) -> Result<(), Failure> {
        let (gpu, step) = self.gpu()?;
        // SAFETY: by the caller's promise.
        unsafe { gpu.order(step.cache().stream(), stream, own_waits) }
    }

    /// Ends the cache's part of a recording, and joins its stream with the caller's.
    ///
    /// # Safety
    /// As [`OnGpu::order`].
    pub(crate) unsafe fn captured(&mut self, stream: *mut c_void) -> Result<GpuCapture, Failure> {
        let (gpu, step) = self.gpu()?;
        let capture = step.captured()?;
        // SAFETY: by the caller's promise.
        unsafe { gpu.order(step.cache().stream(), stream, false)? };
        Ok(capture)
    }

    /// Certificates to device memory of the caller.
    ///
    /// # Safety
    /// `bytes` bytes are at `address` until the work that this enqueues is done, and nobody else touches them until then.
    pub(crate) unsafe fn publish_to(&mut self, address: u64, bytes: u64) -> Result<(), Failure> {
        let (gpu, step) = self.gpu()?;
        let needs = step.published_bytes()?;
        if bytes < needs as u64 {
            return Err(Failure::new(CERTKV_SHAPE, format!("memory: {bytes} bytes given, {needs} needed")));
        }
        let refused = |error| Failure::from(certkv::Error::Gpu(error));
        // SAFETY: by the caller's promise.
        let out = unsafe { Tensor::at(gpu.gpu(), "memory", address, Element::F32, needs / 4) }.map_err(refused)?;
        Ok(step.publish_to(out)?)
    }

    /// The step's number in the ring of certificates.
    pub(crate) fn number(&mut self) -> Result<u64, Failure> {
        let (_, step) = self.gpu()?;
        Ok(step.number())
    }

    /// Says that the caller launched a graph with `capture`.
    pub(crate) fn replayed(&mut self, capture: &GpuCapture) -> Result<(), Failure> {
        let (_, step) = self.gpu()?;
        Ok(step.replayed(capture)?)
    }

    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Self { step, cache } = self;
        let finished = match step {
            Open::Host(step) => step.finish(),
            Open::Gpu(mut open) => open.step.take().map_or(Ok(()), GpuStep::finish),
        };
        drop(cache);
        Ok(finished?)
    }
}

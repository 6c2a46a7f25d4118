//! Machine code on a GPU.
use super::api::call;
use super::context::Context;
use super::cubin;
use super::error::CudaError;
use super::function::Function;
use super::gpu::Gpu;
use certkv_core::fail_point;
use core::fmt;
use core::ptr;
use cudarc::driver::sys::CUmodule;
use std::ffi::CString;
use std::sync::Arc;

/// Loaded machine code. Its functions keep it loaded.
#[derive(Clone)]
pub struct Module {
    pub(super) core: Arc<Loaded>,
}

pub(super) struct Loaded {
    pub(super) context: Arc<Context>,
    pub(super) raw: CUmodule,
}

// SAFETY: a module is a handle that any thread may use; the driver locks it.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    /// Loads a cubin, as [`nvrtc::compile`](super::nvrtc::compile) makes them. 0.1 to 1 ms.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for bytes that are no whole cubin; the driver's, such as for another GPU's code (209).
    pub fn load(gpu: &Gpu, cubin: &[u8]) -> Result<Self, CudaError> {
        cubin::check(cubin)?;
        fail_point!("cuda.module")?;
        let context = Arc::clone(&gpu.context);
        // The driver reads the tables of the file in place.
        let mut aligned = vec![0u64; cubin.len().div_ceil(8) + 1];
        for (word, bytes) in aligned.iter_mut().zip(cubin.chunks(8)) {
            let mut whole = [0u8; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a whole ELF file; the driver copies what it keeps.
        unsafe { call!(context.api, cuModuleLoadData(&raw mut raw, aligned.as_ptr().cast())) }?;
        drop(entered);
        Ok(Self { core: Arc::new(Loaded { context, raw }) })
    }

    /// Looks a kernel up.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for a name with a zero byte; the driver's: code 500 if there is no such kernel.
    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        let text = CString::new(name)
            .map_err(|_| CudaError::BadArgument { argument: "kernel name", why: "holds a zero byte" })?;
        let entered = self.core.context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a live module, a string that ends in zero, and room for one handle.
        unsafe { call!(self.core.context.api, cuModuleGetFunction(&raw mut raw, self.core.raw, text.as_ptr())) }?;
        drop(entered);
        Function::new(Arc::clone(&self.core), raw)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded by us and unloaded once, after the last function. The driver waits for running kernels.
        self.context.release(|api| unsafe { (api.cuModuleUnload)(self.raw) });
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("raw", &self.core.raw).finish()
    }
}

//! Kernels and their launches.
use super::api::{INVALID_VALUE, call};
use super::error::CudaError;
use super::module::Loaded;
use super::stream::GpuStream;
use certkv_core::fail_point;
use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr;
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUlaunchAttribute, CUlaunchAttributeID as Id,
    CUlaunchAttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDim, CUlaunchConfig,
};
use std::sync::Arc;

/// Sizes along x, y and z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3(pub [u32; 3]);

impl From<u32> for Dim3 {
    fn from(x: u32) -> Self {
        Self([x, 1, 1])
    }
}

impl From<[u32; 3]> for Dim3 {
    fn from(sizes: [u32; 3]) -> Self {
        Self(sizes)
    }
}

/// What the compiler made of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: spilled registers and indexed arrays.
    pub local_bytes: usize,
    /// Bytes of static shared memory of a block.
    pub static_shared: usize,
    /// Most threads of a block.
    pub max_threads: u32,
    /// Bytes of the kernel's single parameter, zero without one; `None` if the driver cannot tell (before CUDA 12.4).
    pub argument_bytes: Option<usize>,
}

/// How a kernel is launched. The default is a plain launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchOptions {
    /// The kernel may start before the one ahead of it in the stream has finished, and waits for it itself
    /// (programmatic dependent launch). Ignored before compute capability 9.0, where that wait does nothing.
    pub programmatic: bool,
    /// Blocks along x that form a cluster; the grid must be a multiple. Needs compute capability 9.0.
    pub cluster: Option<u32>,
}

/// A kernel of a loaded module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Loaded>,
    raw: CUfunction,
    info: FunctionInfo,
}

// SAFETY: a function is a handle that any thread may use; the driver locks it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(super) fn new(module: Arc<Loaded>, raw: CUfunction) -> Result<Self, CudaError> {
        let api = module.context.api;
        let entered = module.context.enter()?;
        let attribute = |which: Attribute| -> Result<u32, CudaError> {
            let mut value: c_int = 0;
            // SAFETY: a live function, and room for an integer.
            unsafe { call!(api, cuFuncGetAttribute(&raw mut value, which, raw)) }?;
            Ok(value.unsigned_abs())
        };
        let parameter = |index| -> Result<Option<usize>, CudaError> {
            let Some(info) = api.cuFuncGetParamInfo else { return Ok(None) };
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: a live function, and room for two sizes.
            match unsafe { info(raw, index, &raw mut offset, &raw mut bytes) } {
                INVALID_VALUE => Ok(Some(0)),
                code => api.check("cuFuncGetParamInfo", code).map(|()| Some(bytes)),
            }
        };
        let info = FunctionInfo {
            registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)? as usize,
            static_shared: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)? as usize,
            max_threads: attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            argument_bytes: parameter(0)?,
        };
        if parameter(1)?.is_some_and(|bytes| bytes > 0) {
            return Err(CudaError::BadArgument { argument: "kernel", why: "takes more than one parameter" });
        }
        drop(entered);
        Ok(Self { module, raw, info })
    }

    /// What the compiler made of it.
    pub fn info(&self) -> FunctionInfo {
        self.info
    }

    /// Allows launches with up to `bytes` of dynamic shared memory; 48 KiB without this call.
    ///
    /// # Errors
    /// The driver's, for more than [`GpuInfo::shared_per_block`](super::GpuInfo::shared_per_block) less the static part.
    pub fn set_max_dynamic_shared(&self, bytes: usize) -> Result<(), CudaError> {
        let bytes = c_int::try_from(bytes)
            .map_err(|_| CudaError::BadArgument { argument: "dynamic shared memory", why: "exceeds any GPU" })?;
        let _entered = self.module.context.enter()?;
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function.
        unsafe { call!(self.module.context.api, cuFuncSetAttribute(self.raw, which, bytes)) }
    }

    /// Leaves as much of a multiprocessor's memory to shared memory as there can be, so that kernels behind one another split it alike.
    ///
    /// # Errors
    /// The driver's.
    pub fn prefer_shared_memory(&self) -> Result<(), CudaError> {
        const ALL: c_int = 100;
        let _entered = self.module.context.enter()?;
        let which = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: a live function.
        unsafe { call!(self.module.context.api, cuFuncSetAttribute(self.raw, which, ALL)) }
    }

    /// Blocks of `threads` threads and `shared` bytes of dynamic shared memory that fit a multiprocessor at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: usize) -> Result<u32, CudaError> {
        let threads = c_int::try_from(threads)
            .map_err(|_| CudaError::BadArgument { argument: "threads", why: "exceed any GPU" })?;
        let _entered = self.module.context.enter()?;
        let mut blocks: c_int = 0;
        // SAFETY: a live function, and room for an integer.
        unsafe {
            call!(
                self.module.context.api,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.raw, threads, shared)
            )
        }?;
        Ok(blocks.unsigned_abs())
    }

    /// Enqueues the kernel with `arguments` as its single parameter (none for `&()`). About 3 us. The arguments are
    /// copied before the call returns.
    ///
    /// # Errors
    /// [`CudaError::ArgumentSize`], [`CudaError::ForeignStream`]; the driver's, such as code 1 for sizes that the kernel
    /// or the GPU cannot take. What the running kernel does wrong is reported by later calls.
    ///
    /// # Safety
    /// `T` is a `repr(C)` twin of the kernel's parameter without uninitialised padding that matters to it. Every address
    /// that the kernel reads or writes with these arguments and sizes is valid on the GPU, of the right extent, and
    /// stays so until the stream has passed the kernel (every run, if the stream records); host memory it touches is not
    /// touched by the host in the meantime.
    pub unsafe fn launch<T: Copy>(
        &self,
        stream: &GpuStream,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        shared: u32,
        arguments: &T,
        options: LaunchOptions,
    ) -> Result<(), CudaError> {
        fail_point!("cuda.launch")?;
        if let Some(needs) = self.info.argument_bytes.filter(|needs| *needs != size_of::<T>()) {
            return Err(CudaError::ArgumentSize { given: size_of::<T>(), needs });
        }
        if stream.context.raw != self.module.context.raw {
            return Err(CudaError::ForeignStream);
        }
        let (grid, block) = (grid.into().0, block.into().0);
        let mut attributes = [CUlaunchAttribute {
            id: Id::CU_LAUNCH_ATTRIBUTE_IGNORE,
            pad: [0; 4],
            value: CUlaunchAttributeValue { pad: [0; 64] },
        }; 2];
        if options.programmatic && self.module.context.info.arch_number() >= 90 {
            attributes[0].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[0].value.programmaticStreamSerializationAllowed = 1;
        }
        if let Some(x) = options.cluster {
            attributes[1].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[1].value.clusterDim = ClusterDim { x, y: 1, z: 1 };
        }
        let config = CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared,
            hStream: stream.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: if options == LaunchOptions::default() { 0 } else { 2 },
        };
        let mut parameters: [*mut c_void; 1] = [ptr::from_ref(arguments).cast_mut().cast()];
        let list = if size_of::<T>() == 0 { ptr::null_mut() } else { parameters.as_mut_ptr() };
        let _entered = self.module.context.enter()?;
        // SAFETY: live handles of this context; the driver reads the parameter and copies it; the rest is the caller's
        // contract.
        unsafe { call!(self.module.context.api, cuLaunchKernelEx(&raw const config, self.raw, list, ptr::null_mut())) }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("info", &self.info).finish()
    }
}

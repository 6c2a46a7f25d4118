//! Opening a GPU, and what it is.
use super::api::{Driver, NO_DEVICE, STUB_LIBRARY, call};
use super::context::{Context, Usage};
use super::error::CudaError;
use certkv_core::fail_point;
use core::ffi::{CStr, c_int};
use core::fmt;
use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};
use std::sync::Arc;

/// Least CUDA version of the driver, as `1000 * major + 10 * minor`: launches with attributes need it.
pub const MINIMUM_DRIVER: u32 = 12_000;
/// Least compute capability, as `10 * major + minor`: the kernels use asynchronous copies of Ampere.
pub const MINIMUM_ARCH: u32 = 80;

/// What a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Number in the driver's order.
    pub ordinal: u32,
    /// Name.
    pub name: String,
    /// Compute capability: major, minor.
    pub arch: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub l2_bytes: usize,
    /// Most shared memory that one block can opt in to, in bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor: usize,
    /// Most threads that one multiprocessor holds.
    pub threads_per_multiprocessor: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// CUDA version of the driver, as `1000 * major + 10 * minor`.
    pub driver_version: u32,
}

impl GpuInfo {
    /// Compute capability as `10 * major + minor`.
    pub fn arch_number(&self) -> u32 {
        10 * self.arch.0 + self.arch.1
    }
}

/// Device memory at one moment, of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes free.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
}

/// An open GPU. Clones share it; the primary context is released with the last handle made from it.
#[derive(Clone)]
pub struct Gpu {
    pub(super) context: Arc<Context>,
}

impl Gpu {
    /// Opens a GPU by its number and retains its primary context, the one that CUDA's runtime and every framework use.
    ///
    /// The first open of a process takes about 0.1 s; later ones, or a context that a framework made, a few us.
    ///
    /// # Errors
    /// No driver, a driver without a function that we need, one that is too old, no such GPU, a GPU that is too old.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        fail_point!("cuda.open")?;
        let api = Driver::get()?;
        let count = match count(api) {
            Err(CudaError::Call { code: NO_DEVICE, .. }) => 0,
            Err(CudaError::Call { code: STUB_LIBRARY, .. }) => return Err(CudaError::NoDriver),
            other => other?,
        };
        let mut version: c_int = 0;
        // SAFETY: points to an integer.
        unsafe { call!(api, cuDriverGetVersion(&raw mut version)) }?;
        let found = version.unsigned_abs();
        if found < MINIMUM_DRIVER {
            return Err(CudaError::DriverTooOld { found, needs: MINIMUM_DRIVER });
        }
        let index = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(index) = index else {
            return Err(CudaError::NoDevice { ordinal, count });
        };
        let mut device: CUdevice = 0;
        // SAFETY: points to a device number; the index is below the count.
        unsafe { call!(api, cuDeviceGet(&raw mut device, index)) }?;
        let info = inspect(api, device, ordinal, found)?;
        if info.arch_number() < MINIMUM_ARCH {
            return Err(CudaError::UnsupportedArch { found: info.arch_number(), needs: MINIMUM_ARCH });
        }
        Ok(Self { context: Arc::new(Context::retain(api, device, info)?) })
    }

    /// GPUs that the driver sees.
    ///
    /// # Errors
    /// No driver, or it fails to start. A driver that sees no GPU may return either zero or an error.
    pub fn count() -> Result<u32, CudaError> {
        count(Driver::get()?)
    }

    /// What the GPU is.
    pub fn info(&self) -> &GpuInfo {
        &self.context.info
    }

    /// Free and total device memory now. A call to the driver of some us: not for a hot path.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        let _entered = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both point to integers.
        unsafe { call!(self.context.api, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok(MemoryInfo { free, total })
    }

    /// What live buffers of this handle and its clones hold.
    pub fn usage(&self) -> Usage {
        self.context.usage()
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("info", &self.context.info).field("usage", &self.usage()).finish()
    }
}

fn count(api: &Driver) -> Result<u32, CudaError> {
    let mut count: c_int = 0;
    // SAFETY: no flags are defined but zero; initialising twice is allowed.
    unsafe { call!(api, cuInit(0)) }?;
    // SAFETY: points to an integer.
    unsafe { call!(api, cuDeviceGetCount(&raw mut count)) }?;
    Ok(count.unsigned_abs())
}

fn inspect(api: &Driver, device: CUdevice, ordinal: u32, driver_version: u32) -> Result<GpuInfo, CudaError> {
    let attribute = |which: Attribute| -> Result<u32, CudaError> {
        let mut value: c_int = 0;
        // SAFETY: points to an integer; the driver named the device.
        unsafe { call!(api, cuDeviceGetAttribute(&raw mut value, which, device)) }?;
        Ok(value.unsigned_abs())
    };
    let mut name = [0u8; 256];
    // SAFETY: room for 256 bytes; the driver ends the name with zero within them.
    unsafe { call!(api, cuDeviceGetName(name.as_mut_ptr().cast(), 256, device)) }?;
    let mut memory_bytes = 0;
    // SAFETY: points to an integer.
    unsafe { call!(api, cuDeviceTotalMem_v2(&raw mut memory_bytes, device)) }?;
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok(GpuInfo {
        ordinal,
        name: CStr::from_bytes_until_nul(&name).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default(),
        arch: (major, attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        shared_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
            as usize,
        threads_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        memory_bytes,
        driver_version,
    })
}

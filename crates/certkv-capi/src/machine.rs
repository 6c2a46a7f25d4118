//! What this machine has, and its kernels before a cache needs them.
use crate::argument;
use crate::config::{self, CERTKV_DEVICE_CUDA, certkv_config};
use crate::guard::{Failure, guard};
use crate::status::{self, certkv_status};
use certkv::CpuArch;
use certkv::gpu::{CudaError, Gpu, GpuMachine};
use core::ffi::c_char;
use core::mem::offset_of;

/// Which of its machine codes the library runs on this CPU.
pub type certkv_cpu = i32;
/// Portable code.
pub const CERTKV_CPU_GENERIC: certkv_cpu = 0;
/// AVX2, FMA and F16C.
pub const CERTKV_CPU_AVX2: certkv_cpu = 1;
/// AVX-512 with VBMI and VNNI.
pub const CERTKV_CPU_AVX512: certkv_cpu = 2;

/// What the library can use of this machine.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_capabilities {
    /// sizeof(certkv_capabilities), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Machine code for this CPU.
    pub cpu: certkv_cpu,
    /// GPUs that the driver sees; 0 without a driver. certkv_gpu_describe says which of them the library runs on.
    pub gpus: u32,
    /// CERTKV_OK, or why no GPU can be used whatever its kind: DEVICE (no driver, one that is too old or does not start).
    pub cuda: certkv_status,
}

/// Characters of a GPU's name, with the 0 behind them.
pub const CERTKV_GPU_NAME: usize = 64;

/// A GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_gpu_info {
    /// sizeof(certkv_gpu_info), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 1 if there are kernels for it, 0 if there are none: a cache there is refused.
    pub supported: u32,
    /// Compute capability: `capability_major`.`capability_minor`.
    pub capability_major: u32,
    /// See above.
    pub capability_minor: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// CUDA version of the driver: 1000 major + 10 minor.
    pub driver: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes of it that are free now, all processes counted.
    pub memory_free: u64,
    /// Its name, cut where it is longer, with a 0 behind it.
    pub name: [c_char; CERTKV_GPU_NAME],
}

/// What certkv_prepare found or made.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_prepared {
    /// sizeof(certkv_prepared), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Kernels that a cache runs; 0 for one on the host, whose code is in the library.
    pub kernels: u64,
    /// Of these, those that were neither made ahead of time nor kept in `config->kernels`, and were compiled.
    pub compiled: u64,
}

/// Fills `capabilities`, whose `struct_size` must be set. That there is no GPU is no error.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed: the driver may be started.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `capabilities` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_capabilities_describe(capabilities: *mut certkv_capabilities) -> certkv_status {
    guard(|| {
        let least = offset_of!(certkv_capabilities, gpus);
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(capabilities, "capabilities", least)? };
        let cpu = match CpuArch::detect() {
            CpuArch::Generic => CERTKV_CPU_GENERIC,
            CpuArch::Avx2 => CERTKV_CPU_AVX2,
            CpuArch::Avx512 => CERTKV_CPU_AVX512,
        };
        let (gpus, cuda) = match Gpu::count() {
            Ok(count) => (count, certkv_status::CERTKV_OK),
            Err(error) => (0, status::of(&certkv::Error::Gpu(error))),
        };
        let filled = certkv_capabilities { struct_size: size as u32, cpu, gpus, cuda };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(capabilities, &filled, size) };
        Ok(())
    })
}

/// Fills `info`, whose `struct_size` must be set, with what the GPU of a `config->device` is: CERTKV_DEVICE_CUDA, CERTKV_DEVICE_CUDA + 1 and so on. Opens it,
/// which takes 0.1 s the first time; the calling thread's current CUDA context stays what it is.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (`device` is the host), DEVICE (no driver, no such GPU, one older than any that there are
/// kernels for). `info` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_gpu_describe(device: u32, info: *mut certkv_gpu_info) -> certkv_status {
    guard(|| {
        let least = offset_of!(certkv_gpu_info, multiprocessors);
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::struct_size(info, "info", least)? };
        let Some(ordinal) = device.checked_sub(CERTKV_DEVICE_CUDA) else {
            return Err(argument::invalid("device = 0: the host is no GPU".to_owned()));
        };
        let refused = |error: CudaError| Failure::from(certkv::Error::Gpu(error));
        let gpu = Gpu::open(ordinal).map_err(refused)?;
        let (seen, free) = (gpu.info(), gpu.memory_info().map_err(refused)?.free);
        let mut name = [0; CERTKV_GPU_NAME];
        for (to, from) in name[..CERTKV_GPU_NAME - 1].iter_mut().zip(seen.name.bytes()) {
            *to = from as c_char;
        }
        let filled = certkv_gpu_info {
            struct_size: size as u32,
            supported: u32::from(GpuMachine::of(&gpu).is_ok()),
            capability_major: seen.arch.0,
            capability_minor: seen.arch.1,
            multiprocessors: seen.multiprocessors,
            driver: seen.driver_version,
            memory: seen.memory_bytes as u64,
            memory_free: free as u64,
            name,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(info, &filled, size) };
        Ok(())
    })
}

/// Finds or compiles every kernel that a cache of this configuration runs on its GPU, and loads each once, before anybody waits for it: with `config->kernels`,
/// in which compiled code is kept, certkv_cache_create then compiles nothing, in this process or another. Takes no memory that stays; milliseconds
/// where nothing is compiled, else seconds to minutes. Of a configuration for the host it checks what certkv_cache_create checks before it takes memory. `config` is
/// borrowed during the call. Fills `prepared`, whose `struct_size` must be set; it may be NULL.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: as certkv_cache_create, but BUDGET and OUT_OF_MEMORY. Nothing changed; what was compiled stays kept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_prepare(config: *const certkv_config, prepared: *mut certkv_prepared) -> certkv_status {
    guard(|| {
        let least = offset_of!(certkv_prepared, kernels);
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let size = unsafe { argument::optional_struct(prepared, "prepared", least)? };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let found = unsafe { config::read(config)? }.prepare()?;
        let Some(size) = size else { return Ok(()) };
        let (kernels, compiled) = (found.kernels as u64, found.compiled as u64);
        let filled = certkv_prepared { struct_size: size as u32, reserved: 0, kernels, compiled };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(prepared, &filled, size) };
        Ok(())
    })
}

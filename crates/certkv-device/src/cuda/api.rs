//! The functions of the CUDA driver that we use. The names carry the version of the interface (`_v2`), as the library
//! exports them; cudarc declares them from CUDA 13.0.
use super::error::CudaError;
use super::load::function_table;
use core::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use cudarc::driver::sys;
use sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUgraphNode, CUlaunchConfig, CUmemcpyAttributes, CUmodule, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus,
};

function_table! {
    /// The functions of the driver.
    Driver in sys, named "CUDA driver", missing is CudaError::NoDriver, checked as CUresult {
        fn cuInit(c_uint);
        fn cuDriverGetVersion(*mut c_int);
        fn cuDeviceGetCount(*mut c_int);
        fn cuDeviceGet(*mut CUdevice, c_int);
        fn cuDeviceGetName(*mut c_char, c_int, CUdevice);
        fn cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        fn cuDeviceTotalMem_v2(*mut usize, CUdevice);
        fn cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(CUdevice);
        fn cuCtxPushCurrent_v2(CUcontext);
        fn cuCtxPopCurrent_v2(*mut CUcontext);
        fn cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        fn cuMemGetInfo_v2(*mut usize, *mut usize);
        fn cuMemAlloc_v2(*mut CUdeviceptr, usize);
        fn cuMemFree_v2(CUdeviceptr);
        fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        fn cuMemHostUnregister(*mut c_void);
        fn cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        fn cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        fn cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        fn cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fn cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
        fn cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
        fn cuPointerGetAttributes(c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr);
        fn cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
        fn cuStreamDestroy_v2(CUstream);
        fn cuStreamGetCtx(CUstream, *mut CUcontext);
        fn cuStreamSynchronize(CUstream);
        fn cuStreamQuery(CUstream);
        fn cuStreamWaitEvent(CUstream, CUevent, c_uint);
        fn cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
        fn cuStreamEndCapture(CUstream, *mut CUgraph);
        fn cuStreamIsCapturing(CUstream, *mut CUstreamCaptureStatus);
        fn cuEventCreate(*mut CUevent, c_uint);
        fn cuEventDestroy_v2(CUevent);
        fn cuEventRecord(CUevent, CUstream);
        fn cuEventQuery(CUevent);
        fn cuEventSynchronize(CUevent);
        fn cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        fn cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
        fn cuGraphDestroy(CUgraph);
        fn cuGraphLaunch(CUgraphExec, CUstream);
        fn cuGraphUpload(CUgraphExec, CUstream);
        fn cuGraphExecDestroy(CUgraphExec);
        fn cuModuleLoadData(*mut CUmodule, *const c_void);
        fn cuModuleUnload(CUmodule);
        fn cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        fn cuFuncGetAttribute(*mut c_int, CUfunction_attribute, CUfunction);
        fn cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        fn cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
        optional {
            // CUDA 12.4.
            fn cuFuncGetParamInfo(CUfunction, usize, *mut usize, *mut usize);
            // CUDA 12.8.
            fn cuEventElapsedTime_v2(*mut f32, CUevent, CUevent);
            // CUDA 13.0.
            fn cuMemcpyBatchAsync_v2(
                *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut CUmemcpyAttributes, *mut usize, usize, CUstream,
            );
        }
    }
}

/// `CUDA_ERROR_INVALID_VALUE`.
pub(super) const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_STUB_LIBRARY`: the library is the linker's stand-in for a driver.
pub(super) const STUB_LIBRARY: i32 = 34;
/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`: no failure, the work is not done.
pub(super) const NOT_READY: i32 = 600;

impl Driver {
    /// The error of a result code, if it is one.
    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(CudaError::Call { call, code, text: describe(code) }) }
    }

    /// Whether the work that a query asks for is done.
    pub(super) fn ready(&self, call: &'static str, code: i32) -> Result<bool, CudaError> {
        if code == NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }
}

/// `call!(driver, cuName(arguments))`: calls and checks. To be used inside `unsafe`.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let driver: &$crate::cuda::api::Driver = $driver;
        driver.check(stringify!($name), (driver.$name)($($arg),*))
    }};
}
pub(super) use call;

/// Name and description of a result code in the driver's words.
fn describe(code: i32) -> String {
    type Describe = unsafe extern "C" fn(i32, *mut *const c_char) -> i32;
    let ask = |symbol: &[u8]| {
        let mut text: *const c_char = core::ptr::null();
        // SAFETY: a table was loaded before any code could be returned, so the library is there. The functions take the
        // code (an `enum` of C) and set the pointer to a constant string, or to null for a code they do not know.
        unsafe {
            let function = sys::culib().get::<Describe>(symbol).ok()?;
            function(code, &raw mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    match (ask(b"cuGetErrorName\0"), ask(b"cuGetErrorString\0")) {
        (Some(name), Some(text)) => format!("{name} ({text})"),
        (Some(name), None) => name,
        _ => "no description".to_owned(),
    }
}

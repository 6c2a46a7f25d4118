//! Kernels from source to machine code (cubin) by NVRTC. Needs the library, but neither a GPU nor a driver.
use super::error::CudaError;
use super::load::function_table;
use certkv_core::fail_point;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use cudarc::nvrtc::sys;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::nvrtcProgram;

function_table! {
    /// The functions of NVRTC.
    Nvrtc in sys, named "NVRTC", missing is CudaError::NvrtcMissing, checked as nvrtcResult {
        fn nvrtcVersion(*mut c_int, *mut c_int);
        fn nvrtcGetNumSupportedArchs(*mut c_int);
        fn nvrtcGetSupportedArchs(*mut c_int);
        fn nvrtcCreateProgram(
            *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        fn nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        fn nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        fn nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        fn nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        fn nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        fn nvrtcDestroyProgram(*mut nvrtcProgram);
        optional {}
    }
}

/// Option that makes the log tell registers, shared memory and spills of every kernel.
pub const REPORT_RESOURCES: &str = "--ptxas-options=-v";

/// A kernel source with what it includes.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// The source.
    pub source: &'a str,
    /// Its name in messages.
    pub name: &'a str,
    /// `(name as included, text)` of every header.
    pub headers: &'a [(&'a str, &'a str)],
    /// Options of the compiler. `--gpu-architecture=sm_..` decides the GPU and must name a real one, not `compute_..`.
    pub options: &'a [String],
}

/// The outcome of a compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code for [`Module::load`](super::Module::load).
    pub cubin: Vec<u8>,
    /// Warnings, and what [`REPORT_RESOURCES`] asks for.
    pub log: String,
}

/// Loads NVRTC from a file that the system's search path does not reach, as in a Python wheel, with the library of
/// built-ins beside it. Call it before anything else of this module; afterwards it has no effect.
///
/// # Errors
/// [`CudaError::NvrtcMissing`] if the file cannot be loaded.
pub fn preload(library: &Path) -> Result<(), CudaError> {
    // NVRTC searches its built-ins by name when it compiles: they are found if they are loaded already.
    let folder = library.parent().and_then(|folder| folder.read_dir().ok());
    for file in folder.into_iter().flatten().flatten() {
        if file.file_name().as_bytes().starts_with(b"libnvrtc-builtins.so") {
            // A failure shows when a kernel is compiled, in the log.
            let _ = open_library(&file.path());
        }
    }
    open_library(library)
}

fn open_library(path: &Path) -> Result<(), CudaError> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| CudaError::NvrtcMissing)?;
    // SAFETY: a string that ends in zero. Loading runs the library's initialisers: the caller names the vendor's library.
    // The handle is kept for ever, so that a later search by name finds the loaded library.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() { Err(CudaError::NvrtcMissing) } else { Ok(()) }
}

/// Version of NVRTC: major, minor.
///
/// # Errors
/// NVRTC is missing or fails.
pub fn version() -> Result<(u32, u32), CudaError> {
    let nvrtc = Nvrtc::get()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both point to integers.
    check("nvrtcVersion", unsafe { (nvrtc.nvrtcVersion)(&raw mut major, &raw mut minor) })?;
    Ok((major.unsigned_abs(), minor.unsigned_abs()))
}

/// Compute capabilities that NVRTC compiles for, as `10 * major + minor`, ascending.
///
/// # Errors
/// NVRTC is missing or fails.
pub fn supported_archs() -> Result<Vec<u32>, CudaError> {
    let nvrtc = Nvrtc::get()?;
    let mut count = 0;
    // SAFETY: points to an integer.
    check("nvrtcGetNumSupportedArchs", unsafe { (nvrtc.nvrtcGetNumSupportedArchs)(&raw mut count) })?;
    let mut archs: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: room for the number of integers that the library just named.
    check("nvrtcGetSupportedArchs", unsafe { (nvrtc.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) })?;
    Ok(archs.into_iter().map(c_int::unsigned_abs).collect())
}

/// Compiles a program to machine code.
///
/// Takes 30 to 300 ms for a kernel of usual size. Threads may compile side by side.
///
/// # Errors
/// NVRTC is missing; the source does not compile ([`CudaError::Compile`] with the log); a string holds a zero byte; the
/// options ask for no machine code.
pub fn compile(program: Program<'_>) -> Result<Compiled, CudaError> {
    fail_point!("cuda.compile")?;
    let nvrtc = Nvrtc::get()?;
    let text =
        |argument, s: &str| CString::new(s).map_err(|_| CudaError::BadArgument { argument, why: "holds a zero byte" });
    let (source, name) = (text("source", program.source)?, text("name", program.name)?);
    let header_names: Vec<CString> = program.headers.iter().map(|h| text("headers", h.0)).collect::<Result<_, _>>()?;
    let header_texts: Vec<CString> = program.headers.iter().map(|h| text("headers", h.1)).collect::<Result<_, _>>()?;
    let options: Vec<CString> = program.options.iter().map(|o| text("options", o)).collect::<Result<_, _>>()?;
    let [header_name_ptrs, header_text_ptrs, option_ptrs] =
        [&header_names, &header_texts, &options].map(|list| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>());
    let length = |argument, list: &[*const c_char]| {
        c_int::try_from(list.len()).map_err(|_| CudaError::BadArgument { argument, why: "too many" })
    };

    let mut handle = Handle { nvrtc, raw: ptr::null_mut() };
    // SAFETY: every string ends in zero and lives until the end of this function; both lists have the length given.
    check("nvrtcCreateProgram", unsafe {
        (nvrtc.nvrtcCreateProgram)(
            &raw mut handle.raw,
            source.as_ptr(),
            name.as_ptr(),
            length("headers", &header_text_ptrs)?,
            header_text_ptrs.as_ptr(),
            header_name_ptrs.as_ptr(),
        )
    })?;
    // SAFETY: the program was just created; the list of options has the length given.
    let code =
        unsafe { (nvrtc.nvrtcCompileProgram)(handle.raw, length("options", &option_ptrs)?, option_ptrs.as_ptr()) };
    let log = handle.log()?;
    if code != 0 {
        return Err(CudaError::Compile { program: program.name.to_owned(), code, log });
    }
    Ok(Compiled { cubin: handle.cubin()?, log })
}

/// A program of NVRTC, destroyed on drop.
struct Handle {
    nvrtc: &'static Nvrtc,
    raw: nvrtcProgram,
}

impl Handle {
    fn log(&self) -> Result<String, CudaError> {
        let mut bytes = 0;
        // SAFETY: a live program and a pointer to an integer.
        check("nvrtcGetProgramLogSize", unsafe { (self.nvrtc.nvrtcGetProgramLogSize)(self.raw, &raw mut bytes) })?;
        let mut log = vec![0u8; bytes];
        // SAFETY: room for the bytes that the library just named.
        check("nvrtcGetProgramLog", unsafe { (self.nvrtc.nvrtcGetProgramLog)(self.raw, log.as_mut_ptr().cast()) })?;
        let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
        Ok(String::from_utf8_lossy(&log[..end]).trim_end().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = 0;
        // SAFETY: a live program and a pointer to an integer.
        check("nvrtcGetCUBINSize", unsafe { (self.nvrtc.nvrtcGetCUBINSize)(self.raw, &raw mut bytes) })?;
        if bytes == 0 {
            let why = "--gpu-architecture must name a real GPU (sm_..) for machine code";
            return Err(CudaError::BadArgument { argument: "options", why });
        }
        let mut cubin = vec![0u8; bytes];
        // SAFETY: room for the bytes that the library just named.
        check("nvrtcGetCUBIN", unsafe { (self.nvrtc.nvrtcGetCUBIN)(self.raw, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by NVRTC and destroyed once. A failure leaves memory behind and nothing to be done.
            unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.raw) };
        }
    }
}

fn check(call: &'static str, code: i32) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(CudaError::Call { call, code, text: error_text(code) }) }
}

/// What NVRTC calls a result code.
fn error_text(code: i32) -> String {
    type Text = unsafe extern "C" fn(i32) -> *const c_char;
    // SAFETY: a table was loaded before any code could be returned, so the library is there; the function takes the code
    // (an `enum` of C) and returns a constant string for every integer.
    let text = unsafe {
        let function = sys::culib().get::<Text>(b"nvrtcGetErrorString\0");
        function
            .ok()
            .map(|f| f(code))
            .filter(|p| !p.is_null())
            .map(|p| CStr::from_ptr(p).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "no description".to_owned())
}

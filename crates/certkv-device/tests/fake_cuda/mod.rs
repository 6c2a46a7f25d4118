//! A CUDA driver without a GPU (`driver/`, in C), compiled and put in the place of the real one before the library looks for it.
//!
//! Its name inside is `libcuda.so`: the dynamic linker takes a library that is loaded already for one that is asked for by that
//! name. Nothing of the library under test knows of it.
#![allow(dead_code, unreachable_pub, reason = "shared by tests that use different parts of it")]
pub mod sweep;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;

/// Folder of the sources.
fn sources() -> PathBuf {
    // Relative to the crate that includes this file, of which there are two side by side.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../certkv-device/tests/fake_cuda")
}

/// A folder of this process, to be removed when it has been used.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", process::id()));
    fs::create_dir_all(&folder).expect("a folder under the target directory");
    folder
}

/// Compiles C sources into a library that calls itself `soname`.
pub fn build(soname: &str, files: &[PathBuf], library: &Path, more: &[&str]) {
    let flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"];
    let output = Command::new("gcc")
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror", &format!("-Wl,-soname,{soname}")])
        .args(more)
        .args(files)
        .arg("-o")
        .arg(library)
        .output()
        .expect("gcc is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sources of the driver.
pub fn driver_sources() -> Vec<PathBuf> {
    ["control", "device", "memory", "stream", "graph", "kernel"]
        .iter()
        .map(|part| sources().join(format!("driver/{part}.c")))
        .collect()
}

/// Loads a library for ever, so that a search by its name finds it.
pub fn load(library: &Path) -> *mut c_void {
    let path = CString::new(library.to_str().expect("a path of text")).expect("no zero byte");
    // SAFETY: a string that ends in zero; the library is ours and its initialisers do nothing.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!handle.is_null(), "{} does not load", library.display());
    handle
}

/// Functions of the driver that the library has in its table.
pub fn driver_functions() -> Vec<String> {
    let source = include_str!("../../src/cuda/api.rs");
    let names = source.split("fn cu").skip(1).filter_map(|rest| rest.split_once('('));
    names.map(|(name, _)| format!("cu{name}")).collect()
}

/// Kinds of things that the fake counts, in its numbers.
pub const KINDS: [&str; 8] =
    ["allocations", "registrations", "streams", "events", "graphs", "runnable graphs", "modules", "contexts"];
/// The one that is not counted among leaks when its release was made to fail.
pub const CONTEXT: usize = 7;
/// Recordings that never ended.
const CAPTURES: c_int = 9;

/// `fn name(arguments) -> result;` by the C library's names, as methods of [`Fake`].
macro_rules! controls {
    ($($(#[$meta:meta])* fn $method:ident = $name:literal ($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Fake {$(
            $(#[$meta])*
            pub fn $method(&self, $($arg: $type),*) $(-> $result)? {
                let function = self.symbol($name);
                // SAFETY: the symbol is a function of this type, see `control.c`.
                let function: extern "C" fn($($type),*) $(-> $result)? = unsafe { std::mem::transmute(function) };
                function($($arg),*)
            }
        )*}
    };
}

/// The loaded driver's controls.
pub struct Fake {
    handle: *mut c_void,
}

// SAFETY: a handle of the dynamic linker, which any thread may use; the library has a lock of its own.
unsafe impl Send for Fake {}
// SAFETY: as above.
unsafe impl Sync for Fake {}

controls! {
    /// Forgets everything but the kernels.
    fn reset = c"fake_cuda_reset"();
    fn fail_raw = c"fake_cuda_fail"(n: u64, code: c_int, lost: c_int);
    /// No fault is to come.
    fn calm = c"fake_cuda_calm"();
    /// Calls of the driver since the reset.
    fn calls = c"fake_cuda_calls"() -> u64;
    fn call_raw = c"fake_cuda_call"(i: u64) -> *const c_char;
    /// Calls that were made to fail since the reset.
    fn injected = c"fake_cuda_injected"() -> u64;
    fn last_failed_raw = c"fake_cuda_last_failed_name"() -> *const c_char;
    fn live_raw = c"fake_cuda_live"(kind: c_int) -> u64;
    fn reaped_raw = c"fake_cuda_reaped"(kind: c_int) -> u64;
    /// Calls that a driver need not survive.
    fn violations = c"fake_cuda_violations"() -> u64;
    fn last_violation_raw = c"fake_cuda_last_violation"() -> *const c_char;
    /// Most bytes registered at once.
    fn limit_pinned = c"fake_cuda_limit_pinned"(bytes: usize);
    /// Most bytes allocated at once.
    fn limit_device = c"fake_cuda_limit_device"(bytes: usize);
    fn defer_raw = c"fake_cuda_defer"(yes: c_int);
    /// Devices, driver version, compute capability.
    fn machine = c"fake_cuda_machine"(devices: c_int, version: c_int, major: c_int, minor: c_int);
    fn kernel_raw = c"fake_cuda_kernel"(name: *const c_char, bytes: usize, run: Option<extern "C" fn(*const c_void)>);
    /// Launches that were accepted.
    fn launches = c"fake_cuda_launches"() -> u64;
    /// Contexts on this thread's stack.
    fn depth = c"fake_cuda_depth"() -> c_int;
    /// Empties it.
    fn empty_stack = c"fake_cuda_empty_stack"();
}

/// A string of the fake: constants, which live as long as the process.
fn text(raw: *const c_char) -> &'static str {
    // SAFETY: a constant string of a library that stays loaded.
    unsafe { CStr::from_ptr(raw) }.to_str().expect("ASCII")
}

impl Fake {
    /// The fake driver, in place of the machine's from the first call on.
    pub fn get() -> &'static Self {
        static FAKE: OnceLock<Fake> = OnceLock::new();
        FAKE.get_or_init(|| {
            let folder = folder("fake-cuda");
            let library = folder.join("libcuda.so");
            build("libcuda.so", &driver_sources(), &library, &[]);
            let fake = Self { handle: load(&library) };
            fs::remove_dir_all(&folder).expect("what was made can be removed");
            fake
        })
    }

    /// One that was built elsewhere.
    pub fn at(library: &Path) -> Self {
        Self { handle: load(library) }
    }

    /// A compiler that knows no language, in the place of NVRTC.
    pub fn with_compiler(&self) {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            let folder = folder("fake-nvrtc");
            let library = folder.join("libnvrtc.so");
            build("libnvrtc.so", &[sources().join("nvrtc.c")], &library, &[]);
            load(&library);
            fs::remove_dir_all(&folder).expect("what was made can be removed");
        });
    }

    /// A function of the library.
    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a loaded library and a string that ends in zero.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is missing");
        symbol
    }

    /// The n-th call from now (1: the next) returns `code`. `lost`: and so does everything after it that needs the GPU.
    pub fn fail(&self, n: u64, code: i32, lost: bool) {
        self.fail_raw(n, code, c_int::from(lost));
    }

    /// Work waits until somebody asks for it.
    pub fn defer(&self, yes: bool) {
        self.defer_raw(c_int::from(yes));
    }

    /// Every module has this kernel from now on.
    pub fn kernel(&self, name: &str, argument_bytes: usize, run: Option<extern "C" fn(*const c_void)>) {
        let name = CString::new(name).expect("no zero byte");
        self.kernel_raw(name.as_ptr(), argument_bytes, run);
    }

    /// Names of the calls since the reset.
    pub fn trace(&self) -> Vec<&'static str> {
        (0..self.calls()).map(|i| text(self.call_raw(i))).collect()
    }

    /// The call that failed last because it was told to.
    pub fn last_failed(&self) -> &'static str {
        text(self.last_failed_raw())
    }

    /// What the last violation was.
    pub fn last_violation(&self) -> &'static str {
        text(self.last_violation_raw())
    }

    /// What is alive, by kind.
    pub fn live(&self) -> [u64; 8] {
        std::array::from_fn(|kind| self.live_raw(kind as c_int))
    }

    /// What was alive when its context was destroyed, by kind.
    pub fn reaped(&self) -> [u64; 8] {
        std::array::from_fn(|kind| self.reaped_raw(kind as c_int))
    }

    /// Recordings that never ended, alive or destroyed with their context.
    pub fn endless(&self) -> u64 {
        self.live_raw(CAPTURES) + self.reaped_raw(CAPTURES)
    }
}

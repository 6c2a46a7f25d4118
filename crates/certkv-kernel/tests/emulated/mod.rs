//! GPU kernels on the CPU: a kernel source is compiled by g++ with the emulator of `kernels/emulate`, loaded and launched.
//!
//! ```ignore
//! #[path = "emulated/mod.rs"]
//! mod emulated;
//! let kernels = Emulated::build("attend.cu", &[("CKV_DIM", 128)])?;
//! let (input, output) = (Buffer::of(&numbers), Buffer::zeroed(256));
//! let args = Args { input: input.pointer(), output: output.pointer() }; // the repr(C) twin of the kernel's struct
//! kernels.launch("ckv_attend", Launch::new(grid, 256, shared_bytes).seed(7), &args, &[&input, &output])?;
//! ```
//! An error names the CTA, the thread, the line of the kernel and what it did wrong.
#![allow(dead_code, reason = "every test program uses its own part of this")]
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::{alloc, env, fs, mem, process, ptr, slice, thread};

pub(crate) mod selftest;

#[link(name = "dl")]
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// The flags every emulated kernel is compiled with. Contraction is off: what a kernel fuses it says with `fma_rn`. Misaligned loads and
/// stores, which a GPU refuses and this machine does not, are found by the compiler's checks.
const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-Og",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fsanitize=alignment",
    "-fno-sanitize-recover=alignment",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-DCKV_EMULATE",
];

/// GCC with room for everything that it allocates: it collects garbage otherwise, for a tenth of its time.
const ROOM: [&str; 4] = ["--param", "ggc-min-expand=1000", "--param", "ggc-min-heapsize=1000000"];

/// Types whose values are their bytes.
///
/// # Safety
/// Every bit pattern is a value and there is no padding.
pub(crate) unsafe trait Plain: Copy {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: a primitive number: no padding, every pattern a value.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Memory that a kernel sees: aligned to 256 bytes, between guards that show a store outside.
pub(crate) struct Buffer {
    start: *mut u8,
    bytes: usize,
}

const GUARD: usize = 1024;
const GUARD_BYTE: u8 = 0xa7;

impl Buffer {
    fn layout(bytes: usize) -> alloc::Layout {
        alloc::Layout::from_size_align(bytes + 2 * GUARD, 256).expect("a size in range")
    }

    /// `bytes` zeros.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        // SAFETY: the layout is not empty (it holds two guards).
        let whole = unsafe { alloc::alloc(Self::layout(bytes)) };
        assert!(!whole.is_null(), "memory for {bytes} bytes");
        // SAFETY: `whole` has `bytes + 2 GUARD` bytes, fresh and owned.
        unsafe {
            ptr::write_bytes(whole, GUARD_BYTE, bytes + 2 * GUARD);
            ptr::write_bytes(whole.add(GUARD), 0, bytes);
            Self { start: whole.add(GUARD), bytes }
        }
    }

    /// A copy of `values`.
    pub(crate) fn of<T: Plain>(values: &[T]) -> Self {
        let buffer = Self::zeroed(mem::size_of_val(values));
        buffer.write(0, values);
        buffer
    }

    /// The address, as the kernel's arguments hold it.
    pub(crate) fn pointer(&self) -> u64 {
        self.start as u64
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Puts `values` at byte `at`.
    pub(crate) fn write<T: Plain>(&self, at: usize, values: &[T]) {
        assert!(at + mem::size_of_val(values) <= self.bytes, "write inside the buffer");
        // SAFETY: in bounds by the line above; `start` is owned memory that nobody holds a reference to.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), self.start.add(at), mem::size_of_val(values)) };
    }

    /// The whole contents as values.
    pub(crate) fn read<T: Plain>(&self) -> Vec<T> {
        let count = self.bytes / mem::size_of::<T>();
        // SAFETY: owned and initialised memory of `bytes` bytes, aligned to 256; T takes every pattern.
        unsafe { slice::from_raw_parts(self.start.cast::<T>(), count) }.to_vec()
    }

    fn guards_hold(&self) -> bool {
        // SAFETY: the guards are part of the allocation, before and behind the contents.
        let (before, behind) = unsafe {
            (
                slice::from_raw_parts(self.start.sub(GUARD), GUARD),
                slice::from_raw_parts(self.start.add(self.bytes), GUARD),
            )
        };
        before.iter().chain(behind).all(|b| *b == GUARD_BYTE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start - GUARD` is what `alloc` returned for this layout.
        unsafe { alloc::dealloc(self.start.sub(GUARD), Self::layout(self.bytes)) };
    }
}

/// How to launch. Seed 0 runs CTAs, warps and lanes in order, any other seed in an order of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    grid: u32,
    block: u32,
    shared: u32,
    seed: u64,
    options: u32,
}

impl Launch {
    /// `grid` CTAs of `block` threads (a multiple of 32) with `shared` bytes of dynamic shared memory.
    pub(crate) fn new(grid: u32, block: u32, shared: u32) -> Self {
        Self { grid, block, shared, seed: 0, options: 0 }
    }

    /// Another order of CTAs, warps and lanes, and other errors of the approximations.
    pub(crate) fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Matrix products lose bits as tensor cores do.
    pub(crate) fn truncating(self) -> Self {
        Self { options: self.options | 1, ..self }
    }

    /// `ex2`, `lg2` (2 ulp) and `rcp` (1 ulp) err by up to that much, at random.
    pub(crate) fn noisy(self) -> Self {
        Self { options: self.options | 2, ..self }
    }
}

#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
}

/// The twin of `ckv_emulate::Launch` in `kernels/emulate/launch.hpp`.
#[repr(C)]
struct Request {
    kernel: *const c_char,
    args: *const c_void,
    args_bytes: u64,
    ranges: *const Range,
    range_count: u64,
    seed: u64,
    grid: u32,
    block: u32,
    shared: u32,
    options: u32,
    error: *mut c_char,
    error_bytes: u64,
    late: *const Range,
    late_count: u64,
    stacks: *mut *mut u8,
}

/// Stacks for the threads of one launch at a time; what fills them is the launch. They are never given back, and so are shared by all libraries.
struct Stacks(Box<[*mut u8; 1024]>);
// SAFETY: memory of their own, used by the launch that has taken them.
unsafe impl Send for Stacks {}
static STACKS: Mutex<Vec<Stacks>> = Mutex::new(Vec::new());

type Entry = unsafe extern "C" fn(*const Request) -> c_int;

/// One kernel source, specialised and loaded. It stays loaded to the end of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emulated {
    entry: Entry,
}

/// The folder of the kernels.
pub(crate) fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").canonicalize().expect("the folder of the kernels")
}

/// Names of the `__global__` functions of a source; they all start with `ckv_`.
fn names(source: &str) -> Vec<String> {
    let code: String = source.lines().map(|l| l.split("//").next().unwrap_or("").to_owned() + "\n").collect();
    let mut found = Vec::new();
    for after in code.split("__global__").skip(1) {
        let mut rest = after;
        while let Some(at) = rest.find("ckv_") {
            let name: String = rest[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            rest = &rest[at + name.len()..];
            if rest.trim_start().starts_with('(') {
                found.push(name);
                break;
            }
        }
    }
    found
}

/// Headers below `folder`, sorted by path: all of them count for whether a library is up to date.
fn headers(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(headers(&path));
        } else if path.extension().is_some_and(|e| e == "cuh" || e == "hpp") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Where there is a file with the headers of the standard library that the emulator includes, and beside it their compiled form: a fifth of
/// the time of every library.
fn standard(compiler: &str, cache: &Path) -> Result<PathBuf, String> {
    static MAKING: Mutex<()> = Mutex::new(());
    let mut lines: Vec<String> = Vec::new();
    for path in headers(&kernels().join("emulate")) {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        lines.extend(text.lines().filter(|line| line.starts_with("#include <")).map(|line| format!("{line}\n")));
    }
    lines.sort();
    lines.dedup();
    let text = lines.concat();
    let hash = FLAGS
        .iter()
        .chain([&compiler])
        .fold(fnv(0xcbf2_9ce4_8422_2325, text.as_bytes()), |h, word| fnv(fnv(h, word.as_bytes()), b"\0"));
    let (header, compiled) = (cache.join(format!("{hash:016x}.hpp")), cache.join(format!("{hash:016x}.hpp.gch")));
    let _one = MAKING.lock().unwrap_or_else(|e| e.into_inner());
    if !compiled.exists() {
        // As below: under names of this process's own first.
        let own = |end: &str| cache.join(format!("{hash:016x}-{}.{end}", process::id()));
        let (unit, made) = (own("hpp"), own("gch"));
        fs::write(&unit, &text).map_err(|e| format!("{}: {e}", unit.display()))?;
        let mut command = Command::new(compiler);
        let said = command.args(["-x", "c++-header"]).args(FLAGS).arg(&unit).arg("-o").arg(&made).output();
        let said = said.map_err(|e| format!("{compiler}: {e}"))?;
        if !said.status.success() {
            return Err(format!("{text}:\n{}", String::from_utf8_lossy(&said.stderr)));
        }
        fs::rename(&unit, &header)
            .and_then(|()| fs::rename(&made, &compiled))
            .map_err(|e| format!("{}: {e}", header.display()))?;
    }
    Ok(header)
}

impl Emulated {
    /// Compiles `source` (a path below `kernels/`) with the macros, or takes the library of an earlier run. The error is what
    /// the compiler said.
    pub(crate) fn build(source: &str, macros: &[(&str, i64)]) -> Result<Self, String> {
        // One build of a library at a time: tests that run side by side often ask for the same.
        static BUILDING: Mutex<BTreeMap<u64, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
        let folder = kernels();
        let text = fs::read_to_string(folder.join(source)).map_err(|e| format!("{source}: {e}"))?;
        let mut program = format!("#include \"{source}\"\n#include \"emulate/launch.hpp\"\n");
        for name in names(&text) {
            program += &format!("CKV_EMULATED({name})\n");
        }
        let defines: Vec<String> = macros.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
        let compiler = env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        let mut hash = fnv(0xcbf2_9ce4_8422_2325, (program.clone() + &text).as_bytes());
        for word in FLAGS.iter().copied().chain(defines.iter().map(String::as_str)).chain([compiler.as_str()]) {
            hash = fnv(fnv(hash, word.as_bytes()), b"\0");
        }
        for path in headers(&folder) {
            hash = fnv(hash, &fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?);
        }
        let own = Arc::clone(BUILDING.lock().unwrap_or_else(|e| e.into_inner()).entry(hash).or_default());
        let _one = own.lock().unwrap_or_else(|e| e.into_inner());
        let stem = Path::new(source).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
        let library = cache.join(format!("{stem}-{hash:016x}.so"));
        if !library.exists() {
            // Built under a name of its own and then renamed: another process may build the same.
            let own = format!("{stem}-{hash:016x}-{}-{:?}", process::id(), thread::current().id());
            let (unit, made) = (cache.join(own.clone() + ".cpp"), cache.join(own + ".so"));
            fs::write(&unit, &program).map_err(|e| format!("{}: {e}", unit.display()))?;
            let mut command = Command::new(&compiler);
            if !cfg!(target_vendor = "apple") {
                // Inline variables stay the library's own, even beside another variant of the same kernel.
                command.arg("-fno-gnu-unique");
            }
            if !compiler.contains("clang") {
                command.args(ROOM);
            }
            let said = command
                .args(["-x", "c++", "-shared", "-include"])
                .arg(standard(&compiler, &cache)?)
                .args(FLAGS)
                .args(&defines)
                .arg("-I")
                .arg(&folder)
                .arg(&unit)
                .arg("-o")
                .arg(&made)
                .output()
                .map_err(|e| format!("{compiler}: {e}"))?;
            let _ = fs::remove_file(&unit);
            if !said.status.success() {
                return Err(format!("{source} {defines:?}:\n{}", String::from_utf8_lossy(&said.stderr)));
            }
            fs::rename(&made, &library).map_err(|e| format!("{}: {e}", made.display()))?;
        }
        Self::load(&library)
    }

    fn load(library: &Path) -> Result<Self, String> {
        let path = CString::new(library.to_string_lossy().into_owned()).map_err(|e| e.to_string())?;
        // SAFETY: the library is our own; its initialisers only fill tables and register kernels. dlerror returns null or a
        // C string that lives until the next call of this thread.
        unsafe {
            let handle = dlopen(path.as_ptr(), RTLD_NOW);
            let symbol = if handle.is_null() { ptr::null_mut() } else { dlsym(handle, c"ckv_emulate_launch".as_ptr()) };
            if symbol.is_null() {
                let said = dlerror();
                return Err(if said.is_null() {
                    "no message".to_owned()
                } else {
                    CStr::from_ptr(said).to_string_lossy().into_owned()
                });
            }
            // The function of this name has this type in `launch.hpp`.
            Ok(Self { entry: mem::transmute::<*mut c_void, Entry>(symbol) })
        }
    }

    /// Runs `kernel` to its end. `args` is the twin of the kernel's argument struct; `memory` are the buffers it may touch (none: any,
    /// unchecked). The error says who did what where.
    pub(crate) fn launch<A: Copy>(
        &self,
        kernel: &str,
        how: Launch,
        args: &A,
        memory: &[&Buffer],
    ) -> Result<(), String> {
        self.launch_behind(kernel, how, args, memory, &[])
    }

    /// The same behind a launch that may still be writing `late`, addresses and sizes, until a thread has waited for its end: to read that
    /// before is an error.
    pub(crate) fn launch_behind<A: Copy>(
        &self,
        kernel: &str,
        how: Launch,
        args: &A,
        memory: &[&Buffer],
        late: &[(u64, u64)],
    ) -> Result<(), String> {
        let late: Vec<Range> = late.iter().map(|&(start, bytes)| Range { start, bytes }).collect();
        let name = CString::new(kernel).map_err(|e| e.to_string())?;
        let ranges: Vec<Range> = memory.iter().map(|b| Range { start: b.pointer(), bytes: b.bytes as u64 }).collect();
        let free = || STACKS.lock().unwrap_or_else(|e| e.into_inner());
        let mut stacks = free().pop().unwrap_or_else(|| Stacks(Box::new([ptr::null_mut(); 1024])));
        let mut error = [0u8; 1024];
        let request = Request {
            kernel: name.as_ptr(),
            args: ptr::from_ref(args).cast(),
            args_bytes: mem::size_of::<A>() as u64,
            ranges: ranges.as_ptr(),
            range_count: ranges.len() as u64,
            seed: how.seed,
            grid: how.grid,
            block: how.block,
            shared: how.shared,
            options: how.options,
            error: error.as_mut_ptr().cast(),
            error_bytes: error.len() as u64,
            late: late.as_ptr(),
            late_count: late.len() as u64,
            stacks: stacks.0.as_mut_ptr(),
        };
        // SAFETY: every pointer of the request outlives the call and has the size it says; what the kernel's own pointers
        // reach is memory of the buffers, which nobody else holds references to.
        let failed = unsafe { (self.entry)(&raw const request) };
        free().push(stacks);
        if failed != 0 {
            let text = CStr::from_bytes_until_nul(&error).map(|c| c.to_string_lossy().into_owned());
            return Err(format!("{kernel}: {}", text.unwrap_or_default()));
        }
        match memory.iter().position(|b| !b.guards_hold()) {
            Some(i) => Err(format!("{kernel}: wrote outside buffer {i}")),
            None => Ok(()),
        }
    }
}

//! Everything that can go wrong between us and a GPU; every code that a CUDA library returned is kept.
use certkv_core::InjectedFault;
use core::fmt;

/// Error of a CUDA call. Unless the variant says otherwise the call had no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaError {
    /// No CUDA driver library on this machine.
    NoDriver,
    /// A CUDA library is there but lacks a function that we need.
    MissingSymbol {
        /// The library.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// The machine has a driver, but not this GPU.
    NoDevice {
        /// Ordinal asked for.
        ordinal: u32,
        /// GPUs that the driver sees.
        count: u32,
    },
    /// The driver is older than [`MINIMUM_DRIVER`](super::MINIMUM_DRIVER).
    DriverTooOld {
        /// CUDA version of the driver, as `1000 * major + 10 * minor`.
        found: u32,
        /// Least version that works.
        needs: u32,
    },
    /// The GPU is older than [`MINIMUM_ARCH`](super::MINIMUM_ARCH).
    UnsupportedArch {
        /// Compute capability of the GPU, as `10 * major + minor`.
        found: u32,
        /// Least that works.
        needs: u32,
    },
    /// No NVRTC library on this machine.
    NvrtcMissing,
    /// A kernel source did not compile.
    Compile {
        /// Name of the program.
        program: String,
        /// The compiler's result code.
        code: i32,
        /// What the compiler printed.
        log: String,
    },
    /// A call failed for a reason without a variant of its own.
    Call {
        /// The function of the CUDA library.
        call: &'static str,
        /// Its result code.
        code: i32,
        /// Name and description of the code, as the library gives them.
        text: String,
    },
    /// The GPU has no memory for an allocation.
    OutOfDeviceMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The system cannot map or pin host memory.
    OutOfPinnedMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The call that failed.
        call: &'static str,
        /// Its error number: of the system for `mmap`, of CUDA otherwise.
        code: i32,
    },
    /// A pointer is of another kind of memory than the argument needs, or of another GPU.
    WrongMemorySpace {
        /// The argument.
        argument: &'static str,
        /// What the pointer is.
        found: &'static str,
    },
    /// An address is not a multiple of what the argument needs.
    Misaligned {
        /// The argument.
        argument: &'static str,
        /// The address.
        address: u64,
        /// Bytes it must be a multiple of.
        needs: u64,
    },
    /// A byte range past the end of its buffer.
    OutOfRange {
        /// The argument.
        argument: &'static str,
        /// First byte.
        start: usize,
        /// Bytes in the range.
        bytes: usize,
        /// Bytes in the buffer.
        len: usize,
    },
    /// The stream belongs to another GPU or context.
    ForeignStream,
    /// A buffer, event, graph or kernel of another GPU or context.
    Foreign {
        /// The argument.
        argument: &'static str,
    },
    /// The struct of a kernel's arguments has another size than the kernel's parameter.
    ArgumentSize {
        /// Bytes of the struct given.
        given: usize,
        /// Bytes of the kernel's parameter.
        needs: usize,
    },
    /// An argument that no call can accept.
    BadArgument {
        /// The argument.
        argument: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An access is not ordered after an earlier one of the same memory, by a stream, an event or a wait of the host. Reported where
    /// [`Gpu::check_order`](super::Gpu::check_order) was asked for; the access was not enqueued.
    Unordered {
        /// First byte that the later access names.
        address: u64,
        /// Bytes that it names.
        bytes: u64,
        /// Who used some of them before.
        earlier: Accessor,
        /// Who wants to.
        later: Accessor,
    },
    /// A fault point was armed by a test.
    Injected(InjectedFault),
}

/// Who reads or writes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accessor {
    /// The stream's handle; `None`: the host.
    pub stream: Option<usize>,
    /// Whether it writes.
    pub writes: bool,
}

impl fmt::Display for Accessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.writes { "a write " } else { "a read " })?;
        match self.stream {
            Some(stream) => write!(f, "on stream {stream:#x}"),
            None => f.write_str("by the host"),
        }
    }
}

impl CudaError {
    /// Whether the GPU's context is lost: a kernel or the hardware failed, and every later call on this GPU in this
    /// process will fail the same way.
    pub fn context_lost(&self) -> bool {
        // Illegal address 700, launch timeout 702, assert 710, hardware stack error to launch failure 714..=719, ECC
        // 214, NVLink 220, contained 721.
        matches!(self, Self::Call { code: 214 | 220 | 700 | 702 | 710 | 714..=719 | 721, .. })
    }
}

impl From<InjectedFault> for CudaError {
    fn from(fault: InjectedFault) -> Self {
        Self::Injected(fault)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("no CUDA driver library (libcuda) on this machine"),
            Self::MissingSymbol { library, symbol } => write!(f, "the {library} library lacks {symbol}"),
            Self::NoDevice { ordinal, count } => write!(f, "no GPU {ordinal}: the driver sees {count}"),
            Self::DriverTooOld { found, needs } => {
                let show = |v: &u32| format!("{}.{}", v / 1000, v % 1000 / 10);
                write!(f, "the driver is of CUDA {}, at least {} is needed", show(found), show(needs))
            }
            Self::UnsupportedArch { found, needs } => {
                write!(f, "the GPU has compute capability {found}, at least {needs} is needed")
            }
            Self::NvrtcMissing => f.write_str("no NVRTC library (libnvrtc) on this machine"),
            Self::Compile { program, code, log } => write!(f, "{program} did not compile (NVRTC code {code}):\n{log}"),
            Self::Call { call, code, text } => write!(f, "{call} failed with code {code}: {text}"),
            Self::OutOfDeviceMemory { bytes } => write!(f, "the GPU has no memory for {bytes} bytes"),
            Self::OutOfPinnedMemory { bytes, call, code } => {
                write!(f, "cannot pin {bytes} bytes of host memory: {call} failed with code {code}")
            }
            Self::WrongMemorySpace { argument, found } => write!(f, "{argument}: the pointer is {found}"),
            Self::Misaligned { argument, address, needs } => {
                write!(f, "{argument}: address {address:#x} is not a multiple of {needs}")
            }
            Self::OutOfRange { argument, start, bytes, len } => {
                write!(f, "{argument}: {bytes} bytes from byte {start} of a buffer of {len} bytes")
            }
            Self::ForeignStream => f.write_str("the stream belongs to another GPU or context"),
            Self::Foreign { argument } => write!(f, "{argument}: of another GPU or context"),
            Self::ArgumentSize { given, needs } => {
                write!(f, "kernel arguments of {given} bytes where the kernel takes {needs}")
            }
            Self::BadArgument { argument, why } => write!(f, "{argument}: {why}"),
            Self::Unordered { address, bytes, earlier, later } => {
                write!(f, "{later} of {bytes} bytes at {address:#x} is not ordered after {earlier}")
            }
            Self::Injected(fault) => fault.fmt(f),
        }
    }
}
impl std::error::Error for CudaError {}

//! What can go wrong, by argument. Every error says whose fault it is and leaves the cache as it was.
use crate::save::SaveError;
use crate::seal::SealError;
use crate::spill::FetchError;
use certkv_codec::CodecError;
use certkv_control::{CalibrationError, ControlError};
use certkv_core::{BudgetExceeded, FormatError, GeometryError, OutOfMemory, SequenceId};
use certkv_device::DeviceError;
use certkv_device::cuda::CudaError;
use certkv_kernel::KernelError;
use certkv_kernel::cuda::PrepareError;
use certkv_page::{PageError, TableError};
use core::fmt;

/// Error of the engine. Unless a variant says otherwise, nothing changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The geometry was refused.
    Geometry(GeometryError),
    /// A format was refused.
    Format(FormatError),
    /// A configuration value was refused.
    Config {
        /// Field of [`crate::Config`].
        field: &'static str,
        /// What it must be, and what it was.
        why: String,
    },
    /// The calibration is not of this geometry.
    Calibration(CalibrationError),
    /// The configured capacity does not fit a budget.
    Budget(BudgetExceeded),
    /// The id was never given out, or its sequence was released.
    UnknownSequence(SequenceId),
    /// The sequence is part of a step that has not finished, or named twice in one step.
    BusySequence(SequenceId),
    /// All sequence slots are taken.
    TooManySequences {
        /// Slots configured.
        max_sequences: usize,
    },
    /// The sequence is swapped out: [`crate::Cache::swap_in`] comes first.
    SwappedOut,
    /// The sequence is not swapped out.
    NotSwappedOut,
    /// Codes of a block are not those that were swapped out. The sequence stays outside.
    Damaged {
        /// Layer of the page.
        layer: usize,
        /// Index of the block in its sequence.
        block: usize,
        /// What is wrong.
        why: SealError,
    },
    /// The capacity of a page class is used up. `class` is `host`, `packed` (of the first level), `tail`, `swap`, or `level 1` and so on.
    CapacityExhausted {
        /// Which pages ran out.
        class: &'static str,
        /// What the allocator said.
        cause: PageError,
    },
    /// More tokens than a sequence can hold.
    TooLong {
        /// Tokens to be appended.
        tokens: usize,
        /// Length of the sequence.
        len: usize,
        /// Most tokens of a sequence.
        limit: usize,
    },
    /// A truncation past the end.
    Length {
        /// Length asked for.
        asked: usize,
        /// Length of the sequence.
        len: usize,
    },
    /// A truncation to a length at which some layer's window is gone. Possible are `least` and more, and `within` and less, as
    /// far as that layer is concerned.
    WindowPassed {
        /// Length asked for.
        asked: usize,
        /// Smallest length behind the sinks.
        least: usize,
        /// Tokens of the blocks that hold the sinks.
        within: usize,
    },
    /// Tokens that a layer with a window no longer has.
    Gone {
        /// The first of them.
        first: usize,
        /// The first token behind them.
        end: usize,
    },
    /// More tokens of a sequence in one step than a layer's window was made for.
    LongChunk {
        /// Tokens to be appended.
        tokens: usize,
        /// Most tokens at once: [`Window::chunk`](crate::Window::chunk).
        chunk: usize,
    },
    /// A truncation failed half-way. The sequence was cut to whole blocks: its length is `len` now.
    Shortened {
        /// Length of the sequence now.
        len: usize,
        /// What failed.
        cause: Box<Error>,
    },
    /// A layer outside the geometry.
    Layer {
        /// Layer asked for.
        layer: usize,
        /// Layers of the geometry.
        layers: usize,
    },
    /// A slice of the wrong length.
    Shape {
        /// Argument name.
        argument: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements given.
        given: usize,
    },
    /// NaN or an infinity in an input (math.md (0.4)).
    NonFinite {
        /// Argument name.
        argument: &'static str,
        /// Token of the call, 0-based.
        token: usize,
        /// Element within the token's row.
        element: usize,
    },
    /// A finite input that the 16-bit type of the originals cannot hold.
    Overflow {
        /// Argument name.
        argument: &'static str,
        /// Token of the call, 0-based.
        token: usize,
        /// Element within the token's row.
        element: usize,
    },
    /// Calls of a step out of order: a layer appended twice, attended before it was appended, or missing at the end.
    Order {
        /// Layer in question.
        layer: usize,
        /// What was wrong.
        why: &'static str,
    },
    /// A block that cannot have a level: there is no such block or level, or no codes of it at that level.
    Level {
        /// Number of the block.
        block: usize,
        /// Which of [`crate::Config::levels`].
        level: usize,
        /// What is in the way.
        why: &'static str,
    },
    /// Attention over no token at all.
    NoVisibleToken,
    /// A policy parameter was refused.
    Policy(String),
    /// A head's output could not be bounded and its exact recomputation has no finite arithmetic bound either (logits
    /// beyond what single precision holds). No output was written.
    Uncertifiable {
        /// Layer.
        layer: usize,
    },
    /// The device refused: allocation, copy, ordering or content.
    Device(DeviceError),
    /// The GPU or its driver refused; [`CudaError::NoDriver`] on a machine without a driver.
    Gpu(CudaError),
    /// There are no kernels for the configuration on this GPU, or no machine code of them.
    Kernels(PrepareError),
    /// The codec refused a block.
    Codec(CodecError),
    /// The kernel refused its arguments.
    Kernel(KernelError),
    /// Page bookkeeping refused.
    Page(PageError),
    /// A block table refused.
    Table(TableError),
    /// A controller refused its inputs.
    Control(ControlError),
    /// A saved sequence could not be written, or is refused.
    Save(SaveError),
    /// Originals that lie in the store could not be read. No output was written; what does not need them works, and a later try
    /// may succeed.
    Fetch(FetchError),
    /// Host memory for a work area could not be had.
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(e) => e.fmt(f),
            Self::Format(e) => e.fmt(f),
            Self::Config { field, why } => write!(f, "config.{field}: {why}"),
            Self::Calibration(e) => write!(f, "config.calibration: {e}"),
            Self::Budget(e) => e.fmt(f),
            Self::UnknownSequence(id) => write!(f, "{id}: no such sequence"),
            Self::BusySequence(id) => write!(f, "{id}: already part of a step"),
            Self::TooManySequences { max_sequences } => write!(f, "all {max_sequences} sequence slots are taken"),
            Self::SwappedOut => f.write_str("the sequence is swapped out"),
            Self::NotSwappedOut => f.write_str("the sequence is not swapped out"),
            Self::Damaged { layer, block, why } => write!(f, "layer {layer}, block {block}: {why}"),
            Self::CapacityExhausted { class, cause } => write!(f, "{class} pages: {cause}"),
            Self::TooLong { tokens, len, limit } => {
                write!(f, "chunk.tokens: {tokens} more on {len} tokens; a sequence holds at most {limit}")
            }
            Self::Length { asked, len } => write!(f, "length {asked} asked of a sequence of {len} tokens"),
            Self::WindowPassed { asked, least, within } => write!(
                f,
                "length {asked}: a layer's window at that length is gone; {least} or more, or {within} or less"
            ),
            Self::Gone { first, end } => write!(f, "tokens {first} to {end} have left the layer's window"),
            Self::LongChunk { tokens, chunk } => {
                write!(f, "chunk.tokens: {tokens} at once; a layer's window allows {chunk}")
            }
            Self::Shortened { len, cause } => write!(f, "cut to {len} tokens, less than asked, after: {cause}"),
            Self::Layer { layer, layers } => write!(f, "layer {layer} of {layers}"),
            Self::Shape { argument, expected, given } => {
                write!(f, "{argument}: {given} elements given, {expected} expected")
            }
            Self::NonFinite { argument, token, element } => {
                write!(f, "{argument}: not finite at token {token}, element {element}")
            }
            Self::Overflow { argument, token, element } => {
                write!(f, "{argument}: too large for the stored type at token {token}, element {element}")
            }
            Self::Order { layer, why } => write!(f, "layer {layer}: {why}"),
            Self::Level { block, level, why } => write!(f, "block {block}, level {level}: {why}"),
            Self::NoVisibleToken => f.write_str("attention over no token"),
            Self::Policy(why) => write!(f, "policy: {why}"),
            Self::Uncertifiable { layer } => write!(f, "layer {layer}: an output that has no finite bound"),
            Self::Device(e) => write!(f, "device: {e}"),
            Self::Gpu(e) => write!(f, "device: {e}"),
            Self::Kernels(e) => write!(f, "kernels: {e}"),
            Self::Codec(e) => write!(f, "codec: {e}"),
            Self::Kernel(e) => write!(f, "kernel: {e}"),
            Self::Page(e) => write!(f, "pages: {e}"),
            Self::Table(e) => write!(f, "pages: {e}"),
            Self::Control(e) => write!(f, "control: {e}"),
            Self::Save(e) => e.fmt(f),
            Self::Fetch(e) => e.fmt(f),
            Self::OutOfMemory { what, bytes } => write!(f, "{what}: {bytes} bytes of host memory could not be had"),
        }
    }
}
impl std::error::Error for Error {}

macro_rules! from {
    ($($source:ty => $variant:ident),* $(,)?) => {$(
        impl From<$source> for Error {
            fn from(e: $source) -> Self {
                Self::$variant(e)
            }
        }
    )*};
}
from!(GeometryError => Geometry, FormatError => Format, CalibrationError => Calibration, BudgetExceeded => Budget, DeviceError => Device,
      CudaError => Gpu, PrepareError => Kernels, CodecError => Codec, PageError => Page, ControlError => Control, SaveError => Save);

impl From<KernelError> for Error {
    fn from(e: KernelError) -> Self {
        match e {
            KernelError::OutOfMemory(none) => none.into(),
            other => Self::Kernel(other),
        }
    }
}

impl From<OutOfMemory> for Error {
    fn from(OutOfMemory { bytes }: OutOfMemory) -> Self {
        Self::OutOfMemory { what: "what a call works in", bytes }
    }
}

//! What a kernel refuses.
use certkv_core::OutOfMemory;
use core::fmt;

/// Why a computation was refused. Nothing has been written to the output when one of these is returned, except where
/// a function says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub enum KernelError {
    /// Layout and geometry disagree about the channels per head.
    HeadDim {
        /// Channels per head of the geometry.
        geometry: usize,
        /// Channels per head of the layout.
        layout: usize,
    },
    /// The instruction set asked for is not available on this machine.
    Unavailable(&'static str),
    /// An argument has the wrong number of elements.
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Elements required.
        expected: usize,
        /// Elements given.
        given: usize,
    },
    /// A block's record, or the 16-bit side given in its place, is too short.
    Block {
        /// Index of the block in its source.
        index: usize,
        /// What was too short.
        part: &'static str,
    },
    /// A query holds NaN or an infinity, math.md (0.4).
    NonFiniteQuery {
        /// Query head within the group.
        head: usize,
    },
    /// No token was visible, math.md (1.6): there is no output.
    NoToken,
    /// Block range outside the masses given, or a first block that is no multiple of 16.
    MassRange {
        /// First block of the range.
        start: usize,
        /// End of the range.
        end: usize,
        /// Blocks that the masses hold.
        capacity: usize,
    },
    /// Keys are to be scored from codes of a calibrated format, and the source has no metric of the head's channels.
    Metric {
        /// Index of the block in its source.
        index: usize,
    },
    /// A thread pool could not be started.
    Threads(usize),
    /// The machine did not give what a computation works in.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HeadDim { geometry, layout } => {
                write!(f, "layout: {layout} channels per head, but the geometry has {geometry}")
            }
            Self::Unavailable(name) => write!(f, "arch: {name} is not available on this machine"),
            Self::Length { argument, expected, given } => {
                write!(f, "{argument}: {given} elements given, {expected} needed")
            }
            Self::Block { index, part } => write!(f, "block {index}: {part} too short"),
            Self::NonFiniteQuery { head } => write!(f, "queries: head {head} of the group holds NaN or an infinity"),
            Self::OutOfMemory(none) => none.fmt(f),
            Self::NoToken => f.write_str("attention over no token has no output"),
            Self::MassRange { start, end, capacity } => write!(
                f,
                "masses: blocks {start}..{end} do not fit {capacity} blocks, or do not start at a multiple of 16"
            ),
            Self::Metric { index } => {
                write!(f, "block {index}: keys are calibrated, and there is no metric to read them in")
            }
            Self::Threads(n) => write!(f, "pool: {n} threads could not be started"),
        }
    }
}
impl From<OutOfMemory> for KernelError {
    fn from(none: OutOfMemory) -> Self {
        Self::OutOfMemory(none)
    }
}

impl std::error::Error for KernelError {}

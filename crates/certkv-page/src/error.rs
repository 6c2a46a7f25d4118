//! What can go wrong with a page or a block table. After every error the state is as before the call.
use crate::pools::PageClass;
use crate::word::{Refused, WordError};
use certkv_core::{InjectedFault, PageId};
use core::fmt;

/// An operation on pages that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageError {
    /// Fewer free pages than asked for. `retiring` pages come back when their fences pass.
    Exhausted {
        /// Pages asked for.
        asked: usize,
        /// Pages free.
        free: usize,
        /// Pages waiting for a fence or a pin.
        retiring: usize,
        /// Pages of the class.
        capacity: usize,
    },
    /// The id names a slot that the class does not have.
    OutOfRange {
        /// The id.
        id: PageId,
        /// Slots of the class.
        capacity: usize,
    },
    /// The slot was freed or reopened since the id was given out.
    Stale {
        /// The id.
        id: PageId,
        /// Generation of the slot now.
        found: u32,
    },
    /// The page's state does not allow it.
    Refused {
        /// The page.
        id: PageId,
        /// What was found.
        refused: Refused,
    },
    /// The page has no reference left: a second release, or a retain after the last release.
    Unreferenced {
        /// The page.
        id: PageId,
    },
    /// Someone else holds a reference.
    Shared {
        /// The page.
        id: PageId,
        /// References counted.
        references: u32,
    },
    /// Only a page with final contents can be shared.
    NotShareable {
        /// The page.
        id: PageId,
    },
    /// More references than can be counted.
    TooManyReferences {
        /// The page.
        id: PageId,
    },
    /// More slots than an id can name.
    TooManyPages {
        /// Slots asked for.
        asked: usize,
    },
    /// The host has no memory for the books.
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
    },
    /// A fault point was made to fail.
    Fault(InjectedFault),
}

impl PageError {
    pub(crate) fn of_word(id: PageId, error: WordError) -> Self {
        match error {
            WordError::Stale { found, .. } => Self::Stale { id, found },
            WordError::Refused(refused) => Self::Refused { id, refused },
        }
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { asked, free, retiring, capacity } => {
                write!(f, "{asked} pages asked, {free} of {capacity} free, {retiring} waiting for a fence")
            }
            Self::OutOfRange { id, capacity } => write!(f, "{id:?} does not exist: the class has {capacity} slots"),
            Self::Stale { id, found } => write!(f, "{id:?} is stale: the slot is at generation {found}"),
            Self::Refused { id, refused } => write!(f, "{id:?}: {refused}"),
            Self::Unreferenced { id } => write!(f, "{id:?} has no reference left"),
            Self::Shared { id, references } => write!(f, "{id:?} still has {references} references"),
            Self::NotShareable { id } => write!(f, "{id:?} is still being written and cannot be shared"),
            Self::TooManyReferences { id } => write!(f, "{id:?} has as many references as can be counted"),
            Self::TooManyPages { asked } => write!(f, "{asked} slots are more than a page id can name"),
            Self::OutOfMemory { what } => write!(f, "no host memory for {what}"),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}
impl std::error::Error for PageError {}

impl From<InjectedFault> for PageError {
    fn from(fault: InjectedFault) -> Self {
        Self::Fault(fault)
    }
}

/// An operation on a block table that did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableError {
    /// A page could not be had or changed.
    Page {
        /// Class of the page.
        class: PageClass,
        /// What went wrong.
        error: PageError,
    },
    /// The sequence would need more blocks than the table was created for.
    TooLong {
        /// Tokens in the table.
        len: usize,
        /// Tokens to append.
        tokens: usize,
        /// Most tokens the table can hold.
        limit: usize,
    },
    /// Truncation to more tokens than there are.
    BeyondEnd {
        /// Length asked for.
        asked: usize,
        /// Tokens in the table.
        len: usize,
    },
    /// A cut to a length whose window needs blocks that were given up. The table can be cut to `least` and more, or to
    /// `within` and less.
    WindowPassed {
        /// Length asked for.
        asked: usize,
        /// Smallest length behind the sinks that the table can be cut to.
        least: usize,
        /// Tokens of the blocks that hold the sinks.
        within: usize,
    },
    /// More tokens in one reservation than the window was made for.
    LongChunk {
        /// Tokens asked for.
        tokens: usize,
        /// Most tokens at once.
        chunk: usize,
    },
    /// A window of no token, or a chunk of none.
    BadWindow {
        /// Tokens of the window.
        tokens: usize,
        /// Most tokens at once.
        chunk: usize,
    },
    /// Blocks can be left out right behind those of the sinks, once, and not beyond the end of the table.
    NoHole {
        /// The block to go on with.
        block: usize,
        /// Tokens in the table.
        len: usize,
    },
    /// More than a block at once of a sequence that is restored, or not from a block's first token on.
    NotABlock {
        /// Tokens in the table.
        len: usize,
        /// Tokens asked for.
        tokens: usize,
    },
    /// A block size of 0, or more rows than can be counted.
    BadShape {
        /// Tokens per block.
        block: usize,
        /// Most blocks.
        max_blocks: usize,
    },
    /// The reservation was made for another table.
    ForeignReservation,
    /// The table changed since the reservation was made.
    OutdatedReservation,
    /// The sequence is swapped out: it comes back before it is continued or shared.
    SwappedOut,
    /// The sequence is not swapped out.
    NotOut,
    /// A block that is not full has no level, or the pools have no such level.
    NoLevel {
        /// Number of the block.
        block: usize,
        /// The level asked for.
        level: u8,
    },
    /// The host has no memory for the table.
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page { class, error } => write!(f, "{class} page: {error}"),
            Self::TooLong { len, tokens, limit } => write!(f, "{len} + {tokens} tokens, the table holds {limit}"),
            Self::BeyondEnd { asked, len } => write!(f, "cannot truncate to {asked} tokens, there are {len}"),
            Self::WindowPassed { asked, least, within } => {
                write!(f, "cannot truncate to {asked} tokens: its window is gone; {least} or more, or {within} or less")
            }
            Self::LongChunk { tokens, chunk } => write!(f, "{tokens} tokens at once, the window allows {chunk}"),
            Self::BadWindow { tokens, chunk } => {
                write!(f, "a window of {tokens} tokens and chunks of {chunk}: both must be at least 1")
            }
            Self::NoHole { block, len } => write!(f, "cannot go on with block {block} behind {len} tokens"),
            Self::NotABlock { len, tokens } => {
                write!(f, "{tokens} tokens behind {len} are no block of a sequence that is restored")
            }
            Self::BadShape { block, max_blocks } => write!(f, "{max_blocks} blocks of {block} tokens is no table"),
            Self::ForeignReservation => f.write_str("the reservation was made for another table"),
            Self::OutdatedReservation => f.write_str("the table changed since the reservation was made"),
            Self::NotOut => f.write_str("the sequence is not swapped out"),
            Self::NoLevel { block, level } => write!(f, "block {block} cannot have level {level}"),
            Self::SwappedOut => f.write_str("the sequence is swapped out"),
            Self::OutOfMemory { what } => write!(f, "no host memory for {what}"),
        }
    }
}
impl std::error::Error for TableError {}

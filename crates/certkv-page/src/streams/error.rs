//! What can go wrong with a table of streams.
use crate::error::PageError;
use core::fmt;

/// An operation that did not happen; everything is as before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// No class, no head, a page without rows, a width given twice, one allocator for two widths, or more tokens than can be counted.
    BadShape {
        /// Classes given.
        classes: usize,
        /// KV heads.
        heads: usize,
        /// Most tokens.
        max_tokens: usize,
    },
    /// A page could not be had or changed.
    Page {
        /// Bits of its width.
        bits: u8,
        /// What went wrong.
        error: PageError,
    },
    /// More tokens than the table was created for.
    TooLong {
        /// Tokens in the table.
        len: usize,
        /// Tokens to append.
        tokens: usize,
        /// Most tokens.
        limit: usize,
    },
    /// A cut to more tokens than there are.
    BeyondEnd {
        /// Length asked for.
        asked: usize,
        /// Tokens in the table.
        len: usize,
    },
    /// Not one width per new token and head.
    Widths {
        /// Widths given.
        given: usize,
        /// KV heads, of which it must be a multiple.
        heads: usize,
    },
    /// A width that the table does not have.
    NoClass {
        /// Number asked for.
        class: usize,
        /// Classes of the table.
        classes: usize,
    },
    /// A token or head that the table does not have.
    NoToken {
        /// Head asked for.
        head: usize,
        /// Token asked for.
        token: usize,
    },
    /// One token is to move twice.
    Twice {
        /// Its head.
        head: usize,
        /// Its position.
        token: usize,
    },
    /// The reservation was made for another table.
    ForeignReservation,
    /// The table changed since the reservation was made.
    OutdatedReservation,
    /// The host has no memory for the table.
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
    },
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadShape { classes, heads, max_tokens } => {
                write!(f, "{heads} heads of {max_tokens} tokens in {classes} widths is no table")
            }
            Self::Page { bits, error } => write!(f, "page of {bits} bits: {error}"),
            Self::TooLong { len, tokens, limit } => write!(f, "{len} + {tokens} tokens, the table holds {limit}"),
            Self::BeyondEnd { asked, len } => write!(f, "cannot truncate to {asked} tokens, there are {len}"),
            Self::Widths { given, heads } => {
                write!(f, "{given} widths are not a whole number of tokens of {heads} heads")
            }
            Self::NoClass { class, classes } => write!(f, "width {class} of {classes}"),
            Self::NoToken { head, token } => write!(f, "there is no token {token} of head {head}"),
            Self::Twice { head, token } => write!(f, "token {token} of head {head} is to move twice"),
            Self::ForeignReservation => f.write_str("the reservation was made for another table"),
            Self::OutdatedReservation => f.write_str("the table changed since the reservation was made"),
            Self::OutOfMemory { what } => write!(f, "no host memory for {what}"),
        }
    }
}
impl core::error::Error for StreamError {}

//! Tables for a group whose tokens have mixed widths: every KV head has a stream of its own for each width.
//!
//! A width is a page class with an allocator of its own; a page holds rows of one head. Rows are only ever added at the end of a
//! stream's open page. A token that moves to another width, or is cut off, leaves a dead row, and a full page whose rows are all dead
//! is given up. So a page that others may share is never written, and a cut to any length copies nothing. Rows that are still used
//! in a page that is mostly dead are moved like any others, to the same width, and the page goes.
//!
//! States of a page: Open while it is a stream's last, with one owner; Packed once its last row is committed, shared with forks; then
//! Retiring behind a stamp. Reserve, copy, commit is as for [`BlockTable`](crate::BlockTable).
//!
//! No engine uses these tables yet: the codecs of token widths come later.
mod change;
mod error;
mod map;
mod reserve;
mod table;

pub use change::{StreamCopy, StreamDropped};
pub use error::StreamError;
pub use reserve::{StreamCommitError, StreamReservation, StreamSpan};
pub use table::{StreamCounts, StreamTable};

use crate::alloc::PageAllocator;
use certkv_core::PageId;

/// Pages of one width.
#[derive(Debug, Clone)]
pub struct StreamClass {
    /// Bits of a code: what tells the classes of a table apart.
    pub bits: u8,
    /// Tokens of one head that a page holds.
    pub rows: usize,
    /// Who owns which page.
    pub pages: PageAllocator,
}

/// Where a token of a head is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRow {
    /// Number of the width among the table's classes.
    pub class: usize,
    /// Page of that class.
    pub page: PageId,
    /// Row in the page.
    pub row: usize,
}

/// A token of a head, and the width it is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMove {
    /// The KV head.
    pub head: usize,
    /// Position in the sequence.
    pub token: usize,
    /// Number of the width among the table's classes; it may be the one it has.
    pub class: usize,
}

//! Why a file is refused, or could not be written.
use certkv_core::OutOfMemory;
use core::fmt;
use std::io;

/// What is wrong with a saved sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaveError {
    /// Reading or writing failed: the disk is full, the file is gone.
    Io {
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        text: String,
    },
    /// Not a saved sequence.
    NotASequence,
    /// Written by another version.
    Version {
        /// The file's.
        found: u32,
        /// The one that is read here.
        known: u32,
    },
    /// Of another model, geometry or format.
    Differs {
        /// What differs.
        what: String,
        /// The file's.
        file: String,
        /// The cache's.
        here: String,
    },
    /// The file ends in this section.
    Truncated {
        /// The section.
        section: &'static str,
    },
    /// The contents are not those that were written, or the digests have another key.
    Damaged {
        /// The section.
        section: &'static str,
    },
    /// The digests are right and the contents make no sense: not written by this library.
    Malformed {
        /// The section.
        section: &'static str,
        /// What makes no sense.
        why: &'static str,
    },
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { text, .. } => write!(f, "saved sequence: {text}"),
            Self::NotASequence => f.write_str("not a saved sequence"),
            Self::Version { found, known } => write!(f, "saved by version {found}, this is version {known}"),
            Self::Differs { what, file, here } => write!(f, "saved sequence: {what} is {file} there and {here} here"),
            Self::Truncated { section } => write!(f, "saved sequence: ends in its {section}"),
            Self::Damaged { section } => write!(f, "saved sequence: its {section} is not what was written"),
            Self::Malformed { section, why } => write!(f, "saved sequence: {section}: {why}"),
        }
    }
}
impl std::error::Error for SaveError {}

impl From<OutOfMemory> for SaveError {
    fn from(_: OutOfMemory) -> Self {
        io::Error::from(io::ErrorKind::OutOfMemory).into()
    }
}

impl From<io::Error> for SaveError {
    fn from(error: io::Error) -> Self {
        Self::Io { kind: error.kind(), text: error.to_string() }
    }
}

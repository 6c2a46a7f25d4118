//! Replays golden vectors and reports the largest deviation of every quantity.
//!
//! A directory of `.cgv` files is dispatched by file-name prefix to *families*; each family recomputes what its files
//! hold and records deviations in the [`Report`]. What counts as equal is the table "What equality means" of the
//! specification: most codec quantities are bit-exact (limit 0), annotations are one-sided, bounds have small relative
//! limits. A file that no family knows fails the replay: nothing is passed over.
use crate::cgv::{CgvError, Vectors};
pub use report::{Failure, Quantity, Report};
use std::{fmt, fs, io, path::Path};

mod bytes;
mod certificates;
mod codecs;
mod control;
mod formats;
mod gtq;
mod record_figures;
mod record_groups;
mod records;
mod report;
mod select;
mod spherical;
mod steps;
mod turbo;

/// How one prefix of files is replayed.
#[derive(Clone, Copy)]
pub(crate) struct Family {
    /// Start of the file names; the longest matching prefix wins.
    pub(crate) prefix: &'static str,
    /// Recomputes one file: its name without `.cgv`, its arrays, and the report to add to.
    pub(crate) replay: fn(&str, &Vectors, &mut Report) -> Result<(), ConformError>,
}

/// Every family of this build. A module that replays files exports its own `FAMILIES` and is added here.
const FAMILIES: &[&[Family]] = &[
    formats::FAMILIES,
    codecs::FAMILIES,
    turbo::FAMILIES,
    gtq::FAMILIES,
    spherical::FAMILIES,
    records::FAMILIES,
    bytes::FAMILIES,
    certificates::FAMILIES,
    select::FAMILIES,
    control::FAMILIES,
    steps::FAMILIES,
];

/// Why a replay could not be completed.
#[derive(Debug)]
pub enum ConformError {
    /// The directory or a file could not be read.
    Io {
        /// File or directory.
        path: String,
        /// Cause.
        source: io::Error,
    },
    /// A file is not a well-formed container, or lacks an array.
    Vectors {
        /// File name.
        file: String,
        /// Cause.
        source: CgvError,
    },
    /// The library refused the file's data.
    Refused {
        /// File name.
        file: String,
        /// What the library said.
        reason: String,
    },
}

impl fmt::Display for ConformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{path}: {source}"),
            Self::Vectors { file, source } => write!(f, "{file}: {source}"),
            Self::Refused { file, reason } => write!(f, "{file}: refused: {reason}"),
        }
    }
}
impl std::error::Error for ConformError {}

impl From<CgvError> for ConformError {
    fn from(source: CgvError) -> Self {
        Self::Vectors { file: String::new(), source }
    }
}

impl ConformError {
    /// The library refused data that it must accept.
    pub(crate) fn refused(reason: impl fmt::Display) -> Self {
        Self::Refused { file: String::new(), reason: reason.to_string() }
    }

    /// Names the file of an error raised inside a family.
    fn in_file(self, name: &str) -> Self {
        match self {
            Self::Vectors { source, .. } => Self::Vectors { file: name.to_owned(), source },
            Self::Refused { reason, .. } => Self::Refused { file: name.to_owned(), reason },
            e @ Self::Io { .. } => e,
        }
    }
}

/// Replays every `.cgv` file of a directory, in order of name.
///
/// # Errors
/// [`ConformError`] if a file cannot be read, is malformed, or holds data that the library refuses. Deviations are not
/// errors: see [`Report::passed`].
pub fn replay(dir: &Path) -> Result<Report, ConformError> {
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |source| ConformError::Io { path, source }
    };
    let mut paths = fs::read_dir(dir)
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>())
        .map_err(io(dir))?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "cgv"));
    paths.sort();
    let mut report = Report::default();
    for path in paths {
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        replay_bytes(&name, &fs::read(&path).map_err(io(&path))?, &mut report)?;
    }
    Ok(report)
}

/// Replays one file given as bytes; `name` is the file name without extension.
///
/// # Errors
/// As [`replay`].
pub fn replay_bytes(name: &str, bytes: &[u8], report: &mut Report) -> Result<(), ConformError> {
    let family =
        FAMILIES.iter().copied().flatten().filter(|f| name.starts_with(f.prefix)).max_by_key(|f| f.prefix.len());
    let Some(family) = family else {
        report.unknown.push(name.to_owned());
        return Ok(());
    };
    let run = |report: &mut Report| {
        let vectors = Vectors::parse(bytes)?;
        report.enter(name);
        (family.replay)(name, &vectors, report)
    };
    run(report).map_err(|e| e.in_file(name))
}

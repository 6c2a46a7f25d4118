//! Why a task file or a text was refused.
use std::{fmt, path::PathBuf};

/// What was wrong with a task file, a text, or a selection from them.
#[derive(Debug)]
pub enum TaskError {
    /// The file cannot be read, or is not whole gzip data.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not a prompt.
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The file holds no prompt at all.
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A selection asks for a task that is not in the file.
    UnknownTask {
        /// The task asked for.
        task: String,
        /// The tasks that are there.
        known: Vec<String>,
    },
    /// A selection leaves nothing.
    NothingSelected,
    /// A window of text is absurd: too short, or longer than the text.
    Window {
        /// Tokens asked for.
        length: usize,
        /// Bytes of the text part.
        available: usize,
    },
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "tasks: cannot read {}: {source}", path.display()),
            Self::Line { path, line, reason } => write!(f, "tasks: {}:{line}: {reason}", path.display()),
            Self::Empty { path } => write!(f, "tasks: {} holds no prompt", path.display()),
            Self::UnknownTask { task, known } => {
                write!(f, "tasks: no task `{task}`; there are {}", known.join(", "))
            }
            Self::NothingSelected => f.write_str("tasks: the selection leaves no prompt"),
            Self::Window { length, available } => {
                write!(
                    f,
                    "text: a window of {length} tokens does not fit a text part of {available} bytes (or is below 16)"
                )
            }
        }
    }
}

impl std::error::Error for TaskError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

//! What a command can end with, and the exit code of each.
use crate::{
    model::{AttentionError, ModelError},
    tasks::TaskError,
};
use std::fmt;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum CliError {
    /// A check that the command makes failed. Exit code 1.
    Check(String),
    /// The command line was not understood. Exit code 2.
    Usage(String),
    /// A file or value that the user gave was refused. Exit code 3.
    Input(Box<dyn std::error::Error + Send + Sync>),
    /// The program itself failed. Exit code 4.
    Internal(Box<dyn std::error::Error + Send + Sync>),
}

impl CliError {
    /// The documented exit code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Check(_) => 1,
            Self::Usage(_) => 2,
            Self::Input(_) => 3,
            Self::Internal(_) => 4,
        }
    }

    /// A refused input, by what refused it.
    pub fn refused(why: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Input(Box::new(why))
    }

    /// A refused input in words.
    pub fn input(reason: impl Into<String>) -> Self {
        Self::Input(reason.into().into())
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Check(why) => write!(f, "check failed: {why}"),
            Self::Usage(why) => write!(f, "{why}\nTry `certkv --help`."),
            Self::Input(e) => write!(f, "{e}"),
            Self::Internal(e) => write!(f, "internal error: {e}"),
        }
    }
}

impl std::error::Error for CliError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Input(e) | Self::Internal(e) => Some(e.as_ref()),
            _ => None,
        }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(e: lexopt::Error) -> Self {
        Self::Usage(e.to_string())
    }
}

impl From<TaskError> for CliError {
    fn from(e: TaskError) -> Self {
        Self::Input(Box::new(e))
    }
}

impl From<ModelError> for CliError {
    fn from(e: ModelError) -> Self {
        match e {
            ModelError::Tensor(_) | ModelError::Attention(AttentionError::Order(_) | AttentionError::Length { .. }) => {
                Self::Internal(Box::new(e))
            }
            e => Self::Input(Box::new(e)),
        }
    }
}

impl From<certkv_core::FormatError> for CliError {
    fn from(e: certkv_core::FormatError) -> Self {
        Self::Input(Box::new(e))
    }
}

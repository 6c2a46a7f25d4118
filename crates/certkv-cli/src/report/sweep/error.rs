//! Why a file of curves was refused.
use std::fmt;

/// What was wrong with a recorded sweep.
#[derive(Debug)]
pub enum SweepError {
    /// Not JSON, or not of this layout.
    Json(serde_json::Error),
    /// Another version of the layout.
    Schema {
        /// The version in the file.
        found: u32,
    },
    /// A field that cannot be.
    Field {
        /// Where it is, such as `curves[2].points[0].tolerance`.
        at: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for SweepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(e) => write!(f, "curves: {e}"),
            Self::Schema { found } => write!(f, "curves: schema {found}; only {} is read", super::data::SCHEMA),
            Self::Field { at, reason } => write!(f, "curves: {at} {reason}"),
        }
    }
}

impl std::error::Error for SweepError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(e) => Some(e),
            _ => None,
        }
    }
}

//! What a bound refuses to compute with.
use core::fmt;

/// Why an argument was refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BoundError {
    /// A slice has the wrong length.
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length given.
        got: usize,
        /// Length needed.
        need: usize,
    },
    /// A number is NaN, or infinite where only finite values (or `-inf` for a masked logit) have a meaning.
    NotFinite {
        /// Name of the argument.
        what: &'static str,
        /// Position of the first offender.
        index: usize,
    },
    /// No token is visible: there is no output, so there is no certificate either (math.md section 14).
    NothingVisible,
    /// Subtracting this block would cancel: it holds more than half of the sum, so recompute instead (6.11).
    Cancellation {
        /// Share of the sum that the block holds.
        share: f64,
    },
}

impl fmt::Display for BoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { what, got, need } => write!(f, "{what} has {got} entries, {need} are needed"),
            Self::NotFinite { what, index } => write!(f, "{what}[{index}] is NaN or infinite"),
            Self::NothingVisible => f.write_str("no token is visible"),
            Self::Cancellation { share } => {
                write!(f, "the block holds {share:.3} of the sum: recompute instead of subtracting")
            }
        }
    }
}
impl std::error::Error for BoundError {}

/// Refuses a slice whose length is not `need`.
pub(crate) fn length(what: &'static str, got: usize, need: usize) -> Result<(), BoundError> {
    if got == need { Ok(()) } else { Err(BoundError::Length { what, got, need }) }
}

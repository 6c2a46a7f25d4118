//! What a decision refuses to be made from.
use core::fmt;

/// Why no decision was made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ControlError {
    /// A slice has the wrong length.
    Length {
        /// Name of the argument.
        what: &'static str,
        /// Length given.
        got: usize,
        /// Length needed.
        need: usize,
    },
    /// A number is NaN, negative or without end where a mass, gain, cost or need was expected.
    Invalid {
        /// Name of the argument.
        what: &'static str,
        /// Position of the first offender.
        index: usize,
    },
    /// Taking every item does not reach the need.
    Infeasible,
    /// Not even the cheapest level of every item fits.
    BelowFloor {
        /// What those cost.
        floor: f64,
        /// What there is.
        budget: f64,
    },
    /// No widths have this sum.
    Bits {
        /// Bits asked for.
        budget: usize,
        /// Bits if all have the least width.
        floor: usize,
        /// Bits if all have the largest.
        ceiling: usize,
    },
    /// More items than a 32-bit index can name.
    TooMany(usize),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { what, got, need } => write!(f, "{what} has {got} entries, {need} are needed"),
            Self::Invalid { what, index } => write!(f, "{what}[{index}] is no number that it may be"),
            Self::Infeasible => f.write_str("all items together do not reach the need"),
            Self::BelowFloor { floor, budget } => write!(f, "a budget of {budget} is below the floor of {floor}"),
            Self::Bits { budget, floor, ceiling } => write!(f, "{budget} bits: possible are {floor} to {ceiling}"),
            Self::TooMany(n) => write!(f, "{n} items: at most 2^32 - 1 can be named"),
        }
    }
}
impl std::error::Error for ControlError {}

/// Refuses a slice whose length is not `need`.
pub(crate) fn length(what: &'static str, got: usize, need: usize) -> Result<(), ControlError> {
    if got == need { Ok(()) } else { Err(ControlError::Length { what, got, need }) }
}

/// Refuses NaN and negative entries.
pub(crate) fn non_negative(what: &'static str, x: &[f64]) -> Result<(), ControlError> {
    match x.iter().position(|&v| !(v >= 0.0)) {
        Some(index) => Err(ControlError::Invalid { what, index }),
        None => Ok(()),
    }
}

/// Refuses entries that are negative or not finite.
pub(crate) fn finite(what: &'static str, x: &[f64]) -> Result<(), ControlError> {
    let right = |v: f64| (0.0..f64::INFINITY).contains(&v);
    // Without a way out, so that several are looked at at once.
    if x.iter().fold(true, |all, v| all & right(*v)) {
        return Ok(());
    }
    let index = x.iter().position(|v| !right(*v)).unwrap_or(0);
    Err(ControlError::Invalid { what, index })
}

/// Refuses more items than a `u32` can name.
pub(crate) fn countable(items: usize) -> Result<(), ControlError> {
    if u32::try_from(items).is_ok() { Ok(()) } else { Err(ControlError::TooMany(items)) }
}

//! Moves that did not happen.
use certkv_device::{DeviceError, Fence};
use core::fmt;

/// Why one item did not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveCause {
    /// Every slot is pinned, being filled or retiring.
    Full,
    /// The item's bytes are not one slot.
    WrongSize {
        /// Bytes given.
        given: usize,
        /// Bytes of a slot.
        slot: usize,
    },
    /// The device refused a wait, a copy or a fence.
    Device(DeviceError),
}

/// A move that did not succeed whole. What did not move stays where it was; the rest is under way behind `fence`.
#[must_use = "the items that moved are ordered by the fence inside"]
#[derive(Debug, Clone)]
pub struct MoveError {
    /// Index in the batch and reason, ascending.
    pub not_moved: Vec<(usize, MoveCause)>,
    /// Passes when the items that did move are there; `None` if none did. Nothing else is in flight.
    pub fence: Option<Fence>,
}

impl MoveError {
    /// None of `n` items moved.
    pub(crate) fn all(n: usize, cause: MoveCause) -> Self {
        Self { not_moved: (0..n).map(|i| (i, cause)).collect(), fence: None }
    }
}

impl fmt::Display for MoveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("no slot is free or can be evicted"),
            Self::WrongSize { given, slot } => write!(f, "{given} bytes for a slot of {slot}"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} items did not move", self.not_moved.len())?;
        match self.not_moved.first() {
            Some((i, cause)) => write!(f, ", first item {i}: {cause}"),
            None => Ok(()),
        }
    }
}
impl std::error::Error for MoveError {}

//! The fence of a retired page, as a number that only the device understands.

/// A point in the device's work, issued by the device and opaque here.
///
/// A page is retired behind a stamp that covers *every* access to it: take the stamp after the last reference was given
/// up ([`Dropped::retire`](crate::Dropped::retire) takes it at the right moment), and from a fence that follows all
/// streams that may have touched the page. Two values are not the device's to give:
/// [`UNTOUCHED`](Self::UNTOUCHED) and [`IDLE`](Self::IDLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// No stream ever touched the page: passed without asking.
    pub const UNTOUCHED: Self = Self(0);
    /// Nobody recorded a fence (a step was dropped half-way, a table was dropped without release). The device says yes
    /// only when it has no work in flight at all.
    pub const IDLE: Self = Self(u64::MAX);
}

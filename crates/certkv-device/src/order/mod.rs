//! What orders accesses to memory, for the simulated device and for real streams: vector clocks, and per piece of memory who used it last.
mod clock;
mod history;
mod ranges;

pub(crate) use clock::VectorClock;
pub(crate) use history::History;
pub(crate) use ranges::Ranges;

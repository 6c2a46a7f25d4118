//! The simulated device: streams and fences on the calling thread, deterministic for a seed and a single caller.
mod device;
mod order;
mod report;
mod schedule;

pub use device::{Mode, SimDevice, SimOptions};
pub use report::CheckReport;
pub(crate) use schedule::Completion;

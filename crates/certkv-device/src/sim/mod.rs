//! The simulated device: streams and fences on the calling thread, deterministic for a seed and a single caller.
mod checker;
mod clock;
mod device;
mod order;
mod schedule;

pub use checker::CheckReport;
pub(crate) use checker::SlotHistory;
pub use device::{Mode, SimDevice, SimOptions};
pub(crate) use schedule::Completion;

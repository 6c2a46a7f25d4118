//! Device memory, streams, fences and copies, and the simulated device with its happens-before checker.
//!
//! The simulated device ([`SimDevice`]) is the production path on the CPU (`Mode::Eager`: an operation runs when it is
//! enqueued) and, with `Mode::Adversarial`, a test machine: copies wait in their streams and run at random legal times.
//! With `check` on, every access to a slot must be ordered after every earlier conflicting access by a stream, a fence
//! or an observed completion, whatever the mode happened to execute; that is the rule real hardware imposes.
//!
//! Rules of use, each of which the checker or a borrow word turns into an error:
//! - Memory is touched through guards only ([`Arena::read`], [`Arena::write`]) or through copies.
//! - Guards of a stream are dropped before a fence is recorded on it: the fence stands for *finished* accesses.
//! - A slot is reused only after a fence that covers its last use was waited for or seen to have passed.

mod arena;
mod borrow;
mod copy;
pub mod cuda;
mod error;
#[cfg(target_os = "linux")]
mod eventfd;
mod fence;
mod guard;
pub mod mailbox;
mod memory;
mod order;
mod sim;
mod stream;

pub use arena::{Arena, UNTAGGED};
pub use copy::{BatchError, Copy2d, Dst, Src};
pub use error::{Access, ArenaId, DeviceError, Held};
#[cfg(target_os = "linux")]
pub use eventfd::EventFd;
pub use fence::Fence;
pub use guard::{ReadGuard, WriteGuard};
pub use memory::{HostMemory, erased};
pub use sim::{CheckReport, Mode, SimDevice, SimOptions};
pub use stream::Stream;

//! Kernels on the GPU: which variants there are, from source to machine code, and loading all of it ahead of serving.
//!
//! A [`Variant`] is a record layout, the query heads of a KV head and a GPU architecture; every [`Verb`] is compiled for it
//! with those sizes as constants. A [`Compiler`] finds the machine code: code shipped ahead of time, then a cache on disk,
//! then NVRTC. [`Kernels::prepare`] loads everything that a configuration can launch, so that nothing is compiled or loaded
//! while tokens are being made; asking for what was not prepared is an error, never a pause.

mod ahead;
mod arch;
pub mod args;
mod cache;
pub mod close;
mod compile;
pub mod copies;
mod directions;
pub mod encode;
pub mod extend;
pub mod fixed;
pub mod forgive;
mod grouped;
pub mod importance;
pub mod ladder;
pub mod lane;
pub mod launch;
mod levelled;
pub mod losses;
pub mod measure;
pub mod metrics;
pub mod pack;
mod prepare;
pub mod protect;
pub mod publish;
pub mod queue;
pub mod rehome;
pub mod select;
mod sight;
mod source;
mod supported;
pub mod swap;
pub mod tensor;
mod touched;
mod turbo;
#[cfg(all(test, loom))]
mod turns_loom;
pub mod unite;
mod variant;

pub use ahead::Ahead;
pub use cache::seal;
pub use compile::{CompileError, Compiler, Cubin, Note, Origin, Recipe};
pub use prepare::{Kernels, PrepareError, Prepared};
pub use sight::Sight;
pub use source::Verb;
pub use variant::{Arch, Shape, Variant, VariantError};

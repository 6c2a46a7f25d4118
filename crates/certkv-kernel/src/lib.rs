//! The computations: attention on codes, dense attention, certificates; CPU.
//!
//! One pass ([`Kernel::attend`]) reads every block of one KV head once, for all query heads of its group, and leaves an
//! unnormalised output ([`Partial`]) and the masses ([`Masses`]) that the certificate needs ([`Kernel::certify`]). Cut in
//! two sweeps ([`Kernel::score`] over the keys, [`Kernel::gather`] over the values) it lets the caller decide between
//! them, with this step's masses, what to read exactly and which values not to read.
//! [`Kernel::repair`] corrects the result for newly promoted blocks; [`Kernel::prefill`] is causal attention over the
//! originals. The instruction set is chosen once ([`Arch`]); `arch/generic` is the plain algorithm. What the arithmetic
//! costs in accuracy is inside the bound: docs/kernels.md derives it.
#![allow(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::manual_clamp,
    clippy::needless_range_loop,
    reason = "every NaN fails closed, which the suggested forms hide; lane loops index several arrays"
)]

mod ahead;
mod arch;
mod attend;
mod block;
mod certify;
mod channel_values;
pub mod cuda;
mod directions;
mod error;
mod folded;
mod gather;
mod line;
mod load;
mod logits;
mod magnitude;
mod masses;
mod page_scale;
mod partial;
mod parts;
mod pool;
mod prefill;
pub mod probe;
mod query;
mod repair;
mod residuals;
mod rows;
mod score;
mod slack;
mod stage;
mod turbo;

pub use arch::Arch;
pub use attend::{Kernel, Workspace};
pub use block::{Block, BlockSource, Tail};
pub use certify::Certificate;
pub use error::KernelError;
pub use masses::{BlockTile, HeadTile, Mass, Masses, MassesMut, TILE};
pub use partial::Partial;
pub use pool::{Pool, splits};
pub use prefill::{Causal, CausalWindow, PrefillWork};
pub use repair::Repair;
pub use score::Scores;

//! Decisions of certkv: which blocks to read exactly, which to look at, and what to have ready for the next step.
//!
//! Pure and deterministic: every choice is a function of its arguments, computed in `f64`, with ties to the lower index.
//! No choice made here can invalidate a certificate (math.md Theorem 5.2 holds for any sets); a poor choice costs
//! bytes or a repair. Functions that run once per step and head take or own work buffers and allocate nothing once
//! those have grown to the largest size seen.
#![forbid(unsafe_code)]
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(rest <= eps) is how NaN fails closed")]

pub mod allocate;
pub mod bits;
pub mod bitset;
pub mod bound_budget;
pub mod calibration;
pub mod cover;
pub mod coverage;
pub mod danger;
pub mod error;
pub mod explore;
pub mod group_cover;
pub mod guess;
pub mod joint;
mod moves;
pub mod policy;
pub mod prices;
pub mod retention;
pub mod scales;
pub mod score;
pub mod seed000;
pub mod smartkv;
mod spent;
pub mod spherical;
mod standing;
pub mod tiles;
pub mod values;

pub use allocate::{Allocation, Allocator, Choices};
pub use bits::allocate_bits;
pub use bitset::BitSet;
pub use calibration::{Calibration, CalibrationError};
pub use cover::{Cover, CoverSolver};
pub use coverage::Coverage;
pub use danger::{Gate, danger};
pub use error::ControlError;
pub use group_cover::{Gains, GroupCover};
pub use policy::{Policy, PolicyError};
pub use prices::Prices;
pub use retention::Retention;
pub use score::{Energies, Score};
pub use standing::Standing;
pub use tiles::allocate_tiles;

//! Development aids: float64 oracle, golden-vector reader and replay, generators.
//!
//! Tests and the command line import this crate; the library itself never does.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cgv;
pub mod conform;
pub mod generate;
pub mod oracle;
mod side_by_side;

pub use side_by_side::{cores, side_by_side};

//! Decode attention of one layer, timed beside a plain memory read.
pub mod rows;
pub mod run;

pub use rows::{Row, render};
pub use run::{Plan, Shape, calibrations, run};

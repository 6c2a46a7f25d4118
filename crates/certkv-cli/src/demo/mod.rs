//! The demonstration: what it runs, and the defaults of the program.
pub mod defaults;
pub mod plan;

pub use plan::plan;

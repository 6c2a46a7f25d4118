//! What tolerance and format cost: certified modes as curves, and sweeps of them kept in a file.
pub mod build;
pub mod data;
pub mod error;
pub mod file;
pub mod table;

pub use data::{Curve, CurvePoint, LayerPoint, ReadShare, Sweep};
pub use error::SweepError;

//! Calibrations of Block-GTQ: a model reads a text, and what its queries and keys look like is kept.
mod evidence;
mod identity;
mod run;
mod table;
mod watch;

pub use evidence::{Captured, Coding, Measured, capture, measure};
pub use identity::{model_digest, text_digest};
pub use run::{Reading, heads, observe};
pub use table::{compared, evidence_table, summary};
pub use watch::{Rows, Watch};

//! Calibrations of Block-GTQ and codebooks of spherical keys: a model reads a text, and what its queries and keys look like is kept.
mod coding;
mod drift;
mod evidence;
mod identity;
mod run;
mod spherical;
mod table;
mod watch;

pub use coding::{Coding, stored, stored_values, ways};
pub use drift::{Drift, drift, drift_table};
pub use evidence::{BLOCK, Captured, Measured, Way, capture, measure};
pub(crate) use evidence::{TOP, divergence, log_sum, logits, originals, top};
pub use identity::{model_digest, text_digest};
pub use run::{Reading, Sequence, Spelled, heads, observe, watch};
pub use spherical::{codebook_summary, key_heads, random_words, spherical_way, train};
pub use table::{compared, evidence_table, summary};
pub use watch::{Pair, Rows, Watch};

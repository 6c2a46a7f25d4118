//! Key and value codecs: encoders, plain scalar references, error summaries and bytes.
//!
//! One module per codec, named like the codec. Each has three things: an encoder, a scalar use of the codes (`score`
//! for keys, `accumulate` for values), and the bound that goes with it (`delta`, `lambda`, or the step size whose half
//! is the error). All encoders compute in float64 from 16-bit inputs and round the metadata first, math.md section 2;
//! [`annotate`] measures the errors of the decoded block, math.md section 3; [`record`] writes both as the record that
//! the kernels read, and [`decode`] reads it back without any of the kernels' arithmetic.
#![forbid(unsafe_code)]

pub mod affine;
pub mod annotate;
pub mod bytes;
pub mod channel8;
pub mod codebook;
pub mod decode;
pub mod fp8;
pub mod groups;
pub mod gtq;
pub mod identity;
pub mod logit;
pub mod metric;
pub mod pack;
pub mod record;
pub mod refine;
pub mod rotation;
pub mod spherical;
pub mod token_sym;
pub mod turboquant;

mod error;
mod numeric;
mod page_scale;
mod planes;
mod words;

pub use error::{CodecError, Input};
pub use groups::KeyGroups;
pub use metric::KeyMetric;
pub use page_scale::FixedScales;
pub use record::Encoder;

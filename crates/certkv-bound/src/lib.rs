//! The inequalities of certkv: logit-error bounds, certificates, run-time checks and the ladder.
//!
//! Everything here is a pure function of numbers in `f64`: no clock, no lock, no input or output, and (apart from the
//! plain twin in [`stream`] and the audit in [`distribution`]) no allocation. What is certified is the distance of an
//! output from attention in exact real arithmetic over the stored 16-bit originals; `docs/bounds.md` lists every
//! inequality with its meaning, its function here and its test. Equation numbers refer to `docs/math.md`.
//!
//! One convention runs through all files: **NaN fails closed**. A NaN or negative annotation counts as `+inf`, and a
//! comparison with a tolerance is written `!(bound <= tol)`.
#![forbid(unsafe_code)]
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(bound <= tol) is how NaN fails closed")]

pub mod arith;
pub mod certificate;
pub mod checks;
pub mod distribution;
pub mod drop;
pub mod error;
pub mod exact_root;
pub mod ladder;
pub mod layer;
pub mod logit;
pub mod order;
pub mod published;
pub mod robust;
pub mod stream;
pub mod terms;
pub mod trivial;

pub use certificate::{BytesRead, Cause, Certificate, Rung, Status};
pub use error::BoundError;
pub use ladder::{Action, Situation};
pub use stream::{Annotation, Finished, Stream, Used};

//! A model of the Llama family on the CPU: configuration, weights, forward pass, and the attention it is given.
pub mod attention;
pub mod config;
pub mod error;
pub mod flat;
pub mod golden;
pub mod llama;
pub mod numpy_rng;
pub mod rope;
pub mod tape;
pub mod tokens;
pub mod twin;
pub mod weights;

pub use attention::{Attention, AttentionError, Pass};
pub use config::Config;
pub use error::ModelError;
pub use llama::{Llama, Rows};
pub use tokens::Tokens;

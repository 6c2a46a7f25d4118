//! The certkv program as a library: models, tasks, evaluation, statistics, reports and commands.
#![forbid(unsafe_code)]

pub mod assets;
pub mod bench;
pub mod calibrate;
pub mod commands;
pub mod demo;
pub mod engine;
pub mod error;
pub mod eval;
pub mod evidence;
pub mod gpu;
pub mod model;
pub mod output;
pub mod progress;
pub mod report;
mod sequence;
pub mod stats;
pub mod tasks;

pub use commands::run;
pub use error::CliError;

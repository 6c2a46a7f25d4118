//! The certkv program as a library: models, tasks, evaluation, statistics, reports and commands.
#![forbid(unsafe_code)]

pub mod model;
pub mod stats;
pub mod tasks;

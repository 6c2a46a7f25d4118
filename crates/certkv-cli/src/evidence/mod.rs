//! `certkv eval --sweep`: every method measured on one model, side by side, as one page and one file of figures.
mod codecs;
pub mod contenders;
pub mod data;
mod heads;
mod heap;
mod page;
pub mod plan;
mod retained;
mod segments;
mod setup;
mod smartkv;
mod spherical;
mod tiered;
mod widths;
mod witness;

pub use data::Evidence;
pub use page::page;
pub use plan::{Sizes, Text};
pub use setup::{Setup, Use};

use crate::error::CliError;
use data::SCHEMA;
use std::time::Instant;

/// Measures everything. `command` is the command line that asked for it.
///
/// # Errors
/// What the model, a cache, a codec or a controller says; nothing is returned then.
pub fn run(setup: &Setup, command: String) -> Result<Evidence, CliError> {
    let start = Instant::now();
    let runs = codecs::run(setup)?;
    let sections = vec![
        codecs::section(setup, &runs)?,
        widths::section(setup, &runs)?,
        smartkv::section(setup)?,
        spherical::section(setup)?,
    ];
    Ok(Evidence {
        schema: SCHEMA,
        command,
        machine: crate::report::sweep::build::machine(),
        model: setup.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        quick: setup.sizes == Sizes::QUICK,
        seeds: setup.seeds(),
        windows: setup.starts()?,
        seconds: start.elapsed().as_secs_f64().round(),
        sections,
    })
}

//! The figures of the page, one file each.
pub mod coverage;
pub mod curves;
pub mod errors;
pub mod heat;
pub mod hero;
pub mod memory;
pub mod numbers;
pub mod quality;
pub mod timeline;
pub mod transcripts;
pub mod words;

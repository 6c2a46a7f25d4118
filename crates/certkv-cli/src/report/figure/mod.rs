//! The figures of the page, one file each.
pub mod coverage;
pub mod errors;
pub mod heat;
pub mod hero;
pub mod memory;
pub mod numbers;
pub mod quality;
pub mod sweep;
pub mod timeline;
pub mod transcripts;
pub mod words;

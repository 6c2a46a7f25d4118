//! The certkv program.
#![forbid(unsafe_code)]
fn main() {}

//! The certkv program.
fn main() {}

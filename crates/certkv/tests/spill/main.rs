//! Originals in a store: outputs and bounds have the bits of a cache that keeps all of them in host memory, whatever lives its
//! sequences lead; whatever the store does, nobody reads another block's rows, nothing is lost, and nothing is left behind.
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod life;
mod places;
mod threads;
mod unruly;
mod window;

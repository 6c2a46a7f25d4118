//! The caches under test.
use crate::eval::{Engine, fake::FakeEngine};

/// The engine that every command uses.
pub fn engine(_threads: usize) -> Box<dyn Engine> {
    Box::new(FakeEngine)
}

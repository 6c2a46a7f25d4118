//! What an evaluation asks of a cache, and who makes caches.
use super::mode::Mode;
use crate::model::{Attention, AttentionError, Config, tape::Tape};
use serde::Serialize;

/// Bytes that a cache holds for one sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Tokens stored.
    pub tokens: usize,
    /// Packed pages: codes, scales, summaries, padding.
    pub packed: u64,
    /// Originals in device memory: open tails and promoted blocks.
    pub scratch: u64,
    /// Block tables and other bookkeeping in device memory.
    pub tables: u64,
    /// Originals on the host.
    pub host: u64,
}

impl Footprint {
    /// Device bytes of one token, everything counted; zero without tokens.
    pub fn per_token(&self) -> f64 {
        (self.packed + self.scratch + self.tables) as f64 / self.tokens.max(1) as f64
    }
}

/// A cache of one sequence under test.
pub trait Backend: Attention + Send {
    /// Empties the cache and takes a prompt over, as a prefill of the same rows would.
    ///
    /// # Errors
    /// When there is no room; the cache is then empty.
    fn load(&mut self, prompt: &Tape) -> Result<(), AttentionError>;

    /// Forgets the tokens from `length` on.
    ///
    /// # Errors
    /// When `length` is past the end.
    fn truncate(&mut self, length: usize) -> Result<(), AttentionError>;

    /// Bytes held now.
    fn footprint(&self) -> Footprint;
}

/// Makes caches.
pub trait Engine {
    /// An empty cache for up to `capacity` tokens of a model.
    ///
    /// # Errors
    /// When the mode does not fit the model, or memory is short.
    fn open(&mut self, mode: &Mode, config: &Config, capacity: usize) -> Result<Box<dyn Backend>, AttentionError>;
}

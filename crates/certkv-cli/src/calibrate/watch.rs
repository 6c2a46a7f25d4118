//! Shows the rows that attention is given to someone beside it.
use crate::model::{Attention, AttentionError, Pass};

/// Someone who looks at rows: layer, queries, keys and values of a chunk, token-major, after rotation.
pub trait Rows {
    /// Sees the rows of a chunk.
    ///
    /// # Errors
    /// Ends the pass.
    fn see(&mut self, layer: usize, q: &[f32], k: &[f32], v: &[f32]) -> Result<(), AttentionError>;
}

/// Two who look at the same rows.
pub struct Pair<'a>(pub &'a mut dyn Rows, pub &'a mut dyn Rows);

impl Rows for Pair<'_> {
    fn see(&mut self, layer: usize, q: &[f32], k: &[f32], v: &[f32]) -> Result<(), AttentionError> {
        self.0.see(layer, q, k, v)?;
        self.1.see(layer, q, k, v)
    }
}

/// An attention that passes every call on and shows `rows` what it saw.
pub struct Watch<'a> {
    inner: &'a mut dyn Attention,
    rows: &'a mut dyn Rows,
}

impl<'a> Watch<'a> {
    /// Shows `rows` what goes to `inner`.
    pub fn new(inner: &'a mut dyn Attention, rows: &'a mut dyn Rows) -> Self {
        Self { inner, rows }
    }
}

impl Attention for Watch<'_> {
    fn length(&self) -> usize {
        self.inner.length()
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        Ok(Box::new(Watched { inner: self.inner.begin(tokens)?, rows: self.rows }))
    }
}

/// A chunk that is watched.
struct Watched<'a> {
    inner: Box<dyn Pass + 'a>,
    rows: &'a mut dyn Rows,
}

impl Pass for Watched<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.inner.attend(layer, k, v, q, out)?;
        self.rows.see(layer, q, k, v)
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.inner.finish()
    }
}

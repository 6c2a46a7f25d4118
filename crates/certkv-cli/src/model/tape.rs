//! A record of the keys and values of a prefill, so that one prefill can fill several caches.
use super::attention::{Attention, AttentionError, Pass};
use certkv_bound::Certificate;
use half::f16;

/// Rows of one layer, half precision, token-major.
#[derive(Debug, Clone, Default)]
pub struct LayerRows {
    /// Keys after rotation, `[tokens][kv_width]`.
    pub keys: Vec<f16>,
    /// Values, `[tokens][kv_width]`.
    pub values: Vec<f16>,
}

/// Keys and values of a prompt, by layer. Kept in half precision, which is how every cache stores its originals:
/// rounding twice to the same type changes nothing.
#[derive(Debug, Clone, Default)]
pub struct Tape {
    /// One entry per layer.
    pub layers: Vec<LayerRows>,
    /// Tokens recorded.
    pub tokens: usize,
}

impl Tape {
    /// Writes the rows of a chunk of one layer down.
    ///
    /// # Errors
    /// [`AttentionError::Order`] for a layer past the end of the tape.
    pub fn push(&mut self, layer: usize, k: &[f32], v: &[f32]) -> Result<(), AttentionError> {
        let rows = self.layers.get_mut(layer).ok_or(AttentionError::Order("layer past the end of the tape"))?;
        rows.keys.extend(k.iter().map(|&x| f16::from_f32(x)));
        rows.values.extend(v.iter().map(|&x| f16::from_f32(x)));
        Ok(())
    }
}

/// An attention that passes every call on and writes what it saw to a [`Tape`].
pub struct Recorder<'a> {
    inner: &'a mut dyn Attention,
    tape: Tape,
}

impl<'a> Recorder<'a> {
    /// Records what goes to `inner`, a cache of `layers` layers.
    pub fn new(inner: &'a mut dyn Attention, layers: usize) -> Self {
        Self { inner, tape: Tape { layers: vec![LayerRows::default(); layers], tokens: 0 } }
    }

    /// The record.
    pub fn into_tape(self) -> Tape {
        self.tape
    }
}

impl Attention for Recorder<'_> {
    fn length(&self) -> usize {
        self.inner.length()
    }

    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError> {
        Ok(Box::new(Recording { inner: self.inner.begin(tokens)?, tape: &mut self.tape, tokens }))
    }
}

/// A chunk that is recorded.
struct Recording<'a> {
    inner: Box<dyn Pass + 'a>,
    tape: &'a mut Tape,
    tokens: usize,
}

impl Pass for Recording<'_> {
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError> {
        self.inner.attend(layer, k, v, q, out)?;
        self.tape.push(layer, k, v)
    }

    fn certificates(&self) -> &[Certificate] {
        self.inner.certificates()
    }

    fn finish(self: Box<Self>) -> Result<(), AttentionError> {
        self.inner.finish()?;
        self.tape.tokens += self.tokens;
        Ok(())
    }
}

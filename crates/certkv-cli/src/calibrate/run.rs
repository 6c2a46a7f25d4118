//! Runs a model over a text.
use super::watch::{Rows, Watch};
use crate::model::{AttentionError, Config, Llama, ModelError, flat::Flat, llama::CHUNK};
use certkv_control::CalibrationError;
use certkv_control::calibration::{Heads, Meter, Seen};
use certkv_core::Pairing;

/// The part of a text that is read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The bytes there are.
    pub text: &'a [u8],
    /// Tokens to read; what there is, up to [`Reading::TOKENS`], if none are named.
    pub tokens: Option<usize>,
    /// Most tokens of one sequence.
    pub context: usize,
}

impl<'a> Reading<'a> {
    /// Tokens that are read if the text has them: as many as the source paper's.
    pub const TOKENS: usize = 2048;

    /// The bytes of each sequence; every sequence has a token more, its first.
    ///
    /// # Errors
    /// [`CalibrationError::Tokens`] says how many tokens are needed.
    pub fn sequences(&self, positions: usize) -> Result<Vec<&'a [u8]>, CalibrationError> {
        let body = self.context.min(positions).saturating_sub(1).max(1);
        let have = self.text.len() + self.text.len().div_ceil(body);
        let least = Meter::LEAST_TOKENS as usize;
        let want = self.tokens.unwrap_or(Self::TOKENS.min(have)).max(least);
        if have < want {
            return Err(CalibrationError::Tokens { have: have as u64, need: want as u64 });
        }
        let (mut sequences, mut at, mut left) = (Vec::new(), 0, want);
        while left > 0 {
            let tokens = left.min(body + 1);
            sequences.push(&self.text[at..at + tokens - 1]);
            (at, left) = (at + tokens - 1, left - tokens);
        }
        Ok(sequences)
    }
}

/// The heads of a model, seen as pairs of `pairing`. All channels are turned.
pub fn heads(config: &Config, pairing: Pairing) -> Heads {
    let Config { layers, heads, kv_heads, head_dim, .. } = *config;
    Heads { layers, q_heads: heads, kv_heads, head_dim, rotary: head_dim, pairing }
}

/// Feeds `sequences` to the model, one after another, and shows `rows` its queries and keys. `done` is told of tokens as they are read.
///
/// # Errors
/// What the model or `rows` says.
pub fn watch(
    model: &Llama,
    sequences: &[&[u8]],
    rows: &mut dyn Rows,
    mut done: impl FnMut(usize),
) -> Result<(), ModelError> {
    for sequence in sequences {
        let mut cache = Flat::new(model.config());
        let mut watched = Watch::new(&mut cache, rows);
        for chunk in model.config().encode(sequence).chunks(CHUNK) {
            model.forward(chunk, &mut watched, crate::model::Rows::None)?;
            done(chunk.len());
        }
    }
    Ok(())
}

impl Rows for Meter {
    fn see(&mut self, layer: usize, q: &[f32], k: &[f32], _: &[f32]) -> Result<(), AttentionError> {
        self.add(layer, q, k).map_err(|e| AttentionError::Cache(Box::new(e)))
    }
}

/// What queries and keys look like over `sequences`, and the tokens read.
///
/// # Errors
/// What the model says; what [`Meter`] refuses comes out of it as [`AttentionError::Cache`].
pub fn observe(
    model: &Llama,
    heads: Heads,
    sequences: &[&[u8]],
    done: impl FnMut(usize),
) -> Result<(Vec<Seen>, u64), ModelError> {
    let refused = |e: CalibrationError| ModelError::Attention(AttentionError::Cache(Box::new(e)));
    let mut meter = Meter::new(heads).map_err(refused)?;
    watch(model, sequences, &mut meter, done)?;
    meter.finish().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_have_the_tokens_asked_for() {
        let text = vec![b'x'; 5000];
        let tokens = |tokens: Option<usize>, context: usize, length: usize| {
            let reading = Reading { text: &text[..length], tokens, context };
            let sequences = reading.sequences(32768)?;
            assert!(sequences.iter().all(|s| s.len() < context));
            Ok::<usize, CalibrationError>(sequences.iter().map(|s| s.len() + 1).sum())
        };
        assert_eq!(tokens(None, 4096, 5000), Ok(2048));
        assert_eq!(tokens(None, 4096, 100), Ok(101));
        assert_eq!(tokens(Some(5002), 4096, 5000), Ok(5002));
        assert_eq!(tokens(Some(300), 100, 5000), Ok(300));
        assert_eq!(tokens(Some(301), 100, 5000), Ok(301));
        assert_eq!(tokens(Some(5003), 4096, 5000), Err(CalibrationError::Tokens { have: 5002, need: 5003 }));
        assert_eq!(tokens(None, 4096, 0), Err(CalibrationError::Tokens { have: 0, need: 64 }));
        assert_eq!(tokens(None, 4096, 62), Err(CalibrationError::Tokens { have: 63, need: 64 }));
        assert_eq!(tokens(Some(10), 4096, 62), Err(CalibrationError::Tokens { have: 63, need: 64 }));
    }
}

//! Runs a model over a text.
use super::watch::{Rows, Watch};
use crate::model::{AttentionError, Config, Llama, ModelError, Tokens, flat::Flat, llama::CHUNK, tokens::Tokenized};
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

/// Tokens that a model reads at a stretch, what begins a text among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The bytes they stand for.
    pub text: &'a [u8],
}

impl AsRef<[u32]> for Sequence<'_> {
    fn as_ref(&self) -> &[u32] {
        &self.tokens
    }
}

/// A text in tokens, as much of it as is read.
#[derive(Debug, Clone)]
pub struct Spelled<'a> {
    reading: Reading<'a>,
    opening: Vec<u32>,
    found: Tokenized,
}

const LEAST: usize = Meter::LEAST_TOKENS as usize;

impl<'a> Reading<'a> {
    /// Tokens that are read if the text has them: as many as the source paper's.
    pub const TOKENS: usize = 2048;

    /// The text in tokens.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub fn spell(self, tokens: &Tokens) -> Result<Spelled<'a>, ModelError> {
        let wanted = self.tokens.unwrap_or(Self::TOKENS).max(LEAST);
        // Where a part ends within a word, its last tokens are not those of the whole.
        let (spare, mut bytes) = if tokens.are_bytes() { (0, wanted) } else { (16, wanted.saturating_mul(8)) };
        loop {
            let part = &self.text[..bytes.min(self.text.len())];
            let mut found = tokens.of(part)?;
            if part.len() < self.text.len() && found.tokens.len() < wanted + spare {
                bytes = bytes.saturating_mul(4);
                continue;
            }
            if part.len() < self.text.len() {
                found.tokens.truncate(wanted);
                found.ends.truncate(wanted);
            }
            return Ok(Spelled { reading: self, opening: tokens.opening()?, found });
        }
    }
}

impl<'a> Spelled<'a> {
    /// Its sequences, of at most the context and of `positions`; each begins as a text does.
    ///
    /// # Errors
    /// [`CalibrationError::Tokens`] says how many tokens are needed.
    pub fn sequences(&self, positions: usize) -> Result<Vec<Sequence<'a>>, CalibrationError> {
        let (opening, n) = (self.opening.len(), self.found.tokens.len());
        let body = self.reading.context.min(positions).saturating_sub(opening).max(1);
        let have = n + n.div_ceil(body) * opening;
        let want = self.reading.tokens.unwrap_or(Reading::TOKENS.min(have)).max(LEAST);
        if have < want {
            return Err(CalibrationError::Tokens { have: have as u64, need: want as u64 });
        }
        let (mut sequences, mut at, mut left, mut from) = (Vec::new(), 0, want, 0);
        while left > 0 {
            let count = left.min(body + opening);
            let own = count.saturating_sub(opening);
            let tokens = [&self.opening[..count - own], &self.found.tokens[at..at + own]].concat();
            let end = (at + own).checked_sub(1).map_or(0, |last| self.found.ends[last]);
            sequences.push(Sequence { tokens, text: &self.reading.text[from..end] });
            (at, left, from) = (at + own, left - count, end);
        }
        Ok(sequences)
    }
}

/// The heads of a model, seen as pairs of `pairing`.
pub fn heads(config: &Config, pairing: Pairing) -> Heads {
    let Config { layers, heads, kv_heads, head_dim, rotary, .. } = *config;
    Heads { layers, q_heads: heads, kv_heads, head_dim, rotary, pairing }
}

/// Feeds `sequences` to the model, one after another, and shows `rows` its queries and keys. `done` is told of tokens as they are read.
///
/// # Errors
/// What the model or `rows` says.
pub fn watch(
    model: &Llama,
    sequences: &[impl AsRef<[u32]>],
    rows: &mut dyn Rows,
    mut done: impl FnMut(usize),
) -> Result<(), ModelError> {
    for sequence in sequences {
        let mut cache = Flat::new(model.config());
        let mut watched = Watch::new(&mut cache, rows);
        for chunk in sequence.as_ref().chunks(CHUNK) {
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
    sequences: &[impl AsRef<[u32]>],
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
        let text: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        let tokens = |tokens: Option<usize>, context: usize, length: usize| {
            let reading = Reading { text: &text[..length], tokens, context };
            let sequences = reading.spell(&Tokens::Bytes { bos: 256 }).unwrap().sequences(32768)?;
            assert!(sequences.iter().all(|s| s.tokens.len() <= context && s.tokens.len() == s.text.len() + 1));
            let read: Vec<u8> = sequences.iter().flat_map(|s| s.text.to_vec()).collect();
            assert_eq!(read, text[..read.len()]);
            Ok::<usize, CalibrationError>(sequences.iter().map(|s| s.tokens.len()).sum())
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

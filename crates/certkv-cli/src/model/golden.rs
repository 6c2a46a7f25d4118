//! Golden logits: `golden.json` (prompts and first choices) and `golden.f32` (logits) beside a model.
use super::{
    attention::Attention,
    error::ModelError,
    llama::{Llama, Rows, argmax},
};
use serde::Deserialize;
use std::path::Path;

/// One prompt with its logits.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Input, BOS included.
    pub tokens: Vec<u32>,
    /// First choice after each token.
    pub argmax: Vec<usize>,
    /// Logits `[tokens][vocabulary]`.
    pub logits: Vec<f32>,
}

/// How far a model is from its golden logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviation {
    /// Largest absolute difference of a logit.
    pub worst: f32,
    /// Positions whose first choice differs.
    pub choices: usize,
    /// Positions compared.
    pub rows: usize,
}

#[derive(Deserialize)]
struct File {
    vocab: usize,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
    argmax: Vec<usize>,
}

/// Reads `<stem>.json` and `<stem>.f32`.
///
/// # Errors
/// [`ModelError::Read`], [`ModelError::Json`], or [`ModelError::Golden`] when the two do not fit each other.
pub fn read(folder: &Path, stem: &str) -> Result<Vec<Golden>, ModelError> {
    let open = |path: &Path| std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source });
    let json = folder.join(format!("{stem}.json"));
    let file: File = serde_json::from_slice(&open(&json)?).map_err(|source| ModelError::Json { path: json, source })?;
    let bytes = open(&folder.join(format!("{stem}.f32")))?;
    let rows: usize = file.prompts.iter().map(|p| p.tokens.len()).sum();
    if bytes.len() != rows * file.vocab * 4 || file.prompts.iter().any(|p| p.argmax.len() != p.tokens.len()) {
        return Err(ModelError::Golden(format!("{} bytes of logits for {rows} rows of {}", bytes.len(), file.vocab)));
    }
    let mut rest = bytes.as_slice();
    let mut golden = Vec::new();
    for Prompt { tokens, argmax } in file.prompts {
        let (mine, others) = rest.split_at(tokens.len() * file.vocab * 4);
        rest = others;
        let logits = mine.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        golden.push(Golden { tokens, argmax, logits });
    }
    Ok(golden)
}

/// Runs one golden prompt as a single chunk in the empty `cache` and compares.
///
/// # Errors
/// [`ModelError::Golden`] when the vocabulary differs, or what the model says.
pub fn compare(model: &Llama, golden: &Golden, cache: &mut dyn Attention) -> Result<Deviation, ModelError> {
    let vocabulary = model.config().vocabulary;
    if golden.logits.len() != golden.tokens.len() * vocabulary {
        return Err(ModelError::Golden(format!("not made for a vocabulary of {vocabulary}")));
    }
    let logits = model.forward(&golden.tokens, cache, Rows::All)?;
    let mut deviation = Deviation { worst: 0.0, choices: 0, rows: golden.tokens.len() };
    for (a, b) in logits.iter().zip(&golden.logits) {
        // A NaN must count as the worst, not vanish in `max`.
        let off = (a - b).abs();
        deviation.worst = if off.is_nan() { f32::INFINITY } else { deviation.worst.max(off) };
    }
    for (row, &want) in logits.chunks_exact(vocabulary).zip(&golden.argmax) {
        deviation.choices += usize::from(argmax(row) != want);
    }
    Ok(deviation)
}

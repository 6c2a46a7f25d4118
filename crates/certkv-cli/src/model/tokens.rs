//! From text to tokens and back.
use super::{config::Config, error::ModelError};
use std::path::Path;
use tokenizers::Tokenizer;

/// What a model's tokens are.
#[derive(Debug, Clone)]
pub enum Tokens {
    /// A byte each; a text begins with the token given.
    Bytes {
        /// That token.
        bos: u32,
    },
    /// Those of the folder's `tokenizer.json`.
    File(Box<Tokenizer>),
}

/// A text as a model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenized {
    /// Its tokens, without what begins a text.
    pub tokens: Vec<u32>,
    /// How many bytes the tokens up to and with each have; of a text that is not UTF-8 about so many, and never more than there are.
    pub ends: Vec<usize>,
}

/// Most tokens of a model whose tokens are bytes, the special ones included.
const BYTES: usize = 512;

impl Tokens {
    /// Those of a model folder: `tokenizer.json`, or bytes where there is none and the vocabulary has room for little else.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] for a file that is damaged, or missing where one is needed; [`ModelError::Config`] for bytes without `bos_token_id`.
    pub fn read(folder: &Path, config: &Config) -> Result<Self, ModelError> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Self::bytes(config);
        }
        // Truncation and padding are for batches of a fixed length; what is read here is read whole.
        let whole = Tokenizer::from_file(&path).and_then(|mut tokenizer| {
            tokenizer.with_truncation(None)?.with_padding(None);
            Ok(tokenizer)
        });
        match whole {
            Ok(tokenizer) => Ok(Self::File(Box::new(tokenizer))),
            Err(e) => Err(ModelError::Tokenizer { path, reason: format!("is not a tokenizer: {e}") }),
        }
    }

    /// A byte each.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] for a vocabulary that has no bytes or is too large to be of them, [`ModelError::Config`] where `bos_token_id` is missing.
    pub fn bytes(config: &Config) -> Result<Self, ModelError> {
        if !(256..=BYTES).contains(&config.vocabulary) {
            let reason = format!("is missing, and a vocabulary of {} is not one of bytes", config.vocabulary);
            return Err(ModelError::Tokenizer { path: "tokenizer.json".into(), reason });
        }
        let missing = ModelError::Config { field: "bos_token_id", reason: "is missing or not one number".into() };
        config.bos.map(|bos| Self::Bytes { bos }).ok_or(missing)
    }

    /// Whether tokens are bytes.
    pub const fn are_bytes(&self) -> bool {
        matches!(self, Self::Bytes { .. })
    }

    /// The tokens that begin every text; none for some models.
    ///
    /// # Errors
    /// [`ModelError::Text`]: what the tokenizer says.
    pub fn opening(&self) -> Result<Vec<u32>, ModelError> {
        match self {
            Self::Bytes { bos } => Ok(vec![*bos]),
            Self::File(tokenizer) => Ok(tokenizer.encode("", true).map_err(text)?.get_ids().to_vec()),
        }
    }

    /// The tokens of `bytes`. What is not UTF-8 is read as U+FFFD by a tokenizer.
    ///
    /// # Errors
    /// [`ModelError::Text`]: what the tokenizer says.
    pub fn of(&self, bytes: &[u8]) -> Result<Tokenized, ModelError> {
        let Self::File(tokenizer) = self else {
            return Ok(Tokenized {
                tokens: bytes.iter().map(|b| u32::from(*b)).collect(),
                ends: (1..=bytes.len()).collect(),
            });
        };
        let encoded = tokenizer.encode(String::from_utf8_lossy(bytes).as_ref(), false).map_err(text)?;
        // Tokens of one character name all of its bytes.
        let ends = encoded.get_offsets().iter().scan(0, |most: &mut usize, (_, end)| {
            *most = (*most).max((*end).min(bytes.len()));
            Some(*most)
        });
        Ok(Tokenized { tokens: encoded.get_ids().to_vec(), ends: ends.collect() })
    }

    /// The tokens of a text, from what begins it on: the input of the model.
    ///
    /// # Errors
    /// As [`Tokens::of`].
    pub fn encode(&self, bytes: &[u8]) -> Result<Vec<u32>, ModelError> {
        let mut tokens = self.opening()?;
        tokens.extend(self.of(bytes)?.tokens);
        Ok(tokens)
    }

    /// The input for `context`, and the tokens with which `rest` goes on behind it. Of a tokenizer those by which the whole differs from the context: a token
    /// that both are part of belongs to the rest.
    ///
    /// # Errors
    /// As [`Tokens::of`]; [`ModelError::Text`] too where `rest` adds no token, so that there would be nothing to answer.
    pub fn split(&self, context: &[u8], rest: &[u8]) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
        let (before, mut whole) = (self.encode(context)?, self.encode(&[context, rest].concat())?);
        let same = before.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        let behind = whole.split_off(same);
        if behind.is_empty() && !rest.is_empty() {
            return Err(ModelError::Text(format!(
                "{:?} adds no token to what stands before it",
                String::from_utf8_lossy(rest)
            )));
        }
        Ok((whole, behind))
    }

    /// What `tokens` say.
    ///
    /// # Errors
    /// [`ModelError::Text`]: what the tokenizer says.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, ModelError> {
        match self {
            Self::Bytes { .. } => {
                let bytes: Vec<u8> = tokens.iter().map(|t| u8::try_from(*t).unwrap_or(b'?')).collect();
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            Self::File(tokenizer) => tokenizer.decode(tokens, true).map_err(text),
        }
    }
}

fn text(e: tokenizers::Error) -> ModelError {
    ModelError::Text(e.to_string())
}

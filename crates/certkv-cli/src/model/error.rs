//! Why a model was refused or failed.
use super::attention::AttentionError;
use std::{fmt, path::PathBuf};

/// What was wrong with a model folder, or what failed while the model ran.
#[derive(Debug)]
pub enum ModelError {
    /// A file of the model folder cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A JSON file is not what it should be.
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// A field of `config.json` is missing or has a value that this program does not compute.
    Config {
        /// Name of the field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A safetensors file is malformed: truncated, overlapping, or with a bad header.
    Container {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: safetensors::SafeTensorError,
    },
    /// The index names a shard outside the model folder.
    Shard {
        /// The name as the index has it.
        name: String,
    },
    /// A tensor that the configuration calls for is in none of the files.
    Missing {
        /// Its name.
        tensor: String,
    },
    /// A tensor has another shape than the configuration implies.
    Shape {
        /// Its name.
        tensor: String,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// The file that says what tokens are is damaged, or missing where one is needed.
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A text has no tokens: what the tokenizer said.
    Text(String),
    /// A tensor is stored in a type other than F16, BF16 or F32.
    Dtype {
        /// Its name.
        tensor: String,
        /// The type in the file.
        found: String,
    },
    /// A weight is NaN or infinite.
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Index of the first such element.
        index: usize,
    },
    /// A token is outside the vocabulary.
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The sequence would grow past the positions that the model has.
    Positions {
        /// Length asked for.
        length: usize,
        /// `max_position_embeddings`.
        limit: usize,
    },
    /// The attention behind the model failed.
    Attention(AttentionError),
    /// The tensor library failed.
    Tensor(candle_core::Error),
    /// The golden logits do not fit the model.
    Golden(String),
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => write!(f, "model: cannot read {}: {source}", path.display()),
            Self::Json { path, source } => write!(f, "model: {} is not the expected JSON: {source}", path.display()),
            Self::Config { field, reason } => write!(f, "model: config.json: `{field}` {reason}"),
            Self::Container { path, source } => {
                write!(f, "model: {} is not a whole safetensors file: {source}", path.display())
            }
            Self::Shard { name } => write!(f, "model: the index names `{name}`, which is not a file of the folder"),
            Self::Missing { tensor } => write!(f, "model: tensor `{tensor}` is missing"),
            Self::Shape { tensor, expected, found } => {
                write!(f, "model: tensor `{tensor}` has shape {found:?}; config.json implies {expected:?}")
            }
            Self::Tokenizer { path, reason } => write!(f, "model: {} {reason}", path.display()),
            Self::Text(why) => write!(f, "text: {why}"),
            Self::Dtype { tensor, found } => {
                write!(f, "model: tensor `{tensor}` is stored as {found}; F16, BF16 and F32 are read")
            }
            Self::NotFinite { tensor, index } => {
                write!(f, "model: tensor `{tensor}` holds NaN or infinity at element {index}")
            }
            Self::Token { token, vocabulary } => {
                write!(f, "token {token} is outside the vocabulary of {vocabulary}")
            }
            Self::Positions { length, limit } => {
                write!(f, "a sequence of {length} tokens is longer than the model's {limit} positions")
            }
            Self::Attention(e) => write!(f, "{e}"),
            Self::Tensor(e) => write!(f, "tensor library: {e}"),
            Self::Golden(why) => write!(f, "golden logits: {why}"),
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Json { source, .. } => Some(source),
            Self::Container { source, .. } => Some(source),
            Self::Attention(e) => Some(e),
            Self::Tensor(e) => Some(e),
            _ => None,
        }
    }
}

impl From<AttentionError> for ModelError {
    fn from(e: AttentionError) -> Self {
        Self::Attention(e)
    }
}

impl From<candle_core::Error> for ModelError {
    fn from(e: candle_core::Error) -> Self {
        Self::Tensor(e)
    }
}

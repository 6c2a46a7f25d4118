//! What the forward pass asks of a KV cache.
use certkv_bound::Certificate;
use std::fmt;

/// A KV cache of one sequence, as the forward pass sees it.
///
/// A chunk of `n` tokens is one [`Pass`]: per layer in order one `attend`, then `finish`. A chunk of one token is a decode
/// step; a longer one is a causal prefill over the originals.
pub trait Attention {
    /// Tokens that are in the cache; the position of the next one.
    fn length(&self) -> usize;

    /// Opens a chunk of `tokens` tokens.
    ///
    /// # Errors
    /// When there is no room for it; the cache is as before.
    fn begin(&mut self, tokens: usize) -> Result<Box<dyn Pass + '_>, AttentionError>;
}

/// A chunk that is being computed. Dropped without `finish` it leaves no trace in the cache.
pub trait Pass {
    /// Appends the rows `k` and `v` of `layer` and attends with `q`; `out` is overwritten. Rows are token-major and
    /// contiguous: `k`, `v` are `[tokens][kv_heads * head_dim]` after rotation, `q` and `out` `[tokens][heads * head_dim]`.
    ///
    /// # Errors
    /// When a slice has the wrong length, a value is not finite, or the cache fails; the chunk is then lost.
    fn attend(&mut self, layer: usize, k: &[f32], v: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), AttentionError>;

    /// Certificates of the last `attend` of a decode step, one per query head; empty after a prefill, and for a cache
    /// that certifies nothing.
    fn certificates(&self) -> &[Certificate] {
        &[]
    }

    /// Closes the chunk: its tokens now count.
    ///
    /// # Errors
    /// When the cache cannot commit; the cache is then as before the chunk.
    fn finish(self: Box<Self>) -> Result<(), AttentionError>;
}

/// Why attention failed.
#[derive(Debug)]
pub enum AttentionError {
    /// A slice has the wrong length.
    Length {
        /// Which argument.
        argument: &'static str,
        /// Elements it must have.
        expected: usize,
        /// Elements it has.
        found: usize,
    },
    /// The calls came in the wrong order.
    Order(&'static str),
    /// The cache behind it failed.
    Cache(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for AttentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { argument, expected, found } => {
                write!(f, "attention: `{argument}` has {found} elements, expected {expected}")
            }
            Self::Order(what) => write!(f, "attention: {what}"),
            Self::Cache(e) => write!(f, "cache: {e}"),
        }
    }
}

impl std::error::Error for AttentionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Cache(e) => Some(e.as_ref()),
            _ => None,
        }
    }
}

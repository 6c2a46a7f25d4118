//! `config.json` of a Hugging Face Llama folder.
use super::error::ModelError;
use serde::Deserialize;
use std::path::Path;

/// The numbers of a Llama model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Channels of the residual stream.
    pub hidden: usize,
    /// Channels inside the feed-forward block.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Channels of one head.
    pub head_dim: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Longest sequence.
    pub positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square before its root.
    pub norm_eps: f64,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Token put before every text; for byte models 256.
    pub bos: u32,
}

/// The fields as they are in the file; what is absent stays `None` so that the refusal can name it.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    hidden_act: Option<String>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    rope_theta: Option<f64>,
    rope_scaling: Option<serde_json::Value>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    bos_token_id: Option<serde_json::Value>,
}

/// Sizes beyond these are not models but mistakes; the bounds keep every product of two sizes far from overflow.
const LARGEST: usize = 1 << 24;

fn refuse<T>(field: &'static str, reason: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Config { field, reason: reason.into() })
}

fn size(field: &'static str, value: Option<usize>) -> Result<usize, ModelError> {
    match value {
        None => refuse(field, "is missing"),
        Some(0) => refuse(field, "is zero"),
        Some(n) if n > LARGEST => refuse(field, format!("is {n}; at most {LARGEST} is read")),
        Some(n) => Ok(n),
    }
}

impl Config {
    /// Reads `config.json` of `folder`.
    ///
    /// # Errors
    /// [`ModelError`] names the file or the field at fault.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let raw: Raw = serde_json::from_str(&text).map_err(|source| ModelError::Json { path, source })?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: Raw) -> Result<Self, ModelError> {
        match raw.model_type.as_deref() {
            Some("llama") => {}
            Some(other) => return refuse("model_type", format!("is `{other}`; only `llama` is computed")),
            None => return refuse("model_type", "is missing"),
        }
        match raw.hidden_act.as_deref() {
            Some("silu") | None => {}
            Some(other) => return refuse("hidden_act", format!("is `{other}`; only `silu` is computed")),
        }
        if raw.rope_scaling.as_ref().is_some_and(|s| !s.is_null()) {
            return refuse("rope_scaling", "is set; only unscaled rotary positions are computed");
        }
        if raw.attention_bias == Some(true) {
            return refuse("attention_bias", "is true; biases are not computed");
        }
        if raw.mlp_bias == Some(true) {
            return refuse("mlp_bias", "is true; biases are not computed");
        }
        let hidden = size("hidden_size", raw.hidden_size)?;
        let heads = size("num_attention_heads", raw.num_attention_heads)?;
        let kv_heads = size("num_key_value_heads", raw.num_key_value_heads.or(Some(heads)))?;
        if !heads.is_multiple_of(kv_heads) {
            return refuse("num_key_value_heads", format!("is {kv_heads}, which does not divide {heads} query heads"));
        }
        let head_dim = size("head_dim", raw.head_dim.or(Some(hidden / heads)))?;
        if !head_dim.is_multiple_of(2) {
            return refuse("head_dim", format!("is {head_dim}; rotation needs pairs"));
        }
        let rope_theta = raw.rope_theta.unwrap_or(10_000.0);
        if !(rope_theta > 1.0 && rope_theta.is_finite()) {
            return refuse("rope_theta", format!("is {rope_theta}; must be finite and above 1"));
        }
        let Some(norm_eps) = raw.rms_norm_eps else { return refuse("rms_norm_eps", "is missing") };
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return refuse("rms_norm_eps", format!("is {norm_eps}; must be between 0 and 1"));
        }
        let vocabulary = size("vocab_size", raw.vocab_size)?;
        let bos = match raw.bos_token_id.as_ref().and_then(serde_json::Value::as_u64) {
            Some(n) if (n as usize) < vocabulary => n as u32,
            Some(n) => return refuse("bos_token_id", format!("is {n}, outside the vocabulary of {vocabulary}")),
            None => return refuse("bos_token_id", "is missing or not one number"),
        };
        Ok(Self {
            hidden,
            intermediate: size("intermediate_size", raw.intermediate_size)?,
            layers: size("num_hidden_layers", raw.num_hidden_layers)?,
            heads,
            kv_heads,
            head_dim,
            vocabulary,
            positions: size("max_position_embeddings", raw.max_position_embeddings)?,
            rope_theta,
            norm_eps,
            tied: raw.tie_word_embeddings.unwrap_or(false),
            bos,
        })
    }

    /// Elements of one token's query row: `heads * head_dim`.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of one token's key (or value) row: `kv_heads * head_dim`.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Bytes of one token in a half-precision cache, keys and values of all layers.
    pub fn dense_bytes_per_token(&self) -> usize {
        2 * 2 * self.layers * self.kv_width()
    }

    /// BOS, then the bytes of `text`: the input of a byte model.
    pub fn encode(&self, text: &[u8]) -> Vec<u32> {
        std::iter::once(self.bos).chain(text.iter().map(|&b| u32::from(b))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> Result<Config, ModelError> {
        let mut value = serde_json::json!({
            "model_type": "llama", "hidden_size": 320, "intermediate_size": 768, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 264,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "bos_token_id": 256
        });
        edit(value.as_object_mut().unwrap());
        Config::from_raw(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn every_refusal_names_its_field() {
        assert!(parse(|_| {}).is_ok());
        let cases: [(&str, serde_json::Value); 10] = [
            ("model_type", "gpt2".into()),
            ("hidden_act", "gelu".into()),
            ("hidden_size", 0.into()),
            ("intermediate_size", serde_json::Value::Null),
            ("num_key_value_heads", 3.into()),
            ("head_dim", 127.into()),
            ("vocab_size", (1u64 << 40).into()),
            ("rope_scaling", serde_json::json!({"factor": 8.0})),
            ("rms_norm_eps", 0.0.into()),
            ("bos_token_id", 264.into()),
        ];
        for (name, bad) in cases {
            match parse(|c| {
                c.insert(name.into(), bad.clone());
            }) {
                Err(ModelError::Config { field, .. }) => assert_eq!(field, name),
                other => panic!("{name} = {bad} gave {other:?}"),
            }
        }
    }
}

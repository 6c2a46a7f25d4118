//! `config.json` of a Hugging Face folder of the Llama family.
use super::error::ModelError;
use super::rope::Scaling;
use serde::Deserialize;
use std::path::Path;

/// What is done to rows before attention and before the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// Divided by the root of their mean square, times a weight.
    Rms,
    /// Less their mean, divided by their deviation, times a weight, plus another.
    Layer,
}

/// The numbers of a model.
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
    /// Channels of a head that positions turn, the first ones.
    pub rotary: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Longest sequence: no longer than a window of attention, which is not computed.
    pub positions: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are stretched.
    pub scaling: Scaling,
    /// Norm of rows.
    pub norm: Norm,
    /// Added to the mean square, or the variance, before its root.
    pub norm_eps: f64,
    /// Whether queries, keys and values have biases.
    pub biases: bool,
    /// Whether the output of attention has one.
    pub output_bias: bool,
    /// Whether each head of queries and keys has its own norm, [`Norm::Rms`], before it is turned.
    pub head_norms: bool,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Token put before every text by byte models.
    pub bos: Option<u32>,
}

impl Config {
    /// Kinds of models that are computed, as `model_type` names them.
    pub const TYPES: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "stablelm"];

    /// A Llama of `heads` query heads in each of `layers`, for 64 positions; the sizes outside attention are the least there are.
    pub const fn shape(layers: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            hidden: heads * head_dim,
            intermediate: 1,
            layers,
            heads,
            kv_heads,
            head_dim,
            rotary: head_dim,
            vocabulary: 1,
            positions: 64,
            rope_theta: 1e4,
            scaling: Scaling::None,
            norm: Norm::Rms,
            norm_eps: 1e-5,
            biases: false,
            output_bias: false,
            head_norms: false,
            tied: true,
            bos: None,
        }
    }
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
    rope_scaling: Option<RawRope>,
    /// Where newer files have what `rope_scaling`, `rope_theta` and `partial_rotary_factor` say.
    rope_parameters: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
    rms_norm_eps: Option<f64>,
    layer_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    use_qkv_bias: Option<bool>,
    mlp_bias: Option<bool>,
    qk_layernorm: Option<bool>,
    use_parallel_residual: Option<bool>,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    bos_token_id: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
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
        let kind = match raw.model_type.as_deref() {
            Some(kind) if Self::TYPES.contains(&kind) => kind,
            Some(other) => {
                return refuse("model_type", format!("is `{other}`; computed are {}", Self::TYPES.join(", ")));
            }
            None => return refuse("model_type", "is missing"),
        };
        match raw.hidden_act.as_deref() {
            Some("silu") | None => {}
            Some(other) => return refuse("hidden_act", format!("is `{other}`; only `silu` is computed")),
        }
        for (field, set) in [
            ("mlp_bias", raw.mlp_bias),
            ("qk_layernorm", raw.qk_layernorm),
            ("use_parallel_residual", raw.use_parallel_residual),
        ] {
            if set == Some(true) {
                return refuse(field, "is true; that is not computed");
            }
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
        let newer = raw.rope_parameters.unwrap_or_default();
        let rope_theta = raw.rope_theta.or(newer.rope_theta).unwrap_or(10_000.0);
        if !(rope_theta > 1.0 && rope_theta.is_finite()) {
            return refuse("rope_theta", format!("is {rope_theta}; must be finite and above 1"));
        }
        // StableLM turns a quarter where nothing is said.
        let turned = raw.partial_rotary_factor.or(newer.partial_rotary_factor);
        let turned = turned.unwrap_or(if kind == "stablelm" { 0.25 } else { 1.0 });
        let rotary = (turned * head_dim as f64) as usize;
        if !(turned > 0.0 && turned <= 1.0) || rotary == 0 || !rotary.is_multiple_of(2) {
            let reason =
                format!("is {turned}, so that {rotary} of {head_dim} channels are turned; must be pairs of them");
            return refuse("partial_rotary_factor", reason);
        }
        let longest = size("max_position_embeddings", raw.max_position_embeddings)?;
        let scaling = raw.rope_scaling.unwrap_or(newer).scaling(longest)?;
        let (norm, field, eps) = match kind {
            "stablelm" => (Norm::Layer, "layer_norm_eps", raw.layer_norm_eps.or(Some(1e-5))),
            _ => (Norm::Rms, "rms_norm_eps", raw.rms_norm_eps),
        };
        let Some(norm_eps) = eps else { return refuse(field, "is missing") };
        if !(norm_eps > 0.0 && norm_eps < 1.0) {
            return refuse(field, format!("is {norm_eps}; must be between 0 and 1"));
        }
        let vocabulary = size("vocab_size", raw.vocab_size)?;
        let bos = match raw.bos_token_id.as_ref().and_then(serde_json::Value::as_u64) {
            Some(n) if (n as usize) < vocabulary => Some(n as u32),
            Some(n) => return refuse("bos_token_id", format!("is {n}, outside the vocabulary of {vocabulary}")),
            None => None,
        };
        // Qwen names a window and says beside it that it is not used.
        let window = raw.sliding_window.filter(|_| raw.use_sliding_window.unwrap_or(kind == "mistral"));
        let (biases, output_bias) = match kind {
            "qwen2" => (true, false),
            "stablelm" => (raw.use_qkv_bias.unwrap_or(false), false),
            _ => (raw.attention_bias.unwrap_or(false), raw.attention_bias.unwrap_or(false)),
        };
        Ok(Self {
            hidden,
            intermediate: size("intermediate_size", raw.intermediate_size)?,
            layers: size("num_hidden_layers", raw.num_hidden_layers)?,
            heads,
            kv_heads,
            head_dim,
            rotary,
            vocabulary,
            positions: longest.min(window.map_or(Ok(longest), |window| size("sliding_window", Some(window)))?),
            rope_theta,
            scaling,
            norm,
            norm_eps,
            biases,
            output_bias,
            head_norms: kind == "qwen3",
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
}

impl RawRope {
    /// What is said of frequencies, of a model of `longest` positions.
    fn scaling(&self, longest: usize) -> Result<Scaling, ModelError> {
        let positive = |field: &'static str, value: Option<f64>| match value {
            None => refuse(field, "is missing, beside `rope_scaling`"),
            Some(x) if x > 0.0 && x.is_finite() => Ok(x),
            Some(x) => refuse(field, format!("is {x}; must be finite and above 0")),
        };
        let factor = || positive("factor", self.factor);
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear { factor: factor()? }),
            Some("llama3") => {
                let low = positive("low_freq_factor", self.low_freq_factor)?;
                let high = positive("high_freq_factor", self.high_freq_factor)?;
                if high <= low {
                    return refuse("high_freq_factor", format!("is {high}, not above `low_freq_factor`, {low}"));
                }
                let original = positive("original_max_position_embeddings", self.original_max_position_embeddings)?;
                Ok(Scaling::Llama3 { factor: factor()?, low, high, original })
            }
            Some("yarn") => {
                let factor = factor()?;
                let of = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
                let attention = self.attention_factor.unwrap_or_else(|| match (self.mscale, self.mscale_all_dim) {
                    (Some(one), Some(all)) if one != 0.0 && all != 0.0 => of(one) / of(all),
                    _ => of(1.0),
                });
                let original = self.original_max_position_embeddings.unwrap_or(longest as f64);
                Ok(Scaling::Yarn {
                    factor,
                    fast: positive("beta_fast", self.beta_fast.or(Some(32.0)))?,
                    slow: positive("beta_slow", self.beta_slow.or(Some(1.0)))?,
                    original: positive("original_max_position_embeddings", Some(original))?,
                    attention: positive("attention_factor", Some(attention))?,
                })
            }
            Some(other) => {
                refuse("rope_scaling", format!("is of type `{other}`; default, linear, llama3 and yarn are computed"))
            }
        }
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
        let cases: [(&str, serde_json::Value); 13] = [
            ("model_type", "gpt2".into()),
            ("hidden_act", "gelu".into()),
            ("hidden_size", 0.into()),
            ("intermediate_size", serde_json::Value::Null),
            ("num_key_value_heads", 3.into()),
            ("head_dim", 127.into()),
            ("vocab_size", (1u64 << 40).into()),
            ("rope_scaling", serde_json::json!({"rope_type": "longrope", "factor": 8.0})),
            ("partial_rotary_factor", 1.5.into()),
            ("partial_rotary_factor", 0.001.into()),
            ("mlp_bias", true.into()),
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

    #[test]
    fn what_frequencies_need_is_asked_for() {
        let of = |rope: serde_json::Value| parse(|c| drop(c.insert("rope_scaling".into(), rope)));
        let llama3 = serde_json::json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192
        });
        let expected = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        assert_eq!(of(llama3.clone()).unwrap().scaling, expected);
        for field in ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"] {
            let mut less = llama3.clone();
            less.as_object_mut().unwrap().remove(field);
            assert!(matches!(of(less), Err(ModelError::Config { field: named, .. }) if named == field), "{field}");
        }
        let yarn = of(serde_json::json!({"type": "yarn", "factor": 4.0})).unwrap().scaling;
        let attention = 0.1 * 4f64.ln() + 1.0;
        assert_eq!(yarn, Scaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, original: 32768.0, attention });
        assert_eq!(of(serde_json::json!({"rope_type": "default"})).unwrap().scaling, Scaling::None);
        // Newer files have all of it in one place.
        let newer = parse(|c| {
            let rope = serde_json::json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5});
            c.insert("rope_parameters".into(), rope);
        });
        let newer = newer.unwrap();
        assert_eq!((newer.scaling, newer.rope_theta), (Scaling::Linear { factor: 2.0 }, 5e5));
    }

    #[test]
    fn families_differ_where_they_do() {
        let of = |kind: &str, more: serde_json::Value| {
            parse(|c| {
                c.insert("model_type".into(), kind.into());
                c.extend(more.as_object().unwrap().clone());
            })
            .unwrap()
        };
        let none = serde_json::json!({});
        let llama = of("llama", none.clone());
        assert!(!llama.biases && !llama.output_bias && !llama.head_norms && llama.rotary == 128);
        let biased = of("llama", serde_json::json!({"attention_bias": true}));
        assert!(biased.biases && biased.output_bias);
        let qwen2 = of("qwen2", serde_json::json!({"sliding_window": 4096, "use_sliding_window": false}));
        assert!(qwen2.biases && !qwen2.output_bias && qwen2.positions == 32768);
        assert!(of("qwen3", none.clone()).head_norms);
        assert_eq!(of("mistral", serde_json::json!({"sliding_window": 4096})).positions, 4096);
        let blind = parse(|c| {
            c.extend([("model_type".into(), "mistral".into()), ("sliding_window".into(), 0.into())]);
        });
        assert!(matches!(blind, Err(ModelError::Config { field: "sliding_window", .. })));
        let stable = of("stablelm", serde_json::json!({"use_qkv_bias": true}));
        assert_eq!((stable.norm, stable.rotary, stable.biases), (Norm::Layer, 32, true));
        assert_eq!(of("stablelm", serde_json::json!({"partial_rotary_factor": 0.5})).rotary, 64);
        let silent = parse(|c| drop(c.insert("bos_token_id".into(), serde_json::Value::Null)));
        assert_eq!(silent.unwrap().bos, None);
    }
}

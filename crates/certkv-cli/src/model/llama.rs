//! The forward pass. Weights, products, norms and rotation are candle's; attention is the caller's.
use super::{
    attention::Attention,
    config::{Config, Norm},
    error::ModelError,
    rope::Rope,
    tokens::Tokens,
    weights::{Weight, Weights},
};
use candle_core::{CpuStorage, D, Device, Storage, Tensor};
use candle_nn::{ops, rotary_emb};
use std::path::Path;

/// Tokens per chunk of a prefill: enough rows for the products to run at full speed, few enough that the
/// intermediate rows stay in the cache.
pub const CHUNK: usize = 512;

/// Of which tokens of a chunk the logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// None: the chunk only fills the cache.
    None,
    /// The last token.
    Last,
    /// Every token.
    All,
}

/// A norm's weight, and what it adds where it has a bias.
struct Normed {
    weight: Tensor,
    bias: Option<Tensor>,
}

struct Layer {
    attention_norm: Normed,
    /// Query, key and value matrices on top of each other, transposed: one product instead of three.
    qkv: Tensor,
    qkv_bias: Option<Tensor>,
    /// Norms of every head of queries and of keys.
    head_norms: Option<[Tensor; 2]>,
    output: Tensor,
    output_bias: Option<Tensor>,
    mlp_norm: Normed,
    /// Gate and up matrices on top of each other, transposed.
    gate_up: Tensor,
    down: Tensor,
}

/// A model of the Llama family, single precision on the CPU.
pub struct Llama {
    config: Config,
    tokens: Tokens,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Normed,
    head: Tensor,
    rope: Rope,
}

fn tensor(weight: &Weight) -> Result<Tensor, ModelError> {
    Ok(Tensor::from_slice(&weight.data, weight.shape.as_slice(), &Device::Cpu)?)
}

/// Rows of several matrices with the same number of columns, stacked and seen transposed.
fn stacked(parts: &[&Weight]) -> Result<Tensor, ModelError> {
    let columns = parts[0].shape[1];
    let data: Vec<f32> = parts.iter().flat_map(|w| w.data.iter().copied()).collect();
    let rows = data.len() / columns;
    Ok(Tensor::from_vec(data, (rows, columns), &Device::Cpu)?.t()?)
}

/// Several vectors, one behind the other.
fn joined(parts: &[&Weight]) -> Result<Tensor, ModelError> {
    let data: Vec<f32> = parts.iter().flat_map(|w| w.data.iter().copied()).collect();
    let n = data.len();
    Ok(Tensor::from_vec(data, n, &Device::Cpu)?)
}

impl Normed {
    fn load(weights: &Weights, config: &Config, name: &str) -> Result<Self, ModelError> {
        let get = |part: &str| tensor(weights.get(&format!("{name}.{part}"), &[config.hidden])?);
        let bias = if config.norm == Norm::Layer { Some(get("bias")?) } else { None };
        Ok(Self { weight: get("weight")?, bias })
    }

    fn apply(&self, x: &Tensor, eps: f64) -> Result<Tensor, ModelError> {
        Ok(match &self.bias {
            None => ops::rms_norm(x, &self.weight, eps as f32)?,
            Some(bias) => ops::layer_norm(x, &self.weight, bias, eps as f32)?,
        })
    }
}

impl Layer {
    fn load(weights: &Weights, config: &Config, layer: usize) -> Result<Self, ModelError> {
        let (hidden, inner) = (config.hidden, config.intermediate);
        let (q, kv, dim) = (config.q_width(), config.kv_width(), config.head_dim);
        let name = |name: &str| format!("model.layers.{layer}.{name}");
        let get = |part: &str, shape: &[usize]| weights.get(&name(&format!("{part}.weight")), shape);
        let bias = |part: &str, width: usize| weights.get(&name(&format!("{part}.bias")), &[width]);
        let mut of = Self {
            attention_norm: Normed::load(weights, config, &name("input_layernorm"))?,
            qkv: stacked(&[
                get("self_attn.q_proj", &[q, hidden])?,
                get("self_attn.k_proj", &[kv, hidden])?,
                get("self_attn.v_proj", &[kv, hidden])?,
            ])?,
            qkv_bias: None,
            head_norms: None,
            output: stacked(&[get("self_attn.o_proj", &[hidden, q])?])?,
            output_bias: None,
            mlp_norm: Normed::load(weights, config, &name("post_attention_layernorm"))?,
            gate_up: stacked(&[get("mlp.gate_proj", &[inner, hidden])?, get("mlp.up_proj", &[inner, hidden])?])?,
            down: stacked(&[get("mlp.down_proj", &[hidden, inner])?])?,
        };
        if config.biases {
            let parts = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)];
            let [q, k, v] = parts.map(|(part, width)| bias(part, width));
            of.qkv_bias = Some(joined(&[q?, k?, v?])?);
        }
        if config.output_bias {
            of.output_bias = Some(tensor(bias("self_attn.o_proj", hidden)?)?);
        }
        if config.head_norms {
            of.head_norms =
                Some([tensor(get("self_attn.q_norm", &[dim])?)?, tensor(get("self_attn.k_norm", &[dim])?)?]);
        }
        Ok(of)
    }
}

fn plus(x: Tensor, bias: Option<&Tensor>) -> Result<Tensor, ModelError> {
    Ok(bias.map_or(Ok(x.clone()), |bias| x.broadcast_add(bias))?)
}

impl Llama {
    /// Loads a folder in the Hugging Face layout: `config.json`, `model.safetensors` (or its shards) and, but for models of bytes, `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError`] names the file, field or tensor at fault.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let config = Config::read(folder)?;
        let tokens = Tokens::read(folder, &config)?;
        Self::with_tokens(config, tokens, &Weights::read(folder)?)
    }

    /// Assembles a model of bytes from its configuration and tensors.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`] for a tensor that does not fit `config`; as [`Tokens::bytes`].
    pub fn new(config: Config, weights: &Weights) -> Result<Self, ModelError> {
        let tokens = Tokens::bytes(&config)?;
        Self::with_tokens(config, tokens, weights)
    }

    /// Assembles a model.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`] for a tensor that does not fit `config`.
    pub fn with_tokens(config: Config, tokens: Tokens, weights: &Weights) -> Result<Self, ModelError> {
        let embed = weights.get("model.embed_tokens.weight", &[config.vocabulary, config.hidden])?;
        let embedding = tensor(embed)?;
        let head = if config.tied {
            stacked(&[embed])?
        } else {
            stacked(&[weights.get("lm_head.weight", &[config.vocabulary, config.hidden])?])?
        };
        let layers = (0..config.layers).map(|layer| Layer::load(weights, &config, layer)).collect::<Result<_, _>>()?;
        let norm = Normed::load(weights, &config, "model.norm")?;
        let rope = Rope::new(config.rotary, config.rope_theta, config.scaling);
        Ok(Self { config, tokens, embedding, layers, norm, head, rope })
    }

    /// From text to tokens and back.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The model's numbers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Runs one chunk of tokens that follow what `cache` holds; logits `[rows][vocabulary]` as asked by `rows`.
    ///
    /// # Errors
    /// [`ModelError::Token`] and [`ModelError::Positions`] before anything is touched; otherwise what the cache says.
    pub fn forward(&self, tokens: &[u32], cache: &mut dyn Attention, rows: Rows) -> Result<Vec<f32>, ModelError> {
        let c = &self.config;
        let (n, start) = (tokens.len(), cache.length());
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= c.vocabulary) {
            return Err(ModelError::Token { token, vocabulary: c.vocabulary });
        }
        if start + n > c.positions {
            return Err(ModelError::Positions { length: start + n, limit: c.positions });
        }
        if n == 0 {
            return Ok(Vec::new());
        }
        let mut pass = cache.begin(n)?;
        let (cos, sin) = self.rope.table(start, n);
        let half = c.rotary / 2;
        let cos = Tensor::from_vec(cos, (n, half), &Device::Cpu)?;
        let sin = Tensor::from_vec(sin, (n, half), &Device::Cpu)?;
        let ids = Tensor::from_slice(tokens, n, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        let (q_width, kv_width) = (c.q_width(), c.kv_width());
        for (i, layer) in self.layers.iter().enumerate() {
            let h = plus(layer.attention_norm.apply(&x, c.norm_eps)?.matmul(&layer.qkv)?, layer.qkv_bias.as_ref())?;
            let rotate = |offset: usize, heads: usize, norm: Option<&Tensor>| -> Result<Tensor, ModelError> {
                let part = h.narrow(D::Minus1, offset, heads * c.head_dim)?;
                let mut part = part.contiguous()?.reshape((1, n, heads, c.head_dim))?;
                if let Some(norm) = norm {
                    part = ops::rms_norm(&part, norm, c.norm_eps as f32)?;
                }
                if c.rotary == c.head_dim {
                    return Ok(rotary_emb::rope_thd(&part, &cos, &sin)?.flatten_all()?);
                }
                // The rest of the channels knows no position.
                let turned = part.narrow(D::Minus1, 0, c.rotary)?.contiguous()?;
                let rest = part.narrow(D::Minus1, c.rotary, c.head_dim - c.rotary)?;
                Ok(Tensor::cat(&[&rotary_emb::rope_thd(&turned, &cos, &sin)?, &rest], D::Minus1)?.flatten_all()?)
            };
            let norms = layer.head_norms.as_ref();
            let q = rotate(0, c.heads, norms.map(|[q, _]| q))?;
            let k = rotate(q_width, c.kv_heads, norms.map(|[_, k]| k))?;
            let v = h.narrow(D::Minus1, q_width + kv_width, kv_width)?.contiguous()?.flatten_all()?;
            let mut out = vec![0.0f32; n * q_width];
            with_slices([&k, &v, &q], |[k, v, q]| Ok(pass.attend(i, k, v, q, &mut out)?))?;
            let out = Tensor::from_vec(out, (n, q_width), &Device::Cpu)?;
            x = (x + plus(out.matmul(&layer.output)?, layer.output_bias.as_ref())?)?;
            let h = layer.mlp_norm.apply(&x, c.norm_eps)?.matmul(&layer.gate_up)?;
            x = (x + ops::swiglu(&h)?.matmul(&layer.down)?)?;
        }
        pass.finish()?;
        let x = match rows {
            Rows::None => return Ok(Vec::new()),
            Rows::Last => x.narrow(0, n - 1, 1)?,
            Rows::All => x,
        };
        let logits = self.norm.apply(&x, c.norm_eps)?.matmul(&self.head)?;
        Ok(logits.flatten_all()?.to_vec1::<f32>()?)
    }

    /// Prefills `tokens` in chunks of [`CHUNK`]; calls `done` with the number of tokens after each; logits of the last.
    ///
    /// # Errors
    /// As [`Llama::forward`]. The chunks before the failed one stay in the cache.
    pub fn prefill(
        &self,
        tokens: &[u32],
        cache: &mut dyn Attention,
        mut done: impl FnMut(usize),
    ) -> Result<Vec<f32>, ModelError> {
        let mut logits = Vec::new();
        let mut count = 0;
        for chunk in tokens.chunks(CHUNK) {
            count += chunk.len();
            let rows = if count == tokens.len() { Rows::Last } else { Rows::None };
            // A chunk of one token would be a certified decode step, not a prefill over the originals; the only way
            // to get one is a prompt of 512 n + 1 tokens, and then the certificate covers that token as any other.
            logits = self.forward(chunk, cache, rows)?;
            done(count);
        }
        Ok(logits)
    }
}

/// Hands the elements of contiguous CPU tensors to `f` without copying them.
fn with_slices<const N: usize, T>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[f32]; N] = [&[]; N];
    for ((guard, layout), slice) in guards.iter().zip(&mut slices) {
        let range = layout.contiguous_offsets();
        match (&**guard, range) {
            (Storage::Cpu(CpuStorage::F32(data)), Some((from, to))) => *slice = &data[from..to],
            _ => return Err(ModelError::Tensor(candle_core::Error::Msg("rows are not contiguous f32".into()))),
        }
    }
    f(slices)
}

/// Index of the largest logit; the first of equals; a NaN is never chosen.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &x) in logits.iter().enumerate() {
        if x > best.1 {
            best = (i, x);
        }
    }
    best.0
}

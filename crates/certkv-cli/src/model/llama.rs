//! The forward pass. Weights, products, norms and rotation are candle's; attention is the caller's.
use super::{
    attention::Attention,
    config::Config,
    error::ModelError,
    rope::Rope,
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

struct Layer {
    attention_norm: Tensor,
    /// Query, key and value matrices on top of each other, transposed: one product instead of three.
    qkv: Tensor,
    output: Tensor,
    mlp_norm: Tensor,
    /// Gate and up matrices on top of each other, transposed.
    gate_up: Tensor,
    down: Tensor,
}

/// A Llama model, single precision on the CPU.
pub struct Llama {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
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

impl Llama {
    /// Loads a folder in the Hugging Face layout: `config.json` and `model.safetensors` (or its shards).
    ///
    /// # Errors
    /// [`ModelError`] names the file, field or tensor at fault.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        Self::new(Config::read(folder)?, &Weights::read(folder)?)
    }

    /// Assembles a model from its configuration and tensors.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`] for a tensor that does not fit `config`.
    pub fn new(config: Config, weights: &Weights) -> Result<Self, ModelError> {
        let (hidden, inner) = (config.hidden, config.intermediate);
        let (q, kv) = (config.q_width(), config.kv_width());
        let embed = weights.get("model.embed_tokens.weight", &[config.vocabulary, hidden])?;
        let embedding = tensor(embed)?;
        let head = if config.tied {
            stacked(&[embed])?
        } else {
            stacked(&[weights.get("lm_head.weight", &[config.vocabulary, hidden])?])?
        };
        let mut layers = Vec::new();
        for i in 0..config.layers {
            let get = |name: &str, shape: &[usize]| weights.get(&format!("model.layers.{i}.{name}.weight"), shape);
            layers.push(Layer {
                attention_norm: tensor(get("input_layernorm", &[hidden])?)?,
                qkv: stacked(&[
                    get("self_attn.q_proj", &[q, hidden])?,
                    get("self_attn.k_proj", &[kv, hidden])?,
                    get("self_attn.v_proj", &[kv, hidden])?,
                ])?,
                output: stacked(&[get("self_attn.o_proj", &[hidden, q])?])?,
                mlp_norm: tensor(get("post_attention_layernorm", &[hidden])?)?,
                gate_up: stacked(&[get("mlp.gate_proj", &[inner, hidden])?, get("mlp.up_proj", &[inner, hidden])?])?,
                down: stacked(&[get("mlp.down_proj", &[hidden, inner])?])?,
            });
        }
        let norm = tensor(weights.get("model.norm.weight", &[hidden])?)?;
        let rope = Rope::new(config.head_dim, config.rope_theta);
        Ok(Self { config, embedding, layers, norm, head, rope })
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
        let half = c.head_dim / 2;
        let cos = Tensor::from_vec(cos, (n, half), &Device::Cpu)?;
        let sin = Tensor::from_vec(sin, (n, half), &Device::Cpu)?;
        let ids = Tensor::from_slice(tokens, n, &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        let (q_width, kv_width) = (c.q_width(), c.kv_width());
        for (i, layer) in self.layers.iter().enumerate() {
            let h = ops::rms_norm(&x, &layer.attention_norm, c.norm_eps as f32)?.matmul(&layer.qkv)?;
            let rotate = |offset: usize, heads: usize| -> Result<Tensor, ModelError> {
                let part = h.narrow(D::Minus1, offset, heads * c.head_dim)?;
                let part = part.contiguous()?.reshape((1, n, heads, c.head_dim))?;
                Ok(rotary_emb::rope_thd(&part, &cos, &sin)?.flatten_all()?)
            };
            let q = rotate(0, c.heads)?;
            let k = rotate(q_width, c.kv_heads)?;
            let v = h.narrow(D::Minus1, q_width + kv_width, kv_width)?.contiguous()?.flatten_all()?;
            let mut out = vec![0.0f32; n * q_width];
            with_slices([&k, &v, &q], |[k, v, q]| Ok(pass.attend(i, k, v, q, &mut out)?))?;
            let out = Tensor::from_vec(out, (n, q_width), &Device::Cpu)?;
            x = (x + out.matmul(&layer.output)?)?;
            let h = ops::rms_norm(&x, &layer.mlp_norm, c.norm_eps as f32)?.matmul(&layer.gate_up)?;
            x = (x + ops::swiglu(&h)?.matmul(&layer.down)?)?;
        }
        pass.finish()?;
        let x = match rows {
            Rows::None => return Ok(Vec::new()),
            Rows::Last => x.narrow(0, n - 1, 1)?,
            Rows::All => x,
        };
        let logits = ops::rms_norm(&x, &self.norm, c.norm_eps as f32)?.matmul(&self.head)?;
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

//! The outlier twin of a model: strong key outlier channels, the same function.
//!
//! A rotation pair `(i, i + head_dim / 2)` of a key head may be scaled by `s` if the same pair of every query head that
//! reads it is scaled by `1 / s`: rotation commutes with it and every score stays. Scales are powers of two, so the
//! products are exact and the logits agree up to rounding. Per-channel codes do not mind such channels, one scale per
//! token does: the pair that shows what a certificate is for.
use super::{config::Config, error::ModelError, numpy_rng::NumpyRng, weights::Weights};

/// How a twin is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Twin {
    /// Scaled pairs per key head.
    pub pairs: u32,
    /// Seed of the choice of pairs.
    pub seed: u32,
    /// Scales, used in turn; powers of two.
    pub scales: Vec<f32>,
}

impl Default for Twin {
    fn default() -> Self {
        Self { pairs: 3, seed: 1, scales: vec![8.0, 8.0, 16.0] }
    }
}

impl Twin {
    /// The scaled channels `(layer, key head, pair, scale)` in the order in which they are drawn.
    pub fn plan(&self, config: &Config) -> Vec<(usize, usize, usize, f32)> {
        let mut rng = NumpyRng::new(self.seed);
        let quarter = config.head_dim / 4;
        // Slow pairs (the upper half of each half) hold most of a large model's outlier channels.
        let population = (config.head_dim / 2 - quarter) as u32;
        let mut plan = Vec::new();
        for layer in 0..config.layers {
            for head in 0..config.kv_heads {
                for (i, pair) in rng.choice(population, self.pairs).into_iter().enumerate() {
                    let scale = self.scales.get(i % self.scales.len().max(1)).copied().unwrap_or(1.0);
                    plan.push((layer, head, quarter + pair as usize, scale));
                }
            }
        }
        plan
    }

    /// Rewrites `weights` of a model with `config` in place, rounding to the stored type.
    ///
    /// # Errors
    /// [`ModelError::Missing`] or [`ModelError::Shape`] when the query or key matrices are not there, [`ModelError::Config`] for a model in which more
    /// than these decides what a key is.
    pub fn apply(&self, config: &Config, weights: &mut Weights) -> Result<(), ModelError> {
        if config.biases || config.head_norms || config.rotary != config.head_dim {
            let reason = "has biases, norms of heads or channels that are not turned: no twin is made of it".into();
            return Err(ModelError::Config { field: "model_type", reason });
        }
        let (d, hidden, group) = (config.head_dim, config.hidden, config.heads / config.kv_heads);
        for (layer, head, pair, scale) in self.plan(config) {
            let name = |s: &str| format!("model.layers.{layer}.self_attn.{s}_proj.weight");
            for channel in [pair, pair + d / 2] {
                let mut times = |name: &str, width: usize, head: usize, factor: f32| -> Result<(), ModelError> {
                    let weight = weights.get_mut(name, &[width, hidden])?;
                    let row = (head * d + channel) * hidden;
                    for x in &mut weight.data[row..row + hidden] {
                        *x = weight.stored.round(*x * factor);
                    }
                    Ok(())
                };
                times(&name("k"), config.kv_width(), head, scale)?;
                for query in head * group..(head + 1) * group {
                    times(&name("q"), config.q_width(), query, 1.0 / scale)?;
                }
            }
        }
        Ok(())
    }
}

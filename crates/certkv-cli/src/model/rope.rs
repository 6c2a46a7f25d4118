//! Rotary positions, Hugging Face layout: channel `i` is paired with `i + head_dim / 2`.

/// Cosines and sines of `position * theta^(-2 i / head_dim)`, grown as positions are used.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f64>,
}

impl Rope {
    /// Frequencies of a head of `head_dim` channels with base `theta`.
    pub fn new(head_dim: usize, theta: f64) -> Self {
        let frequencies = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64)).collect();
        Self { frequencies }
    }

    /// Cosines and sines `[tokens][head_dim / 2]` of the positions `start..start + tokens`. Angles are formed in double
    /// precision: at position 32767 a single-precision angle would already be off by a thousandth.
    pub fn table(&self, start: usize, tokens: usize) -> (Vec<f32>, Vec<f32>) {
        let mut cos = Vec::with_capacity(tokens * self.frequencies.len());
        let mut sin = Vec::with_capacity(tokens * self.frequencies.len());
        for position in start..start + tokens {
            for frequency in &self.frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        (cos, sin)
    }
}

//! Rotary positions, Hugging Face layout: of the `rotary` channels that are turned, channel `i` is paired with `i + rotary / 2`.
use std::f64::consts::PI;

/// How frequencies are stretched for sequences longer than a model was first trained on.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scaling {
    /// Not at all.
    #[default]
    None,
    /// All by one factor.
    Linear {
        /// That factor.
        factor: f64,
    },
    /// Llama 3: slow ones by a factor, fast ones not at all, those between by something between.
    Llama3 {
        /// That factor.
        factor: f64,
        /// Turns over the original length below which a frequency is slow.
        low: f64,
        /// Those from which on it is fast.
        high: f64,
        /// The original length.
        original: f64,
    },
    /// YaRN: the same over channels instead of wavelengths, and all of a rotated vector by `attention`.
    Yarn {
        /// The factor of slow frequencies.
        factor: f64,
        /// Turns over the original length from which on a frequency is fast.
        fast: f64,
        /// Those below which it is slow.
        slow: f64,
        /// The original length.
        original: f64,
        /// Length of a rotated vector over its length before.
        attention: f64,
    },
}

/// Cosines and sines of `position * frequency`, formed as positions are used.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f64>,
    length: f64,
}

impl Rope {
    /// Frequencies of `rotary` turned channels with base `theta`.
    pub fn new(rotary: usize, theta: f64, scaling: Scaling) -> Self {
        let plain = (0..rotary / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary as f64));
        let length = if let Scaling::Yarn { attention, .. } = scaling { attention } else { 1.0 };
        Self { frequencies: plain.enumerate().map(|(i, f)| scaling.of(f, i, rotary, theta)).collect(), length }
    }

    /// Cosines and sines `[tokens][rotary / 2]` of the positions `start..start + tokens`. Angles are formed in double
    /// precision: at position 32767 a single-precision angle would already be off by a thousandth.
    pub fn table(&self, start: usize, tokens: usize) -> (Vec<f32>, Vec<f32>) {
        let mut cos = Vec::with_capacity(tokens * self.frequencies.len());
        let mut sin = Vec::with_capacity(tokens * self.frequencies.len());
        for position in start..start + tokens {
            for frequency in &self.frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push((c * self.length) as f32);
                sin.push((s * self.length) as f32);
            }
        }
        (cos, sin)
    }
}

impl Scaling {
    /// Frequency `f` of pair `i` of `rotary` channels with base `theta`.
    fn of(self, f: f64, i: usize, rotary: usize, theta: f64) -> f64 {
        match self {
            Self::None => f,
            Self::Linear { factor } => f / factor,
            Self::Llama3 { factor, low, high, original } => {
                let turns = original * f / (2.0 * PI);
                let fast = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                f * (fast + (1.0 - fast) / factor)
            }
            Self::Yarn { factor, fast, slow, original, .. } => {
                // The pair, as a number between pairs, that makes so many turns over the original length.
                let pair = |turns: f64| rotary as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let last = (rotary - 1) as f64;
                let (first, end) = (pair(fast).floor().clamp(0.0, last), pair(slow).ceil().clamp(0.0, last));
                let end = if end > first { end } else { first + 0.001 };
                let slow = ((i as f64 - first) / (end - first)).clamp(0.0, 1.0);
                f * ((1.0 - slow) + slow / factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.1's own numbers: wavelengths up to 8192 / 4 stay, those from 8192 on are eight times as long.
    #[test]
    fn llama3_leaves_fast_frequencies_and_stretches_slow_ones() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let (plain, scaled) = (Rope::new(128, 5e5, Scaling::None), Rope::new(128, 5e5, scaling));
        for (f, g) in plain.frequencies.iter().zip(&scaled.frequencies) {
            let wavelength = 2.0 * PI / f;
            if wavelength < 2048.0 {
                assert_eq!(f, g);
            } else if wavelength > 8192.0 {
                assert!((f / g - 8.0).abs() < 1e-12);
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                assert!((g - ((1.0 - smooth) * f / 8.0 + smooth * f)).abs() < 1e-15 && g < f && f / g < 8.0);
            }
        }
    }

    /// Qwen 2.5's: base 1e6, four times 32768, 32 and 1 turns. By hand: 32 turns over 32768 are at pair 23.59, one at 39.65.
    #[test]
    fn yarn_stretches_between_the_pairs_it_names() {
        let attention = 0.1 * 4f64.ln() + 1.0;
        let scaling = Scaling::Yarn { factor: 4.0, fast: 32.0, slow: 1.0, original: 32768.0, attention };
        let (plain, scaled) = (Rope::new(128, 1e6, Scaling::None), Rope::new(128, 1e6, scaling));
        for (i, (f, g)) in plain.frequencies.iter().zip(&scaled.frequencies).enumerate() {
            let slow = ((i as f64 - 23.0) / 17.0).clamp(0.0, 1.0);
            assert!((g / f - (1.0 - 0.75 * slow)).abs() < 1e-12, "{i}: {}", g / f);
        }
        let (cos, sin) = scaled.table(3, 1);
        assert!(cos.iter().zip(&sin).all(|(c, s)| (f64::from(c.hypot(*s)) - attention).abs() < 1e-6));
        let linear = Rope::new(64, 1e4, Scaling::Linear { factor: 2.0 });
        assert_eq!(linear.table(2, 1), Rope::new(64, 1e4, Scaling::None).table(1, 1));
    }
}

//! A mode: one way of keeping and reading the cache.
use certkv_core::{Format, FormatError};
use serde::Serialize;
use std::fmt;

/// How attention reads the cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The originals, half precision.
    Dense,
    /// The codes as they are; nothing is certified.
    Packed,
    /// One pass over the codes with repairs until the bound is within `tolerance` times the output's norm.
    Certified {
        /// Relative tolerance.
        tolerance: f64,
    },
    /// The published two-phase step with its own bound, thresholds and ladder.
    Seed000,
}

/// A policy, a format, and the model it runs on.
#[derive(Debug, Clone, PartialEq)]
pub struct Mode {
    /// Policy.
    pub policy: Policy,
    /// Format of full blocks; ignored by [`Policy::Dense`].
    pub format: Format,
    /// In its place, one for each KV head of each layer, `[layer][kv_head]`, or one for each layer; empty where all have `format`.
    pub heads: Vec<Format>,
    /// Whether it runs on the outlier twin.
    pub twin: bool,
}

impl Mode {
    /// One format for all heads.
    pub const fn of(policy: Policy, format: Format, twin: bool) -> Self {
        Self { policy, format, heads: Vec::new(), twin }
    }

    /// The same with formats as [`certkv::Config::formats`] has them.
    #[must_use]
    pub fn with_heads(self, heads: Vec<Format>) -> Self {
        Self { heads, ..self }
    }

    /// Formats, as [`certkv::Config::formats`] has them.
    pub fn formats(&self) -> &[Format] {
        if self.heads.is_empty() { core::slice::from_ref(&self.format) } else { &self.heads }
    }

    /// Tokens of the largest block.
    pub fn block(&self) -> usize {
        self.formats().iter().map(|format| format.block).max().unwrap_or(1)
    }

    /// Its formats as `certkv.h` takes them: `+` between them.
    pub fn written(&self) -> String {
        self.formats().iter().map(Format::to_string).collect::<Vec<_>>().join("+")
    }

    /// Its formats for a table: the one, or how many there are.
    pub fn named(&self) -> String {
        if self.heads.is_empty() {
            return self.format.to_string();
        }
        let mut kinds: Vec<String> = self.heads.iter().map(Format::to_string).collect();
        kinds.sort_unstable();
        kinds.dedup();
        format!("{} formats by head", kinds.len())
    }

    /// Dense attention over the originals.
    pub const fn dense(twin: bool) -> Self {
        Self::of(Policy::Dense, Format::DENSE_F16, twin)
    }

    /// The codes of `format` as they are.
    ///
    /// # Errors
    /// [`FormatError`] when `format` is not understood.
    pub fn packed(format: &str, twin: bool) -> Result<Self, FormatError> {
        Ok(Self::of(Policy::Packed, format.parse()?, twin))
    }

    /// `format`, certified within `tolerance`.
    ///
    /// # Errors
    /// [`FormatError`] when `format` is not understood.
    pub fn certified(format: &str, tolerance: f64, twin: bool) -> Result<Self, FormatError> {
        Ok(Self::of(Policy::Certified { tolerance }, format.parse()?, twin))
    }

    /// The tolerance, if the mode has one.
    pub fn tolerance(&self) -> Option<f64> {
        match self.policy {
            Policy::Certified { tolerance } => Some(tolerance),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.twin {
            f.write_str("twin ")?;
        }
        match self.policy {
            Policy::Dense => f.write_str("dense"),
            Policy::Packed => write!(f, "naive {}", self.named()),
            Policy::Certified { tolerance } => write!(f, "certified {} at {}%", self.named(), tolerance * 100.0),
            Policy::Seed000 => write!(f, "seed000 {}", self.named()),
        }
    }
}

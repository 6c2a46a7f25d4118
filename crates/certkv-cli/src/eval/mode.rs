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
    /// Whether it runs on the outlier twin.
    pub twin: bool,
}

impl Mode {
    /// Dense attention over the originals.
    pub const fn dense(twin: bool) -> Self {
        Self { policy: Policy::Dense, format: Format::DENSE_F16, twin }
    }

    /// The codes of `format` as they are.
    ///
    /// # Errors
    /// [`FormatError`] when `format` is not understood.
    pub fn packed(format: &str, twin: bool) -> Result<Self, FormatError> {
        Ok(Self { policy: Policy::Packed, format: format.parse()?, twin })
    }

    /// `format`, certified within `tolerance`.
    ///
    /// # Errors
    /// [`FormatError`] when `format` is not understood.
    pub fn certified(format: &str, tolerance: f64, twin: bool) -> Result<Self, FormatError> {
        Ok(Self { policy: Policy::Certified { tolerance }, format: format.parse()?, twin })
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
            Policy::Packed => write!(f, "naive {}", self.format),
            Policy::Certified { tolerance } => write!(f, "certified {} at {}%", self.format, tolerance * 100.0),
            Policy::Seed000 => write!(f, "seed000 {}", self.format),
        }
    }
}

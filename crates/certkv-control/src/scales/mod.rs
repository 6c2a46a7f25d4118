//! Fixed scales for sides with one scale per block, math.md (2.9a): the largest magnitudes that a text showed, or a percentile of
//! them, for every 16 channels of every key head and side.
//!
//! [`ScaleMeter`] gathers, [`Scales::choose`] decides, `to_bytes` and `from_bytes` keep them in a file. They are a choice and no promise:
//! what a block has beyond its scale saturates, and its errors are measured when it is coded.
use crate::calibration::{CalibrationError, Source};

mod file;
mod meter;

pub use file::{MAGIC, VERSION};
pub use meter::ScaleMeter;

/// Channels that share a magnitude: groups of a format are made of whole pieces.
pub const PIECE: usize = 16;

/// The heads that scales are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleHeads {
    /// Layers.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Channels of a head, a multiple of [`PIECE`].
    pub head_dim: usize,
}

impl ScaleHeads {
    /// Pieces of a head.
    pub const fn pieces(&self) -> usize {
        self.head_dim / PIECE
    }

    /// Numbers of one side of a model; heads that were checked.
    const fn count(&self) -> usize {
        self.layers * self.kv_heads * self.pieces()
    }

    fn check(&self) -> Result<(), CalibrationError> {
        let field = |what, found: usize, fine: bool| {
            if fine { Ok(()) } else { Err(CalibrationError::Field { what, found: found as u64 }) }
        };
        field("layers", self.layers, (1..=4096).contains(&self.layers))?;
        field("kv_heads", self.kv_heads, (1..=1024).contains(&self.kv_heads))?;
        field("head_dim", self.head_dim, self.head_dim.is_multiple_of(PIECE) && (PIECE..=1024).contains(&self.head_dim))
    }

    /// Refuses scales of other heads.
    ///
    /// # Errors
    /// [`CalibrationError::OtherHeads`] naming the first difference.
    pub fn check_for(&self, wanted: &Self) -> Result<(), CalibrationError> {
        let named = |h: &Self| [("layers", h.layers), ("kv_heads", h.kv_heads), ("head_dim", h.head_dim)];
        match named(self).into_iter().zip(named(wanted)).find(|(a, b)| a != b) {
            Some(((what, file), (_, wanted))) => Err(CalibrationError::OtherHeads { what, file, wanted }),
            None => Ok(()),
        }
    }
}

/// Magnitudes for every piece of every head, and what they were seen on.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    heads: ScaleHeads,
    source: Source,
    percentile: f64,
    /// (layers, kv_heads, pieces).
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Scales {
    /// What `meter` saw: of every piece the magnitude that `percentile` in a hundred elements do not exceed; 100 is the largest.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for a percentile outside 0 (excluded) to 100; [`CalibrationError::Tokens`] for a meter that saw nothing.
    pub fn choose(meter: &ScaleMeter, percentile: f64) -> Result<Self, CalibrationError> {
        check_percentile(percentile)?;
        if meter.tokens() == 0 {
            return Err(CalibrationError::Tokens { have: 0, need: 1 });
        }
        let [keys, values] = meter.magnitudes(percentile);
        Self::new(*meter.heads(), meter.source(), percentile, keys, values)
    }

    /// Puts together magnitudes that are known, (layers, kv_heads, pieces) for each side.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads or a percentile that cannot be, [`CalibrationError::Rows`] for another number of magnitudes,
    /// [`CalibrationError::Number`] for one that is NaN, infinite or negative.
    pub fn new(
        heads: ScaleHeads,
        source: Source,
        percentile: f64,
        keys: Vec<f32>,
        values: Vec<f32>,
    ) -> Result<Self, CalibrationError> {
        heads.check()?;
        check_percentile(percentile)?;
        for (what, side) in [("magnitudes of keys", &keys), ("magnitudes of values", &values)] {
            if side.len() != heads.count() {
                return Err(CalibrationError::Rows { what, got: side.len(), want: heads.count() });
            }
            if let Some(at) = side.iter().position(|x| !(x.is_finite() && *x >= 0.0)) {
                let (row, index) = (at / heads.pieces(), at % heads.pieces());
                let (layer, head) = (row / heads.kv_heads, row % heads.kv_heads);
                return Err(CalibrationError::Number { layer, head, what, index });
            }
        }
        Ok(Self { heads, source, percentile, keys, values })
    }

    /// The heads of the model.
    pub const fn heads(&self) -> &ScaleHeads {
        &self.heads
    }

    /// What was read.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Of a hundred elements so many are not beyond their magnitude.
    pub const fn percentile(&self) -> f64 {
        self.percentile
    }

    /// Magnitudes of a head's keys and values, by piece. None past the last layer or head.
    pub fn head(&self, layer: usize, kv_head: usize) -> Option<(&[f32], &[f32])> {
        let at = layer.checked_mul(self.heads.kv_heads)?.checked_add(kv_head)?.checked_mul(self.heads.pieces())?;
        if kv_head >= self.heads.kv_heads {
            return None;
        }
        let pieces = at..at + self.heads.pieces();
        Some((self.keys.get(pieces.clone())?, self.values.get(pieces)?))
    }
}

fn check_percentile(percentile: f64) -> Result<(), CalibrationError> {
    if percentile > 0.0 && percentile <= 100.0 {
        Ok(())
    } else {
        Err(CalibrationError::Field { what: "percentile", found: percentile as u64 })
    }
}

#[cfg(test)]
mod tests;

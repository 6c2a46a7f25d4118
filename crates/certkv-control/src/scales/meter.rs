//! Magnitudes of the keys and values of a text, by layer, head and piece of channels.
use super::{PIECE, ScaleHeads};
use crate::calibration::{CalibrationError, Source};

/// Cells of a histogram of magnitudes: sign-less f32 patterns without their last bits, 64 cells an octave from 2^-24 to 2^40.
const CELLS: usize = 64 * 64;
/// Pattern of the first cell, 2^-24; smaller magnitudes are counted with it.
const FIRST: u32 = (127 - 24) << 6;

/// What was seen of one side.
#[derive(Debug, Clone)]
struct Side {
    /// `[layer][kv_head][piece]`.
    largest: Vec<f32>,
    /// The same, and cells.
    counts: Vec<u32>,
}

/// Gathers magnitudes, a row of a layer at a time.
#[derive(Debug, Clone)]
pub struct ScaleMeter {
    heads: ScaleHeads,
    source: Source,
    /// Rows of each layer.
    rows: Vec<u64>,
    keys: Side,
    values: Side,
}

/// The cell of a magnitude, ascending.
fn cell(x: f32) -> usize {
    ((x.to_bits() >> 17).saturating_sub(FIRST) as usize).min(CELLS - 1)
}

/// What no magnitude of a cell exceeds.
fn end_of(cell: usize) -> f32 {
    f32::from_bits((FIRST + cell as u32 + 1) << 17)
}

impl ScaleMeter {
    /// A meter that has seen nothing; `source` names model and text, its tokens are counted here.
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for heads that cannot be.
    pub fn new(heads: ScaleHeads, source: Source) -> Result<Self, CalibrationError> {
        heads.check()?;
        let side = || Side { largest: vec![0.0; heads.count()], counts: vec![0; heads.count() * CELLS] };
        Ok(Self { heads, source, rows: vec![0; heads.layers], keys: side(), values: side() })
    }

    /// The heads of the model.
    pub const fn heads(&self) -> &ScaleHeads {
        &self.heads
    }

    /// Tokens that every layer has seen.
    pub fn tokens(&self) -> u64 {
        self.rows.iter().copied().min().unwrap_or(0)
    }

    /// What was read.
    pub fn source(&self) -> Source {
        Source { tokens: self.tokens(), ..self.source }
    }

    /// One token's keys (as they are stored: after positions) and values of `layer`, (kv_heads, head_dim).
    ///
    /// # Errors
    /// [`CalibrationError::Field`] for a layer that is none, [`CalibrationError::Rows`] for another length, [`CalibrationError::Number`] for
    /// an element that is not finite. Nothing is counted then.
    pub fn row(&mut self, layer: usize, keys: &[f32], values: &[f32]) -> Result<(), CalibrationError> {
        let ScaleHeads { kv_heads, head_dim, .. } = self.heads;
        let Some(rows) = self.rows.get_mut(layer) else {
            return Err(CalibrationError::Field { what: "layer", found: layer as u64 });
        };
        for (what, row) in [("keys", keys), ("values", values)] {
            if row.len() != kv_heads * head_dim {
                return Err(CalibrationError::Rows { what, got: row.len(), want: kv_heads * head_dim });
            }
            if let Some(index) = row.iter().position(|x| !x.is_finite()) {
                return Err(CalibrationError::Number { layer, head: index / head_dim, what, index: index % head_dim });
            }
        }
        *rows += 1;
        let first = layer * kv_heads * self.heads.pieces();
        for (side, row) in [(&mut self.keys, keys), (&mut self.values, values)] {
            for (at, piece) in row.chunks_exact(PIECE).enumerate() {
                let at = first + at;
                for x in piece.iter().map(|x| x.abs()) {
                    side.largest[at] = side.largest[at].max(x);
                    side.counts[at * CELLS + cell(x)] += 1;
                }
            }
        }
        Ok(())
    }

    /// Of every piece of both sides the magnitude that `percentile` in a hundred elements do not exceed, up to 1/64 too large.
    pub(super) fn magnitudes(&self, percentile: f64) -> [Vec<f32>; 2] {
        [&self.keys, &self.values].map(|side| {
            let pieces = side.largest.iter().zip(side.counts.chunks_exact(CELLS));
            pieces.map(|(largest, counts)| quantile(*largest, counts, percentile)).collect()
        })
    }
}

fn quantile(largest: f32, counts: &[u32], percentile: f64) -> f32 {
    let all: u64 = counts.iter().map(|n| u64::from(*n)).sum();
    let wanted = (all as f64 * percentile / 100.0).ceil() as u64;
    let mut below = 0;
    for (cell, n) in counts.iter().enumerate() {
        below += u64::from(*n);
        if below >= wanted && below > 0 {
            return end_of(cell).min(largest);
        }
    }
    largest
}

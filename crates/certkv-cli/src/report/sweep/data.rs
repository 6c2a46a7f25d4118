//! Curves, and the sweep that a file holds. Shares are of dense half precision unless said otherwise.
use crate::report::data::Setting;
use serde::{Deserialize, Serialize};

/// Version of the file's layout, raised when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A recorded sweep: every format at every tolerance, on the same prompts and text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line that recorded it.
    pub command: String,
    /// The machine in words.
    pub machine: String,
    /// Model, threads, seconds, program version.
    pub setting: Setting,
    /// What was asked.
    pub work: SweepWork,
    /// One per format.
    pub curves: Vec<Curve>,
}

/// Prompts and text of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepWork {
    /// Prompts by task, in order of first appearance.
    pub tasks: Vec<(String, u64)>,
    /// Tokens of the longest prompt or window.
    pub context: usize,
    /// Windows of text.
    pub windows: usize,
    /// Bytes predicted in all windows together.
    pub scored: usize,
}

/// What a format costs at several tolerances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Format of full blocks.
    pub format: String,
    /// Device bytes of a token, everything counted.
    pub bytes_per_token: f64,
    /// By rising tolerance.
    pub points: Vec<CurvePoint>,
}

/// One tolerance of one format.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Tolerance as a share of the output's norm.
    pub tolerance: f64,
    /// Bytes read.
    pub read: ReadShare,
    /// Head-steps by rung: packed, more keys, exact values, dense head, dense layer.
    pub rungs: [u64; 5],
    /// Answers that were right.
    pub right: u64,
    /// Prompts.
    pub prompts: u64,
    /// Bits per byte of all text; `None` without text.
    pub bits: Option<f64>,
    /// Its relative change against dense.
    pub delta: Option<f64>,
    /// By layer.
    pub layers: Vec<LayerPoint>,
}

/// One layer at one tolerance of one format.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerPoint {
    /// Bytes read.
    pub read: ReadShare,
    /// Head-steps by rung.
    pub rungs: [u64; 5],
    /// Share of blocks whose keys were read from the originals.
    pub promoted_keys: f64,
    /// Share of blocks whose values were read from the originals.
    pub promoted_values: f64,
    /// Share of blocks whose values were not read at all.
    pub skipped_values: f64,
}

/// Bytes read by where they lay, each over what dense half precision reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadShare {
    /// Codes, scales and summaries.
    pub packed: f64,
    /// Originals that were already in device memory.
    pub scratch: f64,
    /// Originals moved from the host, and the open block.
    pub host: f64,
}

impl ReadShare {
    /// Everything read.
    pub fn total(&self) -> f64 {
        self.packed + self.scratch + self.host
    }

    /// Originals, wherever they lay.
    pub fn originals(&self) -> f64 {
        self.scratch + self.host
    }
}

/// Share of the head-steps in `rungs` that left the packed rung.
pub fn repaired(rungs: &[u64; 5]) -> f64 {
    let all = rungs.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    if all == 0 { 0.0 } else { (all - rungs[0]) as f64 / all as f64 }
}

/// Share of blocks whose values were not read, over all layers.
pub fn skipped(point: &CurvePoint) -> f64 {
    point.layers.iter().map(|l| l.skipped_values).sum::<f64>() / point.layers.len().max(1) as f64
}

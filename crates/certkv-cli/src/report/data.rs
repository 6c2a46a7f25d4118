//! Everything that the table and the page show. This is also what `--json` prints.
use super::sweep::Curve;
use crate::stats::{Quantiles, Table};
use serde::{Deserialize, Serialize};

/// Version of this layout, raised when a field changes its meaning.
pub const SCHEMA: u32 = 2;

/// Results of one evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportData {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Model and machine in words.
    pub setting: Setting,
    /// Modes in the order in which they were asked for.
    pub modes: Vec<ModeRow>,
    /// Answers of the twin's modes, prompt by prompt: what the page opens with.
    pub transcripts: Vec<Transcript>,
    /// Bounds by layer and head.
    pub heat: Vec<Heat>,
    /// Rungs along the decode steps.
    pub timelines: Vec<Timeline>,
    /// Mass of the heaviest blocks.
    pub coverage: Vec<Coverage>,
    /// Cost against tolerance, one curve per format.
    pub curves: Vec<Curve>,
}

/// Where the numbers come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the model.
    pub model: String,
    /// Layers.
    pub layers: usize,
    /// Query heads per layer.
    pub heads: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
    /// Bytes of a token in a half-precision cache.
    pub dense_bytes_per_token: usize,
    /// Prompts per mode of the model, and of the twin.
    pub prompts: [usize; 2],
    /// Longest nominal length.
    pub longest: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// Threads used.
    pub threads: usize,
    /// Seconds in all.
    pub seconds: f64,
    /// Program version.
    pub version: String,
}

/// Kind of a mode; decides its colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Originals.
    #[default]
    Dense,
    /// Codes without a certificate.
    Naive,
    /// Codes with a certificate.
    Certified,
    /// The published two-phase step.
    Seed000,
}

/// One mode: a row of the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeRow {
    /// Name for people.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Format of full blocks.
    pub format: String,
    /// Where KV heads have formats of their own: all of them, `[layer][kv_head]`, as `certkv.h` takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<String>,
    /// Relative tolerance, if it has one.
    pub tolerance: Option<f64>,
    /// Whether it ran on the outlier twin.
    pub twin: bool,
    /// All tasks together.
    pub overall: TaskScore,
    /// By task.
    pub tasks: Vec<TaskScore>,
    /// By part of the text, and all parts together under the name `all`.
    pub text: Vec<TextScore>,
    /// Device bytes of a token, everything counted.
    pub bytes_per_token: f64,
    /// What they are.
    pub memory: Memory,
    /// Decode steps per second, model included.
    pub tokens_per_second: f64,
    /// Share of the decode time within attention.
    pub attention_share: f64,
    /// Decode steps.
    pub steps: u64,
    /// Head-steps by rung: packed, more keys, exact values, dense head, dense layer.
    pub rungs: [u64; 5],
    /// Share of head-steps certified or exact.
    pub certified: f64,
    /// Key component over the output's norm.
    pub e_key: Quantiles,
    /// Value component over the output's norm.
    pub e_val: Quantiles,
    /// Bound over true error.
    pub tightness: Quantiles,
    /// True error over the output's norm.
    pub true_error: Quantiles,
    /// True error at the percentiles 0, 1, .. 100.
    pub error_curve: Vec<f64>,
    /// Returned bound over the output's norm at the percentiles 0, 1, .. 100.
    pub bound_curve: Vec<f64>,
    /// Outputs farther from the truth than their bound. Must be zero.
    pub violations: u64,
    /// Bytes read over those of dense half precision.
    pub read_share: f64,
}

/// Answers of one task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskScore {
    /// Task; empty for all.
    pub task: String,
    /// Right answers.
    pub right: u64,
    /// Prompts.
    pub n: u64,
    /// Whether each prompt was answered right, in order.
    pub each: Vec<bool>,
    /// Wilson interval of the accuracy.
    pub interval: [f64; 2],
    /// Difference to dense with its bootstrap interval: mean, low, high.
    pub delta: Option<[f64; 3]>,
    /// Pairs right only under dense, and only under this mode.
    pub discordant: [u64; 2],
    /// Exact McNemar p-value against dense.
    pub p_value: f64,
}

impl TaskScore {
    /// Right answers over prompts.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.n.max(1) as f64
    }

    /// Takes the discordant pairs over from `table`.
    pub fn set_table(&mut self, table: &Table) {
        self.discordant = [table.first_only, table.second_only];
    }
}

/// Bits per byte of one part of the text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TextScore {
    /// Part.
    pub part: String,
    /// Bits per byte.
    pub bits: f64,
    /// Relative difference to dense.
    pub delta: Option<f64>,
}

/// Device bytes of one token by tier, and the originals on the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Packed pages.
    pub packed: f64,
    /// Originals in device memory.
    pub scratch: f64,
    /// Tables.
    pub tables: f64,
    /// Originals on the host.
    pub host: f64,
}

/// One prompt as dense, naive and certified answered it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// Task.
    pub task: String,
    /// Nominal length.
    pub length: usize,
    /// Last line of the prompt.
    pub question: String,
    /// The right answer.
    pub truth: String,
    /// Answers, as `(index into modes, text)`.
    pub answers: Vec<(usize, String)>,
}

/// Median bound over the output's norm by layer and head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Index into the modes.
    pub mode: usize,
    /// Rows are layers, columns heads; `None` where nothing finite was seen.
    pub median: Vec<Vec<Option<f64>>>,
}

/// Shares of the rungs along the decode steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Index into the modes.
    pub mode: usize,
    /// Decode steps per bin.
    pub steps_per_bin: f64,
    /// Shares of the five rungs in each bin.
    pub bins: Vec<[f64; 5]>,
}

/// Mass held by the heaviest blocks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// What was looked at.
    pub name: String,
    /// Shares of all blocks.
    pub shares: Vec<f64>,
    /// Median over head-steps.
    pub median: Vec<f64>,
    /// Tenth percentile.
    pub low: Vec<f64>,
    /// Ninetieth percentile.
    pub high: Vec<f64>,
}

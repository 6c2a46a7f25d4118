//! Outputs and certificates of sequences whose blocks have one of several levels: `ckv_unite`, behind a launch of the decode kernel for each.
use super::args::{Certificate, Strides};
use super::launch::{CHAINED, kept_bytes, word};
use super::queue::{Queue, Span};
use super::tensor::Tensor;
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::{CudaError, Function};

/// Levels at most: `MOST_LEVELS` of kernels/unite.cu.
pub const MOST_LEVELS: usize = 8;

/// What a launch for a level has left.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LevelState {
    /// The state of every head: [`Attend::kept`](super::launch::Attend::kept).
    pub kept: u64,
    /// `u32[rows]`: as that launch had them; 0 where a row has nothing at the level.
    pub lens: u64,
}

/// Arguments of `ckv_unite`, byte for byte as `kernels/unite.cu` has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct UniteArgs {
    /// By level.
    pub levels: [LevelState; MOST_LEVELS],
    /// `u32[seqs]`: row of each sequence of the batch.
    pub rows: u64,
    /// `f32[rows][kv_heads][dim]`.
    pub centres: u64,
    /// `[seqs][kv_heads group][dim]` of `out_type`, by `out_strides`.
    pub out: u64,
    /// `Certificate[seqs][kv_heads group]`.
    pub certificates: u64,
    /// A count, then heads to compute; 0: all.
    pub only: u64,
    /// A count, then heads over tolerance; 0: not wanted.
    pub failures: u64,
    /// As [`AttendArgs::limits`](super::args::AttendArgs::limits).
    pub limits: u64,
    /// How many levels.
    pub level_count: u32,
    /// Sequences.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// [`Element`](super::args::Element) of the outputs.
    pub out_type: u32,
    /// Tolerance as a share of the output's norm.
    pub relative: f32,
    /// And as a length.
    pub absolute: f32,
    /// Where the outputs go.
    pub out_strides: Strides,
}

/// One level of a [`unite`].
#[derive(Debug, Clone, Copy)]
pub struct Left<'a> {
    /// What its launch has left.
    pub kept: Span<'a>,
    /// `u32[rows]`: those of that launch; 0 where a row has nothing at the level.
    pub lens: Span<'a>,
}

/// Arguments of [`unite`]; see [`UniteArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Unite<'a> {
    /// Of one of the levels: heads and channels are all alike.
    pub variant: &'a Variant,
    /// CTAs at most.
    pub ctas: u32,
    /// Sequences of the batch.
    pub seqs: usize,
    /// Rows in the tables.
    pub rows: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// `u32[batch]`: row of each sequence of the batch.
    pub batch: Span<'a>,
    /// By level, at most [`MOST_LEVELS`].
    pub levels: &'a [Left<'a>],
    /// `f32[rows][kv_heads][dim]`.
    pub centres: Span<'a>,
    /// `[seqs][kv_heads group][dim]`.
    pub out: Tensor<'a>,
    /// [`Certificate`]`[seqs][kv_heads group]`.
    pub certificates: Span<'a>,
    /// A list of heads to compute; `None`: all.
    pub only: Option<Span<'a>>,
    /// A list for the heads over tolerance, its count zero before the launch.
    pub failures: Option<Span<'a>>,
    /// Tolerance as a share of the output's norm, and as a length.
    pub tolerance: [f32; 2],
    /// As [`Attend::limits`](super::launch::Attend::limits).
    pub limits: Option<Span<'a>>,
}

/// Enqueues `ckv_unite`.
///
/// Costs reading a state of `group (dim + 13)` floats a level and KV head of a sequence.
///
/// # Errors
/// As [`attend`](super::launch::attend); [`CudaError::BadArgument`] for more levels than there can be, or none.
pub fn unite(queue: &Queue, kernel: &Function, a: &Unite<'_>) -> Result<(), CudaError> {
    const THREADS: u32 = 128;
    let mut on = Touched::on(queue);
    let (dim, group, heads) = (a.variant.layout().dim, a.variant.group(), a.seqs * a.kv_heads);
    if a.levels.is_empty() || a.levels.len() > MOST_LEVELS {
        return Err(CudaError::BadArgument { argument: "levels", why: "none, or more than there can be" });
    }
    let mut levels = [LevelState::default(); MOST_LEVELS];
    for (to, level) in levels.iter_mut().zip(a.levels) {
        *to = LevelState {
            kept: on.reads(level.kept, "kept", kept_bytes(a.variant, heads))?,
            lens: on.reads(level.lens, "lens", 4 * a.rows)?,
        };
    }
    let (out, out_strides) = on.gives_rows(a.out, "out", [a.seqs, a.kv_heads * group, dim])?;
    let [relative, absolute] = a.tolerance;
    let args = UniteArgs {
        levels,
        rows: on.reads(a.batch, "batch", 4 * a.seqs)?,
        centres: on.reads(a.centres, "centres", 4 * a.rows * a.kv_heads * dim)?,
        out,
        certificates: on.writes(a.certificates, "certificates", heads * group * size_of::<Certificate>())?,
        only: on.may_read(a.only, "only", 4 * (1 + heads))?,
        failures: on.may_write(a.failures, "failures", 4 * (1 + heads))?,
        limits: on.may_read(a.limits, "limits", 8 * a.kv_heads * group)?,
        level_count: word("levels", a.levels.len())?,
        seqs: word("seqs", a.seqs)?,
        kv_heads: word("kv_heads", a.kv_heads)?,
        out_type: a.out.element() as u32,
        relative,
        absolute,
        out_strides,
    };
    on.tell(queue)?;
    let ctas = word("heads", heads)?.clamp(1, a.ctas.max(1));
    // SAFETY: as in `launch::attend`; lists in device memory are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), ctas, THREADS, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Verb;

    #[test]
    fn arguments_and_counts_are_those_of_their_twins() {
        assert_eq!(size_of::<UniteArgs>(), 8 * MOST_LEVELS * 2 + 7 * 8 + 4 * 4 + 2 * 4 + 8);
        let levels = Verb::Unite.source().unwrap().headers.iter().find(|(name, _)| *name == "levels.cuh").unwrap();
        assert!(levels.1.contains(&format!("MOST_LEVELS = {MOST_LEVELS};")));
    }
}

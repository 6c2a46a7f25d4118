//! Attention of chunks of queries: how a CTA is cut, the arguments of `kernels/extend.cu` byte for byte, and its launch.
use super::args::{Certificate, Strides};
use super::directions::half_bytes;
use super::grouped::{halves, kept_bytes};
use super::launch::{CHAINED, word};
use super::metrics::metrics_of;
use super::queue::{Queue, Span};
use super::sight::{Sight, sight_of};
use super::tensor::Tensor;
use super::touched::Touched;
use super::turbo::folds;
use super::variant::Variant;
use certkv_core::RecordLayout;
use certkv_device::cuda::{CudaError, Function};

/// How a CTA of the kernel is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExtendShape {
    /// Warps, each with queries of its own.
    pub warps: usize,
    /// Blocks in flight.
    pub stages: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Tokens of a chunk whose queries a CTA has, for one KV head.
    pub tokens: usize,
    /// CTAs that a multiprocessor is to hold.
    pub ctas: usize,
}

/// Queries of a warp: `ROWS` of kernels/extend/shape.cuh.
const fn rows(dim: usize) -> usize {
    if dim <= 128 { 32 } else { 16 }
}

/// `SHARED_BYTES` there. The kernel asserts that it counts the same.
fn shared_bytes(layout: &RecordLayout, warps: usize, stages: usize) -> usize {
    let (record, side, block) =
        (layout.main_bytes.next_multiple_of(128), layout.original_side_bytes(), layout.format.block);
    // Records with what they are decoded by and to, a block or 32 tokens, or originals in the same place.
    let kept = if halves(layout) > 0 { kept_bytes(layout.dim).next_multiple_of(16) } else { 0 };
    let table = kept + half_bytes(layout);
    let coded = usize::from(!layout.format.key.is_exact()) + usize::from(!layout.format.value.is_exact());
    let originals = stages * 2 * side;
    let decoded = |bytes: usize| stages * record + table + coded * bytes;
    let slots =
        if decoded(side) <= originals { originals } else { originals.max(decoded(side * block.min(32) / block)) };
    // Numbers of a query.
    let numbers = if folds(layout) { 20 } else { 16 };
    let (queries, sums, tile) = (rows(layout.dim) * (layout.dim * 2 + numbers) + 16, 32 * 40, 64);
    (slots + warps * (queries + sums) + stages * 8 + tile).next_multiple_of(16)
}

impl ExtendShape {
    /// Two narrow CTAs to a multiprocessor where both fit: they wait apart, which is worth 8% (docs/gpu.md). Else the widest that keeps two blocks in
    /// flight, or the widest. `None` if nothing fits `limit` bytes.
    pub(super) fn fitting(layout: &RecordLayout, group: usize, limit: usize) -> Option<Self> {
        let shapes = [(4, 2), (8, 3), (8, 2), (4, 2), (8, 1), (4, 1), (2, 1), (1, 1)];
        let mut cut = shapes.into_iter().filter_map(|(warps, stages)| Self::cut(layout, group, limit, warps, stages));
        let first = cut.next()?;
        if first.ctas == 2 { Some(first) } else { Some(cut.next().unwrap_or(first)) }
    }

    /// So many warps and blocks in flight, if they fit.
    pub(super) fn cut(layout: &RecordLayout, group: usize, limit: usize, warps: usize, stages: usize) -> Option<Self> {
        let (shared, tokens) = (shared_bytes(layout, warps, stages), warps * rows(layout.dim) / group);
        // What the system keeps for each of them comes from the same memory: the limit leaves out one such part and one more.
        let ctas = if warps <= 4 && 2 * (shared + 1024) <= limit + 2048 { 2 } else { 1 };
        (shared <= limit && tokens > 0).then_some(Self { warps, stages, shared, tokens, ctas })
    }

    /// Threads of a CTA.
    pub const fn threads(&self) -> usize {
        32 * self.warps
    }
}

/// New tokens of one sequence, as the kernel reads them, and what of that which they see a launch goes over: records of blocks before them, and behind those blocks of originals,
/// which lie in staging, one behind the other. One launch goes over all, or several leave to each other what they have ([`Relay`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ExtendChunk {
    /// Row of the sequence in the tables.
    pub row: u32,
    /// Tokens of the sequence before the chunk.
    pub before: u32,
    /// Tokens of the chunk, at least 1.
    pub tokens: u32,
    /// Its first row in queries and outputs.
    pub first_row: u32,
    /// Block of staging that is block `from` of the sequence.
    pub staged: u32,
    /// Tiles of the chunks before this one: [`ExtendShape::tokens`] each, the last of a chunk with what is left.
    pub first_tile: u32,
    /// Records of blocks before the chunk: as many as the row of the table names first.
    pub coded: u32,
    /// Blocks of originals from here on,
    pub from: u32,
    /// and before this one; no more than up to the chunk's last token.
    pub to: u32,
}

impl ExtendChunk {
    /// Words of one in device memory.
    pub const WORDS: usize = size_of::<Self>() / 4;

    /// New tokens behind `before` others, all of which but those of the first one's block are records.
    pub const fn new((row, before, tokens): (u32, u32, u32), block: u32) -> Self {
        let (coded, from) = (before / block, before / block);
        Self { row, before, tokens, first_row: 0, staged: 0, first_tile: 0, coded, from, to: u32::MAX }
    }

    /// Blocks of staging that a launch goes over.
    pub const fn staged_blocks(&self, block: u32) -> u32 {
        let end = (self.before + self.tokens).div_ceil(block);
        if self.to < end { self.to.saturating_sub(self.from) } else { end.saturating_sub(self.from) }
    }

    /// In the order of its fields.
    pub const fn words(&self) -> [u32; Self::WORDS] {
        let Self { row, before, tokens, first_row, staged, first_tile, coded, from, to } = *self;
        [row, before, tokens, first_row, staged, first_tile, coded, from, to]
    }
}

/// Arguments of `ckv_extend`, as `kernels/extend/args.cuh` has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ExtendArgs {
    /// [`ExtendChunk`]`[chunk_count]`.
    pub chunks: u64,
    /// Records of the layer, as for attend.
    pub packed: u64,
    /// Bytes from a page to the next.
    pub page_stride: u64,
    /// Bytes from a head's record to the next.
    pub head_stride: u64,
    /// `u32[rows][table_stride]`: page of each full block.
    pub table: u64,
    /// Blocks of staging, each `[kv_heads][keys, values]` in fragment order.
    pub staged: u64,
    /// Bytes from one to the next.
    pub staged_stride: u64,
    /// `f32[rows][kv_heads][dim]`; 0: zero.
    pub centres: u64,
    /// `[tokens of all chunks][kv_heads group][dim]` of `query_type`.
    pub query: u64,
    /// The same shape of `out_type`.
    pub out: u64,
    /// [`Certificate`]`[tokens of all chunks][kv_heads group]`; 0: not wanted.
    pub certificates: u64,
    /// Chunks.
    pub chunk_count: u32,
    /// Tiles of all of them.
    pub tiles: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Entries per row of `table`.
    pub table_stride: u32,
    /// [`Element`](super::args::Element) of the queries.
    pub query_type: u32,
    /// [`Element`](super::args::Element) of the outputs.
    pub out_type: u32,
    /// Scale of the logits.
    pub scale: f32,
    /// Tolerance as a share of the output's norm.
    pub relative: f32,
    /// Tolerance as a length. An output passes under the larger of the two.
    pub absolute: f32,
    /// Of a variant with windows: newest tokens that a query sees, its own among them, at least 1.
    pub window: u32,
    /// And first tokens of the sequence.
    pub sinks: u32,
    /// Of several launches: 1 if it takes over what a launch before it has left, and 2 if it leaves that to another; else 0.
    pub part: u32,
    /// `f32[kv_heads group][2]`: a tolerance for each query head, in place of `relative` and `absolute`; 0: those for all.
    pub limits: u64,
    /// `u32[kv_heads][metric_stride]`: what keys are coded in ([`metrics`](super::metrics)), of a variant that [needs them](Variant::is_calibrated); 0 for others.
    pub metrics: u64,
    /// `f32[tokens of all chunks][kv_heads group][dim]`: what launches leave to each other of outputs; of one alone 0.
    pub sums: u64,
    /// `f32[tokens of all chunks][kv_heads group][12]`: and beside that; the same.
    pub kept: u64,
    /// Of the queries.
    pub query_strides: Strides,
    /// Of the outputs.
    pub out_strides: Strides,
}

/// What several launches over a chunk leave to each other, each behind the one before: over records of several levels, or over more originals than staging holds. Those but the last
/// write no output.
#[derive(Debug, Clone, Copy)]
pub struct Relay<'a> {
    /// `f32[tokens][kv_heads group][dim]`: sums of outputs, in the place of outputs of single precision that follow each other, or another.
    pub sums: Span<'a>,
    /// [`relay_bytes`] of the chunks.
    pub kept: Span<'a>,
    /// Whether a launch before this one has left something.
    pub follows: bool,
    /// Whether another comes behind it.
    pub leaves: bool,
}

/// Bytes that launches leave beside outputs of so many tokens with `q_heads` query heads: `KEPT` of kernels/extend/relay.cuh.
pub const fn relay_bytes(tokens: usize, q_heads: usize) -> usize {
    4 * tokens * q_heads * 12
}

/// Arguments of [`extend`]; see [`ExtendArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Extend<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// The chunks, on the host: what the device is told of them is [`chunks_of`].
    pub chunks: &'a [ExtendChunk],
    /// The same in device memory, or mapped.
    pub listed: Span<'a>,
    /// Rows in the tables.
    pub rows: usize,
    /// Entries per row of the table.
    pub stride: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// `u32[rows][stride]`: page of the records of each full block.
    pub table: Span<'a>,
    /// Pages of records of the layer.
    pub packed: Span<'a>,
    /// Blocks of staging.
    pub staged: Span<'a>,
    /// `f32[rows][kv_heads][dim]`.
    pub centres: Span<'a>,
    /// `[tokens][kv_heads group][dim]`.
    pub query: Tensor<'a>,
    /// The same shape.
    pub out: Tensor<'a>,
    /// [`Certificate`]`[tokens][kv_heads group]`; `None`: not computed.
    pub certificates: Option<Span<'a>>,
    /// Scale of the logits.
    pub scale: f32,
    /// Tolerance as a share of the output's norm.
    pub relative: f32,
    /// Tolerance as a length.
    pub absolute: f32,
    /// `f32[kv_heads group][2]`: both for each query head, in place of those for all.
    pub limits: Option<Span<'a>>,
    /// What queries see, of a variant that is [windowed](Variant::windowed); `None`: everything.
    pub sight: Option<Sight>,
    /// As [`Attend::metrics`](super::launch::Attend::metrics).
    pub metrics: Option<Span<'a>>,
    /// Of several launches what they leave to each other.
    pub relay: Option<Relay<'a>>,
}

/// Chunks `(row, before, tokens)` of a launch, in the order of their rows in queries and outputs, with their blocks of staging one behind the
/// other. Returns tiles and blocks of staging of all of them, too.
pub fn chunks_of(
    shape: &ExtendShape,
    block: usize,
    of: impl IntoIterator<Item = (u32, u32, u32)>,
) -> (Vec<ExtendChunk>, u32, u32) {
    let (mut chunks, mut first_row, mut tiles, mut blocks) = (Vec::new(), 0, 0, 0);
    let block = block as u32;
    for (row, before, tokens) in of {
        let chunk = ExtendChunk::new((row, before, tokens), block);
        chunks.push(ExtendChunk { first_row, staged: blocks, first_tile: tiles, ..chunk });
        first_row += tokens;
        tiles += tokens.div_ceil(shape.tokens as u32);
        blocks += chunk.staged_blocks(block);
    }
    (chunks, tiles, blocks)
}

/// Enqueues `ckv_extend`.
///
/// # Errors
/// As [`attend`](super::launch::attend); [`CudaError::BadArgument`] for chunks without tokens, or with more records than the table has or lie before them,
pub fn extend(queue: &Queue, kernel: &Function, a: &Extend<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    let (l, group) = (a.variant.layout(), a.variant.group());
    let shape = a.variant.extend_shape();
    let Some(last) = a.chunks.last() else { return Ok(()) };
    if a.chunks.iter().any(|c| c.tokens == 0) {
        return Err(CudaError::BadArgument { argument: "chunks", why: "one of no token" });
    }
    let block = l.tokens() as u32;
    if a.chunks.iter().any(|c| c.coded > c.before / block || c.coded as usize > a.stride) {
        return Err(CudaError::BadArgument { argument: "chunks", why: "more records than blocks before one" });
    }
    let tokens = last.first_row as usize + last.tokens as usize;
    let shape_of = [tokens, a.kv_heads * group, l.dim];
    let (query, query_strides) = on.takes_rows(a.query, "query", shape_of)?;
    let (out, out_strides) = on.gives_rows(a.out, "out", shape_of)?;
    let end = |c: &ExtendChunk| c.staged + c.staged_blocks(block);
    let blocks = a.chunks.iter().map(end).max().unwrap_or(0) as usize;
    let staged_stride = 2 * a.kv_heads * l.original_side_bytes();
    let [window, sinks] = sight_of(a.variant, a.sight)?;
    let tiles = last.first_tile as usize + (last.tokens as usize).div_ceil(shape.tokens);
    let args = ExtendArgs {
        chunks: on.reads(a.listed, "chunks", size_of_val(a.chunks))?,
        packed: on.reads(a.packed, "packed", 0)?,
        page_stride: (a.kv_heads * l.bytes) as u64,
        head_stride: l.bytes as u64,
        table: on.reads(a.table, "table", 4 * a.rows * a.stride)?,
        staged: on.reads(a.staged, "staged", blocks * staged_stride)?,
        staged_stride: staged_stride as u64,
        centres: on.reads(a.centres, "centres", 4 * a.rows * a.kv_heads * l.dim)?,
        query,
        out,
        certificates: on.may_write(
            a.certificates,
            "certificates",
            tokens * a.kv_heads * group * size_of::<Certificate>(),
        )?,
        chunk_count: word("chunks", a.chunks.len())?,
        tiles: word("tiles", tiles)?,
        kv_heads: word("kv_heads", a.kv_heads)?,
        table_stride: word("table", a.stride)?,
        query_type: a.query.element() as u32,
        out_type: a.out.element() as u32,
        scale: a.scale,
        relative: a.relative,
        absolute: a.absolute,
        window,
        sinks,
        part: a.relay.map_or(0, |relay| u32::from(relay.follows) | u32::from(relay.leaves) << 1),
        limits: on.may_read(a.limits, "limits", 8 * a.kv_heads * group)?,
        metrics: metrics_of(&mut on, a.variant, a.metrics, a.kv_heads)?,
        sums: on.may_write(a.relay.map(|relay| relay.sums), "relay", 4 * shape_of.iter().product::<usize>())?,
        kept: on.may_write(a.relay.map(|relay| relay.kept), "relay", relay_bytes(tokens, a.kv_heads * group))?,
        query_strides,
        out_strides,
    };
    let ctas = word("tiles", tiles.saturating_mul(a.kv_heads))?;
    let (threads, shared) = (word("threads", shape.threads())?, word("shared memory", shape.shared)?);
    on.tell(queue)?;
    // SAFETY: the struct is the kernel's own; every address was checked to hold what the kernel documents for chunks as `a.chunks` has
    // them, which the caller has put where `listed` says, as tables are the caller's; device memory is freed only after work that uses it.
    unsafe { kernel.launch(queue.stream(), ctas, threads, shared, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_their_twins() {
        assert_eq!(size_of::<ExtendArgs>(), 15 * 8 + 16 * 4);
        assert_eq!(size_of::<ExtendChunk>(), 36);
    }

    #[test]
    fn chunks_lie_behind_each_other() {
        let shape = ExtendShape { warps: 8, stages: 2, shared: 0, tokens: 64, ctas: 1 };
        let (chunks, tiles, blocks) = chunks_of(&shape, 32, [(3, 40, 100), (1, 64, 1), (0, 0, 64)]);
        assert_eq!((tiles, blocks), (2 + 1 + 1, 4 + 1 + 2));
        let of = |chunk, first_row, staged, first_tile| ExtendChunk {
            first_row,
            staged,
            first_tile,
            ..ExtendChunk::new(chunk, 32)
        };
        assert_eq!(chunks[1], of((1, 64, 1), 100, 4, 2));
        assert_eq!(chunks[2], of((0, 0, 64), 101, 5, 3));
        assert_eq!((chunks[0].coded, chunks[0].from, chunks[0].staged_blocks(32)), (1, 1, 4));
        // A part of them, and none.
        assert_eq!(ExtendChunk { from: 0, to: 3, ..chunks[0] }.staged_blocks(32), 3);
        assert_eq!(ExtendChunk { from: 3, to: 3, ..chunks[0] }.staged_blocks(32), 0);
    }
}

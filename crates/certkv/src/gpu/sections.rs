//! Sections of buffers in device memory, one after the other. Pure arithmetic.
use certkv_core::Geometry;
use certkv_kernel::cuda::args::{Certificate, Sides};
use certkv_kernel::cuda::extend::{ExtendChunk, relay_bytes};
use certkv_kernel::cuda::launch::row_norm_bytes;
use certkv_kernel::cuda::select::CopyItem;
use core::ops::Range;

/// Sections of a buffer start at multiples of this.
pub(super) const ALIGN: usize = 256;

/// Words of 32 bits in the tables' buffer, by section. `state` is written once a step: tokens before and after it, tails,
/// rows of the batch, their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableSections {
    pub(super) before: Range<usize>,
    pub(super) after: Range<usize>,
    pub(super) batch: Range<usize>,
    /// Sequences of the batch, then the number of the step.
    pub(super) count: Range<usize>,
}

/// Those of a group of layers: tails, which are among the state, then its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupSections {
    pub(super) tails: Range<usize>,
    /// `[row][stride]`: pages of records.
    pub(super) packed: Range<usize>,
    /// `[row][stride]`: pages of originals.
    pub(super) hosts: Range<usize>,
    /// `[row][kv_head][stride]`: promoted words under which everything is read from the originals.
    pub(super) exact: Range<usize>,
    /// Where blocks have levels: those of each.
    pub(super) levels: Vec<LevelSections>,
    /// And how many CTAs attend each of them, which is among the state.
    pub(super) shares: Range<usize>,
}

impl GroupSections {
    /// Where they end.
    pub(super) fn end(&self) -> usize {
        self.levels.last().map_or(self.exact.end, |level| level.homes.end)
    }
}

/// Those of a level: its lengths, as [`launch::Attend::lens`](certkv_kernel::cuda::launch::Attend::lens) of a level has them, which are among the state, then its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LevelSections {
    /// `[row]`.
    pub(super) lens: Range<usize>,
    /// `[row][stride]`: pages of records of a row's blocks at the level, without a gap.
    pub(super) packed: Range<usize>,
    /// `[row][stride]`: which blocks of the sequence they are.
    pub(super) homes: Range<usize>,
}

/// Words of the counters' buffer: zero between launches, but for `errors`, `status` and what counts up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CounterSections {
    pub(super) errors: Range<usize>,
    pub(super) status: Range<usize>,
    pub(super) heads: Range<usize>,
    pub(super) stats: Range<usize>,
    /// Steps so far, 8 bytes, and the CTAs that have published; the same for what goes to device memory of a caller, 16 bytes on.
    pub(super) published: Range<usize>,
    /// What a ladder counts its stages in.
    pub(super) turns: Range<usize>,
}

/// Words of what a layer remembers of its promoted sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemorySections {
    pub(super) sides: Range<usize>,
    pub(super) resident: Range<usize>,
    /// Owner and stamp of every slot of keys, then of values.
    pub(super) keys: [Range<usize>; 2],
    pub(super) values: [Range<usize>; 2],
    /// Where the searches for slots go on.
    pub(super) hands: Range<usize>,
    pub(super) queue: Range<usize>,
    pub(super) copies: Range<usize>,
    /// What lies in the places of protected blocks.
    pub(super) held: Range<usize>,
    /// Of all sections, with what separates layers.
    pub(super) words: usize,
}

/// Bytes of what corrections work with; all empty without a refinable format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CorrectionSections {
    /// Heads to be corrected.
    pub(super) list: Range<usize>,
    /// `[head of the batch]`: how many blocks.
    pub(super) picked: Range<usize>,
    /// `[head of the batch][stride]`: which.
    pub(super) picks: Range<usize>,
    /// `[head of the batch]`: its state when the pass is over.
    pub(super) kept: Range<usize>,
    /// `[row][kv_head][stride]`, a byte each: which residuals the pass has read.
    pub(super) looks: Range<usize>,
}

/// Bytes of what attention of longer chunks works with; all empty without room for any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkSections {
    /// What a launch is told of the chunk.
    pub(super) list: Range<usize>,
    /// Originals of blocks, in the order of the sequence: in one half while a launch reads the other.
    pub(super) staged: Range<usize>,
    /// Blocks of a half.
    pub(super) blocks: usize,
    /// `[token][query head][dim]`, single precision; outputs the same.
    pub(super) queries: Range<usize>,
    pub(super) outputs: Range<usize>,
    /// `[token][query head]`.
    pub(super) certificates: Range<usize>,
    /// What launches leave to each other beside outputs.
    pub(super) relay: Range<usize>,
    /// Of new tokens in device memory: row in the tables, tokens before it, block of staging; and how many there are.
    pub(super) new: [Range<usize>; 3],
    pub(super) count: Range<usize>,
    /// Norms of the rows in staging.
    pub(super) norms: Range<usize>,
}

impl ChunkSections {
    /// Half of staging, of which a call's launches take one and the other by turns.
    pub(super) fn half(&self, turn: usize) -> Range<usize> {
        let (bytes, start) = (self.staged.len() / 2, self.staged.start);
        start + turn % 2 * bytes..start + (1 + turn % 2) * bytes
    }

    /// For chunks of `tokens` tokens, whose first may lie anywhere in a block.
    pub(super) fn new(tokens: usize, (block, original_bytes): (usize, usize), g: &Geometry) -> Option<Self> {
        let (heads, dim, norm_bytes) = (tokens.checked_mul(g.q_heads)?, g.head_dim, row_norm_bytes(g.kv_heads, block));
        let blocks = if tokens == 0 { 0 } else { tokens.div_ceil(block) + 1 };
        let list = if tokens == 0 { 0 } else { ExtendChunk::WORDS };
        let words = [
            list,
            blocks.checked_mul(2 * (original_bytes / 4))?,
            heads.checked_mul(dim)?,
            heads.checked_mul(dim)?,
            heads.checked_mul(Certificate::WORDS)?,
            heads.checked_mul(relay_bytes(1, 1) / 4)?,
            blocks.checked_mul(block)?,
            blocks.checked_mul(block)?,
            blocks.checked_mul(block)?,
            usize::from(tokens > 0),
            blocks.checked_mul(norm_bytes.div_ceil(4))?,
        ];
        let (sections_of, _) = sections(words)?;
        let [list, staged, queries, outputs, certificates, relay, rows, lens, tails, count, norms] =
            sections_of.map(|r| 4 * r.start..4 * r.end);
        let new = [rows, lens, tails];
        Some(Self { list, staged, blocks, queries, outputs, certificates, relay, new, count, norms })
    }
}

/// Lays sections of the given numbers of words out, one after the other from `at` on, and moves it behind them.
fn lay_out<const N: usize>(at: &mut usize, words: [usize; N]) -> Option<[Range<usize>; N]> {
    let mut out = [const { 0..0 }; N];
    for (range, n) in out.iter_mut().zip(words) {
        *range = *at..at.checked_add(n)?;
        *at = range.end.checked_next_multiple_of(ALIGN / 4)?;
    }
    Some(out)
}

/// The same from the beginning, and where they end.
pub(super) fn sections<const N: usize>(words: [usize; N]) -> Option<([Range<usize>; N], usize)> {
    let mut at = 0;
    Some((lay_out(&mut at, words)?, at))
}

/// Sections of the tables' buffer, with those of each group, whose blocks have so many `levels`, or 0.
pub(super) fn table_sections(
    (groups, levels): (usize, usize),
    rows: usize,
    entries: usize,
    exact: usize,
) -> Option<(TableSections, Vec<GroupSections>)> {
    let at = &mut 0;
    let [before, after] = lay_out(at, [rows; 2])?;
    let state = |_| {
        let lens = (0..1 + levels).map(|_| lay_out(at, [rows])).collect::<Option<Vec<_>>>()?;
        let shares = if levels > 0 { lay_out(at, [levels])?[0].clone() } else { 0..0 };
        Some((lens, shares))
    };
    let states = (0..groups).map(state).collect::<Option<Vec<_>>>()?;
    let [batch, count] = lay_out(at, [rows, 2])?;
    let of_group = |(words, shares): (Vec<[Range<usize>; 1]>, Range<usize>)| {
        let [tails, lens @ ..] = &words[..] else { return None };
        let [packed, hosts, exact] = lay_out(at, [entries, entries, exact])?;
        let of_level = |lens: &[Range<usize>; 1]| {
            let [packed, homes] = lay_out(at, [entries, entries])?;
            Some(LevelSections { lens: lens[0].clone(), packed, homes })
        };
        let levels = lens.iter().map(of_level).collect::<Option<Vec<_>>>()?;
        Some(GroupSections { tails: tails[0].clone(), packed, hosts, exact, levels, shares })
    };
    let of_groups = states.into_iter().map(of_group).collect::<Option<Vec<_>>>()?;
    Some((TableSections { before, after, batch, count }, of_groups))
}

impl MemorySections {
    /// For so many heads of pages, slots, copies, and places of protected blocks.
    pub(super) fn new(items: usize, [keys, values]: [usize; 2], copies: usize, places: usize) -> Option<Self> {
        let sides = items.checked_mul(2)?.checked_add(places)?;
        let side_words = sides.checked_mul(size_of::<Sides>() / 4)?;
        let copy_words = copies.checked_mul(size_of::<CopyItem>() / 4)?;
        let ([sides, resident, ko, ks, vo, vs, hands, queue, copies, held], words) =
            sections([side_words, 2 * items, keys, keys, values, values, 2, 2, copy_words, places.checked_mul(2)?])?;
        Some(Self { sides, resident, keys: [ko, ks], values: [vo, vs], hands, queue, copies, held, words })
    }
}

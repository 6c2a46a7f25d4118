//! Blocks that are read as originals whatever was measured, in all layers at once. The launch of `kernels/protect.cu`.
use super::args::Sides;
use super::launch::{CHAINED, Memory, Tables, word};
use super::queue::{Queue, Span};
use super::select::SelectStats;
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// Layers of a launch, at most: `PROTECT_LAYERS` of `kernels/protect.cu`.
pub const PROTECT_LAYERS: usize = 32;

/// One layer, as `ckv_protect` has it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ProtectLayer {
    /// `u32[rows][stride]`: page of each full block.
    pub table: u64,
    /// `u32[rows][stride]`: page of its originals, [`NO_PAGE`](super::select::NO_PAGE) for none.
    pub hosts: u64,
    /// [`Sides`]`[host pages][kv_heads]`: where each page's originals are; 0 for a side that is out of reach.
    pub originals: u64,
    /// `u32[rows][kv_heads][stride]`, as [`SelectArgs::promoted`](super::select::SelectArgs::promoted).
    pub promoted: u64,
    /// [`Sides`]`[rows][kv_heads][places]`: where the places are, 0 for a side without codes.
    pub places: u64,
    /// `u32[rows][kv_heads][places][2]`: 1 + page and number of the block that lies in a place, zeroes for none. Zero at first.
    pub held: u64,
    /// `u32`, counted up: [`SelectStats`].
    pub stats: u64,
    /// Sides in front of the places, in the table that words count in.
    pub first: u32,
    /// As [`AttendArgs::window`](super::args::AttendArgs::window); `u32::MAX`: everything is seen.
    pub window: u32,
    /// As [`AttendArgs::sinks`](super::args::AttendArgs::sinks).
    pub sinks: u32,
    /// 0.
    pub unused: u32,
}

/// Arguments of `ckv_protect`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ProtectArgs {
    /// `u32[seqs]`: row of each sequence.
    pub rows: u64,
    /// `u32[rows]`: tokens before the step's first.
    pub lens: u64,
    /// `u32[rows]`: tokens of which full blocks have records.
    pub recorded: u64,
    /// Sequences.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Entries per row of tables.
    pub stride: u32,
    /// Tokens of a block.
    pub block: u32,
    /// Bytes of a side.
    pub side_bytes: u32,
    /// Places of a head: those of the first tokens, then at least as many as the newest can lie in.
    pub places: u32,
    /// First tokens of a sequence.
    pub protect_sinks: u32,
    /// Newest tokens of the step's first query, its own among them.
    pub protect_recent: u32,
    /// 1 if nothing else is promoted.
    pub alone: u32,
    /// Layers in `of`.
    pub layers: u32,
    /// The layers.
    pub of: [ProtectLayer; PROTECT_LAYERS],
}

/// Places of a head's protected blocks in one layer.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// How many.
    pub count: usize,
    /// See [`ProtectLayer::held`].
    pub held: Span<'a>,
    /// Their memory, which [`Memory::sides`] names behind its two halves.
    pub copies: Span<'a>,
}

/// One layer of a [`protect`].
#[derive(Debug, Clone, Copy)]
pub struct Protecting<'a> {
    /// Block tables.
    pub tables: Tables<'a>,
    /// Pages of originals.
    pub hosts: Span<'a>,
    /// Where they are.
    pub originals: Span<'a>,
    /// What is promoted, and the places.
    pub memory: Memory<'a>,
    /// Those of `memory`.
    pub places: Places<'a>,
    /// [`SelectStats`].
    pub stats: Span<'a>,
    /// Tokens and sinks of a window.
    pub window: Option<[usize; 2]>,
}

/// Arguments of [`protect`]; see [`ProtectArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Protect<'a> {
    /// CTAs at most.
    pub ctas: u32,
    /// Sequences.
    pub seqs: usize,
    /// `u32[rows]`: tokens before the step's first.
    pub lens: Span<'a>,
    /// `u32[rows]`: tokens of which full blocks have records; the same, unless blocks that the step fills have theirs already.
    pub recorded: Span<'a>,
    /// Tokens of a block.
    pub block: usize,
    /// Bytes of a side.
    pub side_bytes: usize,
    /// First tokens of a sequence, and newest.
    pub tokens: [usize; 2],
    /// Whether nothing else is promoted.
    pub alone: bool,
}

/// Enqueues `ckv_protect` for `layers`, [`PROTECT_LAYERS`] at a time.
///
/// Costs a few microseconds where nothing is missing; else what there is to copy, on the device or over the host's link.
///
/// # Errors
/// As [`attend`](super::launch::attend), and those of `layers`. What was enqueued before is not taken back.
pub fn protect<'a, E: From<CudaError>>(
    queue: &Queue,
    kernel: &Function,
    a: &Protect<'_>,
    mut layers: impl Iterator<Item = Result<Protecting<'a>, E>>,
) -> Result<(), E> {
    const THREADS: u32 = 128;
    loop {
        let mut on = Touched::on(queue);
        let [sinks, recent] = a.tokens;
        let mut args = ProtectArgs {
            seqs: word("seqs", a.seqs)?,
            block: word("block", a.block)?,
            side_bytes: word("side", a.side_bytes)?,
            protect_sinks: word("protected tokens", sinks)?,
            protect_recent: word("protected tokens", recent)?,
            alone: u32::from(a.alone),
            ..ProtectArgs::default()
        };
        for (to, layer) in args.of.iter_mut().zip(&mut layers) {
            let Protecting { tables: t, hosts, originals, memory: m, places, stats, window } = layer?;
            let first = 2 * m.pages * t.kv_heads;
            let all = t.rows.saturating_mul(t.kv_heads).saturating_mul(places.count);
            let [window, sinks] = window.unwrap_or([u32::MAX as usize, 0]);
            on.writes(places.copies, "places", all.saturating_mul(2 * a.side_bytes))?;
            *to = ProtectLayer {
                table: on.reads(t.packed, "table", 4 * t.entries())?,
                hosts: on.reads(hosts, "hosts", 4 * t.entries())?,
                originals: on.reads(originals, "originals", size_of::<Sides>())?,
                promoted: on.writes(m.promoted, "promoted", 4 * t.entries() * t.kv_heads)?,
                places: on.reads(m.sides, "sides", (first + all) * size_of::<Sides>())?
                    + (first * size_of::<Sides>()) as u64,
                held: on.writes(places.held, "held", all.saturating_mul(8))?,
                stats: on.writes(stats, "stats", 4 * SelectStats::WORDS)?,
                first: word("pages", first)?,
                window: word("window", window)?,
                sinks: word("window", sinks)?,
                unused: 0,
            };
            args.rows = on.reads(t.batch, "batch", 4 * a.seqs)?;
            args.lens = on.reads(a.lens, "lens", 4 * t.rows)?;
            args.recorded = on.reads(a.recorded, "recorded", 4 * t.rows)?;
            (args.stride, args.kv_heads) = (word("table", t.stride)?, word("kv_heads", t.kv_heads)?);
            args.places = word("places", places.count)?;
            args.layers += 1;
        }
        if args.layers == 0 || args.seqs == 0 {
            return Ok(());
        }
        on.tell(queue)?;
        let ctas = args.seqs.saturating_mul(args.kv_heads).saturating_mul(args.layers).clamp(1, a.ctas);
        // SAFETY: as in `attend`; the table of sides names memory of `originals` and of the places, which outlive the queue's work.
        unsafe { kernel.launch(queue.stream(), ctas, THREADS, 0, &args, CHAINED)? };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<ProtectLayer>(), 7 * 8 + 4 * 4);
        assert_eq!(size_of::<ProtectArgs>(), 3 * 8 + 10 * 4 + PROTECT_LAYERS * size_of::<ProtectLayer>());
    }
}

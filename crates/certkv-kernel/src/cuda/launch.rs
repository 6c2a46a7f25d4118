//! Launches with arguments that name buffers and not addresses; what the host can know is checked before the driver is asked.
//!
//! What it cannot know is what tables in device memory say: a page number beyond its slab, written there by a mistake, makes the
//! GPU read or write elsewhere in its own address space. Whoever writes the tables answers for that.
use super::args::{AttendArgs, Certificate, Demand, Draft, Picked, Sides};
use super::encode::{AppendArgs, GatherArgs, PACK_THREADS, append_flag};
use super::levelled::{homes_of, levels_of};
use super::metrics::metrics_of;
use super::protect::Places;
use super::queue::{Queue, Span};
use super::select::{CopyItem, LevelRecords, SelectArgs, SelectMode, SelectStats, SlotPool};
use super::sight::{Sight, sight_of};
use super::tensor::Tensor;
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::{CudaError, Function, LaunchOptions};

/// Promoted sides of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Promoted<'a> {
    /// `u32[rows][kv_heads][table_stride]`: 0, or 1 + index into `sides`.
    pub words: Span<'a>,
    /// [`Sides`], as many as the words name.
    pub sides: Span<'a>,
}

/// Tables of a cache, indexed by row.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// Rows in the tables.
    pub rows: usize,
    /// Entries per row of block tables.
    pub stride: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// `u32[batch]`: row of each sequence of a batch.
    pub batch: Span<'a>,
    /// `u32[rows]`: slot of the open block.
    pub tails: Span<'a>,
    /// `u32[rows][stride]`: page of the records of each full block.
    pub packed: Span<'a>,
}

/// Arguments of [`attend`]; see [`AttendArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Attend<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// CTAs: one to a multiprocessor.
    pub ctas: u32,
    /// Sequences of the batch.
    pub seqs: usize,
    /// Block tables.
    pub tables: Tables<'a>,
    /// `u32[rows]`: visible tokens, at least 1 for every sequence of the batch. Of a variant for levels twice the tokens of the level, maybe none, and 1 more where the last
    /// block is full and lies in its tail.
    pub lens: Span<'a>,
    /// Pages of records of the layer.
    pub packed: Span<'a>,
    /// Promoted sides; `None`: nothing is promoted.
    pub promoted: Option<Promoted<'a>>,
    /// Tail slots of the layer.
    pub tail_slots: Span<'a>,
    /// [`row_norm_bytes`] for each of them.
    pub row_norms: Span<'a>,
    /// `f32[rows][kv_heads][dim]`.
    pub centres: Span<'a>,
    /// `[seqs][kv_heads group][dim]`; with drafts, of their tokens: `[tokens][kv_heads heads][dim]`.
    pub query: Tensor<'a>,
    /// The same shape.
    pub out: Tensor<'a>,
    /// [`Certificate`]`[seqs][kv_heads group]`; of drafts a group is `[tokens][heads]`, and the last token stands in for those that one lacks.
    pub certificates: Span<'a>,
    /// `u32[rows][kv_heads][stride][group]`.
    pub masses: Option<Span<'a>>,
    /// A list of heads to compute, [`list_bytes`]; `None`: all.
    pub only: Option<Span<'a>>,
    /// A list for the heads over tolerance, its count zero before the launch.
    pub failures: Option<Span<'a>>,
    /// Room for partial results: [`partial_bytes`].
    pub partials: Span<'a>,
    /// `u32[seqs kv_heads]`, zero between launches.
    pub counters: Span<'a>,
    /// Scale of the logits.
    pub scale: f32,
    /// Tolerance as a share of the output's norm.
    pub relative: f32,
    /// Tolerance as a length.
    pub absolute: f32,
    /// `f32[kv_heads heads][2]`: both for each query head of a token, in place of those for all.
    pub limits: Option<Span<'a>>,
    /// Which residual planes are read.
    pub refinement: Refinement<'a>,
    /// Room for the state of every head, from which a correction starts: [`kept_bytes`]. A pass fills it, a correction reads it.
    pub kept: Option<Span<'a>>,
    /// Whether the launches that may still run when this one starts leave lengths, tables, promoted words and records alone. Those are then
    /// looked up, and the first records asked for, before the launch ahead has ended; everything else waits for its end in any case.
    pub settled: bool,
    /// Whether a block that a sequence's last token has filled still lies in its tail, to be coded by [`close`](super::close::close) when the step ends. It
    /// is read there, and has no mass.
    pub closing: bool,
    /// What queries see, of a variant that is [windowed](Variant::windowed); `None`: everything.
    pub sight: Option<Sight>,
    /// [`Draft`]`[seqs]`, of a variant with [drafts](Variant::drafting); `None` of others. What lies behind a token weighs nothing for its heads.
    pub drafts: Option<Span<'a>>,
    /// `f32[kv_heads][2][dim]`: centre and balance scale of the layer's keys, math.md (2.19a); of a variant that [needs them](Variant::is_calibrated), and of no other.
    pub metrics: Option<Span<'a>>,
    /// Of a variant for [levels](Variant::levelled), and of no other: `u32[rows][stride]`, which block of the sequence each of a row's blocks is. Tables and
    /// lengths are the level's then, and what the launch leaves is [`Attend::kept`], from which [`unite`](super::unite::unite) makes outputs and certificates.
    pub homes: Option<Span<'a>>,
    /// Of such a variant, in a launch over all heads: `u32`, how many of the CTAs attend, so that launches of several levels run beside each other; `None`: all.
    pub share: Option<Span<'a>>,
    /// Of such a variant: the launch ahead is another level's of the same pass, with partial results and counters of its own. This one waits for its end only with its own.
    pub beside: bool,
}

/// What a launch does with the residual planes of a refinable format (math.md 2.10).
#[derive(Debug, Clone, Copy, Default)]
pub enum Refinement<'a> {
    /// It reads none.
    #[default]
    Never,
    /// It reads those of the blocks whose weights ask for it.
    OnDemand {
        /// [`Demand`]`[rows][kv_heads heads]`, of a token: how much a block may add without.
        demands: Span<'a>,
        /// `u32[2]`: sides whose residuals were read are added.
        refined: Option<Span<'a>>,
        /// `u8[rows][kv_heads][stride]`: which were, by block.
        looks: Option<Span<'a>>,
    },
    /// It reads all.
    Always,
    /// It corrects what a pass has kept of the heads in `only`: a launch of a [correcting](Variant::correcting) variant.
    Picked(Picks<'a>),
}

/// Blocks to correct, and with which residuals: [`SelectMode::Refine`] writes them.
#[derive(Debug, Clone, Copy)]
pub struct Picks<'a> {
    /// `u32[seqs kv_heads][stride]`: see [`AttendArgs::picks`].
    pub blocks: Span<'a>,
    /// [`Picked`]`[seqs kv_heads]`.
    pub counts: Span<'a>,
}

/// Arguments of [`append`]; see [`AppendArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// CTAs: at most one to a head of the batch.
    pub ctas: u32,
    /// Sequences of the batch; or with [`BY_PLACE`](append_flag::BY_PLACE) their new tokens.
    pub seqs: usize,
    /// Block tables; then their batch and their tails are of every token.
    pub tables: Tables<'a>,
    /// `u32`: the number of sequences once more, where captured launches read it.
    pub count: Span<'a>,
    /// `u32[rows]`, or then of every token: tokens before it.
    pub lens: Span<'a>,
    /// `u32[rows]`.
    pub errors: Span<'a>,
    /// `[seqs][kv_heads][dim]`, or [`Rows`](super::tensor::Rows) of as many.
    pub keys: Tensor<'a>,
    /// The same, of its own type.
    pub values: Tensor<'a>,
    /// Tail slots of the layer.
    pub tail_slots: Span<'a>,
    /// As [`Attend::row_norms`].
    pub row_norms: Span<'a>,
    /// `u32` that is set to 0.
    pub clear: Option<Span<'a>>,
    /// Bits of [`append_flag`].
    pub flags: u32,
}

/// Slots of one side in fast memory; see [`SlotPool`].
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    /// Slot after slot.
    pub memory: Span<'a>,
    /// `u32[count]`.
    pub owner: Span<'a>,
    /// `u32[count]`.
    pub stamp: Span<'a>,
    /// `u32`.
    pub hand: Span<'a>,
    /// Slots.
    pub count: usize,
}

/// What one layer remembers of its promoted sides; all of it zero at first.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// `u32[rows][kv_heads][stride]`.
    pub promoted: Span<'a>,
    /// [`Sides`]`[2][pages kv_heads]`.
    pub sides: Span<'a>,
    /// `u32[pages kv_heads][2]`.
    pub resident: Span<'a>,
    /// Slots of keys.
    pub keys: Slots<'a>,
    /// Slots of values.
    pub values: Slots<'a>,
    /// [`CopyItem`]`[capacity]`.
    pub copies: Span<'a>,
    /// `u32[2]`: length of the list of copies, places given out.
    pub queue: Span<'a>,
    /// Pages of records.
    pub pages: usize,
    /// Most copies of a step.
    pub capacity: usize,
    /// Where blocks are protected.
    pub places: Option<Places<'a>>,
}

/// What [`SelectMode::Refine`] works with.
#[derive(Debug, Clone, Copy)]
pub struct Refine<'a> {
    /// `u8[rows][kv_heads][stride]`: sides whose residuals the pass has read.
    pub looks: Span<'a>,
    /// What it writes for the correction.
    pub picks: Picks<'a>,
    /// A list to which it adds the heads that no residuals bring under their tolerance.
    pub failures: Span<'a>,
}

/// Arguments of [`select`]; see [`SelectArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Select<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// CTAs: at most one to a head of the batch.
    pub ctas: u32,
    /// What the launch does.
    pub mode: SelectMode,
    /// Sequences of the batch.
    pub seqs: usize,
    /// Block tables.
    pub tables: Tables<'a>,
    /// `u32[rows]`: visible tokens.
    pub lens: Span<'a>,
    /// Pages of records of the layer.
    pub packed: Span<'a>,
    /// [`Certificate`]`[seqs][kv_heads group]`.
    pub certificates: Span<'a>,
    /// `u32[rows][kv_heads][stride][group]`.
    pub masses: Span<'a>,
    /// The list that the mode works on.
    pub only: Option<Span<'a>>,
    /// The layer's memory.
    pub memory: Memory<'a>,
    /// `u32[rows][stride]`: page of the originals of each block.
    pub hosts: Span<'a>,
    /// [`Sides`]`[host pages][kv_heads]`: where each page's originals are; 0 for nowhere.
    pub originals: Span<'a>,
    /// `u32`: number of the step, from 1.
    pub step: Span<'a>,
    /// [`SelectStats`], counted up.
    pub stats: Span<'a>,
    /// With [`SelectMode::Refine`].
    pub refine: Option<Refine<'a>>,
    /// Words that the launch sets to zero.
    pub clear: [Option<Span<'a>>; 4],
    /// Share of the tolerance that may be left unpromoted.
    pub target: f32,
    /// A repair without a better idea promotes one block in so many.
    pub progress: u32,
    /// As [`Attend::sight`].
    pub sight: Option<Sight>,
    /// As [`Attend::closing`].
    pub closing: bool,
    /// As [`Attend::drafts`].
    pub drafts: Option<Span<'a>>,
    /// [`LevelRecords`], of a variant for [levels](Variant::levelled), and of no other: where records of a page are. Pages of all levels
    /// count on, and [`Select::packed`] has those of the first.
    pub levels: Option<Span<'a>>,
}

/// Bytes of the norms of a tail's rows: [`AttendArgs::row_norms`].
pub const fn row_norm_bytes(kv_heads: usize, block: usize) -> usize {
    8 * kv_heads * block
}

/// Floats of a partial result of `group` query heads per KV head of `dim` channels.
pub const fn partial_floats(dim: usize, group: usize) -> usize {
    super::variant::partial_stride(dim, group)
}

/// Bytes of partial results of a launch of `ctas` CTAs over `heads` KV heads of sequences.
pub fn partial_bytes(variant: &Variant, ctas: usize, heads: usize) -> usize {
    4 * variant.partial_stride() * (ctas + heads)
}

/// Bytes of [`Attend::kept`] for a batch of `heads` KV heads of sequences.
pub fn kept_bytes(variant: &Variant, heads: usize) -> usize {
    4 * variant.partial_stride() * heads
}

/// Bytes of a list of heads of a batch that has so many: a count, the heads listed, and their order, which a launch over them writes.
pub const fn list_bytes(heads: usize) -> usize {
    4 * (1 + 2 * heads)
}

/// Addresses of the kept state, the picks and their counts.
fn corrected(on: &mut Touched, a: &Attend<'_>, heads: usize) -> Result<[u64; 3], CudaError> {
    let kept = kept_bytes(a.variant, heads);
    let wrong = |argument, why| Err(CudaError::BadArgument { argument, why });
    let Refinement::Picked(picks) = a.refinement else {
        if a.variant.corrects() {
            return wrong("refinement", "without picks: the variant corrects");
        }
        return Ok([on.may_write(a.kept, "kept", kept)?, 0, 0]);
    };
    if !a.variant.corrects() {
        return wrong("variant", "corrects nothing");
    }
    if a.kept.is_none() || a.only.is_none() {
        return wrong("refinement", "picks without the state that they correct, or a list of heads");
    }
    Ok([
        on.may_read(a.kept, "kept", kept)?,
        on.reads(picks.blocks, "picks", 4 * heads * a.tables.stride)?,
        on.reads(picks.counts, "picked", heads * size_of::<Picked>())?,
    ])
}

pub(super) fn word(argument: &'static str, x: usize) -> Result<u32, CudaError> {
    u32::try_from(x).map_err(|_| CudaError::BadArgument { argument, why: "exceeds 32 bits" })
}

impl Tables<'_> {
    pub(super) fn entries(&self) -> usize {
        self.rows * self.stride
    }
}

/// A kernel starts while the one ahead of it ends: each waits for that end before it touches memory, so the order is the stream's.
pub(super) const CHAINED: LaunchOptions = LaunchOptions { programmatic: true, cluster: None };

/// Addresses and sizes of a pass.
pub(super) fn attend_args(on: &mut Touched, a: &Attend<'_>) -> Result<AttendArgs, CudaError> {
    let (l, t) = (a.variant.layout(), &a.tables);
    let (heads, group, own) = (a.seqs * t.kv_heads, a.variant.group(), a.variant.heads());
    if a.drafts.is_some() != (a.variant.draft() > 0) {
        return Err(CudaError::BadArgument {
            argument: "drafts",
            why: "of a variant without, or none of one with them",
        });
    }
    // Drafts name their tokens.
    let tokens = if a.drafts.is_some() { a.query.elements() / (t.kv_heads * own * l.dim).max(1) } else { a.seqs };
    let shape = [tokens, t.kv_heads * own, l.dim];
    let (query, query_strides) = on.takes_rows(a.query, "query", shape)?;
    let (out, out_strides) = on.gives_rows(a.out, "out", shape)?;
    let tail_bytes = 2 * t.kv_heads * l.original_side_bytes();
    let [demands, refined, looks] = match a.refinement {
        Refinement::OnDemand { demands, refined, looks } => [
            on.writes(demands, "demands", t.rows * t.kv_heads * own * size_of::<Demand>())?,
            on.may_write(refined, "refined", 8)?,
            on.may_write(looks, "looks", t.entries() * t.kv_heads)?,
        ],
        Refinement::Never | Refinement::Always | Refinement::Picked(_) => [0; 3],
    };
    let [kept, picks, picked] = corrected(on, a, heads)?;
    let [window, sinks] = sight_of(a.variant, a.sight)?;
    Ok(AttendArgs {
        packed: on.reads(a.packed, "packed", 0)?,
        page_stride: (t.kv_heads * l.bytes) as u64,
        head_stride: l.bytes as u64,
        rows: on.reads(t.batch, "batch", 4 * a.seqs)?,
        table: on.reads(t.packed, "table", 4 * t.entries())?,
        lens: on.reads(a.lens, "lens", 4 * t.rows)?,
        promoted: on.may_read(a.promoted.map(|p| p.words), "promoted", 4 * t.entries() * t.kv_heads)?,
        sides: on.may_read(a.promoted.map(|p| p.sides), "sides", size_of::<Sides>())?,
        tails: on.reads(t.tails, "tails", 4 * t.rows)?,
        tail_base: on.reads(a.tail_slots, "tail slots", tail_bytes)?,
        tail_stride: tail_bytes as u64,
        row_norms: on.reads(a.row_norms, "row norms", row_norm_bytes(t.kv_heads, l.tokens()))?,
        centres: on.reads(a.centres, "centres", 4 * t.rows * t.kv_heads * l.dim)?,
        query,
        out,
        certificates: on.writes(a.certificates, "certificates", heads * group * size_of::<Certificate>())?,
        masses: on.may_write(a.masses, "masses", 4 * t.entries() * t.kv_heads * group)?,
        only: on.may_write(a.only, "only", list_bytes(heads))?,
        failures: on.may_write(a.failures, "failures", 4 * (1 + heads))?,
        partials: on.writes(a.partials, "partials", partial_bytes(a.variant, a.ctas as usize, heads))?,
        counters: on.writes(a.counters, "counters", 4 * heads)?,
        seqs: word("seqs", a.seqs)?,
        kv_heads: word("kv_heads", t.kv_heads)?,
        table_stride: word("table", t.stride)?,
        query_type: a.query.element() as u32,
        out_type: a.out.element() as u32,
        scale: a.scale,
        relative: a.relative,
        absolute: a.absolute,
        demands,
        refined,
        looks,
        kept,
        picks,
        picked,
        refine_all: u32::from(matches!(a.refinement, Refinement::Always)),
        settled: u32::from(a.settled),
        closing: u32::from(a.closing),
        window,
        sinks,
        drafts: on.may_read(a.drafts, "drafts", a.seqs * size_of::<Draft>())?,
        limits: on.may_read(a.limits, "limits", 8 * t.kv_heads * own)?,
        metrics: metrics_of(on, a.variant, a.metrics, t.kv_heads)?,
        query_strides,
        out_strides,
        homes: homes_of(on, a)?,
        ctas: on.may_read(a.share, "share", 4)?,
        beside: u32::from(a.beside),
        unused: 0,
    })
}

/// Threads of a CTA of the variant, and bytes of its dynamic shared memory.
pub(super) fn cta_of(variant: &Variant) -> Result<(u32, u32), CudaError> {
    let shape = variant.shape();
    Ok((word("threads", shape.threads())?, word("shared memory", shape.shared)?))
}

/// Enqueues `ckv_attend`.
///
/// # Errors
/// [`CudaError::OutOfRange`] names what is too short; the driver's.
pub fn attend(queue: &Queue, kernel: &Function, a: &Attend<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    let args = attend_args(&mut on, a)?;
    let (threads, shared) = cta_of(a.variant)?;
    on.tell(queue)?;
    // SAFETY: the struct is the kernel's own; every address was checked to hold what the kernel documents, device memory is
    // freed and areas are dropped only after work that uses them (see `queue`), and tables are the caller's.
    unsafe { kernel.launch(queue.stream(), a.ctas, threads, shared, &args, CHAINED) }
}

/// Enqueues `ckv_append`.
///
/// # Errors
/// As [`attend`].
pub fn append(queue: &Queue, kernel: &Function, a: &Append<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    let (l, t) = (a.variant.layout(), &a.tables);
    let tail_bytes = 2 * t.kv_heads * l.original_side_bytes();
    let shape = [a.seqs, t.kv_heads, l.dim];
    let (keys, key_strides) = on.takes_rows(a.keys, "keys", shape)?;
    let (values, value_strides) = on.takes_rows(a.values, "values", shape)?;
    let by_place = a.flags & append_flag::BY_PLACE != 0;
    let own = 4 * if by_place { a.seqs } else { t.rows };
    let args = AppendArgs {
        keys,
        values,
        count: on.reads(a.count, "count", 4)?,
        rows: on.reads(t.batch, "batch", 4 * a.seqs)?,
        lens: on.reads(a.lens, "lens", own)?,
        errors: on.writes(a.errors, "errors", 4 * t.rows)?,
        tails: on.reads(t.tails, "tails", own)?,
        // Those that the tables name.
        tail_base: on.names(a.tail_slots, "tail slots", tail_bytes)?,
        tail_stride: tail_bytes as u64,
        row_norms: on.writes(a.row_norms, "row norms", row_norm_bytes(t.kv_heads, l.tokens()))?,
        clear: on.may_write(a.clear, "cleared word", 4)?,
        key_strides,
        value_strides,
        blocks: word("table", t.stride)?,
        kv_heads: word("kv_heads", t.kv_heads)?,
        key_input: a.keys.element() as u32,
        value_input: a.values.element() as u32,
        flags: a.flags,
    };
    on.tell(queue)?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), a.ctas, PACK_THREADS, 0, &args, CHAINED) }
}

impl Slots<'_> {
    fn pool(&self, on: &mut Touched, side_bytes: usize) -> Result<SlotPool, CudaError> {
        Ok(SlotPool {
            base: on.reads(self.memory, "slots", self.count.saturating_mul(side_bytes))?,
            owner: on.writes(self.owner, "slots", 4 * self.count)?,
            stamp: on.writes(self.stamp, "slots", 4 * self.count)?,
            hand: on.writes(self.hand, "slots", 4)?,
            count: word("slots", self.count)?,
            unused: 0,
        })
    }
}

/// Addresses and sizes of a choice.
pub(super) fn select_args(on: &mut Touched, a: &Select<'_>) -> Result<SelectArgs, CudaError> {
    let (l, t, m) = (a.variant.layout(), &a.tables, &a.memory);
    let (heads, items, group) = (a.seqs * t.kv_heads, m.pages * t.kv_heads, a.variant.group());
    let mut clear = [0; 4];
    for (address, span) in clear.iter_mut().zip(a.clear) {
        *address = on.may_write(span, "cleared word", 4)?;
    }
    let wrong = |argument, why| Err(CudaError::BadArgument { argument, why });
    if a.mode == SelectMode::Refine && (a.refine.is_none() || l.format.refine.is_none()) {
        return wrong("mode", "of a format without residuals, or without room for picks");
    }
    let [window, sinks] = sight_of(a.variant, a.sight)?;
    let [looks, picks, picked, failures] = match a.refine {
        Some(r) => [
            on.reads(r.looks, "looks", t.entries() * t.kv_heads)?,
            on.writes(r.picks.blocks, "picks", 4 * heads * t.stride)?,
            on.writes(r.picks.counts, "picked", heads * size_of::<Picked>())?,
            on.writes(r.failures, "failures", 4 * (1 + heads))?,
        ],
        None => [0; 4],
    };
    let places = m.places.map_or(0, |p| p.count);
    let of_places = t.rows.saturating_mul(t.kv_heads).saturating_mul(places);
    if let Some(p) = m.places.filter(|_| a.mode == SelectMode::Erase) {
        on.writes(p.copies, "places", of_places.saturating_mul(2 * l.original_side_bytes()))?;
    }
    let pages = if a.levels.is_some() { 0 } else { m.pages };
    Ok(SelectArgs {
        packed: on.reads(a.packed, "packed", pages.saturating_mul(t.kv_heads * l.bytes))?,
        page_stride: (t.kv_heads * l.bytes) as u64,
        head_stride: l.bytes as u64,
        rows: on.reads(t.batch, "batch", 4 * a.seqs)?,
        table: on.reads(t.packed, "table", 4 * t.entries())?,
        lens: on.reads(a.lens, "lens", 4 * t.rows)?,
        certificates: on.reads(a.certificates, "certificates", heads * group * size_of::<Certificate>())?,
        masses: on.reads(a.masses, "masses", 4 * t.entries() * t.kv_heads * group)?,
        only: on.may_read(a.only, "only", 4)?,
        promoted: on.writes(m.promoted, "promoted", 4 * t.entries() * t.kv_heads)?,
        sides: on.writes(m.sides, "sides", (2 * items + of_places) * size_of::<Sides>())?,
        resident: on.writes(m.resident, "resident", 8 * items)?,
        keys: m.keys.pool(on, l.original_side_bytes())?,
        values: m.values.pool(on, l.original_side_bytes())?,
        hosts: on.reads(a.hosts, "hosts", 4 * t.entries())?,
        originals: on.reads(a.originals, "originals", size_of::<Sides>())?,
        copies: on.writes(m.copies, "copies", m.capacity.saturating_mul(size_of::<CopyItem>()))?,
        queue: on.writes(m.queue, "queue", 8)?,
        step: on.reads(a.step, "step", 4)?,
        stats: on.writes(a.stats, "stats", 4 * SelectStats::WORDS)?,
        looks,
        picks,
        picked,
        failures,
        clear,
        mode: a.mode as u32,
        seqs: word("seqs", a.seqs)?,
        kv_heads: word("kv_heads", t.kv_heads)?,
        table_stride: word("table", t.stride)?,
        pages: word("pages", m.pages)?,
        capacity: word("copies", m.capacity)?,
        target: a.target,
        progress: a.progress,
        window,
        sinks,
        closing: u32::from(a.closing),
        drafts: on.may_read(a.drafts, "drafts", a.seqs * size_of::<Draft>())?,
        held: on.may_write(m.places.map(|p| p.held), "held", of_places.saturating_mul(8))?,
        places: word("places", places)?,
        levels: levels_of(on, a)?,
        level_count: a.levels.map_or(0, |levels| levels.bytes() / size_of::<LevelRecords>()) as u64,
    })
}

/// Enqueues `ckv_select`.
///
/// # Errors
/// As [`attend`].
pub fn select(queue: &Queue, kernel: &Function, a: &Select<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    const THREADS: u32 = 256;
    let args = select_args(&mut on, a)?;
    on.tell(queue)?;
    // SAFETY: as in `attend`; lists in device memory are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), a.ctas, THREADS, 0, &args, CHAINED) }
}

/// Enqueues `ckv_gather` of the copies that [`select`] listed in `memory`.
///
/// # Errors
/// As [`attend`].
pub fn gather(queue: &Queue, kernel: &Function, memory: &Memory<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    /// Enough to fill the link with pieces of 4 KiB and more. Attention leaves room for as many where heads end with shares; more would wait for it.
    const CTAS: u32 = 8;
    const THREADS: u32 = 512;
    let args = GatherArgs {
        items: on.reads(memory.copies, "copies", memory.capacity.saturating_mul(size_of::<CopyItem>()))?,
        count: on.writes(memory.queue, "queue", 4)?,
        epoch: 0,
        unused: 0,
    };
    on.tell(queue)?;
    // SAFETY: as in `attend`; the items were made by `select` from addresses that were checked there.
    unsafe { kernel.launch(queue.stream(), CTAS, THREADS, 0, &args, CHAINED) }
}

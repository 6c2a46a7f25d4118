//! Arguments of `ckv_select`, byte for byte as `kernels/select/args.cuh` has them, and what its numbers mean.
//!
//! The kernel runs with 256 threads and no dynamic shared memory, one CTA to a head of the batch; fewer CTAs stride over them.
//! In a step of a layer [`SelectMode::Repair`] is the first stage of the [`ladder`](super::ladder), which has the same code, and this kernel runs
//! as [`SelectMode::Plan`] after the last attend and before the copies of its list; a page that is given to other tokens, and a
//! row whose blocks are no longer those it had, go through [`SelectMode::Forget`] first.

/// What a launch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SelectMode {
    /// Chooses the next step's promoted set of every head of the batch from this step's masses, and queues the copies that bring
    /// missing sides to scratch. The copies must be complete before the layer's next attend.
    Plan = 0,
    /// Promotes more for the heads in `only`, effective at once: sides that are not in scratch are read from the host's pages.
    /// Keeps what was promoted. Needs masses and certificates of the heads' last attend; one launch per step, between
    /// two plans.
    Repair = 1,
    /// Forgets the pages, rows and blocks of rows in `only`: no slot, side or word refers to them afterwards.
    Forget = 2,
    /// Picks the sides of refinable records whose residuals the heads in `only` need beside those that the pass has read, for the correction that
    /// follows; heads that no residuals bring under their tolerance are added to `failures` instead.
    Refine = 3,
    /// As [`SelectMode::Forget`], and the slots that sides of the pages had are overwritten with zeroes. Not a stage of the ladder.
    Erase = 4,
}

impl SelectMode {
    /// Whether `only` is a list of pages and rows.
    pub const fn forgets(self) -> bool {
        matches!(self, Self::Forget | Self::Erase)
    }
}

/// In a [`SelectMode::Forget`] list: the entry is a row, not a page.
pub const ROW_ENTRY: u32 = 1 << 31;

/// The same: of a row's block, `row stride + block`, nothing is promoted.
pub const BLOCK_ENTRY: u32 = 1 << 30;

/// In `hosts`: the block has no page in the host's memory.
pub const NO_PAGE: u32 = u32::MAX;

/// Slots of one side, keys or values, in fast memory. Slot `i` lies at `base + i * B * d * 2` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SlotPool {
    /// Address of slot 0, a multiple of 16.
    pub base: u64,
    /// `u32[count]`: 0, or 1 + the item that lies there; item `(page kv_heads + head) 2 + side`, side 1 for values. Zero at
    /// first.
    pub owner: u64,
    /// `u32[count]`: the last step that used the slot. Zero at first.
    pub stamp: u64,
    /// `u32`: where the search for a slot goes on. Zero at first.
    pub hand: u64,
    /// Slots.
    pub count: u32,
    /// Zero.
    pub unused: u32,
}

/// One entry of the list of copies, as `ckv_gather` takes it. `bytes` may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CopyItem {
    /// Source, in mapped pinned memory.
    pub from: u64,
    /// Destination, a slot.
    pub to: u64,
    /// Bytes of a side, or 0.
    pub bytes: u64,
    /// 0.
    pub mark: u64,
}

/// Arguments of `ckv_select`. Tables, rows and outputs of attend are those of [`AttendArgs`](super::args::AttendArgs); all state
/// belongs to one layer and is zero at first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct SelectArgs {
    /// Records of the layer: that of page `p`, head `h` at `packed + p page_stride + h head_stride`.
    pub packed: u64,
    /// Bytes from a page to the next.
    pub page_stride: u64,
    /// Bytes from a head's record to the next.
    pub head_stride: u64,
    /// `u32[seqs]`: row of each sequence of the batch; 0: its own number.
    pub rows: u64,
    /// `u32[rows][table_stride]`: page of each full block.
    pub table: u64,
    /// `u32[rows]`: visible tokens.
    pub lens: u64,
    /// `Certificate[seqs][kv_heads group]` of the last attend.
    pub certificates: u64,
    /// `u32[rows][kv_heads][table_stride][group]` of the last attend.
    pub masses: u64,
    /// Repair: `u32`, a count, then `seq kv_heads + head`. Forget: a count, then pages, rows with [`ROW_ENTRY`], and blocks of rows with [`BLOCK_ENTRY`].
    pub only: u64,
    /// `u32[rows][kv_heads][table_stride]`: 0, or 1 + index into `sides`.
    pub promoted: u64,
    /// `Sides[2][pages kv_heads]`: of item `page kv_heads + head`, what lies in scratch; in the second half what a repair reads. Then
    /// `Sides[rows][kv_heads][places]`, the places of protected blocks ([`protect`](super::protect)).
    pub sides: u64,
    /// `u32[pages kv_heads][2]`: 0, or 1 + slot of the keys and of the values.
    pub resident: u64,
    /// Slots of keys.
    pub keys: SlotPool,
    /// Slots of values.
    pub values: SlotPool,
    /// `u32[rows][table_stride]`: host page of each full block, [`NO_PAGE`] for none; 0: no originals to be had.
    pub hosts: u64,
    /// [`Sides`](super::args::Sides)`[host pages][kv_heads]`: where each page's originals are, in fragment order; 0 for a side that is out of reach and stays
    /// on codes.
    pub originals: u64,
    /// `CopyItem[capacity]`: the list of copies.
    pub copies: u64,
    /// `u32[2]`: length of the list, and places given out, which may be more. Both must be zero when a new list is begun:
    /// see `clear`.
    pub queue: u64,
    /// `u32`: number of the step, from 1.
    pub step: u64,
    /// `u32[12]`, counted up: see [`SelectStats`]; 0: not wanted.
    pub stats: u64,
    /// Refine: `u8[rows][kv_heads][table_stride]`, see [`AttendArgs::looks`](super::args::AttendArgs::looks); also of use to a repair, 0 without.
    pub looks: u64,
    /// Refine: `u32[seqs kv_heads][table_stride]`, see [`AttendArgs::picks`](super::args::AttendArgs::picks).
    pub picks: u64,
    /// Refine: [`Picked`](super::args::Picked)`[seqs kv_heads]`.
    pub picked: u64,
    /// Refine: a count, then heads.
    pub failures: u64,
    /// Addresses of words that this launch sets to 0, 0 for none; they must not be among what it reads. A repair can so empty
    /// the list for the plan that follows (its copies being complete), and a plan the counts of failures.
    pub clear: [u64; 4],
    /// As [`AttendArgs::drafts`](super::args::AttendArgs::drafts); 0: of single tokens.
    pub drafts: u64,
    /// As [`ProtectLayer::held`](super::protect::ProtectLayer::held); 0: nothing is protected.
    pub held: u64,
    /// [`SelectMode`].
    pub mode: u32,
    /// Sequences.
    pub seqs: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Entries per row of `table`, `promoted`, `hosts` and `masses`.
    pub table_stride: u32,
    /// Page numbers in use are below it; `2 pages kv_heads` is at most `2^31 - 2`.
    pub pages: u32,
    /// Most copies on the list: its room, or the traffic that a step may have.
    pub capacity: u32,
    /// Share of the tolerance that may be left unpromoted, in (0, 1): 0.9 for a plan, 0.8 for a repair.
    pub target: f32,
    /// A repair whose target asks for nothing new promotes `1/progress` of the blocks, at least 1.
    pub progress: u32,
    /// As [`AttendArgs::window`](super::args::AttendArgs::window): blocks that are not seen have no masses.
    pub window: u32,
    /// As [`AttendArgs::sinks`](super::args::AttendArgs::sinks).
    pub sinks: u32,
    /// As [`AttendArgs::closing`](super::args::AttendArgs::closing): such a block has no mass.
    pub closing: u32,
    /// Places of protected blocks of a head.
    pub places: u32,
    /// [`LevelRecords`]`[level_count]`, by their first pages, of a variant for [levels](super::Variant::levelled); 0 for others.
    pub levels: u64,
    /// How many levels; 0 for others.
    pub level_count: u64,
}

/// Where records of a level are: of page `p`, `first` and up, head `h` at `packed + (p - first) page_stride + h head_stride`. `CkvLevel` of
/// kernels/select/args.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct LevelRecords {
    /// Address of its first page.
    pub packed: u64,
    /// Bytes from a page to the next.
    pub page_stride: u64,
    /// Bytes from a head's record to the next.
    pub head_stride: u32,
    /// Its first page.
    pub first: u32,
    /// Where the error summary is in a record.
    pub summary: u32,
    /// Zero.
    pub unused: u32,
}

impl LevelRecords {
    /// Its words.
    pub const fn words(&self) -> [u64; 4] {
        let second = (self.head_stride as u64) | (self.first as u64) << 32;
        [self.packed, self.page_stride, second, (self.summary as u64) | (self.unused as u64) << 32]
    }
}

/// What launches counted, each side of a block for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SelectStats {
    /// Key sides that the target asked for.
    pub keys: u32,
    /// Value sides that the target asked for.
    pub values: u32,
    /// Sides found in scratch, those kept by hysteresis included.
    pub resident: u32,
    /// Sides asked for and not in scratch.
    pub missing: u32,
    /// Copies queued.
    pub copies: u32,
    /// Sides that lost their slot to one.
    pub evictions: u32,
    /// Sides left on codes: no host page, no slot, or no room on the list.
    pub refused: u32,
    /// Sides that a repair reads over the link.
    pub direct: u32,
    /// Key sides that plans left in the set, those kept by hysteresis included.
    pub set_keys: u32,
    /// The same of values.
    pub set_values: u32,
    /// Key sides whose residual planes a decode launch read because their weights asked for it, and those that corrections read.
    pub refined_keys: u32,
    /// The same of values.
    pub refined_values: u32,
}

impl SelectStats {
    /// Words in device memory.
    pub const WORDS: usize = size_of::<Self>() / 4;

    /// The first of those that the decode kernel counts.
    pub const REFINED: usize = 10;

    /// From its words.
    pub const fn from_words(w: &[u32; Self::WORDS]) -> Self {
        Self {
            keys: w[0],
            values: w[1],
            resident: w[2],
            missing: w[3],
            copies: w[4],
            evictions: w[5],
            refused: w[6],
            direct: w[7],
            set_keys: w[8],
            set_values: w[9],
            refined_keys: w[10],
            refined_values: w[11],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_their_twins() {
        assert_eq!(size_of::<SlotPool>(), 40);
        assert_eq!(size_of::<CopyItem>(), 32);
        assert_eq!(size_of::<SelectArgs>(), 12 * 8 + 2 * 40 + 10 * 8 + 6 * 8 + 12 * 4 + 16);
        assert_eq!(size_of::<LevelRecords>(), 32);
        assert_eq!(SelectStats::from_words(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).refined_values, 12);
    }
}

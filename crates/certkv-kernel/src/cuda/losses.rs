//! What levels would lose of a sequence's blocks, on the device: math.md (9.17) and (9.17a). The launches of `kernels/probe.cu` and `kernels/losses.cu`.
use super::args::Certificate;
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use super::unite::MOST_LEVELS;
use certkv_core::RecordLayout;
use certkv_device::cuda::{CudaError, Function};

/// Numbers of a level: `OF_LEVEL` of `kernels/probes.cuh`.
const OF_LEVEL: usize = 3;

/// Numbers before those of blocks in what levels lose: as `kernels/losses.cu` has it.
pub const PEAK_HEADER: usize = 4;

/// What is known of a layer's blocks at every level that they could have, `f32[stride][kv_heads]` of `R_b`, then `eps`, `eta` and `sop` of each level of the ladder,
/// which ascends. No numbers where a level cannot hold the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSizes {
    /// Blocks that there is room for.
    pub stride: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Levels.
    pub levels: usize,
}

impl ProbeSizes {
    /// Numbers of a block.
    pub fn of_block(&self) -> usize {
        self.kv_heads * (1 + OF_LEVEL * self.levels)
    }

    /// Bytes of a layer; `None` if they cannot be counted.
    pub fn bytes(&self) -> Option<usize> {
        self.of_block().checked_mul(self.stride)?.checked_mul(4)
    }

    /// Bytes of what levels lose of a layer's blocks: [`PEAK_HEADER`] numbers, of which the first says of how many steps it is, and `f32[stride][levels]`.
    pub fn peak_bytes(&self) -> Option<usize> {
        self.stride.checked_mul(4 * self.levels)?.checked_add(4 * PEAK_HEADER)
    }
}

/// Arguments of `ckv_probe`, byte for byte as the kernel has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ProbeArgs {
    /// `[blocks][kv_heads]`.
    pub records: u64,
    /// Of the first of them.
    pub probes: u64,
    /// Bytes from a block's records to the next's.
    pub page_bytes: u64,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Where in a record its summary is.
    pub summary: u32,
    /// Blocks.
    pub blocks: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Levels.
    pub levels: u32,
    /// Which level of the ladder.
    pub up: u32,
    /// Whether of the other levels nothing is known.
    pub fresh: u32,
    /// 0.
    pub unused: u32,
}

/// Arguments of [`probe`].
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// Records of the blocks, one page after the other.
    pub records: Span<'a>,
    /// Their layout.
    pub layout: &'a RecordLayout,
    /// A layer's memory, [`ProbeSizes::bytes`].
    pub probes: Span<'a>,
    /// Its layout.
    pub sizes: ProbeSizes,
    /// The first block, and how many there are.
    pub first: usize,
    /// How many.
    pub blocks: usize,
    /// Which level of the ladder.
    pub up: usize,
    /// Whether of their other levels nothing is known.
    pub fresh: bool,
}

/// Enqueues that of some blocks is known what their records of one level say. 2 us.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn probe(queue: &Queue, kernel: &Function, a: &Probe<'_>) -> Result<(), CudaError> {
    const THREADS: usize = 128;
    let s = &a.sizes;
    let page_bytes = s.kv_heads * a.layout.bytes;
    let (from, each) = (4 * s.of_block() * a.first, 4 * s.of_block());
    let mut on = Touched::on(queue);
    let args = ProbeArgs {
        records: on.reads(a.records, "records", page_bytes.saturating_mul(a.blocks))?,
        probes: on.writes(a.probes, "probes", from.saturating_add(each.saturating_mul(a.blocks)))? + from as u64,
        page_bytes: page_bytes as u64,
        record_bytes: word("record", a.layout.bytes)?,
        summary: word("summary", a.layout.summary.start)?,
        blocks: word("blocks", a.blocks)?,
        kv_heads: word("kv_heads", s.kv_heads)?,
        levels: word("levels", s.levels)?,
        up: word("level", a.up)?,
        fresh: u32::from(a.fresh),
        unused: 0,
    };
    on.tell(queue)?;
    let ctas = word("blocks", (a.blocks * s.kv_heads).div_ceil(THREADS))?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), ctas, THREADS as u32, 0, &args, CHAINED) }
}

/// Arguments of `ckv_losses`, byte for byte as the kernel has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct LossesArgs {
    /// [`MassWord`](super::args::MassWord)`[kv_heads][stride][group]` of the sequence's row in the first layer.
    pub words: u64,
    /// [`Certificate`]`[heads]` of its place there.
    pub certificates: u64,
    /// Of the row there, [`ProbeSizes`].
    pub probes: u64,
    /// `u32[stride]`: its pages there.
    pub table: u64,
    /// What levels lose, [`ProbeSizes::peak_bytes`], of the row there.
    pub peaks: u64,
    /// Bytes from a layer's words to the next's.
    pub word_layer: u64,
    /// The same of certificates.
    pub certificate_layer: u64,
    /// Of probes.
    pub probe_layer: u64,
    /// Of tables.
    pub table_layer: u64,
    /// Of what levels lose.
    pub peak_layer: u64,
    /// Query heads.
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Blocks that a row has room for.
    pub stride: u32,
    /// Blocks that have words.
    pub known: u32,
    /// Blocks.
    pub blocks: u32,
    /// Levels.
    pub levels: u32,
    /// (9.17a), not (9.17).
    pub linear: u32,
    /// Layers.
    pub layers: u32,
    /// First page of each level, the first of which is the last of the ladder.
    pub firsts: [u32; MOST_LEVELS],
}

/// Threads of a CTA of `ckv_losses`.
pub const LOSSES_THREADS: u32 = 512;

/// Blocks of a layer whose losses a CTA makes at once: `EACH` of `kernels/losses.cu`.
pub const BLOCKS_EACH: u32 = 64;

impl LossesArgs {
    /// CTAs: as many for each layer.
    pub fn ctas(&self) -> u32 {
        self.layers * self.blocks.div_ceil(BLOCKS_EACH).max(1)
    }

    /// Shared memory of a CTA.
    ///
    /// # Errors
    /// More query heads or blocks than can be counted.
    pub fn shared_bytes(&self) -> Result<u32, CudaError> {
        word("heads", (self.heads as usize).saturating_mul(24).saturating_add(self.blocks as usize))
    }
}

/// Arguments of [`losses`].
#[derive(Debug, Clone, Copy)]
pub struct Losses<'a> {
    /// As [`LossesArgs::words`].
    pub words: Span<'a>,
    /// As [`LossesArgs::certificates`].
    pub certificates: Span<'a>,
    /// As [`LossesArgs::probes`].
    pub probes: Span<'a>,
    /// As [`LossesArgs::table`].
    pub table: Span<'a>,
    /// Bytes from a layer's to the next's: of words, certificates, probes, tables and what levels lose.
    pub strides: [usize; 5],
    /// As [`LossesArgs::peaks`].
    pub peaks: Span<'a>,
    /// Layout of probes.
    pub sizes: ProbeSizes,
    /// Layers.
    pub layers: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Blocks that have words.
    pub known: usize,
    /// Blocks.
    pub blocks: usize,
    /// (9.17a), not (9.17).
    pub linear: bool,
    /// As [`LossesArgs::firsts`].
    pub firsts: &'a [u32],
}

/// Enqueues that of what levels would lose of a sequence's blocks by the last step the largest stays beside what is there of steps before, of some layers. Some us: every [`BLOCKS_EACH`] blocks of a layer read a word of all its blocks and query heads, and what is
/// known of them.
///
/// # Errors
/// As [`attend`](super::launch::attend); [`CudaError::BadArgument`] for more levels than there can be, or none.
pub fn losses(queue: &Queue, kernel: &Function, a: &Losses<'_>) -> Result<(), CudaError> {
    let s = &a.sizes;
    if a.firsts.is_empty() || a.firsts.len() > MOST_LEVELS || a.firsts.len() != s.levels {
        return Err(CudaError::BadArgument { argument: "levels", why: "none, or more than there can be" });
    }
    let mut firsts = [u32::MAX; MOST_LEVELS];
    firsts[..a.firsts.len()].copy_from_slice(a.firsts);
    let (heads, blocks) = (s.kv_heads * a.group, a.blocks.min(s.stride));
    let [word_layer, certificate_layer, probe_layer, table_layer, peak_layer] = a.strides;
    let reach = |each: usize, own: usize| each.saturating_mul(a.layers.saturating_sub(1)).saturating_add(own);
    let mut on = Touched::on(queue);
    let args = LossesArgs {
        words: on.reads(a.words, "words", reach(word_layer, 4 * heads * s.stride))?,
        certificates: on.reads(
            a.certificates,
            "certificates",
            reach(certificate_layer, heads * size_of::<Certificate>()),
        )?,
        probes: on.reads(a.probes, "probes", reach(probe_layer, s.bytes().unwrap_or(usize::MAX)))?,
        table: on.reads(a.table, "table", reach(table_layer, 4 * s.stride))?,
        peaks: on.writes(a.peaks, "peaks", reach(peak_layer, s.peak_bytes().unwrap_or(usize::MAX)))?,
        word_layer: word_layer as u64,
        certificate_layer: certificate_layer as u64,
        probe_layer: probe_layer as u64,
        table_layer: table_layer as u64,
        peak_layer: peak_layer as u64,
        heads: word("heads", heads)?,
        kv_heads: word("kv_heads", s.kv_heads)?,
        stride: word("stride", s.stride)?,
        known: word("known", a.known.min(blocks))?,
        blocks: word("blocks", blocks)?,
        levels: word("levels", s.levels)?,
        linear: u32::from(a.linear),
        layers: word("layers", a.layers)?,
        firsts,
    };
    on.tell(queue)?;
    let shared = args.shared_bytes()?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), args.ctas(), LOSSES_THREADS, shared, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_size_of_the_kernels() {
        assert_eq!(size_of::<ProbeArgs>(), 3 * 8 + 8 * 4);
        assert_eq!(size_of::<LossesArgs>(), 10 * 8 + 8 * 4 + 4 * MOST_LEVELS);
    }

    #[test]
    fn sizes_are_those_of_the_kernels() {
        let of = ProbeSizes { stride: 20, kv_heads: 4, levels: 3 };
        assert_eq!((of.of_block(), of.bytes(), of.peak_bytes()), (40, Some(3200), Some(256)));
        assert_eq!(ProbeSizes { stride: usize::MAX, ..of }.bytes(), None);
        assert!(
            crate::cuda::Verb::Probe.source().unwrap().headers.iter().any(|(_, text)| text.contains("OF_LEVEL = 3;"))
        );
    }
}

//! What SmartKV remembers of a sequence's blocks, on the device: math.md (9.6) to (9.10) and (9.15). The launch of `kernels/importance.cu`.
use super::args::Certificate;
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};
use core::ops::Range;

/// Arguments of `ckv_importance`, byte for byte as the kernel has them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct ImportanceArgs {
    /// [`MassWord`](super::args::MassWord)`[kv_heads][stride][group]` of the sequence's row in the first layer.
    pub words: u64,
    /// [`Certificate`]`[heads]` of its place there.
    pub certificates: u64,
    /// `f32[layers][heads]`, (9.8).
    pub concentration: u64,
    /// `f32[layers][stride]`, (9.6).
    pub importance: u64,
    /// `u32[layers][stride]`: the step in which a block was seen first.
    pub born: u64,
    /// `f32[layers][stride]`.
    pub scores: u64,
    /// `f32[layers][stride]`: those of the last decision, below 0 of blocks that had none.
    pub before: u64,
    /// `f32[layers][2]`: divergence, and percent of blocks that moved.
    pub drift: u64,
    /// Bytes from a layer's words to the next's.
    pub word_layer: u64,
    /// From a layer's certificates to the next's.
    pub certificate_layer: u64,
    /// Query heads.
    pub heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Blocks that a row has room for.
    pub stride: u32,
    /// Blocks that have words.
    pub known: u32,
    /// Blocks.
    pub blocks: u32,
    /// Blocks that are still those that were seen.
    pub kept: u32,
    /// Steps before this one.
    pub step: u32,
    /// Whether drift is looked at.
    pub looks: u32,
    /// Share of importance that stays.
    pub keep: f32,
    /// The same of a head's concentration.
    pub keep_head: f32,
    /// Share of importance in a score.
    pub mix: f32,
    /// Logarithm of `keep`.
    pub ln_keep: f32,
    /// The same to base 2.
    pub log2_keep: f32,
    /// `log2 e` over a score's life.
    pub ageing: f32,
    /// Percentile points from which a block has moved.
    pub points: f32,
    /// 0.
    pub unused: u32,
}

/// How attention becomes a score, and when a block has moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImportanceOf {
    /// Share of a block's importance that stays from step to step.
    pub keep: f64,
    /// The same of a head's concentration.
    pub keep_head: f64,
    /// Share of importance in a score.
    pub mix: f64,
    /// Steps in which a score falls to 1/e.
    pub life: f64,
    /// Percentile points from which a block has moved.
    pub points: f64,
}

/// Where a sequence's part of the memory lies, in bytes: lists of all layers, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    layers: usize,
    heads: usize,
    stride: usize,
}

impl Remembered {
    /// For so many layers, query heads and blocks.
    pub fn new(layers: usize, heads: usize, stride: usize) -> Self {
        Self { layers, heads, stride }
    }

    /// Bytes of a sequence, a multiple of 16; `None` if they cannot be counted.
    pub fn bytes(&self) -> Option<usize> {
        let each = self.stride.checked_mul(4)?.checked_add(self.heads)?.checked_add(2)?;
        each.checked_mul(4)?.checked_mul(self.layers)?.checked_next_multiple_of(16)
    }

    /// Of the lists `[layers][n]` behind those that come before.
    fn list(&self, before: usize, n: usize) -> Range<usize> {
        let start = 4 * self.layers * before;
        start..start + 4 * self.layers * n
    }

    /// Divergence and percent of every layer.
    pub fn drift(&self) -> Range<usize> {
        self.list(0, 2)
    }

    fn concentration(&self) -> Range<usize> {
        self.list(2, self.heads)
    }

    fn importance(&self) -> Range<usize> {
        self.list(2 + self.heads, self.stride)
    }

    fn born(&self) -> Range<usize> {
        self.list(2 + self.heads + self.stride, self.stride)
    }

    /// Scores of a layer's blocks.
    pub fn scores(&self, layer: usize) -> Range<usize> {
        self.of_layer(2 + self.heads + 2 * self.stride, layer)
    }

    /// Those of its last decision.
    pub fn before(&self, layer: usize) -> Range<usize> {
        self.of_layer(2 + self.heads + 3 * self.stride, layer)
    }

    fn of_layer(&self, before: usize, layer: usize) -> Range<usize> {
        let start = 4 * (self.layers * before + layer * self.stride);
        start..start + 4 * self.stride
    }
}

/// What is new of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Blocks that have words.
    pub known: usize,
    /// Blocks.
    pub blocks: usize,
    /// Blocks that are still those that were seen in a launch before.
    pub kept: usize,
    /// Launches before this one.
    pub step: usize,
    /// Whether drift is looked at.
    pub looks: bool,
}

/// Arguments of [`importance`].
#[derive(Debug, Clone, Copy)]
pub struct Importance<'a> {
    /// As [`ImportanceArgs::words`].
    pub words: Span<'a>,
    /// As [`ImportanceArgs::certificates`].
    pub certificates: Span<'a>,
    /// Bytes from a layer's words to the next's, and from its certificates.
    pub strides: [usize; 2],
    /// The sequence's memory, [`Remembered::bytes`].
    pub memory: Span<'a>,
    /// Its layout.
    pub remembered: Remembered,
    /// Query heads of a KV head.
    pub group: usize,
    /// What is new.
    pub seen: Seen,
    /// How.
    pub of: ImportanceOf,
}

const THREADS: u32 = 1024;

impl ImportanceArgs {
    /// For words, certificates and memory at these addresses, with `strides` bytes from a layer's to the next's of the first two.
    ///
    /// # Errors
    /// A number that is too large for the kernel.
    pub fn new(
        [words, certificates, memory]: [u64; 3],
        strides: [usize; 2],
        remembered: &Remembered,
        group: usize,
        seen: &Seen,
        of: &ImportanceOf,
    ) -> Result<Self, CudaError> {
        let at = |range: Range<usize>| memory + range.start as u64;
        let Remembered { heads, stride, .. } = *remembered;
        let blocks = seen.blocks.min(stride);
        Ok(Self {
            words,
            certificates,
            concentration: at(remembered.concentration()),
            importance: at(remembered.importance()),
            born: at(remembered.born()),
            scores: at(remembered.scores(0)),
            before: at(remembered.before(0)),
            drift: at(remembered.drift()),
            word_layer: strides[0] as u64,
            certificate_layer: strides[1] as u64,
            heads: word("heads", heads)?,
            group: word("group", group)?,
            stride: word("stride", stride)?,
            known: word("known", seen.known.min(blocks))?,
            blocks: word("blocks", blocks)?,
            kept: word("kept", if seen.step == 0 { 0 } else { seen.kept.min(blocks) })?,
            step: word("step", seen.step)?,
            looks: u32::from(seen.looks),
            keep: of.keep as f32,
            keep_head: of.keep_head as f32,
            mix: of.mix as f32,
            ln_keep: of.keep.ln() as f32,
            log2_keep: of.keep.log2() as f32,
            ageing: (core::f64::consts::LOG2_E / of.life) as f32,
            points: of.points as f32,
            unused: 0,
        })
    }

    /// Shared memory of a CTA.
    ///
    /// # Errors
    /// More query heads than there is memory for.
    pub fn shared_bytes(&self) -> Result<u32, CudaError> {
        word("heads", (self.heads as usize).saturating_mul(12))
    }
}

/// Enqueues that a sequence's scores follow from the attention of a step. Reads a word a block and query head of every layer, twice: some us for all layers; a look at
/// the drift compares every block with every other.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn importance(queue: &Queue, kernel: &Function, a: &Importance<'_>) -> Result<(), CudaError> {
    let Remembered { layers, heads, stride } = a.remembered;
    let mut on = Touched::on(queue);
    let reach = |each: usize, own: usize| each.saturating_mul(layers.saturating_sub(1)).saturating_add(own);
    let words = on.reads(a.words, "words", reach(a.strides[0], 4 * heads * stride))?;
    let own = reach(a.strides[1], heads * size_of::<Certificate>());
    let certificates = on.reads(a.certificates, "certificates", own)?;
    let memory = on.writes(a.memory, "memory", a.remembered.bytes().unwrap_or(usize::MAX))?;
    let at = [words, certificates, memory];
    let args = ImportanceArgs::new(at, a.strides, &a.remembered, a.group, &a.seen, &a.of)?;
    on.tell(queue)?;
    let shared = args.shared_bytes()?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), word("layers", layers)?, THREADS, shared, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_size_of_the_kernel() {
        assert_eq!(size_of::<ImportanceArgs>(), 10 * 8 + 16 * 4);
    }

    #[test]
    fn lists_lie_one_after_the_other() {
        let of = Remembered::new(3, 8, 20);
        let mut at = 0;
        let scores = of.scores(0).start..of.scores(2).end;
        let before = of.before(0).start..of.before(2).end;
        for list in [of.drift(), of.concentration(), of.importance(), of.born(), scores, before] {
            assert_eq!(list.start, at);
            at = list.end;
        }
        assert_eq!(of.bytes(), Some(at.next_multiple_of(16)));
        assert_eq!(of.scores(1).start, of.scores(0).end);
        assert_eq!(Remembered::new(usize::MAX, 8, 20).bytes(), None);
    }
}

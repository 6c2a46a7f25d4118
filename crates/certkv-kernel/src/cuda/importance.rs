//! What SmartKV remembers of a sequence's blocks, on the device: math.md (9.6) to (9.10) and (9.15). The launch of `kernels/importance.cu`.
use super::args::Certificate;
use super::launch::{CHAINED, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};
use core::ops::Range;

/// Sequences that one launch takes: `MOST_HEARD` of `kernels/importance.cu`.
pub const MOST_HEARD: usize = 96;

/// A sequence, whose last step is to be heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Heard {
    /// Its row.
    pub row: u32,
    /// Its place in the batch.
    pub place: u32,
    /// Blocks that have words.
    pub known: u32,
    /// Blocks.
    pub blocks: u32,
    /// Blocks that are still those that were heard of before: none in the first step.
    pub kept: u32,
    /// Steps before this one.
    pub step: u32,
    /// Whether drift is looked at.
    pub looks: u32,
    /// 0.
    pub unused: u32,
}

/// Arguments of `ckv_importance`, byte for byte as the kernel has them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ImportanceArgs {
    /// [`MassWord`](super::args::MassWord)`[kv_heads][stride][group]` of the first row in the first layer.
    pub words: u64,
    /// [`Certificate`]`[heads]` of the first place there.
    pub certificates: u64,
    /// Of the first row, [`Remembered`].
    pub memory: u64,
    /// Bytes from a layer's words to the next's.
    pub word_layer: u64,
    /// From a row's.
    pub word_row: u64,
    /// From a layer's certificates to the next's.
    pub certificate_layer: u64,
    /// From a place's.
    pub certificate_place: u64,
    /// From a row's memory to the next's.
    pub memory_row: u64,
    /// Where lists begin there, in numbers of 4 bytes: `f32[layers][heads]`, (9.8).
    pub concentration: u32,
    /// `f32[layers][stride]`, (9.6).
    pub importance: u32,
    /// `u32[layers][stride]`: the step in which a block was seen first.
    pub born: u32,
    /// `f32[layers][stride]`.
    pub scores: u32,
    /// `f32[layers][stride]`: those of the last decision, below 0 of blocks that had none.
    pub before: u32,
    /// Query heads.
    pub heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Blocks that a row has room for.
    pub stride: u32,
    /// Layers.
    pub layers: u32,
    /// Sequences.
    pub count: u32,
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
    /// The sequences.
    pub of: [Heard; MOST_HEARD],
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

/// Where words, certificates and memory lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// Bytes from a layer's words to the next's, and from a row's.
    pub words: [usize; 2],
    /// From a layer's certificates to the next's, and from a place's.
    pub certificates: [usize; 2],
}

/// Arguments of [`importance`].
#[derive(Debug, Clone, Copy)]
pub struct Importance<'a> {
    /// As [`ImportanceArgs::words`].
    pub words: Span<'a>,
    /// As [`ImportanceArgs::certificates`].
    pub certificates: Span<'a>,
    /// Bytes from one to the next.
    pub strides: Strides,
    /// Memory of all rows, [`Remembered::bytes`] each.
    pub memory: Span<'a>,
    /// Its layout.
    pub remembered: Remembered,
    /// Query heads of a KV head.
    pub group: usize,
    /// The sequences, at most [`MOST_HEARD`], each once.
    pub heard: &'a [Heard],
    /// How.
    pub of: ImportanceOf,
}

const THREADS: u32 = 1024;

impl ImportanceArgs {
    /// For words, certificates and memory at these addresses.
    ///
    /// # Errors
    /// [`CudaError::BadArgument`] for no sequence, or more than there can be, and for numbers that are too large for the kernel.
    pub fn new(
        [words, certificates, memory]: [u64; 3],
        strides: &Strides,
        remembered: &Remembered,
        group: usize,
        heard: &[Heard],
        rule: &ImportanceOf,
    ) -> Result<Self, CudaError> {
        if heard.is_empty() || heard.len() > MOST_HEARD {
            return Err(CudaError::BadArgument { argument: "heard", why: "none, or more than there can be" });
        }
        let at = |range: Range<usize>| word("memory", range.start / 4);
        let Remembered { layers, heads, stride } = *remembered;
        let mut of = [Heard::default(); MOST_HEARD];
        for (to, from) in of.iter_mut().zip(heard) {
            let blocks = from.blocks.min(word("stride", stride)?);
            let kept = if from.step == 0 { 0 } else { from.kept.min(blocks) };
            *to = Heard { known: from.known.min(blocks), blocks, kept, ..*from };
        }
        Ok(Self {
            words,
            certificates,
            memory,
            word_layer: strides.words[0] as u64,
            word_row: strides.words[1] as u64,
            certificate_layer: strides.certificates[0] as u64,
            certificate_place: strides.certificates[1] as u64,
            memory_row: remembered.bytes().unwrap_or(0) as u64,
            concentration: at(remembered.concentration())?,
            importance: at(remembered.importance())?,
            born: at(remembered.born())?,
            scores: at(remembered.scores(0))?,
            before: at(remembered.before(0))?,
            heads: word("heads", heads)?,
            group: word("group", group)?,
            stride: word("stride", stride)?,
            layers: word("layers", layers)?,
            count: word("heard", heard.len())?,
            keep: rule.keep as f32,
            keep_head: rule.keep_head as f32,
            mix: rule.mix as f32,
            ln_keep: rule.keep.ln() as f32,
            log2_keep: rule.keep.log2() as f32,
            ageing: (core::f64::consts::LOG2_E / rule.life) as f32,
            points: rule.points as f32,
            unused: 0,
            of,
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

/// Enqueues that scores of sequences follow from the attention of a step. Reads a word a block and query head of every layer, twice: some us; a look at the drift compares
/// every block of a sequence with every other.
///
/// # Errors
/// As [`attend`](super::launch::attend); those of [`ImportanceArgs::new`].
pub fn importance(queue: &Queue, kernel: &Function, a: &Importance<'_>) -> Result<(), CudaError> {
    let Remembered { layers, heads, stride } = a.remembered;
    let most = |of: fn(&Heard) -> u32| a.heard.iter().map(of).max().unwrap_or(0) as usize;
    let (row, place) = (most(|heard| heard.row), most(|heard| heard.place));
    let reach = |[layer, each]: [usize; 2], last: usize, own: usize| {
        layer.saturating_mul(layers.saturating_sub(1)).saturating_add(each.saturating_mul(last)).saturating_add(own)
    };
    let mut on = Touched::on(queue);
    let words = on.reads(a.words, "words", reach(a.strides.words, row, 4 * heads * stride))?;
    let own = reach(a.strides.certificates, place, heads * size_of::<Certificate>());
    let certificates = on.reads(a.certificates, "certificates", own)?;
    let each = a.remembered.bytes().unwrap_or(usize::MAX);
    let memory = on.writes(a.memory, "memory", each.saturating_mul(row + 1))?;
    let at = [words, certificates, memory];
    let args = ImportanceArgs::new(at, &a.strides, &a.remembered, a.group, a.heard, &a.of)?;
    on.tell(queue)?;
    let (shared, ctas) = (args.shared_bytes()?, word("layers", layers.saturating_mul(a.heard.len()))?);
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), ctas, THREADS, shared, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Verb;

    #[test]
    fn arguments_have_the_size_of_the_kernel() {
        assert_eq!(size_of::<ImportanceArgs>(), 8 * 8 + 18 * 4 + MOST_HEARD * 32);
        assert!(size_of::<ImportanceArgs>() <= 4096, "what a launch takes");
        assert!(Verb::Importance.source().unwrap().text.contains(&format!("MOST_HEARD = {MOST_HEARD};")));
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

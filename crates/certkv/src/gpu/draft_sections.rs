//! Drafts: how they are cut into launches, and sections of the buffer that attention of them works with. Pure arithmetic.
use super::sections::{ALIGN, sections};
use certkv_core::{Geometry, RecordLayout};
use certkv_kernel::cuda::args::{Certificate, Draft};
use certkv_kernel::cuda::publish::MOST_LAUNCHES;
use certkv_kernel::cuda::{Arch, Variant, launch};
use core::ops::Range;

/// Longest chunk that is attended as a step is, every token under the policy with all its rungs: what is guessed at and verified.
const MOST_TOKENS: usize = 8;
const _: () = assert!(MOST_TOKENS <= MOST_LAUNCHES);

/// Query heads of a group that the kernels take in one tile of columns; with a second they take half as long again, or twice as long.
const TILE: usize = 8;

/// Tokens of a draft that a launch takes, in every layer: as many as it can, or those of one tile where no more are left. Both 0: there are no drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    narrow: usize,
    wide: usize,
}

impl Widths {
    /// Of a cache whose chunks have at most `chunk_tokens`.
    pub(super) fn of(chunk_tokens: usize, layouts: &[RecordLayout], group: usize, arch: Arch) -> Self {
        // A layout without kernels is refused where they are made.
        let most = |layout: &RecordLayout| Variant::new(layout.clone(), group, arch).map_or(0, |v| v.most_drafted());
        let wide = layouts.iter().map(most).min().unwrap_or(0).min(most_tokens(chunk_tokens));
        let tile = TILE / group;
        Self { narrow: if tile == 0 { wide } else { tile.min(wide) }, wide }
    }

    /// Each of them.
    pub(super) fn each(self) -> impl Iterator<Item = usize> {
        let both = [Some(self.narrow), Some(self.wide).filter(|wide| *wide != self.narrow)];
        both.into_iter().flatten().filter(|width| *width > 0)
    }
}

/// Tokens of the longest draft of a cache whose chunks have at most `chunk_tokens`; 0: it has none.
pub(super) fn most_tokens(chunk_tokens: usize) -> usize {
    if chunk_tokens < 2 { 0 } else { chunk_tokens.min(MOST_TOKENS) }
}

/// What one launch takes of every draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Its number in the layer.
    pub(super) launch: usize,
    /// Tokens before those.
    pub(super) done: usize,
    /// Tokens, at most.
    pub(super) width: usize,
}

/// Bytes; all empty without drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DraftSections {
    /// Tokens of the longest.
    pub(super) tokens: usize,
    widths: Widths,
    /// Launches of a layer, at most, what each leaves, and what a layer's leave.
    launches: usize,
    pub(super) stride: usize,
    pub(super) layer: usize,
    /// [`Draft`]`[launch][place]`.
    pub(super) told: Range<usize>,
    /// Of a step's new tokens: row in the tables, tokens before it, tail that it goes to.
    pub(super) new: [Range<usize>; 3],
    /// Of the blocks that these fill: row, tokens up to their end, tail.
    pub(super) filled: [Range<usize>; 3],
    /// How many new tokens, and how many blocks.
    pub(super) counts: Range<usize>,
    /// Rows of the host: keys, values, `[token][kv_heads dim]`, in the type of the originals.
    pub(super) rows: [Range<usize>; 2],
    /// And its queries, `[token][q_heads dim]`, single precision at most; outputs the same.
    pub(super) queries: Range<usize>,
    pub(super) outputs: Range<usize>,
    /// First byte of what launches of the layers leave; and in that of a launch:
    pub(super) left: usize,
    /// `[place][kv_head][token][query head]`: certificates of the first launch, and of the dense one.
    pub(super) certificates: [Range<usize>; 2],
    /// Heads over tolerance after the first launch, and after the repair.
    pub(super) lists: [Range<usize>; 2],
    /// Behind all layers: `[row][kv_head][stride][query head of all tokens]`.
    pub(super) masses: Range<usize>,
    pub(super) kept: Range<usize>,
    pub(super) partials: Range<usize>,
}

impl DraftSections {
    /// For `rows` sequences of `stride` blocks, and launches of `ctas` CTAs.
    pub(super) fn new(
        chunk_tokens: usize,
        (layouts, arch): (&[RecordLayout], Arch),
        g: &Geometry,
        (rows, stride, ctas): (usize, usize, usize),
    ) -> Option<Self> {
        let widths = Widths::of(chunk_tokens, layouts, g.group(), arch);
        let tokens = if widths.wide == 0 { 0 } else { most_tokens(chunk_tokens) };
        let launches = tokens.div_ceil(widths.wide.max(1));
        let (rows, columns) = (if tokens == 0 { 0 } else { rows }, g.group() * widths.wide);
        let (heads, partial) = (rows * g.kv_heads, launch::partial_floats(g.head_dim, columns));
        let new = rows * tokens;
        // As long as those of a batch.
        let list = if tokens == 0 { 0 } else { launch::list_bytes(heads).next_multiple_of(ALIGN) / 4 };
        let certificates = heads.checked_mul(columns)?.checked_mul(Certificate::WORDS)?;
        let ([first, last, over, left], stride_words) = sections([certificates, certificates, list, list])?;
        let layer = launches.checked_mul(stride_words)?;
        let refinable = layouts.iter().any(|layout| !layout.format.refine.is_none());
        let (
            [told, t0, t1, t2, f0, f1, f2, counts, keys, values, queries, outputs, results, masses, kept, partials],
            _,
        ) = sections([
            launches * rows * size_of::<Draft>() / 4,
            new,
            new,
            new,
            rows,
            rows,
            rows,
            if tokens == 0 { 0 } else { 2 },
            new.checked_mul(g.kv_width())?.div_ceil(2),
            new.checked_mul(g.kv_width())?.div_ceil(2),
            new.checked_mul(g.q_width())?,
            new.checked_mul(g.q_width())?,
            layer.checked_mul(layouts.len())?,
            heads.checked_mul(columns)?.checked_mul(stride)?,
            if refinable { heads.checked_mul(partial)? } else { 0 },
            if tokens == 0 { 0 } else { partial.checked_mul(ctas + heads)? },
        ])?;
        let bytes = |words: Range<usize>| 4 * words.start..4 * words.end;
        Some(Self {
            tokens,
            widths,
            launches,
            stride: 4 * stride_words,
            layer: 4 * layer,
            told: bytes(told),
            new: [t0, t1, t2].map(bytes),
            filled: [f0, f1, f2].map(bytes),
            counts: bytes(counts),
            rows: [keys, values].map(bytes),
            queries: bytes(queries),
            outputs: bytes(outputs),
            left: 4 * results.start,
            certificates: [first, last].map(bytes),
            lists: [over, left].map(bytes),
            masses: bytes(masses),
            kept: bytes(kept),
            partials: bytes(partials),
        })
    }

    /// The launches of a layer for drafts of up to `longest` tokens.
    pub(super) fn cuts(&self, longest: usize) -> impl Iterator<Item = Cut> + use<> {
        let Widths { narrow, wide } = self.widths;
        let launches = if self.tokens == 0 { 0 } else { longest.div_ceil(wide) };
        (0..launches).map(move |launch| {
            let done = launch * wide;
            Cut { launch, done, width: if longest - done <= narrow { narrow } else { wide } }
        })
    }

    /// Launches of a layer, at most.
    pub(super) fn launches(&self) -> usize {
        self.launches
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        self.partials.end
    }

    /// Bytes of what is brought to the host of a layer: what its launches leave, as it lies on the device, the outputs, and a word for each of `rows`.
    pub(super) fn result_bytes(&self, rows: usize) -> usize {
        if self.tokens == 0 { 0 } else { self.errors_at() + 4 * rows }
    }

    /// First byte of the outputs there, and of the words.
    pub(super) fn outputs_at(&self) -> usize {
        self.layer
    }
    pub(super) fn errors_at(&self) -> usize {
        self.layer + self.outputs.len()
    }

    /// First byte of a section of a launch there, and on the device.
    pub(super) fn result_at(&self, launch: usize, section: &Range<usize>) -> usize {
        launch * self.stride + section.start
    }
    pub(super) fn at(&self, layer: usize, launch: usize, section: &Range<usize>) -> usize {
        self.left + layer * self.layer + self.result_at(launch, section)
    }

    /// How many new tokens (0), or full blocks (1).
    pub(super) fn count(&self, which: usize) -> Range<usize> {
        let start = self.counts.start + 4 * which;
        start..start + 4
    }

    /// Where a launch is told of its drafts.
    pub(super) fn told(&self, launch: usize) -> Range<usize> {
        let bytes = self.told.len() / self.launches.max(1);
        self.told.start + launch * bytes..self.told.start + (launch + 1) * bytes
    }

    /// Bytes of what a step is told of, from the first on.
    pub(super) fn state_bytes(&self) -> usize {
        self.counts.end
    }
}
const _: () = assert!(ALIGN.is_multiple_of(size_of::<Draft>()));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuConfig;

    /// Every token of a draft of any length is in one launch, in as few as there can be; what one tile has room for is not given two.
    #[test]
    fn launches_cover_drafts_of_any_length() {
        let mut widths = Vec::new();
        for (q_heads, format) in [
            (8, "k8-v4g64-b64"),
            (2, "k8-v4g64-b64"),
            (16, "k8-v4g64-b64"),
            (32, "k8-v4g64-b64"),
            (8, "k8-v4g64-b64-r8.4"),
        ] {
            for chunk_tokens in [0, 1, 2, 3, 8, 4096] {
                let g = Geometry::new(1, q_heads, 2, 128).unwrap();
                let config = GpuConfig::new(g, 4096).with_format(format.parse().unwrap());
                let layouts = config.layouts().unwrap();
                let of = DraftSections::new(chunk_tokens, (&layouts, Arch::Sm90a), &g, (3, 8, 132)).unwrap();
                assert_eq!(of.tokens, if chunk_tokens < 2 { 0 } else { chunk_tokens.min(8) });
                assert_eq!(of.bytes() == 0, of.tokens == 0);
                for longest in 1..=of.tokens {
                    let cuts: Vec<Cut> = of.cuts(longest).collect();
                    assert!(cuts.len() == longest.div_ceil(of.widths.wide) && cuts.len() <= of.launches());
                    let mut ends = cuts.iter().map(|cut| cut.done + cut.width);
                    assert!(cuts.iter().skip(1).map(|cut| cut.done).eq(ends.clone().take(cuts.len() - 1)));
                    assert!(ends.next_back() >= Some(longest));
                    assert!(cuts.iter().all(|cut| of.widths.each().any(|width| width == cut.width)));
                    assert!(
                        cuts.iter().all(|cut| cut.width <= of.widths.narrow || longest - cut.done > of.widths.narrow)
                    );
                }
                widths.push((q_heads / 2, chunk_tokens, of.widths.narrow, of.widths.wide));
            }
        }
        for known in [(4, 8, 2, 4), (1, 8, 8, 8), (8, 8, 1, 2), (16, 8, 1, 1), (4, 2, 2, 2), (4, 3, 2, 3), (4, 1, 0, 0)]
        {
            assert!(widths.contains(&known), "{known:?}: {widths:?}");
        }
    }
}

//! What attention of drafts works with: kernels of their own, and lists, masses and results beside those of the batch, whose the host has yet to read.
use super::Core;
use crate::Error;
use crate::gpu::ladder::Call;
use crate::gpu::sections::{ALIGN, sections};
use certkv_core::{Geometry, RecordLayout};
use certkv_device::cuda::{DeviceBuffer, Function};
use certkv_kernel::cuda::args::{Certificate, Draft};
use certkv_kernel::cuda::launch::{self, Attend};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::{Arch, Variant};
use core::ops::Range;

/// Longest chunk that is attended as a step is, every token under the policy with all its rungs: what is guessed at and verified.
const MOST_TOKENS: usize = 8;

/// Tokens of the longest draft of a cache whose chunks have at most `chunk_tokens`; 0: it has none.
pub(in crate::gpu) fn most_tokens(chunk_tokens: usize) -> usize {
    if chunk_tokens < 2 { 0 } else { chunk_tokens.min(MOST_TOKENS) }
}

/// Tokens of a draft that one launch of `variant`, which attends steps, takes.
pub(in crate::gpu) fn of_launch(chunk_tokens: usize, variant: &Variant) -> usize {
    most_tokens(chunk_tokens).min(variant.most_drafted())
}

/// The drafts of one launch, `launch`-th of its layer, whose sequences begin at a place of the batch's list.
#[derive(Debug, Clone, Copy)]
pub(in crate::gpu) struct Drafts {
    pub(in crate::gpu) launch: usize,
    pub(in crate::gpu) place: usize,
}

/// Bytes; all empty without drafts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gpu) struct DraftSections {
    /// Tokens of the longest.
    pub(in crate::gpu) tokens: usize,
    /// Launches of that, at most, and what each has.
    launches: usize,
    each: usize,
    /// [`Draft`]`[place]`.
    pub(in crate::gpu) told: Range<usize>,
    /// `[place][kv_head][token][query head][dim]`, single precision at most; outputs the same.
    pub(in crate::gpu) queries: Range<usize>,
    pub(in crate::gpu) outputs: Range<usize>,
    /// `[place][kv_head][token][query head]`: certificates of the first launch, and of the dense one.
    pub(in crate::gpu) certificates: [Range<usize>; 2],
    /// Heads over tolerance after the first launch, and after the repair.
    pub(in crate::gpu) lists: [Range<usize>; 2],
    /// Behind all launches: `[row][kv_head][stride][query head of all tokens]`.
    masses: Range<usize>,
    kept: Range<usize>,
    partials: Range<usize>,
}

impl DraftSections {
    /// For `rows` sequences of `stride` blocks, and launches of `ctas` CTAs.
    pub(in crate::gpu) fn new(
        chunk_tokens: usize,
        (layouts, arch): (&[RecordLayout], Arch),
        g: &Geometry,
        (rows, stride, ctas): (usize, usize, usize),
    ) -> Option<Self> {
        // A layout without kernels is refused where they are made.
        let width = |layout: &RecordLayout| {
            Variant::new(layout.clone(), g.group(), arch).map_or(0, |variant| of_launch(chunk_tokens, &variant))
        };
        let widths = || layouts.iter().map(width);
        let (most, least) = (widths().max().unwrap_or(0), widths().min().unwrap_or(0));
        let tokens = if least == 0 { 0 } else { most_tokens(chunk_tokens) };
        let launches = if tokens == 0 { 0 } else { tokens.div_ceil(least) };
        let (rows, columns) = if tokens == 0 { (0, 0) } else { (rows, g.group() * most) };
        let (heads, partial) = (rows * g.kv_heads, launch::partial_floats(g.head_dim, columns));
        // As long as those of a batch.
        let list = if tokens == 0 { 0 } else { launch::list_bytes(heads).next_multiple_of(ALIGN) / 4 };
        let row = heads.checked_mul(columns)?;
        let words = [
            rows * size_of::<Draft>() / 4,
            row.checked_mul(g.head_dim)?,
            row.checked_mul(g.head_dim)?,
            row.checked_mul(Certificate::WORDS)?,
            row.checked_mul(Certificate::WORDS)?,
            list,
            list,
        ];
        let (of, each) = sections(words)?;
        let [told, queries, outputs, first, last, over, left] = of.map(|words| 4 * words.start..4 * words.end);
        let refinable = layouts.iter().any(|layout| !layout.format.refine.is_none());
        let kept = if refinable { heads.checked_mul(partial)? } else { 0 };
        let partials = if tokens == 0 { 0 } else { partial.checked_mul(ctas + heads)? };
        let (behind, _) = sections([row.checked_mul(stride)?, kept, partials])?;
        let start = launches.checked_mul(4 * each)?;
        let [masses, kept, partials] = behind.map(|words| start + 4 * words.start..start + 4 * words.end);
        let (certificates, lists) = ([first, last], [over, left]);
        let each = 4 * each;
        Some(Self { tokens, launches, each, told, queries, outputs, certificates, lists, masses, kept, partials })
    }

    /// Bytes of all of it.
    pub(in crate::gpu) fn bytes(&self) -> usize {
        self.partials.end
    }

    /// Bytes of the launches' results, which lie where they lie on the device.
    pub(in crate::gpu) fn result_bytes(&self) -> usize {
        self.launches * self.each
    }

    /// First byte of a section of a launch.
    pub(in crate::gpu) fn at(&self, launch: usize, section: &Range<usize>) -> usize {
        launch * self.each + section.start
    }
}
const _: () = assert!(ALIGN.is_multiple_of(size_of::<Draft>()));

impl Core {
    /// Tokens of a draft that one launch of a layer takes; `None`: the layer attends chunks otherwise.
    pub(in crate::gpu) fn drafts_in(&self, layer: usize) -> Option<usize> {
        self.kit(layer).drafts.as_ref().map(|kit| kit.variant.draft()).filter(|_| !self.sizes.spills(layer))
    }

    pub(in crate::gpu) fn draft_buffer(&self) -> Result<&DeviceBuffer, Error> {
        self.drafts.as_ref().ok_or_else(|| Error::Config { field: "chunk_tokens", why: "no room for drafts".into() })
    }

    fn draft_span(&self, drafts: Drafts, section: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(self.draft_buffer()?, self.sizes.drafts.at(drafts.launch, section), section.len())?)
    }

    /// Arguments of a plain launch over the batch of a call: nothing promoted, no lists.
    pub(in crate::gpu) fn plain_args<'a>(&'a self, call: &Call<'a>) -> Result<Attend<'a>, Error> {
        let args = self.attend_args(call.layer, call.seqs, call.query, call.out)?;
        let kit = self.kit(call.layer).for_drafts(call.drafts);
        let Some((drafts, kit)) = call.drafts.zip(kit) else { return Ok(args) };
        let of = &self.sizes.drafts;
        Ok(Attend {
            variant: &kit.variant,
            tables: self.tables_from(call.layer, drafts.place)?,
            certificates: self.certificates_of(call.layer, 0, call.drafts)?,
            partials: Span::of(self.draft_buffer()?, of.partials.start, of.partials.len())?,
            drafts: Some(self.draft_span(drafts, &of.told)?),
            // Full blocks were coded when the chunk was appended.
            closing: false,
            ..args
        })
    }

    /// Certificates of the first launch (0) or of the dense one (1), of a batch or of drafts.
    pub(in crate::gpu) fn certificates_of(
        &self,
        layer: usize,
        which: usize,
        drafts: Option<Drafts>,
    ) -> Result<Span<'_>, Error> {
        match drafts {
            Some(drafts) => self.draft_span(drafts, &self.sizes.drafts.certificates[which]),
            None => self.certificates(layer, which),
        }
    }

    /// Where the list of heads over tolerance after the first launch (0), after the repair (1) is.
    fn place_of_list(
        &self,
        layer: usize,
        which: usize,
        drafts: Option<Drafts>,
    ) -> Result<(&DeviceBuffer, usize), Error> {
        let of = &self.sizes.drafts;
        match drafts {
            Some(drafts) => Ok((self.draft_buffer()?, of.at(drafts.launch, &of.lists[which]))),
            None => Ok((&self.failures, self.list_at(layer, which))),
        }
    }

    /// That list.
    pub(in crate::gpu) fn list_of(
        &self,
        layer: usize,
        which: usize,
        drafts: Option<Drafts>,
    ) -> Result<Span<'_>, Error> {
        let (buffer, at) = self.place_of_list(layer, which, drafts)?;
        Ok(Span::of(buffer, at, self.sizes.list_bytes())?)
    }

    /// Its count.
    pub(super) fn list_count(&self, layer: usize, which: usize, drafts: Option<Drafts>) -> Result<Span<'_>, Error> {
        let (buffer, at) = self.place_of_list(layer, which, drafts)?;
        Ok(Span::of(buffer, at, 4)?)
    }

    /// Enqueues that it is empty.
    pub(in crate::gpu) fn empty_list(&self, layer: usize, which: usize, drafts: Option<Drafts>) -> Result<(), Error> {
        let (buffer, at) = self.place_of_list(layer, which, drafts)?;
        Ok(buffer.fill(self.queue.stream(), at, 4, 0)?)
    }

    /// Masses of the batch, or of drafts until another launch of some.
    pub(in crate::gpu) fn masses_for(&self, layer: usize, drafts: Option<Drafts>) -> Result<Span<'_>, Error> {
        let of = &self.sizes.drafts.masses;
        match drafts {
            Some(_) => Ok(Span::of(self.draft_buffer()?, of.start, of.len())?),
            None => self.layer_masses(layer),
        }
    }

    /// Room for what a pass keeps for its correction.
    pub(in crate::gpu) fn kept_of(&self, drafts: Option<Drafts>) -> Result<Span<'_>, Error> {
        let of = &self.sizes.drafts.kept;
        match drafts {
            Some(_) => Ok(Span::of(self.draft_buffer()?, of.start, of.len())?),
            None => self.kept(),
        }
    }

    /// The ladder behind a pass of a layer, and for records with residual planes the one that corrects before it, with its variant.
    pub(in crate::gpu) fn ladders(
        &self,
        layer: usize,
        drafts: Option<Drafts>,
    ) -> (&Function, Option<&(Function, Variant)>) {
        let kit = self.kit(layer);
        match kit.for_drafts(drafts) {
            Some(of_drafts) => (&of_drafts.ladder, of_drafts.corrects.as_ref()),
            None => (&kit.ladder, kit.corrects.as_ref()),
        }
    }
}

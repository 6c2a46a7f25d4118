//! What attention of drafts works with: kernels of their own, and lists, masses and results beside those of the batch, whose the host has yet to read.
use super::Core;
use crate::Error;
use crate::gpu::ladder::Call;
use crate::gpu::sections::{ALIGN, sections};
use certkv_core::{Geometry, RecordLayout};
use certkv_device::cuda::{DeviceBuffer, Function};
use certkv_kernel::cuda::args::{Certificate, Draft};
use certkv_kernel::cuda::close::{self, Close, Closing};
use certkv_kernel::cuda::encode::append_flag;
use certkv_kernel::cuda::launch::{self, Append, Attend, Tables};
use certkv_kernel::cuda::publish::{Left, LeftDrafts};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::tensor::Tensor;
use certkv_kernel::cuda::{Arch, Variant};
use core::ops::Range;

/// Longest chunk that is attended as a step is, every token under the policy with all its rungs: what is guessed at and verified.
const MOST_TOKENS: usize = 8;

/// Tokens of the longest draft of a cache whose chunks have at most `chunk_tokens`; 0: it has none.
pub(in crate::gpu) fn most_tokens(chunk_tokens: usize) -> usize {
    if chunk_tokens < 2 { 0 } else { chunk_tokens.min(MOST_TOKENS) }
}

/// Tokens of a draft that one launch takes, in every layer; 0: a layer has no kernels for any, or there are none.
pub(in crate::gpu) fn of_launch(chunk_tokens: usize, layouts: &[RecordLayout], group: usize, arch: Arch) -> usize {
    // A layout without kernels is refused where they are made.
    let width = |layout: &RecordLayout| Variant::new(layout.clone(), group, arch).map_or(0, |v| v.most_drafted());
    layouts.iter().map(width).min().unwrap_or(0).min(most_tokens(chunk_tokens))
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
    /// Tokens of one that a launch takes.
    pub(in crate::gpu) each: usize,
    /// Launches of a layer, at most, what each leaves, and what a layer's leave.
    launches: usize,
    stride: usize,
    layer: usize,
    /// [`Draft`]`[launch][place]`.
    told: Range<usize>,
    /// Of a step's new tokens: row in the tables, tokens before it, tail that it goes to.
    pub(in crate::gpu) new: [Range<usize>; 3],
    /// Of the blocks that these fill: row, tokens up to their end, tail.
    pub(in crate::gpu) filled: [Range<usize>; 3],
    /// How many new tokens, and how many blocks.
    pub(in crate::gpu) counts: Range<usize>,
    /// Rows of the host: keys, values, `[token][kv_heads dim]`, in the type of the originals.
    rows: [Range<usize>; 2],
    /// And its queries, `[token][q_heads dim]`, single precision at most; outputs the same.
    pub(in crate::gpu) queries: Range<usize>,
    pub(in crate::gpu) outputs: Range<usize>,
    /// First byte of what launches of the layers leave, and of that of a launch:
    left: usize,
    /// `[place][kv_head][token][query head]`: certificates of the first launch, and of the dense one.
    pub(in crate::gpu) certificates: [Range<usize>; 2],
    /// Heads over tolerance after the first launch, and after the repair.
    pub(in crate::gpu) lists: [Range<usize>; 2],
    /// Behind all layers: `[row][kv_head][stride][query head of all tokens]`.
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
        let each = of_launch(chunk_tokens, layouts, g.group(), arch);
        let tokens = if each == 0 { 0 } else { most_tokens(chunk_tokens) };
        let launches = if each == 0 { 0 } else { tokens.div_ceil(each) };
        let (rows, columns) = (if each == 0 { 0 } else { rows }, g.group() * each);
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
            each,
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

    /// Bytes of all of it.
    pub(in crate::gpu) fn bytes(&self) -> usize {
        self.partials.end
    }

    /// Bytes of what is brought to the host of a layer: what its launches leave, as it lies on the device, the outputs, and a word for each of `rows`.
    pub(in crate::gpu) fn result_bytes(&self, rows: usize) -> usize {
        if self.tokens == 0 { 0 } else { self.errors_at() + 4 * rows }
    }

    /// First byte of the outputs there, and of the words.
    pub(in crate::gpu) fn outputs_at(&self) -> usize {
        self.layer
    }
    pub(in crate::gpu) fn errors_at(&self) -> usize {
        self.layer + self.outputs.len()
    }

    /// First byte of a section of a launch there, and on the device.
    pub(in crate::gpu) fn result_at(&self, launch: usize, section: &Range<usize>) -> usize {
        launch * self.stride + section.start
    }
    pub(in crate::gpu) fn at(&self, layer: usize, launch: usize, section: &Range<usize>) -> usize {
        self.left + layer * self.layer + self.result_at(launch, section)
    }

    /// Where a launch is told of its drafts.
    pub(in crate::gpu) fn told(&self, launch: usize) -> Range<usize> {
        let bytes = self.told.len() / self.launches.max(1);
        self.told.start + launch * bytes..self.told.start + (launch + 1) * bytes
    }

    /// Bytes of what a step is told of, from the first on.
    pub(in crate::gpu) fn state_bytes(&self) -> usize {
        self.counts.end
    }
}
const _: () = assert!(ALIGN.is_multiple_of(size_of::<Draft>()));

impl Core {
    /// What launches over `places` drafts left in all layers.
    pub(in crate::gpu) fn left_of_drafts(&self, places: usize) -> Result<Left<'_>, Error> {
        let (s, of) = (&self.sizes, &self.sizes.drafts);
        let [first, last] = &of.certificates;
        let [over, left] = &of.lists;
        let from = |section: &Range<usize>| {
            let start = of.at(0, 0, section);
            self.draft_span(&(start..of.left + s.layers * of.layer))
        };
        Ok(Left {
            certificates: from(first)?,
            certificate_strides: [of.layer, last.start - first.start],
            lists: from(over)?,
            list_strides: [of.layer, left.start - over.start],
            rows: self.draft_span(&of.new[0])?,
            drafts: Some(LeftDrafts {
                told: self.draft_span(&of.told)?,
                most: s.rows,
                launches: of.launches,
                places,
                each: of.each,
                stride: of.stride,
            }),
        })
    }

    /// Whether a layer attends drafts; else it attends chunks otherwise.
    pub(in crate::gpu) fn drafts_in(&self, layer: usize) -> bool {
        self.kit(layer).drafts.is_some() && !self.sizes.spills(layer)
    }

    pub(in crate::gpu) fn draft_buffer(&self) -> Result<&DeviceBuffer, Error> {
        self.drafts.as_ref().ok_or_else(|| Error::Config { field: "chunk_tokens", why: "no room for drafts".into() })
    }

    fn draft_span(&self, bytes: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(self.draft_buffer()?, bytes.start, bytes.len())?)
    }

    /// Keys and values of new tokens that came from the host.
    pub(in crate::gpu) fn staged_drafts(&self, tokens: usize) -> Result<[Tensor<'_>; 2], Error> {
        let n = tokens * self.sizes.kv_heads * self.sizes.dim;
        let [keys, values] = self.draft_rows();
        let at = |at| Tensor::of(self.draft_buffer()?, at, self.store, n).map_err(Error::from);
        Ok([at(keys)?, at(values)?])
    }

    /// First bytes of them.
    pub(in crate::gpu) fn draft_rows(&self) -> [usize; 2] {
        self.sizes.drafts.rows.each_ref().map(|range| range.start)
    }

    /// Enqueues the new tokens of a step of drafts in one layer, and the coding of the blocks that they fill, `filled` of them: what lies behind the block of
    /// a sequence's last token is read from records. One launch, or two.
    pub(in crate::gpu) fn append_drafts(
        &self,
        layer: usize,
        (tokens, filled): (usize, usize),
        [keys, values]: [Tensor<'_>; 2],
    ) -> Result<(), Error> {
        let (s, c) = (&self.sizes, &self.sizes.counters);
        let of = &s.drafts;
        let kit = self.kit(layer);
        let [[rows, lens, tails], filled_at] = [&of.new, &of.filled].map(|ranges| ranges.each_ref().map(|r| r.clone()));
        let word = |i: usize| of.counts.start + 4 * i..of.counts.start + 4 * (i + 1);
        let tables = self.block_tables(layer)?;
        let args = Append {
            variant: &kit.variant,
            ctas: (tokens * s.kv_heads).min(2 * self.ctas as usize) as u32,
            seqs: tokens,
            tables: Tables { batch: self.draft_span(&rows)?, tails: self.draft_span(&tails)?, ..tables },
            count: self.draft_span(&word(0))?,
            lens: self.draft_span(&lens)?,
            errors: self.counter(&c.errors)?,
            keys,
            values,
            tail_slots: self.tails_of(layer)?,
            row_norms: self.row_norms(layer)?,
            // Heads over tolerance in the first launch.
            clear: Some(self.list_count(layer, 0, Some(Drafts { launch: 0, place: 0 }))?),
            // As a step's.
            flags: append_flag::SETTLED | append_flag::BY_PLACE,
        };
        launch::append(&self.queue, &kit.append, &args)?;
        if filled == 0 {
            return Ok(());
        }
        let [rows, lens, tails] = filled_at;
        let args = Close {
            variant: &kit.variant,
            ctas: 2 * self.ctas,
            seqs: filled,
            by_place: true,
            count: self.draft_span(&word(1))?,
            lens: self.draft_span(&lens)?,
            errors: self.counter(&c.errors)?,
            status: self.counter(&c.status)?,
        };
        let own = self.closing(layer).and_then(|own| {
            let tables = Tables { batch: self.draft_span(&rows)?, tails: self.draft_span(&tails)?, ..own.tables };
            Ok(Closing { tables, ..own })
        });
        close::close(&self.queue, &kit.close, &args, core::iter::once(own))
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
            partials: self.draft_span(&of.partials)?,
            drafts: Some(self.draft_span(&of.told(drafts.launch))?),
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
            Some(drafts) => {
                let of = &self.sizes.drafts;
                let section = &of.certificates[which];
                let start = of.at(layer, drafts.launch, section);
                self.draft_span(&(start..start + section.len()))
            }
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
            Some(drafts) => Ok((self.draft_buffer()?, of.at(layer, drafts.launch, &of.lists[which]))),
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
            Some(_) => self.draft_span(of),
            None => self.layer_masses(layer),
        }
    }

    /// Room for what a pass keeps for its correction.
    pub(in crate::gpu) fn kept_of(&self, drafts: Option<Drafts>) -> Result<Span<'_>, Error> {
        let of = &self.sizes.drafts.kept;
        match drafts {
            Some(_) => self.draft_span(of),
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

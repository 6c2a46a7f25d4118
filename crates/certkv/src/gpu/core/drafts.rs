//! What attention of drafts works with: kernels of their own, and lists, masses and results beside those of the batch, whose the host has yet to read.
use super::Core;
use crate::Error;
use crate::gpu::draft_sections::Cut;
use crate::gpu::ladder::Call;
use certkv_device::cuda::{DeviceBuffer, Function};
use certkv_kernel::cuda::Variant;
use certkv_kernel::cuda::encode::append_flag;
use certkv_kernel::cuda::launch::{self, Append, Attend, Tables};
use certkv_kernel::cuda::publish::{Left, LeftDrafts, MOST_LAUNCHES};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::tensor::Tensor;
use core::ops::Range;

/// The drafts of one launch of a layer, whose sequences begin at a place of the batch's list.
#[derive(Debug, Clone, Copy)]
pub(in crate::gpu) struct Drafts {
    pub(in crate::gpu) cut: Cut,
    pub(in crate::gpu) place: usize,
    /// Whether blocks that they have filled still lie in their tails, as in a step of drafts alone; else they were coded when the chunk was appended.
    pub(in crate::gpu) closing: bool,
}

impl Core {
    /// What launches over `places` drafts left in all layers.
    pub(in crate::gpu) fn left_of_drafts(&self, places: usize, longest: usize) -> Result<Left<'_>, Error> {
        let (s, of) = (&self.sizes, &self.sizes.drafts);
        let [first, last] = &of.certificates;
        let [over, left] = &of.lists;
        let mut each = [0; MOST_LAUNCHES];
        of.cuts(longest).for_each(|cut| each[cut.launch] = cut.width as u32);
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
                launches: of.launches(),
                places,
                each,
                stride: of.stride,
            }),
        })
    }

    /// Whether a layer attends drafts; else it attends chunks otherwise.
    pub(in crate::gpu) fn drafts_in(&self, layer: usize) -> bool {
        !self.kit(layer).drafts.is_empty() && !self.sizes.spills(layer)
    }

    pub(in crate::gpu) fn draft_buffer(&self) -> Result<&DeviceBuffer, Error> {
        self.drafts.as_ref().ok_or_else(|| Error::Config { field: "chunk_tokens", why: "no room for drafts".into() })
    }

    /// What a launch is told of the drafts.
    pub(super) fn told_of(&self, drafts: Drafts) -> Result<Span<'_>, Error> {
        self.draft_span(&self.sizes.drafts.told(drafts.cut.launch))
    }

    pub(super) fn draft_span(&self, bytes: &Range<usize>) -> Result<Span<'_>, Error> {
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

    /// Enqueues the new tokens of a step of drafts in one layer.
    pub(in crate::gpu) fn append_drafts(
        &self,
        layer: usize,
        tokens: usize,
        [keys, values]: [Tensor<'_>; 2],
    ) -> Result<(), Error> {
        let (s, c) = (&self.sizes, &self.sizes.counters);
        let of = &s.drafts;
        let kit = self.kit(layer);
        let [rows, lens, tails] = &of.new;
        let tables = self.block_tables(layer)?;
        let args = Append {
            variant: &kit.variant,
            ctas: (tokens * s.kv_heads).min(2 * self.ctas as usize) as u32,
            seqs: tokens,
            tables: Tables { batch: self.draft_span(rows)?, tails: self.draft_span(tails)?, ..tables },
            count: self.draft_span(&of.count(0))?,
            lens: self.draft_span(lens)?,
            errors: self.counter(&c.errors)?,
            keys,
            values,
            tail_slots: self.tails_of(layer)?,
            row_norms: self.row_norms(layer)?,
            // Heads over tolerance in the first launch.
            clear: Some(Span::of(self.draft_buffer()?, of.at(layer, 0, &of.lists[0]), 4)?),
            // As a step's.
            flags: append_flag::SETTLED | append_flag::BY_PLACE,
        };
        Ok(launch::append(&self.queue, &kit.append, &args)?)
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
            drafts: Some(self.told_of(drafts)?),
            closing: drafts.closing,
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
                let start = of.at(layer, drafts.cut.launch, section);
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
            Some(drafts) => Ok((self.draft_buffer()?, of.at(layer, drafts.cut.launch, &of.lists[which]))),
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

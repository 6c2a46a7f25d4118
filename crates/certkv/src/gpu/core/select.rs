//! Which sides are read exactly, and which residuals: the choices that are made on the device.
use super::Core;
use super::drafts::Drafts;
use crate::Error;
use crate::gpu::sizes::Sizes;
use certkv_kernel::cuda::launch::{self, Refine, Select};
use certkv_kernel::cuda::queue::{Queue, Span};
use certkv_kernel::cuda::select::SelectMode;
use core::ops::Range;

/// A choice of sides in one layer, for a batch that begins at a place of the list.
#[derive(Debug, Clone, Copy)]
pub(in crate::gpu) struct Choice<'a> {
    pub(in crate::gpu) layer: usize,
    pub(in crate::gpu) place: usize,
    pub(in crate::gpu) seqs: usize,
    pub(in crate::gpu) mode: SelectMode,
    /// The list that the mode works on.
    pub(in crate::gpu) only: Option<Span<'a>>,
    /// As that of [`launch::Attend`].
    pub(in crate::gpu) closing: bool,
    /// `None`: for a batch of single tokens.
    pub(in crate::gpu) drafts: Option<Drafts>,
}

impl Choice<'_> {
    /// What the next step reads exactly.
    pub(in crate::gpu) const fn plan(layer: usize, place: usize, seqs: usize, closing: bool) -> Self {
        Self { layer, place, seqs, mode: SelectMode::Plan, only: None, closing, drafts: None }
    }
}

impl Sizes {
    /// Masses of one layer, or of all.
    pub(in crate::gpu) fn mass_bytes(&self) -> Option<usize> {
        self.exact_words.checked_mul(4 * self.group)?.checked_mul(if self.all_masses { self.layers } else { 1 })
    }

    /// Those of a layer.
    pub(in crate::gpu) fn masses_of(&self, layer: usize) -> Range<usize> {
        let bytes = 4 * self.group * self.exact_words;
        let start = if self.all_masses { layer * bytes } else { 0 };
        start..start + bytes
    }
}

impl Core {
    /// The masses of a layer, until attention of another, or of the same where all are kept, takes their place.
    pub(in crate::gpu) fn layer_masses(&self, layer: usize) -> Result<Span<'_>, Error> {
        let bytes = self.sizes.masses_of(layer);
        Ok(Span::of(&self.masses, bytes.start, bytes.len())?)
    }

    /// Enqueues a choice of sides, on the queue or on the lane.
    pub(in crate::gpu) fn select(&self, on: &Queue, choice: &Choice<'_>) -> Result<(), Error> {
        let kit = self.kit(choice.layer);
        let whole = self.levels.as_ref().map_or(&kit.select, |(levels, ..)| &levels.select);
        let kernel = kit.for_drafts(choice.drafts).map_or(whole, |kit| &kit.select);
        Ok(launch::select(on, kernel, &self.choice(choice)?)?)
    }

    /// Its arguments.
    pub(in crate::gpu) fn choice<'a>(&'a self, choice: &Choice<'a>) -> Result<Select<'a>, Error> {
        let Choice { layer, place, seqs, mode, only, closing, drafts } = *choice;
        let kit = self.kit(layer);
        let (s, t) = (&self.sizes, &self.sizes.tables);
        let (group, m) = (s.group(layer), &s.memory);
        let memory = self.layer_memory(layer)?;
        // A repair empties the lists of those that come after it: the copies on the one are complete.
        let queue = |i: usize| Span::of(&self.memory, 4 * (layer * m.words + m.queue.start + i), 4);
        let repairs = mode == SelectMode::Repair;
        let refinable = kit.corrects.is_some();
        let corrected = if refinable { Some(self.correction_list()?) } else { None };
        let refine = if refinable {
            Some(Refine { looks: self.looks()?, picks: self.picks()?, failures: self.list_of(layer, 0, drafts)? })
        } else {
            None
        };
        let clear = if repairs {
            [Some(queue(0)?), Some(queue(1)?), Some(self.list_count(layer, 1, drafts)?), corrected]
        } else {
            [None; 4]
        };
        let whole = self.levels.as_ref().map_or(&kit.variant, |(levels, ..)| &levels.each[0].variant);
        Ok(Select {
            variant: kit.for_drafts(drafts).map_or(whole, |kit| &kit.variant),
            ctas: if mode.forgets() { self.ctas } else { ((seqs * s.kv_heads) as u32).min(self.ctas) },
            mode,
            seqs,
            tables: self.tables_from(layer, place)?,
            lens: self.table(&t.after)?,
            packed: self.packed_of(layer)?,
            certificates: match drafts {
                Some(_) => self.certificates_of(layer, 0, drafts)?,
                None => self.certificates_from(layer, place)?,
            },
            masses: self.masses_for(layer, drafts)?,
            only,
            memory,
            hosts: self.table(&group.tables.hosts)?,
            originals: self.sides_of(layer)?,
            step: self.table(&(t.count.start + 1..t.count.end))?,
            stats: self.counter(&self.sizes.stats_of(layer))?,
            refine,
            clear,
            target: match mode {
                SelectMode::Repair => 0.8,
                SelectMode::Refine => REFINE_TARGET,
                SelectMode::Plan | SelectMode::Forget | SelectMode::Erase => self.plan_target,
            },
            progress: 8,
            sight: self.sight(layer),
            closing,
            drafts: drafts.map(|drafts| self.told_of(drafts)).transpose()?,
            levels: self.level_records(layer)?,
        })
    }
}

/// Share of the tolerance that a correction leaves to the codes: with 0.97 every head that residuals could serve was served.
const REFINE_TARGET: f32 = 0.95;

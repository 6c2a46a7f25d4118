//! What a cache on a GPU is made of.
use crate::{Config, Control, Error, Level, Policy, PrefixConfig, Protection, Spill, Watermarks, default_format};
use certkv_control::Calibration;
use certkv_control::scales::Scales;
use certkv_control::spherical::Codebooks;
use certkv_core::{Format, Geometry, RecordLayout};
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::publish::MOST_LAYERS;
use certkv_page::Window;
use core::num::NonZeroUsize;
use std::sync::Arc;

/// Configuration of a [`GpuCache`](super::GpuCache). All memory is taken when the cache is made; nothing grows later.
#[derive(Debug, Clone)]
pub struct GpuConfig {
    /// Shape of the model's attention.
    pub geometry: Geometry,
    /// Format of full blocks: one for all layers, or one per layer. All have the same number of tokens to a block.
    pub formats: Vec<Format>,
    /// As [`Config::calibration`]: centres, balance scales and widths of keys, for formats that code them so (`ctq1` to `ctq6`, `gtq1` to `gtq6`).
    pub calibration: Option<Arc<Calibration>>,
    /// As [`Config::codebooks`]: directions of spherical keys (`s1` to `s3`).
    pub codebooks: Vec<Arc<Codebooks>>,
    /// As [`Config::scales`]: fixed scales of sides with one per block; what they do not reach is counted by [`GpuCache::saturated`](super::GpuCache::saturated).
    pub scales: Option<Arc<Scales>>,
    /// Tokens that all sequences together may hold, each in every layer.
    pub max_tokens: usize,
    /// Tokens that one sequence may hold; tables have this width for every sequence.
    pub max_context: usize,
    /// Sequences that may live at once, 1 to 4096.
    pub max_sequences: usize,
    /// Bytes of device memory: packed pages, tails, tables, results.
    pub device_budget: usize,
    /// Bytes of pinned host memory: originals, records of sequences that are swapped out, staging.
    pub host_budget: usize,
    /// What a step does unless it is told otherwise. [`Policy::Seed000`] is for the CPU.
    pub policy: Policy,
    /// As [`Config::protection`]. Their copies lie on the device, where every sequence that may live has room for its own beside scratch: `max_sequences` times as many blocks
    /// as are protected at once, in every layer. Drafts read what any of their tokens has protected; longer chunks read what was stored before them from codes.
    /// Not beside residual planes, nor originals in a store.
    pub protection: Protection,
    /// Widest type of queries. Kernels for single precision take all types; those for 16 bits are a little faster, and
    /// queries that come from the host in single precision are then rounded to that type: what is certified is attention of
    /// the rounded queries.
    pub queries: Element,
    /// Promoted key sides (one block of one KV head) of which 16-bit copies are kept on the device, in each layer but those of
    /// refinable formats, which have their residual planes instead. What is not there is read over the host's link when it is needed.
    pub scratch_keys: usize,
    /// The same for promoted value sides.
    pub scratch_values: usize,
    /// Most sides that a layer copies to scratch in a step: the copies come before the next layer's launches.
    pub copies_per_step: usize,
    /// Share of the tolerance, in (0, 1), that a plan leaves to the codes. The next step's queries and masses are not those that
    /// the plan was made from: what is left below 1 is room for that, bought with promotions.
    pub plan_target: f64,
    /// Whether attention leaves the choice of what the next step reads exactly, and its copies, to [`GpuStep::plan`](super::GpuStep::plan), so that they run
    /// on a stream of their own beside what the model computes next. Else they are enqueued behind each layer's attention, and what comes next waits for
    /// them. It takes the masses of every layer instead of one's: 4 bytes a block and query head. Formats with residual planes have no plans, and those of layers
    /// whose originals may lie in a store come with attention.
    pub plan_apart: bool,
    /// Steps whose certificates stay readable on the host without waiting, at most 4096; 0: none, and steps do not publish theirs. See
    /// [`GpuCache::certificate_ring`](super::GpuCache::certificate_ring). 16 bytes a layer, sequence and query head each.
    pub certificate_ring: usize,
    /// Full blocks that outlive their sequences, for others to continue from. They live in the same pages and give way to sequences
    /// that need them.
    pub prefixes: Option<PrefixConfig>,
    /// As [`Config::prefix_watermarks`].
    pub prefix_watermarks: Option<Watermarks>,
    /// As [`Config::prefix_events`].
    pub prefix_events: usize,
    /// As [`Config::move_events`].
    pub move_events: usize,
    /// Tokens whose records sequences that are swapped out may leave in pinned memory, each in every layer
    /// ([`GpuCache::swap_out`](super::GpuCache::swap_out)). Originals have as much more room: others have all of `max_tokens`.
    pub swap_tokens: usize,
    /// Originals that host memory has no room for, in a store; `None`: all stay in pinned memory. As [`Config::spill`]; what a GPU does with it is in
    /// docs/gpu.md ("Originals in a store").
    pub spill: Option<Spill>,
    /// As [`Config::erase`]: pages of records and of originals, tails, frames, what is swapped out, and what longer chunks have worked with are overwritten behind the work that still reads them,
    /// in the order of the cache's stream, which also waits for that; sides in scratch when a sequence is released, and else with the next step. Takes the stream as long as
    /// writing them does: originals go over the link. All of records, tails and scratch is overwritten when the cache goes.
    pub erase: bool,
    /// Tokens of a chunk of several that are attended on the GPU at once, with room for no more than `max_context`; 0: chunks are attended on the CPU.
    ///
    /// *Drafts*, chunks of up to eight tokens and no more than this, are attended as steps are, those of all sequences at once: every token is under the policy with all its rungs
    /// (docs/gpu.md, "Drafts"); in layers that see everything and whose originals stay in host memory, and not where blocks have levels. Where all layers do, a step of nothing else but drafts and
    /// single tokens waits for nothing. Of *longer ones*, a prompt's of any length, so many tokens at a time, what the chunk's tokens see of each
    /// other is read from originals; what was stored before, from codes: under [`Policy::Packed`] as it is, under [`Policy::Certified`] where that is
    /// within tolerance for every token and head of the layer that are attended at once, else from originals, too. Under [`Policy::Dense`] all is. Originals come over the host's link. The CPU
    /// attends what halves do not hold (keys and values of bf16 beyond 65504).
    ///
    /// It takes device memory: for the originals, queries, outputs and certificates of as many tokens some 44 KB each of a model of 32 query heads and 8 KV heads of 128
    /// channels; for drafts as much for up to eight tokens of every sequence, with 96 bytes a query head of each in every layer, and 4 bytes for each block of
    /// `max_context`; and entries of the ring of certificates for as many.
    pub chunk_tokens: usize,
    /// Threads of the host's part, 1 to 256: attention of chunks, and touching memory when the cache is made.
    pub threads: usize,
    /// As [`Config::levels`]: formats that a full block can have, one above the other, each with pages of its own in every layer; `formats` is that of the first, or
    /// [`GpuConfig::with_levels`]. See [`GpuCache::change_level`](super::GpuCache::change_level). Blocks of a layer have levels here, not those of a KV head. Not beside windows, fixed scales and a store; drafts are attended as longer chunks ([`GpuConfig::chunk_tokens`]); cached prefixes are not put into stores.
    pub levels: Vec<Level>,
    /// Who decides on levels when [`GpuCache::control`](super::GpuCache::control) is called; `None` for nobody. Takes the words of every layer, as `plan_apart` does, also under the packed policy.
    /// Who judges by what levels lose takes room for 16 pages of records beside that, and no ladder in which keys of a calibration (`ctqN`, `gtqN`) are beside others, whose bounds are in another metric.
    pub control: Option<Control>,
    /// As [`Config::windows`]. Layers of equal window share block tables, whatever their formats.
    pub windows: Vec<Option<Window>>,
}

/// Share of all sides that scratch has room for unless it is told otherwise: with it, records, tables and scratch of the default
/// format stay below 0.55 of dense keys and values from 8K tokens on.
pub const SCRATCH_SHARE: f64 = 0.11;

/// Most promoted sides of one kind in a layer.
const MOST_SIDES: usize = 1 << 24;

/// Memory of the host through which tables and rows travel, in slots that are used in turn.
pub(super) const STAGING_SLOTS: usize = 4;

impl GpuConfig {
    /// A cache of `max_tokens` tokens and up to 16 sequences in the default format under the default policy, without
    /// limits on bytes, for queries in single precision.
    pub fn new(geometry: Geometry, max_tokens: usize) -> Self {
        let format = default_format(geometry.head_dim).parse().unwrap_or(Format::DENSE_F16);
        Self {
            geometry,
            formats: vec![format],
            calibration: None,
            codebooks: Vec::new(),
            scales: None,
            max_tokens,
            max_context: max_tokens,
            max_sequences: 16,
            device_budget: usize::MAX,
            host_budget: usize::MAX,
            policy: Policy::default(),
            protection: Protection::NONE,
            queries: Element::F32,
            scratch_keys: 0,
            scratch_values: 0,
            copies_per_step: 64,
            plan_target: 0.9,
            plan_apart: false,
            certificate_ring: 0,
            prefixes: None,
            prefix_watermarks: None,
            prefix_events: 0,
            move_events: 0,
            swap_tokens: 0,
            spill: None,
            erase: false,
            chunk_tokens: 0,
            threads: 1,
            levels: Vec::new(),
            control: None,
            windows: Vec::new(),
        }
        .with_scratch(SCRATCH_SHARE)
    }

    /// The same with another format for every layer; scratch stays what it is, see [`GpuConfig::with_scratch`].
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.formats = vec![format];
        self
    }

    /// The same with levels; the first is the format of all layers.
    #[must_use]
    pub fn with_levels(mut self, levels: Vec<Level>) -> Self {
        self.formats = levels.first().map(|level| level.format).into_iter().collect();
        self.levels = levels;
        self
    }

    /// The same with fixed scales.
    #[must_use]
    pub fn with_scales(mut self, scales: Arc<Scales>) -> Self {
        self.scales = Some(scales);
        self
    }

    /// The same with codebooks more, for formats with spherical keys of their tier.
    #[must_use]
    pub fn with_codebooks(mut self, codebooks: Arc<Codebooks>) -> Self {
        self.codebooks.push(codebooks);
        self
    }

    /// The same with a calibration, for formats that need one.
    #[must_use]
    pub fn with_calibration(mut self, calibration: Arc<Calibration>) -> Self {
        self.calibration = Some(calibration);
        self
    }

    /// The same with one window for every layer.
    #[must_use]
    pub fn with_window(mut self, window: Window) -> Self {
        self.windows = vec![Some(window)];
        self
    }

    /// The same with tokens that are always read exactly.
    #[must_use]
    pub fn with_protection(mut self, protection: Protection) -> Self {
        self.protection = protection;
        self
    }

    /// The same with scratch for a share of all key sides and as many value sides.
    #[must_use]
    pub fn with_scratch(mut self, share: f64) -> Self {
        let sides = self.max_tokens.div_ceil(self.block().max(1)).saturating_mul(self.geometry.kv_heads);
        let slots = ((sides as f64 * share.clamp(0.0, 1.0)).ceil() as usize).min(MOST_SIDES);
        (self.scratch_keys, self.scratch_values) = (slots, slots);
        self
    }

    /// Tokens per block; 0 without a format, which [`GpuConfig::layouts`] refuses.
    pub(super) fn block(&self) -> usize {
        self.formats.first().map_or(0, |format| format.block)
    }

    /// What [`super::GpuCache::new`] begins with and no GPU is needed for: every field and how they go together. The budgets, and
    /// whether a calibration fits its formats, are checked there alone.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn check(&self) -> Result<(), Error> {
        self.layouts()?;
        self.check_scales()
    }

    /// Checks every field and lays the records of each layer out.
    pub(super) fn layouts(&self) -> Result<Vec<RecordLayout>, Error> {
        let wrong = |field, why: String| Err(Error::Config { field, why });
        if self.max_sequences > 4096 {
            return wrong("max_sequences", format!("{} sequences; must be 1 to 4096", self.max_sequences));
        }
        if self.max_context == 0 || self.max_context > self.max_tokens {
            let why = format!("{} tokens; must be 1 to max_tokens = {}", self.max_context, self.max_tokens);
            return wrong("max_context", why);
        }
        for (field, n) in [("scratch_keys", self.scratch_keys), ("scratch_values", self.scratch_values)] {
            if n > MOST_SIDES {
                return wrong(field, format!("{n} sides; must be at most 2^24"));
            }
        }
        if self.copies_per_step == 0 || self.copies_per_step > 1 << 16 {
            return wrong("copies_per_step", format!("{} copies; must be 1 to 65536", self.copies_per_step));
        }
        if !(self.plan_target > 0.0 && self.plan_target < 1.0) {
            return wrong("plan_target", format!("{}; must be above 0 and below 1", self.plan_target));
        }
        if self.certificate_ring > 4096 {
            return wrong("certificate_ring", format!("{} steps; must be at most 4096", self.certificate_ring));
        }
        if self.certificate_ring > 0 && self.geometry.layers > MOST_LAYERS {
            let why = format!("{} layers; certificates of at most {MOST_LAYERS} are published", self.geometry.layers);
            return wrong("certificate_ring", why);
        }
        super::policy::Rule::of(self.policy)?;
        self.check_protection()?;
        self.check_control()?;
        let common = self.common();
        if let Some(other) = self.formats.iter().find(|format| format.block != self.block()) {
            return wrong(
                "formats",
                format!("blocks of {} and of {} tokens; must be alike", self.block(), other.block),
            );
        }
        let groups = common.groups()?;
        if let Some(group) = groups.iter().find(|group| group.heads.len() < self.geometry.kv_heads) {
            let why = format!("KV heads of layer {} have formats of their own; on a GPU a layer has one", group.first);
            return wrong("formats", why);
        }
        Ok(groups.into_iter().flat_map(|group| core::iter::repeat_n(group.layout, group.layers)).collect())
    }

    /// What it has in common with a cache on the CPU, which checks it.
    pub(super) fn common(&self) -> Config {
        let mut common = Config::new(self.geometry, self.max_tokens);
        common.formats.clone_from(&self.formats);
        common.max_sequences = self.max_sequences;
        common.threads = self.threads;
        common.swap_tokens = self.swap_tokens;
        common.spill.clone_from(&self.spill);
        (common.policy, common.protection) = (self.policy, self.protection);
        common.windows.clone_from(&self.windows);
        common.levels.clone_from(&self.levels);
        common.control = self.control;
        common.prefixes.clone_from(&self.prefixes);
        common.prefix_watermarks = self.prefix_watermarks;
        (common.prefix_events, common.move_events) = (self.prefix_events, self.move_events);
        common
    }

    /// Threads as the device layer wants them.
    pub(super) fn pinning_threads(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN)
    }
}

//! A KV group: KV heads of consecutive layers that share block tables and a format, with the memory behind their pages.
//!
//! A page id is valid in every layer of the group: page `p` of layer `l` is arena slot `p * layers + (l - first)`. So a
//! block is allocated once for all layers, and a slot is locked by one layer at a time.
//!
//! Mostly a group has all KV heads of its layers. Where heads of a layer have formats of their own it has several groups, each with some of its heads, in pages and blocks of
//! their own. What one layer has in one group is a *strand*: what a sequence remembers of blocks is by strand. KV heads are counted within their group, but where they are
//! said to be the model's.
use crate::calibrated::Calibrated;
use crate::levels::Lower;
use crate::save::header::GroupKind;
use crate::seal::{Seal, format_id};
use crate::sizes::GroupSizes;
use crate::{Config, Error, erase, fixed};
use certkv_codec::{FixedScales, KeyMetric};
use certkv_control::scales::Scales;
use certkv_core::{Geometry, KeyFormat, PageId, RecordLayout};
use certkv_device::{Arena, SimDevice};
use certkv_kernel::Kernel;
use certkv_page::prefix::GroupShape;
use certkv_page::{BlockEntry, BlockTable, Pools, TableError, Window};
use certkv_tier::Scratch;
use certkv_tier::spill::map::Residency;
use core::ops::Range;
use parking_lot::Mutex;
use std::sync::Arc;

/// Bytes in front of the records of a packed page: its seal.
pub(crate) const SEAL_BYTES: usize = 64;

pub use certkv_tier::Side;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) first: usize,
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    /// The first of them among the model's.
    pub(crate) first_head: usize,
    /// Strands of the groups before it, and pairs of a layer and a KV head.
    before: (usize, usize),
    pub(crate) layout: RecordLayout,
    pub(crate) kernel: Kernel,
    /// What its keys are coded by; `None` where no format of it needs anything.
    pub(crate) calibrated: Option<Arc<Calibrated>>,
    /// Fixed scales, where the format has sides that take them.
    pub(crate) scales: Option<Arc<Scales>>,
    pub(crate) pools: Pools,
    pub(crate) packed: Arena,
    /// The levels behind the first, whose are `layout`, `kernel` and `packed`.
    pub(crate) lower: Vec<Lower>,
    pub(crate) host: Arena,
    pub(crate) tail: Arena,
    /// Codes of sequences that are swapped out; `None` where the configuration has no room for any.
    pub(crate) swap: Option<Arena>,
    /// Promoted sides; `None` where the configuration has no room for any.
    pub(crate) scratch: Option<Scratch>,
    /// Where the originals of each block and layer are; `None` where `host` has room for all of them.
    pub(crate) residency: Option<Mutex<Residency>>,
    pub(crate) max_blocks: usize,
    pub(crate) window: Option<Window>,
    /// Numbers of the formats in seals, by level.
    formats: Vec<u64>,
    pub(crate) sizes: GroupSizes,
}

impl Group {
    /// Whether its format has residuals.
    pub(crate) fn is_refinable(&self) -> bool {
        !self.layout.format.refine.is_none()
    }

    /// Takes the memory of a group behind so many strands. Its bytes are reserved.
    pub(crate) fn new(
        config: &Config,
        sizes: GroupSizes,
        strands: usize,
        calibrated: &Option<Arc<Calibrated>>,
        device: &SimDevice,
    ) -> Result<Self, Error> {
        let arena = |name, pages: usize, bytes: usize| -> Result<Arena, Error> {
            Ok(device.arena(name, sizes.slots(pages)?, bytes)?)
        };
        let slots = |pages| sizes.slots(pages);
        let lower = sizes.lower.iter().map(|level| Lower::new(config, level, slots(level.pages)?, device));
        let lower = lower.collect::<Result<Vec<_>, Error>>()?;
        let formats = sizes.layouts().map(format_id).collect();
        let levels = sizes.lower.iter().map(|level| erase::pages(config.erase, level.pages));
        let levels = levels.collect::<Result<Vec<_>, _>>()?.into();
        Ok(Self {
            lower,
            first: sizes.first,
            layers: sizes.layers,
            kv_heads: sizes.heads.len(),
            first_head: sizes.heads.start,
            before: (strands, sizes.before),
            kernel: Kernel::new(&config.geometry, &sizes.layout, certkv_kernel::Arch::detect())?,
            calibrated: calibrated.clone().filter(|_| sizes.layouts().any(|layout| layout.format.key.is_calibrated())),
            scales: config.scales.clone().filter(|_| fixed::takes(&sizes.layout.format)),
            layout: sizes.layout.clone(),
            packed: arena("packed", sizes.packed_pages, sizes.page_bytes)?,
            tail: arena("tail", sizes.tail_pages, sizes.original_bytes)?,
            host: match &sizes.frames {
                Some(frames) => device.arena("host", frames.slots, sizes.original_bytes)?,
                None => arena("host", sizes.host_pages, sizes.original_bytes)?,
            },
            residency: sizes.residency(config.erase)?,
            swap: match sizes.swap_pages {
                0 => None,
                pages => Some(arena("swap", pages, sizes.page_bytes)?),
            },
            scratch: sizes.scratch.map(|sides| Scratch::new(device, sides)).transpose()?,
            pools: Pools {
                host: erase::pages(config.erase, sizes.host_pages)?,
                packed: erase::pages(config.erase, sizes.packed_pages)?,
                tail: erase::pages(config.erase, sizes.tail_pages)?,
                swap: erase::pages(config.erase, sizes.swap_pages)?,
                levels,
            },
            max_blocks: sizes.max_blocks,
            window: sizes.window,
            formats,
            sizes,
        })
    }

    /// An empty table of the group.
    pub(crate) fn table(&self) -> Result<BlockTable, TableError> {
        let (pools, block, most) = (&self.pools, self.layout.tokens(), self.max_blocks);
        match self.window {
            Some(window) => BlockTable::windowed(pools, block, most, window),
            None => BlockTable::create(pools, block, most),
        }
    }

    /// What an index of prefixes knows of the group.
    pub(crate) fn shape(&self) -> GroupShape {
        let (block, max_blocks) = (self.layout.tokens(), self.max_blocks);
        GroupShape { pools: self.pools.clone(), block, max_blocks, window: self.window }
    }

    /// Whole blocks of sinks, which every head's memory begins with; `None` without a window.
    pub(crate) fn fixed_blocks(&self) -> Option<usize> {
        self.window.map(|window| window.sinks / self.layout.tokens())
    }

    /// What keys of a head are coded in where they are of `format`; `None` where they are coded as they are.
    pub(crate) fn key_metric(&self, format: KeyFormat, layer: usize, head: usize) -> Option<KeyMetric<'_>> {
        self.calibrated.as_ref().and_then(|calibrated| calibrated.metric(format, layer, self.first_head + head))
    }

    /// What scales of a head are made of; `None` where each block has its own.
    pub(crate) fn fixed_scales(&self, layer: usize, head: usize) -> Option<FixedScales<'_>> {
        let (keys, values) = self.scales.as_ref()?.head(layer, self.first_head + head)?;
        Some(FixedScales { keys, values })
    }

    /// The seal of a page of codes at `level`, without its writer.
    pub(crate) fn seal_at(&self, level: u8, layer: usize, block: usize, page: PageId) -> Seal {
        let format = self.formats.get(usize::from(level)).copied().unwrap_or_default();
        let seal = Seal::of(self.layout_at(level), format, layer, block, page).of_heads_from(self.first_head);
        match self.calibrated.as_ref().filter(|_| self.layout_at(level).format.key.is_calibrated()) {
            Some(calibrated) => seal.under(calibrated.number()),
            None => seal,
        }
    }

    /// Arena slot of `page` in `layer`.
    #[inline]
    pub(crate) fn slot(&self, page: PageId, layer: usize) -> u32 {
        page.index * self.layers as u32 + (layer - self.first) as u32
    }

    /// Identity of a slot's owner, for the content check: never 0.
    pub(crate) fn tag(page: PageId) -> u64 {
        (u64::from(page.generation) << 32 | u64::from(page.index)).wrapping_add(1)
    }

    /// Words of one side of one KV head in a host or tail slot: `[B][d]`, keys before values, heads side by side.
    #[inline]
    pub(crate) fn side(&self, head: usize, side: Side) -> Range<usize> {
        let words = self.layout.count();
        let start = (2 * head + usize::from(side == Side::Value)) * words;
        start..start + words
    }

    /// Where a page of codes lies: on the device, or swapped out.
    pub(crate) fn codes_of(&self, entry: &BlockEntry) -> Option<(&Arena, PageId)> {
        let swapped = || Some((self.swap.as_ref()?, entry.swapped?.page));
        entry.packed.map(|page| (self.packed_at(entry.level), page)).or_else(swapped)
    }

    /// Bytes of scratch that hold promoted sides, or are about to.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let used = |scratch: &Scratch, side| {
            let census = scratch.census(side);
            (census.filling + census.valid + census.retiring) as usize
        };
        let sides = self.scratch.as_ref().map_or(0, |s| used(s, Side::Key) + used(s, Side::Value));
        sides * self.layout.original_side_bytes().next_multiple_of(64)
    }

    /// True if some of the KV heads of `layer` belong to the group.
    pub(crate) fn holds(&self, layer: usize) -> bool {
        (self.first..self.first + self.layers).contains(&layer)
    }

    /// Its KV heads among the model's.
    pub(crate) fn heads(&self) -> Range<usize> {
        self.first_head..self.first_head + self.kv_heads
    }

    /// The query heads of these.
    pub(crate) fn q_heads(&self, geometry: &Geometry) -> Range<usize> {
        self.first_head * geometry.group()..(self.first_head + self.kv_heads) * geometry.group()
    }

    /// What it is, in words that a file or a name can hold, of a model of so many KV heads.
    pub(crate) fn kind(&self, kv_heads: usize) -> GroupKind {
        let heads = (self.kv_heads < kv_heads).then(|| self.heads());
        GroupKind { layers: self.layers, heads, format: self.layout.format, window: self.window }
    }

    /// Number of what `layer` has in the group, among the strands of all groups. Where every layer has one it is the layer's.
    #[inline]
    pub(crate) fn strand(&self, layer: usize) -> usize {
        self.before.0 + layer - self.first
    }

    /// Its strands.
    pub(crate) fn strands(&self) -> Range<usize> {
        self.before.0..self.before.0 + self.layers
    }

    /// Elements of a row of keys, or of values, of a strand.
    pub(crate) fn width(&self) -> usize {
        self.kv_heads * self.layout.dim
    }

    /// What its heads remember in `layer`: a range of [`SequenceState::heads`](crate::sequence::SequenceState::heads).
    pub(crate) fn memories(&self, layer: usize) -> Range<usize> {
        let start = self.before.1 + (layer - self.first) * self.kv_heads;
        start..start + self.kv_heads
    }

    /// The same in all of its layers.
    pub(crate) fn all_memories(&self) -> Range<usize> {
        self.before.1..self.before.1 + self.layers * self.kv_heads
    }
}

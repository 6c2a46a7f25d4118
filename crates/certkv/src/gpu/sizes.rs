//! Bytes and offsets of everything a cache holds on the GPU. Pure arithmetic.
use super::cache::Entry;
use super::calibrated::most_metric_bytes;
use super::config::{GpuConfig, STAGING_SLOTS};
use super::draft_sections::DraftSections;
use super::frames::{FrameSizes, frames};
use super::level_probes::ProbeSections;
use super::level_sizes::{LevelSizes, level_sizes};
use super::plan::GpuMachine;
use super::protected::ProtectedSizes;
use super::sections::{
    ALIGN, ChunkSections, CorrectionSections, CounterSections, GroupSections, MemorySections, TableSections, sections,
    table_sections,
};
use super::{importance, kit, window};
use crate::levels::LayerControl;
use crate::prefix::Prefixes;
use crate::{Error, MoveEvents};
use certkv_core::budget::ByClass;
use certkv_core::{Class, RecordLayout};
use certkv_device::cuda::PinnedBuffer;
use certkv_device::mailbox::Slots;
use certkv_kernel::cuda::args::{Certificate, Demand, Picked, Sides};
use certkv_kernel::cuda::ladder::TURN_WORDS;
use certkv_kernel::cuda::select::SelectStats;
use certkv_kernel::cuda::{Variant, launch, publish};
use certkv_page::{BlockTable, PageAllocator, Pools, TableError, Window};
use certkv_tier::spill::map::Residency;
use core::ops::Range;

/// Layers with the same window: they share block tables, and have pages of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupSizes {
    /// What their queries see; `None`: everything.
    pub(super) window: Option<Window>,
    /// Their numbers.
    pub(super) layers: Vec<usize>,
    /// Pages of records, of the first level where there are several.
    pub(super) packed_pages: usize,
    pub(super) host_pages: usize,
    /// Bytes of a page of records in all of them.
    pub(super) page_bytes: usize,
    pub(super) tables: GroupSections,
}

/// What depends on a layer's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerSizes {
    pub(super) record_bytes: usize,
    /// Bytes of a page of records.
    pub(super) page_bytes: usize,
    /// First byte of the layer's pages of records.
    pub(super) packed_at: usize,
    /// First byte of its pages in host memory.
    pub(super) swap_at: usize,
    /// First byte of its pages of originals.
    host_at: usize,
    /// Slots of keys and of values in scratch.
    pub(super) slots: [usize; 2],
    /// First byte of them.
    scratch_at: usize,
    /// Places of a head's protected blocks behind the slots, and whether keys and values have codes.
    pub(super) places: usize,
    pub(super) coded: [bool; 2],
}

/// Shapes, capacities and offsets.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) layers: usize,
    /// Sequences that may live.
    pub(super) rows: usize,
    /// Blocks per row of the tables.
    pub(super) stride: usize,
    pub(super) groups: Vec<GroupSizes>,
    /// By layer.
    group_of: Vec<usize>,
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) dim: usize,
    pub(super) block: usize,
    /// Of each group.
    pub(super) tail_slots: usize,
    /// Pages of records in host memory, of each group.
    pub(super) swap_pages: usize,
    /// By layer.
    pub(super) of_layer: Vec<LayerSizes>,
    /// Levels of blocks; none where all have their layer's format.
    pub(super) levels: Vec<LevelSizes>,
    /// Bytes of the state that attention of a level leaves.
    pub(super) level_kept_bytes: usize,
    packed_bytes: usize,
    host_bytes: usize,
    /// `None` where every page has room in every layer.
    pub(super) frames: Option<FrameSizes>,
    pub(super) swap_bytes: usize,
    scratch_bytes: usize,
    /// Bytes of a page of originals (a tail too), in one layer.
    pub(super) original_bytes: usize,
    pub(super) side_bytes: usize,
    pub(super) tables: TableSections,
    /// Words of `[row][kv_head][stride]`.
    pub(super) exact_words: usize,
    /// Pages of originals of the largest group.
    side_pages: usize,
    pub(super) counters: CounterSections,
    pub(super) memory: MemorySections,
    pub(super) protected: ProtectedSizes,
    pub(super) corrections: CorrectionSections,
    /// Of what keys of a calibration are coded by, as much in every layer.
    pub(super) metric_bytes: usize,
    pub(super) reach_bytes: usize,
    /// Longest chunk that is attended here, and what that takes.
    pub(super) chunk_tokens: usize,
    pub(super) chunks: ChunkSections,
    /// What attention of drafts takes.
    pub(super) drafts: DraftSections,
    /// Whether steps of drafts do not go by way of the host: where all layers see everything, and originals stay in host memory.
    pub(super) drafts_alone: bool,
    pub(super) copies: usize,
    /// Whether every layer keeps its masses: until plans that come later, or for who decides on levels.
    pub(super) all_masses: bool,
    /// Whether there is somebody who does, and bytes of what they keep.
    pub(super) controlled: bool,
    /// Where blocks are coded to see what levels lose, where somebody asks.
    pub(super) probed: Option<ProbeSections>,
    /// What is remembered on the device of a sequence's blocks, where somebody decides by their scores.
    pub(super) remembered: Option<importance::Remembered>,
    control_bytes: usize,
    pub(super) partial_bytes: usize,
    /// Multiprocessors.
    pub(super) ctas: usize,
    /// Zeroes to be copied over what lies in host memory; none where nothing is erased.
    pub(super) zero_bytes: usize,
    /// Bytes of a slot of the staging ring.
    pub(super) staging_slot: usize,
    /// Where certificates are published, if they are.
    pub(super) ring: Option<Slots>,
    /// Of cached prefixes and events on the host, and the most that publishing may add.
    pub(super) prefix_bytes: usize,
    pub(super) later: usize,
}

pub(super) fn too_large() -> Error {
    Error::Config { field: "max_tokens", why: "more than the address space holds".into() }
}

impl Sizes {
    /// Of a cache on a machine.
    ///
    /// # Errors
    /// A configuration that is refused, or has no kernels there.
    pub(super) fn of(config: &GpuConfig, machine: GpuMachine) -> Result<Self, Error> {
        let layouts = config.layouts()?;
        let Some(first) = layouts.first() else {
            return Err(Error::Config { field: "geometry", why: "no layer".into() });
        };
        // Neither windows nor longer chunks change the size of anything here.
        let variants = kit::variants(machine.arch, config, first, false, None)?;
        let Some((variant, _)) = variants.first() else {
            return Err(Error::Config { field: "formats", why: "no kernels".into() });
        };
        Self::new(config, &layouts, variant, machine.multiprocessors.max(1) as usize)
    }

    /// # Errors
    /// [`Error::Config`] for numbers that no machine holds.
    pub(super) fn new(
        config: &GpuConfig,
        layouts: &[RecordLayout],
        variant: &Variant,
        ctas: usize,
    ) -> Result<Self, Error> {
        let g = &config.geometry;
        let (block, rows) = (config.block(), config.max_sequences);
        let stride = config.max_context.div_ceil(block);
        let all = config.max_tokens.div_ceil(block);
        let swap_pages = config.swap_tokens.div_ceil(block);
        let levels = level_sizes(config)?;
        let by_window = match levels.is_empty() {
            true => window::groups(&window::by_layer(config)),
            // Blocks of a layer have levels of their own, and so tables.
            false => (0..g.layers).map(|layer| (None, vec![layer])).collect(),
        };
        let level_pages: usize = levels.iter().map(|level| level.pages).sum();
        let mut group_of = vec![0; g.layers];
        for (group, (_, layers)) in by_window.iter().enumerate() {
            layers.iter().for_each(|layer| group_of[*layer] = group);
        }
        let entries = rows.checked_mul(stride).ok_or_else(too_large)?;
        let exact = entries.checked_mul(g.kv_heads).ok_or_else(too_large)?;
        let (tables, sections_of_groups) =
            table_sections((by_window.len(), levels.len()), rows, entries, exact).ok_or_else(too_large)?;
        let of_group = |((window, layers), tables): ((Option<Window>, Vec<usize>), GroupSections)| {
            // Blocks of all sequences at once.
            let room = window.map_or(usize::MAX, |window| window.most_blocks(block, stride).saturating_mul(rows));
            GroupSizes {
                window,
                packed_pages: levels.first().map_or(all.min(room), |level| level.pages),
                // An open block has originals too; a tail is given up only after its successor was taken. Sequences that are
                // swapped out keep theirs, beside those that take their place; no more than all sequences can have.
                host_pages: all.saturating_add(swap_pages.min(entries)).saturating_add(rows).min(room),
                page_bytes: layers.iter().map(|layer| g.kv_heads * layouts[*layer].bytes).sum(),
                layers,
                tables,
            }
        };
        let groups: Vec<GroupSizes> = by_window.into_iter().zip(sections_of_groups).map(of_group).collect();
        let most_of = |pages: fn(&GroupSizes) -> usize| groups.iter().map(pages).max().unwrap_or(0);
        let (packed_pages, host_pages) = (most_of(|group| group.packed_pages), most_of(|group| group.host_pages));
        let packed_pages = packed_pages.max(level_pages);
        let of_groups: Vec<_> = groups.iter().map(|group| (block, group.host_pages, stride)).collect();
        let prefix_bytes = match &config.prefixes {
            Some(prefixes) => Prefixes::bytes(prefixes, config.prefix_events, &of_groups)?,
            None => 0,
        };
        // Launches for several levels run beside each other.
        let beside = levels.len().max(1);
        let counters = sections([rows, 1, beside * rows * g.kv_heads, g.layers * SelectStats::WORDS, 8, TURN_WORDS]);
        let ([errors, status, heads, stats, published, turns], _) = counters.ok_or_else(too_large)?;
        let side_bytes = 2 * block * g.head_dim;
        let original_bytes = 2 * g.kv_heads * side_bytes;
        let slots = [config.scratch_keys, config.scratch_values];
        let (mut of_layer, mut packed_bytes, mut scratch_bytes) = (Vec::with_capacity(g.layers), 0usize, 0usize);
        let (mut swap_bytes, mut host_bytes) = (0usize, 0usize);
        let mut frames = frames(config, &groups, original_bytes).transpose()?;
        let protected = ProtectedSizes::of(config, stride);
        for (layout, number) in layouts.iter().zip(&group_of) {
            let group = &groups[*number];
            // Residual planes lie beside the codes: nothing is planned there, and nothing copied.
            let slots = if layout.format.refine.is_none() { slots } else { [0; 2] };
            let coded = [!layout.format.key.is_exact(), !layout.format.value.is_exact()];
            let places = if coded == [false; 2] { 0 } else { protected.count() };
            let room = places.checked_mul(2 * rows * g.kv_heads).ok_or_else(too_large)?;
            let page_bytes = g.kv_heads * layout.bytes;
            let (packed_at, scratch_at, swap_at, host_at) = (packed_bytes, scratch_bytes, swap_bytes, host_bytes);
            let record_bytes = layout.bytes;
            let at =
                LayerSizes { record_bytes, page_bytes, packed_at, swap_at, host_at, slots, scratch_at, places, coded };
            of_layer.push(at);
            let grow = |at: usize, n: usize, bytes: usize| n.checked_mul(bytes).and_then(|more| at.checked_add(more));
            packed_bytes = match levels.last() {
                None => grow(packed_bytes, group.packed_pages, page_bytes),
                Some(last) => packed_bytes.checked_add(last.at).and_then(|at| grow(at, last.pages, last.page_bytes)),
            }
            .ok_or_else(too_large)?;
            let pages = if frames.is_some_and(|f| f.group == *number) { 0 } else { group.host_pages };
            host_bytes = grow(host_bytes, pages, original_bytes).ok_or_else(too_large)?;
            swap_bytes = grow(swap_bytes, swap_pages, page_bytes).ok_or_else(too_large)?;
            scratch_bytes = grow(scratch_bytes, slots[0] + slots[1] + room, side_bytes).ok_or_else(too_large)?;
        }
        if let Some(frames) = &mut frames {
            frames.at = host_bytes;
            let bytes = frames.count.checked_mul(original_bytes).and_then(|more| host_bytes.checked_add(more));
            host_bytes = bytes.ok_or_else(too_large)?;
        }
        let memory = MemorySections::new(
            packed_pages.checked_mul(g.kv_heads).ok_or_else(too_large)?,
            slots,
            config.copies_per_step,
            rows * g.kv_heads * protected.count(),
        )
        .ok_or_else(too_large)?;
        let refinable = layouts.iter().any(|layout| !layout.format.refine.is_none());
        let most = if refinable { rows * g.kv_heads } else { 0 };
        let bytes = [
            if refinable { launch::list_bytes(most) } else { 0 },
            most * size_of::<Picked>(),
            most.saturating_mul(4).saturating_mul(stride),
            launch::kept_bytes(variant, most),
            most.saturating_mul(stride),
        ];
        let words = bytes.map(|n| n.div_ceil(4));
        let (sections_of, _) = sections(words).ok_or_else(too_large)?;
        let [list, picked, picks, kept, looks] = sections_of.map(|words| 4 * words.start..4 * words.end);
        let corrections = CorrectionSections { list, picked, picks, kept, looks };
        let chunk_tokens = config.chunk_tokens.min(config.max_context);
        let chunks = ChunkSections::new(chunk_tokens, (block, original_bytes), g);
        let drafts = DraftSections::new(config.draft_tokens(), (layouts, variant.arch()), g, (rows, stride, ctas));
        let drafts = drafts.ok_or_else(too_large)?;
        let drafts_alone = drafts.tokens > 0 && frames.is_none() && groups.iter().all(|group| group.window.is_none());
        let ring = match config.certificate_ring {
            0 => None,
            steps => {
                let places = rows * if drafts_alone { drafts.tokens } else { 1 };
                Some(publish::slots(steps, g.layers, places, g.q_heads).ok_or_else(too_large)?)
            }
        };
        // The longest things that travel at once: the state of all rows, one row of a table, one layer's inputs.
        let travels = [4 * tables.count.end, 4 * stride, 4 * rows * (2 * g.kv_width() + g.q_width()), original_bytes];
        let staging_slot = travels.into_iter().max().unwrap_or(0).max(1 << 18).next_multiple_of(4096);
        let most_page = of_layer.iter().map(|layer| layer.page_bytes).max().unwrap_or(0).max(original_bytes);
        let sizes = Self {
            layers: g.layers,
            rows,
            stride,
            groups,
            group_of,
            kv_heads: g.kv_heads,
            group: g.group(),
            dim: g.head_dim,
            block,
            side_pages: host_pages,
            tail_slots: 2 * rows,
            swap_pages,
            swap_bytes,
            host_bytes,
            frames,
            of_layer,
            level_kept_bytes: match levels.is_empty() {
                true => 0,
                false => launch::kept_bytes(variant, rows * g.kv_heads).next_multiple_of(ALIGN),
            },
            probed: ProbeSections::of(config, &levels, stride)?,
            remembered: importance::remembered(config, stride),
            levels,
            packed_bytes,
            scratch_bytes: scratch_bytes.max(ALIGN),
            original_bytes,
            side_bytes,
            tables,
            exact_words: exact,
            counters: CounterSections { errors, status, heads, stats, published, turns },
            ring,
            memory,
            protected,
            corrections,
            metric_bytes: match &config.level_layouts()?[..] {
                [] => g.layers * most_metric_bytes(layouts, g.kv_heads),
                levels => g.layers * levels.len() * most_metric_bytes(levels, g.kv_heads),
            },
            reach_bytes: config.reach_bytes(),
            chunk_tokens,
            chunks: chunks.ok_or_else(too_large)?,
            drafts,
            drafts_alone,
            copies: config.copies_per_step,
            all_masses: config.plan_apart || config.control.is_some(),
            controlled: config.control.is_some(),
            control_bytes: config.control.as_ref().map_or(0, |control| {
                let each = LayerControl::most_bytes(&config.common(), control, stride);
                each.saturating_mul(g.layers).saturating_mul(rows)
            }),
            partial_bytes: beside * launch::partial_bytes(variant, ctas, rows * g.kv_heads).next_multiple_of(ALIGN),
            ctas,
            zero_bytes: if config.erase { most_page } else { 0 },
            staging_slot,
            prefix_bytes: prefix_bytes.saturating_add(MoveEvents::bytes(config.move_events)),
            later: config.prefixes.as_ref().map_or(0, |p| p.units.saturating_mul(4 * g.layers * g.kv_width())),
        };
        // Words of promoted sides count from 1 up to pages times heads.
        let items = sizes.side_pages.saturating_mul(sizes.kv_heads).saturating_mul(2);
        let items = items.saturating_add(rows.saturating_mul(sizes.kv_heads).saturating_mul(sizes.protected.count()));
        if items > (1 << 31) - 2 || sizes.total().is_none() {
            return Err(too_large());
        }
        Ok(sizes)
    }

    /// The group of a layer.
    pub(super) fn group_of(&self, layer: usize) -> usize {
        self.group_of[layer]
    }

    pub(super) fn group(&self, layer: usize) -> &GroupSizes {
        &self.groups[self.group_of[layer]]
    }

    /// What queries of a layer see.
    pub(super) fn window(&self, layer: usize) -> Option<Window> {
        self.group(layer).window
    }

    /// A new sequence's block tables, by group.
    pub(super) fn block_tables(&self, pools: &[Pools]) -> Result<Vec<BlockTable>, TableError> {
        let table = |(group, pools): (&GroupSizes, &Pools)| match group.window {
            Some(window) => BlockTable::windowed(pools, self.block, self.stride, window),
            None => BlockTable::create(pools, self.block, self.stride),
        };
        self.groups.iter().zip(pools).map(table).collect()
    }

    fn total(&self) -> Option<usize> {
        self.products().iter().try_fold(0usize, |sum, (_, bytes)| sum.checked_add((*bytes)?))
    }

    /// Bytes to reserve, by class.
    pub(super) fn reserved(&self) -> ByClass {
        let mut classes = ByClass::default();
        for (class, bytes) in self.products() {
            // Sizes whose products overflow are not made.
            classes[class as usize] = bytes.unwrap_or(usize::MAX);
        }
        let tables = &mut classes[Class::Tables as usize];
        *tables = tables.saturating_add(self.prefix_bytes);
        classes
    }

    /// Words and lists of the host about pages and sequences.
    fn books(&self) -> Option<usize> {
        let mut all = self.swap_pages.checked_mul(8 * self.layers)?.checked_add(4 * self.tables.count.end)?;
        all = all.checked_add(self.control_bytes)?;
        if let Some(FrameSizes { group, count, buffer_bytes, .. }) = self.frames {
            let group = &self.groups[group];
            let map = Residency::bytes(group.host_pages, group.layers.len(), count);
            all = all.checked_add(map)?.checked_add(buffer_bytes)?;
        }
        all = all.checked_add(self.rows.checked_mul(size_of::<Entry>() + size_of::<usize>())?)?;
        for group in &self.groups {
            let pages = [group.host_pages, group.packed_pages, self.tail_slots, self.swap_pages];
            let room = group.window.map_or(self.stride, |window| window.most_blocks(self.block, self.stride));
            let tables = self.rows.checked_mul(BlockTable::bytes(room) + size_of::<BlockTable>())?;
            let mirror = 4 * (group.tables.packed.len() + group.tables.hosts.len());
            let lower = self.levels.iter().skip(1).map(|level| level.pages);
            let listed =
                group.tables.levels.iter().map(|level| 4 * (level.packed.len() + level.homes.len() + self.rows));
            let of_group =
                pages.into_iter().chain(lower).map(PageAllocator::bytes).chain([tables, mirror]).chain(listed);
            all = of_group.into_iter().try_fold(all, usize::checked_add)?;
        }
        Some(all)
    }

    /// Query heads.
    pub(super) fn q_heads(&self) -> usize {
        self.kv_heads * self.group
    }

    pub(super) const fn packed_bytes(&self) -> usize {
        self.packed_bytes
    }

    pub(super) fn host_bytes(&self) -> Option<usize> {
        Some(self.host_bytes)
    }

    pub(super) fn tail_bytes(&self) -> Option<usize> {
        self.layers.checked_mul(self.tail_slots)?.checked_mul(self.original_bytes + self.norm_bytes())
    }

    /// Scratch slots of all layers.
    pub(super) const fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    pub(super) fn table_bytes(&self) -> Option<usize> {
        self.groups.last()?.tables.end().checked_mul(4)
    }

    /// Sides of all pages of originals, in one layer; as many as the largest group has.
    pub(super) fn side_table_bytes(&self) -> usize {
        self.side_pages * self.kv_heads * size_of::<Sides>()
    }

    /// Certificates of one launch.
    pub(super) fn certificate_bytes(&self) -> usize {
        self.rows * self.q_heads() * size_of::<Certificate>()
    }

    /// A list of heads, as many as there can be, up to a multiple that keeps lists aligned.
    pub(super) fn list_bytes(&self) -> usize {
        launch::list_bytes(self.rows * self.kv_heads).next_multiple_of(ALIGN)
    }

    /// Of the heads whose originals were brought from the store.
    pub(super) fn dense_list_bytes(&self) -> usize {
        if self.frames.is_some() { self.list_bytes() } else { 0 }
    }

    pub(super) fn centre_bytes(&self) -> usize {
        4 * self.rows * self.kv_heads * self.dim
    }

    /// What is remembered of the query heads of all rows, in one layer.
    pub(super) fn demand_bytes(&self) -> usize {
        self.rows * self.demand_row_bytes()
    }

    pub(super) fn correction_bytes(&self) -> Option<usize> {
        Some(self.corrections.looks.end.max(ALIGN))
    }

    /// What attention of longer chunks works with.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunks.norms.end
    }

    /// What is remembered of the query heads of one row, in one layer.
    pub(super) fn demand_row_bytes(&self) -> usize {
        self.q_heads() * size_of::<Demand>()
    }

    pub(super) fn counter_bytes(&self) -> usize {
        4 * self.counters.turns.end
    }

    /// Keys or values of one token of every sequence, in the type of the originals.
    pub(super) fn row_bytes(&self) -> usize {
        (2 * self.rows * self.kv_heads * self.dim).next_multiple_of(ALIGN)
    }

    /// Queries or outputs of one token of every sequence, single precision.
    pub(super) fn query_bytes(&self) -> usize {
        (4 * self.rows * self.q_heads() * self.dim).next_multiple_of(ALIGN)
    }

    /// Rows and queries of a step, and behind them a tolerance for each query head.
    pub(super) fn input_bytes(&self) -> usize {
        let limits = self.limits();
        limits.start + limits.len()
    }
    pub(super) fn limits(&self) -> Range<usize> {
        let start = (2 * self.row_bytes() + self.query_bytes()).next_multiple_of(ALIGN);
        start..start + 8 * self.q_heads()
    }

    /// Bytes by class; `None` where a product overflows.
    fn products(&self) -> [(Class, Option<usize>); 4] {
        let results = self.layers.checked_mul(
            2 * self.certificate_bytes() + 2 * self.list_bytes() + self.centre_bytes() + self.demand_bytes(),
        );
        let sides = self.layers.checked_mul(self.side_table_bytes());
        let memory = self.layers.checked_mul(4 * self.memory.words + 4 * self.exact_words);
        let scratch = Some(self.scratch_bytes).zip(self.tail_bytes());
        let work = self.partial_bytes + self.counter_bytes() + self.input_bytes() + self.query_bytes();
        let work =
            work.checked_add(self.chunk_bytes() + self.dense_list_bytes() + self.metric_bytes + self.reach_bytes);
        let work = work.and_then(|work| work.checked_add(self.zero_bytes));
        let work =
            work.and_then(|work| work.checked_add(self.drafts.bytes() + self.level_buffers().iter().sum::<usize>()));
        let work = work.and_then(|work| work.checked_add(self.probed_bytes())?.checked_add(self.remembered_bytes()?));
        let tables = [self.table_bytes(), self.mass_bytes(), results, sides, memory, self.correction_bytes(), work];
        let tables = tables.into_iter().try_fold(0usize, |sum, x| sum.checked_add(x?));
        let ring = self.ring.map_or(Some(0), |slots| PinnedBuffer::mapped_bytes(8 * slots.len()));
        let staging = PinnedBuffer::mapped_bytes(STAGING_SLOTS * self.staging_slot);
        let results = PinnedBuffer::mapped_bytes(self.result_bytes());
        let originals = self.host_bytes().and_then(PinnedBuffer::mapped_bytes);
        let swap = self
            .swap_area_bytes()
            .and_then(|bytes| if bytes == 0 { Some(0) } else { PinnedBuffer::mapped_bytes(bytes) });
        let host = [originals, staging, results, ring, swap, self.books()];
        let host = host.into_iter().try_fold(0usize, |sum, x| sum.checked_add(x?));
        [
            (Class::Packed, Some(self.packed_bytes)),
            (Class::Scratch, scratch.and_then(|(a, b)| a.checked_add(b))),
            (Class::Tables, tables),
            (Class::Host, host),
        ]
    }

    /// Words in which a layer's choices are counted.
    pub(super) fn stats_of(&self, layer: usize) -> Range<usize> {
        let start = self.counters.stats.start + layer * SelectStats::WORDS;
        start..start + SelectStats::WORDS
    }

    /// Whether originals of a layer may lie in a store.
    pub(super) fn spills(&self, layer: usize) -> bool {
        self.group_spills(self.group_of[layer])
    }

    /// The same of a group's layers.
    pub(super) fn group_spills(&self, group: usize) -> bool {
        self.frames.is_some_and(|frames| frames.group == group)
    }

    /// First byte of a frame.
    pub(super) fn frame_at(&self, frame: u32) -> usize {
        self.frames.map_or(0, |frames| frames.at) + frame as usize * self.original_bytes
    }

    /// First byte of page `page` of originals in `layer`, which does not spill.
    pub(super) fn host_at(&self, layer: usize, page: u32) -> usize {
        self.of_layer[layer].host_at + page as usize * self.original_bytes
    }

    /// First byte of tail `slot` in `layer`.
    pub(super) fn tail_at(&self, layer: usize, slot: u32) -> usize {
        self.tails_at(layer).start + slot as usize * self.original_bytes
    }

    /// First byte of slot `slot` of a layer's scratch: keys first, then values.
    pub(super) fn slot_at(&self, layer: usize, slot: usize) -> usize {
        self.of_layer[layer].scratch_at + slot * self.side_bytes
    }

    /// First byte of what is remembered of `row` in `layer`.
    pub(super) fn demand_at(&self, layer: usize, row: usize) -> usize {
        layer * self.demand_bytes() + row * self.demand_row_bytes()
    }

    /// First byte of the centres of `row` in `layer`.
    pub(super) fn centre_at(&self, layer: usize, row: usize) -> usize {
        layer * self.centre_bytes() + 4 * row * self.kv_heads * self.dim
    }
}

#[cfg(test)]
#[path = "sizes_tests.rs"]
mod tests;

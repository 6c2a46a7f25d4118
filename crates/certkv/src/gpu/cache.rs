//! The cache: sequences, their pages, and the memory behind them on a GPU.
use super::carry::Carry;
use super::config::GpuConfig;
use super::control::{Heard, SeenStep};
use super::core::Core;
use super::drafts::Drafted;
use super::forgotten::Forgotten;
use super::leaving::Leaving;
use super::lists::Lists;
use super::mirror::Mirror;
use super::published::CertificateRing;
use super::readback::Back;
use super::ring::Ring;
use super::rows::Rows;
use super::scrub::Watched;
use super::sizes::{GroupSizes, Sizes};
use super::spill::Spilled;
use super::step::GpuStep;
use super::swap::Seals;
use super::{pages, policy::Rule};
use crate::calibrated::Calibrated;
use crate::counters::Kind;
use crate::levels::LayerControl;
use crate::prefix::Prefixes;
use crate::save::header::{GroupKind, Order};
use crate::{Chunk, Error, MemoryUse, MoveEvents, Policy, Side, erase};
use certkv_core::{Class, Geometry, Ledger, RecordLayout, SequenceId, reserve_total, span, try_filled};
use certkv_device::cuda::{Gpu, GpuStream};
use certkv_kernel::cuda::Compiler;
use certkv_kernel::cuda::select::SelectStats;
use certkv_kernel::{Kernel, Pool};
use certkv_page::prefix::GroupShape;
use certkv_page::{BlockTable, CopyOp, Dropped, Need, PageAllocator, PageClass, Pools};
use slab::Slab;
use std::sync::Arc;

/// A live sequence; its number in the slab is its row in the tables.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) generation: u32,
    /// By group of layers; all of the same length.
    pub(super) tables: Vec<BlockTable>,
    /// By layer, where somebody decides on levels.
    pub(super) control: Vec<LayerControl>,
    /// The last step of a single token of its, whose masses are there to be told.
    pub(super) seen: Option<SeenStep>,
}

impl Entry {
    /// Committed tokens.
    pub(super) fn len(&self) -> usize {
        self.tables.first().map_or(0, BlockTable::len)
    }

    pub(super) fn is_out(&self) -> bool {
        self.tables.first().is_some_and(BlockTable::is_out)
    }
}

/// A paged, compressed, certified KV cache in GPU memory, the originals in pinned host memory.
///
/// The verbs are those of [`Cache`](crate::Cache). One stream runs all launches of steps, and its order is that of pages; a
/// step holds the cache: there is one step at a time. A step of one token per sequence only enqueues; who reads its results
/// waits. Rows of an open block lie in its tail on the device; the originals' page gets them when the block is full, by copies on a stream of their own that
/// no step waits for, and what is given up meanwhile is free behind them.
#[derive(Debug)]
pub struct GpuCache {
    pub(super) core: Arc<Core>,
    pub(super) config: GpuConfig,
    /// By layer.
    pub(super) layouts: Vec<RecordLayout>,
    /// By group of layers.
    pub(super) pools: Vec<Pools>,
    pub(super) sequences: Slab<Entry>,
    pub(super) mirror: Mirror,
    pub(super) ring: Ring,
    pub(super) ledger: Arc<Ledger>,
    /// `None` where blocks end with their sequences.
    pub(super) prefixes: Option<Prefixes>,
    /// For chunks.
    pub(super) kernel: Kernel,
    pub(super) pool: Pool,
    pub(super) rows: Rows,
    /// A page of originals on its way.
    pub(super) page: Vec<u16>,
    /// Numbers on their way to the ring.
    pub(super) batch_words: Vec<u16>,
    pub(super) batch_queries: Vec<f32>,
    /// Lists that the next step takes, and what it reads results into.
    pub(super) lists: Lists,
    pub(super) back: Back,
    /// Of longer chunks: lists of rows in device memory, and items of blocks to be coded.
    pub(super) carried: Carry,
    /// What drafts are told, and what is read of them.
    pub(super) drafted: Drafted,
    pub(super) pack_items: Vec<u64>,
    /// Pages that a step needs, by group.
    pub(super) needs: Vec<Need>,
    /// By group: pages and rows, with [`ROW_ENTRY`], of which nothing may be remembered when the next step begins.
    pub(super) forgotten: Vec<Forgotten>,
    /// Rows that were cut, and to how many tokens, of which the device is to be told.
    pub(super) cut: Vec<(usize, usize)>,
    /// Steps whose certificates were enqueued to be published.
    pub(super) published: u64,
    /// Steps that were begun.
    pub(super) begun: u64,
    /// What who decides on levels is told.
    pub(super) heard: Heard,
    /// Of what is swapped out.
    pub(super) seals: Seals,
    /// Of what is looked at while it lies on the device.
    pub(super) watched: Watched,
    /// `None` where no format needs a calibration.
    pub(super) calibrated: Option<Arc<Calibrated>>,
    /// `None` where all originals stay in host memory.
    pub(super) spill: Option<Spilled>,
    /// Full blocks whose originals are on their way to host memory.
    pub(super) leaving: Leaving,
    /// `None` where no moves are kept.
    pub(super) moves: Option<MoveEvents>,
}

/// Pages of records among those that a table gave up, by their numbers on the device.
pub(super) fn coded<'a>(sizes: &'a Sizes, dropped: &'a Dropped) -> impl Iterator<Item = u32> + 'a {
    dropped.pages().filter_map(|page| Some(sizes.page_of(page.class.level()?, page.id.index)))
}

impl GpuCache {
    /// Checks the configuration, takes all memory, loads the kernels or compiles them (some seconds, where `compiler` finds none).
    ///
    /// # Errors
    /// Names the field that is out of range, or the budget that is too small; [`Error::Kernels`] where there is no machine code;
    /// [`Error::Gpu`]. Nothing is held then.
    pub fn new(gpu: &Gpu, compiler: &Compiler, config: GpuConfig) -> Result<Self, Error> {
        let (layouts, calibrated) = (config.layouts()?, config.calibrated()?);
        config.check_scales()?;
        let disk = config.spill.as_ref().map_or(0, |spill| spill.disk_budget);
        let ledger = Arc::new(Ledger::new(config.device_budget, config.host_budget).with_disk(disk));
        let core = Core::new(gpu, compiler, &config, &ledger)?;
        calibrated.as_ref().map_or(Ok(()), |calibrated| core.send_metrics(calibrated))?;
        config.scales.as_ref().map_or(Ok(()), |scales| core.send_reaches(scales))?;
        let s = &core.sizes;
        let lower = s.levels.iter().skip(1).map(|level| level.pages);
        let of_group = |group: &GroupSizes| -> Result<Pools, Error> {
            Ok(Pools {
                host: erase::pages(config.erase, group.host_pages)?,
                packed: erase::pages(config.erase, group.packed_pages)?,
                tail: erase::pages(config.erase, s.tail_slots)?,
                swap: erase::pages(config.erase, s.swap_pages)?,
                levels: lower.clone().map(|pages| erase::pages(config.erase, pages)).collect::<Result<_, _>>()?,
            })
        };
        let pools = s.groups.iter().map(of_group).collect::<Result<Vec<_>, _>>()?;
        let prefixes = match &config.prefixes {
            None => None,
            Some(prefixes) => {
                let shape = |(pools, group): (&Pools, &GroupSizes)| GroupShape {
                    pools: pools.clone(),
                    block: s.block,
                    max_blocks: s.stride,
                    window: group.window,
                };
                let groups = pools.iter().zip(&s.groups).map(shape).collect();
                let kind = |(l, layout): (usize, &RecordLayout)| GroupKind::of_layer(layout.format, s.group(l).window);
                let formats = layouts.iter().enumerate().map(kind);
                let (events, geometry) = (config.prefix_events, &config.geometry);
                let by = calibrated.as_ref().map(|calibrated| calibrated.name());
                Some(Prefixes::new(prefixes, events, geometry, groups, formats, &[], by, Order::Fragments)?)
            }
        };
        let moves = MoveEvents::create(config.move_events)?;
        Ok(Self {
            spill: Spilled::new(&config, &core, &ledger, moves.clone())?,
            moves,
            prefixes,
            seals: Seals::new(
                &layouts,
                &s.levels,
                calibrated.as_ref().map(|calibrated| calibrated.number()),
                s.swap_pages,
            )?,
            watched: Watched::default(),
            calibrated,
            mirror: Mirror::new(s)?,
            ring: Ring::new(core.staging.clone(), s.staging_slot),
            pools,
            sequences: Slab::with_capacity(s.rows),
            ledger,
            kernel: Kernel::new(&config.geometry, &layouts[0], certkv_kernel::Arch::detect())?,
            pool: Pool::new(config.threads)?,
            rows: Rows::default(),
            page: Vec::new(),
            batch_words: Vec::new(),
            batch_queries: Vec::new(),
            lists: Lists::default(),
            back: Back::default(),
            carried: Carry::default(),
            drafted: Drafted::default(),
            pack_items: Vec::new(),
            needs: Vec::new(),
            forgotten: s.groups.iter().map(|group| Forgotten::new(s, group)).collect::<Result<_, _>>()?,
            cut: Vec::with_capacity(s.rows),
            published: 0,
            begun: 0,
            heard: Heard::default(),
            leaving: Leaving::new(&core),
            layouts,
            config,
            core: Arc::new(core),
        })
    }

    /// Shape of the model.
    pub fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }

    /// Layouts of the records of each layer, in fragment order.
    pub fn layouts(&self) -> &[RecordLayout] {
        &self.layouts
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        self.core.queue.gpu()
    }

    /// Where steps publish their certificates; `None` unless [`GpuConfig::certificate_ring`] says so.
    pub fn certificate_ring(&self) -> Option<CertificateRing> {
        CertificateRing::of(&self.core)
    }

    /// Policy of steps that do not name one.
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    pub(super) fn entry(&self, id: SequenceId) -> Result<&Entry, Error> {
        let found = self.sequences.get(id.slot as usize).filter(|entry| entry.generation == id.generation);
        found.ok_or(Error::UnknownSequence(id))
    }

    pub(super) fn entry_mut(&mut self, id: SequenceId) -> Result<&mut Entry, Error> {
        let found = self.sequences.get_mut(id.slot as usize).filter(|entry| entry.generation == id.generation);
        found.ok_or(Error::UnknownSequence(id))
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// [`Error::TooManySequences`], or out of memory.
    pub fn create(&mut self) -> Result<SequenceId, Error> {
        let s = &self.core.sizes;
        let tables = s.block_tables(&self.pools).map_err(Error::from_table)?;
        self.insert(tables)
    }

    pub(super) fn insert(&mut self, tables: Vec<BlockTable>) -> Result<SequenceId, Error> {
        let max_sequences = self.core.sizes.rows;
        if self.sequences.len() >= max_sequences {
            return Err(Error::TooManySequences { max_sequences });
        }
        let slot = self.sequences.vacant_key();
        self.core.accept(slot)?;
        self.unlearn(slot)?;
        let id = SequenceId::fresh(slot as u32);
        let controlled = self.core.sizes.controlled;
        let control = if controlled { LayerControl::all(&self.config.common())? } else { Vec::new() };
        self.sequences.insert(Entry { generation: id.generation, tables, control, seen: None });
        (0..self.pools.len()).for_each(|group| self.relist(slot, group));
        Ok(id)
    }

    /// A new row has no history.
    fn unlearn(&self, row: usize) -> Result<(), Error> {
        let Core { queue, demands, sizes: s, .. } = &*self.core;
        for layer in (0..s.layers).filter(|layer| self.core.kit(*layer).corrects.is_some()) {
            demands.fill(queue.stream(), s.demand_at(layer, row), s.demand_row_bytes(), 0)?;
        }
        Ok(())
    }

    /// Committed tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.entry(id)?.len())
    }

    /// A new sequence with the same tokens. Full blocks are shared; an open block is copied on the device.
    ///
    /// # Errors
    /// As [`GpuCache::create`], an unknown parent, or no page for the open block. Nothing changed.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, Error> {
        let parent = id.slot as usize;
        self.reclaim()?;
        self.forgive_dropped()?;
        let forked = loop {
            // All groups or none: tables are dropped, and their pages given back, if anything fails.
            let forked: Result<Vec<_>, _> = self.entry(id)?.tables.iter().map(BlockTable::fork).collect();
            match forked.map_err(Error::from_table) {
                Err(error) if self.make_room_after(&error)? => {}
                result => break result?,
            }
        };
        let mut tables = Vec::with_capacity(forked.len());
        for (group, (table, copies)) in forked.into_iter().enumerate() {
            self.execute(group, copies.into_iter())?;
            tables.push(table);
        }
        let control = self.entry(id)?.control.clone();
        let fork = self.insert(tables)?;
        let row = fork.slot as usize;
        self.entry_mut(fork)?.control = control;
        self.mirror_table(row);
        let copied = self.copy_centres(parent, row).and_then(|()| self.core.refuse_as(parent, row));
        let copied = copied.and_then(|()| self.remember_as(parent, row));
        if let Err(error) = copied {
            self.release(fork)?;
            return Err(error);
        }
        Ok(fork)
    }

    /// Tells the mirror of all blocks of a row.
    pub(super) fn mirror_table(&mut self, row: usize) {
        let Self { core, mirror, sequences, .. } = self;
        let Some(entry) = sequences.get(row) else { return };
        for (group, table) in entry.tables.iter().enumerate() {
            for (block, pages) in table.numbered() {
                // Where blocks have levels, their pages are told with those.
                let packed = pages.packed.filter(|_| core.sizes.levels.is_empty());
                mirror.set(group, row, block, pages.host.index, packed.map(|page| page.index));
            }
        }
        (0..self.pools.len()).for_each(|group| self.relist(row, group));
    }

    fn copy_centres(&self, from: usize, to: usize) -> Result<(), Error> {
        let Core { queue, centres, sizes: s, .. } = &*self.core;
        for layer in 0..s.layers {
            let bytes = 4 * s.kv_heads * s.dim;
            centres.copy_from(queue.stream(), s.centre_at(layer, to), centres, s.centre_at(layer, from), bytes)?;
        }
        Ok(())
    }

    /// Ends a sequence; its id is refused from now on. Pages it shared stay with the others; while originals are under way its own are free once a
    /// later call finds them landed, or at once if no sequence is left.
    ///
    /// # Errors
    /// Unknown; nothing changed.
    pub fn release(&mut self, id: SequenceId) -> Result<(), Error> {
        self.entry(id)?;
        if let Some(entry) = self.sequences.try_remove(id.slot as usize) {
            for (group, table) in entry.tables.into_iter().enumerate() {
                let dropped = table.release();
                let core = Arc::clone(&self.core);
                self.forget_later(id, group, coded(&core.sizes, &dropped), true);
                dropped.retire(|| self.stamp(group))?;
            }
        }
        if self.sequences.is_empty() {
            // There may be no later call.
            self.leaving.abandon();
        }
        self.let_free();
        self.sweep();
        self.erase_forgotten();
        Ok(())
    }

    /// Starts a step under the cache's policy: reserves every page that the new tokens can need, or none.
    ///
    /// A step with a chunk of several tokens waits for the device first, but for one of [drafts](GpuConfig::chunk_tokens).
    ///
    /// # Errors
    /// Unknown or doubly named sequence; a page class that is used up; an empty chunk. Nothing changed.
    pub fn begin(&mut self, chunks: &[Chunk]) -> Result<GpuStep<'_>, Error> {
        self.begin_with(chunks, self.config.policy)
    }

    /// As [`GpuCache::begin`] under another policy.
    ///
    /// # Errors
    /// As [`GpuCache::begin`], and a policy that the GPU does not have.
    pub fn begin_with(&mut self, chunks: &[Chunk], policy: Policy) -> Result<GpuStep<'_>, Error> {
        let rule = Rule::of(policy)?;
        self.arrive()?;
        self.reclaim()?;
        self.make_room_for(chunks)?;
        GpuStep::begin(self, chunks, rule)
    }

    /// The 16-bit originals of tokens `0..len` of one side of one KV head, `[len][head_dim]`. Waits for the device.
    ///
    /// # Errors
    /// [`Error::Gone`] if the window has passed some of them; [`Error::Fetch`]; unknown sequence, bad layer or head, or the device's refusal.
    pub fn originals(&mut self, id: SequenceId, layer: usize, kv_head: usize, side: Side) -> Result<Vec<u16>, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        if layer >= s.layers {
            return Err(Error::Layer { layer, layers: s.layers });
        }
        if kv_head >= s.kv_heads {
            return Err(Error::Shape { argument: "kv_head", expected: s.kv_heads, given: kv_head });
        }
        let table = &self.entry(id)?.tables[s.group_of(layer)];
        if !table.hole().is_empty() {
            let hole = table.hole();
            return Err(Error::Gone { first: hole.start * s.block, end: hole.end * s.block });
        }
        let (blocks, rest) = (table.len() / s.block, table.len() % s.block);
        self.land()?;
        self.bring_layer(id, layer, blocks)?;
        let table = &self.entry(id)?.tables[s.group_of(layer)];
        let tail = table.blocks().get(blocks).and_then(|entry| entry.tail);
        if let Some(tail) = tail {
            core.queue.download(&core.tails, s.tail_at(layer, tail.index), &core.results, 0, s.original_bytes)?;
        }
        core.finish()?;
        let mut rows = Vec::new();
        reserve_total(&mut rows, table.len() * s.dim)?;
        let mut page = try_filled(s.original_bytes / 2, 0)?;
        // Swapped out, an open block has its rows there, too.
        let on_host = blocks + usize::from(rest > 0 && tail.is_none());
        for (block, entry) in table.blocks().iter().enumerate().take(on_host) {
            core.originals.read(self.host_at(layer, entry.host)?, &mut page)?;
            pages::rows_of(&core, &page, kv_head, side, if block < blocks { s.block } else { rest }, &mut rows);
        }
        if tail.is_some() {
            core.results.read(0, &mut page)?;
            pages::rows_of(&core, &page, kv_head, side, rest, &mut rows);
        }
        Ok(rows)
    }

    /// The record of one KV head of a full block, in fragment order. Waits for the device.
    ///
    /// # Errors
    /// Unknown sequence, bad layer or head, a block that is not packed, or the device's refusal.
    pub fn record_bytes(&self, id: SequenceId, layer: usize, block: usize, kv_head: usize) -> Result<Vec<u8>, Error> {
        let Core { queue, packed, sizes: s, .. } = &*self.core;
        if layer >= s.layers {
            return Err(Error::Layer { layer, layers: s.layers });
        }
        if kv_head >= s.kv_heads {
            return Err(Error::Shape { argument: "kv_head", expected: s.kv_heads, given: kv_head });
        }
        let table = &self.entry(id)?.tables[s.group_of(layer)];
        let page = table.get(block).and_then(|entry| Some(s.page_of(entry.level, entry.packed?.index)));
        let blocks = table.len() / s.block;
        let page = page.ok_or(Error::Shape { argument: "block", expected: blocks, given: block })?;
        let mut record = vec![0; s.layout_at(&self.layouts[layer], page).bytes];
        packed.read(queue.stream(), s.packed_at(layer, page) + kv_head * record.len(), &mut record)?;
        Ok(record)
    }

    /// Whether steps of drafts and single tokens alone are what steps of single tokens are: appended, attended and recorded without the host
    /// ([`GpuConfig::chunk_tokens`]).
    pub fn attends_drafts(&self) -> bool {
        self.core.sizes.drafts_alone
    }

    /// The stream of steps: other work that touches a step's tensors waits for it, or makes it wait.
    pub fn stream(&self) -> &GpuStream {
        self.core.queue.stream()
    }

    /// What the choices of promoted sides in a layer came to since the cache was made; counts wrap. Waits for the device.
    ///
    /// # Errors
    /// A bad layer; the driver's.
    pub fn selection(&self, layer: usize) -> Result<SelectStats, Error> {
        let Core { queue, counters, sizes: s, .. } = &*self.core;
        if layer >= s.layers {
            return Err(Error::Layer { layer, layers: s.layers });
        }
        self.core.join()?;
        let mut words = [0u32; SelectStats::WORDS];
        counters.read(queue.stream(), 4 * s.stats_of(layer).start, &mut words)?;
        Ok(SelectStats::from_words(&words))
    }

    /// Blocks until the device has done everything.
    ///
    /// # Errors
    /// The driver's, and those of the work.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.core.join()?;
        if !self.leaving.is_over() {
            self.core.queue.join(&self.core.outward)?;
        }
        self.core.finish()
    }

    /// Tables of live sequences as far as they are reserved for them, and what cached prefixes take beyond their index.
    pub(super) fn table_bytes(&self) -> usize {
        let s = &self.core.sizes;
        let reserved = s.reserved()[Class::Tables as usize];
        let of_prefixes = self.ledger.used(Class::Tables).saturating_sub(reserved);
        (reserved - s.prefix_bytes) / s.rows * self.sequences.len() + of_prefixes
    }

    /// Bytes in use now. Tables count for every live sequence as far as they are reserved for it.
    pub fn memory(&self) -> MemoryUse {
        self.let_free();
        let s = &self.core.sizes;
        let used = |pages: &PageAllocator, bytes: usize| {
            let counts = pages.counts();
            (counts.live + counts.retiring) * bytes
        };
        let tokens = self.sequences.iter().map(|(_, entry)| entry.len()).sum();
        let mut sum = MemoryUse { tables: self.table_bytes(), tokens, ..MemoryUse::default() };
        for (number, (group, pools)) in s.groups.iter().zip(&self.pools).enumerate() {
            let originals = group.layers.len() * s.original_bytes;
            sum.packed += used(&pools.packed, group.page_bytes);
            let lower = pools.levels.iter().zip(s.levels.iter().skip(1));
            sum.packed += lower.map(|(pages, level)| used(pages, level.page_bytes)).sum::<usize>();
            sum.scratch += used(&pools.tail, originals);
            sum.host += self.original_bytes(number, used(&pools.host, originals)) + used(&pools.swap, group.page_bytes);
        }
        sum
    }

    /// Bytes of host memory that a group's originals take, which in pages are `bytes`.
    pub(super) fn original_bytes(&self, group: usize, bytes: usize) -> usize {
        let spill = self.spill.as_ref().filter(|spill| spill.group() == group);
        spill.map_or(bytes, |spill| spill.frames_taken() * self.core.sizes.original_bytes)
    }

    /// Bytes reserved by class (packed, scratch, tables, host), and the device and host budget.
    pub fn reserved(&self) -> ([usize; 4], (usize, usize)) {
        let ([packed, scratch, tables, host, _], [device_limit, host_limit, _]) =
            (self.ledger.books().used, self.ledger.limits());
        ([packed, scratch, tables, host], (device_limit, host_limit))
    }

    /// Bytes reserved for one class.
    pub fn reserved_for(&self, class: Class) -> usize {
        self.ledger.used(class)
    }

    /// Pages in use over all classes: 0 after every sequence was released and no prefix is cached.
    pub fn live_pages(&self) -> usize {
        self.let_free();
        let of_group = |pools: &Pools| -> usize { pools.classes().map(|class| pools.of(class).counts().live).sum() };
        self.pools.iter().map(of_group).sum()
    }

    /// Copies of a fork or truncation, in the layers of a group. An open block has its rows in its tail alone, so that only tails are
    /// written: from a tail, or from the page of a block that was full.
    pub(super) fn execute(&self, group: usize, copies: impl Iterator<Item = CopyOp>) -> Result<(), Error> {
        let mut copies = copies.filter(|op| op.to.class == PageClass::Tail).peekable();
        if copies.peek().is_none() {
            return Ok(());
        }
        let layers = &self.core.sizes.groups[group].layers;
        let first = layers.first().copied().unwrap_or(0);
        let span = span!("copy", first_layer = first, layers = (layers.len()), bytes = _);
        let moved = self.copy_tails(layers, copies);
        span.record("bytes", *moved.as_ref().unwrap_or(&0));
        self.core.host.moved(Kind::Copy, moved)?;
        Ok(())
    }

    /// Bytes that were enqueued to be copied.
    fn copy_tails(&self, layers: &[usize], copies: impl Iterator<Item = CopyOp>) -> Result<u64, Error> {
        let s = &self.core.sizes;
        let mut copied = 0;
        for op in copies {
            copied += (layers.len() * s.original_bytes) as u64;
            for layer in layers.iter().copied() {
                let to = op.to.id.index;
                match op.from.class {
                    PageClass::Tail => self.core.copy_tail(layer, op.from.id.index, to)?,
                    PageClass::Host => self.core.fill_tail(layer, to, self.host_at(layer, op.from.id)?)?,
                    // Codes are not copied here.
                    PageClass::Packed | PageClass::Swap | PageClass::Level(_) => {}
                }
            }
        }
        Ok(copied)
    }

    /// Tells the device of the batch, of the longer chunks behind it, and of every change of the tables.
    pub(super) fn send_tables(&mut self) -> Result<(), Error> {
        let Self { core, mirror, ring, .. } = self;
        ring.send(&core.queue, &core.tables, 0, mirror.state())?;
        mirror.tell(|at, words| ring.send(&core.queue, &core.tables, 4 * at, words))
    }
}

//! What lives on the GPU: kernels, buffers and the queue. Shared by a cache and its recordings.
mod closing;
mod drafts;
mod erase;
mod extend;
mod lane;
mod levels;
mod protect;
mod select;
mod tails;
mod unfinished;

pub(super) use drafts::Drafts;
pub(super) use select::Choice;

use super::config::{GpuConfig, STAGING_SLOTS};
use super::kit::{Kit, LevelKits};
use super::plan::GpuMachine;
use super::policy::Limit;
use super::prepare::Wanted;
use super::sizes::Sizes;
use super::window;
use crate::Error;
use crate::counters::Counters;
use certkv_core::budget::CLASSES;
use certkv_core::{Ledger, reserve_total};
use certkv_device::cuda::{DeviceBuffer, Gpu};
use certkv_kernel::cuda::args::{Element, Sides};
use certkv_kernel::cuda::encode::append_flag;
use certkv_kernel::cuda::lane::Lane;
use certkv_kernel::cuda::launch::{self, Append, Memory, Picks, Promoted, Slots, Tables};
use certkv_kernel::cuda::publish::Left;
use certkv_kernel::cuda::queue::{Area, Queue, Span};
use certkv_kernel::cuda::select::SelectStats;
use certkv_kernel::cuda::tensor::Tensor;
use certkv_kernel::cuda::{Compiler, Sight};
use core::ops::Range;
use core::sync::atomic::AtomicBool;

/// Kernels and memory.
#[derive(Debug)]
pub(super) struct Core {
    /// First: their drops wait for the work that uses the rest.
    pub(super) queue: Queue,
    /// Where plans run that do not come with attention, see [`GpuConfig::plan_apart`].
    lane: Option<Lane>,
    /// On which originals of full blocks leave for host memory, see [`leaving`](super::leaving).
    pub(super) outward: Lane,
    /// On which originals come to staging while chunks are attended, where there is room for those.
    inward: Option<Lane>,
    pub(super) sizes: Sizes,
    /// One to a format, with windows and without.
    kits: Vec<Kit>,
    /// Which of them a layer has.
    kit_of: Vec<usize>,
    /// Where blocks have levels: their kernels, what attention of each leaves, and where records of all are, by layer.
    pub(super) levels: Option<(LevelKits, DeviceBuffer, DeviceBuffer)>,
    pub(super) scale: f32,
    /// See [`GpuConfig::plan_target`].
    plan_target: f32,
    pub(super) store: Element,
    ctas: u32,
    pub(super) packed: DeviceBuffer,
    pub(super) tails: DeviceBuffer,
    pub(super) tables: DeviceBuffer,
    /// `[layer][page][head]`: [`Sides`] of the originals, in their pages, frames or tails; 0 for those that lie in a store alone.
    pub(super) sides: DeviceBuffer,
    pub(super) masses: DeviceBuffer,
    /// `[layer][2]`: of the first launch, and of the dense one.
    pub(super) certificates: DeviceBuffer,
    /// `[layer][2]`: heads over tolerance after the first launch, and after the repair.
    pub(super) failures: DeviceBuffer,
    /// `[layer][row][kv_head][stride]`: promoted words of the steps to come.
    promoted: DeviceBuffer,
    /// `[layer]`: what is known of promoted sides.
    pub(super) memory: DeviceBuffer,
    /// `[layer]`: slots of promoted keys, then of values.
    pub(super) scratch: DeviceBuffer,
    pub(super) centres: DeviceBuffer,
    /// `[layer][row][q_head]`: what the decode kernel remembers of heads of refinable formats.
    pub(super) demands: DeviceBuffer,
    /// What corrections of refinable formats work with, one layer after the other.
    corrections: DeviceBuffer,
    /// What keys are coded by in each layer, where a format needs a calibration.
    pub(super) metrics: Option<DeviceBuffer>,
    pub(super) reaches: Option<DeviceBuffer>,
    pub(super) partials: DeviceBuffer,
    pub(super) counters: DeviceBuffer,
    /// Keys, values, then queries of the host's batch.
    pub(super) inputs: DeviceBuffer,
    pub(super) outputs: DeviceBuffer,
    /// What attention of longer chunks works with.
    pub(super) chunks: Option<DeviceBuffer>,
    /// What attention of drafts works with.
    drafts: Option<DeviceBuffer>,
    /// Heads whose originals were brought from the store, where they may be there.
    pub(super) dense_list: Option<DeviceBuffer>,
    /// Zeroes; `None` where nothing is erased.
    zeroes: Option<DeviceBuffer>,
    /// Where blocks are coded to see what levels lose, and what they do, where somebody asks.
    pub(super) probed: Option<DeviceBuffer>,
    /// `[row]`: scores of blocks and what they are made from, where somebody decides by them.
    pub(super) remembered: Option<DeviceBuffer>,
    /// `[layer][page]`: originals; then frames, where they may lie in a store.
    pub(super) originals: Area,
    pub(super) staging: Area,
    pub(super) results: Area,
    /// Of published certificates.
    pub(super) ring: Option<Area>,
    /// Records of sequences that are swapped out, and digests of what passed.
    pub(super) swap: Option<Area>,
    /// By layer: a plan listed copies to scratch, and the launch that makes them was refused.
    owed: Vec<AtomicBool>,
    /// By layer: a repair lent sides, and no plan came behind it to end that. Looked at where originals can move.
    lent: Vec<AtomicBool>,
    /// By layer.
    planning: Vec<lane::Planning>,
    /// The list of heads to be corrected was begun, and no repair came behind it to empty it.
    listed: AtomicBool,
    /// Originals are being overwritten, and nobody has waited for the device since.
    erasing: AtomicBool,
    /// Whether what longer chunks work with has something of them.
    staged: AtomicBool,
    /// Copies on the lane inward, which the queue has not been told to wait for.
    bringing: AtomicBool,
    /// What the host did and waited for.
    pub(super) host: Counters,
}

impl Core {
    /// Reserves and takes all memory; loads the kernels.
    pub(super) fn new(gpu: &Gpu, compiler: &Compiler, config: &GpuConfig, ledger: &Ledger) -> Result<Self, Error> {
        let machine = GpuMachine::of(gpu)?;
        let layouts = config.layouts()?;
        let wanted = Wanted::of(config, &layouts, machine.arch)?;
        let ctas = machine.multiprocessors.max(1);
        let sizes = Sizes::of(config, machine)?;
        let too_large = || Error::Config { field: "max_tokens", why: "more than the address space holds".into() };
        for (class, bytes) in CLASSES.into_iter().zip(sizes.reserved()) {
            ledger.reserve(class, bytes)?;
        }
        let extends = sizes.chunk_tokens > 0;
        let (kits, levels) = wanted.kits(gpu, compiler, ctas)?;
        let queue = Queue::new(gpu)?;
        let lane = if config.plan_apart { Some(queue.lane()?) } else { None };
        let outward = queue.lane()?;
        let inward = if extends { Some(queue.lane()?) } else { None };
        let buffer = |bytes: Option<usize>| -> Result<DeviceBuffer, Error> {
            Ok(DeviceBuffer::new(gpu, bytes.ok_or_else(too_large)?)?)
        };
        let layers = sizes.layers;
        let threads = config.pinning_threads();
        let core = Self {
            kits,
            kit_of: wanted.kit_of,
            levels: match levels {
                None => None,
                Some(kits) => {
                    let [kept, records] = sizes.level_buffers();
                    Some((kits, buffer(Some(kept))?, buffer(Some(records))?))
                }
            },
            packed: buffer(Some(sizes.packed_bytes()))?,
            tails: buffer(sizes.tail_bytes())?,
            tables: buffer(sizes.table_bytes())?,
            sides: buffer(layers.checked_mul(sizes.side_table_bytes()))?,
            masses: buffer(sizes.mass_bytes())?,
            certificates: buffer(layers.checked_mul(2 * sizes.certificate_bytes()))?,
            failures: buffer(layers.checked_mul(2 * sizes.list_bytes()))?,
            promoted: buffer(layers.checked_mul(4 * sizes.exact_words))?,
            memory: buffer(layers.checked_mul(4 * sizes.memory.words))?,
            scratch: buffer(Some(sizes.scratch_bytes()))?,
            centres: buffer(layers.checked_mul(sizes.centre_bytes()))?,
            demands: buffer(layers.checked_mul(sizes.demand_bytes()))?,
            corrections: buffer(sizes.correction_bytes())?,
            metrics: if sizes.metric_bytes > 0 { Some(buffer(Some(sizes.metric_bytes))?) } else { None },
            reaches: config.scales.as_ref().map(|_| buffer(Some(sizes.reach_bytes))).transpose()?,
            partials: buffer(Some(sizes.partial_bytes))?,
            counters: buffer(Some(sizes.counter_bytes()))?,
            inputs: buffer(Some(sizes.input_bytes()))?,
            outputs: buffer(Some(sizes.query_bytes()))?,
            chunks: if extends { Some(buffer(Some(sizes.chunk_bytes()))?) } else { None },
            drafts: if sizes.drafts.tokens > 0 { Some(buffer(Some(sizes.drafts.bytes()))?) } else { None },
            dense_list: sizes.frames.map(|_| buffer(Some(sizes.dense_list_bytes()))).transpose()?,
            remembered: sizes.remembered.map(|_| buffer(sizes.remembered_bytes())).transpose()?,
            probed: sizes.probed.as_ref().map(|of| buffer(Some(of.bytes()))).transpose()?,
            zeroes: if sizes.zero_bytes > 0 { Some(buffer(Some(sizes.zero_bytes))?) } else { None },
            originals: queue.pin(sizes.host_bytes().ok_or_else(too_large)?, threads)?,
            staging: queue.pin(STAGING_SLOTS * sizes.staging_slot, threads)?,
            results: queue.pin(sizes.result_bytes(), threads)?,
            swap: match sizes.swap_area_bytes().ok_or_else(too_large)? {
                0 => None,
                bytes => Some(queue.pin(bytes, threads)?),
            },
            ring: sizes.ring.map(|slots| queue.pin(8 * slots.len(), threads)).transpose()?,
            queue,
            lane,
            outward,
            inward,
            planning: (0..layers).map(|_| lane::Planning::default()).collect(),
            owed: (0..layers).map(|_| AtomicBool::new(false)).collect(),
            lent: (0..layers).map(|_| AtomicBool::new(false)).collect(),
            listed: AtomicBool::new(false),
            erasing: AtomicBool::new(false),
            staged: AtomicBool::new(false),
            bringing: AtomicBool::new(false),
            host: Counters::default(),
            scale: config.geometry.scale,
            plan_target: config.plan_target as f32,
            store: config.geometry.store.into(),
            ctas,
            sizes,
        };
        core.clear()?;
        Ok(core)
    }

    /// Tables, counters and lists start at zero, and what is copied as a whole; every page of originals is named where it is, but for those that spill.
    fn clear(&self) -> Result<(), Error> {
        let Self { queue, sizes, .. } = self;
        let tables = [&self.tables, &self.masses, &self.certificates, &self.failures, &self.centres, &self.counters];
        let tables = tables.into_iter().chain([&self.promoted, &self.memory, &self.demands, &self.corrections]);
        for buffer in tables.chain(&self.zeroes).chain(&self.probed).chain(&self.remembered) {
            buffer.fill(queue.stream(), 0, buffer.len(), 0)?;
        }
        self.erase_all()?;
        self.name_places()?;
        self.name_levels()?;
        let mut sides = Vec::new();
        reserve_total(&mut sides, sizes.side_table_bytes() / 8)?;
        for layer in 0..sizes.layers {
            if sizes.spills(layer) {
                let bytes = sizes.side_table_bytes();
                self.sides.fill(queue.stream(), layer * bytes, bytes, 0)?;
                continue;
            }
            sides.clear();
            for page in 0..sizes.group(layer).host_pages {
                let start = sizes.host_at(layer, page as u32);
                let first = self.originals.span(start, sizes.original_bytes)?.address();
                for side in 0..2 * sizes.kv_heads {
                    sides.push(first + (side * sizes.side_bytes) as u64);
                }
            }
            self.sides.write(queue.stream(), layer * sizes.side_table_bytes(), &sides)?;
        }
        Ok(())
    }

    /// Waits for everything on the queue, and for what a call that failed left on its way to staging, and counts the wait. Plans on the lane are not on the queue until they are
    /// joined, nor originals that leave until they land.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.await_brought()?;
        Ok(self.host.wait(|| self.queue.finish())?)
    }

    /// The kernels of a layer.
    pub(super) fn kit(&self, layer: usize) -> &Kit {
        &self.kits[self.kit_of[layer]]
    }

    /// What queries of a layer see.
    fn sight(&self, layer: usize) -> Option<Sight> {
        self.sizes.window(layer).map(window::sight)
    }

    /// The layer's pages of records, those of the first level where there are several.
    fn packed_of(&self, layer: usize) -> Result<Span<'_>, Error> {
        let bytes = self.sizes.group(layer).packed_pages * self.sizes.of_layer[layer].page_bytes;
        Ok(Span::of(&self.packed, self.sizes.packed_at(layer, 0), bytes)?)
    }

    /// Words of the tables' buffer as a span.
    fn table(&self, words: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(&self.tables, 4 * words.start, 4 * words.len())?)
    }

    pub(super) fn counter(&self, words: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(&self.counters, 4 * words.start, 4 * words.len())?)
    }

    /// Block tables of a layer's group.
    fn block_tables(&self, layer: usize) -> Result<Tables<'_>, Error> {
        let (s, t, own) = (&self.sizes, &self.sizes.tables, &self.sizes.group(layer).tables);
        Ok(Tables {
            rows: s.rows,
            stride: s.stride,
            kv_heads: s.kv_heads,
            batch: self.table(&t.batch)?,
            tails: self.table(&own.tails)?,
            packed: self.table(&own.packed)?,
        })
    }

    /// The same for a batch that begins at a place of the list.
    pub(super) fn tables_from(&self, layer: usize, place: usize) -> Result<Tables<'_>, Error> {
        let batch = &self.sizes.tables.batch;
        Ok(Tables { batch: self.table(&(batch.start + place..batch.end))?, ..self.block_tables(layer)? })
    }

    /// The layer's part of the table of sides.
    pub(super) fn sides_of(&self, layer: usize) -> Result<Span<'_>, Error> {
        let bytes = self.sizes.side_table_bytes();
        Ok(Span::of(&self.sides, layer * bytes, bytes)?)
    }

    /// The slice of a buffer that belongs to `layer`.
    fn of_layer<'a>(&self, buffer: &'a DeviceBuffer, layer: usize) -> Result<Span<'a>, Error> {
        let bytes = buffer.len() / self.sizes.layers;
        Ok(Span::of(buffer, layer * bytes, bytes)?)
    }

    /// Keys, values and queries of a batch that came from the host.
    pub(super) fn staged_rows(&self, seqs: usize) -> Result<[Tensor<'_>; 2], Error> {
        let n = seqs * self.sizes.kv_heads * self.sizes.dim;
        let at = |offset| Tensor::of(&self.inputs, offset, self.store, n);
        Ok([at(0)?, at(self.sizes.row_bytes())?])
    }

    /// Where queries from the host go in `inputs`.
    pub(super) fn query_offset(&self) -> usize {
        2 * self.sizes.row_bytes()
    }

    /// Queries from the host for places from `first` on.
    pub(super) fn staged_queries(&self, first: usize, seqs: usize, element: Element) -> Result<Tensor<'_>, Error> {
        let width = self.sizes.q_heads() * self.sizes.dim;
        let at = self.query_offset() + first * width * element.bytes();
        Ok(Tensor::of(&self.inputs, at, element, seqs * width)?)
    }

    /// Where their outputs go, in whatever type.
    pub(super) fn own_outputs(&self, first: usize, seqs: usize, element: Element) -> Result<Tensor<'_>, Error> {
        let width = self.sizes.q_heads() * self.sizes.dim;
        Ok(Tensor::of(&self.outputs, 4 * first * width, element, seqs * width)?)
    }

    /// Enqueues one token of every sequence of the batch, in one layer.
    pub(super) fn append(&self, layer: usize, seqs: usize, keys: Tensor<'_>, values: Tensor<'_>) -> Result<(), Error> {
        let (s, t, c) = (&self.sizes, &self.sizes.tables, &self.sizes.counters);
        let args = Append {
            variant: &self.kit(layer).variant,
            ctas: (seqs * s.kv_heads).min(2 * self.ctas as usize) as u32,
            seqs,
            tables: self.block_tables(layer)?,
            count: self.table(&t.count)?,
            lens: self.table(&t.before)?,
            errors: self.counter(&c.errors)?,
            keys,
            values,
            tail_slots: self.tails_of(layer)?,
            row_norms: self.row_norms(layer)?,
            // Heads over tolerance in this step.
            clear: Some(self.failure_list(layer, 0)?),
            // Tables are sent before the step's first launch, and no launch writes them.
            flags: append_flag::SETTLED,
        };
        Ok(launch::append(&self.queue, &self.kit(layer).append, &args)?)
    }

    /// Arguments of a plain launch over the whole batch: nothing promoted, no lists.
    pub(super) fn attend_args<'a>(
        &'a self,
        layer: usize,
        seqs: usize,
        query: Tensor<'a>,
        out: Tensor<'a>,
    ) -> Result<launch::Attend<'a>, Error> {
        let (t, c) = (&self.sizes.tables, &self.sizes.counters);
        Ok(launch::Attend {
            variant: &self.kit(layer).variant,
            ctas: self.ctas,
            seqs,
            tables: self.block_tables(layer)?,
            lens: self.table(&t.after)?,
            packed: self.packed_of(layer)?,
            promoted: None,
            tail_slots: self.tails_of(layer)?,
            row_norms: self.row_norms(layer)?,
            centres: self.of_layer(&self.centres, layer)?,
            query,
            out,
            certificates: self.certificates(layer, 0)?,
            masses: None,
            only: None,
            failures: None,
            partials: Span::of(&self.partials, 0, self.partials.len())?,
            counters: self.counter(&c.heads)?,
            scale: self.scale,
            relative: 0.0,
            absolute: 0.0,
            limits: None,
            refinement: launch::Refinement::Never,
            kept: None,
            settled: false,
            closing: true,
            sight: self.sight(layer),
            drafts: None,
            metrics: self.metrics_of(layer)?,
            homes: None,
            share: None,
            beside: false,
        })
    }

    /// The query heads' own tolerances, where a step has them.
    pub(super) fn limits(&self, limit: Limit) -> Result<Option<Span<'_>>, Error> {
        let of = self.sizes.limits();
        Ok(limit.each.then(|| Span::of(&self.inputs, of.start, of.len())).transpose()?)
    }

    /// Certificates of the first launch (0) or of the dense one (1).
    pub(super) fn certificates(&self, layer: usize, which: usize) -> Result<Span<'_>, Error> {
        let bytes = self.sizes.certificate_bytes();
        Ok(Span::of(&self.certificates, (2 * layer + which) * bytes, bytes)?)
    }

    /// First byte of those of the first launch of the sequence at a place of the list.
    pub(super) fn certificate_at(&self, layer: usize, place: usize) -> usize {
        let bytes = self.sizes.certificate_bytes();
        2 * layer * bytes + place * (bytes / self.sizes.rows)
    }

    /// Those of the first launch for a batch that begins at a place of the list.
    pub(super) fn certificates_from(&self, layer: usize, place: usize) -> Result<Span<'_>, Error> {
        let (start, end) = (self.certificate_at(layer, place), self.certificate_at(layer, self.sizes.rows));
        Ok(Span::of(&self.certificates, start, end - start)?)
    }

    /// What launches over the batch left in all layers.
    pub(super) fn left_of_batch(&self) -> Result<Left<'_>, Error> {
        let (certificates, list) = (self.sizes.certificate_bytes(), self.sizes.list_bytes());
        Ok(Left {
            certificates: Span::of(&self.certificates, 0, self.certificates.len())?,
            certificate_strides: [2 * certificates, certificates],
            lists: Span::of(&self.failures, 0, self.failures.len())?,
            list_strides: [2 * list, list],
            rows: self.table(&self.sizes.tables.batch)?,
            drafts: None,
        })
    }

    /// How the first launch of a certified step reads residual planes.
    pub(super) fn on_demand(&self, layer: usize) -> Result<launch::Refinement<'_>, Error> {
        let stats = self.sizes.stats_of(layer);
        let refined = Some(self.counter(&(stats.start + SelectStats::REFINED..stats.end))?);
        let looks = Some(self.looks()?);
        Ok(launch::Refinement::OnDemand { demands: self.of_layer(&self.demands, layer)?, refined, looks })
    }

    fn correction(&self, bytes: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(&self.corrections, bytes.start, bytes.len())?)
    }

    /// The list of heads to be corrected: empty between layers.
    pub(super) fn correction_list(&self) -> Result<Span<'_>, Error> {
        self.correction(&self.sizes.corrections.list)
    }

    /// The state that a pass leaves for the correction.
    pub(super) fn kept(&self) -> Result<Span<'_>, Error> {
        self.correction(&self.sizes.corrections.kept)
    }

    /// Sides whose residuals the pass has read.
    fn looks(&self) -> Result<Span<'_>, Error> {
        self.correction(&self.sizes.corrections.looks)
    }

    /// The blocks to correct.
    pub(super) fn picks(&self) -> Result<Picks<'_>, Error> {
        let s = &self.sizes.corrections;
        Ok(Picks { blocks: self.correction(&s.picks)?, counts: self.correction(&s.picked)? })
    }

    /// Enqueues that no head is to be corrected: where no repair came behind the last correction.
    pub(super) fn empty_corrections(&self) -> Result<(), Error> {
        let list = &self.sizes.corrections.list;
        if list.is_empty() {
            return Ok(());
        }
        Ok(self.corrections.fill(self.queue.stream(), list.start, 4, 0)?)
    }

    /// Enqueues that nothing is to be copied.
    pub(super) fn empty_queue(&self, layer: usize) -> Result<(), Error> {
        let m = &self.sizes.memory;
        let at = 4 * (layer * m.words + m.queue.start);
        Ok(self.memory.fill(self.queue.stream(), at, 4 * m.queue.len(), 0)?)
    }

    /// Every block of every head read from the originals.
    pub(super) fn everything(&self, layer: usize) -> Result<Promoted<'_>, Error> {
        Ok(Promoted { words: self.table(&self.sizes.group(layer).tables.exact)?, sides: self.sides_of(layer)? })
    }

    /// First byte of a list of heads over tolerance: after the first launch (0), after the repair (1).
    pub(super) fn list_at(&self, layer: usize, which: usize) -> usize {
        (2 * layer + which) * self.sizes.list_bytes()
    }

    /// That list.
    pub(super) fn failure_list(&self, layer: usize, which: usize) -> Result<Span<'_>, Error> {
        Ok(Span::of(&self.failures, self.list_at(layer, which), self.sizes.list_bytes())?)
    }

    /// What the layer remembers of promoted sides.
    fn layer_memory(&self, layer: usize) -> Result<Memory<'_>, Error> {
        let (s, m) = (&self.sizes, &self.sizes.memory);
        let words = |r: &Range<usize>| Span::of(&self.memory, 4 * (layer * m.words + r.start), 4 * r.len());
        let counts = s.of_layer[layer].slots;
        let slots = |at: usize, own: &[Range<usize>; 2], hand: usize, first: usize| -> Result<Slots<'_>, Error> {
            Ok(Slots {
                memory: Span::of(&self.scratch, s.slot_at(layer, first), counts[at] * s.side_bytes)?,
                owner: words(&own[0])?,
                stamp: words(&own[1])?,
                hand: words(&(m.hands.start + hand..m.hands.start + hand + 1))?,
                count: counts[at],
            })
        };
        Ok(Memory {
            promoted: self.of_layer(&self.promoted, layer)?,
            sides: words(&m.sides)?,
            resident: words(&m.resident)?,
            keys: slots(0, &m.keys, 0, 0)?,
            values: slots(1, &m.values, 1, counts[0])?,
            copies: words(&m.copies)?,
            queue: words(&m.queue)?,
            pages: s.pages_of(layer),
            capacity: s.copies,
            places: self.places(layer)?,
        })
    }

    /// Where the table of sides names a page of originals: an entry for each KV head.
    pub(super) fn named_at(&self, layer: usize, page: u32) -> Result<u64, Error> {
        let each = self.sizes.kv_heads * size_of::<Sides>();
        Ok(self.sides.address_of(layer * self.sizes.side_table_bytes() + page as usize * each, each)?)
    }

    /// Where it is said what repairs have lent of a page of records, as there.
    pub(super) fn lent_at(&self, layer: usize, page: u32) -> Result<u64, Error> {
        let (s, m) = (&self.sizes, &self.sizes.memory);
        let each = s.kv_heads * size_of::<Sides>();
        let at = 4 * (layer * m.words + m.sides.start) + (s.pages_of(layer) + page as usize) * each;
        Ok(self.memory.address_of(at, each)?)
    }

    /// The sides that the last plan, or a repair since, chose.
    pub(super) fn chosen(&self, layer: usize) -> Result<Promoted<'_>, Error> {
        let memory = self.layer_memory(layer)?;
        Ok(Promoted { words: memory.promoted, sides: memory.sides })
    }
}

/// Bytes of one entry of the table of sides.
const _: () = assert!(size_of::<Sides>() == 16);

//! The cache: sequences, their pages, and the memory behind them.
use crate::calibrated::Calibrated;
use crate::counters::{Counters, Kind};
use crate::fixed;
use crate::group::Group;
use crate::prefix::Prefixes;
use crate::save::header::Order;
use crate::scrub::Cursor;
use crate::sequence::SequenceState;
use crate::sizes::Sizes;
use crate::spill::{Ask, Spilling, Turn};
use crate::work::Workspace;
use crate::{Config, Error, Level, MoveEvents, Policy, Side, Step, seal};
use certkv_core::budget::CLASSES;
use certkv_core::{Geometry, Ledger, RecordLayout, SequenceId, planted, span};
use certkv_device::{CheckReport, Copy2d, DeviceError, Dst, Fence, SimDevice, Src, Stream};
use certkv_kernel::Pool;
use certkv_page::{BlockTable, CopyOp, Dropped, PageClass, PageRef, Stamp};
use certkv_tier::Lane;
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::{Mutex, ReentrantMutex};
use slab::Slab;
use std::sync::Arc;

/// Tokens to append to one sequence in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The sequence.
    pub sequence: SequenceId,
    /// New tokens: 1 is a decode step, more is prefill.
    pub tokens: usize,
}

/// A sequence that is out of the table; it goes back whatever happens.
struct Taken<'c> {
    cache: &'c Cache,
    id: SequenceId,
    state: Option<Box<SequenceState>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.cache.put_back(self.id, state);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    generation: u32,
    /// `None` while a step works on the sequence.
    pub(crate) state: Option<Box<SequenceState>>,
}

impl Entry {
    /// The id of the sequence in this slot.
    pub(crate) fn id(&self, slot: usize) -> SequenceId {
        SequenceId { slot: slot as u32, generation: self.generation }
    }

    /// Whether the id was given out for this sequence, and not for one that lived here before, or lives in another cache.
    fn is(&self, id: SequenceId) -> bool {
        self.generation == id.generation || planted!(B22)
    }
}

/// Bytes of a sequence beside its groups' tables.
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<usize>() + size_of::<SequenceState>();

/// A paged, compressed, certified KV cache for one model.
///
/// `&self` methods may be called from several threads; a sequence belongs to one step at a time. Calls that touch pages
/// run one after the other: parallelism is inside a call, see [`Config::threads`].
#[derive(Debug)]
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) device: SimDevice,
    /// The stream that computes.
    pub(crate) main: Stream,
    /// The stream that moves rows to the host.
    pub(crate) lane: Stream,
    /// Copies promoted sides to scratch; `None` without scratch.
    pub(crate) fills: Option<Lane>,
    pub(crate) groups: Vec<Group>,
    pub(crate) ledger: Arc<Ledger>,
    /// `None` where blocks end with their sequences.
    pub(crate) prefixes: Option<Prefixes>,
    /// `None` where no moves are kept.
    pub(crate) moves: Option<MoveEvents>,
    /// `None` where all originals stay in host memory.
    pub(crate) spill: Option<Spilling>,
    pub(crate) pool: Pool,
    /// What happened so far.
    pub(crate) counters: Counters,
    /// What one sequence can grow to.
    pub(crate) sequence_bytes: usize,
    /// Number of the next exploration draw.
    draws: AtomicU64,
    pub(crate) sequences: Mutex<Slab<Entry>>,
    /// Where the last scrub ended.
    pub(crate) scrubs: Mutex<Cursor>,
    /// Held by whoever uses the streams: a fence stands for finished accesses, so nobody may record one while another
    /// thread's accesses are under way. Reentrant, as a step that fails is dropped inside its own call.
    pub(crate) turn: ReentrantMutex<()>,
    #[expect(clippy::vec_box, reason = "a step takes and returns a pointer, not half a kilobyte")]
    workspaces: Mutex<Vec<Box<Workspace>>>,
}

impl Cache {
    /// Checks the configuration and takes all memory (mapped when first touched).
    ///
    /// # Errors
    /// Names the field that is out of range, or the budget that is too small; nothing is held then.
    pub fn new(config: Config) -> Result<Self, Error> {
        let sizes = Sizes::new(&config)?;
        let calibrated = Calibrated::of(&config)?;
        fixed::check(&config)?;
        let disk = config.spill.as_ref().map_or(0, |spill| spill.disk_budget);
        let ledger = Arc::new(Ledger::new(config.device_budget, config.host_budget).with_disk(disk));
        for (class, bytes) in CLASSES.into_iter().zip(sizes.reserved()) {
            ledger.reserve(class, bytes)?;
        }
        let memory = config.memory.clone();
        let memory = if config.erase { memory.map(certkv_device::erased) } else { memory };
        let device = SimDevice::with_memory(config.device, memory);
        let sequence_bytes = sizes.sequence_bytes();
        let shape = seal::digest(format!("{:?}", config.geometry).as_bytes());
        let spill =
            config.spill.as_ref().map(|spill| Spilling::new(spill, &sizes.groups, shape, &ledger)).transpose()?;
        let mut groups: Vec<Group> = Vec::with_capacity(sizes.groups.len());
        for sizes in sizes.groups {
            let strands = groups.last().map_or(0, |last| last.strands().end);
            groups.push(Group::new(&config, sizes, strands, &calibrated, &device)?);
        }
        let (main, lane) = (device.stream("main"), device.stream("lane"));
        let fills = groups.iter().any(|group| group.scratch.is_some()).then(|| Lane::new(&device, "fills"));
        let pool = Pool::new(config.threads)?;
        // Their memory is reserved: the table never grows.
        let sequences = Slab::with_capacity(config.max_sequences);
        let moves = MoveEvents::create(config.move_events)?;
        let mut cache = Self {
            config,
            device,
            main,
            lane,
            fills,
            groups,
            ledger,
            prefixes: None,
            moves,
            spill,
            pool,
            counters: Counters::default(),
            sequence_bytes,
            draws: AtomicU64::new(0),
            sequences: Mutex::new(sequences),
            scrubs: Mutex::default(),
            turn: ReentrantMutex::new(()),
            workspaces: Mutex::default(),
        };
        if let Some(prefixes) = &cache.config.prefixes {
            let groups = cache.groups.iter().map(Group::shape).collect();
            let formats = cache.groups.iter().map(|group| group.kind(cache.config.geometry.kv_heads));
            let Config { prefix_events: events, geometry, levels, .. } = &cache.config;
            let by = cache.calibration();
            cache.prefixes =
                Some(Prefixes::new(prefixes, *events, geometry, groups, formats, levels, by, Order::Rows)?);
        }
        Ok(cache)
    }

    /// Shape of the model.
    pub fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }

    /// Formats that full blocks can have, the highest first; empty where they have but one.
    pub fn levels(&self) -> &[Level] {
        &self.config.levels
    }

    /// Policy of steps that do not name one.
    pub fn policy(&self) -> Policy {
        self.config.policy
    }

    /// Layout of the records of `layer`, at the first of its levels: of its first KV head, where they have formats of their own
    /// ([`Cache::layout_of`]).
    ///
    /// # Errors
    /// [`Error::Layer`].
    pub fn layout(&self, layer: usize) -> Result<&RecordLayout, Error> {
        self.layout_of(layer, 0)
    }

    /// Layout of the records of one KV head, at the first of its levels.
    ///
    /// # Errors
    /// [`Error::Layer`]; [`Error::Shape`] for a head that the model does not have.
    pub fn layout_of(&self, layer: usize, kv_head: usize) -> Result<&RecordLayout, Error> {
        self.group_of(layer, kv_head).map(|(_, group)| &group.layout)
    }

    /// A new, empty sequence. Allocates its tables.
    ///
    /// # Errors
    /// [`Error::TooManySequences`], or out of memory.
    pub fn create(&self) -> Result<SequenceId, Error> {
        self.insert(SequenceState::new(&self.groups, &self.config)?)
    }

    pub(crate) fn insert(&self, state: SequenceState) -> Result<SequenceId, Error> {
        let mut sequences = self.sequences.lock();
        let max_sequences = self.config.max_sequences;
        if sequences.len() >= max_sequences {
            return Err(Error::TooManySequences { max_sequences });
        }
        let entry = sequences.vacant_entry();
        let id = SequenceId::fresh(entry.key() as u32);
        entry.insert(Entry { generation: id.generation, state: Some(Box::new(state)) });
        Ok(id)
    }

    /// Takes a sequence out for exclusive use.
    pub(crate) fn take(&self, id: SequenceId) -> Result<Box<SequenceState>, Error> {
        let mut sequences = self.sequences.lock();
        match sequences.get_mut(id.slot as usize) {
            Some(entry) if entry.is(id) => entry.state.take().ok_or(Error::BusySequence(id)),
            _ => Err(Error::UnknownSequence(id)),
        }
    }

    /// Puts a sequence back that [`Cache::take`] gave out.
    pub(crate) fn put_back(&self, id: SequenceId, state: Box<SequenceState>) {
        if let Some(entry) = self.sequences.lock().get_mut(id.slot as usize)
            && entry.is(id)
        {
            entry.state = Some(state);
        }
    }

    /// Runs `work` on a sequence that no step holds.
    pub(crate) fn with<T>(
        &self,
        id: SequenceId,
        work: impl FnOnce(&mut SequenceState) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut taken = Taken { cache: self, id, state: Some(self.take(id)?) };
        // There until the drop.
        taken.state.as_deref_mut().map_or(Err(Error::BusySequence(id)), work)
    }

    /// Asks a sequence that no step holds, in place: a thread that asks does not make it busy for another.
    pub(crate) fn ask<T>(&self, id: SequenceId, what: impl FnOnce(&SequenceState) -> T) -> Result<T, Error> {
        match self.sequences.lock().get(id.slot as usize) {
            Some(entry) if entry.is(id) => entry.state.as_deref().map(what).ok_or(Error::BusySequence(id)),
            _ => Err(Error::UnknownSequence(id)),
        }
    }

    /// Committed tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::BusySequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize, Error> {
        self.ask(id, SequenceState::len)
    }

    /// Whether a sequence is swapped out.
    ///
    /// # Errors
    /// As [`Cache::len`].
    pub fn is_swapped_out(&self, id: SequenceId) -> Result<bool, Error> {
        self.ask(id, SequenceState::is_out)
    }

    /// A new sequence with the same tokens. Full blocks are shared; an open block is copied.
    ///
    /// # Errors
    /// As [`Cache::create`], unknown or busy parent, or no page for the open block. Nothing changed.
    pub fn fork(&self, id: SequenceId) -> Result<SequenceId, Error> {
        let mut turn = self.turn.lock();
        loop {
            match self.try_fork(&mut turn, id) {
                Err(error) if self.make_room(&error)? => {}
                result => return result,
            }
        }
    }

    fn try_fork(&self, turn: &mut Turn<'_>, id: SequenceId) -> Result<SequenceId, Error> {
        let fork = self.with(id, |parent| {
            self.join_lane()?;
            let mut tables = Vec::with_capacity(self.groups.len());
            for (index, (group, table)) in self.groups.iter().zip(&parent.tables).enumerate() {
                self.reclaim(group);
                let (fork, copies) = table.fork().map_err(Error::from_table)?;
                // The table is dropped, and its pages retired, if a copy or a later table fails.
                tables.push(fork);
                self.house_copies(turn, index, copies.iter().copied())?;
                self.execute(group, copies.into_iter())?;
            }
            Ok(SequenceState {
                tables,
                centres: parent.centres.clone(),
                heads: parent.heads.clone(),
                uncoded: parent.uncoded.clone(),
                control: parent.control.clone(),
            })
        })?;
        self.insert(fork)
    }

    /// Makes room in scratch: copies of originals that are about to lose their last owner. None of them would be found
    /// again, as its key has a generation that is over.
    pub(crate) fn forget_promoted(&self, group: &Group, dropped: &Dropped) {
        let Some(scratch) = &group.scratch else { return };
        for page in dropped.pages().filter(|page| page.class == PageClass::Host) {
            if group.pools.host.references(page.id) == Ok(1) {
                scratch.invalidate_page(page.id);
            }
        }
    }

    /// Ends a sequence; its id is refused from now on. Pages it shared stay with the others.
    ///
    /// # Errors
    /// Unknown or busy; nothing changed.
    pub fn release(&self, id: SequenceId) -> Result<(), Error> {
        let _turn = self.turn.lock();
        let state = self.take(id)?;
        self.sequences.lock().try_remove(id.slot as usize);
        self.end(state.tables)
    }

    /// Ends tables that nobody can reach any more, one per group. Whoever calls has the turn.
    pub(crate) fn end(&self, tables: Vec<BlockTable>) -> Result<(), Error> {
        for (group, table) in self.groups.iter().zip(tables) {
            let dropped = table.release();
            self.forget_promoted(group, &dropped);
            dropped.retire(|| self.stamp())?;
            self.reclaim(group);
        }
        self.sweep_all();
        Ok(())
    }

    /// Starts a step under the cache's policy: reserves every page that the new tokens can need, or none.
    ///
    /// # Errors
    /// Unknown, busy or doubly named sequence; a page class that is used up; an empty chunk. Nothing changed.
    pub fn begin(&self, chunks: &[Chunk]) -> Result<Step<'_>, Error> {
        self.begin_with(chunks, self.config.policy)
    }

    /// As [`Cache::begin`] under another policy.
    ///
    /// # Errors
    /// As [`Cache::begin`], and a refused policy parameter.
    pub fn begin_with(&self, chunks: &[Chunk], policy: Policy) -> Result<Step<'_>, Error> {
        policy.validated().map_err(|e| Error::Policy(e.to_string()))?;
        let mut turn = self.turn.lock();
        for group in &self.groups {
            self.reclaim(group);
        }
        self.tend();
        loop {
            match Step::begin(self, &mut turn, chunks, policy) {
                // Every round evicts something, so there is a last one.
                Err(error) if self.make_room(&error)? => {}
                result => return result,
            }
        }
    }

    /// The 16-bit originals of tokens `0..len` of one side of one KV head, `[len][head_dim]`, read back from the host.
    ///
    /// # Errors
    /// [`Error::Gone`] for a layer whose window has passed some of them; unknown or busy sequence, bad layer or head, or the device's refusal.
    pub fn originals(&self, id: SequenceId, layer: usize, kv_head: usize, side: Side) -> Result<Vec<u16>, Error> {
        let (index, group) = self.group_of(layer, kv_head)?;
        let kv_head = kv_head - group.first_head;
        let mut turn = self.turn.lock();
        self.with(id, |state| {
            let table = &state.tables[index];
            let mut rows = Vec::with_capacity(table.len() * group.layout.dim);
            if !table.hole().is_empty() {
                let (hole, size) = (table.hole(), table.block_size());
                return Err(Error::Gone { first: hole.start * size, end: hole.end * size });
            }
            for (block, entry) in table.blocks().iter().enumerate() {
                self.bring(&mut turn, index, Some(id), &[Ask { block, layer, page: entry.host }])?;
                let slot = group.host_slot(entry.host, layer)?;
                let page = group.host.read_tagged(slot, &self.main, Group::tag(entry.host))?;
                rows.extend_from_slice(&page.words()[group.side(kv_head, side)]);
            }
            rows.truncate(table.len() * group.layout.dim);
            Ok(rows)
        })
    }

    /// A packed page as stored: seal and records of one block of one layer, for inspection. Where KV heads have formats of their own it is the page that the first of them
    /// is in ([`Cache::packed_page_of`]).
    ///
    /// # Errors
    /// Unknown or busy sequence, bad layer, a block that is not packed, or the device's refusal.
    pub fn packed_page(&self, id: SequenceId, layer: usize, block: usize) -> Result<Vec<u8>, Error> {
        self.packed_page_of(id, layer, 0, block)
    }

    /// The packed page that one KV head is in: seal and records of one block of its strand, of all KV heads that share it.
    ///
    /// # Errors
    /// As [`Cache::packed_page`], or a head that the model does not have.
    pub fn packed_page_of(&self, id: SequenceId, layer: usize, kv_head: usize, block: usize) -> Result<Vec<u8>, Error> {
        let (index, group) = self.group_of(layer, kv_head)?;
        let _turn = self.turn.lock();
        self.with(id, |state| {
            let table = &state.tables[index];
            let page = table.get(block).and_then(|entry| Some((entry.level, entry.packed?)));
            let expected = table.len().div_ceil(table.block_size());
            let (level, page) = page.ok_or(Error::Shape { argument: "block", expected, given: block })?;
            let guard = group.packed_at(level).read_tagged(group.slot(page, layer), &self.main, Group::tag(page))?;
            Ok(guard.bytes().to_vec())
        })
    }

    /// What the ordering checker saw, if it is on.
    pub fn check_report(&self) -> CheckReport {
        self.device.report()
    }

    /// Pages in use over all groups and classes: 0 after every sequence was released, no prefix is cached and the device is idle.
    pub fn live_pages(&self) -> usize {
        if self.spill.is_some() {
            let _turn = self.turn.lock();
            self.sweep_all();
        }
        let live = |group: &Group| {
            self.reclaim(group);
            group.pools.classes().map(|class| group.pools.of(class).counts().live).sum::<usize>()
        };
        self.groups.iter().map(live).sum()
    }

    /// The group of a KV head of the model, and its number.
    pub(crate) fn group_of(&self, layer: usize, kv_head: usize) -> Result<(usize, &Group), Error> {
        let Geometry { layers, kv_heads, .. } = self.config.geometry;
        if layer >= layers {
            return Err(Error::Layer { layer, layers });
        }
        let mut of_layer = self.groups_of(layer);
        let found = of_layer.find(|(_, group)| group.heads().contains(&kv_head));
        found.ok_or(Error::Shape { argument: "kv_head", expected: kv_heads, given: kv_head })
    }

    /// The groups of a layer and their numbers, in the order of their heads.
    pub(crate) fn groups_of(&self, layer: usize) -> impl Iterator<Item = (usize, &Group)> {
        self.groups.iter().enumerate().filter(move |(_, group)| group.holds(layer))
    }

    /// The group of a strand.
    pub(crate) fn group_of_strand(&self, strand: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.strands().contains(&strand))
    }

    /// A stamp that follows everything enqueued on all streams. The computing stream does not wait for the copies to
    /// scratch.
    pub(crate) fn stamp(&self) -> Stamp {
        self.fence().map_or(Stamp::IDLE, |fence| Stamp(fence.stamp()))
    }

    /// The fence of such a stamp.
    pub(crate) fn fence(&self) -> Result<Fence, DeviceError> {
        let lane = self.lane.record()?;
        self.main.wait(&lane)?;
        let done = self.main.record()?;
        let Some(fills) = self.fills.as_ref().filter(|_| !planted!(B5)) else { return Ok(done) };
        fills.wait(&done)?;
        fills.finish()
    }

    pub(crate) fn passed(&self, stamp: Stamp) -> bool {
        if stamp == Stamp::IDLE { self.device.is_idle() } else { self.device.passed(stamp.0) }
    }

    /// Runs the copies of a fork or truncation on the computing stream, for every layer of the group. Rows on their way to
    /// the host come first: the caller has joined the lane.
    pub(crate) fn execute(&self, group: &Group, copies: impl Iterator<Item = CopyOp>) -> Result<(), Error> {
        let mut copies = copies.peekable();
        if copies.peek().is_none() {
            return Ok(());
        }
        let span = span!("copy", first_layer = (group.first), layers = (group.layers), bytes = _);
        let moved = self.copy_pages(group, copies);
        span.record("bytes", *moved.as_ref().unwrap_or(&0));
        self.counters.moved(Kind::Copy, moved)?;
        Ok(())
    }

    /// Frames for the host pages that copies go to.
    pub(crate) fn house_copies(
        &self,
        turn: &mut Turn<'_>,
        index: usize,
        copies: impl Iterator<Item = CopyOp>,
    ) -> Result<(), Error> {
        let to_host = copies.filter(|op| op.to.class == PageClass::Host);
        to_host.map(|op| op.to.id).try_for_each(|page| self.house(turn, index, core::iter::once(page)))
    }

    /// Bytes copied.
    fn copy_pages(&self, group: &Group, copies: impl Iterator<Item = CopyOp>) -> Result<u64, Error> {
        let arena = |class| if class == PageClass::Host { &group.host } else { &group.tail };
        let slot = |page: PageRef, layer| match page.class {
            PageClass::Host => group.host_slot(page.id, layer),
            _ => Ok(group.slot(page.id, layer)),
        };
        let side_bytes = group.layout.original_side_bytes();
        let mut copied = 0;
        for op in copies {
            let bytes = op.rows * group.layout.dim * 2;
            copied += (group.layers * 2 * group.kv_heads * bytes) as u64;
            for layer in group.first..group.first + group.layers {
                let src =
                    Src { arena: arena(op.from.class), slot: slot(op.from, layer)?, range: 0..bytes, expect: None };
                let dst = Dst { arena: arena(op.to.class), slot: slot(op.to, layer)?, offset: 0 };
                let sides = Copy2d { count: 2 * group.kv_heads, pitch: side_bytes };
                self.device.copy_2d(&self.main, src, dst, sides)?;
                dst.arena.write(dst.slot, &self.main)?.set_tag(Group::tag(op.to.id));
            }
        }
        // A copy that was enqueued may still fail. Nobody may read its destination before that is known.
        self.counters.wait(|| self.main.synchronize())?;
        Ok(copied)
    }

    /// The computing stream waits for the lane.
    pub(crate) fn join_lane(&self) -> Result<(), Error> {
        let stored = self.lane.record()?;
        if !planted!(B1) {
            self.main.wait(&stored)?;
        }
        Ok(())
    }

    /// The computing stream waits for the copies to scratch: before originals that they read are changed in place.
    pub(crate) fn join_fills(&self) -> Result<(), Error> {
        if let Some(copied) = self.fills.as_ref().and_then(Lane::last_fence) {
            self.main.wait(&copied)?;
        }
        Ok(())
    }

    /// The lane waits for the computing stream.
    pub(crate) fn join_main(&self) -> Result<(), Error> {
        let done = self.main.record()?;
        self.lane.wait(&done)?;
        Ok(())
    }

    pub(crate) fn workspace(&self) -> Result<Box<Workspace>, Error> {
        match self.workspaces.lock().pop() {
            Some(work) => Ok(work),
            None => Workspace::new(self),
        }
    }

    /// Sequences, those that a step holds, and the tokens of the others.
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        let sequences = self.sequences.lock();
        let (mut busy, mut tokens) = (0, 0);
        for (_, entry) in &*sequences {
            match &entry.state {
                Some(state) => tokens += state.len(),
                None => busy += 1,
            }
        }
        (sequences.len(), busy, tokens)
    }

    pub(crate) fn return_workspace(&self, work: Box<Workspace>) {
        self.workspaces.lock().push(work);
    }

    pub(crate) fn next_draw(&self) -> u64 {
        self.draws.fetch_add(1, Ordering::Relaxed)
    }
}

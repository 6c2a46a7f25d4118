//! A sequence of a cache on a GPU in a file, bit for bit: the format of [`crate::save`](crate::Cache::save), with codes and originals in
//! the order in which kernels read them.
use super::cache::GpuCache;
use super::core::Core;
use super::leaving::landed;
use super::pages;
use crate::Error;
use crate::counters::Kind;
use crate::save::frame::{Reader, Tag, Writer};
use crate::save::header::{self, GroupKind, Order};
use crate::save::{Counted, into_file, state};
use crate::{SaveError, SaveScope};
use certkv_core::{SequenceId, reserve_total, span, try_collect, try_filled, try_resize};
use certkv_kernel::cuda::args::Demand;
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan, TableError};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// What a row of the tables remembers, by layer.
struct Memory {
    /// Empty until the first block is full.
    centre: Vec<f32>,
    /// [`Demand`] of every query head; empty without residual planes.
    demands: Vec<f32>,
}

/// What a file says beside blocks.
struct Parsed {
    /// By layer.
    memory: Vec<Memory>,
    /// By group: where it has a window, the block behind the hole.
    holes: Vec<Option<usize>>,
    /// By group: the level of each full block; empty where there are none.
    levels: Vec<Vec<u8>>,
}

const fn malformed(why: &'static str) -> SaveError {
    SaveError::Malformed { section: "state", why }
}

impl GpuCache {
    /// As [`Cache::save`](crate::Cache::save). Waits for the device, and between blocks for each copy from it: a file is slower.
    ///
    /// A restored sequence has the records, rows and centres of this one, and of formats with residual planes all that its next
    /// outputs and certificates depend on. Promoted sides of others are chosen anew by the first step.
    ///
    /// # Errors
    /// Unknown sequence; a row that the device [refused](super::GpuStep::append_device); the driver's; [`SaveError::Io`], and [`Error::Fetch`] of spilled originals: what was written so far is of no use.
    pub fn save(&mut self, id: SequenceId, scope: &SaveScope<'_>, out: &mut dyn Write) -> Result<u64, Error> {
        let span = span!("save", bytes = _);
        let written = self.write_out(id, scope, out);
        let written = self.core.host.moved(Kind::Save, written)?;
        span.record("bytes", written);
        Ok(written)
    }

    fn header(&self, scope: &SaveScope<'_>, tokens: usize) -> header::Header {
        let sizes = &self.core.sizes;
        let groups = self.layouts.iter().enumerate();
        let groups = groups.map(|(layer, layout)| GroupKind::of_layer(layout.format, sizes.window(layer)));
        let (levels, calibration) = (&self.config.levels, self.calibration());
        header::of(&self.config.geometry, Order::Fragments, groups, levels, calibration, scope.model, tokens)
    }

    fn write_out(&mut self, id: SequenceId, scope: &SaveScope<'_>, out: &mut dyn Write) -> Result<u64, Error> {
        let (row, core) = (id.slot as usize, Arc::clone(&self.core));
        self.entry(id)?;
        self.land()?;
        let entry = self.entry(id)?;
        let (len, size) = (entry.len(), core.sizes.block);
        // Rows of an open block are on the device alone.
        let last = |table: &BlockTable| table.blocks().last().and_then(|entry| Some((entry.host, entry.tail?)));
        let open: Vec<_> = entry.tables.iter().map(last).enumerate().collect();
        for (group, (host, tail)) in open.into_iter().filter_map(|(group, open)| Some((group, open?))) {
            self.house(group, core::iter::once(host))?;
            super::prefill::fetch_open(self, group, tail.index, host)?;
        }
        core.finish()?;
        self.check_stored(id, len)?;
        let entry = self.entry(id)?;
        let mut writer = Writer::begin(out, scope.key)?;
        writer.section(Tag::Header, self.header(scope, len).text().as_bytes())?;
        let mut bytes = Vec::new();
        for layer in 0..core.sizes.layers {
            let memory = core.recall(layer, row, len >= size)?;
            state::put_floats(&mut bytes, &memory.centre);
            state::put_floats(&mut bytes, &memory.demands);
        }
        for table in entry.tables.iter().filter(|table| table.window().is_some()) {
            state::put(&mut bytes, table.hole().end as u64);
        }
        for table in entry.tables.iter().filter(|_| !core.sizes.levels.is_empty()) {
            let full = table.numbered().filter(|(_, entry)| entry.is_full());
            full.for_each(|(_, entry)| state::put(&mut bytes, entry.level.into()));
        }
        writer.section(Tag::State, &bytes)?;
        for (number, group) in core.sizes.groups.iter().enumerate() {
            let table = &self.entry(id)?.tables[number];
            let blocks = try_collect(table.numbered().map(|(block, entry)| (block, *entry)))?;
            for (block, entry) in blocks {
                bytes.clear();
                self.bring_block(Some(id), number, block, entry.host)?;
                for layer in group.layers.iter().copied() {
                    let at = self.host_at(layer, entry.host)?;
                    core.originals_out(at, (len - block * size).min(size), &mut bytes)?;
                    core.records_out(layer, &entry, &mut bytes)?;
                }
                writer.section(Tag::Block, &bytes)?;
            }
        }
        writer.section(Tag::End, &[])?;
        writer.finish()
    }

    /// As [`Cache::restore`](crate::Cache::restore). Waits for the device.
    ///
    /// # Errors
    /// [`Error::Save`] says why a file is refused; as [`GpuCache::create`] and [`GpuCache::begin`] if there is no room; the
    /// driver's. Nothing changed.
    pub fn restore(&mut self, scope: &SaveScope<'_>, from: &mut dyn Read) -> Result<SequenceId, Error> {
        let span = span!("restore", bytes = _);
        let mut from = Counted { from, bytes: 0 };
        let restored = self.read_in(scope, &mut from);
        let bytes = from.bytes;
        span.record("bytes", bytes);
        self.core.host.moved_with(Kind::Restore, restored, |_| bytes)
    }

    fn read_in(&mut self, scope: &SaveScope<'_>, from: &mut dyn Read) -> Result<SequenceId, Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        let mut reader = Reader::begin(from, scope.key)?;
        let mut bytes = Vec::new();
        reader.section(Tag::Header, header::MOST_BYTES, &mut bytes)?;
        let tokens = self.header(scope, 0).accepts(&bytes)?;
        let mut tables = s.block_tables(&self.pools).map_err(Error::from_table)?;
        for table in &tables {
            table.plan_growth(tokens).map_err(Error::from_table)?;
        }
        if self.sequences.len() >= s.rows {
            return Err(Error::TooManySequences { max_sequences: s.rows });
        }
        reader.section(Tag::State, usize::MAX, &mut bytes)?;
        let Parsed { memory, holes, levels } = core.parse(&bytes, tokens)?;
        let mut filled = Ok(());
        for (((number, table), hole), levels) in tables.iter_mut().enumerate().zip(holes).zip(&levels) {
            let group = &s.groups[number];
            let mut block = |cache: &mut Self, span: &RowSpan| -> Result<(), Error> {
                let records = |layer: &usize| span.packed.map_or(0, |_| s.record_page_bytes(*layer, span.level));
                let packed: usize = group.layers.iter().map(records).sum();
                let expected = group.layers.len() * s.original_bytes + packed;
                reader.section(Tag::Block, expected, &mut bytes)?;
                if bytes.len() != expected {
                    let why = "other pages than the header says";
                    return Err(SaveError::Malformed { section: Tag::Block.name(), why }.into());
                }
                cache.copy_in(number, span, &bytes)
            };
            filled = filled.and_then(|()| match hole {
                None => self.fill(table, |table| table.reserve_at(tokens, levels), &mut block),
                Some(hole) => self.fill_window(table, tokens, hole, &mut block),
            });
        }
        let filled = filled.and_then(|()| Ok(reader.section(Tag::End, 0, &mut bytes)?));
        match filled.and_then(|()| core.finish()) {
            Ok(()) => self.settle_restored(tables, &memory),
            Err(error) => {
                for table in tables {
                    table.release().retire(landed)?;
                }
                Err(error)
            }
        }
    }

    /// Takes pages for more tokens of a table that nobody else knows, and commits them when `block` has filled each.
    fn fill(
        &mut self,
        table: &mut BlockTable,
        reserve: impl Fn(&mut BlockTable) -> Result<Reservation, TableError>,
        block: &mut impl FnMut(&mut Self, &RowSpan) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let reservation = self.reserve_all(table, reserve)?;
        // What read the pages before has yet to pass: the host writes them.
        let filled = self.core.finish().and_then(|()| reservation.rows().try_for_each(|span| block(self, &span)));
        if let Err(error) = filled {
            reservation.abort(landed);
            return Err(error);
        }
        let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
        committed.dropped.retire(landed)?;
        Ok(())
    }

    /// The same block by block of what a window has left: the sinks' blocks, then those from block `hole` on.
    fn fill_window(
        &mut self,
        table: &mut BlockTable,
        tokens: usize,
        hole: usize,
        block: &mut impl FnMut(&mut Self, &RowSpan) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (size, sinks) = (table.block_size(), table.hole().start);
        while table.len() < tokens {
            if table.len() / size == sinks && hole > sinks && table.hole().is_empty() {
                table.leave_out(hole).map_err(Error::from_table)?;
                continue;
            }
            let rows = (tokens - table.len()).min(size);
            self.fill(table, |table| table.reserve_block(rows), block)?;
        }
        Ok(())
    }

    /// Fills the pages of one block of a group from what a file has of it, layer by layer.
    fn copy_in(&mut self, group: usize, span: &RowSpan, mut bytes: &[u8]) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        let s = &core.sizes;
        self.house(group, core::iter::once(span.host))?;
        if s.groups[group].layers.first().is_some_and(|layer| s.spills(*layer)) {
            // A frame that was another block's may be read by copies that were owed, and enqueued when it was given up.
            core.finish()?;
        }
        for layer in s.groups[group].layers.iter().copied() {
            let (originals, rest) = bytes.split_at(s.original_bytes);
            let (records, rest) = rest.split_at(span.packed.map_or(0, |_| s.record_page_bytes(layer, span.level)));
            core.page_in((layer, self.host_at(layer, span.host)?), span, originals, records)?;
            bytes = rest;
        }
        if span.packed.is_some() {
            // Nobody adds rows before the commit, so a sequence may be longer than host memory has room for.
            self.close_originals(group, span.host);
        }
        Ok(())
    }

    fn settle_restored(&mut self, tables: Vec<BlockTable>, memory: &[Memory]) -> Result<SequenceId, Error> {
        let core = Arc::clone(&self.core);
        let id = self.insert(tables)?;
        let row = id.slot as usize;
        self.mirror_table(row);
        let known = memory.iter().enumerate().try_for_each(|(layer, memory)| core.remember(layer, row, memory));
        match known {
            Ok(()) => Ok(id),
            Err(error) => {
                self.release(id)?;
                Err(error)
            }
        }
    }

    /// Pages of a table, evicting cached prefixes if they are in the way.
    pub(super) fn reserve_all(
        &mut self,
        table: &mut BlockTable,
        reserve: impl Fn(&mut BlockTable) -> Result<Reservation, TableError>,
    ) -> Result<Reservation, Error> {
        self.land()?;
        self.reclaim()?;
        loop {
            match reserve(table).map_err(Error::from_table) {
                Err(error) if self.make_room_after(&error)? => {}
                result => return result,
            }
        }
    }

    /// As [`Cache::save_file`](crate::Cache::save_file).
    ///
    /// # Errors
    /// As [`GpuCache::save`]; a file of that name is as it was.
    pub fn save_file(&mut self, id: SequenceId, scope: &SaveScope<'_>, path: &Path) -> Result<u64, Error> {
        into_file(path, id, |out| self.save(id, scope, out))
    }

    /// [`GpuCache::restore`] from a file.
    ///
    /// # Errors
    /// As [`GpuCache::restore`].
    pub fn restore_file(&mut self, scope: &SaveScope<'_>, path: &Path) -> Result<SequenceId, Error> {
        let file = File::open(path).map_err(SaveError::from)?;
        self.restore(scope, &mut BufReader::with_capacity(1 << 20, file))
    }
}

impl Core {
    /// Whether the layer remembers how its heads were refined.
    fn has_demands(&self, layer: usize) -> bool {
        self.kit(layer).corrects.is_some()
    }

    fn recall(&self, layer: usize, row: usize, coded: bool) -> Result<Memory, Error> {
        let (s, stream) = (&self.sizes, self.queue.stream());
        let mut centre = vec![0f32; if coded { s.kv_heads * s.dim } else { 0 }];
        let mut demands = vec![0f32; if self.has_demands(layer) { s.q_heads() * Demand::WORDS } else { 0 }];
        if coded {
            self.centres.read(stream, s.centre_at(layer, row), &mut centre)?;
        }
        if !demands.is_empty() {
            self.demands.read(stream, s.demand_at(layer, row), &mut demands)?;
        }
        Ok(Memory { centre, demands })
    }

    fn remember(&self, layer: usize, row: usize, memory: &Memory) -> Result<(), Error> {
        let (s, stream) = (&self.sizes, self.queue.stream());
        if !memory.centre.is_empty() {
            self.centres.write(stream, s.centre_at(layer, row), &memory.centre)?;
        }
        if !memory.demands.is_empty() {
            self.demands.write(stream, s.demand_at(layer, row), &memory.demands)?;
        }
        Ok(())
    }

    fn parse(&self, bytes: &[u8], tokens: usize) -> Result<Parsed, SaveError> {
        let s = &self.sizes;
        let coded = tokens >= s.block;
        let (width, all) = (s.kv_heads * s.dim, s.q_heads() * Demand::WORDS);
        let mut rest = state::Rest(bytes);
        let mut memory = Vec::with_capacity(s.layers);
        for layer in 0..s.layers {
            let centre = rest.floats(width, f32::is_finite)?;
            let demands = rest.floats(all, |x| x >= 0.0)?;
            let expected = (if coded { width } else { 0 }, if self.has_demands(layer) { all } else { 0 });
            if (centre.len(), demands.len()) != expected {
                return Err(malformed("more or less than a sequence remembers"));
            }
            memory.push(Memory { centre, demands });
        }
        let mut holes = vec![None; s.groups.len()];
        for (group, hole) in s.groups.iter().zip(&mut holes) {
            let Some(window) = group.window else { continue };
            let sinks = window.sink_blocks(s.block);
            let end = rest.count(sinks.max(tokens / s.block))?.max(sinks);
            // What the next query sees is there.
            if end > sinks && end * s.block > window.first(tokens) {
                return Err(malformed("a window with a hole in it"));
            }
            *hole = Some(end);
        }
        let mut levels = vec![Vec::new(); s.groups.len()];
        for of_group in levels.iter_mut().filter(|_| !s.levels.is_empty()) {
            reserve_total(of_group, tokens / s.block)?;
            for _ in 0..tokens / s.block {
                of_group.push(rest.count(s.levels.len() - 1)? as u8);
            }
        }
        if rest.0.is_empty() { Ok(Parsed { memory, holes, levels }) } else { Err(malformed("longer than it says")) }
    }

    /// Originals of one layer of a block, which lie at byte `at`, its first `rows` alone. Whoever asks has waited for the device.
    pub(super) fn originals_out(&self, at: usize, rows: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let s = &self.sizes;
        let mut page = try_filled(s.original_bytes / 2, 0u16)?;
        self.originals.read(at, &mut page)?;
        if rows < s.block {
            page = pages::first_rows(self, &page, rows)?;
        }
        reserve_total(bytes, bytes.len() + 2 * page.len())?;
        bytes.extend(page.iter().flat_map(|word| word.to_le_bytes()));
        Ok(())
    }

    /// Records of one layer of a block, if it has some. Waits for the device.
    pub(super) fn records_out(&self, layer: usize, entry: &BlockEntry, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let s = &self.sizes;
        let start = bytes.len();
        try_resize(bytes, start + if entry.is_full() { s.record_page_bytes(layer, entry.level) } else { 0 }, 0)?;
        let into = &mut bytes[start..];
        match (entry.packed, entry.swapped, &self.swap) {
            (Some(packed), ..) => {
                let at = s.packed_at(layer, s.page_of(entry.level, packed.index));
                self.packed.read(self.queue.stream(), at, into)?;
            }
            (None, Some(swapped), Some(swap)) => swap.read(s.swap_at(layer, swapped.page.index), into)?,
            _ => {}
        }
        Ok(())
    }

    /// Fills the pages of one block in one layer, the originals' at byte `at`. Whoever asks has waited for the device: the host writes originals.
    pub(super) fn page_in(
        &self,
        (layer, at): (usize, usize),
        span: &RowSpan,
        originals: &[u8],
        records: &[u8],
    ) -> Result<(), Error> {
        let s = &self.sizes;
        self.put_originals(at, originals)?;
        match (span.packed, span.tail) {
            (Some(packed), _) => {
                let at = s.packed_at(layer, s.page_of(span.level, packed.index));
                self.packed.write(self.queue.stream(), at, records)?;
            }
            (None, Some(tail)) => self.fill_tail(layer, tail.index, at)?,
            (None, None) => {}
        }
        Ok(())
    }
}

//! A sequence in a file: everything that its next outputs and bounds depend on, bit for bit.
//!
//! * [`frame`]: magic, then sections of tag, length, contents and a digest of everything so far. So sections cannot be
//!   exchanged, left out or cut off unseen.
//! * [`header`]: text that says what the file is of, line by line.
//! * [`state`]: what the sequence remembers beside its pages: centres, blocks without codes, levels of blocks where the cache has any, promoted
//!   sets.
//!
//! Behind those come the pages, block by block and group by group: originals, and for full blocks seal and records. A file is
//! refused with the reason before anything of it is used; what was taken for it goes back.
mod error;
pub(crate) mod frame;
pub(crate) mod header;
mod prefix;
pub(crate) mod state;
pub(crate) mod unit;
pub(crate) mod units;

pub use error::SaveError;

use crate::cache::Cache;
use crate::counters::Kind;
use crate::group::Group;
use crate::seal::{Seal, SealError};
use crate::sequence::SequenceState;
use crate::spill::Ask;
use crate::{Error, SequenceId, Side};
use certkv_core::{InjectedFault, PageId, fail_point, reserve_total, span};
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan, TableError};
use frame::{Reader, Tag, Writer};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Whose sequences these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveScope<'a> {
    /// What the rows depend on and the cache cannot know: weights, adapter, rotation of positions. A file is restored only
    /// under the same bytes.
    pub model: &'a [u8],
    /// Key of the digests. Without one they tell damage, with one also forgery: a file from elsewhere is refused.
    pub key: Option<&'a [u8; 32]>,
}

/// The page that a seal in a file names.
pub(crate) const NO_PAGE: PageId = PageId { index: 0, generation: 0 };

/// Whether a packed page is the one it should be, as it was sealed.
pub(crate) fn check_seal(seal: Seal, sealed: &[u8]) -> Result<(), SaveError> {
    seal.check(sealed).map_err(|wrong| SaveError::Malformed {
        section: Tag::Block.name(),
        why: match wrong {
            SealError::Another => "the seal of another page",
            SealError::NotAPage => "a page without a seal",
            SealError::Digest { .. } => "records that are not those of their seal",
        },
    })
}

/// Bytes of the pages of one block, as [`Cache::copy_out`] collects them.
fn pages_bytes(group: &Group, span: &RowSpan) -> usize {
    group.layers * (group.host.slot_bytes() + span.packed.map_or(0, |_| group.bytes_at(span.level)))
}

/// Counts what is read.
pub(crate) struct Counted<'r> {
    pub(crate) from: &'r mut dyn Read,
    pub(crate) bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(into)?;
        self.bytes += n as u64;
        Ok(n)
    }
}

impl Cache {
    /// Writes a sequence to `out` and returns its bytes. The sequence is busy meanwhile and unchanged afterwards; other
    /// sequences go on between its blocks.
    ///
    /// A sequence that is swapped out is saved as any other. Restored, here or in another cache of the same geometry, formats and
    /// [levels](crate::Config::levels), it gives the outputs and certificates that it would have given. Every block has the level that it
    /// had; what [`Config::control`](crate::Config::control) remembers of the sequence is not saved, and begins anew.
    ///
    /// # Errors
    /// Unknown or busy sequence; [`SaveError::Io`]: what was written so far is of no use.
    pub fn save(&self, id: SequenceId, scope: &SaveScope<'_>, out: &mut dyn Write) -> Result<u64, Error> {
        let span = span!("save", bytes = _);
        let written = self.counters.moved(Kind::Save, self.with(id, |state| self.write_out(id, state, scope, out)))?;
        span.record("bytes", written);
        Ok(written)
    }

    fn write_out(
        &self,
        id: SequenceId,
        state: &SequenceState,
        scope: &SaveScope<'_>,
        out: &mut dyn Write,
    ) -> Result<u64, Error> {
        let mut writer = Writer::begin(out, scope.key)?;
        writer.section(Tag::Header, header::of_cache(self, scope.model, state.len()).text().as_bytes())?;
        let (mut length, mut bytes) = (0usize, Vec::new());
        state::write(&self.groups, state, &mut length);
        reserve_total(&mut bytes, length)?;
        state::write(&self.groups, state, &mut bytes);
        writer.section(Tag::State, &bytes)?;
        for (index, table) in state.tables.iter().enumerate() {
            for (block, entry) in table.numbered() {
                bytes.clear();
                let rows = (table.len() - block * table.block_size()).min(table.block_size());
                self.copy_out(index, Some(id), block, entry, rows, &mut bytes)?;
                writer.section(Tag::Block, &bytes)?;
            }
        }
        writer.section(Tag::End, &[])?;
        writer.finish()
    }

    /// Pages of one block, layer by layer: originals, then seal and records if it is full. Rows that are not the sequence's,
    /// left by an earlier owner of the page, are not; and the seal names no page, as it will get another.
    fn copy_out(
        &self,
        index: usize,
        sequence: Option<SequenceId>,
        block: usize,
        entry: &BlockEntry,
        rows: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (mut turn, group) = (self.turn.lock(), &self.groups[index]);
        let layers = group.first..group.first + group.layers;
        if self.spill.is_some() {
            let asks: Vec<_> = layers.clone().map(|layer| Ask { block, layer, page: entry.host }).collect();
            self.bring(&mut turn, index, sequence, &asks)?;
        }
        let codes = group.codes_of(entry).map_or(0, |_| group.bytes_at(entry.level));
        let more = layers.len() * (group.host.slot_bytes() + codes);
        reserve_total(bytes, bytes.len() + more)?;
        for layer in layers {
            let start = bytes.len();
            let page =
                group.host.read_tagged(group.host_slot(entry.host, layer)?, &self.main, Group::tag(entry.host))?;
            bytes.extend_from_slice(page.bytes());
            for (head, side) in (0..group.kv_heads).flat_map(|head| [(head, Side::Key), (head, Side::Value)]) {
                let words = group.side(head, side);
                bytes[start + 2 * (words.start + rows * group.layout.dim)..start + 2 * words.end].fill(0);
            }
            let Some((arena, packed)) = group.codes_of(entry) else { continue };
            let (start, level) = (bytes.len(), entry.level);
            let page = arena.read_tagged(group.slot(packed, layer), &self.main, Group::tag(packed))?;
            // Swapped out it may lie in a larger place.
            bytes.extend_from_slice(&page.bytes()[..group.bytes_at(level)]);
            check_seal(group.seal_at(level, layer, block, packed).written_by(entry.writer), &bytes[start..])?;
            group.seal_at(level, layer, block, NO_PAGE).write(&mut bytes[start..]);
        }
        Ok(())
    }

    /// Makes a new sequence from what [`Cache::save`] wrote.
    ///
    /// # Errors
    /// [`Error::Save`] says why a file is refused; as [`Cache::create`] and [`Cache::begin`] if there is no room. Nothing
    /// changed.
    pub fn restore(&self, scope: &SaveScope<'_>, from: &mut dyn Read) -> Result<SequenceId, Error> {
        let span = span!("restore", bytes = _);
        let mut from = Counted { from, bytes: 0 };
        let restored = self.read_in(scope, &mut from);
        let bytes = from.bytes;
        span.record("bytes", bytes);
        self.counters.moved_with(Kind::Restore, restored, |_| bytes)
    }

    fn read_in(&self, scope: &SaveScope<'_>, from: &mut dyn Read) -> Result<SequenceId, Error> {
        let mut reader = Reader::begin(from, scope.key)?;
        let mut bytes = Vec::new();
        reader.section(Tag::Header, header::MOST_BYTES, &mut bytes)?;
        let tokens = header::of_cache(self, scope.model, 0).accepts(&bytes)?;
        let mut state = SequenceState::new(&self.groups, &self.config)?;
        for table in &state.tables {
            table.plan_growth(tokens).map_err(Error::from_table)?;
        }
        reader.section(Tag::State, usize::MAX, &mut bytes)?;
        let shapes = state::read(self, tokens, &bytes, &mut state)?;

        let mut reservations = Vec::new();
        let filled = || -> Result<(), Error> {
            let mut block = |index: usize, span: RowSpan| -> Result<(), Error> {
                let group = &self.groups[index];
                reader.section(Tag::Block, pages_bytes(group, &span), &mut bytes)?;
                self.copy_in(index, &span, &bytes)
            };
            for (index, group) in self.groups.iter().enumerate() {
                if group.window.is_some() {
                    self.read_window(&mut state, index, tokens, shapes[index].hole, &mut block)?;
                    continue;
                }
                let levels = &shapes[index].levels;
                let reservation =
                    self.reserve_all(group, &mut state.tables[index], |table| table.reserve_at(tokens, levels))?;
                reservations.push((index, reservation));
                let (_, reservation) = &reservations[reservations.len() - 1];
                reservation.rows().try_for_each(|span| block(index, span))?;
            }
            Ok(reader.section(Tag::End, 0, &mut Vec::new())?)
        }();
        let _turn = self.turn.lock();
        if let Err(error) = filled {
            reservations.into_iter().for_each(|(_, reservation)| reservation.abort(|| self.stamp()));
            // Blocks of windows are their tables'. The error that matters is the first.
            let _ = self.end(state.tables);
            return Err(error);
        }
        for (index, reservation) in reservations {
            // Nobody else knows the table; a refusal leaves it and the pages to their drops.
            let committed = state.tables[index].commit(reservation).map_err(|e| Error::from_table(e.error))?;
            committed.dropped.retire(|| self.stamp())?;
        }
        self.insert(state)
    }

    /// Pages of a table, evicting cached prefixes if they are in the way.
    fn reserve_all(
        &self,
        group: &Group,
        table: &mut BlockTable,
        mut reserve: impl FnMut(&mut BlockTable) -> Result<Reservation, TableError>,
    ) -> Result<Reservation, Error> {
        let _turn = self.turn.lock();
        self.reclaim(group);
        loop {
            match reserve(table).map_err(Error::from_table) {
                Err(error) if self.make_room(&error)? => {}
                result => return result,
            }
        }
    }

    /// What is left of a group with a window, block by block: the sinks', then those from block `hole` on.
    fn read_window(
        &self,
        state: &mut SequenceState,
        index: usize,
        tokens: usize,
        hole: usize,
        block: &mut impl FnMut(usize, RowSpan) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let group = &self.groups[index];
        let (table, size) = (&mut state.tables[index], group.layout.tokens());
        let sinks = table.hole().start;
        while table.len() < tokens {
            let number = table.len() / size;
            if number == sinks && hole > sinks && table.hole().is_empty() {
                table.leave_out(hole).map_err(Error::from_table)?;
                continue;
            }
            let rows = (tokens - table.len()).min(size);
            let reservation = self.reserve_all(group, table, |table| table.reserve_block(rows))?;
            let read = reservation.rows().try_for_each(|span| block(index, span));
            let _turn = self.turn.lock();
            if let Err(error) = read {
                reservation.abort(|| self.stamp());
                return Err(error);
            }
            let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
            committed.dropped.retire(|| self.stamp())?;
        }
        Ok(())
    }

    /// Fills the pages of one block from what [`Cache::copy_out`] collected. The records are checked against the seal that
    /// they came with, and get one that names their new page.
    fn copy_in(&self, index: usize, span: &RowSpan, bytes: &[u8]) -> Result<(), Error> {
        let (mut turn, group) = (self.turn.lock(), &self.groups[index]);
        // New pages, whose former readers have passed; rows may follow on the lane.
        if bytes.len() != pages_bytes(group, span) {
            return Err(
                SaveError::Malformed { section: Tag::Block.name(), why: "other pages than the header says" }.into()
            );
        }
        self.house(&mut turn, index, core::iter::once(span.host))?;
        let mut rest = bytes;
        for layer in group.first..group.first + group.layers {
            let (originals, others) = rest.split_at(group.host.slot_bytes());
            rest = others;
            for (arena, page) in [(&group.host, Some(span.host)), (&group.tail, span.tail)] {
                let Some(page) = page else { continue };
                let slot =
                    if arena.same(&group.host) { group.host_slot(page, layer)? } else { group.slot(page, layer) };
                let mut guard = arena.write(slot, &self.main)?;
                guard.set_tag(Group::tag(page));
                guard.bytes_mut().copy_from_slice(originals);
            }
            let Some(packed) = span.packed else { continue };
            let level = span.level;
            let (records, others) = rest.split_at(group.bytes_at(level));
            rest = others;
            check_seal(group.seal_at(level, layer, span.block, NO_PAGE), records)?;
            let mut guard = group.packed_at(level).write(group.slot(packed, layer), &self.main)?;
            guard.set_tag(Group::tag(packed));
            guard.bytes_mut().copy_from_slice(records);
            group.seal_at(level, layer, span.block, packed).written_by(span.writer).write(guard.bytes_mut());
        }
        if span.packed.is_some() {
            // Nobody adds rows before the commit, so a sequence may be longer than host memory has room for.
            self.close_originals(group, span.host);
            self.tend();
        }
        Ok(())
    }

    /// [`Cache::save`] to a file that appears under its name only when it is whole and on the disk.
    ///
    /// # Errors
    /// As [`Cache::save`]; a file of that name is as it was.
    pub fn save_file(&self, id: SequenceId, scope: &SaveScope<'_>, path: &Path) -> Result<u64, Error> {
        into_file(path, id, |out| self.save(id, scope, out))
    }

    /// [`Cache::restore`] from a file.
    ///
    /// # Errors
    /// As [`Cache::restore`].
    pub fn restore_file(&self, scope: &SaveScope<'_>, path: &Path) -> Result<SequenceId, Error> {
        injected(fail_point!("restore.open"))?;
        let file = File::open(path).map_err(SaveError::from)?;
        self.restore(scope, &mut BufReader::with_capacity(1 << 20, file))
    }
}

/// Writes a file that appears under its name only when it is whole and on the disk.
pub(crate) fn into_file(
    path: &Path,
    id: SequenceId,
    save: impl FnOnce(&mut dyn Write) -> Result<u64, Error>,
) -> Result<u64, Error> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{:x}", std::process::id(), id.to_bits()));
    let partial = path.with_file_name(name);
    let written = || -> Result<u64, Error> {
        injected(fail_point!("save.create"))?;
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&partial).map_err(SaveError::from)?);
        let bytes = save(&mut out)?;
        injected(fail_point!("save.write"))?;
        let file = out.into_inner().map_err(|e| SaveError::from(e.into_error()))?;
        injected(fail_point!("save.sync"))?;
        file.sync_all().map_err(SaveError::from)?;
        injected(fail_point!("save.rename"))?;
        fs::rename(&partial, path).map_err(SaveError::from)?;
        Ok(bytes)
    }();
    if written.is_err() {
        // The error that matters is the first.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn injected(point: Result<(), InjectedFault>) -> Result<(), SaveError> {
    point.map_err(|fault| io::Error::other(fault).into())
}

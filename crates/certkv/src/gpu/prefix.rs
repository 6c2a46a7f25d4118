//! Sequences that continue from blocks which another one wrote: pages are shared, centres are sent to the new row.
use super::cache::{GpuCache, coded};
use super::core::Core;
use crate::prefix::{CachedPrefix, Coding, PrefixScope, Prefixes, PublishedPrefix, not_cached};
use crate::{Chunk, Error};
use certkv_core::{SequenceId, span};
use certkv_page::prefix::{Admission, Evicted, PrefixStats, Prompt};
use certkv_page::{BlockTable, Need, PageClass, PageError, TableError};
use std::sync::Arc;

impl GpuCache {
    pub(super) fn prefixes(&self) -> Result<&Prefixes, Error> {
        self.prefixes.as_ref().ok_or_else(not_cached)
    }

    /// As [`Cache::create_from`](crate::Cache::create_from). Does not wait for the device.
    ///
    /// # Errors
    /// As [`GpuCache::create`]; [`Error::Config`] where prefixes are not cached. Nothing changed.
    pub fn create_from(&mut self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<(SequenceId, usize), Error> {
        let prefixes = self.prefixes()?;
        let span = span!("continue", asked = (prompt.tokens.len()), found = _);
        let hit = prefixes.index.longest(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
        span.record("found", hit.tokens as u64);
        let id = self.insert(hit.tables)?;
        let row = id.slot as usize;
        self.mirror_table(row);
        let sent = hit.notes.last().map_or(Ok(()), |note| self.send_centres(row, &note.centres.strands));
        match sent {
            Ok(()) => Ok((id, hit.tokens)),
            Err(error) => {
                self.release(id)?;
                Err(error)
            }
        }
    }

    /// As [`Cache::find_prefix`](crate::Cache::find_prefix).
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn find_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<CachedPrefix, Error> {
        Ok(self.prefixes()?.find(scope, prompt))
    }

    /// Writes the centres of a row, by way of the staging ring.
    fn send_centres(&mut self, row: usize, layers: &[Vec<f32>]) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        for (layer, centre) in layers.iter().enumerate() {
            self.ring.send(&core.queue, &core.centres, core.sizes.centre_at(layer, row), centre)?;
        }
        Ok(())
    }

    /// As [`Cache::publish`](crate::Cache::publish). Waits for the device if there is a full block.
    ///
    /// # Errors
    /// Unknown sequence; [`Error::SwappedOut`]; [`Error::Config`] where prefixes are not cached; a row among those that the device
    /// [refused](super::GpuStep::append_device); the driver's. Nothing was cached then.
    pub fn publish(
        &mut self,
        id: SequenceId,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
    ) -> Result<PublishedPrefix, Error> {
        let unit = self.prefixes()?.index.unit();
        let span = span!("publish", asked = (prompt.tokens.len()), added = _);
        let table = &self.entry(id)?;
        if table.is_out() {
            return Err(Error::SwappedOut);
        }
        if table.len().min(prompt.tokens.len()) < unit {
            return Ok(PublishedPrefix::default());
        }
        self.check_stored(id, table.len().min(prompt.tokens.len()) / unit * unit)?;
        let centres = self.centres_of(id.slot as usize)?;
        let (prefixes, tables) = (self.prefixes()?, &self.entry(id)?.tables);
        // Records without codes say so themselves: their summaries are infinite.
        let coding = Coding { uncoded: &|_| Arc::new([]), group_of: &|layer| self.core.sizes.group_of(layer) };
        let published = prefixes.publish_tables(scope, prompt, tables, &centres, &self.ledger, &coding);
        let summary = PublishedPrefix::of(&published, unit);
        span.record("added", summary.added as u64);
        self.retire_evicted(published.evicted)?;
        Ok(summary)
    }

    fn centres_of(&self, row: usize) -> Result<Vec<Vec<f32>>, Error> {
        let Core { queue, centres, sizes: s, .. } = &*self.core;
        let read = |layer| {
            let mut centre = vec![0f32; s.kv_heads * s.dim];
            centres.read(queue.stream(), s.centre_at(layer, row), &mut centre)?;
            Ok(centre)
        };
        (0..s.layers).map(read).collect()
    }

    /// Units, and blocks of windows that went without theirs. What is remembered of their pages goes with the next step; the stream that reads them is the one that writes them anew.
    pub(super) fn retire_evicted(&mut self, evicted: Evicted) -> Result<usize, Error> {
        let gone = evicted.units + evicted.blocks;
        let _span = (gone > 0).then(|| span!("evict", units = (evicted.units)));
        let Self { core, forgotten, .. } = &mut *self;
        for (forgotten, dropped) in forgotten.iter_mut().zip(evicted.groups()) {
            forgotten.note_all(coded(&core.sizes, dropped));
        }
        evicted.retire(|group| self.stamp(group))?;
        self.let_free();
        Ok(gone)
    }

    /// As [`Cache::keep_room`](crate::Cache::keep_room).
    pub(super) fn keep_room(&mut self) {
        let marks = self.config.prefix_watermarks.zip(self.prefixes.as_ref());
        let evicted = marks.and_then(|(marks, prefixes)| prefixes.index.evict_ahead(marks));
        if let Some(evicted) = evicted {
            // What the driver refuses is told to who needs the room.
            let _ = self.retire_evicted(evicted);
            self.sweep();
        }
    }

    /// As [`Cache::evict_prefixes`](crate::Cache::evict_prefixes).
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn evict_prefixes(&mut self, units: usize) -> Result<usize, Error> {
        let evicted = self.prefixes()?.index.evict(units);
        let gone = self.retire_evicted(evicted);
        self.sweep();
        gone
    }

    /// As [`Cache::prefix_stats`](crate::Cache::prefix_stats).
    pub fn prefix_stats(&self) -> Option<(usize, PrefixStats)> {
        self.prefixes.as_ref().map(|prefixes| (prefixes.index.len(), prefixes.index.stats()))
    }

    /// As [`Cache::admit`](crate::Cache::admit).
    ///
    /// # Errors
    /// Unknown sequence; [`Error::TooLong`].
    pub fn admit(&self, id: Option<SequenceId>, tokens: usize) -> Result<Admission, Error> {
        let s = &self.core.sizes;
        let of = |tables: &[BlockTable]| tables.iter().map(|table| table.plan_growth(tokens)).collect();
        let needs: Result<Vec<Need>, TableError> = match id {
            Some(id) => of(&self.entry(id)?.tables),
            None => s.block_tables(&self.pools).and_then(|tables| of(&tables)),
        };
        let needs = needs.map_err(Error::from_table)?;
        self.reclaim()?;
        if let Some(prefixes) = &self.prefixes {
            // What waits for originals that leave, the next step has at once.
            return Ok(match prefixes.index.admit(&needs) {
                Admission::FitsSoon => Admission::Fits,
                admission => admission,
            });
        }
        for (group, need) in needs.into_iter().enumerate() {
            let retiring = |class| self.pools[group].of(class).counts().retiring;
            let lacks = |(class, pages): (PageClass, usize)| (class, pages.saturating_sub(retiring(class)));
            let short = self.missing(group, need).map(lacks).find(|(_, pages)| *pages > 0);
            if let Some((class, pages)) = short {
                return Ok(Admission::Lacks { group, class, pages });
            }
        }
        Ok(Admission::Fits)
    }

    /// Pages of a group that are not free, by class.
    fn missing(&self, group: usize, need: Need) -> impl Iterator<Item = (PageClass, usize)> {
        let pools = &self.pools[group];
        need.by_class().map(|(class, pages)| (class, pages.saturating_sub(pools.of(class).counts().free)))
    }

    /// Lands, and then evicts, what the chunks of a step need; what is wrong with them, the step says.
    pub(super) fn make_room_for(&mut self, chunks: &[Chunk]) -> Result<(), Error> {
        if self.prefixes.is_none() && self.leaving.is_empty() {
            return Ok(());
        }
        let mut needs = core::mem::take(&mut self.needs);
        let made = self.make_room_by(&mut needs, chunks);
        self.needs = needs;
        made
    }

    /// As [`GpuCache::make_room_for`]; in `needs` what each group lacks.
    fn make_room_by(&mut self, needs: &mut Vec<Need>, chunks: &[Chunk]) -> Result<(), Error> {
        needs.clear();
        needs.resize(self.pools.len(), Need::default());
        for chunk in chunks {
            let Ok(entry) = self.entry(chunk.sequence) else { return Ok(()) };
            if entry.is_out() {
                return Ok(());
            }
            for (need, table) in needs.iter_mut().zip(&entry.tables) {
                let Ok(more) = table.plan_append(chunk.tokens) else { return Ok(()) };
                *need = Need {
                    host: need.host + more.host,
                    packed: need.packed + more.packed,
                    tail: need.tail + more.tail,
                    ..*need
                };
            }
        }
        if needs.iter().enumerate().any(|(group, need)| self.missing(group, *need).any(|(_, pages)| pages > 0)) {
            self.land()?;
        }
        if self.prefixes.is_none() {
            return Ok(());
        }
        for (group, need) in needs.drain(..).enumerate() {
            loop {
                let short = self.missing(group, need).filter(|(class, _)| *class != PageClass::Tail);
                let Some((class, pages)) = short.max_by_key(|(_, pages)| *pages).filter(|(_, n)| *n > 0) else { break };
                let evicted = self.prefixes()?.index.make_room(group, class, pages);
                if self.retire_evicted(evicted)? == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lands, or evicts, for a call that was refused; whether it is worth another try.
    pub(super) fn make_room_after(&mut self, error: &Error) -> Result<bool, Error> {
        let Error::CapacityExhausted { class, cause } = error else { return Ok(false) };
        if self.land()? {
            return Ok(true);
        }
        let Some(prefixes) = &self.prefixes else { return Ok(false) };
        let PageError::Exhausted { asked, free, capacity, .. } = cause else { return Ok(false) };
        let evicted = prefixes.make_room(class, *capacity, asked.saturating_sub(*free));
        evicted.map_or(Ok(false), |evicted| Ok(self.retire_evicted(evicted)? > 0))
    }

    /// After a cut was refused for want of a host page: forgets the cached units whose pages it would have copied.
    pub(super) fn forget_reopened(&mut self, id: SequenceId, len: usize, error: &Error) -> Result<bool, Error> {
        let (Some(prefixes), Error::CapacityExhausted { class: "host", .. }) = (&self.prefixes, error) else {
            return Ok(false);
        };
        let blocks = self.entry(id)?.tables.iter().enumerate().filter_map(|(group, table)| {
            let (block, rows) = (len / table.block_size(), len % table.block_size());
            let entry = table.get(block).filter(|entry| rows > 0 && entry.is_full())?;
            Some(prefixes.index.forget(group, entry.host))
        });
        let (mut forgotten, blocks) = (0, blocks.collect::<Vec<_>>());
        for evicted in blocks {
            forgotten += self.retire_evicted(evicted)?;
        }
        Ok(forgotten > 0)
    }
}

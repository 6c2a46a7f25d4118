//! Cached prefixes of a cache on a GPU in a store: units of [`crate::save`](crate::Cache::export_prefix), with codes and originals in the
//! order in which kernels read them.
//!
//! Records have no seal while they lie on the device. They get one when they leave, behind the originals of their layer, and it is
//! compared before they are written again.
use super::cache::GpuCache;
use super::leaving::landed;
use crate::Error;
use crate::group::SEAL_BYTES;
use crate::prefix::{PrefixScope, PrefixUnit, Prefixes};
use crate::save::header::Order;
use crate::save::units::{self, Arriving, Engine};
use crate::save::{NO_PAGE, check_seal};
use certkv_page::prefix::Prompt;
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan};
use certkv_tier::store::{Get, Put};

impl GpuCache {
    /// As [`Cache::prefix_unit`](crate::Cache::prefix_unit).
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn prefix_unit(&self) -> Result<PrefixUnit, Error> {
        units::size(self)
    }

    /// As [`Cache::export_prefix`](crate::Cache::export_prefix). Waits for the device, and for each copy from it.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached; [`Error::Fetch`] of spilled originals; the driver's.
    pub fn export_prefix(
        &mut self,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        first: usize,
    ) -> Result<Vec<Put>, Error> {
        self.without_levels("exported")?;
        units::export(self, scope, prompt, first)
    }

    /// As [`Cache::missing_prefix`](crate::Cache::missing_prefix). Units that a CPU wrote have other names.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn missing_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Error> {
        self.without_levels("imported")?;
        units::missing(self, scope, prompt)
    }

    /// As [`Cache::import_prefix`](crate::Cache::import_prefix). Waits for the device.
    ///
    /// # Errors
    /// As [`Cache::import_prefix`](crate::Cache::import_prefix); the driver's: units before the one that it refused are cached.
    pub fn import_prefix(
        &mut self,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        units: &[Get],
    ) -> Result<usize, Error> {
        self.without_levels("imported")?;
        units::import(self, scope, prompt, units)
    }
}

impl Engine for GpuCache {
    const ORDER: Order = Order::Fragments;

    fn prefixes(&self) -> Result<&Prefixes, Error> {
        GpuCache::prefixes(self)
    }

    fn widths(&self) -> Vec<usize> {
        vec![self.config.geometry.kv_width(); self.core.sizes.layers]
    }

    fn group_of(&self, layer: usize) -> usize {
        self.core.sizes.group_of(layer)
    }

    fn block_bytes(&self, group: usize) -> usize {
        let s = &self.core.sizes;
        let of_layer = |layer: &usize| s.original_bytes + SEAL_BYTES + s.of_layer[*layer].page_bytes;
        s.groups[group].layers.iter().map(of_layer).sum()
    }

    fn block_out(&mut self, group: usize, block: usize, entry: &BlockEntry, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.land()?;
        self.core.finish()?;
        self.bring_block(None, group, block, entry.host)?;
        bytes.reserve(self.block_bytes(group));
        for layer in self.core.sizes.groups[group].layers.iter().copied() {
            let at = self.host_at(layer, entry.host)?;
            self.core.originals_out(at, self.core.sizes.block, bytes)?;
            let sealed = bytes.len();
            bytes.resize(sealed + SEAL_BYTES, 0);
            self.core.records_out(layer, entry, bytes)?;
            self.seal(layer, block, NO_PAGE).write(&mut bytes[sealed..]);
        }
        Ok(())
    }

    fn reserve(&mut self, _group: usize, table: &mut BlockTable, tokens: usize) -> Result<Reservation, Error> {
        self.reserve_all(table, |table| table.reserve(tokens))
    }

    fn block_in(&mut self, group: usize, span: &RowSpan, bytes: &[u8]) -> Result<(), Error> {
        self.house(group, core::iter::once(span.host))?;
        // What read or wrote the pages before has yet to pass: the host writes them.
        self.land()?;
        self.core.finish()?;
        let s = &self.core.sizes;
        let mut rest = bytes;
        for layer in s.groups[group].layers.iter().copied() {
            let (originals, others) = rest.split_at(s.original_bytes);
            let (sealed, others) = others.split_at(SEAL_BYTES + s.of_layer[layer].page_bytes);
            rest = others;
            check_seal(self.seal(layer, span.block, NO_PAGE), sealed)?;
            self.core.page_in((layer, self.host_at(layer, span.host)?), span, originals, &sealed[SEAL_BYTES..])?;
        }
        self.close_originals(group, span.host);
        Ok(())
    }

    fn abort(&mut self, reservations: Vec<Reservation>) {
        reservations.into_iter().for_each(|reservation| reservation.abort(landed));
        self.let_free();
    }

    fn commit(&mut self, table: &mut BlockTable, reservation: Reservation) -> Result<(), Error> {
        // Nobody else knows the table; a refusal leaves it and the pages to their drops.
        let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
        committed.dropped.retire(landed)?;
        Ok(())
    }

    fn publish(&mut self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, arrived: &Arriving) -> Result<usize, Error> {
        let group_of = |layer| self.core.sizes.group_of(layer);
        let done = arrived.publish(GpuCache::prefixes(self)?, scope, prompt, &self.ledger, &group_of);
        self.retire_evicted(done.evicted)?;
        Ok(done.usable)
    }

    /// Nothing is forgotten of their pages: those of cached units stay, and nobody has read the others.
    fn give_up(&mut self, tables: Vec<BlockTable>) -> Result<(), Error> {
        for table in tables {
            table.release().retire(landed)?;
        }
        self.let_free();
        Ok(())
    }
}

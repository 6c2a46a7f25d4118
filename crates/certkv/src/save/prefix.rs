//! Cached prefixes in a store: units out of the cache, and into another one.
use super::header::Order;
use super::units::{self, Arriving, Engine};
use crate::Error;
use crate::cache::Cache;
use crate::prefix::{PrefixScope, PrefixUnit, Prefixes};
use certkv_page::prefix::Prompt;
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan};
use certkv_tier::store::{Get, Put};

impl Cache {
    /// Sizes of a unit: what is cached, and goes to a store, as one.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn prefix_unit(&self) -> Result<PrefixUnit, Error> {
        units::size(&self)
    }

    /// Cached units of `prompt` from unit `first` on, to be put into a [`Store`](certkv_tier::store::Store). Copies their pages,
    /// one block at a time; other calls go on in between.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached, or blocks have levels; [`Error::Save`] if a page is not what was sealed; the device's.
    pub fn export_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, first: usize) -> Result<Vec<Put>, Error> {
        self.without_levels("exported")?;
        units::export(&mut &*self, scope, prompt, first)
    }

    /// What to ask a [`Store`](certkv_tier::store::Store) for: the full units of `prompt` that are not cached here, in order. Before them,
    /// where layers have windows, those that are cached without what the query behind the cached units, or behind all of the prompt, sees.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached, or blocks have levels.
    pub fn missing_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Error> {
        self.without_levels("imported")?;
        units::missing(&self, scope, prompt)
    }

    /// Caches units that a store gave back: those that [`Cache::missing_prefix`] asked for, in that order, up to the first that
    /// was not there. Returns how many tokens of the prompt [`Cache::create_from`] finds now.
    ///
    /// A unit that has no room, or whose codes do not fit the unit before it, ends it there; what came before stays. Of layers with a window
    /// it takes what the query behind the last of `units` sees.
    ///
    /// # Errors
    /// [`Error::Save`] for a get that is of another place or machine or has no page, or a page that is damaged or makes no sense:
    /// units before it are cached. [`Error::Config`] where prefixes are not cached, or blocks have levels.
    pub fn import_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, units: &[Get]) -> Result<usize, Error> {
        self.without_levels("imported")?;
        units::import(&mut &*self, scope, prompt, units)
    }
}

/// A shared cache: what changes its tables or its index has its turn.
impl Engine for &Cache {
    const ORDER: Order = Order::Rows;

    fn prefixes(&self) -> Result<&Prefixes, Error> {
        Cache::prefixes(self)
    }

    fn widths(&self) -> Vec<usize> {
        self.groups.iter().flat_map(|group| core::iter::repeat_n(group.width(), group.layers)).collect()
    }

    fn group_of(&self, strand: usize) -> usize {
        self.group_of_strand(strand).unwrap_or(self.groups.len())
    }

    fn block_bytes(&self, group: usize) -> usize {
        let group = &self.groups[group];
        group.layers * (group.host.slot_bytes() + group.packed.slot_bytes())
    }

    fn block_out(&mut self, group: usize, block: usize, entry: &BlockEntry, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.copy_out(group, None, block, entry, self.groups[group].layout.tokens(), bytes)
    }

    fn reserve(&mut self, group: usize, table: &mut BlockTable, tokens: usize) -> Result<Reservation, Error> {
        self.reserve_all(&self.groups[group], table, |table| table.reserve(tokens))
    }

    fn block_in(&mut self, group: usize, span: &RowSpan, bytes: &[u8]) -> Result<(), Error> {
        self.copy_in(group, span, bytes)
    }

    fn abort(&mut self, reservations: Vec<Reservation>) {
        let _turn = self.turn.lock();
        reservations.into_iter().for_each(|reservation| reservation.abort(|| self.stamp()));
        self.sweep_all();
    }

    fn commit(&mut self, table: &mut BlockTable, reservation: Reservation) -> Result<(), Error> {
        let _turn = self.turn.lock();
        // Nobody else knows the table; a refusal leaves it and the pages to their drops.
        let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
        committed.dropped.retire(|| self.stamp())?;
        Ok(())
    }

    fn publish(&mut self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, arrived: &Arriving) -> Result<usize, Error> {
        let _turn = self.turn.lock();
        let group_of = |strand| Engine::group_of(self, strand);
        let done = arrived.publish(Cache::prefixes(self)?, scope, prompt, &self.ledger, &group_of);
        self.retire_evicted(done.evicted)?;
        Ok(done.usable)
    }

    fn give_up(&mut self, tables: Vec<BlockTable>) -> Result<(), Error> {
        let _turn = self.turn.lock();
        self.end(tables)
    }
}

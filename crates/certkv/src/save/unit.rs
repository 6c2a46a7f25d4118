//! Cached prefixes in a store: units out of the cache, and into another one.
//!
//! A unit goes out as one page under its own key: the value centres that its codes are relative to, its blocks without codes,
//! and the pages of its blocks, group by group. The key covers the tokens and everything else that decides what it holds, so
//! whoever has the same secret finds it, in this process or a later one.
use super::SaveError;
use super::state::{Rest, put, put_floats};
use crate::Error;
use crate::cache::Cache;
use crate::prefix::{Note, PrefixScope, Prefixes};
use crate::seal::digest;
use crate::sequence::SequenceState;
use certkv_page::prefix::{BlockKey, Chain, Prompt};
use certkv_page::{BlockTable, Reservation};
use certkv_tier::store::{Get, Identity, Put, StoreKey};

/// Of what follows: another number, another meaning of the same bytes.
const LAYOUT: u64 = 1;

const fn malformed(why: &'static str) -> SaveError {
    SaveError::Malformed { section: "unit", why }
}

/// What numbers of a unit say of themselves, as numbers of a state.
fn of_unit(error: SaveError) -> SaveError {
    match error {
        SaveError::Malformed { why, .. } => malformed(why),
        other => other,
    }
}

/// What a unit is called and what it must be.
struct Names<'a> {
    prefixes: &'a Prefixes,
    chain: Chain,
    prompt: Prompt<'a>,
    parent: BlockKey,
    next: usize,
}

impl<'a> Names<'a> {
    fn new(prefixes: &'a Prefixes, scope: &PrefixScope<'_>, prompt: Prompt<'a>) -> Self {
        let chain = prefixes.chain(scope);
        let parent = chain.root();
        Self { prefixes, chain, prompt, parent, next: 0 }
    }
}

impl Iterator for Names<'_> {
    type Item = (StoreKey, Identity);

    fn next(&mut self) -> Option<Self::Item> {
        let unit = self.prefixes.index.unit();
        let first = self.next * unit;
        let tokens = self.prompt.tokens.get(first..first + unit)?;
        self.parent = self.chain.next(&self.parent, tokens, &self.chain.marks(&self.prompt, first, unit));
        let format = digest(self.prefixes.layout().as_bytes());
        let identity =
            Identity { sequence: 0, layer: 0, block: self.next as u32, generation: 0, format, layout: LAYOUT };
        self.next += 1;
        Some((StoreKey(self.parent.0), identity))
    }
}

impl Cache {
    /// Cached units of `prompt` from unit `first` on, to be put into a [`Store`](certkv_tier::store::Store). Copies their pages,
    /// one block at a time; other calls go on in between.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached; [`Error::Save`] if a page is not what was sealed; the device's.
    pub fn export_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, first: usize) -> Result<Vec<Put>, Error> {
        let prefixes = self.prefixes()?;
        let hit = prefixes.index.longest(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
        let names = Names::new(prefixes, scope, prompt).zip(&hit.notes).enumerate().skip(first);
        let out = names.map(|(number, ((key, identity), note))| {
            let page = self.unit_out(number, note, &hit.tables, prefixes.index.unit())?;
            Ok(Put { key, identity, page })
        });
        let out = out.collect();
        self.give_up(hit.tables)?;
        out
    }

    fn unit_out(&self, number: usize, note: &Note, tables: &[BlockTable], unit: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        note.centres.layers.iter().for_each(|centre| put_floats(&mut bytes, centre));
        put(&mut bytes, note.uncoded.len() as u64);
        for (layer, block) in note.uncoded.iter() {
            put(&mut bytes, u64::from(*layer));
            put(&mut bytes, u64::from(*block));
        }
        for (index, table) in tables.iter().enumerate() {
            let each = unit / table.block_size();
            for block in number * each..(number + 1) * each {
                let Some(entry) = table.blocks().get(block) else { return Err(malformed("no such block").into()) };
                self.copy_out(index, None, block, entry, table.block_size(), &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Retires tables that nobody else knows.
    fn give_up(&self, tables: Vec<BlockTable>) -> Result<(), Error> {
        let _turn = self.turn.lock();
        for (group, table) in self.groups.iter().zip(tables) {
            let dropped = table.release();
            self.forget_promoted(group, &dropped);
            dropped.retire(|| self.stamp())?;
            group.pools.reclaim(&mut |stamp| self.passed(stamp));
        }
        self.sweep_all();
        Ok(())
    }

    /// What to ask a [`Store`](certkv_tier::store::Store) for: the full units of `prompt` that are not cached here, in order.
    ///
    /// # Errors
    /// [`Error::Config`] where prefixes are not cached.
    pub fn missing_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Error> {
        let prefixes = self.prefixes()?;
        let cached = prefixes.index.known(&prefixes.chain(scope), prompt);
        Ok(Names::new(prefixes, scope, prompt).skip(cached).map(|(key, id)| Get::new(key, id, Vec::new())).collect())
    }

    /// Caches units that a store gave back: those that [`Cache::missing_prefix`] asked for, in that order, up to the first that
    /// was not there. Returns how many tokens of the prompt are cached now.
    ///
    /// A unit that has no room, or whose codes do not fit the unit before it, ends it there; what came before stays.
    ///
    /// # Errors
    /// [`Error::Save`] for a get that is of another place or has no page, or a page that makes no sense: units before it are
    /// cached. [`Error::Config`] where prefixes are not cached.
    pub fn import_prefix(&self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, units: &[Get]) -> Result<usize, Error> {
        let prefixes = self.prefixes()?;
        let hit = prefixes.index.longest(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
        let cached = hit.notes.len();
        let geometry = &self.config.geometry;
        let mut state = SequenceState::new(&self.groups, geometry.layers, geometry.kv_heads)?;
        if let Some(note) = hit.notes.last() {
            state.centres.clone_from(&note.centres.layers);
        }
        state.tables = hit.tables;
        let mut refused = None;
        let mut names = Names::new(prefixes, scope, prompt).enumerate().skip(cached);
        // Units that came to be cached since they were asked for are not looked at.
        for get in units.iter().filter(|get| get.identity().block as usize >= cached) {
            let taken = match names.next() {
                _ if get.page().is_empty() => Err(malformed("a get without a page").into()),
                Some((number, (key, identity))) if (get.key(), get.identity()) == (key, &identity) => {
                    self.unit_in(number, get.page(), &mut state)
                }
                _ => Err(malformed("another unit than the next one that is missing").into()),
            };
            match taken {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let done = {
            let _turn = self.turn.lock();
            let tables: Vec<&BlockTable> = state.tables.iter().collect();
            let uncoded = |number| self.uncoded_in(&state, number, prefixes.index.unit());
            let done = prefixes.publish(scope, prompt, &tables, &state.centres, &self.ledger, uncoded);
            let tokens = (done.known + done.added) * prefixes.index.unit();
            self.retire_evicted(done.evicted)?;
            tokens
        };
        self.give_up(state.tables)?;
        refused.map_or(Ok(done), Err)
    }

    /// Appends a unit to a sequence that nobody knows. `false`: there is no room, or its codes are of another sequence.
    fn unit_in(&self, number: usize, page: &[u8], state: &mut SequenceState) -> Result<bool, Error> {
        let (width, mut rest) = (self.config.geometry.kv_width(), Rest(page));
        let mut centres = Vec::with_capacity(state.centres.len());
        for _ in 0..state.centres.len() {
            let centre = rest.floats(width, f32::is_finite).map_err(of_unit)?;
            if centre.len() != width {
                return Err(malformed("a centre of another width").into());
            }
            centres.push(centre);
        }
        let bits = |layers: &[Vec<f32>]| layers.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        if number > 0 && bits(&centres) != bits(&state.centres) {
            return Ok(false);
        }
        let unit = self.prefixes()?.index.unit();
        let mut uncoded = Vec::new();
        for _ in 0..rest.count(page.len()).map_err(of_unit)? {
            let (layer, block) = (rest.count(state.uncoded.len() - 1), rest.number());
            let (layer, block) = (layer.map_err(of_unit)?, block.map_err(of_unit)? as usize);
            let each = self.group_of(layer).map(|(_, group)| unit / group.layout.tokens())?;
            if !(number * each..(number + 1) * each).contains(&block) {
                return Err(malformed("a block of another unit").into());
            }
            uncoded.push((layer, block));
        }
        let mut pages = rest.0.to_vec();
        let mut reservations = Vec::new();
        let filled = self.fill_unit(state, unit, &mut pages, &mut reservations);
        let _turn = self.turn.lock();
        if !matches!(filled, Ok(true)) {
            reservations.into_iter().for_each(|reservation| reservation.abort(|| self.stamp()));
            self.sweep_all();
            return filled;
        }
        for (table, reservation) in state.tables.iter_mut().zip(reservations) {
            let committed = table.commit(reservation).map_err(|e| Error::from_table(e.error))?;
            committed.dropped.retire(|| self.stamp())?;
        }
        state.centres = centres;
        for (layer, block) in uncoded {
            let uncoded = &mut state.uncoded[layer];
            uncoded.resize(uncoded.capacity().max(block + 1));
            uncoded.insert(block);
        }
        Ok(true)
    }

    /// Reserves a unit in every group and fills its pages. `false`: no room.
    fn fill_unit(
        &self,
        state: &mut SequenceState,
        unit: usize,
        pages: &mut [u8],
        reservations: &mut Vec<Reservation>,
    ) -> Result<bool, Error> {
        let mut rest = pages;
        for (index, group) in self.groups.iter().enumerate() {
            match self.reserve_all(&mut state.tables[index], |table| table.reserve(unit)) {
                Ok(reservation) => reservations.push(reservation),
                Err(Error::CapacityExhausted { .. } | Error::TooLong { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            let bytes = group.layers * (group.host.slot_bytes() + group.packed.slot_bytes());
            for span in reservations[index].rows() {
                let (block, others) = rest.split_at_mut_checked(bytes).ok_or(malformed("shorter than it says"))?;
                rest = others;
                self.copy_in(index, span, block)?;
            }
        }
        if rest.is_empty() { Ok(true) } else { Err(malformed("longer than it says").into()) }
    }
}

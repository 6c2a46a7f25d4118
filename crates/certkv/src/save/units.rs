//! Units out of a cache and into one, whichever machine it is on: what they do alike.
use super::header::Order;
use super::unit::{self, Names, Unit, malformed, page_of};
use crate::Error;
use crate::prefix::{Note, PrefixScope, PrefixUnit, Prefixes};
use certkv_core::Ledger;
use certkv_page::prefix::{Hit, Prompt, Published};
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan};
use certkv_tier::store::{Get, Put};
use std::sync::Arc;

/// What a cache does with pages of units.
pub(crate) trait Engine {
    /// Order of its codes and originals.
    const ORDER: Order;

    fn prefixes(&self) -> Result<&Prefixes, Error>;
    /// Layers, and elements of a row of keys.
    fn shape(&self) -> (usize, usize);
    /// Number of the group that a layer is in.
    fn group_of(&self, layer: usize) -> usize;
    /// Tokens of a full block.
    fn block_tokens(&self, group: usize) -> usize;
    /// Bytes of the pages of a full block.
    fn block_bytes(&self, group: usize) -> usize;
    /// Appends the pages of a full block to `bytes`, layer by layer.
    fn block_out(&mut self, group: usize, block: usize, entry: &BlockEntry, bytes: &mut Vec<u8>) -> Result<(), Error>;
    /// Pages for so many tokens, evicting cached prefixes if they are in the way.
    fn reserve(&mut self, table: &mut BlockTable, tokens: usize) -> Result<Reservation, Error>;
    /// Fills the pages of a full block from what [`Engine::block_out`] appended, once they are seen to be that.
    fn block_in(&mut self, group: usize, span: &RowSpan, bytes: &[u8]) -> Result<(), Error>;
    /// Gives back pages that were reserved.
    fn abort(&mut self, reservations: Vec<Reservation>);
    /// Adds reserved and filled pages to the tables of all groups.
    fn commit(&mut self, tables: &mut [BlockTable], reservations: Vec<Reservation>) -> Result<(), Error>;
    /// Caches what arrived, and gives back what was evicted for it; returns how many units are cached.
    fn publish(&mut self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, arrived: &Arriving) -> Result<usize, Error>;
    /// Ends tables that nobody else knows.
    fn give_up(&mut self, tables: Vec<BlockTable>) -> Result<(), Error>;
}

/// The beginning of a prompt in tables that nobody else knows: what was cached of it, and what comes.
pub(crate) struct Arriving {
    tables: Vec<BlockTable>,
    /// By layer; empty before the first unit.
    centres: Vec<Vec<f32>>,
    /// By unit: its blocks without codes.
    uncoded: Vec<Arc<[(u32, u32)]>>,
}

impl Arriving {
    fn behind(hit: Hit<Note>) -> Self {
        let centres = hit.notes.last().map_or_else(Vec::new, |note| note.centres.layers.clone());
        let uncoded = hit.notes.into_iter().map(|note| note.uncoded).collect();
        Self { tables: hit.tables, centres, uncoded }
    }

    pub(crate) fn publish(
        &self,
        prefixes: &Prefixes,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        ledger: &Arc<Ledger>,
    ) -> Published {
        let tables: Vec<&BlockTable> = self.tables.iter().collect();
        let uncoded = |number: usize| self.uncoded.get(number).map_or_else(|| Arc::from([]), Arc::clone);
        prefixes.publish(scope, prompt, &tables, &self.centres, ledger, uncoded)
    }
}

/// As [`Cache::prefix_unit`](crate::Cache::prefix_unit).
pub(crate) fn size<E: Engine>(engine: &E) -> Result<PrefixUnit, Error> {
    let tokens = engine.prefixes()?.index.unit();
    let (layers, width) = engine.shape();
    let each = |group: usize| tokens / engine.block_tokens(group);
    let pages: usize = (0..=engine.group_of(layers - 1)).map(|group| each(group) * engine.block_bytes(group)).sum();
    let blocks: usize = (0..layers).map(|layer| each(engine.group_of(layer))).sum();
    Ok(PrefixUnit { tokens, bytes: unit::most_around((layers, width), blocks).saturating_add(pages) })
}

/// As [`Cache::export_prefix`](crate::Cache::export_prefix).
pub(crate) fn export<E: Engine>(
    engine: &mut E,
    scope: &PrefixScope<'_>,
    prompt: Prompt<'_>,
    first: usize,
) -> Result<Vec<Put>, Error> {
    let prefixes = engine.prefixes()?;
    let hit = prefixes.index.hold(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
    let (names, unit) = (Names::new(prefixes, E::ORDER, scope, prompt), prefixes.index.unit());
    let names = names.zip(&hit.notes).enumerate().skip(first);
    let out = names.map(|(number, ((key, identity), note))| {
        let mut page = unit::begin(note);
        for (group, table) in hit.tables.iter().enumerate() {
            let each = unit / table.block_size();
            for block in number * each..(number + 1) * each {
                let entry = table.get(block).ok_or(malformed("no such block"))?;
                engine.block_out(group, block, entry, &mut page)?;
            }
        }
        unit::end(&mut page);
        Ok(Put { key, identity, page })
    });
    let out = out.collect();
    engine.give_up(hit.tables)?;
    out
}

/// As [`Cache::missing_prefix`](crate::Cache::missing_prefix).
pub(crate) fn missing<E: Engine>(engine: &E, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Error> {
    let prefixes = engine.prefixes()?;
    let cached = prefixes.index.known(&prefixes.chain(scope), prompt);
    let names = Names::new(prefixes, E::ORDER, scope, prompt).skip(cached);
    Ok(names.map(|(key, identity)| Get::new(key, identity, Vec::new())).collect())
}

/// As [`Cache::import_prefix`](crate::Cache::import_prefix).
pub(crate) fn import<E: Engine>(
    engine: &mut E,
    scope: &PrefixScope<'_>,
    prompt: Prompt<'_>,
    units: &[Get],
) -> Result<usize, Error> {
    let prefixes = engine.prefixes()?;
    let hit = prefixes.index.hold(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
    let (cached, unit) = (hit.notes.len(), prefixes.index.unit());
    let mut names = Names::new(prefixes, E::ORDER, scope, prompt).enumerate().skip(cached);
    let mut arriving = Arriving::behind(hit);
    let mut refused = None;
    // Units that came to be cached since they were asked for are not looked at.
    for get in units.iter().filter(|get| get.identity().block as usize >= cached) {
        let (number, name) = names.next().unzip();
        let page = page_of(get, name.as_ref(), E::ORDER).map_err(Error::from);
        match page.and_then(|page| append(engine, number.unwrap_or_default(), unit, page, &mut arriving)) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let done = engine.publish(scope, prompt, &arriving);
    engine.give_up(arriving.tables)?;
    refused.map_or(done.map(|units| units * unit), Err)
}

/// Appends a unit to what arrived. `false`: there is no room, or its codes do not fit the unit before it.
fn append<E: Engine>(
    engine: &mut E,
    number: usize,
    unit: usize,
    page: &[u8],
    arriving: &mut Arriving,
) -> Result<bool, Error> {
    let each: Vec<usize> = arriving.tables.iter().map(|table| unit / table.block_size()).collect();
    let blocks = |layer| {
        let each = each.get(engine.group_of(layer)).copied().unwrap_or_default();
        number * each..(number + 1) * each
    };
    let Unit { centres, uncoded, pages } = Unit::read(page, engine.shape(), blocks)?;
    let bits = |layers: &[Vec<f32>]| layers.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    if number > 0 && bits(&centres) != bits(&arriving.centres) {
        return Ok(false);
    }
    let mut reservations = Vec::new();
    let filled = fill(engine, unit, pages, &mut arriving.tables, &mut reservations);
    if !matches!(filled, Ok(true)) {
        engine.abort(reservations);
        return filled;
    }
    arriving.centres = centres;
    arriving.uncoded.push(uncoded);
    engine.commit(&mut arriving.tables, reservations)?;
    Ok(true)
}

/// Reserves a unit in every group and fills its pages. `false`: no room.
fn fill<E: Engine>(
    engine: &mut E,
    unit: usize,
    pages: &[u8],
    tables: &mut [BlockTable],
    reservations: &mut Vec<Reservation>,
) -> Result<bool, Error> {
    let mut rest = pages;
    for (group, table) in tables.iter_mut().enumerate() {
        let reservation = match engine.reserve(table, unit) {
            Ok(reservation) => reservation,
            Err(Error::CapacityExhausted { .. } | Error::TooLong { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let spans: Vec<RowSpan> = reservation.rows().collect();
        reservations.push(reservation);
        for span in spans {
            let split = rest.split_at_checked(engine.block_bytes(group)).ok_or(malformed("shorter than it says"))?;
            engine.block_in(group, &span, split.0)?;
            rest = split.1;
        }
    }
    if rest.is_empty() { Ok(true) } else { Err(malformed("longer than it says").into()) }
}

//! Units out of a cache and into one, whichever machine it is on: what they do alike.
//!
//! Of a layer with a window a unit in a store may lack blocks, as a cached one may. What a cache takes of one that comes back are the
//! blocks that the query behind the last unit at hand sees: others would only be in the way of sequences.
use super::header::Order;
use super::unit::{self, Names, Unit, malformed, page_of};
use crate::Error;
use crate::prefix::{Coding, Note, PrefixScope, PrefixUnit, Prefixes};
use certkv_core::Ledger;
use certkv_page::prefix::{GroupShape, Held, Prompt, Published};
use certkv_page::{BlockEntry, BlockTable, Reservation, RowSpan};
use certkv_tier::store::{Get, Put};
use std::sync::Arc;

/// What a cache does with pages of units.
pub(crate) trait Engine {
    /// Order of its codes and originals.
    const ORDER: Order;

    fn prefixes(&self) -> Result<&Prefixes, Error>;
    /// Elements of a row of keys, by strand: what one layer has in one group.
    fn widths(&self) -> Vec<usize>;
    /// Number of the group that a strand is in.
    fn group_of(&self, strand: usize) -> usize;
    /// Bytes of the pages of a full block.
    fn block_bytes(&self, group: usize) -> usize;
    /// Appends the pages of a full block to `bytes`, layer by layer.
    fn block_out(&mut self, group: usize, block: usize, entry: &BlockEntry, bytes: &mut Vec<u8>) -> Result<(), Error>;
    /// Pages for so many tokens, evicting cached prefixes if they are in the way.
    fn reserve(&mut self, group: usize, table: &mut BlockTable, tokens: usize) -> Result<Reservation, Error>;
    /// Fills the pages of a full block from what [`Engine::block_out`] appended, once they are seen to be that.
    fn block_in(&mut self, group: usize, span: &RowSpan, bytes: &[u8]) -> Result<(), Error>;
    /// Gives back pages that were reserved.
    fn abort(&mut self, reservations: Vec<Reservation>);
    /// Adds reserved and filled pages to a table.
    fn commit(&mut self, table: &mut BlockTable, reservation: Reservation) -> Result<(), Error>;
    /// Caches what arrived, and gives back what was evicted for it; returns how many units a look-up finds.
    fn publish(&mut self, scope: &PrefixScope<'_>, prompt: Prompt<'_>, arrived: &Arriving) -> Result<usize, Error>;
    /// Ends tables that nobody else knows, one per group.
    fn give_up(&mut self, tables: Vec<BlockTable>) -> Result<(), Error>;
}

/// A unit in tables that nobody else knows, one per group, of the blocks that were taken and nothing between them.
struct Arrived {
    number: usize,
    tables: Vec<BlockTable>,
    /// By group: a bit for each block that was taken.
    taken: Vec<u64>,
    /// Its blocks without codes.
    uncoded: Arc<[(u32, u32)]>,
}

/// The beginning of a prompt: what was cached of it, and what comes.
pub(crate) struct Arriving {
    held: Held<Note>,
    units: Vec<Arrived>,
    /// By strand; empty before the first unit.
    centres: Vec<Vec<f32>>,
    /// Tokens of a unit.
    unit: usize,
    /// Of each group, blocks of a unit.
    each: Vec<usize>,
}

impl Arriving {
    fn behind(held: Held<Note>, unit: usize, groups: &[GroupShape]) -> Self {
        let centres = held.notes.last().map_or_else(Vec::new, |note| note.centres.strands.clone());
        let each = groups.iter().map(|group| unit / group.block).collect();
        Self { held, units: Vec::new(), centres, unit, each }
    }

    /// Units that are cached, or arrived behind those.
    fn len(&self) -> usize {
        self.units.last().map_or(0, |unit| unit.number + 1).max(self.held.notes.len())
    }

    fn unit(&self, number: usize) -> Option<&Arrived> {
        self.units.binary_search_by_key(&number, |unit| unit.number).ok().map(|at| &self.units[at])
    }

    pub(crate) fn publish(
        &self,
        prefixes: &Prefixes,
        scope: &PrefixScope<'_>,
        prompt: Prompt<'_>,
        ledger: &Arc<Ledger>,
        group_of: &dyn Fn(usize) -> usize,
    ) -> Published {
        let uncoded = |number: usize| self.unit(number).map_or_else(|| Arc::from([]), |unit| Arc::clone(&unit.uncoded));
        let page = |group: usize, block: usize| {
            let (unit, bit) = (self.unit(block / self.each[group])?, block % self.each[group]);
            let (taken, table) = (unit.taken[group], &unit.tables[group]);
            let there = taken >> bit & 1 == 1;
            there.then(|| table.blocks().get((taken & ((1 << bit) - 1)).count_ones() as usize).copied())?
        };
        let tokens = &prompt.tokens[..prompt.tokens.len().min(self.len() * self.unit)];
        let coding = Coding { uncoded: &uncoded, group_of };
        prefixes.publish(scope, Prompt { tokens, ..prompt }, page, &self.centres, ledger, &coding)
    }
}

/// As [`Cache::prefix_unit`](crate::Cache::prefix_unit).
pub(crate) fn size<E: Engine>(engine: &E) -> Result<PrefixUnit, Error> {
    let index = &engine.prefixes()?.index;
    let (tokens, groups) = (index.unit(), index.groups());
    let widths = engine.widths();
    let each = |group: usize| tokens / groups[group].block;
    let pages: usize = (0..groups.len()).map(|group| each(group) * engine.block_bytes(group)).sum();
    let blocks: usize = (0..widths.len()).map(|strand| each(engine.group_of(strand))).sum();
    let windows = groups.iter().filter(|group| group.window.is_some()).count();
    Ok(PrefixUnit { tokens, bytes: unit::most_around(&widths, blocks, windows).saturating_add(pages) })
}

/// As [`Cache::export_prefix`](crate::Cache::export_prefix).
pub(crate) fn export<E: Engine>(
    engine: &mut E,
    scope: &PrefixScope<'_>,
    prompt: Prompt<'_>,
    first: usize,
) -> Result<Vec<Put>, Error> {
    let prefixes = engine.prefixes()?;
    let held = prefixes.index.hold(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
    let (names, unit) = (Names::new(prefixes, E::ORDER, scope, prompt), prefixes.index.unit());
    let groups = prefixes.index.groups().to_vec();
    let names = names.zip(&held.notes).enumerate().skip(first);
    let out = names.map(|(number, ((key, identity), note))| {
        let blocks = |group: usize| {
            let each = unit / groups[group].block;
            number * each..(number + 1) * each
        };
        let there = |group: usize| {
            let bits = blocks(group).enumerate().map(|(i, block)| u64::from(held.block(group, block).is_some()) << i);
            bits.sum::<u64>()
        };
        let windows = (0..groups.len()).filter(|group| groups[*group].window.is_some());
        let mut page = unit::begin(note, windows.map(there));
        for (group, shape) in groups.iter().enumerate() {
            for block in blocks(group) {
                match held.block(group, block) {
                    Some(entry) => engine.block_out(group, block, entry, &mut page)?,
                    None if shape.window.is_some() => {}
                    None => return Err(malformed("no such block").into()),
                }
            }
        }
        unit::end(&mut page);
        Ok(Put { key, identity, page })
    });
    let out = out.collect();
    engine.give_up(held.tables)?;
    out
}

/// As [`Cache::missing_prefix`](crate::Cache::missing_prefix).
pub(crate) fn missing<E: Engine>(engine: &E, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Error> {
    let prefixes = engine.prefixes()?;
    let lacking = prefixes.index.lacking(&prefixes.chain(scope), prompt);
    let mut lacking = lacking.into_iter().peekable();
    let names = Names::new(prefixes, E::ORDER, scope, prompt).enumerate();
    let wanted = names.filter(|(number, _)| lacking.next_if_eq(number).is_some());
    Ok(wanted.map(|(_, (key, identity))| Get::new(key, identity, Vec::new())).collect())
}

/// As [`Cache::import_prefix`](crate::Cache::import_prefix).
pub(crate) fn import<E: Engine>(
    engine: &mut E,
    scope: &PrefixScope<'_>,
    prompt: Prompt<'_>,
    units: &[Get],
) -> Result<usize, Error> {
    let prefixes = engine.prefixes()?;
    let held = prefixes.index.hold(&prefixes.chain(scope), prompt).map_err(Error::from_table)?;
    let (cached, unit) = (held.notes.len(), prefixes.index.unit());
    let mut names = Names::new(prefixes, E::ORDER, scope, prompt).enumerate();
    let groups = prefixes.index.groups().to_vec();
    let mut arriving = Arriving::behind(held, unit, &groups);
    let last = units.last().map_or(0, |get| get.identity().block as usize + 1);
    // What the query behind them sees.
    let end = last.max(cached).min(prompt.tokens.len() / unit);
    let mut refused = None;
    for get in units {
        let number = get.identity().block as usize;
        // Units that came to be cached since they were asked for are not looked at.
        let wanted = wanted(&arriving, &groups, number, end);
        if number < cached && wanted.iter().all(|bits| *bits == 0) {
            continue;
        }
        // Behind what is cached one follows the other.
        let name =
            if number <= arriving.len() { names.find(|(n, _)| *n == number).map(|(_, name)| name) } else { None };
        let page = page_of(get, name.as_ref(), E::ORDER).map_err(Error::from);
        match page.and_then(|page| append(engine, &groups, (number, &wanted), page, &mut arriving)) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let done = engine.publish(scope, prompt, &arriving);
    for unit in arriving.units {
        engine.give_up(unit.tables)?;
    }
    engine.give_up(arriving.held.tables)?;
    refused.map_or(done.map(|units| units * unit), Err)
}

/// By group, a bit for each block of a unit that is not cached and that somebody needs: of a group with a window the query behind `end`
/// units.
fn wanted(arriving: &Arriving, groups: &[GroupShape], number: usize, end: usize) -> Vec<u64> {
    let of_group = |(group, shape): (usize, &GroupShape)| {
        let each = arriving.each[group];
        let needed = |block: usize| {
            let seen = |window: certkv_page::Window| window.sees_block(shape.block, end * arriving.unit, block);
            arriving.held.block(group, block).is_none() && shape.window.is_none_or(seen)
        };
        (0..each).map(|bit| u64::from(needed(number * each + bit)) << bit).sum()
    };
    groups.iter().enumerate().map(of_group).collect()
}

/// Takes what is wanted of a unit. `false`: there is no room, or its codes do not fit the unit before it.
fn append<E: Engine>(
    engine: &mut E,
    groups: &[GroupShape],
    (number, wanted): (usize, &[u64]),
    page: &[u8],
    arriving: &mut Arriving,
) -> Result<bool, Error> {
    let blocks = |strand| {
        let each = arriving.each.get(engine.group_of(strand)).copied().unwrap_or_default();
        number * each..(number + 1) * each
    };
    let windows = groups.iter().zip(&arriving.each).filter(|(group, _)| group.window.is_some()).map(|(_, each)| *each);
    let Unit { centres, uncoded, there, pages } = Unit::read(page, &engine.widths(), blocks, windows)?;
    let bits = |strands: &[Vec<f32>]| strands.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    if arriving.len() > 0 && bits(&centres) != bits(&arriving.centres) {
        return Ok(false);
    }
    if groups.iter().zip(&arriving.each).any(|(group, each)| (number + 1) * each > group.max_blocks) {
        return Ok(false);
    }
    let mut there = there.into_iter();
    let all = |group: usize| (1u64 << arriving.each[group]) - 1;
    let there: Vec<u64> = groups
        .iter()
        .enumerate()
        .map(|(group, shape)| shape.window.map_or(Some(all(group)), |_| there.next()).unwrap_or(0))
        .collect();
    let taken: Vec<u64> = there.iter().zip(wanted).map(|(there, wanted)| there & wanted).collect();
    let mut unit = Arrived { number, tables: Vec::new(), taken, uncoded };
    let mut reservations = Vec::new();
    let filled = fill(engine, groups, &there, pages, &mut unit, &mut reservations);
    if !matches!(filled, Ok(true)) {
        engine.abort(reservations.into_iter().flatten().collect());
        return filled;
    }
    for (table, reservation) in unit.tables.iter_mut().zip(reservations) {
        if let Some(reservation) = reservation {
            engine.commit(table, reservation)?;
        }
    }
    arriving.centres = centres;
    arriving.units.push(unit);
    Ok(true)
}

/// Reserves what is taken of a unit in every group and fills its pages. `false`: no room.
fn fill<E: Engine>(
    engine: &mut E,
    groups: &[GroupShape],
    there: &[u64],
    pages: &[u8],
    unit: &mut Arrived,
    reservations: &mut Vec<Option<Reservation>>,
) -> Result<bool, Error> {
    let mut rest = pages;
    for (group, shape) in groups.iter().enumerate() {
        let (taken, each) = (unit.taken[group], engine.prefixes()?.index.unit() / shape.block);
        let mut table = BlockTable::create(&shape.pools, shape.block, each).map_err(Error::from_table)?;
        let reserved = match taken.count_ones() as usize {
            0 => None,
            blocks => match engine.reserve(group, &mut table, blocks * shape.block) {
                Ok(reservation) => Some(reservation),
                Err(Error::CapacityExhausted { .. }) => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        unit.tables.push(table);
        let spans: Vec<RowSpan> = reserved.iter().flat_map(Reservation::rows).collect();
        reservations.push(reserved);
        let mut spans = spans.into_iter();
        for bit in (0..each).filter(|bit| there[group] >> bit & 1 == 1) {
            let split = rest.split_at_checked(engine.block_bytes(group)).ok_or(malformed("shorter than it says"))?;
            if taken >> bit & 1 == 1
                && let Some(span) = spans.next()
            {
                engine.block_in(group, &RowSpan { block: unit.number * each + bit, ..span }, split.0)?;
            }
            rest = split.1;
        }
    }
    if rest.is_empty() { Ok(true) } else { Err(malformed("longer than it says").into()) }
}

//! A unit of a cached prefix as bytes: what it is called, and what it holds.
//!
//! The value centres of all strands (what one layer has in one group) that its codes are relative to, its blocks without codes, of each group with a window which of its
//! blocks are there, the pages of these and of all blocks of the others, group by group, and a digest of all of it. The key covers the tokens and everything else that decides what a unit holds, so whoever has
//! the same secret finds it, in this process or a later one.
use super::SaveError;
use super::header::Order;
use super::state::{Rest, put, put_floats};
use crate::prefix::{Note, PrefixScope, Prefixes};
use crate::seal::digest;
use certkv_page::prefix::{BlockKey, Chain, Prompt};
use certkv_tier::store::{Get, Identity, StoreKey};
use core::ops::Range;
use std::sync::Arc;

/// Bytes of the digest at the end.
const DIGEST: usize = 8;

/// Number of what follows, for a store: another number, another meaning of the same bytes.
const fn number(order: Order) -> u64 {
    match order {
        Order::Rows => 2,
        Order::Fragments => 4,
    }
}

pub(crate) const fn malformed(why: &'static str) -> SaveError {
    SaveError::Malformed { section: "unit", why }
}

/// What is wrong with a part of a unit, as of the unit.
fn of_unit(error: SaveError) -> SaveError {
    match error {
        SaveError::Malformed { why, .. } => malformed(why),
        other => other,
    }
}

/// What the units of a prompt are called and what they must be, in order.
pub(crate) struct Names<'a> {
    chain: Chain,
    prompt: Prompt<'a>,
    parent: BlockKey,
    order: Order,
    format: u64,
    /// Tokens of a unit.
    unit: usize,
    next: usize,
}

impl<'a> Names<'a> {
    pub(crate) fn new(prefixes: &Prefixes, order: Order, scope: &PrefixScope<'_>, prompt: Prompt<'a>) -> Self {
        let chain = prefixes.chain(scope);
        let (parent, format) = (chain.root(), digest(prefixes.layout().as_bytes()));
        Self { chain, prompt, parent, order, format, unit: prefixes.index.unit(), next: 0 }
    }
}

impl Iterator for Names<'_> {
    type Item = (StoreKey, Identity);

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.next * self.unit;
        let tokens = self.prompt.tokens.get(first..first + self.unit)?;
        self.parent = self.chain.next(&self.parent, tokens, &self.chain.marks(&self.prompt, first, self.unit));
        let (block, layout) = (self.next as u32, number(self.order));
        let identity = Identity { sequence: 0, layer: 0, block, generation: 0, format: self.format, layout };
        self.next += 1;
        Some((StoreKey(self.parent.0), identity))
    }
}

/// The page of a get, if it is the one of this name.
pub(crate) fn page_of<'g>(
    get: &'g Get,
    name: Option<&(StoreKey, Identity)>,
    order: Order,
) -> Result<&'g [u8], SaveError> {
    let there = [Order::Rows, Order::Fragments].into_iter().find(|order| number(*order) == get.identity().layout);
    if let Some(there) = there.filter(|there| *there != order) {
        let (file, here) = (there.name().to_owned(), order.name().to_owned());
        return Err(SaveError::Differs { what: "order".to_owned(), file, here });
    }
    match name {
        _ if get.page().is_empty() => Err(malformed("a get without a page")),
        Some((key, identity)) if (get.key(), get.identity()) == (*key, identity) => Ok(get.page()),
        _ => Err(malformed("another unit than the next one that is missing")),
    }
}

/// What is in front of the pages. `there`: of each group with a window, a bit for each of its blocks.
pub(crate) fn begin(note: &Note, there: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    note.centres.strands.iter().for_each(|centre| put_floats(&mut bytes, centre));
    put(&mut bytes, note.uncoded.len() as u64);
    for (strand, block) in note.uncoded.iter() {
        put(&mut bytes, u64::from(*strand));
        put(&mut bytes, u64::from(*block));
    }
    there.for_each(|bits| put(&mut bytes, bits));
    bytes
}

/// Most bytes that [`begin`] and [`end`] put around the pages of `blocks` blocks, each of one strand, and of so many groups with a window.
pub(crate) fn most_around(widths: &[usize], blocks: usize, windows: usize) -> usize {
    widths.iter().map(|width| 8 + 4 * width).sum::<usize>() + 8 + 16 * blocks + 8 * windows + DIGEST
}

/// What is behind them: between a cache and a store a unit is in somebody's memory.
pub(crate) fn end(bytes: &mut Vec<u8>) {
    let all = digest(bytes);
    put(bytes, all);
}

/// A unit that came from a store.
pub(crate) struct Unit<'a> {
    pub(crate) centres: Vec<Vec<f32>>,
    /// Strand and block, as they are said to be.
    pub(crate) uncoded: Arc<[(u32, u32)]>,
    /// Of each group with a window, a bit for each of its blocks that is there.
    pub(crate) there: Vec<u64>,
    pub(crate) pages: &'a [u8],
}

impl<'a> Unit<'a> {
    /// Reads what [`begin`] and [`end`] framed, of a cache of strands with so many elements a row. Which blocks of a strand the unit
    /// has, `blocks` says; how many each group with a window has, `windows`.
    pub(crate) fn read(
        bytes: &'a [u8],
        widths: &[usize],
        blocks: impl Fn(usize) -> Range<usize>,
        windows: impl Iterator<Item = usize>,
    ) -> Result<Self, SaveError> {
        let (bytes, last) = bytes.split_last_chunk::<DIGEST>().ok_or(malformed("shorter than it says"))?;
        if digest(bytes) != u64::from_le_bytes(*last) {
            return Err(SaveError::Damaged { section: "unit" });
        }
        let mut rest = Rest(bytes);
        let mut centres = Vec::with_capacity(widths.len());
        for width in widths {
            let centre = rest.floats(*width, f32::is_finite).map_err(of_unit)?;
            if centre.len() != *width {
                return Err(malformed("a centre of another width"));
            }
            centres.push(centre);
        }
        let mut uncoded = Vec::new();
        for _ in 0..rest.count(bytes.len()).map_err(of_unit)? {
            let strand = rest.count(widths.len().saturating_sub(1)).map_err(of_unit)?;
            let block = rest.count(u32::MAX as usize).map_err(of_unit)?;
            if !blocks(strand).contains(&block) {
                return Err(malformed("a block of another unit"));
            }
            uncoded.push((strand as u32, block as u32));
        }
        let mut there = Vec::new();
        for each in windows {
            there.push(rest.count((1 << each) - 1).map_err(of_unit)? as u64);
        }
        Ok(Self { centres, uncoded: uncoded.into(), there, pages: rest.0 })
    }
}

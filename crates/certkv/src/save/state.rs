//! What a sequence remembers beside its pages, as numbers of eight bytes: centres, blocks without codes, and per head what
//! the next step starts from.
use super::error::SaveError;
use crate::attend::decide::Hint;
use crate::cache::Cache;
use crate::group::Group;
use crate::sequence::{Bound, HeadMemory, SequenceState};
use certkv_control::BitSet;
use certkv_core::{planted, reserve_total};

/// Where bytes go, or are counted.
pub(crate) trait Sink {
    fn bytes(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for usize {
    fn bytes(&mut self, bytes: &[u8]) {
        *self += bytes.len();
    }
}

pub(crate) fn put(out: &mut impl Sink, n: u64) {
    out.bytes(&n.to_le_bytes());
}

pub(crate) fn put_floats(out: &mut impl Sink, floats: &[f32]) {
    put(out, floats.len() as u64);
    floats.iter().for_each(|x| out.bytes(&x.to_bits().to_le_bytes()));
}

fn put_set(out: &mut impl Sink, set: &BitSet) {
    put(out, set.capacity() as u64);
    set.words().iter().for_each(|word| put(out, *word));
}

/// Appends the state of a sequence.
pub(crate) fn write(groups: &[Group], state: &SequenceState, out: &mut impl Sink) {
    // Who decides levels begins anew, perhaps by another rule.
    let SequenceState { tables, centres, heads, uncoded, control: _ } = state;
    centres.iter().for_each(|centre| put_floats(out, centre));
    uncoded.iter().for_each(|set| put_set(out, set));
    for (_, table) in groups.iter().zip(tables).filter(|(group, _)| group.level_count() > 1) {
        let full = || table.numbered().filter(|(_, entry)| entry.is_full());
        put(out, full().count() as u64);
        full().for_each(|(_, entry)| put(out, entry.level.into()));
    }
    for (group, table) in groups.iter().zip(tables).filter(|(group, _)| group.window.is_some()) {
        put(out, table.hole().end as u64);
        heads[group.all_memories()].iter().for_each(|head| put(out, head.from as u64));
    }
    for HeadMemory { keys, delta, lambda, flat, hints, from: _, mass: _, terms: _ } in heads {
        put_set(out, keys);
        for known in [delta, lambda] {
            put(out, known.len() as u64);
            for row in known {
                put(out, row.len() as u64);
                row.iter().for_each(|bound| out.bytes(&bound.get().to_bits().to_le_bytes()));
            }
        }
        put(out, u64::from(*flat));
        put(out, hints.len() as u64);
        for Hint { norm, radius } in hints {
            put(out, norm.to_bits());
            put(out, radius.to_bits());
        }
    }
}

const fn malformed(why: &'static str) -> SaveError {
    SaveError::Malformed { section: "state", why }
}

/// The bytes that are left.
pub(crate) struct Rest<'a>(pub(crate) &'a [u8]);

impl Rest<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SaveError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(malformed("shorter than it says"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, SaveError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A number of things, at most `most`.
    pub(crate) fn count(&mut self, most: usize) -> Result<usize, SaveError> {
        let n = self.number()?;
        usize::try_from(n).ok().filter(|n| *n <= most).ok_or(malformed("more than the sequence can have"))
    }

    pub(crate) fn floats(&mut self, most: usize, may: impl Fn(f32) -> bool) -> Result<Vec<f32>, SaveError> {
        let n = self.count(most)?;
        let mut floats = Vec::new();
        reserve_total(&mut floats, n)?;
        for _ in 0..n {
            let x = f32::from_bits(u32::from_le_bytes(self.bytes()?));
            if !may(x) {
                return Err(malformed("a number that cannot be"));
            }
            floats.push(x);
        }
        Ok(floats)
    }

    fn set(&mut self, most: usize) -> Result<BitSet, SaveError> {
        let capacity = self.count(most)?;
        let mut set = BitSet::EMPTY;
        set.reserve(capacity)?;
        set.resize(capacity);
        for first in (0..capacity).step_by(64) {
            let word = self.number()?;
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                if !set.insert(first + bit) {
                    return Err(malformed("a block outside the sequence"));
                }
            }
        }
        Ok(set)
    }
}

/// What is to be known of a group before its pages are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    /// The block behind its hole, 0 without a window.
    pub(crate) hole: usize,
    /// Level of each full block; empty where all have the first.
    pub(crate) levels: Vec<u8>,
}

/// Reads the state of a sequence of `tokens` tokens into a new one, and the shape of every group.
pub(crate) fn read(
    cache: &Cache,
    tokens: usize,
    bytes: &[u8],
    state: &mut SequenceState,
) -> Result<Vec<Shape>, SaveError> {
    let geometry = &cache.config.geometry;
    let mut rest = Rest(bytes);
    let blocks_of = |group: &Group| tokens.div_ceil(group.layout.tokens()).min(group.max_blocks);
    for group in &cache.groups {
        for centre in &mut state.centres[group.strands()] {
            *centre = rest.floats(group.width(), f32::is_finite)?;
            if centre.len() != if tokens >= group.layout.tokens() { group.width() } else { 0 } {
                return Err(malformed("a centre of another width"));
            }
        }
    }
    // Sets may have room for a block that was begun and given up.
    for group in &cache.groups {
        for set in &mut state.uncoded[group.strands()] {
            *set = rest.set(blocks_of(group) + 1)?;
        }
    }
    let mut shapes = vec![Shape::default(); cache.groups.len()];
    for (group, Shape { levels, .. }) in cache.groups.iter().zip(&mut shapes).filter(|(g, _)| g.level_count() > 1) {
        let full = tokens / group.layout.tokens();
        if rest.count(full)? != full {
            return Err(malformed("fewer levels than full blocks"));
        }
        for _ in 0..full {
            let level = rest.count(usize::from(group.level_count()) - 1)? as u8;
            levels.push(if planted!(B28) { 0 } else { level });
        }
    }
    for (group, Shape { hole, .. }) in cache.groups.iter().zip(&mut shapes) {
        let Some(window) = group.window else { continue };
        let size = group.layout.tokens();
        let sinks = window.sink_blocks(size);
        *hole = rest.count(sinks.max(tokens / size))?.max(sinks);
        // What the next query sees is there.
        if *hole > sinks && *hole * size > window.first(tokens) {
            return Err(malformed("a window with a hole in it"));
        }
        for head in &mut state.heads[group.all_memories()] {
            // Where it was at the last step, before the sequence may have been cut.
            head.from = rest.count(group.max_blocks + 1)?;
        }
    }
    let of_head = |group| core::iter::repeat_n(blocks_of(group), group.all_memories().len());
    for (head, blocks) in state.heads.iter_mut().zip(cache.groups.iter().flat_map(of_head)) {
        // Of a layer with a window, rows that are gathered count as blocks.
        let most = blocks + 3;
        head.keys = rest.set(most)?;
        for known in [&mut head.delta, &mut head.lambda] {
            let rows = rest.count(geometry.group())?;
            for _ in 0..rows {
                let row = rest.floats(most, |x| x >= 0.0)?;
                known.push(row.into_iter().map(Bound::of).collect());
            }
        }
        head.flat = match rest.number()? {
            0 => false,
            1 => true,
            _ => return Err(malformed("neither yes nor no")),
        };
        let hints = rest.count(geometry.group())?;
        if hints != 0 && hints != geometry.group() {
            return Err(malformed("hints for some heads of a group and not for others"));
        }
        for _ in 0..hints {
            let (norm, radius) = (f64::from_bits(rest.number()?), f64::from_bits(rest.number()?));
            if !(norm >= 0.0 && radius >= 0.0) {
                return Err(malformed("a number that cannot be"));
            }
            head.hints.push(Hint { norm, radius });
        }
    }
    if rest.0.is_empty() { Ok(shapes) } else { Err(malformed("longer than it says")) }
}

//! What the cache remembers of one sequence.
use crate::attend::decide::Hint;
use crate::group::Group;
use crate::levels::LayerControl;
use crate::{Config, Error};
use certkv_control::BitSet;
use certkv_core::OutOfMemory;
use certkv_page::BlockTable;

/// A bound as it is remembered, in 16 bits: the smallest bfloat16 that is not below it, and so within 1/128 of it. What is remembered decides what is read, and no
/// certificate rests on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound(u16);

impl Bound {
    /// Nothing is known.
    pub(crate) const UNKNOWN: Self = Self(0x7f80);

    /// Of a bound that is not negative and not NaN.
    pub(crate) fn of(x: f32) -> Self {
        let bits = x.to_bits();
        Self((bits >> 16) as u16 + u16::from(bits & 0xffff != 0))
    }

    pub(crate) fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// What one KV head of one layer remembers from step to step: the promoted sets that the next step starts from, and the
/// last known bounds of each block's logit error, so that a block that is promoted now can be judged without its codes.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadMemory {
    /// Blocks whose keys the next step reads from the originals.
    pub(crate) keys: BitSet,
    /// Last known `Delta_b` of codes alone, `[query head of the group][block]`, grown block by block.
    pub(crate) delta: Vec<Vec<Bound>>,
    /// Last known `Lambda_b`, in the same order.
    pub(crate) lambda: Vec<Vec<Bound>>,
    /// The last step read everything from codes, and had little to skip.
    pub(crate) flat: bool,
    /// What the last output of each query head tells; empty before the first.
    pub(crate) hints: Vec<Hint>,
    /// With a window, blocks are counted as they are visible: whole blocks of sinks, then those from this one on.
    pub(crate) from: usize,
    /// Where levels are decided: what the last step's query heads attended to, `[query head of the group][block]`, blocks by their
    /// numbers in the sequence. Empty if there was no step since somebody looked.
    pub(crate) mass: Vec<f32>,
    /// Where levels are decided by what they lose: what the certificate knew beside those masses.
    pub(crate) terms: Terms,
}

/// What the certificate of a step knew of each block beside `rho_b`, math.md (5.9), blocks by their numbers in the sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// `p_b`, `Delta_b` and `Lambda_b` of codes alone, and the digit term (5.29), `[query head of the group][block]`; infinite bounds where they are not known, and no
    /// digits where values were not read from codes.
    pub(crate) blocks: Vec<[f32; 4]>,
    /// Of each query head of the group `||O' - c||` and `||O'||`, and where keys of some level are in a metric of their own the query's norm as those
    /// of each level of the ladder meet it.
    heads: Vec<f32>,
}

impl Terms {
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.heads.clear();
    }

    /// Room for `blocks` blocks of `heads` query heads, and for what `levels` of unlike metrics ask.
    pub(crate) fn begin(&mut self, blocks: usize, heads: usize, levels: usize) -> Result<(), OutOfMemory> {
        self.clear();
        reserve_exact(&mut self.blocks, heads * whole_words(blocks))?;
        self.blocks.resize(heads * blocks, [0.0; 4]);
        reserve_exact(&mut self.heads, heads * (2 + levels))
    }

    /// Keeps the next query head's numbers, in the order of the list.
    pub(crate) fn tell(&mut self, radius: f32, norm: f32, reach: impl Iterator<Item = f32>) {
        self.heads.extend([radius, norm].into_iter().chain(reach));
    }

    /// What is kept of a query head of so many: `||O' - c||`, `||O'||`, and norms by level. `None` if it is not of all of them.
    pub(crate) fn head(&self, head: usize, heads: usize) -> Option<([f32; 2], &[f32])> {
        let each = self.heads.len().checked_div(heads)?;
        let (own, reach) = self.heads.get(head * each..(head + 1) * each)?.split_first_chunk()?;
        (each * heads == self.heads.len()).then_some((*own, reach))
    }
}

impl HeadMemory {
    /// Room for `blocks` blocks of `heads` query heads; new blocks are unknown (infinite).
    pub(crate) fn resize(&mut self, blocks: usize, heads: usize) -> Result<(), OutOfMemory> {
        self.keys.reserve(blocks)?;
        self.keys.resize(blocks);
        for known in [&mut self.delta, &mut self.lambda] {
            known.resize_with(heads, Vec::new);
            for k in known {
                reserve_exact(k, whole_words(blocks))?;
                k.resize(blocks, Bound::UNKNOWN);
            }
        }
        Ok(())
    }

    /// Moves on to the visible blocks `0..fixed` and `from..`. What is known of blocks that are no longer visible goes; after a
    /// cut, so does what is known of all but the sinks.
    pub(crate) fn slide(&mut self, fixed: usize, from: usize) {
        let old = self.from.max(fixed);
        self.from = from;
        if from < old {
            self.truncate(fixed);
        }
        let (gone, blocks) = (from.saturating_sub(old), self.keys.capacity());
        if gone == 0 {
            return;
        }
        for b in fixed..blocks {
            if self.keys.contains(b + gone) {
                self.keys.insert(b);
            } else {
                self.keys.remove(b);
            }
        }
        self.keys.resize(blocks.saturating_sub(gone).max(fixed.min(blocks)));
        for known in self.delta.iter_mut().chain(&mut self.lambda) {
            let end = known.len().min(fixed + gone);
            known.drain(fixed.min(end)..end);
        }
    }

    /// Renumbers what is known of blocks: block `i` was `from[i]`, of `None` nothing is known.
    fn renumber(&mut self, from: &[Option<usize>]) {
        let keys = self.keys.clone();
        self.keys.clear();
        self.keys.resize(from.len());
        for (block, _) in from.iter().enumerate().filter(|(_, old)| old.is_some_and(|old| keys.contains(old))) {
            self.keys.insert(block);
        }
        for known in self.delta.iter_mut().chain(&mut self.lambda) {
            let old = known.clone();
            // No longer than it was: a block more is one of the next step's.
            known.truncate(from.len());
            for (to, from) in known.iter_mut().zip(from) {
                *to = from.and_then(|from| old.get(from).copied()).unwrap_or(Bound::UNKNOWN);
            }
        }
    }

    /// Forgets all blocks but the first `blocks`.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.keys.resize(blocks);
        if self.mass.len() > blocks * self.delta.len() {
            self.mass.clear();
            self.terms.clear();
        }
        for known in self.delta.iter_mut().chain(&mut self.lambda) {
            known.truncate(blocks);
        }
    }

    /// Room for the masses of `blocks` blocks of `heads` query heads, all 0.
    pub(crate) fn new_mass(&mut self, blocks: usize, heads: usize) -> Result<&mut [f32], OutOfMemory> {
        self.mass.clear();
        reserve_exact(&mut self.mass, heads * whole_words(blocks))?;
        self.mass.resize(heads * blocks, 0.0);
        Ok(&mut self.mass)
    }

    /// Bytes at `blocks` blocks of `heads` query heads, `lists` numbers of each block and query head.
    fn most_bytes(blocks: usize, heads: usize, lists: usize) -> usize {
        // What is kept of each query head is counted with its lists.
        let (bounds, rest) = (2 * size_of::<Bound>(), lists.saturating_sub(2) * size_of::<f32>());
        let known = heads * (whole_words(blocks) * (bounds + rest) + lists * size_of::<Vec<f32>>());
        known + set_bytes(blocks) + heads * size_of::<Hint>() + size_of::<Self>()
    }

    /// True if the next step takes one pass on codes: the last one was flat, and came to an output.
    pub(crate) fn is_plain(&self) -> bool {
        self.flat && self.keys.is_empty() && !self.hints.is_empty()
    }

    fn bytes(&self) -> usize {
        let known: usize = self
            .delta
            .iter()
            .chain(&self.lambda)
            .map(|k| k.capacity() * size_of::<Bound>() + size_of::<Vec<Bound>>())
            .sum();
        let Terms { blocks, heads } = &self.terms;
        let terms = blocks.capacity() * size_of::<[f32; 4]>() + heads.capacity() * size_of::<f32>();
        let known = known + self.mass.capacity() * 4 + terms;
        known + self.keys.words().len() * 8 + self.hints.capacity() * size_of::<Hint>() + size_of::<Self>()
    }
}

/// Room for `length` elements in all, in steps of what callers ask for and not by doubling: `most_bytes` is what was reserved.
fn reserve_exact<T>(list: &mut Vec<T>, length: usize) -> Result<(), OutOfMemory> {
    let none = |_| OutOfMemory { bytes: length * size_of::<T>() };
    list.try_reserve_exact(length.saturating_sub(list.len())).map_err(none)
}

/// `blocks` rounded up to whole words of a bit set.
fn whole_words(blocks: usize) -> usize {
    blocks.next_multiple_of(64)
}

/// Most bytes of a set of blocks, which grows by doubling.
fn set_bytes(blocks: usize) -> usize {
    (2 * whole_words(blocks) / 8).max(32)
}

/// State of a live sequence.
#[derive(Debug)]
pub(crate) struct SequenceState {
    /// One table per KV group, all of the same length between steps.
    pub(crate) tables: Vec<BlockTable>,
    /// Value centres by strand ([`Group::strand`]), `[its KV heads][head_dim]`; empty until its first block closes.
    pub(crate) centres: Vec<Vec<f32>>,
    /// Of all KV heads of all layers, by strand: [`Group::memories`].
    pub(crate) heads: Vec<HeadMemory>,
    /// By strand: blocks that could not be coded (their scales overflow) and are always read from the originals.
    pub(crate) uncoded: Vec<BitSet>,
    /// Who decides levels, by strand; empty where nobody does.
    pub(crate) control: Vec<LayerControl>,
}

impl SequenceState {
    /// Without tokens; nobody has decided anything.
    pub(crate) fn new(groups: &[Group], config: &Config) -> Result<Self, Error> {
        let (strands, heads) = groups.last().map_or((0, 0), |last| (last.strands().end, last.all_memories().end));
        Ok(Self {
            tables: groups.iter().map(Group::table).collect::<Result<_, _>>().map_err(Error::from_table)?,
            centres: vec![Vec::new(); strands],
            heads: vec![HeadMemory::default(); heads],
            uncoded: vec![BitSet::default(); strands],
            control: LayerControl::all(config)?,
        })
    }

    /// Committed tokens.
    pub(crate) fn len(&self) -> usize {
        self.tables.first().map_or(0, BlockTable::len)
    }

    /// Swapped out.
    pub(crate) fn is_out(&self) -> bool {
        self.tables.iter().any(BlockTable::is_out)
    }

    /// Bytes of tables and memory.
    pub(crate) fn bytes(&self) -> usize {
        let table = |t: &BlockTable| BlockTable::bytes(t.room()) + size_of::<BlockTable>();
        let tables: usize = self.tables.iter().map(table).sum();
        let centres: usize = self.centres.iter().map(|c| c.len() * 4 + size_of::<Vec<f32>>()).sum();
        let uncoded: usize = self.uncoded.iter().map(|u| u.words().len() * 8 + size_of::<BitSet>()).sum();
        let control: usize = self.control.iter().map(LayerControl::bytes).sum();
        tables + centres + uncoded + control + self.heads.iter().map(HeadMemory::bytes).sum::<usize>()
    }

    /// The most that [`SequenceState::bytes`] can become, for one group of so many layers and KV heads whose tables have at most `room` of
    /// `max_blocks` blocks at once. Blocks without codes are a bit each, under their number in the sequence.
    pub(crate) fn most_bytes(
        config: &Config,
        (layers, kv_heads): (usize, usize),
        room: usize,
        max_blocks: usize,
        windowed: bool,
    ) -> usize {
        // Rows that are gathered from blocks that are seen in part count as blocks while they are read.
        let seen = if windowed { room + 3 } else { room };
        let geometry = &config.geometry;
        let (lists, control) = match &config.control {
            Some(control) => {
                let lists = if control.wants_terms() { 6 } else { 3 };
                (lists, LayerControl::most_bytes(config, control, max_blocks))
            }
            None => (2, 0),
        };
        let head = HeadMemory::most_bytes(seen, geometry.group(), lists) + geometry.head_dim * 4;
        let layer = control + size_of::<Vec<f32>>() + set_bytes(max_blocks) + size_of::<BitSet>();
        BlockTable::bytes(room) + size_of::<BlockTable>() + layers * (kv_heads * head + layer)
    }

    /// Renumbers the blocks of a group in what its heads remember: block `i` was `from[i]`, and nothing is known of `None`.
    pub(crate) fn renumber(&mut self, group: &Group, from: &[Option<usize>]) {
        for head in &mut self.heads[group.all_memories()] {
            head.renumber(from);
        }
    }

    /// Forgets what concerns blocks from `blocks` on, in one layer group.
    pub(crate) fn forget_from(&mut self, group: &Group, blocks: usize) {
        for layer in group.first..group.first + group.layers {
            let strand = group.strand(layer);
            self.uncoded[strand].resize(blocks);
            if let Some(control) = self.control.get_mut(strand) {
                control.cut(blocks);
            }
            if blocks == 0 {
                // No block was annotated with the centre; rows that are gone leave no trace in later bounds.
                self.centres[strand].clear();
            }
            for head in &mut self.heads[group.memories(layer)] {
                head.truncate(match group.fixed_blocks() {
                    Some(fixed) if blocks > fixed => fixed + blocks.saturating_sub(head.from.max(fixed)),
                    _ => blocks,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_remembered_as_no_less_and_little_more() {
        let mut seed = 7;
        for x in [0.0, 1.0, f32::MIN_POSITIVE, 1e-40, f32::MAX, 0.1, f32::INFINITY].into_iter().chain((0..10_000).map(
            |_| {
                seed = certkv_core::hash::splitmix64(seed);
                f32::from_bits(seed as u32 >> 1)
            },
        )) {
            if x.is_nan() {
                continue;
            }
            let kept = Bound::of(x).get();
            assert!(
                kept >= x && (kept <= x * (1.0 + 1.0 / 128.0) || x < f32::MIN_POSITIVE || kept == f32::INFINITY),
                "{x} {kept}"
            );
            assert_eq!(Bound::of(kept).get(), kept, "once is enough");
        }
        assert_eq!(Bound::of(f32::INFINITY), Bound::UNKNOWN);
    }

    /// A step that failed after its sweep leaves `flat` without an output to go by.
    #[test]
    fn a_head_without_an_output_is_not_plain() {
        let mut memory = HeadMemory { flat: true, ..HeadMemory::default() };
        memory.resize(3, 2).unwrap();
        assert!(!memory.is_plain());
        memory.hints.push(Hint { norm: 1.0, radius: 1.0 });
        assert!(memory.is_plain());
        memory.keys.insert(2);
        assert!(!memory.is_plain());
    }
}

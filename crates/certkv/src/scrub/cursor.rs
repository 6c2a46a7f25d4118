//! Each page of codes once a round, a few at a time: the tables of all sequences, then the cached units.
use certkv_control::BitSet;
use certkv_page::{BlockEntry, BlockTable, CachedUnit};

/// A block to look at: its group, its number in the sequence, its pages.
pub(crate) type Next = (usize, usize, BlockEntry);

/// Where the last call ended.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) at: Place,
    /// Pages of codes seen since the beginning, by group and arena.
    seen: Vec<Vec<BitSet>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// In the table of a sequence: its slot, group, place of the block.
    Sequence { slot: usize, group: usize, block: usize },
    /// At a cached unit: its place, and which of its blocks.
    Unit { place: usize, block: usize },
}

const START: Place = Place::Sequence { slot: 0, group: 0, block: 0 };

impl Default for Cursor {
    fn default() -> Self {
        Self { at: START, seen: Vec::new() }
    }
}

impl Cursor {
    /// Nothing more is to be seen of the sequences before this slot.
    pub(crate) fn pass(&mut self, slot: usize) {
        self.at = Place::Sequence { slot, group: 0, block: 0 };
    }

    /// There are no more sequences.
    pub(crate) fn pass_sequences(&mut self) {
        self.at = Place::Unit { place: 0, block: 0 };
    }

    /// The next block in the tables of the first sequence that has not been passed, which is in `slot`; `None` for one whose page was seen in this round,
    /// an open one, or the end of a table.
    pub(crate) fn next_of(&mut self, slot: usize, tables: &[BlockTable]) -> Option<Next> {
        let (group, block) = match self.at {
            Place::Sequence { slot: at, group, block } if at == slot => (group, block),
            _ => (0, 0),
        };
        let Some(table) = tables.get(group) else {
            self.pass(slot + 1);
            return None;
        };
        let Some((number, entry)) = table.numbered().nth(block) else {
            self.at = Place::Sequence { slot, group: group + 1, block: 0 };
            return None;
        };
        self.at = Place::Sequence { slot, group, block: block + 1 };
        self.is_new(group, entry).then_some((group, number, *entry))
    }

    /// The same of the first unit that has not been passed.
    pub(crate) fn next_of_unit<T>(&mut self, unit: &CachedUnit<T>) -> Option<Next> {
        let block = match self.at {
            Place::Unit { place, block } if place == unit.place => block,
            _ => 0,
        };
        let Some(next) = unit.blocks.get(block).copied() else {
            self.at = Place::Unit { place: unit.place + 1, block: 0 };
            return None;
        };
        self.at = Place::Unit { place: unit.place, block: block + 1 };
        self.is_new(next.0, &next.2).then_some(next)
    }

    /// All was seen.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Whether the page of codes of a block has not been seen yet; it has been from now on.
    fn is_new(&mut self, group: usize, entry: &BlockEntry) -> bool {
        let level = usize::from(entry.level);
        let (arena, page) = match (entry.packed, entry.swapped) {
            (Some(page), _) => (1 + level, page),
            (None, Some(swapped)) => (0, swapped.page),
            (None, None) => return false,
        };
        self.seen.resize_with(self.seen.len().max(group + 1), Vec::new);
        let seen = &mut self.seen[group];
        seen.resize_with(seen.len().max(arena + 1), BitSet::default);
        let (seen, page) = (&mut seen[arena], page.index as usize);
        if seen.capacity() <= page {
            seen.resize((page + 1).next_power_of_two());
        }
        let new = !seen.contains(page);
        seen.insert(page);
        new
    }
}

//! Each page of codes once a round, a few at a time.
use certkv_control::BitSet;
use certkv_page::BlockEntry;

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

impl Place {
    pub(crate) const fn unit(place: usize, block: usize) -> Self {
        Self::Unit { place, block }
    }
}

const START: Place = Place::Sequence { slot: 0, group: 0, block: 0 };

impl Default for Cursor {
    fn default() -> Self {
        Self { at: START, seen: Vec::new() }
    }
}

impl Cursor {
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Whether the page of codes of a block of one of `groups` groups has not been seen yet; it has been from now on.
    pub(crate) fn is_new(&mut self, groups: usize, group: usize, entry: &BlockEntry) -> bool {
        self.seen.resize_with(groups, Vec::new);
        let level = usize::from(entry.level);
        let (arena, page) = match (entry.packed, entry.swapped) {
            (Some(page), _) => (1 + level, page),
            (None, Some(swapped)) => (0, swapped.page),
            (None, None) => return false,
        };
        let Some(seen) = self.seen.get_mut(group) else { return false };
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

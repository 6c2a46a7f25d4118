//! How the sides of blocks are read, and what more could be read of them.
use crate::group::Side;
use certkv_control::BitSet;
use certkv_core::{OutOfMemory, RecordLayout};

/// How each block's sides are read in a pass. A side is in one set at most; one that is in none is read from its codes alone.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    /// Keys read from the originals.
    pub(crate) keys: BitSet,
    /// Values read from the originals.
    pub(crate) values: BitSet,
    /// Keys read with their residuals, math.md (2.23): a refinable format's.
    pub(crate) fine_keys: BitSet,
    /// Values read with their residuals.
    pub(crate) fine_values: BitSet,
    /// Values that are not read.
    pub(crate) skipped: BitSet,
}

impl Sets {
    /// Nothing but what has no codes, of `blocks` blocks.
    pub(crate) fn begin(&mut self, blocks: usize, uncoded: &BitSet) {
        for set in [&mut self.keys, &mut self.values] {
            set.copy_from(uncoded);
            set.resize(blocks);
        }
        for set in [&mut self.fine_keys, &mut self.fine_values, &mut self.skipped] {
            set.clear();
            set.resize(blocks);
        }
    }

    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        let Self { keys, values, fine_keys, fine_values, skipped } = self;
        [keys, values, fine_keys, fine_values, skipped].into_iter().try_for_each(|set| set.reserve(blocks))
    }

    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.keys.copy_from(&other.keys);
        self.values.copy_from(&other.values);
        self.fine_keys.copy_from(&other.fine_keys);
        self.fine_values.copy_from(&other.fine_values);
        self.skipped.copy_from(&other.skipped);
    }

    /// Those read exactly, and those read with residuals, of one side.
    pub(crate) fn of(&self, side: Side) -> (&BitSet, &BitSet) {
        match side {
            Side::Key => (&self.keys, &self.fine_keys),
            Side::Value => (&self.values, &self.fine_values),
        }
    }

    fn of_mut(&mut self, side: Side) -> (&mut BitSet, &mut BitSet) {
        match side {
            Side::Key => (&mut self.keys, &mut self.fine_keys),
            Side::Value => (&mut self.values, &mut self.fine_values),
        }
    }

    /// Bytes that are read of one side of `block`, whose layout is `l`.
    pub(crate) fn bytes_of(&self, l: &RecordLayout, side: Side, block: usize) -> usize {
        let (exact, fine) = self.of(side);
        let (codes, residuals) = match side {
            Side::Key => (l.key_bytes(), l.key_residuals.len()),
            Side::Value => (l.value_bytes(), l.value_residuals.len()),
        };
        match () {
            () if exact.contains(block) => l.original_side_bytes(),
            () if side == Side::Value && self.skipped.contains(block) => 0,
            () if fine.contains(block) => codes + residuals,
            () => codes,
        }
    }

    /// From now on `block`'s side is read from the originals.
    pub(crate) fn read_exactly(&mut self, side: Side, block: usize) {
        let (exact, fine) = self.of_mut(side);
        exact.insert(block);
        fine.remove(block);
    }

    /// From now on it is read with its residuals, unless it is read from the originals.
    pub(crate) fn read_finely(&mut self, side: Side, block: usize) {
        let (exact, fine) = self.of_mut(side);
        if !exact.contains(block) {
            fine.insert(block);
        }
    }
}

/// One step of one side of one block towards its originals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) side: Side,
    pub(crate) block: usize,
    /// From the originals; otherwise with residuals.
    pub(crate) exact: bool,
}

/// The items of a decision by number, which is the order of gains and costs: keys, then values; of a format with residuals first those
/// of them, for all blocks, then those of the originals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Items {
    pub(crate) blocks: usize,
    pub(crate) fine: bool,
}

impl Items {
    pub(crate) fn len(self) -> usize {
        2 * self.blocks * if self.fine { 2 } else { 1 }
    }

    /// Item `number`.
    pub(crate) fn get(self, number: usize) -> Item {
        let (part, block) = (number / self.blocks.max(1), number % self.blocks.max(1));
        let side = if part % 2 == 0 { Side::Key } else { Side::Value };
        Item { side, block, exact: !self.fine || part >= 2 }
    }

    /// Number of an item.
    pub(crate) fn number(self, item: Item) -> usize {
        let part = usize::from(item.side == Side::Value) + if self.fine && item.exact { 2 } else { 0 };
        part * self.blocks + item.block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_numbers_are_one_to_one() {
        for items in [Items { blocks: 5, fine: false }, Items { blocks: 7, fine: true }] {
            for number in 0..items.len() {
                let item = items.get(number);
                assert!(items.number(item) == number && item.block < items.blocks && (items.fine || item.exact));
            }
        }
    }

    #[test]
    fn a_side_is_read_one_way() {
        let mut sets = Sets::default();
        sets.begin(4, &BitSet::from_bools(&[false, true, false, false]));
        sets.read_finely(Side::Key, 1);
        sets.read_finely(Side::Key, 2);
        assert!(!sets.fine_keys.contains(1) && sets.fine_keys.contains(2));
        sets.read_exactly(Side::Key, 2);
        assert!(sets.keys.contains(2) && sets.fine_keys.is_empty() && sets.values.len() == 1);
    }
}

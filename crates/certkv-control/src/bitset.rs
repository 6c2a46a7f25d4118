//! A set of small numbers: the promoted sets `F` and `F_V` of one KV head, by block index.
use certkv_core::{OutOfMemory, reserve_total};

/// A set over `0..capacity`, one bit each. Indices at or above the capacity are never members.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BitSet {
    words: Vec<u64>,
    capacity: usize,
}

impl BitSet {
    /// No members, no capacity.
    pub const EMPTY: Self = Self { words: Vec::new(), capacity: 0 };

    /// An empty set over `0..capacity`.
    pub fn new(capacity: usize) -> Self {
        Self { words: vec![0; capacity.div_ceil(64)], capacity }
    }

    /// A set over `0..members.len()` that holds the positions of `true`.
    pub fn from_bools(members: &[bool]) -> Self {
        let mut set = Self::new(members.len());
        for (i, _) in members.iter().enumerate().filter(|(_, m)| **m) {
            set.insert(i);
        }
        set
    }

    /// Number of indices that can be members.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Asks for the memory of so large a capacity; the capacity stays.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve(&mut self, capacity: usize) -> Result<(), OutOfMemory> {
        reserve_total(&mut self.words, capacity.div_ceil(64))
    }

    /// Changes the capacity. Members below the new one stay; memory already held is reused.
    pub fn resize(&mut self, capacity: usize) {
        self.words.resize(capacity.div_ceil(64), 0);
        self.capacity = capacity;
        if let (Some(last), used @ 1..) = (self.words.last_mut(), capacity % 64) {
            *last &= (1 << used) - 1;
        }
    }

    /// Adds `i`; true if it was not a member. An index at or above the capacity is ignored (false).
    pub fn insert(&mut self, i: usize) -> bool {
        if i >= self.capacity {
            return false;
        }
        let (word, bit) = (&mut self.words[i / 64], 1 << (i % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Makes every index a member.
    pub fn insert_all(&mut self) {
        self.words.fill(u64::MAX);
        if let (Some(last), over) = (self.words.last_mut(), self.capacity % 64)
            && over > 0
        {
            *last = (1 << over) - 1;
        }
    }

    /// Removes `i`; true if it was a member.
    pub fn remove(&mut self, i: usize) -> bool {
        if i >= self.capacity {
            return false;
        }
        let (word, bit) = (&mut self.words[i / 64], 1 << (i % 64));
        let present = *word & bit != 0;
        *word &= !bit;
        present
    }

    /// True if `i` is a member.
    #[inline]
    pub fn contains(&self, i: usize) -> bool {
        i < self.capacity && self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Number of members in `range`.
    pub fn count_in(&self, range: core::ops::Range<usize>) -> usize {
        let words = self.words.iter().enumerate().skip(range.start / 64).take_while(|(at, _)| at * 64 < range.end);
        let masked = words.map(|(at, word)| {
            let first = range.start.saturating_sub(at * 64);
            let past = (range.end - at * 64).min(64);
            // `first` is below 64 and `past` at least 1, or the word is not in the range.
            if first < past { word & (u64::MAX << first) & (u64::MAX >> (64 - past)) } else { 0 }
        });
        masked.map(|word| word.count_ones() as usize).sum()
    }

    /// True if there is no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Removes all members and keeps the capacity.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds every member of `other` below this set's capacity.
    pub fn union_with(&mut self, other: &Self) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
        self.resize(self.capacity);
    }

    /// Removes every member of `other`.
    pub fn subtract(&mut self, other: &Self) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a &= !b;
        }
    }

    /// Becomes equal to `other`, capacity included, reusing memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.words.clone_from(&other.words);
        self.capacity = other.capacity;
    }

    /// Members in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, at: 0, left: self.words.first().copied().unwrap_or(0) }
    }

    /// The bits, 64 members to a word, lowest index in the lowest bit; bits at or above the capacity are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

impl<'a> IntoIterator for &'a BitSet {
    type Item = usize;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Members of a [`BitSet`] in ascending order.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    words: &'a [u64],
    at: usize,
    left: u64,
}

impl Iterator for Iter<'_> {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        while self.left == 0 {
            self.at += 1;
            self.left = *self.words.get(self.at)?;
        }
        let bit = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        Some(64 * self.at + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_tree_set(capacity in 0usize..200, ops in prop::collection::vec((0u8..3, 0usize..220), 0..80)) {
            let (mut a, mut b) = (BitSet::new(capacity), BTreeSet::new());
            for (op, i) in ops {
                match op {
                    0 => prop_assert_eq!(a.insert(i), i < capacity && b.insert(i)),
                    1 => prop_assert_eq!(a.remove(i), b.remove(&i)),
                    _ => prop_assert_eq!(a.contains(i), b.contains(&i)),
                }
            }
            prop_assert_eq!(a.iter().collect::<Vec<_>>(), b.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!((a.len(), a.is_empty()), (b.len(), b.is_empty()));
        }

        #[test]
        fn resizing_keeps_what_still_fits(members in prop::collection::btree_set(0usize..150, 0..40), to in 0usize..300) {
            let mut a = BitSet::new(150);
            members.iter().for_each(|&i| { a.insert(i); });
            let mut other = BitSet::new(300);
            members.iter().for_each(|&i| { other.insert(2 * i); });
            a.resize(to);
            prop_assert_eq!(a.iter().collect::<Vec<_>>(), members.iter().copied().filter(|&i| i < to).collect::<Vec<_>>());
            a.union_with(&other);
            prop_assert!(a.iter().all(|i| i < to));
            a.subtract(&other);
            prop_assert!(a.iter().all(|i| !other.contains(i)));
            a.copy_from(&other);
            prop_assert_eq!(&a, &other);
        }
    }

    #[test]
    fn all_are_those_below_the_capacity() {
        for capacity in [0, 1, 63, 64, 65, 130] {
            let mut set = BitSet::new(capacity);
            set.insert_all();
            assert_eq!(set.iter().collect::<Vec<_>>(), (0..capacity).collect::<Vec<_>>());
        }
    }

    #[test]
    fn from_bools_lists_positions() {
        let s = BitSet::from_bools(&[true, false, true]);
        assert_eq!((s.iter().collect::<Vec<_>>(), s.words()), (vec![0, 2], [5].as_slice()));
        assert_eq!(BitSet::default().iter().next(), None);
    }
}

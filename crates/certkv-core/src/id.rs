//! Plain-integer ids that carry a generation, so that a stale id is an error and never another owner's data.
use core::fmt;

/// Index of a layer, 0-based.
pub type LayerId = usize;

/// A page: slot `index` of its class, at `generation`. The generation moves on every time the slot is freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId {
    /// Slot in the slab of the page's class.
    pub index: u32,
    /// Generation of the slot when the page was allocated.
    pub generation: u32,
}

/// A sequence: slot and generation packed in 64 bits, as the C ABI passes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    /// Slot in the cache's sequence table.
    pub slot: u32,
    /// Generation of the slot when the sequence was created; never 0.
    pub generation: u32,
}

impl SequenceId {
    /// The id as one integer: generation in the high half. 0 is never a valid id.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The id from its integer form. Any integer is accepted here; the cache refuses ids that it never gave out.
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}@{}", self.index, self.generation)
    }
}

impl fmt::Debug for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}@{}", self.slot, self.generation)
    }
}
impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_ids_survive_the_integer_form() {
        let id = SequenceId { slot: 7, generation: u32::MAX };
        assert_eq!(SequenceId::from_bits(id.to_bits()), id);
    }
}

//! Plain-integer ids that carry a generation, so that a stale id is an error and never another owner's data.
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// Sequences that this process has created, in whichever cache: an id of one cache is unknown to every other.
static CREATED: AtomicU32 = AtomicU32::new(0);

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
    /// Which of the process's sequences it is; never 0.
    pub generation: u32,
}

impl SequenceId {
    /// The id of a sequence that is created in `slot`: no other cache of this process gives it out, nor this one again. (Numbers begin
    /// anew after 2^32 sequences: an id that was kept for so long may name another one.)
    pub fn fresh(slot: u32) -> Self {
        loop {
            let generation = CREATED.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            if generation != 0 {
                return Self { slot, generation };
            }
        }
    }

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
    fn no_id_is_given_out_twice_and_none_is_zero() {
        // The next but one is the last of all numbers.
        CREATED.store(u32::MAX - 2, Ordering::Relaxed);
        let ids: Vec<u64> = (0..4).map(|_| SequenceId::fresh(0).to_bits() >> 32).collect();
        assert_eq!(ids, [u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1, 2]);
    }

    #[test]
    fn sequence_ids_survive_the_integer_form() {
        let id = SequenceId { slot: 7, generation: u32::MAX };
        assert_eq!(SequenceId::from_bits(id.to_bits()), id);
    }
}

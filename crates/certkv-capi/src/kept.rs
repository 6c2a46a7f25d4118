//! What steps of a cache work in, kept from one to the next: a decode step asks the allocator for nothing.
use crate::rows::Rows;
use crate::tensor::Buffers;
use certkv::{Certificate, Chunk};
use parking_lot::Mutex;

/// Buffers of a step.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Records of an attend call in the engine's layout.
    pub(crate) certificates: Vec<Certificate>,
    pub(crate) rows: Rows,
    pub(crate) tensors: Buffers,
    /// Of the call that begins a step.
    pub(crate) chunks: Vec<Chunk>,
}

impl Kept {
    fn bytes(&self) -> usize {
        let lists =
            self.certificates.capacity() * size_of::<Certificate>() + self.chunks.capacity() * size_of::<Chunk>();
        lists + self.rows.bytes() + self.tensors.bytes()
    }
}

/// Those that no step has. As no budget counts them they are few and small: what prompts had is given back.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<Kept>>);

/// Most of them, one for each step that is open at once.
const MOST: usize = 4;
/// Most bytes of one: those of a batch of 64 sequences with records of 32 heads are a third of it.
const MOST_BYTES: usize = 1 << 20;

impl Spare {
    pub(crate) fn take(&self) -> Kept {
        self.0.lock().pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, kept: Kept) {
        let mut all = self.0.lock();
        if all.len() < MOST && kept.bytes() <= MOST_BYTES {
            all.push(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_small_ones_are_kept() {
        let spare = Spare::default();
        let of = |n: usize| Kept { certificates: Vec::with_capacity(n), ..Kept::default() };
        spare.give(of(MOST_BYTES / size_of::<Certificate>() + 1));
        assert_eq!(spare.take().certificates.capacity(), 0, "a prompt's");
        (1..=2 * MOST).for_each(|n| spare.give(of(n)));
        assert_eq!(spare.0.lock().len(), MOST);
        assert!(spare.take().certificates.capacity() >= MOST);
    }
}

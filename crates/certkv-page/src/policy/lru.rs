//! Least recently used.
use super::EvictionPolicy;
use super::list::{Links, Queue};
use certkv_core::OutOfMemory;

/// Evicts what was not used for longest. A long run of prompts that never come again flushes it; [`super::S3Fifo`] does
/// not let that happen.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    queue: Queue,
}

impl Lru {
    /// For an index of `entries` entries.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn create(entries: usize) -> Result<Self, OutOfMemory> {
        Ok(Self { links: Links::create(entries)?, queue: Queue::EMPTY })
    }

    /// Host bytes for an index of `entries` entries: for the ledger.
    pub const fn bytes(entries: usize) -> usize {
        Links::bytes(entries)
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, slot: u32, _: u64) {
        self.queue.push(&mut self.links, slot);
    }

    fn touch(&mut self, slot: u32) {
        self.queue.unlink(&mut self.links, slot);
        self.queue.push(&mut self.links, slot);
    }

    fn remove(&mut self, slot: u32) {
        self.queue.unlink(&mut self.links, slot);
    }

    fn victim(&mut self, idle: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..self.queue.len {
            let slot = self.queue.pop(&mut self.links)?;
            if idle(slot) {
                return Some(slot);
            }
            // In use this very moment: as recent as can be. It also keeps the next search from asking again.
            self.queue.push(&mut self.links, slot);
        }
        None
    }

    fn len(&self) -> usize {
        self.queue.len
    }
}

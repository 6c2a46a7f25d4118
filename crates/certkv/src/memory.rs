//! Bytes that a cache holds, and those that it has taken.
use crate::Cache;
use certkv_core::Class;

/// Bytes in use, by tier, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Packed pages in use: seals, codes, scales, summaries, padding.
    pub packed: usize,
    /// Tails and promoted sides in use (16-bit, device).
    pub scratch: usize,
    /// Block tables and per-head memory of live sequences.
    pub tables: usize,
    /// 16-bit originals in use, and codes of sequences that are swapped out (host).
    pub host: usize,
    /// Tokens held by live sequences; shared blocks count for each.
    pub tokens: usize,
}

impl MemoryUse {
    /// Device bytes: packed, scratch and tables.
    pub fn device(&self) -> usize {
        self.packed + self.scratch + self.tables
    }
}

impl Cache {
    /// Bytes in use now.
    pub fn memory(&self) -> MemoryUse {
        let mut memory = MemoryUse::default();
        for group in &self.groups {
            // A page that still waits for its fence occupies its slot.
            self.reclaim(group);
            let used = |pages: &certkv_page::PageAllocator| {
                let counts = pages.counts();
                counts.live + counts.retiring
            };
            memory.packed += group.sizes.of_packed(used(&group.pools.packed));
            memory.packed += group.sizes.of_lower(|at, _| used(&group.pools.levels[at]));
            memory.scratch += group.sizes.of_originals(used(&group.pools.tail));
            memory.scratch += group.scratch_bytes();
            memory.host += group.host_bytes(used(&group.pools.host));
            memory.host += group.sizes.of_packed(used(&group.pools.swap));
        }
        for (_, entry) in &*self.sequences.lock() {
            if let Some(state) = &entry.state {
                memory.tokens += state.len();
                memory.tables += state.bytes();
            }
        }
        memory
    }

    /// Reserved bytes by class (packed, scratch, tables, host) and the two limits (device, host).
    pub fn reserved(&self) -> ([usize; 4], (usize, usize)) {
        let ([packed, scratch, tables, host, _], [device_limit, host_limit, _]) =
            (self.ledger.books().used, self.ledger.limits());
        ([packed, scratch, tables, host], (device_limit, host_limit))
    }

    /// Bytes reserved for one class.
    pub fn reserved_for(&self, class: Class) -> usize {
        self.ledger.used(class)
    }
}

//! A cache on a GPU in numbers, as far as the host knows them.
use super::GpuCache;
use crate::counters::Kind;
use crate::prefix::Prefixes;
use crate::snapshot::{PageUse, Snapshot, bytes_of, taken};
use certkv_core::budget::{CLASSES, Class};

impl GpuCache {
    /// The cache in numbers, without a call to the driver. What only the device knows is `None`: outputs and bytes read
    /// ([`GpuCache::certificate_ring`] has the certificates), scratch ([`GpuCache::selection`] asks for it, and waits), stores of rows, which
    /// kernels make. Its waits are those for results, for chunks and for staging memory.
    ///
    /// Of scratch, bytes in use are those of open blocks: which slots hold copies, the device knows.
    ///
    /// Costs a few short locks, a walk over the live sequences and one allocation.
    pub fn snapshot(&self) -> Snapshot {
        let (s, pools) = (&self.core.sizes, &self.pools);
        let page_bytes: usize = s.of_layer.iter().map(|layer| layer.page_bytes).sum();
        let mut used = [0; CLASSES.len()];
        used[Class::Packed as usize] = taken(&pools.packed) * page_bytes;
        used[Class::Scratch as usize] = taken(&pools.tail) * s.layers * s.original_bytes;
        used[Class::Tables as usize] = self.table_bytes();
        used[Class::Host as usize] = taken(&pools.host) * s.layers * s.original_bytes + taken(&pools.swap) * page_bytes;
        let (classes, pools) = bytes_of(&self.ledger, &used);
        let mut waits = self.core.host.waits();
        waits += &self.ring.waits;
        Snapshot {
            pages: vec![PageUse {
                first_layer: 0,
                layers: s.layers,
                host: self.pools.host.counts(),
                packed: self.pools.packed.counts(),
                tail: self.pools.tail.counts(),
                swap: self.pools.swap.counts(),
            }],
            classes,
            pools,
            sequences: self.sequences.len(),
            busy: 0,
            tokens: self.sequences.iter().map(|(_, entry)| entry.table.len()).sum(),
            scratch: None,
            prefixes: self.prefixes.as_ref().map(Prefixes::used),
            spill: None,
            spills: None,
            fetches: None,
            stores: None,
            copies: self.core.host.moves(Kind::Copy),
            saves: self.core.host.moves(Kind::Save),
            restores: self.core.host.moves(Kind::Restore),
            swap_outs: self.core.host.moves(Kind::SwapOut),
            swap_ins: self.core.host.moves(Kind::SwapIn),
            outputs: None,
            read: None,
            waits,
        }
    }
}

//! A cache on a GPU in numbers, as far as the host knows them.
use super::GpuCache;
use super::spill::Spilled;
use crate::counters::Kind;
use crate::prefix::Prefixes;
use crate::snapshot::{PageUse, Snapshot, bytes_of, taken};
use certkv_core::budget::{CLASSES, Class};

impl GpuCache {
    /// The cache in numbers, without a call to the driver. What only the device knows is `None`: outputs and bytes read
    /// ([`GpuCache::certificate_ring`] has the certificates), scratch ([`GpuCache::selection`] asks for it, and waits). Its waits are those for results, for chunks and for staging memory.
    ///
    /// Of scratch, bytes in use are those of open blocks: which slots hold copies, the device knows.
    ///
    /// Costs a few short locks, a walk over the live sequences and one allocation.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_with(Vec::with_capacity(self.core.sizes.groups.len()))
    }

    /// The same in the place of an older one of this cache, without the allocation.
    pub fn refresh(&self, snapshot: &mut Snapshot) {
        *snapshot = self.snapshot_with(core::mem::take(&mut snapshot.pages));
    }

    fn snapshot_with(&self, mut pages: Vec<PageUse>) -> Snapshot {
        pages.clear();
        let s = &self.core.sizes;
        let mut used = [0; CLASSES.len()];
        used[Class::Tables as usize] = self.table_bytes();
        used[Class::Disk as usize] = self.ledger.used(Class::Disk);
        for (number, (group, pools)) in s.groups.iter().zip(&self.pools).enumerate() {
            let originals = group.layers.len() * s.original_bytes;
            used[Class::Packed as usize] += taken(&pools.packed) * group.page_bytes;
            let lower = pools.levels.iter().zip(s.levels.iter().skip(1));
            used[Class::Packed as usize] += lower.map(|(pages, level)| taken(pages) * level.page_bytes).sum::<usize>();
            used[Class::Scratch as usize] += taken(&pools.tail) * originals;
            used[Class::Host as usize] +=
                self.original_bytes(number, taken(&pools.host) * originals) + taken(&pools.swap) * group.page_bytes;
            pages.push(PageUse {
                first_layer: group.layers.first().copied().unwrap_or(0),
                layers: group.layers.len(),
                first_kv_head: 0,
                kv_heads: s.kv_heads,
                host: pools.host.counts(),
                packed: pools.packed.counts(),
                tail: pools.tail.counts(),
                swap: pools.swap.counts(),
            });
        }
        let (classes, pools) = bytes_of(&self.ledger, &used);
        let mut waits = self.core.host.waits();
        waits += &self.ring.waits;
        Snapshot {
            pages,
            classes,
            pools,
            sequences: self.sequences.len(),
            busy: 0,
            tokens: self.sequences.iter().map(|(_, entry)| entry.len()).sum(),
            scratch: None,
            prefixes: self.prefixes.as_ref().map(Prefixes::used),
            spill: self.spill.as_ref().map(Spilled::in_use),
            spills: self.spill.as_ref().map(|_| self.core.host.moves(Kind::Spill)),
            fetches: self.spill.as_ref().map(|_| self.core.host.moves(Kind::Fetch)),
            stores: Some(self.core.host.moves(Kind::Store)),
            copies: self.core.host.moves(Kind::Copy),
            saves: self.core.host.moves(Kind::Save),
            restores: self.core.host.moves(Kind::Restore),
            swap_outs: self.core.host.moves(Kind::SwapOut),
            swap_ins: self.core.host.moves(Kind::SwapIn),
            recodes: (!s.levels.is_empty()).then(|| self.core.host.moves(Kind::Recode)),
            outputs: None,
            read: None,
            saturated: None,
            rows: None,
            waits,
        }
    }
}

//! A cache in numbers, at one moment.
use crate::cache::Cache;
use crate::counters::{Kind, Moves, Outputs};
use crate::group::Group;
use crate::prefix::Prefixes;
use crate::sizes::SIDES;
use crate::{BytesRead, PrefixStats, Side, SpillUse};
use certkv_core::Histogram;
use certkv_core::budget::{CLASSES, Class, Ledger, POOLS, Pool, by_pool};
use certkv_page::{Counts, PageAllocator};
use certkv_tier::{Occupancy, Scratch, ScratchStats};

/// Pages of one KV group by where they are, each standing for a slot in all of its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageUse {
    /// First layer of the group.
    pub first_layer: usize,
    /// Its layers.
    pub layers: usize,
    /// The first of its KV heads.
    pub first_kv_head: usize,
    /// Its KV heads: all, but where the heads of a layer have formats of their own.
    pub kv_heads: usize,
    /// Originals.
    pub host: Counts,
    /// Full blocks' codes, at all levels.
    pub packed: Counts,
    /// Open blocks.
    pub tail: Counts,
    /// Codes of sequences that are swapped out.
    pub swap: Counts,
}

/// Bytes of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassUse {
    /// Which.
    pub class: Class,
    /// Of pages, slots and sequences in use. Of tables, what is reserved for every live sequence.
    pub used: usize,
    /// Reserved in the ledger.
    pub reserved: usize,
    /// The most that was ever reserved.
    pub peak: usize,
}

/// Bytes of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Which.
    pub pool: Pool,
    /// Reserved in the ledger.
    pub reserved: usize,
    /// The most that was ever reserved.
    pub peak: usize,
    /// The budget; `usize::MAX` for none.
    pub budget: usize,
}

/// Promoted sides of one kind, over all KV groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchUse {
    /// Keys or values.
    pub side: Side,
    /// Slots.
    pub slots: Occupancy,
    /// Look-ups, evictions, copies. A copy counts as filled or failed once somebody looked, not before.
    pub stats: ScratchStats,
    /// Bytes that were copied to scratch.
    pub filled_bytes: u64,
}

/// Cached prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixUse {
    /// Units cached.
    pub units: usize,
    /// Most units that can be.
    pub most: usize,
    /// Look-ups, hits, evictions. Ages are in look-ups and publications.
    pub stats: PrefixStats,
}

/// Everything that is counted. Counters begin with the cache and never go down.
///
/// Each number is right at some moment of the call; two numbers need not be of the same moment while other threads work. `None`: not
/// known without waiting for the device, or not there.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// By KV group.
    pub pages: Vec<PageUse>,
    /// In the order of [`CLASSES`].
    pub classes: [ClassUse; CLASSES.len()],
    /// In the order of [`POOLS`].
    pub pools: [PoolUse; POOLS.len()],
    /// Live sequences.
    pub sequences: usize,
    /// Of these, in a step that has not ended; their tokens are not counted.
    pub busy: usize,
    /// Tokens of the other sequences; shared blocks count for each.
    pub tokens: usize,
    /// Keys, then values; `None` without scratch, and on a GPU, where [`crate::gpu::GpuCache::selection`] asks the device.
    pub scratch: Option<[ScratchUse; 2]>,
    /// `None` where prefixes are not cached.
    pub prefixes: Option<PrefixUse>,
    /// Where originals are, over all KV groups; `None` where they are not spilled.
    pub spill: Option<SpillUse>,
    /// Originals of one block in one layer to the store, each with its bytes. `None` where they are not spilled.
    pub spills: Option<Moves>,
    /// What reads of originals lacked, from the store: each the bytes that one read brought. `None` where they are not spilled.
    pub fetches: Option<Moves>,
    /// Rows of one layer of one sequence to the host; on a GPU the blocks that a step has filled, in all layers, without rows that the host has itself. Each with its
    /// bytes.
    pub stores: Option<Moves>,
    /// Open blocks of forks and cuts, copied.
    pub copies: Moves,
    /// Sequences written to files.
    pub saves: Moves,
    /// Sequences read from files.
    pub restores: Moves,
    /// Sequences swapped out.
    pub swap_outs: Moves,
    /// Sequences swapped in.
    pub swap_ins: Moves,
    /// Blocks coded again at another level, each with the bytes of its page in one layer. `None` without levels.
    pub recodes: Option<Moves>,
    /// Outputs by what was shown of them. `None` on a GPU, whose certificates come by [`crate::gpu::GpuCache::certificate_ring`].
    pub outputs: Option<Outputs>,
    /// Bytes that decode steps read: of codes, and of 16-bit rows from scratch and from the host, open blocks with the latter. Once for the
    /// query heads that share a KV head. `None` on a GPU.
    pub read: Option<BytesRead>,
    /// Elements that a fixed scale could not reach ([`crate::Config::scales`]), each where it was coded. `None` without fixed scales.
    pub saturated: Option<u64>,
    /// Rows that decode steps read by themselves ([`crate::Certified::row_share`]), their bytes with those of `read`. `None` on a GPU.
    pub rows: Option<u64>,
    /// Times that the host waited for the device, in nanoseconds.
    pub waits: Histogram,
}

/// Pages that are not free to be used.
pub(crate) fn taken(pages: &PageAllocator) -> usize {
    let counts = pages.counts();
    counts.live + counts.retiring
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts { free: a.free + b.free, live: a.live + b.live, retiring: a.retiring + b.retiring, worn: a.worn + b.worn }
}

/// What the ledger says, with what is in use.
pub(crate) fn bytes_of(
    ledger: &Ledger,
    used: &[usize; CLASSES.len()],
) -> ([ClassUse; CLASSES.len()], [PoolUse; POOLS.len()]) {
    let (books, limits) = (ledger.books(), ledger.limits());
    let reserved = by_pool(&books.used);
    let class = |class: Class| {
        let at = class as usize;
        ClassUse { class, used: used[at], reserved: books.used[at], peak: books.peak[at] }
    };
    let pool = |pool: Pool| {
        let at = pool as usize;
        PoolUse { pool, reserved: reserved[at], peak: books.pool_peak[at], budget: limits[at] }
    };
    (CLASSES.map(class), POOLS.map(pool))
}

fn add(slots: &mut Occupancy, more: Occupancy) {
    slots.empty += more.empty;
    slots.named += more.named;
    slots.retiring += more.retiring;
}

impl Cache {
    /// The cache in numbers. Waits for nobody but the holders of short locks: not for a step, not for the device, which is not even
    /// asked (pages whose fence has passed count as retiring until somebody needs them).
    ///
    /// Costs a lock per page class, scratch side, ledger and index, one over all sequences for as long as their lengths take to add up
    /// (about 2 ns each), and one allocation.
    pub fn snapshot(&self) -> Snapshot {
        let (sequences, busy, tokens) = self.held();
        let mut used = [0; CLASSES.len()];
        for group in &self.groups {
            used[Class::Packed as usize] += group.sizes.of_packed(taken(&group.pools.packed));
            used[Class::Packed as usize] += group.sizes.of_lower(|at, _| taken(&group.pools.levels[at]));
            used[Class::Scratch as usize] += group.sizes.of_originals(taken(&group.pools.tail)) + group.scratch_seen();
            used[Class::Host as usize] += group.host_bytes(taken(&group.pools.host));
            used[Class::Host as usize] += group.sizes.of_packed(taken(&group.pools.swap));
        }
        used[Class::Disk as usize] = self.ledger.used(Class::Disk);
        used[Class::Tables as usize] = sequences * self.sequence_bytes;
        let (classes, pools) = bytes_of(&self.ledger, &used);
        let pages = |group: &Group| PageUse {
            first_layer: group.first,
            layers: group.layers,
            first_kv_head: group.first_head,
            kv_heads: group.kv_heads,
            host: group.pools.host.counts(),
            packed: group.pools.levels.iter().map(PageAllocator::counts).fold(group.pools.packed.counts(), sum),
            tail: group.pools.tail.counts(),
            swap: group.pools.swap.counts(),
        };
        Snapshot {
            pages: self.groups.iter().map(pages).collect(),
            classes,
            pools,
            sequences,
            busy,
            tokens,
            scratch: self.fills.as_ref().map(|_| SIDES.map(|side| self.scratch_use(side))),
            prefixes: self.prefixes.as_ref().map(Prefixes::used),
            spill: self.spill_use(),
            spills: self.spill.as_ref().map(|_| self.counters.moves(Kind::Spill)),
            fetches: self.spill.as_ref().map(|_| self.counters.moves(Kind::Fetch)),
            stores: Some(self.counters.moves(Kind::Store)),
            copies: self.counters.moves(Kind::Copy),
            saves: self.counters.moves(Kind::Save),
            restores: self.counters.moves(Kind::Restore),
            swap_outs: self.counters.moves(Kind::SwapOut),
            swap_ins: self.counters.moves(Kind::SwapIn),
            recodes: (!self.config.levels.is_empty()).then(|| self.counters.moves(Kind::Recode)),
            outputs: Some(self.counters.outputs()),
            read: Some(self.counters.read()),
            saturated: self.config.scales.as_ref().map(|_| self.counters.all_saturated()),
            rows: Some(self.counters.all_rows()),
            waits: self.counters.waits(),
        }
    }

    fn scratch_use(&self, side: Side) -> ScratchUse {
        let mut all = ScratchUse { side, slots: Occupancy::default(), stats: ScratchStats::default(), filled_bytes: 0 };
        for (group, scratch) in self.groups.iter().filter_map(|group| Some((group, group.scratch.as_ref()?))) {
            let (slots, stats) = scratch.glance(side);
            add(&mut all.slots, slots);
            all.stats = all.stats + stats;
            all.filled_bytes += stats.filled * group.layout.original_side_bytes() as u64;
        }
        all
    }
}

impl Group {
    /// Bytes of scratch that hold promoted sides or are about to, as far as anybody looked.
    fn scratch_seen(&self) -> usize {
        let used = |scratch: &Scratch| {
            let of = |side| scratch.glance(side).0;
            SIDES.map(of).iter().map(|slots| slots.named + slots.retiring).sum()
        };
        self.sizes.of_sides(self.scratch.as_ref().map_or(0, used))
    }
}

impl Snapshot {
    /// Of one class.
    pub const fn class(&self, class: Class) -> &ClassUse {
        &self.classes[class as usize]
    }

    /// Of one pool.
    pub const fn pool(&self, pool: Pool) -> &PoolUse {
        &self.pools[pool as usize]
    }
}

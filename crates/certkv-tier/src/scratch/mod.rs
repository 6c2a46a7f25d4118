//! Tier-0: the cache of promoted 16-bit block sides.
mod lease;
mod pool;
mod prefetch;
mod slots;

use crate::side::{Side, SideKey};
use certkv_core::Histogram;
use certkv_core::sync::{Arc, Mutex};
use certkv_device::{DeviceError, SimDevice, Stream};
use core::ops::{Add, Range};
use pool::Pool;
use prefetch::Work;

pub use lease::ScratchLease;
pub use prefetch::Offer;
pub use slots::{Census, Occupancy};

/// Sizes of a [`Scratch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchConfig {
    /// Key sides that fit.
    pub key_slots: u32,
    /// Value sides that fit.
    pub value_slots: u32,
    /// Bytes of one side of one block of one KV head.
    pub slot_bytes: usize,
}

/// One side to be brought in, and where its original lies.
#[derive(Debug, Clone)]
pub struct Item {
    /// Name of the side.
    pub key: SideKey,
    /// Slot of the original.
    pub slot: u32,
    /// Bytes of the slot: exactly one scratch slot long.
    pub range: Range<usize>,
    /// Tag that the original must carry, and that look-ups will check.
    pub tag: Option<u64>,
}

/// Counters of a [`Scratch`] since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScratchStats {
    /// Look-ups that found the side.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Those of the misses whose side was still being filled.
    pub pending: u64,
    /// Sides evicted to make room.
    pub evictions: u64,
    /// Sides brought in and seen to be complete.
    pub filled: u64,
    /// Sides that found no slot: all held, being filled, or spared.
    pub refused: u64,
    /// Sides whose copy failed, at once or later.
    pub failed: u64,
    /// Sides dropped because their page was retired.
    pub invalidated: u64,
    /// Over hits, the batches since the side was last asked for or read.
    pub age_at_hit: Histogram,
    /// The same over evictions.
    pub age_at_eviction: Histogram,
}

impl Add for ScratchStats {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self.age_at_hit += &other.age_at_hit;
        self.age_at_eviction += &other.age_at_eviction;
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            pending: self.pending + other.pending,
            evictions: self.evictions + other.evictions,
            filled: self.filled + other.filled,
            refused: self.refused + other.refused,
            failed: self.failed + other.failed,
            invalidated: self.invalidated + other.invalidated,
            age_at_hit: self.age_at_hit,
            age_at_eviction: self.age_at_eviction,
        }
    }
}

/// A cache of block sides in device memory, keys and values apart. It is a cache of Tier-2 only: losing an entry loses
/// nothing.
///
/// Every slot is Empty, Filling, Valid or Retiring. Only a Valid slot is ever found; a Filling one becomes Valid when
/// its fence was seen to have completed without error. A found side is pinned until its lease is dropped, and a pinned
/// slot is neither evicted nor refilled. One lock per side, never held while a copy is enqueued.
#[derive(Debug)]
pub struct Scratch {
    keys: Arc<Pool>,
    values: Arc<Pool>,
    /// Work area of `prefetch`, kept so that steady state allocates nothing.
    work: Mutex<Work>,
}

impl Scratch {
    /// An empty cache. Everything it will ever hold is taken now. A side with 0 slots caches nothing.
    ///
    /// # Errors
    /// As for [`SimDevice::arena`].
    pub fn new(device: &SimDevice, config: ScratchConfig) -> Result<Self, DeviceError> {
        let keys = Arc::new(Pool::new(device, "scratch keys", config.key_slots, config.slot_bytes)?);
        let values = Arc::new(Pool::new(device, "scratch values", config.value_slots, config.slot_bytes)?);
        Ok(Self { keys, values, work: Mutex::new(Work::default()) })
    }

    /// Finds a side and holds it for work that `stream` runs now.
    ///
    /// `None` if it is not there, or not yet there: the caller reads the original instead. The slot's next filling
    /// waits for everything that `stream` was given before the lease was dropped.
    ///
    /// # Errors
    /// What [`certkv_device::Arena::read_tagged`] says about the slot; nothing stays pinned then.
    pub fn lookup(&self, key: &SideKey, stream: &Stream) -> Result<Option<ScratchLease>, DeviceError> {
        let pool = self.pool(key.side);
        let Some(arena) = pool.arena() else { return Ok(None) };
        let Some((pin, tag)) = Pool::pin(pool, key, stream) else { return Ok(None) };
        let guard = match tag {
            Some(tag) => arena.read_tagged(pin.slot(), stream, tag),
            None => arena.read(pin.slot(), stream),
        }?;
        Ok(Some(ScratchLease::new(guard, pin, *key)))
    }

    /// Whether a look-up would find the side, without holding or counting it.
    pub fn contains(&self, key: &SideKey) -> bool {
        self.pool(key.side).contains(key)
    }

    /// Drops every side of a page: before the page is retired, so that nobody finds it afterwards. Sides that are held
    /// go when their leases do. The originals may be read by copies in flight until their lane's last fence.
    pub fn invalidate_page(&self, page: certkv_core::PageId) {
        self.keys.invalidate_page(page);
        self.values.invalidate_page(page);
    }

    /// Overwrites slots that hold a side which nobody can find any more with zeroes. Returns how many are left: those whose last copy or reader
    /// was not seen to have ended. A host access like [`certkv_device::Arena::erase`].
    pub fn erase(&self) -> usize {
        self.keys.erase() + self.values.erase()
    }

    /// Bytes that are not zero in slots that hold no side any more; `stream` reads all of them. For audits.
    ///
    /// # Errors
    /// As for [`certkv_device::Arena::read`].
    pub fn residue(&self, stream: &Stream) -> Result<usize, DeviceError> {
        Ok(self.keys.residue(stream)? + self.values.residue(stream)?)
    }

    /// Counters of one side.
    pub fn stats_of(&self, side: Side) -> ScratchStats {
        self.pool(side).stats()
    }

    /// Counters of both sides.
    pub fn stats(&self) -> ScratchStats {
        self.stats_of(Side::Key) + self.stats_of(Side::Value)
    }

    /// Looks at fills in flight and at slots that wait for their leases, and counts the slots of one side by state.
    pub fn census(&self, side: Side) -> Census {
        self.pool(side).census()
    }

    /// Slots of one side and its counters as they are: asks no fence, and costs one lock however many slots there are.
    pub fn glance(&self, side: Side) -> (Occupancy, ScratchStats) {
        self.pool(side).glance()
    }

    /// Sides of one kind that fit.
    pub fn slots_of(&self, side: Side) -> usize {
        self.pool(side).pins().len()
    }

    /// Bytes that a cache of these sizes takes: of the slots, and of the books about them.
    pub fn bytes(config: &ScratchConfig) -> (usize, usize) {
        let sides = [config.key_slots, config.value_slots].map(|slots| Pool::bytes(slots, config.slot_bytes));
        (sides[0].0.saturating_add(sides[1].0), sides[0].1.saturating_add(sides[1].1))
    }

    fn pool(&self, side: Side) -> &Arc<Pool> {
        match side {
            Side::Key => &self.keys,
            Side::Value => &self.values,
        }
    }

    #[cfg(test)]
    pub(crate) fn show_early(&self) {
        self.keys.show_early();
        self.values.show_early();
    }
}

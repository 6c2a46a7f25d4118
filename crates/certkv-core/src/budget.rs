//! One ledger in bytes that counts everything a cache holds.
use crate::sync::Mutex;
use core::fmt;

/// What a number of bytes is for. Device classes count against the device budget, `Host` and `Disk` against budgets of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Packed pages: codes, scales, summaries, headers, padding (Tier-1).
    Packed,
    /// 16-bit blocks in device memory: promoted keys, promoted values and open tails (Tier-0).
    Scratch,
    /// Block tables, masses, certificates and work areas.
    Tables,
    /// 16-bit originals (Tier-2).
    Host,
    /// Files of originals (Tier-3).
    Disk,
}

/// All classes, in the order of [`Books::used`] and [`ByClass`].
pub const CLASSES: [Class; 5] = [Class::Packed, Class::Scratch, Class::Tables, Class::Host, Class::Disk];

/// Bytes by class, in the order of [`CLASSES`].
pub type ByClass = [usize; CLASSES.len()];

/// A memory with a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pool {
    /// Device memory: packed, scratch and tables.
    Device,
    /// Host memory, pinned where there is a GPU.
    Host,
    /// Files.
    Disk,
}

/// All pools, in the order of [`ByPool`].
pub const POOLS: [Pool; 3] = [Pool::Device, Pool::Host, Pool::Disk];

/// Bytes by pool, in the order of [`POOLS`].
pub type ByPool = [usize; POOLS.len()];

impl Class {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            Self::Scratch => "scratch",
            Self::Tables => "tables",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }

    /// Whose budget it counts against.
    pub const fn pool(self) -> Pool {
        match self {
            Self::Packed | Self::Scratch | Self::Tables => Pool::Device,
            Self::Host => Pool::Host,
            Self::Disk => Pool::Disk,
        }
    }
}

impl Pool {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// Sums of bytes by class, by pool; what no machine holds stays at the largest number.
pub fn by_pool(classes: &ByClass) -> ByPool {
    let mut pools = [0usize; POOLS.len()];
    for (class, bytes) in CLASSES.iter().zip(classes) {
        let pool = &mut pools[class.pool() as usize];
        *pool = pool.saturating_add(*bytes);
    }
    pools
}

/// Bytes of a hash table that has room for `entries` entries of `T`: what the standard library takes for it, a power of two of
/// places at most seven eighths full, a byte beside each.
pub const fn hash_table_bytes<T>(entries: usize) -> usize {
    let places = match entries {
        0 => return 0,
        1..4 => 4,
        4..8 => 8,
        8..15 => 16,
        _ => (entries.saturating_mul(8) / 7).next_power_of_two(),
    };
    places.saturating_mul(size_of::<T>() + 1) + 16
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A reservation that would exceed the budget. Nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetExceeded {
    /// What the bytes were for.
    pub class: Class,
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes in use against the same budget.
    pub used: usize,
    /// The budget.
    pub limit: usize,
}

impl fmt::Display for BudgetExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, asked, used, limit } = self;
        write!(f, "budget: {asked} bytes for {class} with {used} of {limit} in use")
    }
}
impl std::error::Error for BudgetExceeded {}

/// What a ledger holds at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Books {
    /// Bytes in use by class.
    pub used: ByClass,
    /// The most that was ever in use, class by class; the peaks of two classes need not have come together.
    pub peak: ByClass,
    /// The most that was ever in use of each pool.
    pub pool_peak: ByPool,
}

/// Bytes in use by class, against one budget for the device, one for the host and one for disks.
///
/// A reservation either succeeds whole or changes nothing. One uncontended lock per call; never called per block read.
#[derive(Debug)]
pub struct Ledger {
    limits: ByPool,
    books: Mutex<Books>,
}

impl Ledger {
    /// Limits in bytes for device memory (packed + scratch + tables) and host memory. Disks are not used.
    pub fn new(device_limit: usize, host_limit: usize) -> Self {
        Self { limits: [device_limit, host_limit, 0], books: Mutex::new(Books::default()) }
    }

    /// The same with a limit for files.
    #[must_use]
    pub fn with_disk(mut self, limit: usize) -> Self {
        self.limits[Pool::Disk as usize] = limit;
        self
    }

    /// Takes `bytes` for `class`.
    ///
    /// # Errors
    /// [`BudgetExceeded`], and nothing is taken.
    pub fn reserve(&self, class: Class, bytes: usize) -> Result<(), BudgetExceeded> {
        let pool = class.pool() as usize;
        let mut books = self.books.lock();
        let (used, limit) = (by_pool(&books.used)[pool], self.limits[pool]);
        if bytes > limit.saturating_sub(used) {
            return Err(BudgetExceeded { class, asked: bytes, used, limit });
        }
        let now = books.used[class as usize] + bytes;
        books.used[class as usize] = now;
        books.peak[class as usize] = books.peak[class as usize].max(now);
        books.pool_peak[pool] = books.pool_peak[pool].max(used + bytes);
        Ok(())
    }

    /// Gives `bytes` of `class` back. More than was taken is a defect of the caller: it is clamped in release builds and
    /// asserted in debug builds.
    pub fn release(&self, class: Class, bytes: usize) {
        let mut books = self.books.lock();
        let slot = &mut books.used[class as usize];
        debug_assert!(*slot >= bytes, "{class}: {bytes} bytes given back, {slot} taken");
        *slot = slot.saturating_sub(bytes);
    }

    /// Bytes in use for one class.
    pub fn used(&self, class: Class) -> usize {
        self.books.lock().used[class as usize]
    }

    /// Bytes in use now, and the peaks.
    pub fn books(&self) -> Books {
        *self.books.lock()
    }

    /// The limits by pool.
    pub fn limits(&self) -> ByPool {
        self.limits
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn never_passes_a_limit_and_forgets_nothing() {
        let ledger = Ledger::new(100, 10);
        ledger.reserve(Class::Packed, 60).unwrap();
        ledger.reserve(Class::Scratch, 40).unwrap();
        let refused = ledger.reserve(Class::Tables, 1).unwrap_err();
        assert_eq!(refused, BudgetExceeded { class: Class::Tables, asked: 1, used: 100, limit: 100 });
        assert!(ledger.reserve(Class::Host, 11).is_err());
        ledger.release(Class::Packed, 60);
        let books = ledger.books();
        assert_eq!((books.used, books.peak), ([0, 40, 0, 0, 0], [60, 40, 0, 0, 0]));
        assert_eq!(books.pool_peak, [100, 0, 0], "what was refused was never in use");
        assert!(ledger.reserve(Class::Packed, usize::MAX).is_err());
    }

    #[test]
    fn files_count_against_their_own_budget() {
        assert!(Ledger::new(usize::MAX, usize::MAX).reserve(Class::Disk, 1).is_err(), "no disk unless one is given");
        let ledger = Ledger::new(5, 5).with_disk(100);
        ledger.reserve(Class::Disk, 100).unwrap();
        ledger.reserve(Class::Host, 5).unwrap();
        let refused = ledger.reserve(Class::Disk, 1).unwrap_err();
        assert_eq!((refused.limit, refused.used), (100, 100));
        assert_eq!(ledger.books().pool_peak, [0, 5, 100]);
    }

    #[test]
    fn classes_and_pools_are_listed_in_their_own_order() {
        assert!(CLASSES.iter().enumerate().all(|(i, class)| *class as usize == i));
        assert!(POOLS.iter().enumerate().all(|(i, pool)| *pool as usize == i));
        assert_eq!(by_pool(&[1, 2, 3, 4, 5]), [6, 4, 5]);
        assert_eq!(by_pool(&[usize::MAX, 2, 3, 4, 5])[0], usize::MAX);
    }
}

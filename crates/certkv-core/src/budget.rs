//! One ledger in bytes that counts everything a cache holds.
use crate::sync::Mutex;
use core::fmt;

/// What a number of bytes is for. Device classes count against the device budget, `Host` against the host budget.
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
}

/// All classes, in the order of [`Ledger::snapshot`].
pub const CLASSES: [Class; 4] = [Class::Packed, Class::Scratch, Class::Tables, Class::Host];

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Packed => "packed",
            Class::Scratch => "scratch",
            Class::Tables => "tables",
            Class::Host => "host",
        })
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

#[derive(Debug, Default, Clone, Copy)]
struct Books {
    used: [usize; 4],
    peak_device: usize,
    peak_host: usize,
}

/// Bytes in use by class, against one budget for the device and one for the host.
///
/// A reservation either succeeds whole or changes nothing. One uncontended lock per call; never called per block read.
#[derive(Debug)]
pub struct Ledger {
    device_limit: usize,
    host_limit: usize,
    books: Mutex<Books>,
}

impl Ledger {
    /// Limits in bytes for device memory (packed + scratch + tables) and host memory.
    pub fn new(device_limit: usize, host_limit: usize) -> Self {
        Self { device_limit, host_limit, books: Mutex::new(Books::default()) }
    }

    /// Takes `bytes` for `class`.
    ///
    /// # Errors
    /// [`BudgetExceeded`], and nothing is taken.
    pub fn reserve(&self, class: Class, bytes: usize) -> Result<(), BudgetExceeded> {
        let mut books = self.books.lock();
        let (used, limit) = match class {
            Class::Host => (books.used[3], self.host_limit),
            _ => (books.used[..3].iter().sum(), self.device_limit),
        };
        if bytes > limit.saturating_sub(used) {
            return Err(BudgetExceeded { class, asked: bytes, used, limit });
        }
        books.used[class as usize] += bytes;
        books.peak_device = books.peak_device.max(books.used[..3].iter().sum());
        books.peak_host = books.peak_host.max(books.used[3]);
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

    /// Bytes in use by class, in the order of [`CLASSES`], then the peaks of device and host.
    pub fn snapshot(&self) -> ([usize; 4], usize, usize) {
        let books = self.books.lock();
        (books.used, books.peak_device, books.peak_host)
    }

    /// The two limits: device, host.
    pub fn limits(&self) -> (usize, usize) {
        (self.device_limit, self.host_limit)
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
        assert_eq!(ledger.snapshot(), ([0, 40, 0, 0], 100, 0));
        assert!(ledger.reserve(Class::Packed, usize::MAX).is_err());
    }
}

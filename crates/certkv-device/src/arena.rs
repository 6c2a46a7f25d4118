//! An arena: equal slots of device (or host) memory, each with a borrow word and an owner tag.
use crate::borrow::BorrowWord;
use crate::error::{Access, ArenaId, DeviceError};
use crate::guard::{ReadGuard, WriteGuard};
use crate::memory::{ALIGN, Memory};
use crate::order::History;
use crate::sim::SimDevice;
use crate::stream::Stream;
use certkv_core::sync::atomic::{AtomicU64, Ordering};
use certkv_core::sync::{Arc, Mutex};
use certkv_core::{fail_point, planted};
use core::ops::Range;
use core::ptr::NonNull;

/// Tag of a slot that nobody claimed.
pub const UNTAGGED: u64 = 0;

/// What a poisoned slot is filled with: a NaN in f16, bf16, f32 and both FP8 formats.
const POISON: u8 = 0xff;

#[derive(Debug)]
struct Slot {
    borrow: BorrowWord,
    tag: AtomicU64,
}

/// The memory behind an [`Arena`]; queued copies and guards keep it alive.
#[derive(Debug)]
pub(crate) struct ArenaCore {
    pub(crate) id: ArenaId,
    pub(crate) device: u64,
    pub(crate) slot_bytes: usize,
    stride: usize,
    memory: Memory,
    slots: Vec<Slot>,
    /// Who touched each slot last; checked devices only.
    pub(crate) history: Option<Mutex<Vec<History>>>,
}

impl ArenaCore {
    pub(crate) fn check_slot(&self, slot: u32) -> Result<(), DeviceError> {
        if (slot as usize) < self.slots.len() {
            return Ok(());
        }
        Err(DeviceError::NoSuchSlot { arena: self.id, slot, slots: self.slots.len() as u32 })
    }

    pub(crate) fn check_range(&self, range: &Range<usize>) -> Result<(), DeviceError> {
        if range.start <= range.end && range.end <= self.slot_bytes {
            return Ok(());
        }
        let (start, end) = (range.start, range.end);
        Err(DeviceError::OutOfRange { arena: self.id, start, end, slot_bytes: self.slot_bytes })
    }

    /// Takes the borrow word of an existing slot.
    pub(crate) fn take(&self, slot: u32, access: Access) -> Result<(), DeviceError> {
        let word = &self.slots[slot as usize].borrow;
        let taken = if access.writes() { word.try_write() } else { word.try_read() };
        taken.map_err(|held| DeviceError::Conflict { arena: self.id, slot, wanted: access, held })
    }

    /// Gives the borrow word back.
    pub(crate) fn give(&self, slot: u32, access: Access) {
        let word = &self.slots[slot as usize].borrow;
        if access.writes() { word.end_write() } else { word.end_read() }
    }

    /// First byte of an existing slot. The caller holds the slot's borrow word while it dereferences the pointer.
    pub(crate) fn pointer(&self, slot: u32) -> NonNull<u8> {
        assert!((slot as usize) < self.slots.len());
        let offset = slot as usize * self.stride;
        let offset = if planted!(B14) { offset & 0xffff_ffff } else { offset };
        // SAFETY: the slot exists, so its offset, and a smaller one, lies inside the allocation of `slots * stride` bytes.
        unsafe { self.memory.base().add(offset) }
    }

    pub(crate) fn tag(&self, slot: u32) -> u64 {
        self.slots[slot as usize].tag.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tag(&self, slot: u32, tag: u64) {
        self.slots[slot as usize].tag.store(tag, Ordering::Relaxed);
    }

    pub(crate) fn check_tag(&self, slot: u32, expected: u64) -> Result<(), DeviceError> {
        let found = self.tag(slot);
        if found == expected {
            return Ok(());
        }
        Err(DeviceError::WrongContent { arena: self.id, slot, expected, found })
    }

    fn fill(&self, slot: u32, byte: u8) {
        // SAFETY: the slot exists (`pointer` checks), is `slot_bytes` long, and the caller holds its write borrow.
        unsafe { self.pointer(slot).as_ptr().write_bytes(byte, self.slot_bytes) }
        self.set_tag(slot, UNTAGGED);
    }
}

/// Slots of equal size in one zeroed, lazily mapped, 64-byte aligned allocation. Addresses never move. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Arena {
    pub(crate) device: SimDevice,
    pub(crate) core: Arc<ArenaCore>,
}

impl Arena {
    pub(crate) fn new(
        device: &SimDevice,
        name: &'static str,
        slots: u32,
        slot_bytes: usize,
    ) -> Result<Self, DeviceError> {
        fail_point!("device.arena.alloc")?;
        let refused = DeviceError::ArenaSize { name, slots, slot_bytes };
        if slots == 0 || slot_bytes == 0 {
            return Err(refused);
        }
        let stride = slot_bytes.checked_next_multiple_of(ALIGN).ok_or(refused)?;
        let bytes = stride.checked_mul(slots as usize).filter(|&n| n <= isize::MAX as usize - ALIGN).ok_or(refused)?;
        let none = DeviceError::OutOfMemory { name, bytes };
        let memory = match device.memory() {
            None => Memory::zeroed(bytes),
            Some(source) => Memory::zeroed_from(source, bytes),
        };
        let memory = memory.ok_or(none)?;
        let mut words = Vec::new();
        words.try_reserve_exact(slots as usize).map_err(|_| none)?;
        words.extend((0..slots).map(|_| Slot { borrow: BorrowWord::new(), tag: AtomicU64::new(UNTAGGED) }));
        let history = if device.checks() {
            let mut slots_seen = Vec::new();
            slots_seen.try_reserve_exact(slots as usize).map_err(|_| none)?;
            slots_seen.extend((0..slots).map(|_| History::default()));
            Some(Mutex::new(slots_seen))
        } else {
            None
        };
        let id = ArenaId { name, index: device.next_arena() };
        let core = ArenaCore { id, device: device.id(), slot_bytes, stride, memory, slots: words, history };
        Ok(Self { device: device.clone(), core: Arc::new(core) })
    }

    /// Name and number, as errors show them.
    pub fn id(&self) -> ArenaId {
        self.core.id
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.core.slots.len() as u32
    }

    /// Usable bytes per slot.
    pub fn slot_bytes(&self) -> usize {
        self.core.slot_bytes
    }

    /// Bytes of the slots of an arena, padded as they lie.
    pub const fn padded_bytes(slots: usize, slot_bytes: usize) -> usize {
        match slot_bytes.checked_next_multiple_of(ALIGN) {
            Some(stride) => slots.saturating_mul(stride),
            None => usize::MAX,
        }
    }

    /// Bytes of the words beside them: who holds a slot, and whose it is. What a checked device notes besides is not counted.
    pub const fn book_bytes(slots: usize) -> usize {
        slots.saturating_mul(size_of::<Slot>())
    }

    /// Shared access to a slot for work that `stream` runs now. Everything ordered before it on the stream has run.
    ///
    /// Costs one compare-exchange, one reference count, and the same again when dropped.
    ///
    /// # Errors
    /// `NoSuchSlot`, `Foreign`, `Conflict` with a writer; on checked devices `Unordered`.
    pub fn read(&self, slot: u32, stream: &Stream) -> Result<ReadGuard, DeviceError> {
        self.device.acquire(&self.core, slot, stream, Access::Read, None)?;
        Ok(ReadGuard::new(self, slot, stream))
    }

    /// As [`Arena::read`], if the slot still carries the tag `expected`.
    ///
    /// # Errors
    /// As for `read`, and `WrongContent`.
    pub fn read_tagged(&self, slot: u32, stream: &Stream, expected: u64) -> Result<ReadGuard, DeviceError> {
        self.device.acquire(&self.core, slot, stream, Access::Read, Some(expected))?;
        Ok(ReadGuard::new(self, slot, stream))
    }

    /// Exclusive access to a slot for work that `stream` runs now.
    ///
    /// # Errors
    /// `NoSuchSlot`, `Foreign`, `Conflict` with readers or a writer; on checked devices `Unordered`.
    pub fn write(&self, slot: u32, stream: &Stream) -> Result<WriteGuard, DeviceError> {
        self.device.acquire(&self.core, slot, stream, Access::Write, None)?;
        Ok(WriteGuard::new(self, slot, stream))
    }

    /// As [`Arena::write`], if the slot still carries the tag `expected`: rows are added to an open block.
    ///
    /// # Errors
    /// As for `write`, and `WrongContent`.
    pub fn write_tagged(&self, slot: u32, stream: &Stream, expected: u64) -> Result<WriteGuard, DeviceError> {
        self.device.acquire(&self.core, slot, stream, Access::Write, Some(expected))?;
        Ok(WriteGuard::new(self, slot, stream))
    }

    /// Owner tag of a slot.
    ///
    /// # Errors
    /// `NoSuchSlot`.
    pub fn tag(&self, slot: u32) -> Result<u64, DeviceError> {
        self.core.check_slot(slot)?;
        Ok(self.core.tag(slot))
    }

    /// Claims a slot that no queued operation touches. A new owner that writes through a guard should prefer
    /// [`WriteGuard::set_tag`], which is ordered like the write itself.
    ///
    /// # Errors
    /// `NoSuchSlot`.
    pub fn set_tag(&self, slot: u32, tag: u64) -> Result<(), DeviceError> {
        self.core.check_slot(slot)?;
        self.core.set_tag(slot, tag);
        Ok(())
    }

    /// Fills a freed slot with NaN patterns and clears its tag, so that a stale reader cannot pass unnoticed.
    ///
    /// A host access: the slot's last use must have been seen to have passed.
    ///
    /// # Errors
    /// `NoSuchSlot`, `Conflict`; on checked devices `Unordered`.
    pub fn poison(&self, slot: u32) -> Result<(), DeviceError> {
        self.fill(slot, POISON)
    }

    /// Zeroes a freed slot and clears its tag: no residue for the next owner. A host access like [`Arena::poison`].
    ///
    /// # Errors
    /// As for `poison`.
    pub fn erase(&self, slot: u32) -> Result<(), DeviceError> {
        self.fill(slot, 0)
    }

    fn fill(&self, slot: u32, byte: u8) -> Result<(), DeviceError> {
        self.device.acquire_for_host(&self.core, slot)?;
        self.core.fill(slot, byte);
        self.core.give(slot, Access::Fill);
        Ok(())
    }

    /// Whether two handles name the same memory.
    pub fn same(&self, other: &Arena) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Whether any guard or running copy holds the slot now. For assertions; the answer may be old when it arrives.
    pub fn is_held(&self, slot: u32) -> bool {
        self.core.slots.get(slot as usize).is_some_and(|s| s.borrow.held().is_some())
    }
}

//! One side's slots, their memory and their pins.
use crate::scratch::ScratchStats;
use crate::scratch::lease::Pin;
use crate::scratch::slots::{Census, Occupancy, Slots};
use crate::side::SideKey;
use certkv_core::PageId;
use certkv_core::sync::atomic::{AtomicU32, Ordering};
use certkv_core::sync::{Arc, Mutex, MutexGuard};
use certkv_device::{Arena, DeviceError, SimDevice, Stream};

#[derive(Debug)]
pub(crate) struct Pool {
    /// `None` if the side has no slots.
    arena: Option<Arena>,
    /// Leases per slot. Counted up under the lock only, so that a slot seen unpinned under the lock stays so; counted
    /// down without it.
    pins: Vec<AtomicU32>,
    slots: Mutex<Slots>,
}

impl Pool {
    pub(crate) fn new(device: &SimDevice, name: &'static str, slots: u32, bytes: usize) -> Result<Self, DeviceError> {
        let arena = if slots == 0 { None } else { Some(device.arena(name, slots, bytes)?) };
        let none = |_| DeviceError::OutOfMemory { name, bytes: slots as usize * size_of::<Slots>() };
        let mut pins = Vec::new();
        pins.try_reserve_exact(slots as usize).map_err(none)?;
        pins.extend((0..slots).map(|_| AtomicU32::new(0)));
        Ok(Self { arena, pins, slots: Mutex::new(Slots::new(slots).map_err(none)?) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    pub(crate) fn arena(&self) -> Option<&Arena> {
        self.arena.as_ref()
    }

    pub(crate) fn pins(&self) -> &[AtomicU32] {
        &self.pins
    }

    /// Pins a valid side for `stream`.
    pub(crate) fn pin(pool: &Arc<Self>, key: &SideKey, stream: &Stream) -> Option<(Pin, Option<u64>)> {
        let mut slots = pool.lock();
        let (slot, tag) = slots.find(key, stream, &pool.pins)?;
        pool.pins[slot as usize].fetch_add(1, Ordering::Relaxed);
        drop(slots);
        Some((Pin::counted(pool.clone(), slot), tag))
    }

    /// Release: the lease's reads happen before an eviction that sees the count.
    pub(crate) fn unpin(&self, slot: u32) {
        self.pins[slot as usize].fetch_sub(1, Ordering::Release);
    }

    pub(crate) fn contains(&self, key: &SideKey) -> bool {
        self.lock().contains(key, &self.pins)
    }

    pub(crate) fn invalidate_page(&self, page: PageId) {
        self.lock().invalidate_page(page, &self.pins);
    }

    /// Erases free slots whose last use was seen to have ended. How many are left.
    pub(crate) fn erase(&self) -> usize {
        let Some(arena) = &self.arena else { return 0 };
        let mut slots = self.lock();
        slots.settle(&self.pins);
        let mut left = Vec::new();
        while let Some(slot) = slots.take_soiled() {
            // Nobody else has it, and nothing is written under the lock.
            drop(slots);
            let done = arena.erase(slot).is_ok();
            slots = self.lock();
            if done { slots.erased(slot, true) } else { left.push(slot) }
        }
        left.iter().for_each(|slot| slots.erased(*slot, false));
        left.len()
    }

    /// Bytes that are not zero in free slots.
    pub(crate) fn residue(&self, stream: &Stream) -> Result<usize, DeviceError> {
        let Some(arena) = &self.arena else { return Ok(0) };
        self.lock().free_slots().try_fold(0, |sum, slot| Ok(sum + arena.read(slot, stream)?.residue()))
    }

    pub(crate) fn stats(&self) -> ScratchStats {
        self.lock().stats
    }

    pub(crate) fn census(&self) -> Census {
        let mut slots = self.lock();
        slots.settle(&self.pins);
        slots.census(&self.pins)
    }

    pub(crate) fn glance(&self) -> (Occupancy, ScratchStats) {
        let slots = self.lock();
        (slots.occupancy(), slots.stats)
    }

    /// Bytes of so many slots, and of the books about them.
    pub(crate) fn bytes(slots: u32, bytes: usize) -> (usize, usize) {
        if slots == 0 {
            return (0, 0);
        }
        let sides = Arena::padded_bytes(slots as usize, bytes);
        let pins = slots as usize * size_of::<AtomicU32>();
        (sides, Arena::book_bytes(slots as usize).saturating_add(pins).saturating_add(Slots::bytes(slots as usize)))
    }

    #[cfg(test)]
    pub(crate) fn show_early(&self) {
        self.lock().early = true;
    }
}

//! Leases: a side that was found stays where it is until they are dropped.
use crate::scratch::pool::Pool;
use crate::side::SideKey;
use certkv_core::sync::Arc;
use certkv_device::ReadGuard;

/// One pin of a slot.
#[derive(Debug)]
pub(crate) struct Pin {
    pool: Arc<Pool>,
    slot: u32,
}

impl Pin {
    /// Wraps a pin that was already counted.
    pub(crate) fn counted(pool: Arc<Pool>, slot: u32) -> Self {
        Self { pool, slot }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pool.unpin(self.slot);
    }
}

/// A promoted block side, held for one stream. Drop it before a fence is recorded on that stream.
#[derive(Debug)]
pub struct ScratchLease {
    // Dropped in this order: a slot without pins must have no readers.
    guard: ReadGuard,
    _pin: Pin,
    key: SideKey,
}

impl ScratchLease {
    pub(crate) fn new(guard: ReadGuard, pin: Pin, key: SideKey) -> Self {
        Self { guard, _pin: pin, key }
    }

    /// Name of the side.
    pub fn key(&self) -> SideKey {
        self.key
    }

    /// The rows `[block][head_dim]`, as 16-bit words.
    #[inline]
    pub fn words(&self) -> &[u16] {
        self.guard.words()
    }

    /// The rows, as bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.guard.bytes()
    }
}

//! Access guards: the only way to the bytes of a slot.
use crate::arena::{Arena, ArenaCore};
use crate::error::Access;
use crate::stream::Stream;
use certkv_core::sync::Arc;
use certkv_core::sync::atomic::{AtomicU32, Ordering};
use core::slice;

/// The borrow that both guards hold; gives it back when dropped.
#[derive(Debug)]
struct Borrow {
    arena: Arc<ArenaCore>,
    slot: u32,
    access: Access,
    /// Guards alive on the stream, counted on checked devices.
    live: Option<Arc<AtomicU32>>,
}

impl Borrow {
    fn new(arena: &Arena, slot: u32, stream: &Stream, access: Access) -> Self {
        let live = stream.live.clone();
        if let Some(live) = &live {
            live.fetch_add(1, Ordering::Relaxed);
        }
        Self { arena: arena.core.clone(), slot, access, live }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is initialised memory of `slot_bytes` bytes, kept alive by `arena`; the borrow word, which
        // this value holds, excludes writers (or everyone, if this is the writer) for as long as `self` lives.
        unsafe { slice::from_raw_parts(self.arena.pointer(self.slot).as_ptr(), self.arena.slot_bytes) }
    }

    #[inline]
    fn typed<T: Plain>(&self) -> &[T] {
        let bytes = self.bytes();
        // SAFETY: slots are 64-byte aligned, `T` is an integer or float of at most 4 bytes for which every bit pattern
        // is a value, and the length is rounded down to whole elements of the borrowed bytes.
        unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
    }

    #[inline]
    fn typed_mut<T: Plain>(&mut self) -> &mut [T] {
        debug_assert!(self.access.writes());
        let (pointer, len) = (self.arena.pointer(self.slot), self.arena.slot_bytes / size_of::<T>());
        // SAFETY: as in `typed`; only `WriteGuard` calls this, so the borrow word excludes every other access, and
        // `&mut self` excludes other slices of this guard.
        unsafe { slice::from_raw_parts_mut(pointer.as_ptr().cast(), len) }
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        self.arena.give(self.slot, self.access);
        if let Some(live) = &self.live {
            live.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Element types for which every bit pattern is a value.
trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for f32 {}

/// Shared access to one slot. Owns what it needs, so it can be stored and sent to other threads.
#[derive(Debug)]
pub struct ReadGuard(Borrow);

/// Exclusive access to one slot.
#[derive(Debug)]
pub struct WriteGuard(Borrow);

impl ReadGuard {
    pub(crate) fn new(arena: &Arena, slot: u32, stream: &Stream) -> Self {
        Self(Borrow::new(arena, slot, stream, Access::Read))
    }

    /// The slot's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The slot as 16-bit words; an odd last byte is left out.
    #[inline]
    pub fn words(&self) -> &[u16] {
        self.0.typed()
    }

    /// The slot as single-precision numbers; bytes short of a whole one are left out.
    #[inline]
    pub fn floats(&self) -> &[f32] {
        self.0.typed()
    }

    /// Bytes of the slot that are not zero: 0 of one that was erased.
    pub fn residue(&self) -> usize {
        self.bytes().iter().filter(|byte| **byte != 0).count()
    }

    /// The slot.
    pub fn slot(&self) -> u32 {
        self.0.slot
    }

    /// Owner tag of the slot.
    pub fn tag(&self) -> u64 {
        self.0.arena.tag(self.0.slot)
    }
}

impl WriteGuard {
    pub(crate) fn new(arena: &Arena, slot: u32, stream: &Stream) -> Self {
        Self(Borrow::new(arena, slot, stream, Access::Write))
    }

    /// The slot's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The slot's bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.typed_mut()
    }

    /// The slot as 16-bit words.
    #[inline]
    pub fn words(&self) -> &[u16] {
        self.0.typed()
    }

    /// The slot as 16-bit words, to be changed.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u16] {
        self.0.typed_mut()
    }

    /// The slot as single-precision numbers.
    #[inline]
    pub fn floats(&self) -> &[f32] {
        self.0.typed()
    }

    /// The slot as single-precision numbers, to be changed.
    #[inline]
    pub fn floats_mut(&mut self) -> &mut [f32] {
        self.0.typed_mut()
    }

    /// The slot.
    pub fn slot(&self) -> u32 {
        self.0.slot
    }

    /// Claims the slot for a new owner, in order with this write.
    pub fn set_tag(&mut self, tag: u64) {
        self.0.arena.set_tag(self.0.slot, tag);
    }
}

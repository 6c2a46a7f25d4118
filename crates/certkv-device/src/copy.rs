//! Copies between slots, alone and in batches.
use crate::arena::{Arena, ArenaCore, UNTAGGED};
use crate::error::{Access, DeviceError};
use crate::sim::SimDevice;
use crate::stream::Stream;
use certkv_core::fail_point;
use certkv_core::sync::Arc;
use core::fmt;
use core::ops::Range;

/// Where a copy reads.
#[derive(Debug, Clone)]
pub struct Src<'a> {
    /// Arena of the source.
    pub arena: &'a Arena,
    /// Slot of the source.
    pub slot: u32,
    /// Bytes of the slot.
    pub range: Range<usize>,
    /// Tag that the slot must carry when the copy runs; a mismatch makes the copy fail.
    pub expect: Option<u64>,
}

/// Where a copy writes. The destination slot takes over the source's tag, unless the source is untagged.
#[derive(Debug, Clone, Copy)]
pub struct Dst<'a> {
    /// Arena of the destination.
    pub arena: &'a Arena,
    /// Slot of the destination.
    pub slot: u32,
    /// First byte written.
    pub offset: usize,
}

/// Repetition of a copy: `count` rows, `pitch` bytes from one row's start to the next on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy2d {
    /// Rows.
    pub count: usize,
    /// Bytes between row starts.
    pub pitch: usize,
}

/// The copies of a batch that did not start. The others did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchError {
    /// Index in the batch and reason, ascending.
    pub failed: Vec<(usize, DeviceError)>,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} copies did not start", self.failed.len())?;
        match self.failed.first() {
            Some((i, error)) => write!(f, ", first item {i}: {error}"),
            None => Ok(()),
        }
    }
}
impl std::error::Error for BatchError {}

/// The numbers of a copy, checked against both slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) src_slot: u32,
    pub(crate) dst_slot: u32,
    src_offset: usize,
    dst_offset: usize,
    width: usize,
    rows: Copy2d,
    expect: Option<u64>,
}

impl Plan {
    fn new(device: &SimDevice, src: &Src<'_>, dst: &Dst<'_>, rows: Copy2d) -> Result<Self, DeviceError> {
        let (from, to) = (&*src.arena.core, &*dst.arena.core);
        if from.device != device.id() || to.device != device.id() {
            return Err(DeviceError::Foreign);
        }
        from.check_slot(src.slot)?;
        to.check_slot(dst.slot)?;
        from.check_range(&src.range)?;
        if Arc::ptr_eq(&src.arena.core, &dst.arena.core) && src.slot == dst.slot {
            return Err(DeviceError::SameSlot { arena: from.id, slot: src.slot });
        }
        let width = src.range.len();
        // Bytes from the first row's start to the last row's end; overflow fails the range checks below.
        let span = match rows.count {
            0 => Some(0),
            n => rows.pitch.checked_mul(n - 1).and_then(|skip| skip.checked_add(width)),
        };
        let end = |start: usize| span.and_then(|s| start.checked_add(s)).unwrap_or(usize::MAX);
        from.check_range(&(src.range.start..end(src.range.start)))?;
        to.check_range(&(dst.offset..end(dst.offset)))?;
        Ok(Self {
            src_slot: src.slot,
            dst_slot: dst.slot,
            src_offset: src.range.start,
            dst_offset: dst.offset,
            width,
            rows,
            expect: src.expect,
        })
    }

    /// Moves the bytes now. Both slots are held for the duration; a slot held by someone else fails the copy.
    pub(crate) fn run(&self, from: &ArenaCore, to: &ArenaCore) -> Result<(), DeviceError> {
        from.take(self.src_slot, Access::CopyFrom)?;
        let result = to.take(self.dst_slot, Access::CopyTo).and_then(|()| {
            let moved = self.move_bytes(from, to);
            to.give(self.dst_slot, Access::CopyTo);
            moved
        });
        from.give(self.src_slot, Access::CopyFrom);
        result
    }

    fn move_bytes(&self, from: &ArenaCore, to: &ArenaCore) -> Result<(), DeviceError> {
        if let Some(expected) = self.expect {
            from.check_tag(self.src_slot, expected)?;
        }
        let fault = fail_point!("device.copy.run");
        // A copy that fails half-way leaves a torn destination, as hardware may.
        let rows = if fault.is_ok() { self.rows.count } else { self.rows.count / 2 };
        for row in 0..rows {
            let skip = row * self.rows.pitch;
            let (src, dst) = (from.pointer(self.src_slot), to.pointer(self.dst_slot));
            // SAFETY: `new` checked that every row lies inside its slot; the slots are different allocations or
            // different slots of one, so they do not overlap; `run` holds both borrow words.
            unsafe {
                let src = src.as_ptr().add(self.src_offset + skip);
                let dst = dst.as_ptr().add(self.dst_offset + skip);
                src.copy_to_nonoverlapping(dst, self.width);
            }
        }
        fault?;
        match from.tag(self.src_slot) {
            UNTAGGED => {}
            tag => to.set_tag(self.dst_slot, tag),
        }
        Ok(())
    }
}

/// A copy that waits in a stream.
#[derive(Debug)]
pub(crate) struct QueuedCopy {
    pub(crate) from: Arc<ArenaCore>,
    pub(crate) to: Arc<ArenaCore>,
    pub(crate) plan: Plan,
}

impl SimDevice {
    /// Enqueues a copy of `src.range` to `dst.offset`.
    ///
    /// # Errors
    /// `NoSuchSlot`, `OutOfRange`, `SameSlot`, `Foreign`, `Injected`; on checked devices `Unordered`; on eager devices
    /// also what happens when it runs: `Conflict`, `WrongContent`. The copy was not enqueued then. A queued copy that
    /// fails later shows in [`crate::Fence::completed`].
    pub fn copy(&self, stream: &Stream, src: Src<'_>, dst: Dst<'_>) -> Result<(), DeviceError> {
        self.copy_2d(stream, src, dst, Copy2d { count: 1, pitch: 0 })
    }

    /// Enqueues `rows.count` equal copies, `rows.pitch` bytes apart on both sides, as one operation.
    ///
    /// # Errors
    /// As for [`SimDevice::copy`].
    pub fn copy_2d(&self, stream: &Stream, src: Src<'_>, dst: Dst<'_>, rows: Copy2d) -> Result<(), DeviceError> {
        fail_point!("device.copy")?;
        let plan = Plan::new(self, &src, &dst, rows)?;
        self.enqueue_copy(stream, &src.arena.core, &dst.arena.core, plan)
    }

    /// Enqueues copies one after the other; a copy that is refused does not stop the rest.
    ///
    /// # Errors
    /// [`BatchError`] names the items that were not enqueued.
    pub fn copy_many<'a>(
        &self,
        stream: &Stream,
        items: impl IntoIterator<Item = (Src<'a>, Dst<'a>)>,
    ) -> Result<(), BatchError> {
        let mut failed = Vec::new();
        for (i, (src, dst)) in items.into_iter().enumerate() {
            if let Err(error) = self.copy(stream, src, dst) {
                failed.push((i, error));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(BatchError { failed }) }
    }
}

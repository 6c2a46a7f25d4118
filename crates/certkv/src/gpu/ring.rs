//! Pinned memory through which the host's words travel, used slot after slot.
use super::config::STAGING_SLOTS;
use crate::Error;
use certkv_core::{Histogram, planted};
use certkv_device::cuda::{DeviceBuffer, Event, Pod};
use certkv_kernel::cuda::queue::{Area, Queue};
use std::time::Instant;

/// A ring of slots. The host waits only when it is a whole ring ahead of the GPU.
#[derive(Debug)]
pub(super) struct Ring {
    area: Area,
    slot_bytes: usize,
    /// When the copies out of each slot have passed; `None` where nothing is under way.
    passed: [Option<Event>; STAGING_SLOTS],
    now: usize,
    used: usize,
    /// How long the host waited, in nanoseconds.
    pub(super) waits: Histogram,
}

impl Ring {
    pub(super) fn new(area: Area, slot_bytes: usize) -> Self {
        Self { area, slot_bytes, passed: [const { None }; STAGING_SLOTS], now: 0, used: 0, waits: Histogram::default() }
    }

    /// The memory behind the ring.
    pub(super) fn area(&self) -> &Area {
        &self.area
    }

    /// Most bytes that can be taken at once.
    pub(super) fn most(&self) -> usize {
        self.slot_bytes
    }

    /// Room for `bytes` bytes, from a multiple of 64 on. What is enqueued until the next call may read it.
    pub(super) fn take(&mut self, queue: &Queue, bytes: usize) -> Result<usize, Error> {
        if bytes > self.slot_bytes {
            return Err(Error::Shape { argument: "staged bytes", expected: self.slot_bytes, given: bytes });
        }
        if self.used + bytes > self.slot_bytes {
            self.passed[self.now] = Some(queue.mark()?);
            let next = (self.now + 1) % STAGING_SLOTS;
            if let Some(event) = self.passed[next].as_ref().filter(|_| !planted!(B4)) {
                let start = Instant::now();
                event.synchronize()?;
                self.waits.record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            self.passed[next] = None;
            (self.now, self.used) = (next, 0);
        }
        let at = self.now * self.slot_bytes + self.used;
        self.used = (self.used + bytes).next_multiple_of(64);
        Ok(at)
    }

    /// Copies numbers to the device by way of the ring, in as many parts as it takes.
    pub(super) fn send<T: Pod>(
        &mut self,
        queue: &Queue,
        to: &DeviceBuffer,
        mut offset: usize,
        numbers: &[T],
    ) -> Result<(), Error> {
        for part in numbers.chunks((self.slot_bytes / size_of::<T>()).max(1)) {
            let bytes = size_of_val(part);
            let at = self.take(queue, bytes)?;
            self.area.write(at, part)?;
            queue.upload(to, offset, &self.area, at, bytes)?;
            offset += bytes;
        }
        Ok(())
    }
}

//! Pages overwritten with zeroes, in the order of the stream.
use super::Core;
use crate::Error;
use certkv_core::{PageId, try_collect, try_filled};
use certkv_device::cuda::DeviceBuffer;
use certkv_kernel::cuda::queue::Download;
use certkv_page::PageClass;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// Pages side by side, of those that are given up at once.
fn runs(pages: &mut [u32]) -> impl Iterator<Item = Range<u32>> + '_ {
    pages.sort_unstable();
    pages.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some(*run.first()?..*run.last()? + 1))
}

impl Core {
    /// Enqueues zeroes over pages of a group, in all of its layers. What reads them was enqueued before, on this queue or on one that it has been told to wait for.
    ///
    /// # Errors
    /// The driver's: they are to be erased again.
    pub(in crate::gpu) fn erase(&self, group: usize, class: PageClass, ids: &[PageId]) -> Result<(), Error> {
        let s = &self.sizes;
        let layers = || s.groups[group].layers.iter().copied();
        let mut pages: Vec<u32> = try_collect(ids.iter().map(|id| id.index))?;
        let fill = |buffer: &DeviceBuffer, at: usize, bytes: usize| buffer.fill(self.queue.stream(), at, bytes, 0);
        match class {
            PageClass::Packed | PageClass::Level(_) => {
                let level = class.level().unwrap_or(0);
                for (run, layer) in runs(&mut pages).flat_map(|run| layers().map(move |layer| (run.clone(), layer))) {
                    let at = s.packed_at(layer, s.page_of(level, run.start));
                    fill(&self.packed, at, run.len() * s.record_page_bytes(layer, level))?;
                }
                Ok(())
            }
            PageClass::Tail => {
                for (run, layer) in runs(&mut pages).flat_map(|run| layers().map(move |layer| (run.clone(), layer))) {
                    fill(&self.tails, s.tail_at(layer, run.start), run.len() * s.original_bytes)?;
                }
                Ok(())
            }
            // Frames are erased as they are given up.
            PageClass::Host if s.group_spills(group) => Ok(()),
            PageClass::Host => {
                let at = pages.iter().flat_map(|page| layers().map(|layer| s.host_at(layer, *page)));
                self.erase_originals(at)
            }
            PageClass::Swap => {
                let Some(swap) = &self.swap else { return Ok(()) };
                let places = pages.iter().flat_map(|page| layers().map(move |layer| (layer, *page)));
                let copies = places.map(|(layer, page)| -> Result<Download<'_>, Error> {
                    let bytes = s.of_layer[layer].page_bytes;
                    Ok(Download {
                        from: self.zeroes()?,
                        from_offset: 0,
                        to: swap,
                        to_offset: s.swap_at(layer, page),
                        bytes,
                    })
                });
                self.queue.download_all(&mut self.queue.batch(s.layers * ids.len()), copies)
            }
        }
    }

    /// The same over pages of originals, or frames, that begin at these bytes.
    ///
    /// # Errors
    /// The driver's.
    pub(in crate::gpu) fn erase_originals(&self, at: impl Iterator<Item = usize>) -> Result<(), Error> {
        let (bytes, to) = (self.sizes.original_bytes, &self.originals);
        let copies = at.map(|to_offset| -> Result<Download<'_>, Error> {
            Ok(Download { from: self.zeroes()?, from_offset: 0, to, to_offset, bytes })
        });
        self.erasing.store(true, Ordering::Relaxed);
        self.queue.download_all(&mut self.queue.batch(1), copies)
    }

    /// Writes originals from the host, which nothing on the device reads; waits for what may still be overwriting them.
    ///
    /// # Errors
    /// The driver's.
    pub(in crate::gpu) fn put_originals<T: certkv_device::cuda::Pod>(
        &self,
        at: usize,
        page: &[T],
    ) -> Result<(), Error> {
        if self.erasing.swap(false, Ordering::Relaxed) {
            self.finish().inspect_err(|_| self.erasing.store(true, Ordering::Relaxed))?;
        }
        Ok(self.originals.write(at, page)?)
    }

    /// Slots of a layer's scratch that hold no side, keys before values, as [`Sizes::slot_at`](super::super::sizes::Sizes::slot_at) counts them. Waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub(in crate::gpu) fn empty_slots(&self, layer: usize) -> Result<Vec<usize>, Error> {
        let (s, m) = (&self.sizes, &self.sizes.memory);
        let (mut empty, mut first) = (Vec::new(), 0);
        for (owners, count) in [&m.keys[0], &m.values[0]].into_iter().zip(s.of_layer[layer].slots) {
            let mut held = try_filled(count, 0u32)?;
            self.memory.read(self.queue.stream(), 4 * (layer * m.words + owners.start), &mut held)?;
            empty.extend(held.iter().enumerate().filter(|(_, owner)| **owner == 0).map(|(slot, _)| first + slot));
            first += count;
        }
        Ok(empty)
    }

    fn zeroes(&self) -> Result<&DeviceBuffer, Error> {
        self.zeroes.as_ref().ok_or(Error::Config { field: "erase", why: "nothing is erased".into() })
    }

    /// Enqueues zeroes over what longer chunks have left in what they work with. Nothing where nothing is erased.
    ///
    /// # Errors
    /// The driver's: it is still there.
    pub(in crate::gpu) fn erase_chunks(&self) -> Result<(), Error> {
        let Some(buffer) = self.chunks.as_ref().filter(|_| self.zeroes.is_some()) else { return Ok(()) };
        if self.staged.swap(false, Ordering::Relaxed) {
            let filled = || Ok(buffer.fill(self.queue.stream(), 0, buffer.len(), 0)?);
            let erased = self.await_brought().and_then(|()| filled());
            erased.inspect_err(|_| self.staged.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Enqueues zeroes over all that is erased on the device. Nothing where nothing is.
    ///
    /// # Errors
    /// The driver's.
    pub(in crate::gpu) fn erase_all(&self) -> Result<(), Error> {
        if self.zeroes.is_some() {
            for buffer in [&self.packed, &self.tails, &self.scratch].into_iter().chain(&self.chunks) {
                buffer.fill(self.queue.stream(), 0, buffer.len(), 0)?;
            }
        }
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Whoever has the device's memory next may be another process. A drop has nobody to tell.
        if self.zeroes.is_some() && self.erase_all().is_ok() {
            let _ = self.queue.finish();
        }
    }
}

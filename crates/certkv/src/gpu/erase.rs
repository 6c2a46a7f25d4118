//! What sequences leave in memory is overwritten before anybody else has it ([`GpuConfig::erase`](super::GpuConfig::erase)).
//!
//! On the device the stream is the order: zeroes come behind all that reads a page, and before all that its next owner writes. Sides in scratch are erased with what is
//! remembered of their pages ([`forgotten`](super::forgotten)).
use super::cache::GpuCache;
use super::core::Core;
use crate::Error;
use certkv_page::PageClass;

impl GpuCache {
    /// Pages that nobody reads any more are free, and where they are to be erased that is enqueued first. Calls that need pages begin with it.
    ///
    /// # Errors
    /// The driver's: pages that are to be erased wait for the next call.
    pub(super) fn reclaim(&self) -> Result<(), Error> {
        for pools in &self.pools {
            pools.reclaim(&mut |stamp| self.leaving.passed(stamp));
        }
        if !self.config.erase {
            return Ok(());
        }
        let mut ready = None;
        let mut result = Ok(());
        for (group, pools) in self.pools.iter().enumerate() {
            pools.erase(&mut |class, ids| {
                let of = |ready: &bool| if *ready { self.core.erase(group, class, ids) } else { Ok(()) };
                if result.is_ok() {
                    result = ready.map_or_else(|| self.may_erase(), Ok).and_then(|may| of(ready.insert(may)));
                }
                result.is_ok() && ready == Some(true)
            });
        }
        result
    }

    /// Has the stream wait for what may still use pages that were given up. Whether anything may be enqueued between steps: not on a stream that records.
    fn may_erase(&self) -> Result<bool, Error> {
        if self.core.queue.stream().capturing()? {
            return Ok(false);
        }
        self.core.join()?;
        if self.leaving.is_astray() {
            self.core.queue.join(&self.core.outward)?;
        }
        Ok(true)
    }

    /// The same at the end of a call that gave pages up. What the driver refuses is tried again by the next one, which says so.
    pub(super) fn let_free(&self) {
        let _ = self.reclaim();
    }

    /// Erases what scratch has of pages that changed hands, which the next step would do.
    pub(super) fn erase_forgotten(&mut self) {
        if self.config.erase && matches!(self.core.queue.stream().capturing(), Ok(false)) {
            // What the driver refuses is done by the next step, or refused to it.
            let _ = self.forget();
        }
    }

    /// Bytes that are not zero in memory that nobody holds, as [`Cache::residue`](crate::Cache::residue). Waits for the device, and reads all of it.
    ///
    /// # Errors
    /// The driver's.
    pub fn residue(&mut self) -> Result<usize, Error> {
        self.arrive()?;
        self.reclaim()?;
        self.forget()?;
        self.core.erase_chunks()?;
        self.synchronize()?;
        let Core { queue, packed, tails, originals, swap, scratch, chunks, sizes: s, .. } = &*self.core;
        let (mut left, mut bytes) = (0, Vec::new());
        let mut count = |bytes: &[u8]| left += bytes.iter().filter(|byte| **byte != 0).count();
        if let Some(chunks) = chunks {
            bytes.resize(chunks.len(), 0);
            chunks.read(queue.stream(), 0, &mut bytes)?;
            count(&bytes);
        }
        for (pools, group) in self.pools.iter().zip(&s.groups) {
            for class in pools.classes() {
                for (page, layer) in
                    pools.of(class).free_slots().flat_map(|page| group.layers.iter().map(move |layer| (page, *layer)))
                {
                    let own = &s.of_layer[layer];
                    match class {
                        PageClass::Packed | PageClass::Level(_) => {
                            let level = class.level().unwrap_or(0);
                            bytes.resize(s.record_page_bytes(layer, level), 0);
                            packed.read(queue.stream(), s.packed_at(layer, s.page_of(level, page)), &mut bytes)?;
                        }
                        PageClass::Tail => {
                            bytes.resize(s.original_bytes, 0);
                            tails.read(queue.stream(), s.tail_at(layer, page), &mut bytes)?;
                        }
                        PageClass::Host if !s.spills(layer) => {
                            bytes.resize(s.original_bytes, 0);
                            originals.read(s.host_at(layer, page), &mut bytes)?;
                        }
                        PageClass::Swap if swap.is_some() => {
                            bytes.resize(own.page_bytes, 0);
                            swap.as_ref().map_or(Ok(()), |swap| swap.read(s.swap_at(layer, page), &mut bytes))?;
                        }
                        PageClass::Host | PageClass::Swap => continue,
                    }
                    count(&bytes);
                }
            }
        }
        bytes.resize(s.original_bytes, 0);
        for frame in self.spill.iter().flat_map(|spill| spill.free_frames_now()) {
            originals.read(s.frame_at(frame), &mut bytes)?;
            count(&bytes);
        }
        bytes.resize(s.side_bytes, 0);
        for layer in 0..s.layers {
            for slot in self.core.empty_slots(layer)? {
                scratch.read(queue.stream(), s.slot_at(layer, slot), &mut bytes)?;
                count(&bytes);
            }
        }
        for (layer, row) in (0..s.layers).flat_map(|layer| (0..s.rows).map(move |row| (layer, row))) {
            let places = s.places_of(layer, row);
            if !self.sequences.contains(row) && !places.is_empty() {
                bytes.resize(places.len(), 0);
                scratch.read(queue.stream(), places.start, &mut bytes)?;
                count(&bytes);
            }
        }
        Ok(left)
    }
}

//! The device's table of sides follows the map.
use super::Spilled;
use crate::Error;
use crate::gpu::cache::GpuCache;
use crate::gpu::core::Core;
use certkv_kernel::cuda::args::Sides;
use certkv_kernel::cuda::copies;
use certkv_kernel::cuda::encode::GatherItem;
use certkv_kernel::cuda::queue::Span;

/// First byte of a list's items, behind their count.
const ITEMS: usize = 64;

/// What is copied where, and the words that are.
#[derive(Debug, Default)]
pub(super) struct Lists {
    items: Vec<u64>,
    words: Vec<u64>,
}

impl Spilled {
    /// Where a page's originals are in a slot layer, for the device: the tail that the step at hand fills, a frame, or 0.
    fn address(&self, core: &Core, page: u32, slot: u32) -> Result<u64, Error> {
        let (s, layer) = (&core.sizes, self.layers[slot as usize]);
        if let Some((_, tail)) = self.filling.iter().find(|(filling, _)| filling.index == page) {
            return Ok(core.tails.address_of(s.tail_at(layer, *tail), s.original_bytes)?);
        }
        let Some(frame) = self.map.held(page, slot) else { return Ok(0) };
        Ok(core.originals.span(s.frame_at(frame), s.original_bytes)?.address())
    }

    /// Words of the table for a page in a slot layer: keys and values of every head.
    fn words(&self, core: &Core, page: u32, slot: u32) -> Result<impl Iterator<Item = u64> + use<>, Error> {
        let (address, side) = (self.address(core, page, slot)?, core.sizes.side_bytes as u64);
        Ok((0..2 * core.sizes.kv_heads as u64).map(move |i| if address == 0 { 0 } else { address + i * side }))
    }
}

impl GpuCache {
    /// Tells the device where originals are by now; whether there was something to tell. One launch to some thousand pages and layers, and
    /// nothing where nothing moved.
    ///
    /// # Errors
    /// The driver's: nothing may be launched before this has succeeded.
    pub(in crate::gpu) fn flush(&mut self) -> Result<bool, Error> {
        let Self { core, ring, spill, .. } = self;
        let Some(spill) = spill.as_mut().filter(|spill| !spill.dirty.is_empty()) else { return Ok(false) };
        spill.dirty.sort_unstable();
        spill.dirty.dedup();
        let s = &core.sizes;
        let Lists { mut items, mut words } = core::mem::take(&mut spill.lists);
        let bytes = s.kv_heads * size_of::<Sides>();
        let most = (ring.most() - ITEMS) / (size_of::<GatherItem>() + bytes);
        for part in spill.dirty.chunks(most.max(1)) {
            let values = ITEMS + part.len() * size_of::<GatherItem>();
            let at = ring.take(&core.queue, values + part.len() * bytes)?;
            items.clear();
            words.clear();
            let list = ring.area().span(at, values + part.len() * bytes)?;
            for (i, (page, slot)) in part.iter().enumerate() {
                let to = core.named_at(spill.layers[*slot as usize], *page)?;
                items.extend([list.address() + (values + i * bytes) as u64, to, bytes as u64, 0]);
                words.extend(spill.words(core, *page, *slot)?);
            }
            ring.area().write(at, &[part.len() as u32])?;
            ring.area().write(at + ITEMS, items.as_slice())?;
            ring.area().write(at + values, words.as_slice())?;
            let length = ring.area().span(at, 4)?;
            let listed = ring.area().span(at + ITEMS, values - ITEMS)?;
            let table = Span::of(&core.sides, 0, core.sides.len())?;
            copies::copy(&core.queue, &core.kit(0).gather, (listed, length, part.len()), [list, table])?;
        }
        spill.dirty.clear();
        spill.lists = Lists { items, words };
        Ok(true)
    }

    /// Before launches of a layer that read originals, or what was lent of them; whether that took some work of the device.
    ///
    /// # Errors
    /// As [`GpuCache::flush`].
    pub(in crate::gpu) fn ready(&mut self, layer: usize) -> Result<bool, Error> {
        let told = self.flush()?;
        let Self { core, spill, .. } = self;
        let Some(spill) = spill.as_mut().filter(|_| core.sizes.spills(layer)) else { return Ok(told) };
        let moved = &mut spill.moved[spill.slots[layer] as usize];
        let ended = core.end_loans(layer, *moved)?;
        *moved = false;
        Ok(told || ended)
    }
}

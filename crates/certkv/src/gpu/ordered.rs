//! What the happens-before checker cannot see in the arguments of launches: pages that tables in device memory name.
use super::cache::GpuCache;
use super::step::Part;
use crate::Error;
use certkv_device::cuda::Touch;
use certkv_page::Reservation;
use core::ops::Range;

/// Tells the checker, if it is on, what the launches of `layers` can reach for `parts`, a batch's single tokens or drafts: originals of all full blocks of their
/// sequences, in their pages or in the tails that they are leaving; and the tails of their open blocks, which are written. The host writes pages of originals too, but
/// only in steps that first waited for all of them to be left alone. Nothing while a step is recorded: its runs have other pages.
pub(super) fn tell_pages<'p>(
    cache: &GpuCache,
    parts: impl Iterator<Item = &'p Part>,
    layers: Range<usize>,
) -> Result<(), Error> {
    let core = &cache.core;
    let stream = core.queue.stream();
    if !core.queue.gpu().checks_order() || stream.capturing()? {
        return Ok(());
    }
    let (s, mut touched) = (&core.sizes, Vec::new());
    let tail = |layer, slot| core.tails.address_of(s.tail_at(layer, slot), s.original_bytes);
    for part in parts {
        let full = part.len / s.block;
        for layer in layers.clone() {
            // Pages that the window has passed may be others' by now.
            let group = s.group_of(layer);
            let table = cache.sequences.get(part.row).and_then(|entry| entry.tables.get(group));
            let hole = table.map_or(0..0, |table| table.hole());
            let open = part.reservations.get(group).into_iter().flat_map(Reservation::rows);
            for slot in open.filter_map(|span| span.tail) {
                touched.push(Touch::write(tail(layer, slot.index)?, s.original_bytes));
            }
            if s.spills(layer) {
                // Launches read what is in frames; rows of the block at hand are in its tail.
                let blocks = table.into_iter().flat_map(|table| table.blocks().iter().take(full));
                for at in blocks.filter_map(|entry| cache.host_at(layer, entry.host).ok()) {
                    touched.push(Touch::read(core.originals.span(at, s.original_bytes)?.address(), s.original_bytes));
                }
                continue;
            }
            let pages = cache.mirror.host_pages(group, part.row, full).enumerate();
            for (_, page) in pages.filter(|(block, _)| !hole.contains(block)) {
                let address = match cache.leaving.tail_of(group, page) {
                    Some(slot) => tail(layer, slot)?,
                    None => core.originals.span(s.host_at(layer, page), s.original_bytes)?.address(),
                };
                touched.push(Touch::read(address, s.original_bytes));
            }
        }
    }
    Ok(stream.touch(&touched)?)
}

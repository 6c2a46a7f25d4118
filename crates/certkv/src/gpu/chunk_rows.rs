//! Rows of longer chunks in device memory: to pages of originals in host memory, and blocks that they fill to codes.
//!
//! *Cost:* one launch for as many blocks as staging holds, a copy of each over the host's link, and one launch that codes them from where they are staged; of a sequence's first block some values
//! go to the host, for their mean. The host sees no other row.
use super::cache::GpuCache;
use super::carry::{self, Carry};
use super::prefill::{self, Coder, ToCode};
use super::step::Part;
use crate::{Error, centre};
use certkv_core::{reserve_total, try_collect};
use certkv_device::cuda::Touch;
use certkv_kernel::cuda::queue::Download;
use certkv_kernel::cuda::tensor::Tensor;
use certkv_page::RowSpan;
use std::sync::Arc;

/// Enqueues the chunk's rows, and the coding of the blocks that they fill. `keys` and `values` are the step's, `[token][kv_heads][dim]`. A row that is not finite is refused by the device
/// (`refused.rs`).
pub(super) fn append(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    [keys, values]: [Tensor<'_>; 2],
) -> Result<(), Error> {
    let core = Arc::clone(&cache.core);
    let (s, of) = (&core.sizes, &core.sizes.chunks);
    let buffer = core.chunk_buffer()?;
    let Some(reservation) = part.reservations.get(s.group_of(layer)) else { return Ok(()) };
    let spans: Vec<RowSpan> = try_collect(reservation.rows())?;
    if part.len < s.block && part.len + part.tokens >= s.block {
        fix_centre(cache, layer, part, spans.first().copied(), values)?;
    }
    let shape = [s.kv_heads, s.dim];
    let mut words: [Vec<u32>; 3] = Default::default();
    let (mut items, mut list) = (core::mem::take(&mut cache.pack_items), core.queue.batch(spans.len()));
    for spans in spans.chunks(of.blocks) {
        words.iter_mut().for_each(Vec::clear);
        items.clear();
        let staged = |slot: usize| of.staged.start + slot * s.original_bytes;
        for (slot, span) in spans.iter().enumerate() {
            if span.first_row > 0 {
                let from = cache.host_at(layer, span.host)?;
                core.queue.upload(buffer, staged(slot), &core.originals, from, s.original_bytes)?;
            } else if span.rows < s.block {
                // What lay there is somebody else's.
                buffer.fill(core.queue.stream(), staged(slot), s.original_bytes, 0)?;
            }
            let position = span.block * s.block + span.first_row;
            let [rows, lens, tails] = &mut words;
            for list in [&mut *rows, lens, tails] {
                reserve_total(list, list.len() + span.rows)?;
            }
            rows.extend((0..span.rows).map(|_| part.row as u32));
            lens.extend((position..position + span.rows).map(|len| len as u32));
            tails.extend((0..span.rows).map(|_| slot as u32));
        }
        let tokens = words[0].len();
        for (to, words) in of.new.iter().zip(&words) {
            cache.ring.send(&core.queue, buffer, to.start, words)?;
        }
        cache.ring.send(&core.queue, buffer, of.count.start, &[tokens as u32])?;
        let Some(first) = spans.first() else { continue };
        let row = part.first_row + first.block * s.block + first.first_row - part.len;
        let piece = [keys.tokens("keys", shape, (row, tokens))?, values.tokens("values", shape, (row, tokens))?];
        core.append_chunk(layer, tokens, piece)?;
        let copies = spans.iter().enumerate().map(|(slot, span)| -> Result<Download<'_>, Error> {
            let (to, to_offset) = (&core.originals, cache.host_at(layer, span.host)?);
            Ok(Download { from: buffer, from_offset: staged(slot), to, to_offset, bytes: s.original_bytes })
        });
        core.queue.download_all(&mut list, copies)?;
        for (slot, span) in spans.iter().enumerate() {
            match (span.packed, span.tail) {
                (Some(packed), _) => {
                    let own = &s.of_layer[layer];
                    let record = core.packed.address_of(s.packed_at(layer, packed.index), own.page_bytes)?;
                    let originals = buffer.address_of(staged(slot), s.original_bytes)?;
                    core.queue.stream().touch(&[Touch::read(originals, s.original_bytes)])?;
                    let block = ToCode { originals, record, bytes: own.record_bytes };
                    prefill::push_items(&core, layer, part.row, block, &mut items)?;
                }
                (None, Some(tail)) => core.fill_tail(layer, tail.index, cache.host_at(layer, span.host)?)?,
                (None, None) => {}
            }
        }
        prefill::pack(cache, layer, Coder::Layer, &items)?;
    }
    cache.pack_items = items;
    Ok(())
}

/// The mean of the layer's first values, of which the host is brought as many as count. Waits for the device.
fn fix_centre(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    open: Option<RowSpan>,
    values: Tensor<'_>,
) -> Result<(), Error> {
    let g = *cache.geometry();
    let count = centre::CENTRE_ROWS.saturating_sub(part.len).min(part.tokens);
    let (mut lists, mut rows) = (Carry::default(), Vec::new());
    let first = values.tokens("values", [g.kv_heads, g.head_dim], (part.first_row, count))?;
    carry::fetch(cache, "values", first, [count, g.kv_heads, g.head_dim], &mut lists, &mut rows)?;
    // As they are stored.
    let new = |row: usize, element: usize| g.store.decode16(g.store.encode16(rows[row * g.kv_width() + element]));
    prefill::fix_centre(cache, layer, part, open, &new)
}

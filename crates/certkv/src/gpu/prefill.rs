//! A chunk of several tokens: rows to the host's pages, whole blocks coded by the GPU from there, causal attention on the CPU.
//!
//! Attention of a chunk reads the originals, which lie in host memory: it is computed there, in single precision, by the same
//! kernel as on the CPU. *Cost:* the originals of the sequence are put into rows once per layer and head, then `O(n t d)` for
//! `t` rows over `n` tokens; while it runs, the GPU codes the chunk's blocks.
use super::cache::GpuCache;
use super::core::Core;
use super::policy::Limit;
use super::queries::send_queries;
use super::step::Part;
use super::{ladder, pages};
use crate::{Error, Side, centre};
use certkv_core::{PageId, reserve_total, try_collect, try_filled, try_resize};
use certkv_device::cuda::Touch;
use certkv_kernel::cuda::encode::{Order, PackItem};
use certkv_kernel::cuda::pack::{self, Pack};
use certkv_kernel::cuda::tensor::Tensor;
use certkv_kernel::{Block, Causal, CausalWindow, PrefillWork, Tail};
use certkv_page::RowSpan;
use std::sync::Arc;

/// Queries per task: the kernel unpacks the past once for each.
const ROWS: usize = 64;

/// Rows of an open block that so far are on the device alone: enqueues their copies to the host's page, in every layer of the group.
pub(super) fn fetch_open(cache: &GpuCache, group: usize, tail: u32, host: PageId) -> Result<(), Error> {
    let core = &cache.core;
    let s = &core.sizes;
    for layer in s.groups[group].layers.iter().copied() {
        let (from, to) = (s.tail_at(layer, tail), cache.host_at(layer, host)?);
        core.queue.download(&core.tails, from, &core.originals, to, s.original_bytes)?;
    }
    Ok(())
}

/// Writes the chunk's rows and codes the blocks that they fill. `token` is the chunk's first row in the step.
pub(super) fn append(cache: &mut GpuCache, layer: usize, part: &Part) -> Result<(), Error> {
    let Some(reservation) = part.reservations.get(cache.core.sizes.group_of(layer)) else { return Ok(()) };
    let size = cache.core.sizes.block;
    if part.len < size && part.len + part.tokens >= size {
        let rows = core::mem::take(&mut cache.rows);
        let store = cache.config.geometry.store;
        let new = |row: usize, element: usize| store.decode16(rows.side(part.first_row + row, Side::Value)[element]);
        let fixed = fix_centre(cache, layer, part, reservation.rows().next(), &new);
        cache.rows = rows;
        fixed?;
    }
    let mut items = core::mem::take(&mut cache.pack_items);
    items.clear();
    for span in reservation.rows() {
        let token = part.first_row + span.block * size + span.first_row - part.len;
        let at = cache.host_at(layer, span.host)?;
        let core = &cache.core;
        pages::put(core, at, (span.first_row, span.rows), (&cache.rows, token), &mut cache.page)?;
        match (span.packed, span.tail) {
            (Some(packed), _) => {
                let of = &core.sizes.of_layer[layer];
                let record = core.packed.address_of(core.sizes.packed_at(layer, packed.index), of.page_bytes)?;
                let block = ToCode { originals: reachable(core, at)?, record, bytes: of.record_bytes };
                push_items(core, layer, part.row, block, &mut items)?;
            }
            (None, Some(tail)) => core.fill_tail(layer, tail.index, at)?,
            (None, None) => {}
        }
    }
    pack(cache, layer, Coder::Layer, &items)?;
    cache.pack_items = items;
    Ok(())
}

/// The mean of the layer's first values, before its first block is coded. `new`: those of the chunk, as they are stored, by row and element.
pub(super) fn fix_centre(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    open: Option<RowSpan>,
    new: &dyn Fn(usize, usize) -> f32,
) -> Result<(), Error> {
    let at = open.filter(|_| part.len > 0).map(|span| cache.host_at(layer, span.host)).transpose()?;
    let GpuCache { core, page, ring, config, .. } = cache;
    let (s, store) = (&core.sizes, config.geometry.store);
    let mut old: Vec<Vec<u16>> = vec![Vec::new(); s.kv_heads];
    if let Some(at) = at {
        try_resize(page, s.original_bytes / 2, 0)?;
        core.originals.read(at, page)?;
        for (head, rows) in old.iter_mut().enumerate() {
            pages::rows_of(core, page, head, Side::Value, part.len, rows);
        }
    }
    let mean =
        centre::mean(part.len + part.tokens, s.kv_heads * s.dim, |row, element| match row.checked_sub(part.len) {
            Some(row) => new(row, element),
            None => store.decode16(old[element / s.dim][row * s.dim + element % s.dim]),
        });
    ring.send(&core.queue, &core.centres, s.centre_at(layer, part.row), &mean)
}

/// Whose format records are coded in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Coder {
    Layer,
    /// One of several that blocks have.
    Level(usize),
}

/// A block that is coded: where its originals are, and the records, of so many `bytes`, that are to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToCode {
    pub(super) originals: u64,
    pub(super) record: u64,
    pub(super) bytes: usize,
}

/// The address of the host's page that begins at byte `at`, for a kernel that finds it through a list.
pub(super) fn reachable(core: &Core, at: usize) -> Result<u64, Error> {
    let bytes = core.sizes.original_bytes;
    let address = core.originals.span(at, bytes)?.address();
    core.queue.stream().touch(&[Touch::read(address, bytes)])?;
    Ok(address)
}

/// One item per head of a block.
pub(super) fn push_items(
    core: &Core,
    layer: usize,
    row: usize,
    ToCode { originals: keys, record, bytes }: ToCode,
    items: &mut Vec<u64>,
) -> Result<(), Error> {
    let s = &core.sizes;
    reserve_total(items, items.len() + s.kv_heads * PackItem::WORDS)?;
    let centre = core.centres.address_of(s.centre_at(layer, row), 4 * s.kv_heads * s.dim)?;
    for head in 0..s.kv_heads {
        let keys = keys + (2 * head * s.side_bytes) as u64;
        let item = PackItem {
            keys,
            values: keys + s.side_bytes as u64,
            centre: centre + (4 * head * s.dim) as u64,
            record: record + (head * bytes) as u64,
        };
        items.extend_from_slice(&item.words());
    }
    Ok(())
}

/// Enqueues the coding of all items; the kernel reads its list from the staging ring.
pub(super) fn pack(cache: &mut GpuCache, layer: usize, coder: Coder, items: &[u64]) -> Result<(), Error> {
    let GpuCache { core, ring, .. } = cache;
    let kit = core.kit(layer);
    let (kernel, variant) = match (coder, &core.levels) {
        (Coder::Level(level), Some((kits, ..))) => (&kits.each[level].pack.0, &kits.each[level].pack.1),
        _ => (&kit.pack, &kit.variant),
    };
    // Whole pages: an item's place says whose head it is.
    let heads = core.sizes.kv_heads;
    let most = ((ring.most() - 64) / size_of::<PackItem>() / heads).max(1) * heads;
    for part in items.chunks(most * PackItem::WORDS) {
        let count = part.len() / PackItem::WORDS;
        let at = ring.take(&core.queue, 64 + size_of_val(part))?;
        let area = ring.area();
        area.write(at, &[count as u32])?;
        area.write(at + 64, part)?;
        let status = &core.sizes.counters.status;
        let args = Pack {
            variant,
            count,
            items: area.span(at + 64, size_of_val(part))?,
            count_word: area.span(at, 4)?,
            status: certkv_kernel::cuda::queue::Span::of(&core.counters, 4 * status.start, 4)?,
            order: Order::Fragment,
            kv_heads: heads,
            metrics: core.metrics_at(layer, if let Coder::Level(level) = coder { level } else { 0 })?,
            fixed: core.fixed_of(layer)?,
        };
        pack::pack(&core.queue, kernel, &args)?;
    }
    Ok(())
}

/// Chooses what the next step reads exactly from attention of the chunk's last row, whose `query` this is, over the records: else every
/// head would need a repair then. Enqueues one launch over the sequence, and rounds of choices and copies until scratch could be
/// full.
pub(super) fn plan(cache: &mut GpuCache, layer: usize, part: &Part, query: &[f32], limit: Limit) -> Result<(), Error> {
    if !plans(&cache.core, layer) {
        return Ok(());
    }
    cache.batch_queries.clear();
    cache.batch_queries.extend_from_slice(query);
    let element = match send_queries(cache, query.len(), part.guest) {
        Ok(element) => element,
        // Prefill takes what 16 bits cannot hold; a step would refuse it.
        Err(Error::Overflow { .. }) => return Ok(()),
        Err(e) => return Err(e),
    };
    let core = Arc::clone(&cache.core);
    plan_from(cache, layer, part, core.staged_queries(part.guest, 1, element)?, limit)
}

/// Whether anything of a layer is chosen: codes, and room for originals beside them.
fn plans(core: &Core, layer: usize) -> bool {
    !core.kit(layer).exact && core.sizes.of_layer[layer].slots != [0; 2]
}

/// The same of a query in device memory.
pub(super) fn plan_from(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    query: Tensor<'_>,
    limit: Limit,
) -> Result<(), Error> {
    if !plans(&cache.core, layer) {
        return Ok(());
    }
    cache.ready(layer)?;
    ladder::plan(&cache.core, layer, part.guest, query, limit)
}

struct Task {
    first: usize,
    /// `[rows][query heads of the group][dim]`.
    out: Vec<f32>,
    result: Result<(), Error>,
}

/// Causal attention of the chunk's rows; `queries` and `out` are the step's, `[token][q_heads dim]`.
pub(super) fn attend(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    queries: &[f32],
    out: &mut [f32],
) -> Result<(), Error> {
    let own = cache.core.sizes.group_of(layer);
    let Some(reservation) = part.reservations.get(own) else { return Ok(()) };
    cache.bring_layer(part.id, layer, part.len / cache.core.sizes.block)?;
    let (s, total) = (&cache.core.sizes, part.len + part.tokens);
    let Some(table) = cache.sequences.get(part.row).and_then(|entry| entry.tables.get(own)) else { return Ok(()) };
    // Pages of all blocks that a row sees: those of the table, then those of the step, which may replace the last. Positions are those
    // among them.
    let hole = s.window(layer).map_or(0..0, |window| window.hidden(s.block, part.len));
    let gone = hole.len() * s.block;
    let seen = table.numbered().filter(|(block, _)| !hole.contains(block));
    let mut hosts: Vec<PageId> = try_collect(seen.map(|(_, entry)| entry.host))?;
    reserve_total(&mut hosts, total.div_ceil(s.block))?;
    for span in reservation.rows() {
        hosts.truncate(span.block - hole.len());
        hosts.push(span.host);
    }
    let mut places = Vec::new();
    reserve_total(&mut places, hosts.len())?;
    for host in &hosts {
        places.push(cache.host_at(layer, *host)?);
    }
    let GpuCache { core, page, pool, kernel, .. } = cache;
    let s = &core.sizes;
    let window = s.window(layer).map(|window| CausalWindow {
        tokens: window.tokens,
        sinks: window.sinks,
        after: if hole.is_empty() { 0 } else { hole.start * s.block },
    });
    let total = total - gone;
    let (blocks, rest) = (total / s.block, total % s.block);
    let (side, width, group_width) = (s.block * s.dim, s.q_heads() * s.dim, s.group * s.dim);
    let mut sides: Vec<[Vec<u16>; 2]> = (0..s.kv_heads).map(|_| [Vec::new(), Vec::new()]).collect();
    for rows in sides.iter_mut().flatten() {
        reserve_total(rows, total * s.dim)?;
    }
    try_resize(page, s.original_bytes / 2, 0)?;
    for (block, at) in places.into_iter().enumerate() {
        core.originals.read(at, page)?;
        let tokens = if block < blocks { s.block } else { rest };
        for (head, [keys, values]) in sides.iter_mut().enumerate() {
            pages::rows_of(core, page, head, Side::Key, tokens, keys);
            pages::rows_of(core, page, head, Side::Value, tokens, values);
        }
    }
    for (head, [keys, values]) in sides.iter().enumerate() {
        let sides = keys.chunks_exact(side).zip(values.chunks_exact(side));
        let source = sides.map(|(keys, values)| Block { keys: Some(keys), values: Some(values), ..Block::default() });
        let source: Vec<Block<'_>> = try_collect(source)?;
        let tail = (rest > 0).then(|| Tail {
            keys: &keys[blocks * side..],
            values: &values[blocks * side..],
            tokens: rest,
            centre_norm: 0.0,
        });
        let mut tasks: Vec<Task> = Vec::new();
        reserve_total(&mut tasks, part.tokens.div_ceil(ROWS))?;
        for first in (0..part.tokens).step_by(ROWS) {
            let rows = ROWS.min(part.tokens - first);
            tasks.push(Task { first, out: try_filled(rows * group_width, f32::NAN)?, result: Ok(()) });
        }
        // Late rows see the most tokens: the long tasks start first.
        tasks.reverse();
        pool.run(&mut tasks, PrefillWork::default, |work, _, task| {
            let start = (part.first_row + task.first) * width + head * group_width;
            let rows = task.out.len() / group_width;
            let causal =
                Causal { queries: &queries[start..], stride: width, rows, first: part.len - gone + task.first, window };
            task.result = kernel.prefill(work, &causal, &source, blocks, tail, &mut task.out).map_err(Error::from);
        });
        for task in tasks {
            task.result?;
            for (row, from) in task.out.chunks_exact(group_width).enumerate() {
                let start = (part.first_row + task.first + row) * width + head * group_width;
                out[start..start + group_width].copy_from_slice(from);
            }
        }
    }
    Ok(())
}

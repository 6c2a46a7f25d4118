//! Attention of longer chunks on the GPU (`kernels/extend.cu`), as many tokens at a time as there is room for: what was stored before from codes, the chunk itself from originals; or, where
//! the policy has no codes or codes are not within tolerance, everything from originals.
//!
//! Launches that share what a piece of a chunk sees leave to each other what they have summed: one for each level that blocks before it have, and one for as many originals as staging holds.
//!
//! *Cost:* the originals of the chunk's blocks once over the host's link, `O(t n d)` products for `t` tokens that see up to `n`, and queries and outputs of the host over the link; where codes do not do, as much once more, and the
//! originals of all that is seen over the link. The call waits for them.
use super::cache::GpuCache;
use super::extended::Extended;
use super::policy::{Limit, Rule};
use super::results;
use super::step::Part;
use crate::{Error, Status};
use certkv_core::{PageId, try_collect};
use certkv_kernel::cuda::args::{self, Element};
use certkv_kernel::cuda::extend::ExtendChunk;
use certkv_kernel::cuda::queue::Upload;
use certkv_kernel::cuda::tensor::Tensor;
use certkv_page::Reservation;
use core::ops::Range;
use std::sync::Arc;

/// Tokens of a chunk that are attended at once.
struct Piece {
    /// Tokens of the sequence before them.
    before: usize,
    tokens: usize,
}

/// What one launch goes over: records of a level, then blocks of originals.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Turn {
    level: usize,
    coded: usize,
    originals: Range<usize>,
}

/// Launches over records, so many by level, and blocks of originals, but for those of a `hole` that no token of the piece sees; no more than `most` originals each.
fn turns(coded: impl Iterator<Item = usize>, originals: Range<usize>, hole: Range<usize>, most: usize) -> Vec<Turn> {
    let none = originals.start..originals.start;
    let coded = coded.enumerate().filter(|(_, coded)| *coded > 0);
    let mut turns: Vec<Turn> = coded.map(|(level, coded)| Turn { level, coded, originals: none.clone() }).collect();
    // The last over records goes on with originals.
    let mut joins = !turns.is_empty();
    let seen = if hole.is_empty() { [none, originals] } else { [originals.start..hole.start, hole.end..originals.end] };
    for seen in seen {
        for at in seen.clone().step_by(most) {
            let originals = at..seen.end.min(at + most);
            match turns.last_mut().filter(|_| core::mem::take(&mut joins)) {
                Some(last) => last.originals = originals,
                None => turns.push(Turn { level: 0, coded: 0, originals }),
            }
        }
    }
    turns
}

/// Where a step's queries are, and its outputs go, `[token][q_heads][dim]`.
pub(super) enum Io<'a> {
    Host(&'a [f32], &'a mut [f32]),
    /// A copy of neither is made.
    Device(Tensor<'a>, Tensor<'a>),
}

/// Causal attention of a chunk, at most [`chunk_tokens`](super::GpuConfig::chunk_tokens) at once. `words` are those of certificates of all the step's heads. Returns `false` where the GPU does not do: without
/// room for chunks, or with numbers that halves do not hold; outputs are worth nothing then.
pub(super) fn attend(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    mut io: Io<'_>,
    rule: Rule,
    words: &mut [u32],
) -> Result<bool, Error> {
    let (s, most) = (&cache.core.sizes, cache.core.sizes.chunk_tokens);
    let (heads, width, shape) = (s.q_heads(), s.q_heads() * s.dim, [s.q_heads(), s.dim]);
    let exact = cache.core.kit(layer).exact && s.levels.is_empty();
    let coded = part.len >= s.block && !exact;
    if most == 0 {
        return Ok(false);
    }
    let new = part.reservations.get(s.group_of(layer)).into_iter().flat_map(Reservation::rows);
    let new: Vec<PageId> = try_collect(new.map(|span| span.host))?;
    let core = Arc::clone(&cache.core);
    let (buffer, of) = (core.chunk_buffer()?, &core.sizes.chunks);
    let mut brought = false;
    for first in (0..part.tokens).step_by(most) {
        let piece = Piece { before: part.len + first, tokens: most.min(part.tokens - first) };
        let row = part.first_row + first;
        let own = row * width..(row + piece.tokens) * width;
        let tensors = match &io {
            Io::Host(queries, _) => {
                cache.ring.send(&core.queue, buffer, of.queries.start, &queries[own.clone()])?;
                let at = |bytes: &Range<usize>| Tensor::of(buffer, bytes.start, Element::F32, own.len());
                [at(&of.queries)?, at(&of.outputs)?]
            }
            Io::Device(query, out) => {
                let rows = (row, piece.tokens);
                [query.tokens("query", shape, rows)?, out.tokens("out", shape, rows)?]
            }
        };
        let each = heads * args::Certificate::WORDS;
        let judged = &mut words[row * each..][..piece.tokens * each];
        // From codes first, where there are any and they may do.
        let mut done = (!coded || rule != Rule::Dense)
            && run(cache, layer, (part, &piece), &new, (rule, true), (tensors, &mut *judged))?;
        if !done && coded {
            if !core::mem::replace(&mut brought, true) {
                cache.bring_layer(part.id, layer, part.len / core.sizes.block)?;
            }
            done = run(cache, layer, (part, &piece), &new, (rule, false), (tensors, judged))?;
        }
        if !done {
            Extended::forget(&mut words[part.first_row * each..][..part.tokens * each]);
            return Ok(false);
        }
        if let Io::Host(_, out) = &mut io {
            buffer.read(core.queue.stream(), of.outputs.start, &mut out[own])?;
        }
    }
    Ok(true)
}

/// Attends a piece whose queries are on the device, from codes and originals or from originals alone; `new`: pages of originals of the chunk's blocks. Whether all of its
/// certificates hold.
fn run(
    cache: &mut GpuCache,
    layer: usize,
    piece: (&Part, &Piece),
    new: &[PageId],
    (rule, coded): (Rule, bool),
    (tensors, words): ([Tensor<'_>; 2], &mut [u32]),
) -> Result<bool, Error> {
    let limit = match rule {
        Rule::Certified(limit) => limit,
        Rule::Dense | Rule::Packed => Limit { relative: 0.0, absolute: 0.0, each: false },
    };
    let launched = launch(cache, layer, piece, new, (limit, coded), tensors);
    let core = &cache.core;
    // Pages that are on their way to a launch which never came may be written next.
    launched.inspect_err(|_| drop(core.await_brought()))?;
    core.finish()?;
    core.chunk_buffer()?.read(core.queue.stream(), core.sizes.chunks.certificates.start, words)?;
    Ok(results::certificates(words).all(|c| results::of_chunk(rule, &c).status != Status::Failed))
}

/// Enqueues the launches of a piece, and originals that come to one half of staging while one reads the other.
fn launch(
    cache: &mut GpuCache,
    layer: usize,
    (part, piece): (&Part, &Piece),
    new: &[PageId],
    (limit, coded): (Limit, bool),
    tensors: [Tensor<'_>; 2],
) -> Result<(), Error> {
    let (core, s) = (&cache.core, &cache.core.sizes);
    let (group, past, of) = (s.group_of(layer), part.len / s.block, &s.chunks);
    let records = cache.mirror.coded(group, part.row, past).filter(|_| coded);
    let originals = if coded { past } else { 0 }..(piece.before + piece.tokens).div_ceil(s.block);
    let hole = s.window(layer).map_or(0..0, |window| window.hidden(s.block, piece.before));
    let hole = hole.start.max(originals.start)..hole.end.min(originals.end);
    let turns = turns(records, originals, hole, of.blocks);
    let table = cache.sequences.get(part.row).and_then(|entry| entry.tables.get(group));
    let page = |block: usize| -> Result<PageId, Error> {
        let found = match block.checked_sub(past) {
            None => table.and_then(|table| table.get(block)).map(|entry| entry.host),
            Some(at) => new.get(at).copied(),
        };
        found.ok_or(Error::Order { layer, why: "a page of the sequence is missing" })
    };
    let buffer = core.chunk_buffer()?;
    let chunk = ExtendChunk::new((part.row as u32, piece.before as u32, piece.tokens as u32), s.block as u32);
    let mut list = core.queue.batch(of.blocks);
    let mut bring = |cache: &GpuCache, at: usize| -> Result<(), Error> {
        let Some(turn) = turns.get(at).filter(|turn| !turn.originals.is_empty()) else { return Ok(()) };
        let start = of.half(at).start;
        let copies = turn.originals.clone().enumerate().map(|(to, block)| -> Result<Upload<'_>, Error> {
            let (to_offset, from_offset) = (start + to * s.original_bytes, cache.host_at(layer, page(block)?)?);
            Ok(Upload { to: buffer, to_offset, from: &core.originals, from_offset, bytes: s.original_bytes })
        });
        core.bring_to_staging(&mut list, copies)
    };
    bring(cache, 0)?;
    for (at, turn) in turns.iter().enumerate() {
        core.await_brought()?;
        // Beside this turn's launch.
        bring(cache, at + 1)?;
        let (coded, from, to) = (turn.coded as u32, turn.originals.start as u32, turn.originals.end as u32);
        let chunk = ExtendChunk { coded, from, to, ..chunk };
        cache.ring.send(&core.queue, buffer, of.list.start, &chunk.words())?;
        let relays = [at > 0, at + 1 < turns.len()];
        core.extend(layer, (turn.level, chunk), of.half(at), relays, (limit, tensors))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(level: usize, coded: usize, originals: Range<usize>) -> Turn {
        Turn { level, coded, originals }
    }

    #[test]
    fn launches_go_over_everything_that_is_seen_once() {
        // A prompt; one format; levels, one of which no block has.
        assert_eq!(turns([0].into_iter(), 0..3, 0..0, 5), [turn(0, 0, 0..3)]);
        assert_eq!(turns([7].into_iter(), 7..9, 0..0, 5), [turn(0, 7, 7..9)]);
        assert_eq!(turns([4, 0, 3].into_iter(), 7..9, 0..0, 5), [turn(0, 4, 7..7), turn(2, 3, 7..9)]);
        // More originals than there is room for, and no records.
        assert_eq!(turns([4].into_iter(), 4..11, 0..0, 3), [turn(0, 4, 4..7), turn(0, 0, 7..10), turn(0, 0, 10..11)]);
        assert_eq!(turns([0, 0].into_iter(), 0..4, 0..0, 3), [turn(0, 0, 0..3), turn(0, 0, 3..4)]);
        // A window that has left blocks behind.
        assert_eq!(turns([].into_iter(), 0..9, 1..6, 2), [turn(0, 0, 0..1), turn(0, 0, 6..8), turn(0, 0, 8..9)]);
        assert_eq!(turns([].into_iter(), 0..9, 0..6, 4), [turn(0, 0, 6..9)]);
    }
}

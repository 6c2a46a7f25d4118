//! Attention of a longer chunk on the GPU: its own tokens from originals, what was stored before from codes (`kernels/extend.cu`).
//!
//! *Cost:* the originals of the chunk's blocks once over the host's link, `O(t n d)` products for `t` tokens that see up to `n`, and the outputs back. The
//! call waits for them, as the step's outputs are the host's.
use super::cache::GpuCache;
use super::mirror::Mirror;
use super::policy::{Limit, Rule};
use super::results;
use super::sizes::Sizes;
use super::step::Part;
use crate::{Certificate, Error, Status};
use certkv_kernel::cuda::args;
use certkv_kernel::cuda::extend::ExtendChunk;
use certkv_page::MOST_LEVELS;

/// What launches of a chunk are told, and the level that each is for: one for every level that blocks before it have, or one.
fn launches(mirror: &Mirror, s: &Sizes, layer: usize, part: &Part) -> ([(usize, ExtendChunk); MOST_LEVELS], usize) {
    let (mut all, mut count) = ([(0, ExtendChunk::default()); MOST_LEVELS], 0);
    let chunk = ExtendChunk {
        row: part.row as u32,
        before: part.len as u32,
        tokens: part.tokens as u32,
        ..ExtendChunk::default()
    };
    for (level, coded) in mirror.coded(s.group_of(layer), part.row, part.len / s.block).enumerate() {
        if coded > 0 {
            all[count] = (level, ExtendChunk { coded: coded as u32, ..chunk });
            count += 1;
        }
    }
    if count == 0 {
        all[0] = (0, chunk);
    }
    (all, count.max(1))
}

/// Causal attention of a chunk of at most [`chunk_tokens`](super::GpuConfig::chunk_tokens), written to `out`; `queries` and `out` are the step's,
/// `[token][q_heads dim]`, and `certificates` the chunk's, `[token][q_heads]`. Returns `false` where the policy wants what only originals give: nothing was written.
pub(super) fn attend(
    cache: &mut GpuCache,
    layer: usize,
    part: &Part,
    (queries, out): (&[f32], &mut [f32]),
    rule: Rule,
    certificates: &mut [Certificate],
) -> Result<bool, Error> {
    let (s, of) = (&cache.core.sizes, &cache.core.sizes.chunks);
    let (Some(buffer), Some(reservation)) = (&cache.core.chunks, part.reservations.get(s.group_of(layer))) else {
        return Ok(false);
    };
    let core = &cache.core;
    let exact = core.kit(layer).exact && s.levels.is_empty();
    let coded = part.len >= s.block && !exact;
    let limit = match rule {
        Rule::Dense if coded => return Ok(false),
        Rule::Certified(limit) => limit,
        Rule::Dense | Rule::Packed => Limit { relative: 0.0, absolute: 0.0, each: false },
    };
    for span in reservation.rows() {
        let at = of.staged.start + (span.block - part.len / s.block) * s.original_bytes;
        core.queue.upload(buffer, at, &core.originals, cache.host_at(layer, span.host)?, s.original_bytes)?;
    }
    let ring = &mut cache.ring;
    let width = s.q_heads() * s.dim;
    let rows = part.first_row * width..(part.first_row + part.tokens) * width;
    ring.send(&core.queue, buffer, of.queries.start, &queries[rows.clone()])?;
    let (launches, count) = launches(&cache.mirror, s, layer, part);
    let launches = &launches[..count];
    for (at, (_, chunk)) in launches.iter().enumerate() {
        ring.send(&core.queue, buffer, of.list.start + at * size_of::<ExtendChunk>(), &chunk.words())?;
    }
    core.extend(layer, launches, buffer, limit)?;
    core.finish()?;
    let words = &mut cache.chunk_words;
    words.resize(part.tokens * s.q_heads() * args::Certificate::WORDS, 0);
    buffer.read(core.queue.stream(), of.certificates.start, words)?;
    let found = || results::certificates(words).map(|c| results::of_chunk(rule, &c));
    if found().any(|c| c.status == Status::Failed) {
        return Ok(false);
    }
    buffer.read(core.queue.stream(), of.outputs.start, &mut out[rows])?;
    certificates.iter_mut().zip(found()).for_each(|(to, c)| *to = c);
    Ok(true)
}

//! Attention of a longer chunk on the GPU: its own tokens from originals, what was stored before from codes (`kernels/extend.cu`).
//!
//! *Cost:* the originals of the chunk's blocks once over the host's link, `O(t n d)` products for `t` tokens that see up to `n`, and the outputs back. The
//! call waits for them, as the step's outputs are the host's.
use super::cache::GpuCache;
use super::policy::{Limit, Rule};
use super::results;
use super::step::Part;
use crate::{Certificate, Error, Status};
use certkv_kernel::cuda::args;
use certkv_kernel::cuda::extend::ExtendChunk;

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
    let coded = part.len >= s.block && !core.kit(layer).exact;
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
    let chunk = ExtendChunk {
        row: part.row as u32,
        before: part.len as u32,
        tokens: part.tokens as u32,
        ..ExtendChunk::default()
    };
    ring.send(&core.queue, buffer, of.list.start, &chunk.words())?;
    core.extend(layer, chunk, buffer, limit)?;
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

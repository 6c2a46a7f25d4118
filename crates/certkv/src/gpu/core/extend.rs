//! Attention of a longer chunk: one launch, or where blocks have levels one for each, behind each other.
use super::Core;
use crate::Error;
use crate::gpu::policy::Limit;
use certkv_device::cuda::DeviceBuffer;
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::extend::{self, Extend, ExtendChunk, Relay};
use certkv_kernel::cuda::queue::Span;
use certkv_kernel::cuda::tensor::Tensor;
use core::ops::Range;

impl Core {
    /// Enqueues attention of one longer chunk, all of whose inputs are in `buffer`. `launches`: what each launch is told, with the level whose records it goes over, as they lie there;
    /// without levels one.
    pub(in crate::gpu) fn extend(
        &self,
        layer: usize,
        launches: &[(usize, ExtendChunk)],
        buffer: &DeviceBuffer,
        limit: Limit,
    ) -> Result<(), Error> {
        let (s, of, kit) = (&self.sizes, &self.sizes.chunks, self.kit(layer));
        let span = |bytes: &Range<usize>| Span::of(buffer, bytes.start, bytes.len());
        let t = self.block_tables(layer)?;
        for (at, (level, chunk)) in launches.iter().enumerate() {
            let elements = chunk.tokens as usize * s.q_heads() * s.dim;
            let (list, bytes) = (of.list.start, size_of::<ExtendChunk>());
            let args = Extend {
                variant: &kit.variant,
                chunks: &[*chunk],
                listed: Span::of(buffer, list + at * bytes, bytes)?,
                rows: t.rows,
                stride: t.stride,
                kv_heads: t.kv_heads,
                table: t.packed,
                packed: self.packed_of(layer)?,
                staged: span(&of.staged)?,
                centres: self.of_layer(&self.centres, layer)?,
                query: Tensor::of(buffer, of.queries.start, Element::F32, elements)?,
                out: Tensor::of(buffer, of.outputs.start, Element::F32, elements)?,
                certificates: Some(span(&of.certificates)?),
                scale: self.scale,
                relative: limit.relative,
                absolute: limit.absolute,
                limits: self.limits(limit)?,
                sight: self.sight(layer),
                metrics: self.metrics_at(layer, *level)?,
                relay: None,
            };
            let (kernel, args) = match &self.levels {
                None => (&kit.extend, args),
                Some((kits, ..)) => {
                    let (of_level, own) = (&s.levels[*level], &s.group(layer).tables.levels[*level]);
                    let kit = &kits.each[*level];
                    let args = Extend {
                        variant: &kit.variant,
                        table: self.table(&own.packed)?,
                        packed: self.packed_at_level(layer, of_level)?,
                        relay: Some(Relay { kept: span(&of.relay)?, follows: at > 0, leaves: at + 1 < launches.len() }),
                        ..args
                    };
                    (&kit.extend, args)
                }
            };
            let Some(kernel) = kernel else {
                return Err(Error::Config { field: "chunk_tokens", why: "no kernels".into() });
            };
            extend::extend(&self.queue, kernel, &args)?;
        }
        Ok(())
    }
}

//! Launches of a longer chunk: what appends its rows where they are in device memory, and attention.
use super::Core;
use crate::Error;
use crate::gpu::policy::Limit;
use certkv_device::cuda::{CopyBatch, DeviceBuffer, Touch};
use certkv_kernel::cuda::encode::append_flag;
use certkv_kernel::cuda::extend::{self, Extend, ExtendChunk, Relay};
use certkv_kernel::cuda::launch::{self, Append, Tables};
use certkv_kernel::cuda::queue::{Span, Upload};
use certkv_kernel::cuda::tensor::Tensor;
use core::ops::Range;
use core::sync::atomic::Ordering;

impl Core {
    /// What longer chunks work with.
    pub(in crate::gpu) fn chunk_buffer(&self) -> Result<&DeviceBuffer, Error> {
        self.chunks.as_ref().ok_or_else(|| Error::Config { field: "chunk_tokens", why: "no room for chunks".into() })
    }

    fn chunk_span(&self, bytes: &Range<usize>) -> Result<Span<'_>, Error> {
        Ok(Span::of(self.chunk_buffer()?, bytes.start, bytes.len())?)
    }

    /// Enqueues copies to a half of staging that the queue's launches so far may read: they run behind those, beside what is enqueued until they are [awaited](Self::await_brought).
    pub(in crate::gpu) fn bring_to_staging<'c>(
        &'c self,
        list: &mut CopyBatch,
        copies: impl Iterator<Item = Result<Upload<'c>, Error>>,
    ) -> Result<(), Error> {
        let none = || Error::Config { field: "chunk_tokens", why: "no room for chunks".into() };
        let turn = self.inward.as_ref().ok_or_else(none)?.turn(&self.queue)?;
        self.bringing.store(true, Ordering::Relaxed);
        turn.upload_all(list, copies)
    }

    /// Has the queue wait for what comes to staging, if anything does.
    ///
    /// # Errors
    /// The driver's: it still may.
    pub(in crate::gpu) fn await_brought(&self) -> Result<(), Error> {
        if let Some(inward) = self.inward.as_ref().filter(|_| self.bringing.load(Ordering::Relaxed)) {
            self.queue.join(inward)?;
            self.bringing.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Enqueues that new tokens in device memory go to blocks of staging, as the device has been told of them.
    pub(in crate::gpu) fn append_chunk(
        &self,
        layer: usize,
        tokens: usize,
        [keys, values]: [Tensor<'_>; 2],
    ) -> Result<(), Error> {
        let (s, of) = (&self.sizes, &self.sizes.chunks);
        let span = |bytes: &Range<usize>| self.chunk_span(bytes);
        let ([rows, lens, tails], staged) = (&of.new, span(&of.half(0))?);
        self.staged.store(true, Ordering::Relaxed);
        self.await_brought()?;
        self.queue.stream().touch(&[Touch::write(staged.address(), staged.bytes())])?;
        let args = Append {
            variant: &self.kit(layer).variant,
            ctas: (tokens * s.kv_heads).min(2 * self.ctas as usize) as u32,
            seqs: tokens,
            tables: Tables { batch: span(rows)?, tails: span(tails)?, ..self.block_tables(layer)? },
            count: span(&of.count)?,
            lens: span(lens)?,
            errors: self.counter(&s.counters.errors)?,
            keys,
            values,
            tail_slots: staged,
            row_norms: span(&of.norms)?,
            clear: None,
            flags: append_flag::BY_PLACE,
        };
        Ok(launch::append(&self.queue, &self.kit(layer).append, &args)?)
    }

    /// Enqueues one launch over a chunk, which the device has been told of: over records of a level, without levels those of the layer, and over originals in a half of staging. Whether it
    /// takes over what the one before it has left, and leaves that to another. Queries and outputs are the chunk's.
    pub(in crate::gpu) fn extend(
        &self,
        layer: usize,
        (level, chunk): (usize, ExtendChunk),
        half: Range<usize>,
        [follows, leaves]: [bool; 2],
        (limit, [query, out]): (Limit, [Tensor<'_>; 2]),
    ) -> Result<(), Error> {
        let (s, of, kit) = (&self.sizes, &self.sizes.chunks, self.kit(layer));
        let none = || Error::Config { field: "chunk_tokens", why: "no kernels".into() };
        let span = |bytes: &Range<usize>| self.chunk_span(bytes);
        self.staged.store(true, Ordering::Relaxed);
        let t = self.block_tables(layer)?;
        let (kernel, variant, table, packed) = match &self.levels {
            None => (kit.extend.as_ref(), &kit.variant, t.packed, self.packed_of(layer)?),
            Some((kits, ..)) => {
                let (kit, own) = (&kits.each[level], &s.group(layer).tables.levels[level]);
                let packed = self.packed_at_level(layer, &s.levels[level])?;
                (kit.extend.as_ref(), &kit.pack.1, self.table(&own.packed)?, packed)
            }
        };
        let args = Extend {
            variant,
            chunks: &[chunk],
            listed: span(&of.list)?,
            rows: t.rows,
            stride: t.stride,
            kv_heads: t.kv_heads,
            table,
            packed,
            staged: span(&half)?,
            centres: self.of_layer(&self.centres, layer)?,
            query,
            out,
            certificates: Some(span(&of.certificates)?),
            scale: self.scale,
            relative: limit.relative,
            absolute: limit.absolute,
            limits: self.limits(limit)?,
            sight: self.sight(layer),
            metrics: self.metrics_at(layer, level)?,
            relay: match follows || leaves {
                true => Some(Relay { sums: span(&of.outputs)?, kept: span(&of.relay)?, follows, leaves }),
                false => None,
            },
        };
        Ok(extend::extend(&self.queue, kernel.ok_or_else(none)?, &args)?)
    }
}

//! The end of a step: blocks that its tokens have filled, of all layers of a format at once. The launch of `kernels/close.cu`.
use super::encode::{PACK_THREADS, pack_shared};
use super::fixed::Fixed;
use super::launch::{CHAINED, Tables, word};
use super::metrics::metrics_of;
use super::queue::{Queue, Span};
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::{CudaError, Function};

/// Layers of a launch, at most: `CLOSE_LAYERS` of `kernels/close.cu`.
pub const CLOSE_LAYERS: usize = 32;

/// Bit of [`CloseArgs::flags`]: lengths and tails are by place in the batch, not by row.
pub const BY_PLACE: u32 = 1;

/// One layer, as `ckv_close` has it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct CloseLayer {
    /// `u32[rows]`, or by place: slot of the block.
    pub tails: u64,
    /// Tail slots, `[kv_head][keys, values]` in fragment order.
    pub tail_base: u64,
    /// `u32[rows][blocks]`: page of the records.
    pub packed: u64,
    /// Pages of the records.
    pub packed_base: u64,
    /// `f32[rows][kv_heads][dim]`: value centres.
    pub centres: u64,
    /// As in [`PackArgs`](super::encode::PackArgs).
    pub metrics: u64,
    /// As there.
    pub reaches: u64,
}

/// Arguments of `ckv_close`: the full blocks of a batch, in some layers of one format.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct CloseArgs {
    /// `u32`: sequences of the batch.
    pub count: u64,
    /// `u32[batch]`: row of each sequence; 0: its own number.
    pub rows: u64,
    /// `u32[rows]`: tokens, the step's included; or by place: tokens up to the end of a full block.
    pub lens: u64,
    /// Bytes from a tail to the next.
    pub tail_stride: u64,
    /// Bytes from a page of records to the next.
    pub packed_stride: u64,
    /// Bytes from a head's record to the next.
    pub record_stride: u64,
    /// `u32`: what could not be coded is added; 0: not wanted.
    pub status: u64,
    /// As in [`PackArgs`](super::encode::PackArgs).
    pub saturated: u64,
    /// Entries per row of tables of pages.
    pub blocks: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Layers in `of`.
    pub layers: u32,
    /// [`BY_PLACE`] or 0.
    pub flags: u32,
    /// The layers.
    pub of: [CloseLayer; CLOSE_LAYERS],
}

/// One layer of a [`close`].
#[derive(Debug, Clone, Copy)]
pub struct Closing<'a> {
    /// Block tables; with `by_place` their batch and their tails are of every place.
    pub tables: Tables<'a>,
    /// Tail slots.
    pub tail_slots: Span<'a>,
    /// Pages of records.
    pub packed: Span<'a>,
    /// `f32[rows][kv_heads][dim]`.
    pub centres: Span<'a>,
    /// As [`Attend::metrics`](super::launch::Attend::metrics).
    pub metrics: Option<Span<'a>>,
    /// Fixed scales, for sides with one scale per block and group; `None`: each block's own.
    pub fixed: Option<Fixed<'a>>,
}

/// Arguments of [`close`]; see [`CloseArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Close<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// CTAs: two to a multiprocessor.
    pub ctas: u32,
    /// Sequences of the batch; or with `by_place` full blocks.
    pub seqs: usize,
    /// Whether each place names a block that is full, by the tokens up to its end, and its tail: where a sequence has several new tokens.
    pub by_place: bool,
    /// `u32`: the number of sequences once more, where captured launches read it.
    pub count: Span<'a>,
    /// `u32[rows]`: tokens, the step's included; or by place.
    pub lens: Span<'a>,
    /// `u32`: what could not be coded is added.
    pub status: Span<'a>,
}

/// Enqueues `ckv_close` for `layers`, [`CLOSE_LAYERS`] at a time. All of them have the variant's format.
///
/// Costs 2 us where no block is full; else as long as the coding of a block takes, for every two sides to a multiprocessor.
///
/// # Errors
/// As [`attend`](super::launch::attend), and those of `layers`. What was enqueued before is not taken back.
pub fn close<'a, E: From<CudaError>>(
    queue: &Queue,
    kernel: &Function,
    a: &Close<'_>,
    mut layers: impl Iterator<Item = Result<Closing<'a>, E>>,
) -> Result<(), E> {
    let l = a.variant.layout();
    loop {
        let mut on = Touched::on(queue);
        let mut args = CloseArgs {
            record_stride: l.bytes as u64,
            flags: if a.by_place { BY_PLACE } else { 0 },
            ..CloseArgs::default()
        };
        for (to, layer) in args.of.iter_mut().zip(&mut layers) {
            let layer = layer?;
            let t = &layer.tables;
            let tail_bytes = 2 * t.kv_heads * l.original_side_bytes();
            let [reaches, saturated] = Fixed::told(layer.fixed, &mut on, a.variant, t.kv_heads)?;
            let own = 4 * if a.by_place { a.seqs } else { t.rows };
            *to = CloseLayer {
                tails: on.reads(t.tails, "tails", own)?,
                tail_base: on.reads(layer.tail_slots, "tail slots", tail_bytes)?,
                packed: on.reads(t.packed, "table", 4 * t.entries())?,
                packed_base: on.writes(layer.packed, "packed", t.kv_heads * l.bytes)?,
                centres: on.writes(layer.centres, "centres", 4 * t.rows * t.kv_heads * l.dim)?,
                metrics: metrics_of(&mut on, a.variant, layer.metrics, t.kv_heads)?,
                reaches,
            };
            args.rows = on.reads(t.batch, "batch", 4 * a.seqs)?;
            args.lens = on.reads(a.lens, "lens", own)?;
            (args.tail_stride, args.packed_stride) = (tail_bytes as u64, (t.kv_heads * l.bytes) as u64);
            (args.blocks, args.kv_heads) = (word("table", t.stride)?, word("kv_heads", t.kv_heads)?);
            args.saturated = saturated;
            args.layers += 1;
        }
        if args.layers == 0 {
            return Ok(());
        }
        (args.count, args.status) = (on.reads(a.count, "count", 4)?, on.writes(a.status, "status", 4)?);
        on.tell(queue)?;
        // SAFETY: as in `attend`.
        unsafe { kernel.launch(queue.stream(), a.ctas, PACK_THREADS, pack_shared(l), &args, CHAINED)? };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<CloseLayer>(), 7 * 8);
        assert_eq!(size_of::<CloseArgs>(), 8 * 8 + 4 * 4 + CLOSE_LAYERS * size_of::<CloseLayer>());
    }
}

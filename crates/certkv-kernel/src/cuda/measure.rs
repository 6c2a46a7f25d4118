//! Norms of a tail's rows that did not come by an append. The launch of `kernels/measure.cu`.
use super::launch::{CHAINED, row_norm_bytes, word};
use super::queue::{Queue, Span};
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::{CudaError, Function};

/// Arguments of `ckv_measure`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct MeasureArgs {
    /// Tail slots, `[kv_head][keys, values]` in fragment order.
    pub tail_base: u64,
    /// Bytes from a tail to the next.
    pub tail_stride: u64,
    /// As [`AttendArgs::row_norms`](super::args::AttendArgs::row_norms).
    pub row_norms: u64,
    /// Which of the tails.
    pub slot: u32,
    /// KV heads.
    pub kv_heads: u32,
}

/// Arguments of [`measure`].
#[derive(Debug, Clone, Copy)]
pub struct Measure<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// Tail slots of the layer.
    pub tail_slots: Span<'a>,
    /// As [`Attend::row_norms`](super::launch::Attend::row_norms).
    pub row_norms: Span<'a>,
    /// Which of the tails.
    pub slot: usize,
    /// KV heads.
    pub kv_heads: usize,
}

/// Enqueues that the norms of all rows of a tail are what its rows have, behind a copy that filled it. 2 us.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn measure(queue: &Queue, kernel: &Function, a: &Measure<'_>) -> Result<(), CudaError> {
    const THREADS: u32 = 256;
    let (l, slots) = (a.variant.layout(), a.slot + 1);
    let tail_bytes = 2 * a.kv_heads * l.original_side_bytes();
    let mut on = Touched::on(queue);
    let args = MeasureArgs {
        tail_base: on.reads(a.tail_slots, "tail slots", slots.saturating_mul(tail_bytes))?,
        tail_stride: tail_bytes as u64,
        row_norms: on.writes(a.row_norms, "row norms", slots.saturating_mul(row_norm_bytes(a.kv_heads, l.tokens())))?,
        slot: word("slot", a.slot)?,
        kv_heads: word("kv_heads", a.kv_heads)?,
    };
    // A warp to a row and side.
    let ctas = word("rows", (2 * a.kv_heads * l.tokens()).div_ceil(THREADS as usize / 32))?;
    on.tell(queue)?;
    // SAFETY: as in `attend`.
    unsafe { kernel.launch(queue.stream(), ctas, THREADS, 0, &args, CHAINED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_size_of_the_kernel() {
        assert_eq!(size_of::<MeasureArgs>(), 3 * 8 + 2 * 4);
    }
}

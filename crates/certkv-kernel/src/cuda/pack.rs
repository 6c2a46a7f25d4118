//! Coding of full blocks: the launch of `kernels/pack.cu`.
use super::encode::{Order, PACK_THREADS, PackArgs, PackItem, pack_shared};
use super::fixed::Fixed;
use super::launch::{CHAINED, word};
use super::metrics::metrics_of;
use super::queue::{Queue, Span};
use super::touched::Touched;
use super::variant::Variant;
use certkv_device::cuda::{CudaError, Function};

/// Arguments of [`pack`]; see [`PackArgs`].
#[derive(Debug, Clone, Copy)]
pub struct Pack<'a> {
    /// What the kernel was made for.
    pub variant: &'a Variant,
    /// Items on the list.
    pub count: usize,
    /// [`PackItem`]`[count]`: addresses of live buffers.
    pub items: Span<'a>,
    /// `u32`: the count once more.
    pub count_word: Span<'a>,
    /// `u32`: what could not be coded is added.
    pub status: Span<'a>,
    /// Order of the originals.
    pub order: Order,
    /// KV heads. Where there are metrics, item `i` is of head `i % kv_heads`.
    pub kv_heads: usize,
    /// As [`Attend::metrics`](super::launch::Attend::metrics).
    pub metrics: Option<Span<'a>>,
    /// As [`Closing::fixed`](super::close::Closing::fixed).
    pub fixed: Option<Fixed<'a>>,
}

/// Enqueues `ckv_pack`.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn pack(queue: &Queue, kernel: &Function, a: &Pack<'_>) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    if a.count == 0 {
        return Ok(());
    }
    let [reaches, saturated] = Fixed::told(a.fixed, &mut on, a.variant, a.kv_heads)?;
    let args = PackArgs {
        items: on.reads(a.items, "items", a.count.saturating_mul(size_of::<PackItem>()))?,
        count: on.reads(a.count_word, "count", 4)?,
        status: on.writes(a.status, "status", 4)?,
        order: a.order as u32,
        kv_heads: word("kv_heads", a.kv_heads)?,
        metrics: metrics_of(&mut on, a.variant, a.metrics, a.kv_heads)?,
        reaches,
        saturated,
    };
    let (ctas, shared) = (word("count", 2 * a.count)?, pack_shared(a.variant.layout()));
    on.tell(queue)?;
    // SAFETY: as in `attend`; the items' addresses are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), ctas, PACK_THREADS, shared, &args, CHAINED) }
}

//! A list of copies that the host made.
use super::encode::{GatherArgs, GatherItem};
use super::launch::CHAINED;
use super::queue::{Queue, Span};
use super::touched::Touched;
use certkv_device::cuda::{CudaError, Function};

/// Enqueues `ckv_gather` of the `count` items of a list in mapped memory, [`GatherItem`]s, whose length `length` holds once more. `moves`: what
/// they read and write, to be told to the happens-before checker.
///
/// # Errors
/// As [`attend`](super::launch::attend).
pub fn copy(
    queue: &Queue,
    kernel: &Function,
    (items, length, count): (Span<'_>, Span<'_>, usize),
    [from, to]: [Span<'_>; 2],
) -> Result<(), CudaError> {
    let mut on = Touched::on(queue);
    const CTAS: u32 = 16;
    const THREADS: u32 = 512;
    let args = GatherArgs {
        items: on.reads(items, "items", count.saturating_mul(size_of::<GatherItem>()))?,
        count: on.reads(length, "count", 4)?,
        epoch: 0,
        unused: 0,
    };
    on.reads(from, "from", 0)?;
    on.writes(to, "to", 0)?;
    on.tell(queue)?;
    // SAFETY: as in `launch::attend`; the items' addresses are the caller's, as tables are.
    unsafe { kernel.launch(queue.stream(), CTAS, THREADS, 0, &args, CHAINED) }
}

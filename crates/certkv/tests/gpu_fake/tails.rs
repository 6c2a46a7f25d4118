//! Norms of the rows of tails: a mark of each row's numbers in their place, so that one that nobody found again after its row changed is seen.
use super::{BLOCK, DIM, Plant, SIDE, arguments, host, levelled, planted, set, word};
use certkv_core::fragment::original_index;
use certkv_core::hash::splitmix64;
use certkv_kernel::cuda::args::AttendArgs;
use certkv_kernel::cuda::measure::MeasureArgs;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of open blocks that a launch read, and of which it had the norms of others.
pub(crate) static UNMEASURED: AtomicU64 = AtomicU64::new(0);

/// Where the marks of a row are, in words.
fn place(slot: u32, kv_heads: usize, head: usize, token: usize) -> usize {
    2 * ((slot as usize * kv_heads + head) * BLOCK + token)
}

/// Marks of a row's key and value.
fn marks(tail: *const u16, head: usize, token: usize) -> [u32; 2] {
    [0, 1].map(|side| {
        let at = |channel| (2 * head + side) * SIDE + original_index(token, channel, DIM, side == 0);
        // Without memory of the allocator's: steps that ask it for nothing are counted over this driver, too.
        (0..DIM).fold(side as u64, |mark, channel| {
            // SAFETY: as in `word`: a tail of both sides of every head.
            splitmix64(mark ^ u64::from(unsafe { tail.add(at(channel)).read() }))
        }) as u32
    })
}

/// Leaves the marks of a row that is there.
pub(super) fn measured(row_norms: u64, tail: *const u16, slot: u32, kv_heads: usize, head: usize, token: usize) {
    for (side, mark) in marks(tail, head, token).into_iter().enumerate() {
        set(row_norms, place(slot, kv_heads, head, token) + side, mark);
    }
}

pub(super) extern "C" fn measure(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: MeasureArgs = unsafe { arguments(raw) };
    if planted(Plant::NoNorms) {
        return;
    }
    let tail = host::<u16>(a.tail_base + u64::from(a.slot) * a.tail_stride);
    for head in 0..a.kv_heads as usize {
        (0..BLOCK).for_each(|token| measured(a.row_norms, tail, a.slot, a.kv_heads as usize, head, token));
    }
}

/// Looks at what a launch over the whole batch reads of open blocks.
pub(super) fn look_at_tails(a: &AttendArgs) {
    for place_in_batch in 0..if a.only == 0 { a.seqs as usize } else { 0 } {
        let row = word(a.rows, place_in_batch) as usize;
        let (tokens, recorded) = levelled::lengths(a, place_in_batch, row);
        let open = tokens - recorded * BLOCK;
        let rows = (0..a.kv_heads as usize).flat_map(|head| (0..open).map(move |token| (head, token)));
        for (head, token) in rows {
            // The last rows are those of the open block, the others of one that a draft has filled.
            let filled = open > BLOCK && token < BLOCK;
            let slot = if filled { word(a.drafts, 4 * place_in_batch + 3) - 1 } else { word(a.tails, row) };
            let tail = host::<u16>(a.tail_base + u64::from(slot) * a.tail_stride);
            let token = token % BLOCK;
            let at = place(slot, a.kv_heads as usize, head, token);
            if [0, 1].map(|side| word(a.row_norms, at + side)) != marks(tail, head, token) {
                UNMEASURED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

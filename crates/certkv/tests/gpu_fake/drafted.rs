//! How wide the groups of drafts are, which launches do not say.
use super::{GROUP, word};
use certkv_kernel::cuda::args::{AttendArgs, Strides};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Whether records have residual planes.
static REFINABLE: AtomicBool = AtomicBool::new(false);

/// The longest draft of the caches to come: their longest chunk, up to 8.
static TOKENS: AtomicUsize = AtomicUsize::new(8);

/// KV heads of drafts that launches over whole batches attended, and lists.
pub(crate) static DRAFTED: AtomicU64 = AtomicU64::new(0);

/// Caches to come have chunks of up to `most` tokens.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn draft_tokens(most: usize) {
    TOKENS.store(most.min(8), Ordering::Relaxed);
}

/// Another life begins, with records of that format.
pub(super) fn records_of(format: &str) {
    REFINABLE.store(format.contains("-r"), Ordering::Relaxed);
}

/// Tokens of a draft that one tile of columns takes.
const NARROW: usize = 8 / GROUP;

/// Query heads of a launch's group: of drafts as many tokens' as a launch over the records takes, or those of one tile where none has more.
pub(super) fn columns(a: &AttendArgs) -> usize {
    if a.drafts == 0 {
        return GROUP;
    }
    let most = TOKENS.load(Ordering::Relaxed).min(if REFINABLE.load(Ordering::Relaxed) { NARROW } else { 8 });
    let longest = (0..a.seqs as usize).map(|place| word(a.drafts, 4 * place + 1) as usize).max();
    if longest <= Some(NARROW) { NARROW.min(most) * GROUP } else { most * GROUP }
}

/// Where channel 0 of column `q` of all groups of a launch is.
pub(super) fn row_at(a: &AttendArgs, strides: Strides, q: usize) -> usize {
    let (heads, columns) = (a.kv_heads as usize, columns(a));
    let (place, kv, column) = (q / columns / heads, q / columns % heads, q % columns);
    let token = if a.drafts == 0 {
        place
    } else {
        let of_draft = |i| word(a.drafts, 4 * place + i) as usize;
        of_draft(2) + (column / GROUP).min(of_draft(1) - 1)
    };
    token * strides.token as usize + (kv * GROUP + column % GROUP) * strides.head as usize
}

/// Blocks of the sequence at a place that have records: of drafts one may lie in its tail that is not the last.
pub(super) fn recorded(drafts: u64, place: usize, tokens: usize, closing: u32) -> usize {
    let filled = drafts != 0 && word(drafts, 4 * place + 3) != 0;
    super::recorded(tokens, closing) - usize::from(filled)
}

/// Counts a launch's heads if they are drafts'.
pub(super) fn count(a: &AttendArgs) {
    let heads = if a.drafts == 0 { 0 } else { u64::from(a.seqs * a.kv_heads) };
    DRAFTED.fetch_add(heads, Ordering::Relaxed);
}

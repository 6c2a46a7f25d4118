//! What launches do about protected blocks: one promotes them and copies their originals, and attention finds them promoted.
use super::{BLOCK, DIM, LOOKS, arguments, count, drafted, host, set, sides, word};
use certkv_kernel::cuda::args::{AttendArgs, Sides};
use certkv_kernel::cuda::protect::ProtectArgs;
use certkv_kernel::cuda::select::{NO_PAGE, SelectArgs, SelectMode};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// First tokens and newest that are protected in the life at hand.
static RULE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Blocks that attention found protected, and those that it did not find so and should have.
pub(crate) static GUARDED: AtomicU64 = AtomicU64::new(0);
pub(crate) static BARE: AtomicU64 = AtomicU64::new(0);

/// From now on attention looks whether these are promoted.
pub(crate) fn guard(sinks: usize, recent: usize) {
    RULE.iter().zip([sinks, recent]).for_each(|(to, n)| to.store(n as u64, Ordering::Relaxed));
}

/// Whether a block holds one of the first tokens, or of the newest of `tokens`.
fn is_protected(block: usize, tokens: usize, [sinks, recent]: [usize; 2]) -> bool {
    (block * BLOCK..(block + 1) * BLOCK).any(|t| t < sinks || t + recent > tokens - 1)
}

/// What the real kernel does.
pub(super) extern "C" fn protect(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: ProtectArgs = unsafe { arguments(raw) };
    let (heads, stride, places) = (a.kv_heads as usize, a.stride as usize, a.places as usize);
    assert!(a.block as usize == BLOCK && a.side_bytes as usize == 2 * BLOCK * DIM && places > 0);
    let rule = [a.protect_sinks, a.protect_recent].map(|n| n as usize);
    let fixed = rule[0].div_ceil(BLOCK);
    for layer in &a.of[..a.layers as usize] {
        for at in 0..a.seqs as usize * heads {
            let (row, head) = (word(a.rows, at / heads) as usize, at % heads);
            let (tokens, entry) = (word(a.lens, row) as usize, row * heads + head);
            for block in 0..word(a.recorded, row) as usize / BLOCK {
                let old = word(layer.promoted, entry * stride + block);
                if !is_protected(block, tokens + 1, rule) {
                    if old > layer.first || a.alone == 1 {
                        set(layer.promoted, entry * stride + block, 0);
                    }
                    continue;
                }
                let place =
                    entry * places + if block < fixed { block } else { fixed + (block - fixed) % (places - fixed) };
                set(layer.promoted, entry * stride + block, 1 + layer.first + place as u32);
                let page = 1 + word(layer.table, row * stride + block);
                if [word(layer.held, 2 * place), word(layer.held, 2 * place + 1)] == [page, block as u32] {
                    continue;
                }
                let from = word(layer.hosts, row * stride + block);
                assert_ne!(from, NO_PAGE, "originals of block {block} of row {row}");
                let (from, to) = (sides(layer.originals, from as usize * heads + head), sides(layer.places, place));
                copy(from, to, a.side_bytes as usize);
                set(layer.held, 2 * place, page);
                set(layer.held, 2 * place + 1, block as u32);
            }
        }
    }
}

fn copy(from: Sides, to: Sides, bytes: usize) {
    for (from, to) in [(from.keys, to.keys), (from.values, to.values)] {
        assert!(from != 0 && to != 0, "of a format with codes, whose originals are near");
        // SAFETY: as in `word`; places are the cache's alone.
        unsafe { core::ptr::copy_nonoverlapping(host::<u8>(from), host::<u8>(to), bytes) };
    }
}

/// What the real kernel does of a row that is another's from now on.
pub(super) fn forget(a: &SelectArgs, row: usize) {
    let places = a.kv_heads as usize * a.places as usize;
    for place in row * places..(row + 1) * places {
        (2 * place..2 * place + 2).for_each(|i| set(a.held, i, 0));
        let of = sides(a.sides, 2 * (a.pages * a.kv_heads) as usize + place);
        for side in [of.keys, of.values].into_iter().filter(|side| *side != 0 && a.mode == SelectMode::Erase as u32) {
            // SAFETY: as in `word`; places are the cache's alone.
            unsafe { host::<u8>(side).write_bytes(0, 2 * BLOCK * DIM) };
        }
    }
}

/// Whether a launch over a whole batch finds promoted what is protected.
pub(super) fn look_at_protected(a: &AttendArgs) {
    let rule = [&RULE[0], &RULE[1]].map(|n| n.load(Ordering::Relaxed) as usize);
    if rule == [0; 2] || !LOOKS.load(Ordering::Relaxed) || a.only != 0 || a.promoted == 0 || a.homes != 0 {
        return;
    }
    let (heads, stride) = (a.kv_heads as usize, a.table_stride as usize);
    for at in 0..a.seqs as usize * heads {
        let (row, head) = (word(a.rows, at / heads) as usize, at % heads);
        let tokens = word(a.lens, row) as usize;
        for block in 0..drafted::recorded(a.drafts, at / heads, tokens, a.closing) {
            if is_protected(block, tokens, rule) {
                let found = word(a.promoted, (row * heads + head) * stride + block) != 0;
                count(if found { &GUARDED } else { &BARE });
            }
        }
    }
}

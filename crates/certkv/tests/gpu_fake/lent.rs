//! What launches do with addresses of originals: they lend them, forget them, and follow them where they move.
use super::{Plant, arguments, drafted, host, levelled, look, mark_of, planted, set, sides, word};
use certkv_kernel::cuda::args::Sides;
use certkv_kernel::cuda::rehome::{Move, RehomeArgs};
use certkv_kernel::cuda::select::{BLOCK_ENTRY, ROW_ENTRY, SelectArgs, SelectMode};
use std::ffi::c_void;

/// What the real kernel does of pages and rows that are others' from now on: nothing is lent of them, and nothing is promoted.
pub(super) fn forget(a: &SelectArgs) {
    let (heads, stride) = (a.kv_heads as usize, a.table_stride as usize);
    for entry in (1..=word(a.only, 0) as usize).map(|i| word(a.only, i)) {
        let at = (entry & !ROW_ENTRY) as usize;
        if entry & ROW_ENTRY != 0 {
            (at * heads * stride..(at + 1) * heads * stride).for_each(|i| set(a.promoted, i, 0));
            continue;
        }
        if entry & BLOCK_ENTRY != 0 {
            let at = (entry & !BLOCK_ENTRY) as usize;
            for head in 0..if planted(Plant::OldWords) { 0 } else { heads } {
                set(a.promoted, (at / stride * heads + head) * stride + at % stride, 0);
            }
            continue;
        }
        for item in at * heads..(at + 1) * heads {
            // SAFETY: as in `word`; nothing else runs meanwhile.
            unsafe { host::<Sides>(a.sides).add(a.pages as usize * heads + item).write(Sides::default()) };
        }
    }
}

/// What the real kernel does with addresses of originals: a repair lends every other block to the listed heads, a plan ends that.
pub(super) fn lend(a: &SelectArgs) {
    let (heads, stride) = (a.kv_heads as usize, a.table_stride as usize);
    let listed: Vec<usize> = match a.mode {
        mode if mode == SelectMode::Repair as u32 => {
            (0..word(a.only, 0) as usize).map(|i| word(a.only, 1 + i) as usize).collect()
        }
        mode if mode == SelectMode::Plan as u32 => (0..a.seqs as usize * heads).collect(),
        _ => return,
    };
    let items = a.pages as usize * heads;
    for head in listed {
        let (row, kv) = (word(a.rows, head / heads) as usize, head % heads);
        for block in 0..drafted::recorded(a.drafts, head / heads, word(a.lens, row) as usize, a.closing) {
            let page = word(a.table, row * stride + block) as usize;
            let (at, index) = ((row * heads + kv) * stride + block, page * heads + kv);
            let place = host::<Sides>(a.sides).wrapping_add(items + index);
            if word(a.promoted, at) as usize > 2 * items {
                // Protected.
                continue;
            }
            if a.mode == SelectMode::Plan as u32 {
                if word(a.promoted, at) as usize > items {
                    set(a.promoted, at, 0);
                    // SAFETY: as in `word`; nothing else runs meanwhile.
                    unsafe { place.write(Sides::default()) };
                }
                continue;
            }
            let originals = sides(a.originals, word(a.hosts, row * stride + block) as usize * heads + kv);
            let mark = mark_of(levelled::record(a, page as u32, kv), 0);
            let wanted = (block + kv) % 2 == 0;
            set(a.promoted, at, if wanted { (1 + items + index) as u32 } else { 0 });
            // A side that is nowhere is not lent, and what was lent before stays.
            if look(originals, mark) && wanted {
                // SAFETY: as above.
                unsafe { place.write(originals) };
            }
        }
    }
}

pub(super) extern "C" fn rehome(raw: *const c_void) {
    // SAFETY: declared with this struct.
    let a: RehomeArgs = unsafe { arguments(raw) };
    let bytes = u64::from(a.sides) * u64::from(a.side_bytes);
    for i in 0..if planted(Plant::OldSides) { 0 } else { a.count as usize } {
        // SAFETY: as in `word`: a list of as many items, each of the sides of a page.
        unsafe {
            let item = host::<Move>(a.moves).add(i).read();
            for side in 0..u64::from(a.sides) {
                host::<u64>(item.named).add(side as usize).write(item.to + side * u64::from(a.side_bytes));
                let lent = host::<u64>(item.lent).add(side as usize);
                let at = lent.read().wrapping_sub(item.from);
                if at < bytes && !planted(Plant::OldLoans) {
                    lent.write(item.to + at);
                }
            }
        }
    }
}

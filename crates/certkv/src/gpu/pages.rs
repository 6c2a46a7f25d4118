//! Pages of originals on the host: fragment order in, rows out.
use super::core::Core;
use super::rows::Rows;
use crate::{Error, Side};
use certkv_core::fragment::original_index;
use certkv_core::{OutOfMemory, try_filled, try_resize};

/// Elements of one head's side of a page, and of a whole page.
fn elements(core: &Core) -> (usize, usize) {
    (core.sizes.side_bytes / 2, core.sizes.original_bytes / 2)
}

/// First element of a side of `head` in a page.
fn start(core: &Core, head: usize, side: Side) -> usize {
    (2 * head + usize::from(side == Side::Value)) * elements(core).0
}

/// Writes rows of a block: `count` tokens from `first` on, `rows` from `token` on. A block that was begun before keeps its
/// earlier rows. The GPU must not be using the page. `page` is room.
pub(super) fn put(
    core: &Core,
    at: usize,
    (first, count): (usize, usize),
    (rows, token): (&Rows, usize),
    page: &mut Vec<u16>,
) -> Result<(), Error> {
    let (s, (_, all)) = (&core.sizes, elements(core));
    page.clear();
    try_resize(page, all, 0)?;
    if first > 0 {
        core.originals.read(at, page)?;
    }
    for i in 0..count {
        for side in [Side::Key, Side::Value] {
            let keys = side == Side::Key;
            for (head, row) in rows.side(token + i, side).chunks_exact(s.dim).enumerate() {
                let into = &mut page[start(core, head, side)..][..s.side_bytes / 2];
                for (channel, word) in row.iter().enumerate() {
                    into[original_index(first + i, channel, s.dim, keys)] = *word;
                }
            }
        }
    }
    core.put_originals(at, page)
}

/// Appends the first `tokens` rows of a side of `head` to `out`, `[token][dim]`; `page` holds the page's elements.
pub(super) fn rows_of(core: &Core, page: &[u16], head: usize, side: Side, tokens: usize, out: &mut Vec<u16>) {
    let (dim, keys) = (core.sizes.dim, side == Side::Key);
    let from = &page[start(core, head, side)..][..core.sizes.side_bytes / 2];
    for token in 0..tokens {
        out.extend((0..dim).map(|channel| from[original_index(token, channel, dim, keys)]));
    }
}

/// The page with its first `tokens` rows alone: what others left behind them is not the sequence's.
pub(super) fn first_rows(core: &Core, page: &[u16], tokens: usize) -> Result<Vec<u16>, OutOfMemory> {
    let mut first = try_filled(page.len(), 0)?;
    let (side, dim) = (elements(core).0, core.sizes.dim);
    for (at, keys) in (0..2 * core.sizes.kv_heads).map(|i| (i * side, i % 2 == 0)) {
        for (token, channel) in (0..tokens).flat_map(|token| (0..dim).map(move |channel| (token, channel))) {
            let index = at + original_index(token, channel, dim, keys);
            first[index] = page[index];
        }
    }
    Ok(first)
}

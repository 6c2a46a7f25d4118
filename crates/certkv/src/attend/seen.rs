//! What one decode query sees of a layer with a window: whole blocks, which are read as ever, and the rows of blocks that it sees
//! in part, which are gathered from the 16-bit originals and read exactly.
//!
//! The gathered rows stand behind the whole blocks: as many as fill a block are given as one without codes, the rest as the open
//! block. So nothing of a token that is not visible enters a score, a mass or a bound.
use crate::append::{put_uncoded, uncoded_summary};
use crate::group::{Group, Side};
use certkv_core::Dtype;
use certkv_page::Window;
use core::ops::Range;

/// Whole blocks that a query sees, by their numbers in the sequence: `0..fixed` and `from..`. All else that it sees is gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) fixed: usize,
    pub(crate) from: usize,
    /// How many these are.
    pub(crate) blocks: usize,
}

/// Rows of one block that are gathered.
pub(crate) type Rows = (usize, Range<usize>);

impl Seen {
    /// For the query of the last of `total` tokens, and the rows to gather, in order. None if it sees every block whole but for
    /// the open one, which is then read as it is.
    pub(crate) fn new(window: Window, size: usize, total: usize) -> (Self, [Rows; 3]) {
        let start = window.first(total - 1);
        let (full, none) = (total / size, (0, 0..0));
        let fixed = window.sinks / size;
        if start <= window.sinks {
            // With fewer blocks than sinks the order is the same: `from` says where the window will begin.
            return (Self { fixed, from: fixed, blocks: full }, [none.clone(), none.clone(), none]);
        }
        let from = start.div_ceil(size).max(fixed);
        let seen = Self { fixed, from, blocks: fixed + full.saturating_sub(from) };
        let sinks = (fixed, 0..window.sinks % size);
        let edge = (start / size, start % size..size.min(total - start / size * size));
        let (edge, open) = match (start % size, start / size == full) {
            (0, _) => (none, (full, 0..total % size)),
            (_, true) => (none, edge),
            (_, false) => (edge, (full, 0..total % size)),
        };
        if sinks.1.is_empty() && edge.1.is_empty() && open.1.start == 0 {
            return (seen, [(0, 0..0), (0, 0..0), (0, 0..0)]);
        }
        (seen, [sinks, edge, open])
    }
}

/// The gathered rows, `[head][side][row][dim]`, and summaries of the blocks that they fill. The buffers are kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    words: Vec<u16>,
    /// Records without codes, `[block][head]`.
    records: Vec<u8>,
    rows: usize,
    /// Blocks filled.
    pub(crate) blocks: usize,
}

impl Gathered {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.records.clear();
        (self.rows, self.blocks) = (0, 0);
    }

    /// Gathers `parts`: rows of slots as [`Group::side`] lays them out.
    pub(crate) fn fill(&mut self, group: &Group, parts: &[(&[u16], Range<usize>)], centre: &[f32], store: Dtype) {
        let (dim, size) = (group.layout.dim, group.layout.tokens());
        self.clear();
        self.rows = parts.iter().map(|(_, rows)| rows.len()).sum();
        self.blocks = self.rows / size;
        for head in 0..group.kv_heads {
            for side in [Side::Key, Side::Value] {
                let first = group.side(head, side).start;
                for (words, rows) in parts.iter().filter(|(_, rows)| !rows.is_empty()) {
                    self.words.extend_from_slice(&words[first + rows.start * dim..first + rows.end * dim]);
                }
            }
        }
        self.records.resize(self.blocks * group.kv_heads * group.layout.bytes, 0);
        for block in 0..self.blocks {
            for head in 0..group.kv_heads {
                let of = |side| self.side(group, block, head, side);
                let centre = centre.get(head * dim..(head + 1) * dim).unwrap_or(&[]);
                let summary = uncoded_summary(of(Side::Key), of(Side::Value), dim, centre, store);
                let record = self.record_at(group, block, head);
                put_uncoded(&summary, &mut self.records[record][group.layout.summary.clone()]);
            }
        }
    }

    fn record_at(&self, group: &Group, block: usize, head: usize) -> Range<usize> {
        let start = (block * group.kv_heads + head) * group.layout.bytes;
        start..start + group.layout.bytes
    }

    /// Record of a filled block.
    pub(crate) fn record(&self, group: &Group, block: usize, head: usize) -> &[u8] {
        self.records.get(self.record_at(group, block, head)).unwrap_or(&[])
    }

    /// Rows from `row` on.
    pub(crate) fn from(&self, group: &Group, row: usize, head: usize, side: Side) -> &[u16] {
        let dim = group.layout.dim;
        let start = (2 * head + usize::from(side == Side::Value)) * self.rows;
        self.words.get((start + row) * dim..(start + self.rows) * dim).unwrap_or(&[])
    }

    /// One side of a filled block.
    pub(crate) fn side(&self, group: &Group, block: usize, head: usize, side: Side) -> &[u16] {
        self.from(group, block * group.layout.tokens(), head, side).get(..group.layout.count()).unwrap_or(&[])
    }

    /// Rows behind the filled blocks.
    pub(crate) fn rest(&self, size: usize) -> usize {
        self.rows - self.blocks * size
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of blocks and rows are exactly those of the rule, each once.
    #[test]
    fn blocks_and_rows_hold_exactly_what_is_visible() {
        for size in [1, 2, 4] {
            for (tokens, sinks) in (1..14).flat_map(|t| (0..10).map(move |s| (t, s))) {
                let window = Window::new(tokens).with_sinks(sinks);
                for total in 1..40 {
                    let (seen, rows) = Seen::new(window, size, total);
                    let whole = (0..seen.fixed.min(seen.blocks)).chain(seen.from..total / size);
                    let whole: Vec<usize> = whole.collect();
                    assert_eq!(whole.len(), seen.blocks, "{size} {window:?} {total}");
                    let gathered = rows.iter().any(|(_, rows)| !rows.is_empty());
                    let mut got: Vec<usize> = whole.iter().flat_map(|b| b * size..(b + 1) * size).collect();
                    got.extend(rows.iter().flat_map(|(b, rows)| rows.clone().map(move |row| b * size + row)));
                    if !gathered {
                        got.extend(total / size * size..total);
                    }
                    got.sort_unstable();
                    let visible = (0..total).filter(|t| *t < sinks || t + tokens > total - 1);
                    assert!(visible.eq(got.iter().copied()), "{size} {window:?} {total}: {seen:?} {rows:?} {got:?}");
                }
            }
        }
    }
}

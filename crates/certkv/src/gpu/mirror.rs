//! The host's copy of the block tables, and which pieces of it the device has yet to see. Pure.
use super::sizes::Sizes;
use certkv_kernel::cuda::encode::NONE;
use core::ops::Range;

/// A run of changed entries of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Which table: pages of records, or of originals.
    packed: bool,
    row: usize,
    first: usize,
    len: usize,
}

/// Words to be written into the tables' buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// First word.
    pub(super) at: usize,
    /// The words.
    pub(super) words: Vec<u32>,
}

/// Tables as the host knows them.
#[derive(Debug)]
pub(super) struct Mirror {
    stride: usize,
    kv_heads: usize,
    packed: Range<usize>,
    hosts: Range<usize>,
    exact: Range<usize>,
    /// The words in front of the block tables: lengths, tails, the batch.
    state: Vec<u32>,
    sections: [Range<usize>; 5],
    packed_words: Vec<u32>,
    host_words: Vec<u32>,
    changed: Vec<Run>,
}

/// A sequence of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    /// Row in the tables.
    pub(super) row: usize,
    /// Tokens before the step.
    pub(super) len: usize,
    /// Slot of the open block.
    pub(super) tail: u32,
}

impl Mirror {
    pub(super) fn new(sizes: &Sizes) -> Self {
        let t = &sizes.tables;
        Self {
            stride: sizes.stride,
            kv_heads: sizes.kv_heads,
            packed: t.packed.clone(),
            hosts: t.hosts.clone(),
            exact: t.exact.clone(),
            state: vec![0; t.count.end],
            sections: [t.before.clone(), t.after.clone(), t.tails.clone(), t.batch.clone(), t.count.clone()],
            packed_words: vec![NONE; t.packed.len()],
            host_words: vec![NONE; t.hosts.len()],
            changed: Vec::new(),
        }
    }

    /// Names the pages of a block; `None` leaves the page of its records as it is.
    pub(super) fn set(&mut self, row: usize, block: usize, host: u32, packed: Option<u32>) {
        self.put(false, row, block, host);
        if let Some(packed) = packed {
            self.put(true, row, block, packed);
        }
    }

    /// Pages of originals of a row's first blocks.
    pub(super) fn host_pages(&self, row: usize, blocks: usize) -> impl Iterator<Item = u32> {
        self.host_words
            .iter()
            .skip(row * self.stride)
            .take(blocks.min(self.stride))
            .copied()
            .take_while(|page| *page != NONE)
    }

    fn put(&mut self, packed: bool, row: usize, block: usize, page: u32) {
        let words = if packed { &mut self.packed_words } else { &mut self.host_words };
        let Some(word) = words.get_mut(row * self.stride + block) else { return };
        if *word == page {
            return;
        }
        *word = page;
        // Rows grow block by block and both tables grow together: the last run of the table is the one to extend.
        let last = self.changed.iter_mut().rev().take(2).find(|run| run.packed == packed);
        match last {
            Some(run) if run.row == row && run.first + run.len == block => run.len += 1,
            _ => self.changed.push(Run { packed, row, first: block, len: 1 }),
        }
    }

    /// Lengths, tails and rows of a batch of one token each, under the next step's number.
    pub(super) fn batch(&mut self, members: &[Member]) {
        let Self { state, sections: [before, after, tails, batch, count], .. } = self;
        for (place, m) in members.iter().enumerate() {
            let (len, row) = (m.len as u32, m.row);
            state[before.start + row] = len;
            state[after.start + row] = len + 1;
            state[tails.start + row] = m.tail;
            state[batch.start + place] = row as u32;
        }
        state[count.start] = members.len() as u32;
        state[count.start + 1] = state[count.start + 1].wrapping_add(1).max(1);
    }

    /// Sequences behind the batch, from place `first` on, whose next step is planned: longer chunks, with the lengths that they end
    /// with.
    pub(super) fn guests(&mut self, first: usize, guests: &[Member]) {
        let Self { state, sections: [_, after, tails, batch, _], .. } = self;
        for (i, m) in guests.iter().enumerate() {
            state[after.start + m.row] = m.len as u32;
            state[tails.start + m.row] = m.tail;
            state[batch.start + first + i] = m.row as u32;
        }
    }

    /// The state, to be written from word 0 on.
    pub(super) fn state(&self) -> &[u32] {
        &self.state
    }

    /// What changed since [`Mirror::settle`].
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.changed.iter().flat_map(|run| {
            let at = run.row * self.stride + run.first;
            let words = if run.packed { &self.packed_words } else { &self.host_words };
            let words = words[at..at + run.len].to_vec();
            let section = if run.packed { &self.packed } else { &self.hosts };
            // Under these words a head reads everything from the originals: sides are numbered by page and head.
            let heads = if run.packed { 0 } else { self.kv_heads };
            let exact: Vec<Piece> = (0..heads)
                .map(|head| Piece {
                    at: self.exact.start + (run.row * self.kv_heads + head) * self.stride + run.first,
                    words: words.iter().map(|page| exact_word(*page, head, self.kv_heads)).collect(),
                })
                .collect();
            core::iter::once(Piece { at: section.start + at, words }).chain(exact)
        })
    }

    /// The device has been told of everything.
    pub(super) fn settle(&mut self) {
        self.changed.clear();
    }
}

/// The promoted word of the originals of one head of a page.
fn exact_word(page: u32, head: usize, kv_heads: usize) -> u32 {
    if page == NONE { 0 } else { 1 + page * kv_heads as u32 + head as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuConfig;
    use certkv_core::Geometry;
    use certkv_kernel::cuda::{Arch, Variant};
    use proptest::prelude::*;

    const ROWS: usize = 4;
    const STRIDE: usize = 8;

    fn sizes() -> Sizes {
        let geometry = Geometry::new(2, 4, 2, 64).unwrap();
        let config = GpuConfig { max_sequences: ROWS, ..GpuConfig::new(geometry, STRIDE * 32) };
        let config = config.with_format("k8-v4g32-b32".parse().unwrap());
        let layouts = config.layouts().unwrap();
        let variant = Variant::new(layouts[0].clone(), 2, Arch::Sm90a).unwrap();
        Sizes::new(&config, &layouts, &variant, 4).unwrap()
    }

    #[test]
    fn a_growing_sequence_is_one_run_to_a_table() {
        let sizes = sizes();
        let mut mirror = Mirror::new(&sizes);
        for block in 0..5 {
            mirror.set(1, block, 10 + block as u32, Some(20 + block as u32));
        }
        mirror.set(1, 5, 15, None);
        let pieces: Vec<Piece> = mirror.pieces().collect();
        // Originals, their two heads' words, records.
        assert_eq!(pieces.iter().map(|p| p.words.len()).collect::<Vec<_>>(), [6, 6, 6, 5]);
        assert_eq!(pieces[0].at, sizes.tables.hosts.start + STRIDE);
        assert_eq!(pieces[2].at, sizes.tables.exact.start + (2 + 1) * STRIDE);
        assert_eq!(pieces[2].words[0], 1 + 10 * 2 + 1);
        assert_eq!(pieces[3], Piece { at: sizes.tables.packed.start + STRIDE, words: vec![20, 21, 22, 23, 24] });
        mirror.settle();
        mirror.set(1, 3, 13, Some(23));
        assert_eq!(mirror.pieces().count(), 0, "what is known is not sent again");
    }

    #[test]
    fn a_batch_names_rows_lengths_and_tails_and_leaves_others_alone() {
        let sizes = sizes();
        let mut mirror = Mirror::new(&sizes);
        let member = |row, len, tail| Member { row, len, tail };
        mirror.batch(&[member(2, 40, 7), member(0, 3, 1)]);
        mirror.batch(&[member(3, 9, 5)]);
        mirror.guests(1, &[member(1, 77, 6)]);
        let t = &sizes.tables;
        let at = |r: &Range<usize>, i: usize| mirror.state()[r.start + i];
        assert_eq!((at(&t.before, 2), at(&t.after, 2), at(&t.tails, 2)), (40, 41, 7));
        assert_eq!((at(&t.before, 3), at(&t.after, 3), at(&t.tails, 3)), (9, 10, 5));
        assert_eq!((at(&t.batch, 0), at(&t.count, 0), at(&t.count, 1)), (3, 1, 2));
        assert_eq!((at(&t.before, 1), at(&t.after, 1), at(&t.tails, 1), at(&t.batch, 1)), (0, 77, 6, 1));
        assert_eq!(mirror.state().len(), t.count.end);
    }

    proptest! {
        /// After any changes, sent at any times, the device has what the host has.
        #[test]
        fn the_device_ends_with_the_hosts_tables(
            changes in prop::collection::vec((0..ROWS, 0..STRIDE, 0u32..50, prop::option::of(0u32..50), any::<bool>()), 1..60),
        ) {
            let sizes = sizes();
            let mut mirror = Mirror::new(&sizes);
            let mut device = vec![NONE; sizes.tables.exact.end];
            let (mut hosts, mut packed) = (vec![NONE; ROWS * STRIDE], vec![NONE; ROWS * STRIDE]);
            let send = |mirror: &mut Mirror, device: &mut Vec<u32>| {
                for piece in mirror.pieces() {
                    device[piece.at..piece.at + piece.words.len()].copy_from_slice(&piece.words);
                }
                mirror.settle();
            };
            for (row, block, host, page, sends) in changes {
                mirror.set(row, block, host, page);
                hosts[row * STRIDE + block] = host;
                if let Some(page) = page {
                    packed[row * STRIDE + block] = page;
                }
                if sends {
                    send(&mut mirror, &mut device);
                }
            }
            send(&mut mirror, &mut device);
            let t = &sizes.tables;
            prop_assert_eq!(&device[t.hosts.clone()], &hosts[..]);
            prop_assert_eq!(&device[t.packed.clone()], &packed[..]);
            for (i, host) in hosts.iter().enumerate().filter(|(_, host)| **host != NONE) {
                for head in 0..2 {
                    let word = device[t.exact.start + (i / STRIDE * 2 + head) * STRIDE + i % STRIDE];
                    prop_assert_eq!(word, 1 + host * 2 + head as u32);
                }
            }
        }
    }
}

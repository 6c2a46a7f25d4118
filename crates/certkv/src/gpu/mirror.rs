//! The host's copy of the block tables, and which pieces of it the device has yet to see. Pure.
use super::results::Lowered;
use super::sections::{GroupSections, LevelSections, TableSections};
use super::sizes::{GroupSizes, Sizes};
use certkv_core::{OutOfMemory, try_filled};
use certkv_kernel::cuda::encode::NONE;
use certkv_page::MOST_LEVELS;

/// Which of a group's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    /// Pages of originals.
    Hosts,
    /// Pages of records.
    Packed,
    /// Of a row's blocks at a level, pages of records and which they are.
    Level(usize),
}

/// A run of changed entries of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Whose tables, and which.
    group: usize,
    table: Table,
    row: usize,
    first: usize,
    len: usize,
}

/// Block tables of a group of layers.
#[derive(Debug)]
struct GroupTables {
    sections: GroupSections,
    packed: Vec<u32>,
    hosts: Vec<u32>,
    /// Where blocks have levels.
    levels: Vec<LevelTables>,
}

/// Blocks of rows that have one level.
#[derive(Debug)]
struct LevelTables {
    packed: Vec<u32>,
    homes: Vec<u32>,
    /// By row: how many. Of the first level those that were told: blocks that fill come behind them.
    counts: Vec<u32>,
}

/// Tables as the host knows them.
#[derive(Debug)]
pub(super) struct Mirror {
    /// CTAs of a launch, and what a block of each level costs of their time, in what units ever.
    ctas: usize,
    costs: Vec<u64>,
    block: usize,
    stride: usize,
    kv_heads: usize,
    groups: Vec<GroupTables>,
    /// The words in front of the block tables: lengths, tails, the batch.
    state: Vec<u32>,
    sections: TableSections,
    changed: Vec<Run>,
    /// A run's promoted words on their way.
    exact: Vec<u32>,
}

impl Mirror {
    /// Tables that name nothing.
    ///
    /// # Errors
    /// No memory for two words a block, and two for each level.
    pub(super) fn new(sizes: &Sizes) -> Result<Self, OutOfMemory> {
        let of_level = |level: &LevelSections| {
            Ok(LevelTables {
                packed: try_filled(level.packed.len(), NONE)?,
                homes: try_filled(level.homes.len(), NONE)?,
                counts: vec![0; level.lens.len()],
            })
        };
        let of_group = |group: &GroupSizes| {
            Ok(GroupTables {
                packed: try_filled(group.tables.packed.len(), NONE)?,
                hosts: try_filled(group.tables.hosts.len(), NONE)?,
                levels: group.tables.levels.iter().map(of_level).collect::<Result<_, OutOfMemory>>()?,
                sections: group.tables.clone(),
            })
        };
        // Bytes of a record, and of work that is alike for all formats as much as reading 8 bits a channel takes (measured on an H200: docs/gpu.md).
        let work = 2 * (sizes.block * sizes.dim) as u64;
        Ok(Self {
            ctas: sizes.ctas,
            costs: sizes.levels.iter().map(|level| level.layout.bytes as u64 + work).collect(),
            block: sizes.block,
            stride: sizes.stride,
            kv_heads: sizes.kv_heads,
            groups: sizes.groups.iter().map(of_group).collect::<Result<_, OutOfMemory>>()?,
            state: vec![0; sizes.tables.count.end],
            sections: sizes.tables.clone(),
            changed: Vec::new(),
            exact: Vec::new(),
        })
    }

    /// Names the pages of a block in a group; `None` leaves the page of its records as it is. Where blocks have levels it is of the first, and behind all others.
    pub(super) fn set(&mut self, group: usize, row: usize, block: usize, host: u32, packed: Option<u32>) {
        self.put((group, Table::Hosts), row, block, host);
        let Some(packed) = packed else { return };
        self.put((group, Table::Packed), row, block, packed);
        if !self.groups[group].levels.is_empty() {
            self.list((group, 0), row, block - self.lowered(group, row), (packed, block));
        }
    }

    /// How many of a row's blocks are below the first level.
    fn lowered(&self, group: usize, row: usize) -> usize {
        self.groups[group].levels.iter().skip(1).map(|level| level.counts[row] as usize).sum()
    }

    /// The same with bytes of a head's records, in a layer.
    pub(super) fn lowered_in(&self, sizes: &Sizes, layer: usize, row: usize) -> Lowered {
        let levels = self.groups[sizes.group_of(layer)].levels.iter().zip(&sizes.levels).skip(1);
        levels.fold(Lowered::default(), |sum, (of, level)| {
            let blocks = of.counts[row] as usize;
            Lowered { blocks: sum.blocks + blocks, bytes: sum.bytes + blocks * level.layout.net_bytes() }
        })
    }

    /// Records of a row's first `blocks`, which are full: by level, where blocks have any, or else of all.
    pub(super) fn coded(&self, group: usize, row: usize, blocks: usize) -> impl Iterator<Item = usize> {
        let levels = &self.groups[group].levels;
        let first = blocks - self.lowered(group, row);
        core::iter::once(first).chain(levels.iter().skip(1).map(move |level| level.counts[row] as usize))
    }

    /// Puts a block into the list of its level. Its pages have been named.
    fn list(&mut self, (group, level): (usize, usize), row: usize, at: usize, (packed, block): (u32, usize)) {
        let of = &mut self.groups[group].levels[level];
        let place = row * self.stride + at;
        let changed = of.packed[place] != packed || of.homes[place] != block as u32;
        (of.packed[place], of.homes[place]) = (packed, block as u32);
        if changed {
            self.note((group, Table::Level(level)), row, at);
        }
    }

    /// Tells of all full blocks of a row in a group whose blocks have levels: of each in their order number, level, page on the device, and which of its level's pages that
    /// is, as lists of a level have it.
    pub(super) fn relist(&mut self, group: usize, row: usize, blocks: impl Iterator<Item = (usize, usize, u32, u32)>) {
        self.groups[group].levels.iter_mut().for_each(|level| level.counts[row] = 0);
        for (block, level, page, packed) in blocks {
            self.put((group, Table::Packed), row, block, page);
            let Some(count) = self.groups[group].levels.get_mut(level).map(|level| &mut level.counts[row]) else {
                continue;
            };
            let at = *count as usize;
            *count += 1;
            self.list((group, level), row, at, (packed, block));
        }
    }

    /// Pages of originals of a row's first blocks in a group.
    pub(super) fn host_pages(&self, group: usize, row: usize, blocks: usize) -> impl Iterator<Item = u32> {
        let words = self.groups[group].hosts.iter().skip(row * self.stride);
        words.take(blocks.min(self.stride)).copied().take_while(|page| *page != NONE)
    }

    fn put(&mut self, (group, table): (usize, Table), row: usize, block: usize, page: u32) {
        let tables = &mut self.groups[group];
        let words = if table == Table::Packed { &mut tables.packed } else { &mut tables.hosts };
        let Some(word) = words.get_mut(row * self.stride + block) else { return };
        if *word == page {
            return;
        }
        *word = page;
        self.note((group, table), row, block);
    }

    /// Notes that an entry has changed.
    fn note(&mut self, (group, table): (usize, Table), row: usize, block: usize) {
        // Rows grow block by block and all tables grow together: the last run of the table is the one to extend.
        let tables = self.groups.len() * (2 + self.groups[group].levels.len());
        let mut last = self.changed.iter_mut().rev().take(tables);
        match last.find(|run| (run.group, run.table) == (group, table)) {
            Some(run) if run.row == row && run.first + run.len == block => run.len += 1,
            _ => self.changed.push(Run { group, table, row, first: block, len: 1 }),
        }
    }

    /// Puts a sequence of `len` tokens, which gets one, at a place of the batch.
    pub(super) fn join(&mut self, place: usize, row: usize, len: usize) {
        self.follow(place, row, len, 1);
    }

    /// Puts a sequence of `len` tokens, which gets `tokens`, at a place of the batch, or behind it: one that gets several.
    pub(super) fn follow(&mut self, place: usize, row: usize, len: usize, tokens: usize) {
        self.state[self.sections.before.start + row] = len as u32;
        self.state[self.sections.after.start + row] = (len + tokens) as u32;
        self.state[self.sections.batch.start + place] = row as u32;
        for group in 0..self.groups.len() {
            self.follow_levels(group, row, len + tokens, tokens == 1);
        }
    }

    /// Lengths of a row of `tokens` tokens at each level. Its open block, or `closing` one that is full by the last of them, is where most of the others are, so that no
    /// launch is for it alone.
    fn follow_levels(&mut self, group: usize, row: usize, tokens: usize, closing: bool) {
        let (block, lowered) = (self.block, self.lowered(group, row));
        let GroupTables { sections, levels, .. } = &self.groups[group];
        let full = tokens / block;
        let recorded = full - usize::from(closing && tokens.is_multiple_of(block));
        let count = |level: usize| if level == 0 { recorded - lowered } else { levels[level].counts[row] as usize };
        let most = (0..levels.len()).rev().max_by_key(|level| count(*level));
        for (level, of) in sections.levels.iter().enumerate() {
            let open = if most == Some(level) { tokens - recorded * block } else { 0 };
            let word = 2 * (count(level) * block + open) + usize::from(open == block);
            self.state[of.lens.start + row] = word as u32;
        }
    }

    /// Parts the CTAs of a launch among the levels of a group, by what the batch has of each, where that is little: launches then run side by side. Where it is much each gets all of them,
    /// and what one leaves free as it ends the next takes (H200, 8 x 32K, two levels with as many blocks: 140 us instead of 150; 1 x 8K: 37 instead of 27).
    fn share(&mut self, group: usize, seqs: usize) {
        let Self { state, sections: of, groups, costs, block, ctas, kv_heads, .. } = self;
        let sections = &groups[group].sections;
        let (mut each, mut heads_blocks) = ([0; MOST_LEVELS], 0);
        let rows = &state[of.batch.start..][..seqs];
        for (sum, (level, cost)) in each.iter_mut().zip(sections.levels.iter().zip(costs.iter())) {
            let blocks = |row: &u32| u64::from(state[level.lens.start + *row as usize] / 2).div_ceil(*block as u64);
            let own = rows.iter().map(blocks).sum::<u64>();
            (*sum, heads_blocks) = (own * cost, heads_blocks + own * *kv_heads as u64);
        }
        let whole = heads_blocks >= MUCH * *ctas as u64;
        let (mut left, mut all) = (*ctas as u64, each.iter().sum::<u64>());
        for (share, own) in state[sections.shares.clone()].iter_mut().zip(each) {
            // Rounded, of what the levels before have left; the last one takes the rest.
            let taken = if own == 0 { 0 } else { ((2 * left * own + all) / (2 * all)).clamp(1, left.max(1)) };
            (left, all) = (left.saturating_sub(taken), all - own);
            *share = if whole && own > 0 { *ctas as u32 } else { taken as u32 };
        }
    }

    /// Names the slot of a row's open block in a group.
    pub(super) fn tail(&mut self, group: usize, row: usize, tail: u32) {
        self.state[self.groups[group].sections.tails.start + row] = tail;
    }

    /// So many sequences are the batch, of the next step's number.
    pub(super) fn count(&mut self, seqs: usize) {
        let count = self.sections.count.start;
        self.state[count] = seqs as u32;
        self.state[count + 1] = self.state[count + 1].wrapping_add(1).max(1);
        (0..if self.costs.is_empty() { 0 } else { self.groups.len() }).for_each(|group| self.share(group, seqs));
    }

    /// The state, to be written from word 0 on.
    pub(super) fn state(&self) -> &[u32] {
        &self.state
    }

    /// Gives `send` what changed since it was told last: first words of the tables' buffer, and the words. Where it refuses, all of it changed still.
    pub(super) fn tell<E>(&mut self, mut send: impl FnMut(usize, &[u32]) -> Result<(), E>) -> Result<(), E> {
        let Self { stride, kv_heads, groups, changed, exact, .. } = self;
        for run in changed.iter() {
            let at = run.row * *stride + run.first;
            let GroupTables { sections, packed, hosts, levels } = &groups[run.group];
            let own = at..at + run.len;
            let words = match run.table {
                Table::Hosts => &hosts[own],
                Table::Packed => {
                    send(sections.packed.start + at, &packed[own])?;
                    continue;
                }
                Table::Level(level) => {
                    let (to, from) = (&sections.levels[level], &levels[level]);
                    send(to.packed.start + at, &from.packed[own.clone()])?;
                    send(to.homes.start + at, &from.homes[own])?;
                    continue;
                }
            };
            send(sections.hosts.start + at, words)?;
            // Under these words a head reads everything from the originals: sides are numbered by page and head.
            for head in 0..*kv_heads {
                exact.clear();
                exact.extend(words.iter().map(|page| exact_word(*page, head, *kv_heads)));
                send(sections.exact.start + (run.row * *kv_heads + head) * *stride + run.first, exact)?;
            }
        }
        changed.clear();
        Ok(())
    }
}

/// Blocks of heads that a batch has for each CTA, from which on launches of levels have all CTAs each.
const MUCH: u64 = 16;

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
    use certkv_page::Window;
    use core::convert::Infallible;
    use core::ops::Range;
    use proptest::prelude::*;

    const ROWS: usize = 4;
    const STRIDE: usize = 8;

    fn sizes() -> Sizes {
        let geometry = Geometry::new(2, 4, 2, 64).unwrap();
        let config = GpuConfig { max_sequences: ROWS, ..GpuConfig::new(geometry, STRIDE * 32) };
        let config = config.with_format("k8-v4g32-b32".parse().unwrap());
        // Two groups.
        let config = GpuConfig { windows: vec![None, Some(Window::new(64))], ..config };
        let layouts = config.layouts().unwrap();
        let variant = Variant::new(layouts[0].clone(), 2, Arch::Sm90a).unwrap();
        Sizes::new(&config, &layouts, &variant, 4).unwrap()
    }

    #[test]
    fn a_growing_sequence_is_one_run_to_a_table() {
        let sizes = sizes();
        let mut mirror = Mirror::new(&sizes).expect("memory");
        for block in 0..5 {
            mirror.set(0, 1, block, 10 + block as u32, Some(20 + block as u32));
        }
        mirror.set(0, 1, 5, 15, None);
        let pieces = told(&mut mirror);
        let t = &sizes.groups[0].tables;
        // Originals, their two heads' words, records.
        assert_eq!(pieces.iter().map(|(_, words)| words.len()).collect::<Vec<_>>(), [6, 6, 6, 5]);
        assert_eq!(pieces[0].0, t.hosts.start + STRIDE);
        assert_eq!(pieces[2].0, t.exact.start + (2 + 1) * STRIDE);
        assert_eq!(pieces[2].1[0], 1 + 10 * 2 + 1);
        assert_eq!(pieces[3], (t.packed.start + STRIDE, vec![20, 21, 22, 23, 24]));
        mirror.set(0, 1, 3, 13, Some(23));
        assert!(told(&mut mirror).is_empty(), "what is known is not sent again");
        mirror.set(0, 1, 6, 16, None);
        let mut sent = 0;
        let refused = mirror.tell(|_, _| {
            sent += 1;
            if sent == 2 { Err(()) } else { Ok(()) }
        });
        assert!(refused.is_err() && told(&mut mirror).len() == 3, "what was refused is sent again");
    }

    /// All that has changed.
    fn told(mirror: &mut Mirror) -> Vec<(usize, Vec<u32>)> {
        let mut pieces = Vec::new();
        let send = |at, words: &[u32]| -> Result<(), Infallible> {
            pieces.push((at, words.to_vec()));
            Ok(())
        };
        mirror.tell(send).unwrap();
        pieces
    }

    #[test]
    fn a_batch_names_rows_lengths_and_tails_and_leaves_others_alone() {
        let sizes = sizes();
        let mut mirror = Mirror::new(&sizes).expect("memory");
        let tails =
            |mirror: &mut Mirror, row, tail| (0..2).for_each(|group| mirror.tail(group, row, tail + group as u32));
        for (place, row, len, tail) in [(0, 2, 40, 7), (1, 0, 3, 1)] {
            mirror.join(place, row, len);
            tails(&mut mirror, row, tail);
        }
        mirror.count(2);
        mirror.join(0, 3, 9);
        tails(&mut mirror, 3, 5);
        mirror.follow(1, 1, 70, 7);
        tails(&mut mirror, 1, 6);
        mirror.count(1);
        let (t, [one, two]) = (&sizes.tables, &sizes.groups[..]) else { panic!("two groups") };
        let at = |r: &Range<usize>, i: usize| mirror.state()[r.start + i];
        assert_eq!((at(&t.before, 2), at(&t.after, 2), at(&one.tables.tails, 2)), (40, 41, 7));
        assert_eq!((at(&t.before, 3), at(&t.after, 3), at(&two.tables.tails, 3)), (9, 10, 6));
        assert_eq!((at(&t.batch, 0), at(&t.count, 0), at(&t.count, 1)), (3, 1, 2));
        assert_eq!((at(&t.before, 1), at(&t.after, 1), at(&one.tables.tails, 1), at(&t.batch, 1)), (70, 77, 6, 1));
        assert_eq!(mirror.state().len(), t.count.end);
    }

    proptest! {
        /// Of whatever levels blocks have, lengths of all levels are the sequence's, one of them has its open block, lists name every block once, and the CTAs of a launch are parted among those
        /// that have something.
        #[test]
        fn levels_have_all_of_a_row_between_them(
            rows in prop::collection::vec((0..6 * 32usize, any::<bool>(), prop::collection::vec(0..3usize, 7)), 1..ROWS),
        ) {
            let geometry = Geometry::new(2, 4, 2, 64).unwrap();
            let config = GpuConfig { max_sequences: ROWS, ..GpuConfig::new(geometry, STRIDE * 32) };
            let level = |format: &str| crate::Level { format: format.parse().unwrap(), tokens: STRIDE * 32 };
            let formats = ["k8-v4g32-b32", "k4-v4g32-b32", "tq2-tq2-b32"];
            let config = config.with_levels(formats.map(level).to_vec());
            let layouts = config.layouts().unwrap();
            let variant = Variant::new(layouts[0].clone(), 2, Arch::Sm90a).unwrap();
            let sizes = Sizes::new(&config, &layouts, &variant, 132).unwrap();
            let mut mirror = Mirror::new(&sizes).expect("memory");
            let mut device = vec![NONE; sizes.groups[1].tables.end()];
            for (row, (len, single, levels)) in rows.iter().enumerate() {
                let (full, tokens) = (len / 32, if *single { 1 } else { 5 });
                let page = |block: usize| 100 * row as u32 + block as u32;
                mirror.relist(1, row, (0..full).map(|b| (b, levels[b], 1000 * levels[b] as u32 + page(b), page(b))));
                // What a step fills is of the first level.
                for block in full..(len + tokens) / 32 {
                    mirror.set(1, row, block, 7, Some(page(block)));
                }
                mirror.follow(row, row, *len, tokens);
            }
            mirror.count(rows.len());
            for (at, words) in told(&mut mirror) {
                device[at..at + words.len()].copy_from_slice(&words);
            }
            let tables = &sizes.groups[1].tables;
            for (row, (len, single, levels)) in rows.iter().enumerate() {
                let tokens = len + if *single { 1 } else { 5 };
                let (mut sum, mut open, mut seen) = (0, 0, Vec::new());
                for (number, level) in tables.levels.iter().enumerate() {
                    let word = mirror.state()[level.lens.start + row] as usize;
                    let recorded = (word / 2 - word % 2) / 32;
                    sum += word / 2;
                    open += word / 2 - 32 * recorded;
                    for at in row * STRIDE..row * STRIDE + recorded {
                        let (home, packed) = (device[level.homes.start + at], device[level.packed.start + at]);
                        prop_assert_eq!(packed, 100 * row as u32 + home);
                        prop_assert_eq!(if (home as usize) < len / 32 { levels[home as usize] } else { 0 }, number);
                        seen.push(home as usize);
                    }
                }
                seen.sort_unstable();
                let recorded = (tokens - usize::from(*single)) / 32;
                prop_assert_eq!((sum, open), (tokens, tokens - 32 * recorded));
                prop_assert!(seen.into_iter().eq(0..recorded));
            }
            // So few are parted; with fewer CTAs they are many.
            let shares = &mirror.state()[tables.shares.clone()];
            prop_assert_eq!(shares.iter().sum::<u32>(), 132);
            mirror.ctas = 1;
            mirror.share(1, rows.len());
            let many = rows.iter().map(|(len, ..)| 2 * (len / 32 + 1)).sum::<usize>() >= 64;
            let shares = &mirror.state()[tables.shares.clone()];
            prop_assert!(!many || shares.iter().all(|share| *share <= 1));
            for (share, level) in shares.iter().zip(&tables.levels) {
                let some = (0..rows.len()).any(|row| mirror.state()[level.lens.start + row] > 0);
                prop_assert_eq!(*share > 0, some);
            }
        }

        /// After any changes, sent at any times, the device has what the host has.
        #[test]
        fn the_device_ends_with_the_hosts_tables(
            changes in prop::collection::vec(
                (0..2usize, 0..ROWS, 0..STRIDE, 0u32..50, prop::option::of(0u32..50), any::<bool>()), 1..60),
        ) {
            let sizes = sizes();
            let mut mirror = Mirror::new(&sizes).expect("memory");
            let mut device = vec![NONE; sizes.groups[1].tables.exact.end];
            let mut known = vec![[vec![NONE; ROWS * STRIDE], vec![NONE; ROWS * STRIDE]]; 2];
            let send = |mirror: &mut Mirror, device: &mut Vec<u32>| {
                for (at, words) in told(mirror) {
                    device[at..at + words.len()].copy_from_slice(&words);
                }
            };
            for (group, row, block, host, page, sends) in changes {
                mirror.set(group, row, block, host, page);
                let [hosts, packed] = &mut known[group];
                hosts[row * STRIDE + block] = host;
                if let Some(page) = page {
                    packed[row * STRIDE + block] = page;
                }
                if sends {
                    send(&mut mirror, &mut device);
                }
            }
            send(&mut mirror, &mut device);
            for (group, [hosts, packed]) in sizes.groups.iter().zip(&known) {
                let t = &group.tables;
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
}

//! The things that are timed, as an engine does them.
#![allow(dead_code, reason = "each program uses its part")]
use certkv_core::hash::splitmix64;
use certkv_page::policy::Lru;
use certkv_page::prefix::{Chain, GroupShape, PrefixIndex, PrefixSecret, Scope};
use certkv_page::{BlockTable, PageAllocator, Pools, Stamp, TruncateOps};
use std::time::{Duration, Instant};

/// Tokens of a long sequence.
pub(crate) const LONG: usize = 128 << 10;

/// Tokens of a prompt by number.
pub(crate) fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    (0..tokens as u64).map(|i| splitmix64(seed << 32 | i) as u32).collect()
}

/// Time until `work` is done on every thread.
pub(crate) fn on_threads(threads: usize, work: impl Fn() + Sync) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(&work);
        }
        work();
    });
    start.elapsed()
}

/// A page is taken and given back.
pub(crate) fn one_page(pages: &PageAllocator) {
    let id = pages.allocate().expect("a page is free");
    assert!(pages.give_back(id).expect("it is ours"));
}

/// Prompts of which the first kilotoken is one of forty, some more often than others, and the last 256 tokens nobody else's.
pub(crate) struct Requests {
    next: u64,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self { next: 0 }
    }

    pub(crate) fn next_prompt(&mut self) -> Vec<u32> {
        self.next += 1;
        let dice = splitmix64(self.next);
        let system = (dice % 40).min(dice / 40 % 40);
        let mut tokens = prompt(system, 1024);
        tokens.extend(prompt(1000 + self.next, 256));
        tokens
    }
}

/// Pages, and an index over them.
pub(crate) struct Ours {
    pools: Pools,
    index: PrefixIndex<()>,
    chain: Chain,
    block: usize,
    max_blocks: usize,
}

impl Ours {
    /// Blocks of `block` tokens, sequences of at most `longest`.
    pub(crate) fn new(block: usize, pages: usize, longest: usize) -> Self {
        let create = |n| PageAllocator::create(n).expect("memory");
        let pools = Pools {
            host: create(pages + 8),
            packed: create(pages),
            tail: create(16),
            swap: create(pages),
            levels: Default::default(),
        };
        let max_blocks = longest / block;
        let group = GroupShape { pools: pools.clone(), block, max_blocks, window: None };
        let index =
            PrefixIndex::create(vec![group], pages, Box::new(Lru::create(pages).expect("memory"))).expect("memory");
        let scope = Scope {
            domain: b"t",
            model: b"m",
            adapter: None,
            salt: None,
            layout: b"l",
            tolerance: 0,
            first_position: 0,
        };
        Self { pools, index, chain: Chain::new(&PrefixSecret::new([3; 32]), &scope), block, max_blocks }
    }

    pub(crate) fn filled(&self, tokens: usize) -> BlockTable {
        let mut table = BlockTable::create(&self.pools, self.block, self.max_blocks).expect("memory");
        let reservation = table.reserve(tokens).expect("pages");
        table.commit(reservation).expect("ours").dropped.retire(|| Stamp(1)).expect("ours");
        table
    }

    fn reclaim(&self) {
        self.pools.reclaim(&mut |_| true);
    }

    pub(crate) fn release(&self, table: BlockTable) {
        table.release().retire(|| Stamp(1)).expect("ours");
        self.reclaim();
    }

    pub(crate) fn retire(&self, ops: TruncateOps) {
        ops.retire(|| Stamp(1)).expect("ours");
        self.reclaim();
    }

    pub(crate) fn publish(&self, tokens: &[u32], table: &BlockTable) {
        let done = self.index.publish(&self.chain, tokens.into(), &[table], |_, _| Some(()));
        done.evicted.retire(|_| Stamp(1)).expect("ours");
    }

    /// Hashes, finds, takes references and gives them back; tokens found.
    pub(crate) fn look_up(&self, tokens: &[u32]) -> usize {
        let hit = self.index.longest(&self.chain, tokens.into()).expect("memory");
        hit.tables.into_iter().for_each(|table| self.release(table));
        hit.tokens
    }

    /// A whole request: look-up, pages for the rest (evicting for them), publication, release. Tokens found.
    pub(crate) fn serve(&self, tokens: &[u32]) -> usize {
        let hit = self.index.longest(&self.chain, tokens.into()).expect("memory");
        let mut table = hit.tables.into_iter().next().expect("one group");
        let rest = tokens.len() - hit.tokens;
        let short = (rest / self.block).saturating_sub(self.pools.packed.counts().free);
        if short > 0 {
            self.index.evict(short).retire(|_| Stamp(1)).expect("ours");
            self.reclaim();
        }
        let reservation = table.reserve(rest).expect("pages");
        table.commit(reservation).expect("ours").dropped.retire(|| Stamp(1)).expect("ours");
        self.publish(tokens, &table);
        self.release(table);
        hit.tokens
    }
}

//! The same page work by certkv-page and by kvbm-logical, by turns in one run: best and median of the rounds.
#[path = "../../../crates/certkv-page/benches/workload/mod.rs"]
mod workload;

use certkv_page::PageAllocator;
use dynamo_tokens::TokenBlockSequence;
use kvbm_logical::blocks::BlockRegistry;
use kvbm_logical::manager::FrequencyTrackingCapacity;
use kvbm_logical::{BlockManager, KvbmSequenceHashProvider};
use std::hint::black_box;
use std::time::Instant;
use workload::{LONG, Ours, Requests, prompt};

#[derive(Clone)]
struct Tier;

struct Theirs {
    manager: BlockManager<Tier>,
    block: u32,
}

impl Theirs {
    fn new(block: usize, pages: usize) -> Self {
        let tracker = FrequencyTrackingCapacity::default().create_tracker();
        let registry = BlockRegistry::builder().frequency_tracker(tracker).build();
        let builder = BlockManager::<Tier>::builder().block_count(pages).block_size(block).registry(registry);
        Self { manager: builder.with_lru_backend().build().expect("a manager"), block: block as u32 }
    }

    fn one_page(&self) {
        black_box(self.manager.allocate_blocks(1).expect("a page is free"));
    }

    fn sequence(&self, tokens: &[u32]) -> TokenBlockSequence {
        TokenBlockSequence::from_slice(tokens, self.block, Some(1337))
    }

    fn look_up(&self, tokens: &[u32]) -> usize {
        let sequence = self.sequence(tokens);
        let hashes: Vec<_> = sequence.blocks().iter().map(|block| block.kvbm_sequence_hash()).collect();
        self.manager.match_blocks(&hashes).len() * self.block as usize
    }

    fn serve(&self, tokens: &[u32]) -> usize {
        let sequence = self.sequence(tokens);
        let blocks = sequence.blocks();
        let hashes: Vec<_> = blocks.iter().map(|block| block.kvbm_sequence_hash()).collect();
        let found = self.manager.match_blocks(&hashes);
        let rest = &blocks[found.len()..];
        let fresh = self.manager.allocate_blocks(rest.len()).expect("pages");
        let complete = fresh.into_iter().zip(rest).map(|(page, block)| page.complete(block).expect("a whole block"));
        let cached = self.manager.register_blocks(complete.collect());
        let tokens = found.len() * self.block as usize;
        drop((found, cached));
        tokens
    }
}

/// Nanoseconds of one call: best and median over rounds, each long enough to time.
fn time(rounds: usize, calls: usize, mut work: impl FnMut()) -> (f64, f64) {
    let mut all: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| work());
            start.elapsed().as_secs_f64() * 1e9 / calls as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    (all[0], all[all.len() / 2])
}

fn row(what: &str, ours: (f64, f64), theirs: Option<(f64, f64)>) {
    let show = |(best, median): (f64, f64)| format!("{best:12.0} {median:12.0}");
    match theirs {
        Some(theirs) => println!("{what:44} {} {} {:8.1}x", show(ours), show(theirs), theirs.1 / ours.1),
        None => println!("{what:44} {}", show(ours)),
    }
}

fn main() {
    println!(
        "{:44} {:>12} {:>12} {:>12} {:>12} {:>9}",
        "ns a call", "certkv best", "median", "kvbm best", "median", "faster"
    );
    let pages = PageAllocator::create(4096).expect("memory");
    let theirs = Theirs::new(16, 4096);
    let (a, b) = (time(15, 100_000, || workload::one_page(&pages)), time(15, 20_000, || theirs.one_page()));
    row("allocate and free a page", a, Some(b));
    let two = |work: &(dyn Fn() + Sync)| {
        let mut all: Vec<f64> = (0..15)
            .map(|_| workload::on_threads(2, || (0..20_000).for_each(|_| work())).as_secs_f64() * 1e9 / 20_000.0)
            .collect();
        all.sort_by(f64::total_cmp);
        (all[0], all[7])
    };
    row("the same on two threads at once", two(&|| workload::one_page(&pages)), Some(two(&|| theirs.one_page())));

    let tokens = prompt(1, LONG);
    let (ours, theirs) = (Ours::new(64, 3 * LONG / 64, LONG), Theirs::new(64, 3 * LONG / 64));
    let table = ours.filled(LONG);
    row("fork of 128K tokens, and release", time(15, 20, || ours.release(table.fork().expect("pages").0)), None);
    let truncated = {
        let mut all: Vec<f64> = (0..101)
            .map(|_| {
                let mut fork = table.fork().expect("pages").0;
                let start = Instant::now();
                ours.retire(fork.truncate(LONG / 2 + 1).expect("pages"));
                let seconds = start.elapsed().as_secs_f64();
                ours.release(fork);
                seconds * 1e9
            })
            .collect();
        all.sort_by(f64::total_cmp);
        (all[0], all[50])
    };
    row("truncate 128K tokens to half", truncated, None);
    ours.publish(&tokens, &table);
    assert_eq!(theirs.serve(&tokens), 0);
    assert_eq!((ours.look_up(&tokens), theirs.look_up(&tokens)), (LONG, LONG));
    let mine = time(15, 5, || assert_eq!(ours.look_up(&tokens), LONG));
    let other = time(15, 5, || assert_eq!(theirs.look_up(&tokens), LONG));
    row("longest prefix of 128K tokens, and release", mine, Some(other));

    let (ours, theirs) = (Ours::new(16, 2048, 4096), Theirs::new(16, 2048));
    let (mut mine, mut other) = (Requests::new(), Requests::new());
    let (mut found, mut their_found) = (0, 0);
    let prompts: Vec<Vec<u32>> = (0..4000).map(|_| mine.next_prompt()).collect();
    let their_prompts: Vec<Vec<u32>> = (0..4000).map(|_| other.next_prompt()).collect();
    let (mut i, mut j) = (0, 0);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        a.push(time(1, 200, || {
            found += ours.serve(&prompts[i]);
            i += 1;
        }));
        b.push(time(1, 200, || {
            their_found += theirs.serve(&their_prompts[j]);
            j += 1;
        }));
    }
    let of = |all: &mut Vec<(f64, f64)>| {
        all.sort_by(|x, y| x.0.total_cmp(&y.0));
        (all[0].0, all[all.len() / 2].0)
    };
    row("a request of 1280 tokens, under eviction", of(&mut a), Some(of(&mut b)));
    println!("tokens found in the cache: {found} and {their_found} of {}", 4000 * 1280);
}

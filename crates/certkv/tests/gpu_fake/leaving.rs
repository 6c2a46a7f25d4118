//! Originals of full blocks leave beside the steps that follow. Every launch looks at the originals that it would read, while they are under way, when they
//! have landed and when others have their tails: they are those of the block that its record was made of.
use crate::alone;
use crate::kernels::{self, DIM, GROUP, KV_HEADS, Plant};
use crate::life::{FORMATS, LAYERS, config};
use crate::model::{expected, rows};
use certkv::gpu::{Compiler, Gpu, GpuCache};
use certkv::{Admission, Certified, Chunk, Error, Policy, Protection, SequenceId, Side};
use certkv_testkit::generate::Rng;
use std::sync::atomic::Ordering;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const OPERATIONS: usize = 120;

struct World {
    cache: GpuCache,
    live: Vec<(SequenceId, Vec<u32>)>,
    r: Rng,
    /// Of the next token.
    next: u32,
    /// Steps that ran while blocks were under way; forks, cuts into such blocks, chunks, and reads of originals then; steps that had them land to have room.
    seen: [usize; 6],
}

impl World {
    fn new(gpu: &Gpu, compiler: &Compiler, format: &str, seed: u64) -> Self {
        kernels::begin(format);
        let mut config = config(format);
        config.max_tokens = if seed.is_multiple_of(3) { 9 } else { 30 } * kernels::BLOCK;
        config.plan_apart = (seed / 2).is_multiple_of(2);
        config.prefixes = None;
        // Some with tokens that are always read exactly.
        config.protection = match seed % 8 {
            4 => Protection::new(3, 2 * kernels::BLOCK + 5),
            _ => Protection::NONE,
        };
        kernels::guard(config.protection.sinks, config.protection.recent);
        let cache = GpuCache::new(gpu, compiler, config).expect("a cache");
        Self { cache, live: Vec::new(), r: Rng::new(seed), next: 0, seen: [0; 6] }
    }

    /// Blocks whose tails wait for the copies of what they had.
    fn under_way(cache: &GpuCache) -> usize {
        cache.snapshot().pages[0].tail.retiring
    }

    fn allow<T>(result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(Error::CapacityExhausted { .. } | Error::TooManySequences { .. } | Error::TooLong { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A step of some sequences, with `most` tokens each; nobody waits for it.
    fn step(&mut self, most: usize) {
        let chosen: Vec<usize> = (0..self.live.len()).filter(|_| self.r.chance(0.8)).collect();
        let parts: Vec<_> = chosen.into_iter().map(|at| (at, 1 + self.r.below(most))).collect();
        if parts.is_empty() {
            return;
        }
        let chunks: Vec<_> = parts.iter().map(|(at, n)| Chunk { sequence: self.live[*at].0, tokens: *n }).collect();
        let tokens: Vec<u32> = (0..parts.iter().map(|p| p.1 as u32).sum()).map(|i| self.next + i).collect();
        self.next += tokens.len() as u32;
        let queries: Vec<f32> = (0..tokens.len() * Q).map(|_| self.r.uniform() as f32 - 0.5).collect();
        let (before, mut beside) = (Self::under_way(&self.cache), 0);
        let (again, ends) = (self.r.chance(0.1), self.r.chance(0.95));
        // What is not planned reads what it was lent.
        let planned: [bool; LAYERS] = [(); LAYERS].map(|()| self.r.chance(0.3));
        let done = (|| {
            let mut step = self.cache.begin_with(&chunks, Policy::Certified(Certified::default()))?;
            beside = Self::under_way(step.cache());
            for (layer, planned) in planned.into_iter().enumerate() {
                step.append_bits(layer, &rows(&tokens, layer, Side::Key), &rows(&tokens, layer, Side::Value))?;
                for _ in 0..1 + usize::from(again) {
                    step.attend(layer, &queries)?;
                }
                if planned {
                    step.plan(layer)?;
                }
            }
            if ends { step.finish().map(|()| true) } else { Ok(false) }
        })();
        self.seen[0] += usize::from(beside > 0);
        self.seen[5] += usize::from(most == 1 && before > 0 && beside == 0);
        if Self::allow(done) == Some(true) {
            let mut tokens = tokens.into_iter();
            parts.into_iter().for_each(|(at, n)| self.live[at].1.extend(tokens.by_ref().take(n)));
        }
    }

    fn operate(&mut self) {
        if self.live.is_empty() || self.r.chance(0.06) {
            let created = self.cache.create();
            self.live.extend(Self::allow(created).map(|id| (id, Vec::new())));
            return;
        }
        let (at, under_way) = (self.r.below(self.live.len()), Self::under_way(&self.cache));
        let (id, tokens) = self.live[at].clone();
        match self.r.below(40) {
            0 | 1 => {
                let forked = self.cache.fork(id);
                self.live.extend(Self::allow(forked).map(|fork| (fork, tokens)));
                self.seen[1] += usize::from(under_way > 0);
            }
            2..=4 => {
                let len =
                    if self.r.chance(0.3) { self.r.below(tokens.len() + 1) } else { tokens.len().saturating_sub(3) };
                if Self::allow(self.cache.truncate(id, len)).is_some() {
                    self.live[at].1.truncate(len);
                    self.seen[2] += usize::from(under_way > 0 && Self::under_way(&self.cache) == 0);
                }
            }
            5 => {
                self.cache.release(id).expect("a release");
                self.live.swap_remove(at);
            }
            6 => {
                self.seen[3] += usize::from(under_way > 0);
                self.step(2 * kernels::BLOCK);
            }
            7 => {
                self.verify(at);
                self.seen[4] += usize::from(under_way > 0);
            }
            8..=14 => self.step(8),
            _ => self.step(1),
        }
    }

    fn verify(&mut self, at: usize) {
        let (id, tokens) = &self.live[at];
        let head = self.r.below(KV_HEADS);
        for (layer, side) in (0..LAYERS).flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)]) {
            let got = self.cache.originals(*id, layer, head, side).expect("originals");
            assert!(got == expected(tokens, (layer, head, side)), "other originals");
        }
    }
}

/// What lives over all formats reached, sides that launches looked at, and the looks that found another block's or none.
fn lives(compiler: &Compiler, deferred: bool, worlds: u64) -> ([usize; 6], u64, u64) {
    let fake = crate::fake_cuda::Fake::get();
    kernels::looks(true);
    let mut seen = [0; 6];
    for seed in 0..worlds {
        fake.reset();
        fake.defer(deferred);
        let gpu = Gpu::open(0).expect("the fake");
        gpu.check_order();
        let mut world = World::new(&gpu, compiler, FORMATS[seed as usize % 2], seed);
        (0..OPERATIONS).for_each(|_| world.operate());
        (0..world.live.len()).for_each(|at| world.verify(at));
        for (id, _) in world.live.drain(..) {
            world.cache.release(id).expect("a release");
        }
        world.cache.synchronize().expect("the fake");
        assert_eq!(world.cache.live_pages(), 0, "seed {seed}: pages are left");
        seen.iter_mut().zip(world.seen).for_each(|(sum, n)| *sum += n);
        let report = gpu.order_report().expect("the checker is on");
        assert!(report.unordered == 0 && report.accesses > 0, "seed {seed}: {report:?}");
    }
    fake.defer(false);
    let [looked, strange, lacking] =
        [&kernels::LOOKED, &kernels::STRANGE, &kernels::LACKING].map(|count| count.load(Ordering::Relaxed));
    kernels::looks(false);
    kernels::guard(0, 0);
    (seen, looked, strange + lacking)
}

#[test]
fn launches_find_originals_that_are_under_way() {
    const WORLDS: u64 = if cfg!(debug_assertions) { 24 } else { 120 };
    let (_fake, compiler, _turn) = alone();
    let (mut looked, mut failed) = (0, 0);
    for deferred in [false, true] {
        let (seen, looks, wrong) = lives(compiler, deferred, WORLDS);
        println!(
            "deferred {deferred}: steps, forks, cuts into them, chunks and reads while blocks were under way, steps that needed their room: {seen:?}, {looks} looks"
        );
        assert!(!deferred || seen.iter().all(|n| *n > 4), "{seen:?}");
        (looked, failed) = (looked + looks, failed + wrong);
    }
    let caught = [Plant::OldSides, Plant::OldLoans].into_iter().filter(|what| {
        kernels::plant(*what);
        let (_, _, wrong) = lives(compiler, true, 24);
        kernels::plant(Plant::Nothing);
        wrong > 0
    });
    let caught = caught.count();
    println!("GATE gpu-leaving executed={looked} failed={failed} controls={caught}/2 seed=0x0");
    assert!(failed == 0 && caught == 2 && looked > 1000);
    let [guarded, bare] = [&kernels::GUARDED, &kernels::BARE].map(|count| count.load(Ordering::Relaxed));
    println!("{guarded} protected blocks found promoted");
    assert!(guarded > 1000 && bare == 0, "{bare} were not");
}

/// Pages that wait for originals which leave are the next step's at once, and what left is counted.
#[test]
fn what_waits_for_originals_is_there_for_who_needs_it() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    fake.defer(true);
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut config = config(FORMATS[0]);
    // One block for each of two sequences, and one more.
    (config.max_tokens, config.max_context, config.max_sequences) = (3 * kernels::BLOCK, 3 * kernels::BLOCK, 2);
    (config.prefixes, config.swap_tokens, config.chunk_tokens) = (None, 0, 0);
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let ids = [(); 2].map(|()| cache.create().expect("a sequence"));
    let step = |cache: &mut GpuCache, ids: &[SequenceId]| {
        let chunks: Vec<_> = ids.iter().map(|id| Chunk { sequence: *id, tokens: 1 }).collect();
        let rows = vec![0x3c00; ids.len() * KV];
        let mut step = cache.begin_with(&chunks, Policy::Packed)?;
        (0..LAYERS).try_for_each(|layer| step.append_bits(layer, &rows, &rows))?;
        step.finish()
    };
    (0..kernels::BLOCK).for_each(|_| step(&mut cache, &ids).expect("a step"));
    let seen = cache.snapshot();
    let stores = seen.stores.expect("counted").done;
    let each = (LAYERS * kernels::BLOCK * KV * 4) as u64;
    assert_eq!((seen.pages[0].tail.retiring, stores.count(), stores.sum), (2, 1, 2 * each));
    cache.release(ids[0]).expect("a release");
    let seen = cache.snapshot();
    assert!(seen.pages[0].packed.retiring == 1 && seen.pages[0].host.retiring == 1, "its pages wait");
    assert_eq!(cache.admit(None, 2 * kernels::BLOCK).expect("an answer"), Admission::Fits);
    let new = cache.create().expect("a sequence");
    (0..2 * kernels::BLOCK).for_each(|_| step(&mut cache, &[new]).expect("room"));
    cache.release(new).expect("a release");
    cache.release(ids[1]).expect("the last release");
    let left = &cache.snapshot().pages[0];
    let retiring = [left.host, left.packed, left.tail].map(|pages| pages.live + pages.retiring);
    assert_eq!(retiring, [0; 3], "behind the last sequence nothing waits");
    fake.defer(false);
}

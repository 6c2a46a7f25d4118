//! Random operations on a cache over the fake driver, against a plain model: sequences are lists of tokens, and a token says what its
//! rows are. Whatever happens, originals are the model's bit for bit, and no page is left when everything is released.
use crate::kernels::{BLOCK, DIM, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use crate::shelf::Shelf;
use crate::{alone, kernels};
use certkv::gpu::{Compiler, Gpu, GpuCache};
use certkv::{Chunk, Error, Eviction, Policy, PrefixScope, SaveScope, SequenceId, Side};
use certkv_core::hash::splitmix64;
use certkv_testkit::generate::Rng;

const KV: usize = KV_HEADS * DIM;
const WORLDS: u64 = 150;
const OPERATIONS: usize = 100;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

struct World<'s> {
    cache: GpuCache,
    /// Units travel there, by way of the shelf.
    beside: GpuCache,
    shelf: &'s Shelf,
    live: Vec<(SequenceId, Vec<u32>)>,
    r: Rng,
    refused: usize,
    planted: usize,
    caught: usize,
    /// Forks, cuts, swaps out and in, continuations, files, units from the shelf here and beside.
    seen: [usize; 8],
}

/// One element of a token's row.
pub(crate) fn element(token: u32, layer: usize, side: Side, at: usize) -> u16 {
    let salt = (layer * 2 + usize::from(side == Side::Value)) * KV + at;
    // Any finite half.
    splitmix64(u64::from(token) << 32 | salt as u64) as u16 & 0xbbff
}

/// Rows of tokens in one layer, as a step is given them.
pub(crate) fn rows(tokens: &[u32], layer: usize, side: Side) -> Vec<u16> {
    tokens.iter().flat_map(|t| (0..KV).map(move |at| element(*t, layer, side, at))).collect()
}

/// Rows of one head of one layer.
pub(crate) fn expected(tokens: &[u32], (layer, head, side): (usize, usize, Side)) -> Vec<u16> {
    let row = |token: u32| (head * DIM..(head + 1) * DIM).map(move |at| element(token, layer, side, at));
    tokens.iter().flat_map(|token| row(*token)).collect()
}

impl World<'_> {
    fn pick(&mut self) -> Option<usize> {
        if self.live.is_empty() { None } else { Some(self.r.below(self.live.len())) }
    }

    /// A refusal for want of room is part of life.
    fn allow<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(
                Error::CapacityExhausted { .. }
                | Error::TooManySequences { .. }
                | Error::TooLong { .. }
                | Error::SwappedOut
                | Error::NotSwappedOut,
            ) => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self) {
        let mut chunks = Vec::new();
        let mut new = Vec::new();
        for at in 0..self.live.len() {
            if self.r.chance(0.6) {
                let tokens = if self.r.chance(0.7) { 1 } else { 1 + self.r.below(2 * BLOCK) };
                chunks.push(Chunk { sequence: self.live[at].0, tokens });
                // Few tokens, so that sequences agree.
                new.push((at, (0..tokens).map(|_| u32::from(self.r.chance(0.03))).collect::<Vec<u32>>()));
            }
        }
        if chunks.is_empty() {
            return;
        }
        let tokens: Vec<u32> = new.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
        let dropped = self.r.chance(0.1);
        let done = (|| {
            let mut step = self.cache.begin_with(&chunks, Policy::Packed)?;
            for layer in 0..LAYERS {
                step.append_bits(layer, &rows(&tokens, layer, Side::Key), &rows(&tokens, layer, Side::Value))?;
                if dropped {
                    return Ok(false);
                }
            }
            step.finish().map(|()| true)
        })();
        if self.allow(done) == Some(true) {
            new.into_iter().for_each(|(at, tokens)| self.live[at].1.extend(tokens));
        }
    }

    fn operate(&mut self) {
        let kind = self.r.below(18);
        let Some(at) = self.pick().filter(|_| kind > 1) else {
            let created = self.cache.create();
            if let Some(id) = self.allow(created) {
                self.live.push((id, Vec::new()));
            }
            return;
        };
        let (id, tokens) = self.live[at].clone();
        match kind {
            2 => {
                let forked = self.cache.fork(id);
                if let Some(fork) = self.allow(forked) {
                    self.live.push((fork, tokens));
                    self.seen[0] += 1;
                }
            }
            3 | 4 => {
                let len =
                    if self.r.chance(0.5) { self.r.below(tokens.len() + 1) } else { tokens.len().saturating_sub(3) };
                let cut = self.cache.truncate(id, len);
                if self.allow(cut).is_some() {
                    self.live[at].1.truncate(len);
                    self.seen[1] += 1;
                }
            }
            5 => {
                self.cache.release(id).expect("a release");
                self.live.swap_remove(at);
            }
            6..=8 => {
                let swapped = if self.cache.is_swapped_out(id).expect("a sequence") {
                    self.seen[3] += 1;
                    self.cache.swap_in(id)
                } else {
                    self.seen[2] += 1;
                    self.cache.swap_out(id)
                };
                self.allow(swapped);
            }
            9 | 10 => {
                let published = self.cache.publish(id, &SCOPE, tokens[..].into());
                let out = self.cache.is_swapped_out(id).expect("a sequence");
                assert_eq!(out, matches!(published, Err(Error::SwappedOut)), "published from outside");
                self.allow(published);
                let created = self.cache.create_from(&SCOPE, tokens[..].into());
                if let Some((new, found)) = self.allow(created) {
                    self.live.push((new, tokens[..found].to_vec()));
                    self.seen[4] += usize::from(found > 0);
                }
            }
            11 => {
                let mut file = Vec::new();
                self.cache.save(id, &FILE, &mut file).expect("a file");
                let restored = self.cache.restore(&FILE, &mut &file[..]);
                if let Some(new) = self.allow(restored) {
                    self.live.push((new, tokens));
                    self.seen[5] += 1;
                }
            }
            12 | 13 => self.travel(at),
            _ => self.step(),
        }
    }

    /// Cached units of a sequence go to the shelf, and from there to where they are missing: into the other cache, or into this one
    /// in place of the sequence.
    fn travel(&mut self, at: usize) {
        let (id, tokens) = &self.live[at];
        let (id, tokens) = (*id, &tokens.clone()[..]);
        let puts = self.cache.export_prefix(&SCOPE, tokens.into(), 0).expect("units");
        let here = !puts.is_empty() && self.r.chance(0.7);
        self.shelf.put(puts);
        if here {
            self.cache.release(id).expect("a release");
            self.live.swap_remove(at);
            self.cache.evict_prefixes(usize::MAX).expect("evictions");
        }
        let cache = if here { &mut self.cache } else { &mut self.beside };
        let before = cache.prefix_stats().map_or(0, |(units, _)| units);
        let found = self.shelf.get(cache.missing_prefix(&SCOPE, tokens.into()).expect("names"));
        let cached = cache.import_prefix(&SCOPE, tokens.into(), &found).expect("whole units, or no room");
        assert!(cached <= tokens.len() && cached.is_multiple_of(BLOCK));
        let imported = cache.prefix_stats().map_or(0, |(units, _)| units) > before;
        self.seen[if here { 6 } else { 7 }] += usize::from(imported);
        if cached == 0 {
            return;
        }
        let created = cache.create_from(&SCOPE, tokens.into());
        let Some((id, len)) = self.allow(created) else { return };
        assert_eq!(len, cached);
        if here {
            self.live.push((id, tokens[..len].to_vec()));
            return;
        }
        let (layer, head) = (self.r.below(LAYERS), self.r.below(KV_HEADS));
        let got = self.beside.originals(id, layer, head, Side::Value).expect("originals");
        assert_eq!(got, expected(&tokens[..len], (layer, head, Side::Value)), "other originals beside");
        self.beside.release(id).expect("a release");
        let units = if self.r.chance(0.3) { usize::MAX } else { 0 };
        self.beside.evict_prefixes(units).expect("evictions");
    }

    /// Whether originals of one head of one layer of one sequence are those of its tokens.
    fn holds(&mut self, at: usize, tokens: &[u32]) -> bool {
        let id = self.live[at].0;
        let (layer, head) = (self.r.below(LAYERS), self.r.below(KV_HEADS));
        let side = if self.r.chance(0.5) { Side::Key } else { Side::Value };
        let got = self.cache.originals(id, layer, head, side).expect("originals");
        got == expected(tokens, (layer, head, side))
    }

    fn verify(&mut self, at: usize) {
        let (id, tokens) = self.live[at].clone();
        assert_eq!(self.cache.len(id).expect("a sequence"), tokens.len());
        assert!(self.holds(at, &tokens), "other originals");
        if let Some(first) = tokens.first() {
            let mut other = tokens.clone();
            other[0] = first + 1;
            self.planted += 1;
            self.caught += usize::from(!self.holds(at, &other));
        }
    }
}

/// What was refused, reached, planted and caught.
fn world(compiler: &Compiler, shelf: &Shelf, seed: u64) -> (usize, [usize; 8], [usize; 2]) {
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut config = config(FORMATS[seed as usize % 3]);
    config.erase = seed / 3 % 2 == 1;
    let erase = config.erase;
    // Room for sharing, and now and then too little.
    config.max_tokens = (8 + seed as usize % 3 * 12) * BLOCK;
    if let (Some(prefixes), true) = (&mut config.prefixes, seed % 2 == 1) {
        (prefixes.units, prefixes.eviction) = (64, Eviction::S3Fifo);
    }
    let mut other = config.clone();
    other.max_tokens = 6 * BLOCK;
    let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let beside = GpuCache::new(&gpu, compiler, other).expect("a cache");
    shelf.clear();
    let mut world = World {
        cache,
        beside,
        shelf,
        live: Vec::new(),
        r: Rng::new(seed),
        refused: 0,
        planted: 0,
        caught: 0,
        seen: [0; 8],
    };
    for _ in 0..OPERATIONS {
        world.operate();
        if let Some(at) = world.pick() {
            world.verify(at);
        }
    }
    (0..world.live.len()).for_each(|at| world.verify(at));
    // A sequence that nobody released is seen.
    world.planted += 1;
    world.caught += usize::from(world.live.iter().all(|l| l.1.is_empty()) || world.cache.live_pages() > 0);
    for (id, _) in world.live.drain(..) {
        world.cache.release(id).expect("a release");
    }
    let evicted = world.cache.evict_prefixes(usize::MAX).expect("evictions");
    let (units, _) = world.cache.prefix_stats().expect("prefixes are cached");
    assert_eq!((world.cache.live_pages(), units), (0, 0), "seed {seed}: pages are left, {evicted} units evicted");
    let left = world.cache.residue().expect("a look at all memory");
    assert!(left == 0 || !erase, "seed {seed}: {left} bytes are left in memory that nobody holds");
    world.beside.evict_prefixes(usize::MAX).expect("evictions");
    assert_eq!(world.beside.live_pages(), 0, "seed {seed}: pages are left beside");
    (world.refused, world.seen, [world.planted, world.caught])
}

#[test]
fn the_cache_is_its_model() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (mut refused, mut seen, mut planted, mut caught) = (0, [0; 8], 0, 0);
    let shelf = Shelf::new();
    for seed in 0..WORLDS {
        let (full, reached, controls) = world(compiler, &shelf, seed);
        refused += full;
        (planted, caught) = (planted + controls[0], caught + controls[1]);
        seen.iter_mut().zip(reached).for_each(|(sum, n)| *sum += n);
    }
    println!(
        "GATE gpu-model executed={} failed=0 controls={caught}/{planted} seed=0x0 refused={refused} forks, cuts, swaps out and in, continued, restored, imported here and beside: {seen:?}",
        WORLDS as usize * OPERATIONS
    );
    assert_eq!(caught, planted);
    assert!(refused > 0 && seen.iter().all(|n| *n > 20), "{refused} {seen:?}");
}

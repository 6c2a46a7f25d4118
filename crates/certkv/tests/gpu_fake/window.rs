//! Layers with windows over the fake driver: whatever happens to sequences, each launch of attention finds, behind the tables on the device,
//! the pages of exactly the blocks that its queries see; memory is that of the windows, layer by layer; what a cut cannot have is refused, and nothing leaks.
//! Sequences begin with cached prefixes, too, which may have come by way of a store.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Read};
use crate::life::{FORMATS, LAYERS, config};
use crate::shelf::Shelf;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{
    Chunk, Error, Eviction, Policy, PrefixConfig, PrefixScope, PrefixSecret, SaveScope, SequenceId, Side, Window,
};
use certkv_core::fragment::original_index;
use certkv_core::hash::splitmix64;
use certkv_kernel::cuda::swap::digest;
use certkv_testkit::generate::Rng;

const KV: usize = KV_HEADS * DIM;
const WORLDS: u64 = 60;
const OPERATIONS: usize = 320;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

/// One element of a token's row.
fn element(token: u32, layer: usize, side: Side, at: usize) -> u16 {
    let salt = (layer * 2 + usize::from(side == Side::Value)) * KV + at;
    // Any finite half.
    splitmix64(u64::from(token) << 32 | salt as u64) as u16 & 0xbbff
}

/// The mark of both sides of a head of a full block.
fn mark(tokens: &[u32], layer: usize, head: usize) -> u64 {
    let mut words = vec![0u16; 2 * BLOCK * DIM];
    for (side, half) in [Side::Key, Side::Value].into_iter().zip(words.chunks_exact_mut(BLOCK * DIM)) {
        for (row, token) in tokens.iter().enumerate() {
            for channel in 0..DIM {
                half[original_index(row, channel, DIM, side == Side::Key)] =
                    element(*token, layer, side, head * DIM + channel);
            }
        }
    }
    digest(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
}

struct World<'s> {
    cache: GpuCache,
    shelf: &'s Shelf,
    /// What was published.
    library: Vec<Vec<u32>>,
    windows: Vec<Option<Window>>,
    live: Vec<(SequenceId, Vec<u32>)>,
    r: Rng,
    next: u32,
    refused: usize,
    blocks: usize,
    hidden: usize,
    /// Forks, cuts, cuts refused, swaps, files; of prefixes publications, continuations, hits that windows cut short, and imports.
    seen: [usize; 9],
}

impl World<'_> {
    fn allow<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(
                Error::CapacityExhausted { .. }
                | Error::TooManySequences { .. }
                | Error::TooLong { .. }
                | Error::LongChunk { .. }
                | Error::SwappedOut
                | Error::NotSwappedOut,
            ) => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What a launch of a layer has to read of a batch of sequences.
    fn expected(&self, layer: usize, batch: &[Vec<u32>]) -> Vec<Read> {
        let sees = |t: usize, len: usize| self.windows[layer].is_none_or(|w| t < w.sinks || t + w.tokens >= len);
        let mut all = Vec::new();
        for (place, tokens) in batch.iter().enumerate() {
            let len = tokens.len();
            // A block that the newest token fills lies in its tail until the step is over.
            for (block, rows) in tokens[..len - 1].chunks_exact(BLOCK).enumerate() {
                if (block * BLOCK..(block + 1) * BLOCK).any(|t| sees(t, len)) {
                    let read = |head| Read { place, head, block, mark: mark(rows, layer, head), originals: None };
                    all.extend((0..KV_HEADS).map(read));
                }
            }
        }
        all
    }

    fn step(&mut self) {
        let mut chunks = Vec::new();
        let mut new: Vec<(usize, Vec<u32>)> = Vec::new();
        let long = self.r.chance(0.4);
        for at in 0..self.live.len() {
            // What is swapped out is refused, and now and then asked for.
            let away = self.cache.is_swapped_out(self.live[at].0).expect("a sequence");
            if self.r.chance(if away { 0.1 } else { 0.7 }) {
                let tokens = if long { 1 + self.r.below(12) } else { 1 };
                chunks.push(Chunk { sequence: self.live[at].0, tokens });
                new.push((at, (self.next..self.next + tokens as u32).collect()));
                self.next += tokens as u32;
            }
        }
        if chunks.is_empty() {
            return;
        }
        let single: Vec<Vec<u32>> = new
            .iter()
            .filter(|(_, tokens)| tokens.len() == 1)
            .map(|(at, tokens)| [&self.live[*at].1[..], tokens].concat())
            .collect();
        let tokens: Vec<u32> = new.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
        let rows = |layer, side| -> Vec<u16> {
            tokens.iter().flat_map(|t| (0..KV).map(move |at| element(*t, layer, side, at))).collect()
        };
        let queries = vec![0.5f32; tokens.len() * GROUP * KV];
        let (dense, dropped) = (self.r.chance(0.5), self.r.chance(0.1));
        let mut reads = Vec::new();
        let done = (|| {
            let mut step = self.cache.begin_with(&chunks, if dense { Policy::Dense } else { Policy::Packed })?;
            for layer in 0..LAYERS {
                step.append_bits(layer, &rows(layer, Side::Key), &rows(layer, Side::Value))?;
                kernels::reads();
                step.attend(layer, &queries)?;
                step.cache().synchronize()?;
                reads.push(kernels::reads());
                if dropped {
                    return Ok(false);
                }
            }
            step.finish().map(|()| true)
        })();
        let done = self.allow(done);
        for (layer, launches) in reads.iter().enumerate() {
            let want = self.expected(layer, &single);
            assert_eq!(launches.len(), usize::from(!single.is_empty()));
            for got in launches {
                let plain: Vec<Read> = got.iter().map(|read| Read { originals: None, ..*read }).collect();
                assert_eq!(plain, want, "layer {layer}: other blocks, or other pages of them");
                let exact = |read: &Read| read.originals == dense.then_some(read.mark);
                assert!(self.cache.layouts()[layer].format.key.is_exact() || got.iter().all(exact), "other originals");
                self.blocks += got.len();
            }
            let all: usize = single.iter().map(|tokens| (tokens.len() - 1) / BLOCK * KV_HEADS).sum();
            self.hidden += all - want.len();
        }
        if done == Some(true) {
            new.into_iter().for_each(|(at, tokens)| self.live[at].1.extend(tokens));
        }
    }

    fn operate(&mut self) {
        let kind = self.r.below(34);
        if self.live.is_empty() || kind == 0 {
            let created = self.cache.create();
            if let Some(id) = self.allow(created) {
                self.live.push((id, Vec::new()));
            }
            return;
        }
        let at = self.r.below(self.live.len());
        let (id, tokens) = self.live[at].clone();
        match kind {
            1 => {
                let forked = self.cache.fork(id);
                if let Some(fork) = self.allow(forked) {
                    self.live.push((fork, tokens));
                    self.seen[0] += 1;
                }
            }
            2 | 3 => {
                let near = tokens.len().saturating_sub(self.r.below(3 * BLOCK));
                let len = if self.r.chance(0.3) { self.r.below(tokens.len() + 1) } else { near };
                match self.cache.truncate(id, len) {
                    Err(Error::WindowPassed { asked, least, within }) => {
                        assert!(asked == len && within < len && len < least);
                        assert_eq!(self.cache.len(id).expect("a sequence"), tokens.len());
                        self.seen[2] += 1;
                    }
                    cut => {
                        if self.allow(cut).is_some() {
                            self.live[at].1.truncate(len);
                            self.seen[1] += 1;
                        }
                    }
                }
            }
            4 => {
                self.cache.release(id).expect("a release");
                self.live.swap_remove(at);
            }
            5 | 6 => {
                let out = self.cache.is_swapped_out(id).expect("a sequence");
                let swapped = if out { self.cache.swap_in(id) } else { self.cache.swap_out(id) };
                self.seen[3] += usize::from(self.allow(swapped).is_some());
            }
            7 => {
                let mut file = Vec::new();
                self.cache.save(id, &FILE, &mut file).expect("a file");
                let restored = self.cache.restore(&FILE, &mut &file[..]);
                if let Some(new) = self.allow(restored) {
                    self.live.push((new, tokens));
                    self.seen[4] += 1;
                }
            }
            8..=10 => {
                let published = self.cache.publish(id, &SCOPE, tokens[..].into());
                let out = self.cache.is_swapped_out(id).expect("a sequence");
                assert_eq!(out, matches!(published, Err(Error::SwappedOut)), "published from outside");
                let units = self.cache.prefix_stats().expect("prefixes are cached").0;
                if let Some(done) = self.allow(published) {
                    assert!(done.cached <= tokens.len() && done.added <= units * BLOCK);
                    self.seen[5] += usize::from(done.added > 0);
                    self.library.push(tokens);
                }
            }
            11..=13 => self.resume(),
            14 if !self.library.is_empty() => {
                // Everything goes to the shelf and comes back from there.
                let tokens = self.library[self.r.below(self.library.len())].clone();
                let puts = self.cache.export_prefix(&SCOPE, tokens[..].into(), 0).expect("units");
                self.shelf.put(puts);
                self.cache.evict_prefixes([0, 3, usize::MAX][self.r.below(3)]).expect("evictions");
                let gets = self.shelf.get(self.cache.missing_prefix(&SCOPE, tokens[..].into()).expect("names"));
                let before = self.cache.find_prefix(&SCOPE, tokens[..].into()).expect("prefixes are cached").found;
                let now = self.cache.import_prefix(&SCOPE, tokens[..].into(), &gets).expect("whole units, or no room");
                assert_eq!(now, self.cache.find_prefix(&SCOPE, tokens[..].into()).expect("prefixes are cached").found);
                self.seen[8] += usize::from(now > before);
            }
            15 => {
                self.cache.evict_prefixes(self.r.below(4)).expect("evictions");
            }
            _ => self.step(),
        }
    }

    /// A sequence from what is cached of one that was published.
    fn resume(&mut self) {
        // Windows are missing where sequences are long.
        let longest = self.library.iter().max_by_key(|tokens| tokens.len()).cloned();
        let Some(mut tokens) = longest else { return };
        if self.r.chance(0.5) {
            tokens.clone_from(&self.library[self.r.below(self.library.len())]);
        }
        let asked = if self.r.chance(0.5) { tokens.len() } else { self.r.below(tokens.len() + 1) };
        let peek = self.cache.find_prefix(&SCOPE, tokens[..asked].into()).expect("prefixes are cached");
        let created = self.cache.create_from(&SCOPE, tokens[..asked].into());
        let Some((id, found)) = self.allow(created) else { return };
        assert!(found == peek.found && found <= peek.cached && peek.cached <= asked);
        self.seen[6] += usize::from(found > 0);
        self.seen[7] += usize::from(found < peek.cached);
        self.live.push((id, tokens[..found].to_vec()));
    }
}

fn world(compiler: &Compiler, shelf: &Shelf, seed: u64, tally: &mut [usize; 12]) {
    let mut r = Rng::new(seed);
    let format = FORMATS[seed as usize % 3];
    kernels::begin(format);
    let gpu = Gpu::open(0).expect("the fake");
    let window = |r: &mut Rng| Window {
        slack: [None, Some(r.below(40))][r.below(2)],
        chunk: 12 + r.below(40),
        ..Window::new(1 + r.below(60)).with_sinks([0, r.below(40)][r.below(2)])
    };
    let one = window(&mut r);
    let windows = match seed % 4 {
        0 => vec![Some(one), None],
        1 => vec![Some(one), Some(window(&mut r))],
        _ => vec![Some(one)],
    };
    let config = GpuConfig {
        windows: windows.clone(),
        prefixes: Some(PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 60, eviction: Eviction::Lru }),
        max_tokens: 60 * BLOCK,
        max_context: 30 * BLOCK,
        swap_tokens: 12 * BLOCK,
        ..config(format)
    };
    let erase = config.erase;
    let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let windows = (0..LAYERS).map(|layer| windows[layer % windows.len()]).collect();
    let (live, library) = (Vec::new(), Vec::new());
    let mut world =
        World { cache, shelf, library, windows, live, r, next: 0, refused: 0, blocks: 0, hidden: 0, seen: [0; 9] };
    for _ in 0..OPERATIONS {
        world.operate();
        for (id, tokens) in &world.live {
            assert_eq!(world.cache.len(*id).expect("a sequence"), tokens.len());
        }
    }
    // What is there is there bit for bit; of what a window has passed the range is named.
    for (id, tokens) in world.live.drain(..) {
        match world.cache.originals(id, 1, 0, Side::Key) {
            Ok(rows) => {
                let want = tokens.iter().flat_map(|t| (0..DIM).map(|at| element(*t, 1, Side::Key, at)));
                assert!(rows.into_iter().eq(want), "other originals");
            }
            Err(Error::Gone { first, end }) => {
                assert!(first < end && end < tokens.len() && first.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK));
                assert!(world.cache.record_bytes(id, 1, first / BLOCK, 0).is_err());
            }
            Err(error) => panic!("{error}"),
        }
        world.cache.release(id).expect("a release");
    }
    world.cache.evict_prefixes(usize::MAX).expect("evictions");
    assert_eq!(world.cache.live_pages(), 0, "seed {seed}: pages are left");
    assert!(!erase || world.cache.residue().expect("a look at all memory") == 0, "seed {seed}: bytes are left");
    let all = [world.refused, world.blocks, world.hidden].into_iter().chain(world.seen);
    tally.iter_mut().zip(all).for_each(|(sum, n)| *sum += n);
}

#[test]
fn launches_find_the_pages_of_what_is_seen() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::reads();
    let (mut tally, shelf) = ([0; 12], Shelf::new());
    for seed in 0..WORLDS {
        shelf.clear();
        world(compiler, &shelf, seed, &mut tally);
    }
    kernels::no_reads();
    println!(
        "GATE gpu-windows executed={} failed=0 controls=0/0 seed=0x0 refused, blocks seen, hidden; forks, cuts, refused cuts, swaps, files; published, continued, cut short, imported: {tally:?}",
        tally[1]
    );
    assert!(tally.iter().all(|n| *n > 15), "{tally:?}");
}

/// A sequence a hundred times as long as its window takes the pages of the window, and no more is reserved.
#[test]
fn pages_are_those_of_the_window() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let window = Window { chunk: BLOCK, ..Window::new(2 * BLOCK).with_sinks(3) };
    let config = GpuConfig {
        prefixes: None,
        max_tokens: 300 * BLOCK,
        max_context: 300 * BLOCK,
        max_sequences: 1,
        ..config(FORMATS[0])
    };
    let full = config.clone();
    let mut cache = GpuCache::new(&gpu, compiler, config.with_window(window)).expect("a cache");
    let machine = certkv::gpu::GpuMachine::of(&gpu).expect("kernels");
    let [few, many] = [cache.reserved().0[0], full.plan(machine).expect("a plan").classes[0]];
    assert!(few * 30 < many, "{few} {many}");
    let id = cache.create().expect("a sequence");
    let rows = vec![0x3800u16; BLOCK * KV];
    let grow = |cache: &mut GpuCache, id| {
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: BLOCK }]).expect("room");
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows, &rows).expect("rows");
        }
        step.finish().expect("a chunk");
    };
    let mut most = 0;
    for _ in 0..200 {
        grow(&mut cache, id);
        most = most.max(cache.live_pages());
    }
    // The sinks' block, the window, its slack and what of a block is left: each has originals and a record.
    assert!(cache.len(id).expect("a sequence") == 200 * BLOCK && most <= 2 * 5, "{most}");
    let long = cache.begin(&[Chunk { sequence: id, tokens: BLOCK + 1 }]).map(drop).expect_err("a long chunk");
    assert!(matches!(long, Error::LongChunk { tokens: 17, chunk: 16 }), "{long}");
    assert!(matches!(cache.admit(Some(id), 90 * BLOCK), Ok(certkv::Admission::Fits)));
    assert!(matches!(cache.truncate(id, 100), Err(Error::WindowPassed { asked: 100, within: 16, .. })));
    cache.truncate(id, 10).expect("within the sinks");
    assert_eq!(cache.originals(id, 0, 0, Side::Key).expect("all of it").len(), 10 * DIM);
    drop(cache);
    // Beside a layer without one, the layer with a window gives its own pages up.
    let config = GpuConfig { windows: vec![None, Some(window)], ..full };
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let id = cache.create().expect("a sequence");
    for _ in 0..200 {
        grow(&mut cache, id);
    }
    let live: Vec<_> = cache.snapshot().pages.iter().map(|p| (p.first_layer, p.layers, p.packed.live)).collect();
    assert!(live[0] == (0, 1, 200) && live[1].0 == 1 && live[1].2 <= 5, "{live:?}");
    assert!(matches!(cache.originals(id, 1, 0, Side::Key), Err(Error::Gone { first: 16, .. })));
    assert_eq!(cache.originals(id, 0, 0, Side::Key).expect("all of it").len(), 200 * BLOCK * DIM);
    assert!(
        matches!(cache.truncate(id, 100), Err(Error::WindowPassed { .. }))
            && cache.len(id).is_ok_and(|n| n == 200 * BLOCK)
    );
    cache.release(id).expect("a release");
    assert_eq!(cache.live_pages(), 0);
}

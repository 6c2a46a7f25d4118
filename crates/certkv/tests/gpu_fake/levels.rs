//! Blocks whose levels change while sequences grow, fork, are cut and end, against a plain model: every launch of a level goes over the blocks that have it, each
//! of them with the record that was made of its rows; a promoted side is the block's own; a step sees all of a change or nothing.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Plant};
use crate::life::LAYERS;
use crate::model::{element, expected, rows};
use crate::scored::{Twin, attention};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{
    Certified, Chunk, Error, Eviction, Geometry, Level, Policy, PrefixConfig, PrefixScope, PrefixSecret, Protection,
    SaveScope, SequenceId, Side, SmartKv, Status,
};
use certkv_control::smartkv::{Ladder, Rule};
use certkv_core::RecordLayout;
use certkv_core::fragment::original_index;
use certkv_core::plant::{self, Bug};
use certkv_kernel::cuda::swap::digest;
use certkv_testkit::generate::Rng;
use std::sync::atomic::Ordering;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const OPERATIONS: usize = 150;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");

/// Records of all formats have room for the fake's mark.
pub(crate) const LADDERS: [&[&str]; 2] =
    [&["k8-v8g32-b16", "k4-v4g32-b16"], &["t8-v8g32-b16", "tq4-tq4-b16", "tq2-tq2-b16"]];

pub(crate) struct World {
    pub(crate) cache: GpuCache,
    /// Tokens, and by layer the level of each full block.
    pub(crate) live: Vec<(SequenceId, Vec<u32>, [Vec<usize>; LAYERS])>,
    pub(crate) levels: usize,
    controlled: bool,
    /// Of live sequences, by layer: who decides, told what the log says.
    twins: Vec<[Twin; LAYERS]>,
    /// Entries that were told something, and blocks that they changed.
    told: [usize; 2],
    r: Rng,
    next: u32,
    pub(crate) wrong: Vec<String>,
    /// Tokens of a chunk that are attended at once, and blocks that such went over, of the first level, of others, and originals.
    pub(crate) chunk_tokens: usize,
    pub(crate) chunked: [usize; 3],
    /// Blocks read at the first level and at others; changes, those refused for want of pages, forks, cuts, steps that were dropped, sequences that were away, units cached, sequences that began with some, and those of files.
    seen: [usize; 11],
}

/// Decides often.
fn rule() -> Rule {
    Rule { points: 0.0, checks: 0, base: 2, drift_every: 1, ..Rule::default() }
}

fn fresh(layer: usize) -> Twin {
    Twin::new(layer, GROUP * KV_HEADS, rule())
}

/// Bytes of a page by level.
pub(crate) fn page_bytes(ladder: &[&str]) -> Vec<f64> {
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM).expect("a geometry");
    let bytes =
        |format: &&str| RecordLayout::new(&geometry, format.parse().expect("a format")).expect("a layout").bytes;
    ladder.iter().map(|format| (KV_HEADS * bytes(format)) as f64).collect()
}

/// Bytes a token: between the first level and the last.
pub(crate) fn budget(ladder: &[&str]) -> f64 {
    let pages = page_bytes(ladder);
    (0.7 * pages[0] + 0.3 * pages[ladder.len() - 1]) / BLOCK as f64
}

pub(crate) fn config(ladder: &[&str], seed: u64) -> GpuConfig {
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM).expect("a geometry");
    let few = if seed.is_multiple_of(3) { 2 } else { 4 };
    let level = |(i, format): (usize, &&str)| Level {
        format: format.parse().expect("a format"),
        // Few pages below the first level, which change hands soon.
        tokens: if i == 0 { 20 - few * (ladder.len() - 1) } else { few } * BLOCK,
    };
    let mut config = GpuConfig::new(geometry, 20 * BLOCK).with_levels(ladder.iter().enumerate().map(level).collect());
    (config.max_context, config.max_sequences, config.swap_tokens) = (9 * BLOCK, 5, 12 * BLOCK);
    config.prefixes = Some(PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 6, eviction: Eviction::Lru });
    // The sum of the bytes of a page at every level but the last, of which there are few pages: more is wanted than there is room for.
    config.control = (seed % 2 == 1).then(|| SmartKv { rule: rule(), ..SmartKv::new(budget(ladder)) }.into());
    config.plan_apart = seed % 4 < 3;
    config.chunk_tokens = if seed % 3 == 2 { 2 * BLOCK } else { 0 };
    config.protection = if seed % 8 == 5 { Protection::new(3, BLOCK) } else { Protection::NONE };
    config.with_scratch(0.2)
}

/// The mark of a block of a head, as the fake makes it of its originals.
pub(crate) fn mark(tokens: &[u32], layer: usize, head: usize, block: usize) -> u64 {
    let mut words = vec![0u16; 2 * BLOCK * DIM];
    for (at, side) in [(0, Side::Key), (BLOCK * DIM, Side::Value)] {
        for (token, number) in tokens[block * BLOCK..(block + 1) * BLOCK].iter().enumerate() {
            for channel in 0..DIM {
                words[at + original_index(token, channel, DIM, side == Side::Key)] =
                    element(*number, layer, side, head * DIM + channel);
            }
        }
    }
    digest(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

impl World {
    pub(crate) fn new(cache: GpuCache, levels: usize, controlled: bool, seed: u64) -> Self {
        let (r, told, seen) = (Rng::new(seed), [0; 2], [0; 11]);
        Self {
            cache,
            live: Vec::new(),
            levels,
            controlled,
            twins: Vec::new(),
            told,
            r,
            next: 0,
            wrong: Vec::new(),
            chunk_tokens: 0,
            chunked: [0; 3],
            seen,
        }
    }

    fn allow<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(Error::CapacityExhausted { .. } | Error::TooManySequences { .. } | Error::TooLong { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Who decides on levels looks at a sequence behind a step of single tokens in which it had place `part`, or had not.
    fn control(&mut self, at: usize, was_in: bool) {
        let (id, tokens, levels) = self.live[at].clone();
        let (ladder, blocks) = (LADDERS[self.levels - 2], tokens.len() / BLOCK);
        let mut log = Vec::new();
        let done = self.cache.control_logged(id, Some(&mut |entry| log.push(entry))).expect("an answer");
        let formats: Vec<_> = ladder.iter().rev().map(|f| f.parse::<certkv::Format>().expect("a format")).collect();
        let bits: Vec<u8> = formats.iter().map(|f| (f.key.bits() + f.value.bits()) as u8).collect();
        let cost: Vec<f64> = page_bytes(ladder).into_iter().rev().collect();
        let (mut moved, mut wanted) = (0, 0);
        for (layer, entry) in log.into_iter().enumerate() {
            let up: Vec<u8> = levels[layer].iter().map(|level| (self.levels - 1 - level) as u8).collect();
            if entry.layer != layer || entry.levels != up {
                self.wrong.push(format!("layer {layer}: levels {:?}, not {up:?}", entry.levels));
            }
            // Blocks that were full before the step have masses; the one that it filled has the rest.
            let known = tokens.len().saturating_sub(1) / BLOCK;
            let want = attention(known, blocks);
            if entry.scored.is_some() != (was_in && blocks > 0) {
                self.wrong.push(format!("layer {layer}: told {:?}", entry.scored));
            }
            self.told[0] += usize::from(entry.scored.is_some());
            let ladder_of = Ladder { bits: &bits, cost: &cost };
            let found = self.twins[at][layer].hear(&entry, &want, &ladder_of, budget(ladder) * BLOCK as f64);
            self.wrong.extend(found.map(|what| format!("layer {layer}: {what}")));
            let decided = entry.decision.and_then(|decision| decision.levels);
            for (block, level) in levels[layer].iter().copied().enumerate() {
                let now = self.cache.level(id, layer, block).expect("a level");
                let asked = decided.as_ref().and_then(|d| d.get(block)).map(|up| self.levels - 1 - usize::from(*up));
                wanted += usize::from(asked.is_some_and(|asked| asked != level));
                if now != level {
                    moved += 1;
                    if asked != Some(now) {
                        self.wrong.push(format!("layer {layer}, block {block}: a level that nobody decided"));
                    }
                }
                self.live[at].2[layer][block] = now;
            }
        }
        if (moved, wanted) != (done.changed, done.changed + done.refused) || done.failed > 0 {
            self.wrong.push(format!("{moved} of {wanted} moved: {done:?}"));
        }
        self.told[1] += moved;
    }

    /// Of a step that ended: new full blocks are of the first level.
    fn grown(levels: &mut [Vec<usize>; LAYERS], tokens: usize) {
        levels.iter_mut().for_each(|of| of.resize(tokens / BLOCK, 0));
    }

    pub(crate) fn step(&mut self, most: usize) {
        let chosen: Vec<usize> = (0..self.live.len()).filter(|_| self.r.chance(0.5)).collect();
        let parts: Vec<_> = chosen.into_iter().map(|at| (at, 1 + self.r.below(most))).collect();
        if parts.is_empty() {
            return;
        }
        let chunks: Vec<_> = parts.iter().map(|(at, n)| Chunk { sequence: self.live[*at].0, tokens: *n }).collect();
        let tokens: Vec<u32> = (0..parts.iter().map(|p| p.1 as u32).sum()).map(|i| self.next + i).collect();
        self.next += tokens.len() as u32;
        let queries: Vec<f32> = (0..tokens.len() * Q).map(|_| self.r.uniform() as f32 - 0.5).collect();
        let (packed, ends) = (self.r.chance(0.2), self.r.chance(0.9));
        let policy = if packed { Policy::Packed } else { Policy::Certified(Certified::default()) };
        // What is not planned reads what it was lent.
        let planned = self.r.chance(0.2);
        let mut out = vec![f32::NAN; tokens.len() * Q];
        let mut certificates = vec![certkv::Certificate::UNCERTIFIED; tokens.len() * GROUP * KV_HEADS];
        let mut wrong = Vec::new();
        let (mut reads, mut chunked) = (Vec::new(), Vec::new());
        let done = (|| {
            let mut step = self.cache.begin_with(&chunks, policy)?;
            for layer in 0..LAYERS {
                step.append_bits(layer, &rows(&tokens, layer, Side::Key), &rows(&tokens, layer, Side::Value))?;
                kernels::reads();
                kernels::chunk_reads(true);
                step.attend(layer, &queries)?;
                step.outputs(layer, &mut out, &mut certificates)?;
                reads.push(kernels::reads());
                chunked.push(kernels::chunk_reads(false));
                if planned {
                    step.plan(layer)?;
                }
            }
            kernels::no_reads();
            if ends { step.finish().map(|()| true) } else { Ok(false) }
        })();
        kernels::no_reads();
        let Some(ended) = self.allow(done) else { return };
        self.seen[6] += usize::from(!ended);
        // Of single tokens alone: the query back, and no more claimed than the policy says.
        for (i, (c, row)) in certificates.iter().zip(out.chunks_exact(DIM)).enumerate() {
            let claims = matches!(c.status, Status::Certified | Status::Exact);
            if most == 1 && (claims == packed || row != &queries[i * DIM..(i + 1) * DIM]) {
                wrong.push(format!("output {i}: {:?}", c.status));
            }
        }
        // The last launches over the batch, level by level: before them may be what a prompt has left to run.
        for (layer, launches) in reads.iter().enumerate().filter(|_| most == 1) {
            let launches = &launches[launches.len().saturating_sub(self.levels)..];
            for (level, reads) in launches.iter().enumerate() {
                for read in reads {
                    let (_, old, levels) = &self.live[parts[read.place].0];
                    self.seen[usize::from(level > 0)] += 1;
                    if levels[layer].get(read.block) != Some(&level) {
                        wrong.push(format!("layer {layer}: block {} of level {level}", read.block));
                    } else if read.mark != mark(old, layer, read.head, read.block) {
                        wrong.push(format!("layer {layer}, block {}: another's record", read.block));
                    }
                }
            }
            let all: usize = launches.iter().map(Vec::len).sum();
            let want: usize = parts.iter().map(|(at, _)| self.live[*at].2[layer].len() * KV_HEADS).sum();
            if all != want {
                wrong.push(format!("layer {layer}: {all} blocks read of {want}"));
            }
        }
        wrong.extend(self.chunks_wrong((&parts, &tokens), &chunked, (&queries, &out), !packed));
        if ended {
            let mut tokens = tokens.into_iter();
            for (at, n) in &parts {
                let (_, old, levels) = &mut self.live[*at];
                old.extend(tokens.by_ref().take(*n));
                Self::grown(levels, old.len());
            }
            if !self.twins.is_empty() {
                for at in 0..self.live.len() {
                    let single = parts.contains(&(at, 1));
                    if self.r.chance(0.5) {
                        self.control(at, single);
                    }
                }
            }
        }
        self.wrong.extend(wrong);
    }

    /// A certified step of a token of every sequence, which is begun once more if a call fails.
    pub(crate) fn try_step(&mut self) -> Result<(), Error> {
        let tokens: Vec<u32> = (0..self.live.len() as u32).map(|i| self.next + i).collect();
        self.next += tokens.len() as u32;
        let chunks: Vec<_> = self.live.iter().map(|(id, ..)| Chunk { sequence: *id, tokens: 1 }).collect();
        let queries: Vec<f32> = (0..tokens.len() * Q).map(|_| self.r.uniform() as f32 - 0.5).collect();
        let mut once = || {
            let mut step = self.cache.begin_with(&chunks, Policy::Certified(Certified::default()))?;
            for layer in 0..LAYERS {
                step.append_bits(layer, &rows(&tokens, layer, Side::Key), &rows(&tokens, layer, Side::Value))?;
                step.attend(layer, &queries)?;
                step.plan(layer)?;
            }
            step.finish()
        };
        let result = match once() {
            Ok(()) => Ok(()),
            Err(error) => once().map(|()| Err(error))?,
        };
        for ((_, old, levels), token) in self.live.iter_mut().zip(tokens) {
            old.push(token);
            Self::grown(levels, old.len());
        }
        result
    }

    fn change(&mut self) {
        let at = self.r.below(self.live.len());
        self.change_of(at);
    }

    fn change_of(&mut self, at: usize) {
        let (id, blocks) = (self.live[at].0, self.live[at].1.len() / BLOCK);
        if self.r.chance(0.3) {
            return self.set_of(id, at, blocks);
        }
        for _ in 0..1 + self.r.below(4) {
            let (layer, block) = (self.r.below(LAYERS), self.r.below(blocks + 1));
            let level = self.r.below(self.levels + 1);
            let changed = self.cache.change_level(id, layer, block, level);
            if block >= blocks || level >= self.levels {
                assert!(matches!(changed, Err(Error::Level { .. })), "{changed:?}");
                continue;
            }
            match self.allow(changed) {
                Some(()) => {
                    self.live[at].2[layer][block] = level;
                    self.seen[2] += 1;
                }
                None => self.seen[3] += 1,
            }
        }
    }

    /// Levels of many blocks at once: those that a level has no page for stay, and are counted.
    fn set_of(&mut self, id: SequenceId, at: usize, blocks: usize) {
        let mut of_layer = || (0..self.r.below(blocks + 1)).map(|_| self.r.below(self.levels)).collect::<Vec<usize>>();
        let wanted = [(); LAYERS].map(|()| of_layer());
        for wrong in [vec![self.levels], vec![0; blocks + 1]] {
            let mut lists = wanted.to_vec();
            lists[LAYERS - 1] = if blocks > 0 { wrong } else { vec![0] };
            assert!(matches!(self.cache.set_levels(id, &lists), Err(Error::Level { .. })));
        }
        assert!(matches!(self.cache.set_levels(id, &wanted[1..]), Err(Error::Shape { argument: "levels", .. })));
        let set = self.cache.set_levels(id, &wanted);
        let (mut moved, mut stayed) = (0, 0);
        for (layer, wanted) in wanted.iter().enumerate() {
            for (block, level) in wanted.iter().enumerate() {
                let found = self.cache.level(id, layer, block).expect("a full block");
                let had = core::mem::replace(&mut self.live[at].2[layer][block], found);
                assert!(found == *level || found == had, "{found} is neither {level} nor {had}");
                moved += usize::from(found != had);
                stayed += usize::from(found != *level);
            }
        }
        let set = set.expect("levels that there are");
        assert_eq!((set.changed, set.refused + set.failed, set.decided), (moved, stayed, 0), "{set:?}");
        (self.seen[2], self.seen[3]) = (self.seen[2] + moved, self.seen[3] + stayed);
    }

    fn operate(&mut self) {
        if self.live.is_empty() || self.r.chance(0.05) {
            let created = self.cache.create();
            let new = self.allow(created).map(|id| (id, Vec::new(), [(); LAYERS].map(|()| Vec::new())));
            if new.is_some() && self.controlled {
                self.twins.push(core::array::from_fn(fresh));
            }
            self.live.extend(new);
            return;
        }
        let at = self.r.below(self.live.len());
        let (id, tokens, levels) = self.live[at].clone();
        match self.r.below(40) {
            0 | 1 => {
                let forked = self.cache.fork(id);
                let forked = self.allow(forked).map(|fork| (fork, tokens, levels));
                self.seen[4] += usize::from(forked.is_some());
                if forked.is_some() && self.controlled {
                    self.twins.push(self.twins[at].clone());
                }
                self.live.extend(forked);
            }
            2 | 3 => {
                let len =
                    if self.r.chance(0.3) { self.r.below(tokens.len() + 1) } else { tokens.len().saturating_sub(3) };
                let cut = self.cache.truncate(id, len);
                if self.allow(cut).is_some() {
                    self.live[at].1.truncate(len);
                    Self::grown(&mut self.live[at].2, len);
                    self.seen[5] += 1;
                }
            }
            4 => self.release(at),
            38 => self.publish(at),
            34 => self.copy(at),
            35..=37 => self.resume(at),
            39 => self.leave(at),
            5 | 6 => self.step(2 * BLOCK + 3),
            7 => self.verify(at),
            8..=18 => self.change(),
            _ => self.step(1),
        }
    }

    /// Prompts, chunks and changes.
    pub(crate) fn operate_in_chunks(&mut self) {
        match self.r.below(8) {
            0..=3 if !self.live.is_empty() => self.step(2 * BLOCK + 3),
            4..=6 if !self.live.is_empty() => self.change(),
            _ => self.operate(),
        }
    }

    fn release(&mut self, at: usize) {
        self.cache.release(self.live[at].0).expect("a release");
        self.live.swap_remove(at);
        if self.controlled {
            self.twins.swap_remove(at);
        }
    }

    /// What a sequence has is cached, at the levels that its blocks have.
    fn publish(&mut self, at: usize) {
        let (id, tokens, _) = &self.live[at];
        let published = self.cache.publish(*id, &SCOPE, (&tokens[..]).into()).expect("a publication");
        self.seen[8] += published.added;
    }

    /// One that begins with what is cached of another's tokens: blocks have the levels that they were published with, and change for it alone.
    fn resume(&mut self, at: usize) {
        let tokens = self.live[at].1.clone();
        let resumed = self.cache.create_from(&SCOPE, (&tokens[..]).into());
        let Some((id, there)) = self.allow(resumed) else { return };
        let level = |layer: usize, block| self.cache.level(id, layer, block).expect("a level");
        let levels = core::array::from_fn(|layer| (0..there / BLOCK).map(|block| level(layer, block)).collect());
        self.live.push((id, tokens[..there].to_vec(), levels));
        if self.controlled {
            self.twins.push(core::array::from_fn(fresh));
        }
        self.seen[9] += usize::from(there > 0);
        self.verify(self.live.len() - 1);
    }

    /// A sequence to a file and another from it, at the same levels; some that are away in between.
    fn copy(&mut self, at: usize) {
        let (id, tokens, levels) = self.live[at].clone();
        let scope = SaveScope { model: b"model", key: None };
        let away = self.r.chance(0.3) && self.cache.swap_out(id).is_ok();
        let mut file = Vec::new();
        self.cache.save(id, &scope, &mut file).expect("a file");
        let restored = self.cache.restore(&scope, &mut &file[..]);
        if let Some(copy) = self.allow(restored) {
            self.live.push((copy, tokens, levels));
            if self.controlled {
                self.twins.push(core::array::from_fn(fresh));
            }
            self.seen[10] += 1;
            self.verify(self.live.len() - 1);
        }
        // Its pages may be the copy's by now.
        let back = if away { self.cache.swap_in(id).map(drop) } else { Ok(()) };
        if self.allow(back).is_none() {
            self.release(at);
        }
    }

    /// A sequence goes away while others change, and comes back with the levels that it had, or finds no pages.
    fn leave(&mut self, at: usize) {
        let id = self.live[at].0;
        let left = self.cache.swap_out(id);
        if self.allow(left).is_none() {
            return;
        }
        assert!(matches!(self.cache.control(id), Err(Error::SwappedOut)));
        if self.live[at].1.len() >= BLOCK {
            let other = (self.live[at].2[0][0] + 1) % self.levels;
            assert!(matches!(self.cache.change_level(id, 0, 0, other), Err(Error::SwappedOut)));
        }
        if self.r.chance(0.3) {
            let len = self.live[at].1.len().saturating_sub(self.r.below(BLOCK));
            let cut = self.cache.truncate(id, len);
            if self.allow(cut).is_some() {
                self.live[at].1.truncate(len);
                Self::grown(&mut self.live[at].2, len);
            }
        }
        let others: Vec<usize> = (0..self.live.len()).filter(|other| *other != at).collect();
        if !others.is_empty() {
            let other = others[self.r.below(others.len())];
            self.change_of(other);
        }
        let back = self.cache.swap_in(id);
        match self.allow(back) {
            Some(_) => self.verify(at),
            None => self.release(at),
        }
        self.seen[7] += 1;
    }

    pub(crate) fn verify(&mut self, at: usize) {
        let (id, tokens, levels) = &self.live[at];
        let head = self.r.below(KV_HEADS);
        for (layer, side) in (0..LAYERS).flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)]) {
            let got = self.cache.originals(*id, layer, head, side).expect("originals");
            assert!(got == expected(tokens, (layer, head, side)), "other originals");
        }
        for (layer, of) in levels.iter().enumerate() {
            for (block, level) in of.iter().enumerate() {
                assert_eq!(self.cache.level(*id, layer, block).expect("a level"), *level);
                let format = self.cache.record_bytes(*id, layer, block, head).expect("a record").len();
                assert!(*level == 0 || format < self.cache.layouts()[layer].bytes);
            }
        }
    }
}

fn lives(compiler: &Compiler, deferred: bool, worlds: u64) -> ([usize; 11], [usize; 2], Vec<String>) {
    let fake = crate::fake_cuda::Fake::get();
    kernels::looks(true);
    let (mut seen, mut told, mut wrong) = ([0; 11], [0; 2], Vec::new());
    // Of lives whose calls were made to fail.
    kernels::GAPS.store(0, Ordering::Relaxed);
    for seed in 0..worlds {
        fake.reset();
        fake.defer(deferred);
        let gpu = Gpu::open(0).expect("the fake");
        gpu.check_order();
        let ladder = LADDERS[seed as usize / 2 % 2];
        kernels::begin(ladder[0]);
        let config = config(ladder, seed);
        let most = config.chunk_tokens;
        let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
        let mut world = World::new(cache, ladder.len(), seed % 2 == 1, seed);
        world.chunk_tokens = most;
        (0..OPERATIONS).for_each(|_| world.operate());
        (0..world.live.len()).for_each(|at| world.verify(at));
        for (id, ..) in world.live.drain(..) {
            world.cache.release(id).expect("a release");
        }
        world.cache.evict_prefixes(usize::MAX).expect("evictions");
        world.cache.synchronize().expect("the fake");
        assert_eq!(world.cache.live_pages(), 0, "seed {seed}: pages are left");
        seen.iter_mut().zip(world.seen).for_each(|(sum, n)| *sum += n);
        told.iter_mut().zip(world.told).for_each(|(sum, n)| *sum += n);
        wrong.extend(world.wrong.into_iter().map(|w| format!("seed {seed}: {w}")));
        let report = gpu.order_report().expect("the checker is on");
        assert!(report.unordered == 0 && report.accesses > 0, "seed {seed}: {report:?}");
    }
    fake.defer(false);
    for (what, count) in [
        ("originals of others", &kernels::STRANGE),
        ("dense heads without originals", &kernels::LACKING),
        ("heads of which a level was not read, or twice", &kernels::GAPS),
        ("heads behind the end of a list", &kernels::OVERFLOWS),
        ("rows with norms of others", &kernels::UNMEASURED),
    ] {
        let found = count.swap(0, Ordering::Relaxed);
        if found > 0 {
            wrong.push(format!("{found} {what}"));
        }
    }
    kernels::looks(false);
    (seen, told, wrong)
}

#[test]
fn launches_read_every_block_at_its_level() {
    const WORLDS: u64 = if cfg!(debug_assertions) { 16 } else { 100 };
    let (_fake, compiler, _turn) = alone();
    let mut executed = 0;
    for deferred in [false, true] {
        let (seen, told, wrong) = lives(compiler, deferred, WORLDS);
        println!(
            "deferred {deferred}: blocks read at the first level and below it, changes and those without pages, forks, cuts, dropped steps, sequences away, units cached, and begun with, files: {seen:?}; {} layers told to who decides, which moved {} blocks",
            told[0], told[1]
        );
        assert!(wrong.is_empty(), "{} wrong, first {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
        assert!(seen.iter().chain(&told).all(|n| *n > 4), "{seen:?} {told:?}");
        executed += seen[0] + seen[1];
    }
    let united = kernels::UNITED.load(Ordering::Relaxed);
    let caught = [Plant::OldWords, Plant::NoLevel].into_iter().filter(|what| {
        kernels::plant(*what);
        // A stale word has to name a page that is another's by then.
        let (_, _, wrong) = lives(compiler, false, if *what == Plant::OldWords { 240 } else { 16 });
        kernels::plant(Plant::Nothing);
        !wrong.is_empty()
    });
    let caught = caught.count() + usize::from(unwritten(|| lives(compiler, false, 16).2));
    println!("GATE gpu-level-lives executed={executed} failed=0 controls={caught}/3 seed=0x0 ({united} heads)");
    assert_eq!(caught, 3);
}

/// Whether `life` finds something wrong where changes do not write what they name.
pub(crate) fn unwritten(life: impl FnOnce() -> Vec<String>) -> bool {
    plant::arm(Some(Bug::B26));
    let wrong = life();
    let committed = plant::committed();
    plant::arm(None);
    committed > 0 && !wrong.is_empty()
}

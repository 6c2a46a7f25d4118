//! Random operations against a plain model: rows in vectors, attention in `f64`. Whatever happens - chunks of any size,
//! forks, truncations, dropped steps, refused rows, exhausted pages - the cache holds the model's rows bit for bit, and
//! decode outputs are within their bounds of exact attention over what of them is visible: some worlds have layers with windows, others
//! blocks that change their levels, which the model knows. Now and then an allocation, a page, a copy or a fence of an operation fails:
//! that is a typed error, or nobody's. What is reserved is what was planned, and what is used is within it, after every operation.
//! `CERTKV_MODEL_OPS` sets how many operations a seed has, `CERTKV_MODEL_SEED` what is added to the seeds: long runs add up from other ones.
//!
//! Long because the driver's verbs share one world and one tally.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(error <= bound) is how NaN fails")]
mod common;

use certkv::{
    BoundBudget, Cache, CheckReport, Chunk, Config, Control, Error, Eviction, Geometry, Level, Mode, Policy,
    PrefixConfig, PrefixScope, PrefixSecret, Retention, SequenceId, Side, SimOptions, SmartKv, Watermarks, Window,
};
use certkv_core::fail;
use certkv_core::hash::splitmix64;
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::{distance, norm};
use common::{
    Answer, Model, decode_faults, exact, fill, is_injected, original_faults, quick_rows, random_queries, random_rows,
    step,
};
use std::collections::HashMap;
use std::sync::Arc;

const TOLERANCE: f64 = 0.05;

const CIRCLES: [PrefixScope<'_>; 2] = [PrefixScope::new(b"one", b"model"), PrefixScope::new(b"two", b"model")];

/// A token per row: its rows in all layers decide its number.
fn tokens(geometry: &Geometry, model: &Model) -> Vec<u32> {
    let (width, len) = (geometry.kv_width(), model.len(geometry));
    let row = |at: usize| {
        let words =
            model.keys.iter().chain(&model.values).flat_map(move |side| side[at * width..(at + 1) * width].iter());
        words.fold(0, |h, word| splitmix64(h ^ u64::from(*word)))
    };
    (0..len).map(|at| row(at) as u32).collect()
}

#[derive(Default)]
struct Tally {
    operations: u64,
    failed: u64,
    decodes: u64,
    prefills: u64,
    forks: u64,
    reopened: u64,
    dropped: u64,
    published: u64,
    continued: u64,
    evicted: u64,
    hollowed: u64,
    swapped: u64,
    returned: u64,
    refused: u64,
    exhausted: u64,
    injected: u64,
    typed: u64,
    changed: u64,
    controlled: u64,
    planted: u64,
    caught: u64,
    /// Of an operation.
    most_steps: u64,
}

struct World {
    cache: Arc<Cache>,
    /// Bytes that the cache reserved when it was made, and what it may reserve later, in tables, for cached prefixes.
    reserved: [usize; 4],
    later: usize,
    /// Times that room can have to be made in an operation, by sequence and KV group.
    rooms: usize,
    geometry: Geometry,
    /// Block sizes of its KV groups.
    blocks: Vec<usize>,
    /// By layer.
    windows: [Option<Window>; 4],
    max_tokens: usize,
    eager: bool,
    erases: bool,
    live: Vec<(SequenceId, Model)>,
    released: Vec<SequenceId>,
    /// Where blocks have levels: how many, and of each sequence those that are not the first, by layer and block.
    ladder: usize,
    levels: HashMap<SequenceId, HashMap<(usize, usize), usize>>,
    /// What was published lately, by circle.
    library: Vec<(usize, Model)>,
    r: Rng,
    tally: Tally,
}

/// Of a cache that is empty: every time but the last a unit goes.
fn rooms(cache: &Cache) -> usize {
    const SEQUENCES: usize = 5;
    let snapshot = cache.snapshot();
    (1 + snapshot.prefixes.map_or(0, |prefixes| prefixes.most)) * SEQUENCES * snapshot.pages.len()
}

impl World {
    fn new(seed: u64, device: SimOptions) -> Self {
        let mut r = Rng::new(seed);
        let kv_heads = 1 + r.below(3);
        let geometry = Geometry::new(4, kv_heads * (1 + r.below(2)), kv_heads, 64).unwrap();
        let pairs = [
            ["k8-v4g32-b16", "t4-v4g32-b32"],
            ["k8-v4g32-b32", "k8f32-v3g16-b16"],
            ["t8-v8g64-b64", "k8-v6g32-b16"],
            ["k8-f16-b16", "f16-v4g32-b32"],
            ["tq4-tq3-b16", "k4-c4-b32-r4.4"],
        ];
        let pair = pairs[r.below(5)].map(|f| f.parse().unwrap());
        // By layer, or turned over from head to head.
        let of = |layer: usize, head: usize| pair[(usize::from(layer == 2) + head) % 2];
        let heads = if (seed / 3).is_multiple_of(2) { 1 } else { kv_heads };
        let formats = (0..4).flat_map(|layer| (0..heads).map(move |head| of(layer, head))).collect();
        let max_tokens = 100 + r.below(200);
        let mut window =
            |most: usize| Some(Window { chunk: 70, ..Window::new(1 + r.below(most)).with_sinks(r.below(40)) });
        let (one, two) = (window(60), window(30));
        let windows = [[None; 4], [one, one, None, two], [None, None, one, None]][seed as usize % 3];
        let config = Config {
            windows: windows.to_vec(),
            formats,
            max_sequences: 2 + r.below(4),
            threads: 1 + r.below(2),
            prefixes: Some(PrefixConfig {
                secret: PrefixSecret::new([9; 32]),
                units: 1 + r.below(12),
                eviction: if r.chance(0.5) { Eviction::Lru } else { Eviction::S3Fifo },
            }),
            prefix_watermarks: (seed % 4 == 1).then_some(Watermarks { low: max_tokens / 8, high: max_tokens / 4 }),
            swap_tokens: r.below(2) * max_tokens,
            erase: seed.is_multiple_of(2),
            device,
            ..Config::new(geometry, max_tokens)
        };
        let (blocks, later) = (pair.map(|format| format.block).to_vec(), config.plan().unwrap().later);
        let cache = Arc::new(Cache::new(config).unwrap());
        let eager = device.mode == Mode::Eager;
        let erases = seed.is_multiple_of(2);
        World {
            reserved: cache.reserved().0,
            later,
            rooms: rooms(&cache),
            cache,
            geometry,
            blocks,
            windows,
            max_tokens,
            eager,
            erases,
            live: Vec::new(),
            released: Vec::new(),
            ladder: 0,
            levels: HashMap::new(),
            library: Vec::new(),
            r,
            tally: Tally::default(),
        }
    }

    /// A world whose blocks have levels.
    fn with_levels(seed: u64, device: SimOptions) -> Self {
        let mut r = Rng::new(splitmix64(seed));
        let kv_heads = 1 + r.below(3);
        let geometry = Geometry::new(4, kv_heads * (1 + r.below(2)), kv_heads, 64).unwrap();
        let ladders: [&[&str]; 4] = [
            &["t8-v8g64-b16", "k8-v4g32-b16", "t3-v3g64-b16", "t2-v2g64-b16"],
            &["k8-v8g32-b32", "tq4-tq4-b32", "tq3-v2g32-b32"],
            &["t8-tq6-b16", "tq2-tq2-b16"],
            &["t6-v6g64-b32", "t4-tq4-b32", "tq2-tq1-b32"],
        ];
        let (ladder, max_tokens, max_sequences) = (ladders[r.below(4)], 100 + r.below(200), 2 + r.below(4));
        // Some levels are short of pages.
        let short = if r.chance(0.5) { 1 + r.below(ladder.len() - 1) } else { 0 };
        let level = |(at, format): (usize, &&str)| {
            let tokens = if at > 0 && at == short { 40 } else { max_tokens };
            Level { format: format.parse().unwrap(), tokens }
        };
        // Whoever decides but SmartKV has fewer bytes than the first level takes.
        let control: Control = match seed % 3 {
            0 => SmartKv::new(400.0 * kv_heads as f64).into(),
            1 => Retention::new(90.0 * kv_heads as f64).into(),
            _ => BoundBudget::new(90.0 * kv_heads as f64).into(),
        };
        let config = Config {
            max_sequences,
            threads: 1 + r.below(2),
            swap_tokens: (1 + r.below(2)) * max_tokens / 2,
            control: Some(control),
            erase: seed.is_multiple_of(2),
            prefixes: Some(PrefixConfig {
                secret: PrefixSecret::new([9; 32]),
                units: 1 + r.below(12),
                eviction: if r.chance(0.5) { Eviction::Lru } else { Eviction::S3Fifo },
            }),
            device,
            ..Config::new(geometry, max_tokens).with_levels(ladder.iter().enumerate().map(level).collect())
        };
        let (block, later) = (config.levels[0].format.block, config.plan().unwrap().later);
        let cache = Arc::new(Cache::new(config).unwrap());
        World {
            reserved: cache.reserved().0,
            later,
            rooms: rooms(&cache),
            cache,
            geometry,
            blocks: vec![block; 4],
            windows: [None; 4],
            max_tokens,
            eager: device.mode == Mode::Eager,
            erases: seed.is_multiple_of(2),
            live: Vec::new(),
            released: Vec::new(),
            ladder: ladder.len(),
            levels: HashMap::new(),
            library: Vec::new(),
            r,
            tally: Tally::default(),
        }
    }

    /// Full blocks of a sequence and the level of each, by layer, as the model has them.
    fn levels_of(&self, i: usize) -> Vec<Vec<usize>> {
        let (full, known) = (self.len(i) / self.blocks[0], self.levels.get(&self.live[i].0));
        let level = |layer, block| known.and_then(|known| known.get(&(layer, block))).copied().unwrap_or(0);
        (0..self.geometry.layers).map(|layer| (0..full).map(|block| level(layer, block)).collect()).collect()
    }

    /// The levels that the cache says, of which the model takes note.
    fn note_levels(&mut self, i: usize) -> Vec<Vec<usize>> {
        let (id, full) = (self.live[i].0, self.len(i) / self.blocks[0]);
        let of = |layer| (0..full).map(|block| self.cache.level(id, layer, block).unwrap_or(usize::MAX)).collect();
        let levels: Vec<Vec<usize>> = (0..self.geometry.layers).map(of).collect();
        let named = levels
            .iter()
            .enumerate()
            .flat_map(|(layer, levels)| levels.iter().enumerate().map(move |(block, level)| ((layer, block), *level)));
        self.levels.insert(id, named.filter(|(_, level)| *level > 0).collect());
        levels
    }

    /// A block to another level, or what the controller says.
    fn change(&mut self) {
        let i = self.r.below(self.live.len());
        if !self.bring(i) {
            return;
        }
        let (id, before) = (self.live[i].0, self.levels_of(i));
        if self.r.chance(0.3) {
            match self.cache.control(id) {
                Ok(done) => {
                    self.tally.controlled += done.decided as u64;
                    let after = self.note_levels(i);
                    let pairs = before.iter().flatten().zip(after.iter().flatten());
                    let changed = pairs.filter(|(before, after)| before != after).count();
                    self.expect(changed == done.changed && done.failed == 0, &format!("{changed} changed, {done:?}"));
                }
                Err(e) => self.expect(false, &format!("control: {e}")),
            }
            return;
        }
        for _ in 0..1 + self.r.below(6) {
            let (layer, full) = (self.r.below(self.geometry.layers), before[0].len());
            let (block, level) = (self.r.below(full + 1), self.r.below(self.ladder));
            match self.cache.change_level(id, layer, block, level) {
                Ok(()) => {
                    self.expect(block < full, "a block that is not full has a level");
                    self.tally.changed += 1;
                    self.levels.entry(id).or_default().insert((layer, block), level);
                }
                Err(Error::Level { .. }) => self.expect(block == full, "a full block has no level"),
                Err(Error::CapacityExhausted { class, .. }) => {
                    self.tally.exhausted += 1;
                    let cause = class.starts_with("level") || !self.must_fit(&self.lens());
                    self.expect(cause, "refused a level whose pages were there");
                }
                Err(e) => self.expect(false, &format!("change_level: {e}")),
            }
        }
    }

    fn expect(&mut self, ok: bool, what: &str) {
        if !ok {
            self.tally.failed += 1;
            eprintln!("operation {}: {what}", self.tally.operations);
        }
    }

    /// An error that no operation may have but for a fault.
    fn unexpected(&mut self, what: &str, error: &Error) {
        self.tally.typed += u64::from(is_injected(error));
        self.expect(is_injected(error), &format!("{what}: {error}"));
    }

    fn len(&self, i: usize) -> usize {
        self.live[i].1.len(&self.geometry)
    }

    /// Full blocks that all sequences would hold if nothing were shared and sequence `i` had `len` tokens, against the
    /// capacity: when they fit, no request may be refused for want of pages.
    fn must_fit(&self, lens: &[usize]) -> bool {
        let full = |size: usize| lens.iter().map(|len| len / size).sum::<usize>();
        self.eager && self.blocks.iter().all(|&size| full(size) <= self.max_tokens.div_ceil(size))
    }

    fn lens(&self) -> Vec<usize> {
        (0..self.live.len()).map(|i| self.len(i)).collect()
    }

    fn create(&mut self) {
        match self.cache.create() {
            Ok(id) => self.live.push((id, Model::new(&self.geometry))),
            Err(Error::TooManySequences { max_sequences }) => {
                let full = self.live.len() == max_sequences;
                self.expect(full, "refused a sequence that fits");
            }
            Err(e) => self.unexpected("create", &e),
        }
    }

    /// Swaps a sequence out, or back.
    fn swap(&mut self) {
        let i = self.r.below(self.live.len());
        if !self.away(i) {
            match self.cache.swap_out(self.live[i].0) {
                Ok(_) => self.tally.swapped += 1,
                Err(Error::CapacityExhausted { class: "swap", .. }) => self.tally.exhausted += 1,
                Err(e) => self.unexpected("swap_out", &e),
            }
        } else if self.r.chance(0.5) {
            self.bring(i);
        } else {
            let id = self.live[i].0;
            let forked = self.cache.fork(id).map(drop);
            let begun = self.cache.begin(&[Chunk { sequence: id, tokens: 1 }]).map(drop);
            for (done, result) in [("forked", forked), ("continued", begun)] {
                match result {
                    Err(Error::SwappedOut) => {}
                    Ok(()) => self.expect(false, &format!("a sequence that is away was {done}")),
                    Err(e) => self.unexpected(done, &e),
                }
            }
        }
    }

    fn away(&self, i: usize) -> bool {
        matches!(self.cache.is_swapped_out(self.live[i].0), Ok(true))
    }

    /// Whether a sequence is on the device, or could be brought back.
    fn bring(&mut self, i: usize) -> bool {
        if !self.away(i) {
            return true;
        }
        match self.cache.swap_in(self.live[i].0) {
            Ok(_) => {
                self.tally.returned += 1;
                return true;
            }
            Err(Error::CapacityExhausted { class, .. }) => {
                self.tally.exhausted += 1;
                let wrong = self.must_fit(&self.lens()) && !class.starts_with("level");
                self.expect(!wrong, "refused a return whose pages were there");
            }
            Err(e) => self.unexpected("swap_in", &e),
        }
        false
    }

    /// A step over one to three sequences: sometimes with refused rows first, sometimes dropped half-way.
    fn step(&mut self) {
        let mut chosen: Vec<usize> = (0..self.live.len()).filter(|_| self.r.chance(0.5)).take(3).collect();
        if chosen.is_empty() {
            chosen.push(self.r.below(self.live.len()));
        }
        if !chosen.iter().all(|i| self.bring(*i)) {
            return;
        }
        let mut chunks = Vec::new();
        let mut rows = Vec::new();
        let mut lens = self.lens();
        for &i in &chosen {
            let tokens = if self.r.chance(0.6) { 1 } else { 1 + self.r.below(70) };
            chunks.push(Chunk { sequence: self.live[i].0, tokens });
            rows.push(quick_rows(&self.geometry, tokens, &mut self.r));
            lens[i] += tokens;
        }
        let cache = self.cache.clone();
        let mut begun = match cache.begin(&chunks) {
            Ok(begun) => begun,
            Err(Error::CapacityExhausted { .. } | Error::TooLong { .. }) => {
                self.tally.exhausted += 1;
                let wrong = self.must_fit(&lens);
                return self.expect(!wrong, "refused a step whose pages were there");
            }
            Err(e) => return self.unexpected("begin", &e),
        };
        let mut all = Model::new(&self.geometry);
        rows.iter().for_each(|rows| all.append(rows));
        let tokens = begun.tokens();
        let stop = if self.r.chance(0.1) { self.r.below(self.geometry.layers) } else { usize::MAX };
        let mut complaints = Vec::new();
        for layer in 0..self.geometry.layers {
            if self.r.chance(0.05) {
                let mut bad = all.keys[layer].clone();
                bad[self.r.below(all.keys[layer].len())] = 0x7e00;
                if !matches!(
                    begun.append_bits(layer, &bad, &all.values[layer]),
                    Err(Error::NonFinite { argument: "keys", .. })
                ) {
                    complaints.push("NaN was taken".to_owned());
                }
                self.tally.refused += 1;
            }
            if layer == stop {
                self.tally.dropped += 1;
                drop(begun);
                complaints.iter().for_each(|c| self.expect(false, c));
                return;
            }
            if let Err(e) = begun.append_bits(layer, &all.keys[layer], &all.values[layer]) {
                drop(begun);
                complaints.iter().for_each(|c| self.expect(false, c));
                return self.unexpected("append", &e);
            }
            if !self.r.chance(0.4) {
                continue;
            }
            let queries = random_queries(&self.geometry, tokens, &mut self.r);
            let mut answer = Answer::new(&self.geometry, tokens);
            if let Err(e) = begun.attend(layer, &queries, &mut answer.out, &mut answer.certificates) {
                drop(begun);
                complaints.iter().for_each(|c| self.expect(false, c));
                return self.unexpected("attend", &e);
            }
            let mut at = 0;
            for (&i, rows) in chosen.iter().zip(&rows) {
                let mut seen = self.live[i].1.clone();
                seen.append(rows);
                complaints.extend(self.check_attention(&seen, layer, at, rows.len(&self.geometry), &queries, &answer));
                at += rows.len(&self.geometry);
            }
        }
        let finished = begun.finish();
        complaints.iter().for_each(|c| self.expect(false, c));
        if let Err(e) = finished {
            return self.unexpected("finish", &e);
        }
        for (&i, rows) in chosen.iter().zip(&rows) {
            self.live[i].1.append(rows);
        }
    }

    /// Compares the rows `at..at + tokens` of an answer with exact attention over `seen`.
    fn check_attention(
        &mut self,
        seen: &Model,
        layer: usize,
        at: usize,
        tokens: usize,
        queries: &[f32],
        answer: &Answer,
    ) -> Option<String> {
        let (g, width, heads) = (self.geometry, self.geometry.q_width(), self.geometry.q_heads);
        let before = seen.len(&g) - tokens;
        // A chunk is long; one of its rows stands for it.
        let row = at + self.r.below(tokens);
        let visible = before + row - at + 1;
        let queries = &queries[row * width..(row + 1) * width];
        let out = &answer.out[row * width..(row + 1) * width];
        let certificates = &answer.certificates[row * heads..(row + 1) * heads];
        let window = self.windows[layer];
        let truth = |model: &Model| exact(&g, model, layer, visible - 1, window, queries);
        let exact = truth(seen);
        if tokens == 1 {
            self.tally.decodes += 1;
            if self.tally.decodes % 50 == 1 {
                // A model with other values must be seen as a wrong output.
                let mut other = seen.clone();
                other.values[layer].iter_mut().for_each(|bits| *bits = certkv::Dtype::F16.encode16(900.0));
                self.tally.planted += 1;
                let wrong = decode_faults(&truth(&other), out, certificates, TOLERANCE);
                self.tally.caught += u64::from(wrong > 0);
            }
            let wrong = decode_faults(&exact, out, certificates, TOLERANCE);
            return (wrong > 0)
                .then(|| format!("{wrong} heads of layer {layer} are beyond their bound: {certificates:?}"));
        }
        self.tally.prefills += 1;
        let far = exact.iter().zip(out.chunks_exact(g.head_dim)).find_map(|(exact, got)| {
            let got: Vec<f64> = got.iter().map(|x| f64::from(*x)).collect();
            let error = distance(exact, &got);
            let beyond = !(error <= 1e-4 * (1.0 + norm(exact)));
            beyond.then_some(error)
        });
        far.map(|error| format!("prefill of layer {layer} is off by {error:e}"))
    }

    /// Forks, and decodes the same token on both: equal bits, as the certificate's memory is forked too.
    fn fork(&mut self) {
        let i = self.r.below(self.live.len());
        if !self.bring(i) {
            return;
        }
        let (parent, model) = self.live[i].clone();
        match self.cache.fork(parent) {
            Ok(fork) => {
                self.tally.forks += 1;
                self.live.push((fork, model));
                if let Some(levels) = self.levels.get(&parent).cloned() {
                    self.levels.insert(fork, levels);
                }
                let rows = quick_rows(&self.geometry, 1, &mut self.r);
                let queries = random_queries(&self.geometry, 1, &mut self.r);
                let answers = [parent, fork].map(|sequence| self.decode_and_drop(sequence, &rows, &queries));
                match answers {
                    [Ok(a), Ok(b)] => self.expect(a == b, "fork and parent disagree"),
                    [Err(Error::CapacityExhausted { .. } | Error::TooLong { .. }), _]
                    | [_, Err(Error::CapacityExhausted { .. } | Error::TooLong { .. })] => self.tally.exhausted += 1,
                    answers => {
                        answers.iter().filter_map(|a| a.as_ref().err()).for_each(|e| self.unexpected("a decode", e));
                    }
                }
            }
            Err(Error::TooManySequences { .. }) => {}
            Err(Error::CapacityExhausted { .. }) => {
                self.tally.exhausted += 1;
                let mut lens = self.lens();
                lens.push(lens[i]);
                let wrong = self.must_fit(&lens) && self.live.len() < self.cache_slots();
                self.expect(!wrong, "refused a fork whose pages were there");
            }
            Err(e) => self.unexpected("fork", &e),
        }
    }

    fn cache_slots(&self) -> usize {
        // Only asked when nothing else tells: a create that is refused says how many there are.
        match self.cache.create() {
            Ok(id) => {
                let _ = self.cache.release(id);
                self.live.len() + 1
            }
            Err(_) => self.live.len(),
        }
    }

    /// Bits of a decode in every layer, in a step that is then dropped.
    fn decode_and_drop(&self, sequence: SequenceId, rows: &Model, queries: &[f32]) -> Result<Vec<Vec<u32>>, Error> {
        let mut begun = self.cache.begin(&[Chunk { sequence, tokens: 1 }])?;
        let mut bits = Vec::new();
        for layer in 0..self.geometry.layers {
            let mut answer = Answer::new(&self.geometry, 1);
            begun.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
            begun.attend(layer, queries, &mut answer.out, &mut answer.certificates)?;
            bits.push(answer.bits());
        }
        Ok(bits)
    }

    fn truncate(&mut self) {
        let i = self.r.below(self.live.len());
        let len = self.len(i);
        let to = if self.r.chance(0.1) { len + 1 } else { self.r.below(len + 1) };
        let id = self.live[i].0;
        match self.cache.truncate(id, to) {
            Ok(()) => {
                self.expect(to <= len, "cut past the end");
                self.tally.reopened += u64::from(self.blocks.iter().any(|b| to % b > 0 && to / b < len / b));
                let geometry = self.geometry;
                self.live[i].1.truncate(&geometry, to);
                if let Some(levels) = self.levels.get_mut(&id) {
                    levels.retain(|(_, block), _| *block < to / self.blocks[0]);
                }
            }
            Err(Error::Length { .. }) => self.expect(to > len, "refused a cut inside the sequence"),
            Err(Error::Shortened { len: left, cause }) => {
                self.expect(left <= to, "cut to more than was asked for");
                let geometry = self.geometry;
                self.live[i].1.truncate(&geometry, left);
                if let Some(levels) = self.levels.get_mut(&id) {
                    levels.retain(|(_, block), _| *block < left / self.blocks[0]);
                }
                self.unexpected("truncate", &cause);
            }
            Err(Error::WindowPassed { asked, least, within }) => {
                let passed = asked == to && within < to && to < least && self.windows != [None; 4];
                self.expect(passed, "refused a cut whose window is there");
            }
            Err(Error::CapacityExhausted { .. }) => {
                self.tally.exhausted += 1;
                let wrong = self.must_fit(&self.lens());
                self.expect(!wrong, "refused a cut whose pages were there");
            }
            Err(e) => self.unexpected("truncate", &e),
        }
    }

    /// Caches what a sequence holds; it must be found at once, by its own circle and by no other.
    fn publish(&mut self) {
        let i = self.r.below(self.live.len());
        if !self.bring(i) {
            return;
        }
        let (id, model) = self.live[i].clone();
        let (circle, tokens) = (self.r.below(2), tokens(&self.geometry, &model));
        match self.cache.publish(id, &CIRCLES[circle], tokens[..].into()) {
            Ok(done) => {
                self.tally.published += done.added as u64;
                let size = self.blocks.iter().max().copied().unwrap_or(1);
                let all = model.len(&self.geometry) / size * size;
                let (found, windows) = (done.cached == all, self.windows != [None; 4] && done.cached < all);
                self.expect(done.stop.is_some() || found || windows, "not all is cached");
                if done.cached > 0 {
                    self.library.push((circle, model));
                }
            }
            Err(e) => self.unexpected("publish", &e),
        }
        if self.library.len() > 8 {
            self.library.swap_remove(0);
        }
    }

    /// A sequence from what is cached of a prompt that was published once.
    fn resume(&mut self) {
        if self.library.is_empty() {
            return self.publish();
        }
        let (circle, mut model) = self.library[self.r.below(self.library.len())].clone();
        let tokens = tokens(&self.geometry, &model);
        let asked = self.r.below(tokens.len() + 1);
        match self.cache.create_from(&CIRCLES[circle], tokens[..asked].into()) {
            Ok((id, found)) => {
                self.expect(found <= asked, "more was found than asked for");
                self.tally.continued += found as u64;
                model.truncate(&self.geometry, found);
                self.live.push((id, model));
                // Each block has the level at which it came to be cached.
                if self.ladder > 0 {
                    self.note_levels(self.live.len() - 1);
                }
            }
            Err(Error::TooManySequences { .. }) => {}
            Err(e) => self.unexpected("create_from", &e),
        }
    }

    fn release(&mut self) {
        let i = self.r.below(self.live.len());
        let (id, _) = self.live.swap_remove(i);
        let released = self.cache.release(id);
        self.expect(released.is_ok(), "release failed");
        self.released.push(id);
    }

    /// Lengths of everything, originals of one head somewhere, and now and then a planted difference.
    fn check(&mut self) {
        for i in 0..self.live.len() {
            let (stored, len) = (self.cache.len(self.live[i].0), self.len(i));
            self.expect(matches!(stored, Ok(n) if n == len), &format!("length {stored:?} should be {len}"));
        }
        let (memory, tokens) = (self.cache.memory(), self.lens().iter().sum::<usize>());
        self.expect(memory.tokens == tokens, &format!("{} tokens are told, of {tokens}", memory.tokens));
        let (used, (now, _)) = ([memory.packed, memory.scratch, memory.tables, memory.host], self.cache.reserved());
        let within = used.iter().zip(now).all(|(used, reserved)| *used <= reserved);
        let [packed, scratch, tables, host] = self.reserved;
        let kept = now == [packed, scratch, now[2], host] && (tables..=tables + self.later).contains(&now[2]);
        self.expect(
            within && kept,
            &format!("{used:?} used of {now:?}, at first {:?} and {} more", self.reserved, self.later),
        );
        if let Some(id) = self.released.last().copied() {
            let gone = matches!(self.cache.len(id), Err(Error::UnknownSequence(_)));
            self.expect(gone, "a released sequence answers");
        }
        if self.live.is_empty() {
            return;
        }
        for i in 0..if self.ladder > 0 { self.live.len() } else { 0 } {
            let (known, id) = (self.levels_of(i), self.live[i].0);
            let wrong = known.iter().enumerate().any(|(layer, levels)| {
                levels.iter().enumerate().any(|(block, level)| self.cache.level(id, layer, block).ok() != Some(*level))
            });
            self.expect(!wrong, "a block has another level");
        }
        let i = self.r.below(self.live.len());
        let (layer, head) = (self.r.below(self.geometry.layers), self.r.below(self.geometry.kv_heads));
        let side = if self.r.chance(0.5) { Side::Key } else { Side::Value };
        let stored = self.cache.originals(self.live[i].0, layer, head, side);
        if matches!(stored, Err(Error::Gone { .. })) && self.windows[layer].is_some() {
            return;
        }
        let mut rows = self.live[i].1.side(&self.geometry, layer, head, side);
        self.expect(
            matches!(&stored, Ok(stored) if *stored == rows),
            &format!("originals differ: {:?}", stored.as_ref().err()),
        );
        let full = rows.len() / self.geometry.head_dim / self.blocks[0];
        if self.ladder > 0 && self.tally.operations.is_multiple_of(25) && full > 0 {
            // A level that is another must be seen.
            let (id, block) = (self.live[i].0, self.r.below(full));
            let other = (self.levels_of(i)[layer][block] + 1) % self.ladder;
            self.tally.planted += 1;
            self.tally.caught += u64::from(self.cache.level(id, layer, block).ok() != Some(other));
        }
        if self.tally.operations.is_multiple_of(50) && !rows.is_empty() {
            let at = self.r.below(rows.len());
            rows[at] ^= 1 << self.r.below(16);
            self.tally.planted += 1;
            self.tally.caught += u64::from(!matches!(&stored, Ok(stored) if *stored == rows));
        }
    }

    /// Most allocations, copies, events, waits and the like of an operation: so many for every block that the cache can hold, and a few of each sequence and call, in every layer;
    /// and so many for each time that room has to be made.
    fn most_steps(&self) -> u64 {
        const OF_A_BLOCK: usize = 12;
        const OF_A_ROOM: usize = 8;
        let blocks = self.max_tokens / self.blocks.iter().min().copied().unwrap_or(16);
        (OF_A_BLOCK * self.geometry.layers * (blocks + 12) + OF_A_ROOM * self.rooms) as u64
    }

    fn run(mut self, operations: u64) -> (Tally, CheckReport) {
        while self.tally.operations < operations {
            self.tally.operations += 1;
            if self.ladder > 0 && !self.live.is_empty() && self.r.chance(0.3) {
                self.change();
                self.check();
                continue;
            }
            let operation = self.r.below(22);
            if operation == 7 && !self.live.is_empty() {
                self.release();
                self.check();
                continue;
            }
            fail::arm(self.r.chance(0.1).then(|| 1 + self.r.below(40) as u64));
            match operation {
                _ if self.live.is_empty() => self.create(),
                0 | 1 => self.create(),
                2 | 3 => self.fork(),
                4..=6 => self.truncate(),
                8 | 9 => self.publish(),
                10 | 11 => self.resume(),
                20 | 21 => self.swap(),
                _ => self.step(),
            }
            self.tally.injected += u64::from(fail::fired().is_some());
            let (steps, most, counts) = (fail::hits(), self.most_steps(), fail::counts());
            fail::arm(None);
            let what = || format!("{steps} steps, more than {most}, in operation {operation}: {counts:?}");
            self.expect(steps <= most, &what());
            self.tally.most_steps = self.tally.most_steps.max(steps);
            self.check();
        }
        for (id, model) in core::mem::take(&mut self.live) {
            // Of layers with a window they may be gone.
            let wrong = if self.windows == [None; 4] { original_faults(&self.cache, id, &model) } else { 0 };
            self.expect(wrong == 0, "originals differ at the end");
            let released = self.cache.release(id);
            self.expect(released.is_ok(), "release failed");
        }
        let stats = self.cache.prefix_stats().map_or_else(Default::default, |(_, stats)| stats);
        (self.tally.evicted, self.tally.hollowed) = (stats.evicted, stats.hollowed);
        let cached = self.cache.evict_prefixes(usize::MAX);
        self.expect(cached.is_ok(), "evict_prefixes failed");
        let live = self.cache.live_pages();
        self.expect(live == 0, &format!("{live} pages live after everything was released"));
        // The whole capacity is there again.
        let empty = self.cache.create().unwrap();
        let mut refilled = Ok(());
        while refilled.is_ok() && self.cache.len(empty).is_ok_and(|len| len < self.max_tokens) {
            let chunk = (self.max_tokens - self.cache.len(empty).unwrap_or(0)).min(70);
            let rows = quick_rows(&self.geometry, chunk, &mut self.r);
            refilled = fill(&self.cache, empty, &rows);
            for _ in 0..1000 {
                // A queued device frees pages as its schedule goes on.
                if refilled.is_ok() || self.eager {
                    break;
                }
                let _ = self.cache.live_pages();
                refilled = fill(&self.cache, empty, &rows);
            }
        }
        self.expect(
            refilled.is_ok(),
            &format!("the capacity is not there after everything was released: {refilled:?}"),
        );
        if self.erases {
            let released = self.cache.release(empty);
            self.expect(released.is_ok(), "release failed");
            let left = (0..1000).map(|_| self.cache.residue()).find(|left| self.eager || matches!(left, Ok(0)));
            self.expect(matches!(left, Some(Ok(0))), &format!("bytes left in memory that nobody holds: {left:?}"));
        }
        let report = self.cache.check_report();
        let failed = report.failed_copies;
        self.expect(report.findings() == 0 && failed <= self.tally.injected, &format!("{report:?}"));
        (self.tally, report)
    }
}

fn operations(default: u64) -> u64 {
    number("CERTKV_MODEL_OPS").unwrap_or(default)
}
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn gate(id: &str, seeds: std::ops::Range<u64>, operations: u64, world: impl Fn(u64) -> World) {
    let levels = world(seeds.start).ladder > 0;
    let mut total = Tally::default();
    let mut ops = 0;
    let more = number("CERTKV_MODEL_SEED").unwrap_or(0);
    let seeds = seeds.start + more..seeds.end + more;
    for seed in seeds.clone() {
        let (t, report) = world(seed).run(operations);
        if t.failed > 0 {
            eprintln!("{id}: seed {seed} failed {} times", t.failed);
        }
        for (sum, x) in [
            (&mut total.operations, t.operations),
            (&mut total.failed, t.failed),
            (&mut total.decodes, t.decodes),
            (&mut total.prefills, t.prefills),
            (&mut total.forks, t.forks),
            (&mut total.reopened, t.reopened),
            (&mut total.dropped, t.dropped),
            (&mut total.published, t.published),
            (&mut total.continued, t.continued),
            (&mut total.evicted, t.evicted),
            (&mut total.hollowed, t.hollowed),
            (&mut total.swapped, t.swapped),
            (&mut total.returned, t.returned),
            (&mut total.refused, t.refused),
            (&mut total.exhausted, t.exhausted),
            (&mut total.injected, t.injected),
            (&mut total.typed, t.typed),
            (&mut total.changed, t.changed),
            (&mut total.controlled, t.controlled),
            (&mut total.planted, t.planted),
            (&mut total.caught, t.caught),
        ] {
            *sum += x;
        }
        total.most_steps = total.most_steps.max(t.most_steps);
        ops += report.ops;
    }
    let t = total;
    println!(
        "{id}: decodes {} prefills {} forks {} reopened {} dropped {} published {} continued {} evicted {} hollowed {} swapped {} returned {} refused {} exhausted {} injected {} typed {} changed {} controlled {} device operations {ops}, at most {} steps an operation",
        t.decodes,
        t.prefills,
        t.forks,
        t.reopened,
        t.dropped,
        t.published,
        t.continued,
        t.evicted,
        t.hollowed,
        t.swapped,
        t.returned,
        t.refused,
        t.exhausted,
        t.injected,
        t.typed,
        t.changed,
        t.controlled,
        t.most_steps
    );
    println!(
        "GATE {id} executed={} failed={} controls={}/{} seed={:#x}",
        t.operations, t.failed, t.caught, t.planted, seeds.start
    );
    assert_eq!(t.failed, 0);
    assert!(t.planted > 0 && t.caught == t.planted, "the gate does not see a changed row");
    for (name, n) in [
        ("forks", t.forks),
        ("reopened", t.reopened),
        ("dropped", t.dropped),
        ("published", t.published),
        ("continued", t.continued),
        ("evicted", t.evicted),
        ("swapped", t.swapped),
        ("returned", t.returned),
        ("refused", t.refused),
        ("exhausted", t.exhausted),
        ("injected", t.injected),
        ("typed", t.typed),
    ] {
        assert!(n > 0, "no {name} happened");
    }
    let own = if levels { [t.changed, t.controlled] } else { [t.hollowed, 1] };
    assert!(own.iter().all(|n| *n > 0), "changed {} controlled {} hollowed {}", t.changed, t.controlled, t.hollowed);
    assert!(ops > 0, "the ordering checker was off");
}

#[test]
fn the_cache_is_its_model() {
    gate("model", 0..12, operations(260), |seed| World::new(seed, eager()));
}

#[test]
fn the_cache_is_its_model_when_blocks_have_levels() {
    gate("model-levels", 200..212, operations(260), |seed| World::with_levels(seed, eager()));
}

#[test]
fn the_cache_is_its_model_when_blocks_have_levels_and_copies_run_late() {
    gate("model-levels-adversarial", 300..308, operations(120), |seed| World::with_levels(seed, late(seed)));
}

fn eager() -> SimOptions {
    SimOptions { mode: Mode::Eager, check: true }
}

fn late(seed: u64) -> SimOptions {
    SimOptions { mode: Mode::Adversarial { seed }, check: true }
}

#[test]
fn the_cache_is_its_model_when_copies_run_late() {
    gate("model-adversarial", 100..112, operations(120), |seed| World::new(seed, late(seed)));
}

/// One step per token is the same as one chunk: originals, and bits of dense attention.
#[test]
fn chunks_of_any_size_store_the_same() {
    let geometry = Geometry::new(2, 4, 2, 64).unwrap();
    let mut r = Rng::new(7);
    let rows = random_rows(&geometry, 75, &mut r);
    let (last, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
    let mut seen: Option<Vec<Vec<u32>>> = None;
    for chunk in [75, 1, 7, 32, 33] {
        let cache = Cache::new(Config::new(geometry, 96)).unwrap();
        let sequence = cache.create().unwrap();
        let width = geometry.kv_width();
        for first in (0..75).step_by(chunk) {
            let end = (first + chunk).min(75);
            let cut =
                |side: &common::Layers| side.iter().map(|rows| rows[first * width..end * width].to_vec()).collect();
            fill(&cache, sequence, &Model { keys: cut(&rows.keys), values: cut(&rows.values) }).unwrap();
        }
        assert_eq!(original_faults(&cache, sequence, &rows), 0, "chunks of {chunk}");
        let answers = step(&cache, sequence, &last, &queries, Policy::Dense).unwrap();
        let bits: Vec<_> = answers.iter().map(Answer::bits).collect();
        assert_eq!(*seen.get_or_insert_with(|| bits.clone()), bits, "chunks of {chunk}");
    }
}

/// Outputs and bounds after a dropped step are those of a cache that never saw it, though its rows were very different.
#[test]
fn a_dropped_step_leaves_no_trace() {
    let geometry = Geometry::new(2, 4, 2, 64).unwrap();
    let run = |dropped: Option<usize>| {
        let mut r = Rng::new(17);
        let cache = Cache::new(Config::new(geometry, 128)).unwrap();
        let sequence = cache.create().unwrap();
        let mut model = random_rows(&geometry, 20, &mut r);
        fill(&cache, sequence, &model).unwrap();
        if let Some(tokens) = dropped {
            let mut rows = random_rows(&geometry, tokens, &mut Rng::new(99));
            rows.values.iter_mut().flatten().for_each(|v| *v = certkv::Dtype::F16.encode16(300.0));
            let mut begun = cache.begin(&[Chunk { sequence, tokens }]).unwrap();
            for layer in 0..geometry.layers {
                begun.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
            }
        }
        let mut seen = Vec::new();
        for _ in 0..30 {
            let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
            for answer in step(&cache, sequence, &rows, &queries, Policy::default()).unwrap() {
                seen.push((answer.bits(), answer.certificates.iter().map(|c| c.bound().to_bits()).collect::<Vec<_>>()));
            }
            model.append(&rows);
        }
        assert_eq!(original_faults(&cache, sequence, &model), 0);
        seen
    };
    let untouched = run(None);
    for tokens in [1, 11, 12, 13, 50] {
        assert!(run(Some(tokens)) == untouched, "a dropped step of {tokens} tokens left a trace");
    }
}

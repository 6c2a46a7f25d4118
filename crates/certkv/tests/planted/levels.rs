//! Lives of small caches whose blocks have levels: sequences are appended to, forked, cut and ended while blocks of theirs are coded
//! again, now and then with a fault; beside a plain model.
use crate::common::calibrate::calibrated;
use crate::common::{Model, decode_faults, fill, original_faults, random_queries, random_rows, step};
use certkv::seal::{Seal, digest};
use certkv::{
    Cache, Cause, Certified, Config, Error, Format, Geometry, Level, Mode, Policy, SaveScope, Seed000, SequenceId,
    SimOptions, Status,
};
use certkv_core::{fail, hash::hash64};
use certkv_testkit::generate::Rng;

const OPS: u64 = 40;
const TOLERANCE: f64 = 0.05;

pub(crate) const LADDERS: [&[&str]; 8] = [
    &["t8-v8g64-b64", "t4-v4g64-b64", "t3-v3g64-b64", "t2-v2g64-b64"],
    &["k8-v8g32-b16", "tq4-tq4-b16", "tq3-v2g32-b16"],
    &["t8-tq6-b32", "k8-v4g32-b32", "tq4-tq3-b32", "t2-v3g16-b32", "tq2-tq2-b32"],
    &["k8-v4g32-b16", "t3g32-v4g32-b16"],
    &["t6-v6g64-b64", "t4-tq4-b64", "tq2-tq1-b64"],
    &["s1-tq4-b32", "s2-tq3-b32", "s3-tq2-b32", "k0-c0-b32"],
    &["k8-v8g32-b16", "ctq4-tq4-b16", "gtq3-tq2-b16", "ctq2-tq2-b16", "s3-tq1-b16"],
    &["gtq4-v6g32-b64", "ctq3-tq4-b64", "gtq2-tq2-b64"],
];

type Verdict = Result<(), String>;

/// Level, and what is behind the seal of a block on the device.
type Block = (Option<usize>, Option<Vec<u8>>);

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) changed: u64,
    pub(crate) refused: u64,
    pub(crate) exhausted: u64,
    pub(crate) failed: u64,
    /// Heads decoded, those with blocks at more than one level, and those of them by status.
    pub(crate) heads: u64,
    pub(crate) mixed: u64,
    pub(crate) exact: u64,
    pub(crate) certified: u64,
    /// Sequences that left, those that returned, and those that a level had no page for.
    pub(crate) left: u64,
    pub(crate) returned: u64,
    pub(crate) waited: u64,
    /// Sequences that came back from a file.
    pub(crate) filed: u64,
    /// Bits of everything returned.
    pub(crate) bits: Vec<u32>,
}

struct Life<'s> {
    cache: Cache,
    geometry: Geometry,
    formats: Vec<Format>,
    /// What of a layer has levels of its own: so many heads, or 1.
    apart: usize,
    live: Vec<(SequenceId, Model)>,
    r: Rng,
    faults: bool,
    /// Sequences leave the device and return.
    travels: bool,
    seen: &'s mut Seen,
}

/// What a seal says of a format: with its calibration, which is named in hex, where it needs one.
fn sealed_as(format: Format, calibration: Option<&str>) -> u64 {
    let plain = digest(format.to_string().as_bytes());
    let Some(name) = calibration.filter(|_| format.key.is_calibrated()) else { return plain };
    let word = |digits: &str| u64::from_str_radix(digits, 16).unwrap_or_default().swap_bytes();
    let words: Vec<u64> = (0..4).map(|at| word(&name[16 * at..16 * (at + 1)])).collect();
    hash64(&[plain, hash64(&words)])
}

/// A fault that was injected, or a want of room, is nobody's bug.
fn accept(error: &Error) -> Verdict {
    let text = error.to_string();
    match error {
        Error::CapacityExhausted { .. } | Error::TooLong { .. } | Error::TooManySequences { .. } => Ok(()),
        _ if text.contains("injected fault") || text.contains("copies failed") => Ok(()),
        _ => Err(text),
    }
}

impl<'s> Life<'s> {
    fn new(seed: u64, threads: usize, faults: bool, travels: bool, seen: &'s mut Seen) -> Result<Self, Error> {
        let mut r = Rng::new(seed);
        let kv_heads = 1 + r.below(2);
        let geometry = Geometry::new(2, kv_heads * (1 + r.below(3)), kv_heads, 64)?;
        let formats = LADDERS[r.below(LADDERS.len())].iter().map(|f| f.parse()).collect::<Result<Vec<Format>, _>>()?;
        let (block, sequences) = (formats[0].block, 2 + r.below(3));
        // Some levels have few pages, so that they run out.
        let tokens = block * (6 + r.below(20));
        let level = |format: &Format| Level { format: *format, tokens: block * (2 + r.below(tokens / block)) };
        let mut levels: Vec<Level> = formats.iter().map(level).collect();
        levels[0].tokens = tokens;
        if travels {
            levels[1].tokens = 2 * block;
        }
        let mode = if faults { Mode::Adversarial { seed } } else { Mode::Eager };
        let levels_by_head = r.chance(0.4);
        let apart = if levels_by_head { kv_heads } else { 1 };
        let config = Config { levels_by_head, ..Config::new(geometry, tokens).with_levels(levels) };
        let config = calibrated(config, seed);
        let cache = Cache::new(Config {
            max_sequences: sequences,
            threads,
            scratch_keys: 8 * (seed % 2) as usize,
            scratch_values: 4 * (seed % 3) as usize,
            swap_tokens: if travels { tokens / 2 } else { 0 },
            device: SimOptions { mode, check: true },
            ..config
        })?;
        Ok(Self { cache, geometry, formats, apart, live: Vec::new(), r, faults, travels, seen })
    }

    fn act(&mut self) -> Verdict {
        if self.live.is_empty() {
            return self.create();
        }
        let i = self.r.below(self.live.len());
        if self.travels && (self.is_away(i) || self.r.chance(0.2)) {
            // Meanwhile others may take the pages that it left.
            let other = (0..self.live.len()).find(|other| !self.is_away(*other)).filter(|_| self.is_away(i));
            return match other.filter(|_| self.r.chance(0.7)) {
                Some(other) => (0..8).try_for_each(|_| self.change(other)),
                None => self.travel(i),
            };
        }
        match self.r.below(16) {
            0 => self.create(),
            1 | 2 => self.fork(i),
            3 => self.truncate(i),
            4 => self.release(i),
            5 => self.append(i),
            6..10 => (0..4).try_for_each(|_| self.change(i)),
            _ => (0..2).try_for_each(|_| self.decode(i)),
        }
    }

    fn create(&mut self) -> Verdict {
        match self.cache.create() {
            Ok(id) => self.live.push((id, Model::new(&self.geometry))),
            Err(error) => return accept(&error),
        }
        self.append(self.live.len() - 1)
    }

    fn is_away(&self, i: usize) -> bool {
        matches!(self.cache.is_swapped_out(self.live[i].0), Ok(true))
    }

    /// Level of every full block of every layer, and of those on the device, what they hold behind their seals.
    fn blocks(&self, id: SequenceId, len: usize) -> Vec<Block> {
        let full = len / self.formats[0].block;
        let codes = |(layer, head), block| {
            self.cache.packed_page_of(id, layer, head, block).ok().map(|page| page[64..].to_vec())
        };
        let level = |(layer, head), block| self.cache.level_of(id, layer, head, block).ok();
        let of = |place| (0..full).map(move |block| (level(place, block), codes(place, block)));
        (0..2 * self.apart).flat_map(|at| of((at / self.apart, at % self.apart))).collect()
    }

    /// Out and back, or as far as room and faults let it: every block has the level that it had, and its codes.
    fn travel(&mut self, i: usize) -> Verdict {
        if self.r.chance(0.3) {
            return self.file(i);
        }
        let (id, len) = (self.live[i].0, self.live[i].1.len(&self.geometry));
        let (away, before) = (self.is_away(i), self.blocks(id, len));
        let armed = self.faults && self.r.chance(0.3);
        fail::arm(armed.then(|| 1 + self.r.below(12) as u64));
        let moved = if away { self.cache.swap_in(id) } else { self.cache.swap_out(id) };
        fail::arm(None);
        let after = self.blocks(id, len);
        if before.iter().zip(&after).any(|(before, after)| before.0.is_none() || before.0 != after.0) {
            return Err("a block has another level than before it left".into());
        }
        match moved {
            Ok(_) if away => {
                self.seen.returned += 1;
                // Codes are what their originals give at their level.
                self.recoded(i)
            }
            Ok(_) => {
                self.seen.left += 1;
                match self.cache.change_level_of(id, 0, self.apart - 1, 0, 1) {
                    Err(Error::SwappedOut) => Ok(()),
                    other => Err(format!("the level of a block that is away was changed: {other:?}")),
                }
            }
            Err(_) if before != after => Err("a move that failed moved something".into()),
            Err(Error::CapacityExhausted { class, .. }) => {
                self.seen.waited += u64::from(class.starts_with("level"));
                // Somebody has to give pages up.
                self.release(i)
            }
            Err(error) => accept(&error),
        }
    }

    /// Into a file and back, in place of itself: the same levels and codes, or the error that was injected, and no page is lost.
    fn file(&mut self, i: usize) -> Verdict {
        let scope = SaveScope { model: b"life", key: None };
        let (id, len, away) = (self.live[i].0, self.live[i].1.len(&self.geometry), self.is_away(i));
        let (before, mut bytes) = (self.blocks(id, len), Vec::new());
        self.cache.save(id, &scope, &mut bytes).map_err(|e| e.to_string())?;
        self.cache.release(id).map_err(|e| e.to_string())?;
        let model = self.live.swap_remove(i).1;
        let (armed, live) = (self.faults && self.r.chance(0.3), self.cache.live_pages());
        fail::arm(armed.then(|| 1 + self.r.below(30) as u64));
        let restored = self.cache.restore(&scope, &mut &bytes[..]);
        fail::arm(None);
        match restored {
            Ok(id) => {
                let after = self.blocks(id, len);
                let differs = |(before, after): (&Block, &Block)| before.0 != after.0 || !away && before.1 != after.1;
                if before.iter().zip(&after).any(differs) {
                    return Err("a block came back from a file as another".into());
                }
                self.live.push((id, model));
                self.seen.filed += 1;
                self.recoded(self.live.len() - 1)
            }
            Err(_) if live != self.cache.live_pages() && !self.faults => Err("a refused file left pages behind".into()),
            Err(error) => accept(&error),
        }
    }

    /// A block that is coded again, there and back, has the codes that it had.
    fn recoded(&mut self, i: usize) -> Verdict {
        let (id, full) = (self.live[i].0, self.live[i].1.len(&self.geometry) / self.formats[0].block);
        if full == 0 {
            return Ok(());
        }
        let (layer, block, by) = (self.r.below(2), self.r.below(full), 1 + self.r.below(self.formats.len() - 1));
        let head = self.r.below(self.apart);
        let codes = || self.cache.packed_page_of(id, layer, head, block).map(|page| page[64..].to_vec());
        let (level, before) = (self.cache.level_of(id, layer, head, block).map_err(|e| e.to_string())?, codes());
        if self.cache.change_level_of(id, layer, head, block, (level + by) % self.formats.len()).is_err() {
            return Ok(());
        }
        match self.cache.change_level_of(id, layer, head, block, level) {
            Ok(()) if before.ok() != codes().ok() => Err("codes came back as others".into()),
            Ok(()) => Ok(()),
            Err(error) => accept(&error),
        }
    }

    /// A chunk, attended to or not.
    fn append(&mut self, i: usize) -> Verdict {
        let tokens = 2 + self.r.below(5 * self.formats[0].block);
        let rows = random_rows(&self.geometry, tokens, &mut self.r);
        let (id, model) = &mut self.live[i];
        match fill(&self.cache, *id, &rows) {
            Ok(()) => {
                model.append(&rows);
                Ok(())
            }
            Err(error) => accept(&error),
        }
    }

    fn fork(&mut self, i: usize) -> Verdict {
        let (id, model) = self.live[i].clone();
        match self.cache.fork(id) {
            Ok(fork) => {
                self.live.push((fork, model));
                Ok(())
            }
            Err(error) => accept(&error),
        }
    }

    fn truncate(&mut self, i: usize) -> Verdict {
        let (id, model) = &mut self.live[i];
        let len = model.len(&self.geometry) - self.r.below(model.len(&self.geometry).min(90) + 1);
        match self.cache.truncate(*id, len) {
            Ok(()) => {
                model.truncate(&self.geometry, len);
                Ok(())
            }
            Err(error) => accept(&error),
        }
    }

    fn release(&mut self, i: usize) -> Verdict {
        let (id, model) = self.live.swap_remove(i);
        self.whole(id, &model)?;
        self.cache.release(id).map_err(|e| e.to_string())
    }

    /// One block of one layer to another level. What does not happen leaves the block as it was, to the byte.
    fn change(&mut self, i: usize) -> Verdict {
        let (id, model) = &self.live[i];
        let (layer, head) = (self.r.below(2), self.r.below(self.apart));
        let full = model.len(&self.geometry) / self.formats[0].block;
        let (block, level) = (self.r.below(full + 1), self.r.below(self.formats.len()));
        let page = || self.cache.packed_page_of(*id, layer, head, block);
        let state = || (self.cache.level_of(*id, layer, head, block).ok(), page().ok());
        let (before, live) = (state(), self.cache.live_pages());
        let armed = self.faults && self.r.chance(0.3);
        fail::arm(armed.then(|| 1 + self.r.below(6) as u64));
        let changed = self.cache.change_level_of(*id, layer, head, block, level);
        fail::arm(None);
        match &changed {
            Ok(()) => {
                self.seen.changed += u64::from(before.0 != Some(level));
                if self.cache.level_of(*id, layer, head, block).ok() != Some(level) {
                    return Err("another level than was asked for".into());
                }
            }
            Err(Error::Level { .. }) => self.seen.refused += 1,
            Err(Error::CapacityExhausted { class, .. }) if *class != "host" => self.seen.exhausted += 1,
            Err(error) => {
                self.seen.failed += 1;
                accept(error)?;
            }
        }
        if block < full {
            let page = page().map_err(|e| e.to_string())?;
            let seal = Seal::read(&page).map_err(|e| e.to_string())?;
            let level = self.cache.level_of(*id, layer, head, block);
            let format = self.formats[level.map_err(|e| e.to_string())?];
            if (seal.block, seal.layer, seal.head) != (block as u32, layer as u32, head as u32)
                || seal.format != sealed_as(format, self.cache.calibration())
            {
                return Err(format!("sealed as another: {seal:?}"));
            }
        } else if !matches!(changed, Err(Error::Level { .. })) {
            return Err("a block that is not full has a level".into());
        }
        if changed.is_err() && (before != state() || live != self.cache.live_pages() && !self.faults) {
            return Err("a change that failed changed something".into());
        }
        Ok(())
    }

    /// One step, sometimes given up before its end.
    fn decode(&mut self, i: usize) -> Verdict {
        let (rows, queries) =
            (random_rows(&self.geometry, 1, &mut self.r), random_queries(&self.geometry, 1, &mut self.r));
        let certified = Certified { tol_rel: TOLERANCE, ..Certified::default() };
        let policy = match self.r.below(8) {
            0 => Policy::Packed,
            1 => Policy::Seed000(Seed000::default()),
            2 => Policy::Dense,
            3 => Policy::Certified(Certified { explore_rate: 0.2, ..certified }),
            4 => Policy::Certified(Certified { max_repairs: 0, ..certified }),
            _ => Policy::Certified(certified),
        };
        let (id, model) = &mut self.live[i];
        let mut blocks = 0..model.len(&self.geometry) / self.formats[0].block;
        let level = |block| self.cache.level_of(*id, 0, 0, block).ok();
        let mixed = blocks.next().is_some_and(|first| blocks.any(|block| level(block) != level(first)));
        let answers = match step(&self.cache, *id, &rows, &queries, policy) {
            Ok(answers) => answers,
            Err(error) => return accept(&error),
        };
        model.append(&rows);
        for (layer, a) in answers.iter().enumerate() {
            self.seen.bits.extend(a.bits());
            self.seen.heads += a.certificates.len() as u64;
            self.seen.mixed += if mixed { a.certificates.len() as u64 } else { 0 };
            let exact = model.attend(&self.geometry, layer, model.len(&self.geometry), &queries);
            if a.certificates.iter().any(|c| c.cause == Cause::Integrity) {
                return Err(format!("codes of layer {layer} are not those of their originals"));
            }
            let wrong = match policy {
                Policy::Certified(_) | Policy::Dense => decode_faults(&exact, &a.out, &a.certificates, TOLERANCE),
                // Bounds that nothing acts on are bounds all the same.
                _ => beyond(&exact, &a.out, &a.certificates),
            };
            if wrong > 0 {
                return Err(format!("{wrong} heads of layer {layer} are beyond their bound: {policy:?}"));
            }
            let of = |status| a.certificates.iter().filter(|c| c.status == status).count() as u64;
            self.seen.exact += of(Status::Exact);
            self.seen.certified += of(Status::Certified);
        }
        Ok(())
    }

    /// Length and originals of a sequence.
    fn whole(&self, id: SequenceId, model: &Model) -> Verdict {
        if self.cache.len(id).ok() != Some(model.len(&self.geometry)) {
            return Err("another length".into());
        }
        self.cache.originals(id, 0, 0, certkv::Side::Key).map_err(|e| e.to_string())?;
        match original_faults(&self.cache, id, model) {
            0 => Ok(()),
            n => Err(format!("{n} sides hold other rows")),
        }
    }

    /// The checker of the device saw nothing.
    fn ordered(&self) -> Verdict {
        let report = self.cache.check_report();
        if report.findings() > 0 { Err(format!("{report:?}")) } else { Ok(()) }
    }

    /// Everything ends, and no page of any class is left.
    fn end(mut self) -> Verdict {
        while !self.live.is_empty() {
            self.release(0)?;
        }
        let quiet = (0..10_000).any(|_| self.cache.live_pages() == 0 && self.cache.memory() == Default::default());
        if quiet { self.ordered() } else { Err(format!("pages are lost: {:?}", self.cache.memory())) }
    }
}

/// Heads whose true error is beyond what their certificate says, of policies that report a bound.
fn beyond(exact: &[Vec<f64>], out: &[f32], certificates: &[certkv::Certificate]) -> usize {
    let dim = exact[0].len();
    let error = |h: usize| {
        let got = out[h * dim..(h + 1) * dim].iter().map(|x| f64::from(*x));
        exact[h].iter().zip(got).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    (0..exact.len()).filter(|h| !(error(*h) <= certificates[*h].bound())).count()
}

/// A life of [`OPS`] operations. Without faults its outputs depend on the seed alone, not on `threads`.
pub(crate) fn live(seed: u64, threads: usize, faults: bool, seen: &mut Seen) -> Result<u64, String> {
    act(Life::new(seed, threads, faults, false, seen).map_err(|e| e.to_string())?)
}

/// The same of sequences that leave the device and return.
pub(crate) fn travel(seed: u64, threads: usize, faults: bool, seen: &mut Seen) -> Result<u64, String> {
    act(Life::new(seed, threads, faults, true, seen).map_err(|e| e.to_string())?)
}

fn act(mut life: Life<'_>) -> Result<u64, String> {
    for op in 0..OPS {
        let done = life.act();
        life.ordered().and(done).map_err(|e| format!("operation {op}: {e}"))?;
    }
    life.end().map(|()| OPS)
}

#[allow(dead_code, reason = "what the gate of planted bugs runs")]
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    live(seed, 1, true, &mut Seen::default())
}

#[allow(dead_code, reason = "what the gate of planted bugs runs")]
pub(crate) fn run_travels(seed: u64) -> Result<u64, String> {
    travel(seed, 1, true, &mut Seen::default())
}

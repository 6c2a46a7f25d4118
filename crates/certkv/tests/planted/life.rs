//! Lives of small caches with scratch and cached prefixes, over a device whose copies run late, beside a plain model.
use crate::common::{Model, decode_faults, fill, original_faults, random_queries, random_rows, step};
use certkv::{
    Cache, Cause, Certified, Config, Error, Eviction, Geometry, Mode, Policy, PrefixConfig, PrefixScope, PrefixSecret,
    SequenceId, SimOptions,
};
use certkv_core::fail;
use certkv_core::hash::splitmix64;
use certkv_testkit::generate::Rng;

const OPS: u64 = 40;
const TOLERANCE: f64 = 0.02;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");

type Verdict = Result<(), String>;

struct Life {
    cache: Cache,
    geometry: Geometry,
    live: Vec<(SequenceId, Model)>,
    /// What was published.
    library: Vec<Model>,
    r: Rng,
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

/// A token per row: its rows in all layers decide its number.
fn tokens(geometry: &Geometry, model: &Model) -> Vec<u32> {
    let width = geometry.kv_width();
    let of = |at: usize| {
        let sides = model.keys.iter().chain(&model.values);
        sides.flat_map(|side| &side[at * width..(at + 1) * width]).fold(0, |h, w| splitmix64(h ^ u64::from(*w))) as u32
    };
    (0..model.len(geometry)).map(of).collect()
}

impl Life {
    /// Few pages, few slots of scratch, few prefixes: everything is used again soon.
    fn new(seed: u64) -> Result<Self, Error> {
        let geometry = Geometry::new(2, 2, 1, 64)?;
        let prefixes = PrefixConfig { secret: PrefixSecret::new([3; 32]), units: 3, eviction: Eviction::Lru };
        let cache = Cache::new(Config {
            formats: vec!["k8-v4g32-b16".parse()?, "t4-v4g32-b32".parse()?],
            max_sequences: 3,
            scratch_keys: 8,
            scratch_values: 8,
            prefixes: Some(prefixes),
            device: SimOptions { mode: Mode::Adversarial { seed }, check: true },
            ..Config::new(geometry, 140)
        })?;
        Ok(Self { cache, geometry, live: Vec::new(), library: Vec::new(), r: Rng::new(seed) })
    }

    fn act(&mut self) -> Verdict {
        if self.live.is_empty() {
            return self.create();
        }
        let i = self.r.below(self.live.len());
        match self.r.below(16) {
            0 | 1 => self.create(),
            2 | 3 => self.resume(),
            4 => self.fork(i),
            5 | 6 => self.truncate(i),
            7 | 8 => self.release(i),
            9 | 10 => self.publish(i),
            11 => self.cache.evict_prefixes(2).map(drop).map_err(|e| e.to_string()),
            _ => (0..3).try_for_each(|_| self.decode(i)),
        }
    }

    fn create(&mut self) -> Verdict {
        let tokens = 33 + self.r.below(40);
        let rows = random_rows(&self.geometry, tokens, &mut self.r);
        let id = match self.cache.create() {
            Ok(id) => id,
            Err(error) => return accept(&error),
        };
        self.live.push((id, Model::new(&self.geometry)));
        let filled = fill(&self.cache, id, &rows);
        if filled.is_ok() {
            self.live.iter_mut().rev().take(1).for_each(|(_, model)| model.append(&rows));
        }
        filled.or_else(|e| accept(&e))
    }

    /// A sequence from what is cached of a prompt that was published once.
    fn resume(&mut self) -> Verdict {
        if self.library.is_empty() {
            return Ok(());
        }
        let mut model = self.library[self.r.below(self.library.len())].clone();
        match self.cache.create_from(&SCOPE, tokens(&self.geometry, &model)[..].into()) {
            Ok((id, found)) => {
                model.truncate(&self.geometry, found);
                self.live.push((id, model));
                Ok(())
            }
            Err(error) => accept(&error),
        }
    }

    fn publish(&mut self, i: usize) -> Verdict {
        let (id, model) = self.live[i].clone();
        let done = self.cache.publish(id, &SCOPE, tokens(&self.geometry, &model)[..].into());
        self.library.push(model);
        done.map(drop).or_else(|e| accept(&e))
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
        let len = model.len(&self.geometry) - self.r.below(model.len(&self.geometry).min(40) + 1);
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

    /// One step; now and then something in it fails.
    fn decode(&mut self, i: usize) -> Verdict {
        let (rows, queries) =
            (random_rows(&self.geometry, 1, &mut self.r), random_queries(&self.geometry, 1, &mut self.r));
        let policy = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
        let (armed, nth) = (self.r.chance(0.5), 1 + self.r.below(60) as u64);
        let (id, model) = &mut self.live[i];
        fail::arm(armed.then_some(nth));
        let answers = step(&self.cache, *id, &rows, &queries, policy);
        fail::arm(None);
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return accept(&error),
        };
        model.append(&rows);
        for (layer, a) in answers.iter().enumerate() {
            let exact = model.attend(&self.geometry, layer, model.len(&self.geometry), &queries);
            let wrong = decode_faults(&exact, &a.out, &a.certificates, TOLERANCE);
            if wrong > 0 || a.certificates.iter().any(|c| c.cause == Cause::Integrity) {
                return Err(format!("{wrong} heads of layer {layer} are beyond their bound"));
            }
        }
        Ok(())
    }

    /// Length and originals of a sequence.
    fn whole(&self, id: SequenceId, model: &Model) -> Verdict {
        if self.cache.len(id).ok() != Some(model.len(&self.geometry)) {
            return Err("another length".into());
        }
        for layer in 0..self.geometry.layers {
            self.cache.originals(id, layer, 0, certkv::Side::Key).map_err(|e| e.to_string())?;
        }
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

    /// Everything ends, and no page is left.
    fn end(mut self) -> Verdict {
        while !self.live.is_empty() {
            self.release(0)?;
        }
        self.cache.evict_prefixes(usize::MAX).map_err(|e| e.to_string())?;
        // Copies may still be under way; asking gives the device its chances.
        let quiet = (0..10_000).any(|_| self.cache.live_pages() == 0 && self.cache.memory() == Default::default());
        if quiet { self.ordered() } else { Err(format!("pages are lost: {:?}", self.cache.memory())) }
    }
}

/// A life of [`OPS`] operations.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut life = Life::new(seed).map_err(|e| e.to_string())?;
    for op in 0..OPS {
        let done = life.act();
        life.ordered().and(done).map_err(|e| format!("operation {op}: {e}"))?;
    }
    life.end().map(|()| OPS)
}

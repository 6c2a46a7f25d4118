//! Scratch is a cache of the originals and nothing else: with it or without it every output has the same bits and every
//! certificate the same figures, except that bytes move from `host` to `scratch`.
mod common;

use certkv::{Cache, Certificate, Certified, Chunk, Config, Error, Geometry, Mode, Policy, SequenceId, SimOptions};
use certkv_core::Class;
use certkv_testkit::generate::Rng;
use common::{Answer, Model, decode_faults, fill, original_faults, random_queries, random_rows, step};

/// Tight enough that the coarse layers promote in every step.
fn policy() -> Policy {
    Policy::Certified(Certified { tol_rel: 0.02, ..Certified::default() })
}

fn config(keys: usize, values: usize, device: SimOptions) -> Config {
    let geometry = Geometry::new(2, 2, 1, 64).unwrap();
    let formats = vec!["k8-v4g32-b16".parse().unwrap(), "t4-v4g32-b32".parse().unwrap()];
    Config {
        formats,
        device,
        max_sequences: 6,
        scratch_keys: keys,
        scratch_values: values,
        ..Config::new(geometry, 900)
    }
}

const EAGER: SimOptions = SimOptions { mode: Mode::Eager, check: true };

/// Bytes of promoted sides that a run read: from scratch, from the host.
#[derive(Debug, Default, Clone, Copy)]
struct Moved {
    scratch: u64,
    host: u64,
}

/// What differs between two answers of the same step beyond where bytes were read; adds up where that was.
fn differences(plain: &Answer, cached: &Answer, moved: &mut Moved) -> usize {
    let masked = |c: &Certificate| {
        let mut c = *c;
        (c.bytes.host, c.bytes.scratch) = (c.bytes.host + c.bytes.scratch, 0);
        c
    };
    for c in &cached.certificates {
        moved.scratch += c.bytes.scratch;
        moved.host += c.bytes.host;
    }
    let unlike = |(a, b): (&Certificate, &Certificate)| a.bytes.scratch != 0 || *a != masked(b);
    usize::from(plain.bits() != cached.bits())
        + plain.certificates.iter().zip(&cached.certificates).filter(|pair| unlike(*pair)).count()
}

/// Two caches that are told the same, one of them with scratch, and a plain model beside each pair of sequences.
struct Pair {
    plain: Cache,
    cached: Cache,
    live: Vec<([SequenceId; 2], Model)>,
    r: Rng,
    moved: Moved,
    steps: usize,
    faults: usize,
}

impl Pair {
    fn new(keys: usize, values: usize, device: SimOptions, seed: u64) -> Self {
        Self::of(config(0, 0, EAGER), config(keys, values, device), seed)
    }

    fn of(plain: Config, cached: Config, seed: u64) -> Self {
        let (plain, cached) = (Cache::new(plain), Cache::new(cached));
        let (live, moved) = (Vec::new(), Moved::default());
        Self { plain: plain.unwrap(), cached: cached.unwrap(), live, r: Rng::new(seed), moved, steps: 0, faults: 0 }
    }

    fn geometry(&self) -> Geometry {
        *self.plain.geometry()
    }

    fn create(&mut self, tokens: usize) {
        let (rows, geometry) = (random_rows(&self.geometry(), tokens, &mut self.r), self.geometry());
        let ids = [&self.plain, &self.cached].map(|cache| {
            let id = cache.create().unwrap();
            fill(cache, id, &rows).unwrap();
            id
        });
        let mut model = Model::new(&geometry);
        model.append(&rows);
        self.live.push((ids, model));
    }

    fn fill(&mut self, i: usize, tokens: usize) {
        let rows = random_rows(&self.geometry(), tokens, &mut self.r);
        let (ids, model) = &mut self.live[i];
        for (cache, id) in [&self.plain, &self.cached].into_iter().zip(*ids) {
            fill(cache, id, &rows).unwrap();
        }
        model.append(&rows);
    }

    /// One decode step with `queries`, checked between the caches and against exact attention.
    fn decode(&mut self, i: usize, queries: &[f32]) {
        let geometry = self.geometry();
        let rows = random_rows(&geometry, 1, &mut self.r);
        let (ids, model) = &mut self.live[i];
        model.append(&rows);
        let plain = step(&self.plain, ids[0], &rows, queries, policy()).unwrap();
        let cached = step(&self.cached, ids[1], &rows, queries, policy()).unwrap();
        for (layer, (a, b)) in plain.iter().zip(&cached).enumerate() {
            self.faults += differences(a, b, &mut self.moved);
            let exact = model.attend(&geometry, layer, model.len(&geometry), queries);
            self.faults += decode_faults(&exact, &b.out, &b.certificates, 0.02);
        }
        self.steps += 1;
    }

    /// Decode steps in a row with queries that drift, as those of a text do.
    fn decode_many(&mut self, i: usize, n: usize) {
        let mut queries = random_queries(&self.geometry(), 1, &mut self.r);
        for _ in 0..n {
            queries.iter_mut().for_each(|q| *q += 0.05 * self.r.normal() as f32);
            self.decode(i, &queries);
        }
    }

    /// One decode step of every sequence at once; one that is dropped instead leaves no trace.
    fn decode_all(&mut self, finish: bool) {
        let geometry = self.geometry();
        let n = self.live.len();
        let (rows, queries) = (random_rows(&geometry, n, &mut self.r), random_queries(&geometry, n, &mut self.r));
        let answers = [&self.plain, &self.cached].into_iter().enumerate().map(|(c, cache)| {
            let chunks: Vec<_> = self.live.iter().map(|(ids, _)| Chunk { sequence: ids[c], tokens: 1 }).collect();
            let mut begun = cache.begin_with(&chunks, policy()).unwrap();
            let mut answers = Vec::new();
            for layer in 0..geometry.layers {
                begun.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
                let mut answer = Answer::new(&geometry, n);
                begun.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
                answers.push(answer);
            }
            if finish {
                begun.finish().unwrap();
            }
            answers
        });
        let answers: Vec<_> = answers.collect();
        self.faults +=
            answers[0].iter().zip(&answers[1]).map(|(a, b)| differences(a, b, &mut self.moved)).sum::<usize>();
        if finish {
            for (i, (_, model)) in self.live.iter_mut().enumerate() {
                let mut row = Model::new(&geometry);
                let width = geometry.kv_width();
                for (into, from) in row.keys.iter_mut().zip(&rows.keys).chain(row.values.iter_mut().zip(&rows.values)) {
                    into.extend_from_slice(&from[i * width..(i + 1) * width]);
                }
                model.append(&row);
            }
        }
        self.steps += n;
    }

    fn truncate(&mut self, i: usize, len: usize) {
        let geometry = self.geometry();
        let (ids, model) = &mut self.live[i];
        let len = len.min(model.len(&geometry));
        for (cache, id) in [&self.plain, &self.cached].into_iter().zip(*ids) {
            cache.truncate(id, len).unwrap();
        }
        model.truncate(&geometry, len);
    }

    fn fork(&mut self, i: usize) {
        let (ids, model) = &self.live[i];
        let ids = [self.plain.fork(ids[0]).unwrap(), self.cached.fork(ids[1]).unwrap()];
        self.live.push((ids, model.clone()));
    }

    fn release(&mut self, i: usize) {
        let (ids, _) = self.live.swap_remove(i);
        self.plain.release(ids[0]).unwrap();
        self.cached.release(ids[1]).unwrap();
    }

    /// One random operation on one of at most four sequences.
    fn act(&mut self) {
        if self.live.is_empty() {
            let tokens = 60 + self.r.below(80);
            return self.create(tokens);
        }
        let (i, what) = (self.r.below(self.live.len()), self.r.below(12));
        let len = self.live[i].1.len(&self.geometry());
        let back = self.r.below(40);
        match what {
            0 if self.live.len() < 4 => self.create(50),
            1 if self.live.len() < 4 => self.fork(i),
            2 if self.live.len() > 1 => self.release(i),
            // Close to the end and far from it: into an open block, a full one, a shared one.
            3 | 4 if len > 60 => self.truncate(i, len - back),
            5 if len > 90 => self.truncate(i, 33 + back),
            6 if len < 150 => self.fill(i, 1 + back),
            7 => self.decode_all(true),
            8 => self.decode_all(false),
            _ if len < 190 => self.decode_many(i, 4),
            _ => self.truncate(i, 40 + back),
        }
    }

    /// Originals are whole, all pages come back, and the device's checker saw nothing.
    fn end(mut self) -> (Moved, usize, usize) {
        for (ids, model) in core::mem::take(&mut self.live) {
            self.faults += original_faults(&self.cached, ids[1], &model);
            self.cached.release(ids[1]).unwrap();
        }
        // On the adversarial device copies may still be under way; asking gives it its chances.
        let quiet = (0..10_000).any(|_| self.cached.live_pages() == 0 && self.cached.memory() == Default::default());
        assert!(quiet, "not empty: {:?}", self.cached.memory());
        let report = self.cached.check_report();
        self.faults += report.findings() as usize;
        assert_eq!(report.findings(), 0, "{report:?}");
        (self.moved, self.steps, self.faults)
    }
}

#[test]
fn promoted_sides_are_found_again() {
    let run = |keys, values, device| {
        let mut pair = Pair::new(keys, values, device, 7);
        pair.create(300);
        pair.decode_many(0, 40);
        pair.end()
    };
    let (none, steps, faults) = run(0, 0, EAGER);
    assert_eq!((none.scratch, faults), (0, 0));
    let mut executed = steps;
    for (device, name) in [(EAGER, "eager"), (SimOptions { mode: Mode::Adversarial { seed: 3 }, check: true }, "late")]
    {
        for (keys, values) in [(64, 64), (64, 0), (0, 64)] {
            let (moved, steps, faults) = run(keys, values, device);
            println!("{name}, {keys} keys, {values} values: {moved:?}; without scratch {none:?}");
            assert_eq!((faults, moved.scratch + moved.host), (0, none.host));
            // The open block's rows and what a dense fallback reads count as host too.
            assert!(moved.scratch > 0 && moved.host < none.host);
            executed += steps;
        }
    }
    println!("scratch-hits: {executed} steps");
}

#[test]
fn a_scratch_that_is_too_small_keeps_what_it_has() {
    let mut pair = Pair::new(6, 6, EAGER, 7);
    pair.create(300);
    pair.decode_many(0, 40);
    let (moved, _, faults) = pair.end();
    println!("6 + 6 sides: {moved:?}");
    assert!(faults == 0 && moved.scratch > 0);
}

/// Heads look sides up on several threads: the same bits, and the same bytes from the same places.
#[test]
fn threads_do_not_change_what_is_found() {
    let run = |threads| {
        let with = |scratch, threads| Config {
            geometry: Geometry::new(2, 8, 4, 64).unwrap(),
            threads,
            ..config(scratch, scratch, EAGER)
        };
        let mut pair = Pair::of(with(0, 1), with(50, threads), 21);
        pair.create(200);
        pair.decode_many(0, 12);
        let (moved, _, faults) = pair.end();
        assert_eq!(faults, 0);
        (moved.scratch, moved.host)
    };
    let one = run(1);
    assert!(one.0 > 0);
    for threads in [2, 4] {
        assert_eq!(run(threads), one);
    }
}

#[test]
fn any_use_gives_the_same_bits() {
    let (mut executed, mut failed, mut hits) = (0, 0, 0);
    for seed in 0..24 {
        let (keys, values) = [(1, 1), (2, 2), (3, 3), (3, 0), (0, 2), (40, 40)][seed as usize % 6];
        let mode = if seed % 4 == 3 { Mode::Eager } else { Mode::Adversarial { seed } };
        let mut pair = Pair::new(keys, values, SimOptions { mode, check: true }, 100 + seed);
        for _ in 0..40 {
            pair.act();
        }
        let (moved, steps, faults) = pair.end();
        (executed, failed, hits) = (executed + steps, failed + faults, hits + usize::from(moved.scratch > 0));
    }
    // The control: a cache that holds one other bit is told apart, by its output or by its certificates.
    let mut control = Pair::new(40, 40, EAGER, 5);
    control.create(200);
    let id = control.live[0].0[1];
    control.cached.truncate(id, 199).unwrap();
    let (geometry, mut row) = (control.geometry(), control.live[0].1.clone());
    for side in row.keys.iter_mut().chain(&mut row.values) {
        side.drain(..199 * geometry.kv_width());
        side[0] ^= 0x100;
    }
    fill(&control.cached, id, &row).unwrap();
    control.decode_many(0, 4);
    let caught = usize::from(control.faults > 0);
    println!(
        "GATE scratch-bits executed={executed} failed={failed} controls={caught}/1 seed=0x64; {hits} of 24 runs hit"
    );
    assert!(failed == 0 && caught == 1 && executed > 1000 && hits > 16);
}

/// Pages of a sequence that ended go to the next one while copies to scratch may still read them.
#[test]
fn pages_are_not_reused_under_a_copy() {
    let (mut executed, mut waited, mut failed) = (0, 0, 0);
    for seed in 0..60 {
        let device = SimOptions { mode: Mode::Adversarial { seed }, check: true };
        let cache = Cache::new(Config { max_tokens: 96, max_sequences: 1, ..config(8, 8, device) }).unwrap();
        let (geometry, mut r) = (*cache.geometry(), Rng::new(seed));
        for _ in 0..4 {
            let id = cache.create().unwrap();
            let mut model = random_rows(&geometry, 90, &mut r);
            // Until the pages of the last sequence are back; asking gives the device its chances.
            let full = |result: &Result<(), Error>| matches!(result, Err(Error::CapacityExhausted { .. }));
            let tries = (0..10_000).take_while(|_| full(&fill(&cache, id, &model))).count();
            waited += usize::from(tries > 0);
            let mut queries = random_queries(&geometry, 1, &mut r);
            for _ in 0..3 {
                queries.iter_mut().for_each(|q| *q += 0.05 * r.normal() as f32);
                let rows = random_rows(&geometry, 1, &mut r);
                let answers = step(&cache, id, &rows, &queries, policy()).unwrap();
                model.append(&rows);
                for (layer, a) in answers.iter().enumerate() {
                    let exact = model.attend(&geometry, layer, model.len(&geometry), &queries);
                    failed += decode_faults(&exact, &a.out, &a.certificates, 0.02);
                }
                executed += 1;
            }
            failed += original_faults(&cache, id, &model);
            cache.release(id).unwrap();
        }
        assert_eq!(cache.check_report().findings(), 0, "{:?}", cache.check_report());
    }
    println!("scratch-reuse: {executed} steps, {waited} of 240 sequences waited for pages");
    assert!(failed == 0 && waited > 20);
}

#[test]
fn scratch_is_counted_and_bounded() {
    let geometry = Geometry::new(3, 4, 2, 128).unwrap();
    let with = |keys, values| Config { scratch_keys: keys, scratch_values: values, ..Config::new(geometry, 600) };
    let reserved = |config: Config| Cache::new(config).unwrap().reserved_for(Class::Scratch);
    let side = 64 * 128 * 2;
    assert_eq!(reserved(with(7, 4)), reserved(with(0, 0)) + 11 * side);
    for (config, field) in [(with((1 << 24) + 1, 0), "scratch_keys"), (with(0, usize::MAX), "scratch_values")] {
        assert!(matches!(Cache::new(config), Err(Error::Config { field: f, .. }) if f == field));
    }
    let (bare, _) = Cache::new(with(0, 0)).unwrap().reserved();
    let tight = bare[0] + bare[1] + bare[2];
    assert!(Cache::new(Config { device_budget: tight, ..with(0, 0) }).is_ok());
    assert!(matches!(Cache::new(Config { device_budget: tight, ..with(1, 0) }), Err(Error::Budget(_))));

    let cache = Cache::new(with(7, 4)).unwrap();
    let mut r = Rng::new(1);
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry, 400, &mut r)).unwrap();
    let before = cache.memory().scratch;
    let mut most = 0;
    let policy = Policy::Certified(Certified { tol_rel: 0.005, ..Certified::default() });
    for _ in 0..12 {
        let (rows, queries) = (random_rows(&geometry, 1, &mut r), random_queries(&geometry, 1, &mut r));
        step(&cache, id, &rows, &queries, policy).unwrap();
        let memory = cache.memory();
        most = most.max(memory.scratch - before);
        assert!(memory.scratch <= cache.reserved_for(Class::Scratch));
    }
    assert!(most > 0 && most <= 11 * side && most.is_multiple_of(side), "{most}");
    cache.release(id).unwrap();
    assert_eq!(cache.memory(), Default::default());
}

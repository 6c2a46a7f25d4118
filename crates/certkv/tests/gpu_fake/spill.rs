//! Originals of live sequences in a store, over the fake driver. Its launches look at what they would read: originals of the block that the
//! record was made of, or none; and heads of the dense rung have all of theirs.
mod ahead;
mod slow;

use crate::fake_cuda::sweep::Tally;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Plant};
use crate::life::spilling::with;
use crate::life::{FORMATS, LAYERS, Manner};
use crate::model::{element, expected};
use crate::unruly::{FAULTS, Fault, Unruly};
use crate::{How, alone, sweep};
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, LayerIo, Tensor};
use certkv::store::StoreError;
use certkv::{
    Certificate, Certified, Chunk, Class, Error, FetchCause, Policy, PrefixScope, SaveScope, SequenceId, Side, Spill,
    Status,
};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

fn of(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

struct World {
    cache: GpuCache,
    /// What is left in memory is erased.
    erase: bool,
    backend: Arc<Unruly>,
    live: Vec<(SequenceId, Vec<u32>)>,
    r: Rng,
    next: u32,
    /// What a failing store came to.
    errors: Vec<Error>,
    refused: usize,
    heads: usize,
    /// Forks, cuts, swaps, continuations, files, units that travelled, steps, chunks.
    seen: [usize; 8],
}

fn certified() -> Policy {
    Policy::Certified(Certified::default())
}

/// What a failing store may become, and nothing else.
fn is_typed(error: &Error) -> bool {
    match error {
        Error::Fetch(_) | Error::CapacityExhausted { class: "host", .. } => true,
        Error::Shortened { cause, .. } => is_typed(cause),
        _ => false,
    }
}

fn is_corrupt(error: &Error) -> bool {
    let Error::Fetch(error) = error else { return false };
    matches!(error.cause, FetchCause::Store(StoreError::Corrupt { .. } | StoreError::TooLarge { .. }))
}

impl World {
    fn new(gpu: &Gpu, compiler: &Compiler, format: &str, seed: u64, armed: &[(u64, Fault)]) -> Self {
        kernels::begin(format);
        let backend = Arc::new(Unruly::new());
        backend.arm(armed);
        let mut config = with(format, backend.clone());
        config.spill.iter_mut().for_each(|spill| spill.workers = 1 + seed as usize % 2);
        config.erase = !seed.is_multiple_of(3);
        let erase = config.erase;
        let cache = GpuCache::new(gpu, compiler, config).expect("a cache");
        let (live, errors) = (Vec::new(), Vec::new());
        Self { cache, erase, backend, live, r: Rng::new(seed), next: 0, errors, refused: 0, heads: 0, seen: [0; 8] }
    }

    /// A refusal for want of room is part of life, and so is what a store does that was told to.
    fn allow<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => return Some(done),
            Err(Error::TooManySequences { .. } | Error::TooLong { .. } | Error::SwappedOut | Error::NotSwappedOut) => {
                self.refused += 1
            }
            Err(error @ Error::CapacityExhausted { class, .. }) if class != "host" || self.backend.fired() == 0 => {
                drop(error);
                self.refused += 1;
            }
            Err(error) if self.backend.fired() > 0 && is_typed(&error) => self.errors.push(error),
            Err(error) => panic!("{error}"),
        }
        None
    }

    /// One step; outputs are the queries, which the kernels give back.
    fn step(&mut self, parts: &[(usize, usize)], policy: Policy) {
        let chunks: Vec<_> = parts.iter().map(|(at, n)| Chunk { sequence: self.live[*at].0, tokens: *n }).collect();
        let tokens: Vec<u32> = (0..parts.iter().map(|p| p.1 as u32).sum()).map(|i| self.next + i).collect();
        self.next += tokens.len() as u32;
        let side = |layer, side| -> Vec<u16> {
            tokens.iter().flat_map(|t| (0..KV).map(move |at| element(*t, layer, side, at))).collect()
        };
        let queries: Vec<f32> = (0..tokens.len() * Q).map(|_| self.r.uniform() as f32 - 0.5).collect();
        let single: Vec<usize> = parts
            .iter()
            .scan(0, |next, p| Some((core::mem::replace(next, *next + p.1), p.1)))
            .filter(|(_, n)| *n == 1)
            .map(|(first, _)| first)
            .collect();
        let mut heads = 0;
        let done = (|| {
            let mut step = self.cache.begin_with(&chunks, policy)?;
            for layer in 0..LAYERS {
                step.append_bits(layer, &side(layer, Side::Key), &side(layer, Side::Value))?;
                let (mut out, mut got) =
                    (vec![7.0; tokens.len() * Q], vec![Certificate::UNCERTIFIED; tokens.len() * HEADS]);
                if let Err(error) = step.attend(layer, &queries) {
                    assert!(step.outputs(layer, &mut out, &mut got).is_err() && out.iter().all(|x| *x == 7.0));
                    return Err(error);
                }
                step.outputs(layer, &mut out, &mut got)?;
                for row in &single {
                    assert_eq!(out[row * Q..(row + 1) * Q], queries[row * Q..(row + 1) * Q], "another step's output");
                    let claims = got[row * HEADS..(row + 1) * HEADS].iter().all(|c| c.status != Status::Uncertified);
                    assert_eq!(claims, policy != Policy::Packed);
                    heads += HEADS;
                }
            }
            step.finish()
        })();
        self.heads += heads;
        if self.allow(done).is_some() {
            let mut rest = &tokens[..];
            for (at, n) in parts {
                let (own, others) = rest.split_at(*n);
                self.live[*at].1.extend(own);
                rest = others;
                self.seen[if *n > 1 { 7 } else { 6 }] += 1;
            }
        }
    }

    /// Two sequences of eight blocks, with room for twelve: the first lacks some.
    fn filled(&mut self) -> SequenceId {
        for at in 0..2 {
            let id = self.cache.create().expect("a sequence");
            self.live.push((id, Vec::new()));
            (0..8).for_each(|_| self.step(&[(at, BLOCK)], certified()));
        }
        self.live[0].0
    }

    fn policy(&mut self) -> Policy {
        [certified(), certified(), Policy::Dense, Policy::Packed][self.r.below(4)]
    }

    fn random_step(&mut self) {
        let mut parts = Vec::new();
        for at in 0..self.live.len() {
            let away = self.cache.is_swapped_out(self.live[at].0).expect("a sequence");
            if self.r.chance(if away { 0.1 } else { 0.7 }) {
                parts.push((at, if self.r.chance(0.7) { 1 } else { 1 + self.r.below(2 * BLOCK) }));
            }
        }
        if !parts.is_empty() {
            let policy = self.policy();
            self.step(&parts, policy);
        }
    }

    fn operate(&mut self) {
        let kind = self.r.below(20);
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
            2 | 3 => self.cut(at),
            4 => {
                self.cache.release(id).expect("a release");
                self.live.swap_remove(at);
            }
            5 | 6 => {
                let out = self.cache.is_swapped_out(id).expect("a sequence");
                let swapped = if out { self.cache.swap_in(id) } else { self.cache.swap_out(id) };
                self.seen[2] += usize::from(self.allow(swapped).is_some());
            }
            7 => {
                let published = self.cache.publish(id, &SCOPE, tokens[..].into());
                self.allow(published);
                let created = self.cache.create_from(&SCOPE, tokens[..].into());
                if let Some((new, found)) = self.allow(created) {
                    self.live.push((new, tokens[..found].to_vec()));
                    self.seen[3] += usize::from(found > 0);
                }
            }
            8 => {
                let mut file = Vec::new();
                let saved = self.cache.save(id, &FILE, &mut file);
                if self.allow(saved).is_none() {
                    return;
                }
                let restored = self.cache.restore(&FILE, &mut &file[..]);
                if let Some(new) = self.allow(restored) {
                    self.live.push((new, tokens));
                    self.seen[4] += 1;
                }
            }
            9 => self.travel(&tokens),
            10 => {
                let ahead = self.cache.prefetch(id);
                self.seen[5] += usize::from(self.allow(ahead).is_some_and(|ahead| ahead.fetched > 0));
                self.random_step();
            }
            _ => self.random_step(),
        }
    }

    fn cut(&mut self, at: usize) {
        let len = self.live[at].1.len();
        let to = if self.r.chance(0.3) { self.r.below(len + 1) } else { len.saturating_sub(self.r.below(3 * BLOCK)) };
        match self.cache.truncate(self.live[at].0, to) {
            Err(Error::Shortened { len, cause }) => {
                assert!(is_typed(&cause) && len <= to && len.is_multiple_of(BLOCK), "{cause}");
                self.live[at].1.truncate(len);
                self.errors.push(*cause);
            }
            cut => {
                if self.allow(cut).is_some() {
                    self.live[at].1.truncate(to);
                    self.seen[1] += 1;
                }
            }
        }
    }

    /// Cached units go out, are forgotten, and come back.
    fn travel(&mut self, tokens: &[u32]) {
        let puts = self.cache.export_prefix(&SCOPE, tokens.into(), 0);
        let Some(puts) = self.allow(puts).filter(|puts| !puts.is_empty()) else { return };
        let shelf = crate::shelf::Shelf::new();
        shelf.put(puts);
        let evicted = self.cache.evict_prefixes(usize::MAX);
        self.allow(evicted);
        let gets = shelf.get(self.cache.missing_prefix(&SCOPE, tokens.into()).expect("names"));
        let imported = self.cache.import_prefix(&SCOPE, tokens.into(), &gets);
        self.seen[5] += usize::from(self.allow(imported).is_some_and(|n| n > 0));
    }

    /// Rows that are not the model's; those that the store damaged may be refused.
    fn wrong_rows(&mut self, may_be_corrupt: bool) -> usize {
        let mut wrong = 0;
        for (id, tokens) in self.live.clone() {
            assert_eq!(self.cache.len(id).expect("a sequence"), tokens.len());
            for (layer, side) in (0..LAYERS).flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)]) {
                wrong += match self.cache.originals(id, layer, 1, side) {
                    Ok(rows) => usize::from(rows != expected(&tokens, (layer, 1, side))),
                    Err(error) => usize::from(!(may_be_corrupt && is_corrupt(&error))),
                };
            }
        }
        wrong
    }

    /// Whether the books hold: the map, host memory within what was planned.
    fn check(&self) {
        assert_eq!(self.cache.check_spilled(), None);
        let snapshot = self.cache.snapshot();
        let host = snapshot.class(Class::Host);
        assert!(host.used <= host.reserved && self.cache.memory().host <= host.used, "{host:?}");
        let disk = snapshot.class(Class::Disk);
        assert!(self.backend.inner.bytes() as usize <= disk.reserved, "{disk:?}");
    }

    /// Releases everything: pages, originals, records that are left.
    fn end(&mut self) -> [usize; 3] {
        self.backend.arm(&[]);
        for (id, _) in core::mem::take(&mut self.live) {
            self.cache.release(id).expect("a release");
        }
        self.cache.evict_prefixes(usize::MAX).expect("evictions");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            self.cache.tend_spilled();
            let spill = self.cache.snapshot().spill.expect("originals spill");
            let originals = spill.resident + spill.stored + spill.spilled;
            let left = [self.cache.live_pages(), originals, spill.records.doomed + spill.records.putting];
            if left == [0; 3] || Instant::now() > until {
                assert_eq!(self.backend.inner.bytes(), 0, "bytes in the store");
                let residue = self.cache.residue().expect("a look at all memory");
                assert!(residue == 0 || !self.erase, "{residue} bytes in memory that nobody holds");
                return left;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What launches saw, as one line of faults.
fn strange() -> u64 {
    of(&kernels::STRANGE) + of(&kernels::LACKING)
}

#[test]
fn lives_are_their_model_and_launches_find_their_originals() {
    const WORLDS: u64 = if cfg!(debug_assertions) { 36 } else { 90 };
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (mut seen, mut heads, mut refused, mut spilled, mut fetched) = ([0; 8], 0, 0, 0, 0);
    kernels::looks(true);
    for seed in 0..WORLDS {
        fake.defer(seed % 2 == 1);
        let gpu = Gpu::open(0).expect("the fake");
        let mut w = World::new(&gpu, compiler, FORMATS[seed as usize % 3], seed, &[]);
        for _ in 0..110 {
            w.operate();
            w.check();
        }
        assert_eq!(w.wrong_rows(false), 0, "seed {seed}: originals");
        w.check();
        let snapshot = w.cache.snapshot();
        let (spills, fetches) = (snapshot.spills.expect("they spill"), snapshot.fetches.expect("and return"));
        assert_eq!((spills.failed, fetches.failed), (0, 0));
        (spilled, fetched) = (spilled + spills.done.count(), fetched + fetches.done.sum);
        assert_eq!(w.end(), [0; 3], "seed {seed}: pages, originals, records");
        // What the host copies to the store it reads behind what wrote it.
        assert_eq!(gpu.order_report().map_or(0, |report| report.unordered), 0, "seed {seed}");
        seen.iter_mut().zip(w.seen).for_each(|(sum, n)| *sum += n);
        (heads, refused) = (heads + w.heads, refused + w.refused);
    }
    fake.defer(false);
    let (looked, absent, wrong) = (of(&kernels::LOOKED), of(&kernels::ABSENT), strange());
    println!(
        "GATE spill-gpu-life executed={looked} failed={wrong} controls=0/0 seed=0x0 {heads} heads, {absent} out of reach, {spilled} slots spilled, {fetched} bytes fetched, {refused} refused; forks, cuts, swaps, continued, files, units, tokens, chunks: {seen:?}"
    );
    // The control: a device that is not told where originals are reads others', or lacks some.
    kernels::looks(true);
    kernels::plant(Plant::OldSides);
    let gpu = Gpu::open(0).expect("the fake");
    let mut w = World::new(&gpu, compiler, FORMATS[0], 1, &[]);
    for _ in 0..60 {
        w.operate();
    }
    let caught = strange();
    kernels::plant(Plant::Nothing);
    kernels::looks(false);
    println!("GATE spill-gpu-sides executed=60 failed=0 controls={}/1 seed=0x1", u8::from(caught > 0));
    assert!(wrong == 0 && caught > 0 && looked > 5000 && absent > 100 && spilled > 1000 && fetched > 0);
    assert!(seen.iter().all(|n| *n > 10) && refused > 0, "{refused} {seen:?}");
}

/// A life in which every call of the store is made to fail, in turn and in pairs.
fn script(w: &mut World) {
    for _ in 0..2 {
        let id = w.cache.create().expect("a sequence");
        w.live.push((id, Vec::new()));
    }
    for at in [0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0] {
        w.step(&[(at, BLOCK)], certified());
    }
    w.step(&[(0, 1), (1, 1)], certified());
    w.step(&[(0, 1), (1, 1)], Policy::Dense);
    let forked = w.cache.fork(w.live[0].0);
    if let Some(fork) = w.allow(forked) {
        w.live.push((fork, w.live[0].1.clone()));
    }
    let last = w.live.len() - 1;
    w.cut(last);
    w.step(&[(last, 20)], certified());
    w.step(&[(0, 1), (last, 1)], certified());
    w.cut(0);
    w.step(&[(last, 1), (1, 1)], Policy::Dense);
}

/// Faults after which a record may lie in the store that is not what was put.
fn damages(fault: Fault) -> bool {
    matches!(fault, Fault::Flips | Fault::Cuts | Fault::Swaps | Fault::Stale)
}

#[test]
fn a_cache_outlives_the_failure_of_any_call_of_the_store() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::looks(true);
    let gpu = Gpu::open(0).expect("the fake");
    let mut clean = World::new(&gpu, compiler, FORMATS[0], 0, &[]);
    script(&mut clean);
    assert!(clean.errors.is_empty());
    let calls = clean.backend.calls();
    // The control: another row is seen.
    let at = clean.live[0].1.len() - 1;
    clean.live[0].1[at] += 1;
    let caught = u8::from(clean.wrong_rows(false) > 0);
    drop(clean);
    let (mut executed, mut typed, mut corrupt) = (0, 0, 0);
    let mut one = |faults: &[(u64, Fault)], format| {
        let mut w = World::new(&gpu, compiler, format, 0, faults);
        script(&mut w);
        executed += u64::from(w.backend.fired() > 0);
        typed += u64::from(!w.errors.is_empty());
        corrupt += w.errors.iter().filter(|error| is_corrupt(error)).count();
        let damage = faults.iter().any(|(_, fault)| damages(*fault));
        w.backend.arm(&[]);
        // A store that refused is asked again after a while.
        std::thread::sleep(Duration::from_millis(if w.errors.is_empty() { 0 } else { 110 }));
        assert_eq!(w.wrong_rows(damage), 0, "{faults:?}: originals");
        w.check();
        let before = w.errors.len();
        for at in 0..w.live.len() {
            w.step(&[(at, 1)], if damage { Policy::Packed } else { certified() });
        }
        assert_eq!(w.errors.len(), before, "{faults:?}: the cache is not usable: {:?}", w.errors.last());
        assert_eq!(w.end(), [0; 3], "{faults:?}: pages, originals, records");
    };
    let every = if cfg!(debug_assertions) { 13 } else { 5 };
    for (number, fault) in FAULTS.into_iter().enumerate() {
        for call in (1 + number as u64 % every..=calls).step_by(every as usize) {
            one(&[(call, fault)], FORMATS[call as usize % 3]);
        }
    }
    let mut r = Rng::new(8);
    for _ in 0..20 {
        let mut any = || (1 + r.below(calls as usize) as u64, FAULTS[r.below(FAULTS.len())]);
        one(&[any(), any()], FORMATS[0]);
    }
    let wrong = strange();
    kernels::looks(false);
    println!(
        "GATE spill-gpu-faults executed={executed} failed={wrong} controls={caught}/1 seed=0x8 of {calls} calls, {typed} runs with errors, {corrupt} of damage"
    );
    assert!(wrong == 0 && caught == 1 && executed > 40 && typed > 10 && corrupt > 0);
}

/// Calls of the driver fail in a life that spills. What the host asks the driver only to know whether something has arrived it asks again.
#[test]
fn a_cache_that_spills_outlives_the_failure_of_any_call_of_the_driver() {
    let (fake, compiler, _turn) = alone();
    kernels::looks(true);
    let mut all = Tally::default();
    let how = |format, deferred, manner| How { format, deferred, manner, spills: true, apart: false };
    let [planned, refined, _] = FORMATS;
    all.add(sweep(fake, compiler, how(planned, false, Manner::Anew), 211, false));
    all.add(sweep(fake, compiler, how(planned, true, Manner::Again), 223, false));
    all.add(sweep(fake, compiler, how(refined, true, Manner::Anew), 227, false));
    all.add(sweep(fake, compiler, how(refined, false, Manner::Again), 229, true));
    // A question whose failure is no answer is put again; nobody has to be told. Where the store's answers come sooner, a life takes a few calls less.
    let asked = ["cuEventQuery", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
    let before = all.wrong.len();
    all.wrong.retain(|wrong| !wrong.ends_with("): the call was never made"));
    assert!(before - all.wrong.len() < 40, "{} of {} calls were never made", before - all.wrong.len(), all.executed);
    all.wrong.retain(|wrong| {
        !(wrong.ends_with(": the failure was not reported") && asked.iter().any(|call| wrong.starts_with(call)))
    });
    all.print_wrong();
    all.print_reached();
    let wrong = all.wrong.len() as u64 + strange();
    kernels::looks(false);
    println!("GATE spill-gpu-driver executed={} failed={wrong} controls=0/0 seed=0x0", all.executed);
    assert!(wrong == 0 && all.executed > 50);
}

fn small(compiler: &Compiler, gpu: &Gpu) -> World {
    World::new(gpu, compiler, FORMATS[0], 0, &[])
}

#[test]
fn a_block_that_cannot_be_read_is_named_and_nothing_is_written() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let mut w = small(compiler, &gpu);
    let id = w.filled();
    assert!(w.cache.snapshot().spill.expect("they spill").spilled > 0);
    w.backend.down(Some(Fault::SaysNo));
    let fetch = |result: Result<(), Error>| match result {
        Err(Error::Fetch(told)) => told,
        other => panic!("{other:?}"),
    };
    let told = fetch(w.cache.originals(id, 0, 0, Side::Key).map(drop));
    assert!(
        told.sequence == Some(id)
            && told.block < 8
            && matches!(told.cause, FetchCause::Store(StoreError::NotFound { .. }))
    );
    let told = fetch(w.cache.truncate(id, told.block * BLOCK + 1));
    assert_eq!((told.sequence, w.cache.len(id).ok()), (Some(id), Some(8 * BLOCK)));
    // The dense step says so, writes nothing, and leaves the sequence as it was; one on codes does not need to know.
    w.step(&[(0, 1)], Policy::Dense);
    assert!(matches!(w.errors.pop(), Some(Error::Fetch(_))) && w.cache.len(id).is_ok_and(|n| n == 8 * BLOCK));
    w.step(&[(0, 1)], Policy::Packed);
    assert!(w.errors.is_empty() && w.cache.snapshot().fetches.expect("they spill").failed >= 3);
    w.backend.down(None);
    w.step(&[(0, 1)], Policy::Dense);
    assert!(w.errors.is_empty() && w.live[0].1.len() == 8 * BLOCK + 2 && w.wrong_rows(false) == 0);
    assert_eq!(w.end(), [0; 3]);
}

#[test]
fn a_recorded_step_waits_for_no_store() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let room = |bytes| DeviceBuffer::new(&gpu, bytes).expect("room");
    let buffers = [room(2 * KV), room(2 * KV), room(4 * Q), room(4 * Q)];
    let of = |i: usize, element, n| Tensor::of(&buffers[i], 0, element, n).expect("a tensor");
    let io = LayerIo {
        keys: of(0, Element::F16, KV),
        values: of(1, Element::F16, KV),
        query: of(2, Element::F32, Q),
        out: of(3, Element::F32, Q),
    };
    let mut w = small(compiler, &gpu);
    let id = w.cache.create().expect("a sequence");
    w.live.push((id, Vec::new()));
    let graphs =
        [certified(), Policy::Packed].map(|policy| w.cache.record(1, &[io; LAYERS], policy).expect("a recording"));
    let chunk = [Chunk { sequence: id, tokens: 1 }];
    let run = |cache: &mut GpuCache, graph, policy| {
        let mut step = cache.begin_with(&chunk, policy)?;
        step.replay(graph)?;
        step.finish()
    };
    // From its first row through a block's end: all of it is in host memory.
    for _ in 0..BLOCK + 2 {
        run(&mut w.cache, &graphs[0], certified()).expect("nothing is away");
    }
    w.cache.truncate(id, 0).expect("a cut");
    w.cache.release(id).expect("a release");
    w.live.clear();
    let id = w.filled();
    let chunk = [Chunk { sequence: id, tokens: 1 }];
    let run = |cache: &mut GpuCache, graph, policy| {
        let mut step = cache.begin_with(&chunk, policy)?;
        step.replay(graph)?;
        step.finish()
    };
    let refused = run(&mut w.cache, &graphs[0], certified());
    assert!(matches!(refused, Err(Error::Order { why, .. }) if why.contains("recorded step")), "{refused:?}");
    assert_eq!(w.cache.len(id).expect("a sequence"), 8 * BLOCK);
    // On codes alone nobody waits; and plainly it goes on.
    run(&mut w.cache, &graphs[1], Policy::Packed).expect("codes are there");
    w.cache.truncate(id, 8 * BLOCK).expect("a cut");
    w.step(&[(0, 1)], certified());
    assert_eq!(w.wrong_rows(false), 0);
    drop(graphs);
    assert_eq!(w.end(), [0; 3]);
}

#[test]
fn less_host_memory_is_planned_and_taken() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let machine = certkv::gpu::GpuMachine::of(&gpu).expect("kernels");
    for format in FORMATS {
        let config = GpuConfig { max_tokens: 400 * BLOCK, ..with(format, Arc::new(Unruly::new())) };
        let plain = GpuConfig { spill: None, ..config.clone() };
        let (less, more) = (config.plan(machine).expect("a plan"), plain.plan(machine).expect("a plan"));
        assert!(less.host.bytes * 3 < more.host.bytes * 2 && less.device.bytes >= more.device.bytes, "{less} {more}");
        let cache =
            GpuCache::new(&gpu, compiler, GpuConfig { host_budget: less.host.bytes, ..config.clone() }).expect("room");
        assert_eq!(cache.snapshot().classes.map(|class| class.reserved), less.classes);
        let usage = gpu.usage();
        assert!(
            usage.pinned_bytes <= less.host.bytes
                && usage.device_bytes.abs_diff(less.device.bytes) * 100 < less.device.bytes
        );
        drop(cache);
        let short = GpuConfig { host_budget: less.host.bytes - 1, ..config.clone() };
        assert!(matches!(GpuCache::new(&gpu, compiler, short), Err(Error::Budget(_))));
        for change in [|spill: &mut Spill| spill.workers = 0, |spill: &mut Spill| spill.in_flight = 1] {
            let mut wrong = config.clone();
            wrong.spill.iter_mut().for_each(change);
            assert!(matches!(GpuCache::new(&gpu, compiler, wrong), Err(Error::Config { field: "spill", .. })));
        }
    }
    let windows =
        GpuConfig { windows: vec![Some(certkv::Window::new(40))], ..with(FORMATS[0], Arc::new(Unruly::new())) };
    assert!(matches!(GpuCache::new(&gpu, compiler, windows), Err(Error::Config { field: "spill", .. })));
}

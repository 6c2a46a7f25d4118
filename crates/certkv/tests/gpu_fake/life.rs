//! A cache's life, and a model of what it must hold: sequences with their rows, bit for bit.
mod away;
mod buffers;
pub(crate) mod spilling;
pub(crate) mod travel;

use crate::How;
use crate::fake_cuda::sweep::{Fault, Ran};
use crate::kernels::{BLOCK, DIM, GROUP, KV_HEADS, Plant, planted};
use buffers::{Buffers, fill, judge_device};
use certkv::gpu::{Compiler, DeviceBuffer, Gpu, GpuCache, GpuConfig, GpuStep, GpuStream};
use certkv::{
    Certificate, Certified, Chunk, Error, Eviction, Geometry, Policy, PrefixConfig, PrefixSecret, SequenceId, Side,
    Status,
};
use certkv_device::cuda::{CudaError, EventPool, Priority};
use certkv_testkit::generate::Rng;

pub(crate) const LAYERS: usize = 2;
const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
/// In an output that was not written.
const UNTOUCHED: f32 = -777.0;

/// Formats of records: with a plan and scratch, with residual planes and corrections, and the originals themselves.
pub(crate) const FORMATS: [&str; 3] = ["k8-v4g32-b16", "k8-v4g32-b16-r8.4", "f16-f16-b16"];

/// A small cache.
pub(crate) fn config(format: &str) -> GpuConfig {
    let geometry = Geometry::new(LAYERS, HEADS, KV_HEADS, DIM).expect("a geometry");
    let mut config = GpuConfig::new(geometry, 8 * BLOCK);
    config.max_context = 5 * BLOCK;
    config.max_sequences = 6;
    config.certificate_ring = 2;
    config.swap_tokens = 3 * BLOCK;
    config.chunk_tokens = 2 * BLOCK;
    config.prefixes = Some(PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 4, eviction: Eviction::Lru });
    config.with_format(format.parse().expect("a format"))
}

fn certified() -> Policy {
    Policy::Certified(Certified::default())
}

/// What a step brings, by layer.
#[derive(Clone)]
struct Rows {
    keys: Vec<Vec<u16>>,
    values: Vec<Vec<u16>>,
    queries: Vec<Vec<f32>>,
    /// Rows that are decode steps, not part of a prompt.
    decoded: Vec<usize>,
}

struct Held {
    id: SequenceId,
    /// By layer: keys, values.
    rows: Vec<[Vec<u16>; 2]>,
}

impl Held {
    fn len(&self) -> usize {
        self.rows[0][0].len() / KV
    }
}

/// How a life meets an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The call that failed is made again, in the same step.
    Again,
    /// The step is dropped and begun anew.
    Anew,
}

pub(crate) struct Life {
    cache: GpuCache,
    held: Vec<Held>,
    rng: Rng,
    manner: Manner,
    /// The first error.
    first: Option<Error>,
    /// Errors that it may yet meet.
    patience: usize,
    /// The error after those.
    last: Option<String>,
    /// Promises that were broken.
    pub(crate) wrong: Vec<String>,
}

/// The driver's error in one of the engine's.
pub(crate) fn driver_error(error: &Error) -> Option<CudaError> {
    match error {
        Error::Gpu(cuda) => Some(cuda.clone()),
        Error::Kernels(certkv::gpu::PrepareError::Load { error, .. }) => Some(error.clone()),
        Error::Shortened { cause, .. } => driver_error(cause),
        _ => None,
    }
}

/// The script is over before its end: the error was met before.
struct Over;

impl Life {
    fn new(gpu: &Gpu, compiler: &Compiler, how: (GpuConfig, Manner), patience: usize) -> Result<Self, Error> {
        let (config, manner) = how;
        let cache = GpuCache::new(gpu, compiler, config)?;
        Ok(Self {
            cache,
            held: Vec::new(),
            rng: Rng::new(7),
            manner,
            first: None,
            patience,
            last: None,
            wrong: Vec::new(),
        })
    }

    /// Notes an error, and looks whether the cache is what it was. The script goes on unless the context is lost.
    fn met(&mut self, error: Error) -> Result<(), Over> {
        for held in &self.held {
            if self.cache.len(held.id).ok() != Some(held.len()) {
                self.wrong.push(format!("another length after: {error}"));
            }
        }
        if driver_error(&error).is_none() {
            self.wrong.push(format!("not the driver's: {error}"));
        }
        let text = error.to_string();
        self.first.get_or_insert(error);
        // As many are met as there are faults: what fails once more is lost.
        if self.patience == 0 {
            self.last = Some(text);
            return Err(Over);
        }
        self.patience -= 1;
        Ok(())
    }

    /// Does it, and again if the driver refused.
    fn stubbornly<T>(&mut self, mut verb: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Over> {
        loop {
            match verb(self) {
                Ok(done) => return Ok(done),
                Err(error) => self.met(error)?,
            }
        }
    }

    fn rows(&mut self, parts: &[(usize, usize)]) -> Rows {
        let tokens: usize = parts.iter().map(|p| p.1).sum();
        let firsts = parts.iter().scan(0, |next, (_, n)| Some((core::mem::replace(next, *next + n), *n)));
        let decoded = firsts.filter(|(_, n)| *n == 1).map(|(first, _)| first).collect();
        // Any finite half will do; queries are told apart by their bits.
        let mut halves = || (0..tokens * KV).map(|_| self.rng.bits() as u16 & 0xbbff).collect::<Vec<_>>();
        let (keys, values) = (0..LAYERS).map(|_| (halves(), halves())).unzip();
        let queries = (0..LAYERS).map(|_| (0..tokens * Q).map(|_| self.rng.uniform() as f32 - 0.5).collect()).collect();
        Rows { keys, values, queries, decoded }
    }

    fn create(&mut self) -> Result<usize, Over> {
        let id = self.stubbornly(|life| life.cache.create())?;
        self.held.push(Held { id, rows: vec![Default::default(); LAYERS] });
        Ok(self.held.len() - 1)
    }

    fn fork(&mut self, at: usize) -> Result<usize, Over> {
        let id = self.stubbornly(|life| life.cache.fork(life.held[at].id))?;
        let rows = self.held[at].rows.clone();
        self.held.push(Held { id, rows });
        Ok(self.held.len() - 1)
    }

    fn truncate(&mut self, at: usize, len: usize) -> Result<(), Over> {
        let cut = |held: &mut Held, len: usize| {
            held.rows.iter_mut().flatten().for_each(|side| side.truncate(len * KV));
        };
        loop {
            match self.cache.truncate(self.held[at].id, len) {
                Ok(()) => break cut(&mut self.held[at], len),
                Err(Error::Shortened { len: left, cause }) => {
                    if left > len || !left.is_multiple_of(BLOCK) {
                        self.wrong.push(format!("cut to {left} for {len}"));
                    }
                    cut(&mut self.held[at], left);
                    self.met(*cause)?;
                    break;
                }
                Err(error) => self.met(error)?,
            }
        }
        Ok(())
    }

    /// The tokens of a finished step.
    fn commit(&mut self, parts: &[(usize, usize)], rows: &Rows) {
        let mut first = 0;
        for (at, tokens) in parts {
            let span = first * KV..(first + tokens) * KV;
            for (layer, held) in self.held[*at].rows.iter_mut().enumerate() {
                held[0].extend_from_slice(&rows.keys[layer][span.clone()]);
                held[1].extend_from_slice(&rows.values[layer][span.clone()]);
            }
            first += tokens;
        }
        if planted(Plant::OtherRow) {
            self.held[parts[0].0].rows[1][0][0] ^= 1;
        }
    }

    fn chunks(&self, parts: &[(usize, usize)]) -> Vec<Chunk> {
        parts.iter().map(|(at, tokens)| Chunk { sequence: self.held[*at].id, tokens: *tokens }).collect()
    }

    /// A step from host memory.
    fn step(&mut self, parts: &[(usize, usize)], policy: Policy) -> Result<(), Over> {
        let rows = self.rows(parts);
        self.stubbornly(|life| {
            let (chunks, manner, mut wrong) = (life.chunks(parts), life.manner, Vec::new());
            // Of calls that were made again: noted later, as the step holds the cache.
            let mut errors = Vec::new();
            let done = (|| {
                let mut step = life.cache.begin_with(&chunks, policy)?;
                for layer in 0..LAYERS {
                    in_step(&mut step, (layer, policy, manner), &rows, &mut errors, &mut wrong)?;
                }
                step.finish()
            })();
            life.wrong.append(&mut wrong);
            for error in errors {
                life.first.get_or_insert(error);
                life.patience = life.patience.saturating_sub(1);
            }
            done
        })?;
        self.commit(parts, &rows);
        Ok(())
    }

    /// Every row that was committed, bit for bit.
    fn verify(&mut self) -> Result<(), Over> {
        for at in 0..self.held.len() {
            for layer in 0..LAYERS {
                for head in 0..KV_HEADS {
                    for (i, side) in [Side::Key, Side::Value].into_iter().enumerate() {
                        let id = self.held[at].id;
                        let got = self.stubbornly(|life| life.cache.originals(id, layer, head, side))?;
                        let rows = self.held[at].rows[layer][i].chunks_exact(KV);
                        let want: Vec<u16> = rows.flat_map(|row| &row[head * DIM..(head + 1) * DIM]).copied().collect();
                        if got != want {
                            self.wrong.push(format!("sequence {at}, layer {layer}: other originals"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn script(&mut self, gpu: &Gpu) -> Result<(), Over> {
        let a = self.create()?;
        self.step(&[(a, BLOCK + 3)], certified())?;
        self.step(&[(a, 1)], certified())?;
        let b = self.fork(a)?;
        self.step(&[(a, 1), (b, 1)], Policy::Dense)?;
        let c = self.create()?;
        self.step(&[(b, 1), (c, 5), (a, 3)], certified())?;
        self.step(&[(c, 1), (b, 1)], Policy::Packed)?;
        self.verify()?;
        let e = self.continued(a)?;
        self.step(&[(e, 1), (a, 1)], certified())?;
        // Inside a block that is cached: it is copied, and stays what it is.
        self.truncate(e, BLOCK / 2)?;
        self.step(&[(e, 1)], certified())?;
        self.verify()?;
        self.released()?;
        let f = self.continued(a)?;
        // Its pages are cached, and stay while it is away.
        let len = self.held[f].len();
        self.stubbornly(|life| life.cache.swap_out(life.held[f].id))?;
        self.stubbornly(|life| life.cache.swap_in(life.held[f].id))?;
        if self.held[f].len() != len {
            self.wrong.push("another length after a swap".to_owned());
        }
        self.step(&[(f, 2)], certified())?;
        self.verify()?;
        self.released()?;
        self.truncate(a, BLOCK + 1)?;
        self.truncate(a, BLOCK / 2)?;
        while self.held[a].len() < BLOCK + 1 {
            self.step(&[(a, 1)], certified())?;
        }
        let own = self.create()?;
        // A draft beside a longer chunk goes by way of the host.
        self.step(&[(own, 2 * BLOCK + 3), (a, 2)], certified())?;
        self.truncate(a, BLOCK + 1)?;
        self.saved(own)?;
        self.swapped(own, 2 * BLOCK + 1)?;
        self.step(&[(own, 1)], certified())?;
        self.swapped(own, BLOCK + 5)?;
        self.step(&[(own, 1)], certified())?;
        self.verify()?;
        self.released()?;
        self.replays(gpu, &[a, b], 1)?;
        self.captures(gpu, &[b, c], 1)?;
        self.drafts(gpu, &[(b, 3), (c, 1)])?;
        // Two blocks fill in these.
        self.replays(gpu, &[a, c], 4)?;
        self.captures(gpu, &[c, a], 3)?;
        self.verify()?;
        self.looks()?;
        while !self.held.is_empty() {
            self.released()?;
        }
        if self.cache.evict_prefixes(9).ok() != Some(1) {
            self.wrong.push("the cached block is not there at the end".to_owned());
        }
        if self.cache.live_pages() != 0 {
            self.wrong.push(format!("{} pages are live at the end", self.cache.live_pages()));
        }
        // The freed pages serve again.
        let d = self.create()?;
        self.step(&[(d, 2)], certified())?;
        self.step(&[(d, 1)], certified())?;
        self.verify()
    }

    /// Ends the sequence that was begun last.
    fn released(&mut self) -> Result<(), Over> {
        let Some(held) = self.held.pop() else { return Ok(()) };
        if let Err(error) = self.cache.release(held.id) {
            self.wrong.push(format!("a release failed: {error}"));
        }
        if self.cache.len(held.id).is_ok() {
            self.wrong.push("an id is valid after its release".to_owned());
        }
        Ok(())
    }

    /// What only looks.
    fn looks(&mut self) -> Result<(), Over> {
        let id = self.held[0].id;
        self.stubbornly(|life| life.cache.record_bytes(id, 1, 0, 1))?;
        self.stubbornly(|life| life.cache.selection(1))?;
        self.stubbornly(|life| life.cache.synchronize())
    }

    /// What is left of a cache that the driver serves no more: every call is an error of the driver, and what takes no driver works.
    fn afterlife(&mut self, gpu: &Gpu) {
        let mut wrong = Vec::new();
        let mut refused = |verb: &str, result: Result<(), Error>| match result {
            // One that was swapped out when the context was lost is away still.
            Err(Error::SwappedOut) if verb != "originals" => {}
            Err(error) if driver_error(&error).is_some() => {}
            other => wrong.push(format!("{verb} on a lost context: {other:?}")),
        };
        refused("create", self.cache.create().map(drop));
        refused("synchronize", self.cache.synchronize());
        refused("selection", self.cache.selection(0).map(drop));
        refused("a buffer", DeviceBuffer::new(gpu, 64).map(drop).map_err(Error::from));
        while let Some(Held { id, .. }) = self.held.pop() {
            refused("fork", self.cache.fork(id).map(drop));
            refused("originals", self.cache.originals(id, 0, 0, Side::Key).map(drop));
            refused("begin", self.cache.begin(&[Chunk { sequence: id, tokens: 1 }]).map(drop));
            if let Err(error) = self.cache.release(id) {
                self.wrong.push(format!("release on a lost context: {error}"));
            }
        }
        if self.cache.evict_prefixes(9).is_err() || self.cache.live_pages() != 0 {
            self.wrong.push("pages are live after every release".to_owned());
        }
        self.wrong.append(&mut wrong);
    }

    /// Steps by a recording of the cache's own.
    fn replays(&mut self, gpu: &Gpu, of: &[usize], tokens: usize) -> Result<(), Over> {
        let buffers = self.stubbornly(|_| Buffers::all(gpu, of.len() * tokens))?;
        let io: Vec<_> = buffers.iter().map(Buffers::io).collect::<Result<_, _>>().map_err(|_| Over)?;
        let graph = self.stubbornly(|life| life.cache.record_drafts(of.len(), tokens, &io, certified()))?;
        let parts: Vec<_> = of.iter().map(|at| (*at, tokens)).collect();
        self.runs(&parts, &buffers, || Ok(()), |step| step.replay(&graph))
    }

    /// Two steps whose rows lie in `buffers`, and what `run` makes of them; `before` comes before they are written.
    fn runs(
        &mut self,
        parts: &[(usize, usize)],
        buffers: &[Buffers],
        before: impl Fn() -> Result<(), Error>,
        run: impl Fn(&mut GpuStep<'_>) -> Result<(), Error>,
    ) -> Result<(), Over> {
        for _ in 0..2 {
            let rows = self.rows(parts);
            self.stubbornly(|life| {
                before()?;
                fill(buffers, life.cache.stream(), &rows)?;
                let chunks = life.chunks(parts);
                let mut step = life.cache.begin_with(&chunks, certified())?;
                run(&mut step)?;
                let mut wrong = Vec::new();
                let judged = judge_device(&mut step, buffers, &rows, &mut wrong);
                let done = judged.and_then(|()| step.finish());
                life.wrong.append(&mut wrong);
                done
            })?;
            self.commit(parts, &rows);
        }
        Ok(())
    }

    /// Steps of drafts that the host does not feed.
    fn drafts(&mut self, gpu: &Gpu, parts: &[(usize, usize)]) -> Result<(), Over> {
        let buffers = self.stubbornly(|_| Buffers::all(gpu, parts.iter().map(|(_, tokens)| tokens).sum()))?;
        let io: Vec<_> = buffers.iter().map(Buffers::io).collect::<Result<_, _>>().map_err(|_| Over)?;
        let run = |step: &mut GpuStep<'_>| {
            io.iter().enumerate().try_for_each(|(layer, io)| {
                step.append_device(layer, io.keys, io.values)?;
                step.attend_device(layer, io.query, io.out)
            })
        };
        self.runs(parts, &buffers, || Ok(()), run)
    }

    /// Steps in a graph of the caller's.
    fn captures(&mut self, gpu: &Gpu, of: &[usize], tokens: usize) -> Result<(), Over> {
        let buffers = self.stubbornly(|_| Buffers::all(gpu, of.len() * tokens))?;
        let tensors: Vec<_> = buffers.iter().map(Buffers::io).collect::<Result<_, _>>().map_err(|_| Over)?;
        let stream = self.stubbornly(|_| Ok(GpuStream::new(gpu, Priority::Normal)?))?;
        let events = self.stubbornly(|_| Ok(EventPool::new(gpu, 2)?))?;
        let parts: Vec<_> = of.iter().map(|at| (*at, tokens)).collect();
        let (exec, capture) = self.stubbornly(|life| {
            let chunks = life.chunks(&parts);
            let mut step = life.cache.begin_with(&chunks, certified())?;
            let recording = stream.begin_capture()?;
            let mut record = || {
                step.cache().stream().wait(&stream.record(&events)?)?;
                for (layer, io) in tensors.iter().enumerate() {
                    step.append_device(layer, io.keys, io.values)?;
                    step.attend_device(layer, io.query, io.out)?;
                    step.plan(layer)?;
                }
                let capture = step.captured()?;
                stream.wait(&step.cache().stream().record(&events)?)?;
                Ok::<_, Error>(capture)
            };
            let capture = record();
            let graph = recording.end();
            let capture = capture?;
            Ok((graph?.instantiate()?, capture))
        })?;
        let run = |step: &mut GpuStep<'_>| {
            stream.wait(&step.cache().stream().record(&events)?)?;
            // SAFETY: what the graph names is kept by `capture` and `buffers`, which outlive the runs: the cache's stream is made to
            // wait for them, and is waited for when the cache is dropped.
            unsafe { exec.launch(&stream) }?;
            step.cache().stream().wait(&stream.record(&events)?)?;
            step.replayed(&capture)
        };
        // A run that the cache was not told of may still use the buffers.
        let done = self.runs(&parts, &buffers, || Ok(stream.synchronize()?), run);
        // Before what keeps the memory that it names.
        drop(exec);
        done
    }
}

/// An output whose certificate claims anything is this step's; under a policy that certifies all of them claim.
fn judge(out: &[f32], certificates: &[Certificate], queries: &[f32], claims: bool, wrong: &mut Vec<String>) {
    for (i, c) in certificates.iter().enumerate() {
        let (got, want) = (&out[i * DIM..(i + 1) * DIM], &queries[i * DIM..(i + 1) * DIM]);
        let claimed = matches!(c.status, Status::Certified | Status::Exact);
        if claims != claimed {
            wrong.push(format!("head {i} is {:?}", c.status));
        }
        if claimed && got != want {
            wrong.push(format!("head {i} is {:?}, and its output is not this step's", c.status));
        }
    }
}

/// One layer of a step: append, attend and plan twice, read. A prompt's rows are judged where the GPU attended them.
fn in_step(
    step: &mut GpuStep<'_>,
    (layer, policy, manner): (usize, Policy, Manner),
    rows: &Rows,
    errors: &mut Vec<Error>,
    wrong: &mut Vec<String>,
) -> Result<(), Error> {
    let met = |error: Error, errors: &mut Vec<Error>| -> Result<(), Error> {
        if manner == Manner::Anew || !errors.is_empty() {
            return Err(error);
        }
        errors.push(error);
        Ok(())
    };
    if let Err(error) = step.append_bits(layer, &rows.keys[layer], &rows.values[layer]) {
        met(error, errors)?;
        step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
    }
    let tokens = step.tokens();
    let mut certificates = vec![Certificate::default(); tokens * HEADS];
    // First with other queries, so that what is left of them can be told.
    let others: Vec<f32> = rows.queries[layer].iter().map(|q| 1.0 + q).collect();
    for queries in [&others, &rows.queries[layer]] {
        if let Err(error) = step.attend(layer, queries) {
            if step.certificates(layer, &mut certificates).is_ok() {
                wrong.push(format!("certificates of an attention that failed: {error}"));
            }
            met(error, errors)?;
            step.attend(layer, queries)?;
        }
        // The second attention waits for what the first left to be planned.
        if let Err(error) = step.plan(layer) {
            met(error, errors)?;
            step.plan(layer)?;
        }
    }
    let mut out = vec![UNTOUCHED; tokens * Q];
    if let Err(error) = step.outputs(layer, &mut out, &mut certificates) {
        if out.iter().any(|x| *x != UNTOUCHED) || certificates.iter().any(|c| c.status != Status::Uncertified) {
            wrong.push(format!("outputs or certificates were written by a call that failed: {error}"));
        }
        met(error, errors)?;
        step.outputs(layer, &mut out, &mut certificates)?;
    }
    for row in rows.decoded.iter().copied() {
        let (q, c) = (row * Q..(row + 1) * Q, &certificates[row * HEADS..(row + 1) * HEADS]);
        judge(&out[q.clone()], c, &rows.queries[layer][q], policy != Policy::Packed, wrong);
    }
    for row in (0..tokens).filter(|row| !rows.decoded.contains(row)) {
        let (q, c) = (row * Q..(row + 1) * Q, &certificates[row * HEADS..(row + 1) * HEADS]);
        if c.iter().all(|c| c.bound().is_finite()) {
            judge(&out[q.clone()], c, &rows.queries[layer][q], true, wrong);
        }
    }
    Ok(())
}

/// A life from the driver's start to its end.
pub(crate) fn run(compiler: &Compiler, how: How, faults: &[Fault], wrong: &mut Vec<String>) -> Ran {
    let failed = |error: Error| (error.to_string(), driver_error(&error));
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(error) => return Ran { result: Err(failed(error.into())), unreleased: 0 },
    };
    let result = match Life::new(&gpu, compiler, (how.config(), how.manner), faults.len()) {
        Err(error) => Err(failed(error)),
        Ok(mut life) => {
            let ended = if how.spills { life.spilling() } else { life.script(&gpu) };
            if planted(Plant::Leak) {
                core::mem::forget(DeviceBuffer::new(&gpu, 64));
            }
            match life.last.take() {
                Some(_) if faults.iter().any(|fault| fault.lost) => life.afterlife(&gpu),
                Some(again) => life.wrong.push(format!("failed again: {again}")),
                None => {}
            }
            wrong.append(&mut life.wrong);
            match life.first.take() {
                _ if planted(Plant::Swallowed) => Ok(()),
                None if ended.is_err() => Err(("the script ended early".to_owned(), None)),
                None => Ok(()),
                Some(error) => Err(failed(error)),
            }
        }
    };
    Ran { result, unreleased: gpu.usage().unreleased }
}

//! B15: steps recorded once into the caller's graph run a thousand times, while the pages behind the tables change; beside a twin in another
//! cache that never records, never swaps and shares nothing.
use super::bench::{
    Answer, Bench, Failure, Rows, Tally, bits, decode, different, heads, originals, policies, prefill, prompt, rows,
};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuCache, GpuCapture, GpuConfig, GpuStream, LayerIo, Tensor};
use certkv::{Certificate, Chunk, Eviction, Geometry, Policy, PrefixConfig, PrefixScope, PrefixSecret, SequenceId};
use certkv_device::cuda::{EventPool, GraphExec, Priority};
use certkv_testkit::generate::Rng;

/// Blocks of a sequence.
const LONGEST: usize = 12;
const MEMBERS: usize = 3;
/// Sequences that come and go beside them.
const FILLERS: usize = 6;

/// Fixed device memory of one layer.
struct Buffers {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    query: DeviceBuffer,
    out: DeviceBuffer,
}

impl Buffers {
    fn new(gpu: &Gpu, g: &Geometry) -> Result<Self, Failure> {
        let (kv, q) = (MEMBERS * g.kv_width(), MEMBERS * g.q_width());
        let room = |bytes| DeviceBuffer::new(gpu, bytes);
        Ok(Self { keys: room(2 * kv)?, values: room(2 * kv)?, query: room(4 * q)?, out: room(4 * q)? })
    }

    fn io(&self, g: &Geometry) -> Result<LayerIo<'_>, Failure> {
        let (kv, q) = (MEMBERS * g.kv_width(), MEMBERS * g.q_width());
        Ok(LayerIo {
            keys: Tensor::of(&self.keys, 0, Element::F16, kv)?,
            values: Tensor::of(&self.values, 0, Element::F16, kv)?,
            query: Tensor::of(&self.query, 0, Element::F32, q)?,
            out: Tensor::of(&self.out, 0, Element::F32, q)?,
        })
    }

    fn fill(&self, stream: &GpuStream, rows: &Rows, layer: usize) -> Result<(), Failure> {
        self.keys.write(stream, 0, &rows.keys[layer])?;
        self.values.write(stream, 0, &rows.values[layer])?;
        self.query.write(stream, 0, &rows.queries[layer])?;
        Ok(self.out.fill(stream, 0, self.out.len(), 0xff)?)
    }
}

/// A graph of the caller's with a step in it.
struct Recorded {
    /// Before what keeps the memory that it names.
    exec: GraphExec,
    capture: GpuCapture,
    policy: Policy,
}

fn record(
    cache: &mut GpuCache,
    chunks: &[Chunk],
    tensors: &[LayerIo<'_>],
    (stream, events): (&GpuStream, &EventPool),
    policy: Policy,
) -> Result<Recorded, Failure> {
    let mut step = cache.begin_with(chunks, policy)?;
    let recording = stream.begin_capture()?;
    step.cache().stream().wait(&stream.record(events)?)?;
    for (layer, io) in tensors.iter().enumerate() {
        step.append_device(layer, io.keys, io.values)?;
        step.attend_device(layer, io.query, io.out)?;
    }
    let capture = step.captured()?;
    stream.wait(&step.cache().stream().record(events)?)?;
    Ok(Recorded { exec: recording.end()?.instantiate()?, capture, policy })
}

/// A step of the members by a recording.
fn replay(
    cache: &mut GpuCache,
    chunks: &[Chunk],
    buffers: &[Buffers],
    (stream, events): (&GpuStream, &EventPool),
    recorded: &Recorded,
    rows: &Rows,
) -> Result<Vec<Answer>, Failure> {
    let g = *cache.geometry();
    for (layer, b) in buffers.iter().enumerate() {
        b.fill(cache.stream(), rows, layer)?;
    }
    let mut step = cache.begin_with(chunks, recorded.policy)?;
    stream.wait(&step.cache().stream().record(events)?)?;
    // SAFETY: what the graph names is kept by the capture and the buffers, which outlive the runs: the cache's stream is made to wait for them,
    // and is waited for when the cache is dropped.
    unsafe { recorded.exec.launch(stream) }?;
    step.cache().stream().wait(&stream.record(events)?)?;
    step.replayed(&recorded.capture)?;
    let mut answers = Vec::new();
    for (layer, b) in buffers.iter().enumerate() {
        let mut certificates = vec![Certificate::default(); MEMBERS * g.q_heads];
        if let Err(error) = step.certificates(layer, &mut certificates) {
            answers.push(Answer::Refused(error.to_string()));
            continue;
        }
        let mut out = vec![0.0f32; MEMBERS * g.q_width()];
        b.out.read(step.cache().stream(), 0, &mut out)?;
        answers.push(Answer::Told { out: bits(&out), certificates, masses: Vec::new() });
    }
    step.finish()?;
    Ok(answers)
}

/// What happened between replays.
#[derive(Debug, Default)]
struct Happened {
    created: usize,
    from_prefix: usize,
    swapped: usize,
    cut: usize,
    published: usize,
    evicted: usize,
    /// Tables of members that name other pages than before.
    moved: usize,
}

/// Two caches with the same members.
struct Pair<'a> {
    bench: &'a Bench<'a>,
    main: GpuCache,
    twin: GpuCache,
    members: Vec<[SequenceId; 2]>,
    fillers: Vec<SequenceId>,
    prompts: Vec<Vec<u32>>,
    r: Rng,
    happened: Happened,
}

impl Pair<'_> {
    fn chunks(&self) -> Vec<Chunk> {
        self.members.iter().map(|ids| Chunk { sequence: ids[0], tokens: 1 }).collect()
    }

    /// A member in both caches, with a prompt.
    fn member(&mut self, tokens: usize) -> Result<[SequenceId; 2], Failure> {
        let rows = prompt(&self.bench.geometry, tokens, &mut self.r);
        let ids = [self.main.create()?, self.twin.create()?];
        prefill(&mut self.main, ids[0], tokens, &rows)?;
        prefill(&mut self.twin, ids[1], tokens, &rows)?;
        Ok(ids)
    }

    fn cut(&mut self, at: usize, len: usize) -> Result<(), Failure> {
        let [a, b] = self.members[at];
        self.main.truncate(a, len)?;
        self.twin.truncate(b, len)?;
        self.happened.cut += 1;
        Ok(())
    }

    /// A sequence that takes pages which others gave up; its full blocks outlive it.
    fn filler(&mut self) -> Result<(), Failure> {
        if self.fillers.len() >= FILLERS - 1 {
            self.main.release(self.fillers.remove(0))?;
        }
        let scope = PrefixScope::new(b"one", b"model");
        let tokens = 1 + self.r.below(3 * self.bench.block);
        let rows = prompt(&self.bench.geometry, tokens, &mut self.r);
        let (id, had) = match self.prompts.pop().filter(|_| self.r.chance(0.5)) {
            Some(known) => self.main.create_from(&scope, known[..].into())?,
            None => (self.main.create()?, 0),
        };
        self.fillers.push(id);
        self.happened.from_prefix += usize::from(had > 0);
        self.happened.created += 1;
        prefill(&mut self.main, id, tokens, &rows)?;
        if had == 0 {
            let known: Vec<u32> = (0..tokens).map(|_| self.r.below(1 << 30) as u32).collect();
            self.main.publish(id, &scope, known[..].into())?;
            self.prompts.push(known);
            self.happened.published += 1;
        }
        Ok(())
    }

    /// Between two replays.
    fn disturb(&mut self, i: usize) -> Result<(), Failure> {
        let block = self.bench.block;
        let at = i % MEMBERS;
        let before: Vec<_> = self.members.iter().map(|ids| self.main.places(ids[0])).collect::<Result<_, _>>()?;
        if i.is_multiple_of(5) {
            // Its pages are another's before it comes back.
            let id = self.members[at][0];
            self.main.swap_out(id)?;
            self.filler()?;
            self.main.swap_in(id)?;
            self.happened.swapped += 1;
        }
        if i % 7 == 3 {
            self.filler()?;
        }
        if i % 13 == 6 {
            let units = 1 + self.r.below(6);
            self.happened.evicted += self.main.evict_prefixes(units)?;
        }
        if i % 17 == 9 {
            let len = self.main.len(self.members[at][0])?;
            let len = len - self.r.below(len.min(2 * block));
            self.cut(at, len)?;
        }
        if i % 29 == 11 {
            let [a, b] = self.members[at];
            self.main.release(a)?;
            // Another one gets its row and its pages.
            self.filler()?;
            self.twin.release(b)?;
            let tokens = 1 + self.r.below(4 * block);
            self.members[at] = self.member(tokens)?;
        }
        for at in 0..MEMBERS {
            if self.main.len(self.members[at][0])? + 2 > LONGEST * block {
                self.cut(at, block + 3)?;
            }
        }
        for (ids, before) in self.members.iter().zip(before) {
            let now = self.main.places(ids[0])?;
            self.happened.moved +=
                usize::from(now.iter().zip(&before).any(|(a, b)| a.0 != b.0 || (b.1.is_some() && a.1 != b.1)));
        }
        Ok(())
    }
}

fn config(bench: &Bench<'_>, format: &str, blocks: usize, sequences: usize) -> Result<GpuConfig, Failure> {
    let mut config = bench.config(format, blocks, sequences)?;
    config.max_context = LONGEST * bench.block;
    Ok(config)
}

pub(crate) fn run(bench: &Bench<'_>, steps: usize) -> Result<bool, Failure> {
    let (g, block, mut all) = (bench.geometry, bench.block, true);
    for format in bench.formats {
        let secret = PrefixSecret::new([7; 32]);
        let config_of_main = GpuConfig {
            swap_tokens: LONGEST * block,
            prefixes: Some(PrefixConfig { secret, units: 8, eviction: Eviction::S3Fifo }),
            // Few enough that prefixes have to go for others.
            ..config(bench, format, MEMBERS * LONGEST + 6 * FILLERS, MEMBERS + FILLERS)?
        };
        let main = bench.cache(config_of_main)?;
        let twin = bench.cache(config(bench, format, MEMBERS * LONGEST, MEMBERS)?)?;
        let mut pair = Pair {
            bench,
            main,
            twin,
            members: Vec::new(),
            fillers: Vec::new(),
            prompts: Vec::new(),
            r: Rng::new(bench.seed),
            happened: Happened::default(),
        };
        for tokens in [5, 2 * block + 3, 4 * block - 1] {
            let ids = pair.member(tokens)?;
            pair.members.push(ids);
        }
        let buffers = (0..g.layers).map(|_| Buffers::new(bench.gpu, &g)).collect::<Result<Vec<_>, _>>()?;
        let tensors = buffers.iter().map(|b| b.io(&g)).collect::<Result<Vec<_>, _>>()?;
        let stream = GpuStream::new(bench.gpu, Priority::Normal)?;
        let events = EventPool::new(bench.gpu, 4)?;
        let chunks = pair.chunks();
        // What a plan promotes comes and goes with its pages, so that certified answers of formats that have one are a twin's only where nothing moved.
        let kept = policies().into_iter().filter(|(name, _)| *name != "certified" || super::bench::refines(format));
        let recorded = kept
            .map(|(_, policy)| record(&mut pair.main, &chunks, &tensors, (&stream, &events), policy))
            .collect::<Result<Vec<_>, _>>()?;
        let mut tally = Tally::default();
        for i in 0..steps {
            pair.disturb(i)?;
            let rows = rows(&g, MEMBERS, &mut pair.r);
            let (chunks, step) = (pair.chunks(), &recorded[i % recorded.len()]);
            let got = replay(&mut pair.main, &chunks, &buffers, (&stream, &events), step, &rows)?;
            let twins: Vec<_> = pair.members.iter().map(|ids| ids[1]).collect();
            let want = decode(&mut pair.twin, &twins, &rows, step.policy, false)?;
            let wrong = different(&got, &want, &g);
            if wrong > 0 && tally.failed < 200 {
                println!("WRONG {format} replay {i} {:?}: {wrong} heads differ", step.policy);
            }
            tally.executed += heads(&got, &g);
            tally.failed += wrong;
        }
        for [a, b] in pair.members.clone() {
            let same = originals(&mut pair.main, a)? == originals(&mut pair.twin, b)?;
            tally.failed += usize::from(!same);
        }
        let happened = &pair.happened;
        println!("{format}: {steps} replays of {} graphs; {happened:?}", recorded.len());
        let counts =
            [happened.created, happened.from_prefix, happened.swapped, happened.cut, happened.evicted, happened.moved];
        if counts.contains(&0) {
            println!("WRONG {format}: something never happened between replays");
            tally.failed += 1;
        }
        control(&mut pair, &buffers, (&stream, &events), &recorded[0], &mut tally)?;
        all &= tally.gate(&format!("replays-{format}"), bench.seed);
        drop(recorded);
    }
    Ok(all)
}

/// Differences that the comparison must see: another query, and a member whose pages hold other rows than the twin's.
fn control(
    pair: &mut Pair<'_>,
    buffers: &[Buffers],
    streams: (&GpuStream, &EventPool),
    recorded: &Recorded,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let g = pair.bench.geometry;
    for other_rows in [false, true] {
        if other_rows && pair.bench.stubs {
            continue;
        }
        if other_rows {
            let [a, b] = pair.members[1];
            let len = pair.bench.block + 1;
            let prompts = [prompt(&g, len, &mut pair.r), prompt(&g, len, &mut pair.r)];
            pair.main.truncate(a, 0)?;
            pair.twin.truncate(b, 0)?;
            prefill(&mut pair.main, a, len, &prompts[0])?;
            prefill(&mut pair.twin, b, len, &prompts[1])?;
        }
        let mut rows = rows(&g, MEMBERS, &mut pair.r);
        let chunks = pair.chunks();
        let got = replay(&mut pair.main, &chunks, buffers, streams, recorded, &rows)?;
        if !other_rows {
            rows.queries[0][0] += 0.5;
        }
        let twins: Vec<_> = pair.members.iter().map(|ids| ids[1]).collect();
        let want = decode(&mut pair.twin, &twins, &rows, recorded.policy, false)?;
        tally.control(different(&got, &want, &g) > 0);
    }
    Ok(())
}

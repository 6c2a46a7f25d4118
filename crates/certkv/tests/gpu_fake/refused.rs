//! Rows in device memory that are not finite: nothing is claimed of a sequence that has one, nor of what others have of it, until it is cut behind it;
//! and the rows before it are where they were, bit for bit.
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use crate::model::{element, expected};
use crate::{Fake, alone};
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuStep, GpuStream, Tensor};
use certkv::{Certificate, Chunk, Error, Policy, PrefixScope, Prompt, SaveScope, SequenceId, Side};
use certkv_device::cuda::{EventPool, Priority};

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };
/// A token whose key in layer 0 is not finite.
const BAD: u32 = u32::MAX;
/// Rows of a step at most.
const MOST: usize = 3 * BLOCK;

struct World {
    cache: GpuCache,
    rows: [DeviceBuffer; 2],
    query: DeviceBuffer,
    out: DeviceBuffer,
}

impl World {
    fn new(fake: &Fake, compiler: &Compiler, format: &str) -> Self {
        fake.reset();
        kernels::begin(format);
        let gpu = Gpu::open(0).expect("the fake");
        let cache = GpuCache::new(&gpu, compiler, config(format)).expect("a cache");
        let room = |bytes| DeviceBuffer::new(&gpu, MOST * bytes).expect("memory");
        Self { cache, rows: [room(2 * KV), room(2 * KV)], query: room(4 * Q), out: room(4 * Q) }
    }

    /// Begins a step whose rows lie on the device, and finishes it, or asks for its certificates and drops it. Attention of chunks that go by way of the host may
    /// tell as much.
    fn step(&mut self, parts: &[(SequenceId, &[u32])], finishes: bool) -> Result<(), Error> {
        let Self { cache, rows, query, out } = self;
        let chunks: Vec<_> = parts.iter().map(|(id, tokens)| Chunk { sequence: *id, tokens: tokens.len() }).collect();
        let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let [query, out] = [query, out].map(|b| Tensor::of(b, 0, Element::F32, tokens.len() * Q).expect("rows"));
        let [keys, values] = rows.each_ref().map(|b| Tensor::of(b, 0, Element::F16, tokens.len() * KV).expect("rows"));
        let mut step = cache.begin_with(&chunks, Policy::Packed).expect("a step");
        for layer in 0..LAYERS {
            for (side, buffer) in [Side::Key, Side::Value].into_iter().zip(&*rows) {
                let number = |token: u32, at: usize| match token {
                    BAD if (layer, side, at) == (0, Side::Key, 3) => 0x7c00,
                    token => element(token, layer, side, at),
                };
                let all: Vec<u16> = tokens.iter().flat_map(|t| (0..KV).map(move |at| number(*t, at))).collect();
                buffer.write(step.cache().stream(), 0, &all).expect("a copy");
            }
            step.append_device(layer, keys, values).expect("rows");
            step.attend_device(layer, query, out)?;
        }
        if finishes { step.finish() } else { certificates(&mut step) }
    }

    /// Such a step, finished with nobody looking.
    fn add(&mut self, id: SequenceId, tokens: &[u32]) {
        self.step(&[(id, tokens)], true).expect("a step");
    }

    /// Certificates of one more step of this sequence, which leaves no trace.
    fn asked(&mut self, id: SequenceId, tokens: &[u32]) -> Result<(), Error> {
        self.step(&[(id, tokens)], false)
    }

    /// Heads and sides whose rows are not those of these tokens.
    fn wrong(&mut self, id: SequenceId, tokens: &[u32]) -> usize {
        let sides = (0..LAYERS * KV_HEADS).flat_map(|i| [Side::Key, Side::Value].map(|side| (i, side)));
        let wrong = |(i, side): &(usize, Side)| {
            let (layer, head) = (i / KV_HEADS, i % KV_HEADS);
            let rows = self.cache.originals(id, layer, head, *side).expect("rows");
            rows != expected(tokens, (layer, head, *side))
        };
        sides.filter(wrong).count()
    }
}

fn certificates(step: &mut GpuStep<'_>) -> Result<(), Error> {
    step.certificates(1, &mut vec![Certificate::UNCERTIFIED; step.tokens() * HEADS])
}

/// The token's row in the step, and whether the row is of an earlier one.
fn refused(found: Result<(), Error>) -> (usize, bool) {
    match found {
        Err(Error::NonFinite { argument, token, element: 0 }) => (token, argument.contains("earlier")),
        other => panic!("{other:?}"),
    }
}

fn numbers(from: u32, count: usize) -> Vec<u32> {
    (from..from + count as u32).collect()
}

#[test]
fn rows_before_one_that_is_refused_are_what_they_were() {
    let (fake, compiler, _turn) = alone();
    for (format, drafts) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
        let mut w = World::new(fake, compiler, format);
        let id = w.cache.create().expect("a sequence");
        let good = numbers(0, BLOCK - 3);
        w.add(id, &good);
        // A token that is refused, others behind it, and the end of the block.
        if drafts {
            w.add(id, &[100, BAD, 101, 102, 103]);
        } else {
            [100, BAD, 101, 102, 103].iter().for_each(|token| w.add(id, &[*token]));
        }
        assert_eq!(refused(w.asked(id, &[104])), (0, true));
        // Whoever cuts behind it has it still.
        w.cache.truncate(id, good.len() + 2).expect("shorter");
        assert_eq!(refused(w.asked(id, &[105, 106])), (0, true));
        w.cache.truncate(id, good.len() + 1).expect("shorter");
        let held = [&good[..], &[100]].concat();
        assert_eq!(w.wrong(id, &held), 0, "{format}");
        w.asked(id, &[107]).expect("nothing is refused of what is left");
        w.add(id, &[108, 109, 110]);
        assert_eq!(w.wrong(id, &[&held[..], &[108, 109, 110]].concat()), 0, "{format}");
        assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
    }
}

/// The last token of a draft that fills a block is refused and rejected: the block has its codes and its rows.
#[test]
fn a_block_that_fills_beside_a_row_that_is_refused_is_coded() {
    let (fake, compiler, _turn) = alone();
    for format in FORMATS {
        let mut w = World::new(fake, compiler, format);
        let [id, other] = [(); 2].map(|()| w.cache.create().expect("a sequence"));
        let good = numbers(0, BLOCK + 1);
        w.add(id, &good[..BLOCK - 2]);
        w.add(id, &[BLOCK as u32 - 2, BLOCK as u32 - 1, BLOCK as u32, BAD]);
        w.add(other, &good);
        w.cache.truncate(id, good.len()).expect("shorter");
        w.asked(id, &[50]).expect("nothing is refused of what is left");
        assert_eq!(w.wrong(id, &good), 0, "{format}");
        let records = |id| (0..KV_HEADS).map(|head| w.cache.record_bytes(id, 0, 0, head).expect("a record")).collect();
        let [ours, theirs]: [Vec<Vec<u8>>; 2] = [records(id), records(other)];
        assert_eq!(ours, theirs, "{format}: the block was not coded");
    }
}

#[test]
fn what_others_have_of_a_refused_row_is_refused() {
    let (fake, compiler, _turn) = alone();
    let mut w = World::new(fake, compiler, FORMATS[0]);
    let id = w.cache.create().expect("a sequence");
    w.add(id, &numbers(0, BLOCK));
    w.add(id, &[BAD]);
    let fork = w.cache.fork(id).expect("a fork");
    assert_eq!(refused(w.asked(fork, &[60])), (0, true));
    let prompt = numbers(0, 2 * BLOCK);
    let prompt = Prompt::from(&prompt[..]);
    let written = |w: &mut World| w.cache.save(id, &FILE, &mut Vec::new()).map(drop);
    assert_eq!(refused(written(&mut w)).0, BLOCK);
    // The unit before it is nobody's error.
    let published = |w: &mut World| w.cache.publish(id, &SCOPE, prompt).map(|done| done.cached);
    assert_eq!(published(&mut w).expect("the first unit"), BLOCK);
    numbers(30, BLOCK - 1).chunks(8).for_each(|tokens| w.add(id, tokens));
    assert_eq!(refused(published(&mut w).map(drop)).0, BLOCK);
    // A fork that is cut has what is right; the other still has not.
    w.cache.truncate(fork, BLOCK).expect("shorter");
    w.asked(fork, &[61]).expect("nothing is refused of what is left");
    assert_eq!(refused(w.asked(id, &[62])), (0, true));
    // A chunk of several tokens, a draft beside one, and whatever is asked of them.
    for tokens in [3, BLOCK + 2] {
        let (chunk, beside) = (numbers(70, tokens), numbers(90, BLOCK));
        assert_eq!(refused(w.step(&[(fork, &beside), (id, &chunk)], false)), (BLOCK, true), "{tokens} tokens");
    }
    w.cache.truncate(id, BLOCK).expect("shorter");
    written(&mut w).expect("a file");
    w.asked(id, &[63]).expect("nothing is refused of what is left");
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

#[test]
fn a_step_that_is_dropped_leaves_no_refusal() {
    let (fake, compiler, _turn) = alone();
    let mut w = World::new(fake, compiler, FORMATS[0]);
    let [id, other] = [(); 2].map(|()| w.cache.create().expect("a sequence"));
    let good = numbers(0, BLOCK - 2);
    w.add(id, &good);
    w.add(other, &[40, BAD]);
    for tokens in [&[BAD][..], &[80, BAD, 81]] {
        assert_eq!(refused(w.asked(id, tokens)), (tokens.len() / 2, false));
        w.asked(id, &[82, 83, 84]).expect("the sequence is as before");
        // One that had a row refused before keeps it.
        assert_eq!(refused(w.asked(other, tokens)), (0, true));
    }
    w.add(id, &[85, 86, 87]);
    assert_eq!(w.wrong(id, &[&good[..], &[85, 86, 87]].concat()), 0);
    w.asked(id, &[88]).expect("nothing was refused");
}

/// Rows and queries of the host travel by memory that other steps use again: a recording of them would be of whatever lies there then.
#[test]
fn rows_of_the_host_are_not_recorded() {
    let (fake, compiler, _turn) = alone();
    let mut w = World::new(fake, compiler, FORMATS[0]);
    let id = w.cache.create().expect("a sequence");
    w.add(id, &numbers(0, 5));
    let gpu = Gpu::open(0).expect("the fake");
    let (stream, events) =
        (GpuStream::new(&gpu, Priority::Normal).expect("a stream"), EventPool::new(&gpu, 2).expect("events"));
    for tokens in [1, 3] {
        let World { cache, rows, .. } = &mut w;
        let [keys, values] = rows.each_ref().map(|b| Tensor::of(b, 0, Element::F16, tokens * KV).expect("rows"));
        let mut step = cache.begin(&[Chunk { sequence: id, tokens }]).expect("a step");
        let recording = stream.begin_capture().expect("a recording");
        step.cache().stream().wait(&stream.record(&events).expect("an event")).expect("a wait");
        let order = |found: Result<(), Error>| matches!(found, Err(Error::Order { why, .. }) if why.contains("host"));
        let row = vec![0x3c00; tokens * KV];
        assert!(order(step.append_bits(0, &row, &row)));
        step.append_device(0, keys, values).expect("rows of the device");
        assert!(order(step.attend(0, &vec![0.5; tokens * Q])));
        (1..LAYERS).for_each(|layer| step.append_device(layer, keys, values).expect("rows of the device"));
        stream.wait(&step.cache().stream().record(&events).expect("an event")).expect("a wait");
        // Nor is such a step finished: nothing of it has run.
        let finished = step.finish();
        assert!(matches!(finished, Err(Error::Order { why, .. }) if why.contains("records")), "{finished:?}");
        drop(recording);
        assert_eq!(cache.len(id).expect("a sequence"), 5);
    }
}

//! Certificates in device memory of the caller, by calls and by each run of a recording.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuCache, GpuStep, GpuStream, PublishedStep, Tensor};
use certkv::{Chunk, Error, Status};
use certkv_device::cuda::{EventPool, Priority};

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;

/// Appends and attends in layers below `attended`, appends in the others.
fn run(step: &mut GpuStep<'_>, [rows, wide]: [&DeviceBuffer; 2], attended: usize) {
    let row = Tensor::of(rows, 0, Element::F16, step.tokens() * KV).expect("rows");
    let q = Tensor::of(wide, 0, Element::F32, step.tokens() * Q).expect("queries");
    for layer in 0..LAYERS {
        step.append_device(layer, row, row).expect("rows");
        if layer < attended {
            step.attend_device(layer, q, q).expect("attention");
        }
    }
}

/// What is there: how often something was published, and of each layer whether it was attended, if all of its heads agree.
fn read(memory: &DeviceBuffer, stream: &GpuStream, tokens: usize) -> (u64, Vec<bool>) {
    let mut words = vec![0u64; memory.len() / 8];
    memory.read(stream, 0, &mut words).expect("memory");
    let step = PublishedStep::of_memory(&words).expect("a whole step");
    assert_eq!((step.sequences(), step.layers(), step.q_heads()), (tokens, LAYERS, GROUP * KV_HEADS));
    let attended = |layer: usize| {
        let places = (0..tokens).flat_map(|place| (0..step.q_heads()).map(move |head| (place, head)));
        let heads: Vec<_> = places.map(|(place, head)| step.head(layer, place, head)).collect();
        assert!(heads.iter().all(|head| head.is_some() == heads[0].is_some()));
        heads[0].is_some_and(|head| head.status == Status::Certified && head.bound == 0.25)
    };
    (words[0], (0..LAYERS).map(attended).collect())
}

#[test]
fn certificates_go_to_the_callers_memory_in_each_run_of_a_recording() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("a cache");
    let sequence = cache.create().expect("a sequence");
    let mut step = cache.begin(&[Chunk { sequence, tokens: 2 * BLOCK }]).expect("a step");
    let prompt = vec![0x3c00; 2 * BLOCK * KV];
    (0..LAYERS).for_each(|layer| step.append_bits(layer, &prompt, &prompt).expect("rows"));
    step.finish().expect("the end");

    // A step of one token, and of a draft.
    for tokens in [1, 3] {
        runs(&gpu, &mut cache, Chunk { sequence, tokens });
    }
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

/// Steps of `chunk`, by calls and recorded.
fn runs(gpu: &Gpu, cache: &mut GpuCache, chunk: Chunk) {
    let (chunks, tokens) = ([chunk], chunk.tokens);
    let stream = GpuStream::new(gpu, Priority::Normal).expect("a stream");
    let [rows, wide] = [2 * KV, 4 * Q].map(|bytes| DeviceBuffer::new(gpu, bytes * tokens).expect("memory"));
    let mut step = cache.begin(&chunks).expect("a step");
    let bytes = step.published_bytes().expect("a size");
    assert_eq!(bytes, 96 + 16 * LAYERS * tokens * GROUP * KV_HEADS);
    let memory = DeviceBuffer::new(gpu, bytes).expect("memory");
    let to = |bytes: usize| Tensor::of(&memory, 0, Element::F32, bytes / 4).expect("a tensor");
    run(&mut step, [&rows, &wide], 1);
    let short = step.publish_to(to(bytes - 16));
    assert!(matches!(short, Err(Error::Shape { argument: "certificates", .. })), "{short:?}");
    step.publish_to(to(bytes)).expect("a launch");
    drop(step);
    cache.synchronize().expect("the end");
    let first = |layer| layer == 0;
    // The cache's own count goes on.
    let (before, attended) = read(&memory, &stream, tokens);
    assert_eq!(attended, (0..LAYERS).map(first).collect::<Vec<_>>());

    // Recorded, nothing is published; each run does it again.
    let events = EventPool::new(gpu, 2).expect("events");
    let mut step = cache.begin(&chunks).expect("a step");
    let recording = stream.begin_capture().expect("a recording");
    step.cache().stream().wait(&stream.record(&events).expect("an event")).expect("a wait");
    run(&mut step, [&rows, &wide], LAYERS);
    step.publish_to(to(bytes)).expect("a launch");
    let capture = step.captured().expect("the end");
    stream.wait(&step.cache().stream().record(&events).expect("an event")).expect("a wait");
    let exec = recording.end().expect("a graph").instantiate().expect("a runnable one");
    drop(step);
    assert_eq!(read(&memory, &stream, tokens).0, before);
    for number in [before + 1, before + 2] {
        let mut step = cache.begin(&chunks).expect("a step");
        stream.wait(&step.cache().stream().record(&events).expect("an event")).expect("a wait");
        // SAFETY: what the graph names is kept by `capture` and the buffers, which outlive the runs.
        unsafe { exec.launch(&stream) }.expect("a run");
        step.cache().stream().wait(&stream.record(&events).expect("an event")).expect("a wait");
        step.replayed(&capture).expect("a replay");
        step.finish().expect("the end");
        stream.synchronize().expect("the end");
        assert_eq!(read(&memory, &stream, tokens), (number, vec![true; LAYERS]));
    }
    drop((exec, capture));
}

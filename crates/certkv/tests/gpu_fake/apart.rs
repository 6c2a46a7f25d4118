//! Plans that have a call of their own: what attention leaves to it, what it enqueues, and what waits for it.
use crate::alone;
use crate::fake_cuda::Fake;
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, GpuMachine, GpuStream, Tensor};
use certkv::{Certificate, Certified, Chunk, Class, Error, Policy};
use certkv_device::cuda::{EventPool, Priority};

const WIDTH: usize = KV_HEADS * DIM;

/// The fake anew, and a cache over it.
fn begun(fake: &Fake, compiler: &Compiler, format: &str, plan_apart: bool) -> (Gpu, GpuCache) {
    fake.reset();
    kernels::begin(format);
    let gpu = Gpu::open(0).expect("the fake");
    let cache = GpuCache::new(&gpu, compiler, GpuConfig { plan_apart, ..config(format) }).expect("no limit");
    (gpu, cache)
}

/// What one step asks of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    /// Launches of attention, of the first plan, of a second.
    launches: [usize; 3],
    /// Streams that wait for others: in attention after a plan, when the step ends.
    waits: [usize; 2],
}

fn asked(format: &str, plan_apart: bool, policy: Policy) -> Asked {
    let (fake, compiler, _turn) = alone();
    let (_gpu, mut cache) = begun(fake, compiler, format, plan_apart);
    let count = |name: &str| fake.trace().iter().filter(|call| **call == name).count();
    let (launches, waits) = (|| count("cuLaunchKernelEx"), || count("cuStreamWaitEvent"));
    let (rows, queries) = (vec![0.25; WIDTH], vec![0.5; GROUP * WIDTH]);
    let id = cache.create().expect("a sequence");
    let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], policy).expect("room");
    assert!(matches!(step.plan(LAYERS), Err(Error::Layer { .. })));
    for layer in 0..LAYERS {
        step.append(layer, &rows, &rows).expect("rows");
        assert!(matches!(step.plan(layer), Err(Error::Order { .. })), "not attended");
    }
    let mut seen = Asked { launches: [0; 3], waits: [0; 2] };
    let before = launches();
    step.attend(0, &queries).expect("a query");
    seen.launches[0] = launches() - before;
    for of in &mut seen.launches[1..] {
        let before = launches();
        step.plan(0).expect("a plan");
        *of = launches() - before;
    }
    // Results and attention of another layer wait for nothing; attention of the same for its plan.
    let before = waits();
    let (mut out, mut certificates) = (queries.clone(), vec![Certificate::default(); GROUP * KV_HEADS]);
    step.outputs(0, &mut out, &mut certificates).expect("outputs");
    step.attend(1, &queries).expect("a query");
    assert_eq!(waits(), before, "another layer's");
    step.attend(0, &queries).expect("a query");
    seen.waits[0] = waits() - before;
    step.plan(1).expect("a plan");
    let before = waits();
    step.finish().expect("a step");
    seen.waits[1] = waits() - before;
    seen
}

#[test]
fn attention_leaves_plans_to_their_call() {
    let certified = Policy::Certified(Certified::default());
    let [planned, refined, exact] = FORMATS;
    let with = asked(planned, false, certified);
    assert_eq!((with.launches[1..].to_vec(), with.waits), (vec![0, 0], [0, 0]));
    let apart = asked(planned, true, certified);
    // A choice and its copies, once.
    assert_eq!(apart, Asked { launches: [with.launches[0] - 2, 2, 0], waits: [1, 1] });
    for (format, policy) in
        [(refined, certified), (exact, certified), (planned, Policy::Packed), (planned, Policy::Dense)]
    {
        assert_eq!(asked(format, true, policy), asked(format, false, policy), "{format}");
    }
}

#[test]
fn every_layer_keeps_its_masses() {
    let bytes = |plan_apart| {
        let config = GpuConfig { plan_apart, ..config(FORMATS[0]) };
        let (blocks, heads) = (config.max_sequences * config.max_context.div_ceil(kernels::BLOCK), GROUP * KV_HEADS);
        (config.plan(GpuMachine::H200).expect("a plan").of(Class::Tables), 4 * blocks * heads)
    };
    let ((with, one), (apart, _)) = (bytes(false), bytes(true));
    assert_eq!(apart - with, (LAYERS - 1) * one);
}

/// Whatever call of a plan fails, the same call again enqueues what is missing, and no more.
#[test]
fn a_plan_that_failed_is_finished_by_the_next_call() {
    let (fake, compiler, _turn) = alone();
    let certified = Policy::Certified(Certified::default());
    let (rows, queries) = (vec![0.25; WIDTH], vec![0.5; GROUP * WIDTH]);
    let mut seen = Vec::new();
    // More than a plan's calls: behind them the failure meets what ends the step, which is another test's.
    for n in 1..40 {
        let (_gpu, mut cache) = begun(fake, compiler, FORMATS[0], true);
        let id = cache.create().expect("a sequence");
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], certified).expect("room");
        for layer in 0..LAYERS {
            step.append(layer, &rows, &rows).expect("rows");
        }
        step.attend(0, &queries).expect("a query");
        let launches = || fake.trace().iter().filter(|call| **call == "cuLaunchKernelEx").count();
        let before = launches();
        fake.fail(n, 1, false);
        let first = step.plan(0);
        let after = launches();
        let Err(error) = first else {
            assert_eq!(after - before, 2);
            continue;
        };
        assert!(matches!(error, Error::Gpu(_)), "{error}");
        step.plan(0).expect("the driver is well again");
        seen.push([after - before, launches() - after]);
        step.finish().expect("a step");
    }
    // A launch that failed is counted, too: none, the choice, nothing behind it, the copies.
    let expected = [[0, 2], [1, 2], [1, 1], [2, 1]];
    assert!(expected.iter().all(|counts| seen.contains(counts)), "{seen:?}");
    assert!(seen.iter().all(|counts| expected.contains(counts)), "{seen:?}");
}

/// Nor does a recording end with a choice whose copies were refused: its runs would read what nobody has copied.
#[test]
fn a_recording_ends_with_its_copies() {
    let (fake, compiler, _turn) = alone();
    let (mut refused, mut ended) = (0, 0);
    for n in 1..40 {
        let (gpu, mut cache) = begun(fake, compiler, FORMATS[0], true);
        let stream = GpuStream::new(&gpu, Priority::Normal).expect("a stream");
        let events = EventPool::new(&gpu, 2).expect("events");
        let memory = DeviceBuffer::new(&gpu, 8 * GROUP * WIDTH).expect("room");
        let of = |at, element, n| Tensor::of(&memory, at, element, n).expect("in the buffer");
        let (rows, query) = (of(0, Element::F16, WIDTH), of(0, Element::F32, GROUP * WIDTH));
        let out = of(4 * GROUP * WIDTH, Element::F32, GROUP * WIDTH);
        let id = cache.create().expect("a sequence");
        let chunks = [Chunk { sequence: id, tokens: 1 }];
        let mut step = cache.begin_with(&chunks, Policy::Certified(Certified::default())).expect("room");
        let recording = stream.begin_capture().expect("it records");
        step.cache().stream().wait(&stream.record(&events).expect("a mark")).expect("it joins");
        for layer in 0..LAYERS {
            step.append_device(layer, rows, rows).expect("rows");
            step.attend_device(layer, query, out).expect("a query");
        }
        fake.fail(n, 1, false);
        if step.plan(0).is_err() {
            match step.captured() {
                Err(Error::Order { layer: 0, why }) if why.contains("copies") => refused += 1,
                Err(error) => panic!("{error}"),
                // Where nothing was chosen there is nothing to copy.
                Ok(_) => ended += 1,
            }
            stream.wait(&step.cache().stream().record(&events).expect("a mark")).expect("it is joined");
            recording.end().expect("a graph");
        }
    }
    assert!(refused > 0 && ended > 0, "{refused} {ended}");
}

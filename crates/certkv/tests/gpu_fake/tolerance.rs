//! Tolerances of calls on a GPU: what the launches of a call are told, first ones, repairs and those of longer chunks; what is refused.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, Plant};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuCache, GpuStep, GpuStream, LayerIo, Tensor};
use certkv::{Certificate, Certified, Chunk, Error, Policy, Rung, SequenceId, Tolerance};
use certkv_device::cuda::{EventPool, Priority};
use certkv_testkit::generate::Rng;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
/// That of outputs, as the fake has it.
const NORM: f64 = 2.0;

fn certified(tol_rel: f64) -> Policy {
    Policy::Certified(Certified { tol_rel, ..Certified::default() })
}

/// One layer of a step, appended before: the tolerances that its certificates name, and whether one is of a repaired head.
fn attended(step: &mut GpuStep<'_>, layer: usize, r: &mut Rng) -> (Vec<f64>, bool) {
    let tokens = step.tokens();
    // Whether the fake repairs a head depends on its query.
    let queries: Vec<f32> = (0..tokens * Q).map(|_| r.uniform() as f32 - 0.5).collect();
    let (mut out, mut got) = (vec![0.0; tokens * Q], vec![Certificate::UNCERTIFIED; tokens * HEADS]);
    step.attend(layer, &queries).expect("attention");
    step.outputs(layer, &mut out, &mut got).expect("outputs");
    assert_eq!(out, queries);
    (got.iter().map(|c| c.tol).collect(), got.iter().any(|c| c.rung != Rung::Packed))
}

fn append(step: &mut GpuStep<'_>, layer: usize) {
    let rows = vec![0x3c00; step.tokens() * KV];
    step.append_bits(layer, &rows, &rows).expect("rows");
}

fn filled(cache: &mut GpuCache) -> SequenceId {
    let sequence = cache.create().expect("a sequence");
    let mut step = cache.begin(&[Chunk { sequence, tokens: 2 * BLOCK }]).expect("a step");
    (0..LAYERS).for_each(|layer| append(&mut step, layer));
    step.finish().expect("the end");
    sequence
}

/// What each call's certificates name, of one step or chunk: the tolerance asked for, within a rounding down to single precision.
fn held(cache: &mut GpuCache, sequence: SequenceId, tokens: usize) -> Result<bool, String> {
    let mut step = cache.begin_with(&[Chunk { sequence, tokens }], certified(0.05)).expect("a step");
    append(&mut step, 0);
    // A share of the norm for every other head, a length for those between, no two alike.
    let each = |h: usize| match h % 2 {
        0 => (Tolerance::relative(0.01 + 0.02 * h as f64), (0.01 + 0.02 * h as f64) * NORM),
        _ => (Tolerance::absolute(0.3 + 0.1 * h as f64), 0.3 + 0.1 * h as f64),
    };
    let calls = [
        (vec![], vec![0.05 * NORM]),
        (vec![Tolerance::relative(0.3)], vec![0.3 * NORM]),
        (vec![Tolerance::absolute(0.7)], vec![0.7]),
        (0..HEADS).map(each).unzip(),
        (vec![Tolerance { relative: 0.1, absolute: 1e-9 }], vec![0.1 * NORM]),
        (vec![Tolerance::absolute(0.2); HEADS], vec![0.2]),
        (vec![], vec![0.05 * NORM]),
    ];
    let (mut repaired, mut r) = (false, Rng::new(7));
    for (asked, tols) in calls.iter().cycle().take(21) {
        step.set_tolerances(asked).expect("tolerances");
        let (got, more) = attended(&mut step, 0, &mut r);
        repaired |= more;
        let tol = |at: usize| tols[at % HEADS % tols.len()];
        if let Some((at, wrong)) =
            got.iter().enumerate().find(|(at, got)| !(**got <= tol(*at) && **got > tol(*at) * (1.0 - 1e-6)))
        {
            return Err(format!("{asked:?}: output {at} held to {wrong}, not {}", tol(at)));
        }
    }
    Ok(repaired)
}

#[test]
fn a_call_is_held_to_its_own_tolerance() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    for format in FORMATS {
        kernels::begin(format);
        let mut cache = GpuCache::new(&gpu, compiler, config(format)).expect("a cache");
        let sequence = filled(&mut cache);
        // An even number of tokens is attended by the GPU.
        assert_eq!(held(&mut cache, sequence, 1), Ok(!format.starts_with("f16")), "{format}");
        held(&mut cache, sequence, 2).expect("a chunk");
        kernels::plant(Plant::NoTolerance);
        let missed = held(&mut cache, sequence, 1);
        kernels::plant(Plant::Nothing);
        assert!(missed.is_err(), "{format}: another tolerance was not seen");
    }
}

#[test]
fn what_is_no_tolerance_is_refused_and_changes_nothing() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("a cache");
    let sequence = filled(&mut cache);
    let chunks = [Chunk { sequence, tokens: 1 }];
    let mut step = cache.begin_with(&chunks, certified(0.05)).expect("a step");
    append(&mut step, 0);
    step.set_tolerances(&[Tolerance::absolute(0.5)]).expect("a tolerance");
    for (relative, absolute) in [(f64::NAN, 1.0), (0.0, 0.0), (-0.1, 1.0), (0.1, f64::INFINITY), (0.1, -1.0)] {
        let refused = step.set_tolerances(&[Tolerance { relative, absolute }]);
        assert!(matches!(refused, Err(Error::Policy(_))), "{relative} {absolute}: {refused:?}");
    }
    for given in [2, HEADS - 1, HEADS + 1] {
        let refused = step.set_tolerances(&vec![Tolerance::relative(0.1); given]);
        assert!(
            matches!(refused, Err(Error::Shape { argument: "tolerances", expected: HEADS, given: n }) if n == given),
            "{given}: {refused:?}"
        );
    }
    let mut last = vec![Tolerance::relative(0.1); HEADS];
    last[HEADS - 1] = Tolerance::relative(f64::NAN);
    assert!(
        matches!(step.set_tolerances(&last), Err(Error::Policy(why)) if why.contains(&format!("tolerances[{}]", HEADS - 1)))
    );
    assert_eq!(attended(&mut step, 0, &mut Rng::new(1)).0, [0.5; HEADS]);
    drop(step);
    for policy in [Policy::Packed, Policy::Dense] {
        let mut step = cache.begin_with(&chunks, policy).expect("a step");
        assert!(matches!(step.set_tolerances(&[Tolerance::relative(0.1)]), Err(Error::Policy(_))), "{policy:?}");
    }
}

/// Recordings serve steps of a policy; a step that is held to something else is neither in one nor run from one.
#[test]
fn recordings_have_the_tolerance_of_their_policy() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("a cache");
    let sequence = filled(&mut cache);
    let chunks = [Chunk { sequence, tokens: 1 }];
    let own = &[Tolerance::relative(0.2)];
    let [rows, wide] = [2 * KV, 4 * Q].map(|bytes| DeviceBuffer::new(&gpu, bytes).expect("memory"));
    let io = LayerIo {
        keys: Tensor::of(&rows, 0, Element::F16, KV).expect("keys"),
        values: Tensor::of(&rows, 0, Element::F16, KV).expect("values"),
        query: Tensor::of(&wide, 0, Element::F32, Q).expect("queries"),
        out: Tensor::of(&wide, 0, Element::F32, Q).expect("outputs"),
    };
    let graph = cache.record(1, &[io; LAYERS], certified(0.05)).expect("a recording");
    let mut step = cache.begin_with(&chunks, certified(0.05)).expect("a step");
    step.set_tolerances(own).expect("a tolerance");
    assert!(matches!(step.replay(&graph), Err(Error::Policy(_))));
    step.set_tolerances(&[]).expect("the policy's");
    step.replay(&graph).expect("a replay");
    drop(step);

    let stream = GpuStream::new(&gpu, Priority::Normal).expect("a stream");
    let events = EventPool::new(&gpu, 2).expect("events");
    let mut step = cache.begin_with(&chunks, certified(0.05)).expect("a step");
    step.set_tolerances(own).expect("a tolerance");
    let recording = stream.begin_capture().expect("a recording");
    step.cache().stream().wait(&stream.record(&events).expect("an event")).expect("a wait");
    for layer in 0..LAYERS {
        step.append_device(layer, io.keys, io.values).expect("rows");
    }
    let refused = step.attend_device(0, io.query, io.out);
    assert!(matches!(refused, Err(Error::Order { layer: 0, .. })), "{refused:?}");
    let each: Vec<_> = (1..=HEADS).map(|h| Tolerance::absolute(h as f64)).collect();
    let refused = step.set_tolerances(&each);
    assert!(matches!(refused, Err(Error::Order { layer: 0, .. })), "{refused:?}");
    step.set_tolerances(&[]).expect("the policy's");
    for layer in 0..LAYERS {
        step.attend_device(layer, io.query, io.out).expect("attention");
    }
    let capture = step.captured().expect("the end");
    stream.wait(&step.cache().stream().record(&events).expect("an event")).expect("a wait");
    recording.end().expect("a graph");
    drop(step);
    let mut step = cache.begin_with(&chunks, certified(0.05)).expect("a step");
    step.set_tolerances(own).expect("a tolerance");
    assert!(matches!(step.replayed(&capture), Err(Error::Policy(_))));
    drop(step);
    drop(capture);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

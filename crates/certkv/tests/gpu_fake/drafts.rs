//! Drafts, chunks of a few tokens: all of a step's are attended by the launches of a step, and each token gets its own answer.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, DRAFTED, EXTENDED, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Compiler, DeviceBuffer, Element, Gpu, GpuCache, GpuConfig, Tensor};
use certkv::{Certificate, Certified, Chunk, Error, Policy, Rung, SequenceId, Status};
use certkv_testkit::generate::Rng;
use std::sync::atomic::Ordering;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
/// Drafts of several lengths, a step of one token and a chunk that is none, in an order of no meaning.
const MIXED: [usize; 6] = [3, 1, 8, 2, BLOCK - 1, 3];
/// Drafts and steps of one token alone.
const ALONE: [usize; 6] = [3, 1, 8, 2, 1, 5];

fn counts() -> [u64; 2] {
    [&DRAFTED, &EXTENDED].map(|count| count.swap(0, Ordering::Relaxed))
}

/// A cache with six sequences, all of other lengths.
fn filled(compiler: &Compiler, config: GpuConfig) -> (GpuCache, Vec<SequenceId>) {
    let mut cache = GpuCache::new(&Gpu::open(0).expect("the fake"), compiler, config).expect("a cache");
    let ids: Vec<_> = MIXED.iter().map(|_| cache.create().expect("a sequence")).collect();
    let chunks: Vec<_> = ids.iter().enumerate().map(|(i, id)| Chunk { sequence: *id, tokens: before(i) }).collect();
    let mut step = cache.begin(&chunks).expect("a step");
    let rows = vec![0x3c00; step.tokens() * KV];
    (0..LAYERS).for_each(|layer| step.append_bits(layer, &rows, &rows).expect("rows"));
    step.finish().expect("the end");
    (cache, ids)
}

/// Tokens of a sequence before the step.
fn before(i: usize) -> usize {
    5 + 3 * i
}

fn cut(cache: &mut GpuCache, ids: &[SequenceId]) {
    ids.iter().enumerate().for_each(|(i, id)| cache.truncate(*id, before(i)).expect("shorter"));
}

/// One step of all of them: its answers to `queries`, by layer, are these queries; their certificates.
fn answered(
    cache: &mut GpuCache,
    (ids, tokens): (&[SequenceId], [usize; 6]),
    policy: Policy,
    queries: &[f32],
) -> Vec<Certificate> {
    let chunks: Vec<_> = ids.iter().zip(tokens).map(|(id, tokens)| Chunk { sequence: *id, tokens }).collect();
    let mut step = cache.begin_with(&chunks, policy).expect("a step");
    let rows = vec![0x3c00; step.tokens() * KV];
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows, &rows).expect("rows");
        step.attend(layer, queries).expect("attention");
        let (mut out, mut got) = (vec![0.0; queries.len()], vec![Certificate::UNCERTIFIED; queries.len() / DIM]);
        step.outputs(layer, &mut out, &mut got).expect("outputs");
        // Of the longer chunk the CPU may have computed the outputs.
        let ours = |row: &usize| tokens == ALONE || !(14..14 + BLOCK - 1).contains(row);
        for row in (0..queries.len() / Q).filter(ours) {
            assert_eq!(out[row * Q..(row + 1) * Q], queries[row * Q..(row + 1) * Q], "{policy:?}: row {row}");
        }
        all.extend(got);
    }
    step.finish().expect("the end");
    all
}

fn queries(r: &mut Rng, tokens: [usize; 6]) -> Vec<f32> {
    (0..tokens.iter().sum::<usize>() * Q).map(|_| (r.below(2048) as f32 - 1024.0) / 512.0).collect()
}

#[test]
fn every_token_of_every_draft_gets_its_own_answer() {
    let (fake, compiler, _turn) = alone();
    let mut r = Rng::new(0xd4af);
    for (format, tokens) in FORMATS.into_iter().flat_map(|format| [(format, MIXED), (format, ALONE)]) {
        fake.reset();
        kernels::begin(format);
        let (mut cache, ids) = filled(compiler, config(format));
        counts();
        for policy in [Policy::Certified(Certified::default()), Policy::Packed, Policy::Dense] {
            let got = answered(&mut cache, (&ids, tokens), policy, &queries(&mut r, tokens));
            let [drafted, extended] = counts();
            // Four drafts, or with single tokens six, in one launch at least.
            let least = if tokens == ALONE { 6 } else { 4 };
            assert!(drafted as usize >= LAYERS * KV_HEADS * least, "{format} {policy:?}: {drafted} heads");
            let longer = if tokens == ALONE { 0 } else { LAYERS * HEADS * (BLOCK - 1) };
            // Codes are over tolerance there: its heads are attended from originals, too.
            let again = matches!(policy, Policy::Certified(_)) && format != FORMATS[2];
            assert_eq!(extended as usize, longer * if again { 2 } else { 1 }, "{format} {policy:?}");
            let of_drafts: Vec<_> = got[..14 * HEADS].iter().collect();
            match policy {
                Policy::Packed => assert!(of_drafts.iter().all(|c| c.status == Status::Uncertified)),
                Policy::Dense => assert!(of_drafts.iter().all(|c| c.status == Status::Exact)),
                _ => {
                    assert!(of_drafts.iter().all(|c| matches!(c.status, Status::Certified | Status::Exact)));
                    // A share of the heads climbs the whole ladder, on the device.
                    let climbed = of_drafts.iter().filter(|c| c.rung == Rung::DenseHead).count();
                    assert!(format == FORMATS[2] || climbed > 0, "{format}");
                }
            }
            // None is accepted: the sequences are what they were.
            cut(&mut cache, &ids);
        }
        cache.synchronize().expect("the end");
        assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
    }
}

/// Kernels for queries of 16 bits attend drafts whose queries these hold. A step of drafts with one that does not fit is refused, as a step of single tokens; beside
/// a longer chunk its drafts are attended as that.
#[test]
fn queries_that_16_bits_do_not_hold_take_the_other_way() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let mut r = Rng::new(7);
    let (mut cache, ids) = filled(compiler, GpuConfig { queries: Element::F16, ..config(FORMATS[0]) });
    counts();
    let mut asked = queries(&mut r, MIXED);
    answered(&mut cache, (&ids, MIXED), Policy::Packed, &asked);
    assert!(counts()[0] > 0);
    cut(&mut cache, &ids);
    // Of the first draft.
    asked[0] = 1e6;
    answered(&mut cache, (&ids, MIXED), Policy::Packed, &asked);
    let [drafted, extended] = counts();
    assert!(drafted == 0 && extended > 0, "{drafted} {extended}");
    cut(&mut cache, &ids);
    let mut asked = queries(&mut r, ALONE);
    asked[4 * Q + 7] = -1e6;
    let chunks: Vec<_> = ids.iter().zip(ALONE).map(|(id, tokens)| Chunk { sequence: *id, tokens }).collect();
    let mut step = cache.begin(&chunks).expect("a step");
    step.append_bits(0, &vec![0x3c00; step.tokens() * KV], &vec![0x3c00; step.tokens() * KV]).expect("rows");
    let refused = step.attend(0, &asked);
    assert!(matches!(refused, Err(Error::Overflow { argument: "queries", token: 4, element: 7 })), "{refused:?}");
    assert_eq!(counts(), [0; 2]);
    // It is asked again with others.
    asked[4 * Q + 7] = -1.0;
    step.attend(0, &asked).expect("attention");
    let mut out = vec![0.0; asked.len()];
    step.outputs(0, &mut out, &mut []).expect("outputs");
    assert!(out == asked);
    drop(step);
    cache.synchronize().expect("the end");
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

/// A step of drafts waits for nothing until its results are asked for, blocks fill or not; and a row that is no number is told of then. The sequence is what it was when
/// it is cut.
#[test]
fn drafts_on_the_device_wait_for_nobody() {
    let (fake, compiler, _turn) = alone();
    for format in FORMATS {
        fake.reset();
        kernels::begin(format);
        let (mut cache, ids) = filled(compiler, config(format));
        let gpu = Gpu::open(0).expect("the fake");
        let all: usize = ALONE.iter().sum();
        let room = |bytes| DeviceBuffer::new(&gpu, all * bytes).expect("memory");
        let [keys, values, query, out] = [room(2 * KV), room(2 * KV), room(4 * Q), room(4 * Q)];
        let mut rows = vec![0x3c00u16; all * KV];
        let asked = queries(&mut Rng::new(3), ALONE);
        let chunks: Vec<_> = ids.iter().zip(ALONE).map(|(id, tokens)| Chunk { sequence: *id, tokens }).collect();
        for bad in [None, Some(2), None] {
            // A token of the first draft, which is not its last.
            rows.iter_mut().for_each(|x| *x = 0x3c00);
            bad.into_iter().for_each(|token| rows[token * KV + 3] = 0x7c00);
            keys.write(cache.stream(), 0, &rows).expect("a copy");
            values.write(cache.stream(), 0, &vec![0x3c00u16; all * KV]).expect("a copy");
            query.write(cache.stream(), 0, &asked).expect("a copy");
            cache.synchronize().expect("the end");
            let waits = |cache: &GpuCache| cache.snapshot().waits.count();
            let before = waits(&cache);
            let mut step = cache.begin_with(&chunks, Policy::Packed).expect("a step");
            let [keys, values] = [&keys, &values].map(|b| Tensor::of(b, 0, Element::F16, all * KV).expect("rows"));
            let [query, to] = [&query, &out].map(|b| Tensor::of(b, 0, Element::F32, all * Q).expect("rows"));
            for layer in 0..LAYERS {
                step.append_device(layer, keys, values).expect("rows");
                step.attend_device(layer, query, to).expect("attention");
            }
            assert_eq!(waits(step.cache()), before, "{format}");
            let mut certificates = vec![Certificate::UNCERTIFIED; all * HEADS];
            let found = step.certificates(1, &mut certificates);
            assert!(waits(step.cache()) > before);
            match bad {
                None => found.expect("certificates"),
                Some(bad) => assert!(matches!(found, Err(Error::NonFinite { token, .. }) if token == bad), "{found:?}"),
            }
            step.finish().expect("the end");
            let mut got = vec![0.0f32; all * Q];
            out.read(cache.stream(), 0, &mut got).expect("outputs");
            assert!(bad.is_some() || got == asked, "{format}");
            cut(&mut cache, &ids);
        }
        assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
    }
}

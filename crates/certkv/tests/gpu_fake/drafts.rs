//! Drafts, chunks of a few tokens: all of a step's are attended by the launches of a step, and each token gets its own answer.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, DRAFTED, EXTENDED, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Compiler, Element, Gpu, GpuCache, GpuConfig};
use certkv::{Certificate, Certified, Chunk, Policy, Rung, SequenceId, Status};
use certkv_testkit::generate::Rng;
use std::sync::atomic::Ordering;

const KV: usize = KV_HEADS * DIM;
const Q: usize = GROUP * KV;
const HEADS: usize = GROUP * KV_HEADS;
/// Drafts of several lengths, a step of one token and a chunk that is none, in an order of no meaning.
const TOKENS: [usize; 6] = [3, 1, 8, 2, BLOCK - 1, 3];

fn counts() -> [u64; 2] {
    [&DRAFTED, &EXTENDED].map(|count| count.swap(0, Ordering::Relaxed))
}

/// A cache with a sequence for each of [`TOKENS`], all of other lengths.
fn filled(compiler: &Compiler, config: GpuConfig) -> (GpuCache, Vec<SequenceId>) {
    let mut cache = GpuCache::new(&Gpu::open(0).expect("the fake"), compiler, config).expect("a cache");
    let ids: Vec<_> = TOKENS.iter().map(|_| cache.create().expect("a sequence")).collect();
    let chunks: Vec<_> = ids.iter().enumerate().map(|(i, id)| Chunk { sequence: *id, tokens: 5 + 3 * i }).collect();
    let mut step = cache.begin(&chunks).expect("a step");
    let rows = vec![0x3c00; step.tokens() * KV];
    (0..LAYERS).for_each(|layer| step.append_bits(layer, &rows, &rows).expect("rows"));
    step.finish().expect("the end");
    (cache, ids)
}

/// One step of all of them: its answers to `queries`, by layer, are these queries; their certificates.
fn answered(cache: &mut GpuCache, ids: &[SequenceId], policy: Policy, queries: &[f32]) -> Vec<Certificate> {
    let chunks: Vec<_> = ids.iter().zip(TOKENS).map(|(id, tokens)| Chunk { sequence: *id, tokens }).collect();
    let mut step = cache.begin_with(&chunks, policy).expect("a step");
    let rows = vec![0x3c00; step.tokens() * KV];
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows, &rows).expect("rows");
        step.attend(layer, queries).expect("attention");
        let (mut out, mut got) = (vec![0.0; queries.len()], vec![Certificate::UNCERTIFIED; queries.len() / DIM]);
        step.outputs(layer, &mut out, &mut got).expect("outputs");
        // Of the longer chunk the CPU may have computed the outputs.
        let ours = |row: &usize| !(14..14 + BLOCK - 1).contains(row);
        for row in (0..queries.len() / Q).filter(ours) {
            assert_eq!(out[row * Q..(row + 1) * Q], queries[row * Q..(row + 1) * Q], "{policy:?}: row {row}");
        }
        all.extend(got);
    }
    step.finish().expect("the end");
    all
}

fn queries(r: &mut Rng) -> Vec<f32> {
    (0..TOKENS.iter().sum::<usize>() * Q).map(|_| (r.below(2048) as f32 - 1024.0) / 512.0).collect()
}

#[test]
fn every_token_of_every_draft_gets_its_own_answer() {
    let (fake, compiler, _turn) = alone();
    let mut r = Rng::new(0xd4af);
    for format in FORMATS {
        fake.reset();
        kernels::begin(format);
        let (mut cache, ids) = filled(compiler, config(format));
        counts();
        for policy in [Policy::Certified(Certified::default()), Policy::Packed, Policy::Dense] {
            let got = answered(&mut cache, &ids, policy, &queries(&mut r));
            let [drafted, extended] = counts();
            // Four drafts, in one launch at least.
            assert!(drafted as usize >= LAYERS * KV_HEADS * 4, "{format} {policy:?}: {drafted} heads");
            let longer = LAYERS * HEADS * (BLOCK - 1);
            assert!(extended == 0 || extended as usize == longer, "{format} {policy:?}: {extended} heads");
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
            ids.iter().enumerate().for_each(|(i, id)| cache.truncate(*id, 5 + 3 * i).expect("shorter"));
        }
        cache.synchronize().expect("the end");
        assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
    }
}

/// Kernels for queries of 16 bits attend drafts whose queries these hold; a step in which one does not fit attends its drafts as longer chunks.
#[test]
fn queries_that_16_bits_do_not_hold_take_the_other_way() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let mut r = Rng::new(7);
    let (mut cache, ids) = filled(compiler, GpuConfig { queries: Element::F16, ..config(FORMATS[0]) });
    counts();
    let mut asked = queries(&mut r);
    answered(&mut cache, &ids, Policy::Packed, &asked);
    assert!(counts()[0] > 0);
    ids.iter().enumerate().for_each(|(i, id)| cache.truncate(*id, 5 + 3 * i).expect("shorter"));
    // Of the first draft.
    asked[0] = 1e6;
    answered(&mut cache, &ids, Policy::Packed, &asked);
    let [drafted, extended] = counts();
    assert!(drafted == 0 && extended > 0, "{drafted} {extended}");
    cache.synchronize().expect("the end");
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

//! Blocks that are dropped: of their codes the mean key and the mean value are left (math.md 5.5), and their originals in Tier-2. Every output stays
//! within its bound; a block that is attended to again is read from its originals in that step, and comes back up by whoever decides.
mod common;

use certkv::{Cache, Chunk, Control, Controlled, Policy, Retention, SequenceId, SmartKv, retention, smartkv};
use certkv_testkit::generate::Rng;
use common::towards::{BLOCK, LAYERS, Ladder, TOLERANCE, add, all_levels, decode, geometry, towards};
use common::{Answer, Model, decode_faults, fill, original_faults, random_rows};

const LADDER: Ladder = Ladder(["t8-v8g64-b16", "t4-v4g64-b16", "k0-c0-b16"]);
/// Dropped.
const DROPPED: usize = 2;

/// Bytes a token at which half of the blocks have 4 bits and the others are dropped.
fn budget() -> f64 {
    0.5 * (LADDER.page(1) + LADDER.page(DROPPED)) / BLOCK as f64
}

/// Those who tell dropped blocks from others. (To the bound's budget most levels of random rows are alike: bounds of an output that may be anything.)
fn deciders() -> [(&'static str, Control); 2] {
    let bytes = budget();
    let smart = smartkv::Rule { base: 4, ..smartkv::Rule::default() };
    let retains = retention::Rule { every: 4, ..retention::Rule::default() };
    [
        ("SmartKV", SmartKv { rule: smart, ..SmartKv::new(bytes) }.into()),
        ("retention", Retention { rule: retains, ..Retention::new(bytes) }.into()),
    ]
}

/// One step of all layers towards `block`: what exact attention says of each layer, and what was answered.
fn look(
    (cache, id): (&Cache, SequenceId),
    model: &mut Model,
    block: usize,
    policy: Policy,
    r: &mut Rng,
) -> Vec<(Vec<Vec<f64>>, Answer)> {
    let g = geometry();
    let rows = random_rows(&g, 1, r);
    let mut open = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], policy).unwrap();
    model.append(&rows);
    let mut seen = Vec::new();
    for layer in 0..g.layers {
        open.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
        let (queries, mut answer) = (towards(&g, model, layer, block, r), Answer::new(&g, 1));
        open.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
        seen.push((model.attend(&g, layer, model.len(&g), &queries), answer));
    }
    open.finish().unwrap();
    seen
}

/// Error and bound of the worst head of such a step from codes alone, as shares of what the head's output is.
fn from_codes(cache: &Cache, id: SequenceId, model: &mut Model, block: usize, r: &mut Rng) -> [f64; 2] {
    let mut worst = [0.0f64; 2];
    for (exact, answer) in look((cache, id), model, block, Policy::Packed, r) {
        let dim = geometry().head_dim;
        for ((exact, out), certificate) in exact.iter().zip(answer.out.chunks_exact(dim)).zip(&answer.certificates) {
            let error = exact.iter().zip(out).map(|(x, y)| (x - f64::from(*y)).powi(2)).sum::<f64>().sqrt();
            let size = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!(error <= certificate.bound(), "{error} beyond {}", certificate.bound());
            worst = [worst[0].max(error / size), worst[1].max(certificate.bound() / size)];
        }
    }
    worst
}

#[test]
fn a_dropped_block_is_read_when_it_is_needed_and_comes_back() {
    for (who, control) in deciders() {
        let cache = Cache::new(LADDER.config([640; 3], control)).unwrap();
        let (id, mut r) = (cache.create().unwrap(), Rng::new(7));
        let mut model = random_rows(&geometry(), 330, &mut r);
        fill(&cache, id, &model).unwrap();
        let (mut all, mut back) = (Controlled::default(), None);
        // SmartKV waits for 32 steps at least between decisions that nothing urges.
        for n in 0..180 {
            let hot = if n < 30 { 4 } else { 9 };
            if n == 30 {
                // Nobody looked at block 9: it is dropped in all layers. From what is left of it the output would be another one, and the bound says so.
                let now = all_levels(&cache, id);
                assert!(now.iter().all(|levels| levels[4] < DROPPED && levels[9] == DROPPED), "{who}: {now:?}");
                assert!(now.iter().flatten().filter(|level| **level == DROPPED).count() > 20, "{who}: {now:?}");
                let fork = cache.fork(id).unwrap();
                let [error, bound] = from_codes(&cache, fork, &mut model.clone(), 9, &mut r);
                assert!(error > 2.0 * TOLERANCE && bound >= error, "{who}: {error} within {bound}");
                cache.release(fork).unwrap();
            }
            // Every output is within its bound and its tolerance, that of the first step towards block 9, too.
            decode(&cache, id, &mut model, hot, TOLERANCE, &mut r);
            add(&mut all, cache.control(id).unwrap());
            let now = all_levels(&cache, id);
            if n >= 30 && now.iter().all(|levels| levels[9] < DROPPED) {
                back = Some(n - 30);
                break;
            }
        }
        println!("{who}: {all:?}; back after {back:?}");
        assert!(all.changed > 50 && all.failed + all.refused + all.below_floor == 0, "{who}: {all:?}");
        assert!(back.is_some_and(|steps| steps < 100), "{who}: the block stayed away");
        assert_eq!(original_faults(&cache, id, &model), 0);
        cache.release(id).unwrap();
        assert_eq!(cache.live_pages(), 0);
    }
}

/// Dropped by hand, out and back: what was dropped is, and outputs are within their bounds.
#[test]
fn what_is_left_of_a_dropped_block_goes_where_codes_go() {
    let config = LADDER.config([640; 3], SmartKv::new(LADDER.page(0) / BLOCK as f64));
    let cache = Cache::new(config).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(9));
    let mut model = random_rows(&geometry(), 100, &mut r);
    fill(&cache, id, &model).unwrap();
    (0..LAYERS).for_each(|layer| (1..4).for_each(|block| cache.change_level(id, layer, block, DROPPED).unwrap()));
    let before = all_levels(&cache, id);
    cache.swap_out(id).unwrap();
    cache.swap_in(id).unwrap();
    assert_eq!((&before, before[0][1]), (&all_levels(&cache, id), DROPPED));
    for block in [2, 5, 2] {
        for (exact, answer) in look((&cache, id), &mut model, block, cache.policy(), &mut r) {
            assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, TOLERANCE), 0);
            // Originals of what is dropped were read for it, in every layer.
            let read = answer.certificates.iter().map(|c| c.bytes.host + c.bytes.scratch).sum::<u64>();
            assert!(block != 2 || read > 0);
        }
        cache.change_level(id, 0, 1, 1).unwrap();
        cache.change_level(id, 0, 1, DROPPED).unwrap();
    }
    assert_eq!(original_faults(&cache, id, &model), 0);
}

//! Short chunks whose tokens are decode steps (`Config::chunk_tokens`): the bits and certificates of tokens that come one by one, whatever
//! the format, policy, window or place of the originals; bounds that hold; nothing left of a draft that is given up.
mod common;

use certkv::store::MemoryStore;
use certkv::{Cache, Certified, Chunk, Config, Geometry, Mode, Policy, Protection, SimOptions, Spill, Status, Window};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::distance;
use common::{Answer, Model, exact, fill, original_faults, random_queries, random_rows, step};
use std::sync::Arc;

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config(format: &str, chunk_tokens: usize) -> Config {
    let device = SimOptions { mode: Mode::Eager, check: true };
    Config { device, chunk_tokens, ..Config::new(geometry(), 600).with_format(format.parse().unwrap()) }
}

/// Row `t` of a model, and of some queries.
fn row(rows: &Model, queries: &[f32], t: usize) -> (Model, Vec<f32>) {
    let (g, mut one) = (geometry(), Model::new(&geometry()));
    for (to, from) in one.keys.iter_mut().zip(&rows.keys).chain(one.values.iter_mut().zip(&rows.values)) {
        to.extend_from_slice(&from[t * g.kv_width()..(t + 1) * g.kv_width()]);
    }
    (one, queries[t * g.q_width()..(t + 1) * g.q_width()].to_vec())
}

/// Outputs that are not within their bounds of exact attention, or have none.
fn faults(
    model: &Model,
    window: Option<Window>,
    layer: usize,
    before: usize,
    queries: &[f32],
    answer: &Answer,
) -> usize {
    let g = geometry();
    let mut wrong = 0;
    for (t, q) in queries.chunks_exact(g.q_width()).enumerate() {
        let truth = exact(&g, model, layer, before + t, window, q);
        for (h, truth) in truth.iter().enumerate() {
            let at = t * g.q_heads + h;
            let got: Vec<f64> = answer.out[at * 64..(at + 1) * 64].iter().map(|x| f64::from(*x)).collect();
            let bound = answer.certificates[at].bound();
            wrong += usize::from(!(bound.is_finite() && distance(truth, &got) <= bound));
        }
    }
    wrong
}

/// Bits and certificates of chunks on one cache are those of single tokens on another; both are within their bounds.
fn compare(single: Config, chunked: Config, policy: Policy, window: Option<Window>, seed: u64) -> usize {
    let (g, mut r) = (geometry(), Rng::new(seed));
    let [one, many] = [single, chunked].map(|config| Cache::new(config).unwrap());
    let [a, b] = [&one, &many].map(|cache| cache.create().unwrap());
    let mut model = random_rows(&g, 90, &mut r);
    [(&one, a), (&many, b)].into_iter().for_each(|(cache, id)| fill(cache, id, &model).unwrap());
    let (mut seen, mut certified) = (0, 0);
    for tokens in [3, 8, 1, 7, 2, 8, 5, 8, 4, 6] {
        let (rows, queries) = (random_rows(&g, tokens, &mut r), random_queries(&g, tokens, &mut r));
        let mut expected: Vec<Answer> = (0..g.layers).map(|_| Answer::new(&g, 0)).collect();
        for t in 0..tokens {
            let (row, queries) = row(&rows, &queries, t);
            for (all, this) in expected.iter_mut().zip(step(&one, a, &row, &queries, policy).unwrap()) {
                all.out.extend(this.out);
                all.certificates.extend(this.certificates);
            }
        }
        let (before, got) = (model.len(&g), step(&many, b, &rows, &queries, policy).unwrap());
        model.append(&rows);
        for (layer, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.bits(), expected.bits(), "{policy:?} layer {layer}, {tokens} tokens behind {before}");
            assert_eq!(got.certificates, expected.certificates, "{policy:?} layer {layer}");
            assert_eq!(faults(&model, window, layer, before, &queries, got), 0, "{policy:?} layer {layer}");
            certified += got.certificates.iter().filter(|c| c.status == Status::Certified).count();
            seen += got.certificates.len();
        }
    }
    assert!(!matches!(policy, Policy::Certified(_)) || certified > seen / 4, "{certified} of {seen} from codes");
    let outputs = many.snapshot().outputs.unwrap();
    assert_eq!((outputs.prompt, outputs.certified as usize), (0, certified), "counted as decoded");
    for (cache, id) in [(&one, a), (&many, b)] {
        cache.release(id).unwrap();
        assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
    }
    seen
}

#[test]
fn a_chunk_has_the_bits_of_its_tokens_one_by_one() {
    let rows = Policy::Certified(Certified { row_share: 0.25, ..Certified::default() });
    let policies = [Policy::default(), rows, Policy::Packed, Policy::Dense, Policy::Seed000(Default::default())];
    let mut seen = 0;
    for (i, format) in ["k8-v4g64-b16", "t4-v8g32-b32", "tq4-tq4-b16", "f16-v4g64-b64"].into_iter().enumerate() {
        for policy in if i == 0 { &policies[..] } else { &policies[..1] } {
            seen += compare(config(format, 0), config(format, 8), *policy, None, i as u64);
        }
    }
    assert!(seen > 2000, "{seen}");
}

/// Every token protects what is newest before it, not before the chunk.
#[test]
fn so_has_one_where_tokens_are_protected() {
    let protected = |chunk_tokens| config("t4-v4g64-b16", chunk_tokens).with_protection(Protection::new(20, 35));
    for policy in [Policy::default(), Policy::Packed] {
        compare(protected(0), protected(8), policy, None, 40);
    }
}

#[test]
fn so_has_one_in_a_window() {
    for (i, window) in
        [Window::new(20), Window::new(33).with_sinks(5), Window::new(16).with_sinks(32)].into_iter().enumerate()
    {
        let windowed = |chunk_tokens| config("k8-v4g64-b16", chunk_tokens).with_window(Window { chunk: 128, ..window });
        compare(windowed(0), windowed(8), Policy::default(), Some(window), 10 + i as u64);
    }
}

#[test]
fn so_has_one_whose_originals_lie_in_a_store() {
    let spilling = |chunk_tokens| {
        let store = Arc::new(MemoryStore::new(u64::MAX));
        Config { spill: Some(Spill::new(store, 128)), ..config("k8-v4g64-b16", chunk_tokens) }
    };
    for policy in [Policy::default(), Policy::Dense] {
        compare(spilling(0), spilling(8), policy, None, 20);
    }
}

/// Blocks that begin and fill inside one chunk, the first among them; beside another sequence, and with copies in scratch.
#[test]
fn a_chunk_longer_than_blocks_has_bounds_from_its_first_token_on() {
    let (g, mut r) = (geometry(), Rng::new(30));
    for window in [None, Some(Window { chunk: 64, ..Window::new(24).with_sinks(3) })] {
        let mut config = Config { scratch_keys: 16, scratch_values: 16, threads: 2, ..config("k8-v4g64-b16", 64) };
        config.windows = window.into_iter().map(Some).collect();
        let cache = Cache::new(config).unwrap();
        let [a, b] = [cache.create().unwrap(), cache.create().unwrap()];
        let mut models = [Model::new(&g), Model::new(&g)];
        for (first, second) in [(40, 1), (13, 64), (1, 2), (50, 7)] {
            let parts = [random_rows(&g, first, &mut r), random_rows(&g, second, &mut r)];
            let queries = random_queries(&g, first + second, &mut r);
            let before = [0, 1].map(|i| models[i].len(&g));
            models.iter_mut().zip(&parts).for_each(|(model, rows)| model.append(rows));
            let chunks = [Chunk { sequence: a, tokens: first }, Chunk { sequence: b, tokens: second }];
            let mut step = cache.begin(&chunks).unwrap();
            for layer in 0..g.layers {
                let joined =
                    |of: fn(&Model) -> &common::Layers| [&of(&parts[0])[layer][..], &of(&parts[1])[layer]].concat();
                step.append_bits(layer, &joined(|m| &m.keys), &joined(|m| &m.values)).unwrap();
                let mut answer = Answer::new(&g, first + second);
                step.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
                let rest = Answer {
                    out: answer.out.split_off(first * g.q_width()),
                    certificates: answer.certificates.split_off(first * g.q_heads),
                };
                let (of_a, of_b) = queries.split_at(first * g.q_width());
                assert_eq!(faults(&models[0], window, layer, before[0], of_a, &answer), 0, "{window:?} {first}");
                assert_eq!(faults(&models[1], window, layer, before[1], of_b, &rest), 0, "{window:?} {second}");
            }
            step.finish().unwrap();
        }
        if window.is_none() {
            assert_eq!(original_faults(&cache, a, &models[0]) + original_faults(&cache, b, &models[1]), 0);
        }
        assert_eq!(cache.check_report().findings(), 0);
    }
}

/// As long as prompts are: every query has a bound, and those that are looked at are within theirs.
#[test]
fn chunks_of_thousands_of_tokens_have_bounds() {
    let (g, mut r) = (geometry(), Rng::new(35));
    for (format, policy, past, tokens) in [
        ("k8-v4g64-b64", Policy::default(), 1000, 2048),
        ("tq4-tq4-b64", Policy::Packed, 77, 4096),
        ("k8-v4g64-b32", Policy::Packed, 0, 8192),
    ] {
        let device = SimOptions { mode: Mode::Eager, check: true };
        let most = past + tokens + 1;
        let format = format.parse().unwrap();
        let config = Config { device, chunk_tokens: 8192, threads: 2, ..Config::new(g, most).with_format(format) };
        let cache = Cache::new(config).unwrap();
        let (id, mut model) = (cache.create().unwrap(), random_rows(&g, past, &mut r));
        if past > 0 {
            fill(&cache, id, &model).unwrap();
        }
        let (rows, queries) = (random_rows(&g, tokens, &mut r), random_queries(&g, tokens, &mut r));
        model.append(&rows);
        let answers = step(&cache, id, &rows, &queries, policy).unwrap();
        for (layer, answer) in answers.iter().enumerate() {
            assert!(answer.certificates.iter().all(|c| c.bound().is_finite()), "{format}");
            for t in (0..tokens).step_by(tokens / 32 - 1) {
                let part = |of: usize| t * of..(t + 1) * of;
                let one = Answer {
                    out: answer.out[part(g.q_width())].to_vec(),
                    certificates: answer.certificates[part(g.q_heads)].to_vec(),
                };
                let wrong = faults(&model, None, layer, past + t, &queries[part(g.q_width())], &one);
                assert_eq!(wrong, 0, "{format}, token {t} of {tokens}");
            }
        }
        assert_eq!(original_faults(&cache, id, &model), 0);
        assert_eq!(cache.check_report().findings(), 0);
    }
}

/// A draft is attended, and some of its tokens are kept, as in speculative decoding; or the step is dropped.
#[test]
fn nothing_is_left_of_tokens_that_are_given_up() {
    let (g, mut r) = (geometry(), Rng::new(40));
    let cache = Cache::new(config("k8-v4g64-b16", 8)).unwrap();
    let (id, mut model) = (cache.create().unwrap(), random_rows(&g, 70, &mut r));
    fill(&cache, id, &model).unwrap();
    for round in 0..12 {
        let (draft, queries) = (random_rows(&g, 8, &mut r), random_queries(&g, 8, &mut r));
        let before = model.len(&g);
        let mut seen = model.clone();
        seen.append(&draft);
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 8 }]).unwrap();
        for layer in 0..g.layers {
            step.append_bits(layer, &draft.keys[layer], &draft.values[layer]).unwrap();
            // Asked twice, the second answer has the same tokens to go by.
            for _ in 0..2 {
                let mut answer = Answer::new(&g, 8);
                step.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
                assert_eq!(faults(&seen, None, layer, before, &queries, &answer), 0, "round {round}");
            }
        }
        let kept = round % 9;
        if kept == 0 {
            drop(step);
        } else {
            step.finish().unwrap();
            cache.truncate(id, before + kept).unwrap();
            model = seen;
            model.truncate(&g, before + kept);
        }
        assert_eq!((cache.len(id).unwrap(), original_faults(&cache, id, &model)), (model.len(&g), 0));
    }
    cache.release(id).unwrap();
    assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
}

#[test]
fn longer_chunks_and_other_caches_go_the_way_of_prompts() {
    let (g, mut r) = (geometry(), Rng::new(50));
    for (chunk_tokens, tokens, decodes) in
        [(0, 2, false), (1, 2, false), (3, 3, true), (3, 4, false), (1 << 31, 100, true)]
    {
        let cache = Cache::new(config("k8-v4g64-b16", chunk_tokens)).unwrap();
        let id = cache.create().unwrap();
        let (rows, queries) = (random_rows(&g, tokens, &mut r), random_queries(&g, tokens, &mut r));
        for answer in step(&cache, id, &rows, &queries, Policy::default()).unwrap() {
            let prompt = answer.certificates.iter().filter(|c| c.bound().is_infinite()).count();
            assert_eq!(prompt, if decodes { 0 } else { tokens * g.q_heads }, "{chunk_tokens} {tokens}");
        }
    }
    assert!(Cache::new(config("k8-v4g64-b16", (1 << 31) + 1)).is_err());
}

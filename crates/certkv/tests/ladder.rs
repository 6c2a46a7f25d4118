//! Each rung of the ladder, forced; and what holds on all of them: dense fallbacks have the baseline's bits, statuses say
//! no more than was shown, equal runs give equal bits on any number of threads.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(error <= bound) is how NaN fails")]
mod common;

use certkv::{
    Cache, Cause, Certificate, Certified, Chunk, Config, Dtype, Error, Geometry, Policy, Rung, Seed000, SequenceId,
    Status,
};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::distance;
use common::{Answer, Model, decode_faults, fill, original_faults, random_queries, random_rows, step};

const COARSE: &str = "t2-v2g32-b16";

/// One sequence of `tokens` tokens in two layers.
fn filled(format: &str, tokens: usize, threads: usize, seed: u64) -> (Cache, SequenceId, Model, Rng) {
    let geometry = Geometry::new(2, 8, 2, 64).unwrap();
    let config = Config { threads, ..Config::new(geometry, 512).with_format(format.parse().unwrap()) };
    let cache = Cache::new(config).unwrap();
    let mut r = Rng::new(seed);
    let model = random_rows(&geometry, tokens, &mut r);
    let sequence = cache.create().unwrap();
    fill(&cache, sequence, &model).unwrap();
    (cache, sequence, model, r)
}

/// Decodes one token in every layer in a step that is then dropped, so that policies can be compared on one state.
fn peek(cache: &Cache, sequence: SequenceId, rows: &Model, queries: &[f32], policy: Policy) -> Vec<Answer> {
    let geometry = *cache.geometry();
    let mut begun = cache.begin_with(&[Chunk { sequence, tokens: 1 }], policy).unwrap();
    (0..geometry.layers)
        .map(|layer| {
            let mut answer = Answer::new(&geometry, 1);
            begun.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
            begun.attend(layer, queries, &mut answer.out, &mut answer.certificates).unwrap();
            answer
        })
        .collect()
}

fn certified(tol_rel: f64, max_repairs: u32) -> Policy {
    Policy::Certified(Certified { tol_rel, max_repairs, ..Certified::default() })
}

/// Heads of a decode that ended densely, and how many of them differ in a bit from the baseline's.
fn dense_heads(answers: &[Answer], baseline: &[Answer], dim: usize) -> (usize, usize) {
    let (mut dense, mut differ) = (0, 0);
    for (a, b) in answers.iter().zip(baseline) {
        let (ours, theirs) = (a.bits(), b.bits());
        for (h, c) in a.certificates.iter().enumerate().filter(|(_, c)| c.rung >= Rung::DenseHead) {
            assert_eq!((c.status, c.e_key, c.e_val, c.e_drop), (Status::Exact, 0.0, 0.0, 0.0), "head {h}");
            dense += 1;
            differ += usize::from(ours[h * dim..(h + 1) * dim] != theirs[h * dim..(h + 1) * dim]);
        }
    }
    (dense, differ)
}

#[test]
fn without_repairs_every_head_ends_dense_with_the_baselines_bits() {
    let (mut executed, mut failed, mut caught) = (0, 0, 0);
    for tokens in [15, 16, 100, 160, 255] {
        for (format, threads) in [(COARSE, 1), ("k8-v4g32-b32", 2), ("t4-f16-b16", 1)] {
            let (cache, sequence, model, mut r) = filled(format, tokens, threads, tokens as u64);
            let g = *cache.geometry();
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            let baseline = peek(&cache, sequence, &rows, &queries, Policy::Dense);
            let answers = peek(&cache, sequence, &rows, &queries, certified(1e-12, 0));
            let coded = (tokens + 1) / cache.layout(0).unwrap().tokens() > 0;
            let (dense, differ) = dense_heads(&answers, &baseline, g.head_dim);
            executed += dense;
            failed += differ;
            let mut seen = model.clone();
            seen.append(&rows);
            for (layer, a) in answers.iter().enumerate() {
                for c in &a.certificates {
                    if coded {
                        assert_eq!((c.rung, c.cause, c.repairs), (Rung::DenseHead, Cause::RepairsUsed, 0));
                        assert!(c.candidate_e_key + c.candidate_e_val > 0.0, "the candidate's error is not reported");
                    } else {
                        assert_eq!((c.status, c.rung, c.quantisation()), (Status::Certified, Rung::Packed, 0.0));
                    }
                }
                let exact = seen.attend(&g, layer, tokens + 1, &queries);
                assert_eq!(decode_faults(&exact, &a.out, &a.certificates, 1e-12), 0);
            }
            // The control: outputs from codes do not have the baseline's bits.
            let packed = peek(&cache, sequence, &rows, &queries, Policy::Packed);
            caught += usize::from(coded && packed[0].bits() != baseline[0].bits());
        }
    }
    println!("GATE dense-bits executed={executed} failed={failed} controls={caught}/13 seed=0xf");
    assert!(executed >= 150 && failed == 0 && caught == 13);
}

#[test]
fn the_dense_baseline_is_exact_and_bounds_its_arithmetic() {
    for tokens in [10, 15, 100, 255] {
        for format in [COARSE, "k8-v4g32-b32", "f16-f16-b32"] {
            let (cache, sequence, model, mut r) = filled(format, tokens, 1, 6);
            let g = *cache.geometry();
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            let mut seen = model;
            seen.append(&rows);
            for (layer, a) in peek(&cache, sequence, &rows, &queries, Policy::Dense).iter().enumerate() {
                for c in &a.certificates {
                    let what = (c.status, c.rung, c.cause);
                    assert_eq!(what, (Status::Exact, Rung::DenseLayer, Cause::Requested), "{format}, {tokens} tokens");
                    assert!(c.quantisation() == 0.0 && c.e_arith.is_finite(), "{c:?}");
                }
                let exact = seen.attend(&g, layer, tokens + 1, &queries);
                assert_eq!(decode_faults(&exact, &a.out, &a.certificates, 0.0), 0);
            }
        }
    }
}

#[test]
fn packed_outputs_stay_uncertified_and_carry_their_bound() {
    let (cache, sequence, model, mut r) = filled("k8-v4g32-b32", 200, 1, 4);
    let g = *cache.geometry();
    let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
    let mut seen = model;
    seen.append(&rows);
    for (layer, a) in peek(&cache, sequence, &rows, &queries, Policy::Packed).iter().enumerate() {
        let exact = seen.attend(&g, layer, 201, &queries);
        for (h, c) in a.certificates.iter().enumerate() {
            assert_eq!((c.status, c.rung, c.cause, c.repairs), (Status::Uncertified, Rung::Packed, Cause::None, 0));
            assert!(c.e_key > 0.0 && c.e_val > 0.0 && c.bound().is_finite() && !c.is_within(f64::INFINITY));
            assert_eq!(c.candidate_bound, c.bound());
            let got: Vec<f64> = a.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
            assert!(distance(&exact[h], &got) <= c.bound());
        }
    }
}

/// The first two rungs come up as the tolerance falls, and repairs bring heads back under it.
#[test]
fn repairs_fetch_keys_and_values_and_come_back_under_the_tolerance() {
    let mut rungs = [0u64; 5];
    let mut executed = 0;
    for (seed, format) in
        ["k8-v2g32-b16", "t2-v8g16-b16", "t4-v4g32-b32", COARSE, "tq4-tq4-b32"].into_iter().cycle().take(15).enumerate()
    {
        let (cache, sequence, model, mut r) = filled(format, 230, 1, seed as u64);
        let g = *cache.geometry();
        for tol in [0.3, 0.1, 0.03] {
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            let mut seen = model.clone();
            seen.append(&rows);
            let answers = peek(&cache, sequence, &rows, &queries, certified(tol, 6));
            for (layer, a) in answers.iter().enumerate() {
                let exact = seen.attend(&g, layer, 231, &queries);
                assert_eq!(
                    decode_faults(&exact, &a.out, &a.certificates, tol),
                    0,
                    "{format} at {tol}: {:?}",
                    a.certificates
                );
                for c in &a.certificates {
                    executed += 1;
                    rungs[c.rung as usize] += 1;
                    let moved = c.promoted_keys + c.promoted_values > 0;
                    assert!(moved || c.rung == Rung::Packed || c.rung >= Rung::DenseHead, "{c:?}");
                    assert!(c.repairs <= 6 && c.cause != Cause::Integrity, "{c:?}");
                    if c.rung == Rung::Packed {
                        assert_eq!(c.cause, Cause::None);
                    }
                }
            }
        }
    }
    println!("rungs {rungs:?} of {executed} heads");
    assert!(rungs[1] > 0 && rungs[2] > 0, "a rung never ran: {rungs:?}");
}

#[test]
fn no_more_keys_are_promoted_than_the_cap_allows() {
    for k_cap in [0, 1, 3, 9] {
        let (cache, sequence, _, mut r) = filled(COARSE, 240, 1, 8);
        let g = *cache.geometry();
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        let baseline = peek(&cache, sequence, &rows, &queries, Policy::Dense);
        let policy = Policy::Certified(Certified { tol_rel: 0.001, k_cap, ..Certified::default() });
        let answers = peek(&cache, sequence, &rows, &queries, policy);
        let (dense, differ) = dense_heads(&answers, &baseline, g.head_dim);
        for c in answers.iter().flat_map(|a| &a.certificates).filter(|c| c.rung < Rung::DenseHead) {
            assert!(c.promoted_keys as usize <= k_cap, "{} blocks promoted, at most {k_cap} allowed", c.promoted_keys);
        }
        assert!(dense > 0 && differ == 0, "{dense} dense, {differ} differ");
    }
}

#[test]
fn the_published_policy_runs_and_its_fallbacks_have_the_baselines_bits() {
    let (mut executed, mut failed, mut kept) = (0, 0, 0);
    for seed in 0..8 {
        let (cache, sequence, model, mut r) = filled(COARSE, 200 + seed as usize, 1, seed);
        let g = *cache.geometry();
        for rank in [1, 3] {
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            let baseline = peek(&cache, sequence, &rows, &queries, Policy::Dense);
            let policy = Policy::Seed000(Seed000 { rank, k_max: 4, ..Seed000::default() });
            let answers = peek(&cache, sequence, &rows, &queries, policy);
            let (dense, differ) = dense_heads(&answers, &baseline, g.head_dim);
            executed += dense;
            failed += differ;
            let mut seen = model.clone();
            seen.append(&rows);
            for (layer, a) in answers.iter().enumerate() {
                assert!(a.out.iter().all(|x| x.is_finite()));
                let exact = seen.attend(&g, layer, seen.len(&g), &queries);
                for (h, c) in a.certificates.iter().enumerate() {
                    assert!(c.cause != Cause::Integrity, "{c:?}");
                    let got: Vec<f64> = a.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                    if c.rung < Rung::DenseHead {
                        // Thresholds decide in the paper: the bound is reported and nothing is certified.
                        assert!(c.status == Status::Uncertified && c.quantisation() >= 0.0, "{c:?}");
                        kept += 1;
                    } else {
                        assert!(distance(&exact[h], &got) <= c.bound(), "{c:?}");
                    }
                }
            }
        }
    }
    println!(
        "GATE published-dense-bits executed={executed} failed={failed} controls={}/1 seed=0x0",
        u8::from(kept > 0)
    );
    assert!(executed > 0 && failed == 0 && kept > 0, "{executed} fallbacks, {kept} kept");
}

#[test]
fn the_published_policy_explores_what_it_is_told_to() {
    let (cache, sequence, _, mut r) = filled(COARSE, 300, 1, 5);
    let g = *cache.geometry();
    let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
    let promoted = |explore_rate: f64| -> u32 {
        // Few keys by coverage, so that exploration is what makes the difference.
        let policy = Policy::Seed000(Seed000 { tau_cov: 0.1, k_min: 1, rank: 0, explore_rate, ..Seed000::default() });
        let answers = peek(&cache, sequence, &rows, &queries, policy);
        answers.iter().flat_map(|a| &a.certificates).map(|c| c.promoted_keys).min().unwrap()
    };
    let (none, all) = (promoted(0.0), promoted(1.0));
    assert!(none < all && all as usize >= 300 / 16, "{none} and {all}");
}

/// Outputs and certificates of a whole run under each policy in turn.
fn run(threads: usize) -> Vec<(Vec<u32>, Vec<Certificate>)> {
    let (cache, a, _, mut r) = filled("t4-v4g32-b16", 150, threads, 12);
    let g = *cache.geometry();
    let b = cache.fork(a).unwrap();
    let explored = Certified { explore_rate: 0.1, tol_rel: 0.02, ..Certified::default() };
    let policies = [
        Policy::Certified(explored),
        Policy::default(),
        certified(0.001, 1),
        Policy::Seed000(Seed000::default()),
        Policy::Packed,
        Policy::Dense,
    ];
    let mut all = Vec::new();
    for i in 0..36 {
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        for answer in step(&cache, if i % 3 == 0 { b } else { a }, &rows, &queries, policies[i % 6]).unwrap() {
            all.push((answer.bits(), answer.certificates));
        }
    }
    let (rows, queries) = (random_rows(&g, 40, &mut r), random_queries(&g, 40, &mut r));
    for answer in step(&cache, b, &rows, &queries, Policy::default()).unwrap() {
        // What a chunk's certificates leave open is NaN: compare the outputs.
        all.push((answer.bits(), Vec::new()));
    }
    all
}

#[test]
fn equal_runs_give_equal_bits_on_any_number_of_threads() {
    let first = run(1);
    for threads in [1, 2, 3] {
        for (i, (a, b)) in first.iter().zip(&run(threads)).enumerate() {
            assert!(a.0 == b.0, "output {i} differs on {threads} threads");
            assert!(a.1 == b.1, "certificates {i} differ on {threads} threads: {:?} {:?}", a.1, b.1);
        }
    }
    // The control: another tolerance gives other certificates, so the comparison sees them.
    assert!(first[0].1 != first[2].1);
}

/// Logits beyond what single precision can hold: a bound that holds, or an error and nothing written.
#[test]
fn what_cannot_be_bounded_fails_closed() {
    let (mut failed, mut bounded) = (0, 0);
    for exponent in [2, 8, 16, 24, 30, 34, 37] {
        for policy in [Policy::default(), Policy::Dense, Policy::Packed, Policy::Seed000(Seed000::default())] {
            let (cache, sequence, model, mut r) = filled("k8-v4g32-b32", 70, 1, exponent as u64);
            let g = *cache.geometry();
            let rows = random_rows(&g, 1, &mut r);
            let mut queries = random_queries(&g, 1, &mut r);
            queries.iter_mut().for_each(|q| *q *= 10f32.powi(exponent));
            queries.iter_mut().for_each(|q| *q = q.clamp(-f32::MAX, f32::MAX));
            let mut seen = model.clone();
            seen.append(&rows);
            let mut begun = cache.begin_with(&[Chunk { sequence, tokens: 1 }], policy).unwrap();
            begun.append_bits(0, &rows.keys[0], &rows.values[0]).unwrap();
            let mut a = Answer::new(&g, 1);
            match begun.attend(0, &queries, &mut a.out, &mut a.certificates) {
                Ok(()) => {
                    let exact = seen.attend(&g, 0, 71, &queries);
                    for (h, c) in a.certificates.iter().enumerate() {
                        let got: Vec<f64> = a.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                        // Nothing that may not be used comes back from a call that succeeds.
                        assert!(c.status != Status::Failed, "1e{exponent} {policy:?}: {c:?}");
                        let shown = matches!(c.status, Status::Certified | Status::Exact);
                        let beyond = !(distance(&exact[h], &got) <= c.bound());
                        assert!(!(shown && beyond), "1e{exponent} {policy:?}: {c:?}");
                        assert!(!shown || c.bound().is_finite(), "1e{exponent} {policy:?}: {c:?}");
                        bounded += u32::from(shown);
                    }
                }
                Err(e) => {
                    assert!(a.out.iter().all(|x| x.is_nan()), "an output was written: {e}");
                    assert!(a.certificates.iter().all(|c| c.status == Status::Uncertified), "{e}");
                    failed += 1;
                }
            }
            drop(begun);
            assert_eq!(original_faults(&cache, sequence, &model), 0);
            // A chunk: finite outputs, or an error and nothing written.
            let rows = random_rows(&g, 2, &mut r);
            let queries: Vec<f32> = queries.iter().chain(&queries).copied().collect();
            let mut begun = cache.begin_with(&[Chunk { sequence, tokens: 2 }], policy).unwrap();
            begun.append_bits(0, &rows.keys[0], &rows.values[0]).unwrap();
            let mut a = Answer::new(&g, 2);
            match begun.attend(0, &queries, &mut a.out, &mut a.certificates) {
                Ok(()) => assert!(a.out.iter().all(|x| x.is_finite()), "1e{exponent}: a chunk with NaN outputs"),
                Err(e) => assert!(a.out.iter().all(|x| x.is_nan()), "an output was written: {e}"),
            }
        }
    }
    println!("{bounded} heads bounded, {failed} calls failed closed");
    assert!(bounded > 0);
}

/// Rows whose scales overflow their type cannot be coded: such blocks are read from the originals, and the rest goes on.
#[test]
fn blocks_without_codes_are_read_exactly() {
    let geometry = Geometry { store: Dtype::Bf16, ..Geometry::new(1, 2, 1, 64).unwrap() };
    let cache = Cache::new(Config::new(geometry, 256).with_format("k8-v4g32-b16".parse().unwrap())).unwrap();
    let sequence = cache.create().unwrap();
    let mut r = Rng::new(21);
    let mut row = |large: bool| -> Vec<u16> {
        (0..64).map(|c| Dtype::Bf16.encode16((r.normal() * if large && c == 7 { 1e9 } else { 1.0 }) as f32)).collect()
    };
    let mut model = Model::new(&geometry);
    for t in 0..100 {
        let large = (20..24).contains(&t);
        let rows = Model { keys: vec![row(false)], values: vec![row(large)] };
        let queries: Vec<f32> = (0..2).flat_map(|_| row(false)).map(|b| Dtype::Bf16.decode16(b)).collect();
        model.append(&rows);
        // The large rows dominate the output, so the tolerance is easy: what is checked is that the bound holds.
        let answers = step(&cache, sequence, &rows, &queries, Policy::default()).unwrap();
        let exact = model.attend(&geometry, 0, t + 1, &queries);
        let a = &answers[0];
        assert_eq!(decode_faults(&exact, &a.out, &a.certificates, 0.05), 0, "token {t}: {:?}", a.certificates);
        if t >= 32 {
            assert!(a.certificates.iter().all(|c| c.promoted_values >= 1), "the block without codes was not promoted");
        }
    }
    assert_eq!(original_faults(&cache, sequence, &model), 0);
    // Cut away, it is forgotten.
    cache.truncate(sequence, 10).unwrap();
    model.truncate(&geometry, 10);
    let rows = Model {
        keys: vec![(0..30).flat_map(|_| row(false)).collect()],
        values: vec![(0..30).flat_map(|_| row(false)).collect()],
    };
    model.append(&rows);
    fill(&cache, sequence, &rows).unwrap();
    let last = Model { keys: vec![row(false)], values: vec![row(false)] };
    model.append(&last);
    let queries: Vec<f32> = (0..2).flat_map(|_| row(false)).map(|b| Dtype::Bf16.decode16(b)).collect();
    let a = &step(&cache, sequence, &last, &queries, Policy::Packed).unwrap()[0];
    assert!(a.certificates.iter().all(|c| c.promoted_values == 0 && c.bound().is_finite()));
}

/// A record that nobody wrote certifies nothing, whatever failed.
#[test]
fn certificates_of_failed_calls_are_uncertified() {
    let (cache, sequence, _, mut r) = filled("k8-v4g32-b32", 40, 1, 2);
    let g = *cache.geometry();
    let claims = Certificate {
        status: Status::Exact,
        e_arith: 0.0,
        e_key: 0.0,
        e_val: 0.0,
        e_drop: 0.0,
        ..Certificate::default()
    };
    assert!(claims.is_within(0.1));
    let mut certificates = vec![claims; g.q_heads];
    let mut out = vec![1.0; g.q_width()];
    let mut begun = cache.begin(&[Chunk { sequence, tokens: 1 }]).unwrap();
    let queries = random_queries(&g, 1, &mut r);
    assert!(matches!(begun.attend(0, &queries, &mut out, &mut certificates), Err(Error::Order { .. })));
    assert!(certificates.iter().all(|c| c.status == Status::Uncertified && !c.is_within(f64::INFINITY)));
    assert!(out.iter().all(|x| *x == 1.0));
}

/// A cap holds from the first step under it, whatever an earlier step promoted.
#[test]
fn a_narrower_cap_on_keys_holds_at_once() {
    let (cache, sequence, _, mut r) = filled(COARSE, 200, 1, 7);
    let g = *cache.geometry();
    let capped = |k_cap| Policy::Certified(Certified { tol_rel: 0.05, k_cap, ..Certified::default() });
    let mut most = 0;
    for k_cap in [usize::MAX, usize::MAX, 1] {
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        for c in step(&cache, sequence, &rows, &queries, capped(k_cap)).unwrap().iter().flat_map(|a| &a.certificates) {
            assert!(c.promoted_keys as usize <= k_cap, "{} under {k_cap}", c.promoted_keys);
            most = most.max(c.promoted_keys);
        }
    }
    assert!(most > 1, "no step promoted more than the cap allows");
}

/// Values that a repair picks are multiplied by weights that are known: keys, which have 16 bits here, are read once. In the first step, which knows
/// nothing, repairs pick all that is promoted: had they read keys, that would be seen.
#[test]
fn repairs_of_values_read_no_keys() {
    let (mut executed, mut again, mut planted, mut caught) = (0, 0, 0, 0);
    for seed in 0..8 {
        let (cache, sequence, _, mut r) = filled("f16-v2g32-b16", 400, 1, seed);
        let (g, l) = (*cache.geometry(), cache.layout(0).unwrap().clone());
        for round in 0..10 {
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            let answers = step(&cache, sequence, &rows, &queries, certified(0.1, 6)).unwrap();
            let (blocks, open) = ((401 + round) / 16, (401 + round) % 16);
            let repaired = |c: &&Certificate| c.repairs > 0 && c.rung < Rung::DenseHead;
            for c in answers.iter().flat_map(|a| &a.certificates).filter(repaired) {
                let promoted = c.promoted_values as usize;
                let of_values = 2 * blocks * l.value_bytes() + promoted * l.original_side_bytes();
                let most = blocks * (l.key_bytes() + l.summary.len()) + of_values + open * g.head_dim * 4;
                let read = (c.bytes.packed + c.bytes.scratch + c.bytes.host) as usize;
                executed += 1;
                again += usize::from(read > most);
                if round == 0 {
                    planted += 1;
                    caught += usize::from(read + promoted * l.key_bytes() > most);
                }
            }
        }
    }
    println!("repaired heads {executed}, of which {again} read keys again; {caught} of {planted} would have been seen");
    assert!(executed > 100 && again == 0 && planted > 20 && caught == planted, "{executed} {again} {caught}/{planted}");
}

//! Tolerances of a call and of a head: each output is held to its own, bounds hold, and what is asked of one KV head costs the others nothing.
mod common;

use certkv::{Cache, Chunk, Config, Error, Geometry, Mode, Policy, SequenceId, SimOptions, Status, Tolerance};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::distance;
use common::{Answer, Model, exact, fill, random_queries, random_rows};

fn geometry() -> Geometry {
    Geometry::new(1, 4, 2, 64).unwrap()
}

/// A cache and a sequence of some tokens.
fn filled(r: &mut Rng) -> (Cache, SequenceId, Model) {
    let device = SimOptions { mode: Mode::Eager, check: true };
    let config = Config { device, ..Config::new(geometry(), 600).with_format("t4-v4g64-b16".parse().unwrap()) };
    let (cache, model) = (Cache::new(config).unwrap(), random_rows(&geometry(), 300, r));
    let id = cache.create().unwrap();
    fill(&cache, id, &model).unwrap();
    (cache, id, model)
}

/// Attention of one more token under some tolerances, of which nothing is kept.
fn attend(cache: &Cache, id: SequenceId, row: &Model, queries: &[f32], tolerances: &[Tolerance]) -> Answer {
    let mut step = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    step.append_bits(0, &row.keys[0], &row.values[0]).unwrap();
    step.set_tolerances(tolerances).unwrap();
    let mut answer = Answer::new(&geometry(), 1);
    step.attend(0, queries, &mut answer.out, &mut answer.certificates).unwrap();
    answer
}

#[test]
fn every_head_is_held_to_its_own() {
    let (g, mut r) = (geometry(), Rng::new(1));
    let (cache, id, mut model) = filled(&mut r);
    let row = random_rows(&g, 1, &mut r);
    model.append(&row);
    for i in 0..40 {
        let queries: Vec<f32> = random_queries(&g, 1, &mut r).iter().map(|q| 0.3 * q).collect();
        let truth = exact(&g, &model, 0, 300, None, &queries);
        let strict = [0.01, 0.02, 0.5, 0.5].map(Tolerance::relative);
        let mixed = [Tolerance { relative: 0.02, absolute: 0.4 }, Tolerance::absolute(0.05), strict[2], strict[3]];
        for tolerances in [&strict[..], &mixed, &[Tolerance::absolute(0.1)], &[]] {
            let answer = attend(&cache, id, &row, &queries, tolerances);
            for (h, c) in answer.certificates.iter().enumerate() {
                let own = tolerances.get(if tolerances.len() == 1 { 0 } else { h });
                let own = own.copied().unwrap_or(Tolerance::relative(0.05));
                let held = (own.relative * c.out_norm).max(own.absolute);
                assert!((c.tol - held).abs() <= 1e-12 * held, "{i} head {h}: {c:?} {own:?}");
                let got: Vec<f64> = answer.out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                let fine = matches!(c.status, Status::Certified | Status::Exact) && c.quantisation() <= c.tol;
                assert!(fine && distance(&truth[h], &got) <= c.bound(), "{i} head {h}: {c:?}");
            }
        }
    }
    assert_eq!(cache.check_report().findings(), 0);
}

#[test]
fn what_is_asked_of_one_head_costs_another_nothing() {
    let (g, mut r) = (geometry(), Rng::new(3));
    let (cache, id, _) = filled(&mut r);
    let row = random_rows(&g, 1, &mut r);
    let (mut bytes, far) = ([0; 2], Tolerance::absolute(1e3));
    for _ in 0..10 {
        // Small, so that no block needs exact keys for the lenient head.
        let queries: Vec<f32> = random_queries(&g, 1, &mut r).iter().map(|q| 0.1 * q).collect();
        let answer = attend(&cache, id, &row, &queries, &[Tolerance::relative(0.01), far, far, far]);
        answer.certificates.iter().enumerate().for_each(|(h, c)| bytes[h / 2] += c.bytes.host);
    }
    // Beside the open block, which both read.
    assert!(bytes[0] > 4 * bytes[1], "{bytes:?}");
}

#[test]
fn wrong_ones_are_refused_and_change_nothing() {
    let (g, mut r) = (geometry(), Rng::new(2));
    let (cache, id, _) = filled(&mut r);
    let (row, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
    let mut step = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    step.append_bits(0, &row.keys[0], &row.values[0]).unwrap();
    step.set_tolerances(&[Tolerance::absolute(2.0)]).unwrap();
    let fine = Tolerance::relative(0.1);
    for (relative, absolute) in
        [(f64::NAN, 1.0), (1.0, f64::NAN), (-0.1, 1.0), (1.0, -0.1), (0.0, 0.0), (f64::INFINITY, 0.0)]
    {
        let wrong = Tolerance { relative, absolute };
        assert!(matches!(step.set_tolerances(&[wrong]), Err(Error::Policy(why)) if why.contains("tolerances[0]")));
        let last = [fine, fine, fine, wrong];
        assert!(matches!(step.set_tolerances(&last), Err(Error::Policy(why)) if why.contains("tolerances[3]")));
    }
    for heads in [2, 3, 5] {
        let refused = step.set_tolerances(&vec![fine; heads]);
        assert!(matches!(refused, Err(Error::Shape { argument: "tolerances", expected: 4, .. })), "{refused:?}");
    }
    let mut answer = Answer::new(&g, 1);
    step.attend(0, &queries, &mut answer.out, &mut answer.certificates).unwrap();
    assert!(answer.certificates.iter().all(|c| c.tol == 2.0));
    drop(step);
    let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], Policy::Dense).unwrap();
    assert!(matches!(step.set_tolerances(&[fine]), Err(Error::Policy(_))));
}

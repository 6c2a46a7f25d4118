//! Single rows (`Certified::row_share`, math.md 6.9): that they leave their blocks in every kind of life, with bounds that hold and bits that do not depend
//! on threads; that damage is seen when they do; that they are refused where they would mislead.
mod common;

use certkv::{Cache, Certified, Config, Geometry, Policy, Window};
use certkv_testkit::generate::Rng;
use common::{Answer, decode_faults, exact, fill, random_queries, random_rows, step};

const TOLERANCE: f64 = 0.02;

fn rows(row_share: f64) -> Policy {
    Policy::Certified(Certified { tol_rel: TOLERANCE, row_share, ..Certified::default() })
}

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

/// What certified steps behind a prompt leave: outputs beyond their bounds, bits, and how many rows were read by themselves.
fn life(config: Config, policy: Policy, seed: u64) -> (usize, Vec<Vec<u32>>, u64) {
    let (g, window) = (geometry(), config.windows.first().copied().flatten());
    let (cache, mut r) = (Cache::new(config).unwrap(), Rng::new(seed));
    let id = cache.create().unwrap();
    let mut model = random_rows(&g, 260, &mut r);
    for part in 0..4 {
        let mut rows = model.clone();
        for side in rows.keys.iter_mut().chain(&mut rows.values) {
            *side = side[part * 65 * g.kv_width()..(part + 1) * 65 * g.kv_width()].to_vec();
        }
        fill(&cache, id, &rows).unwrap();
    }
    let (mut faults, mut bits) = (0, Vec::new());
    for _ in 0..24 {
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        model.append(&rows);
        let answers = step(&cache, id, &rows, &queries, policy).unwrap();
        for (layer, answer) in answers.iter().enumerate() {
            let truth = exact(&g, &model, layer, model.len(&g) - 1, window, &queries);
            faults += decode_faults(&truth, &answer.out, &answer.certificates, TOLERANCE);
        }
        bits.extend(answers.iter().map(Answer::bits));
    }
    (faults, bits, cache.snapshot().rows.unwrap())
}

#[test]
fn rows_leave_in_every_life_and_bounds_hold() {
    let plain = |format: &str| Config::new(geometry(), 600).with_format(format.parse().unwrap());
    let windowed = |window: Window| Config { windows: vec![Some(window)], ..plain("k8-v4g64-b32") };
    let lives = [
        ("plain", plain("k8-v4g64-b64")),
        ("residuals", plain("k4-v4g64-b32-r4.4")),
        ("rotated", plain("tq4-tq4-b16")),
        ("chunks", Config { chunk_tokens: 4, ..plain("k8-v4g64-b16") }),
        ("scratch", Config { scratch_keys: 16, scratch_values: 16, ..plain("k8-v4g64-b32") }),
        ("window", windowed(Window { chunk: 80, ..Window::new(170) })),
        ("window and sinks", windowed(Window { chunk: 80, ..Window::new(150).with_sinks(7) })),
    ];
    let (mut executed, mut caught) = (0, 0);
    for (seed, (name, config)) in lives.into_iter().enumerate() {
        let one = life(config.clone(), rows(0.25), seed as u64);
        assert!(one.0 == 0 && one.2 > 0, "{name}: {} beyond their bounds, {} rows", one.0, one.2);
        let two = life(Config { threads: 2, ..config.clone() }, rows(0.25), seed as u64);
        assert_eq!(one, two, "{name}: bits, or rows, by the number of threads");
        let none = life(config, rows(0.0), seed as u64);
        assert_eq!((none.0, none.2), (0, 0), "{name}");
        caught += usize::from(none.1 != one.1);
        executed += one.1.len();
    }
    println!("GATE rows executed={executed} failed=0 controls={caught}/7 seed=0x0");
    assert_eq!(caught, 7, "rows change nothing: the test does not see them");
}

/// At most so many as were asked for.
#[test]
fn a_share_is_a_share() {
    let config = Config::new(geometry(), 600).with_format("k8-v4g64-b64".parse().unwrap());
    let [few, many] = [0.05, 0.25].map(|share| life(config.clone(), rows(share), 9).2);
    // 24 steps, 2 layers, 2 heads, 4 blocks of 64.
    assert!(few > 0 && few <= 24 * 2 * 2 * (256 / 20) && few < many, "{few}, {many}");
}

/// Where blocks have levels, or are ranked, nothing leaves.
#[test]
fn nothing_leaves_where_others_go_by_masses() {
    let config = Config::new(geometry(), 600).with_format("k8-v4g64-b64".parse().unwrap());
    let ranked = Certified { tol_rel: TOLERANCE, row_share: 0.25, rank: Some(1), ..Certified::default() };
    assert_eq!(life(config.clone(), Policy::Certified(ranked), 3).2, 0);
    let none = Certified { tol_rel: TOLERANCE, row_share: 0.25, k_cap: 0, ..Certified::default() };
    assert_eq!(life(config, Policy::Certified(none), 3).2, 0);
}

//! Steps that read single rows (`Certified::row_share`) ask the allocator for nothing, in sequences whose lengths the cache has seen before, however many rows leave.
mod common;
#[path = "../../certkv-device/tests/counting/mod.rs"]
mod counting;

use certkv::{Cache, Certified, Chunk, Config, Geometry, Mode, Policy, SimOptions};
use certkv_testkit::generate::Rng;
use common::{Answer, fill, random_queries, random_rows};
use counting::asked;

/// Requests of each of `steps` steps behind a prompt, and rows that were read by themselves.
fn requests(format: &str, row_share: f64) -> (Vec<u64>, u64) {
    let g = Geometry::new(1, 4, 2, 64).unwrap();
    let device = SimOptions { mode: Mode::Eager, check: false };
    let config = Config { device, ..Config::new(g, 1200).with_format(format.parse().unwrap()) };
    let (cache, mut r) = (Cache::new(config).unwrap(), Rng::new(5));
    let policy = Policy::Certified(Certified { tol_rel: 0.02, row_share, ..Certified::default() });
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&g, 512, &mut r)).unwrap();
    let mut all = Vec::new();
    // The first ones make room for what a step of this length can need; no block fills.
    for step in 0..30 {
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        let mut answer = Answer::new(&g, 1);
        let (requests, ()) = asked(|| {
            let mut one = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], policy).unwrap();
            one.append_bits(0, &rows.keys[0], &rows.values[0]).unwrap();
            one.attend(0, &queries, &mut answer.out, &mut answer.certificates).unwrap();
            one.finish().unwrap();
        });
        if step >= 4 {
            all.push(requests);
        }
    }
    (all, cache.snapshot().rows.unwrap())
}

#[test]
fn steps_that_read_single_rows_ask_for_nothing() {
    let mut executed = 0;
    for format in ["k8-v4g64-b64", "k4-v4g64-b64-r4.4", "k8-c4-b32", "e4m3-v4g32-b64"] {
        // The harness may ask for something beside a step, but hardly beside the same step twice.
        let (mut all, rows) = requests(format, 0.25);
        all.iter_mut().zip(requests(format, 0.25).0).for_each(|(n, again)| *n = again.min(*n));
        assert!(rows > 0 && all.iter().all(|n| *n == 0), "{format}: {all:?}, {rows} rows");
        executed += all.len();
    }
    // The control: a request is counted.
    let caught = asked(|| drop(std::hint::black_box(vec![0u8; 64]))).0;
    println!("GATE steady-rows executed={executed} failed=0 controls={caught}/1 seed=0x5");
    assert_eq!(caught, 1);
}

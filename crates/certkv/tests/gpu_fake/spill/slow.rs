//! Stores that take their time.
use super::{BLOCK, FORMATS, Policy, World, alone, certified, kernels, with};
use crate::unruly::Unruly;
use certkv::gpu::{Gpu, GpuCache};
use certkv_testkit::generate::Rng;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_put_that_is_under_way_does_not_outlive_its_cache() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    for released in [false, true] {
        let mut w = super::small(compiler, &gpu);
        w.backend.take(Duration::from_millis(30), Duration::ZERO);
        let id = w.cache.create().expect("a sequence");
        w.live.push((id, Vec::new()));
        (0..9).for_each(|_| w.step(&[(0, BLOCK)], certified()));
        if released {
            w.cache.release(id).expect("a release");
        }
        let putting = w.cache.snapshot().spill.expect("originals spill").records.putting;
        assert!(putting > 0, "nothing was under way");
        let World { cache, backend, .. } = w;
        drop(cache);
        assert_eq!(backend.inner.bytes(), 0, "a record that nobody names, released: {released}");
    }
}

#[test]
fn deletes_do_not_stand_in_the_way_of_reads() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    kernels::begin(FORMATS[0]);
    let backend = Arc::new(Unruly::new());
    let mut config = with(FORMATS[0], backend.clone());
    (config.max_tokens, config.max_sequences) = (9 * 56 * BLOCK, 56);
    config.spill.iter_mut().for_each(|spill| spill.in_flight = 2);
    let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let mut w = World {
        cache,
        erase: false,
        backend,
        live: Vec::new(),
        r: Rng::new(1),
        next: 0,
        errors: Vec::new(),
        refused: 0,
        heads: 0,
        seen: [0; 8],
    };
    for at in 0..56 {
        let id = w.cache.create().expect("a sequence");
        w.live.push((id, Vec::new()));
        (0..8).for_each(|_| w.step(&[(at, BLOCK)], certified()));
    }
    w.backend.take(Duration::ZERO, Duration::from_millis(1));
    for (id, _) in w.live.split_off(1) {
        w.cache.release(id).expect("a release");
    }
    let doomed = |w: &World| w.cache.snapshot().spill.expect("originals spill").records.doomed;
    assert!(doomed(&w) > 10 * 64, "{} records to be deleted", doomed(&w));
    w.step(&[(0, 1)], Policy::Dense);
    assert!(w.errors.is_empty() && w.live[0].1.len() == 8 * BLOCK + 1, "{:?}", w.errors);
    assert!(doomed(&w) > 64, "deletes were over before anybody read");
    w.backend.take(Duration::ZERO, Duration::ZERO);
    assert_eq!(w.end(), [0; 3]);
}

//! Originals that are brought back before a step asks for them.
use super::{BLOCK, LAYERS, World, alone, certified, small};
use certkv::gpu::Gpu;
use certkv::{Error, Policy};

#[test]
fn what_was_brought_ahead_is_not_waited_for() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let mut w = small(compiler, &gpu);
    let id = w.filled();
    let fetched = |w: &World| w.cache.snapshot().fetches.expect("originals spill").done.sum;
    let before = fetched(&w);
    let ahead = w.cache.prefetch(id).expect("originals");
    let after = fetched(&w);
    // What the store does not have yet stays in its room.
    assert!(ahead.wanted == 8 * LAYERS && ahead.left < 8 && ahead.fetched > 4, "{ahead:?}");
    assert_eq!(ahead.bytes, after - before);
    let each = ahead.bytes / ahead.fetched as u64;
    w.step(&[(0, 1)], Policy::Dense);
    let with = fetched(&w) - after;
    assert!(with <= ahead.left as u64 * each, "{with} bytes waited for, {ahead:?}");
    // Of the other all is there or comes back, as far as there is room.
    let other = w.live[1].0;
    let ahead = w.cache.prefetch(other).expect("originals");
    assert!(ahead.fetched > 0 && ahead.fetched + ahead.left <= ahead.wanted, "{ahead:?}");
    let from = fetched(&w);
    w.step(&[(0, 1)], Policy::Dense);
    assert!(fetched(&w) - from > with, "without it a step waits for more");
    // Behind a step that found some away, only layers in which a head needed every block are asked for. All layers have the same queries here.
    let mut layers = [0; LAYERS + 1];
    for _ in 0..24 {
        w.step(&[(1, 1)], Policy::Dense);
        w.step(&[(0, 1)], certified());
        let full = w.live[0].1.len() / BLOCK;
        let wanted = w.cache.prefetch(id).expect("originals").wanted;
        assert_eq!(wanted % full, 0);
        layers[wanted / full] += 1;
    }
    assert!(layers[0] > 0 && layers[LAYERS] > 0, "{layers:?}");
    w.cache.release(other).expect("a release");
    assert!(matches!(w.cache.prefetch(other), Err(Error::UnknownSequence(_))));
    w.live.swap_remove(1);
    assert_eq!(w.end(), [0; 3]);
}

//! What is promoted of a row is forgotten where its blocks come again, and is kept where none has gone; no cache knows another's rows.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, FORGOTTEN, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, SequenceId, Window};
use std::sync::atomic::Ordering;

fn cache(compiler: &Compiler, windows: Vec<Option<Window>>) -> GpuCache {
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    GpuCache::new(&gpu, compiler, GpuConfig { windows, ..config(FORMATS[0]) }).expect("a cache")
}

/// Steps of one token each, and the rows that were forgotten on the way.
fn step(cache: &mut GpuCache, sequence: SequenceId, tokens: usize) -> u64 {
    FORGOTTEN.store(0, Ordering::Relaxed);
    let rows = vec![0x3c00u16; KV_HEADS * DIM];
    for _ in 0..tokens {
        let mut step = cache.begin(&[Chunk { sequence, tokens: 1 }]).expect("a step");
        (0..LAYERS).for_each(|layer| step.append_bits(layer, &rows, &rows).expect("rows"));
        step.finish().expect("the end");
    }
    FORGOTTEN.swap(0, Ordering::Relaxed)
}

#[test]
fn a_draft_that_is_rejected_keeps_the_plan_of_its_row() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let mut cache = cache(compiler, Vec::new());
    let id = cache.create().expect("a sequence");
    step(&mut cache, id, 2 * BLOCK + 5);
    for (len, forgotten) in [(2 * BLOCK + 5, 0), (2 * BLOCK + 2, 0), (2 * BLOCK, 0), (2 * BLOCK - 1, 1)] {
        step(&mut cache, id, 1);
        cache.truncate(id, len).expect("shorter");
        assert_eq!(step(&mut cache, id, 1), forgotten << id.slot, "cut to {len}");
        cache.truncate(id, len).expect("shorter");
    }
}

/// A window that has passed all full blocks has left words of them in its row: they are those of nobody when block numbers come again.
#[test]
fn rows_of_passed_windows_are_forgotten_where_they_begin_anew() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let window = Window { slack: Some(0), chunk: 8, ..Window::new(8) };
    for released in [false, true] {
        let mut cache = cache(compiler, vec![Some(window)]);
        let id = cache.create().expect("a sequence");
        step(&mut cache, id, 2 * BLOCK + 12);
        // A draft that is rejected changes nothing of what was passed.
        step(&mut cache, id, 1);
        cache.truncate(id, 2 * BLOCK + 12).expect("shorter");
        assert_eq!(step(&mut cache, id, 1), 0);
        // Nothing but the open block is left.
        let next = if released {
            cache.release(id).expect("a release");
            cache.create().expect("a sequence")
        } else {
            cache.truncate(id, 0).expect("a cut to nothing");
            id
        };
        assert_eq!(next.slot, id.slot);
        assert_eq!(step(&mut cache, next, 1), 1 << id.slot, "released: {released}");
    }
}

#[test]
fn ids_of_another_cache_are_unknown() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (mut here, mut there) = (cache(compiler, Vec::new()), cache(compiler, Vec::new()));
    let [own, foreign] = [&mut here, &mut there].map(|cache| cache.create().expect("a sequence"));
    assert_eq!(own.slot, foreign.slot);
    let unknown = |found: Option<Error>| assert!(matches!(found, Some(Error::UnknownSequence(id)) if id == foreign));
    unknown(here.len(foreign).err());
    unknown(here.fork(foreign).err());
    unknown(here.truncate(foreign, 0).err());
    unknown(here.begin(&[Chunk { sequence: foreign, tokens: 1 }]).err());
    unknown(here.release(foreign).err());
    assert_eq!((here.len(own).expect("a length"), there.len(foreign).expect("a length")), (0, 0));
}

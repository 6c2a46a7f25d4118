//! Sequences that are out leave those that are in all of `max_tokens`.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, Geometry, MoveEvent, MoveKind, SequenceId, Side, Window};

fn fill(cache: &mut GpuCache, tokens: usize, number: u16) -> Result<SequenceId, Error> {
    let sequence = cache.create()?;
    let rows = vec![number; tokens * KV_HEADS * DIM];
    let mut step = cache.begin(&[Chunk { sequence, tokens }])?;
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows, &rows)?;
    }
    step.finish()?;
    Ok(sequence)
}

#[test]
fn sequences_that_are_out_leave_others_all_tokens() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let tokens = 3 * BLOCK;
    let config = GpuConfig {
        max_tokens: tokens,
        max_context: tokens,
        max_sequences: 2,
        swap_tokens: tokens,
        prefixes: None,
        ..config(FORMATS[0])
    };
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let out = fill(&mut cache, tokens, 0x3800).expect("room");
    cache.swap_out(out).expect("room outside");
    let other = fill(&mut cache, tokens, 0x3c00).expect("room for as much again");
    assert!(matches!(cache.swap_in(out), Err(Error::CapacityExhausted { class: "packed", .. })));
    cache.release(other).expect("a release");
    cache.swap_in(out).expect("room");
    let rows = cache.originals(out, 1, 0, Side::Key).expect("all of it");
    assert!(rows.len() == tokens * DIM && rows.iter().all(|row| *row == 0x3800));
    cache.release(out).expect("a release");
    assert_eq!(cache.live_pages(), 0);
}

/// What there is of moves.
fn moves(cache: &GpuCache) -> Vec<MoveEvent> {
    let mut some = vec![MoveEvent::default(); 64];
    let read = cache.move_events().expect("events").read(0, &mut some).expect("from the first");
    some.truncate(read.read);
    some
}

/// Blocks of layers that share pages and follow each other move as one; of a group with a hole in it there are two events a block.
#[test]
fn moves_name_runs_of_layers_and_all_bytes() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let window = Window { tokens: 2 * BLOCK, sinks: 0, chunk: 2 * BLOCK, slack: None };
    let geometry = Geometry::new(4, KV_HEADS * kernels::GROUP, KV_HEADS, DIM).expect("a geometry");
    let config = GpuConfig {
        geometry,
        windows: vec![None, Some(window), None, None],
        prefixes: None,
        move_events: 64,
        ..config(FORMATS[0])
    };
    let reserved =
        GpuCache::new(&gpu, compiler, GpuConfig { move_events: 0, ..config.clone() }).expect("a cache").reserved();
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    assert_eq!(cache.reserved().0[2], reserved.0[2] + 64 * size_of::<MoveEvent>(), "the events have their room");
    let sequence = cache.create().expect("a sequence");
    let rows = vec![0x3c00; 2 * BLOCK * KV_HEADS * DIM];
    let mut step = cache.begin(&[Chunk { sequence, tokens: 2 * BLOCK }]).expect("a step");
    (0..4).for_each(|layer| step.append_bits(layer, &rows, &rows).expect("rows"));
    step.finish().expect("the end");
    assert_eq!(moves(&cache), []);
    let out = cache.swap_out(sequence).expect("room outside");
    assert!(matches!(cache.swap_out(sequence), Err(Error::SwappedOut)), "nothing moves twice");
    let gone = moves(&cache);
    assert_eq!(gone.iter().map(|event| event.bytes).sum::<u64>(), out);
    let mut found: Vec<_> = gone.iter().map(|e| (e.block.expect("a block"), e.layer, e.layers)).collect();
    found.sort_unstable();
    assert_eq!(found, [(0, 0, 1), (0, 1, 1), (0, 2, 2), (1, 0, 1), (1, 1, 1), (1, 2, 2)]);
    let back = cache.swap_in(sequence).expect("room");
    let all = moves(&cache);
    let (before, behind) = all.split_at(gone.len());
    assert_eq!((before, behind.iter().map(|event| event.bytes).sum::<u64>()), (&gone[..], back));
    for (at, event) in behind.iter().enumerate() {
        let number = (gone.len() + at) as u64;
        assert_eq!(*event, MoveEvent { kind: MoveKind::SwappedIn, number, ..gone[at] });
        assert_eq!((gone[at].kind, event.sequence), (MoveKind::SwappedOut, Some(sequence)));
    }
    // What fails moves nothing.
    kernels::plant(kernels::Plant::Rot);
    cache.swap_out(sequence).expect("room outside");
    let there = moves(&cache).len();
    assert!(cache.swap_in(sequence).is_err());
    kernels::plant(kernels::Plant::Nothing);
    assert_eq!(moves(&cache).len(), there);
}

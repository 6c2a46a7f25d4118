//! Sequences that are out leave those that are in all of `max_tokens`.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, SequenceId, Side};

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

//! The first step behind a prompt knows what the prompt's last row has shown.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS, WITHOUT_HISTORY};
use crate::life::{LAYERS, config};
use certkv::gpu::{Gpu, GpuCache};
use certkv::{Certified, Chunk, Policy};
use std::sync::atomic::Ordering;

/// Query heads without history in the step behind chunks of these lengths, `chunk_tokens` of which the GPU attends.
fn without_history(format: &'static str, chunks: &[usize], chunk_tokens: usize) -> u64 {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(format);
    let mut config = config(format);
    config.chunk_tokens = chunk_tokens;
    let mut cache = GpuCache::new(&Gpu::open(0).expect("the fake"), compiler, config).expect("a cache");
    let id = cache.create().expect("a sequence");
    for tokens in chunks.iter().copied().chain([1]) {
        WITHOUT_HISTORY.store(0, Ordering::Relaxed);
        let rows = vec![0.5; tokens * KV_HEADS * DIM];
        let policy = Policy::Certified(Certified::default());
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], policy).expect("a step");
        for layer in 0..LAYERS {
            step.append(layer, &rows, &rows).expect("rows");
            step.attend(layer, &rows.repeat(GROUP)).expect("outputs");
        }
        step.finish().expect("the end");
    }
    cache.synchronize().expect("the end");
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
    WITHOUT_HISTORY.load(Ordering::Relaxed)
}

#[test]
fn a_prompt_leaves_history_to_formats_with_residual_planes() {
    const ALL: u64 = (LAYERS * KV_HEADS * GROUP) as u64;
    let fine = "k8-v4g32-b16-r8.4";
    // A prompt's outputs are the host's or the GPU's, of one chunk or of several.
    for (chunks, chunk_tokens) in [(&[BLOCK + 3][..], 0), (&[BLOCK + 3], 2 * BLOCK), (&[BLOCK, 5], 0)] {
        assert_eq!(without_history(fine, chunks, chunk_tokens), 0, "{chunks:?}");
    }
    // A sequence that was never attended in a chunk has none; nor have formats that do not ask for it.
    assert_eq!(without_history(fine, &[1], 0), ALL);
    assert_eq!(without_history("k8-v4g32-b16", &[BLOCK], 0), 0);
}

//! Longer chunks beside blocks that have levels: a launch for each level that blocks before a chunk have, over those and no others, each with the record of its rows; what is over tolerance
//! from originals, as many as there is room for at a time; what one launch leaves the next takes over.
use crate::alone;
use crate::kernels::{self, BLOCK, ChunkRead, DIM, GROUP, KV_HEADS, Plant};
use crate::levels::{LADDERS, World, config, mark, page_bytes, unwritten};
use crate::life::LAYERS;
use certkv::Chunk;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use std::sync::atomic::Ordering;

const Q: usize = GROUP * KV_HEADS * DIM;

impl World {
    /// What is wrong with the longer chunks of a step of these tokens, whose launches have read this in each layer. Outputs are the last layer's. `certified`: what is over tolerance is
    /// attended from originals.
    pub(crate) fn chunks_wrong(
        &mut self,
        (parts, new): (&[(usize, usize)], &[u32]),
        read: &[Vec<ChunkRead>],
        (queries, out): (&[f32], &[f32]),
        certified: bool,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let pages = page_bytes(LADDERS[self.levels - 2]);
        let bytes: Vec<u64> = pages.iter().map(|bytes| *bytes as u64 / KV_HEADS as u64).collect();
        let most = self.chunk_tokens;
        for (layer, read) in read.iter().enumerate() {
            let (mut found, mut want, mut row) = (read.clone(), Vec::new(), 0);
            for (at, n) in parts {
                let (id, old, levels) = &self.live[*at];
                let tokens: Vec<u32> = old.iter().chain(&new[row..row + n]).copied().collect();
                row += n;
                let pieces = (0..*n).step_by(most.max(1)).filter(|_| most > 0 && *n > 1);
                for (first, tokens_of) in pieces.map(|first| (first, most.min(n - first))) {
                    let mut wants = |bytes, block| {
                        let of =
                            |head| ChunkRead { row: id.slot, bytes, head, mark: mark(&tokens, layer, head, block) };
                        want.extend((0..KV_HEADS).map(of));
                    };
                    let (past, before) = (old.len() / BLOCK, (old.len() + first) / BLOCK);
                    levels[layer].iter().enumerate().for_each(|(block, level)| wants(bytes[*level], block));
                    // What the chunk has before the piece.
                    (past..before).for_each(|block| wants(0, block));
                    if past > 0 && certified && tokens_of % 2 == 1 {
                        (0..before).for_each(|block| wants(0, block));
                    }
                }
            }
            found.sort_unstable();
            want.sort_unstable();
            if found != want {
                wrong.push(format!("layer {layer}: chunks went over {} blocks, not those {}", found.len(), want.len()));
            }
            let kinds = |read: &&ChunkRead| bytes.iter().position(|bytes| *bytes == read.bytes).unwrap_or(bytes.len());
            want.iter().for_each(|read| self.chunked[kinds(&read).min(1) + usize::from(read.bytes == 0)] += 1);
        }
        let mut row = 0;
        for (_, n) in parts {
            let own = row * Q..(row + n) * Q;
            row += n;
            if *n > 1 && most > 0 && out[own.clone()] != queries[own] {
                wrong.push(format!("outputs of a chunk of {n} tokens"));
            }
        }
        wrong
    }
}

/// Lives of prompts, chunks and changes. Blocks read by chunks, of the first level, below it, and as originals.
fn lives(compiler: &Compiler, worlds: u64) -> ([usize; 3], Vec<String>) {
    let fake = crate::fake_cuda::Fake::get();
    kernels::looks(true);
    kernels::GAPS.store(0, Ordering::Relaxed);
    let (mut chunked, mut wrong) = ([0; 3], Vec::new());
    for seed in 0..worlds {
        fake.reset();
        fake.defer(seed % 2 == 1);
        let gpu = Gpu::open(0).expect("the fake");
        gpu.check_order();
        let ladder = LADDERS[seed as usize / 2 % 2];
        kernels::begin(ladder[0]);
        // Chunks up to a block, or two.
        let config = GpuConfig { chunk_tokens: (1 + seed as usize % 2) * BLOCK, ..config(ladder, 2 * seed) };
        let most = config.chunk_tokens;
        let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
        let mut world = World::new(cache, ladder.len(), false, seed);
        world.chunk_tokens = most;
        (0..60).for_each(|_| world.operate_in_chunks());
        chunked = [0, 1, 2].map(|i| chunked[i] + world.chunked[i]);
        wrong.extend(world.wrong.into_iter().map(|w| format!("seed {seed}: {w}")));
        world.cache.synchronize().expect("the fake");
        let report = gpu.order_report().expect("the checker is on");
        assert!(report.unordered == 0 && report.accesses > 0, "seed {seed}: {report:?}");
    }
    fake.defer(false);
    let gaps = kernels::GAPS.swap(0, Ordering::Relaxed);
    if gaps > 0 {
        wrong.push(format!("{gaps} heads that do not count every record once"));
    }
    kernels::looks(false);
    (chunked, wrong)
}

#[test]
fn chunks_go_over_every_block_at_its_level() {
    const WORLDS: u64 = if cfg!(debug_assertions) { 16 } else { 60 };
    let (_fake, compiler, _turn) = alone();
    let (chunked, wrong) = lives(compiler, WORLDS);
    assert!(wrong.is_empty(), "{} wrong, first {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(chunked.iter().all(|n| *n > 100), "{chunked:?}");
    kernels::plant(Plant::NoLevel);
    let lost = !lives(compiler, 8).1.is_empty();
    kernels::plant(Plant::Nothing);
    let caught = usize::from(lost) + usize::from(unwritten(|| lives(compiler, 8).1));
    println!("GATE gpu-level-chunks executed={} failed=0 controls={caught}/2 seed=0x0", chunked.iter().sum::<usize>());
    assert_eq!(caught, 2);
}

/// A cache with levels has no kernels of drafts: two tokens are a chunk as others, attended on the GPU.
#[test]
fn two_tokens_are_a_chunk_where_blocks_have_levels() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(LADDERS[0][0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache =
        GpuCache::new(&gpu, compiler, GpuConfig { chunk_tokens: 8, ..config(LADDERS[0], 0) }).expect("a cache");
    let sequence = cache.create().expect("a sequence");
    kernels::EXTENDED.store(0, Ordering::Relaxed);
    let mut step = cache.begin(&[Chunk { sequence, tokens: 2 }]).expect("a step");
    let rows = vec![0x3c00; 2 * KV_HEADS * DIM];
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows, &rows).expect("rows");
        step.attend(layer, &vec![0.5; 2 * Q]).expect("attention");
    }
    step.finish().expect("the end");
    assert_eq!(kernels::EXTENDED.load(Ordering::Relaxed), (LAYERS * 2 * GROUP * KV_HEADS) as u64);
}

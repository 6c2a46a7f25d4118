//! The spans that docs/metrics.md names of a cache on a GPU open and close around their moves, with their fields, and no other does.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{self, FORMATS, LAYERS, config};
use crate::listener::{Listener, documented};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Geometry, Level, Policy, PrefixScope, SaveScope, Scrub, SequenceId};

const KV: usize = KV_HEADS * DIM;

/// Rows of so many tokens, each a step of its own, which are attended under `policy`.
fn grow(cache: &mut GpuCache, id: SequenceId, tokens: usize, policy: Policy) {
    for _ in 0..tokens {
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], policy).expect("room");
        for layer in 0..LAYERS {
            step.append_bits(layer, &[0x3800; KV], &[0x3800; KV]).expect("rows");
            step.attend(layer, &[0.5; GROUP * KV]).expect("a query");
        }
        step.finish().expect("a step");
    }
}

fn work(gpu: &Gpu, compiler: &Compiler, listener: &Listener) {
    kernels::begin(FORMATS[0]);
    let mut cache = GpuCache::new(gpu, compiler, config(FORMATS[0])).expect("a cache");
    let id = cache.create().expect("a sequence");
    grow(&mut cache, id, 2 * BLOCK + 3, Policy::Packed);
    let stored = listener.spans("store");
    assert_eq!(stored.len(), 2, "a span a step that fills a block");
    let bytes = (LAYERS * BLOCK * KV * 4) as u64;
    assert_eq!(stored[0].values, [("blocks", 1), ("bytes", bytes)].into());
    let (scope, tokens) = (PrefixScope::new(b"tenant", b"model"), (0..2 * BLOCK as u32).collect::<Vec<_>>());
    let cached = tokens.len() as u64;
    cache.publish(id, &scope, tokens[..].into()).expect("prefixes are cached");
    assert_eq!(listener.spans("publish")[0].values, [("asked", cached), ("added", cached)].into());
    let (found, _) = cache.create_from(&scope, tokens[..].into()).expect("room");
    assert_eq!(listener.spans("continue")[0].values, [("asked", cached), ("found", cached)].into());
    cache.release(found).expect("an end");
    let fork = cache.fork(id).expect("room");
    assert_eq!(listener.spans("copy")[0].values["layers"], LAYERS as u64);
    cache.release(fork).expect("an end");
    let (mut file, whose) = (Vec::new(), SaveScope { model: b"model", key: None });
    cache.save(id, &whose, &mut file).expect("a file");
    assert_eq!(listener.spans("save")[0].values, [("bytes", file.len() as u64)].into());
    let back = cache.restore(&whose, &mut &file[..]).expect("room");
    assert_eq!(listener.spans("restore")[0].values, [("bytes", file.len() as u64)].into());
    let out = cache.swap_out(back).expect("room");
    let moved = [("swap out", out), ("swap in", cache.swap_in(back).expect("room"))];
    for (name, moved) in moved {
        assert_eq!(listener.spans(name)[0].values, [("bytes", moved)].into());
    }
    let looked = cache.scrub(Scrub { pages: 3, originals: false }).expect("a look");
    assert_eq!(listener.spans("scrub")[0].values["pages"], looked.pages as u64);
    cache.release(id).expect("an end");
    assert_eq!(cache.evict_prefixes(2).expect("prefixes are cached"), 2);
    assert_eq!(listener.spans("evict")[0].values, [("units", 2)].into());
}

/// Originals to a store and back.
fn spill(gpu: &Gpu, compiler: &Compiler, listener: &Listener) {
    kernels::begin(FORMATS[0]);
    let mut cache = GpuCache::new(gpu, compiler, life::spilling::config(FORMATS[0])).expect("a cache");
    let id = cache.create().expect("a sequence");
    grow(&mut cache, id, 8 * BLOCK, Policy::Packed);
    // Frames are too few for both.
    let other = cache.create().expect("a sequence");
    grow(&mut cache, other, 8 * BLOCK, Policy::Packed);
    assert!(!listener.spans("spill").is_empty());
    grow(&mut cache, id, 1, Policy::Dense);
    assert!(listener.spans("fetch").iter().any(|span| span.values["bytes"] > 0));
}

/// Blocks to another level.
fn recode(gpu: &Gpu, compiler: &Compiler, listener: &Listener) {
    kernels::begin("t8-v8g32-b16");
    let levels = ["t8-v8g32-b16", "t4-v4g32-b16"];
    let level = |format: &str| Level { format: format.parse().expect("a format"), tokens: 4 * BLOCK };
    let geometry = Geometry::new(LAYERS, GROUP * KV_HEADS, KV_HEADS, DIM).expect("a geometry");
    let config = GpuConfig::new(geometry, 4 * BLOCK).with_levels(levels.map(level).to_vec());
    let mut cache = GpuCache::new(gpu, compiler, config).expect("a cache");
    let id = cache.create().expect("a sequence");
    grow(&mut cache, id, 2 * BLOCK, Policy::Packed);
    cache.change_level(id, 1, 1, 1).expect("a page");
    let values = &listener.spans("recode")[0].values;
    assert_eq!((values["layer"], values["blocks"]), (1, 1));
}

#[test]
fn spans_open_and_close_around_moves() {
    let (fake, compiler, _turn) = alone();
    let listener = Listener::default();
    tracing::subscriber::with_default(listener.clone(), || {
        for part in [work, spill, recode] {
            fake.reset();
            part(&Gpu::open(0).expect("the fake"), compiler, &listener);
        }
    });
    assert_eq!(documented(1), listener.names());
}

//! Fixed scales of a cache on a GPU: who is told of them, what is counted, what is refused.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, KV_HEADS};
use crate::life::{LAYERS, config};
use certkv::calibration::Source;
use certkv::gpu::{Gpu, GpuCache, GpuConfig, GpuMachine};
use certkv::scales::{ScaleHeads, Scales};
use certkv::{Chunk, Error, Policy};
use std::sync::Arc;

const FIXED: &str = "p8-p8-b16";

fn scales(kv_heads: usize) -> Arc<Scales> {
    let heads = ScaleHeads { layers: LAYERS, kv_heads, head_dim: DIM };
    let of = |side: usize| (0..LAYERS * kv_heads * DIM / 16).map(|at| (2 * at + side) as f32).collect();
    let source = Source { model: [1; 32], text: [2; 32], tokens: 9 };
    Arc::new(Scales::new(heads, source, 100.0, of(0), of(1)).expect("magnitudes"))
}

fn with(formats: [&'static str; LAYERS], scales: &Arc<Scales>) -> GpuConfig {
    let config = GpuConfig { scales: Some(Arc::clone(scales)), ..config(formats[0]) };
    GpuConfig { formats: formats.map(|format| format.parse().expect("a format")).to_vec(), ..config }
}

/// What a layer's launches are told: of every head its keys' magnitudes, then its values'.
fn told(scales: &Scales, layer: usize) -> Vec<f32> {
    let heads = (0..KV_HEADS).map(|head| scales.head(layer, head).expect("a head"));
    heads.flat_map(|(keys, values)| keys.iter().chain(values).copied()).collect()
}

/// A chunk over two blocks' ends, and steps over another.
fn lived(cache: &mut GpuCache) {
    let id = cache.create().expect("a sequence");
    let width = KV_HEADS * DIM;
    for tokens in core::iter::once(2 * BLOCK + 3).chain([1; BLOCK]) {
        let rows = vec![0.5; tokens * width];
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], Policy::Packed).expect("a step");
        (0..LAYERS).for_each(|layer| step.append(layer, &rows, &rows).expect("rows"));
        step.finish().expect("the end");
    }
    cache.synchronize().expect("the end");
}

#[test]
fn launches_that_code_blocks_are_told_of_fixed_scales() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let (gpu, mine) = (Gpu::open(0).expect("the fake"), scales(KV_HEADS));
    let own = [told(&mine, 0), told(&mine, 1)];
    assert!(own[0] != own[1]);
    for (formats, want) in [
        ([FIXED; 2], own.clone()),
        (["e4m3-v4g32-b16", "k8-v4g32-b16"], [own[0].clone(), Vec::new()]),
        (["k8-v4g32-b16", "k8-p4g32-b16"], [Vec::new(), own[1].clone()]),
    ] {
        kernels::begin(formats[0]);
        let mut cache = GpuCache::new(&gpu, compiler, with(formats, &mine)).expect("a cache");
        assert_eq!(cache.saturated().expect("a count"), Some(0));
        kernels::watched_reaches();
        lived(&mut cache);
        let said = kernels::watched_reaches();
        for kernel in ["close", "pack"] {
            let said: Vec<&[f32]> = said.iter().filter(|said| said.0 == kernel).map(|said| &said.1[..]).collect();
            assert!(said.len() >= 2, "{kernel}: {} launches", said.len());
            for (said, want) in said.iter().zip(want.iter().cycle()) {
                assert_eq!(said, want, "{kernel}, {formats:?}");
            }
        }
        // One a launch that has fixed scales.
        let counted = said.iter().filter(|said| !said.1.is_empty()).count() as u64;
        assert_eq!(cache.saturated().expect("a count"), Some(counted));
    }
    kernels::begin(FIXED);
    let mut without = GpuCache::new(&gpu, compiler, config(FIXED)).expect("a cache");
    kernels::watched_reaches();
    lived(&mut without);
    assert!(kernels::watched_reaches().iter().all(|said| said.1.is_empty()));
    assert_eq!(without.saturated().expect("nothing to count"), None);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

#[test]
fn scales_that_are_not_the_caches_are_refused() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FIXED);
    let gpu = Gpu::open(0).expect("the fake");
    let refused = |config| GpuCache::new(&gpu, compiler, config).map(|_| ()).expect_err("no such cache");
    let other = refused(with([FIXED; 2], &scales(KV_HEADS + 1)));
    assert!(matches!(other, Error::Calibration(_)), "{other:?}");
    let nowhere = refused(with(["k8-v4g32-b16"; 2], &scales(KV_HEADS)));
    assert!(matches!(nowhere, Error::Config { field: "scales", .. }), "{nowhere:?}");
    // What they take is reserved.
    let plan = |config: &GpuConfig| config.plan(GpuMachine::H200).expect("a plan").device.bytes;
    let bytes = LAYERS * KV_HEADS * 2 * (DIM / 16) * 4;
    assert!(plan(&with([FIXED; 2], &scales(KV_HEADS))) >= plan(&config(FIXED)) + bytes);
}

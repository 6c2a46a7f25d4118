//! What caches whose blocks have levels are not made with, and do not do.
use crate::alone;
use crate::kernels::{BLOCK, KV_HEADS};
use crate::levels::{LADDERS, config};
use crate::life::LAYERS;
use certkv::danger::Gating;
use certkv::gpu::{Gpu, GpuCache, GpuConfig};
use certkv::{BoundBudget, Error, PrefixScope, Retention, SaveScope, SmartKv, Window};
use certkv_control::smartkv::Rule;

#[test]
fn what_levels_do_not_go_with_is_named() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let good = || config(LADDERS[0], 0);
    let gated = SmartKv { rule: Rule { gate: Some(Gating::default()), ..Rule::default() }, ..SmartKv::new(900.0) };
    // Bounds of calibrated keys are in another metric than those of the first level, and the device tells one of them.
    let mixed = || {
        let mut mixed = good();
        mixed.levels[1].format = "ctq4-v4g32-b16".parse().expect("a format");
        mixed
    };
    for (config, field) in [
        (good().with_window(Window::new(BLOCK)), "windows"),
        (GpuConfig { control: Some(gated.into()), ..mixed() }, "control"),
        (GpuConfig { control: Some(Retention::new(900.0).into()), ..mixed() }, "control.retention"),
        (GpuConfig { control: Some(BoundBudget::new(900.0).into()), ..mixed() }, "control.budget"),
        (GpuConfig { control: Some(Retention::new(1.0).into()), ..good() }, "control.retention"),
        (GpuConfig { control: Some(SmartKv::new(900.0).into()), levels: Vec::new(), ..good() }, "control"),
    ] {
        match GpuCache::new(&gpu, compiler, config) {
            Err(Error::Config { field: found, .. }) if found == field => {}
            other => panic!("{field}: {:?}", other.map(drop)),
        }
    }
    // Dropped blocks have no kernels.
    let mut dropped = good();
    dropped.levels[1].format = "k0-c0-b16".parse().expect("a format");
    assert!(matches!(GpuCache::new(&gpu, compiler, dropped).map(drop), Err(Error::Kernels(_))));
    // And what a cache with levels does not do.
    let mut cache = GpuCache::new(&gpu, compiler, good()).expect("a cache");
    let id = cache.create().expect("a sequence");
    let scope = SaveScope { model: b"model", key: None };
    let (prefix, tokens) = (PrefixScope::new(b"domain", b"model"), [1u32; 64]);
    for refused in [
        cache.export_prefix(&prefix, (&tokens[..]).into(), 0).map(drop),
        cache.missing_prefix(&prefix, (&tokens[..]).into()).map(drop),
        cache.import_prefix(&prefix, (&tokens[..]).into(), &[]).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::Config { field: "levels", .. })), "{refused:?}");
    }
    // A file of another ladder.
    let mut file = Vec::new();
    cache.save(id, &scope, &mut file).expect("a file");
    let mut other = GpuCache::new(&gpu, compiler, config(LADDERS[1], 0)).expect("a cache");
    assert!(matches!(other.restore(&scope, &mut &file[..]), Err(Error::Save(_))));
    assert!(cache.restore(&scope, &mut &file[..]).is_ok());
    assert!(matches!(cache.change_level(id, LAYERS, 0, 1), Err(Error::Layer { .. })));
    assert!(matches!(cache.change_level_of(id, 0, KV_HEADS, 0, 1), Err(Error::Shape { argument: "kv_head", .. })));
    let other = GpuCache::new(&gpu, compiler, good()).expect("a cache").create().expect("a sequence");
    assert!(matches!(cache.level(other, 0, 0), Err(Error::UnknownSequence(_))));
}

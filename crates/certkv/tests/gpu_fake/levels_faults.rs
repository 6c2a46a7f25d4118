//! Changes of levels and decisions on them, in which any call of the driver fails.
use crate::alone;
use crate::fake_cuda::sweep::code_for;
use crate::kernels::{self, BLOCK};
use crate::levels::{LADDERS, World, budget, config, unwritten};
use crate::life::LAYERS;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Error, Level, Retention, retention};
use certkv_core::RecordLayout;

/// Calls of the driver in changes, decisions and the steps between them fail, once each: a block has the level that it had, or the one that was asked for, and its records and originals are
/// those of its rows.
#[test]
fn changes_of_levels_outlive_the_failure_of_any_call() {
    let (fake, compiler, _turn) = alone();
    let (mut executed, mut met) = (0, 0);
    let every = if cfg!(debug_assertions) { 5 } else { 2 };
    for apart in [false, true] {
        let (names, wrong) = faulted(compiler, apart, None, &mut met);
        assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(4)]);
        for at in (1..=names.len()).step_by(every) {
            // What is left of a context on the thread, other sweeps look at.
            if names[at - 1] == "cuCtxPopCurrent_v2" {
                continue;
            }
            let fault = (at as u64, code_for(names[at - 1], at as u64));
            let (_, wrong) = faulted(compiler, apart, Some(fault), &mut met);
            assert!(wrong.is_empty(), "{fault:?}: {:#?}", &wrong[..wrong.len().min(4)]);
            executed += 1;
        }
        assert_eq!(fake.violations(), 0);
    }
    let caught = usize::from(unwritten(|| faulted(compiler, false, None, &mut 0).1));
    println!("GATE gpu-level-faults executed={executed} failed=0 controls={caught}/1 seed=0x5, {met} met");
    assert!(caught == 1 && met > executed / 3, "{met} of {executed}");
}

/// One life, in which a call fails. The calls that may, and what was wrong.
fn faulted(
    compiler: &Compiler,
    apart: bool,
    fault: Option<(u64, i32)>,
    met: &mut usize,
) -> (Vec<&'static str>, Vec<String>) {
    let fake = crate::fake_cuda::Fake::get();
    fake.reset();
    fake.empty_stack();
    kernels::begin(LADDERS[1][0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut config = GpuConfig { plan_apart: apart, ..config(LADDERS[1], 3) };
    // One of those that have blocks coded to see what levels lose.
    if !apart {
        let rule = retention::Rule { every: 2, cooldown: 0, ..retention::Rule::default() };
        config.control = Some(Retention { rule, ..Retention::new(budget(LADDERS[1])) }.into());
    }
    let layout = |level: &Level| RecordLayout::new(&config.geometry, level.format).expect("a layout");
    kernels::summarise(&config.levels.iter().map(layout).collect::<Vec<_>>());
    let cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let mut world = World::new(cache, LADDERS[1].len(), false, 5);
    let first = world.cache.create().expect("a sequence");
    world.live.push((first, Vec::new(), [(); LAYERS].map(|()| Vec::new())));
    while world.live[0].1.len() < 5 * BLOCK {
        world.step(BLOCK);
    }
    let fork = world.cache.fork(first).expect("a fork");
    world.live.push((fork, world.live[0].1.clone(), world.live[0].2.clone()));
    let before = fake.trace().len();
    if let Some((at, code)) = fault {
        fake.fail(at, code, false);
    }
    let mut failed = |error: &Error| {
        assert!(matches!(error, Error::Gpu(_)), "{error}");
        *met += 1;
    };
    for round in 0..3usize {
        let changes = [(0, 0, 1 + round % 2, 2), (1, 0, 3, 1), (0, 1, 0, 1), (0, 0, 1, round % 3)];
        for (of, layer, block, level) in changes {
            let (id, levels) = (world.live[of].0, &mut world.live[of].2[layer]);
            match world.cache.change_level(id, layer, block, level) {
                Ok(()) => levels[block] = level,
                Err(Error::CapacityExhausted { .. }) => {}
                Err(error) => failed(&error),
            }
            assert_eq!(world.cache.level(id, layer, block).expect("a level"), levels[block]);
        }
        for _ in 0..2 {
            // Who decides may have moved blocks before a call failed.
            if let Err(error) = world.cache.control(first) {
                failed(&error);
            }
            for layer in 0..LAYERS {
                let (id, _, levels) = &mut world.live[0];
                for (block, level) in levels[layer].iter_mut().enumerate() {
                    *level = world.cache.level(*id, layer, block).expect("a level");
                }
            }
            if let Err(error) = world.try_step() {
                failed(&error);
            }
        }
    }
    let calls = fake.trace().split_off(before);
    // And all goes on.
    (0..6).for_each(|_| world.step(1));
    (0..2).for_each(|at| world.verify(at));
    for (id, ..) in world.live.drain(..) {
        world.cache.release(id).expect("a release");
    }
    world.cache.synchronize().expect("the fake");
    assert_eq!((world.cache.live_pages(), fake.violations()), (0, 0), "{fault:?}");
    (calls, world.wrong)
}

//! The plan of a cache on a GPU, and what the driver is asked for; and what a snapshot says of a cache that nobody waited for.
use crate::alone;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use certkv::gpu::{Gpu, GpuCache, GpuConfig, GpuMachine};
use certkv::{CLASSES, Chunk, Class, Pool};

/// What the plan says that is not so, for a cache and what the driver gave for it.
fn faults(plan: &certkv::Plan, cache: &GpuCache) -> Vec<String> {
    let (usage, reserved) = (cache.gpu().usage(), cache.snapshot().classes.map(|class| class.reserved));
    let mut faults = Vec::new();
    if plan.classes != reserved {
        faults.push(format!("planned {:?}, reserved {reserved:?}", plan.classes));
    }
    // Pinned memory comes in whole pages, and the host's books are not pinned.
    let taken = [("device", plan.device.bytes, usage.device_bytes), ("pinned", plan.host.bytes, usage.pinned_bytes)];
    for (pool, planned, taken) in taken {
        let off = taken as f64 / planned.max(1) as f64 - 1.0;
        if off.abs() > 0.01 {
            faults.push(format!("{pool}: {planned} planned, {taken} taken"));
        }
    }
    faults
}

fn configs() -> impl Iterator<Item = GpuConfig> {
    let sizes = [(64, 40, 4, 0, 0), (128, 128, 2, 3, 17), (200, 16, 9, 1, 64)];
    FORMATS.into_iter().flat_map(move |format| {
        sizes.into_iter().map(move |(blocks, context, sequences, ring, scratch)| GpuConfig {
            max_tokens: blocks * BLOCK,
            max_context: context * BLOCK,
            max_sequences: sequences,
            certificate_ring: ring,
            scratch_keys: scratch,
            scratch_values: scratch / 2,
            ..config(format)
        })
    })
}

#[test]
fn what_is_planned_is_what_the_driver_gives() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    let gpu = Gpu::open(0).expect("the fake");
    let machine = GpuMachine::of(&gpu).expect("kernels");
    let (mut executed, mut failed, mut planted, mut caught) = (0, 0, 0, 0);
    for config in configs() {
        let plan = config.plan(machine).expect("a plan");
        let cache = GpuCache::new(&gpu, compiler, config.clone()).expect("no limit");
        let found = faults(&plan, &cache);
        executed += 1;
        failed += usize::from(!found.is_empty());
        found.iter().for_each(|fault| println!("{:?}: {fault}", config.formats));
        // The control: a class that the plan forgets is seen.
        for class in CLASSES.into_iter().filter(|class| plan.of(*class) > 0) {
            let mut forgetful = plan;
            forgetful.classes[class as usize] = 0;
            planted += 1;
            caught += usize::from(!faults(&forgetful, &cache).is_empty());
        }
        drop(cache);
        let tight = GpuConfig { device_budget: plan.device.bytes, host_budget: plan.host.bytes, ..config };
        assert!(GpuCache::new(&gpu, compiler, tight.clone()).is_ok());
        let short = GpuConfig { device_budget: tight.device_budget - 1, ..tight.clone() };
        assert_eq!(short.plan(machine).expect("a plan").device.lacks(), 1);
        let nothing = [GpuConfig { device_budget: 0, ..tight.clone() }, GpuConfig { host_budget: 0, ..tight }];
        for short in [short].into_iter().chain(nothing) {
            assert!(matches!(GpuCache::new(&gpu, compiler, short), Err(certkv::Error::Budget(_))));
        }
    }
    println!("GATE plan-gpu executed={executed} failed={failed} controls={caught}/{planted} seed=0x0");
    assert!(executed == 9 && failed == 0 && caught == planted);
}

#[test]
fn a_snapshot_asks_nobody() {
    let (fake, compiler, _turn) = alone();
    fake.reset();
    kernels::begin(FORMATS[0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, config(FORMATS[0])).expect("no limit");
    let width = KV_HEADS * DIM;
    let id = cache.create().expect("a sequence");
    let rows = vec![0.25f32; (BLOCK + 3) * width];
    let mut step = cache.begin(&[Chunk { sequence: id, tokens: BLOCK + 3 }]).expect("room");
    for layer in 0..LAYERS {
        step.append(layer, &rows, &rows).expect("rows");
    }
    step.finish().expect("a chunk");
    let waited = cache.snapshot().waits.count();
    assert!(waited > 0, "a chunk waits");
    cache.fork(id).expect("a fork");
    let mut step = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).expect("room");
    step.append(0, &rows[..width], &rows[..width]).expect("a row");
    step.attend(0, &vec![0.5; GROUP * width]).expect("a query");
    drop(step);
    let calls = fake.trace().len();
    let snapshot = cache.snapshot();
    assert_eq!(fake.trace().len(), calls, "a snapshot calls the driver");
    assert_eq!((snapshot.sequences, snapshot.tokens), (2, 2 * (BLOCK + 3)));
    let pages = snapshot.pages[0];
    // A full block is shared, an open one is not.
    assert_eq!((pages.packed.live, pages.host.live, pages.tail.live, pages.layers), (1, 3, 2, LAYERS));
    let memory = cache.memory();
    let used = [Class::Packed, Class::Scratch, Class::Tables, Class::Host].map(|class| snapshot.class(class).used);
    assert_eq!(used, [memory.packed, memory.scratch, memory.tables, memory.host]);
    assert_eq!(snapshot.copies.done.count(), 1);
    assert_eq!(snapshot.waits.count(), waited, "nothing here waits");
    assert!(snapshot.pool(Pool::Device).peak == snapshot.pool(Pool::Device).reserved && snapshot.outputs.is_none());
    cache.synchronize().expect("done");
    assert_eq!(cache.snapshot().waits.count(), waited + 1);
}

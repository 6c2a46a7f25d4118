//! Lives in caches whose blocks have levels, which change between steps: every output against attention in f64, recorded steps among them.
use crate::world::{Failure, Tally, World};
use crate::{Plan, certified, graphs, policies};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Dtype, Error, Geometry, Level, Protection, Window};
use std::time::Instant;

/// Formats from the first level down, with originals of which type.
pub(crate) const LADDERS: [(&[&str], Dtype); 3] = [
    (&["k8-v4g32-b32", "k4-v4g32-b32"], Dtype::F16),
    (&["t8-v8g32-b32", "tq4-tq4-b32", "tq2-tq2-b32"], Dtype::Bf16),
    (&["e4m3-e4m3-b32", "k5-c4-b32", "t3-v3g32-b32", "k2-v2g32-b32"], Dtype::F16),
];

/// Changes some blocks' levels; how many, and how many found no page.
fn change(cache: &mut GpuCache, world: &mut World, levels: usize) -> Result<[usize; 2], Failure> {
    let (layers, block) = (cache.geometry().layers, cache.layouts()[0].tokens());
    let mut done = [0; 2];
    let full: Vec<usize> = (0..world.held.len()).filter(|at| world.held[*at].len >= block).collect();
    for _ in 0..if full.is_empty() { 0 } else { 1 + world.rng.below(24) } {
        let held = &world.held[full[world.rng.below(full.len())]];
        let (id, blocks) = (held.id, held.len / block);
        let (layer, block, level) = (world.rng.below(layers), world.rng.below(blocks), world.rng.below(levels));
        match cache.change_level(id, layer, block, level) {
            Ok(()) if cache.level(id, layer, block)? == level => done[0] += 1,
            Err(Error::CapacityExhausted { .. }) => done[1] += 1,
            Ok(()) => return Err("another level than was asked for".into()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// One cache's life. Returns whether everything held.
pub(crate) fn life(
    gpu: &Gpu,
    compiler: &Compiler,
    plan: &Plan,
    (ladder, store): (&[&str], Dtype),
) -> Result<bool, Failure> {
    let (layers, q_heads, kv_heads, dim) = if plan.small { (2, 4, 2, 64) } else { (4, 16, 4, 128) };
    let geometry = Geometry { store, ..Geometry::new(layers, q_heads, kv_heads, dim)? };
    let longest = if plan.small { 640 } else { 4096 };
    let level = |(i, format): (usize, &&str)| -> Result<Level, Failure> {
        Ok(Level { format: format.parse()?, tokens: if i == 0 { 7 * longest } else { longest } })
    };
    let levels = ladder.iter().enumerate().map(level).collect::<Result<Vec<_>, _>>()?;
    let mut config = GpuConfig::new(geometry, 8 * longest).with_levels(levels);
    config = config.with_scratch([0.5, 0.1, 0.01][plan.seed as usize % 3]);
    (config.max_context, config.max_sequences, config.threads) = (longest, 12, 4);
    config.certificate_ring = 4;
    config.plan_apart = store == Dtype::Bf16;
    config.protection = if ladder.len() == 4 { Protection::new(5, 40) } else { Protection::NONE };
    let windows: Vec<Option<Window>> = vec![None; layers];
    let mut world = World::new(geometry, windows, plan.seed);
    let start = Instant::now();
    let mut cache = GpuCache::new(gpu, compiler, config)?;
    println!("{} {store}: ready in {:.2} s", ladder.join(", "), start.elapsed().as_secs_f64());
    let prompts: &[usize] = if plan.small { &[200, 1, 33, 64] } else { &[1500, 1, 33, 700, 128] };
    for _ in prompts {
        world.create(&mut cache)?;
    }
    let all: Vec<(usize, usize)> = prompts.iter().copied().enumerate().collect();
    let (chunks, inputs) = (world.chunks(&all), world.inputs(prompts.iter().sum()));
    let mut step = cache.begin(&chunks)?;
    world.remember(&all, &inputs);
    let mut sum = world.run(&mut step, &all, &inputs, certified(0.05).1)?;
    step.finish()?;
    let mut tallies = policies().map(|p| (p.0, Tally::default()));
    let (mut changes, mut lowered, mut full) = ([0; 2], 0, 0);
    for i in 0..plan.steps {
        let n = world.held.len();
        let at = world.rng.below(n.max(1));
        match i % 8 {
            0 if n < 8 => world.fork(&mut cache, at)?,
            2 if n > 0 => {
                let near = world.held[at].len.saturating_sub(1 + i % 40);
                let len = if i % 16 == 2 { world.rng.below(world.held[at].len + 1) } else { near };
                world.truncate(&mut cache, at, len)?;
            }
            3 | 5 if n > 7 => world.release(&mut cache, at)?,
            6 if n < 7 => world.create(&mut cache)?,
            _ => {}
        }
        if i % 4 != 3 {
            let done = change(&mut cache, &mut world, ladder.len())?;
            changes.iter_mut().zip(done).for_each(|(sum, n)| *sum += n);
        }
        let (name, policy, owed) = policies()[i / 2 % 5];
        let mut batch = Vec::new();
        for at in 0..world.held.len() {
            if world.rng.chance(0.8) && world.held[at].len + 8 < longest {
                let chunk = if world.rng.below(12) == 0 { 2 + world.rng.below(60) } else { 1 };
                batch.push((at, chunk.min(longest - world.held[at].len)));
            }
        }
        if batch.is_empty() {
            continue;
        }
        let (chunks, inputs) = (world.chunks(&batch), world.inputs(batch.iter().map(|b| b.1).sum()));
        if i % 7 == 3 {
            let mut step = cache.begin_with(&chunks, policy)?;
            step.append(0, &inputs.keys[0], &inputs.values[0])?;
            drop(step);
        }
        let mut step = cache.begin_with(&chunks, policy)?;
        world.remember(&batch, &inputs);
        let tally = world.run(&mut step, &batch, &inputs, owed)?;
        step.finish()?;
        tallies.iter_mut().filter(|t| t.0 == name).for_each(|(_, of)| of.add(&tally));
        for held in &world.held {
            for (layer, block) in
                (0..layers).flat_map(|l| (0..held.len / cache.layouts()[0].tokens()).map(move |b| (l, b)))
            {
                full += 1;
                lowered += usize::from(cache.level(held.id, layer, block)? > 0);
            }
        }
    }
    for (name, tally) in &tallies {
        tally.print(name);
        sum.add(tally);
    }
    let [done, refused] = changes;
    println!("{done} changes, {refused} without a page; {lowered} of {full} blocks below the first level");
    println!(
        "GATE gpu-engine-levels executed={} failed={} controls={}/{} seed={:#x}",
        sum.heads, sum.failed, sum.controls, sum.planted, plan.seed
    );
    for layer in 0..layers {
        println!("layer {layer}: {:?}", cache.selection(layer)?);
    }
    while world.held.len() > 3 {
        world.release(&mut cache, 3)?;
    }
    let graphs = graphs(gpu, &mut cache, &mut world, plan)?;
    let (rows, lost) = world.read_back(&mut cache)?;
    println!("GATE gpu-engine-originals executed={rows} failed={lost} controls=0/0 seed={:#x}", plan.seed);
    while !world.held.is_empty() {
        world.release(&mut cache, 0)?;
    }
    let left = cache.live_pages();
    println!(
        "GATE gpu-engine-leaks executed={} failed={left} controls=0/0 seed={:#x}",
        world.held.len() + 1,
        plan.seed
    );
    Ok(sum.failed + lost + left == 0 && sum.controls == sum.planted && lowered > 0 && graphs)
}

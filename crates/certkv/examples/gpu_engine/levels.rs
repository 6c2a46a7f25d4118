//! Lives in caches whose blocks have levels, which change between steps: every output against attention in f64, recorded steps among them.
use crate::losses::Ratios;
use crate::scored::Mirrors;
use crate::world::{Failure, Inputs, Tally, World, abandon};
use crate::{Plan, certified, graphs, policies};
use certkv::danger::Gating;
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{
    BoundBudget, Control, ControlEntry, Controlled, Dtype, Error, Eviction, Geometry, Level, Policy, PrefixConfig,
    PrefixSecret, Protection, RecordLayout, Retention, Scrub, SmartKv, Tier, Window, retention,
};
use certkv_control::bound_budget::BoundRule;
use certkv_control::smartkv::Rule;
use std::time::Instant;

/// Formats from the first level down, with originals of which type.
pub(crate) const LADDERS: [(&[&str], Dtype); 4] = [
    (&["k8-v4g32-b32", "k4-v4g32-b32"], Dtype::F16),
    (&["t8-v8g32-b32", "tq4-tq4-b32", "tq2-tq2-b32"], Dtype::Bf16),
    (&["gtq4-tq4-b32", "ctq3-tq3-b32", "s1-tq2-b32"], Dtype::F16),
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

/// Sequences of a batch that have one token in it, and which of its rows that is.
fn singles(batch: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut row = 0;
    let each = batch.iter().map(|(at, tokens)| {
        row += tokens;
        (*at, *tokens, row - tokens)
    });
    each.filter(|(_, tokens, _)| *tokens == 1).map(|(at, _, row)| (at, row)).collect()
}

/// Who decides on levels: by what is attended to, or by what levels lose. Half of what the first takes, and a little more than the last.
fn who_decides(config: &GpuConfig, seed: u64) -> Result<Option<Control>, Failure> {
    let bytes = |level: &Level| RecordLayout::new(&config.geometry, level.format).map(|layout| layout.bytes);
    let (Some(first), Some(last)) = (config.levels.first(), config.levels.last()) else { return Ok(None) };
    let budget = (0.4 * bytes(first)? as f64 + 0.6 * bytes(last)? as f64) * config.geometry.kv_heads as f64 / 32.0;
    let balanced = |level: &&Level| level.format.key.is_folded();
    // Bounds in two metrics are not told apart.
    let mixed = ![0, config.levels.len()].contains(&config.levels.iter().filter(balanced).count());
    // Every second time behind a gate.
    let gate = (seed / 3 % 2 == 1 && !mixed).then(Gating::default);
    let smart = SmartKv { rule: Rule { base: 4, drift_every: 2, gate, ..Rule::default() }, ..SmartKv::new(budget) };
    // Every second time of the step alone that decides, as the host has it.
    let looks = 1 + seed as usize / 6 % 2;
    let often = retention::Rule { every: 3, looks, gate, ..retention::Rule::default() };
    Ok(Some(match seed % 3 {
        0 if !mixed => Retention { rule: often, ..Retention::new(budget) }.into(),
        1 if !mixed => {
            let rule = BoundRule { every: 4, epsilon: 0.2, ..BoundRule::default() };
            Control::Budget(BoundBudget { rule, ..BoundBudget::new(budget) })
        }
        _ => smart.into(),
    }))
}

/// Lets who decides on levels look at a sequence; what was told of by what levels lose, and what was done.
fn control(
    cache: &mut GpuCache,
    world: &World,
    (at, row): (usize, usize),
    inputs: &Inputs,
    log: &mut Vec<ControlEntry>,
    mirrors: &mut Mirrors,
) -> Result<(usize, Controlled), Failure> {
    log.clear();
    let done = cache.control_logged(world.held[at].id, Some(&mut |entry| log.push(entry)))?;
    // Codes move weights; those of 2 and 3 bits by more than there is to compare with.
    let near = cache.levels().iter().all(|level| level.format.key.bits() >= 4);
    mirrors.hear(log, world, (at, row), &inputs.queries, cache.layouts()[0].tokens(), near);
    // What is lost is compared elsewhere.
    let told = |entry: &ControlEntry| {
        let terms = entry.terms.as_ref().map_or(0, |terms| terms.loss.len());
        terms + [&entry.loss, &entry.danger].into_iter().flatten().map(Vec::len).sum::<usize>()
    };
    Ok((log.iter().map(told).sum(), done))
}

/// What found no page at the level that it was to have is not there.
fn with_room(done: Result<(), Failure>) -> Result<(), Failure> {
    let full = |error: &Failure| matches!(error.downcast_ref(), Some(Error::CapacityExhausted { .. }));
    done.or_else(|error| if full(&error) { Ok(()) } else { Err(error) })
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
    config.chunk_tokens = plan.chunks.min(longest);
    config.prefixes = Some(PrefixConfig { secret: PrefixSecret::new([7; 32]), units: 64, eviction: Eviction::Lru });
    (config.swap_tokens, config.erase) = (longest, plan.seed.is_multiple_of(2));
    config.plan_apart = store == Dtype::Bf16;
    // Of the longest ladder in some lives everything, so that steps may add nothing from codes.
    config.protection = match (ladder.len(), plan.seed % 2) {
        (4, 0) => Protection::new(0, longest),
        (4, _) => Protection::new(5, 40),
        _ => Protection::NONE,
    };
    config.control = if ladder.len() < 4 { who_decides(&config, plan.seed)? } else { None };
    let keys: Vec<_> = config.levels.iter().map(|level| level.format.key).collect();
    let windows: Vec<Option<Window>> = vec![None; layers];
    let mut world = World::new(geometry, windows, plan.seed);
    world.protected = config.protection.recent == longest;
    if keys.iter().any(|key| key.is_folded()) {
        config.calibration = Some(world.calibration()?);
    }
    let tiers = Tier::ALL.into_iter().filter(|tier| keys.iter().any(|key| key.tier() == Some(*tier)));
    config.codebooks = tiers.map(|tier| world.codebooks(tier)).collect();
    let start = Instant::now();
    let mut cache = GpuCache::new(gpu, compiler, config.clone())?;
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
    let (mut heard, mut decided, mut log) = (0, Controlled::default(), Vec::new());
    let (mut ratios, mut mirrors) = (Ratios::default(), Mirrors::default());
    for i in 0..plan.steps {
        let n = world.held.len();
        let at = world.rng.below(n.max(1));
        match i % 8 {
            0 if n < 8 => {
                let from = world.held[at].id;
                world.fork(&mut cache, at)?;
                mirrors.fork(&world, from);
            }
            2 if n > 0 => {
                let near = world.held[at].len.saturating_sub(1 + i % 40);
                let len = if i % 16 == 2 { world.rng.below(world.held[at].len + 1) } else { near };
                world.truncate(&mut cache, at, len)?;
            }
            3 | 5 if n > 7 => world.release(&mut cache, at)?,
            4 if n > 0 => world.swap(&mut cache, at)?,
            7 if n > 0 && n < 8 => with_room(world.copy(&mut cache, at))?,
            1 if n > 0 && n < 8 => with_room(world.resume(&mut cache, at))?,
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
            abandon(&mut cache, &chunks, policy, &inputs)?;
        }
        let mut step = cache.begin_with(&chunks, policy)?;
        world.remember(&batch, &inputs);
        let tally = world.run(&mut step, &batch, &inputs, owed)?;
        step.finish()?;
        if policy != Policy::Dense {
            for (at, row) in singles(&batch).into_iter().take(2) {
                let (told, done) = control(&mut cache, &world, (at, row), &inputs, &mut log, &mut mirrors)?;
                ratios.add(&cache, &config, (&world, at, row), &inputs, &log)?;
                heard += told;
                decided.changed += done.changed;
                decided.refused += done.refused;
                decided.decided += done.decided;
            }
        }
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
    println!("decided: {decided:?}");
    let near = ratios.hold(plan.seed);
    let scored = mirrors.hold(plan.seed);
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
    let looked = cache.scrub(Scrub { pages: usize::MAX, originals: true })?;
    let damaged = looked.mended + looked.damaged.len();
    println!("GATE gpu-engine-scrub executed={} failed={damaged} controls=0/0 seed={:#x}", looked.pages, plan.seed);
    while !world.held.is_empty() {
        world.release(&mut cache, 0)?;
    }
    cache.evict_prefixes(usize::MAX)?;
    let left = cache.live_pages() + if plan.seed.is_multiple_of(2) { cache.residue()? } else { 0 };
    println!(
        "GATE gpu-engine-leaks executed={} failed={left} controls=0/0 seed={:#x}",
        world.held.len() + 1,
        plan.seed
    );
    let told = near && scored && (ladder.len() == 4 || heard + mirrors.compared > 0 && decided.changed > 0);
    Ok(told && sum.failed + lost + left + damaged == 0 && sum.controls == sum.planted && lowered > 0 && graphs)
}

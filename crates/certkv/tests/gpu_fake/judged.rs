//! Who decides on levels by what they lose: what a cache on a GPU tells it, against the formulas (math.md 9.17, 9.17a, 9.23) on what the fake's words, certificates and
//! records say, and its decisions against the same controllers that are told the same.
use crate::alone;
use crate::kernels::{self, BLOCK, GROUP, KV_HEADS, Plant, log2_evenness, log2_mass, log2_share, summary};
use crate::levels::{LADDERS, budget, config, mark, page_bytes};
use crate::life::LAYERS;
use crate::model::rows;
use certkv::danger::{Gating, danger};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{
    BoundBudget, Certified, Chunk, Control, ControlEntry, Error, Measure, Policy, Retention, SequenceId, Side, SmartKv,
};
use certkv_bound::terms::{key_terms, value_term};
use certkv_control::bound_budget::{BoundRule, Clock, Planner, Told as BoundTold};
use certkv_control::retention::{Budgets, Controller, Layer, Rule, Told, Wants};
use certkv_control::smartkv;
use certkv_core::RecordLayout;
use certkv_testkit::generate::Rng;

const HEADS: usize = GROUP * KV_HEADS;
/// As `terms.rs` has them.
const NEVER: f64 = 1e30;

/// What a layer's blocks lose, `[query head][block][level of the ladder]`, and the largest danger of each, by the formulas.
struct Judged {
    terms: Vec<f64>,
    danger: Vec<f64>,
}

fn judged(tokens: &[u32], layer: usize, up: &[u8], count: usize, measure: Measure, cancels: bool) -> Judged {
    let (blocks, known) = (up.len(), (tokens.len() - 1) / BLOCK);
    let mut all = Judged { terms: Vec::new(), danger: vec![0.0; blocks] };
    for q in 0..HEADS {
        let of = |block: usize, up: usize| {
            let s = summary(mark(tokens, layer, q / GROUP, block), count - 1 - up);
            [s.radius, s.eps, s.eta, s.sop].map(f64::from)
        };
        let now = |block: usize| of(block, up[block].into())[1];
        let mut mass: Vec<f64> =
            (0..known.min(blocks)).map(|b| f64::exp2(f64::from(log2_mass(q, b) - kernels::LOG2_TOTAL))).collect();
        let rest = (1.0 - mass.iter().sum::<f64>()).max(0.0);
        mass.resize(blocks, rest);
        let even = |b: usize| if b < known { f64::exp2(log2_evenness(q, b).into()) } else { 1.0 };
        let delta = |b: usize| f64::exp2(log2_share(q, b).into()).ln_1p();
        // By eps, of those with codes and words; their mean serves for the others.
        let with: Vec<usize> = (0..known.min(blocks)).filter(|b| now(*b).is_finite()).collect();
        let eps: f64 = with.iter().map(|b| now(*b)).sum();
        let mean =
            |x: &dyn Fn(usize) -> f64| if eps > 0.0 { with.iter().map(|b| x(*b)).sum::<f64>() / eps } else { 0.0 };
        let means = [mean(&delta), mean(&|b| delta(b) / even(b))];
        let per_eps = |b: usize| match with.contains(&b) {
            true => [delta(b) / now(b), delta(b) / even(b) / now(b)],
            false => means,
        };
        let made_of: f64 = (0..blocks).map(|b| mass[b] * of(b, 0)[0]).sum();
        let norm = f64::from(kernels::NORM).max(if cancels { 0.1 * made_of } else { 0.0 });
        let mut bounds = Vec::new();
        for block in 0..blocks {
            let (root, distance) = (mass[block] * even(block), of(block, 0)[0] + f64::from(kernels::RADIUS));
            bounds.push(if now(block).is_finite() { per_eps(block)[0] * now(block) } else { 0.0 });
            for level in 0..count {
                let [_, eps, eta, sop] = of(block, level);
                let [delta, lambda] = per_eps(block).map(|per| per * eps);
                let g = match measure {
                    Measure::Linear => (mass[block] * delta).min(root * lambda),
                    Measure::Bound => key_terms(mass[block], root, delta, lambda).0,
                };
                let term = (g * distance).min(distance) + value_term(mass[block], root, eta, sop);
                let stays = !now(block).is_finite() && level == usize::from(up[block]);
                all.terms.push(if stays {
                    0.0
                } else if eps.is_finite() {
                    (term / norm).min(NEVER)
                } else {
                    NEVER
                });
            }
        }
        let logs: Vec<f64> = mass.iter().map(|mass| mass.ln()).collect();
        let mut of_head = Vec::new();
        if danger(&logs, &bounds, &mut of_head).is_ok() {
            all.danger.iter_mut().zip(of_head).for_each(|(most, now)| *most = most.max(now));
        }
    }
    all
}

/// Off by what single precision takes, and the device's words.
fn near(got: &[f64], want: &[f64]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-4 * (a.abs() + b.abs()) + 1e-12)
}

/// The same controllers, told what the log says.
struct Twins {
    control: Control,
    layers: Vec<Layer>,
    clocks: Vec<Clock>,
    smart: Vec<smartkv::Controller>,
    /// What a device keeps of losses between two decisions of a layer, the largest of the steps that were looked at.
    peaks: Vec<Vec<f64>>,
}

impl Twins {
    fn new(control: Control) -> Self {
        let rule = if let Control::SmartKv(smart) = &control { smart.rule } else { smartkv::Rule::default() };
        let smart = |layer| smartkv::Controller::new(layer, HEADS, rule).expect("a controller");
        Self {
            control,
            layers: vec![Layer::default(); LAYERS],
            clocks: vec![Clock::default(); LAYERS],
            smart: (0..LAYERS).map(smart).collect(),
            peaks: vec![Vec::new(); LAYERS],
        }
    }

    /// Losses that a call tells of each layer, behind a step over `tokens` or none, where they are kept on the device: `None` where terms of each head are told.
    fn losses(
        &mut self,
        log: &[ControlEntry],
        tokens: Option<&[u32]>,
        ladder: &[&str],
    ) -> Option<Vec<Option<Vec<f64>>>> {
        let Control::Retention(control) = &self.control else { return None };
        if control.rule.gate.is_some() {
            return None;
        }
        let cost: Vec<f64> = page_bytes(ladder).into_iter().rev().collect();
        let told: Vec<Told<'_>> =
            log.iter().map(|e| Told { kept: e.kept, loss: None, danger: None, levels: &e.levels }).collect();
        let layers: Vec<&mut Layer> = self.layers.iter_mut().collect();
        let budgets = Budgets::new(control.bytes_per_token * BLOCK as f64);
        let wants = Controller::wants(&control.rule, &layers, &told, &cost, budgets);
        let of_layer = |((layer, peaks), wants): ((usize, &mut Vec<f64>), Wants)| {
            let entry = &log[layer];
            peaks.truncate(entry.kept.saturating_mul(ladder.len()));
            if let Some(tokens) = tokens.filter(|_| wants != Wants::Nothing) {
                let now = judged(tokens, layer, &entry.levels, ladder.len(), control.measure, true);
                let now = sum_of(&now.terms, entry.levels.len() * ladder.len());
                peaks.resize(now.len(), 0.0);
                peaks.iter_mut().zip(now).for_each(|(peak, now)| *peak = peak.max(now));
            }
            (wants == Wants::Decision && !peaks.is_empty()).then(|| core::mem::take(peaks))
        };
        Some(self.peaks.iter_mut().enumerate().zip(wants).map(of_layer).collect())
    }

    /// Levels that each layer is to have, where something was decided.
    fn tell(&mut self, log: &[ControlEntry], ladder: &[&str]) -> Vec<Option<Option<Vec<u8>>>> {
        let cost: Vec<f64> = page_bytes(ladder).into_iter().rev().collect();
        let block = |bytes: f64| bytes * BLOCK as f64;
        match &self.control {
            Control::Retention(control) => {
                let told: Vec<Told<'_>> = log
                    .iter()
                    .map(|e| Told {
                        kept: e.kept,
                        loss: e.loss.as_deref(),
                        danger: e.danger.as_deref(),
                        levels: &e.levels,
                    })
                    .collect();
                let budgets = Budgets {
                    block: block(control.bytes_per_token),
                    layer: block(control.layer_bytes_per_token),
                    head: block(control.head_bytes_per_token),
                    heads: 1,
                };
                let mut layers: Vec<&mut Layer> = self.layers.iter_mut().collect();
                let decided = Controller::new().tell(&control.rule, &mut layers, &told, &cost, budgets);
                decided.expect("an answer").into_iter().map(|d| d.map(|d| d.levels)).collect()
            }
            Control::Budget(control) => {
                let told: Vec<BoundTold<'_>> = log
                    .iter()
                    .map(|e| BoundTold { kept: e.kept, terms: e.terms.as_ref(), levels: &e.levels })
                    .collect();
                let mut clocks: Vec<&mut Clock> = self.clocks.iter_mut().collect();
                let budget = block(control.bytes_per_token);
                let plan = Planner::new().tell(&control.rule, &mut clocks, &told, &cost, budget).expect("an answer");
                let of = |layer: usize| plan.as_ref().map(|(_, plan)| Some(plan.levels[layer].clone()));
                (0..LAYERS).map(of).collect()
            }
            Control::SmartKv(control) => {
                let bits = |f: &&str| {
                    let f: certkv::Format = f.parse().expect("a format");
                    (f.key.bits() + f.value.bits()) as u8
                };
                let bits: Vec<u8> = ladder.iter().rev().map(bits).collect();
                let of = smartkv::Ladder { bits: &bits, cost: &cost };
                let tell = |(twin, e): (&mut smartkv::Controller, &ControlEntry)| {
                    let (attention, danger) = (e.attention.as_deref(), e.danger.as_deref());
                    let told = smartkv::Told { kept: e.kept, attention, levels: &e.levels, danger };
                    let mut widths = smartkv::WidthAllocator::new();
                    twin.tell(&mut widths, &of, &told, block(control.bytes_per_token))
                        .expect("an answer")
                        .map(|d| d.levels)
                };
                self.smart.iter_mut().zip(log).map(tell).collect()
            }
        }
    }
}

/// What became of a life: how often something was told, moved, planned; what was wrong; and the levels of all blocks after each call.
struct Became {
    seen: [usize; 3],
    wrong: Vec<String>,
    levels: Vec<Vec<Vec<u8>>>,
}

/// One sequence that grows by single tokens, is cut once, has blocks moved by its caller, and is looked at behind some steps; with a log of what was told, or without.
fn life(compiler: &Compiler, control: Control, ladder: &[&str], seed: u64, logs: bool) -> Became {
    let config = GpuConfig { control: Some(control), ..config(ladder, 2 * seed) };
    kernels::begin(ladder[0]);
    let layout = |f: &&str| RecordLayout::new(&config.geometry, f.parse().expect("a format")).expect("a layout");
    kernels::summarise(&ladder.iter().map(layout).collect::<Vec<_>>());
    let gpu = Gpu::open(0).expect("the fake");
    gpu.check_order();
    let mut cache = GpuCache::new(&gpu, compiler, config).expect("a cache");
    let mut id = cache.create().expect("a sequence");
    let (mut tokens, mut next): (Vec<u32>, u32) = (Vec::new(), 7);
    let (mut r, mut twins, mut wrong, mut seen) = (Rng::new(seed), Twins::new(control), Vec::new(), [0; 3]);
    let mut levels = Vec::new();
    let mut step = |cache: &mut GpuCache, id: SequenceId, tokens: &mut Vec<u32>, n: usize| -> Result<(), Error> {
        let new: Vec<u32> = (0..n as u32).map(|i| next + i).collect();
        next += n as u32;
        let chunk = [Chunk { sequence: id, tokens: n }];
        let mut step = cache.begin_with(&chunk, Policy::Certified(Certified::default()))?;
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows(&new, layer, Side::Key), &rows(&new, layer, Side::Value))?;
            step.attend(layer, &vec![0.25; n * HEADS * kernels::DIM])?;
        }
        step.finish()?;
        tokens.extend(new);
        Ok(())
    };
    step(&mut cache, id, &mut tokens, 2 * BLOCK + 3).expect("a prompt");
    for turn in 0..5 * BLOCK {
        if turn % 9 == 7 {
            // A fork goes on in another row with what is known here.
            let fork = cache.fork(id).expect("a row");
            cache.release(id).expect("a release");
            id = fork;
        }
        let is_cut = turn % BLOCK == 11;
        if is_cut {
            let len = tokens.len() - BLOCK - 5;
            cache.truncate(id, len).expect("a cut");
            tokens.truncate(len);
            // Other blocks in the places of those that are gone.
            let more = if turn == 11 { BLOCK } else { 0 };
            step(&mut cache, id, &mut tokens, BLOCK + 5 + more).expect("a chunk");
        }
        if r.chance(0.1) {
            let (layer, block) = (r.below(LAYERS), r.below(tokens.len() / BLOCK));
            // A level may have no page left.
            let _ = cache.change_level(id, layer, block, r.below(ladder.len()));
        }
        // Behind a chunk nothing is seen, but what was looked at before.
        let stepped = !(is_cut && r.chance(0.7));
        if stepped {
            step(&mut cache, id, &mut tokens, 1).expect("a step");
        }
        if r.chance(0.3) && stepped {
            continue;
        }
        let up = |cache: &GpuCache, layer: usize| -> Vec<u8> {
            let level = |block| (ladder.len() - 1 - cache.level(id, layer, block).expect("a level")) as u8;
            (0..tokens.len() / BLOCK).map(level).collect()
        };
        if stepped && r.chance(0.2) && !matches!(control, Control::SmartKv(smart) if smart.rule.gate.is_none()) {
            let plan = cache.plan_levels(id, 0.2, f64::INFINITY).expect("an answer");
            let whole = |plan: &certkv::LevelPlan| {
                plan.levels.len() == LAYERS && plan.levels.iter().all(|of| of.len() == tokens.len() / BLOCK)
            };
            seen[2] += usize::from(plan.as_ref().is_some_and(whole));
            if !plan.is_some_and(|plan| whole(&plan)) {
                wrong.push(format!("turn {turn}: no plan"));
            }
        }
        let again = r.chance(0.4);
        if !logs {
            let mut failed = cache.control(id).expect("an answer").failed;
            levels.push((0..LAYERS).map(|layer| up(&cache, layer)).collect());
            failed += if again { cache.control(id).expect("an answer").failed } else { 0 };
            assert_eq!(failed, 0);
            continue;
        }
        let before: Vec<Vec<u8>> = (0..LAYERS).map(|layer| up(&cache, layer)).collect();
        let mut log = Vec::new();
        let done = cache.control_logged(id, Some(&mut |entry| log.push(entry))).expect("an answer");
        if let Some(losses) = twins.losses(&log, stepped.then_some(&tokens[..]), ladder) {
            let others = |(entry, want): &(&ControlEntry, Option<Vec<f64>>)| !told_as(&entry.loss, want);
            wrong.extend(log.iter().zip(losses).filter(others).map(|(entry, want)| {
                format!("turn {turn}: layer {} was told {:?}, not {want:?}", entry.layer, entry.loss)
            }));
        }
        let decided = twins.tell(&log, ladder);
        let mut moved = 0;
        for (layer, entry) in log.iter().enumerate() {
            wrong
                .extend(told_wrong(&control, entry, &tokens, layer, ladder.len()).map(|w| format!("turn {turn}: {w}")));
            seen[0] += usize::from(entry.loss.is_some() || entry.danger.is_some() || entry.terms.is_some());
            if entry.layer != layer || entry.levels != before[layer] {
                wrong.push(format!("turn {turn}: layer {layer} has {:?}, not {:?}", entry.levels, before[layer]));
            }
            if entry.decision.as_ref().map(|d| &d.levels) != decided[layer].as_ref() {
                wrong.push(format!("turn {turn}: layer {layer}: another decision"));
            }
            let wanted = decided[layer].clone().flatten();
            for (block, (now, was)) in up(&cache, layer).into_iter().zip(&before[layer]).enumerate() {
                moved += usize::from(now != *was);
                if now != *was && wanted.as_ref().map(|wanted| wanted[block]) != Some(now) {
                    wrong.push(format!("turn {turn}: layer {layer}, block {block}: a level that nobody decided"));
                }
            }
        }
        if moved != done.changed || done.failed > 0 {
            wrong.push(format!("turn {turn}: {moved} moved: {done:?}"));
        }
        seen[1] += moved;
        levels.push((0..LAYERS).map(|layer| up(&cache, layer)).collect());
        if !again {
            continue;
        }
        // A step is told once.
        let mut silent = silent(&log, &cache, id, ladder, tokens.len() / BLOCK);
        let kept = twins.losses(&silent, None, ladder).unwrap_or_else(|| vec![None; LAYERS]);
        let mut at = 0;
        let mut again = |entry: ControlEntry| {
            let seen = entry.danger.is_some() || entry.terms.is_some() || entry.attention.is_some();
            if seen || !told_as(&entry.loss, &kept[at]) {
                wrong.push(format!("turn {turn}: a step was told twice"));
            }
            silent[at].loss = entry.loss;
            at += 1;
        };
        assert_eq!(cache.control_logged(id, Some(&mut again)).expect("an answer").failed, 0);
        let _ = twins.tell(&silent, ladder);
    }
    cache.release(id).expect("a release");
    cache.synchronize().expect("the fake");
    assert_eq!(cache.live_pages(), 0);
    let report = gpu.order_report().expect("the checker is on");
    assert!(report.unordered == 0 && report.accesses > 0, "{report:?}");
    kernels::summarise(&[]);
    Became { seen, wrong, levels }
}

/// All heads together, `[block][level]`.
fn sum_of(terms: &[f64], cells: usize) -> Vec<f64> {
    let mut sum = vec![0.0f64; cells];
    for head in terms.chunks_exact(cells) {
        sum.iter_mut().zip(head).for_each(|(sum, x)| *sum = (*sum + x).min(NEVER));
    }
    sum
}

fn told_as(got: &Option<Vec<f64>>, want: &Option<Vec<f64>>) -> bool {
    match (got, want) {
        (Some(got), Some(want)) => near(got, want),
        (None, None) => true,
        _ => false,
    }
}

/// What a call tells that no step was seen for.
fn silent(log: &[ControlEntry], cache: &GpuCache, id: SequenceId, ladder: &[&str], blocks: usize) -> Vec<ControlEntry> {
    let up = |layer: usize| {
        let level = |block| (ladder.len() - 1 - cache.level(id, layer, block).expect("a level")) as u8;
        (0..blocks).map(level).collect::<Vec<u8>>()
    };
    let quiet = |e: &ControlEntry| ControlEntry {
        kept: usize::MAX,
        attention: None,
        loss: None,
        danger: None,
        terms: None,
        levels: up(e.layer),
        decision: None,
        ..e.clone()
    };
    log.iter().map(quiet).collect()
}

/// What is wrong with what was told of a layer.
fn told_wrong(control: &Control, entry: &ControlEntry, tokens: &[u32], layer: usize, count: usize) -> Option<String> {
    let blocks = entry.levels.len();
    let (measure, cancels) = match control {
        Control::Retention(retention) => (retention.measure, true),
        Control::SmartKv(_) => (Measure::Linear, true),
        Control::Budget(_) => (Measure::Bound, false),
    };
    let want = judged(tokens, layer, &entry.levels, count, measure, cancels);
    let sum = sum_of(&want.terms, blocks * count);
    // Others are told of several steps at once.
    let at_once = matches!(control, Control::Retention(retention) if retention.rule.gate.is_none());
    if entry.loss.as_ref().is_some_and(|got| !at_once && !near(got, &sum)) {
        return Some(format!("layer {layer}: losses {:?}, not {sum:?}", entry.loss));
    }
    if entry.terms.as_ref().is_some_and(|got| got.heads != HEADS || !near(&got.loss, &want.terms)) {
        return Some(format!("layer {layer}: terms {:?}, not {:?}", entry.terms, want.terms));
    }
    let danger = entry.danger.as_ref().is_some_and(|got| !near(got, &want.danger));
    danger.then(|| format!("layer {layer}: danger {:?}, not {:?}", entry.danger, want.danger))
}

/// All who judge by what levels lose, deciding often.
fn deciders(ladder: &[&str]) -> Vec<Control> {
    let rule = Rule { every: 3, cooldown: 0, ..Rule::default() };
    let gate = Some(Gating::default());
    let plain = Retention { rule, ..Retention::new(budget(ladder)) };
    let smart = smartkv::Rule { gate, points: 0.0, checks: 0, base: 2, drift_every: 1, ..smartkv::Rule::default() };
    // Every second call decides on what both have looked at.
    let often = Retention { rule: Rule { every: 2, looks: 2, ..rule }, ..plain };
    vec![
        often.into(),
        plain.into(),
        often.into(),
        Retention { measure: Measure::Bound, ..plain }.into(),
        Retention { rule: Rule { gate, ..rule }, ..plain }.into(),
        Control::Budget(BoundBudget {
            rule: BoundRule { every: 2, epsilon: 0.3, ..BoundRule::default() },
            ..BoundBudget::new(budget(ladder))
        }),
        SmartKv { rule: smart, ..SmartKv::new(budget(ladder)) }.into(),
    ]
}

#[test]
fn what_levels_lose_is_what_the_formulas_say() {
    let (fake, compiler, _turn) = alone();
    let (mut executed, mut moved, mut planned) = (0, 0, 0);
    for deferred in [false, true] {
        for ladder in LADDERS {
            for (i, control) in deciders(ladder).into_iter().enumerate() {
                fake.reset();
                fake.defer(deferred);
                let Became { seen, wrong, levels } = life(compiler, control, ladder, i as u64, true);
                assert!(wrong.is_empty(), "{ladder:?}, {control:?}: {} wrong, first {}", wrong.len(), wrong[0]);
                assert!(seen[0] > 8 && seen[1] > 0, "{ladder:?}, {control:?}: {seen:?}");
                // Steps that are nothing to anybody are passed over where nobody keeps a log.
                fake.reset();
                fake.defer(deferred);
                let silent = life(compiler, control, ladder, i as u64, false);
                assert!(
                    silent.wrong.is_empty() && silent.levels == levels,
                    "{ladder:?}, {control:?}: other levels without a log"
                );
                (executed, moved, planned) = (executed + seen[0], moved + seen[1], planned + seen[2]);
            }
        }
    }
    fake.defer(false);
    let caught = [Plant::OneLoss, Plant::OtherWords].into_iter().filter(|what| {
        fake.reset();
        kernels::plant(*what);
        let wrong = life(compiler, deciders(LADDERS[1])[0], LADDERS[1], 0, true).wrong;
        kernels::plant(Plant::Nothing);
        !wrong.is_empty()
    });
    let caught = caught.count();
    println!(
        "GATE gpu-level-losses executed={executed} failed=0 controls={caught}/2 seed=0x0 ({moved} blocks moved, {planned} plans)"
    );
    assert_eq!(caught, 2);
}

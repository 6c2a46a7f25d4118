//! Controllers: allocations and gates are exact.
use super::certificates::{BOUND_LIMIT, columns};
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_control::retention::{Change, Limits, Retention, RetentionRule};
use certkv_control::smartkv::{Hysteresis, Importance, Items, Ladder, WidthAllocator, interval, kl, moved};
use certkv_control::{Allocator, Choices, Gate, allocate_bits, danger};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "alloc_bytes", replay: alloc_bytes },
    Family { prefix: "gtq_alloc", replay: gtq_alloc },
    Family { prefix: "gate", replay: gate },
    Family { prefix: "rdr", replay: retention },
    Family { prefix: "smartkv", replay: smartkv },
    Family { prefix: "smartkv_interval", replay: smartkv_interval },
];

fn alloc_bytes(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [cost, loss] = columns(v, ["cost", "dist"])?;
    let choices = Choices { levels: v.matrix("cost")?.1, cost: &cost, loss: &loss };
    let mut allocator = Allocator::new();
    for i in (0..).take_while(|i| v.has(&format!("budget{i}"))) {
        let found = allocator.solve(&choices, v.scalar(&format!("budget{i}"))?).map_err(ConformError::refused)?;
        let levels = found.level.iter().map(|level| i64::from(*level));
        report.exact_ints("levels within a budget of bytes", levels, &v.i64s(&format!("level{i}"))?);
        report.relative("bytes of these levels", &[found.used], &[v.scalar(&format!("used{i}"))?], BOUND_LIMIT);
    }
    Ok(())
}

fn gtq_alloc(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let mut bits = Vec::new();
    for i in (0..).take_while(|i| v.has(&format!("score{i}"))) {
        let number = |name: &str| v.scalar(&format!("{name}{i}"));
        let (budget, least, most) = (number("budget")?, number("min")?, number("max")?);
        allocate_bits(&v.f64s(&format!("score{i}"))?, budget as usize, least as u8, most as u8, &mut bits)
            .map_err(ConformError::refused)?;
        report.exact_ints("bits of pairs", bits.iter().map(|b| i64::from(*b)), &v.i64s(&format!("bits{i}"))?);
    }
    Ok(())
}

fn gate(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [mass, delta] = columns(v, ["lm", "D"])?;
    let mut found = Vec::new();
    danger(&mass, &delta, &mut found).map_err(ConformError::refused)?;
    report.relative("danger", &found, &v.f64s("danger")?, BOUND_LIMIT);
    let mut gate = Gate::default();
    let on = v.f64s("trace")?.into_iter().map(|x| i64::from(gate.step(x)));
    report.exact_ints("gate", on, &v.i64s("on")?);
    Ok(())
}

/// A trace of steps with growing items: scores, what may change, widths, drift.
fn smartkv(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (cost, ladder) = (v.f64s("cost_2_3_4_8")?, v.i64s("ladder")?);
    let bits: Vec<u8> = ladder.iter().map(|b| *b as u8).collect();
    let refused = ConformError::refused;
    let mut importance = Importance::new(v.matrix("attn0")?.0, Default::default()).map_err(refused)?;
    let (mut hysteresis, mut allocator) = (Hysteresis::default(), WidthAllocator::new());
    let (mut score, mut before, mut previous) = (Vec::new(), Vec::new(), Vec::<u8>::new());
    for step in (0..).take_while(|step| v.has(&format!("attn{step}"))) {
        let of = |name: &str| format!("{name}{step}");
        importance.update(&v.f64s(&of("attn"))?, step).map_err(refused)?;
        importance.scores(step, &mut score);
        report.relative("SmartKV scores", &score, &v.f64s(&of("score"))?, BOUND_LIMIT);
        hysteresis.check(&score).map_err(refused)?;
        for (name, set) in [("up", hysteresis.may_rise()), ("down", hysteresis.may_fall())] {
            let got = (0..score.len()).map(|item| i64::from(set.contains(item)));
            report.exact_ints("SmartKV: what may change", got, &v.i64s(&of(name))?);
        }
        let (may_rise, may_fall) = (hysteresis.may_rise(), hysteresis.may_fall());
        let items = Items { score: &score, previous: &previous, may_rise, may_fall, protected: [4, 2], held: None };
        let budget = v.scalar(&of("budget"))?;
        let found = allocator.solve(&Ladder { bits: &bits, cost: &cost }, &items, 0.6, budget).map_err(refused)?;
        let widths = found.level.iter().map(|level| ladder[usize::from(*level)]);
        report.exact_ints("SmartKV widths", widths, &v.i64s(&of("bits"))?);
        report.exact("SmartKV bytes", &[found.used], &[v.scalar(&of("used"))?]);
        report.exact_ints("SmartKV: forced", [i64::from(found.forced)], &v.i64s(&of("forced"))?);
        let changed = previous.iter().zip(found.level).enumerate().filter(|(_, (a, b))| a != b);
        let changed: Vec<usize> = changed.map(|(item, _)| item).collect();
        previous.clear();
        previous.extend_from_slice(found.level);
        changed.into_iter().for_each(|item| hysteresis.changed(item));
        if v.has(&of("kl")) {
            let drift = [kl(&score, &before).map_err(refused)?, moved(&score, &before, 5.0).map_err(refused)?];
            report.relative("SmartKV drift", &drift, &[v.scalar(&of("kl"))?, v.scalar(&of("moved"))?], BOUND_LIMIT);
        }
        before.clone_from(&score);
    }
    Ok(())
}

fn smartkv_interval(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    for row in v.i64s("rows")?.chunks_exact(4) {
        let found = interval(row[0] as usize, row[1] as usize, row[2] as usize);
        report.exact_ints("SmartKV interval", [found as i64], &row[3..]);
    }
    Ok(())
}

/// Updates under changing budgets, with limits of a layer and a head.
fn retention(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let keys = v.i64s("keys")?.chunks_exact(3).map(|key| (key[0] as u32, key[1] as u32)).collect();
    let (cost, rule) = (v.f64s("cost")?, v.f64s("rho_up_rho_dn_cooldown")?);
    let rule = RetentionRule { up: rule[0], down: rule[1], cooldown: rule[2] as u32 };
    let heads: Vec<_> =
        v.f64s("head_cap_layer_head_bytes")?.chunks_exact(3).map(|c| ((c[0] as u32, c[1] as u32), c[2])).collect();
    let layers: Vec<_> = v.f64s("layer_cap_layer_bytes")?.chunks_exact(2).map(|c| (c[0] as u32, c[1])).collect();
    let mut retention = Retention::new(keys, v.matrix("cost")?.1, rule).map_err(ConformError::refused)?;
    for step in (0..).take_while(|step| v.has(&format!("dist{step}"))) {
        let of = |name: &str| format!("{name}{step}");
        let limits = Limits { budget: v.scalar(&of("budget"))?, layers: &layers, heads: &heads };
        let done = retention.update(&cost, &v.f64s(&of("dist"))?, &limits, None).map_err(ConformError::refused)?;
        let ints = |x: &[u32]| x.iter().map(|x| i64::from(*x)).collect::<Vec<_>>();
        report.exact_ints("retention levels", ints(retention.levels()), &v.i64s(&of("level"))?);
        report.exact_ints("retention: rests", ints(retention.rests()), &v.i64s(&of("cool"))?);
        let changes =
            |all: &[Change]| all.iter().flat_map(|c| [c.item, c.from, c.to]).map(i64::from).collect::<Vec<_>>();
        report.exact_ints("retention: down", changes(&done.down), &v.i64s(&of("down"))?);
        report.exact_ints("retention: up", changes(&done.up), &v.i64s(&of("up"))?);
        report.exact_ints("retention: forced", [done.forced as i64], &v.i64s(&of("forced"))?);
        report.relative("retention bytes", &[done.used], &[v.scalar(&of("used"))?], BOUND_LIMIT);
    }
    Ok(())
}

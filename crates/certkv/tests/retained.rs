//! Retention on a live cache: levels follow what they would lose, within one budget of bytes for all layers, while every output stays within
//! its bound; decisions are those that a log of what the controller was told gives again.
mod common;

use certkv::bound_budget::BoundRule;
use certkv::retention::{Budgets, Gating, Rule};
use certkv::smartkv::Trigger;
use certkv::{BoundBudget, Cache, Class, Config, Control, ControlEntry, Controlled, Error, Policy, Retention};
use certkv_testkit::generate::Rng;
use common::calibrate::calibrated;
use common::towards::{BLOCK, LAYERS, Ladder, TOLERANCE, add, all_levels, decode, geometry, replays};
use common::{fill, original_faults, random_queries, random_rows, step};

const LADDER: Ladder = Ladder(["t8-v8g64-b16", "t4-v4g64-b16", "t3-v3g64-b16"]);
/// The source's own: tiers of spherical keys, and what is dropped.
const TIERS: Ladder = Ladder(["s1-tq4-b16", "s3-tq3-b16", "k0-c0-b16"]);

/// Whether a controller that is told the log decides what it says; `budget` of a block.
fn replayed(ladder: &Ladder, rule: &Rule, log: &[ControlEntry], budget: f64) -> bool {
    let cost: Vec<f64> = (0..3).rev().map(|level| ladder.page(level)).collect();
    replays(rule, log, (&cost, Budgets::new(budget)), LAYERS)
}

#[test]
fn levels_follow_losses_within_one_budget_and_a_log_gives_them_again() {
    follows_losses(&LADDER);
    follows_losses(&TIERS);
}

fn follows_losses(ladder: &Ladder) {
    let budget = ladder.page(1);
    let rule = Rule { every: 4, ..Rule::default() };
    let retention = Retention { rule, ..Retention::new(budget / BLOCK as f64) };
    let cache = Cache::new(calibrated(ladder.config([640; 3], retention), 5)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(11));
    let mut model = random_rows(&geometry(), 330, &mut r);
    fill(&cache, id, &model).unwrap();
    assert_eq!(cache.control(id).unwrap(), Controlled::default(), "nothing was seen");
    let (mut log, mut all): (Vec<ControlEntry>, _) = (Vec::new(), Controlled::default());
    for n in 0..120 {
        decode(&cache, id, &mut model, if n < 60 { 4 } else { 9 }, TOLERANCE, &mut r);
        let done = cache.control_logged(id, Some(&mut |entry| log.push(entry))).unwrap();
        let now = all_levels(&cache, id);
        let blocks = now.iter().map(Vec::len).sum::<usize>();
        assert!(ladder.bytes(&now) <= budget * blocks as f64, "after step {n}: {now:?}");
        assert!(ladder.bytes(&now) > 0.9 * budget * blocks as f64, "the budget is used: {now:?}");
        if n == 59 || n == 119 {
            let hot = if n == 59 { 4 } else { 9 };
            for levels in &now {
                assert_eq!((levels[0], levels[hot]), (0, 0), "{now:?}");
            }
        }
        if n == 40 {
            let before = all_levels(&cache, id);
            cache.swap_out(id).unwrap();
            assert!(matches!(cache.control(id), Err(Error::SwappedOut)));
            cache.swap_in(id).unwrap();
            assert_eq!(all_levels(&cache, id), before);
        }
        if n == 90 {
            // A cut below the prompt, and a chunk that fills other blocks.
            cache.truncate(id, 300).unwrap();
            model.truncate(&geometry(), 300);
            let rows = random_rows(&geometry(), 40, &mut r);
            fill(&cache, id, &rows).unwrap();
            model.append(&rows);
        }
        add(&mut all, done);
    }
    println!("{all:?}");
    assert!(all.changed > 50 && all.failed + all.refused + all.below_floor == 0, "{all:?}");
    assert_eq!(original_faults(&cache, id, &model), 0);
    assert!(cache.memory().tables <= cache.reserved_for(Class::Tables));
    assert_eq!(cache.snapshot().recodes.unwrap().done.count(), all.changed as u64);
    // What was told gives the decisions again; the cut is part of it.
    assert!(log.iter().any(|entry| entry.kept == 300 / BLOCK));
    assert!(replayed(ladder, &rule, &log, budget));
    let mut other = log.clone();
    other.iter_mut().skip(30).filter_map(|entry| entry.loss.as_mut()).for_each(|loss| loss.rotate_left(9));
    assert!(!replayed(ladder, &rule, &other, budget), "the log matters");
    let triggers: Vec<_> = log.iter().filter_map(|entry| entry.decision.as_ref()).map(|d| d.trigger).collect();
    for wanted in [Trigger::First, Trigger::Interval, Trigger::Budget] {
        assert!(triggers.contains(&wanted), "{wanted:?} never came");
    }
    cache.release(id).unwrap();
    assert_eq!((cache.live_pages(), cache.memory()), (0, Default::default()));
}

/// Blocks whose rank is in danger keep their level where others can give theirs; without a gate they give it. The log holds the dangers.
#[test]
fn a_gate_keeps_levels_up() {
    let run = |gate: Option<Gating>| {
        let rule = Rule { every: 1, gate, ends: [0, 0], ..Rule::default() };
        let budget = 0.5 * (LADDER.page(0) + LADDER.page(1));
        let cache =
            Cache::new(LADDER.config([640; 3], Retention { rule, ..Retention::new(budget / BLOCK as f64) })).unwrap();
        let (id, mut r) = (cache.create().unwrap(), Rng::new(3));
        let mut model = random_rows(&geometry(), 200, &mut r);
        fill(&cache, id, &model).unwrap();
        let (mut log, mut fell) = (Vec::new(), 0);
        for _ in 0..12 {
            // Nobody attends to the block, and its rank is between those of others.
            decode(&cache, id, &mut model, 6, TOLERANCE, &mut r);
            cache.control_logged(id, Some(&mut |entry: ControlEntry| log.push(entry))).unwrap();
        }
        for entry in &log {
            let Some(wanted) = entry.decision.as_ref().and_then(|d| d.levels.as_ref()) else { continue };
            let danger = |block: usize| entry.danger.as_ref().map_or(1.0, |d| d[block]);
            let lower = |block: usize| wanted[block] < entry.levels[block] && danger(block) >= 1.0;
            fell += (0..wanted.len()).filter(|block| lower(*block)).count();
        }
        assert!(replayed(&LADDER, &rule, &log, budget) && original_faults(&cache, id, &model) == 0);
        (fell, log)
    };
    let (fell, log) = run(Some(Gating::default()));
    let dangers: Vec<f64> = log.iter().filter_map(|entry| entry.danger.clone()).flatten().collect();
    assert!(dangers.iter().any(|d| *d >= 1.0) && dangers.iter().any(|d| *d < 0.5), "a gate that tells nothing apart");
    assert_eq!(fell, 0);
    let (fell, log) = run(None);
    assert!(fell > 0 && log.iter().all(|entry| entry.danger.is_none()));
}

/// Steps that are nothing to anybody but a tick of clocks are passed over where nobody keeps a log: blocks have the levels that they have where every step is
/// told, beside cuts and blocks that their caller moved.
#[test]
fn a_log_changes_no_decision() {
    let rule = Rule { every: 20, ..Rule::default() };
    let plain = Retention { rule, ..Retention::new(LADDER.page(1) / BLOCK as f64) };
    let bound = BoundBudget {
        rule: BoundRule { every: 20, ..BoundRule::default() },
        ..BoundBudget::new(LADDER.page(1) / BLOCK as f64)
    };
    let gated = Retention { rule: Rule { gate: Some(Gating::default()), ..rule }, ..plain };
    for control in [Control::from(plain), gated.into(), Control::Budget(bound)] {
        let lives = [false, true].map(|logs| {
            let cache = Cache::new(LADDER.config([640; 3], control)).unwrap();
            let (id, mut r) = (cache.create().unwrap(), Rng::new(17));
            let mut model = random_rows(&geometry(), 200, &mut r);
            fill(&cache, id, &model).unwrap();
            let (mut after, mut all) = (Vec::new(), Controlled::default());
            for n in 0..90 {
                decode(&cache, id, &mut model, if n < 45 { 4 } else { 7 }, TOLERANCE, &mut r);
                // Room, before a block fills; and none, behind it.
                if let Some(level) =
                    [(2, 2), (10, 0)].into_iter().find_map(|(at, level)| (n % BLOCK == at).then_some(level))
                {
                    for (layer, levels) in all_levels(&cache, id).iter().enumerate() {
                        (0..levels.len()).for_each(|block| cache.change_level(id, layer, block, level).unwrap());
                    }
                }
                if n == 50 {
                    let len = model.len(&geometry()) - 2 * BLOCK - 3;
                    cache.truncate(id, len).unwrap();
                    model.truncate(&geometry(), len);
                    let rows = random_rows(&geometry(), 2 * BLOCK + 3, &mut r);
                    fill(&cache, id, &rows).unwrap();
                    model.append(&rows);
                }
                let mut told = 0;
                let mut count = |_: ControlEntry| told += 1;
                add(&mut all, cache.control_logged(id, if logs { Some(&mut count) } else { None }).unwrap());
                assert_eq!(told, if logs { LAYERS } else { 0 });
                after.push(all_levels(&cache, id));
            }
            (after, all)
        });
        assert!(lives[0] == lives[1], "{control:?}");
        assert!(lives[0].1.changed > 20, "{:?}", lives[0].1);
    }
}

/// The limit of a layer holds beside the budget of all.
#[test]
fn no_layer_takes_more_than_its_own_limit() {
    let (all, own) = (LADDER.page(0) / BLOCK as f64, LADDER.page(1) / BLOCK as f64);
    for layer_bytes_per_token in [f64::INFINITY, own] {
        let control = Retention { layer_bytes_per_token, ..Retention::new(all) };
        let cache = Cache::new(LADDER.config([640; 3], control)).unwrap();
        let (id, mut r) = (cache.create().unwrap(), Rng::new(5));
        let mut model = random_rows(&geometry(), 200, &mut r);
        fill(&cache, id, &model).unwrap();
        for _ in 0..20 {
            decode(&cache, id, &mut model, 3, TOLERANCE, &mut r);
            cache.control(id).unwrap();
            let over = |levels: &Vec<usize>| {
                LADDER.bytes(core::slice::from_ref(levels)) > LADDER.page(1) * levels.len() as f64
            };
            let found = all_levels(&cache, id).iter().filter(|levels| over(levels)).count();
            assert_eq!(found, if layer_bytes_per_token == own { 0 } else { LAYERS });
        }
    }
}

/// Classes without room for what is decided: some blocks stay, everything holds. A fork goes its own way on what it shares.
#[test]
fn blocks_for_which_there_is_no_page_stay_and_forks_go_their_own_way() {
    let rule = Rule { every: 2, ..Rule::default() };
    let control = Retention { rule, ..Retention::new(LADDER.page(2) / BLOCK as f64) };
    let cache = Cache::new(LADDER.config([640, 64, 48], control)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(4));
    let mut model = random_rows(&geometry(), 200, &mut r);
    fill(&cache, id, &model).unwrap();
    let mut all = Controlled::default();
    for _ in 0..30 {
        decode(&cache, id, &mut model, 3, TOLERANCE, &mut r);
        add(&mut all, cache.control(id).unwrap());
    }
    assert!(all.refused > 0 && all.changed > 0 && all.failed == 0, "{all:?}");
    for levels in all_levels(&cache, id) {
        let count = |level| levels.iter().filter(|l| **l == level).count();
        assert!(count(1) <= 4 && count(2) <= 3 && count(2) > 0, "{levels:?}");
    }
    let fork = cache.fork(id).unwrap();
    let (before, mut other) = (all_levels(&cache, id), model.clone());
    (0..LAYERS).for_each(|layer| (0..3).for_each(|block| cache.change_level(fork, layer, block, 0).unwrap()));
    let mut own = Controlled::default();
    for _ in 0..30 {
        decode(&cache, fork, &mut other, 7, TOLERANCE, &mut r);
        add(&mut own, cache.control(fork).unwrap());
    }
    assert_eq!(before, all_levels(&cache, id));
    assert!(before[0][0] == 2 && own.changed + own.refused > 0, "{before:?} {own:?}");
    decode(&cache, id, &mut model, 3, TOLERANCE, &mut r);
    for (id, model) in [(fork, &other), (id, &model)] {
        assert_eq!(original_faults(&cache, id, model), 0);
        cache.release(id).unwrap();
    }
    assert_eq!(cache.live_pages(), 0);
}

/// Losses come from outputs of any policy that reads codes; a dense step says nothing.
#[test]
fn other_policies_tell_as_much_as_they_read() {
    let cache = Cache::new(LADDER.config([640; 3], Retention::new(LADDER.page(1) / BLOCK as f64))).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(8));
    fill(&cache, id, &random_rows(&geometry(), 100, &mut r)).unwrap();
    let mut run = |policy| {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), random_queries(&geometry(), 1, &mut r));
        step(&cache, id, &rows, &queries, policy).unwrap();
        cache.control(id).unwrap().decided
    };
    assert_eq!((run(Policy::Dense), run(Policy::Packed)), (0, LAYERS));
}

#[test]
fn what_cannot_be_is_refused_by_field() {
    let good = Retention::new(LADDER.page(1) / BLOCK as f64);
    let lowest = LADDER.page(2) / BLOCK as f64;
    for bad in [
        Retention { bytes_per_token: lowest - 0.1, ..good },
        Retention { bytes_per_token: f64::NAN, ..good },
        Retention { bytes_per_token: f64::INFINITY, ..good },
        Retention { layer_bytes_per_token: lowest - 0.1, ..good },
        Retention { layer_bytes_per_token: f64::NAN, ..good },
        Retention { rule: Rule { every: 0, ..good.rule }, ..good },
        Retention { rule: Rule { up: 0.5, down: 0.5, ..good.rule }, ..good },
    ] {
        match Cache::new(LADDER.config([640; 3], bad)) {
            Err(Error::Config { field: "control.retention", .. }) => {}
            other => panic!("{bad:?}: {other:?}"),
        }
    }
    let fits = LADDER.config([640; 3], Retention { layer_bytes_per_token: lowest, ..Retention::new(lowest) });
    assert!(Cache::new(fits.clone()).is_ok());
    // Room for it is planned.
    let without = Config { control: None, ..fits.clone() };
    assert!(fits.plan().unwrap().of(Class::Tables) > without.plan().unwrap().of(Class::Tables));
}

//! SmartKV on a live cache: levels follow what queries attend to, within the budget of bytes, while every output stays within its bound;
//! decisions are those that a log of what the controllers were told gives again.
mod common;

use certkv::retention::Gating;
use certkv::smartkv::{Controller, Ladder, Rule, Told, Trigger, WidthAllocator};
use certkv::{
    Cache, Certified, Class, Config, Control, ControlEntry, Controlled, Error, Geometry, Level, Policy, RecordLayout,
    SequenceId, SmartKv,
};
use certkv_testkit::generate::Rng;
use common::towards::{add, levels};
use common::{Model, fill, original_faults, random_rows, step};

const FORMATS: [&str; 4] = ["t8-v8g64-b16", "t4-v4g64-b16", "t3-v3g64-b16", "t2-v2g64-b16"];
const TOLERANCE: f64 = 0.05;

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

/// Bytes of a page in one layer.
fn page(level: usize) -> f64 {
    let layout = RecordLayout::new(&geometry(), FORMATS[level].parse().unwrap()).unwrap();
    (64 + 2 * layout.bytes) as f64
}

fn config(tokens: [usize; 4], bytes_per_token: f64) -> Config {
    let level = |(f, tokens): (&&str, usize)| Level { format: f.parse().unwrap(), tokens };
    let policy = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
    let levels = FORMATS.iter().zip(tokens).map(level).collect();
    let config = Config::new(geometry(), 640).with_levels(levels);
    Config { policy, threads: 2, control: Some(SmartKv::new(bytes_per_token).into()), ..config }
}

/// One step of both layers towards `block`.
fn decode(cache: &Cache, id: SequenceId, model: &mut Model, block: usize, r: &mut Rng) {
    common::towards::decode(cache, id, model, block, TOLERANCE, r);
}

fn bytes(levels: &[usize]) -> f64 {
    levels.iter().map(|level| page(*level)).sum()
}

#[test]
fn levels_follow_attention_within_the_budget_and_a_log_gives_them_again() {
    // On average what the second level takes.
    let budget = page(1) / 16.0;
    let cache = Cache::new(config([640; 4], budget)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(11));
    let mut model = random_rows(&geometry(), 330, &mut r);
    fill(&cache, id, &model).unwrap();
    assert_eq!(cache.control(id).unwrap(), Controlled::default(), "nothing was seen");
    let (mut log, mut all): (Vec<ControlEntry>, _) = (Vec::new(), Controlled::default());
    for n in 0..140 {
        decode(&cache, id, &mut model, if n < 70 { 4 } else { 9 }, &mut r);
        let done = cache.control_logged(id, Some(&mut |entry| log.push(entry))).unwrap();
        if n == 0 {
            assert_eq!((done.decided, done.below_floor, done.refused), (2, 0, 0));
        }
        if n == 69 || n == 139 {
            for layer in 0..2 {
                let levels = levels(&cache, id, layer);
                let hot = if n == 69 { 4 } else { 9 };
                assert_eq!((levels[0], levels[hot]), (0, 0), "{levels:?}");
                let least = levels[1..].iter().filter(|level| **level > 1).count();
                assert!(least > 5, "{levels:?}");
                // Blocks that became full since the last decision have the first level.
                assert!(bytes(&levels) <= budget * 16.0 * levels.len() as f64 + 2.0 * page(0), "{levels:?}");
            }
        }
        if n == 100 {
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
    assert!(all.changed > 30 && all.failed + all.refused == 0, "{all:?}");
    assert_eq!(original_faults(&cache, id, &model), 0);
    assert!(cache.memory().tables <= cache.reserved_for(Class::Tables));
    let seen = cache.snapshot().recodes.unwrap();
    assert_eq!((seen.done.count(), seen.refused, seen.failed), (all.changed as u64, 0, 0));
    // What was told gives the decisions again; the cut is part of it.
    assert!(log.iter().any(|entry| entry.kept == 300 / 16));
    let bits: Vec<u8> = [4, 6, 8, 16].to_vec();
    let cost: Vec<f64> = (0..4).rev().map(page).collect();
    let (ladder, mut decided) = (Ladder { bits: &bits, cost: &cost }, 0);
    for layer in 0..2 {
        let mut controller = Controller::new(layer, 4, Rule::default()).unwrap();
        let mut allocator = WidthAllocator::new();
        for entry in log.iter().filter(|entry| entry.layer == layer) {
            let told = Told {
                kept: entry.kept,
                attention: entry.attention.as_deref(),
                levels: &entry.levels,
                danger: entry.danger.as_deref(),
            };
            let again = controller.tell(&mut allocator, &ladder, &told, budget * 16.0).unwrap();
            assert_eq!(again, entry.decision);
            decided += usize::from(again.is_some());
        }
    }
    assert_eq!(decided, all.decided);
    let triggers: Vec<_> = log.iter().filter_map(|entry| entry.decision.as_ref()).map(|d| d.trigger).collect();
    assert!(triggers.contains(&Trigger::Budget) && triggers.contains(&Trigger::Drift), "{triggers:?}");
    cache.release(id).unwrap();
    assert_eq!((cache.live_pages(), cache.memory()), (0, Default::default()));
}

/// Classes without room for what is decided: some blocks stay, everything holds.
#[test]
fn blocks_for_which_there_is_no_page_stay() {
    let cache = Cache::new(config([640, 64, 32, 48], page(2) / 16.0)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(4));
    let mut model = random_rows(&geometry(), 200, &mut r);
    fill(&cache, id, &model).unwrap();
    let mut all = Controlled::default();
    for _ in 0..40 {
        decode(&cache, id, &mut model, 3, &mut r);
        add(&mut all, cache.control(id).unwrap());
    }
    assert!(all.refused > 0 && all.changed > 0 && all.failed == 0, "{all:?}");
    for layer in 0..2 {
        let levels = levels(&cache, id, layer);
        let count = |level| levels.iter().filter(|l| **l == level).count();
        assert!(count(1) <= 4 && count(2) <= 2 && count(3) <= 3, "{levels:?}");
        assert!(count(3) > 0);
    }
    // A fork goes its own way.
    let fork = cache.fork(id).unwrap();
    let before = [0, 1].map(|layer| levels(&cache, id, layer));
    let mut other = model.clone();
    for _ in 0..40 {
        decode(&cache, fork, &mut other, 7, &mut r);
        cache.control(fork).unwrap();
    }
    assert_eq!(before, [0, 1].map(|layer| levels(&cache, id, layer)));
    decode(&cache, id, &mut model, 3, &mut r);
    for (id, model) in [(fork, &other), (id, &model)] {
        assert_eq!(original_faults(&cache, id, model), 0);
        cache.release(id).unwrap();
    }
    assert_eq!(cache.live_pages(), 0);
}

/// Behind a gate blocks whose rank is in danger keep their level, and a log with the dangers gives the decisions again; without one it is as ever.
#[test]
fn a_gate_keeps_levels_up() {
    let run = |gate: Option<Gating>| {
        let rule = Rule { gate, checks: 0, points: 0.0, protected: [0, 0], ..Rule::default() };
        let budget = 0.7 * page(0) + 0.3 * page(1);
        let control = SmartKv { rule, ..SmartKv::new(budget / 16.0) };
        let cache = Cache::new(Config { control: Some(control.into()), ..config([640; 4], 200.0) }).unwrap();
        let (id, mut r) = (cache.create().unwrap(), Rng::new(3));
        let mut model = random_rows(&geometry(), 200, &mut r);
        fill(&cache, id, &model).unwrap();
        let mut log: Vec<ControlEntry> = Vec::new();
        for _ in 0..40 {
            decode(&cache, id, &mut model, 6, &mut r);
            cache.control_logged(id, Some(&mut |entry| log.push(entry))).unwrap();
        }
        let mut fell = 0;
        let bits: Vec<u8> = [4, 6, 8, 16].to_vec();
        let cost: Vec<f64> = (0..4).rev().map(page).collect();
        let ladder = Ladder { bits: &bits, cost: &cost };
        for layer in 0..2 {
            let mut controller = Controller::new(layer, 4, rule).unwrap();
            for entry in log.iter().filter(|entry| entry.layer == layer) {
                let (attention, danger) = (entry.attention.as_deref(), entry.danger.as_deref());
                let told = Told { kept: entry.kept, attention, levels: &entry.levels, danger };
                let again = controller.tell(&mut WidthAllocator::new(), &ladder, &told, budget).unwrap();
                assert_eq!(again, entry.decision);
                let Some(wanted) = again.filter(|d| !d.forced).and_then(|d| d.levels) else { continue };
                let lower =
                    |block: usize| wanted[block] < entry.levels[block] && danger.is_none_or(|d| d[block] >= 1.0);
                fell += (0..wanted.len()).filter(|block| lower(*block)).count();
            }
        }
        assert!(cache.memory().tables <= cache.reserved_for(Class::Tables));
        let told = log.iter().filter_map(|entry| entry.danger.as_ref()).flatten().filter(|d| **d >= 1.0).count();
        (told, fell)
    };
    let (in_danger, fell) = run(Some(Gating::default()));
    assert!(in_danger > 0 && fell == 0, "{in_danger} in danger, {fell} fell");
    let (in_danger, fell) = run(None);
    assert!(in_danger == 0 && fell > 0, "{fell} fell");
}

/// Levels are decided from outputs of any policy that reads codes; a dense step says nothing.
#[test]
fn other_policies_tell_as_much_as_they_read() {
    let cache = Cache::new(config([640; 4], page(1) / 16.0)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(8));
    fill(&cache, id, &random_rows(&geometry(), 100, &mut r)).unwrap();
    let mut run = |policy| {
        let (rows, queries) = (random_rows(&geometry(), 1, &mut r), common::random_queries(&geometry(), 1, &mut r));
        step(&cache, id, &rows, &queries, policy).unwrap();
        cache.control(id).unwrap().decided
    };
    assert_eq!((run(Policy::Dense), run(Policy::Packed)), (0, 2));
}

#[test]
fn a_rule_that_cannot_be_kept_is_refused_by_field() {
    let good = || config([640; 4], page(1) / 16.0);
    let control = |control| Config { control: Some(Control::from(control)), ..good() };
    let rule = Rule { base: 0, ..Rule::default() };
    for config in [
        Config { levels: Vec::new(), ..good() },
        control(SmartKv::new(page(3) / 16.0 - 0.1)),
        control(SmartKv::new(f64::NAN)),
        control(SmartKv::new(f64::INFINITY)),
        control(SmartKv { rule, ..SmartKv::new(200.0) }),
    ] {
        match Cache::new(config) {
            Err(Error::Config { field: "control", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(Cache::new(control(SmartKv::new(page(3) / 16.0))).is_ok());
    // Room for it is planned.
    let (with, without) = (good().plan().unwrap(), Config { control: None, ..good() }.plan().unwrap());
    assert!(with.of(Class::Tables) > without.of(Class::Tables));
}

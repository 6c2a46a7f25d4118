//! Levels of single KV heads: two heads that attend to different blocks keep those, within one budget, whoever decides; every output stays within its
//! bound; what leaves, comes back, forks and is cut has the levels that it had.
mod common;

use certkv::bound_budget::BoundRule;
use certkv::retention::{Budgets, Rule};
use certkv::{
    BoundBudget, Cache, Chunk, Class, Config, Control, ControlEntry, Error, Geometry, Policy, Retention, SaveScope,
    SequenceId, SmartKv, smartkv,
};
use certkv_testkit::generate::Rng;
use common::calibrate::calibrated;
use common::towards::{BLOCK, LAYERS, Ladder, TOLERANCE, geometry, replays, towards};
use common::{Answer, Model, decode_faults, fill, original_faults, random_queries, random_rows, step};

const LADDER: Ladder = Ladder(["t8-v8g64-b16", "t4-v4g64-b16", "t3-v3g64-b16"]);
const TIERS: Ladder = Ladder(["gtq4-tq4-b16", "s1-tq3-b16", "k0-c0-b16"]);
const HEADS: usize = 2;

/// Bytes of a page of one head: a seal and a record.
fn page(ladder: &Ladder, level: usize) -> f64 {
    32.0 + ladder.page(level) / HEADS as f64
}

/// Bytes a token of a layer at which every block of every head has `level`.
fn everywhere(ladder: &Ladder, level: usize) -> f64 {
    HEADS as f64 * page(ladder, level) / BLOCK as f64
}

fn config(ladder: &Ladder, control: impl Into<Control>) -> Config {
    let by_head = Config { levels_by_head: true, control: None, ..ladder.config([640; 3], Retention::new(1e6)) };
    calibrated(Config { control: Some(control.into()), ..by_head }, 3)
}

/// Levels of all full blocks, `[layer * HEADS + head][block]`.
fn levels(cache: &Cache, id: SequenceId) -> Vec<Vec<usize>> {
    let full = cache.len(id).unwrap() / BLOCK;
    let of = |layer, head| (0..full).map(|block| cache.level_of(id, layer, head, block).unwrap()).collect();
    (0..LAYERS).flat_map(|layer| (0..HEADS).map(move |head| (layer, head))).map(|(l, h)| of(l, h)).collect()
}

fn bytes(ladder: &Ladder, levels: &[Vec<usize>]) -> f64 {
    levels.iter().flatten().map(|level| page(ladder, *level)).sum()
}

/// One step of all layers; the queries of KV head `h` attend to block `blocks[h]`.
fn decode(cache: &Cache, id: SequenceId, model: &mut Model, blocks: [usize; HEADS], r: &mut Rng) {
    let g: Geometry = *cache.geometry();
    let rows = random_rows(&g, 1, r);
    let mut open = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    model.append(&rows);
    for layer in 0..g.layers {
        open.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
        let half = g.q_width() / HEADS;
        let of = blocks.map(|block| towards(&g, model, layer, block, r));
        let queries: Vec<f32> = (0..HEADS).flat_map(|h| of[h][h * half..(h + 1) * half].to_vec()).collect();
        let mut answer = Answer::new(&g, 1);
        open.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
        let exact = model.attend(&g, layer, model.len(&g), &queries);
        assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, TOLERANCE), 0);
    }
    open.finish().unwrap();
}

#[test]
fn every_head_keeps_what_it_attends_to() {
    let smart = smartkv::Rule { base: 4, ..smartkv::Rule::default() };
    let retains = Rule { every: 4, ..Rule::default() };
    for ladder in [&LADDER, &TIERS] {
        let budget = everywhere(ladder, 1);
        let deciders: [(&str, Control); 2] = [
            ("SmartKV", SmartKv { rule: smart, ..SmartKv::new(budget) }.into()),
            ("retention", Retention { rule: retains, ..Retention::new(budget) }.into()),
        ];
        for (who, control) in deciders {
            let cache = Cache::new(config(ladder, control)).unwrap();
            let (id, mut r) = (cache.create().unwrap(), Rng::new(11));
            let mut model = random_rows(&geometry(), 330, &mut r);
            fill(&cache, id, &model).unwrap();
            let (mut log, mut changed): (Vec<ControlEntry>, usize) = (Vec::new(), 0);
            for n in 0..100 {
                decode(&cache, id, &mut model, [4, 9], &mut r);
                let done = cache.control_logged(id, Some(&mut |entry| log.push(entry))).unwrap();
                changed += done.changed;
                assert_eq!((done.failed, done.refused, done.below_floor), (0, 0, 0), "{who}");
                let now = levels(&cache, id);
                if n > 0 {
                    let blocks = now.iter().map(Vec::len).sum::<usize>() as f64;
                    assert!(bytes(ladder, &now) <= page(ladder, 1) * blocks + 1e-6, "{who}, step {n}: {now:?}");
                }
                match n {
                    20 => {
                        cache.swap_out(id).unwrap();
                        cache.swap_in(id).unwrap();
                        assert_eq!(levels(&cache, id), now);
                    }
                    40 => {
                        cache.truncate(id, 300).unwrap();
                        model.truncate(&geometry(), 300);
                    }
                    _ => {}
                }
            }
            let now = levels(&cache, id);
            // Each head has its own block at the best level, and the other's mostly not.
            let of =
                |head: usize, block: usize| (0..LAYERS).map(|layer| now[layer * HEADS + head][block]).sum::<usize>();
            assert_eq!((of(0, 4), of(1, 9)), (0, 0), "{who}: {now:?}");
            assert!(of(0, 9) + of(1, 4) >= LAYERS, "{who}: {now:?}");
            assert!(changed > 50, "{who}: {changed} changes");
            assert_eq!(original_faults(&cache, id, &model), 0);
            assert!(cache.memory().tables <= cache.reserved_for(Class::Tables));
            for (at, entry) in log.iter().take(LAYERS * HEADS).enumerate() {
                assert_eq!((entry.layer, entry.kv_heads.clone()), (at / HEADS, at % HEADS..at % HEADS + 1));
            }
            if who == "retention" {
                let cost: Vec<f64> = (0..3).rev().map(|level| page(ladder, level)).collect();
                let budgets = Budgets { heads: HEADS, ..Budgets::new(page(ladder, 1)) };
                assert!(replays(&retains, &log, (&cost, budgets), LAYERS * HEADS));
                log.iter_mut().skip(30).filter_map(|e| e.loss.as_mut()).for_each(|loss| loss.rotate_left(9));
                assert!(!replays(&retains, &log, (&cost, budgets), LAYERS * HEADS), "the log matters");
            }
            // A fork and a file have the levels, and go on.
            let (scope, mut file) = (SaveScope { model: b"weights", key: None }, Vec::new());
            let fork = cache.fork(id).unwrap();
            cache.change_level_of(fork, 1, 1, 4, 0).unwrap();
            cache.change_level_of(fork, 1, 1, 9, 2).unwrap();
            assert_eq!(levels(&cache, id), now);
            cache.save(fork, &scope, &mut file).unwrap();
            let mut other = levels(&cache, fork);
            cache.release(fork).unwrap();
            let back = cache.restore(&scope, &mut &file[..]).unwrap();
            assert_eq!(levels(&cache, back), other);
            other[HEADS + 1].clone_from(&now[HEADS + 1]);
            assert_eq!(other, now, "one head of one layer");
            decode(&cache, back, &mut model, [9, 4], &mut r);
            [id, back].into_iter().for_each(|id| cache.release(id).unwrap());
            assert_eq!((cache.live_pages(), cache.memory()), (0, Default::default()));
            // A cache whose blocks have one level for all heads does not take it.
            let whole = Cache::new(Config { levels_by_head: false, ..config(ladder, Retention::new(1e6)) }).unwrap();
            assert!(matches!(whole.restore(&scope, &mut &file[..]), Err(Error::Save(_))));
        }
    }
}

/// Limits of heads and layers hold beside the budget of all.
#[test]
fn no_head_and_no_layer_takes_more_than_its_own_limit() {
    let (all, own) = (everywhere(&LADDER, 0), everywhere(&LADDER, 1));
    let least = everywhere(&LADDER, 2);
    let free = Retention::new(all);
    for (limits, control) in [
        (0, free),
        (1, Retention { head_bytes_per_token: own, ..free }),
        (2, Retention { layer_bytes_per_token: 0.5 * (own + least), ..free }),
        (3, Retention { head_bytes_per_token: own, layer_bytes_per_token: 0.5 * (own + least), ..free }),
    ] {
        let cache = Cache::new(config(&LADDER, control)).unwrap();
        let (id, mut r) = (cache.create().unwrap(), Rng::new(5));
        let mut model = random_rows(&geometry(), 200, &mut r);
        fill(&cache, id, &model).unwrap();
        for _ in 0..20 {
            decode(&cache, id, &mut model, [3, 5], &mut r);
            cache.control(id).unwrap();
            let (now, blocks) = (levels(&cache, id), cache.len(id).unwrap() / BLOCK);
            let over = |levels: &[Vec<usize>], limit: f64| {
                bytes(&LADDER, levels) > limit * (levels.len() * blocks * BLOCK / HEADS) as f64 + 1e-6
            };
            let heads = now.chunks(1).filter(|levels| over(levels, control.head_bytes_per_token)).count();
            let layers = now.chunks(HEADS).filter(|levels| over(levels, control.layer_bytes_per_token)).count();
            assert_eq!((heads, layers), (0, 0), "limits {limits}: {now:?}");
            assert_eq!(over(&now, own), limits == 0, "limits {limits}: {now:?}");
        }
    }
}

/// What is planned of heads is what the certificates would be, and takes hardly more than what is planned of whole blocks.
#[test]
fn a_plan_of_heads_is_as_good_as_one_of_blocks() {
    let rule = BoundRule { epsilon: 1e-9, ..BoundRule::default() };
    let control = |ladder: &Ladder| BoundBudget { rule, ..BoundBudget::new(everywhere(ladder, 0)) };
    for seed in 0..4 {
        let asked = |config: Config| {
            let (cache, mut r) = (Cache::new(config).unwrap(), Rng::new(seed));
            let id = cache.create().unwrap();
            fill(&cache, id, &random_rows(&geometry(), 117, &mut r)).unwrap();
            let queries: Vec<f32> = random_queries(&geometry(), 1, &mut r).iter().map(|q| 0.1 * q).collect();
            let answers = step(&cache, id, &random_rows(&geometry(), 1, &mut r), &queries, Policy::Packed).unwrap();
            let of = |c: &certkv::Certificate| c.quantisation() / c.out_norm;
            (cache, id, answers.iter().flat_map(|a| &a.certificates).map(of).fold(0.0, f64::max))
        };
        let (apart, id, said) = asked(config(&LADDER, control(&LADDER)));
        let best = apart.plan_levels(id, 1e-9, f64::MAX).unwrap().unwrap();
        assert_eq!((best.levels.len(), best.bytes), (LAYERS * HEADS, 7.0 * 6.0 * page(&LADDER, 0)));
        assert!((best.bound / said - 1.0).abs() < 0.002, "{} planned, {said} certified", best.bound);
        let whole = Config { levels_by_head: false, ..config(&LADDER, control(&LADDER)) };
        let (together, other, _) = asked(whole);
        for more in [1.5, 2.5] {
            let plan = |cache: &Cache, id| cache.plan_levels(id, more * said, f64::MAX).unwrap().unwrap();
            let (heads, blocks) = (plan(&apart, id), plan(&together, other));
            // Beside the second seal; heads of random rows are alike, and gain nothing.
            let seals = 64.0 * 7.0 * LAYERS as f64;
            assert!(heads.bytes <= (blocks.bytes + seals) * 1.03, "{} {}", heads.bytes, blocks.bytes);
            assert!(heads.bound <= more * said);
            // What is planned is had at once, and what is like no plan, head by head.
            let own = (0..LAYERS * HEADS).map(|list| (0..7).map(|block| (block + list) % 3).collect()).collect();
            for wanted in [heads.levels, own] {
                let (had, moved) = (levels(&apart, id), apart.set_levels(id, &wanted).unwrap());
                let changed = had.iter().flatten().zip(wanted.iter().flatten()).filter(|(a, b)| a != b).count();
                assert_eq!((moved.changed, moved.refused + moved.failed), (changed, 0));
                assert_eq!(levels(&apart, id), wanted);
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_by_field() {
    let cache = Cache::new(config(&LADDER, SmartKv::new(everywhere(&LADDER, 1)))).unwrap();
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry(), 100, &mut Rng::new(1))).unwrap();
    let named = |error: Result<(), Error>| matches!(error, Err(Error::Config { field: "levels_by_head", why }) if why.contains("level_of"));
    assert!(named(cache.level(id, 0, 0).map(drop)) && named(cache.change_level(id, 0, 0, 1)));
    assert!(matches!(cache.change_level_of(id, 0, HEADS, 0, 1), Err(Error::Shape { argument: "kv_head", .. })));
    assert!(matches!(cache.level_of(id, LAYERS, 0, 0), Err(Error::Layer { .. })));
    assert_eq!(cache.level_of(id, 0, 1, 0).unwrap(), 0);
    let refused = |config| Cache::new(config).map(drop).unwrap_err();
    let none = Config { levels_by_head: true, ..Config::new(geometry(), 640) };
    assert!(matches!(refused(none), Error::Config { field: "levels_by_head", .. }));
    let heads = Retention { head_bytes_per_token: 1e3, ..Retention::new(1e3) };
    let together = Config { levels_by_head: false, ..config(&LADDER, heads) };
    assert!(matches!(refused(together), Error::Config { field: "control.retention", .. }));
    let low = Retention { head_bytes_per_token: 0.9 * everywhere(&LADDER, 2), ..heads };
    assert!(matches!(refused(config(&LADDER, low)), Error::Config { field: "control.retention", .. }));
    // SmartKV goes by bits.
    let alike = Ladder(["t4g16-v4g16-b16", "t4-v4g64-b16", "t2-v2g32-b16"]);
    let why = "t4g16-v4g16-b16 has no more bits than t4-v4g64-b16";
    let error = refused(config(&alike, SmartKv::new(1e6)));
    assert!(error.to_string().contains(why), "{error}");
    // The floor counts a seal for each head.
    let floor = everywhere(&LADDER, 2);
    assert!(Cache::new(config(&LADDER, SmartKv::new(floor))).is_ok());
    assert!(matches!(refused(config(&LADDER, SmartKv::new(0.999 * floor))), Error::Config { field: "control", .. }));
}

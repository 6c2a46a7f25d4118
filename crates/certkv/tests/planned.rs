//! The certificate-driven budget on a live cache: plans are what the certificates say, blocks move by them within the budget while every output
//! stays within its bound, and what is lacking is said.
mod common;

use certkv::bound_budget::{BoundRule, Clock, Lacking, Planner, Told};
use certkv::{
    BoundBudget, Cache, Class, Config, ControlEntry, Controlled, Error, LevelPlan, Policy, SequenceId, SmartKv,
};
use certkv_testkit::generate::Rng;
use common::calibrate::calibrated;
use common::towards::{BLOCK, LAYERS, Ladder, TOLERANCE, add, all_levels, decode, geometry};
use common::{Answer, fill, original_faults, random_queries, random_rows, step};
use core::ops::Range;

const LADDER: Ladder = Ladder(["t8-v8g64-b16", "t5-v5g64-b16", "t3-v3g64-b16"]);

/// Levels whose keys are coded in metrics of their own.
const CALIBRATED: Ladder = Ladder(["gtq4-v8g64-b16", "t4-v5g64-b16", "ctq3-v3g64-b16"]);
/// Keys by channel, of groups of unlike width, and spherical.
const MIXED: Ladder = Ladder(["k8-v8g64-b16", "gtq4-v6g64-b16", "s1-v4g64-b16"]);

/// A cache with one sequence of `tokens`, which was asked once with `queries` from codes alone.
fn asked(
    ladder: &Ladder,
    control: BoundBudget,
    tokens: usize,
    seed: u64,
) -> (Cache, SequenceId, Vec<f32>, Vec<Answer>) {
    let config = calibrated(ladder.config([640; 3], control), seed);
    let (cache, mut r) = (Cache::new(config).unwrap(), Rng::new(seed));
    let id = cache.create().unwrap();
    fill(&cache, id, &random_rows(&geometry(), tokens, &mut r)).unwrap();
    let queries: Vec<f32> = random_queries(&geometry(), 1, &mut r).iter().map(|q| 0.1 * q).collect();
    let answers = step(&cache, id, &random_rows(&geometry(), 1, &mut r), &queries, Policy::Packed).unwrap();
    (cache, id, queries, answers)
}

/// The largest bound of a head, as a share of its output's norm, by the certificates of a step.
fn certified(answers: &[Answer]) -> f64 {
    let of = |c: &certkv::Certificate| c.quantisation() / c.out_norm;
    answers.iter().flat_map(|answer| &answer.certificates).map(of).fold(0.0, f64::max)
}

#[test]
fn a_plan_says_what_the_certificate_would_say() {
    for seed in 0..6 {
        says_what_it_would_say(&LADDER, seed, 0.6..1.6);
        says_what_it_would_say(&CALIBRATED, seed, 0.6..1.6);
        says_what_it_would_say(&MIXED, seed, 0.6..1.6);
    }
}

fn says_what_it_would_say(ladder: &Ladder, seed: u64, near: Range<f64>) {
    {
        let budget = BoundBudget::new(ladder.page(1) / BLOCK as f64);
        let (cache, id, queries, before) = asked(ladder, budget, 16 * 7 + 5, seed);
        let (floor, top) = (ladder.page(2) * 21.0, ladder.page(0) * 21.0);
        let plan = |epsilon, bytes| -> LevelPlan { cache.plan_levels(id, epsilon, bytes).unwrap().unwrap() };
        // Every block has the first level: what is planned for that is what was certified.
        let best = plan(1e-9, top);
        assert_eq!((best.levels.clone(), best.bytes), (vec![vec![0; 7]; LAYERS], top));
        let said = certified(&before);
        assert!((best.bound / said - 1.0).abs() < 0.002, "{} planned, {said} certified", best.bound);
        assert_eq!(best.lacking, Lacking::Bound(best.bound));
        // And for the lowest it is near what is certified when they have it.
        let lowest = plan(1e-9, floor);
        assert_eq!((lowest.levels.clone(), lowest.bytes), (vec![vec![2; 7]; LAYERS], floor));
        assert!(lowest.bound > 3.0 * best.bound, "the levels differ: {lowest:?}");
        // A tolerance between the two takes bytes between theirs, and says how many where there are not so many.
        let epsilon = (best.bound * lowest.bound).sqrt();
        let fewest = plan(epsilon, top);
        assert!(fewest.lacking == Lacking::Nothing && fewest.bound <= epsilon, "{fewest:?}");
        assert!(floor < fewest.bytes && fewest.bytes < top);
        let short = 0.5 * (floor + fewest.bytes);
        match plan(epsilon, short) {
            LevelPlan { lacking: Lacking::Bytes(more), bytes, bound, .. } => {
                assert!(bytes <= short && bound > epsilon && short + more <= top);
                assert_eq!(plan(epsilon, short + more).lacking, Lacking::Nothing);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(plan(epsilon, floor - 100.0).lacking, Lacking::Floor(100.0));
        // Real pages at the planned levels.
        for (layer, levels) in fewest.levels.iter().enumerate() {
            levels.iter().enumerate().for_each(|(block, level)| cache.change_level(id, layer, block, *level).unwrap());
        }
        assert_eq!(ladder.bytes(&all_levels(&cache, id)), fewest.bytes);
        let rows = random_rows(&geometry(), 1, &mut Rng::new(seed ^ 99));
        let after = certified(&step(&cache, id, &rows, &queries, Policy::Packed).unwrap());
        assert!(near.contains(&(after / fewest.bound)), "{:?}: {} planned, {after} certified", ladder.0, fewest.bound);
        assert!(after > 1.2 * said, "the control: at the first level it was {said}");
    }
}

/// Whether a planner that is told the log decides what it says; `budget` of a block.
fn replays(rule: &BoundRule, log: &[ControlEntry], budget: f64) -> bool {
    let (mut clocks, mut planner) = (vec![Clock::default(); LAYERS], Planner::new());
    let cost: Vec<f64> = (0..3).rev().map(|level| LADDER.page(level)).collect();
    log.chunks_exact(LAYERS).all(|entries| {
        let told = entries.iter().map(|e| Told { kept: e.kept, terms: e.terms.as_ref(), levels: &e.levels });
        let (told, mut clocks): (Vec<_>, Vec<_>) = (told.collect(), clocks.iter_mut().collect());
        let again = planner.tell(rule, &mut clocks, &told, &cost, budget).unwrap();
        entries.iter().enumerate().all(|(layer, entry)| {
            let levels = again.as_ref().map(|(_, plan)| &plan.levels[layer]);
            let planned = again.as_ref().map(|(_, plan)| (plan.bound, plan.lacking));
            entry.decision.as_ref().and_then(|d| d.levels.as_ref()) == levels
                && entry.planned.map(|p| (p.bound, p.lacking)) == planned
        })
    })
}

#[test]
fn blocks_move_by_the_bound_within_the_budget_and_a_log_gives_it_again() {
    let (budget, rule) = (LADDER.page(1), BoundRule { every: 4, ..BoundRule::default() });
    let cache =
        Cache::new(LADDER.config([640; 3], BoundBudget { rule, ..BoundBudget::new(budget / BLOCK as f64) })).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(11));
    let mut model = random_rows(&geometry(), 330, &mut r);
    fill(&cache, id, &model).unwrap();
    assert_eq!(cache.control(id).unwrap(), Controlled::default(), "nothing was seen");
    assert_eq!(cache.plan_levels(id, 0.05, 1e9).unwrap(), None);
    let (mut log, mut all): (Vec<ControlEntry>, _) = (Vec::new(), Controlled::default());
    for n in 0..60 {
        decode(&cache, id, &mut model, if n < 30 { 4 } else { 9 }, TOLERANCE, &mut r);
        if n == 20 {
            let before = all_levels(&cache, id);
            cache.swap_out(id).unwrap();
            assert!(matches!(cache.control(id), Err(Error::SwappedOut)));
            assert!(matches!(cache.plan_levels(id, 0.05, 1e9), Err(Error::SwappedOut)));
            cache.swap_in(id).unwrap();
            assert_eq!(all_levels(&cache, id), before);
        }
        add(&mut all, cache.control_logged(id, Some(&mut |entry| log.push(entry))).unwrap());
        let now = all_levels(&cache, id);
        let blocks = now.iter().map(Vec::len).sum::<usize>();
        assert!(LADDER.bytes(&now) <= budget * blocks as f64, "after step {n}: {now:?}");
        if n == 40 {
            cache.truncate(id, 300).unwrap();
            model.truncate(&geometry(), 300);
        }
    }
    println!("{all:?}");
    assert!(all.changed > 40 && all.failed + all.refused + all.below_floor == 0, "{all:?}");
    assert_eq!(original_faults(&cache, id, &model), 0);
    assert!(cache.memory().tables <= cache.reserved_for(Class::Tables));
    assert!(log.iter().any(|entry| entry.kept == 300 / BLOCK));
    assert!(replays(&rule, &log, budget));
    let mut other = log.clone();
    other.iter_mut().skip(9).filter_map(|entry| entry.terms.as_mut()).for_each(|terms| terms.loss.rotate_left(9));
    assert!(!replays(&rule, &other, budget), "the log matters");
    cache.release(id).unwrap();
    assert_eq!((cache.live_pages(), cache.memory()), (0, Default::default()));
}

/// With bytes for everything, only as many are taken as the tolerance asks for.
#[test]
fn a_tolerance_that_is_met_takes_no_more_bytes_than_that() {
    let (floor, top) = (LADDER.page(2) * 21.0, LADDER.page(0) * 21.0);
    let all = BoundBudget::new(LADDER.page(0) / BLOCK as f64);
    let run = |epsilon| {
        let rule = BoundRule { epsilon, ..BoundRule::default() };
        let (cache, id, ..) = asked(&LADDER, BoundBudget { rule, ..all }, 16 * 7 + 5, 3);
        let mut log = Vec::new();
        cache.control_logged(id, Some(&mut |entry: ControlEntry| log.push(entry))).unwrap();
        (LADDER.bytes(&all_levels(&cache, id)), log[0].planned.map(|planned| planned.lacking))
    };
    let (cache, id, ..) = asked(&LADDER, all, 16 * 7 + 5, 3);
    let bound = |bytes| cache.plan_levels(id, 1e-9, bytes).unwrap().unwrap().bound;
    assert_eq!(run(1e6), (floor, Some(Lacking::Nothing)));
    let (some, lacking) = run((bound(floor) * bound(top)).sqrt());
    assert!(floor < some && some < top && lacking == Some(Lacking::Nothing), "{some} of {top}, {lacking:?}");
    assert_eq!(run(1e-9), (top, None));
}

/// Classes without room for what is planned: some blocks stay, and everything holds.
#[test]
fn blocks_for_which_there_is_no_page_stay() {
    let rule = BoundRule { every: 2, ..BoundRule::default() };
    let budget = BoundBudget { rule, ..BoundBudget::new(LADDER.page(2) / BLOCK as f64) };
    let cache = Cache::new(LADDER.config([640, 64, 48], budget)).unwrap();
    let (id, mut r) = (cache.create().unwrap(), Rng::new(4));
    let mut model = random_rows(&geometry(), 200, &mut r);
    fill(&cache, id, &model).unwrap();
    let mut all = Controlled::default();
    for _ in 0..12 {
        decode(&cache, id, &mut model, 3, TOLERANCE, &mut r);
        add(&mut all, cache.control(id).unwrap());
    }
    assert!(all.refused > 0 && all.changed > 0 && all.failed == 0, "{all:?}");
    for levels in all_levels(&cache, id) {
        assert_eq!(levels.iter().filter(|level| **level == 2).count(), 3, "{levels:?}");
    }
    let fork = cache.fork(id).unwrap();
    assert_eq!(all_levels(&cache, fork), all_levels(&cache, id));
    [fork, id].into_iter().for_each(|id| cache.release(id).unwrap());
    assert_eq!(cache.live_pages(), 0);
}

#[test]
fn what_cannot_be_is_refused_by_field() {
    let good = BoundBudget::new(LADDER.page(1) / BLOCK as f64);
    for bad in [
        BoundBudget { bytes_per_token: LADDER.page(2) / BLOCK as f64 - 0.1, ..good },
        BoundBudget { bytes_per_token: f64::NAN, ..good },
        BoundBudget { rule: BoundRule { epsilon: 0.0, ..good.rule }, ..good },
        BoundBudget { rule: BoundRule { every: 0, ..good.rule }, ..good },
        BoundBudget { rule: BoundRule { gain: 1.0, ..good.rule }, ..good },
    ] {
        match Cache::new(LADDER.config([640; 3], bad)) {
            Err(Error::Config { field: "control.budget", .. }) => {}
            other => panic!("{bad:?}: {other:?}"),
        }
    }
    let (cache, id, ..) = asked(&LADDER, good, 100, 1);
    for (epsilon, bytes) in [(0.0, 1e6), (f64::NAN, 1e6), (-1.0, 1e6), (0.1, f64::NAN)] {
        assert!(matches!(cache.plan_levels(id, epsilon, bytes), Err(Error::Control(_))), "{epsilon} {bytes}");
    }
    let other = Config { control: Some(SmartKv::new(200.0).into()), ..LADDER.config([640; 3], good) };
    let other = Cache::new(other).unwrap();
    let id = other.create().unwrap();
    assert!(matches!(other.plan_levels(id, 0.05, 1e6), Err(Error::Config { field: "control", .. })));
}

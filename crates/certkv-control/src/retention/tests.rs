use super::*;
use proptest::prelude::*;

const RULE: RetentionRule = RetentionRule { up: 0.004, down: 0.0005, cooldown: 2 };

fn rates(seed: u64, n: usize) -> (Vec<f64>, Vec<f64>) {
    let number = |i: u64| (certkv_core::hash::splitmix64(seed ^ i) % 1000) as f64 / 1000.0;
    let loss = (0..n as u64).flat_map(|i| {
        let mass = number(7 * i);
        [0.05 * mass, 0.2 * mass, 0.6 * mass, 2.0 * mass]
    });
    ([28.0, 24.0, 12.0, 0.0].repeat(n), loss.collect())
}

proptest! {
    /// Whatever comes, limits hold, items rest, and what was refused changed nothing.
    #[test]
    fn limits_hold_and_items_rest(seed: u64, n in 1usize..20, budgets in proptest::collection::vec(0.0f64..30.0, 1..8)) {
        let keys: Vec<(u32, u32)> = (0..n as u32).map(|i| (i / 6, i / 3 % 2)).collect();
        let mut retention = Retention::new(keys.clone(), 4, RULE).unwrap();
        for (step, each) in budgets.into_iter().enumerate() {
            let (cost, loss) = rates(seed ^ (step as u64) << 40, n);
            let (heads, layers) = ([((0, 0), 60.0)], [(0, 100.0), (1, 9.0 * each)]);
            let limits = Limits { budget: each * n as f64, layers: &layers, heads: &heads };
            let (before, rested) = (retention.levels().to_vec(), retention.rests().to_vec());
            let done = retention.update(&cost, &loss, &limits, None).unwrap();
            let used = |of: &dyn Fn(&(u32, u32)) -> bool| -> f64 {
                (0..n).filter(|i| of(&keys[*i])).map(|i| cost[4 * i + retention.levels()[i] as usize]).sum()
            };
            prop_assert!((used(&|_| true) - done.used).abs() < 1e-6 && done.used <= limits.budget + 1e-6);
            prop_assert!(used(&|k| k.0 == 0) <= 100.0 + 1e-6 && used(&|k| k.0 == 1) <= 9.0 * each + 1e-6);
            prop_assert!(used(&|k| *k == (0, 0)) <= 60.0 + 1e-6);
            for change in &done.up {
                prop_assert!(rested[change.item as usize] == 0, "{change:?} should have rested");
            }
            let against = done.down.iter().filter(|change| rested[change.item as usize] > 0).count();
            prop_assert_eq!(against, done.forced);
            for i in 0..n {
                let changed = before[i] != retention.levels()[i];
                prop_assert_eq!(retention.rests()[i], if changed { 2 } else { rested[i].saturating_sub(1) });
            }
            // Everything costs something but what is dropped.
            let kept = retention.clone();
            let none = Limits { budget: -1.0, ..limits };
            let refused = retention.update(&cost, &loss, &none, None);
            prop_assert!(refused.is_err_and(|e| matches!(e, ControlError::BelowFloor { .. })), "a floor below nothing");
            prop_assert_eq!((retention.levels(), retention.rests()), (kept.levels(), kept.rests()));
        }
    }

    /// Of what is protected nothing falls while a limit can be met without it, and what falls is counted.
    #[test]
    fn what_is_protected_falls_last(seed: u64, n in 1usize..12, each in 0.0f64..30.0, mask: u16) {
        let (cost, loss) = rates(seed, n);
        let protected: Vec<bool> = (0..n).map(|i| mask >> i & 1 == 1).collect();
        let rule = RetentionRule { up: f64::INFINITY, down: f64::MAX, cooldown: 0 };
        let mut retention = Retention::new(vec![(0, 0); n], 4, rule).unwrap();
        retention.protect(BitSet::from_bools(&protected));
        let budget = each * n as f64;
        let done = retention.update(&cost, &loss, &Limits { budget, layers: &[], heads: &[] }, None).unwrap();
        // Without a limit on them all others fall to the bottom by themselves, for this rule.
        let top = protected.iter().filter(|p| **p).count() as f64 * 28.0;
        let fell = (0..n).filter(|i| protected[*i] && retention.levels()[*i] > 0).count();
        prop_assert_eq!(fell > 0, top > budget + TINY, "{} fell, {} at the top", fell, top);
        prop_assert_eq!(done.forced > 0, fell > 0);
        for i in (0..n).filter(|i| !protected[*i]) {
            prop_assert_eq!(retention.levels()[i], 3);
        }
    }

    /// What gives way loses less per byte than what comes up for it saves, and nothing gives way for nobody.
    #[test]
    fn who_gives_way_loses_less_than_is_saved(seed: u64, n in 2usize..12, each in 5.0f64..27.0) {
        let rule = RetentionRule { up: 0.004, down: -1.0, cooldown: 0 };
        let limits = Limits { budget: each * n as f64, layers: &[], heads: &[] };
        let (cost, first) = rates(seed, n);
        let (_, second) = rates(seed ^ 77, n);
        let total = |of: &Retention| -> f64 { (0..n).map(|i| second[4 * i + of.levels()[i] as usize]).sum() };
        let run = |give: f64| {
            let mut retention = Retention::new(vec![(0, 0); n], 4, rule).unwrap();
            retention.update(&cost, &first, &limits, None).unwrap();
            retention.give(give);
            let before = total(&retention);
            let done = retention.update(&cost, &second, &limits, None).unwrap();
            (before - total(&retention), done)
        };
        let ((without, plain), (_, done)) = (run(f64::NEG_INFINITY), run(0.003));
        prop_assert!(plain.down.is_empty() && without >= 0.0);
        prop_assert!(done.used <= limits.budget + 1e-6);
        for change in &done.down {
            let at = |level: u32| (4 * change.item + level) as usize;
            let ratio = (second[at(change.to)] - second[at(change.from)]) / (cost[at(change.from)] - cost[at(change.to)]);
            prop_assert!(ratio <= 0.003 + 1e-12, "{change:?} at {ratio}");
            prop_assert!(done.up.iter().all(|up| up.item != change.item));
        }
    }

    /// For one limit the loss is above the least by less than one change brings.
    #[test]
    fn nothing_is_better_by_more_than_a_change(seed: u64, n in 1usize..6, each in 0.0f64..30.0) {
        let keys = vec![(0, 0); n];
        let (cost, loss) = rates(seed, n);
        let rule = RetentionRule { up: f64::INFINITY, down: -1.0, cooldown: 0 };
        let mut retention = Retention::new(keys, 4, rule).unwrap();
        let budget = each * n as f64;
        retention.update(&cost, &loss, &Limits { budget, layers: &[], heads: &[] }, None).unwrap();
        let total = |of: &[f64], level: &dyn Fn(usize) -> usize| -> f64 { (0..n).map(|i| of[4 * i + level(i)]).sum() };
        let found = total(&loss, &|i| retention.levels()[i] as usize);
        let mut best = f64::INFINITY;
        for code in 0..4usize.pow(n as u32) {
            let level = |i: usize| code >> (2 * i) & 3;
            if total(&cost, &level) <= budget {
                best = best.min(total(&loss, &level));
            }
        }
        let change = (0..n).map(|i| loss[4 * i + 3] - loss[4 * i]).fold(0.0, f64::max);
        prop_assert!(found <= best + change + 1e-9, "{found} against {best}");
    }
}

/// The lemma of (9.22): what went down by itself comes back when it matters `up / down` times as much, and not before.
#[test]
fn nothing_swings() {
    let rule = RetentionRule { up: 0.01, down: 0.001, cooldown: 0 };
    let mut retention = Retention::new(vec![(0, 0)], 2, rule).unwrap();
    let limits = Limits { budget: 100.0, layers: &[], heads: &[] };
    let mut levels = Vec::new();
    for loss in [0.09, 0.2, 0.9, 0.99, 1.01, 0.5, 0.11, 0.1] {
        retention.update(&[100.0, 0.0], &[0.0, loss], &limits, None).unwrap();
        levels.push(retention.levels()[0]);
    }
    assert_eq!(levels, [1, 1, 1, 1, 0, 0, 0, 1]);
}

/// With nothing left of the limit an item comes up if another gives way to it, and not otherwise.
#[test]
fn room_is_made_for_what_counts() {
    let run = |give: f64, limits: &Limits<'_>| {
        let rule = RetentionRule { up: 0.02, down: 0.0, cooldown: 0 };
        let mut retention = Retention::new(vec![(0, 0), (0, 0), (1, 0)], 2, rule).unwrap();
        let cost = [100.0, 50.0].repeat(3);
        retention.update(&cost, &[0.0, 5.0, 0.0, 1.0, 0.0, 4.0], limits, None).unwrap();
        assert_eq!(retention.levels(), [0, 1, 0]);
        retention.give(give);
        retention.update(&cost, &[0.0, 0.5, 0.0, 3.0, 0.0, 4.0], limits, None).unwrap();
        retention.levels().to_vec()
    };
    let all = Limits { budget: 250.0, layers: &[], heads: &[] };
    assert_eq!(
        (run(f64::NEG_INFINITY, &all), run(0.005, &all), run(0.01, &all)),
        (vec![0, 1, 0], vec![0, 1, 0], vec![1, 0, 0])
    );
    // Within a layer's limit, too.
    let layer = Limits { budget: 999.0, layers: &[(0, 150.0)], ..all };
    assert_eq!((run(f64::NEG_INFINITY, &layer), run(0.01, &layer)), (vec![0, 1, 0], vec![1, 0, 0]));
}

#[test]
fn what_cannot_be_is_refused_and_masses_are_remembered() {
    assert!(Retention::new(vec![(1, 0), (0, 1)], 2, RULE).is_err());
    assert!(Retention::new(vec![], 0, RULE).is_err());
    assert!(Retention::new(vec![], 2, RetentionRule { up: 0.1, down: 0.1, cooldown: 0 }).is_err());
    let new = || Retention::new(vec![(0, 0)], 2, RULE).unwrap();
    assert_eq!(new().at(vec![2], vec![0]).unwrap_err(), ControlError::Invalid { what: "level", index: 0 });
    assert!(new().at(vec![], vec![0]).is_err() && new().at(vec![1], vec![]).is_err());
    let there = new().at(vec![1], vec![7]).unwrap();
    assert_eq!((there.levels(), there.rests()), (&[1][..], &[7][..]));
    let mut retention = Retention::new(vec![(0, 0)], 2, RULE).unwrap();
    let limits = Limits { budget: 9.0, layers: &[], heads: &[] };
    assert!(matches!(
        retention.update(&[1.0], &[0.0, 1.0], &limits, None),
        Err(ControlError::Length { what: "cost", .. })
    ));
    assert!(matches!(
        retention.update(&[1.0, 0.0], &[0.0, f64::NAN], &limits, None),
        Err(ControlError::Invalid { .. })
    ));
    for layers in [[(1, 1.0), (0, 1.0)], [(2, 1.0), (2, 1.0)]] {
        let refused = retention.update(&[1.0, 0.0], &[0.0, 1.0], &Limits { layers: &layers, ..limits }, None);
        assert_eq!(refused, Err(ControlError::Invalid { what: "limits.layers", index: 0 }));
    }
    let heads = [((1, 0), 1.0), ((0, 5), 1.0)];
    assert!(retention.update(&[1.0, 0.0], &[0.0, 1.0], &Limits { heads: &heads, ..limits }, None).is_err());
    assert_eq!((mass(0.5, &[0.1, 0.9], 0.6), mass(0.5, &[], 0.6)), (0.6 * 0.5 + 0.4 * 0.9, 0.5));
    assert_eq!((drop_distortion(0.5, 3.0), drop_distortion(1.0, 3.0)), (3.0, f64::INFINITY));
    assert_eq!((distortion(0.5, 0.0, 3.0), distortion(0.5, 2f64.ln(), 3.0)), (0.0, 1.5));
    // Candidates alone go up.
    let mut two = Retention::new(vec![(0, 0); 2], 2, RULE).unwrap();
    let (cost, loss) = ([10.0, 0.0, 10.0, 0.0], [0.0, 1.0, 0.0, 1.0]);
    two.update(&cost, &loss, &Limits { budget: 0.0, ..limits }, None).unwrap();
    for _ in 0..3 {
        two.update(&cost, &loss, &Limits { budget: 99.0, ..limits }, Some(&[1, 7])).unwrap();
    }
    assert_eq!(two.levels(), [1, 0]);
}

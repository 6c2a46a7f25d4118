use super::*;
use crate::standing::Blocks;
use certkv_core::hash::splitmix64;
use proptest::prelude::*;

const COST: [f64; 3] = [30.0, 50.0, 100.0];

/// Terms of `heads` heads over `blocks` blocks, which fall from level to level; `scale` of the largest.
fn terms(seed: u64, heads: usize, blocks: usize, scale: f64) -> Terms {
    let number = |i: usize| (splitmix64(seed ^ (i as u64) << 8) % 1000) as f64 / 1000.0;
    let cell = |i: usize| {
        let weight = scale * number(i).powi(6);
        [weight, weight * (0.2 + 0.3 * number(i + 999)), weight * 0.05]
    };
    let loss: Vec<f64> = (0..heads * blocks).flat_map(cell).collect();
    let shrink = loss.iter().map(|loss| loss.min(0.9) / blocks as f64).collect();
    Terms { heads, loss, shrink, cap: vec![20.0 * scale; heads] }
}

/// The least sum of terms of any levels within `bytes`.
fn best(layers: &[&Terms], bytes: f64) -> f64 {
    let blocks: Vec<usize> = layers.iter().map(|t| t.loss.len() / t.heads / 3).collect();
    let all = 3usize.pow(blocks.iter().sum::<usize>() as u32);
    let value = |mut code: usize| {
        let (mut used, mut sum) = (0.0, 0.0);
        for (terms, blocks) in layers.iter().zip(&blocks) {
            let levels: Vec<u8> = (0..*blocks)
                .map(|_| {
                    let l = code % 3;
                    code /= 3;
                    l as u8
                })
                .collect();
            used += levels.iter().map(|l| COST[usize::from(*l)]).sum::<f64>();
            sum += lost(terms, &levels, 3);
        }
        if used <= bytes { sum } else { f64::INFINITY }
    };
    (0..all).map(value).fold(f64::INFINITY, f64::min)
}

proptest! {
    /// Whatever is asked for: bytes hold, what is said of bound and bytes is so, and no levels lose less by more than a move.
    #[test]
    fn a_plan_is_what_it_says(seed: u64, blocks in 1usize..4, each in 20.0f64..110.0, epsilon in 0.001f64..0.6) {
        let own = [terms(seed, 2, blocks, 0.5), terms(seed ^ 77, 3, 4 - blocks, 0.3)];
        let layers: Vec<&Terms> = own.iter().collect();
        let bytes = each * 4.0;
        let mut planner = Planner::new();
        let plan = planner.plan(&layers, &COST, epsilon, bytes).unwrap();
        let of = |f: &dyn Fn(&Terms, &[u8]) -> f64| own.iter().zip(&plan.levels).map(|(t, l)| f(t, l)).collect::<Vec<_>>();
        let used: f64 = plan.levels.iter().flatten().map(|l| COST[usize::from(*l)]).sum();
        prop_assert!((plan.bytes - used).abs() < 1e-9);
        prop_assert!((plan.loss - of(&|t, l| lost(t, l, 3)).iter().sum::<f64>()).abs() < 1e-9);
        prop_assert!((plan.bound - of(&|t, l| bound(t, l, 3)).into_iter().fold(0.0, f64::max)).abs() < 1e-12);
        let top = own.iter().map(|t| bound(t, &vec![2; t.loss.len() / t.heads / 3], 3)).fold(0.0, f64::max);
        match plan.lacking {
            Lacking::Floor(more) => prop_assert!((more - (120.0 - bytes)).abs() < 1e-9 && more > 0.0 && plan.bytes == 120.0),
            Lacking::Nothing => prop_assert!(plan.bound <= epsilon && plan.bytes <= bytes),
            Lacking::Bytes(more) => {
                prop_assert!(plan.bound > epsilon && more > 0.0 && plan.bytes <= bytes);
                let with = planner.plan(&layers, &COST, epsilon, bytes + more).unwrap();
                prop_assert!(with.lacking == Lacking::Nothing && with.bytes <= bytes + more + 1e-9);
            }
            Lacking::Bound(at) => prop_assert!(at > epsilon && (at - top).abs() < 1e-12 && plan.bytes <= bytes),
        }
        if matches!(plan.lacking, Lacking::Bytes(_) | Lacking::Bound(_)) {
            let change = (0..).map_while(|i| planner.loss.get(3 * i)).fold(0.0, |a: f64, b| a.max(*b));
            prop_assert!(plan.loss <= best(&layers, bytes) + change + 1e-9);
        }
    }
}

/// A layer whose terms are larger has more of the bytes, whichever it is.
#[test]
fn layers_share_by_one_price() {
    let (large, small) = (terms(1, 2, 8, 1.0), terms(1, 2, 8, 0.01));
    for layers in [[&large, &small], [&small, &large]] {
        let plan = Planner::new().plan(&layers, &COST, 1e-6, 16.0 * 50.0).unwrap();
        let bytes = |at: usize| plan.levels[at].iter().map(|l| COST[usize::from(*l)]).sum::<f64>();
        let heavy = usize::from(layers[1] == &large);
        assert!(bytes(heavy) > bytes(1 - heavy) + 150.0, "{plan:?}");
    }
}

#[test]
fn plans_come_by_the_clock_and_when_they_are_worth_it() {
    let rule = BoundRule { every: 4, epsilon: 1e-9, ..BoundRule::default() };
    let (mut planner, mut clock) = (Planner::new(), Clock::default());
    let mut levels = vec![2u8; 6];
    let mut tell = |levels: &[u8], kept: usize, seed: Option<u64>| {
        let terms = seed.map(|seed| terms(seed, 2, levels.len(), 0.5));
        let told = Told { kept, terms: terms.as_ref(), levels };
        planner.tell(&rule, &mut [&mut clock], &[told], &COST, 50.0).unwrap()
    };
    assert_eq!(tell(&levels, 6, None), None);
    let (trigger, plan) = tell(&levels, 6, Some(3)).unwrap();
    assert!(trigger == Trigger::First && plan.bytes <= 300.0);
    levels = plan.levels[0].clone();
    let said: Vec<bool> = (0..8).map(|_| tell(&levels, 6, Some(3)).is_some()).collect();
    assert_eq!(said, [false; 8], "the same terms, the same levels");
    let said: Vec<bool> = (0..8).map(|_| tell(&levels, 6, Some(4)).is_some()).collect();
    assert_eq!(said.iter().filter(|said| **said).count(), 2, "{said:?}");
    levels.push(2);
    assert_eq!(tell(&levels, 6, Some(4)).map(|found| found.0), Some(Trigger::Budget));
    assert_eq!(tell(&levels[..3], 3, None), None);
    assert_eq!(tell(&[2, 2, 2], 3, Some(5)).map(|found| found.0), Some(Trigger::Budget), "a cut counts");
}

/// Terms that no plan is due for may be left out: the plans are the same.
#[test]
fn terms_are_taken_where_a_plan_is_due() {
    let rule = BoundRule { every: 5, epsilon: 1e-9, ..BoundRule::default() };
    let run = |spares: bool| {
        let (mut planner, mut clocks, mut taken) = (Planner::new(), [Clock::default(); 2], 0);
        let mut levels = [vec![2u8; 6], vec![2u8; 6]];
        let plans: Vec<_> = (0..40u64)
            .map(|step| {
                let kept = if step == 21 { 4 } else { levels[0].len() };
                let n = if step < 21 { 6 + step as usize / 8 } else { 4 + (step - 21) as usize / 4 };
                levels.iter_mut().for_each(|levels| {
                    levels.truncate(kept);
                    levels.resize(n, 2);
                });
                let [a, b] = [0, 1].map(|layer| terms(step / 3 + layer, 2, n, 0.5));
                let mut clocks: Vec<&mut Clock> = clocks.iter_mut().collect();
                let bare: Vec<_> = levels.iter().map(|levels| Told { kept, terms: None, levels }).collect();
                let due = Planner::is_due(&rule, &clocks, &bare, &COST, 50.0);
                let whole = due || !spares;
                taken += usize::from(whole);
                let told: Vec<_> =
                    bare.iter().zip([&a, &b]).map(|(t, own)| Told { terms: whole.then_some(own), ..*t }).collect();
                let plan = planner.tell(&rule, &mut clocks, &told, &COST, 50.0).unwrap();
                if let Some((_, plan)) = &plan {
                    levels = [plan.levels[0].clone(), plan.levels[1].clone()];
                }
                plan
            })
            .collect();
        (plans, taken)
    };
    let ((all, _), (spared, taken)) = (run(false), run(true));
    assert_eq!(all, spared);
    assert!(all.iter().flatten().count() > 4 && taken < 20, "{taken} steps of 40");
}

#[test]
fn what_cannot_be_is_refused() {
    let good = BoundRule::default();
    for rule in [
        BoundRule { epsilon: 0.0, ..good },
        BoundRule { epsilon: f64::NAN, ..good },
        BoundRule { every: 0, ..good },
        BoundRule { gain: 1.0, ..good },
        BoundRule { gain: f64::NAN, ..good },
    ] {
        assert!(rule.validated().is_err(), "{rule:?}");
    }
    assert!(good.validated().is_ok());
    let whole = terms(1, 2, 3, 0.1);
    let refused = |terms: Terms| Planner::new().plan(&[&terms], &COST, 0.1, 900.0).unwrap_err();
    let cut = |list: &[f64]| list[1..].to_vec();
    assert!(matches!(
        refused(Terms { loss: cut(&whole.loss), ..whole.clone() }),
        ControlError::Length { what: "loss", .. }
    ));
    assert!(matches!(
        refused(Terms { shrink: cut(&whole.shrink), ..whole.clone() }),
        ControlError::Length { what: "shrink", .. }
    ));
    assert!(matches!(
        refused(Terms { cap: cut(&whole.cap), ..whole.clone() }),
        ControlError::Length { what: "cap", .. }
    ));
    let bad = Terms { cap: vec![f64::NAN; 2], ..whole.clone() };
    assert_eq!(refused(bad), ControlError::Invalid { what: "cap", index: 0 });
    for (epsilon, bytes) in [(f64::NAN, 900.0), (0.1, f64::NAN)] {
        let refused = Planner::new().plan(&[&whole], &COST, epsilon, bytes);
        assert!(matches!(refused, Err(ControlError::Invalid { .. })), "{epsilon} {bytes}");
    }
    let nothing = Planner::new().plan(&[], &COST, 0.1, 0.0).unwrap();
    assert_eq!((nothing.bytes, nothing.bound, nothing.lacking), (0.0, 0.0, Lacking::Nothing));
    let told = Told { kept: 3, terms: Some(&whole), levels: &[0, 3, 0] };
    let refused = Planner::new().tell(&good, &mut [&mut Clock::default()], &[told], &COST, 50.0);
    assert_eq!(refused, Err(ControlError::Invalid { what: "levels", index: 1 }));
}

/// Layers that let quiet steps pass plan when those do that are told of every step, whatever became of blocks in between: more of them, cuts, levels that others changed.
#[test]
fn quiet_steps_may_pass() {
    let mut quiet = 0;
    for seed in 0..40u64 {
        let dice = |n: u64, of: u64| splitmix64(seed << 32 ^ n) % of;
        let rule = BoundRule { every: 2 + dice(1, 9) as usize, ..BoundRule::default() };
        let block = 35.0 + dice(3, 60) as f64;
        let (mut told_all, mut passed) = ([Clock::default(); 3], [Clock::default(); 3]);
        let mut all = Blocks::new(3, 4);
        for step in 0..300u64 {
            let at = 100 + step * 16;
            all.live(at, dice);
            let (levels, now) = (all.levels.clone(), all.standing());
            let Standing { kept, blocks: n, .. } = now;
            let is_quiet = passed.iter().all(|clock| clock.is_quiet(&now, &rule));
            let blind: Vec<Told<'_>> = levels.iter().map(|levels| Told { kept, terms: None, levels }).collect();
            let due = Planner::is_due(&rule, &told_all.iter_mut().collect::<Vec<_>>(), &blind, &COST, block);
            // Now and then there was no step to look at.
            let own: Option<Vec<Terms>> =
                (due && dice(at + 8, 6) > 0).then(|| (0..3).map(|layer| terms(step ^ layer, 2, n, 0.3)).collect());
            let told: Vec<Told<'_>> = blind
                .iter()
                .enumerate()
                .map(|(at, told)| Told { terms: own.as_ref().map(|own| &own[at]), ..*told })
                .collect();
            let tell = |clocks: &mut [Clock; 3]| {
                Planner::new().tell(&rule, &mut clocks.iter_mut().collect::<Vec<_>>(), &told, &COST, block).unwrap()
            };
            let plan = tell(&mut told_all);
            if is_quiet {
                passed.iter_mut().for_each(Clock::pass);
                assert!(!due && plan.is_none(), "{seed} {step}");
                quiet += 1;
            } else {
                assert_eq!(tell(&mut passed), plan);
            }
            assert_eq!(passed, told_all, "{seed} {step}");
            let decided = |layer: usize| plan.as_ref().map(|(_, plan)| &plan.levels[layer]);
            all.told((0..3).map(decided));
        }
    }
    assert!(quiet > 1000, "{quiet}");
}

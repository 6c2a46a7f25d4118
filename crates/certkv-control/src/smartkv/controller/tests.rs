use super::*;
use certkv_core::hash::splitmix64;

const LADDER: Ladder<'static> = Ladder { bits: &[4, 6, 8, 16], cost: &[36.0, 52.0, 68.0, 132.0] };

/// Attention of two heads over `n` items: most of it on `hot`, of the others more on later ones.
fn attention(n: usize, hot: usize, step: u64) -> Vec<f64> {
    let weigh = |i: usize| {
        let noise = (splitmix64(step << 16 | i as u64) % 1000) as f64 / 1000.0;
        if i % n == hot { 8.0 } else { 0.2 + 0.05 * (i % n) as f64 + 0.02 * noise }
    };
    let rows: Vec<f64> = (0..2 * n).map(weigh).collect();
    let sums: Vec<f64> = rows.chunks_exact(n).map(|row| row.iter().sum()).collect();
    rows.iter().enumerate().map(|(i, x)| x / sums[i / n]).collect()
}

/// A run with growing items and a cut; what was told, and what was decided.
fn run(steps: u64, mut also: impl FnMut(&Told<'_>, &Option<Decision>)) -> Vec<u8> {
    let mut controller = Controller::new(0, 2, Rule::default()).unwrap();
    let (mut allocator, mut levels) = (WidthAllocator::new(), vec![3u8; 20]);
    for step in 0..steps {
        let kept = if step == 70 { 15 } else { levels.len() };
        levels.truncate(kept);
        levels.resize(20 + step.min(200) as usize / 16, 3);
        let rows = attention(levels.len(), if step < 100 { 5 } else { 9 }, step);
        let told = Told { kept, attention: (step % 7 != 6).then_some(&rows[..]), levels: &levels, danger: None };
        // Nothing was seen of items that are new in a step without attention.
        let decided = controller.tell(&mut allocator, &LADDER, &told, 60.0).unwrap();
        also(&told, &decided);
        if let Some(Decision { levels: Some(to), .. }) = decided {
            // A move fails now and then: its item stays.
            for (item, level) in to.into_iter().enumerate().filter(|(item, _)| !(*item as u64 + step).is_multiple_of(5))
            {
                levels[item] = level;
            }
        }
    }
    levels
}

#[test]
fn attention_brings_levels_within_the_budget() {
    let (mut triggers, mut most) = (Vec::new(), 0.0f64);
    let levels = run(400, |told, decided| {
        if let Some(decision) = decided {
            triggers.push(decision.trigger);
            let n = decision.levels.as_ref().unwrap().len();
            assert!(decision.bytes <= 60.0 * n as f64 && n <= told.levels.len());
            most = most.max(decision.bytes / n as f64);
        }
    });
    assert!(most > 55.0, "the budget is used: {most}");
    assert_eq!(triggers[0], Trigger::First);
    for wanted in [Trigger::Interval, Trigger::Drift, Trigger::Budget] {
        assert!(triggers.contains(&wanted), "{wanted:?} never came");
    }
    assert!(triggers.len() < 100, "{}", triggers.len());
    // What is attended to, and what is protected.
    assert_eq!((levels[9], levels[0]), (3, 3));
    assert!(levels[1..5].iter().all(|level| *level < 2), "{levels:?}");
}

/// A log of what a controller was told is enough to make its decisions again; another log makes others.
#[test]
fn a_log_replays_to_the_same_decisions() {
    type Entry = (usize, Option<Vec<f64>>, Vec<u8>, Option<Decision>);
    let mut log: Vec<Entry> = Vec::new();
    run(300, |told, decided| {
        log.push((told.kept, told.attention.map(<[f64]>::to_vec), told.levels.to_vec(), decided.clone()));
    });
    let replay = |log: &[Entry]| {
        let mut controller = Controller::new(0, 2, Rule::default()).unwrap();
        let mut allocator = WidthAllocator::new();
        log.iter().all(|(kept, attention, levels, decided)| {
            let told = Told { kept: *kept, attention: attention.as_deref(), levels, danger: None };
            controller.tell(&mut allocator, &LADDER, &told, 60.0).unwrap() == *decided
        })
    };
    assert!(replay(&log));
    let mut other = log.clone();
    for attention in other.iter_mut().skip(120).filter_map(|entry| entry.1.as_mut()) {
        attention.fill(0.01);
    }
    assert!(!replay(&other), "the log matters");
}

/// Scores that are made elsewhere by the same equations, of which it is told what it asks for, bring the decisions that attention brings.
#[test]
fn scores_made_elsewhere_bring_the_same_decisions() {
    let rule = Rule { drift_every: 3, ..Rule::default() };
    let (mut near, mut far) = (Controller::new(1, 2, rule).unwrap(), Controller::new(1, 2, rule).unwrap());
    let mut importance = Importance::new(2, rule.importance).unwrap();
    let (mut levels, mut last, mut scores) = (vec![3u8; 20], Vec::new(), Vec::new());
    let (mut allocator, mut asked, mut decisions, mut triggers) = (WidthAllocator::new(), [0; 4], 0, Vec::new());
    for step in 0..400u64 {
        let kept = if step == 170 { 15 } else { levels.len() };
        levels.truncate(kept);
        last.truncate(kept);
        levels.resize(20 + step.min(200) as usize / 16, 3);
        let n = levels.len();
        let rows = attention(n, if step < 100 { 5 } else { 9 }, step);
        let told = Told { kept, attention: Some(&rows), levels: &levels, danger: None };
        let want = near.tell(&mut allocator, &LADDER, &told, 60.0).unwrap();
        importance.truncate(kept);
        importance.update(&rows, step).unwrap();
        importance.scores(step, &mut scores);
        let needs = far.needs(kept, n);
        let drift =
            Drift { divergence: kl(&scores, &last).unwrap(), moved: moved(&scores, &last, rule.points).unwrap() };
        let mut apart = Apart {
            kept,
            items: n,
            levels: needs.levels.then_some(&levels[..]),
            drift: needs.drift.then_some(drift),
            scores: None,
        };
        let trigger = far.trigger(&LADDER, &apart, 60.0).unwrap();
        if trigger.is_some() {
            // Neither decides without what it wants, nor remembers that it was asked to.
            assert!(far.clone().tell_apart(&mut allocator, &LADDER, &apart, 60.0).is_err());
            (apart.levels, apart.scores) = (Some(&levels[..]), Some(&scores[..]));
        }
        let got = far.tell_apart(&mut allocator, &LADDER, &apart, 60.0).unwrap();
        assert_eq!(got.as_ref().map(|decision| decision.trigger), trigger);
        assert_eq!(got, want, "step {step}");
        for (count, need) in asked.iter_mut().zip([needs.levels, needs.drift, needs.scores, needs == Needs::default()])
        {
            *count += usize::from(need);
        }
        if let Some(Decision { trigger, levels: Some(to), .. }) = got {
            (levels, decisions) = (to, decisions + 1);
            last.clone_from(&scores);
            triggers.push(trigger);
        }
    }
    for wanted in [Trigger::First, Trigger::Interval, Trigger::Drift, Trigger::Budget] {
        assert!(triggers.contains(&wanted), "{wanted:?} never came");
    }
    assert!(decisions < 100 && asked[3] > 200 && asked[1] > 50, "{decisions} decisions, {asked:?}");
    let refused = |told: Apart<'_>| far.clone().tell_apart(&mut WidthAllocator::new(), &LADDER, &told, 60.0);
    assert!(matches!(refused(Apart { kept: 40, items: 3, ..Apart::default() }), Err(ControlError::Length { .. })));
}

/// An item in danger keeps its level, also if nobody attends to it, unless the budget cannot do without it.
#[test]
fn a_gate_holds_an_item_up() {
    let run = |gate: Option<Gating>, budget: f64, on: usize| {
        let rule = Rule { gate, ..Rule::default() };
        let (mut controller, mut allocator) = (Controller::new(0, 2, rule).unwrap(), WidthAllocator::new());
        let (mut levels, mut forced) = (vec![3u8; 20], false);
        for step in 0..80 {
            let (rows, danger) = (attention(20, 5, step), [0.1; 20].map(|d: f64| d));
            let danger: Vec<f64> =
                danger.iter().enumerate().map(|(i, d)| if i > 0 && i <= on { 1.1 } else { *d }).collect();
            let told = Told { kept: 20, attention: Some(&rows), levels: &levels, danger: Some(&danger) };
            if let Some(decision) = controller.tell(&mut allocator, &LADDER, &told, budget).unwrap() {
                forced |= decision.forced;
                levels = decision.levels.unwrap();
            }
        }
        (levels[1], levels[2], forced)
    };
    let gate = Some(Gating::default());
    assert!(run(None, 60.0, 1).0 < 2);
    assert_eq!(run(gate, 60.0, 1), (3, run(gate, 60.0, 1).1, false));
    assert!(run(gate, 60.0, 1).1 < 2, "the others are not held");
    assert!(run(gate, 60.0, 18).2, "what is held is above the budget");
    let rule = Rule { gate: Some(Gating { protect: 0.5, release: 0.5 }), ..Rule::default() };
    assert!(Controller::new(0, 1, rule).is_err());
    let mut controller = Controller::new(0, 1, Rule { gate, ..Rule::default() }).unwrap();
    let told = Told { kept: 2, attention: Some(&[0.5, 0.5]), levels: &[3, 3], danger: Some(&[0.1]) };
    let refused = controller.tell(&mut WidthAllocator::new(), &LADDER, &told, 60.0);
    assert!(matches!(refused, Err(ControlError::Length { what: "danger", .. })));
}

#[test]
fn what_cannot_be_is_refused_and_a_small_budget_said() {
    for rule in [
        Rule { base: 0, ..Rule::default() },
        Rule { drift_every: 0, ..Rule::default() },
        Rule { alpha: -1.0, ..Rule::default() },
        Rule { drift: f64::NAN, ..Rule::default() },
        Rule { keep_rank: 1.0, ..Rule::default() },
    ] {
        assert!(Controller::new(0, 1, rule).is_err(), "{rule:?}");
    }
    let mut controller = Controller::new(0, 1, Rule::default()).unwrap();
    let mut allocator = WidthAllocator::new();
    let mut tell = |attention: &[f64], levels: &[u8], budget: f64| {
        let told = Told { kept: 3, attention: Some(attention), levels, danger: None };
        controller.tell(&mut allocator, &LADDER, &told, budget)
    };
    assert!(tell(&[0.5, 0.2, f64::NAN], &[3; 3], 60.0).is_err());
    assert!(matches!(tell(&[0.5, 0.2, 0.3], &[3; 2], 60.0), Err(ControlError::Length { need: 3, .. })));
    // Two protected items at the top and one at the bottom are 300 bytes.
    let small = tell(&[0.5, 0.2, 0.3], &[3; 3], 99.0).unwrap().unwrap();
    assert_eq!((small.levels, small.bytes), (None, 300.0));
    assert!(Controller::bytes(100, 4) > 100 * ITEM_BYTES);
}

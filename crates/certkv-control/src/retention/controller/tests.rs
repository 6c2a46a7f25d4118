use super::*;
use crate::standing::Blocks;
use certkv_core::hash::splitmix64;

/// Bytes of three levels, ascending.
const COST: [f64; 3] = [30.0, 50.0, 100.0];

/// Losses of `n` blocks: those of `hot` are a hundred times as large.
fn losses(n: usize, hot: usize, step: u64) -> Vec<f64> {
    let of = |i: usize| {
        let noise = 1.0 + (splitmix64(step << 20 | i as u64) % 100) as f64 / 1000.0;
        let weight = if i == hot { 1.0 } else { 0.01 } * noise;
        [4.0 * weight, weight, 0.1 * weight]
    };
    (0..n).flat_map(of).collect()
}

fn bytes_of(levels: &[Vec<u8>]) -> f64 {
    levels.iter().map(|levels| spent(levels, &COST)).sum()
}

/// What was told of a layer, and what was decided.
#[derive(Debug, Clone)]
struct Entry {
    kept: usize,
    loss: Option<Vec<f64>>,
    danger: Option<Vec<f64>>,
    levels: Vec<u8>,
    decision: Option<Decision>,
}

const BUDGETS: Budgets = Budgets::new(50.0);

fn tell(rule: &Rule, layers: &mut [Layer], entries: &[Entry], budgets: Budgets) -> Vec<Option<Decision>> {
    let told = entries.iter().map(|e| Told {
        kept: e.kept,
        loss: e.loss.as_deref(),
        danger: e.danger.as_deref(),
        levels: &e.levels,
    });
    let (told, mut layers): (Vec<_>, Vec<_>) = (told.collect(), layers.iter_mut().collect());
    Controller::new().tell(rule, &mut layers, &told, &COST, budgets).unwrap()
}

/// A run of five layers whose hot block wanders, with new blocks, a cut, and moves that fail. `also` sees every call, and the levels after it.
fn run(rule: &Rule, budgets: Budgets, steps: u64, also: impl FnMut(&[Entry], &[Vec<u8>])) -> Vec<Vec<u8>> {
    run_over([1.0; 5], rule, budgets, steps, also)
}

/// The same of layers, or heads, of which what is lost weighs so much.
fn run_over<const N: usize>(
    weights: [f64; N],
    rule: &Rule,
    budgets: Budgets,
    steps: u64,
    mut also: impl FnMut(&[Entry], &[Vec<u8>]),
) -> Vec<Vec<u8>> {
    let mut layers = vec![Layer::default(); N];
    let mut levels = vec![vec![2u8; 12]; N];
    for step in 0..steps {
        let kept = if step == 70 { 8 } else { levels[0].len() };
        let n = if step < 70 { 12 + step as usize / 8 } else { 8 + (step - 70) as usize / 24 };
        levels.iter_mut().for_each(|levels| {
            levels.truncate(kept);
            levels.resize(n, 2);
        });
        let hot = if step < 50 { 3 } else { 6 };
        let entry = |(layer, levels): (usize, &Vec<u8>)| Entry {
            kept,
            loss: (step % 9 != 8)
                .then(|| losses(n, hot + layer % 2, step).iter().map(|loss| loss * weights[layer]).collect()),
            danger: (step % 9 != 8).then(|| (0..n).map(|i| if i == 5 { 1.2 } else { 0.1 }).collect()),
            levels: levels.clone(),
            decision: None,
        };
        let mut entries: Vec<Entry> = levels.iter().enumerate().map(entry).collect();
        let decisions = tell(rule, &mut layers, &entries, budgets);
        for ((entry, decision), levels) in entries.iter_mut().zip(decisions).zip(&mut levels) {
            if let Some(Decision { levels: Some(wanted), .. }) = &decision {
                levels[..wanted.len()].copy_from_slice(wanted);
            }
            entry.decision = decision;
        }
        also(&entries, &levels);
    }
    levels
}

#[test]
fn losses_bring_levels_within_the_budget() {
    let (mut triggers, mut most) = (Vec::new(), 0.0f64);
    let levels = run(&Rule::default(), BUDGETS, 200, |entries, levels| {
        triggers.extend(entries.iter().filter_map(|e| e.decision.as_ref()).map(|d| d.trigger));
        let heard = entries.iter().any(|e| e.loss.is_some());
        let blocks: usize = levels.iter().map(Vec::len).sum();
        assert!(!heard || bytes_of(levels) <= 50.0 * blocks as f64, "{levels:?}");
        most = most.max(bytes_of(levels) / blocks as f64);
    });
    assert!(most > 48.0, "the budget is used: {most}");
    for wanted in [Trigger::First, Trigger::Interval, Trigger::Budget] {
        assert!(triggers.contains(&wanted), "{wanted:?} never came");
    }
    for (layer, levels) in levels.iter().enumerate() {
        assert_eq!(levels[6 + layer % 2], 2, "what counts most: {levels:?}");
        assert!(levels.iter().filter(|l| **l == 2).count() < levels.len() / 2);
    }
    // Where one layer's limit is lower, it holds.
    run(&Rule::default(), Budgets { layer: 45.0, ..BUDGETS }, 100, |entries, levels| {
        for (entry, levels) in entries.iter().zip(levels).filter(|(e, _)| e.loss.is_some()) {
            assert!(spent(levels, &COST) <= 45.0 * levels.len() as f64, "{:?}", entry.decision);
        }
    });
}

/// Heads that are told apart have limits of their own, and share that of their layer; clocks are the layer's.
#[test]
fn heads_share_what_their_layer_may_take() {
    let all = Budgets { heads: 2, ..BUDGETS };
    let mut slowest = 0;
    for budgets in
        [all, Budgets { layer: 44.0, ..all }, Budgets { head: 47.0, ..all }, Budgets { layer: 42.0, head: 47.0, ..all }]
    {
        let (mut apart, mut decided) = (0.0f64, [0; 10]);
        run_over(
            [1.0, 4.0, 2.0, 1.0, 9.0, 1.0, 1.0, 2.0, 1.0, 8.0],
            &Rule::default(),
            budgets,
            160,
            |entries, levels| {
                for (at, entry) in entries.iter().enumerate() {
                    decided[at] += usize::from(entry.decision.is_some());
                }
                if entries.iter().all(|e| e.loss.is_none()) {
                    return;
                }
                for of_layer in levels.chunks(2) {
                    let used: Vec<f64> = of_layer.iter().map(|levels| spent(levels, &COST)).collect();
                    let n = of_layer[0].len() as f64;
                    assert!(used.iter().all(|used| *used <= budgets.head * n), "{used:?} of {n} blocks");
                    assert!(used.iter().sum::<f64>() <= budgets.layer * 2.0 * n, "{used:?} of {n} blocks");
                    apart = apart.max((used[0] - used[1]).abs() / n);
                }
            },
        );
        assert!(apart > 1.0, "heads have what they need, not the same: {apart}");
        // The fifth layer's interval is twice as long; nine is one of its heads.
        slowest += usize::from(2 * decided[9] < 3 * decided[0]);
    }
    assert_eq!(slowest, 4);
}

/// Losses that nobody looks at make no decision, and as many are looked at as the rule says.
#[test]
fn losses_are_looked_at_where_they_count() {
    for (looks, every) in [(1, 8), (2, 8), (8, 8), (3, 5)] {
        let rule = Rule { looks, every, ..Rule::default() };
        let (mut layers, mut told_late) = (vec![Layer::default(); 5], vec![Layer::default(); 5]);
        let mut peaks = vec![Vec::<f64>::new(); 5];
        let (mut levels, mut looked, mut decided) = (vec![vec![2u8; 12]; 5], [0; 5], [0; 5]);
        for step in 0..80 {
            let entries: Vec<Told<'_>> =
                levels.iter().map(|levels| Told { kept: 12, loss: None, danger: None, levels }).collect();
            let mut all: Vec<&mut Layer> = layers.iter_mut().collect();
            let wants = Controller::wants(&rule, &all, &entries, &COST, BUDGETS);
            let wanted: Vec<bool> = wants.iter().map(|wants| *wants != Wants::Nothing).collect();
            let losses: Vec<_> = (0..5).map(|layer| losses(12, 3 + layer % 2, step)).collect();
            let told = entries.iter().enumerate();
            let told: Vec<_> = told.map(|(l, t)| Told { loss: wanted[l].then_some(&losses[l][..]), ..*t }).collect();
            let decisions = Controller::new().tell(&rule, &mut all, &told, &COST, BUDGETS).unwrap();
            // Looks may be told with the decision that they are for.
            for (peaks, losses) in
                peaks.iter_mut().zip(&losses).zip(&wanted).filter(|(_, wanted)| **wanted).map(|(x, _)| x)
            {
                peaks.resize(losses.len(), 0.0);
                peaks.iter_mut().zip(losses).for_each(|(peak, loss)| *peak = peak.max(*loss));
            }
            let late = entries.iter().enumerate();
            let late: Vec<_> = late
                .map(|(l, t)| Told { loss: (wants[l] == Wants::Decision).then_some(&peaks[l][..]), ..*t })
                .collect();
            let mut others: Vec<&mut Layer> = told_late.iter_mut().collect();
            assert_eq!(Controller::new().tell(&rule, &mut others, &late, &COST, BUDGETS).unwrap(), decisions);
            let told = peaks.iter_mut().zip(&wants).filter(|(_, wants)| **wants == Wants::Decision);
            told.for_each(|(peaks, _)| peaks.clear());
            for (layer, decision) in decisions.into_iter().enumerate() {
                looked[layer] += usize::from(wanted[layer]);
                decided[layer] += usize::from(decision.is_some());
                assert!(wanted[layer] || decision.is_none(), "layer {layer}, step {step}");
                if let Some(Decision { levels: Some(to), .. }) = decision {
                    levels[layer] = to;
                }
            }
        }
        // The first comes at once; the last layer's interval is twice as long.
        let intervals = [79 / every, 79 / every, 79 / every, 79 / every, 79 / (2 * every)];
        assert_eq!(decided, intervals.map(|n| n + 1));
        for (looked, n) in looked.into_iter().zip(intervals) {
            assert!(
                (1 + n * looks..1 + (n + 1) * looks).contains(&looked),
                "{looked} looks in {n} intervals of {every}"
            );
        }
    }
}

#[test]
fn a_log_replays_to_the_same_decisions() {
    let rule = Rule { gate: Some(Gating::default()), stick: 0.1, ..Rule::default() };
    let mut log: Vec<Vec<Entry>> = Vec::new();
    run(&rule, BUDGETS, 150, |entries, _| log.push(entries.to_vec()));
    let replay = |log: &[Vec<Entry>]| {
        let mut layers = vec![Layer::default(); 5];
        log.iter().all(|entries| {
            let again = tell(&rule, &mut layers, entries, BUDGETS);
            again.iter().zip(entries).all(|(again, entry)| *again == entry.decision)
        })
    };
    assert!(replay(&log));
    let mut other = log.clone();
    other.iter_mut().skip(40).flatten().filter_map(|e| e.loss.as_mut()).for_each(|loss| loss.rotate_left(9));
    assert!(!replay(&other), "the log matters");
}

/// A block whose rank is in danger stays up, unless the budget cannot do without it; and is let go when it is out of danger for good.
#[test]
fn a_gate_holds_a_block_up() {
    let at = |gate, block: f64| {
        let rule = Rule { gate, ends: [0, 0], cooldown: 0, ..Rule::default() };
        let mut forced = false;
        let levels = run(&rule, Budgets { block, ..BUDGETS }, 60, |entries, _| {
            forced |= entries.iter().filter_map(|e| e.decision.as_ref()).any(|d| d.forced);
        });
        (levels.iter().filter(|levels| levels[5] == 2).count(), forced)
    };
    let gate = Some(Gating::default());
    assert_eq!((at(None, 50.0), at(gate, 50.0)), ((0, false), (5, false)));
    assert_eq!(at(gate, 31.0), (0, true), "not even the gate is above the budget");
    let rule = Rule { gate, ..Rule::default() };
    let (mut layers, levels) = (vec![Layer::default()], vec![2u8; 6]);
    for (danger, on) in [(0.9, false), (1.0, true), (0.6, true), (0.5, false), (f64::NAN, true)] {
        let entry = Entry {
            kept: 6,
            loss: Some(losses(6, 0, 0)),
            danger: Some(vec![danger; 6]),
            levels: levels.clone(),
            decision: None,
        };
        tell(&rule, &mut layers, &[entry], BUDGETS);
        assert_eq!(layers[0].is_protected(2), on, "{danger}");
    }
}

/// Blocks whose losses cross each other do not swing with them: the band between the thresholds, the rest after a change, and what a change
/// counts for each keep levels.
#[test]
fn what_is_near_the_price_does_not_swing() {
    let changes = |rule: Rule| {
        let mut layers = vec![Layer::default()];
        let (mut levels, mut changed) = (vec![2u8; 10], 0);
        // Half of them can have the best level.
        let budgets = Budgets { block: 75.0, ..BUDGETS };
        for step in 0..200u64 {
            let loss: Vec<f64> = (0..10u64)
                .flat_map(|i| {
                    let w = 1.0 + (splitmix64((step / 2) << 8 | i) % 400) as f64 / 1000.0;
                    [4.0 * w, w, 0.1 * w]
                })
                .collect();
            let entry = Entry { kept: 10, loss: Some(loss), danger: None, levels: levels.clone(), decision: None };
            if let Some(Decision { levels: Some(wanted), .. }) = &tell(&rule, &mut layers, &[entry], budgets)[0] {
                changed += wanted.iter().zip(&levels).filter(|(a, b)| a != b).count();
                levels.clone_from(wanted);
            }
        }
        changed
    };
    let free = Rule { every: 1, keep: 0.0, down: 1.0, up: 1.0 + 1e-9, cooldown: 0, ends: [0, 0], ..Rule::default() };
    let (none, band) = (changes(free), changes(Rule { down: 0.5, up: 2.0, ..free }));
    let (rest, stick) = (changes(Rule { cooldown: 8, ..free }), changes(Rule { stick: 0.5, ..free }));
    let keep = changes(Rule { keep: 0.9, ..free });
    assert!(none > 100, "without any of it levels swing: {none}");
    assert!(3 * band.max(rest).max(stick).max(keep) < 2 * none, "{none} changes; {band} {rest} {stick} {keep}");
}

#[test]
fn what_cannot_be_is_refused_and_a_small_budget_said() {
    let good = Rule::default();
    let gate = |protect, release| Some(Gating { protect, release });
    for rule in [
        Rule { every: 0, ..good },
        Rule { looks: 0, ..good },
        Rule { keep: 1.0, ..good },
        Rule { keep: f64::NAN, ..good },
        Rule { up: good.down, ..good },
        Rule { down: -0.1, ..good },
        Rule { up: f64::INFINITY, ..good },
        Rule { stick: f64::NAN, ..good },
        Rule { gate: gate(0.5, 0.5), ..good },
        Rule { gate: gate(1.0, f64::NAN), ..good },
    ] {
        assert!(rule.validated().is_err(), "{rule:?}");
    }
    assert!(good.validated().is_ok());
    let refused = |told: Told<'_>| {
        let (mut layer, mut controller) = (Layer::default(), Controller::new());
        let refused = controller.tell(&good, &mut [&mut layer], &[told], &COST, BUDGETS).unwrap_err();
        assert_eq!((layer.items(), layer.steps), (0, 0), "nothing changed");
        refused
    };
    let told = Told { kept: 2, loss: Some(&[1.0; 6]), danger: None, levels: &[2, 2] };
    let invalid = |what, index| ControlError::Invalid { what, index };
    assert_eq!(refused(Told { levels: &[2, 3], ..told }), invalid("levels", 1));
    assert_eq!(refused(Told { loss: Some(&[1.0, f64::NAN, 1.0]), ..told }), invalid("loss", 1));
    assert!(matches!(refused(Told { loss: Some(&[1.0; 7]), ..told }), ControlError::Length { what: "loss", .. }));
    assert!(matches!(refused(Told { levels: &[2], ..told }), ControlError::Length { what: "levels", .. }));
    assert!(matches!(refused(Told { danger: Some(&[1.0]), ..told }), ControlError::Length { what: "danger", .. }));
    let mut layer = Layer::default();
    let budgets = Budgets { block: 29.0, ..BUDGETS };
    let small = Controller::new().tell(&good, &mut [&mut layer], &[told], &COST, budgets).unwrap().remove(0).unwrap();
    assert_eq!((small.levels, small.bytes), (None, 60.0));
    assert!(Layer::bytes(100, 3) > 100 * 48);
}

/// Layers that let quiet steps pass are those that were told of every step, whatever became of blocks in between: more of them, cuts, levels that others changed.
#[test]
fn quiet_steps_may_pass() {
    let mut quiet = 0;
    for seed in 0..40u64 {
        let dice = |n: u64, of: u64| splitmix64(seed << 32 ^ n) % of;
        let rule = Rule { every: 2 + dice(1, 9) as usize, looks: 1 + dice(2, 2) as usize, ..Rule::default() };
        let budgets = Budgets::new(35.0 + dice(3, 60) as f64);
        let (mut told_all, mut passed) = (vec![Layer::default(); 6], vec![Layer::default(); 6]);
        let mut all = Blocks::new(6, 5);
        for step in 0..300u64 {
            let at = 100 + step * 16;
            all.live(at, dice);
            let (levels, now) = (all.levels.clone(), all.standing());
            let Standing { kept, blocks: n, .. } = now;
            let is_quiet = passed.iter().enumerate().all(|(at, layer)| layer.is_quiet(at, &now, &rule));
            let entry =
                |levels: &Vec<u8>| Entry { kept, loss: None, danger: None, levels: levels.clone(), decision: None };
            let mut entries: Vec<Entry> = levels.iter().map(entry).collect();
            let wants = {
                let told: Vec<Told<'_>> =
                    levels.iter().map(|levels| Told { kept, loss: None, danger: None, levels }).collect();
                Controller::wants(&rule, &told_all.iter_mut().collect::<Vec<_>>(), &told, &COST, budgets)
            };
            // Now and then there was no step to look at.
            if dice(at + 8, 6) > 0 {
                let wanting = entries.iter_mut().zip(&wants).filter(|(_, wants)| **wants != Wants::Nothing);
                wanting.for_each(|(entry, _)| entry.loss = Some(losses(n, step as usize % n, step)));
            }
            let decided = tell(&rule, &mut told_all, &entries, budgets);
            if is_quiet {
                passed.iter_mut().for_each(Layer::pass);
                assert!(
                    wants.iter().all(|wants| *wants == Wants::Nothing) && decided.iter().all(Option::is_none),
                    "{seed} {step}"
                );
                quiet += 1;
            } else {
                assert_eq!(tell(&rule, &mut passed, &entries, budgets), decided);
            }
            assert_eq!(format!("{passed:?}"), format!("{told_all:?}"), "{seed} {step}");
            all.told(decided.iter().map(|decision| decision.as_ref()?.levels.as_ref()));
        }
    }
    assert!(quiet > 1000, "{quiet}");
}

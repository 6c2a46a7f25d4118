//! What is chosen: enough, not much more than the least, all of it where nothing less will do, and the same in every order.
use crate::world::{BLOCK, Plan, World, kernel};
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::select::SelectArgs;

/// Sides that entry's words and the table of sides promote, `2 block + side`.
fn chosen(w: &World, entry: usize) -> Vec<bool> {
    let sides = w.all_sides();
    let words = w.words(entry);
    words.iter().flat_map(|p| [0, 1].map(|side| *p != 0 && sides[2 * (*p as usize - 1) + side] != 0)).collect()
}

/// Whether what is left stays within the target for every head.
fn enough(shares: &[(Vec<f64>, bool)], set: &[bool], most: f64) -> bool {
    let group = shares.first().map_or(0, |s| s.0.len());
    let left = |h: usize| shares.iter().zip(set).filter(|(_, in_set)| !**in_set).map(|(s, _)| s.0[h]).sum::<f64>();
    shares.iter().zip(set).all(|(s, in_set)| s.1 || *in_set) && (0..group).all(|h| left(h) <= most)
}

/// Sides in the exact set of the same rule: by the largest share over heads, as many as it takes.
fn by_threshold(shares: &[(Vec<f64>, bool)]) -> usize {
    let score = |s: &(Vec<f64>, bool)| if s.1 { s.0.iter().copied().fold(0.0, f64::max) } else { f64::INFINITY };
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| score(&shares[*b]).total_cmp(&score(&shares[*a])));
    let mut set = vec![false; shares.len()];
    for (taken, i) in order.iter().enumerate() {
        if enough(shares, &set, 1.0) {
            return taken;
        }
        set[*i] = true;
    }
    shares.len()
}

/// Sides in the greedy cover of math.md (6.8), superfluous ones included.
fn by_cover(shares: &[(Vec<f64>, bool)]) -> usize {
    let group = shares.first().map_or(0, |s| s.0.len());
    let mut set: Vec<bool> = shares.iter().map(|s| !s.1).collect();
    let mut need: Vec<f64> =
        (0..group).map(|h| shares.iter().filter(|s| s.1).map(|s| s.0[h]).sum::<f64>() - 1.0).collect();
    while need.iter().any(|x| *x > 0.0) {
        let gain = |i: usize| shares[i].0.iter().zip(&need).map(|(s, n)| s.min(n.max(0.0))).sum::<f64>();
        let Some(best) = (0..shares.len()).filter(|i| !set[*i]).max_by(|a, b| gain(*a).total_cmp(&gain(*b))) else {
            break;
        };
        set[best] = true;
        need.iter_mut().zip(&shares[best].0).for_each(|(n, s)| *n -= s);
    }
    set.iter().filter(|x| **x).count()
}

fn planned(plan: Plan, grid: u32, seed: u64) -> World {
    let k = kernel(plan.group);
    let mut w = World::new(plan);
    w.plan_step(&k, grid, seed);
    w.gather();
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
    w
}

#[test]
fn the_set_reaches_the_target_and_is_not_much_larger_than_the_greedy_one() {
    let (mut executed, mut failed, mut caught, mut planted) = (0, 0, 0, 0);
    let (mut sizes, mut exact, mut cover, mut all) = (0, 0, 0, 0);
    for (group, spread) in
        [(1, (2.0, 0.5)), (4, (0.3, 0.3)), (4, (2.0, 0.7)), (4, (4.0, 1.0)), (5, (1.0, 2.0)), (16, (2.0, 1.0))]
    {
        for (seed, tolerance) in [0.01, 0.03, 0.05, 0.2].into_iter().enumerate() {
            let seed = seed as u64 + 10;
            let plan =
                Plan { spread, tolerance, seed, uncoded: 0.01, ..Plan::new(group, &[200 * BLOCK + 5, 90 * BLOCK]) };
            let w = planned(plan, 3, seed);
            for entry in 0..w.entries() {
                let (shares, set) = (w.shares(entry, 0.9), chosen(&w, entry));
                let size = set.iter().filter(|x| **x).count();
                let least = by_threshold(&shares);
                executed += 1;
                let right = |set: &[bool]| {
                    let size = set.iter().filter(|x| **x).count();
                    enough(&shares, set, 1.0) && size as f64 <= 1.3 * least as f64 + 2.0
                };
                if !right(&set) {
                    failed += 1;
                    println!("group {group} spread {spread:?} tolerance {tolerance} entry {entry}: {size} of {least}");
                }
                sizes += size;
                exact += least;
                cover += by_cover(&shares);
                all += set.len();
                // Controls: everything is too much, and the set without its largest share too little.
                if least * 2 < set.len() {
                    planted += 1;
                    caught += u32::from(!right(&vec![true; set.len()]));
                }
                if size > 0 {
                    let score =
                        |i: &usize| shares[*i].0.iter().copied().fold(if shares[*i].1 { 0.0 } else { 1e9 }, f64::max);
                    let mut without = set.clone();
                    let mut order: Vec<usize> = (0..set.len()).filter(|i| set[*i]).collect();
                    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
                    order.truncate(1 + size / 8);
                    order.into_iter().for_each(|i| without[i] = false);
                    planted += 1;
                    caught += u32::from(!right(&without));
                }
            }
        }
    }
    println!("sides {all}, chosen {sizes}, by exact threshold {exact}, by greedy cover {cover}");
    println!("GATE gpu-select-choice executed={executed} failed={failed} controls={caught}/{planted} seed=0xa");
    assert_eq!(failed, 0);
    assert_eq!(caught, planted);
    assert!((sizes as f64) < 1.1 * exact as f64, "{sizes} {exact}");
}

#[test]
fn what_has_no_codes_or_no_tolerance_is_read_exactly() {
    // Every side without codes: all of them.
    let w = planned(Plan { uncoded: 1.0, ..Plan::new(4, &[40 * BLOCK, 3]) }, 2, 0);
    for entry in 0..w.entries() {
        assert!(chosen(&w, entry).iter().all(|x| *x));
    }
    assert_eq!(w.counted().keys, 80);
    // A tolerance of nothing, no tolerance, no mass, no radius: all again, of that KV head alone.
    let kernel = kernel(4);
    for spoil in [
        |c: &mut Certificate| c.tolerance = 0.0,
        |c: &mut Certificate| c.tolerance = f32::NAN,
        |c: &mut Certificate| c.lse = f32::NEG_INFINITY,
        |c: &mut Certificate| c.lse = f32::NAN,
        |c: &mut Certificate| c.radius = f32::NAN,
    ] {
        let mut w = World::new(Plan::new(4, &[60 * BLOCK]));
        let mut c = w.certificate(1, 2);
        spoil(&mut c);
        w.set_certificate(1, 2, c);
        w.plan_step(&kernel, 1, 5);
        w.gather();
        assert!(chosen(&w, 1).iter().all(|x| *x));
        assert!(!chosen(&w, 0).iter().all(|x| *x));
    }
    // A tolerance that nothing can miss: none.
    let w = planned(Plan { tolerance: 1e9, ..Plan::new(4, &[60 * BLOCK]) }, 1, 0);
    assert!(!chosen(&w, 0).contains(&true));
    assert_eq!(w.counted(), Default::default());
}

#[test]
fn short_and_long_contexts_are_all_looked_at() {
    // No full block, one, and none at all.
    let w = planned(Plan { tolerance: 1e-6, ..Plan::new(4, &[BLOCK - 1, BLOCK, 2 * BLOCK + 3]) }, 4, 1);
    assert_eq!([0, 2, 4].map(|e| chosen(&w, e).len()), [0, 2, 4]);
    assert!((0..w.entries()).all(|e| chosen(&w, e).iter().all(|x| *x)));
    // Behind the blocks whose buckets are remembered.
    let plan = Plan { kv_heads: 1, slots: [16384; 2], capacity: 32768, ..Plan::new(1, &[5000 * BLOCK]) };
    let w = planned(plan, 1, 3);
    let (shares, set) = (w.shares(0, 0.9), chosen(&w, 0));
    assert!(enough(&shares, &set, 1.0));
    let size = set.iter().filter(|x| **x).count();
    assert!(size as f64 <= 1.2 * by_threshold(&shares) as f64, "{size} {}", by_threshold(&shares));
    assert!(set[2 * 4096..].contains(&true));
}

#[test]
fn the_choice_does_not_depend_on_the_order_of_threads_and_ctas() {
    let kernel = kernel(4);
    // Who gets one of few slots depends on the order, and with it what a repair finds present: plans alone, then.
    for (slots, repairs) in [([4096, 4096], true), ([70, 60], false)] {
        let lens = [150 * BLOCK, 180 * BLOCK, 33 * BLOCK, 5];
        let plan = Plan { forked: true, slots, ..Plan::new(4, &lens) };
        let run = |grid: u32, seed: u64| {
            let mut w = World::new(plan.clone());
            let mut r = certkv_testkit::generate::Rng::new(8);
            let mut words = Vec::new();
            for step in 1..5 {
                w.set_step(step);
                if repairs {
                    w.repair(&kernel, &[1, 2, 3], 0.4, grid, seed);
                    words.push(w.promoted.read::<u32>());
                }
                w.plan_step(&kernel, grid, seed.wrapping_mul(u64::from(step)));
                words.push(w.promoted.read::<u32>());
                w.gather();
                assert_eq!(w.inconsistencies(), Vec::<String>::new());
                w.draw(&mut r);
            }
            let s = w.counted();
            (words, s.keys, s.values)
        };
        let first = run(1, 0);
        assert!(first.1 > 30 && first.2 > 30);
        for (grid, seed) in [(1, 1), (3, 2), (8, 3), (16, 4)] {
            assert!(run(grid, seed) == first, "{slots:?}: grid {grid}, seed {seed}");
        }
    }
}

#[test]
fn what_is_present_stays_unless_it_lost_most_of_its_share() {
    let kernel = kernel(4);
    let mut w = World::new(Plan::new(4, &[200 * BLOCK]));
    let mut kept = 0;
    for step in 1..4 {
        w.set_step(step);
        let before = (w.words(0), w.counted());
        w.plan_step(&kernel, 2, 7);
        let after = w.counted();
        if step > 1 {
            // The same masses again: the same set, all of it there.
            assert_eq!(w.words(0), before.0);
            assert_eq!(after.copies, before.1.copies);
            assert_eq!(after.missing, before.1.missing);
            kept += after.resident - before.1.resident;
        }
        w.gather();
        for side in 0..2 {
            let used = w.owners[side].read::<u32>().into_iter().zip(w.stamps[side].read::<u32>());
            assert!(used.filter(|(owner, _)| *owner != 0).all(|(_, stamp)| stamp == step), "a slot in use looks old");
        }
    }
    assert!(kept > 0);
    // A tolerance a third wider makes fewer worth fetching; what is there goes on being used.
    let words = w.words(0).iter().filter(|x| **x != 0).count();
    for g in 0..4 {
        let c = w.certificate(0, g);
        w.set_certificate(0, g, Certificate { tolerance: 1.33 * c.tolerance, ..c });
    }
    w.set_step(4);
    let before = w.counted();
    w.plan_step(&kernel, 2, 7);
    let after = w.counted();
    assert_eq!(w.words(0).iter().filter(|x| **x != 0).count(), words);
    assert!(after.keys - before.keys < before.keys / 3);
}

#[test]
fn a_repair_takes_more_and_keeps_what_there_is() {
    let kernel = kernel(4);
    let w = &mut World::new(Plan::new(4, &[160 * BLOCK, 40 * BLOCK]));
    w.plan_step(&kernel, 4, 1);
    w.gather();
    let (before, untouched) = (chosen(w, 1), w.words(0));
    let now = |w: &World| chosen(w, 1);
    // The plan left 0.9 of the tolerance; 0.5 asks for more.
    w.set_step(2);
    w.repair(&kernel, &[1], 0.5, 2, 3);
    let first = now(w);
    assert!(enough(&w.shares(1, 0.5), &first, 1.0));
    assert!(before.iter().zip(&first).all(|(a, b)| *b || !*a), "something was given up");
    assert_eq!(w.words(0), untouched);
    let counted = w.counted();
    let more = first.iter().filter(|x| **x).count() - before.iter().filter(|x| **x).count();
    assert_eq!(counted.direct as usize, more);
    // Where the target is reached already, an eighth of the blocks more, each time, to the last.
    let mut last = first;
    for _ in 0..20 {
        w.repair(&kernel, &[1], 0.9, 2, 3);
        let next = now(w);
        let (a, b) = (last.iter().filter(|x| **x).count(), next.iter().filter(|x| **x).count());
        assert!(b >= (a + 20).min(320), "{a} {b}");
        last = next;
    }
    assert!(last.iter().all(|x| *x));
    // The next plan starts from its own rule, and no address of this step stays.
    w.plan_step(&kernel, 4, 1);
    w.gather();
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
    let sides = w.all_sides();
    assert!(sides[sides.len() / 2..].iter().all(|x| *x == 0));
    assert!(enough(&w.shares(1, 0.9), &now(w), 1.0));
    // With other masses and a tolerance that asks for little, what was present stays, read from where it was.
    let before = (chosen(w, 1), w.counted());
    w.draw(&mut certkv_testkit::generate::Rng::new(99));
    for g in 0..4 {
        let c = w.certificate(1, g);
        w.set_certificate(1, g, Certificate { tolerance: 5.0 * c.tolerance, ..c });
    }
    w.repair(&kernel, &[1], 0.9, 2, 3);
    let after = chosen(w, 1);
    assert!(before.0.iter().zip(&after).all(|(a, b)| *b || !*a), "something was given up");
    let more = after.iter().filter(|x| **x).count() - before.0.iter().filter(|x| **x).count();
    assert!((20..80).contains(&more), "{more}");
    assert_eq!((w.counted().direct - before.1.direct) as usize, more);
    // An empty list asks for nothing.
    let before = (w.promoted.read::<u32>(), w.counted());
    w.repair(&kernel, &[], 0.5, 2, 3);
    assert_eq!((w.promoted.read::<u32>(), w.counted()), before);
}

#[test]
fn words_named_for_it_are_cleared() {
    let kernel = kernel(4);
    let w = World::new(Plan::new(4, &[8 * BLOCK]));
    w.queue.write(0, &[5u32, 9]);
    let clear = [w.queue.pointer(), w.queue.pointer() + 4, 0, 0];
    w.only.write(0, &[0u32]);
    w.launch(&kernel, SelectArgs { mode: 1, clear, ..w.args }, 2, 0);
    assert_eq!(w.queue.read::<u32>(), [0, 0]);
}

/// A block that the last token fills has neither a record nor a mass yet: what is planned, and repaired, is what was without that token.
#[test]
fn a_block_that_lies_in_its_tail_is_not_chosen() {
    let k = kernel(4);
    let plan = || Plan { spread: (2.0, 0.5), seed: 5, ..Plan::new(4, &[6 * BLOCK - 1, 9 * BLOCK + 3, BLOCK - 1]) };
    let chosen = |w: &World| {
        w.plan_step(&k, 3, 1);
        w.repair(&k, &[0, 2], 0.2, 2, 1);
        let words: Vec<Vec<u32>> = (0..w.entries()).map(|entry| w.words(entry)).collect();
        (words, w.counted())
    };
    let before = chosen(&World::new(plan()));
    assert!(before.0.concat().iter().any(|word| *word != 0));
    let after = |grow: fn(&mut World)| {
        let mut w = World::new(plan());
        grow(&mut w);
        chosen(&w)
    };
    assert!(after(World::grow) == before);
    // Two blocks of a sequence in tails, where its draft goes beyond the one that it fills; or up to its end.
    assert!(after(|w| w.grow_by(3, true)) == before && after(|w| w.grow_by(1, true)) == before);
    // The control: told of none, it reads a record that is not there.
    let untold = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| after(|w| w.grow_by(3, false))));
    assert!(untold.is_err());
}

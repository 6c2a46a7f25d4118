use super::*;
use proptest::prelude::*;

/// The rule of (6.8) word for word: every item before every pick.
fn naive(gains: &[f64], heads: usize, cost: &[f64], need: &[f64]) -> Option<Vec<u32>> {
    let n = cost.len();
    let (mut left, mut pick, mut free) = (need.to_vec(), Vec::new(), vec![true; n]);
    while left.iter().any(|&x| x > 0.0) {
        let mut best = (0.0, usize::MAX);
        for i in (0..n).filter(|&i| free[i]) {
            let v = (0..heads).fold(0.0, |s, h| s + gains[h * n + i].min(left[h].max(0.0)));
            let r = if cost[i] > 0.0 {
                v / cost[i]
            } else if v > 0.0 {
                f64::INFINITY
            } else {
                0.0
            };
            if r > best.0 {
                best = (r, i);
            }
        }
        if best.1 == usize::MAX {
            return None;
        }
        pick.push(best.1 as u32);
        free[best.1] = false;
        for (h, x) in left.iter_mut().enumerate() {
            *x -= gains[h * n + best.1];
        }
    }
    Some(pick)
}

#[derive(Debug, Clone)]
struct Case {
    heads: usize,
    gains: Vec<f64>,
    cost: Vec<f64>,
    need: Vec<f64>,
}

/// Few distinct gains and costs, so that ties are everywhere; or many, so that rounding is.
fn case() -> impl Strategy<Value = Case> {
    (1usize..6, 0usize..24, prop::bool::ANY).prop_flat_map(|(heads, n, coarse)| {
        let gain = if coarse {
            prop::sample::select(vec![0.0, 1.0, 2.0, 3.0]).boxed()
        } else {
            prop_oneof![Just(0.0), 1e-6f64..10.0].boxed()
        };
        let cost = prop::sample::select(vec![0.0, 1.0, 1.0, 2.0, 3.0]);
        (
            prop::collection::vec(gain, heads * n),
            prop::collection::vec(cost, n),
            prop::collection::vec(-0.2f64..1.05, heads),
        )
            .prop_map(move |(gains, cost, share)| {
                let need = share.iter().enumerate().map(|(h, s)| s * gains[h * n..(h + 1) * n].iter().sum::<f64>());
                let need = need.collect();
                Case { heads, gains, cost, need }
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn lazy_picks_are_the_naive_ones(c in case()) {
        let g = Gains::new(&c.gains, c.heads, c.cost.len()).unwrap();
        let mut solver = GroupCover::new();
        match (solver.solve(g, &c.cost, &c.need, false), naive(&c.gains, c.heads, &c.cost, &c.need)) {
            (Ok(a), Some(b)) => prop_assert_eq!(a, b.as_slice()),
            (Err(ControlError::Infeasible), None) => {}
            (a, b) => prop_assert!(false, "{:?} against {:?}", a, b),
        }
    }

    #[test]
    fn pruning_keeps_every_need_and_never_costs_more(c in case()) {
        let n = c.cost.len();
        let g = Gains::new(&c.gains, c.heads, n).unwrap();
        let mut solver = GroupCover::new();
        let Ok(full) = solver.solve(g, &c.cost, &c.need, false).map(<[u32]>::to_vec) else { return Ok(()) };
        let kept = solver.solve(g, &c.cost, &c.need, true).unwrap().to_vec();
        prop_assert!(kept.iter().all(|i| full.contains(i)));
        let met = |set: &[u32]| (0..c.heads).all(|h| {
            let got: f64 = set.iter().map(|&i| c.gains[h * n + i as usize]).sum();
            got >= c.need[h] - 1e-12 * (1.0 + got)
        });
        prop_assert!(met(&kept));
        for skip in kept.iter().filter(|&&i| c.cost[i as usize] > 0.0) {
            let rest: Vec<u32> = kept.iter().copied().filter(|i| i != skip).collect();
            let short = (0..c.heads).any(|h| {
                let got: f64 = rest.iter().map(|&i| c.gains[h * n + i as usize]).sum();
                c.need[h] > 0.0 && got < c.need[h] + 1e-12 * (1.0 + got)
            });
            prop_assert!(short, "{} is still superfluous", skip);
        }
    }

    #[test]
    fn what_is_left_is_allowed(c in case(), share in 0.0f64..1.0, infinite in prop::collection::vec(0usize..24, 0..3)) {
        let n = c.cost.len();
        let mut gains = c.gains.clone();
        for &i in infinite.iter().filter(|&&i| i < n) {
            gains[i] = f64::INFINITY;
        }
        let allowed: Vec<f64> =
            (0..c.heads).map(|h| share * c.gains[h * n..(h + 1) * n].iter().sum::<f64>()).collect();
        let mut solver = GroupCover::new();
        let picks = solver.leave_at_most(Gains::new(&gains, c.heads, n).unwrap(), &c.cost, &allowed, true).unwrap();
        for h in 0..c.heads {
            let rest: f64 = (0..n).filter(|i| !picks.contains(&(*i as u32))).map(|i| gains[h * n + i]).sum();
            prop_assert!(rest <= allowed[h] + 1e-12 * (1.0 + allowed[h]), "{} > {}", rest, allowed[h]);
        }
    }
}

#[test]
fn single_precision_gains_decide_alike_when_they_are_exact() {
    let (a, b) = ([1.0f32, 3.0, 2.0, 0.0, 2.0, 2.0], [1.0f64, 3.0, 2.0, 0.0, 2.0, 2.0]);
    let (mut x, mut y) = (GroupCover::new(), GroupCover::new());
    let (cost, need) = ([1.0, 2.0, 1.0], [4.0, 3.0]);
    assert_eq!(
        x.solve(Gains::new(&a, 2, 3).unwrap(), &cost, &need, true).unwrap(),
        y.solve(Gains::new(&b, 2, 3).unwrap(), &cost, &need, true).unwrap()
    );
}

#[test]
fn refuses_damage() {
    let mut s = GroupCover::new();
    assert!(Gains::new(&[1.0], 2, 1).is_err());
    let g = Gains::new(&[1.0, f64::NAN], 1, 2).unwrap();
    assert_eq!(s.solve(g, &[1.0, 1.0], &[1.0], false), Err(ControlError::Invalid { what: "gains", index: 1 }));
    let g = Gains::new(&[1.0, 2.0], 1, 2).unwrap();
    assert!(s.solve(g, &[1.0, -1.0], &[1.0], false).is_err());
    assert!(s.solve(g, &[1.0, 1.0], &[f64::NAN], false).is_err());
    assert!(s.leave_at_most(g, &[1.0, 1.0], &[-1.0], false).is_err());
    assert_eq!(s.solve(g, &[1.0, 1.0], &[9.0], false), Err(ControlError::Infeasible));
    assert_eq!(s.picks(), [1, 0], "everything useful was taken");
}

/// The size a long context asks for: the heap, not the scan, does the work, and buffers are reused.
#[test]
fn production_size_looks_at_few_items() {
    let (heads, items) = (4, 2 * 8192);
    let mut x = 1u64;
    let mut next = || {
        x = certkv_core::hash::splitmix64(x);
        (x >> 11) as f64 / (1u64 << 53) as f64
    };
    let gains: Vec<f32> = (0..heads * items).map(|_| (-8.0 * (1.0 - next()).ln()).exp() as f32).collect();
    let g = Gains::new(&gains, heads, items).unwrap();
    let cost = vec![1.0; items];
    let need: Vec<f64> = (0..heads).map(|h| 0.3 * g.head(h).iter().map(|&v| f64::from(v)).sum::<f64>()).collect();
    let mut s = GroupCover::new();
    let first = s.solve(g, &cost, &need, true).unwrap().to_vec();
    let room = (s.value.capacity(), s.heap.capacity(), s.picks.capacity(), s.by_cost.capacity());
    assert_eq!(s.solve(g, &cost, &need, true).unwrap(), first.as_slice());
    assert_eq!((s.value.capacity(), s.heap.capacity(), s.picks.capacity(), s.by_cost.capacity()), room);
    assert!(!first.is_empty() && first.len() < items);
}

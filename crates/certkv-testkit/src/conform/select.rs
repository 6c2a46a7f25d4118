//! Promotion, checks, ladder and exploration: decisions are exact.
use super::certificates::{BOUND_LIMIT, columns};
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_bound::checks::{boundary_ok, rank_consistent, top_r_certified};
use certkv_bound::ladder::{Action, Situation, decide};
use certkv_bound::terms::product;
use certkv_control::joint::{JointBudget, JointPick, JointTerms};
use certkv_control::values::ValueBudget;
use certkv_control::{BitSet, Coverage, Gains, GroupCover};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "topk", replay: topk },
    Family { prefix: "value_budget", replay: value_budget },
    Family { prefix: "joint_budget", replay: joint_budget },
    Family { prefix: "group_cover", replay: group_cover },
    Family { prefix: "rank_checks", replay: rank_checks },
    Family { prefix: "ladder", replay: ladder },
];

fn ints(x: &[u32]) -> impl Iterator<Item = i64> + '_ {
    x.iter().map(|&i| i64::from(i))
}

/// `picks`, then -1 up to `width` entries.
pub(super) fn padded(picks: &[u32], width: usize) -> impl Iterator<Item = i64> + '_ {
    ints(picks).chain(std::iter::repeat(-1)).take(width)
}

fn topk(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (p, want) = (v.f64s("p")?, v.i64s("pick")?);
    let exact: Vec<bool> = v.i64s("exact")?.into_iter().map(|x| x != 0).collect();
    let exact = BitSet::from_bools(&exact);
    let (mut got, mut picks) = (Vec::new(), Vec::new());
    for row in v.f64s("args")?.chunks_exact(3) {
        let rule = Coverage { tau: row[0], k_min: row[1] as usize, k_max: row[2] as usize };
        rule.select(&p, &exact, &mut picks).map_err(ConformError::refused)?;
        got.extend(padded(&picks, p.len()));
    }
    report.exact_ints("top-k picks", got, &want);
    Ok(())
}

fn value_budget(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [rho, eta] = columns(v, ["rho", "eta"])?;
    let terms: Vec<f64> = rho.iter().zip(&eta).map(|(&a, &b)| product(a, b)).collect();
    let mut budget = ValueBudget::new();
    let mut rests = Vec::new();
    for (i, &eps) in v.f64s("eps")?.iter().enumerate() {
        let (picks, rest) = budget.select(&terms, eps).map_err(ConformError::refused)?;
        report.exact_ints("value budget picks", ints(picks), &v.i64s(&format!("pick{i}"))?);
        rests.push(rest);
    }
    report.relative("value budget rest", &rests, &v.f64s("rest")?, BOUND_LIMIT);
    Ok(())
}

fn joint_budget(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [key, shrink, value, key_cost, value_cost] = columns(v, ["gD", "h", "ev", "cost_k", "cost_v"])?;
    let terms = JointTerms {
        key: &key,
        shrink: &shrink,
        value: &value,
        key_cost: &key_cost,
        value_cost: &value_cost,
        dropped: &[],
        dropped_cost: &[],
    };
    let (mut budget, mut pick) = (JointBudget::new(), JointPick::default());
    for i in 0.. {
        if !v.has(&format!("eps{i}")) {
            break;
        }
        budget.solve(&terms, v.scalar(&format!("eps{i}"))?, &mut pick).map_err(ConformError::refused)?;
        report.exact_ints("joint budget keys", ints(&pick.keys), &v.i64s(&format!("keys{i}"))?);
        report.exact_ints("joint budget values", ints(&pick.values), &v.i64s(&format!("values{i}"))?);
        report.relative(
            "joint budget lower bound",
            &[pick.lower_bound],
            &[v.scalar(&format!("lower{i}"))?],
            BOUND_LIMIT,
        );
    }
    Ok(())
}

fn group_cover(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (gains, cost, need) = (v.f64s("gains")?, v.f64s("cost")?, v.f64s("need")?);
    let (heads, items) = v.matrix("gains")?;
    let gains = Gains::new(&gains, heads, items).map_err(ConformError::refused)?;
    let mut solver = GroupCover::new();
    let picks = solver.solve(gains, &cost, &need, false).map_err(ConformError::refused)?;
    report.exact_ints("group cover picks", ints(picks), &v.i64s("pick")?);
    Ok(())
}

fn rank_checks(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    for k in 0.. {
        if !v.has(&format!("r_{k}")) {
            break;
        }
        let at = |name: &str| v.f64s(&format!("{name}_{k}"));
        let (exact, code, tail, delta) = (at("l16")?, at("l8")?, at("tail")?, at("D")?);
        let r = v.scalar(&format!("r_{k}"))? as usize;
        let ends = |sign: f64| -> Vec<f64> {
            exact.iter().copied().chain(tail.iter().zip(&delta).map(|(l, d)| l + sign * d)).collect()
        };
        let got = [
            ("rank consistency", rank_consistent(&exact, &code, r), "rank_ok"),
            ("boundary check", boundary_ok(&exact, &tail, &delta, r, 0.0), "boundary_ok"),
            ("certified top r", top_r_certified(&ends(-1.0), &ends(1.0), r), "top_r"),
        ];
        for (name, got, want) in got {
            report.exact_ints(name, [i64::from(got)], &v.i64s(&format!("{want}_{k}"))?);
        }
    }
    Ok(())
}

fn ladder(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let rows = v.f64s("rows")?;
    let got = rows.chunks_exact(9).map(|r| {
        let s = Situation {
            bound: r[0] + r[1],
            e_key: r[0],
            e_val: r[1],
            tol: r[2],
            rank_ok: r[3] != 0.0,
            integrity_ok: r[4] != 0.0,
            tier_ok: r[5] != 0.0,
            promoted_keys: r[6] as usize,
            key_cap: r[7] as usize,
            repairs: r[8] as u32,
            max_repairs: 2,
        };
        decide(&s) as i64
    });
    let got: Vec<i64> = got.collect();
    let mut want = Vec::new();
    for word in v.text("action")?.split(' ') {
        want.push(match word {
            "accept" => Action::Accept,
            "rung1" => Action::MoreKeys,
            "rung2" => Action::ExactValues,
            "rung3" => Action::DenseHead,
            "rung4" => Action::DenseLayer,
            "error" => Action::Unavailable,
            other => return Err(ConformError::refused(format_args!("no ladder action `{other}`"))),
        } as i64);
    }
    report.exact_ints("ladder actions", got, &want);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::cgv::Vectors;
    use certkv_control::explore::{Explorer, Place};

    /// The exploration draw (7.6) stored in the `hash` file.
    #[test]
    fn exploration_draw_is_the_golden_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/hash.cgv");
        let v = Vectors::parse(&std::fs::read(path).unwrap()).unwrap();
        let tail = v.i64s("explore_tail").unwrap();
        let args = v.f64s("explore_args_rate_seed_step_layer_head").unwrap();
        let &[rate, seed, step, layer, kv_head] = args.as_slice() else { panic!("five arguments") };
        let place = Place { seed: seed as u64, step: step as u64, layer: layer as u64, kv_head: kv_head as u64 };
        let mut picks = Vec::new();
        Explorer::new().pick(tail.iter().map(|&b| b as u32), rate, place, &mut picks);
        let want = v.i64s("explore_pick").unwrap();
        assert_eq!(picks.iter().map(|&b| i64::from(b)).collect::<Vec<_>>(), want);
        assert_ne!(want, tail[..want.len()]);
    }
}

//! Bounds on the attention distribution itself, math.md 5.6: for reports and for selection, not for the certificate.
use crate::order::by_descending;
use crate::terms::product;

/// `TV(a, a') <= tanh(Delta/2)` when every logit error is at most `delta` (5.16); attained. NaN gives 1.
pub fn tv_of_delta(delta: f64) -> f64 {
    if delta >= 0.0 { (0.5 * delta).tanh() } else { 1.0 }
}

/// `sum_{b in T} rho_b expm1(Delta_b)`.
pub fn tilt(masses: &[f64], deltas: &[f64]) -> f64 {
    masses.iter().zip(deltas).map(|(&rho, &d)| product(rho, d.exp_m1())).sum()
}

/// (5.17) with (5.16): `eps/(1 + eps)` for a tilt `eps <= 1`, else `min(1, eps/2)`, and never above
/// `tanh(max Delta / 2)`. `masses` and `deltas` belong to the blocks of `T`.
pub fn tv_closed(masses: &[f64], deltas: &[f64]) -> f64 {
    let eps = tilt(masses, deltas);
    let by_tilt = if eps <= 1.0 { eps / (1.0 + eps) } else { (0.5 * eps).min(1.0) };
    let largest = deltas.iter().fold(0.0, |m: f64, &d| if d <= m { m } else { d });
    if largest.is_nan() { 1.0 } else { by_tilt.min(tv_of_delta(largest)) }
}

/// Upper bound of the true mass of `T`: `U/(U + rho_F)`, `U = sum rho_b e^{Delta_b}` (5.19).
pub fn tail_mass_up(masses: &[f64], deltas: &[f64]) -> f64 {
    let up: f64 = masses.iter().zip(deltas).map(|(&rho, &d)| product(rho, d.exp())).sum();
    let exact = (1.0 - masses.iter().sum::<f64>()).max(0.0);
    if up == 0.0 {
        0.0
    } else if up < f64::INFINITY {
        up / (up + exact)
    } else {
        1.0
    }
}

/// Interval of a block's true log-mass, `[l' - Delta, l' + Delta]` (5.20). A fully masked block stays at `-inf`.
pub fn log_mass_interval(log_mass: f64, delta: f64) -> (f64, f64) {
    if log_mass == f64::NEG_INFINITY { (log_mass, log_mass) } else { (log_mass - delta, log_mass + delta) }
}

/// `|| sum (a - a') v || <= 2 TV R_max` (5.21), any centre.
pub fn output_error_of_tv(tv: f64, radius_max: f64) -> f64 {
    product(2.0 * tv, radius_max)
}

/// The supremum of TV over the box of logit errors (5.18): for each value `m` of the partition ratio a fractional
/// knapsack, then a search over `m` on `grid` points refined around the best one. An audit figure: it approaches the
/// supremum from below, so it shows how loose [`tv_closed`] is and certifies nothing. Allocates; `O(grid n log n)`.
///
/// NaN, a negative number or an infinite `Delta` gives 1.
pub fn tv_sup(masses: &[f64], deltas: &[f64], grid: usize) -> f64 {
    let valid = |x: f64| (0.0..f64::INFINITY).contains(&x);
    if masses.len() != deltas.len()
        || !masses.iter().all(|&x| valid(x))
        || !deltas.iter().all(|&d| d <= 300.0 && valid(d))
    {
        return 1.0;
    }
    let up: Vec<f64> = deltas.iter().map(|d| d.exp()).collect();
    let down: Vec<f64> = deltas.iter().map(|d| (-d).exp()).collect();
    let exact = (1.0 - masses.iter().sum::<f64>()).max(0.0);
    let dot = |x: &[f64]| exact + masses.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
    let (low, high) = (dot(&down), dot(&up));
    let (mut density, mut order) = (vec![0.0; masses.len()], (0..masses.len()).collect::<Vec<_>>());
    let mut value = |m: f64| {
        // m >= 1: mass of T goes up, the cheapest moves are those with the largest gain per partition used.
        let gain = |b: usize| if m >= 1.0 { up[b] / m - 1.0 } else { 1.0 - down[b] / m }.max(0.0);
        let mut need = if m >= 1.0 { m - low } else { high - m };
        for b in 0..masses.len() {
            density[b] = gain(b) / (up[b] - down[b]).max(1e-300);
        }
        order.sort_unstable_by(|&i, &j| by_descending(&density, i, j));
        let mut tv = 0.0;
        for &b in &order {
            let room = masses[b] * (up[b] - down[b]);
            if room <= 0.0 || need <= 0.0 {
                continue;
            }
            let share = (need / room).min(1.0);
            tv += share * masses[b] * gain(b);
            need -= room;
        }
        tv
    };
    let points = grid.max(2);
    let step = (high - low) / (points - 1) as f64;
    let (mut best_at, mut best) = (low, 0.0);
    for i in 0..points {
        let (m, v) = (low + i as f64 * step, value(low + i as f64 * step));
        if v > best {
            (best_at, best) = (m, v);
        }
    }
    let (mut a, mut b) = ((best_at - step).max(low), (best_at + step).min(high));
    for _ in 0..60 {
        let (x, y) = (a + (b - a) / 3.0, b - (b - a) / 3.0);
        let (vx, vy) = (value(x), value(y));
        best = vx.max(vy).max(best);
        if vx < vy { a = x } else { b = y }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::Lcg;

    fn instance(r: &mut Lcg, delta: f64) -> (Vec<f64>, Vec<f64>) {
        let n = 1 + (r.uniform() * 4.0) as usize;
        let raw: Vec<f64> = (0..=n).map(|_| -(1.0 - r.uniform()).ln()).collect();
        let sum: f64 = raw.iter().sum();
        (raw[..n].iter().map(|x| x / sum).collect(), (0..n).map(|_| delta * r.uniform()).collect())
    }

    fn tv(masses: &[f64], exact: f64, error: &[f64]) -> (f64, f64) {
        let m = exact + masses.iter().zip(error).map(|(a, e)| a * e.exp()).sum::<f64>();
        let t: f64 = masses.iter().zip(error).map(|(a, e)| (a * e.exp() / m - a).abs()).sum();
        let tail = masses.iter().zip(error).map(|(a, e)| a * e.exp()).sum::<f64>() / m;
        (0.5 * (t + (exact / m - exact).abs()), tail)
    }

    #[test]
    fn random_tilts_stay_inside_and_the_supremum_is_between() {
        let mut r = Lcg(61);
        for _ in 0..60 {
            let (rho, d) = instance(&mut r, 1.2);
            let exact = 1.0 - rho.iter().sum::<f64>();
            let (closed, sup) = (tv_closed(&rho, &d), tv_sup(&rho, &d, 401));
            assert!(sup <= closed * (1.0 + 1e-12), "{sup} {closed}");
            let mut seen: f64 = 0.0;
            for corner in 0..40u64 {
                let e: Vec<f64> = d
                    .iter()
                    .enumerate()
                    .map(|(i, d)| match corner {
                        0..16 => d * if corner >> i & 1 == 1 { 1.0 } else { -1.0 },
                        _ => d * (2.0 * r.uniform() - 1.0),
                    })
                    .collect();
                let (t, tail) = tv(&rho, exact, &e);
                seen = seen.max(t);
                assert!(t <= closed * (1.0 + 1e-12) && tail <= tail_mass_up(&rho, &d) * (1.0 + 1e-12));
            }
            assert!(seen <= sup * (1.0 + 1e-3), "corners are feasible: {seen} {sup}");
        }
    }

    #[test]
    fn half_angle_is_attained_and_the_published_full_angle_is_not_needed() {
        let delta: f64 = 0.4;
        let p = 1.0 / (1.0 + delta.exp());
        let (t, _) = tv(&[p, 1.0 - p], 0.0, &[delta, -delta]);
        assert!((t - tv_of_delta(delta)).abs() < 1e-12);
        assert!((tv_sup(&[p, 1.0 - p], &[delta, delta], 2001) - tv_of_delta(delta)).abs() < 1e-4);
    }

    #[test]
    fn intervals_and_damage() {
        assert_eq!(log_mass_interval(1.0, 0.25), (0.75, 1.25));
        assert_eq!(log_mass_interval(f64::NEG_INFINITY, f64::INFINITY), (f64::NEG_INFINITY, f64::NEG_INFINITY));
        assert_eq!(output_error_of_tv(0.1, 2.0), 0.4);
        assert_eq!(
            (tv_of_delta(f64::NAN), tv_closed(&[0.1], &[f64::NAN]), tv_sup(&[0.1], &[f64::NAN], 9)),
            (1.0, 1.0, 1.0)
        );
        assert_eq!(tail_mass_up(&[0.1], &[f64::NAN]), 1.0);
        assert_eq!(tail_mass_up(&[], &[]), 0.0);
        assert_eq!(tail_mass_up(&[0.0], &[f64::INFINITY]), 0.0);
    }
}

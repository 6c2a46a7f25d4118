//! The exact worst case over the box of logit errors, math.md (5.12) and (5.13). For audits: the streaming form is
//! within a few percent of it on realistic data, and this one needs a pass over the blocks' numbers.
use crate::stream::LEAST_SLACK;
use crate::terms::product;

/// One block of `T`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TailBlock {
    /// `rho_b`.
    pub mass: f64,
    /// `delta_t <= delta_up` for every token.
    pub delta_up: f64,
    /// `-delta_t <= delta_down` for every token.
    pub delta_down: f64,
    /// `D_b = R_b + ||O' - c||` (5.4).
    pub distance: f64,
}

impl TailBlock {
    /// A block with the same bound on both sides.
    pub const fn new(mass: f64, delta: f64, distance: f64) -> Self {
        Self { mass, delta_up: delta, delta_down: delta, distance }
    }
}

/// One dropped block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DroppedBlock {
    /// `omega_b` (5.24).
    pub omega: f64,
    /// `D_b`.
    pub distance: f64,
}

/// Newton steps allowed. The iteration climbs a convex function from the left; a dozen steps are typical.
const MAX_STEPS: usize = 60;

/// Above this the exponential times any distance may overflow: such a block has to be promoted.
const LARGEST_DELTA: f64 = 700.0;

struct Sums {
    /// `F(theta)` of (5.13): the left side of (5.12) minus `theta`.
    f: f64,
    slope: f64,
    /// Sum of the magnitudes that went into `f`: times the roundoff, a bound of what rounding did to it.
    size: f64,
}

fn sums(theta: f64, tail: &[TailBlock], dropped: &[DroppedBlock], e_val: f64) -> Sums {
    let mut s = Sums { f: e_val - theta, slope: -1.0, size: e_val + theta };
    for b in tail {
        let (u, l) = (b.delta_up.exp_m1(), -(-b.delta_down).exp_m1());
        let (rising, falling) = (u * (b.distance - theta), l * (b.distance + theta));
        if rising >= falling {
            s.f += b.mass * rising;
            s.slope -= b.mass * u;
            s.size += b.mass * u * (b.distance + theta);
        } else {
            s.f += b.mass * falling;
            s.slope += b.mass * l;
            s.size += b.mass * falling;
        }
    }
    for x in dropped.iter().filter(|x| x.distance > theta) {
        s.f += x.omega * (x.distance - theta);
        s.slope -= x.omega;
        s.size += x.omega * (x.distance + theta);
    }
    s
}

/// Upper bound of `||O - O'||` by the root `theta*` of (5.12): Newton from 0, then the safe step (5.13), never below the
/// root. `e_val` is the sum (5.8) over blocks with inexact values. `+inf` if `1 - sum h_b` is not above [`LEAST_SLACK`],
/// if a number is NaN, negative or infinite, or if an exponential would overflow.
///
/// The result carries a rounding allowance: it is at most about `1e-12` (relative) above the root unless a block's
/// exponential is huge.
pub fn exact_root(tail: &[TailBlock], dropped: &[DroppedBlock], e_val: f64) -> f64 {
    let valid = |x: f64| (0.0..f64::INFINITY).contains(&x);
    let deltas_fit = |b: &TailBlock| b.delta_up.max(b.delta_down) <= LARGEST_DELTA;
    let tail_ok = tail
        .iter()
        .all(|b| valid(b.mass) && valid(b.delta_up) && valid(b.delta_down) && valid(b.distance) && deltas_fit(b));
    let drops_ok = dropped.iter().all(|x| valid(x.omega) && valid(x.distance));
    let h: f64 = tail.iter().map(|b| product(b.mass, -(-b.delta_down).exp_m1())).sum();
    if !(tail_ok && drops_ok && valid(e_val) && 1.0 - h > LEAST_SLACK) {
        return f64::INFINITY;
    }
    let mut theta = 0.0;
    for _ in 0..MAX_STEPS {
        let s = sums(theta, tail, dropped, e_val);
        if !(s.f > 0.0) {
            break;
        }
        let next = theta - s.f / s.slope;
        if !(next > theta * (1.0 + 1e-15)) {
            break;
        }
        theta = next;
    }
    let s = sums(theta, tail, dropped, e_val);
    let rounding = 4.0 * f64::EPSILON * (1.0 + (tail.len() + dropped.len()) as f64) * s.size;
    let bound = (theta + (s.f.max(0.0) + rounding) / (1.0 - h)) * (1.0 + 1e-12);
    if bound.is_nan() { f64::INFINITY } else { bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::Lcg;
    use crate::terms::key_terms;

    fn instance(r: &mut Lcg) -> (Vec<TailBlock>, Vec<DroppedBlock>, f64) {
        let n = 1 + (r.uniform() * 6.0) as usize;
        let raw: Vec<f64> = (0..=n).map(|_| -(1.0 - r.uniform()).ln()).collect();
        let sum: f64 = raw.iter().sum();
        let tail = (0..n).map(|i| TailBlock::new(raw[i] / sum, 1.5 * r.uniform(), 0.5 + 2.0 * r.uniform())).collect();
        let drops = (0..2).map(|_| DroppedBlock { omega: 0.05 * r.uniform(), distance: 2.0 * r.uniform() }).collect();
        (tail, drops, 0.05 * r.uniform())
    }

    #[test]
    fn is_the_root_and_never_above_the_streaming_form() {
        let mut r = Lcg(31);
        for _ in 0..500 {
            let (tail, drops, e_val) = instance(&mut r);
            let x = exact_root(&tail, &drops, e_val);
            let (mut num, mut h) = (e_val, 0.0);
            for b in &tail {
                let (g, hb) = key_terms(b.mass, b.mass, b.delta_up, f64::INFINITY);
                num += g * b.distance;
                h += hb;
            }
            num += drops.iter().map(|d| d.omega * d.distance).sum::<f64>();
            if 1.0 - h <= LEAST_SLACK {
                assert_eq!(x, f64::INFINITY);
                continue;
            }
            assert!(x <= num / (1.0 - h) * (1.0 + 1e-9));
            assert!(sums(x, &tail, &drops, e_val).f <= 0.0, "not above the root");
            assert!(sums(x * (1.0 - 1e-9), &tail, &drops, e_val).f > 0.0, "not the root");
        }
    }

    /// The supremum of the theorem behind (5.12), by trying every corner of the box.
    #[test]
    fn equals_the_best_corner_of_the_box() {
        let mut r = Lcg(32);
        for _ in 0..200 {
            let (tail, _, e_val) = instance(&mut r);
            let best = (0..1u32 << tail.len())
                .map(|mask| {
                    let (mut num, mut m) = (e_val, 1.0);
                    for (i, b) in tail.iter().enumerate() {
                        let y = if mask >> i & 1 == 1 { b.delta_up.exp() } else { (-b.delta_down).exp() };
                        num += b.mass * (y - 1.0).abs() * b.distance;
                        m += b.mass * (y - 1.0);
                    }
                    if m > 0.0 { num / m } else { f64::INFINITY }
                })
                .fold(0.0, f64::max);
            let x = exact_root(&tail, &[], e_val);
            assert!((x - best).abs() <= 1e-9 * best, "{x} {best}");
        }
    }

    /// One block with `alpha <= 1/2`: the closed form of math.md 5.4, and the construction that attains it.
    #[test]
    fn one_block_is_attained_to_1e_9() {
        for (alpha, delta, dist) in [(0.5, 0.3, 1.0), (0.2, 1.0, 3.0), (0.01, 0.05, 7.0), (0.4, 2.0, 0.1)] {
            let x = exact_root(&[TailBlock::new(alpha, delta, dist)], &[], 0.0);
            let up = alpha * f64::exp_m1(delta);
            let closed = up * dist / (1.0 + up);
            assert!((x - closed).abs() <= 1e-9 * closed, "{x} {closed}");
            // O' = 0; the block's values at +D, those of F at -D alpha/(1 - alpha), so that a' averages to O'.
            let other = -dist * alpha / (1.0 - alpha);
            let z = 1.0 - alpha + alpha * delta.exp();
            let exact = (alpha * delta.exp() * dist + (1.0 - alpha) * other) / z;
            assert!((exact - x).abs() <= 1e-9 * x, "attained: {exact} against {x}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_bound() {
        let ok = TailBlock::new(0.1, 0.1, 1.0);
        assert!(exact_root(&[ok], &[], 0.0) < 0.02);
        for bad in [
            TailBlock { mass: f64::NAN, ..ok },
            TailBlock { delta_up: f64::INFINITY, ..ok },
            TailBlock { delta_down: -1.0, ..ok },
            TailBlock { distance: f64::INFINITY, ..ok },
            TailBlock::new(1.0, 50.0, 1.0),
        ] {
            assert_eq!(exact_root(&[bad], &[], 0.0), f64::INFINITY, "{bad:?}");
        }
        assert_eq!(exact_root(&[], &[], f64::NAN), f64::INFINITY);
        assert!(exact_root(&[], &[], 0.25) >= 0.25);
    }
}

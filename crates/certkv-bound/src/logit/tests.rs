use super::*;
use crate::checks::tests::Lcg;

/// A block of keys with a planted error, its query and the exact logit errors.
struct Block {
    q: Vec<f64>,
    e: Vec<Vec<f64>>,
    scale: f64,
}

impl Block {
    fn random(r: &mut Lcg, n: usize, d: usize) -> Self {
        let q = (0..d).map(|_| r.normal()).collect();
        let e = (0..n).map(|_| (0..d).map(|_| 0.01 * r.normal()).collect()).collect();
        Self { q, e, scale: (d as f64).powf(-0.5) }
    }
    fn errors(&self) -> Vec<f64> {
        self.e.iter().map(|e| self.scale * e.iter().zip(&self.q).map(|(a, b)| a * b).sum::<f64>()).collect()
    }
    fn worst(&self) -> f64 {
        self.errors().iter().fold(0.0, |m: f64, x| m.max(x.abs()))
    }
}

#[test]
fn every_form_covers_the_planted_error() {
    let mut r = Lcg(7);
    for _ in 0..500 {
        let b = Block::random(&mut r, 5, 8);
        let d = b.q.len();
        let column = |f: &dyn Fn(f64) -> f64| -> Vec<f64> {
            (0..d).map(|c| b.e.iter().map(|e| f(e[c])).fold(0.0, f64::max)).collect()
        };
        let (abs, up, down) = (column(&f64::abs), column(&|x| x.max(0.0)), column(&|x| (-x).max(0.0)));
        let worst = b.worst() * (1.0 - 1e-12);
        assert!(delta_channels(&b.q, &abs, b.scale) >= worst);
        let steps: Vec<f64> = abs.iter().map(|x| 2.0 * x).collect();
        assert!(delta_half_steps(&b.q, &steps, b.scale) >= worst);
        let (hi, lo) = delta_signed(&b.q, &up, &down, b.scale);
        assert!(b.errors().iter().all(|&x| x <= hi * (1.0 + 1e-12) && -x <= lo * (1.0 + 1e-12)));
        let halves: [Vec<usize>; 2] = [(0..d).step_by(2).collect(), (1..d).step_by(2).collect()];
        let of = |g: &[usize]| b.e.iter().map(|e| norm(g.iter().map(|&c| e[c]))).fold(0.0, f64::max);
        let groups = [
            ChannelGroup { channels: &halves[0], error: of(&halves[0]) },
            ChannelGroup { channels: &halves[1], error: of(&halves[1]) },
        ];
        assert!(delta_groups(&b.q, &groups, None, b.scale) >= worst);
        let eps = b.e.iter().map(|e| norm(e.iter().copied())).fold(0.0, f64::max);
        assert!(delta_norm(&b.q, eps, b.scale) >= worst);
        assert!(delta_sigma_norm(&b.q, &steps, b.scale) >= worst);
        // Frobenius norms dominate spectral ones, so they are valid annotations here.
        let whole = norm(b.e.iter().flatten().copied());
        let l2 = norm(b.errors().into_iter()) * (1.0 - 1e-12);
        let all: Vec<usize> = (0..d).collect();
        assert!(lambda_groups(&b.q, &[ChannelGroup { channels: &all, error: whole }], None, b.scale) >= l2);
        let kappa = norm(b.e.iter().flat_map(|e| e.iter().zip(&steps).map(|(x, s)| x / s)));
        assert!(lambda_channels(&b.q, &steps, kappa, b.scale) >= l2);
    }
}

#[test]
fn a_balance_scale_moves_between_query_and_error() {
    let (q, s) = ([2.0, -4.0], [4.0, 0.5]);
    let g = [ChannelGroup { channels: &[0], error: 0.4 }, ChannelGroup { channels: &[1], error: 0.05 }];
    assert!((delta_groups(&q, &g, Some(&s), 1.0) - (2.0 / 4.0 * 0.4 + 4.0 / 0.5 * 0.05)).abs() < 1e-15);
}

#[test]
fn grid_terms_cover_rounded_digits() {
    let mut r = Lcg(11);
    for digits in [8u32, 12, 16] {
        for _ in 0..300 {
            let d = 16;
            let x: Vec<f64> = (0..d).map(|_| r.normal()).collect();
            let top = x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let step = top / (2f64.powi(digits as i32 - 1) - 1.0);
            let code: Vec<f64> = (0..d).map(|_| (r.uniform() * 256.0).floor() - 128.0).collect();
            let err: f64 = x.iter().zip(&code).map(|(x, c)| (x - (x / step).round_ties_even() * step) * c).sum();
            let l1: f64 = code.iter().map(|c| c.abs()).sum();
            let bound = delta_query_grid(step, l1, 0.25);
            assert!(0.25 * err.abs() <= bound * (1.0 + 1e-12) && bound <= delta_query_grid_cap(step, d, 0.25));
            if digits == 8 {
                let (ones, top) = (vec![1.0; d], delta_query_int8(&x, &vec![1.0; d], l1, 0.25));
                assert_eq!(ones.len(), d);
                assert!((top - bound).abs() <= 1e-12 * bound, "(4.14) is the 8-bit case of (4.15)");
            }
        }
    }
    assert_eq!(lambda_query_grid(0.5, 16), 2.0);
}

#[test]
fn weight_grid_covers_rounded_weights() {
    let mut r = Lcg(13);
    for bits in [4u32, 8] {
        let (n, d, top) = (16usize, 8usize, 2f64.powi(bits as i32) - 1.0);
        for _ in 0..200 {
            let step = 1e-3;
            let err = (0..d).map(|_| {
                (0..n)
                    .map(|_| {
                        let y = r.uniform();
                        (y - (y / step).round_ties_even() * step) * (r.uniform() * (top + 1.0)).floor()
                    })
                    .sum::<f64>()
            });
            assert!(norm(err) <= weight_grid_term(step, n, bits, d));
        }
    }
}

#[test]
fn slack_grows_with_every_cause() {
    let base = WeightArithmetic { magnitude: 30.0, channels: 128, operand_round: 0.0, logit_range: 12.0, rescales: 0 };
    let z = zeta(&base, 0.088);
    assert!(z > 0.0 && z < 1e-3);
    for worse in [
        WeightArithmetic { magnitude: 60.0, ..base },
        WeightArithmetic { channels: 256, ..base },
        WeightArithmetic { operand_round: 2f64.powi(-11), ..base },
        WeightArithmetic { logit_range: 20.0, ..base },
        WeightArithmetic { rescales: 3, ..base },
    ] {
        assert!(zeta(&worse, 0.088) > z);
    }
    assert_eq!(zeta(&WeightArithmetic { magnitude: f64::NAN, ..base }, 0.088), f64::INFINITY);
    assert_eq!(gamma(1e9, U32), f64::INFINITY);
}

#[test]
fn damage_widens_and_the_least_refuses_nan() {
    assert_eq!(delta_channels(&[1.0], &[f64::NAN], 1.0), f64::INFINITY);
    assert_eq!(delta_norm(&[f64::NAN], 1.0, 1.0), f64::INFINITY);
    assert_eq!(delta_groups(&[1.0], &[ChannelGroup { channels: &[3], error: 1.0 }], None, 1.0), f64::INFINITY);
    assert_eq!(least(&[2.0, 1.0, f64::INFINITY]), 1.0);
    assert_eq!(least(&[2.0, f64::NAN]), f64::INFINITY);
    assert_eq!(least(&[]), f64::INFINITY);
    assert_eq!(delta_query_int8(&[f64::NAN], &[1.0], 3.0, 1.0), f64::INFINITY);
}

//! The kernel's own rounding inside the bound, math.md 5.8.
use crate::logit::{U32, gamma};
use crate::terms::product;

/// What a kernel declares about how it sums, (5.27).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accumulation {
    /// Longest chain of dependent single-precision additions into `o` or `l`; splitting the work shortens it.
    pub chain: usize,
    /// `nu >= max ||v'_t||` over the values used.
    pub value_norm: f64,
    /// Rounding of the output: 0 for f32, `2^-11` for f16, `2^-8` for bf16.
    pub out_round: f64,
    /// Relative rounding of the weights fed to a matrix unit while `l` sums unrounded ones (f16 `2^-11`, bf16 `2^-8`).
    pub weight_round: f64,
    /// Absolute floor of those rounded weights (f16 `2^-25`), 0 if there is none.
    pub weight_floor: f64,
    /// Visible tokens, each of which can meet the floor.
    pub tokens: usize,
}

impl Accumulation {
    /// Single precision throughout, no matrix unit.
    pub const fn single(chain: usize, value_norm: f64) -> Self {
        Self { chain, value_norm, out_round: 0.0, weight_round: 0.0, weight_floor: 0.0, tokens: 0 }
    }

    /// `E_acc` (5.27): bound of `||computed O' - sum a~' v'||`.
    pub fn error(&self) -> f64 {
        let g = gamma(self.chain as f64, U32);
        let division = if g < 1.0 { 2.0 * g / (1.0 - g) } else { f64::INFINITY };
        let relative =
            division + U32 + (self.out_round + self.weight_round) * (1.0 + g) + self.tokens as f64 * self.weight_floor;
        product(self.value_norm, relative)
    }
}

/// Factor that covers the single-precision rounding of the certificate's own sums (5.26), `h_share = h/l`.
pub fn inflation(chain: usize, h_share: f64) -> f64 {
    let g = 8.0 * gamma(chain as f64, U32);
    let x = if h_share <= 0.5 { 1.0 + g } else { 1.0 + g / (1.0 - h_share) };
    if !(h_share < 1.0) || x.is_nan() { f64::INFINITY } else { x }
}

/// `E_total = E(Delta + zeta) (1 + 8 gamma_nacc) + E_acc` (5.28). `certificate` was computed with `Delta_b + zeta_b` for
/// blocks in `T` and `zeta_b` for blocks in `F`.
pub fn total(certificate: f64, chain: usize, h_share: f64, accumulation: f64) -> f64 {
    let x = product(certificate, inflation(chain, h_share)) + accumulation;
    if x.is_nan() { f64::INFINITY } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::Lcg;

    /// Sequential single-precision averages of values with positive weights stay within `E_acc`.
    #[test]
    fn covers_sequential_single_precision_sums() {
        let mut r = Lcg(41);
        let mut used: f64 = 0.0;
        for _ in 0..200 {
            let n = 20 + (r.uniform() * 400.0) as usize;
            let w: Vec<f32> = (0..n).map(|_| (3.0 * r.normal()).exp() as f32).collect();
            let v: Vec<f32> = (0..n).map(|_| r.normal() as f32).collect();
            let (mut l, mut o, mut exact_l, mut exact_o) = (0f32, 0f32, 0.0, 0.0);
            for (&a, &b) in w.iter().zip(&v) {
                l += a;
                o = a.mul_add(b, o);
                exact_l += f64::from(a);
                exact_o += f64::from(a) * f64::from(b);
            }
            let nu = v.iter().fold(0.0, |m: f64, &x| m.max(f64::from(x).abs()));
            let err = (f64::from(o / l) - exact_o / exact_l).abs();
            let bound = Accumulation::single(n, nu).error();
            assert!(err <= bound);
            used = used.max(err / bound);
        }
        assert!(used > 1e-4, "the bound is so loose that the test says nothing: {used}");
    }

    #[test]
    fn every_rounding_adds_and_damage_is_infinite() {
        let base = Accumulation::single(64, 2.0);
        for worse in [
            Accumulation { chain: 128, ..base },
            Accumulation { value_norm: 3.0, ..base },
            Accumulation { out_round: 2f64.powi(-11), ..base },
            Accumulation { weight_round: 2f64.powi(-8), ..base },
            Accumulation { weight_floor: 2f64.powi(-25), tokens: 100, ..base },
        ] {
            assert!(worse.error() > base.error());
        }
        assert_eq!(Accumulation { value_norm: f64::NAN, ..base }.error(), f64::INFINITY);
        assert_eq!(Accumulation { chain: usize::MAX, ..base }.error(), f64::INFINITY);
        assert!(total(0.1, 64, 0.1, 1e-6) > 0.1 + 1e-6 && total(0.1, 64, 0.1, 1e-6) < 0.1001);
        assert!(inflation(64, 0.9) > inflation(64, 0.1));
        assert_eq!(total(0.1, 64, 1.0, 0.0), f64::INFINITY);
        assert_eq!(total(f64::NAN, 64, 0.0, 0.0), f64::INFINITY);
        assert_eq!(total(0.1, 64, f64::NAN, 0.0), f64::INFINITY);
    }
}

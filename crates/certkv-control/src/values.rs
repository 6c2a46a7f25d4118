//! Which values to read exactly when keys are already decided, math.md (6.4), and the source paper's local rule.
use crate::ControlError;
use crate::error::{countable, non_negative};
use certkv_bound::order::by_descending;

/// Work buffers of [`ValueBudget::select`].
#[derive(Debug, Clone, Default)]
pub struct ValueBudget {
    order: Vec<u32>,
    rest: Vec<f64>,
}

impl ValueBudget {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Promotes in descending `term` (ties by index) until the rest sums to at most `eps`; returns the promoted blocks
    /// in that order and the rest. `terms[b] = min(rho_b eta_b, p_b sop_b)` (5.8), 0 for blocks already exact. No set
    /// with fewer promotions reaches the target.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a NaN or negative term.
    pub fn select(&mut self, terms: &[f64], eps: f64) -> Result<(&[u32], f64), ControlError> {
        non_negative("terms", terms)?;
        countable(terms.len())?;
        self.order.clear();
        self.order.extend(0..terms.len() as u32);
        self.order.sort_unstable_by(|&i, &j| by_descending(terms, i as usize, j as usize));
        // Summed from the smallest term, so that the rest after k promotions is accurate for every k.
        self.rest.clear();
        self.rest.push(0.0);
        let mut sum = 0.0;
        for &b in self.order.iter().rev() {
            sum += terms[b as usize];
            self.rest.push(sum);
        }
        self.rest.reverse();
        let count = self.rest.iter().position(|&r| r <= eps).unwrap_or(terms.len());
        Ok((&self.order[..count], self.rest[count]))
    }
}

/// The local heuristic of "Runtime-Certified Bounded-Error Quantized Attention", section 3.4 rung 2: promote a block's
/// values if its own term `rho^ eta` exceeds `v_tol`. It bounds no sum; NaN promotes.
pub fn exceeds_local(mass: f64, eta: f64, v_tol: f64) -> bool {
    !(certkv_bound::terms::product(mass, eta) <= v_tol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fewest_promotions(terms in prop::collection::vec(0u32..30, 0..10), eps in 0.0f64..80.0) {
            let x: Vec<f64> = terms.iter().map(|&t| f64::from(t)).collect();
            let mut budget = ValueBudget::new();
            let (pick, rest) = budget.select(&x, eps).unwrap();
            let total: f64 = x.iter().sum();
            let picked: f64 = pick.iter().map(|&i| x[i as usize]).sum();
            prop_assert!((total - picked - rest).abs() < 1e-9 && rest <= eps);
            let fewest = (0..1u32 << x.len())
                .filter(|m| total - (0..x.len()).filter(|i| m >> i & 1 == 1).map(|i| x[i]).sum::<f64>() <= eps)
                .map(u32::count_ones)
                .min();
            prop_assert_eq!(Some(pick.len() as u32), fewest);
        }
    }

    #[test]
    fn local_rule_and_damage() {
        assert!(exceeds_local(0.5, 0.2, 0.05) && !exceeds_local(0.5, 0.1, 0.05));
        assert!(exceeds_local(f64::NAN, 0.1, 0.05) && exceeds_local(0.1, 0.1, f64::NAN));
        assert!(ValueBudget::new().select(&[f64::NAN], 1.0).is_err());
        let mut b = ValueBudget::new();
        assert_eq!(
            b.select(&[1.0, 2.0], f64::NAN).unwrap(),
            ([1, 0].as_slice(), 0.0),
            "an unknown budget promotes all"
        );
    }
}

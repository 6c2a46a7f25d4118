//! Adaptive top-K by coverage of the estimated mass, math.md (6.1)-(6.3). A heuristic: validity never depends on it.
use crate::error::{countable, non_negative};
use crate::{BitSet, ControlError};
use certkv_bound::order::by_descending;

/// The rule's three numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coverage {
    /// Promote until this share of the estimated mass has exact keys. Above 1: everything eligible.
    pub tau: f64,
    /// Fewest blocks to promote (all eligible ones if there are fewer).
    pub k_min: usize,
    /// Most blocks to promote.
    pub k_max: usize,
}

impl Coverage {
    /// Writes the promoted blocks to `out`, in promotion order: mass descending, ties by block index.
    ///
    /// `masses` are normalised first-phase masses. Blocks in `exact` already have exact keys: their mass counts as
    /// covered and they are never listed, nor are blocks of mass 0. `out` is cleared first.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a mass that is NaN or negative.
    pub fn select(&self, masses: &[f64], exact: &BitSet, out: &mut Vec<u32>) -> Result<(), ControlError> {
        out.clear();
        non_negative("masses", masses)?;
        countable(masses.len())?;
        let mut covered = 0.0;
        for (b, &p) in masses.iter().enumerate() {
            if exact.contains(b) {
                covered += p;
            } else if p > 0.0 {
                out.push(b as u32);
            }
        }
        out.sort_unstable_by(|&i, &j| by_descending(masses, i as usize, j as usize));
        let mut k = 0;
        while k < out.len() && covered < self.tau {
            covered += masses[out[k] as usize];
            k += 1;
        }
        out.truncate(k.max(self.k_min).min(self.k_max));
        // `k.max(k_min)` may exceed the eligible count: truncate then keeps everything.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(tau: f64, k_min: usize, k_max: usize, masses: &[f64], exact: &[usize]) -> Vec<u32> {
        let mut set = BitSet::new(masses.len());
        exact.iter().for_each(|&i| {
            set.insert(i);
        });
        let mut out = vec![9];
        Coverage { tau, k_min, k_max }.select(masses, &set, &mut out).unwrap();
        out
    }

    #[test]
    fn edge_rows_of_section_14() {
        let p = [0.1, 0.4, 0.0, 0.4, 0.1];
        assert_eq!(pick(0.5, 0, 9, &p, &[]), [1, 3]);
        assert_eq!(pick(0.9, 0, 9, &p, &[1]), [3, 0]);
        assert_eq!(pick(1.5, 0, 9, &p, &[]), [1, 3, 0, 4], "tau above 1 takes all eligible");
        assert_eq!(pick(0.0, 3, 9, &p, &[]), [1, 3, 0]);
        assert_eq!(pick(0.0, 9, 9, &p, &[]).len(), 4);
        assert_eq!(pick(0.9, 3, 0, &p, &[]), [0u32; 0]);
        assert!(Coverage { tau: 0.5, k_min: 0, k_max: 1 }.select(&[f64::NAN], &BitSet::new(1), &mut vec![]).is_err());
    }
}

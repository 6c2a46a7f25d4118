//! The exact McNemar test of two systems on the same prompts.

/// The four counts of paired right and wrong answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Table {
    /// Both right.
    pub both: u64,
    /// Only the first right: a critical failure of the second.
    pub first_only: u64,
    /// Only the second right.
    pub second_only: u64,
    /// Neither right.
    pub neither: u64,
}

impl Table {
    /// Counts pairs `(first right, second right)`.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (bool, bool)>) -> Self {
        let mut table = Self::default();
        for pair in pairs {
            match pair {
                (true, true) => table.both += 1,
                (true, false) => table.first_only += 1,
                (false, true) => table.second_only += 1,
                (false, false) => table.neither += 1,
            }
        }
        table
    }

    /// Two-sided p-value of equal accuracy.
    pub fn p_value(&self) -> f64 {
        mcnemar_exact(self.first_only, self.second_only)
    }
}

/// Two-sided exact p-value: under the null each of the `b + c` discordant pairs falls either way with probability 1/2,
/// so `p = min(1, 2 P(X <= min(b, c)))` with `X` binomial. 1 without discordant pairs.
pub fn mcnemar_exact(b: u64, c: u64) -> f64 {
    let n = b + c;
    // Terms are formed by their logarithms: 2^-n alone underflows past a thousand pairs.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=b.min(c) {
        tail += log_term.exp();
        log_term += ((n - k) as f64).ln() - ((k + 1) as f64).ln();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 + 1e-9 * b.abs()
    }

    #[test]
    fn known_values() {
        // 2 * binom.cdf(min, n, 0.5); 5 against 3 is the 0.727 of the published comparison.
        assert!(close(mcnemar_exact(5, 3), 0.7265625));
        assert!(close(mcnemar_exact(0, 6), 0.03125));
        assert!(close(mcnemar_exact(10, 1), 24.0 / 2048.0));
        assert!(close(mcnemar_exact(0, 0), 1.0));
        assert!(close(mcnemar_exact(16, 16), 1.0));
        assert!(close(mcnemar_exact(2, 2), 1.0));
        assert_eq!(mcnemar_exact(3, 8), mcnemar_exact(8, 3));
    }

    #[test]
    fn many_pairs_do_not_underflow() {
        let p = mcnemar_exact(1450, 1550);
        assert!(p > 0.06 && p < 0.08, "{p}");
        assert!(mcnemar_exact(0, 2000) < 1e-300);
    }

    #[test]
    fn pairs_are_counted() {
        let t = Table::from_pairs([(true, true), (true, false), (true, false), (false, true), (false, false)]);
        assert_eq!(t, Table { both: 1, first_only: 2, second_only: 1, neither: 1 });
    }
}

//! Quantiles of samples.
use serde::{Deserialize, Serialize};

/// Quantile `p` of sorted numbers by linear interpolation, as numpy's default. NaN without numbers.
pub fn quantile(sorted: &[f64], p: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = p.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The quantiles that the tables show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub median: f64,
    /// 90 % are below.
    pub p90: f64,
    /// 99 % are below.
    pub p99: f64,
    /// The largest.
    pub max: f64,
    /// Numbers behind it.
    pub count: usize,
}

impl Quantiles {
    /// Of any numbers; zeros without numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        if sorted.is_empty() {
            return Self::default();
        }
        sorted.sort_unstable_by(f64::total_cmp);
        Self {
            median: quantile(&sorted, 0.5),
            p90: quantile(&sorted, 0.9),
            p99: quantile(&sorted, 0.99),
            max: quantile(&sorted, 1.0),
            count: sorted.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_numpy() {
        let x = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&x, 0.5), 3.0);
        assert_eq!(quantile(&x, 0.25), 1.75);
        assert_eq!(quantile(&x, 1.0), 8.0);
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(Quantiles::of(x).median, 3.0);
        assert_eq!(Quantiles::of([]).count, 0);
    }
}

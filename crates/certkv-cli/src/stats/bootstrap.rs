//! Percentile bootstrap of a paired difference.
use super::quantile::quantile;
use certkv_core::hash::splitmix64;

/// An estimate with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The mean of the differences.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Resamples of a bootstrap: enough that the ends of a 95 % interval move by under a percent of its width.
pub const RESAMPLES: usize = 4000;

/// 95 % percentile interval of the mean of `differences`, one number per pair, resampling pairs. `None` without pairs.
pub fn paired_bootstrap(differences: &[f64], seed: u64) -> Option<Interval> {
    let n = differences.len();
    if n == 0 {
        return None;
    }
    let mean = |sum: f64| sum / n as f64;
    let mut state = splitmix64(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut sum = 0.0;
            for _ in 0..n {
                state = splitmix64(state);
                // The high half times n, shifted: a uniform index without the bias of a remainder.
                sum += differences[((u128::from(state) * n as u128) >> 64) as usize];
            }
            mean(sum)
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    Some(Interval { mean: mean(differences.iter().sum()), low: quantile(&means, 0.025), high: quantile(&means, 0.975) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_has_no_width_and_nothing_has_no_interval() {
        assert_eq!(paired_bootstrap(&[0.5; 9], 1), Some(Interval { mean: 0.5, low: 0.5, high: 0.5 }));
        assert_eq!(paired_bootstrap(&[], 1), None);
    }

    #[test]
    fn the_interval_is_that_of_the_normal_limit() {
        // 400 draws of +-1 have a standard error of 1/20: the interval is the mean +- 1.96/20.
        let d: Vec<f64> = (0..400).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let i = paired_bootstrap(&d, 7).unwrap();
        assert!((i.low + 0.098).abs() < 0.008 && (i.high - 0.098).abs() < 0.008, "{i:?}");
        assert_eq!(paired_bootstrap(&d, 7), paired_bootstrap(&d, 7));
        assert_ne!(paired_bootstrap(&d, 7), paired_bootstrap(&d, 8));
    }
}

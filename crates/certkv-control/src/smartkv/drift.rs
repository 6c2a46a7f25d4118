//! When to allocate anew: after so many steps, or because scores are no longer what they were.
use super::hysteresis::Ranks;
use crate::ControlError;
use crate::error::finite;

/// Added to scores, so that none is 0.
const FLOOR: f64 = 1e-6;

/// Kullback-Leibler divergence of the scores now from those before, as distributions over the items that both have, math.md (9.15); 0 if
/// there are none.
///
/// # Errors
/// [`ControlError::Invalid`] for a score that is negative or not finite.
pub fn kl(now: &[f64], before: &[f64]) -> Result<f64, ControlError> {
    finite("now", now)?;
    finite("before", before)?;
    let n = now.len().min(before.len());
    let sum = |x: &[f64]| x[..n].iter().map(|x| x + FLOOR).sum::<f64>();
    let (p, q) = (sum(now), sum(before));
    let term = |(a, b): (&f64, &f64)| {
        let (a, b) = ((a + FLOOR) / p, (b + FLOOR) / q);
        a * (a / b).ln()
    };
    Ok(now[..n].iter().zip(&before[..n]).map(term).sum())
}

/// Percent of the items that both have whose percentile rank moved by at least `points`; 0 if there are none.
///
/// # Errors
/// As [`kl`].
pub fn moved(now: &[f64], before: &[f64], points: f64) -> Result<f64, ControlError> {
    finite("now", now)?;
    finite("before", before)?;
    let n = now.len().min(before.len());
    let (mut a, mut b) = (Ranks::default(), Ranks::default());
    let (now, before) = (a.of(&now[..n]), b.of(&before[..n]));
    let far = now.iter().zip(before).filter(|(a, b)| (**a - **b).abs() >= points).count();
    Ok(if n == 0 { 0.0 } else { 100.0 * far as f64 / n as f64 })
}

/// Steps between allocations of a layer with so many items, math.md (9.14): `base` and more in deeper layers.
pub fn interval(layer: usize, items: usize, base: usize) -> usize {
    base.saturating_mul(1 + layer / 4).max(32).max(items / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moved_is_no_drift() {
        let x = [0.4, 0.1, 0.0, 0.5];
        assert_eq!((kl(&x, &x).unwrap(), moved(&x, &x, 5.0).unwrap()), (0.0, 0.0));
        assert!(kl(&x, &[0.1, 0.4, 0.5, 0.0]).unwrap() > 0.5);
        assert_eq!(moved(&x, &[0.1, 0.4, 0.0, 0.5], 5.0).unwrap(), 50.0);
        // New items are no drift.
        assert_eq!(moved(&[0.4, 0.1, 0.9], &[0.4, 0.1], 5.0).unwrap(), 0.0);
        assert_eq!((kl(&[], &x).unwrap(), moved(&[], &x, 5.0).unwrap()), (0.0, 0.0));
        assert!(kl(&[f64::NAN], &[1.0]).is_err() && moved(&[1.0], &[-1.0], 5.0).is_err());
        assert_eq!([interval(0, 1, 16), interval(79, 300, 16), interval(3, 4096, 16)], [32, 320, 512]);
    }
}

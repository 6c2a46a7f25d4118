//! Promotion inside the pass: a block whose term is worth its bytes is read exactly while its codes are still at hand,
//! and the values of a block that weighs next to nothing are not read at all (math.md 6.7).
//!
//! The guess of the last step knows which blocks mattered then; this rule catches those that matter only now, for which a
//! repair would read the codes a second time. It works with what the last step left behind (the tolerance in absolute
//! terms, the distance `||O' - c||`, the total mass and the least share of the tolerance that was worth promoting), so it
//! can be wrong in both directions. That costs bytes or a repair, never validity (math.md Theorem 5.2).
use certkv_control::BitSet;
use certkv_kernel::Look;

/// What the last step knew of one query head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hint {
    /// Absolute tolerance.
    pub(crate) eps: f32,
    /// `||O' - c||`.
    pub(crate) radius: f32,
    /// `log2` of a mass that the total will hardly fall below; negative infinity if unknown.
    pub(crate) mass: f32,
    /// Share of the tolerance from which on a side is worth reading exactly.
    pub(crate) share: f32,
    /// Share of the tolerance below which a block's values need not be read.
    pub(crate) skip: f32,
}

/// The rule for one KV head in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// By query head of the group.
    pub(crate) hints: &'a [Hint],
    /// Blocks whose values the last step skipped.
    pub(crate) expected: &'a BitSet,
}

/// What to do with a block that was scored from codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Read its keys exactly.
    pub(crate) keys: bool,
    /// Read its values exactly.
    pub(crate) values: bool,
    /// Leave its values unread.
    pub(crate) skip_values: bool,
}

/// `2^x` within 6%, from below no more: straight lines between powers of two.
#[inline]
fn near_power(x: f32) -> f32 {
    f32::from_bits((((x.clamp(-126.0, 126.0)) + 127.0) * 8_388_608.0) as u32)
}

impl Watch<'_> {
    /// A few multiplications per head.
    pub(crate) fn judge(&self, look: &Look<'_>) -> Verdict {
        let (mut keys, mut values, mut skip_values) = (false, false, true);
        for (h, hint) in self.hints.iter().enumerate().take(look.w.len()) {
            let known = near_power(hint.mass - look.exponent[h]);
            let total = if known > look.total[h] { known } else { look.total[h] };
            let (w, p) = (look.w[h], look.square[h].sqrt());
            let (delta, lambda) = (look.delta[h], look.lambda[h]);
            // `min(W expm1(Delta), phi(Delta) P Lambda) <= min(W Delta, P Lambda) e^Delta`, and `1 + x + x^2` is near
            // enough to `e^x` for a heuristic.
            let grow = 1.0 + delta + delta * delta;
            let term = (w * delta).min(p * lambda) * grow * (look.radius + hint.radius + hint.eps);
            // Written so that NaN promotes.
            keys |= delta > 0.0 && !(term < hint.share * hint.eps * total);
            let term = (w * look.eta).min(p * look.sop);
            values |= look.eta > 0.0 && !(term < hint.share * hint.eps * total);
            skip_values &= w * look.radius < hint.skip * hint.eps * total;
        }
        Verdict { keys, values: values && !skip_values, skip_values }
    }
}

/// Buckets of [`worthwhile_share`]: eight per octave over the range of `f32`.
const BUCKETS: usize = 2048;

/// The share of the tolerance from which on items have to be promoted so that the rest stays within it: the level at
/// which the largest gains are cut off, to within an eighth of an octave. [`QUIET_SHARE`] if all fit. `sums` is a buffer.
pub(crate) fn worthwhile_share(gains: &[f32], eps: f32, sums: &mut Vec<f64>) -> f32 {
    sums.clear();
    sums.resize(BUCKETS, 0.0);
    let mut total = 0.0;
    for g in gains.iter().filter(|g| g.is_finite()) {
        sums[(g.to_bits() >> 20) as usize % BUCKETS] += f64::from(*g);
        total += f64::from(*g);
    }
    let mut left = total - f64::from(eps);
    if !(left > 0.0) {
        return QUIET_SHARE;
    }
    for (bucket, sum) in sums.iter().enumerate().rev() {
        left -= sum;
        if left <= 0.0 {
            return f32::from_bits((bucket as u32) << 20) / eps;
        }
    }
    0.0
}

/// The share of the tolerance that items may have each so that all below it take up at most `budget` of the tolerance
/// together, to within an eighth of an octave. `sums` is a buffer.
pub(crate) fn negligible_share(terms: &[f32], eps: f32, budget: f32, sums: &mut Vec<f64>) -> f32 {
    sums.clear();
    sums.resize(BUCKETS, 0.0);
    for t in terms.iter().filter(|t| t.is_finite()) {
        sums[(t.to_bits() >> 20) as usize % BUCKETS] += f64::from(*t);
    }
    let mut left = f64::from(eps) * f64::from(budget);
    for (bucket, sum) in sums.iter().enumerate() {
        left -= sum;
        // Written so that NaN, from a tolerance that is none, leaves nothing.
        if !(left >= 0.0) {
            return f32::from_bits((bucket as u32) << 20) / eps;
        }
    }
    budget
}

/// Share of the tolerance above which a side is promoted although the last step had room for everything.
pub(crate) const QUIET_SHARE: f32 = 0.4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_leaves_no_more_than_the_tolerance() {
        let gains: Vec<f32> = (1..=100).map(|i| i as f32 * 0.01).collect();
        let mut sums = Vec::new();
        let share = worthwhile_share(&gains, 10.0, &mut sums);
        let rest: f32 = gains.iter().filter(|g| **g < share * 10.0).sum();
        assert!(rest <= 10.0 && rest > 7.0, "{share} leaves {rest}");
        assert_eq!(worthwhile_share(&gains, 60.0, &mut sums), QUIET_SHARE);
    }

    #[test]
    fn what_is_negligible_fits_its_budget() {
        let terms: Vec<f32> = (1..=100).map(|i| i as f32 * 0.01).collect();
        let mut sums = Vec::new();
        let share = negligible_share(&terms, 10.0, 0.1, &mut sums);
        let taken: f32 = terms.iter().filter(|t| **t < share * 10.0).sum();
        assert!(taken <= 1.0 && taken > 0.5, "{share} takes {taken}");
        assert_eq!(negligible_share(&terms, 0.0, 0.1, &mut sums).partial_cmp(&0.0), None);
        assert_eq!(negligible_share(&terms, 600.0, 0.1, &mut sums), 0.1);
    }

    #[test]
    fn promotes_by_share_of_the_tolerance_and_on_nan() {
        let hints = [Hint { eps: 0.1, radius: 1.0, mass: f32::NEG_INFINITY, share: 0.1, skip: 0.02 }];
        let expected = BitSet::default();
        let watch = Watch { hints: &hints, expected: &expected };
        let judge = |w: [f32; 1], delta: [f32; 1], eta: f32| {
            let (square, lambda) = ([w[0] * w[0]], [delta[0] * 4.0]);
            let (total, exponent) = ([1.0], [0.0]);
            let v = watch.judge(&Look {
                w: &w,
                square: &square,
                total: &total,
                exponent: &exponent,
                delta: &delta,
                lambda: &lambda,
                radius: 1.0,
                eta,
                sop: eta,
            });
            (v.keys, v.values, v.skip_values)
        };
        assert_eq!(judge([0.01], [0.1], 0.1), (false, false, false));
        assert_eq!(judge([0.001], [0.1], 0.1), (false, false, true));
        assert_eq!(judge([0.5], [0.1], 0.1), (true, true, false));
        assert_eq!(judge([0.5], [0.0], 0.0), (false, false, false), "exact sides have nothing to gain");
        assert_eq!(judge([f32::NAN], [0.1], 0.1), (true, true, false));
    }
}

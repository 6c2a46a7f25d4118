//! Promotion inside the pass: a block whose term is worth its bytes is read exactly while its codes are still at hand.
//!
//! The guess of the last step knows which blocks mattered then; this rule catches those that matter only now, for which a
//! repair would read the codes a second time. It works with what the last step left behind (the tolerance in absolute
//! terms, the distance `||O' - c||`, the total mass and the least share of the tolerance that was worth promoting), so it
//! can be wrong in both directions. That costs bytes or a repair, never validity (math.md Theorem 5.2).
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
}

/// The rule for one KV head in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// By query head of the group.
    pub(crate) hints: &'a [Hint],
}

/// `2^x` within 6%, from below no more: straight lines between powers of two.
#[inline]
fn near_power(x: f32) -> f32 {
    f32::from_bits((((x.clamp(-126.0, 126.0)) + 127.0) * 8_388_608.0) as u32)
}

impl Watch<'_> {
    /// Whether to read the keys, and the values, exactly. A few multiplications per head.
    pub(crate) fn judge(&self, look: &Look<'_>) -> (bool, bool) {
        let (mut keys, mut values) = (false, false);
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
        }
        (keys, values)
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
    fn promotes_by_share_of_the_tolerance_and_on_nan() {
        let hints = [Hint { eps: 0.1, radius: 1.0, mass: f32::NEG_INFINITY, share: 0.1 }];
        let watch = Watch { hints: &hints };
        let judge = |w: [f32; 1], delta: [f32; 1], eta: f32| {
            let (square, lambda) = ([w[0] * w[0]], [delta[0] * 4.0]);
            let (total, exponent) = ([1.0], [0.0]);
            watch.judge(&Look {
                w: &w,
                square: &square,
                total: &total,
                exponent: &exponent,
                delta: &delta,
                lambda: &lambda,
                radius: 1.0,
                eta,
                sop: eta,
            })
        };
        assert_eq!(judge([0.01], [0.1], 0.1), (false, false));
        assert_eq!(judge([0.5], [0.1], 0.1), (true, true));
        assert_eq!(judge([0.5], [0.0], 0.0), (false, false), "exact sides have nothing to gain");
        assert_eq!(judge([f32::NAN], [0.1], 0.1), (true, true));
    }
}

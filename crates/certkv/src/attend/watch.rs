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
    /// `log2` of the total mass; negative infinity if unknown.
    pub(crate) mass: f32,
}

/// The rule for one KV head in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch<'a> {
    /// By query head of the group.
    pub(crate) hints: &'a [Hint],
    /// Least share of a head's tolerance for which keys are promoted.
    pub(crate) keys: f32,
    /// The same for values.
    pub(crate) values: f32,
}

/// How far the total mass may fall from one step to the next before the last one misleads, as a factor.
const MASS_DROP: f32 = 0.5;

impl Watch<'_> {
    /// Whether to read the keys, and the values, exactly. A few multiplications per head.
    pub(crate) fn judge(&self, look: &Look<'_>) -> (bool, bool) {
        let (mut keys, mut values) = (false, false);
        for (h, hint) in self.hints.iter().enumerate().take(look.w.len()) {
            let known = (hint.mass - look.exponent[h]).exp2() * MASS_DROP;
            let total = if known > look.total[h] { known } else { look.total[h] };
            let (w, p) = (look.w[h], look.square[h].sqrt());
            let (delta, lambda) = (look.delta[h], look.lambda[h]);
            // `min(W expm1(Delta), phi(Delta) P Lambda) <= min(W Delta, P Lambda) e^Delta`, and `1 + x + x^2` is near
            // enough to `e^x` for a heuristic.
            let grow = 1.0 + delta + delta * delta;
            let term = (w * delta).min(p * lambda) * grow * (look.radius + hint.radius + hint.eps);
            // Written so that NaN promotes.
            keys |= delta > 0.0 && !(term < self.keys * hint.eps * total);
            let term = (w * look.eta).min(p * look.sop);
            values |= look.eta > 0.0 && !(term < self.values * hint.eps * total);
        }
        (keys, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotes_by_share_of_the_tolerance_and_on_nan() {
        let hints = [Hint { eps: 0.1, radius: 1.0, mass: f32::NEG_INFINITY }];
        let watch = Watch { hints: &hints, keys: 0.1, values: 0.1 };
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

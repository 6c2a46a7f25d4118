//! Whether the block of the largest mass could be another one, and a gate over that: math.md (9.23), (9.24).
use crate::ControlError;
use crate::error::{length, non_negative};

/// Gaps of log-mass below this count as none: such blocks are always in danger.
pub const LEAST_GAP: f64 = 1e-3;

/// Danger of every block, from its log-mass and the bound `Delta` of its logits' error, in nats: all below 1 certifies that the block
/// of the largest mass is the true one (5.20). That block's own danger is the largest of the others. `danger` is overwritten.
///
/// # Errors
/// [`ControlError::Length`]; [`ControlError::Invalid`] for a bound that is negative, a number that is NaN, or no block with a mass.
pub fn danger(log_mass: &[f64], delta: &[f64], danger: &mut Vec<f64>) -> Result<(), ControlError> {
    length("delta", delta.len(), log_mass.len())?;
    non_negative("delta", delta)?;
    if let Some(index) = log_mass.iter().position(|l| l.is_nan() || *l == f64::INFINITY) {
        return Err(ControlError::Invalid { what: "log_mass", index });
    }
    danger.clear();
    // The first of equal ones.
    let Some(top) = (0..log_mass.len()).reduce(|a, b| if log_mass[b] > log_mass[a] { b } else { a }) else {
        return Ok(());
    };
    if log_mass[top] == f64::NEG_INFINITY {
        return Err(ControlError::Invalid { what: "log_mass", index: top });
    }
    danger.extend(log_mass.iter().zip(delta).map(|(l, d)| {
        // Without a bound there is no certainty, however far the block is.
        let least = delta[top] + d + LEAST_GAP;
        if least.is_finite() { least / (log_mass[top] - l).max(LEAST_GAP) } else { f64::INFINITY }
    }));
    danger[top] = 0.0;
    danger[top] = danger.iter().copied().fold(0.0, f64::max);
    Ok(())
}

/// A switch with two thresholds, so that what is near one does not flip it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    protect: f64,
    release: f64,
    on: bool,
}

impl Default for Gate {
    fn default() -> Self {
        Self { protect: 1.0, release: 0.5, on: false }
    }
}

impl Gate {
    /// On from `protect` up, off from `release` down, which lies below it; off at first.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if it does not.
    pub fn new(protect: f64, release: f64) -> Result<Self, ControlError> {
        if release < protect {
            Ok(Self { protect, release, on: false })
        } else {
            Err(ControlError::Invalid { what: "release", index: 0 })
        }
    }

    /// Whether it is on.
    pub const fn is_on(&self) -> bool {
        self.on
    }

    /// Takes the next danger; whether it is on then. NaN turns it on.
    pub fn step(&mut self, danger: f64) -> bool {
        if danger <= self.release {
            self.on = false;
        } else if !(danger < self.protect) {
            self.on = true;
        }
        self.on
    }
}

/// When a gate is on and off, math.md (9.24): at these dangers, and not between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gating {
    /// Danger from which on a block is protected.
    pub protect: f64,
    /// Danger down to which it stays so; below `protect`.
    pub release: f64,
}

impl Default for Gating {
    fn default() -> Self {
        Self { protect: 1.0, release: 0.5 }
    }
}

impl Gating {
    /// A gate like this, off at first.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for dangers out of order, or below 0.
    pub fn gate(&self) -> Result<Gate, ControlError> {
        match self.release >= 0.0 {
            true => Gate::new(self.protect, self.release),
            false => Err(ControlError::Invalid { what: "release", index: 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Where nothing is in danger, no logits within the bounds make another block the largest.
        #[test]
        fn no_danger_means_the_top_stays(
            blocks in proptest::collection::vec((-6.0f64..6.0, 0.0f64..2.0, -1.0f64..1.0), 1..8),
        ) {
            let (mass, delta): (Vec<f64>, Vec<f64>) = blocks.iter().map(|b| (b.0, b.1)).unzip();
            let mut found = Vec::new();
            danger(&mass, &delta, &mut found).unwrap();
            let top = |mass: &[f64]| (0..mass.len()).reduce(|a, b| if mass[b] > mass[a] { b } else { a }).unwrap();
            let moved: Vec<f64> = blocks.iter().map(|(l, d, by)| l + d * by).collect();
            let worst: Vec<f64> =
                blocks.iter().enumerate().map(|(i, (l, d, _))| if i == top(&mass) { l - d } else { l + d }).collect();
            if found.iter().all(|d| *d < 1.0) {
                prop_assert_eq!((top(&moved), top(&worst)), (top(&mass), top(&mass)));
            } else {
                // And not without need: within the least gap of what could happen.
                let other = worst.iter().enumerate().filter(|(i, _)| *i != top(&mass)).map(|(_, l)| *l);
                prop_assert!(other.fold(f64::NEG_INFINITY, f64::max) >= worst[top(&mass)] - LEAST_GAP - 1e-12);
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut found = vec![7.0];
        assert!(danger(&[1.0], &[0.0, 0.0], &mut found).is_err());
        for (mass, delta) in [
            ([f64::NAN, 0.0], [0.0; 2]),
            ([f64::INFINITY, 0.0], [0.0; 2]),
            ([1.0, 2.0], [0.0, -1.0]),
            ([1.0, 2.0], [f64::NAN, 0.0]),
        ] {
            assert!(matches!(danger(&mass, &delta, &mut found), Err(ControlError::Invalid { .. })));
        }
        assert!(danger(&[f64::NEG_INFINITY; 2], &[0.0; 2], &mut found).is_err());
        danger(&[], &[], &mut found).unwrap();
        assert!(found.is_empty());
        danger(&[3.0], &[f64::INFINITY], &mut found).unwrap();
        assert_eq!(found, [0.0], "a block alone is the largest");
        danger(&[3.0, f64::NEG_INFINITY], &[0.1, f64::INFINITY], &mut found).unwrap();
        assert_eq!(found, [f64::INFINITY; 2]);
        assert!(Gating { protect: 1.0, release: -0.1 }.gate().is_err() && Gating::default().gate().is_ok());
        assert!(Gate::new(0.5, 0.5).is_err() && Gate::new(f64::NAN, 0.1).is_err());
        let mut gate = Gate::default();
        assert_eq!([0.9, 1.0, 0.6, 0.5, 0.9, f64::NAN].map(|x| gate.step(x)), [false, true, true, false, false, true]);
        assert!(gate.is_on());
    }
}

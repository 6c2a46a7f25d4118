//! Fault points: places where an allocation, a copy or a device call can be made to fail.
//!
//! `fail_point!("tier.copy")?` does nothing unless the crate is built with the `failpoints` feature *and* the current
//! thread armed a fault. Tests count how often each point is reached and make the n-th hit fail, so that every error
//! path runs. The registry is per thread: tests run side by side without seeing each other's faults.
use core::fmt;

/// The error of a fault point that was made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectedFault {
    /// Name of the fault point.
    pub point: &'static str,
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "injected fault at {}", self.point)
    }
}
impl std::error::Error for InjectedFault {}

/// Passes fault point `$name`: `Result<(), InjectedFault>`. Compiled to `Ok(())` without the `failpoints` feature.
#[macro_export]
macro_rules! fail_point {
    ($name:literal) => {
        $crate::fail::hit($name)
    };
}

#[cfg(not(feature = "failpoints"))]
#[doc(hidden)]
#[inline(always)]
pub fn hit(_: &'static str) -> Result<(), InjectedFault> {
    Ok(())
}

#[cfg(feature = "failpoints")]
pub use armed::*;

#[cfg(feature = "failpoints")]
mod armed {
    use super::InjectedFault;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Registry {
        counts: Vec<(&'static str, u64)>,
        hits: u64,
        fail_at: Vec<u64>,
        fired: Vec<&'static str>,
    }

    thread_local! {
        static REGISTRY: RefCell<Registry> = RefCell::default();
    }

    #[doc(hidden)]
    pub fn hit(point: &'static str) -> Result<(), InjectedFault> {
        REGISTRY.with_borrow_mut(|r| {
            r.hits += 1;
            match r.counts.iter_mut().find(|(name, _)| *name == point) {
                Some((_, n)) => *n += 1,
                None => r.counts.push((point, 1)),
            }
            if r.fail_at.contains(&r.hits) {
                r.fired.push(point);
                return Err(InjectedFault { point });
            }
            Ok(())
        })
    }

    /// Clears all counts of this thread and makes the `nth` hit from now on fail (1-based); `None` disarms.
    pub fn arm(nth: Option<u64>) {
        arm_all(nth.as_slice());
    }

    /// [`arm`] for several hits, in any order.
    pub fn arm_all(nths: &[u64]) {
        REGISTRY.with_borrow_mut(|r| *r = Registry { fail_at: nths.to_vec(), ..Registry::default() });
    }

    /// The point that failed last since the last [`arm`], if any.
    pub fn fired() -> Option<&'static str> {
        REGISTRY.with_borrow(|r| r.fired.last().copied())
    }

    /// All points that failed since the last [`arm`], in order.
    pub fn all_fired() -> Vec<&'static str> {
        REGISTRY.with_borrow(|r| r.fired.clone())
    }

    /// Hits per point of this thread since the last [`arm`].
    pub fn counts() -> Vec<(&'static str, u64)> {
        REGISTRY.with_borrow(|r| r.counts.clone())
    }

    /// Hits of all points of this thread since the last [`arm`].
    pub fn hits() -> u64 {
        REGISTRY.with_borrow(|r| r.hits)
    }
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::*;

    #[test]
    fn the_nth_hit_fails_and_only_that_one() {
        arm(Some(2));
        let results: Vec<bool> = (0..3).map(|_| fail_point!("core.test").is_ok()).collect();
        assert_eq!(results, [true, false, true]);
        assert_eq!((fired(), counts(), hits()), (Some("core.test"), vec![("core.test", 3)], 3));
        arm_all(&[3, 1]);
        let results: Vec<bool> = (0..4).map(|_| fail_point!("core.test").is_ok()).collect();
        assert_eq!((results, all_fired().len()), (vec![false, true, false, true], 2));
        arm(None);
    }
}

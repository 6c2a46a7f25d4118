//! Bugs on purpose: each class of failure that caches of this kind had in the field can be brought back, so that a test
//! shows that it would be seen. docs/states.md lists them with the rule that each one breaks.
//!
//! `planted!(B2)` is `false` in every build without the feature `planted`. With it, it is true on a thread that armed the
//! bug, or everywhere with the bug's own feature, `planted_b2`.

/// Classes of failures, numbered as in docs/states.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A store to the host reads a page before its writer is done.
    B1,
    /// A load overwrites a slot that is still read.
    B2,
    /// A page is back in the pool while a step still uses it.
    B3,
    /// A staging buffer is written again before its copy ran.
    B4,
    /// Host memory is reused while a copy still reads it.
    B5,
    /// Something is looked up, not held, and evicted before it is used.
    B6,
    /// A reference is given up twice and nobody notices.
    B7,
    /// An old name finds what took its place.
    B8,
    /// A key leaves out a field that changes what a page holds.
    B9,
    /// A short hash is taken for what was hashed.
    B10,
    /// One tenant finds what another one cached.
    B11,
    /// A row that nobody wrote takes part.
    B12,
    /// One sequence's rows are in another's answer.
    B13,
    /// An offset is computed in 32 bits.
    B14,
    /// A recording runs over memory of a cache that is gone.
    B15,
    /// What is laid out one way is read another way.
    B16,
    /// Codes and scales are not of the same block.
    B17,
    /// A copy failed and nobody looks.
    B18,
    /// Pages that a failed call took are nobody's.
    B19,
    /// Pinned memory is not given back.
    B20,
    /// One slow reader holds up every page that waits behind it.
    B21,
    /// An id is taken for its place, whoever lives there.
    B22,
    /// Contents that have changed are taken for those that were sealed.
    B23,
    /// A panic crosses the binary interface.
    B24,
    /// A gate that looked at nothing passes.
    B25,
    /// A block is named on its new page before its codes are complete.
    B26,
    /// The page that a block leaves goes while others still read it.
    B27,
    /// A block returns on a page of another level than it left with.
    B28,
    /// Attention reads what a plan beside it is still choosing.
    B29,
    /// A tail has other rows while a copy of what it had is under way.
    B30,
}

/// All of them.
pub const BUGS: [Bug; 30] = [
    Bug::B1,
    Bug::B2,
    Bug::B3,
    Bug::B4,
    Bug::B5,
    Bug::B6,
    Bug::B7,
    Bug::B8,
    Bug::B9,
    Bug::B10,
    Bug::B11,
    Bug::B12,
    Bug::B13,
    Bug::B14,
    Bug::B15,
    Bug::B16,
    Bug::B17,
    Bug::B18,
    Bug::B19,
    Bug::B20,
    Bug::B21,
    Bug::B22,
    Bug::B23,
    Bug::B24,
    Bug::B25,
    Bug::B26,
    Bug::B27,
    Bug::B28,
    Bug::B29,
    Bug::B30,
];

/// Whether bug `$bug` is to be committed here.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::plant::is_armed($crate::plant::Bug::$bug)
    };
}

#[cfg(not(feature = "planted"))]
#[doc(hidden)]
#[inline(always)]
pub const fn is_armed(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use armed::{arm, committed, is_armed};

#[cfg(feature = "planted")]
mod armed {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static ARMED: Cell<Option<Bug>> = const { Cell::new(None) };
        static COMMITTED: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) const ALWAYS: [(Bug, bool); 30] = [
        (Bug::B1, cfg!(feature = "planted_b1")),
        (Bug::B2, cfg!(feature = "planted_b2")),
        (Bug::B3, cfg!(feature = "planted_b3")),
        (Bug::B4, cfg!(feature = "planted_b4")),
        (Bug::B5, cfg!(feature = "planted_b5")),
        (Bug::B6, cfg!(feature = "planted_b6")),
        (Bug::B7, cfg!(feature = "planted_b7")),
        (Bug::B8, cfg!(feature = "planted_b8")),
        (Bug::B9, cfg!(feature = "planted_b9")),
        (Bug::B10, cfg!(feature = "planted_b10")),
        (Bug::B11, cfg!(feature = "planted_b11")),
        (Bug::B12, cfg!(feature = "planted_b12")),
        (Bug::B13, cfg!(feature = "planted_b13")),
        (Bug::B14, cfg!(feature = "planted_b14")),
        (Bug::B15, cfg!(feature = "planted_b15")),
        (Bug::B16, cfg!(feature = "planted_b16")),
        (Bug::B17, cfg!(feature = "planted_b17")),
        (Bug::B18, cfg!(feature = "planted_b18")),
        (Bug::B19, cfg!(feature = "planted_b19")),
        (Bug::B20, cfg!(feature = "planted_b20")),
        (Bug::B21, cfg!(feature = "planted_b21")),
        (Bug::B22, cfg!(feature = "planted_b22")),
        (Bug::B23, cfg!(feature = "planted_b23")),
        (Bug::B24, cfg!(feature = "planted_b24")),
        (Bug::B25, cfg!(feature = "planted_b25")),
        (Bug::B26, cfg!(feature = "planted_b26")),
        (Bug::B27, cfg!(feature = "planted_b27")),
        (Bug::B28, cfg!(feature = "planted_b28")),
        (Bug::B29, cfg!(feature = "planted_b29")),
        (Bug::B30, cfg!(feature = "planted_b30")),
    ];

    #[doc(hidden)]
    pub fn is_armed(bug: Bug) -> bool {
        let armed = ARMED.get() == Some(bug) || ALWAYS.contains(&(bug, true));
        if armed {
            COMMITTED.set(COMMITTED.get() + 1);
        }
        armed
    }

    /// Commits `bug` on this thread until the next call, and counts from 0; `None`: none.
    pub fn arm(bug: Option<Bug>) {
        ARMED.set(bug);
        COMMITTED.set(0);
    }

    /// How often this thread came to a place where it had to commit an armed bug, since the last [`arm`].
    pub fn committed() -> u64 {
        COMMITTED.get()
    }
}

#[cfg(all(test, feature = "planted"))]
mod tests {
    use super::armed::ALWAYS;
    use super::*;

    /// Whether a bug's own feature is on.
    fn always(bug: Bug) -> bool {
        ALWAYS.contains(&(bug, true))
    }

    #[test]
    fn only_the_armed_bug_is_committed_and_only_here() {
        for armed in BUGS {
            arm(Some(armed));
            for bug in BUGS {
                assert_eq!(is_armed(bug), bug == armed || always(bug));
            }
            assert!(committed() > 0);
            std::thread::scope(|s| s.spawn(|| assert_eq!(is_armed(armed), always(armed))).join()).unwrap();
        }
        arm(None);
        assert_eq!((planted!(B2), committed()), (always(Bug::B2), u64::from(always(Bug::B2))));
    }

    /// A row that is missing, or names another's feature, would be a feature that commits nothing.
    #[test]
    fn every_bug_has_a_feature_of_its_own() {
        let (source, manifest) = (include_str!("plant.rs"), include_str!("../Cargo.toml"));
        assert_eq!(ALWAYS.map(|(bug, _)| bug), BUGS);
        for bug in BUGS {
            let feature = format!("planted_{bug:?}").to_lowercase();
            assert!(manifest.contains(&format!("\n{feature} = [\"planted\"]\n")), "{feature} is not declared");
            assert!(
                source.contains(&format!("(Bug::{bug:?}, cfg!(feature = \"{feature}\"))")),
                "{feature} is not asked"
            );
        }
    }

    #[cfg(feature = "planted_b2")]
    #[test]
    fn a_feature_commits_its_bug_where_nobody_armed_it() {
        assert!(std::thread::spawn(|| planted!(B2)).join().unwrap());
    }
}

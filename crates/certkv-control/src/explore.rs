//! Which unpromoted blocks to look at for their own sake, math.md (7.6).
use certkv_bound::checks::explore_count;
use certkv_core::hash::hash64;

/// Where a look is taken; part of the hash, so that every step, layer and head looks elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Seed of the run.
    pub seed: u64,
    /// Decode step.
    pub step: u64,
    /// Layer.
    pub layer: u64,
    /// KV head.
    pub kv_head: u64,
}

/// Work buffer of [`Explorer::pick`].
#[derive(Debug, Clone, Default)]
pub struct Explorer {
    keyed: Vec<(u64, u32)>,
}

impl Explorer {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes to `out` the `ceil(rate |tail|)` blocks of `tail` with the smallest hash, ascending by block. `out` is
    /// cleared first. A rate that is NaN or not positive looks at none, a rate of 1 or more at all.
    pub fn pick(&mut self, tail: impl IntoIterator<Item = u32>, rate: f64, place: Place, out: &mut Vec<u32>) {
        let Place { seed, step, layer, kv_head } = place;
        self.keyed.clear();
        self.keyed.extend(tail.into_iter().map(|b| (hash64(&[seed, step, layer, kv_head, u64::from(b)]), b)));
        let n = explore_count(rate, self.keyed.len());
        if n > 0 && n < self.keyed.len() {
            self.keyed.select_nth_unstable(n - 1);
        }
        out.clear();
        out.extend(self.keyed[..n].iter().map(|&(_, b)| b));
        out.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_the_front_of_the_sorted_hashes(n in 0u32..60, rate in 0.0f64..1.2, seed: u64, step in 0u64..9) {
            let place = Place { seed, step, layer: 3, kv_head: 1 };
            let (mut explorer, mut out) = (Explorer::new(), vec![7]);
            explorer.pick(0..n, rate, place, &mut out);
            let mut all: Vec<_> = (0..n).map(|b| (hash64(&[seed, step, 3, 1, u64::from(b)]), b)).collect();
            all.sort_unstable();
            let mut front: Vec<u32> = all[..explore_count(rate, n as usize)].iter().map(|x| x.1).collect();
            front.sort_unstable();
            prop_assert_eq!(out, front);
        }
    }

    #[test]
    fn over_enough_steps_every_block_is_seen() {
        let (mut e, mut out, mut seen) = (Explorer::new(), vec![], [false; 40]);
        for step in 0..400 {
            e.pick(0..40, 0.05, Place { seed: 1, step, layer: 0, kv_head: 0 }, &mut out);
            assert_eq!(out.len(), 2);
            out.iter().for_each(|&b| seen[b as usize] = true);
        }
        assert!(seen.iter().all(|&s| s));
    }
}

//! Threads for independent tasks.
#[cfg(all(test, loom))]
mod loom_tests;
mod team;

use crate::error::KernelError;
use certkv_core::sync::steady::Mutex;
use core::fmt;
use core::ops::Range;
use team::Team;

/// Runs independent tasks on a fixed number of threads, the caller's among them. Results never depend on that number: which tasks exist
/// depends only on shapes (see [`splits`]), every task writes to its own place, and merging is in task order. Once its threads have started it
/// asks the allocator for nothing.
pub struct Pool {
    team: Option<Team>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, one of them whoever calls; 1 (or 0) starts none.
    ///
    /// # Errors
    /// [`KernelError::Threads`] if the system refuses.
    pub fn new(threads: usize) -> Result<Self, KernelError> {
        let team = match threads {
            0 | 1 => None,
            more => Some(Team::new(more - 1).ok_or(KernelError::Threads(threads))?),
        };
        Ok(Self { team })
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.team.as_ref().map_or(0, Team::helpers) + 1
    }

    /// Runs `task` on every item with the item's index; waits for all. `state` makes one working set per thread that takes part. Several
    /// threads may call at once: each works on its own items, and the pool's on whichever were there first.
    ///
    /// # Panics
    /// Where a task does, once no thread runs one any more.
    pub fn run<T: Send, W>(
        &self,
        items: &mut [T],
        state: impl Fn() -> W + Sync,
        task: impl Fn(&mut W, usize, &mut T) + Sync,
    ) {
        let helpers = self.threads().min(items.len()).saturating_sub(1);
        let items = Mutex::new(items.iter_mut().enumerate());
        let next = || items.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
        let take_all = || {
            let mut one = next();
            if one.is_some() {
                let mut w = state();
                while let Some((i, item)) = one {
                    task(&mut w, i, item);
                    one = next();
                }
            }
        };
        match &self.team {
            Some(team) if helpers > 0 => team.run(&take_all, helpers),
            _ => take_all(),
        }
    }
}

/// Cuts `blocks` blocks of `tokens` tokens into splits of about 4096 tokens, each starting at a multiple of 16 blocks.
/// Depends on nothing else, so that outputs have the same bits on any number of threads. No blocks give one empty split
/// (which may still carry the tail).
pub fn splits(blocks: usize, tokens: usize) -> impl ExactSizeIterator<Item = Range<usize>> + DoubleEndedIterator {
    let length = (4096 / tokens.max(1)).next_multiple_of(crate::masses::TILE);
    let count = blocks.div_ceil(length).max(1);
    (0..count).map(move |i| i * length..((i + 1) * length).min(blocks))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    #[test]
    fn splits_tile_the_blocks_at_multiples_of_sixteen() {
        for blocks in [0, 1, 63, 64, 65, 128, 129, 1000] {
            for tokens in [16, 32, 64] {
                let mut at = 0;
                for r in splits(blocks, tokens) {
                    assert_eq!((r.start, r.start % 16), (at, 0));
                    at = r.end;
                }
                assert_eq!(at, blocks);
            }
        }
        assert_eq!(splits(0, 32).len(), 1);
    }

    #[test]
    fn every_item_is_visited_once_on_any_number_of_threads() {
        for threads in [1, 2, 3] {
            let mut items = vec![0usize; 100];
            Pool::new(threads).unwrap().run(&mut items, || (), |(), i, x| *x += i + 1);
            assert!(items.iter().enumerate().all(|(i, &x)| x == i + 1));
        }
    }

    #[test]
    fn the_pools_threads_take_part() {
        let (pool, together) = (Pool::new(3).unwrap(), Barrier::new(3));
        let sets = AtomicUsize::new(0);
        // Each task waits for two others: fewer threads would never come back.
        pool.run(
            &mut [(); 3],
            || sets.fetch_add(1, Relaxed),
            |_, _, ()| {
                together.wait();
            },
        );
        assert_eq!((sets.into_inner(), pool.threads()), (3, 3));
    }

    #[test]
    fn callers_at_once_and_within_each_other_get_their_own_items() {
        let pool = Pool::new(3).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut items = vec![[0usize; 5]; 7];
                        pool.run(
                            &mut items,
                            || (),
                            |(), i, row| pool.run(row, || (), |(), j, x| *x += caller + round + i * j),
                        );
                        let right = |i: usize, row: &[usize; 5]| (0..5).all(|j| row[j] == caller + round + i * j);
                        assert!(items.iter().enumerate().all(|(i, row)| right(i, row)));
                    }
                });
            }
        });
    }

    #[test]
    fn a_task_that_panics_tells_its_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..20 {
            let (running, mut items) = (AtomicUsize::new(0), [0usize; 20]);
            let run = || {
                pool.run(
                    &mut items,
                    || (),
                    |(), i, _| {
                        running.fetch_add(1, Relaxed);
                        std::thread::yield_now();
                        running.fetch_sub(1, Relaxed);
                        assert_ne!(i, bad, "planted");
                    },
                );
            };
            let told = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert!(told.downcast_ref::<String>().unwrap().contains("planted"));
            assert_eq!(running.into_inner(), 0, "nobody runs a task behind its caller's back");
            let mut sums = [0usize; 10];
            pool.run(&mut sums, || (), |(), i, x| *x = i);
            assert!(sums.iter().enumerate().all(|(i, &x)| x == i));
        }
    }
}

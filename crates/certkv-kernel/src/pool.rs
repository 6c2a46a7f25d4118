//! Threads for independent tasks.
use crate::error::KernelError;
use core::ops::Range;
use rayon::prelude::*;

/// Runs independent tasks on a fixed number of threads. Results never depend on that number: which tasks exist depends
/// only on shapes (see [`splits`]), every task writes to its own place, and merging is in task order.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    pool: Option<rayon::ThreadPool>,
}

impl Pool {
    /// A pool of `threads` threads; 1 (or 0) runs tasks on the caller's thread.
    ///
    /// # Errors
    /// [`KernelError::Threads`] if the system refuses.
    pub fn new(threads: usize) -> Result<Self, KernelError> {
        let pool = if threads <= 1 {
            None
        } else {
            let built = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("certkv-{i}"));
            Some(built.build().map_err(|_| KernelError::Threads(threads))?)
        };
        Ok(Self { threads: threads.max(1), pool })
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `task` on every item with the item's index; waits for all. `state` makes one working set per thread that
    /// takes part.
    pub fn run<T: Send, W: Send>(
        &self,
        items: &mut [T],
        state: impl Fn() -> W + Sync + Send,
        task: impl Fn(&mut W, usize, &mut T) + Sync + Send,
    ) {
        match &self.pool {
            None => {
                let mut w = state();
                items.iter_mut().enumerate().for_each(|(i, item)| task(&mut w, i, item));
            }
            Some(pool) => pool.install(|| {
                items.par_iter_mut().with_max_len(1).enumerate().for_each_init(&state, |w, (i, item)| task(w, i, item));
            }),
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

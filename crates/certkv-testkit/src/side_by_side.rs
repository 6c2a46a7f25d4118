//! Cases of a test that know nothing of each other, on several threads.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// What `judge` says of each case, in their order, on so many threads. A case that panics takes the caller with it.
pub fn side_by_side<T: Sync, R: Send>(threads: usize, cases: &[T], judge: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let take = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            cases.get(at).map(|case| (at, case))
        };
        std::iter::from_fn(take).map(|(at, case)| (at, judge(case))).collect::<Vec<_>>()
    };
    let mut judged: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    judged.sort_by_key(|(at, _)| *at);
    judged.into_iter().map(|(_, said)| said).collect()
}

/// As many threads as the machine has cores.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_judged_once_and_in_order() {
        let cases: Vec<u64> = (0..1000).collect();
        for threads in [0, 1, 7] {
            assert_eq!(
                side_by_side(threads, &cases, |case| case * 3),
                cases.iter().map(|case| case * 3).collect::<Vec<_>>()
            );
        }
        assert_eq!(side_by_side(2, &[], |(): &()| 1), [0; 0]);
    }

    #[test]
    fn a_panic_is_the_callers() {
        let caught = std::panic::catch_unwind(|| side_by_side(2, &[1, 2, 3], |case| assert_ne!(*case, 2)));
        assert!(caught.is_err());
    }
}

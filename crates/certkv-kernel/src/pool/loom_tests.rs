//! How jobs are posted, entered, left and taken back, under every interleaving.
use super::team::{Job, Team};
use certkv_core::sync::{Arc, atomic::AtomicUsize, thread};
use core::sync::atomic::Ordering::Relaxed;

/// A job of two things to take: how many were taken, and how many threads are in it.
struct Seen {
    left: AtomicUsize,
    taken: AtomicUsize,
    inside: AtomicUsize,
}

fn job() -> (&'static Seen, Job) {
    let seen: &Seen = Box::leak(Box::new(Seen {
        left: AtomicUsize::new(2),
        taken: AtomicUsize::new(0),
        inside: AtomicUsize::new(0),
    }));
    let take = || {
        seen.inside.fetch_add(1, Relaxed);
        while seen.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            seen.taken.fetch_add(1, Relaxed);
        }
        seen.inside.fetch_sub(1, Relaxed);
    };
    (seen, Box::leak(Box::new(take)))
}

/// Posts a job and works on it; a caller that is `hasty` does not wait for its helpers.
fn call(team: &Team, hasty: bool) {
    let (seen, job) = job();
    if hasty {
        let posted = team.post(job, 1);
        job();
        core::mem::forget(posted);
    } else {
        team.run(job, 1);
    }
    assert_eq!((seen.taken.load(Relaxed), seen.inside.load(Relaxed)), (2, 0), "all was taken, and nobody is at it");
}

fn explore(story: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(story);
}

#[test]
fn a_caller_goes_on_when_all_is_done_and_nobody_is_inside() {
    explore(|| {
        let team = Team::new(1).unwrap();
        call(&team, false);
        call(&team, false);
    });
}

#[test]
fn two_callers_share_a_helper() {
    explore(|| {
        let team = Arc::new(Team::new(1).unwrap());
        let other = team.clone();
        let caller = thread::spawn(move || call(&other, false));
        call(&team, false);
        caller.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "nobody is at it")]
fn control_a_hasty_caller_is_caught() {
    explore(|| call(&Team::new(1).unwrap(), true));
}

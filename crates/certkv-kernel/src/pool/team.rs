//! Threads that help whoever has work, and ask the allocator for nothing once they have started.
//!
//! A caller posts a job, works on it itself, and takes it back; helpers enter jobs that are posted, run them, and leave. A job is a call
//! that several threads make at once, and that returns when there is nothing left to take. [`Posted`] goes only when the last helper has
//! left its job, and no helper enters a job that one of them has left: that is what lets a job borrow from its caller's stack.
//!
//! Why not a pool of a library's: their queues ask for memory as jobs come in, and a decode step must not.
use certkv_core::sync::steady::{Condvar, Mutex, MutexGuard};
use certkv_core::sync::{Arc, thread};
use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};

/// What threads call, all at once.
pub(super) type Job = &'static (dyn Fn() + Sync);

/// Callers at once before the list of jobs has to grow.
const CALLERS: usize = 64;

/// A job on the list.
struct Entry {
    number: u64,
    job: Job,
    /// Helpers that have entered, and not left.
    inside: usize,
    /// There is nothing left to take of it.
    over: bool,
    /// What a helper's call panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

struct List {
    entries: Vec<Entry>,
    posted: u64,
    ending: bool,
}

impl List {
    fn of(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.number == number)
    }
}

struct Shared {
    list: Mutex<List>,
    /// A job was posted, or the team ends.
    work: Condvar,
    /// The last helper has left a job that is over.
    left: Condvar,
}

impl Shared {
    /// Nothing panics while the list is locked.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A helper's life.
    fn help(&self) {
        let mut list = self.list();
        loop {
            if let Some(entry) = list.entries.iter_mut().find(|entry| !entry.over) {
                entry.inside += 1;
                let (number, job) = (entry.number, entry.job);
                drop(list);
                let panic = catch_unwind(AssertUnwindSafe(job)).err();
                list = self.list();
                if let Some(entry) = list.of(number) {
                    entry.inside -= 1;
                    entry.over = true;
                    entry.panic = panic.or_else(|| entry.panic.take());
                    if entry.inside == 0 {
                        self.left.notify_all();
                    }
                }
            } else if list.ending {
                return;
            } else {
                list = self.work.wait(list).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }
}

/// Helpers.
pub(super) struct Team {
    shared: Arc<Shared>,
    helpers: Vec<thread::JoinHandle<()>>,
}

impl Team {
    /// So many helpers; none where the system refuses one of them.
    pub(super) fn new(helpers: usize) -> Option<Self> {
        let list = Mutex::new(List { entries: Vec::with_capacity(CALLERS), posted: 0, ending: false });
        let shared = Arc::new(Shared { list, work: Condvar::new(), left: Condvar::new() });
        let mut team = Self { shared, helpers: Vec::with_capacity(helpers) };
        for i in 0..helpers {
            let shared = team.shared.clone();
            let named = thread::Builder::new().name(format!("certkv-{i}"));
            team.helpers.push(named.spawn(move || shared.help()).ok()?);
        }
        Some(team)
    }

    pub(super) fn helpers(&self) -> usize {
        self.helpers.len()
    }

    /// Puts a job on the list, and wakes as many helpers.
    pub(super) fn post(&self, job: Job, helpers: usize) -> Posted<'_> {
        let number = {
            let mut list = self.shared.list();
            let number = list.posted;
            list.posted += 1;
            list.entries.push(Entry { number, job, inside: 0, over: false, panic: None });
            number
        };
        (0..helpers.min(self.helpers.len())).for_each(|_| self.shared.work.notify_one());
        Posted { team: self, number }
    }

    /// Calls `job` on this thread, and on as many helpers as are free, `helpers` at most being woken; waits for all of them.
    ///
    /// # Panics
    /// With what a call of `job` panicked with, once no thread runs it any more.
    pub(super) fn run(&self, job: &(dyn Fn() + Sync), helpers: usize) {
        // SAFETY: the reference is used by helpers that have entered the job, and by none after `posted` is gone, which is before this
        // function returns or unwinds: the lifetime that is made up here is not used past the real one.
        let unbound = unsafe { core::mem::transmute::<&(dyn Fn() + Sync), Job>(job) };
        let posted = self.post(unbound, helpers);
        job();
        if let Some(panic) = posted.take_back() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.list().ending = true;
        self.shared.work.notify_all();
        self.helpers.drain(..).for_each(|helper| drop(helper.join()));
    }
}

/// A job on the list. When this is gone no helper runs it.
pub(super) struct Posted<'t> {
    team: &'t Team,
    number: u64,
}

impl Posted<'_> {
    /// Waits until no helper runs the job, and takes it off the list: what one of them panicked with.
    fn take_back(&self) -> Option<Box<dyn Any + Send>> {
        let shared = &*self.team.shared;
        let mut list = shared.list();
        loop {
            let at = list.entries.iter().position(|entry| entry.number == self.number)?;
            list.entries[at].over = true;
            if list.entries[at].inside == 0 {
                return list.entries.swap_remove(at).panic;
            }
            list = shared.left.wait(list).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        // A caller that unwinds has a panic of its own to tell.
        drop(self.take_back());
    }
}

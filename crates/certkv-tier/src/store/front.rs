//! The store: batches in, completions out, workers in between.
use super::backend::Backend;
use super::batch::{Batch, Completion, Get, Put, Ticket};
use super::error::{Busy, StillRunning};
use super::execute::execute;
use super::key::StoreKey;
use super::seal::SEAL_BYTES;
use certkv_core::sync::{Arc, Condvar, Mutex, MutexGuard, thread};
#[cfg(target_os = "linux")]
use certkv_device::EventFd;
use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

/// Sizes of a [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreConfig {
    /// Threads that call the back end; 0 counts as 1.
    pub workers: usize,
    /// Batches that may be submitted and not drained. More are refused.
    pub outstanding: usize,
    /// Bytes of the largest page.
    pub page_bytes: usize,
    /// How long a drop waits for workers that are inside the back end.
    pub close_timeout: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { workers: 4, outstanding: 64, page_bytes: 16 << 20, close_timeout: Duration::from_secs(30) }
    }
}

/// Tier-3: pages outside the process, under keys.
///
/// A submission takes a batch and returns at once; one worker runs the whole batch, and its completion brings every
/// item back with a result of its own. Batches run in any order: who needs a page in the store waits for the completion
/// of its put. The descriptor is readable while completions wait.
///
/// Submitting costs one lock and no I/O. A worker seals what it puts and opens what it gets: one pass over each page.
pub struct Store {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    config: StoreConfig,
}

struct Shared {
    backend: Arc<dyn Backend>,
    record_bytes: usize,
    state: Mutex<State>,
    /// A batch was queued, or the store closed.
    work: Condvar,
    /// A batch completed, or a worker left.
    done: Condvar,
    #[cfg(target_os = "linux")]
    event: EventFd,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Ticket, Batch)>,
    completions: Vec<Completion>,
    /// Batches queued, running or waiting to be drained.
    outstanding: usize,
    submitted: u64,
    workers: usize,
    closed: bool,
}

impl Store {
    /// Starts the workers.
    ///
    /// # Errors
    /// The system's: no thread or no descriptor. Workers that had started are gone then.
    pub fn new(backend: Arc<dyn Backend>, config: StoreConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            backend,
            record_bytes: config.page_bytes.saturating_add(SEAL_BYTES),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            #[cfg(target_os = "linux")]
            event: EventFd::new()?,
        });
        let store = Self { shared, threads: Mutex::default(), config };
        for i in 0..config.workers.max(1) {
            let worker = Worker::new(&store.shared);
            let thread = thread::Builder::new().name(format!("certkv-store-{i}")).spawn(move || worker.run())?;
            store.threads.lock().push(thread);
        }
        Ok(store)
    }

    /// Stores pages in place of what their keys had.
    ///
    /// # Errors
    /// [`Busy`] if too many batches are outstanding or the store is closed.
    pub fn submit_put(&self, batch: Vec<Put>) -> Result<Ticket, Busy<Put>> {
        self.submit(batch, Batch::Put)
    }

    /// Reads pages.
    ///
    /// # Errors
    /// As for [`Store::submit_put`].
    pub fn submit_get(&self, batch: Vec<Get>) -> Result<Ticket, Busy<Get>> {
        self.submit(batch, Batch::Get)
    }

    /// Asks which keys have a page.
    ///
    /// # Errors
    /// As for [`Store::submit_put`].
    pub fn submit_exists(&self, batch: Vec<StoreKey>) -> Result<Ticket, Busy<StoreKey>> {
        self.submit(batch, Batch::Exists)
    }

    /// Forgets pages; a key without one is no error.
    ///
    /// # Errors
    /// As for [`Store::submit_put`].
    pub fn submit_delete(&self, batch: Vec<StoreKey>) -> Result<Ticket, Busy<StoreKey>> {
        self.submit(batch, Batch::Delete)
    }

    fn submit<T>(&self, batch: Vec<T>, wrap: impl FnOnce(Vec<T>) -> Batch) -> Result<Ticket, Busy<T>> {
        let mut state = self.shared.state.lock();
        let (outstanding, limit) = (state.outstanding, if state.closed { 0 } else { self.config.outstanding });
        if outstanding >= limit {
            return Err(Busy { batch, outstanding, limit });
        }
        let ticket = Ticket(state.submitted);
        state.submitted += 1;
        state.outstanding += 1;
        state.queue.push_back((ticket, wrap(batch)));
        drop(state);
        self.shared.work.notify_one();
        Ok(ticket)
    }

    /// Moves all completions to the end of `into`; how many. Never waits. The descriptor may stay readable once more for
    /// a completion that was drained already.
    pub fn drain_completions(&self, into: &mut Vec<Completion>) -> usize {
        // Before the queue is emptied: what completes in between is signalled again.
        #[cfg(target_os = "linux")]
        let _ = self.shared.event.clear();
        let mut state = self.shared.state.lock();
        let n = state.completions.len();
        into.append(&mut state.completions);
        state.outstanding -= n;
        n
    }

    /// Completions that wait to be drained.
    pub fn poll(&self) -> usize {
        self.shared.state.lock().completions.len()
    }

    /// Waits until a completion is there to be drained; whether one is.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.state.lock();
        while state.completions.is_empty() {
            if self.shared.wait_done(&mut state, deadline) {
                break;
            }
        }
        !state.completions.is_empty()
    }

    /// Batches that were submitted and not drained.
    pub fn outstanding(&self) -> usize {
        self.shared.state.lock().outstanding
    }

    /// Takes no more batches, fails those that no worker has begun ([`StoreError::Closed`]), and waits for the others.
    /// Completions can be drained afterwards: every buffer comes back. Closing again waits again.
    ///
    /// [`StoreError::Closed`]: super::StoreError::Closed
    ///
    /// # Errors
    /// [`StillRunning`] if a back end did not return in time. Its workers end when it does.
    pub fn close(&self, timeout: Duration) -> Result<(), StillRunning> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.state.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        state
            .completions
            .extend(queue.into_iter().map(|(ticket, batch)| Completion { ticket, outcome: batch.closed() }));
        self.shared.signal();
        self.shared.work.notify_all();
        while state.workers > 0 {
            if self.shared.wait_done(&mut state, deadline) {
                return Err(StillRunning { workers: state.workers });
            }
        }
        drop(state);
        let threads = std::mem::take(&mut *self.threads.lock());
        // A worker that has left runs no more of our code; its result says nothing.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Workers that are stuck hold what they need themselves.
        let _ = self.close(self.config.close_timeout);
    }
}

#[cfg(target_os = "linux")]
impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

#[cfg(target_os = "linux")]
impl AsRawFd for Store {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("config", &self.config).field("outstanding", &self.outstanding()).finish()
    }
}

/// Counted for as long as it is alive, however its thread ends.
struct Worker(Arc<Shared>);

impl Worker {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.state.lock().workers += 1;
        Self(Arc::clone(shared))
    }

    fn run(self) {
        let shared = &*self.0;
        while let Some((ticket, batch)) = shared.next() {
            let outcome = execute(&*shared.backend, shared.record_bytes, batch);
            shared.complete(Completion { ticket, outcome });
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.state.lock().workers -= 1;
        self.0.done.notify_all();
    }
}

impl Shared {
    fn next(&self) -> Option<(Ticket, Batch)> {
        let mut state = self.state.lock();
        loop {
            match state.queue.pop_front() {
                Some(next) => return Some(next),
                None if state.closed => return None,
                None => self.work.wait(&mut state),
            }
        }
    }

    fn complete(&self, completion: Completion) {
        self.state.lock().completions.push(completion);
        self.done.notify_all();
        self.signal();
    }

    /// Makes the descriptor readable. It cannot fail while it is open, and those who wait here are woken all the same.
    fn signal(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.event.signal();
    }

    /// Waits for the next change; whether the deadline has passed. `None` never passes.
    fn wait_done(&self, state: &mut MutexGuard<'_, State>, deadline: Option<Instant>) -> bool {
        match deadline {
            Some(deadline) => self.done.wait_until(state, deadline).timed_out(),
            None => {
                self.done.wait(state);
                false
            }
        }
    }
}

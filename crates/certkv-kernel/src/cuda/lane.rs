//! Streams beside a queue. Their work comes under a guard, [`Turn`], that carries the stream: it begins behind what the queue had been given, and
//! dropping it records the event that whoever comes next waits for.
//!
//! There is no other way onto a lane, so that nothing is enqueued there that is not ordered behind the queue, nor anything whose end nobody marked.
use super::queue::Queue;
use certkv_device::cuda::{CopyBatch, CudaError, Event};
use core::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream over a queue's pinned memory, for work that runs beside the queue's. Dropping it waits for its work.
#[derive(Debug)]
pub struct Lane {
    queue: Queue,
    /// What the last turn recorded when it was dropped, until somebody joins; or why one could not, of which later turns do not take the place.
    left: Mutex<Option<Result<Event, CudaError>>>,
}

/// Access of a lane to what its queue uses, too. What is enqueued through it is ordered behind all that the queue had been given when it began; behind
/// it comes what follows a [`Queue::join`], which also says what the drop could not. Dropping it records its event, about 1 us of the host.
#[derive(Debug)]
#[must_use = "the turn is over when it is dropped"]
pub struct Turn<'l> {
    lane: &'l Lane,
    marked: bool,
}

impl Lane {
    pub(super) fn over(queue: Queue) -> Self {
        Self { queue, left: Mutex::default() }
    }

    /// Begins a turn behind all that `queue` has been given so far. The host does not wait, and a recording holds it.
    ///
    /// # Errors
    /// The driver's: nothing was enqueued.
    pub fn turn(&self, queue: &Queue) -> Result<Turn<'_>, CudaError> {
        self.queue.stream().wait(&queue.mark()?)?;
        Ok(Turn { lane: self, marked: false })
    }

    /// An empty list of copies, as [`Queue::batch`].
    pub fn batch(&self, room: usize) -> CopyBatch {
        self.queue.batch(room)
    }

    /// Blocks until all turns are over.
    ///
    /// # Errors
    /// The driver's, and those of the work.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.queue.finish()
    }

    fn left(&self) -> MutexGuard<'_, Option<Result<Event, CudaError>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, event: Option<Result<Event, CudaError>>) {
        let mut left = self.left();
        if !matches!(*left, Some(Err(_))) {
            *left = event;
        }
    }

    /// Has `queue` wait for all turns so far. What fails leaves no event: the next call marks the lane anew.
    pub(super) fn joined_by(&self, queue: &Queue) -> Result<(), CudaError> {
        let left = self.left().take();
        queue.stream().wait(&left.unwrap_or_else(|| self.queue.mark())?)
    }
}

impl Turn<'_> {
    /// Ends the turn, and gives its event to the caller.
    ///
    /// # Errors
    /// The driver's: the turn is over, and who joins the lane marks it anew.
    pub fn end(mut self) -> Result<Event, CudaError> {
        self.marked = true;
        self.lane.leave(None);
        self.lane.queue.mark()
    }
}

impl Deref for Turn<'_> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.lane.queue
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.marked {
            self.lane.leave(Some(self.lane.queue.mark()));
        }
    }
}

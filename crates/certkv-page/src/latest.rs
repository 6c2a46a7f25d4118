//! The latest so many of what happened, under numbers that go up by one.
//!
//! Reading leaves no trace: any number of readers ask for any number that is still there, and who comes too late is told how many are
//! gone. All memory is taken when it is made.
use core::fmt;
use std::collections::TryReserveError;

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventsRead {
    /// Events that were written, of consecutive numbers.
    pub read: usize,
    /// Events between the number asked for and the first that is still there.
    pub lost: u64,
    /// Number to ask for next time.
    pub next: u64,
    /// Number that the next event will have: equal to `next` when all were read.
    pub newest: u64,
}

/// An event was asked for that is not the next one, but one after it: of another cache, say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotYet {
    /// Number that was asked for.
    pub asked: u64,
    /// Number of the next event.
    pub next: u64,
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} is not even the next one, which is {}", self.asked, self.next)
    }
}
impl core::error::Error for NotYet {}

/// A ring of events.
#[derive(Debug)]
pub struct Latest<T> {
    kept: Vec<T>,
    next: u64,
}

impl<T: Copy> Latest<T> {
    /// Room for `capacity` events, at least one; `blank` fills it.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(capacity: usize, blank: T) -> Result<Self, TryReserveError> {
        let mut kept = Vec::new();
        kept.try_reserve_exact(capacity.max(1))?;
        kept.resize(capacity.max(1), blank);
        Ok(Self { kept, next: 0 })
    }

    /// Number of the next event.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Keeps what `event` makes of its number, in the place of the oldest; the place.
    pub fn push(&mut self, event: impl FnOnce(u64) -> T) -> usize {
        let at = (self.next % self.kept.len() as u64) as usize;
        self.kept[at] = event(self.next);
        self.next += 1;
        at
    }

    /// Hands up to `room` events from number `from` on, or from the oldest that is left, to `each`: how many went before, the event, and
    /// its place.
    ///
    /// # Errors
    /// [`NotYet`]; `each` was not called.
    pub fn read(&self, from: u64, room: usize, mut each: impl FnMut(usize, &T, usize)) -> Result<EventsRead, NotYet> {
        if from > self.next {
            return Err(NotYet { asked: from, next: self.next });
        }
        let capacity = self.kept.len() as u64;
        let first = from.max(self.next.saturating_sub(capacity));
        let read = room.min(usize::try_from(self.next - first).unwrap_or(usize::MAX));
        for i in 0..read {
            let at = ((first + i as u64) % capacity) as usize;
            each(i, &self.kept[at], at);
        }
        Ok(EventsRead { read, lost: first - from, next: first + read as u64, newest: self.next })
    }
}

//! What happened since a cache was made, counted where it happens: relaxed additions, none of them per block.
use crate::{BytesRead, Certificate, Error, Rung, SaveError, Status};
use certkv_core::{Histogram, SharedHistogram};
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Moves that the engine makes itself. Those to scratch are counted there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Rows of one layer of one sequence to the host; on a GPU full blocks of a step, in all layers.
    Store,
    /// The open block of a fork or a cut, in all layers of a KV group.
    Copy,
    /// A sequence to a file.
    Save,
    /// A sequence from a file.
    Restore,
    /// A sequence's codes out of the device's memory.
    SwapOut,
    /// And back.
    SwapIn,
    /// Originals of one block in one layer to the store.
    Spill,
    /// What one read of originals lacked, from the store.
    Fetch,
    /// A block of one layer coded again at another level.
    Recode,
}

/// Moves of one kind by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moves {
    /// Done; each with its bytes.
    pub done: Histogram,
    /// Not begun, or given up: no room, or nothing that may be moved.
    pub refused: u64,
    /// The device, or the file, failed. What was to be moved is where it was.
    pub failed: u64,
}

/// Outputs of decode steps, one per query head, layer and token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outputs {
    /// Within their tolerance.
    pub certified: u64,
    /// Computed from the originals.
    pub exact: u64,
    /// Of policies that claim nothing.
    pub uncertified: u64,
    /// Not given: those of calls that ended in [`Error::Uncertifiable`], all of a call together.
    pub failed: u64,
    /// Given outputs by the rung on which they were made, in the order of [`Rung`].
    pub by_rung: [u64; 5],
    /// Outputs of longer chunks, which are exact.
    pub prompt: u64,
}

#[derive(Debug, Default)]
struct Tally {
    done: SharedHistogram,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// The numbers themselves.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    moves: [Tally; 9],
    statuses: [AtomicU64; 4],
    rungs: [AtomicU64; 5],
    prompt: AtomicU64,
    read: [AtomicU64; 3],
    waits: SharedHistogram,
    saturated: AtomicU64,
    rows: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Counts a move by its result: the bytes that moved, or why none did.
    pub(crate) fn moved(&self, kind: Kind, result: Result<u64, Error>) -> Result<u64, Error> {
        self.moved_with(kind, result, |bytes| *bytes)
    }

    /// As [`Counters::moved`] for a move that comes to more than its bytes.
    pub(crate) fn moved_with<T>(
        &self,
        kind: Kind,
        result: Result<T, Error>,
        bytes: impl FnOnce(&T) -> u64,
    ) -> Result<T, Error> {
        let tally = &self.moves[kind as usize];
        match &result {
            Ok(moved) => tally.done.record(bytes(moved)),
            Err(error) if error.is_refusal() => add(&tally.refused, 1),
            Err(_) => add(&tally.failed, 1),
        }
        result
    }

    /// Counts rows that were read by themselves.
    pub(crate) fn rows(&self, rows: usize) {
        add(&self.rows, rows as u64);
    }

    /// Counts elements that fixed scales could not reach.
    pub(crate) fn saturated(&self, elements: u64) {
        add(&self.saturated, elements);
    }

    /// How many rows there were.
    pub(crate) fn all_rows(&self) -> u64 {
        get(&self.rows)
    }

    /// How many there were.
    pub(crate) fn all_saturated(&self) -> u64 {
        get(&self.saturated)
    }

    /// Counts originals that were to be stored: their bytes, or whether they were refused for want of room.
    pub(crate) fn put(&self, result: Result<u64, bool>) {
        let Tally { done, refused, failed } = &self.moves[Kind::Spill as usize];
        match result {
            Ok(bytes) => done.record(bytes),
            Err(full) => add(if full { refused } else { failed }, 1),
        }
    }

    /// Times a wait of the host for the device. Two looks at the clock.
    pub(crate) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        self.waits.record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        result
    }

    /// Counts the certificates of one token's query heads, `group` to a KV head: they share what was read.
    pub(crate) fn decoded(&self, certificates: &[Certificate], group: usize) {
        let (mut statuses, mut rungs, mut read) = ([0; 4], [0; 5], BytesRead::default());
        for c in certificates {
            statuses[c.status as usize] += 1;
            rungs[c.rung as usize] += 1;
        }
        for c in certificates.iter().step_by(group.max(1)) {
            read.packed += c.bytes.packed;
            read.scratch += c.bytes.scratch;
            read.host += c.bytes.host;
        }
        self.statuses.iter().zip(statuses).for_each(|(counter, n)| add(counter, n));
        self.rungs.iter().zip(rungs).for_each(|(counter, n)| add(counter, n));
        self.read.iter().zip([read.packed, read.scratch, read.host]).for_each(|(counter, n)| add(counter, n));
    }

    /// Counts outputs of a longer chunk.
    pub(crate) fn prompted(&self, outputs: usize) {
        add(&self.prompt, outputs as u64);
    }

    /// Counts the outputs of a call that is refused because one of them has no bound.
    pub(crate) fn withheld(&self, result: Result<(), Error>, outputs: usize) -> Result<(), Error> {
        if matches!(result, Err(Error::Uncertifiable { .. })) {
            add(&self.statuses[Status::Failed as usize], outputs as u64);
        }
        result
    }

    pub(crate) fn moves(&self, kind: Kind) -> Moves {
        let Tally { done, refused, failed } = &self.moves[kind as usize];
        Moves { done: done.get(), refused: get(refused), failed: get(failed) }
    }

    pub(crate) fn outputs(&self) -> Outputs {
        let of = |status: Status| get(&self.statuses[status as usize]);
        Outputs {
            certified: of(Status::Certified),
            exact: of(Status::Exact),
            uncertified: of(Status::Uncertified),
            failed: of(Status::Failed),
            by_rung: [Rung::Packed, Rung::MoreKeys, Rung::ExactValues, Rung::DenseHead, Rung::DenseLayer]
                .map(|rung| get(&self.rungs[rung as usize])),
            prompt: get(&self.prompt),
        }
    }

    pub(crate) fn read(&self) -> BytesRead {
        let [packed, scratch, host] = &self.read;
        BytesRead { packed: get(packed), scratch: get(scratch), host: get(host) }
    }

    pub(crate) fn waits(&self) -> Histogram {
        self.waits.get()
    }
}

impl Error {
    /// Nothing was begun, or it was given up for want of room: nobody's device failed.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Save(SaveError::Io { .. }) => false,
            Self::UnknownSequence(_)
            | Self::BusySequence(_)
            | Self::TooManySequences { .. }
            | Self::SwappedOut
            | Self::NotSwappedOut
            | Self::CapacityExhausted { .. }
            | Self::TooLong { .. }
            | Self::Budget(_)
            | Self::Level { .. }
            | Self::Save(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_device::DeviceError;

    #[test]
    fn moves_are_counted_by_what_became_of_them() {
        let counters = Counters::default();
        let full = || Error::TooManySequences { max_sequences: 1 };
        let gone = || SaveError::Io { kind: std::io::ErrorKind::NotFound, text: String::new() };
        counters.moved(Kind::Save, Ok(5)).unwrap();
        assert!(counters.moved(Kind::Save, Err(full())).is_err());
        assert!(counters.moved(Kind::Save, Err(SaveError::NotASequence.into())).is_err());
        assert!(counters.moved(Kind::Save, Err(gone().into())).is_err());
        assert!(counters.moved(Kind::Copy, Err(DeviceError::Foreign.into())).is_err());
        let saved = counters.moves(Kind::Save);
        assert_eq!((saved.done.count(), saved.done.sum, saved.refused, saved.failed), (1, 5, 2, 1));
        assert_eq!(counters.moves(Kind::Copy), Moves { failed: 1, ..Moves::default() });
    }

    #[test]
    fn heads_that_share_a_read_count_it_once() {
        let counters = Counters::default();
        let bytes = BytesRead { packed: 7, scratch: 3, host: 2 };
        let c = Certificate { status: Status::Exact, rung: Rung::DenseHead, bytes, ..Certificate::UNCERTIFIED };
        counters.decoded(&[c; 6], 3);
        assert_eq!(counters.read(), BytesRead { packed: 14, scratch: 6, host: 4 });
        let outputs = counters.outputs();
        assert_eq!((outputs.exact, outputs.by_rung), (6, [0, 0, 0, 6, 0]));
    }

    #[test]
    fn outputs_without_a_bound_are_failed_and_those_of_other_errors_are_none() {
        let counters = Counters::default();
        assert!(counters.withheld(Err(Error::Uncertifiable { layer: 3 }), 8).is_err());
        assert!(counters.withheld(Err(Error::NoVisibleToken), 8).is_err());
        counters.withheld(Ok(()), 8).unwrap();
        assert_eq!(counters.outputs(), Outputs { failed: 8, ..Outputs::default() });
    }

    #[test]
    fn a_wait_is_as_long_as_it_took() {
        let counters = Counters::default();
        counters.wait(|| std::thread::sleep(std::time::Duration::from_millis(2)));
        let waits = counters.waits();
        assert!(waits.count() == 1 && waits.sum >= 2_000_000, "{waits:?}");
    }
}

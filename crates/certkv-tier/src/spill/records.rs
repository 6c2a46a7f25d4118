//! Records of slots in a store: their names, what is under way, what is to be deleted, and their bytes in the ledger.
//!
//! The bytes of a record are taken before its first put is submitted, and given back once its delete was done: so the ledger is
//! never below what lies in the store. A put whose answer was lost may have stored its record; it stays counted, and is deleted
//! with the others.
use super::map::SlotId;
use crate::store::{
    Backend, Completion, Get, Identity, Outcome, Put, SEAL_BYTES, Store, StoreConfig, StoreError, StoreKey, Ticket,
};
use certkv_core::sync::{Arc, Mutex, MutexGuard};
use certkv_core::{BudgetExceeded, Class, Ledger};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::io;
use std::time::Instant;

/// Records deleted in one batch.
const DELETES: usize = 64;
/// Batches of deletes under way at once, at most: the store's queue has room for them beside a batch for every buffer, so that a get or a put is never refused
/// because of them, and finds a thread soon.
const DELETE_BATCHES: usize = 2;
/// After a failure nothing of that kind is tried for so long, unless somebody waits for it.
const PAUSE: Duration = Duration::from_millis(100);
/// Of the bytes of a record: another number, another meaning.
const LAYOUT: u64 = 1;

/// Names one record of this cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    /// KV group.
    pub group: u32,
    /// The slot, with the generation of its page.
    pub slot: SlotId,
}

/// What all records of a KV group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordGroup {
    /// Bytes of a slot.
    pub bytes: usize,
    /// Its first layer.
    pub first_layer: u32,
    /// Number of what the bytes are: shape and type of the rows.
    pub format: u64,
}

/// Sizes of [`Records`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordsConfig {
    /// Threads that call the back end.
    pub workers: usize,
    /// Most records under way, each in a buffer of its own.
    pub buffers: usize,
    /// How long a drop waits for the back end.
    pub close_timeout: Duration,
}

/// What came of a put or a get.
#[derive(Debug)]
pub enum Event {
    /// A put is over; its buffer has come back.
    Put(Record, Result<(), StoreError>),
    /// A get is over; whoever looks at it gives its buffer back.
    Got(Ticket, Record, Get, Result<(), StoreError>),
}

/// Counted since the cache was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordStats {
    /// Records whose delete was done.
    pub deleted: u64,
    /// Deletes that failed; each is tried again.
    pub delete_failures: u64,
    /// Records that wait for their delete, or whose delete is under way.
    pub doomed: usize,
    /// Records in puts under way. Those of pages that are over by then become doomed.
    pub putting: usize,
}

#[derive(Debug, Default)]
struct Io {
    under_way: HashMap<Ticket, Vec<Record>>,
    completions: Vec<Completion>,
    spare: Vec<Vec<u8>>,
    out: usize,
    /// Batches of deletes under way.
    deletes: usize,
    /// Nothing is put, or deleted, before.
    puts_rest: Option<Instant>,
    deletes_rest: Option<Instant>,
}

/// The records of one cache. One thread at a time talks to the store, through a [`Courier`].
pub struct Records {
    store: Store,
    secret: [u8; 32],
    /// Names this value in envelopes: random as the secret, and no part of it.
    owner: u64,
    groups: Vec<RecordGroup>,
    ledger: Arc<Ledger>,
    buffers: usize,
    io: Mutex<Io>,
    /// To be deleted, or in a delete under way.
    dead: Mutex<Vec<Record>>,
    deleting: AtomicU64,
    putting: AtomicU64,
    deleted: AtomicU64,
    delete_failures: AtomicU64,
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").field("store", &self.store).field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl Records {
    /// Starts a store of its own on `backend`, which others may use beside it: keys are digests under a secret of this value, so
    /// nobody else's record is found under them, nor one of an earlier process.
    ///
    /// # Errors
    /// The system's: no thread, no descriptor, no randomness.
    pub fn new(
        backend: Arc<dyn Backend>,
        config: RecordsConfig,
        groups: Vec<RecordGroup>,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        let (mut secret, mut owner) = ([0; 32], [0; 8]);
        for bytes in [&mut secret[..], &mut owner] {
            getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))?;
        }
        let store = Store::new(
            backend,
            StoreConfig {
                workers: config.workers,
                // A batch has at least one record; deletes need no buffer.
                outstanding: config.buffers + DELETE_BATCHES,
                page_bytes: groups.iter().map(|group| group.bytes).max().unwrap_or(0),
                close_timeout: config.close_timeout,
            },
        )?;
        Ok(Self {
            store,
            secret,
            owner: u64::from_le_bytes(owner),
            groups,
            ledger,
            buffers: config.buffers,
            io: Mutex::default(),
            dead: Mutex::default(),
            deleting: AtomicU64::new(0),
            putting: AtomicU64::new(0),
            deleted: AtomicU64::new(0),
            delete_failures: AtomicU64::new(0),
        })
    }

    /// Bytes of a buffer for slots of `bytes` bytes.
    pub const fn buffer_bytes(bytes: usize) -> usize {
        bytes.saturating_add(SEAL_BYTES)
    }

    /// The right to talk to the store, if nobody has it.
    pub fn try_courier(&self) -> Option<Courier<'_>> {
        self.io.try_lock().map(|io| Courier { records: self, io })
    }

    /// The right to talk to the store. Waits for whoever has it: as long as a fetch or a wait for puts takes. A caller holds no
    /// lock that they may need.
    pub fn courier(&self) -> Courier<'_> {
        Courier { records: self, io: self.io.lock() }
    }

    /// These records are nobody's: they are deleted when somebody talks to the store next.
    pub fn bury(&self, records: impl Iterator<Item = Record>) {
        self.dead.lock().extend(records);
    }

    /// Deletes so far.
    pub fn stats(&self) -> RecordStats {
        let doomed = self.dead.lock().len() + self.deleting.load(Ordering::Relaxed) as usize;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (deleted, delete_failures) = (of(&self.deleted), of(&self.delete_failures));
        RecordStats { deleted, delete_failures, doomed, putting: of(&self.putting) as usize }
    }

    fn group(&self, record: &Record) -> Option<&RecordGroup> {
        self.groups.get(record.group as usize)
    }

    fn bytes(&self, record: &Record) -> usize {
        self.group(record).map_or(0, |group| Self::buffer_bytes(group.bytes))
    }

    /// The name of a record: a digest over whose it is, with the generation. A page that is used again has other names.
    pub fn key(&self, record: &Record) -> StoreKey {
        let Record { group, slot: SlotId { page, layer } } = *record;
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        for n in [group, layer, page.index, page.generation] {
            hasher.update(&n.to_le_bytes());
        }
        StoreKey(*hasher.finalize().as_bytes())
    }

    /// What the envelope of a record says besides.
    pub fn identity(&self, record: &Record) -> Identity {
        let group = self.group(record).copied().unwrap_or(RecordGroup { bytes: 0, first_layer: 0, format: 0 });
        Identity {
            sequence: self.owner,
            layer: group.first_layer + record.slot.layer,
            block: record.slot.page.index,
            generation: record.slot.page.generation.into(),
            format: group.format,
            layout: LAYOUT << 56 | group.bytes as u64,
        }
    }
}

/// The one who talks to the store at present.
pub struct Courier<'a> {
    records: &'a Records,
    io: MutexGuard<'a, Io>,
}

impl fmt::Debug for Courier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Courier").field("under_way", &self.io.under_way.len()).finish()
    }
}

impl Courier<'_> {
    /// Buffers that can be had now.
    pub fn buffers(&self) -> usize {
        self.records.buffers.saturating_sub(self.io.out)
    }

    /// Buffers there are.
    pub fn all_buffers(&self) -> usize {
        self.records.buffers
    }

    /// An empty buffer; `None` if all are out.
    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        (self.buffers() > 0).then(|| {
            self.io.out += 1;
            let mut buffer = self.io.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer
        })
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Vec<u8>) {
        self.io.out = self.io.out.saturating_sub(1);
        self.io.spare.push(buffer);
    }

    /// Whether puts failed lately, so that more are not worth their copy now.
    pub fn rests(&self) -> bool {
        self.io.puts_rest.is_some_and(|until| Instant::now() < until)
    }

    /// Counts the bytes of a record that is put for the first time.
    ///
    /// # Errors
    /// [`BudgetExceeded`] of the disk's budget; nothing is counted.
    pub fn charge(&mut self, record: &Record) -> Result<(), BudgetExceeded> {
        let charged = self.records.ledger.reserve(Class::Disk, self.records.bytes(record));
        if charged.is_err() {
            self.rest();
        }
        charged
    }

    /// Puts are not tried for a while.
    pub fn rest(&mut self) {
        self.io.puts_rest = Instant::now().checked_add(PAUSE);
    }

    /// Undoes [`Courier::charge`] for a record whose put was not submitted.
    pub fn uncharge(&mut self, record: &Record) {
        self.records.ledger.release(Class::Disk, self.records.bytes(record));
    }

    /// Submits slots, each in a buffer of [`Courier::buffer`]. `false`: the store takes none, the buffers are back.
    pub fn put(&mut self, batch: Vec<(Record, Vec<u8>)>) -> bool {
        let names: Vec<Record> = batch.iter().map(|(record, _)| *record).collect();
        let put = |(record, page): (Record, Vec<u8>)| {
            let (key, identity) = (self.records.key(&record), self.records.identity(&record));
            Put { key, identity, page }
        };
        match self.records.store.submit_put(batch.into_iter().map(put).collect()) {
            Ok(ticket) => {
                self.records.putting.fetch_add(names.len() as u64, Ordering::Relaxed);
                self.io.under_way.insert(ticket, names);
                true
            }
            Err(busy) => {
                busy.batch.into_iter().for_each(|put| self.give(put.page));
                self.rest();
                false
            }
        }
    }

    /// Asks for records, as many as there are buffers. `None`: the store takes none, or all buffers are out.
    pub fn get(&mut self, wanted: &[Record]) -> Option<Ticket> {
        let mut batch = Vec::with_capacity(wanted.len());
        for record in wanted {
            let Some(buffer) = self.buffer() else { break };
            batch.push(Get::new(self.records.key(record), self.records.identity(record), buffer));
        }
        let names = wanted[..batch.len()].to_vec();
        if names.is_empty() {
            return None;
        }
        match self.records.store.submit_get(batch) {
            Ok(ticket) => {
                self.io.under_way.insert(ticket, names);
                Some(ticket)
            }
            Err(busy) => {
                busy.batch.into_iter().for_each(|get| self.give(get.into_buffer()));
                None
            }
        }
    }

    /// Submits deletes of records that are nobody's, a few batches at a time, unless some failed lately.
    pub fn delete(&mut self) {
        self.delete_batches(DELETE_BATCHES);
    }

    /// The same, as many batches as the store takes: for who has nothing else to ask of it.
    pub fn delete_all(&mut self) {
        self.delete_batches(usize::MAX);
    }

    fn delete_batches(&mut self, most: usize) {
        if self.io.deletes_rest.is_some_and(|until| Instant::now() < until) {
            return;
        }
        while self.io.deletes < most {
            let names: Vec<Record> = {
                let mut dead = self.records.dead.lock();
                let first = dead.len().saturating_sub(DELETES);
                let names: Vec<Record> = dead.drain(first..).collect();
                self.records.deleting.fetch_add(names.len() as u64, Ordering::Relaxed);
                names
            };
            if names.is_empty() {
                return;
            }
            let keys = names.iter().map(|record| self.records.key(record)).collect();
            match self.records.store.submit_delete(keys) {
                Ok(ticket) => {
                    self.io.deletes += 1;
                    self.io.under_way.insert(ticket, names);
                }
                Err(_busy) => {
                    self.undelete(names.into_iter());
                    return;
                }
            }
        }
    }

    /// Deletes that were not done, to be tried again.
    fn undelete(&mut self, names: impl Iterator<Item = Record>) {
        let mut dead = self.records.dead.lock();
        let before = dead.len();
        dead.extend(names);
        self.records.deleting.fetch_sub((dead.len() - before) as u64, Ordering::Relaxed);
    }

    /// What has come of batches that are over. Never waits.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        let mut completions = core::mem::take(&mut self.io.completions);
        self.records.store.drain_completions(&mut completions);
        for Completion { ticket, outcome } in completions.drain(..) {
            let names = self.io.under_way.remove(&ticket).unwrap_or_default().into_iter();
            match outcome {
                Outcome::Put(items) => {
                    let failed = items.iter().any(|(_, result)| result.is_err());
                    self.records.putting.fetch_sub(items.len() as u64, Ordering::Relaxed);
                    for (record, (put, result)) in names.zip(items) {
                        self.give(put.page);
                        events.push(Event::Put(record, result));
                    }
                    if failed {
                        self.rest();
                    } else {
                        self.io.puts_rest = None;
                    }
                }
                Outcome::Get(items) => {
                    events.extend(
                        names.zip(items).map(|(record, (get, result))| Event::Got(ticket, record, get, result)),
                    );
                }
                Outcome::Delete(items) => {
                    self.io.deletes -= 1;
                    self.deleted(names, items);
                }
                _ => {}
            }
        }
        self.io.completions = completions;
    }

    fn deleted(&mut self, names: impl Iterator<Item = Record>, items: Vec<(StoreKey, Result<(), StoreError>)>) {
        let mut again = Vec::new();
        for (record, (_, result)) in names.zip(items) {
            if result.is_ok() {
                self.uncharge(&record);
                self.records.deleting.fetch_sub(1, Ordering::Relaxed);
                self.records.deleted.fetch_add(1, Ordering::Relaxed);
            } else {
                self.records.delete_failures.fetch_add(1, Ordering::Relaxed);
                again.push(record);
            }
        }
        if !again.is_empty() {
            self.io.deletes_rest = Instant::now().checked_add(PAUSE);
            self.undelete(again.into_iter());
        }
    }

    /// Batches that are not over, or not drained.
    pub fn under_way(&self) -> usize {
        self.io.under_way.len()
    }

    /// Waits until something is over; whether it is. The caller holds no lock that others need.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.records.store.wait_timeout(timeout)
    }
}

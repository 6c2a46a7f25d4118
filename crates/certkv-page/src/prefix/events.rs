//! What became of cached units, for routers that send prompts to where their beginnings are.
//!
//! A ring of the latest events, under numbers that go up by one. It is written under the index's lock, so its order is that of the index,
//! and read under a lock of its own, so that readers wait for no look-up. Reading leaves no trace: any number of readers ask for any number
//! that is still there, and who comes too late is told how many are gone and starts again from [`PrefixIndex::cached`].
//!
//! All memory is taken by [`PrefixIndex::with_events`]. Without it nothing is named, copied or hashed.
use super::entry::{Entries, NONE};
use super::index::PrefixIndex;
use super::key::{BlockKey, Chain, MarkDigest};
use crate::error::TableError;
use crate::latest::{EventsRead, Latest, NotYet};
use crate::sync::{Arc, Mutex};

/// What happened to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is cached now: published, or imported.
    Stored,
    /// It is not cached any more.
    Removed,
    /// It is in a store outside, too.
    Exported,
}

/// An event of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixEvent {
    /// 0 for the first of a cache; each is one more than the one before.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
    /// Which unit of its prompt it is, from 0.
    pub unit: u32,
    /// Whether marks stand in it ([`Prompt::marks`](super::Prompt)): tokens alone do not make its key.
    pub marked: bool,
    /// What it is called: the key of the scope, all tokens before it, and its own.
    pub key: BlockKey,
    /// What the unit before it is called, or the scope if it is the first. Zeros where nobody knew.
    pub parent: BlockKey,
}

impl PrefixEvent {
    /// No event: what room for events holds before they are read.
    pub const NONE: Self = Self {
        number: 0,
        kind: EventKind::Removed,
        unit: 0,
        marked: false,
        key: BlockKey([0; 32]),
        parent: BlockKey([0; 32]),
    };
}

#[derive(Debug)]
struct Ring {
    events: Latest<PrefixEvent>,
    /// Of each place a unit's, or nothing that means anything.
    tokens: Vec<u32>,
}

#[derive(Debug)]
struct Shared {
    unit: usize,
    ring: Mutex<Ring>,
}

/// The latest events of an index, also after its end.
#[derive(Debug, Clone)]
pub struct PrefixEvents(Arc<Shared>);

impl PrefixEvents {
    fn create(capacity: usize, unit: usize) -> Result<Self, TableError> {
        let memory = |_| TableError::OutOfMemory { what: "events of prefixes" };
        let words = capacity.checked_mul(unit).ok_or(TableError::BadShape { block: unit, max_blocks: capacity })?;
        let (events, mut tokens) = (Latest::new(capacity, PrefixEvent::NONE).map_err(memory)?, Vec::new());
        tokens.try_reserve_exact(words).map_err(memory)?;
        tokens.resize(words, 0);
        Ok(Self(Arc::new(Shared { unit, ring: Mutex::new(Ring { events, tokens }) })))
    }

    /// Host bytes of `capacity` events of units of `unit` tokens, with the names of `units` cached ones. For the ledger.
    pub const fn bytes(capacity: usize, unit: usize, units: usize) -> usize {
        if capacity == 0 {
            return 0;
        }
        let each = size_of::<PrefixEvent>() + unit * size_of::<u32>();
        capacity.saturating_mul(each).saturating_add(units.saturating_mul(size_of::<Named>()))
    }

    /// Tokens of a unit.
    pub fn unit(&self) -> usize {
        self.0.unit
    }

    /// Copies events from number `from` on, or from the oldest that is left, into `events`; and into `tokens`, unless it is empty, a unit
    /// of tokens for each, which only those of [`EventKind::Stored`] have: then there are no more events than whole units of room. Holds
    /// the ring's lock for as long as that takes.
    ///
    /// # Errors
    /// [`NotYet`]; nothing was written.
    pub fn read(&self, from: u64, events: &mut [PrefixEvent], tokens: &mut [u32]) -> Result<EventsRead, NotYet> {
        let unit = self.0.unit;
        let ring = self.0.ring.lock();
        let room = if tokens.is_empty() { events.len() } else { events.len().min(tokens.len() / unit) };
        ring.events.read(from, room, |i, event, at| {
            events[i] = *event;
            if let Some(place) = tokens.get_mut(i * unit..(i + 1) * unit) {
                place.copy_from_slice(&ring.tokens[at * unit..(at + 1) * unit]);
            }
        })
    }

    /// Says that unit number `unit` of some prompt, called `key`, is in a store outside: whoever put it there knows.
    pub fn exported(&self, unit: u32, key: BlockKey) {
        let event = PrefixEvent { kind: EventKind::Exported, unit, key, ..PrefixEvent::NONE };
        self.push(event, &[]);
    }

    fn next(&self) -> u64 {
        self.0.ring.lock().events.next()
    }

    fn push(&self, event: PrefixEvent, tokens: &[u32]) {
        let unit = self.0.unit;
        let mut ring = self.0.ring.lock();
        let at = ring.events.push(|number| PrefixEvent { number, ..event });
        let place = &mut ring.tokens[at * unit..(at + 1) * unit];
        // What an event without tokens leaves here is the units' before it: nobody is to take it for its own.
        place.fill(0);
        place.iter_mut().zip(tokens).for_each(|(place, token)| *place = *token);
    }
}

/// What a cached unit is called.
#[derive(Debug, Clone, Copy)]
struct Named {
    key: BlockKey,
    unit: u32,
}

/// What an index says of its units, if it was asked to.
#[derive(Debug)]
pub(super) struct Log {
    events: PrefixEvents,
    /// By slot of the index.
    named: Vec<Named>,
}

impl Log {
    /// What is under a slot, as an event without a number.
    fn event<T>(&self, entries: &Entries<T>, slot: u32, kind: EventKind) -> PrefixEvent {
        let (node, named) = (&entries.nodes[slot as usize], self.named[slot as usize]);
        let parent = self.named.get(node.parent as usize).filter(|_| node.parent != NONE);
        let parent = parent.map_or(node.root, |parent| parent.key);
        let marked = node.marks != MarkDigest::NONE;
        PrefixEvent { number: 0, kind, unit: named.unit, marked, key: named.key, parent }
    }

    /// A unit behind others that are named already, or behind none.
    pub(super) fn stored<T>(&mut self, entries: &Entries<T>, chain: &Chain, slot: u32) {
        let node = &entries.nodes[slot as usize];
        let before = self.named.get(node.parent as usize).filter(|_| node.parent != NONE);
        let (parent, unit) = before.map_or((node.root, 0), |before| (before.key, before.unit + 1));
        let key = chain.next(&parent, entries.tokens_of(slot), &node.marks);
        self.named[slot as usize] = Named { key, unit };
        self.events.push(self.event(entries, slot, EventKind::Stored), entries.tokens_of(slot));
    }

    pub(super) fn removed<T>(&self, entries: &Entries<T>, slot: u32) {
        self.events.push(self.event(entries, slot, EventKind::Removed), &[]);
    }
}

/// All that is cached at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// As if each were stored now, a unit before those that follow it. Their number is [`next`](Self::next).
    pub units: Vec<PrefixEvent>,
    /// Their tokens, unit by unit.
    pub tokens: Vec<u32>,
    /// Number of the first event after that moment.
    pub next: u64,
}

impl<T> PrefixIndex<T> {
    /// The same index, of which the latest `capacity` events can be read, at least one. It is empty.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`]; [`TableError::BadShape`] if so many do not fit memory.
    pub fn with_events(mut self, capacity: usize) -> Result<Self, TableError> {
        let units = self.capacity();
        let mut named = Vec::new();
        named.try_reserve_exact(units).map_err(|_| TableError::OutOfMemory { what: "events of prefixes" })?;
        named.resize(units, Named { key: BlockKey([0; 32]), unit: 0 });
        let events = PrefixEvents::create(capacity.max(1), self.unit())?;
        self.state.lock().log = Some(Log { events: events.clone(), named });
        self.events = Some(events);
        Ok(self)
    }

    /// Where its events are read; `None` if nobody asked for any.
    pub fn events(&self) -> Option<&PrefixEvents> {
        self.events.as_ref()
    }

    /// All units that are cached now, for a reader that begins, or that lost events: it goes on from [`Cached::next`]. `None` without
    /// events. Looks at every entry under the index's lock.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`].
    pub fn cached(&self) -> Result<Option<Cached>, TableError> {
        let memory = |_| TableError::OutOfMemory { what: "a list of prefixes" };
        let state = self.state.lock();
        let Some(log) = &state.log else { return Ok(None) };
        let (mut slots, mut units, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        slots.try_reserve_exact(state.entries.len()).map_err(memory)?;
        units.try_reserve_exact(state.entries.len()).map_err(memory)?;
        tokens.try_reserve_exact(state.entries.len() * self.unit()).map_err(memory)?;
        slots.extend(state.entries.slots());
        slots.sort_unstable_by_key(|slot| log.named[*slot as usize].unit);
        let next = log.events.next();
        for slot in slots {
            units.push(PrefixEvent { number: next, ..log.event(&state.entries, slot, EventKind::Stored) });
            tokens.extend_from_slice(state.entries.tokens_of(slot));
        }
        Ok(Some(Cached { units, tokens, next }))
    }
}

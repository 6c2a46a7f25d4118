//! Events of cached prefixes, for routers.
use crate::argument;
use crate::cache::{self, Held, certkv_cache};
use crate::callbacks::certkv_store_key;
use crate::guard::{Failure, guard};
use crate::prefix::{asked, certkv_prefix_scope, keeps};
use crate::status::certkv_status::{self, CERTKV_INVALID_ARGUMENT, CERTKV_SHAPE, CERTKV_UNSUPPORTED};
use certkv::{BlockKey, EventKind, PrefixEvent, PrefixEvents};
use core::mem::offset_of;

/// What happened to a unit of a cached prefix.
pub type certkv_event_kind = i32;
/// It is in the cache now: published, or imported from a store.
pub const CERTKV_EVENT_STORED: certkv_event_kind = 1;
/// It is not in the cache any more.
pub const CERTKV_EVENT_REMOVED: certkv_event_kind = 2;
/// It is in a store, too: certkv_cache_export_prefix put it there. It stays there until the store loses it, of which there is no event.
pub const CERTKV_EVENT_EXPORTED: certkv_event_kind = 3;

/// An event of one unit: a block of the largest size of the cache's formats.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_prefix_event {
    /// 0 for the first event of a cache; each is one more than the one before.
    pub number: u64,
    /// One of the CERTKV_EVENT values.
    pub kind: certkv_event_kind,
    /// Which unit of its prompt it is, from 0.
    pub unit: u32,
    /// 1 if marks stand in the unit (certkv_prefix_scope): tokens alone do not make its key. Otherwise 0.
    pub marked: u32,
    /// 0.
    pub reserved: u32,
    /// Its name: of the scope, all tokens before it and its own. Under this name it is in a store.
    pub key: certkv_store_key,
    /// The name of the unit before it, or of the scope if it is the first. Zeros if `kind` is CERTKV_EVENT_EXPORTED.
    pub parent: certkv_store_key,
}

/// What a read of events came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_events_read {
    /// sizeof(certkv_events_read), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Tokens of a unit.
    pub unit_tokens: u32,
    /// Events that were copied, of consecutive numbers.
    pub read: u64,
    /// Events between the one that was asked for and the oldest that is left. If this is not 0, who kept a list begins anew
    /// (certkv_cache_cached_prefixes).
    pub lost: u64,
    /// The number to ask for next time.
    pub next: u64,
    /// The number that the next event will have: `next`, if nothing is left to read.
    pub newest: u64,
}

impl From<&PrefixEvent> for certkv_prefix_event {
    fn from(event: &PrefixEvent) -> Self {
        Self {
            number: event.number,
            kind: match event.kind {
                EventKind::Stored => CERTKV_EVENT_STORED,
                EventKind::Removed => CERTKV_EVENT_REMOVED,
                EventKind::Exported => CERTKV_EVENT_EXPORTED,
            },
            unit: event.unit,
            marked: event.marked.into(),
            reserved: 0,
            key: certkv_store_key { bytes: event.key.0 },
            parent: certkv_store_key { bytes: event.parent.0 },
        }
    }
}

/// Room of a caller's, checked.
struct Room {
    events: *mut certkv_prefix_event,
    n_events: usize,
    tokens: *mut u32,
    n_tokens: usize,
    read: *mut certkv_events_read,
    size: usize,
}

impl Room {
    /// # Safety
    /// Each pointer is NULL or has the elements that come with it, `read` the bytes of its `struct_size`.
    unsafe fn of(
        (events, n_events): (*mut certkv_prefix_event, u64),
        (tokens, n_tokens): (*mut u32, u64),
        read: *mut certkv_events_read,
    ) -> Result<Self, Failure> {
        let (n_events, n_tokens) =
            (argument::array(events, n_events, "events")?, argument::array(tokens, n_tokens, "tokens")?);
        // SAFETY: by the caller's promise.
        let size = unsafe { argument::struct_size(read, "read", offset_of!(certkv_events_read, newest) + 8)? };
        argument::disjoint((events, n_events, "events"), (tokens, n_tokens, "tokens"))?;
        argument::disjoint((events, n_events, "events"), (read, 1, "read"))?;
        argument::disjoint((tokens, n_tokens, "tokens"), (read, 1, "read"))?;
        Ok(Self { events, n_events, tokens, n_tokens, read, size })
    }

    /// Events that fit, if each has so many tokens.
    fn fits(&self, unit: usize) -> Result<usize, Failure> {
        match self.n_tokens {
            0 => Ok(self.n_events),
            n if n < unit => {
                let why = format!("tokens: room for {n}, a unit has {unit}; NULL and 0 for none");
                Err(Failure::new(CERTKV_SHAPE, why))
            }
            n => Ok(self.n_events.min(n / unit)),
        }
    }

    /// Writes event number `at` of this call, and its tokens if they are wanted.
    ///
    /// # Safety
    /// As [`Room::of`], and `at` is below what [`Room::fits`] said for units of so many tokens.
    unsafe fn put(&self, at: usize, event: &PrefixEvent, tokens: &[u32]) {
        // SAFETY: `at` is below `n_events`, by the caller's promise.
        unsafe { self.events.add(at).write(event.into()) };
        if self.n_tokens > 0 {
            for (i, token) in tokens.iter().enumerate() {
                // SAFETY: the first `at + 1` units fit `n_tokens`, by the caller's promise.
                unsafe { self.tokens.add(at * tokens.len() + i).write(*token) };
            }
        }
    }

    /// # Safety
    /// As [`Room::of`].
    unsafe fn say(&self, unit: usize, read: usize, [lost, next, newest]: [u64; 3]) {
        let (struct_size, unit_tokens) = (self.size as u32, unit as u32);
        let filled = certkv_events_read { struct_size, unit_tokens, read: read as u64, lost, next, newest };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(self.read, &filled, self.size) };
    }
}

fn events(held: &Held) -> Result<&PrefixEvents, Failure> {
    let none = || Failure::new(CERTKV_UNSUPPORTED, "the cache keeps no events (config->prefix_events)");
    held.events.as_ref().ok_or_else(none)
}

/// Events that are copied under the lock at once.
const AT_ONCE: usize = 64;

/// Copies events of cached prefixes from number `from` on, or from the oldest that is left, to `events`, as many as there are and have room, and
/// fills `*read`, whose `struct_size` must be set. `tokens` gets the tokens of each, `read->unit_tokens` for event 0, as many for event 1 and so on;
/// only those of CERTKV_EVENT_STORED have any, for the others there are zeros. Then there are no more events than `n_tokens` has whole units;
/// `tokens` may be NULL with 0 `n_tokens` for none. With 0 `n_events` nothing is copied, and `*read` says what there is. Reading removes
/// nothing: any number of readers ask for any number.
///
/// A router begins with certkv_cache_cached_prefixes, then calls this with the last `read->next` from time to time, and begins again if `read->lost`
/// is not 0. The cache keeps the latest `config->prefix_events` events.
///
/// Threads: any, at any time, on a GPU also while a step is open; waits for nobody but other readers and who adds an event.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT (an array beyond memory, or `from` beyond the next event: it is of another
/// cache), SHAPE (`n_tokens` is not 0 and less than a unit's), INVALID_HANDLE, UNSUPPORTED (the cache keeps no events), POISONED. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_events(
    cache: *const certkv_cache,
    from: u64,
    events: *mut certkv_prefix_event,
    n_events: u64,
    tokens: *mut u32,
    n_tokens: u64,
    read: *mut certkv_events_read,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives the elements that it says, and a struct of its `struct_size` bytes.
        let room = unsafe { Room::of((events, n_events), (tokens, n_tokens), read)? };
        cache::with(cache, |held| {
            let log = self::events(held)?;
            let (unit, fits) = (log.unit(), room.fits(log.unit())?);
            let mut some = vec![PrefixEvent::NONE; fits.min(AT_ONCE)];
            let mut words = vec![0; if room.n_tokens == 0 { 0 } else { some.len() * unit }];
            let invalid = |e: certkv::NotYet| Failure::new(CERTKV_INVALID_ARGUMENT, format!("from: {e}"));
            let said = log.read(from, &mut some, &mut words).map_err(invalid)?;
            let (mut done, mut part) = (0, said);
            loop {
                for (i, event) in some[..part.read].iter().enumerate() {
                    // SAFETY: `done + i` is below `fits`, as `some` is cut to what is left of it.
                    unsafe { room.put(done + i, event, words.get(i * unit..(i + 1) * unit).unwrap_or(&[])) };
                }
                done += part.read;
                some.truncate(fits - done);
                words.truncate(if room.n_tokens == 0 { 0 } else { some.len() * unit });
                if some.is_empty() || part.next == part.newest {
                    break;
                }
                let more = log.read(part.next, &mut some, &mut words).map_err(invalid)?;
                // What follows was overwritten meanwhile: the next call says so.
                if more.lost > 0 {
                    break;
                }
                part = more;
            }
            // SAFETY: by the caller's promise.
            unsafe { room.say(unit, done, [said.lost, part.next, part.newest]) };
            Ok(())
        })
    })
}

/// Copies all units that are cached now to `events`, each as if it were stored now, a unit before those that follow it, with their tokens as
/// certkv_cache_events; `read->read` says how many, and `read->next`, which is their number, which event comes after this moment. For a router that
/// begins, or that lost events. `config->prefix_units` events have room always. With 0 `n_events` nothing is copied, and `*read` says what
/// there is.
///
/// Threads: any, at any time. Look-ups wait while all units are copied.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, OVERLAP, INVALID_ARGUMENT, INVALID_HANDLE, UNSUPPORTED (the cache keeps no events), OUT_OF_MEMORY,
/// POISONED; on a GPU BUSY_STEP while a step is open: nothing changed. SHAPE (too little room, in `events` or in `tokens`): `*read` says how many there
/// are, `events` and `tokens` are unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_cached_prefixes(
    cache: *const certkv_cache,
    events: *mut certkv_prefix_event,
    n_events: u64,
    tokens: *mut u32,
    n_tokens: u64,
    read: *mut certkv_events_read,
) -> certkv_status {
    guard(|| {
        // SAFETY: the caller gives the elements that it says, and a struct of its `struct_size` bytes.
        let room = unsafe { Room::of((events, n_events), (tokens, n_tokens), read)? };
        cache::with(cache, |held| {
            let unit = self::events(held)?.unit();
            let now = held.engine.on(|on| on.cached_prefixes(), |on| on.cached_prefixes())?;
            let n = now.units.len();
            // SAFETY: by the caller's promise.
            unsafe { room.say(unit, n, [0, now.next, now.next]) };
            if room.n_events == 0 {
                return Ok(());
            }
            if room.n_events < n {
                let why = format!("events: room for {}, {n} units are cached", room.n_events);
                return Err(Failure::new(CERTKV_SHAPE, why));
            }
            if room.n_tokens > 0 && room.n_tokens < n * unit {
                let why = format!("tokens: room for {}, {n} units have {}", room.n_tokens, n * unit);
                return Err(Failure::new(CERTKV_SHAPE, why));
            }
            for (at, (event, tokens)) in now.units.iter().zip(now.tokens.chunks(unit)).enumerate() {
                // SAFETY: there is room for `n` events and, unless none are wanted, their tokens.
                unsafe { room.put(at, event, tokens) };
            }
            Ok(())
        })
    })
}

/// Fills `*key` with what events call the last full unit of the prompt `tokens`, whether it is cached or not; of a prompt without a full unit, with
/// what they call the scope. So a router names its own prompts, and a host its scopes. `scope` and `tokens` are borrowed during the call.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps no
/// prefixes), POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_prefix_key(
    cache: *const certkv_cache,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    key: *mut certkv_store_key,
) -> certkv_status {
    guard(|| {
        argument::not_null(key, "key")?;
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let BlockKey(bytes) = cache::with(cache, |held| {
            keeps(held)?;
            held.engine.on(|on| on.prefix_key(&scope, prompt), |on| on.prefix_key(&scope, prompt))
        })?;
        // SAFETY: not NULL, and bytes have no alignment; the caller gives a variable of this type.
        unsafe { key.write(certkv_store_key { bytes }) };
        Ok(())
    })
}

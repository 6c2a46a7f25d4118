//! Cached prefixes into a store, and out of one.
use crate::argument;
use crate::cache::{self, Held, certkv_cache};
use crate::guard::{Failure, guard};
use crate::prefix::{asked, certkv_prefix_scope, keeps};
use crate::status::certkv_status::{
    self, CERTKV_DAMAGED, CERTKV_FILE_DAMAGED, CERTKV_FILE_REFUSED, CERTKV_OUT_OF_MEMORY, CERTKV_STORE_DAMAGED,
    CERTKV_STORE_FAILED, CERTKV_STORE_LATE,
};
use crate::status::of_store;
use crate::store::{backend, certkv_store};
use certkv::store::{Backend, Completion, Get, Outcome, Put, Store, StoreConfig, StoreError, StoreKey};
use certkv::{BlockKey, PrefixScope, PrefixUnit, Prompt};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// Threads that call the store for one call; each does a batch at a time.
const WORKERS: usize = 4;
/// Most units on their way at once, and about how many bytes.
const UNITS: usize = 16;
const BYTES: usize = 64 << 20;
/// Names asked for at once.
const NAMES: usize = 1024;
/// How long a call waits unless it says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store for the length of a call.
struct Talk {
    store: Store,
    patience: Duration,
    until: Instant,
}

impl Talk {
    fn new(backend: Arc<dyn Backend>, unit: &PrefixUnit, timeout_ms: u32) -> Result<Self, Failure> {
        let patience = if timeout_ms == 0 { PATIENCE } else { Duration::from_millis(timeout_ms.into()) };
        let config = StoreConfig {
            workers: WORKERS,
            outstanding: WORKERS,
            page_bytes: unit.bytes,
            // Threads that are inside the store when its time is up end without us.
            close_timeout: Duration::ZERO,
        };
        let why = |error: std::io::Error| Failure::new(CERTKV_OUT_OF_MEMORY, format!("threads for the store: {error}"));
        Ok(Self { store: Store::new(backend, config).map_err(why)?, patience, until: Instant::now() + patience })
    }

    fn late(&self) -> Failure {
        Failure::new(CERTKV_STORE_LATE, format!("the store did not answer in {:?}", self.patience))
    }

    /// Has items done, in as many batches as there are threads, and gives what came of them in their order.
    fn all<T>(
        &self,
        mut items: Vec<T>,
        submit: impl Fn(&Store, Vec<T>) -> bool,
        mut done: impl FnMut(Outcome) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let each = items.len().div_ceil(WORKERS).max(1);
        let mut batches = 0;
        while !items.is_empty() {
            let rest = items.split_off(each.min(items.len()));
            if !submit(&self.store, items) {
                return Err(Failure::new(CERTKV_STORE_FAILED, "the store takes nothing"));
            }
            (batches, items) = (batches + 1, rest);
        }
        let mut over: Vec<Completion> = Vec::with_capacity(batches);
        while over.len() < batches {
            if !self.store.wait_timeout(self.until.saturating_duration_since(Instant::now())) {
                return Err(self.late());
            }
            self.store.drain_completions(&mut over);
        }
        over.sort_unstable_by_key(|completion| completion.ticket);
        over.into_iter().try_for_each(|completion| done(completion.outcome))
    }

    /// `stored` hears of each that is there, also if others are not.
    fn put(&self, units: Vec<Put>, mut stored: impl FnMut(&Put)) -> Result<(), Failure> {
        let (submit, mut end) = (|store: &Store, batch| store.submit_put(batch).is_ok(), None);
        self.all(units, submit, |outcome| {
            let Outcome::Put(results) = outcome else { return Ok(()) };
            for (unit, result) in results {
                match result {
                    Ok(()) => stored(&unit),
                    Err(error) => end = end.take().or(Some(error)),
                }
            }
            Ok(())
        })?;
        end.map_or(Ok(()), |error| Err(refused(error)))
    }

    /// Units up to the first that is not there, and why that is not, if it should be.
    fn get(&self, wanted: Vec<Get>) -> Result<(Vec<Get>, Option<Failure>), Failure> {
        let (mut there, mut end) = (Vec::new(), None);
        let submit = |store: &Store, batch| store.submit_get(batch).is_ok();
        self.all(wanted, submit, |outcome| {
            let Outcome::Get(results) = outcome else { return Ok(()) };
            for (get, result) in results {
                match (&end, result) {
                    (None, Ok(())) => there.push(get),
                    (None, Err(error)) => end = Some(error),
                    (Some(_), _) => {}
                }
            }
            Ok(())
        })?;
        let end = end.filter(|error| !matches!(error, StoreError::NotFound { .. }));
        Ok((there, end.map(refused)))
    }

    /// Whether each is there.
    fn exist(&self, keys: Vec<StoreKey>) -> Result<Vec<bool>, Failure> {
        let mut there = Vec::with_capacity(keys.len());
        let submit = |store: &Store, batch| store.submit_exists(batch).is_ok();
        self.all(keys, submit, |outcome| {
            let Outcome::Exists(results) = outcome else { return Ok(()) };
            results.into_iter().try_for_each(|(_, result)| result.map(|is| there.push(is)).map_err(refused))
        })?;
        Ok(there)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Where nobody is inside the store, its threads are gone when the call returns, and nothing of them holds it any more.
        if self.store.outstanding() == 0 {
            let _ = self.store.close(PATIENCE);
        }
    }
}

fn refused(error: StoreError) -> Failure {
    Failure::new(of_store(&error), format!("store: {error}"))
}

/// What the engine says of units as of files: from a store they are damaged there, on their way to one they were damaged here.
fn of_units(status: certkv_status) -> impl Fn(Failure) -> Failure {
    move |failure| match failure.status {
        CERTKV_FILE_DAMAGED | CERTKV_FILE_REFUSED => Failure { status, ..failure },
        _ => failure,
    }
}

fn unit_of(held: &Held) -> Result<PrefixUnit, Failure> {
    keeps(held)?;
    held.engine.on(|on| on.prefix_unit(), |on| on.prefix_unit())
}

/// Units to move at once.
fn piece(unit: &PrefixUnit) -> usize {
    (BYTES / unit.bytes.max(1)).clamp(1, UNITS)
}

fn missing(held: &Held, scope: &PrefixScope<'_>, prompt: Prompt<'_>) -> Result<Vec<Get>, Failure> {
    held.engine.on(|on| on.missing_prefix(scope, prompt), |on| on.missing_prefix(scope, prompt))
}

/// Puts cached units of the prompt `tokens` into a store, from unit number `first_unit` on: a unit is a block of the largest size of the cache's
/// formats, 64 tokens by default. What is under their names is replaced. After certkv_cache_publish, units before
/// `(published.cached - published.added)` tokens went there with an earlier call. Names depend on `config->prefix_secret`: a cache that is to find
/// these units has the same. `scope` and `tokens` as certkv_cache_publish. `timeout_ms`: how long the call waits for the store in all; 0 for 10
/// seconds. `*exported` is filled with the units that are in the store by this call; `exported` may be NULL.
///
/// Threads: any, at any time; the store is called on threads of the library. On the host other calls go on between blocks, on a GPU they wait while
/// units are copied, and not while the store has them.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
/// UNSUPPORTED (the cache keeps
/// no prefixes), STORE_FAILED, STORE_LATE, STORE_FULL, DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open; where
/// originals are spilled what reading them can say (certkv_sequence_save), too. The cache is unchanged and so is `*exported`; units may be in the
/// store, each whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_export_prefix(
    cache: *mut certkv_cache,
    store: *mut certkv_store,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    first_unit: u64,
    timeout_ms: u32,
    exported: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::optional(exported, "exported")?;
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let first = usize::try_from(first_unit).unwrap_or(usize::MAX);
        let backend = backend(store)?;
        let sent = cache::with(cache, |held| {
            let unit = unit_of(held)?;
            let (units, piece) = (prompt.tokens.len() / unit.tokens, piece(&unit));
            let talk = Talk::new(Arc::clone(&backend), &unit, timeout_ms)?;
            let mut sent = 0;
            while first.saturating_add(sent) < units {
                let from = first + sent;
                let part = Prompt { tokens: &prompt.tokens[..(from + piece).min(units) * unit.tokens], ..prompt };
                let puts = held
                    .engine
                    .on(|on| on.export_prefix(&scope, part, from), |on| on.export_prefix(&scope, part, from));
                let puts = puts.map_err(of_units(CERTKV_DAMAGED))?;
                if puts.is_empty() {
                    break;
                }
                sent += puts.len();
                talk.put(puts, |unit| {
                    if let Some(events) = &held.events {
                        events.exported(unit.identity.block, BlockKey(unit.key.0));
                    }
                })?;
            }
            Ok(sent)
        })?;
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(exported, sent as u64) };
        Ok(())
    })
}

/// Says what of a prompt is not cached: `*missing` is filled with its full units that the cache lacks, with those that lack pages of windows which
/// the next query sees, and `*stored` with how many of these the store
/// has, from the first of them on without a gap: so many certkv_cache_import_prefix will find, unless one is damaged. `missing` and `stored` may be
/// NULL; `store` too if `stored` is. Other arguments as certkv_cache_export_prefix.
///
/// Threads: as certkv_cache_export_prefix.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
/// UNSUPPORTED (the cache keeps
/// no prefixes), STORE_FAILED, STORE_LATE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, neither `*missing` nor
/// `*stored`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_missing_prefix(
    cache: *mut certkv_cache,
    store: *mut certkv_store,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    timeout_ms: u32,
    missing: *mut u64,
    stored: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::optional(missing, "missing")?;
        argument::optional(stored, "stored")?;
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let backend = if stored.is_null() { None } else { Some(backend(store)?) };
        let (lacks, there) = cache::with(cache, |held| {
            let unit = unit_of(held)?;
            let wanted = self::missing(held, &scope, prompt)?;
            let Some(backend) = backend.filter(|_| !wanted.is_empty()) else { return Ok((wanted.len(), 0)) };
            let talk = Talk::new(backend, &unit, timeout_ms)?;
            let mut there = 0;
            for some in wanted.chunks(NAMES) {
                let found = talk.exist(some.iter().map(Get::key).collect())?;
                let run = found.iter().take_while(|is| **is).count();
                there += run;
                if run < some.len() {
                    break;
                }
            }
            Ok((wanted.len(), there))
        })?;
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(missing, lacks as u64) };
        // SAFETY: as above.
        unsafe { argument::put(stored, there as u64) };
        Ok(())
    })
}

/// Caches units of a prompt that a store has and the cache lacks, up to the first that is in neither: certkv_sequence_create_from finds them then.
/// Outputs and certificates over them are those of the cache that wrote them. Units come from the kind of machine that wrote them (codes lie in
/// another order on a GPU). One for which there is no room, or whose codes do not fit the unit before it, ends it, and that is no error. `*cached` is
/// filled with the tokens of the prompt that are cached now; `cached` may be NULL. Other arguments as certkv_cache_export_prefix.
///
/// Threads: as certkv_cache_export_prefix.
/// Stream: on a GPU the cache's own; blocks until its work is done.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT (with `config->levels`, too), LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE,
/// UNSUPPORTED (the cache keeps
/// no prefixes), STORE_FAILED, STORE_LATE, STORE_DAMAGED, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Units before the
/// one that was not to be had may be cached; `*cached` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_import_prefix(
    cache: *mut certkv_cache,
    store: *mut certkv_store,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    timeout_ms: u32,
    cached: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::optional(cached, "cached")?;
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let backend = backend(store)?;
        let now = cache::with(cache, |held| {
            let unit = unit_of(held)?;
            let mut wanted = missing(held, &scope, prompt)?;
            let find = || held.engine.on(|on| on.find_prefix(&scope, prompt), |on| on.find_prefix(&scope, prompt));
            let mut now = find()?.found;
            let talk = Talk::new(Arc::clone(&backend), &unit, timeout_ms)?;
            while !wanted.is_empty() {
                let rest = wanted.split_off(piece(&unit).min(wanted.len()));
                let asked = wanted.len();
                let (found, end) = talk.get(wanted)?;
                if !found.is_empty() {
                    let imported = held.engine.on(
                        |on| on.import_prefix(&scope, prompt, &found),
                        |on| on.import_prefix(&scope, prompt, &found),
                    );
                    now = imported.map_err(of_units(CERTKV_STORE_DAMAGED))?;
                }
                if let Some(failure) = end {
                    return Err(failure);
                }
                // Not all were there, or not all had room.
                let end = found.last().map_or(0, |get| (get.identity().block as usize + 1) * unit.tokens);
                if found.len() < asked || find()?.cached < end {
                    break;
                }
                wanted = rest;
            }
            Ok(now)
        })?;
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(cached, now as u64) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_damaged_where_it_was() {
        for (said, to, from) in [
            (CERTKV_FILE_DAMAGED, CERTKV_DAMAGED, CERTKV_STORE_DAMAGED),
            (CERTKV_FILE_REFUSED, CERTKV_DAMAGED, CERTKV_STORE_DAMAGED),
            (CERTKV_STORE_LATE, CERTKV_STORE_LATE, CERTKV_STORE_LATE),
        ] {
            let of = |status| of_units(status)(Failure::new(said, "x")).status;
            assert_eq!((of(CERTKV_DAMAGED), of(CERTKV_STORE_DAMAGED)), (to, from));
        }
    }

    #[test]
    fn a_piece_is_some_units_and_not_too_many_bytes() {
        let of = |bytes| piece(&PrefixUnit { tokens: 64, bytes });
        assert_eq!([0, 1, 1 << 20, 8 << 20, 64 << 20, usize::MAX].map(of), [16, 16, 16, 8, 1, 1]);
    }
}

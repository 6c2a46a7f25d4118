//! Sequences that continue from blocks which another one wrote.
use crate::argument;
use crate::cache::{self, Held, certkv_cache};
use crate::guard::{Failure, guard};
use crate::sequence::{CERTKV_NO_SEQUENCE, certkv_sequence, id, number};
use crate::status::certkv_status::{self, CERTKV_LENGTH, CERTKV_UNSUPPORTED};
use certkv::{Mark, PrefixScope, Prompt, PublishedPrefix, Stop};
use core::ffi::c_void;
use core::mem::offset_of;

/// Who may share cached prefixes, and all but the tokens that decides what a page holds: two scopes that differ in one field share nothing.
/// Set all of it to 0 bytes, then `struct_size` and what there is to say. Names are any bytes, at most 4096; longer ones by a digest.
/// Borrowed during a call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_prefix_scope {
    /// sizeof(certkv_prefix_scope) of the caller's header.
    pub struct_size: u32,
    /// Class of tolerance, where the server keeps several.
    pub tolerance_class: u32,
    /// The circle of trust: a tenant, say. The server sets it, never its client: within a domain, whoever sends a prompt can tell by the
    /// time it takes whether somebody sent it before.
    pub domain: *const c_void,
    /// Bytes of it.
    pub domain_bytes: u64,
    /// The model's weights, with whatever else decides its rows (rotation, quantisation).
    pub model: *const c_void,
    /// Bytes of it.
    pub model_bytes: u64,
    /// The adapter on top of the model; NULL for none, which is not the same as one of 0 bytes.
    pub adapter: *const c_void,
    /// Bytes of it.
    pub adapter_bytes: u64,
    /// A further division; NULL for none.
    pub salt: *const c_void,
    /// Bytes of it.
    pub salt_bytes: u64,
    /// Position of the first token.
    pub first_position: u64,
    /// What the numbers of this call's tokens do not tell; NULL for nothing. It is part of the prompt, and here because all calls with a prompt have
    /// a scope.
    pub marks: *const certkv_mark,
    /// Elements of it, at most 2^20, in ascending order of position.
    pub n_marks: u64,
}

/// What makes a position of a prompt different from others with the same token: the digest of an image behind its placeholder, say. Prompts share
/// units only where marks are the same.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_mark {
    /// Position in the prompt, from 0. Several marks may stand at one. Those behind the last token are ignored.
    pub at: u64,
    /// What is there: any bytes, at most 4096.
    pub what: *const c_void,
    /// Bytes of it.
    pub what_bytes: u64,
}

/// Why a publication ended before the last full unit.
pub type certkv_stop = i32;
/// It did not.
pub const CERTKV_STOP_NONE: certkv_stop = 0;
/// The codes of what follows do not fit those of the cached unit before it, which another sequence wrote at the same time.
pub const CERTKV_STOP_DECLINED: certkv_stop = 1;
/// Another block has the same hash; it stays.
pub const CERTKV_STOP_COLLISION: certkv_stop = 2;
/// Its pages are cached already under another name: in another scope, say.
pub const CERTKV_STOP_ELSEWHERE: certkv_stop = 3;
/// Pages of the unit were given up.
pub const CERTKV_STOP_GONE: certkv_stop = 4;
/// `config->prefix_units` are cached, and all of them are in use.
pub const CERTKV_STOP_FULL: certkv_stop = 5;
/// A page could not be shared.
pub const CERTKV_STOP_PAGE: certkv_stop = 6;

/// What a publication came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_publication {
    /// sizeof(certkv_publication), set by the caller; nothing is written beyond it.
    pub struct_size: u32,
    /// Why what follows is not cached: one of the CERTKV_STOP values.
    pub stop: certkv_stop,
    /// Tokens of the sequence that certkv_sequence_create_from finds now.
    pub cached: u64,
    /// Of these, new with this call.
    pub added: u64,
}

/// Longer prompts fit no cache.
const MOST_TOKENS: u64 = 1 << 31;
/// Nor does any prompt have more marks.
const MOST_MARKS: u64 = 1 << 20;

/// What a caller asks about: a prompt in its scope.
pub(crate) struct Asked<'a> {
    pub(crate) scope: PrefixScope<'a>,
    tokens: &'a [u32],
    marks: Vec<Mark<'a>>,
}

impl Asked<'_> {
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        Prompt { tokens: self.tokens, marks: &self.marks }
    }
}

/// The engine's words for a caller's.
///
/// # Safety
/// `given` is NULL or a struct of its `struct_size` bytes, its pointers and those of its marks are NULL or have what it says, and so is `tokens`
/// with `n_tokens` elements, unchanged while the result lives.
pub(crate) unsafe fn asked<'a>(
    given: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
) -> Result<Asked<'a>, Failure> {
    // SAFETY: by the caller's promise; integers and pointers, for which zero bits are a value.
    let given = unsafe { argument::read_struct(given, "scope", offset_of!(certkv_prefix_scope, adapter))? };
    // SAFETY: by the caller's promise.
    let name = |at: *const c_void, bytes, name| unsafe { argument::name(at, bytes, name) };
    let optional = |at: *const c_void, bytes, of| {
        let none = at.is_null() && bytes == 0;
        if none { Ok(None) } else { name(at, bytes, of).map(Some) }
    };
    let scope = PrefixScope {
        domain: name(given.domain, given.domain_bytes, "scope->domain")?,
        model: name(given.model, given.model_bytes, "scope->model")?,
        adapter: optional(given.adapter, given.adapter_bytes, "scope->adapter")?,
        salt: optional(given.salt, given.salt_bytes, "scope->salt")?,
        tolerance: given.tolerance_class,
        first_position: given.first_position,
    };
    if given.n_marks > MOST_MARKS {
        return Err(argument::invalid(format!("scope->n_marks = {}: more than 2^20", given.n_marks)));
    }
    // SAFETY: by the caller's promise.
    let marks = unsafe { argument::slice(given.marks, given.n_marks, "scope->marks")? };
    if let Some(i) = marks.windows(2).position(|two| two[1].at < two[0].at) {
        let why = format!("scope->marks[{}].at = {}: before the one in front", i + 1, marks[i + 1].at);
        return Err(argument::invalid(why));
    }
    let mark = |(i, mark): (usize, &certkv_mark)| {
        // SAFETY: by the caller's promise.
        let what = unsafe { argument::name(mark.what, mark.what_bytes, &format!("scope->marks[{i}].what"))? };
        Ok(Mark { at: usize::try_from(mark.at).unwrap_or(usize::MAX), what })
    };
    let marks = marks.iter().enumerate().map(mark).collect::<Result<_, Failure>>()?;
    if n_tokens > MOST_TOKENS {
        return Err(Failure::new(CERTKV_LENGTH, format!("n_tokens = {n_tokens}: more than 2^31")));
    }
    // SAFETY: by the caller's promise.
    Ok(Asked { scope, tokens: unsafe { argument::slice(tokens, n_tokens, "tokens")? }, marks })
}

/// Refuses a cache that keeps no prefixes.
pub(crate) fn keeps(held: &Held) -> Result<(), Failure> {
    let kept = held.engine.on(|on| Ok(on.prefix_stats().is_some()), |on| Ok(on.prefix_stats().is_some()))?;
    let why = "the cache keeps no prefixes (config->prefix_units)";
    if kept { Ok(()) } else { Err(Failure::new(CERTKV_UNSUPPORTED, why)) }
}

fn stop(stop: Option<Stop>) -> certkv_stop {
    match stop {
        None => CERTKV_STOP_NONE,
        Some(Stop::Declined) => CERTKV_STOP_DECLINED,
        Some(Stop::Collision) => CERTKV_STOP_COLLISION,
        Some(Stop::Elsewhere) => CERTKV_STOP_ELSEWHERE,
        Some(Stop::Gone) => CERTKV_STOP_GONE,
        Some(Stop::Full) => CERTKV_STOP_FULL,
        Some(Stop::Page(_)) => CERTKV_STOP_PAGE,
    }
}

/// Caches the full blocks of a sequence, so that others may continue from them (certkv_sequence_create_from), now and after it was released.
/// `tokens` are the numbers of the tokens that it holds, from its first on: they may be fewer, and those behind its end are ignored. Calling it
/// again as the sequence grows adds what is new. Of layers with a window (`config->windows`) there is what the next query sees: a prompt is found
/// again at lengths at which a sequence was published, so publish it when its prompt is in and at its end. `scope` and `tokens` are borrowed during the call. `*published`, whose `struct_size` must be
/// set, is filled; `published` may be NULL.
///
/// Threads: any, at any time.
/// Stream: on a GPU the cache's own; blocks until its work is done if there is a full block.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps
/// no prefixes), UNKNOWN_SEQUENCE, BUSY_SEQUENCE, SWAPPED_OUT, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open, NOT_FINITE and
/// OVERFLOW (a row from device memory that was refused, see certkv_step_append). Nothing was cached, and `*published` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_publish(
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    published: *mut certkv_publication,
) -> certkv_status {
    guard(|| {
        let least = offset_of!(certkv_publication, cached);
        let size = match published.is_null() {
            true => None,
            // SAFETY: the caller gives a struct of its `struct_size` bytes.
            false => Some(unsafe { argument::struct_size(published, "published", least)? }),
        };
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let id = id(sequence);
        let done = cache::with(cache, |held| {
            keeps(held)?;
            held.engine.on(|on| on.publish(id, &scope, prompt), |on| on.publish(id, &scope, prompt))
        })?;
        let Some(size) = size else { return Ok(()) };
        let PublishedPrefix { cached, added, stop: why } = done;
        let filled = certkv_publication {
            struct_size: size as u32,
            stop: stop(why),
            cached: cached as u64,
            added: added as u64,
        };
        // SAFETY: the struct has `size` bytes, by the caller's promise, and so has `filled`.
        unsafe { argument::write_prefix(published, &filled, size) };
        Ok(())
    })
}

/// Makes a sequence that holds the longest cached prefix of the prompt `tokens`; the caller appends what follows. Its pages are shared, none is
/// copied. `*sequence` is filled, and `*found` with the tokens that it holds, 0 if nothing was cached; `found` may be NULL. A prompt that is
/// cached whole is found whole: who needs the last token's output gives the prompt without it. `scope` and `tokens` are borrowed during the
/// call.
///
/// Threads: any, at any time.
/// Stream: none; on a GPU the cache's own, not waited for.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, INVALID_ARGUMENT, LENGTH (`n_tokens` beyond 2^31), INVALID_HANDLE, UNSUPPORTED (the cache keeps
/// no prefixes), TOO_MANY_SEQUENCES, DEVICE, OUT_OF_MEMORY, POISONED; on a GPU BUSY_STEP while a step is open. Nothing changed, `*found` neither,
/// and `*sequence` is CERTKV_NO_SEQUENCE if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_sequence_create_from(
    cache: *mut certkv_cache,
    scope: *const certkv_prefix_scope,
    tokens: *const u32,
    n_tokens: u64,
    sequence: *mut certkv_sequence,
    found: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::aligned(sequence, "sequence")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { sequence.write(CERTKV_NO_SEQUENCE) };
        argument::optional(found, "found")?;
        // SAFETY: the caller gives NULL or a scope with what it names, and `n_tokens` elements.
        let asked = unsafe { asked(scope, tokens, n_tokens)? };
        let (scope, prompt) = (asked.scope, asked.prompt());
        let (made, held) = cache::with(cache, |held| {
            keeps(held)?;
            held.engine.on(|on| on.create_from(&scope, prompt), |on| on.create_from(&scope, prompt))
        })?;
        // SAFETY: as above.
        unsafe { sequence.write(number(made)) };
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(found, held as u64) };
        Ok(())
    })
}

/// Forgets up to `units` cached units that no sequence uses, UINT64_MAX for all of them; `*evicted` is filled with how many, and `evicted`
/// may be NULL. The cache does it by itself where pages run out; a server that wants pages free ahead of time, or has new weights, calls it.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: MISALIGNED, NULL_POINTER (`cache`), INVALID_HANDLE, UNSUPPORTED (the cache keeps no prefixes), DEVICE, POISONED; on a GPU BUSY_STEP
/// while a step is open. `*evicted` is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_evict_prefixes(
    cache: *mut certkv_cache,
    units: u64,
    evicted: *mut u64,
) -> certkv_status {
    guard(|| {
        argument::optional(evicted, "evicted")?;
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        let gone = cache::with(cache, |held| {
            keeps(held)?;
            held.engine.on(|on| on.evict_prefixes(units), |on| on.evict_prefixes(units))
        })?;
        // SAFETY: checked above; the caller gives NULL or a variable of this type.
        unsafe { argument::put(evicted, gone as u64) };
        Ok(())
    })
}

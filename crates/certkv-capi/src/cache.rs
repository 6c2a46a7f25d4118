//! The cache handle.
use crate::argument;
use crate::config::{self, certkv_config};
use crate::engine::Engine;
use crate::guard::{Failure, Poison, guard};
use crate::handle::Registry;
use crate::kept::Spare;
use crate::log::{self, CERTKV_LOG_INFO, Sink};
use crate::status::certkv_status;
use certkv::{MoveEvents, PrefixEvents};
use core::ptr;
use std::sync::Arc;

/// A certified, paged, compressed KV cache. Opaque.
#[derive(Debug)]
pub struct certkv_cache {
    _opaque: [u8; 0],
}

/// What a cache handle stands for.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) engine: Engine,
    /// Read while a step has the cache, too.
    pub(crate) events: Option<PrefixEvents>,
    pub(crate) moves: Option<MoveEvents>,
    pub(crate) poison: Poison,
    /// What steps work in.
    pub(crate) spare: Spare,
    /// Who hears of it; `None`: the log of the process.
    pub(crate) log: Option<Arc<Sink>>,
}

impl Held {
    fn new(engine: Engine, log: Option<Arc<Sink>>) -> Result<Self, Failure> {
        let events = engine.on(|on| Ok(on.prefix_events()), |on| Ok(on.prefix_events()))?;
        let moves = engine.on(|on| Ok(on.move_events()), |on| Ok(on.move_events()))?;
        let seen = engine.memory();
        log::say(CERTKV_LOG_INFO, || {
            let ([packed, scratch, tables, host], _) = seen.reserved;
            let (at, g) =
                (if matches!(engine, Engine::Host(_)) { "on the host" } else { "on a GPU" }, engine.geometry());
            let heads = format!("{} query and {} KV heads of {}", g.q_heads, g.kv_heads, g.head_dim);
            let bytes = format!("packed={packed} scratch={scratch} tables={tables} host={host} bytes");
            format!("cache created {at}: {} layers, {heads}: {bytes}", g.layers)
        });
        Ok(Self { engine, events, moves, poison: Poison::default(), spare: Spare::default(), log })
    }
}

static CACHES: Registry<Held> = Registry::new(0xc5, "cache");

/// Runs `work` on a live cache that is not poisoned; a panic in it poisons the cache.
pub(crate) fn with<T>(
    handle: *const certkv_cache,
    work: impl FnOnce(&Arc<Held>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let held = CACHES.get(handle)?;
    Sink::hears(&held.log);
    held.poison.check()?;
    held.poison.watch(|| work(&held))
}

/// Makes a cache and takes all its memory (on the host, mapped when first touched). `*cache` is filled; the caller ends it with
/// certkv_cache_destroy. `config` is borrowed during the call. On a GPU (`config->device`) its kernels are loaded, or compiled
/// first, which takes seconds; the calling thread's current CUDA context stays what it is.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE, RESERVED, INVALID_ARGUMENT, INVALID_HANDLE (of `config->spill_store`,
/// `config->calibration` or `config->scales`), UNSUPPORTED, FORMAT, FILE_REFUSED (a calibration or scales of another geometry), POLICY, BUDGET, OUT_OF_MEMORY, DEVICE (also: no driver, no such GPU, no kernels for it). Nothing is held then, and `*cache` is NULL if it can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_create(
    config: *const certkv_config,
    cache: *mut *mut certkv_cache,
) -> certkv_status {
    guard(|| {
        argument::aligned(cache, "cache")?;
        // SAFETY: not NULL and aligned; the caller gives a variable of this type.
        unsafe { cache.write(ptr::null_mut()) };
        // SAFETY: the caller gives NULL or a struct of its `struct_size` bytes.
        let log = unsafe { config::log(config)? };
        Sink::hears(&log);
        // SAFETY: as above.
        let wanted = unsafe { config::read(config)? };
        let held = Held::new(Engine::new(wanted)?, log)?;
        // SAFETY: as above.
        unsafe { cache.write(CACHES.insert(Arc::new(held))) };
        Ok(())
    })
}

/// Ends a cache and its sequences. NULL is allowed. Calls and steps under way keep its memory until they are over. What it has in
/// `config->spill_store` is deleted, which waits for the store, at most as long as `config->spill_deadline_ms` says and once more for its threads.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: not allowed.
/// Errors: INVALID_HANDLE, for a cache that is destroyed already; nothing happened then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_cache_destroy(cache: *mut certkv_cache) -> certkv_status {
    guard(|| {
        if !cache.is_null() {
            let held = CACHES.remove(cache)?;
            Sink::hears(&held.log);
            log::say(CERTKV_LOG_INFO, || "cache destroyed".to_owned());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Wanted;
    use crate::*;
    use certkv::{Config, Geometry};

    #[test]
    fn a_defect_poisons_the_cache_until_it_is_destroyed() {
        let config = Config::new(Geometry::new(1, 2, 1, 64).unwrap(), 64);
        let engine = Engine::new(Wanted::Host(Box::new(config))).unwrap();
        let handle: *mut certkv_cache = CACHES.insert(Arc::new(Held::new(engine, None).unwrap()));
        let (mut sequence, mut length) = (0, 0);
        // SAFETY: the out parameters are locals.
        unsafe {
            assert_eq!(certkv_sequence_create(handle, &mut sequence), certkv_status::CERTKV_OK);
            assert_eq!(guard(|| with(handle, |_| panic!("planted"))), certkv_status::CERTKV_PANIC);
            assert_eq!(certkv_sequence_length(handle, sequence, &mut length), certkv_status::CERTKV_POISONED);
            assert_eq!(certkv_sequence_create(handle, &mut sequence), certkv_status::CERTKV_POISONED);
            assert_eq!(certkv_cache_destroy(handle), certkv_status::CERTKV_OK);
            assert_eq!(certkv_cache_destroy(handle), certkv_status::CERTKV_INVALID_HANDLE);
        }
    }
}

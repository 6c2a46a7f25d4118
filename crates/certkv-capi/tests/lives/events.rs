//! Events of cached prefixes: in order beside a live cache, and arguments that are named where they are wrong.
use super::*;
use core::mem::zeroed;
use std::collections::BTreeMap;

fn read() -> certkv_events_read {
    certkv_events_read { struct_size: size_of::<certkv_events_read>() as u32, ..Default::default() }
}

fn some(n: usize) -> Vec<certkv_prefix_event> {
    // SAFETY: integers and bytes.
    vec![unsafe { zeroed() }; n]
}

/// Up to `n` events from `from` on, and what the call said.
fn events(cache: &Cache, from: u64, n: usize) -> Result<(Vec<certkv_prefix_event>, certkv_events_read), certkv_status> {
    let (mut told, mut said) = (some(n), read());
    // SAFETY: as many events as there is room for, and a local.
    match unsafe { certkv_cache_events(cache.0, from, told.as_mut_ptr(), n as u64, ptr::null_mut(), 0, &mut said) } {
        CERTKV_OK => {
            told.truncate(said.read as usize);
            Ok((told, said))
        }
        refused => Err(refused),
    }
}

fn with_events(prefix_events: u64) -> Cache {
    Cache::new(&certkv_config { prefix_events, ..config() })
}

/// More events than are copied at once, read while another thread makes them: each once, in order, or counted as lost.
#[test]
fn a_reader_beside_a_writer_misses_nothing_unnoticed() {
    let cache = with_events(100);
    let last = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            for round in 0..120u32 {
                let (a, tokens) = (cache.create(), [round; BLOCK as usize * 2]);
                cache.append(a, 32, u64::from(round));
                cache.publish(a, &prefix_scope(b"tenant"), &tokens).unwrap();
                cache.release(a);
                cache.evict(2).unwrap();
            }
        });
        let (mut next, mut known, mut lost) = (0, BTreeMap::new(), 0);
        loop {
            let over = writer.is_finished();
            let (told, said) = events(&cache, next, 1000).unwrap();
            let first = next + said.lost;
            lost += said.lost;
            for (i, event) in told.iter().enumerate() {
                assert_eq!(event.number, first + i as u64);
                match event.kind {
                    CERTKV_EVENT_STORED => assert!(known.insert(event.key.bytes, event.number).is_none()),
                    _ => assert!(known.remove(&event.key.bytes).is_some() || lost > 0),
                }
            }
            next = said.next;
            if over && said.next == said.newest {
                break;
            }
        }
        assert!(known.is_empty() || lost > 0);
        next
    });
    assert_eq!(last, 120 * 4);
    // All that is left, in one call of more than one piece.
    let (told, said) = events(&cache, 0, 1000).unwrap();
    assert_eq!((told.len(), said.lost, told[0].number, said.next), (100, 380, 380, 480));
    let (told, said) = events(&cache, 380, 70).unwrap();
    assert_eq!((told.len(), told[69].number, said.next, said.newest), (70, 449, 450, 480));
}

#[test]
fn events_say_what_is_wrong_with_each_argument() {
    let (cache, words, scope) = (with_events(8), [0u64; 16], prefix_scope(b"tenant"));
    let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast_mut();
    let (mut told, mut tokens, mut said, mut key) = (some(2), [0u32; 32], read(), certkv_store_key { bytes: [7; 32] });
    let (at, words, out) = (told.as_mut_ptr(), tokens.as_mut_ptr(), &raw mut said);
    let named = |status, word: &str| {
        assert!(status != CERTKV_OK && message().contains(word), "{status:?}: {}", message());
    };
    // SAFETY: locals; what is refused is not followed.
    unsafe {
        named(certkv_cache_events(ptr::null(), 0, at, 2, words, 32, out), "cache");
        named(certkv_cache_events(cache.0, 1, at, 2, words, 32, out), "from");
        named(certkv_cache_events(cache.0, 0, ptr::null_mut(), 2, words, 32, out), "events");
        named(certkv_cache_events(cache.0, 0, at, u64::MAX, words, 32, out), "events");
        named(certkv_cache_events(cache.0, 0, at, 2, ptr::null_mut(), 32, out), "tokens");
        named(certkv_cache_events(cache.0, 0, at, 2, words, 15, out), "tokens");
        named(certkv_cache_events(cache.0, 0, at, 2, words, 32, odd.cast()), "read");
        named(certkv_cache_cached_prefixes(ptr::null(), at, 2, words, 32, out), "cache");
        named(certkv_cache_cached_prefixes(cache.0, odd.cast(), 2, words, 32, out), "events");
        named(certkv_cache_cached_prefixes(cache.0, at, 2, odd.cast(), 32, out), "tokens");
        named(certkv_cache_cached_prefixes(cache.0, at, 2, words, 32, ptr::null_mut()), "read");
        named(certkv_cache_prefix_key(ptr::null(), &scope, words, 32, &mut key), "cache");
        named(certkv_cache_prefix_key(cache.0, ptr::null(), words, 32, &mut key), "scope");
        named(certkv_cache_prefix_key(cache.0, &scope, ptr::null(), 32, &mut key), "tokens");
        named(certkv_cache_prefix_key(cache.0, &scope, words, 1 << 32, &mut key), "n_tokens");
        named(certkv_cache_prefix_key(cache.0, &scope, words, 32, ptr::null_mut()), "key");
        for (handle, status) in no_caches() {
            assert_eq!(certkv_cache_events(handle, 0, at, 2, words, 32, out), status);
            assert_eq!(certkv_cache_cached_prefixes(handle, at, 2, words, 32, out), status);
            assert_eq!(certkv_cache_prefix_key(handle, &scope, words, 32, &mut key), status);
        }
    }
    assert_eq!((said, key.bytes), (read(), [7; 32]));
    assert_eq!(events(&Cache::new(&config()), 0, 1), Err(CERTKV_UNSUPPORTED));
    named(CERTKV_UNSUPPORTED, "config->prefix_events");
}

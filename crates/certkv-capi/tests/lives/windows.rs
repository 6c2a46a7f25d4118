//! Sliding windows of some layers.
use crate::*;
use core::ptr;

/// What the last step of a sequence returned, by layer: its first tokens come from `seed`, and those that a window sees do not.
fn last(config: &certkv_config, seed: u64) -> [Vec<f32>; 2] {
    let cache = Cache::new(config);
    let a = cache.create();
    cache.append(a, 4, 1);
    cache.append(a, 60, seed);
    for i in 0..4 {
        cache.append(a, 10, 3 + i);
    }
    let outputs = cache.append(a, 1, 9).0;
    [outputs[..Q].to_vec(), outputs[Q..].to_vec()]
}

#[test]
fn a_layer_with_a_window_does_not_see_what_has_left_it() {
    let each = [certkv_window { tokens: 32, sinks: 4, chunk: 60 }, certkv_window::default()];
    let plain = certkv_config { prefix_units: 0, policy: CERTKV_POLICY_DENSE, ..config() };
    let windowed = certkv_config { n_windows: 2, windows: each.as_ptr(), ..plain };
    let [one, other] = [5, 6].map(|seed| last(&windowed, seed));
    assert_eq!(one[0], other[0], "60 tokens that only the other layer sees");
    assert_ne!(one[1], other[1]);
    let [full, full_other] = [5, 6].map(|seed| last(&plain, seed));
    assert!(full[0] != full_other[0] && full[0] != one[0] && full[1] == one[1]);
    // One for all layers, whose sinks are seen.
    let all = [certkv_window { tokens: 32, sinks: 0, chunk: 60 }];
    let none = last(&certkv_config { n_windows: 1, windows: all.as_ptr(), ..plain }, 5);
    assert!(none[0] != one[0] && none[1] != one[1]);
    // A chunk has a most.
    let cache = Cache::new(&windowed);
    let a = cache.create();
    assert_eq!(cache.begin(a, 61), Err(CERTKV_LENGTH));
    assert!(message().contains("60"), "{}", message());
    // What is cut must still be there.
    cache.append(a, 60, 1);
    cache.append(a, 60, 2);
    // SAFETY: no pointers but the handle.
    assert_eq!(unsafe { certkv_sequence_truncate(cache.0, a, 30) }, CERTKV_LENGTH);
    assert_eq!(cache.length(a), 120);
}

/// What was published is found at its length and not between, here and by way of a store.
#[test]
fn prefixes_are_found_beside_windows() {
    let each = [certkv_window { tokens: 32, sinks: 4, chunk: 60 }, certkv_window::default()];
    let secret = [9u8; 32];
    let with_windows = certkv_config { n_windows: 2, windows: each.as_ptr(), ..config() };
    let config = certkv_config { prefix_secret: secret.as_ptr(), ..with_windows };
    let [cache, other] = [Cache::new(&config), Cache::new(&config)];
    let (tokens, scope, a) = ((0..90).collect::<Vec<u32>>(), prefix_scope(b"tenant"), cache.create());
    (0..3).for_each(|i| drop(cache.append(a, 30, 5 + i)));
    let done = cache.publish(a, &scope, &tokens).unwrap();
    assert_eq!((done.cached, done.added, done.stop), (5 * BLOCK, 5 * BLOCK, CERTKV_STOP_NONE));
    cache.release(a);
    // The sinks' block is a prefix of its own; the window of the second block is gone.
    for (asked, there) in [(90, 5 * BLOCK), (40, BLOCK), (15, 0)] {
        let (next, found) = cache.create_from(&scope, &tokens[..asked]).unwrap();
        assert_eq!((found, cache.length(next)), (there, there));
        cache.release(next);
    }
    let mut store = ptr::null_mut();
    // SAFETY: the out parameter is a local.
    assert_eq!(unsafe { certkv_store_create_memory(0, &mut store) }, CERTKV_OK);
    assert_eq!(cache.export(store, &tokens, 0), Ok(5));
    assert_eq!(other.missing(store, &tokens), Ok([5, 5]));
    // Of 40 tokens two units come, of which the second lacks its window, here and in the store.
    assert_eq!((other.import(store, &tokens[..40], 0), other.missing(store, &tokens[..40])), (Ok(BLOCK), Ok([1, 1])));
    assert_eq!((other.import(store, &tokens, 0), other.missing(store, &tokens)), (Ok(5 * BLOCK), Ok([0, 0])));
    assert_eq!(other.import(store, &tokens, 0), Ok(5 * BLOCK));
    let outputs = [&cache, &other].map(|cache| {
        let (next, _) = cache.create_from(&scope, &tokens).unwrap();
        let out = cache.append(next, 1, 6);
        cache.release(next);
        out
    });
    assert_eq!(outputs[0], outputs[1]);
    for cache in [&cache, &other] {
        assert_eq!((cache.evict(u64::MAX), cache.snapshot().host_pages.live), (Ok(5), 0));
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_store_destroy(store) }, CERTKV_OK);
}

//! From each other's prefixes.
use super::*;
use core::ffi::c_void;

#[test]
fn a_sequence_continues_from_what_another_one_wrote() {
    let cache = Cache::new(&config());
    let tokens: Vec<u32> = (0..40).map(|i| i * i).collect();
    let (scope, a) = (prefix_scope(b"tenant"), cache.create());
    cache.append(a, 40, 5);
    let done = cache.publish(a, &scope, &tokens).unwrap();
    assert_eq!((done.cached, done.added, done.stop), (2 * BLOCK, 2 * BLOCK, CERTKV_STOP_NONE));
    assert_eq!(cache.publish(a, &scope, &tokens).unwrap().added, 0);
    // It goes on from the cached blocks: always alike, and within the bounds of a fork that was cut to them, which remembers what it
    // read exactly.
    let mut twin = 0;
    // SAFETY: the out parameter is a local.
    unsafe {
        assert_eq!(certkv_sequence_fork(cache.0, a, &mut twin), CERTKV_OK);
        assert_eq!(certkv_sequence_truncate(cache.0, twin, 2 * BLOCK), CERTKV_OK);
    }
    let [next, other] = [(); 2].map(|()| {
        let (next, found) = cache.create_from(&scope, &tokens).unwrap();
        assert_eq!((found, cache.length(next)), (2 * BLOCK, 2 * BLOCK));
        next
    });
    let [(out, certified), again, (cut, bounds)] = [next, other, twin].map(|sequence| cache.append(sequence, 1, 6));
    assert_eq!((&out, &certified), (&again.0, &again.1));
    for (head, (one, two)) in out.chunks(64).zip(cut.chunks(64)).enumerate() {
        let apart: f64 = one.iter().zip(two).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        assert!(apart.sqrt() <= certified[head].bound + bounds[head].bound, "head {head}");
    }
    [a, twin, next, other].into_iter().for_each(|sequence| cache.release(sequence));
    // Every field of the scope divides; absent and empty are not the same.
    let mut others = vec![prefix_scope(b"other"); 1];
    let name: *const c_void = b"model".as_ptr().cast();
    others.push(certkv_prefix_scope { model_bytes: 4, ..scope });
    others.push(certkv_prefix_scope { adapter: name, adapter_bytes: 0, ..scope });
    others.push(certkv_prefix_scope { adapter: name, adapter_bytes: 5, ..scope });
    others.push(certkv_prefix_scope { salt: name, salt_bytes: 5, ..scope });
    others.push(certkv_prefix_scope { tolerance_class: 1, ..scope });
    others.push(certkv_prefix_scope { first_position: 1, ..scope });
    for other in others {
        let (empty, found) = cache.create_from(&other, &tokens).unwrap();
        assert_eq!((found, cache.length(empty)), (0, 0));
        cache.release(empty);
    }
    let (half, found) = cache.create_from(&scope, &tokens[..BLOCK as usize]).unwrap();
    assert_eq!(found, BLOCK);
    // What a sequence uses stays, the rest goes; then all.
    assert_eq!((cache.evict(u64::MAX), cache.snapshot().prefix_units), (Ok(1), 1));
    cache.release(half);
    assert_eq!(cache.admit(99, 1), Err(CERTKV_UNKNOWN_SEQUENCE));
    assert_eq!((cache.evict(0), cache.evict(u64::MAX), cache.evict(5)), (Ok(0), Ok(1), Ok(0)));
    let seen = cache.snapshot();
    assert_eq!((seen.prefix_units, seen.prefix_capacity, seen.prefix_published, seen.prefix_evicted), (0, 8, 2, 2));
    assert_eq!((seen.prefix_lookups, seen.prefix_hits, seen.host_pages.live), (10, 5, 0));
}

#[test]
fn a_prefix_says_what_is_wrong_with_each_argument() {
    let secret = [7u8; 32];
    let config = certkv_config { prefix_secret: secret.as_ptr(), prefix_eviction: CERTKV_EVICTION_LRU, ..config() };
    let cache = Cache::new(&config);
    let (a, words, tokens) = (cache.create(), [0u64; 16], [3u32; 4]);
    let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast_mut();
    let scope = prefix_scope(b"tenant");
    let both = |scope: *const certkv_prefix_scope, at: *const u32, n: u64, status| {
        let (mut made, mut found) = (7, 7);
        // SAFETY: locals; what is refused is not followed.
        unsafe {
            assert_eq!(certkv_cache_publish(cache.0, a, scope, at, n, ptr::null_mut()), status);
            assert_eq!(certkv_sequence_create_from(cache.0, scope, at, n, &mut made, &mut found), status);
        }
        assert_eq!((made, found), (CERTKV_NO_SEQUENCE, 7));
    };
    let at = tokens.as_ptr();
    both(ptr::null(), at, 4, CERTKV_NULL_POINTER);
    both(odd.cast(), at, 4, CERTKV_MISALIGNED);
    for size in [0, 16, 4097, u32::MAX] {
        both(&certkv_prefix_scope { struct_size: size, ..scope }, at, 4, CERTKV_STRUCT_SIZE);
    }
    for bytes in [4097, u64::MAX] {
        both(&certkv_prefix_scope { domain_bytes: bytes, ..scope }, at, 4, CERTKV_INVALID_ARGUMENT);
        both(&certkv_prefix_scope { model_bytes: bytes, ..scope }, at, 4, CERTKV_INVALID_ARGUMENT);
        both(&certkv_prefix_scope { adapter_bytes: bytes, ..scope }, at, 4, CERTKV_INVALID_ARGUMENT);
        both(&certkv_prefix_scope { salt_bytes: bytes, ..scope }, at, 4, CERTKV_INVALID_ARGUMENT);
    }
    both(&certkv_prefix_scope { domain: ptr::null(), ..scope }, at, 4, CERTKV_NULL_POINTER);
    both(&certkv_prefix_scope { adapter_bytes: 1, ..scope }, at, 4, CERTKV_NULL_POINTER);
    assert!(message().contains("scope->adapter"), "{}", message());
    both(&scope, ptr::null(), 4, CERTKV_NULL_POINTER);
    both(&scope, odd.cast(), 4, CERTKV_MISALIGNED);
    both(&scope, at, (1 << 31) + 1, CERTKV_LENGTH);
    both(&scope, at, u64::MAX, CERTKV_LENGTH);
    let (mut made, mut published) = (7, certkv_publication { struct_size: 24, ..Default::default() });
    // SAFETY: locals; what is refused is not written.
    unsafe {
        assert_eq!(
            certkv_sequence_create_from(cache.0, &scope, at, 4, ptr::null_mut(), &mut made),
            CERTKV_NULL_POINTER
        );
        assert_eq!(certkv_sequence_create_from(cache.0, &scope, at, 4, odd.cast(), &mut made), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_create_from(cache.0, &scope, at, 4, &mut made, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_cache_publish(cache.0, a, &scope, at, 4, odd.cast()), CERTKV_MISALIGNED);
        for size in [0, 4, 4097] {
            published.struct_size = size;
            assert_eq!(certkv_cache_publish(cache.0, a, &scope, at, 4, &mut published), CERTKV_STRUCT_SIZE);
        }
        assert_eq!(certkv_cache_evict_prefixes(cache.0, 1, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_cache_evict_prefixes(cache.0, 1, ptr::null_mut()), CERTKV_OK);
        assert_eq!(certkv_sequence_create_from(cache.0, &scope, ptr::null(), 0, &mut made, ptr::null_mut()), CERTKV_OK);
        cache.release(made);
        for (handle, status) in no_caches() {
            assert_eq!(certkv_cache_publish(handle, a, &scope, at, 4, ptr::null_mut()), status);
            assert_eq!(certkv_sequence_create_from(handle, &scope, at, 4, &mut made, ptr::null_mut()), status);
            assert_eq!(certkv_cache_evict_prefixes(handle, 1, ptr::null_mut()), status);
        }
        let step = cache.begin(a, 1).unwrap();
        assert_eq!(cache.publish(a, &scope, &tokens), Err(CERTKV_BUSY_SEQUENCE));
        assert_eq!(certkv_step_abort(step), CERTKV_OK);
    }
    assert_eq!(cache.publish(99, &scope, &tokens), Err(CERTKV_UNKNOWN_SEQUENCE));
    let none = Cache::new(&certkv_config { prefix_units: 0, ..config });
    assert_eq!(none.publish(none.create(), &scope, &tokens), Err(CERTKV_UNSUPPORTED));
    assert_eq!(none.create_from(&scope, &tokens), Err(CERTKV_UNSUPPORTED));
    assert_eq!(none.evict(1), Err(CERTKV_UNSUPPORTED));
    assert!(message().contains("config->prefix_units"), "{}", message());
    let full: Vec<_> = (0..3).map(|_| cache.create_from(&scope, &tokens).unwrap()).collect();
    assert_eq!(cache.create_from(&scope, &tokens), Err(CERTKV_TOO_MANY_SEQUENCES));
    full.into_iter().for_each(|(sequence, _)| cache.release(sequence));
}

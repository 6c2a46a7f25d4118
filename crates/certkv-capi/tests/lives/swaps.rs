//! Out of device memory and back.
use super::*;

#[test]
fn a_sequence_that_was_away_goes_on_as_if_it_had_stayed() {
    let (cache, twin) = (Cache::new(&config()), Cache::new(&config()));
    let [a, b] = [&cache, &twin].map(Cache::create);
    cache.append(a, 40, 1);
    twin.append(b, 40, 1);
    let before = cache.snapshot();
    let (mut out, mut back) = (7, 7);
    // SAFETY: the out parameters are locals or NULL.
    unsafe {
        assert_eq!(certkv_sequence_swap_in(cache.0, a, &mut back), CERTKV_NOT_SWAPPED_OUT);
        assert_eq!((cache.is_out(a), back), (0, 7));
        assert_eq!(certkv_sequence_swap_out(cache.0, a, &mut out), CERTKV_OK);
        assert_eq!((cache.is_out(a), cache.length(a)), (1, 40));
        let away = cache.snapshot();
        assert_eq!((away.packed_pages.live, away.swap_pages.live), (0, before.packed_pages.live));
        assert_eq!((away.swap_outs.done, away.swap_outs.bytes), (1, out));
        // What needs the codes is refused, what does not is not.
        assert_eq!(cache.begin(a, 1), Err(CERTKV_SWAPPED_OUT));
        let mut fork = 7;
        assert_eq!(certkv_sequence_fork(cache.0, a, &mut fork), CERTKV_SWAPPED_OUT);
        assert_eq!(fork, CERTKV_NO_SEQUENCE);
        assert_eq!(cache.publish(a, &prefix_scope(b"t"), &[1; 40]), Err(CERTKV_SWAPPED_OUT));
        assert_eq!(certkv_sequence_swap_out(cache.0, a, ptr::null_mut()), CERTKV_SWAPPED_OUT);
        assert_eq!(certkv_sequence_swap_in(cache.0, a, &mut back), CERTKV_OK);
        assert!(out > 0 && out == back && cache.is_out(a) == 0);
        assert_eq!(cache.append(a, 1, 2), twin.append(b, 1, 2));
        // Cut and released while it is away.
        assert_eq!(certkv_sequence_swap_out(cache.0, a, ptr::null_mut()), CERTKV_OK);
        assert_eq!(certkv_sequence_truncate(cache.0, a, 20), CERTKV_OK);
        assert_eq!(cache.length(a), 20);
        cache.release(a);
        assert_eq!(certkv_sequence_swap_in(cache.0, a, &mut back), CERTKV_UNKNOWN_SEQUENCE);
    }
    let left = cache.snapshot();
    assert_eq!((left.packed_pages.live, left.swap_pages.live, left.host_pages.live), (0, 0, 0));
}

#[test]
fn a_swap_says_what_is_wrong_with_each_argument() {
    let cache = Cache::new(&config());
    let (a, words) = (cache.create(), [0u64; 2]);
    let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast_mut();
    // SAFETY: nothing is written through what is refused, and the rest are locals.
    unsafe {
        let mut n = 7;
        for (handle, status) in no_caches() {
            assert_eq!(certkv_sequence_swap_out(handle, a, &mut n), status);
            assert_eq!(certkv_sequence_swap_in(handle, a, &mut n), status);
            let mut out = 7;
            assert_eq!(certkv_sequence_is_swapped_out(handle, a, &mut out), status);
            assert_eq!((n, out), (7, 7));
        }
        assert_eq!(certkv_sequence_swap_out(cache.0, a, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_swap_in(cache.0, a, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_is_swapped_out(cache.0, a, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_is_swapped_out(cache.0, a, ptr::null_mut()), CERTKV_NULL_POINTER);
        let step = cache.begin(a, 1).unwrap();
        let mut out = 7;
        assert_eq!(certkv_sequence_swap_out(cache.0, a, &mut n), CERTKV_BUSY_SEQUENCE);
        assert_eq!(certkv_sequence_swap_in(cache.0, a, &mut n), CERTKV_BUSY_SEQUENCE);
        assert_eq!(certkv_sequence_is_swapped_out(cache.0, a, &mut out), CERTKV_BUSY_SEQUENCE);
        assert_eq!(certkv_step_abort(step), CERTKV_OK);
        assert_eq!((n, out), (7, 7));
    }
    // Without room for codes outside, one that has a full block stays where it is.
    let cache = Cache::new(&certkv_config { swap_tokens: 0, ..config() });
    let a = cache.create();
    cache.append(a, BLOCK, 1);
    // SAFETY: NULL is allowed.
    assert_eq!(unsafe { certkv_sequence_swap_out(cache.0, a, ptr::null_mut()) }, CERTKV_CAPACITY);
    assert_eq!((cache.is_out(a), cache.snapshot().swap_outs.refused), (0, 1));
    assert!(message().contains("swap"), "{}", message());
}

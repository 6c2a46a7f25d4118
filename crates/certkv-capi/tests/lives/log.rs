//! The log of the process, from many threads, while its function is replaced.
use super::*;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::cell::Cell;

#[derive(Default)]
struct Ear {
    /// Set once certkv_log_set has returned that took it away.
    gone: AtomicBool,
    heard: AtomicU32,
    late: AtomicU32,
    foreign: AtomicU32,
}

thread_local! {
    /// Calls of this thread that fail, and of these told. Other tests of this program fail calls of their own, with the same words.
    static CALLS: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
    /// Whether the thread is one of this test.
    static OWN: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn hear(user: *mut c_void, level: certkv_log_level, _: *const c_char, message: *const c_char) {
    // SAFETY: the test's own, never freed; the text is a C string.
    let (ear, message) = unsafe { (&*user.cast::<Ear>(), CStr::from_ptr(message)) };
    ear.heard.fetch_add(1, Ordering::Relaxed);
    ear.late.fetch_add(ear.gone.load(Ordering::SeqCst).into(), Ordering::Relaxed);
    if OWN.get() && level == CERTKV_LOG_DEBUG && message.to_bytes() == b"CERTKV_NULL_POINTER: sequence is NULL" {
        let [calls, told] = CALLS.get();
        ear.foreign.fetch_add((calls == told).into(), Ordering::Relaxed);
        CALLS.set([calls, told + 1]);
    }
}

fn fail(cache: &Cache) {
    // SAFETY: what is NULL is refused.
    assert_eq!(unsafe { certkv_sequence_create(cache.0, ptr::null_mut()) }, CERTKV_NULL_POINTER);
    assert!(message().contains("sequence is NULL"));
}

#[test]
fn a_function_that_was_replaced_is_not_called_again() {
    let (cache, over) = (Cache::new(&config()), AtomicBool::new(false));
    let ears: Vec<&Ear> = (0..200).map(|_| &*Box::leak(Box::default())).collect();
    let calls: u32 = std::thread::scope(|threads| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                threads.spawn(|| {
                    OWN.set(true);
                    while !over.load(Ordering::Relaxed) {
                        CALLS.set([CALLS.get()[0] + 1, CALLS.get()[1]]);
                        fail(&cache);
                    }
                    CALLS.get()[1]
                })
            })
            .collect();
        let set = |level, ear: Option<&&Ear>| {
            let user = ear.map_or(ptr::null_mut(), |ear| ptr::from_ref(*ear).cast_mut().cast());
            // SAFETY: the function and an ear that lives for ever.
            assert_eq!(unsafe { certkv_log_set(level, Some(hear), user) }, CERTKV_OK);
        };
        for (i, ear) in ears.iter().enumerate() {
            set(CERTKV_LOG_DEBUG, Some(ear));
            i.checked_sub(1).inspect(|before| ears[*before].gone.store(true, Ordering::SeqCst));
            while ear.heard.load(Ordering::Relaxed) < 5 {
                std::thread::yield_now();
            }
        }
        set(CERTKV_LOG_OFF, None);
        ears[199].gone.store(true, Ordering::SeqCst);
        let heard: Vec<u32> = ears.iter().map(|ear| ear.heard.load(Ordering::Relaxed)).collect();
        over.store(true, Ordering::Relaxed);
        let calls = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert!(
            ears.iter().zip(&heard).all(|(ear, heard)| ear.heard.load(Ordering::Relaxed) == *heard),
            "after its end"
        );
        calls
    });
    assert!(calls > 500, "{calls}");
    let sum = |of: fn(&Ear) -> &AtomicU32| ears.iter().map(|ear| of(ear).load(Ordering::Relaxed)).sum::<u32>();
    assert_eq!((sum(|ear| &ear.late), sum(|ear| &ear.foreign)), (0, 0), "late, or on another thread");
}

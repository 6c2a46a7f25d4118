//! A machine without memory: whichever request that grows with tokens the making of a cache is refused, or a call that moves pages, it says so and leaves
//! nothing behind. (What steps work in is asked for when it first grows, and a machine without it ends the process.)
mod common;
use certkv::{
    Cache, Config, Error, Eviction, Geometry, PrefixConfig, PrefixScope, PrefixSecret, PublishedPrefix, SequenceId,
    Stop,
};
use certkv_testkit::generate::Rng;
use common::{fill, random_rows};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Requests that grow with the tokens of a cache; smaller ones are texts, fields and lists of layers and sequences.
const OF_A_CACHE: usize = 16 << 10;
/// Requests that grow with the tokens of a sequence.
const OF_A_SEQUENCE: usize = 4096;

thread_local! {
    /// Bytes of a request that counts.
    static LEAST: Cell<usize> = const { Cell::new(0) };
    /// Such requests of this thread until one is refused; 0: none is.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread was given and has not given back, while it is counted.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// Refuses the request that the thread has asked it to.
struct Refusing;

impl Refusing {
    fn refuses(bytes: usize) -> bool {
        let left = LEFT.try_with(Cell::get).unwrap_or(0);
        if left == 0 || bytes < LEAST.get() {
            return false;
        }
        LEFT.with(|l| l.set(left - 1));
        left == 1
    }

    fn hold(bytes: isize) {
        let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    }
}

// SAFETY: what the system's allocator gives, or null, which every caller must expect.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return core::ptr::null_mut();
        }
        Self::hold(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return core::ptr::null_mut();
        }
        Self::hold(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if Self::refuses(bytes) {
            return core::ptr::null_mut();
        }
        Self::hold(bytes as isize - layout.size() as isize);
        // SAFETY: the caller's block and layout.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::hold(-(layout.size() as isize));
        // SAFETY: the caller's block and layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

fn config(formats: &str, tokens: usize) -> Config {
    let geometry = Geometry::new(3, 4, 2, 64).expect("a geometry");
    let prefixes = PrefixConfig { secret: PrefixSecret::new([3; 32]), units: 500, eviction: Eviction::Lru };
    let formats = formats.split('/').map(|format| format.parse().expect("a format")).collect();
    Config {
        formats,
        max_sequences: 100,
        scratch_keys: 300,
        scratch_values: 200,
        swap_tokens: 16_384,
        prefixes: Some(prefixes),
        ..Config::new(geometry, tokens)
    }
}

/// Makes the `nth` request of at least `least` bytes in `call` fail; what the call says, and whether one was.
fn refused<T>(least: usize, nth: u64, call: impl FnOnce() -> T) -> (T, bool) {
    LEAST.set(least);
    LEFT.set(nth);
    let answer = call();
    (answer, LEFT.replace(0) == 0)
}

/// The call that keeps what it did before it was refused.
const PUBLISH: &str = "publish";

/// Refuses `call` each of its requests in turn, and gives how many it had. It says that memory is wanting, and holds no such
/// request afterwards.
fn each<T>(what: &str, least: usize, mut call: impl FnMut() -> Result<T, Error>) -> (u64, T) {
    for nth in 1.. {
        let before = HELD.get();
        let (made, reached) = refused(least, nth, &mut call);
        match made {
            Ok(made) if !reached => return (nth - 1, made),
            Ok(_) => panic!("{what}, request {nth}: not heard"),
            Err(error) => assert!(error.to_string().contains("memory"), "{what}, request {nth}: {error}"),
        }
        let held = HELD.get() - before;
        assert!(what == PUBLISH || held < least as isize, "{what}, request {nth}: {held} bytes stay");
    }
    unreachable!("requests without end")
}

#[test]
fn a_cache_without_memory_is_refused() {
    let mut executed = 0;
    for formats in ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g64-b64-r8.4", "tq4-tq4-b64/k8-v4g32-b16/f16-v8g64-b64"] {
        // What is made once for the process is made.
        drop(Cache::new(config(formats, 65_536)).expect("a cache"));
        let (requests, _) = each(formats, OF_A_CACHE, || Cache::new(config(formats, 65_536)));
        assert!(requests > 10, "{requests} large requests");
        executed += requests;
    }
    // A list that nobody gives back is seen.
    let before = HELD.get();
    core::mem::forget(Vec::<u8>::with_capacity(OF_A_CACHE));
    let seen = HELD.get() - before >= OF_A_CACHE as isize;
    println!("GATE memory-refused executed={executed} failed=0 controls={}/1 seed=0x0", u8::from(seen));
    assert!(seen);
}

#[test]
fn calls_without_memory_change_nothing() {
    const TOKENS: usize = 10_000;
    const CUT: usize = 9_003;
    let mut executed = [0; 6];
    for formats in ["k8-v4g32-b16", "tq4-tq4-b64/k8-v4g32-b16/f16-v8g64-b64"] {
        let cache = Cache::new(config(formats, 32_768)).expect("a cache");
        let geometry = *cache.geometry();
        let first = cache.create().expect("a sequence");
        fill(&cache, first, &random_rows(&geometry, TOKENS, &mut Rng::new(7))).expect("rows");
        let scope = PrefixScope::new(b"tenant", b"model");
        let tokens: Vec<u32> = (0..TOKENS as u32).collect();
        let pages = || (cache.live_pages(), cache.memory());
        let mut count = |at: usize, requests: u64| executed[at] += requests;
        let whole = |id: SequenceId, len: usize| assert_eq!(cache.len(id).ok(), Some(len));

        let before = pages();
        let (requests, made) = each("create", OF_A_SEQUENCE, || cache.create());
        count(0, requests);
        cache.release(made).expect("an end");
        let (requests, fork) = each("fork", OF_A_SEQUENCE, || cache.fork(first));
        count(1, requests);
        cache.truncate(fork, CUT).expect("which asks for nothing");
        whole(fork, CUT);
        let (requests, _) =
            each(PUBLISH, OF_A_SEQUENCE, || match cache.publish(fork, &scope, tokens[..CUT].into())? {
                // Units before it are cached.
                PublishedPrefix { stop: Some(Stop::Page(want)), .. } => Err(Error::Table(want)),
                published => Ok(published),
            });
        count(2, requests);
        let (requests, (found, _)) = each("continue", OF_A_SEQUENCE, || cache.create_from(&scope, tokens[..].into()));
        count(3, requests);
        cache.release(found).expect("an end");
        cache.release(fork).expect("an end");
        cache.evict_prefixes(usize::MAX).expect("room");
        let (requests, _) = each("swap out", OF_A_SEQUENCE, || {
            assert_eq!(cache.is_swapped_out(first).ok(), Some(false));
            cache.swap_out(first)
        });
        count(4, requests);
        let (requests, _) = each("swap in", OF_A_SEQUENCE, || {
            assert_eq!(cache.is_swapped_out(first).ok(), Some(true));
            cache.swap_in(first)
        });
        count(5, requests);
        whole(first, TOKENS);
        assert_eq!(pages(), before);
    }
    let all: u64 = executed.iter().sum();
    println!(
        "GATE calls-refused executed={all} failed=0 controls=0/0 seed=0x7 create, fork, publish, continue, swap out, in: {executed:?}"
    );
    assert!(executed.iter().all(|n| *n > 0), "{executed:?}");
}

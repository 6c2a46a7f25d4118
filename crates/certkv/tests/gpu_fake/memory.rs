//! A host without memory: whichever request that grows with tokens a cache on a GPU is refused, it says so and changes nothing.
use crate::alone;
use crate::fake_cuda::Fake;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use crate::refusing::{each, held};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, Policy, PrefixScope, PublishedPrefix, SaveScope, Scrub, SequenceId, Side, Stop};

const KV: usize = KV_HEADS * DIM;
/// Tokens of the sequence that calls are made with, and where it is cut.
const TOKENS: usize = 1200 * BLOCK;
const CUT: usize = TOKENS - 7 * BLOCK - 3;
/// Requests that grow with the tokens of a sequence; smaller ones are texts, fields, and lists of layers and sequences.
const OF_A_SEQUENCE: usize = 4096;
/// Requests that grow with the tokens of a cache, of which it has so many; smaller ones are sources of kernels, too.
const OF_A_CACHE: usize = 60 << 10;
const ROOM: usize = 16_000 * BLOCK;
/// Requests of a call that are refused one by one.
const ALL: u64 = 40;
/// Longer than what the GPU attends at once.
const CHUNK: usize = 5 * BLOCK;
const CALLS: [&str; 15] = [
    "make",
    "create",
    "prompt",
    "token",
    "fork",
    "cut",
    "publish",
    "continue",
    "swap out",
    "swap in",
    "save",
    "restore",
    "scrub",
    "originals",
    "chunk",
];
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"tenant", b"model");
const FILE: SaveScope<'_> = SaveScope { model: b"model", key: None };

/// With room for so many sequences of so many tokens.
fn large(format: &str, sequences: usize, tokens: usize) -> GpuConfig {
    let mut config = config(format);
    (config.max_tokens, config.max_context) = (sequences * (tokens + 8 * BLOCK), tokens + 8 * BLOCK);
    config.swap_tokens = tokens + BLOCK;
    if let Some(prefixes) = &mut config.prefixes {
        prefixes.units = tokens / BLOCK;
    }
    config
}

/// What a caller brings, and gets.
struct Io {
    rows: Vec<u16>,
    queries: Vec<f32>,
    out: Vec<f32>,
}

/// Appends `tokens` more in every layer, and attends to them unless they are a whole prompt.
fn step(cache: &mut GpuCache, id: SequenceId, tokens: usize, io: &mut Io) -> Result<(), Error> {
    let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], Policy::Packed)?;
    let (rows, heads) = (&io.rows[..tokens * KV], tokens * KV * GROUP);
    for layer in 0..LAYERS {
        step.append_bits(layer, rows, rows)?;
        if tokens <= CHUNK {
            step.attend(layer, &io.queries[..heads])?;
            step.outputs(layer, &mut io.out[..heads], &mut [])?;
        }
    }
    step.finish()
}

fn calls(fake: &Fake, compiler: &Compiler, format: &str, executed: &mut [u64; CALLS.len()]) {
    fake.reset();
    kernels::begin(format);
    let gpu = Gpu::open(0).expect("the fake");
    // What is made once for the process is made.
    drop(GpuCache::new(&gpu, compiler, large(format, 3, TOKENS)).expect("a cache"));
    let (requests, _) =
        each("make", (OF_A_CACHE, ALL, false), || GpuCache::new(&gpu, compiler, large(format, 1, ROOM)));
    executed[0] += requests;
    let mut cache = GpuCache::new(&gpu, compiler, large(format, 3, TOKENS)).expect("a cache");
    let numbers = vec![0.5; CHUNK * KV * GROUP];
    let mut io = Io { rows: vec![0x3800; TOKENS * KV], queries: numbers.clone(), out: numbers };
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let mut count = |at: usize, requests: u64| executed[at] += requests;

    let (requests, first) = each("create", (OF_A_SEQUENCE, ALL, false), || cache.create());
    count(1, requests);
    let (requests, ()) = each("prompt", (OF_A_SEQUENCE, ALL, true), || step(&mut cache, first, TOKENS, &mut io));
    count(2, requests);
    assert_eq!(cache.len(first).ok(), Some(TOKENS));
    let before = cache.live_pages();
    for (at, tokens) in [(3, 1), (14, CHUNK)] {
        let (requests, ()) = each(CALLS[at], (OF_A_SEQUENCE, ALL, true), || step(&mut cache, first, tokens, &mut io));
        count(at, requests);
        cache.truncate(first, TOKENS).expect("a cut");
    }
    let (requests, fork) = each("fork", (OF_A_SEQUENCE, ALL, false), || cache.fork(first));
    count(4, requests);
    let (requests, ()) = each("truncate", (OF_A_SEQUENCE, ALL, false), || cache.truncate(fork, CUT));
    count(5, requests);
    assert_eq!(cache.len(fork).ok(), Some(CUT));
    let (requests, _) =
        each("publish", (OF_A_SEQUENCE, ALL, true), || match cache.publish(fork, &SCOPE, tokens[..CUT].into())? {
            // Units before it are cached.
            PublishedPrefix { stop: Some(Stop::Page(want)), .. } => Err(Error::Table(want)),
            published => Ok(published),
        });
    count(6, requests);
    let (requests, (found, _)) =
        each("continue", (OF_A_SEQUENCE, ALL, false), || cache.create_from(&SCOPE, tokens[..].into()));
    count(7, requests);
    cache.release(found).expect("an end");
    cache.release(fork).expect("an end");
    cache.evict_prefixes(usize::MAX).expect("room");
    let (requests, _) = each("swap out", (OF_A_SEQUENCE, ALL, false), || cache.swap_out(first));
    count(8, requests);
    let (requests, _) = each("swap in", (OF_A_SEQUENCE, ALL, false), || cache.swap_in(first));
    count(9, requests);
    let mut file = Vec::with_capacity(6 * LAYERS * TOKENS * KV * 2);
    let (requests, _) = each("save", (OF_A_SEQUENCE, ALL, false), || {
        file.clear();
        cache.save(first, &FILE, &mut file)
    });
    count(10, requests);
    let (requests, back) = each("restore", (OF_A_SEQUENCE, ALL, false), || cache.restore(&FILE, &mut &file[..]));
    count(11, requests);
    cache.release(back).expect("an end");
    let few = Scrub { pages: 30, originals: true };
    let (requests, looked) = each("scrub", (OF_A_SEQUENCE, ALL, true), || cache.scrub(few));
    count(12, requests);
    assert!(looked.pages >= 30 && looked.damaged.is_empty());
    let (requests, kept) = each("originals", (OF_A_SEQUENCE, ALL, false), || cache.originals(first, 0, 0, Side::Key));
    count(13, requests);
    assert_eq!(kept, &io.rows[..TOKENS * DIM]);
    assert_eq!((cache.len(first).ok(), cache.live_pages()), (Some(TOKENS), before));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "the checker of order, which debug builds have, asks for memory as it likes")]
fn calls_without_memory_change_nothing() {
    let (fake, compiler, _turn) = alone();
    let mut executed = [0; CALLS.len()];
    for format in FORMATS {
        calls(fake, compiler, format, &mut executed);
    }
    // A list that nobody gives back is seen.
    let before = held();
    core::mem::forget(Vec::<u8>::with_capacity(OF_A_SEQUENCE));
    let seen = held() - before >= OF_A_SEQUENCE as isize;
    let (all, controls) = (executed.iter().sum::<u64>(), u8::from(seen));
    let by_call: Vec<_> = CALLS.iter().zip(executed).map(|(call, n)| format!("{call} {n}")).collect();
    println!("GATE calls-refused-gpu executed={all} failed=0 controls={controls}/1 seed=0x0 {}", by_call.join(", "));
    assert!(seen && all > 200);
}

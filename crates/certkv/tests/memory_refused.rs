//! A machine without memory: whichever request that grows with tokens the making of a cache is refused, or a call that moves pages, a prompt, a step, a file,
//! it says so and leaves nothing behind. (What of a step does not grow with tokens is asked for before the first, and a machine without it ends the process.)
mod common;
mod refusing;
use certkv::{
    Cache, Certified, Chunk, Config, Error, Eviction, Geometry, Policy, PrefixConfig, PrefixScope, PrefixSecret,
    PublishedPrefix, SaveScope, Scrub, Seed000, SequenceId, Stop,
};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::{distance, norm};
use common::{Model, fill, random_queries, random_rows};
use refusing::{each, held, refused};

/// Requests that grow with the tokens of a cache; smaller ones are texts, fields and lists of layers and sequences.
const OF_A_CACHE: usize = 16 << 10;
/// Requests that grow with the tokens of a sequence.
const OF_A_SEQUENCE: usize = 4096;

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

#[test]
fn a_cache_without_memory_is_refused() {
    let mut executed = 0;
    for formats in ["k8-v4g32-b16", "t4-v4g32-b32", "k8-v4g64-b64-r8.4", "tq4-tq4-b64/k8-v4g32-b16/f16-v8g64-b64"] {
        // What is made once for the process is made.
        drop(Cache::new(config(formats, 65_536)).expect("a cache"));
        let (requests, _) = each(formats, (OF_A_CACHE, u64::MAX, false), || Cache::new(config(formats, 65_536)));
        assert!(requests > 10, "{requests} large requests");
        executed += requests;
    }
    // A list that nobody gives back is seen.
    let before = held();
    core::mem::forget(Vec::<u8>::with_capacity(OF_A_CACHE));
    let seen = held() - before >= OF_A_CACHE as isize;
    println!("GATE memory-refused executed={executed} failed=0 controls={}/1 seed=0x0", u8::from(seen));
    assert!(seen);
}

#[test]
fn calls_without_memory_change_nothing() {
    const TOKENS: usize = 10_000;
    const CUT: usize = 9_003;
    let mut executed = [0; 7];
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
        let (requests, made) = each("create", (OF_A_SEQUENCE, u64::MAX, false), || cache.create());
        count(0, requests);
        cache.release(made).expect("an end");
        let (requests, fork) = each("fork", (OF_A_SEQUENCE, u64::MAX, false), || cache.fork(first));
        count(1, requests);
        cache.truncate(fork, CUT).expect("which asks for nothing");
        whole(fork, CUT);
        let (requests, _) = each("publish", (OF_A_SEQUENCE, u64::MAX, true), || {
            match cache.publish(fork, &scope, tokens[..CUT].into())? {
                // Units before it are cached.
                PublishedPrefix { stop: Some(Stop::Page(want)), .. } => Err(Error::Table(want)),
                published => Ok(published),
            }
        });
        count(2, requests);
        let (requests, (found, _)) =
            each("continue", (OF_A_SEQUENCE, u64::MAX, false), || cache.create_from(&scope, tokens[..].into()));
        count(3, requests);
        cache.release(found).expect("an end");
        cache.release(fork).expect("an end");
        cache.evict_prefixes(usize::MAX).expect("room");
        let (requests, _) = each("swap out", (OF_A_SEQUENCE, u64::MAX, false), || {
            assert_eq!(cache.is_swapped_out(first).ok(), Some(false));
            cache.swap_out(first)
        });
        count(4, requests);
        let (requests, _) = each("swap in", (OF_A_SEQUENCE, u64::MAX, false), || {
            assert_eq!(cache.is_swapped_out(first).ok(), Some(true));
            cache.swap_in(first)
        });
        count(5, requests);
        whole(first, TOKENS);
        // What a call has looked at before it was refused is not looked at again.
        let few = Scrub { pages: 30, originals: true };
        let (requests, looked) = each("scrub", (OF_A_SEQUENCE, u64::MAX, false), || cache.scrub(few));
        count(6, requests);
        assert!(looked.pages >= 30 && looked.damaged.is_empty() && looked.mended == 0);
        assert_eq!(pages(), before);
    }
    let all: u64 = executed.iter().sum();
    println!(
        "GATE calls-refused executed={all} failed=0 controls=0/0 seed=0x7 create, fork, publish, continue, swap out, in, scrub: {executed:?}"
    );
    assert!(executed.iter().all(|n| *n > 0), "{executed:?}");
}

/// Rows and queries of a chunk.
type Tokens = (Model, Vec<f32>);

/// A cache with a sequence, and the caller's own memory for what it does with it.
struct Life<'a> {
    cache: Cache,
    id: SequenceId,
    policy: Policy,
    chunks: &'a [Tokens; 2],
    out: Vec<f32>,
    file: Vec<u8>,
    /// What was read from the file.
    back: Option<SequenceId>,
}

impl Life<'_> {
    /// Tokens that nobody attends to yet.
    fn fill(&mut self, rows: &Model) -> Result<(), Error> {
        let geometry = self.cache.geometry();
        let chunk = Chunk { sequence: self.id, tokens: rows.len(geometry) };
        let mut step = self.cache.begin(&[chunk])?;
        for layer in 0..geometry.layers {
            step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
        }
        step.finish()
    }

    /// One chunk over all layers, its outputs one layer behind the other.
    fn step(&mut self, (rows, queries): &Tokens) -> Result<(), Error> {
        let geometry = self.cache.geometry();
        let chunk = Chunk { sequence: self.id, tokens: rows.len(geometry) };
        let mut step = self.cache.begin_with(&[chunk], self.policy)?;
        for (layer, out) in self.out.chunks_exact_mut(queries.len()).take(geometry.layers).enumerate() {
            step.append_bits(layer, &rows.keys[layer], &rows.values[layer])?;
            step.attend(layer, queries, out, &mut [])?;
        }
        step.finish()
    }

    /// A prompt, a step behind it, a file of both, and what is read from that.
    fn call(&mut self, number: usize) -> Result<(), Error> {
        let whose = SaveScope { model: b"model", key: None };
        match number {
            2 => {
                self.file.clear();
                self.cache.save(self.id, &whose, &mut self.file).map(drop)
            }
            3 => {
                self.back = Some(self.cache.restore(&whose, &mut &self.file[..])?);
                Ok(())
            }
            chunk => self.step(&self.chunks[chunk]),
        }
    }

    fn state(&mut self) -> (Option<usize>, usize) {
        if let Some(back) = self.back.take() {
            assert_eq!(self.cache.len(back).ok(), self.cache.len(self.id).ok());
            self.cache.release(back).expect("an end");
        }
        (self.cache.len(self.id).ok(), self.cache.live_pages())
    }
}

/// No output of a head is further from the other's than that share of it.
fn near(a: &[f32], b: &[f32], dim: usize, share: f64) -> bool {
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let rows = a.chunks_exact(dim).zip(b.chunks_exact(dim));
    rows.map(|(a, b)| (wide(a), wide(b))).all(|(a, b)| distance(&a, &b) <= share * norm(&b))
}

/// What a step works in that does not grow with tokens is there behind a short one.
#[test]
fn steps_without_memory_change_nothing() {
    const PAST: usize = 3500;
    const PROMPT: usize = 130;
    let certified = |row_share| Policy::Certified(Certified { row_share, ..Certified::default() });
    let (mut executed, mut unheard) = ([0; 4], 0);
    let lives = [
        ("k4-v4g32-b32-r4.4", certified(0.1)),
        ("k8-v4g32-b16", Policy::Dense),
        ("k8-v4g32-b16", certified(0.0)),
        ("tq4-tq4-b64/k8-v4g32-b16/f16-v8g64-b64", certified(0.0)),
        ("tq3-tq3-b32", Policy::Packed),
        ("t4-v4g32-b16", Policy::Certified(Certified { rank: Some(3), ..Certified::default() })),
        ("k8-v4g32-b16", Policy::Seed000(Seed000::default())),
    ];
    // All of them where they run fast.
    let lives = if cfg!(debug_assertions) { &lives[..2] } else { &lives };
    for &(formats, policy) in lives {
        let mut random = Rng::new(11);
        let geometry = Geometry::new(3, 2, 1, 64).expect("a geometry");
        let mut tokens = |n| (random_rows(&geometry, n, &mut random), random_queries(&geometry, n, &mut random));
        let (first, chunks) = (tokens(1), [tokens(PROMPT), tokens(1)]);
        let past: Vec<Model> = (0..PAST / 100).map(|_| tokens(100).0).collect();
        // Every call, of which one is refused its `nth` request: whether there was one, whether it was an error, upon which the call is made again, and what
        // the life came to.
        let live = |refuses: usize, nth: u64| {
            let cache = Cache::new(Config { geometry, ..config(formats, 8192) }).expect("a cache");
            let id = cache.create().expect("a sequence");
            let out = vec![0.0; PROMPT * geometry.q_width() * geometry.layers];
            let mut life =
                Life { cache, id, policy, chunks: &chunks, out, file: Vec::with_capacity(64 << 20), back: None };
            life.step(&first).expect("a short step");
            past.iter().for_each(|rows| life.fill(rows).expect("tokens"));
            let mut found = [false; 2];
            for number in 0..4 {
                let (before, asked) = (life.state(), if number == refuses { nth } else { 0 });
                let (answer, reached) = refused(OF_A_SEQUENCE, asked, || life.call(number));
                if asked > 0 {
                    found = [reached, answer.is_err()];
                }
                let Err(error) = answer else { continue };
                let text = format!("{formats} {policy:?}, call {number}, request {nth}: {error}");
                assert!(text.contains("memory") && life.state() == before, "{text}");
                life.call(number).expect("there is memory now");
            }
            (found, (life.out, life.file))
        };
        let (_, plain) = live(usize::MAX, 0);
        for (number, executed) in executed.iter_mut().enumerate() {
            for nth in 1.. {
                let ([reached, heard], came) = live(number, nth);
                // A certified step that was given up has taught the layers before it what the next one begins with.
                let same = match policy {
                    Policy::Certified(p) if number < 2 => near(&came.0, &plain.0, geometry.head_dim, 2.0 * p.tol_rel),
                    _ => came == plain,
                };
                assert!(same, "{formats} {policy:?}, call {number}, request {nth}: another life");
                if !reached {
                    break;
                }
                // What is copied to scratch is read elsewhere if it is not.
                assert!(heard || number == 1, "{formats} {policy:?}, call {number}, request {nth}: not heard");
                *executed += 1;
                unheard += u64::from(!heard);
            }
        }
    }
    // Outputs that are further apart are seen.
    let seen = !near(&[1.0, 0.2], &[1.0, 0.0], 2, 0.1) && near(&[1.0, 0.05], &[1.0, 0.0], 2, 0.1);
    let (all, controls) = (executed.iter().sum::<u64>(), u8::from(seen));
    println!(
        "GATE steps-refused executed={all} failed=0 controls={controls}/1 seed=0xb prompt, step, save, restore: {executed:?}, {unheard} were for scratch"
    );
    assert!(seen && executed.iter().all(|n| *n > 0), "{executed:?}");
}

//! What the calls of a decode step ask the allocator for, on the host: beginning, appending, attending and finishing, steps in which a block becomes full
//! among them. Nothing, in sequences whose lengths this cache has seen before.
//!
//! The allocator of this program counts, over all threads. In debug builds the simulated device checks the order of all accesses, and allocates for
//! that, so that this holds in release builds: `cargo test --release -p certkv-capi --test allocations -- --nocapture`.
use certkv_c::certkv_status::CERTKV_OK;
use certkv_c::*;
use core::hint::black_box;
use core::mem::zeroed;
use core::ptr;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ASKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, and a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LAYERS: u32 = 2;
const Q_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const BLOCK: u64 = 16;
const PROMPT: u64 = 100;
/// Sequences of a step.
const BATCH: usize = 3;

/// Requests of a call.
fn asked<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = ASKED.load(Ordering::Relaxed);
    let done = call();
    (ASKED.load(Ordering::Relaxed) - before, done)
}

/// Requests of the calls of one step: begin, append, attend, finish.
type Step = [u64; 4];

struct Life {
    cache: *mut certkv_cache,
    sequences: [certkv_sequence; BATCH],
    rows: Vec<f32>,
    out: Vec<f32>,
    halves: Vec<u16>,
    records: Vec<certkv_certificate>,
    /// By certkv_step_append_tensors and certkv_step_attend_tensors, with outputs of 16 bits.
    tensors: bool,
    /// Something is allocated beside this call of a step, and only where a block becomes full.
    planted: Option<(usize, bool)>,
}

impl Life {
    fn new(tensors: bool) -> Self {
        let (mut cache, mut sequences) = (ptr::null_mut(), [0; BATCH]);
        // SAFETY: a whole struct, and locals.
        unsafe {
            let mut config: certkv_config = zeroed();
            assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
            (config.layers, config.q_heads, config.kv_heads) = (LAYERS, Q_HEADS as u32, KV_HEADS as u32);
            (config.head_dim, config.max_tokens, config.format) = (DIM as u32, 4096, c"k8-v4g32-b16".as_ptr());
            assert_eq!(certkv_cache_create(&config, &mut cache), CERTKV_OK);
            for sequence in &mut sequences {
                assert_eq!(certkv_sequence_create(cache, sequence), CERTKV_OK);
            }
        }
        let rows =
            (0..BATCH * KV_HEADS * DIM * PROMPT as usize).map(|i| (i * 7919 % 257) as f32 / 257.0 - 0.5).collect();
        let (out, halves) = (vec![0.0; BATCH * Q_HEADS * DIM], vec![0; BATCH * Q_HEADS * DIM]);
        let records = vec![certkv_certificate::default(); BATCH * Q_HEADS];
        Self { cache, sequences, rows, out, halves, records, tensors, planted: None }
    }

    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status {
        let (at, elements) = (self.rows.as_ptr(), tokens * (BATCH * KV_HEADS * DIM) as u64);
        let tensor = tensor(at.cast_mut().cast(), CERTKV_F32);
        // SAFETY: rows of as many tokens.
        unsafe {
            match self.tensors {
                true => certkv_step_append_tensors(step, layer, &tensor, &tensor),
                false => certkv_step_append(step, layer, at.cast(), at.cast(), elements, CERTKV_F32, CERTKV_SPACE_HOST),
            }
        }
    }

    fn attend(&mut self, step: *mut certkv_step, layer: u32) -> certkv_status {
        let (from, at, heads) = (self.rows.as_ptr(), self.records.as_mut_ptr(), self.records.len() as u64);
        let queries = tensor(from.cast_mut().cast(), CERTKV_F32);
        let out = tensor(self.halves.as_mut_ptr().cast(), CERTKV_F16);
        // SAFETY: rows, outputs and records of one token.
        unsafe {
            match self.tensors {
                true => certkv_step_attend_tensors(step, layer, &queries, &out, at, heads),
                false => {
                    let (to, n) = (self.out.as_mut_ptr(), self.out.len() as u64);
                    certkv_step_attend(step, layer, from, to, n, at, heads, CERTKV_SPACE_HOST)
                }
            }
        }
    }

    /// One request of a word, if it is planted in this call.
    fn plant(&self, call: usize, fills: bool) {
        if self.planted == Some((call, fills)) {
            black_box(Box::new(7u64));
        }
    }

    /// A step that ends a block, or one that does not.
    fn step(&mut self, tokens: u64, fills: bool) -> Step {
        let (mut step, chunks) = (ptr::null_mut(), self.sequences.map(|sequence| certkv_chunk { sequence, tokens }));
        let (begin, began) = asked(|| {
            self.plant(0, fills);
            // SAFETY: as many chunks, and a local.
            unsafe { certkv_step_begin(self.cache, chunks.as_ptr(), BATCH as u64, &mut step) }
        });
        assert_eq!(began, CERTKV_OK);
        let (mut append, mut attend) = (0, 0);
        for layer in 0..LAYERS {
            let (n, appended) = asked(|| {
                if layer == 0 {
                    self.plant(1, fills);
                }
                self.append(step, layer, tokens)
            });
            assert_eq!(appended, CERTKV_OK);
            append += n;
            if tokens == 1 {
                let (n, attended) = asked(|| {
                    if layer == 0 {
                        self.plant(2, fills);
                    }
                    self.attend(step, layer)
                });
                assert_eq!(attended, CERTKV_OK);
                assert!(self.records.iter().all(|c| c.status == CERTKV_EXACT || c.bound <= c.tol));
                attend += n;
            }
        }
        let (finish, finished) = asked(|| {
            self.plant(3, fills);
            // SAFETY: a live handle.
            unsafe { certkv_step_finish(step) }
        });
        assert_eq!(finished, CERTKV_OK);
        [begin, append, attend, finish]
    }

    /// Steps behind a prompt until there are so many tokens: what the steps asked for in which no block became full, and those in which one did.
    fn decode(&mut self, until: u64) -> [Vec<Step>; 2] {
        for sequence in self.sequences {
            // SAFETY: a live handle.
            assert_eq!(unsafe { certkv_sequence_truncate(self.cache, sequence, PROMPT) }, CERTKV_OK);
        }
        let mut steps = [Vec::new(), Vec::new()];
        // What is remembered of a sequence is made anew once it was cut.
        self.step(1, false);
        for tokens in PROMPT + 2..=until {
            let fills = tokens % BLOCK == 0;
            let asked = self.step(1, fills);
            steps[usize::from(fills)].push(asked);
        }
        steps
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_cache_destroy(self.cache) }, CERTKV_OK);
    }
}

fn tensor(data: *mut core::ffi::c_void, dtype: certkv_dtype) -> certkv_tensor {
    let (struct_size, space) = (size_of::<certkv_tensor>() as u32, CERTKV_SPACE_HOST);
    certkv_tensor { struct_size, dtype, space, reserved: 0, data, token_stride: 0, head_stride: 0 }
}

/// Steps that asked for something.
fn asking(steps: &[Step]) -> usize {
    steps.iter().filter(|calls| calls.iter().sum::<u64>() > 0).count()
}

#[test]
fn a_steady_step_asks_for_nothing() {
    let (mut executed, mut failed, mut caught, mut controls) = (0, 0, 0, 0);
    for tensors in [false, true] {
        let mut life = Life::new(tensors);
        life.step(PROMPT, false);
        // Cold steps are seen to ask: their lengths are new to the cache.
        let [cold, _] = life.decode(300);
        (caught, controls) = (caught + usize::from(asking(&cold) > 0), controls + 1);
        let steady = life.decode(300);
        for (steps, what) in steady.iter().zip(["a step", "one that fills a block"]) {
            println!("tensors {tensors}: {what}: {:?}", steps.iter().max());
            (executed, failed) = (executed + steps.len(), failed + asking(steps));
        }
        // Planted: one request of a word, in each call, in steps that fill a block and in others; that many more steps ask than without.
        for planted in (0..4).flat_map(|call| [(call, false), (call, true)]) {
            life.planted = Some(planted);
            let [steps, full] = life.decode(132);
            let (of, others) = if planted.1 { (&full, &steps) } else { (&steps, &full) };
            let seen = of.iter().all(|calls| calls[planted.0] > 0) && !of.is_empty();
            let alone = cfg!(debug_assertions) || asking(others) == 0;
            (caught, controls) = (caught + usize::from(seen && alone), controls + 1);
        }
    }
    println!("GATE no-allocation executed={executed} failed={failed} controls={caught}/{controls} seed=0x0");
    assert_eq!(caught, controls);
    if cfg!(debug_assertions) {
        return;
    }
    assert_eq!(failed, 0);
}

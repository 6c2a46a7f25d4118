//! What the calls of a decode step ask the allocator for, on the host. Appending, attending and finishing: nothing, in a sequence whose length this
//! cache has seen before, but where a block becomes full, which is coded. Beginning: as much in every step.
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
    sequence: certkv_sequence,
    rows: Vec<f32>,
    out: Vec<f32>,
    halves: Vec<u16>,
    records: Vec<certkv_certificate>,
    /// By certkv_step_append_tensors and certkv_step_attend_tensors, with outputs of 16 bits.
    tensors: bool,
    /// Something is allocated beside attending.
    planted: bool,
}

impl Life {
    fn new(tensors: bool) -> Self {
        let (mut cache, mut sequence) = (ptr::null_mut(), 0);
        // SAFETY: a whole struct, and locals.
        unsafe {
            let mut config: certkv_config = zeroed();
            assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
            (config.layers, config.q_heads, config.kv_heads) = (LAYERS, Q_HEADS as u32, KV_HEADS as u32);
            (config.head_dim, config.max_tokens, config.format) = (DIM as u32, 4096, c"k8-v4g32-b16".as_ptr());
            assert_eq!(certkv_cache_create(&config, &mut cache), CERTKV_OK);
            assert_eq!(certkv_sequence_create(cache, &mut sequence), CERTKV_OK);
        }
        let rows = (0..KV_HEADS * DIM * PROMPT as usize).map(|i| (i * 7919 % 257) as f32 / 257.0 - 0.5).collect();
        let (out, halves) = (vec![0.0; Q_HEADS * DIM], vec![0; Q_HEADS * DIM]);
        let records = vec![certkv_certificate::default(); Q_HEADS];
        Self { cache, sequence, rows, out, halves, records, tensors, planted: false }
    }

    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status {
        let (at, elements) = (self.rows.as_ptr(), tokens * (KV_HEADS * DIM) as u64);
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
        if self.planted {
            black_box(Box::new(7u64));
        }
        let (from, at, heads) = (self.rows.as_ptr(), self.records.as_mut_ptr(), Q_HEADS as u64);
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

    fn step(&mut self, tokens: u64) -> Step {
        let (mut step, chunk) = (ptr::null_mut(), certkv_chunk { sequence: self.sequence, tokens });
        // SAFETY: one chunk, and a local.
        let (begin, began) = asked(|| unsafe { certkv_step_begin(self.cache, &chunk, 1, &mut step) });
        assert_eq!(began, CERTKV_OK);
        let (mut append, mut attend) = (0, 0);
        for layer in 0..LAYERS {
            let (n, appended) = asked(|| self.append(step, layer, tokens));
            assert_eq!(appended, CERTKV_OK);
            append += n;
            if tokens == 1 {
                let (n, attended) = asked(|| self.attend(step, layer));
                assert_eq!(attended, CERTKV_OK);
                assert!(self.records.iter().all(|c| c.status == CERTKV_EXACT || c.bound <= c.tol));
                attend += n;
            }
        }
        // SAFETY: a live handle.
        let (finish, finished) = asked(|| unsafe { certkv_step_finish(step) });
        assert_eq!(finished, CERTKV_OK);
        [begin, append, attend, finish]
    }

    /// Steps behind a prompt until there are so many tokens: what the steps asked for in which no block became full, and those in which one did.
    fn decode(&mut self, until: u64) -> [Vec<Step>; 2] {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_sequence_truncate(self.cache, self.sequence, PROMPT) }, CERTKV_OK);
        let mut steps = [Vec::new(), Vec::new()];
        // What is remembered of a sequence is made anew once it was cut.
        self.step(1);
        for tokens in PROMPT + 2..=until {
            let asked = self.step(1);
            steps[usize::from(tokens % BLOCK == 0)].push(asked);
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

/// Steps that asked for something while they appended, attended or finished.
fn asking(steps: &[Step]) -> usize {
    steps.iter().filter(|[_, append, attend, finish]| append + attend + finish > 0).count()
}

#[test]
fn a_steady_step_asks_for_nothing_but_to_begin() {
    let (mut executed, mut failed, mut caught, mut filling) = (0, 0, 0, 0);
    for tensors in [false, true] {
        let mut life = Life::new(tensors);
        life.step(PROMPT);
        let cold = life.decode(300);
        // Cold steps are seen to ask: their lengths are new to the cache.
        caught += usize::from(asking(&cold[0]) > 0);
        let [steady, full] = life.decode(300);
        let begins: Vec<u64> = steady.iter().map(|step| step[0]).collect();
        assert!(begins.iter().all(|n| *n == begins[0]), "beginning asks for as much in every step: {begins:?}");
        println!("tensors {tensors}: begin {}, a block that becomes full {:?}", begins[0], full.last());
        (executed, failed) = (executed + steady.len(), failed + asking(&steady));
        filling =
            filling.max(full.iter().map(|[_, append, attend, finish]| append + attend + finish).max().unwrap_or(0));
        // Planted: one request of a word.
        life.planted = true;
        caught += usize::from(asking(&life.decode(111)[0]) == 10);
    }
    println!("GATE no-allocation executed={executed} failed={failed} controls={caught}/4 seed=0x0");
    assert_eq!(caught, 4);
    if cfg!(debug_assertions) {
        return;
    }
    assert_eq!(failed, 0);
    // By layer: the list of what is coded, and twice the text of a format, of which a seal's number is made.
    assert!(filling <= u64::from(3 * LAYERS), "{filling}");
}

//! What the C functions cost beside the Rust calls behind them: `cargo bench -p certkv-capi --bench calls`.
//!
//! Rust and C take turns call by call on two caches of one configuration, so that whatever else the machine does concerns both; medians are
//! compared. Prints nanoseconds.
use certkv::{Cache, Certificate, Chunk, Config, Geometry, MoveEvents, Policy};
use certkv_c::*;
use core::hint::black_box;
use core::ptr;
use std::time::Instant;

const Q_HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;

fn rows(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
}

fn median(mut nanoseconds: Vec<f64>) -> f64 {
    nanoseconds.sort_by(f64::total_cmp);
    nanoseconds[nanoseconds.len() / 2]
}

/// Nanoseconds of one of many equal calls: the median of 101 runs of 1000.
fn each<T>(mut call: impl FnMut() -> T) -> f64 {
    let mut run = || {
        let start = Instant::now();
        for _ in 0..1000 {
            black_box(call());
        }
        start.elapsed().as_nanos() as f64 / 1000.0
    };
    median((0..101).map(|_| run()).collect())
}

fn config(tokens: usize, chunk_tokens: u64) -> certkv_config {
    // SAFETY: integers, floats and raw pointers, for all of which zero bits are a value.
    let mut config: certkv_config = unsafe { core::mem::zeroed() };
    // SAFETY: the struct has this size.
    assert_eq!(unsafe { certkv_config_init(&mut config, size_of::<certkv_config>() as u32) }, certkv_status::CERTKV_OK);
    (config.layers, config.q_heads, config.kv_heads, config.head_dim) =
        (1, Q_HEADS as u32, KV_HEADS as u32, DIM as u32);
    (config.max_tokens, config.chunk_tokens) = (tokens as u64 + 1024, chunk_tokens);
    config
}

/// A cache and a sequence of so many tokens, through C.
fn made(config: &certkv_config, tokens: usize) -> (*mut certkv_cache, certkv_sequence) {
    let (mut cache, mut sequence) = (ptr::null_mut(), 0);
    // SAFETY: a whole struct, and locals.
    unsafe {
        assert_eq!(certkv_cache_create(config, &mut cache), certkv_status::CERTKV_OK);
        assert_eq!(certkv_sequence_create(cache, &mut sequence), certkv_status::CERTKV_OK);
    }
    for first in (0..tokens).step_by(4096) {
        let n = (tokens - first).min(4096);
        let (k, v, step) =
            (rows(n * KV_HEADS * DIM, first), rows(n * KV_HEADS * DIM, first + 1), begun(cache, sequence, n));
        append(step, &k, &v);
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_step_finish(step) }, certkv_status::CERTKV_OK);
    }
    (cache, sequence)
}

fn begun(cache: *mut certkv_cache, sequence: certkv_sequence, tokens: usize) -> *mut certkv_step {
    let (chunk, mut step) = (certkv_chunk { sequence, tokens: tokens as u64 }, ptr::null_mut());
    // SAFETY: one chunk, and a local.
    assert_eq!(unsafe { certkv_step_begin(cache, &chunk, 1, &mut step) }, certkv_status::CERTKV_OK);
    step
}

fn append(step: *mut certkv_step, k: &[f32], v: &[f32]) {
    let (keys, values) = (k.as_ptr().cast(), v.as_ptr().cast());
    // SAFETY: slices of this length.
    let got = unsafe { certkv_step_append(step, 0, keys, values, k.len() as u64, CERTKV_F32, CERTKV_SPACE_HOST) };
    assert_eq!(got, certkv_status::CERTKV_OK);
}

fn attend(step: *mut certkv_step, q: &[f32], out: &mut [f32], records: &mut [certkv_certificate]) {
    let (n, at, heads) = (q.len() as u64, records.as_mut_ptr(), records.len() as u64);
    // SAFETY: slices of these lengths.
    let got = unsafe { certkv_step_attend(step, 0, q.as_ptr(), out.as_mut_ptr(), n, at, heads, CERTKV_SPACE_HOST) };
    assert_eq!(got, certkv_status::CERTKV_OK);
}

/// The smallest calls.
fn small_calls() {
    let (cache, sequence) = made(&config(64, 0), 10);
    let mut length = 0;
    // SAFETY: live handles and locals, in all of these calls.
    unsafe {
        println!("certkv_version_number {:.1} ns", each(|| certkv_version_number()));
        println!("certkv_cache_destroy(NULL) {:.1} ns", each(|| certkv_cache_destroy(ptr::null_mut())));
        let call = || certkv_sequence_length(cache, sequence, &mut length);
        println!("certkv_sequence_length {:.1} ns", each(call));
        let mut no_length = 0;
        let call = || certkv_sequence_length(cache, 77, &mut no_length);
        println!("certkv_sequence_length, refused {:.1} ns", each(call));
        assert_eq!((length, no_length), (10, 0));
        assert_eq!(certkv_cache_destroy(cache), certkv_status::CERTKV_OK);
    }
}

/// One attend call by turns in Rust and in C, behind `tokens` tokens.
fn attended(tokens: usize, calls: usize) {
    let geometry = Geometry::new(1, Q_HEADS, KV_HEADS, DIM).unwrap();
    let ours = Cache::new(Config::new(geometry, tokens + 1024)).unwrap();
    let id = ours.create().unwrap();
    for first in (0..tokens).step_by(4096) {
        let n = (tokens - first).min(4096);
        let mut step = ours.begin(&[Chunk { sequence: id, tokens: n }]).unwrap();
        step.append(0, &rows(n * KV_HEADS * DIM, first), &rows(n * KV_HEADS * DIM, first + 1)).unwrap();
        step.finish().unwrap();
    }
    let (cache, sequence) = made(&config(tokens, 0), tokens);
    let (k, v, q) = (rows(KV_HEADS * DIM, 7), rows(KV_HEADS * DIM, 8), rows(Q_HEADS * DIM, 9));
    let mut outs = [vec![0.0; Q_HEADS * DIM], vec![0.0; Q_HEADS * DIM]];
    let mut records = vec![Certificate::default(); Q_HEADS];
    let mut in_c = vec![certkv_certificate::default(); Q_HEADS];
    let (mut in_rust, mut in_c_too) = (Vec::new(), Vec::new());
    let mut step = ours.begin_with(&[Chunk { sequence: id, tokens: 1 }], Policy::default()).unwrap();
    step.append(0, &k, &v).unwrap();
    let other = begun(cache, sequence, 1);
    append(other, &k, &v);
    for i in 0..calls + 20 {
        let start = Instant::now();
        step.attend(0, &q, &mut outs[0], &mut records).unwrap();
        let one = start.elapsed().as_nanos() as f64;
        let start = Instant::now();
        attend(other, &q, &mut outs[1], &mut in_c);
        if i >= 20 {
            in_rust.push(one);
            in_c_too.push(start.elapsed().as_nanos() as f64);
        }
    }
    assert!(outs[0] == outs[1] && records[3].bound() == in_c[3].bound, "the same calls");
    // Neighbours in time differ less than medians of all, which the machine's other work moves.
    let more = median(in_rust.iter().zip(&in_c_too).map(|(rust, c)| c - rust).collect());
    let (rust, c) = (median(in_rust), median(in_c_too));
    let shares = [c / rust - 1.0, more / rust].map(|share| 100.0 * share);
    println!(
        "attend behind {tokens} tokens: Rust {rust:.0} ns, C {c:.0} ns, {:+.2}%; call by call {more:+.0} ns, {:+.2}%",
        shares[0], shares[1]
    );
    // SAFETY: live handles.
    unsafe {
        assert_eq!(certkv_step_abort(other), certkv_status::CERTKV_OK);
        assert_eq!(certkv_cache_destroy(cache), certkv_status::CERTKV_OK);
    }
}

/// Chunks of some tokens behind `context`: every token a decode step, or a prompt's chunk.
fn chunks(context: usize) {
    let caches = [0, 8].map(|chunk_tokens| made(&config(context, chunk_tokens), context));
    for tokens in [2usize, 4, 8] {
        let (k, v, q) =
            (rows(tokens * KV_HEADS * DIM, 7), rows(tokens * KV_HEADS * DIM, 8), rows(tokens * Q_HEADS * DIM, 9));
        let mut out = vec![0.0; tokens * Q_HEADS * DIM];
        let mut records = vec![certkv_certificate::default(); tokens * Q_HEADS];
        let [prompt, certified] = caches.map(|(cache, sequence)| {
            let step = begun(cache, sequence, tokens);
            append(step, &k, &v);
            let times = (0..15).map(|_| {
                let start = Instant::now();
                attend(step, &q, &mut out, &mut records);
                start.elapsed().as_nanos() as f64
            });
            let time = median(times.collect());
            // SAFETY: a live handle.
            assert_eq!(unsafe { certkv_step_abort(step) }, certkv_status::CERTKV_OK);
            time
        });
        assert!(records.iter().all(|record| record.bound.is_finite()));
        println!(
            "{tokens} tokens behind {context}: certified {:.2} ms, as a prompt {:.2} ms",
            certified / 1e6,
            prompt / 1e6
        );
    }
    // SAFETY: live handles.
    caches
        .into_iter()
        .for_each(|(cache, _)| assert_eq!(unsafe { certkv_cache_destroy(cache) }, certkv_status::CERTKV_OK));
}

/// What an event costs: swaps with and without the ring, and reading it.
fn events() {
    let geometry = Geometry::new(1, 2, 1, 64).unwrap();
    let time = |move_events| {
        let config = Config { swap_tokens: 16384, move_events, ..Config::new(geometry, 16384) };
        let cache = Cache::new(config.with_format("k8-v4g64-b16".parse().unwrap())).unwrap();
        let id = cache.create().unwrap();
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 16000 }]).unwrap();
        let rows = rows(16000 * 64, 1);
        step.append(0, &rows, &rows).unwrap();
        step.finish().unwrap();
        let times = (0..101).map(|_| {
            let start = Instant::now();
            cache.swap_out(id).unwrap();
            cache.swap_in(id).unwrap();
            start.elapsed().as_nanos() as f64 / 2000.0
        });
        (median(times.collect()), cache.move_events())
    };
    let ((without, _), (with, log)) = (time(0), time(4096));
    println!("a block swapped out or in: {without:.0} ns without events, {with:.0} ns with");
    let log: MoveEvents = log.unwrap();
    let mut some = vec![Default::default(); 1000];
    let next = log.read(0, &mut some).unwrap().newest;
    println!("an event read: {:.1} ns", each(|| log.read(next - 1000, &mut some)) / 1000.0);
}

/// All of it, or what arguments name: `cargo bench -p certkv-capi --bench calls -- attend`.
fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|given| given == name);
    if wanted("small") {
        small_calls();
    }
    if wanted("attend") {
        for (tokens, calls) in [(128, 8001), (1024, 2001), (8192, 301)] {
            attended(tokens, calls);
        }
    }
    if wanted("chunks") {
        chunks(8192);
    }
    if wanted("events") {
        events();
    }
}

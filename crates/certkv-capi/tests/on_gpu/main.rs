//! The same C functions for a cache on a GPU, over a driver without one: which calls they come to, and what they say while a step is open.
#[path = "../lives/cache.rs"]
mod cache;
mod calibrated;
mod calls;
#[path = "../../../certkv-device/tests/fake_cuda/mod.rs"]
mod fake_cuda;
#[allow(dead_code, reason = "bodies of kernels that other tests plant defects in")]
#[path = "../../../certkv/tests/gpu_fake/kernels.rs"]
mod kernels;
mod machine;

use cache::{BLOCK, Cache, c_path, config, folder, message, prefix_scope, save_scope};
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::ptr;
use fake_cuda::Fake;
use std::sync::{Mutex, MutexGuard, PoisonError};

const TOKENS: u64 = 40;
const WIDTH: usize = kernels::KV_HEADS * kernels::DIM;

/// Appends rows, all of which are some ones.
fn append(cache: &Cache, sequence: certkv_sequence, tokens: u64) {
    let step = cache.begin(sequence, tokens).unwrap();
    let rows = vec![0x3c00u16; tokens as usize * WIDTH];
    let (at, n) = (rows.as_ptr().cast(), rows.len() as u64);
    for layer in 0..cache::LAYERS {
        // SAFETY: both buffers have the elements that are given with them.
        let done = unsafe { certkv_step_append(step, layer, at, at, n, CERTKV_F16, CERTKV_SPACE_HOST) };
        assert_eq!(done, CERTKV_OK, "{}", message());
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_finish(step) }, CERTKV_OK, "{}", message());
}

fn swap_out(cache: &Cache, sequence: certkv_sequence) -> Result<u64, certkv_status> {
    let mut bytes = 7;
    // SAFETY: the out parameter is a local.
    match unsafe { certkv_sequence_swap_out(cache.0, sequence, &mut bytes) } {
        CERTKV_OK => Ok(bytes),
        refused => Err(refused),
    }
}

fn swap_in(cache: &Cache, sequence: certkv_sequence) -> Result<u64, certkv_status> {
    let mut bytes = 7;
    // SAFETY: the out parameter is a local.
    match unsafe { certkv_sequence_swap_in(cache.0, sequence, &mut bytes) } {
        CERTKV_OK => Ok(bytes),
        refused => Err(refused),
    }
}

/// Two sequences with more originals than host memory has room for: in the store, back for a dense step, and gone with the cache.
fn spilled(config: certkv_config, store: *mut certkv_store) {
    let config = certkv_config { max_tokens: 40 * BLOCK, max_context: 9 * BLOCK, max_sequences: 3, ..config };
    let policy = CERTKV_POLICY_DENSE;
    let move_events = 4096;
    let spilling = certkv_config {
        spill_store: store,
        spill_host_tokens: 2 * BLOCK,
        prefix_units: 0,
        policy,
        move_events,
        ..config
    };
    let mut wrong = ptr::dangling_mut();
    // SAFETY: whole structs and a local.
    let refused = unsafe { certkv_cache_create(&certkv_config { spill_in_flight: 1, ..spilling }, &mut wrong) };
    assert!(refused == CERTKV_INVALID_ARGUMENT && wrong.is_null() && message().contains("spill_in_flight"));
    let cache = Cache::new(&spilling);
    let ids = [cache.create(), cache.create()];
    ids.iter().for_each(|id| (0..8).for_each(|_| append(&cache, *id, BLOCK)));
    let seen = cache.snapshot();
    assert!(seen.originals_spilled > 0 && seen.spills.done > 8 && seen.disk.used > 0, "{seen:?}");
    let mut ahead = certkv_prefetched { struct_size: 40, ..Default::default() };
    // SAFETY: a live handle and a whole struct.
    assert_eq!(unsafe { certkv_sequence_prefetch(cache.0, ids[0], &mut ahead) }, CERTKV_OK, "{}", message());
    assert!(ahead.fetched > 0 && ahead.bytes > 0 && ahead.fetched + ahead.left <= ahead.wanted, "{ahead:?}");
    let step = cache.begin(ids[0], 1).unwrap();
    let (row, queries) = ([0x3c00u16; WIDTH], vec![0.5f32; WIDTH * kernels::GROUP]);
    for layer in 0..cache::LAYERS {
        let (mut out, n) = (vec![7.0f32; queries.len()], queries.len() as u64);
        let (at, from, to) = (row.as_ptr().cast(), queries.as_ptr(), out.as_mut_ptr());
        // SAFETY: every buffer has the elements that are given with it.
        unsafe {
            let appended = certkv_step_append(step, layer, at, at, WIDTH as u64, CERTKV_F16, CERTKV_SPACE_HOST);
            assert_eq!(appended, CERTKV_OK, "{}", message());
            let attended = certkv_step_attend(step, layer, from, to, n, ptr::null_mut(), 0, CERTKV_SPACE_HOST);
            assert_eq!(attended, CERTKV_OK, "{}", message());
        }
        assert_eq!(out, queries);
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_finish(step) }, CERTKV_OK, "{}", message());
    let seen = cache.snapshot();
    assert!(seen.fetches.done > 0 && seen.fetches.failed == 0 && seen.host.used <= seen.host.reserved, "{seen:?}");
    // Each put and each fetch has its event, and what was fetched had been put under the same name.
    let (moves, _) = calls::moves(&cache, 0).unwrap();
    let of = |kind| moves.iter().filter(move |event| event.kind == kind);
    assert_eq!(of(CERTKV_MOVE_SPILLED).count() as u64, seen.spills.done);
    assert_eq!(of(CERTKV_MOVE_FETCHED).map(|event| event.bytes).sum::<u64>(), seen.fetches.bytes);
    for event in of(CERTKV_MOVE_SPILLED) {
        assert_eq!((event.sequence, event.block, event.layers), (CERTKV_NO_SEQUENCE, CERTKV_NO_BLOCK, 1));
    }
    for event in of(CERTKV_MOVE_FETCHED) {
        assert!(event.sequence == ids[0] && event.block < 8 && event.layers == 1, "{event:?}");
        let put =
            |put: &&certkv_move_event| (put.page, put.layer) == (event.page, event.layer) && put.number < event.number;
        assert!(of(CERTKV_MOVE_SPILLED).any(|event| put(&event)), "{event:?}");
    }
    let plain = Cache::new(&config);
    assert!(seen.host.reserved < plain.snapshot().host.reserved);
}

/// The fake is one for the process: tests take turns.
fn alone() -> (&'static Fake, certkv_config, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fake = Fake::get();
    fake.with_compiler();
    kernels::declare(fake);
    kernels::begin("k8-v4g32-b16");
    let config = certkv_config {
        device: CERTKV_DEVICE_CUDA,
        q_heads: (kernels::KV_HEADS * kernels::GROUP) as u32,
        kv_heads: kernels::KV_HEADS as u32,
        ..config()
    };
    (fake, config, turn)
}

#[test]
fn a_cache_on_a_gpu_has_the_same_verbs() {
    let (fake, config, _turn) = alone();
    let mut plan = certkv_plan { struct_size: size_of::<certkv_plan>() as u32, ..Default::default() };
    // SAFETY: whole structs.
    assert_eq!(unsafe { certkv_config_plan(&config, &mut plan) }, CERTKV_OK, "{}", message());
    let cache = Cache::new(&config);
    let seen = cache.snapshot();
    let reserved = [seen.packed, seen.scratch, seen.tables, seen.host].map(|class| class.reserved);
    assert_eq!([plan.packed, plan.scratch, plan.tables, plan.host], reserved);
    assert_eq!((plan.assumed, plan.device_lacks, plan.host_lacks), (0, 0, 0));

    let a = cache.create();
    append(&cache, a, TOKENS);
    let scope = prefix_scope(b"tenant");
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();

    // Away and back.
    assert_eq!((cache.is_out(a), swap_in(&cache, a)), (0, Err(CERTKV_NOT_SWAPPED_OUT)));
    let bytes = swap_out(&cache, a).unwrap();
    assert_eq!((cache.is_out(a), cache.length(a), cache.snapshot().swap_pages.live), (1, TOKENS, 2));
    assert_eq!(cache.begin(a, 1), Err(CERTKV_SWAPPED_OUT));
    assert_eq!(cache.publish(a, &scope, &tokens), Err(CERTKV_SWAPPED_OUT));
    assert_eq!(swap_out(&cache, a), Err(CERTKV_SWAPPED_OUT));
    assert_eq!((swap_in(&cache, a), cache.is_out(a)), (Ok(bytes), 0));
    kernels::plant(kernels::Plant::Rot);
    assert_eq!(swap_out(&cache, a), Ok(bytes));
    assert_eq!((swap_in(&cache, a), cache.is_out(a)), (Err(CERTKV_DAMAGED), 1), "{}", message());
    // It falls back with the next copy.
    assert_eq!((swap_in(&cache, a), cache.is_out(a)), (Ok(bytes), 0));
    kernels::plant(kernels::Plant::Nothing);

    // Into a file and back; a file of the host's cache is another one.
    let dir = folder("on_gpu");
    let (path, other) = (c_path(&dir.join("gpu")), c_path(&dir.join("host")));
    let named = save_scope(b"weights", Some(&[5; 32]));
    let written = cache.save(a, &named, &path).unwrap();
    let restored = cache.restore(&named, &path).unwrap();
    assert_eq!((cache.length(restored), cache.save(restored, &named, &path)), (TOKENS, Ok(written)));
    assert_eq!(cache.restore(&save_scope(b"other", Some(&[5; 32])), &path), Err(CERTKV_FILE_REFUSED));
    let host = Cache::new(&certkv_config { device: CERTKV_DEVICE_HOST, ..config });
    let b = host.create();
    append(&host, b, TOKENS);
    host.save(b, &named, &other).unwrap();
    assert_eq!(cache.restore(&named, &other), Err(CERTKV_FILE_REFUSED));
    assert_eq!(host.restore(&named, &path), Err(CERTKV_FILE_REFUSED));
    cache.release(restored);

    // Published and found.
    let done = cache.publish(a, &scope, &tokens).unwrap();
    assert_eq!((done.cached, done.added, done.stop), (2 * BLOCK, 2 * BLOCK, CERTKV_STOP_NONE));
    let (next, found) = cache.create_from(&scope, &tokens).unwrap();
    assert_eq!((found, cache.length(next)), (2 * BLOCK, 2 * BLOCK));

    // Into a store and back, under names of the GPU's own.
    let mut store = ptr::null_mut();
    // SAFETY: the out parameter is a local.
    assert_eq!(unsafe { certkv_store_create_memory(0, &mut store) }, CERTKV_OK);
    assert_eq!((cache.export(store, &tokens, 0), cache.export(store, &tokens, 1)), (Ok(2), Ok(1)));
    assert_eq!(cache.missing(store, &tokens), Ok([0, 0]));
    [a, next].into_iter().for_each(|sequence| cache.release(sequence));
    assert_eq!((cache.evict(u64::MAX), cache.missing(store, &tokens)), (Ok(2), Ok([2, 2])));
    assert_eq!((host.missing(store, &tokens), host.import(store, &tokens, 0)), (Ok([2, 0]), Ok(0)));
    assert_eq!(cache.import(store, &tokens, 0), Ok(2 * BLOCK), "{}", message());
    let [(a, _), (next, found)] = [0, 1].map(|_| cache.create_from(&scope, &tokens).unwrap());
    assert_eq!((found, cache.length(next)), (2 * BLOCK, 2 * BLOCK));
    spilled(config, store);

    // Of ten blocks two are in use, and may be had once nobody uses them.
    assert_eq!(cache.admit(a, 1), Ok((CERTKV_FITS, 0, 0)));
    assert_eq!(cache.admit(CERTKV_NO_SEQUENCE, 8 * BLOCK), Ok((CERTKV_FITS, 0, 0)));
    assert_eq!(cache.admit(CERTKV_NO_SEQUENCE, 10 * BLOCK), Ok((CERTKV_LACKS, 0, 2)));

    // While a step is open the cache is with it; its figures are those from before.
    let figures = || (cache.snapshot(), calls::memory(&cache), calls::metrics(&cache));
    let before = figures();
    let step = cache.begin(next, 1).unwrap();
    assert_eq!(figures(), before);
    assert!(before.0.sequences >= 2 && before.1.tokens >= 2 * BLOCK && before.2.contains("sequences"), "{before:?}");
    let (mut out, mut plain) = (7, 7);
    // SAFETY: locals and whole structs.
    unsafe {
        assert_eq!(certkv_sequence_is_swapped_out(cache.0, a, &mut out), CERTKV_BUSY_STEP);
        assert_eq!(certkv_sequence_create(cache.0, &mut plain), CERTKV_BUSY_STEP);
        assert_eq!(certkv_sequence_prefetch(cache.0, a, ptr::null_mut()), CERTKV_BUSY_STEP);
        assert_eq!(certkv_cache_publish(cache.0, a, &scope, tokens.as_ptr(), 4, ptr::null_mut()), CERTKV_BUSY_STEP);
    }
    assert_eq!((swap_out(&cache, a), swap_in(&cache, a)), (Err(CERTKV_BUSY_STEP), Err(CERTKV_BUSY_STEP)));
    assert_eq!(cache.admit(a, 1), Err(CERTKV_BUSY_STEP));
    assert_eq!(
        (cache.save(a, &named, &path), cache.restore(&named, &path)),
        (Err(CERTKV_BUSY_STEP), Err(CERTKV_BUSY_STEP))
    );
    assert_eq!((cache.create_from(&scope, &tokens), cache.evict(1)), (Err(CERTKV_BUSY_STEP), Err(CERTKV_BUSY_STEP)));
    assert_eq!(
        (cache.export(store, &tokens, 0), cache.import(store, &tokens, 0)),
        (Err(CERTKV_BUSY_STEP), Err(CERTKV_BUSY_STEP))
    );
    assert_eq!(cache.missing(store, &tokens), Err(CERTKV_BUSY_STEP));
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_abort(step) }, CERTKV_OK);

    [a, next].into_iter().for_each(|sequence| cache.release(sequence));
    assert_eq!(cache.admit(CERTKV_NO_SEQUENCE, 10 * BLOCK), Ok((CERTKV_FITS_AFTER_EVICTION, 2, 0)));
    assert_eq!(cache.evict(u64::MAX), Ok(2));
    let left = cache.snapshot();
    assert_eq!((left.sequences, left.packed_pages.live, left.host_pages.live, left.swap_pages.live), (0, 0, 0, 0));
    assert_eq!((left.saves.done, left.restores.done, left.swap_outs.done, left.swap_ins.done), (2, 1, 2, 2));
    assert_eq!((left.swap_ins.bytes, left.prefix_evicted), (2 * bytes, 4));
    drop(cache);

    // Windows, in one layer of two: its blocks go as they leave it.
    let windows = [certkv_window { tokens: 20, sinks: 3, chunk: 0 }, certkv_window::default()];
    let (n_windows, windows) = (windows.len() as u32, windows.as_ptr());
    let cache = Cache::new(&certkv_config { n_windows, windows, ..config });
    let a = cache.create();
    (0..3).for_each(|_| append(&cache, a, TOKENS));
    // Without a window there are seven full blocks; of the other layer there are the sinks', and what 20 tokens and a block of slack are in.
    assert_eq!((cache.length(a), cache.snapshot().packed_pages.live), (3 * TOKENS, 7 + 1 + 2));
    // Found again at its length, and beside it what the sinks' block is a prefix of.
    let long: Vec<u32> = (0..3 * TOKENS as u32).collect();
    let done = cache.publish(a, &scope, &long).unwrap();
    assert_eq!((done.cached, done.added, done.stop), (7 * BLOCK, 7 * BLOCK, CERTKV_STOP_NONE));
    cache.release(a);
    for (asked, there) in [(3 * TOKENS, 7 * BLOCK), (4 * BLOCK, BLOCK)] {
        let (next, found) = cache.create_from(&scope, &long[..asked as usize]).unwrap();
        assert_eq!((found, cache.length(next)), (there, there));
        cache.release(next);
    }
    assert_eq!((cache.evict(u64::MAX), cache.snapshot().packed_pages.live), (Ok(7), 0));
    drop(cache);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_store_destroy(store) }, CERTKV_OK);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

//! What the machine has, kernels that are compiled once, before a cache is made, and certificates in device memory.
use crate::cache::{Cache, c_path, folder, message};
use crate::{WIDTH, alone, append, kernels};
use certkv::gpu::{DeviceBuffer, Gpu, GpuStream};
use certkv_c::certkv_status::*;
use certkv_c::*;
use certkv_device::cuda::Priority;
use core::ffi::CStr;
use core::mem::zeroed;
use core::ptr;
use std::fs;

#[test]
fn kernels_are_compiled_before_a_cache_is_made() {
    let (_fake, config, _turn) = alone();
    // SAFETY: whole structs of integers, for which zero bits are a value.
    let (mut seen, mut info): (certkv_capabilities, certkv_gpu_info) = unsafe { zeroed() };
    (seen.struct_size, info.struct_size) =
        (size_of::<certkv_capabilities>() as u32, size_of::<certkv_gpu_info>() as u32);
    // SAFETY: whole structs.
    unsafe {
        assert_eq!(certkv_capabilities_describe(&mut seen), CERTKV_OK, "{}", message());
        assert_eq!(certkv_gpu_describe(CERTKV_DEVICE_CUDA, &mut info), CERTKV_OK, "{}", message());
        assert_eq!(certkv_gpu_describe(CERTKV_DEVICE_CUDA + seen.gpus, &mut info), CERTKV_DEVICE);
        assert!(!CStr::from_ptr(info.name.as_ptr()).is_empty());
    }
    assert!(seen.gpus > 0 && seen.cuda == CERTKV_OK && info.supported == 1 && info.capability_major >= 8, "{info:?}");
    assert!(info.memory > 0 && info.memory_free <= info.memory && info.multiprocessors > 0 && info.driver >= 12_000);

    let dir = folder("prepared");
    let path = c_path(&dir);
    let config = certkv_config { kernels: path.as_ptr(), ..config };
    let prepare = |config: &certkv_config| {
        let mut made = certkv_prepared { struct_size: size_of::<certkv_prepared>() as u32, ..Default::default() };
        // SAFETY: whole structs.
        let status = unsafe { certkv_prepare(config, &mut made) };
        (status, made.kernels, made.compiled)
    };
    let (status, kernels, compiled) = prepare(&config);
    assert!(status == CERTKV_OK && compiled == kernels && kernels > 6, "{kernels} {compiled} {}", message());
    assert!(fs::read_dir(&dir).unwrap().count() > 0, "compiled code is kept");
    // Kept code is compiled no more, and a cache finds it. What does not fit a budget has kernels all the same.
    assert_eq!(prepare(&config), (CERTKV_OK, kernels, 0));
    assert_eq!(prepare(&certkv_config { device_budget: 1, ..config }), (CERTKV_OK, kernels, 0));
    drop(Cache::new(&config));
    let other = certkv_config { chunk_tokens: 32, ..config };
    let (status, more, compiled) = prepare(&other);
    assert!(status == CERTKV_OK && more > kernels && compiled > 0 && compiled < more, "{more} {compiled}");
    assert_eq!(
        prepare(&certkv_config { format: c"k0-v4g32-b16".as_ptr(), ..config }).0,
        CERTKV_DEVICE,
        "no such kernels"
    );
    fs::remove_dir_all(dir).unwrap();
}

/// Of two single tokens, and of two drafts, whose tokens have places of their own.
#[test]
fn certificates_go_to_device_memory() {
    for tokens in [1, 3] {
        published(tokens);
    }
}

fn published(tokens: usize) {
    let (_fake, config, _turn) = alone();
    let cache = Cache::new(&certkv_config { plan_apart: 1, chunk_tokens: 8, ..config });
    let [a, b] = [cache.create(), cache.create()];
    [a, b].iter().for_each(|id| append(&cache, *id, 20));
    let heads = kernels::KV_HEADS * kernels::GROUP;
    let (seqs, layers) = (2 * tokens, crate::cache::LAYERS as usize);
    let bytes = size_of::<certkv_published_memory>() + 16 * layers * seqs * heads;
    let gpu = Gpu::open(0).unwrap();
    let stream = GpuStream::new(&gpu, Priority::Normal).unwrap();
    let memory = DeviceBuffer::new(&gpu, bytes + 16).unwrap();
    memory.fill(&stream, 0, bytes + 16, 0xee).unwrap();
    let at = memory.address() as *mut certkv_published_memory;
    let chunks = [a, b].map(|sequence| certkv_chunk { sequence, tokens: tokens as u64 });
    let (mut step, n) = (ptr::null_mut(), (seqs * WIDTH) as u64);
    let (rows, queries) = (vec![0x3c00u16; seqs * WIDTH], vec![0.5f32; seqs * WIDTH * kernels::GROUP]);
    let mut out = queries.clone();
    // SAFETY: every buffer has the elements or bytes that are given with it.
    unsafe {
        assert_eq!(certkv_step_begin(cache.0, chunks.as_ptr(), 2, &mut step), CERTKV_OK, "{}", message());
        for layer in 0..crate::cache::LAYERS {
            let (row, from, to) = (rows.as_ptr().cast(), queries.as_ptr(), out.as_mut_ptr());
            assert_eq!(certkv_step_append(step, layer, row, row, n, CERTKV_F16, CERTKV_SPACE_HOST), CERTKV_OK);
            let all = queries.len() as u64;
            assert_eq!(certkv_step_plan(step, layer), CERTKV_ORDER, "not attended");
            let attended = certkv_step_attend(step, layer, from, to, all, ptr::null_mut(), 0, CERTKV_SPACE_HOST);
            assert_eq!(attended, CERTKV_OK, "{}", message());
            assert_eq!([certkv_step_plan(step, layer), certkv_step_plan(step, layer)], [CERTKV_OK; 2], "{}", message());
        }
        for (status, word, memory, bytes) in [
            (CERTKV_SHAPE, "memory", at, bytes as u64 - 1),
            (CERTKV_MISALIGNED, "memory", at.byte_add(4), bytes as u64),
            (CERTKV_NULL_POINTER, "memory", ptr::null_mut(), bytes as u64),
        ] {
            assert_eq!(
                (certkv_step_publish(step, memory, bytes), message().contains(word)),
                (status, true),
                "{}",
                message()
            );
        }
        assert!(certkv_step_publish(step, out.as_mut_ptr().cast(), bytes as u64) != CERTKV_OK, "memory of the host");
        for _ in 0..2 {
            assert_eq!(certkv_step_publish(step, at, bytes as u64), CERTKV_OK, "{}", message());
        }
        assert_eq!(certkv_step_finish(step), CERTKV_OK, "{}", message());
    }
    let mut words = vec![0u64; bytes / 8 + 2];
    memory.read(&stream, 0, &mut words).unwrap();
    // SAFETY: a struct of integers in front of the heads, and as many heads.
    let (head, all) = unsafe {
        let all = words[12..].as_ptr().cast::<certkv_published_head>();
        (
            words.as_ptr().cast::<certkv_published_memory>().read(),
            core::slice::from_raw_parts(all, layers * seqs * heads),
        )
    };
    assert_eq!((head.number, head.sequences, head.layers, head.q_heads), (2, seqs as u32, layers as u32, heads as u32));
    assert!(all.iter().all(|head| head.bound == 0.25 && head.status == CERTKV_CERTIFIED));
    assert_eq!(words[bytes / 8..], [0xeeee_eeee_eeee_eeee; 2], "nothing is written behind it");
}

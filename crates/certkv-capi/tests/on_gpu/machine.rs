//! What the machine has, and kernels that are compiled once, before a cache is made.
use crate::alone;
use crate::cache::{Cache, c_path, folder, message};
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::ffi::CStr;
use core::mem::zeroed;
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
        prepare(&certkv_config { format: c"k4-v4g32-b16".as_ptr(), ..config }).0,
        CERTKV_DEVICE,
        "no such kernels"
    );
    fs::remove_dir_all(dir).unwrap();
}
